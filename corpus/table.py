"""Write the results of the corpus as data, which the site shows on the page Architectures, or check that the file has them.

    python table.py results --write=../docs/data/corpus.json

``results`` is a folder in which, at any depth, are reports called ``report.json`` and what evidence.py found out about each of
them, ``evidence.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onnx_ci.report.merge import merge
from onnx_ci.results.files import read_reports
from onnx_ci.results.records import CellResult, Finding, Severity, Status

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from tables import headline, write_or_check


def described(result: CellResult, evidence: Mapping[str, str | None]) -> dict[str, Any]:
    """A cell as data: its outcome; a failure with its rules, its reason and its evidence; otherwise its warnings."""
    cell = result.cell
    is_known = result.status is Status.XFAILED
    failed = is_known or result.status is not Status.PASSED
    warnings = rules_of(result.warnings, Severity.WARNING)
    described = {
        "source": cell.source,
        "recipe": cell.recipe,
        "exporter": cell.exporter,
        "opset": cell.opset,
        "outcome": "known" if is_known else "failed" if failed else "warned" if result.warnings else "passed",
    }
    if failed:
        described |= {
            "rules": rules_of(result.findings, Severity.ERROR),
            "why": result.reason or "not declared",
            "evidence": evidence.get(cell.id) or "none",
        }
    return described | ({"warnings": warnings} if warnings else {})


def rules_of(findings: Iterable[Finding], severity: Severity) -> list[str]:
    """The rules that findings of one severity are about."""
    return list(dict.fromkeys(each.rule for each in findings if each.severity is severity))


def cost(cells: Iterable[CellResult]) -> str:
    """How long the first TorchScript cell of a recipe takes, in units of its export; the later ones reuse its preparation."""
    # A failed export stops early, so its time says nothing about what a whole one costs.
    exported = (each for each in cells if each.cell.exporter == "torchscript" and each.facts is not None)
    ratios = {each.cell.recipe: each.seconds / each.timings["export"] for each in exported if "build" in each.timings}
    if not ratios:
        return "No recipe has a first TorchScript cell that was exported."
    slowest = max(ratios, key=ratios.__getitem__)
    median, most = statistics.median(ratios.values()), ratios[slowest]
    return f"First TorchScript cell of a recipe: {median:.1f} × its export in the median, {most:.1f} at worst ({slowest})."


def main() -> None:
    """Print, write or check the data."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="the folder with report.json and evidence.json")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument("--check", type=Path, metavar="FILE", help="fail if FILE has other results")
    options = parser.parse_args()
    reports = sorted(options.results.rglob("report.json"))
    if not reports:
        sys.exit(f"{options.results} contains no report.json; run tox run -e corpus")
    report = merge(read_reports(reports))
    versions: dict[str, str] = {}
    evidence: dict[str, str | None] = {}
    for path in sorted(options.results.rglob("evidence.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        versions |= found["versions"]
        evidence |= found["evidence"]
    cells = [described(each, evidence) for each in report.cells]
    print(headline(cells), cost(report.cells), sep="\n")
    write_or_check({"versions": versions, "cells": cells}, write=options.write, check=options.check)


if __name__ == "__main__":
    main()
