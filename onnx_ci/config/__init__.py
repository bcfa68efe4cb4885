"""``[tool.onnx-ci]``, the environment and flags in; one frozen value of :class:`~onnx_ci.config.settings.Settings` out.

What settings there are is one table (``options``). Any later room may import this one.
"""
