"""The code around a line at fault, as pytest shows it for an assertion."""

from __future__ import annotations

import ast
import linecache
import os
from pathlib import Path

from onnx_ci.results.records import SourceLine

_MOST_LINES = 8


def excerpt(source: SourceLine, directory: Path) -> list[str]:
    """The code from the beginning of the function to the line, which is marked; empty if the file has another line there.

    Args:
        source: the line.
        directory: what its file is relative to.
    """
    try:
        lines = linecache.getlines(os.fspath(directory / source.file))
    except ValueError:  # no file can have this name
        return []
    if not 0 < source.line <= len(lines) or lines[source.line - 1].strip() != source.text:
        return []
    first = max(_beginning("".join(lines), source.line), source.line - _MOST_LINES + 1)
    shown = [line.rstrip() for line in lines[first - 1 : source.line]]
    margin = min((len(line) - len(line.lstrip()) for line in shown if line.strip()), default=0)
    return [f"{'>' if number == len(shown) else ' '}   {line[margin:]}".rstrip() for number, line in enumerate(shown, start=1)]


def _beginning(code: str, line: int) -> int:
    """The line at which the innermost function around ``line`` begins; else ``line``."""
    try:
        nodes = ast.walk(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return line
    functions = (node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return max((node.lineno for node in functions if node.lineno <= line <= (node.end_lineno or 0)), default=line)
