"""Write the results of the corpus into docs/corpus.md, or check that the page has them.

    python table.py results --write=../docs/corpus.md

``results`` is a folder in which, at any depth, are reports called ``report.json`` and what evidence.py found out about each of
them, ``evidence.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from onnx_ci.report.markdown import escape
from onnx_ci.report.merge import merge
from onnx_ci.results.files import read_reports
from onnx_ci.results.records import CellResult, Finding, Severity, Status
from onnx_ci.results.run_report import RunReport

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from support_table import check_in, write_into

TITLES = {"torchscript": "TorchScript", "dynamo": "dynamo", "transformers": "transformers"}
PASSED, WARNED, KNOWN, FAILED = "✅", "⚠️", "❌", "❗"


def mark(result: CellResult) -> str:
    """The outcome of a cell."""
    if result.status is Status.XFAILED:
        return KNOWN
    if result.status is not Status.PASSED:
        return FAILED
    return WARNED if result.warnings else PASSED


def rules_of(findings: Iterable[Finding], severity: Severity) -> list[str]:
    """The rules that findings of one severity are about."""
    return list(dict.fromkeys(each.rule for each in findings if each.severity is severity))


def headline(cells: Iterable[CellResult]) -> str:
    """The counts."""
    cells = list(cells)
    counts = Counter(map(mark, cells))
    rules = Counter(rule for each in cells for rule in rules_of(each.findings, Severity.ERROR))
    recipes = {each.cell.recipe for each in cells}
    parts = [
        f"**{len(recipes)} architectures, {len(cells)} cells**",
        f"{counts[PASSED] + counts[WARNED]} passed, {counts[WARNED]} of them with a warning ({WARNED})",
        f"{counts[KNOWN]} fail as they are known to ({KNOWN})",
        f"{counts[FAILED]} fail otherwise ({FAILED})" if counts[FAILED] else "none fails otherwise",
        f"{rules['internal-error']} internal errors",
    ]
    return "; ".join(parts) + "."


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


def page(report: RunReport, versions: Mapping[str, str], evidence: Mapping[str, str | None]) -> str:
    """Everything between the marks of docs/corpus.md."""
    files: dict[str, dict[str, dict[str, CellResult]]] = {}
    for result in report.cells:
        cell = result.cell
        files.setdefault(cell.source, {}).setdefault(cell.recipe, {})[f"{TITLES[cell.exporter]}, opset {cell.opset}"] = result
    made_with = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"Made with {made_with}.", "", headline(report.cells), ""]
    for source, recipes in files.items():
        name = Path(source).name
        columns = sorted({column for cells in recipes.values() for column in cells})
        lines += [f"### [{name}](../corpus/{source})", "", f"| architecture | {' | '.join(columns)} |"]
        lines += ["| --- |" + " :-: |" * len(columns)]
        for recipe, cells in recipes.items():
            marks = (mark(cells[column]) if column in cells else "·" for column in columns)
            lines.append(f"| `{recipe}` | {' | '.join(marks)} |")
        lines.append("")
    return "\n".join([*lines, *known_failures(report.cells, evidence), *warned(report.cells)]) + "\n"


def known_failures(cells: Iterable[CellResult], evidence: Mapping[str, str | None]) -> Iterator[str]:
    """Each failure with its reason and its evidence."""
    yield "### Known failures"
    yield ""
    yield "| architecture | exporter | breaks | why | evidence |"
    yield "| --- | --- | --- | --- | --- |"
    for each in cells:
        if mark(each) in (KNOWN, FAILED):
            rules = ", ".join(f"`{rule}`" for rule in rules_of(each.findings, Severity.ERROR))
            why = each.reason or "not declared"
            shown = evidence.get(each.cell.id) or "none"
            words = (f"`{each.cell.recipe}`", each.cell.exporter, rules, escape(why), in_a_cell(shown))
            yield f"| {' | '.join(words)} |"


def in_a_cell(text: str) -> str:
    """Evidence as a cell of a Markdown table; it contains code between backticks."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def warned(cells: Iterable[CellResult]) -> Iterator[str]:
    """The recipes with warnings, by rule."""
    by_rule: dict[str, list[str]] = {}
    for each in cells:
        for rule in rules_of(each.warnings, Severity.WARNING):
            by_rule.setdefault(rule, []).append(f"`{each.cell.recipe}` ({each.cell.exporter})")
    if by_rule:
        yield ""
        yield "### Warnings"
        yield ""
    for rule, where in sorted(by_rule.items()):
        yield f"- [`{rule}`](rules/{rule}.md): {', '.join(where)}"


def main() -> None:
    """Print, write or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="the folder with report.json and evidence.json")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the results into PAGE, between its marks")
    parser.add_argument("--check", type=Path, metavar="PAGE", help="fail if PAGE has other results")
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
    print(headline(report.cells))
    print(cost(report.cells))
    results = page(report, versions, evidence)
    if options.write is not None:
        write_into(options.write, results)
    elif options.check is not None:
        check_in(options.check, results)
    else:
        print(results)


if __name__ == "__main__":
    main()
