"""From an ONNX file and the model of its recipe to findings that need no inference, and to the facts of a baseline.

What the file declares is compared with what the recipe declares, and its weights with the model's. A trace of the model shows
which of these a file must contain.
"""
