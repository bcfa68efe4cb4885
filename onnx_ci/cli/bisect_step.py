"""One step of ``git bisect run``: judges one cell at the commit that is checked out. Started by ``onnx-ci bisect``.

The working tree may contain onnx-ci itself, so a copy of this file outside of it is run as a script. It therefore imports
nothing from onnx-ci, and reads as little of a report as possible.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GOOD, BAD, SKIP = 0, 1, 125
"""The exit codes that ``git bisect run`` expects."""
WORDS = {GOOD: "passed", BAD: "failed", SKIP: "skipped"}


def run_cells(command: Sequence[str], folder: Path, report: Path) -> tuple[list[dict[str, Any]], str]:
    """Run ``onnx-ci run`` at the commit that is checked out.

    Args:
        command: the command without ``--report``.
        folder: where to run it.
        report: where to write the report.

    Returns:
        The results of the cells that ran, as JSON data, and why there are none, or the last line that was printed.
    """
    if not folder.is_dir():
        return [], f"there is no folder {folder} at this commit"
    # Python's cache of compiled files does not detect changes within a second.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    # Standard input belongs to git; the output of the run would hide the one line of each step.
    done = subprocess.run(
        [*command, f"--report={report}"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    message = lines[-1].removeprefix("onnx-ci: ") if lines else f"onnx-ci ended with exit code {done.returncode}"
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
        problems = [str(each["message"]) for each in found["problems"]]
        return list(found["cells"]), (problems or [message])[0]
    except (OSError, ValueError, KeyError, TypeError):
        return [], message


def broken_rules(result: Mapping[str, Any]) -> set[str]:
    """The rules that a cell breaks."""
    return {str(each["rule"]) for each in result["findings"] if each["severity"] == "error"}


def judge(results: Sequence[Mapping[str, Any]], message: str, rules: Sequence[str] | None) -> tuple[int, str]:
    """Whether a commit is good, bad or neither, and why.

    Args:
        results: the result of the cell, if it ran.
        message: the last line that onnx-ci printed.
        rules: the rules that make a commit bad; ``None`` for any.
    """
    if len(results) != 1:
        return SKIP, message
    (result,) = results
    if result["status"] in ("passed", "xfailed"):
        return GOOD, ""
    broken = broken_rules(result)
    if not broken:
        return SKIP, str(result.get("reason", "")) or message
    # A commit that is broken in another way does not show whether this fault is older or newer.
    return (BAD if rules is None or broken & set(rules) else SKIP), ", ".join(sorted(broken))


def main() -> int:
    """Judge the commit that is checked out, and print one line to standard error."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    show = ["git", "-c", "log.showSignature=false", "show", "--no-patch", "--format=%H%n%h %s", "HEAD"]
    shown = subprocess.run(show, capture_output=True, encoding="utf-8", errors="replace", check=True).stdout
    commit, title = shown.strip().split("\n", 1)
    results, message = run_cells(order["command"], Path(order["folder"]), Path(sys.argv[1]).parent / f"{commit}.json")
    verdict, why = judge(results, message, order["rules"])
    sys.stderr.write(f"{WORDS[verdict]:<8}{title}{f' ({why})' if why else ''}\n")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
