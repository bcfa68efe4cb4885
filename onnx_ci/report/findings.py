"""How a finding reads: the place, the code, the cause, the numbers and the remedy, in one line or each on lines of its own."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx_ci.collection.post_export import EXPORT
from onnx_ci.report.causes import SharedFailure, by_remedy, causes_of
from onnx_ci.results.records import Culprit, Finding, Frozen, FrozenKind, Severity, SourceLine
from onnx_ci.text import count, listed, listed_shortly, one_line

WIDTH = 116
"""No line of a finding is longer, except code and what has no space in it. Callers that indent it stay below 120."""
_MOST_CHARACTERS = 3000
"""Of a failure on a page of GitHub; the JSON and HTML reports contain all of it."""


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Each cause with the code around it and its consequences, errors first, and each remedy once."""
    lines: list[str] = []
    for cause, remedy in by_remedy(causes_of(findings)):
        lines += _block(cause.finding)
        if remedy:
            lines += wrapped(f"remedy: {remedy}", "    ")
        for each in cause.consequences:
            lines += wrapped(f"same cause: {label(each)}: {describe_without_place(each)}", "    ")
    return lines


def remedy_lines(findings: Iterable[Finding]) -> list[str]:
    """Each remedy once."""
    return [line for _, remedy in by_remedy(causes_of(findings)) if remedy for line in wrapped(f"remedy: {remedy}", "    ")]


def describe_failure(failure: SharedFailure, repeat: str) -> str:
    """The causes of a failure and the command that repeats it, for a code block on a page of GitHub."""
    errors = (each for each in failure.first.findings if each.severity is Severity.ERROR)
    text = "\n".join(map(one_line, finding_lines(errors)))
    shown = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    return f"{shown}\n\nrepeat with: {one_line(repeat)}"


def _block(finding: Finding) -> Iterator[str]:
    """One finding without its remedy. Without a place, its rule and what is wrong are one paragraph."""
    if not (place := describe_place(finding)):
        yield from wrapped(f"{label(finding)}: {describe_finding(finding)}")
        return
    yield f"{place}: {label(finding)}"
    for line in code_of(finding, Path.cwd()):
        yield f"    {line}"
    for text in filter(None, (describe_cause(finding), describe_without_place(finding))):
        yield from wrapped(text, "    ")


def wrapped(text: str, indent: str = "") -> list[str]:
    """``text`` as lines of at most :data:`WIDTH` characters; those after the first one are indented further."""
    return textwrap.wrap(
        one_line(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def label(finding: Finding) -> str:
    """The rule, with its severity unless it is an error that fails the cell: ``export-warning (note)``."""
    if finding.severity is Severity.ERROR:
        return f"{finding.rule} (expected)" if finding.is_expected else finding.rule
    return f"{finding.rule} ({finding.severity.value})"


def describe_place(finding: Finding) -> str:
    """``net.py:7``, ``net.py:7 → lib/relu.py:3``: the likeliest line; empty if none is known."""
    line = next(iter(finding.lines), None)
    return "" if line is None else f"{line}{f' → {line.library}' if line.library else ''}"


def describe_cause(finding: Finding) -> str:
    """What is at fault besides the line, as a sentence: a pass, what the line does, a node; empty if that is not known."""
    parts, others = [_describe_pass(finding).removesuffix(": ")], ""
    if finding.source is None and finding.culprits:
        first, *rest = finding.culprits
        nodes, frozen = _describe_nodes(first), _describe_frozen_line(first, finding.probe)
        shown = f"which shows at {nodes}" if first.nodes else nodes
        parts += [frozen, shown] if frozen or not nodes else [f"at fault: {nodes}"]
        others = _describe_others(first, rest)
    sentence = (", ".join(filter(None, parts)) + others).removeprefix(", ")
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _describe_frozen_line(culprit: Culprit, probe: str | None) -> str:
    """``the condition is true on 'batch=4' and false on the example``."""
    if (frozen := culprit.frozen) is None:
        return ""
    if frozen.kind is FrozenKind.WRITE:
        return "the file does without this line"
    subject = "the condition" if frozen.kind is FrozenKind.CONDITION else "the line"
    return f"{subject} {_describe_difference(frozen, culprit.source, 'on other inputs' if probe is None else f'on {probe!r}')}"


def code_of(finding: Finding, directory: Path | None) -> list[str]:
    """The code around the line of an error. For other findings, and where the code is not here, the line alone."""
    if not finding.lines:
        return []
    line = finding.lines[0]
    around = excerpt(line, directory) if directory is not None and finding.severity is Severity.ERROR else []
    return around or ([f">   {line.text}"] if line.text else [])


_MOST_BEFORE = 8
_MOST_AFTER = 2


def excerpt(source: SourceLine, directory: Path) -> list[str]:
    """The function up to two lines after the line, which is marked; empty if ``directory`` does not have it."""
    with contextlib.suppress(OSError, ValueError):  # no file can have this name
        path = (directory / source.file).resolve()
        lines = linecache.getlines(os.fspath(path)) if path.is_relative_to(directory.resolve()) else []
        if not 0 < source.line <= len(lines) or lines[source.line - 1].strip() != source.text:
            return []
        begin, end = _function_around("".join(lines), source.line)
        first = max(begin, source.line - _MOST_BEFORE + 1)
        shown = [line.rstrip() for line in lines[first - 1 : min(end, source.line + _MOST_AFTER)]]
        margin = min((len(line) - len(line.lstrip()) for line in shown if line.strip()), default=0)
        return [
            f"{'>' if number == source.line else ' '}   {line[margin:]}".rstrip() for number, line in enumerate(shown, first)
        ]
    return []


def _function_around(code: str, line: int) -> tuple[int, int]:
    """The first and the last line of the innermost function around ``line``; else ``line`` itself."""
    try:
        nodes = ast.walk(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return line, line
    functions = (node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    ranges = ((node.lineno, node.end_lineno or node.lineno) for node in functions)
    return max((each for each in ranges if each[0] <= line <= each[1]), default=(line, line))


def describe_finding(finding: Finding) -> str:
    """The pass and the place at fault, and what :func:`describe_without_place` says, in one line."""
    if finding.source is not None:
        place = f"{finding.source.quoted}: "
    elif finding.culprits:
        first, others = finding.culprits[0], finding.culprits[1:]
        place = f"{describe_culprit(first)}{_describe_others(first, others)}: "
    else:
        place = ""
    return f"{_describe_pass(finding)}{place}{describe_without_place(finding)}"


def describe_without_place(finding: Finding) -> str:
    """The message, the passes of an optimizer at fault, the other inputs that show it, and whether only probe weights do."""
    also = f"; also on {listed_shortly([repr(each) for each in finding.also_on])}" if finding.also_on else ""
    weights = "with probe weights: " if finding.probe_weights else ""
    passes = f"; the fault of its optimizer's {listed(finding.optimizer_passes)}" if finding.optimizer_passes else ""
    return f"{weights}{finding.message}{passes}{also}"


def _describe_others(first: Culprit, others: Iterable[Culprit]) -> str:
    """``, and net.py:12``: the other lines at fault, or how many other nodes."""
    others = list(others)
    lines = dict.fromkeys(str(each.source) for each in others if each.source is not None and each.source != first.source)
    return f", and {listed(lines)}" if lines else f" and {count(len(others), 'other node')}" if others else ""


def describe_culprit(culprit: Culprit) -> str:
    """``model.py:26, `return self.conv(x)`, which uses 3 here and 2 on the example, Conv '/conv/Conv' in conv``."""
    words = [] if culprit.source is None else [culprit.source.quoted]
    if (frozen := culprit.frozen) is not None:
        difference = _describe_difference(frozen, culprit.source, "here")
        words.append("which the file does without" if frozen.kind is FrozenKind.WRITE else f"which {difference}")
    return ", ".join(filter(None, [*words, _describe_nodes(culprit)]))


def _describe_nodes(culprit: Culprit) -> str:
    """``Conv '/conv/Conv' in conv of the model that net_recipes.py:8 builds``."""
    if culprit.nodes:
        what = culprit.nodes[0] if len(culprit.nodes) == 1 else f"{culprit.nodes[0]} or a node beside it"
    else:  # of a line that is proven to be the cause, its own text says what it calls
        what = listed(culprit.operators) if culprit.frozen is None else ""
    module = f" in {culprit.module}" if culprit.module else ""
    model = "" if culprit.recipe is None else f" of the model that {culprit.recipe} builds"
    return f"{what}{module}{model}".strip()


_IS_PLAIN_CONDITION = re.compile(r"(?:el)?if (?!.*(?:\bnot\b|\band\b|\bor\b|!=)).*:")
"""A line whose condition is true where its only test is: of ``if a.shape != b.shape:``, sizes are tested for being equal."""


def _describe_difference(frozen: Frozen, source: SourceLine | None, here: str) -> str:
    """``runs 4 times here and 3 on the example``, where ``here`` names the failing input."""
    if frozen.kind is FrozenKind.NUMBER:
        number, on_example = (", ".join(f"{each:g}" for each in numbers) for numbers in (frozen.here, frozen.on_example))
        return f"uses {number} {here} and {on_example} on the example"
    if frozen.kind is FrozenKind.CONSTANT:
        return f"makes other values {here} than on the example"
    times_here, times_there = sum(frozen.here), sum(frozen.on_example)
    if frozen.kind is FrozenKind.CONDITION and not _IS_PLAIN_CONDITION.match("" if source is None else source.text):
        return f"decides otherwise {here} than on the example"
    if frozen.kind is FrozenKind.CONDITION:
        is_true, was_true = ("true" if times else "false" for times in (times_here, times_there))
        return f"is {is_true} {here} and {was_true} on the example"
    if frozen.kind is FrozenKind.BRANCH:
        return f"does not run {'on the example' if times_here else here}"
    verb, thing = ("runs", "time") if frozen.kind is FrozenKind.LOOP else ("gives", "tensor")
    return f"{verb} {times_here:g} {thing}{'' if times_here == 1 else 's'} {here} and {times_there:g} on the example"


def _describe_pass(finding: Finding) -> str:
    """Which post-export pass is at fault, as the beginning of a sentence."""
    if finding.introduced_by is None or finding.rule == "pass-error":  # its message names the pass
        return ""
    return (
        "the exporter's own file is already wrong: " if finding.introduced_by == EXPORT else f"after {finding.introduced_by}: "
    )
