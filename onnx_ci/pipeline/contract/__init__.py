"""From an ONNX file and a prepared recipe to findings that need no inference, and to the facts of a baseline.

What the file declares is compared with what the recipe declares, and its weights with the model's.
"""
