"""The logic of ``action.yml``: install into the caller's Python, run the gate, tell GitHub what came of it.

``python -m onnx_ci.github install`` and ``python -m onnx_ci.github run`` are the action's two steps. Every input arrives
in an environment variable, so that no text from a workflow is ever part of a command line or of YAML.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from onnx_ci.config import OFF
from onnx_ci.environment import RUNTIME_DISTRIBUTIONS, version_of
from onnx_ci.errors import ExitCode

SUMMARY_LIMIT = 1024 * 1024
"""GitHub refuses a larger summary of a step, in bytes."""


def install(environment: Mapping[str, str]) -> int:
    """Install this checkout into the running Python, beside the caller's torch, which is never replaced."""
    requirement = environment["GITHUB_ACTION_PATH"]
    if importlib.util.find_spec("onnxruntime") is None:
        requirement += "[cpu]"
    pins = [f"{name}=={version}" for name in ("torch", *RUNTIME_DISTRIBUTIONS) if (version := version_of(name)) is not None]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--constraint", str(constraints), requirement]
        return subprocess.run(command, check=False).returncode


def run(environment: Mapping[str, str]) -> int:
    """Run ``onnx-ci run`` with the action's inputs; write the job summary and the outputs, whatever came of it."""
    temporary = Path(environment.get("RUNNER_TEMP") or tempfile.gettempdir())
    report_path = temporary / f"onnx-ci-{secrets.token_hex(8)}" / "report.json"
    # The folder that the action's other steps restore and save.
    cache = temporary / "onnx-ci-cache" if environment.get("INPUT_CACHE", "").strip() == "true" else OFF
    summary_path = report_path.with_name("summary.md")
    try:
        flags = [f"--cache={cache}", *_flags(environment), f"--report={report_path}", f"--summary={summary_path}"]
    except ValueError as error:
        print(f"onnx-ci: the input 'args' cannot be read: {error}", file=sys.stderr)
        code, verdict = int(ExitCode.USAGE), "error"
    else:
        # "--" keeps a path that begins with a dash from being read as a flag.
        command = [sys.executable, "-m", "onnx_ci", "run", *flags, "--", *_paths(environment)]
        code = subprocess.run(command, check=False).returncode
        verdict = {ExitCode.PASSED: "passed", ExitCode.FAILED: "failed", ExitCode.NOTHING_RAN: "nothing-ran"}.get(
            ExitCode(code) if code in list(ExitCode) else ExitCode.INTERNAL, "error"
        )
    summary = summary_path.read_text(encoding="utf-8") if summary_path.is_file() else _no_report(code)
    if target := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(_shortened(summary))
    _write_output(environment, "verdict", verdict)
    _write_output(environment, "report", str(report_path) if report_path.is_file() else "")
    return code


def _flags(environment: Mapping[str, str]) -> list[str]:
    """The inputs as flags; ``args`` is split as a shell would split it, and expanded by nobody."""
    values = {name: environment.get(f"INPUT_{name.upper()}", "").strip() for name in ("opsets", "devices")}
    return [
        *(f"--{name}={value}" for name, value in values.items() if value),
        *shlex.split(environment.get("INPUT_ARGS", "")),
    ]


def _paths(environment: Mapping[str, str]) -> list[str]:
    """The paths, one a line."""
    return [path.strip() for path in environment.get("INPUT_PATHS", "").splitlines() if path.strip()]


def _no_report(code: int) -> str:
    return f"## ONNX export: ⚠️ no report\n\nonnx-ci ended with exit code {code} before there was a result; the log says why.\n"


def _shortened(summary: str) -> str:
    """The summary within GitHub's limit, cut at a line."""
    if len(summary.encode()) < SUMMARY_LIMIT:
        return summary
    kept = summary.encode()[: SUMMARY_LIMIT - 200].decode(errors="ignore").rpartition("\n")[0]
    return kept + "\n\n… the rest is in the JSON report.\n"


def _write_output(environment: Mapping[str, str], name: str, value: str) -> None:
    target = environment.get("GITHUB_OUTPUT")
    if not target:
        return
    delimiter = f"end-{secrets.token_hex(16)}"  # random, so that no value can end itself and begin another output
    with Path(target).open("a", encoding="utf-8") as stream:
        stream.write(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")


def main() -> int:
    """The command line of this module."""
    steps = {"install": install, "run": run}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print(f"usage: python -m onnx_ci.github {{{','.join(steps)}}}", file=sys.stderr)
        return ExitCode.USAGE
    return steps[sys.argv[1]](os.environ)


if __name__ == "__main__":
    sys.exit(main())
