"""The tables of results that the site shows, from the data in ``docs/data``.

``support_table.py`` and ``corpus/table.py`` write that data from the reports of real runs. This module also holds what both
need to write a file of data or to compare it. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx_ci.opsets import parse_opsets
from onnx_ci.report.markdown import escape

DATA = Path(__file__).parent / "data"

SUPPORT = {
    "passed": ("✅", "passed"),
    "wrong": ("❌", "a file was written, and it is wrong"),
    "unsupported": ("➖", "no file was written"),
    "elsewhere": ("→", "the exporter wrote this opset instead"),
    "unknown": ("❔", "could not be judged"),
    "not-run": ("·", "did not run"),
}
"""The outcomes of a recipe at an opset, each with its mark in the table and its meaning."""

CORPUS = {"passed": "✅", "warned": "⚠️", "known": "❌", "failed": "❗"}
"""The outcomes of an architecture, each with its mark."""
TITLES = {"torchscript": "TorchScript", "dynamo": "dynamo", "transformers": "transformers"}


def table(name: str) -> str:
    """The Markdown of the table whose data is ``docs/data/NAME.json``."""
    data = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return render_corpus(data) if name == "corpus" else render_support(data)


def made_with(versions: Mapping[str, str]) -> str:
    """The first line of a table."""
    return f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."


def _row(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def _code(text: str) -> str:
    """``text`` as inline code; as escaped HTML if it contains characters that would end the code."""
    return f"<code>{escape(text)}</code>" if set(text) & set("`|\n") else f"`{text}`"


# --- recipes and operators ----------------------------------------------------------------------------------------------


def by_opset(row: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The results of a recipe with an exporter, by opset."""
    return {opset: result for result in row["results"] for opset in parse_opsets(result["opsets"])}


def render_support(data: Mapping[str, Any]) -> str:
    """What works from which opset: the table, its legend, and one line for each thing that is wrong or unsupported."""
    rows = [(row, by_opset(row)) for row in data["rows"]]
    opsets = sorted({opset for _, results in rows for opset in results})
    lines = [
        made_with(data["versions"]),
        "",
        _row(["recipe", "exporter", "safe from", *map(str, opsets)]),
        "| --- | --- | ---: |" + " :-: |" * len(opsets),
    ]
    counts: Counter[str] = Counter()
    for row, results in rows:
        of_row = [results.get(opset, {"outcome": "not-run"}) for opset in opsets]
        counts.update(each["outcome"] for each in of_row)
        marks = (f"{SUPPORT[each['outcome']][0]}{each.get('written', '')}" for each in of_row)
        lines.append(_row([_code(row["recipe"]), row["exporter"], str(lowest_safe(results) or "–"), *marks]))
    legend = "; ".join(f"{mark} {text} ({counts[name]:,})" for name, (mark, text) in SUPPORT.items() if counts[name])
    lines += ["", f"{legend}. A recipe is safe from the lowest opset from which on every cell passed."]
    notes = [
        f"- {_code(row['recipe'])}, {row['exporter']}, opset {each['opsets']}: {each['outcome']}, "
        f"{', '.join(map(_code, each['what']))}: {escape(each['why'])}"
        for row, _ in rows
        for each in row["results"]
        if "why" in each
    ]
    return "\n".join([*lines, *(["", "What is wrong, and what is unsupported:", "", *notes] if notes else [])]) + "\n"


def lowest_safe(results: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The lowest opset from which on every cell passed; ``None`` if the highest one failed."""
    safe = None
    for opset in sorted(results, reverse=True):
        if results[opset]["outcome"] != "passed":
            break
        safe = opset
    return safe


# --- architectures ------------------------------------------------------------------------------------------------------


def headline(cells: Iterable[Mapping[str, Any]]) -> str:
    """The counts of the corpus."""
    cells = list(cells)
    counts = Counter(each["outcome"] for each in cells)
    parts = [
        f"**{len({each['recipe'] for each in cells})} architectures, {len(cells)} cells**",
        f"{counts['passed'] + counts['warned']} passed, {counts['warned']} of them with a warning ({CORPUS['warned']})",
        f"{counts['known']} fail as they are known to ({CORPUS['known']})",
        f"{counts['failed']} fail otherwise ({CORPUS['failed']})" if counts["failed"] else "none fails otherwise",
        f"{sum('internal-error' in each.get('rules', ()) for each in cells)} internal errors",
    ]
    return "; ".join(parts) + "."


def render_corpus(data: Mapping[str, Any]) -> str:
    """The architectures of each file with each exporter, each failure with its reason and its evidence, and the warnings."""
    files: dict[str, dict[str, dict[str, str]]] = {}
    for cell in data["cells"]:
        marks = files.setdefault(cell["source"], {}).setdefault(cell["recipe"], {})
        marks[f"{TITLES[cell['exporter']]}, opset {cell['opset']}"] = CORPUS[cell["outcome"]]
    lines = [made_with(data["versions"]), "", headline(data["cells"]), ""]
    for source, recipes in files.items():
        columns = sorted({column for marks in recipes.values() for column in marks})
        lines += [f"### [{Path(source).name}](../corpus/{source})", "", _row(["architecture", *columns])]
        lines += ["| --- |" + " :-: |" * len(columns)]
        lines += [_row([f"`{recipe}`", *(marks.get(column, "·") for column in columns)]) for recipe, marks in recipes.items()]
        lines.append("")
    return "\n".join([*lines, *_failures(data["cells"]), *_warnings(data["cells"])]) + "\n"


def _failures(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("### Known failures", "", _row(["architecture", "exporter", "breaks", "why", "evidence"]))
    yield "| --- | --- | --- | --- | --- |"
    for each in cells:
        if "why" in each:
            rules = ", ".join(f"`{rule}`" for rule in each["rules"])
            evidence = each["evidence"].replace("|", "\\|").replace("<", "&lt;")  # it contains code between backticks
            yield _row([f"`{each['recipe']}`", each["exporter"], rules, escape(each["why"]), evidence])


def _warnings(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    by_rule: dict[str, list[str]] = {}
    for each in cells:
        for rule in each.get("warnings", ()):
            by_rule.setdefault(rule, []).append(f"`{each['recipe']}` ({each['exporter']})")
    if by_rule:
        yield from ("", "### Warnings", "")
    for rule, where in sorted(by_rule.items()):
        yield f"- [`{rule}`](rules/{rule}.md): {', '.join(where)}"


# --- the files ----------------------------------------------------------------------------------------------------------


def format_data(data: Mapping[str, Any]) -> str:
    """JSON with one line for each element of a list, so that a diff shows which of them differ."""

    def format_value(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(value, ensure_ascii=False)
        return "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in value) + "\n]"

    return "{\n" + ",\n".join(f"{json.dumps(name)}: {format_value(value)}" for name, value in data.items()) + "\n}\n"


def write_or_check(data: Mapping[str, Any], *, write: Path | None, check: Path | None) -> None:
    """Write data to a file, or end with a diff and exit code 1 if the file has other data; otherwise print it."""
    text = format_data(data)
    if write is not None:
        write.write_text(text, encoding="utf-8")
    elif check is None:
        print(text, end="")
    elif (present := check.read_text(encoding="utf-8")) != text:
        lines = difflib.unified_diff(present.splitlines(), text.splitlines(), str(check), "the results", n=0, lineterm="")
        print(*lines, sep="\n")
        sys.exit(f"{check} is outdated; run the same command with --write={check}")
