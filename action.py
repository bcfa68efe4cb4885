"""What ``action.yml`` starts in the caller's Python, as a file, so that no folder of the caller's can hide a module of ours."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - whoever comes here with an older Python is told
    sys.stdout.write(
        "::error title=onnx-ci::onnx-ci needs Python 3.11 or later, and this is %d.%d; "  # noqa: UP031
        "set one up before this step, with actions/setup-python, or name one in the input 'python'\n" % sys.version_info[:2]
    )
    sys.exit(4)

from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from onnx_ci.github.action import main

sys.exit(main(sys.argv[1:]))
