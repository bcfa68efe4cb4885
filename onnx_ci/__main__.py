"""The ``onnx-ci`` command, also as ``python -m onnx_ci``."""

import signal


def main() -> None:
    """Run the command. Ctrl-C during its imports, before there is anything to finish, ends the process without a traceback."""
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from onnx_ci.cli.main import main as command

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
