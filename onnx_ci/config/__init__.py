"""``[tool.onnx-ci]``, the environment and flags in; one frozen value of :class:`~onnx_ci.config.settings.Settings` out.

All settings are in one table, in ``options``. Any later room may import this one.
"""
