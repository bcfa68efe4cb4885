"""A report as GitLab's code quality, which a merge request shows at the lines that it is about.

Source: GitLab's documentation, "Code Quality", section "Code Quality report format".
"""

from __future__ import annotations

import json
from pathlib import Path

from onnx_ci.report.annotations import ANYWHERE, OTHER_RULE, remarks_on_code
from onnx_ci.results.run_report import RunReport

_SEVERITIES = {"error": "major", "warning": "minor"}


def render(report: RunReport, directory: Path, workspace: Path) -> str:
    """The failures and warnings of a report; each cause is one violation.

    Args:
        report: the report of one run, or a merged one.
        directory: where the command ran.
        workspace: the root of the repository, to which the paths are relative.
    """
    violations = [
        {
            "check_name": f"onnx-ci/{each.rule or OTHER_RULE}",
            "description": f"{each.title}: {each.message}",
            "fingerprint": each.fingerprint,
            "severity": _SEVERITIES[each.level],
            "location": {"path": each.file or ANYWHERE, "lines": {"begin": (each.file and each.line) or 1}},
        }
        for each in remarks_on_code(report, directory, workspace)
    ]
    return json.dumps(violations, indent=1, ensure_ascii=False) + "\n"
