"""The report in an artifact, as untrusted data: anyone who opens a pull request can choose its content.

Nothing is extracted. The report is read into memory up to a limit, and validated completely.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from onnx_ci.errors import ConfigurationError
from onnx_ci.results.files import report_in
from onnx_ci.results.run_report import RunReport

DOWNLOAD_LIMIT = 256 * 1024 * 1024
"""Bytes of an artifact."""
MEMBER_LIMIT = 64 * 1024 * 1024
"""Bytes of the report in it, unpacked."""
_MEMBER = "report.json"
_MOST_MEMBERS = 10_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IS_ENCRYPTED = 0x1


def report_of(archive: Path, artifact: str) -> RunReport:
    """The report in a downloaded archive. If there is none that can be used, the error names the ``artifact`` and says why."""
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [member for member in opened.infolist()[:_MOST_MEMBERS] if member.filename == _MEMBER]
            if len(members) != 1:
                raise _unusable(artifact, f"contains {len(members) or 'no'} {_MEMBER}")
            if members[0].flag_bits & _IS_ENCRYPTED or members[0].compress_type not in _METHODS:
                raise _unusable(artifact, f"contains {_MEMBER} in a form that GitHub does not write")
            with opened.open(members[0]) as stream:
                content = stream.read(MEMBER_LIMIT + 1)
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise _unusable(artifact, "is not a zip archive that can be read") from None
    if len(content) > MEMBER_LIMIT:
        raise _unusable(artifact, f"contains {_MEMBER} with more than {MEMBER_LIMIT >> 20} MiB")
    return report_in(content, Path(artifact, _MEMBER))


def _unusable(artifact: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the artifact {artifact!r} {problem}; upload it with the action of onnx-ci, with 'upload: always' and this "
        "'artifact-name'"
    )
