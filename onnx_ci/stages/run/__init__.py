"""Step 6: from an ONNX file and inputs to output tensors, with one module for each runtime, all behind one protocol.

To add a runtime, see :mod:`onnx_ci.stages.run.runtimes`.
"""
