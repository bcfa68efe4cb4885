"""The recipe library: exports that are worth copying, run on every commit of onnx-ci."""
