"""Operators that torch.onnx cannot convert by itself, and the ways to convert them."""
