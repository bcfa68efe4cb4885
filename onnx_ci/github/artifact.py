"""The report in an artifact, as untrusted data: anyone who opens a pull request can choose its content.

Nothing is extracted. Members are read into memory up to a limit, and the report is validated completely.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.errors import ConfigurationError
from onnx_ci.results.files import report_in
from onnx_ci.results.run_report import RunReport

DOWNLOAD_LIMIT = 256 * 1024 * 1024
"""Bytes of an artifact."""
MEMBER_LIMIT = 64 * 1024 * 1024
"""Bytes of a file in it, unpacked."""
_MOST_MEMBERS = 10_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IS_ENCRYPTED = 0x1


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A downloaded artifact.

    Args:
        file: the archive.
        name: what to call it in messages.
    """

    file: Path
    name: str

    def report(self) -> RunReport:
        """The report in the archive.

        Raises:
            ConfigurationError: it contains no report that can be used; the message says why.
        """
        return report_in(self.member("report.json"), Path(self.name, "report.json"))

    def member(self, name: str) -> bytes:
        """The content of the file ``name`` in the archive.

        Raises:
            ConfigurationError: there is no such file, or it cannot be read.
        """
        try:
            with zipfile.ZipFile(self.file) as archive:
                members = [member for member in archive.infolist()[:_MOST_MEMBERS] if member.filename == name]
                if len(members) != 1:
                    raise self._error(f"contains {len(members) or 'no'} {name}")
                if members[0].flag_bits & _IS_ENCRYPTED or members[0].compress_type not in _METHODS:
                    raise self._error(f"contains {name} in a form that GitHub does not write")
                with archive.open(members[0]) as stream:
                    content = stream.read(MEMBER_LIMIT + 1)
        except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
            raise self._error("is not a zip archive that can be read") from None
        if len(content) > MEMBER_LIMIT:
            raise self._error(f"contains {name} with more than {MEMBER_LIMIT >> 20} MiB")
        return content

    def _error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(
            f"the artifact {self.name!r} {problem}; upload it with the action of onnx-ci, with 'upload: always' and this "
            "'artifact-name'"
        )
