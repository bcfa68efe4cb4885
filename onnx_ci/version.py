"""The version of onnx-ci, without importing anything else of it."""

__version__ = "0.1.0"
