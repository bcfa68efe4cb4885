"""An ONNX file by itself, without torch: its signature, its text without weights, the difference between two files.

Imported by the stages and the front-ends.
"""
