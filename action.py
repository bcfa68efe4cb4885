"""The entry point of the actions in the caller's Python. A file, so that no folder of the caller can shadow our modules."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - reports an older Python
    sys.stdout.write(
        "::error title=onnx-ci::onnx-ci requires Python 3.11 or later, but this is %d.%d; "  # noqa: UP031
        "set one up before this step, with actions/setup-python, or name one in the input 'python'\n" % sys.version_info[:2]
    )
    sys.exit(4)

from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from onnx_ci.github.action import main

sys.exit(main(sys.argv[1:]))
