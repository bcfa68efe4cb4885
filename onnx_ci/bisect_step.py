"""One step of ``git bisect run``: judge one cell at the commit that is checked out. Started by ``onnx-ci bisect``.

This file is copied out of the working tree and run from there as a script, because what is checked out may hold onnx-ci itself.
So it imports nothing of it, and reads no more of a report than it must.
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
"""Exit codes, as ``git bisect run`` knows them."""
WORDS = {GOOD: "passed", BAD: "failed", SKIP: "skipped"}


def run_cells(command: Sequence[str], folder: Path, report: Path) -> tuple[list[dict[str, Any]], str]:
    """Run ``onnx-ci run`` at the commit that is checked out.

    Args:
        command: the command with all but the report.
        folder: where to run it.
        report: where the report is to stand.

    Returns:
        The results of the cells that ran, as the report holds them, and why there is none, or the last line that was said.
    """
    if not folder.is_dir():
        return [], f"there is no folder {folder} at this commit"
    # Files that change within a second are taken for unchanged by Python's own cache of compiled files.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    # Standard input belongs to git; what the run prints would hide the one line of each step.
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
    said = lines[-1].removeprefix("onnx-ci: ") if lines else f"onnx-ci ended with exit code {done.returncode}"
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
        problems = [str(each["message"]) for each in found["problems"]]
        return list(found["cells"]), (problems or [said])[0]
    except (OSError, ValueError, KeyError, TypeError):
        return [], said


def broken_rules(result: Mapping[str, Any]) -> set[str]:
    """The rules by which a cell failed."""
    return {str(each["rule"]) for each in result["findings"] if each["severity"] == "error"}


def judge(results: Sequence[Mapping[str, Any]], said: str, rules: Sequence[str] | None) -> tuple[int, str]:
    """Whether a commit is good, bad or neither, and why.

    Args:
        results: what became of the one cell, or nothing.
        said: what onnx-ci said last.
        rules: the rules that make a commit bad; ``None`` for any.
    """
    if len(results) != 1:
        return SKIP, said
    (result,) = results
    if result["status"] in ("passed", "xfailed"):
        return GOOD, ""
    broken = broken_rules(result)
    if not broken:
        return SKIP, str(result.get("reason", "")) or said
    told = ", ".join(sorted(broken))
    # A commit that is broken in another way cannot tell whether this way began before it.
    return (BAD if rules is None or broken & set(rules) else SKIP), told


def main() -> int:
    """Judge the commit that is checked out, in one line on standard error."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    show = ["git", "-c", "log.showSignature=false", "show", "--no-patch", "--format=%H%n%h %s", "HEAD"]
    shown = subprocess.run(show, capture_output=True, encoding="utf-8", errors="replace", check=True).stdout
    commit, title = shown.strip().split("\n", 1)
    results, said = run_cells(order["command"], Path(order["folder"]), Path(sys.argv[1]).parent / f"{commit}.json")
    verdict, why = judge(results, said, order["rules"])
    sys.stderr.write(f"{WORDS[verdict]:<8}{title}{f' ({why})' if why else ''}\n")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
