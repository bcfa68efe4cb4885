"""``python -m onnx_ci``: the ``onnx-ci`` command."""

from onnx_ci.cli.main import main

if __name__ == "__main__":
    main()
