"""Settings, resolved once from ``[tool.onnx-ci]``, the environment and flags, as defined by one table of options.

Any later package may import it.
"""
