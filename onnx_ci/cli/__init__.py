"""The ``onnx-ci`` command: the commands of the gate, a module each, and the door through which the others come.

In come the words of the command line; out go printed results, written files and an exit code. A command only parses, calls the
session or the API, and shows. Of the package, only the tools import it.
"""
