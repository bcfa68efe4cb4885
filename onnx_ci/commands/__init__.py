"""The commands of ``onnx-ci``, one a module; :mod:`onnx_ci.cli` gathers them."""
