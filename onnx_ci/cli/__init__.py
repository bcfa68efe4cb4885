"""The ``onnx-ci`` command: one module per subcommand. Not imported by the rest of the package."""
