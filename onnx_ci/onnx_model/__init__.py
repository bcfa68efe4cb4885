"""From an ONNX file to facts and findings about it by itself, without torch and without running it.

They are its signature, its operators, precision and weights, and its contents without weights.
"""
