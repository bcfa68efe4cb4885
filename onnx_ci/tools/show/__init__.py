"""ONNX files in, their graph as text out, or what differs between two of them: the command ``show``."""
