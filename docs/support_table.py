"""The data of the support tables: each recipe with each exporter at each opset, from the reports of real runs.

    python docs/support_table.py REPORT... [--write=FILE | --check=FILE]

Without an option, the data is printed. It contains only what is the same on every machine with the same versions: rules,
operators and declared reasons, but no numbers. ``tables.py`` shows it on the site.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tables import write_or_check

from onnx_ci.errors import OnnxCiError
from onnx_ci.opsets import exporter_order, format_opsets
from onnx_ci.report.findings import describe_finding
from onnx_ci.report.merge import merge
from onnx_ci.results.files import read_reports
from onnx_ci.results.records import CellResult, Finding, Severity, Status
from onnx_ci.results.run_report import RunReport

_PACKAGES = ("onnx-ci", "torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu")
"""The packages whose versions are listed above the table."""
_NO_FILE = frozenset({"unsupported-operator", "unsupported-opset", "export-error"})
_NO_VERDICT = frozenset({"crash", "timeout", "out-of-memory", "disk-error", "recipe-error", "internal-error"})
_EXPECTATION_RULE = "unexpected-pass"
_LONGEST = 300
"""The limit on the length of a reason."""


def support_data(report: RunReport) -> dict[str, Any]:
    """The data of a table: recipes in the order in which they ran, each with TorchScript before dynamo.

    Only cells on the CPU count, and only the exporter's own files: the table is about the exporters.
    """
    # The CPU build of torch has the version 2.13.0+cpu; its exporters are the same.
    versions = {name: report.environment[name].partition("+")[0] for name in _PACKAGES if name in report.environment}
    recipes: dict[str, dict[str, dict[int, CellResult]]] = {}
    for result in report.cells:
        cell = result.cell
        if cell.graph_pass is None and cell.device == "cpu":
            recipes.setdefault(cell.recipe, {}).setdefault(cell.exporter, {})[cell.opset] = result
    rows = [
        {"recipe": recipe, "exporter": exporter, "results": list(_grouped(exporters[exporter]))}
        for recipe, exporters in recipes.items()
        for exporter in sorted(exporters, key=exporter_order)
    ]
    return {"versions": versions, "rows": rows}


def _grouped(results: Mapping[int, CellResult]) -> Iterator[dict[str, Any]]:
    """The different results of a recipe with an exporter, each with its opsets."""
    groups: list[tuple[dict[str, Any], list[int]]] = []
    for opset, result in sorted(results.items()):
        outcome = _described(result)
        opsets = next((opsets for other, opsets in groups if other == outcome), None)
        if opsets is None:
            groups.append((outcome, [opset]))
        else:
            opsets.append(opset)
    yield from ({"opsets": format_opsets(opsets), **outcome} for outcome, opsets in groups)


def _described(result: CellResult) -> dict[str, Any]:
    """The outcome of a cell; what is wrong or unsupported with its rules or operators and its reason."""
    outcome, errors = outcome_of(result), _errors(result)
    if outcome == "elsewhere":
        return {"outcome": outcome, "written": next(error.opset for error in errors if error.opset)}
    if outcome in ("passed", "not-run"):
        return {"outcome": outcome}
    operators = [error.operator for error in errors if error.operator] if outcome == "unsupported" else []
    why = result.reason or describe_finding(errors[0])
    return {
        "outcome": outcome,
        "what": list(dict.fromkeys(operators or [error.rule for error in errors])),
        "why": why if len(why) <= _LONGEST else f"{why[: _LONGEST - 1]}…",
    }


def outcome_of(result: CellResult) -> str:
    """The outcome of a cell. An expected failure counts as a failure, because the table shows what works."""
    if result.status is Status.SKIPPED:
        return "not-run"
    rules = {error.rule for error in _errors(result)}
    if not rules:
        return "passed"
    if rules & _NO_VERDICT:
        return "unknown"
    if rules & _NO_FILE:
        return "unsupported"
    return "elsewhere" if rules == {"opset-mismatch"} else "wrong"


def _errors(result: CellResult) -> list[Finding]:
    return [each for each in result.findings if each.severity is Severity.ERROR and each.rule != _EXPECTATION_RULE]


def main() -> None:
    """Print the data, write it to a file, or check that the file has it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("reports", nargs="+", type=Path, help="files that onnx-ci run --report wrote, or folders of them")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--write", type=Path, metavar="FILE", help="write the data to FILE")
    target.add_argument("--check", type=Path, metavar="FILE", help="fail if FILE has other data")
    options = parser.parse_args()
    try:
        report = merge(read_reports(options.reports))
    except OnnxCiError as error:
        sys.exit(str(error))
    if not report.cells:
        sys.exit("the reports contain no cells, so there is no table")
    if report.not_run:
        sys.exit(
            f"the run was stopped before {len(report.not_run)} of its cells ran, first {report.not_run[0]}: a table of the "
            "others would look complete; let the run finish"
        )
    write_or_check(support_data(report), write=options.write, check=options.check)


if __name__ == "__main__":
    main()
