"""The ``onnx-ci`` command: one module per subcommand. Nothing else in the package imports it.

In come the words of the command line; out go printed results, written files and an exit code. A subcommand only parses, calls
the session or the API, and shows.
"""
