"""A report as SARIF 2.1.0, in which code scanning takes what is wrong with lines of a repository.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path
from typing import Any

from onnx_ci.report.annotations import ANYWHERE, OTHER_RULE, Annotation, remarks_on_code
from onnx_ci.results.rules import RULES
from onnx_ci.results.run_report import RunReport
from onnx_ci.version import __version__

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(report: RunReport, directory: Path, workspace: Path) -> str:
    """The failures and warnings of a report; each cause is one result.

    Args:
        report: the report of one run, or a merged one.
        directory: where the command ran.
        workspace: the root of the repository, to which the paths are relative.
    """
    annotations = remarks_on_code(report, directory, workspace)
    used = dict.fromkeys(each.rule or OTHER_RULE for each in annotations)
    run = {
        "tool": {"driver": {"name": "onnx-ci", "version": __version__, "rules": [_rule(each) for each in used]}},
        "results": [_result(each) for each in annotations],
        "columnKind": "unicodeCodePoints",
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def _rule(name: str) -> dict[str, Any]:
    if name not in RULES:
        return {"id": name, "shortDescription": {"text": "A recipe file cannot be used, or cells did not run."}}
    rule = RULES[name]
    return {"id": name, "shortDescription": {"text": rule.meaning}, "help": {"text": rule.remedy}}


def _result(annotation: Annotation) -> dict[str, Any]:
    # Code scanning refuses a result without a place.
    place: dict[str, Any] = {"artifactLocation": {"uri": urllib.parse.quote(annotation.file or ANYWHERE)}}
    if annotation.file is not None and annotation.line is not None:
        place["region"] = {"startLine": annotation.line}
    return {
        "ruleId": annotation.rule or OTHER_RULE,
        "level": annotation.level,
        "message": {"text": f"{annotation.title}\n{annotation.message}"},
        "partialFingerprints": {"cause/v1": annotation.fingerprint},
        "locations": [{"physicalLocation": place}],
    }
