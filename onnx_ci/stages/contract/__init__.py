"""Step 5: from an ONNX file and a prepared recipe to findings that need no inference, and the facts of a baseline."""
