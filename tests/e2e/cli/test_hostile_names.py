"""Names and messages from models and files are text in every output: no terminal's control, no runner's command, no markup."""

from __future__ import annotations

import io
import re

import pytest
from toolbox.projects import Project

from onnx_ci.cli.output import LastingStream
from onnx_ci.text import without_commands

NAMES = ["::error::begins", "\x1b[31mred\x1b[2J", "two\n::warning::lines", "##[group]old", "<script>alert(1)</script>", "a|b`c"]
CODE = f"""
    class Hostile(torch.nn.Module):
        def forward(self, *inputs):
            print("::error::printed")
            return tuple(each * float(each.max()) for each in inputs)

    NAMES = {NAMES!r}

    @onnx_ci.recipe(
        input_names=[f"in {{name}}" for name in NAMES],
        output_names=NAMES,
        dynamic_axes={{name: {{0: "batch"}} for name in [*NAMES, *(f"in {{name}}" for name in NAMES)]}},
    )
    def hostile():
        return Hostile(), tuple(torch.randn(2, 3) for _ in NAMES)
"""

CELL = "hostile::opset13-cpu"
COMMANDS = {
    "run": ("run", "--opsets=13", "-v", "--no-cache", "--report=r.json", "--summary=summary.md", "--artifacts=kept"),
    "run, not verbose": ("run", "--opsets=13", "--no-cache"),
    "why": ("why", CELL),
    "list": ("list", "-v"),
    "show a cell": ("show", CELL),
    "show a file": ("show", "{file}"),
    "check": ("check", "{file}"),
    "ops": ("ops", "{file}"),
    "compare": ("compare", "{file}", "{file}"),
    "why a file": ("why", "{file}", "--recipe=hostile"),
    "verify": ("verify", "{file}", "--recipe=hostile"),
    "report": ("report", "r.json", "-v"),
    "markdown": ("report", "r.json", "--markdown=-"),
    "baseline update": ("baseline", "update", "--opsets=13"),
    "matrix": ("matrix", "--format=text"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("hostile"))
    project.recipes(CODE)
    found = {"run": project.command("onnx_ci", *COMMANDS["run"])}
    (file,) = project.root.glob("kept/**/*.onnx")
    for name, arguments in COMMANDS.items():
        if name not in found:
            found[name] = project.command("onnx_ci", *(each.format(file=file) for each in arguments))
    found["pytest"] = project.command("pytest", "--onnx-export", "--onnx-opsets=13", "-v", "-p", "no:cacheprovider")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMMANDS, "pytest"])
def test_what_is_printed_is_text(name, done):
    for output in (done[name].stdout, done[name].stderr):
        assert "Traceback" not in output
        assert "\x1b" not in output
        assert not re.search(r"^\s*::", output, flags=re.MULTILINE), output
        assert "##[" not in output
    assert done[name].stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "why", "show a file", "pytest"])
def test_the_names_can_be_read(name, done):
    assert "begins" in done[name].stdout


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", ": :error::x"),
        ("  ::error::x\n::y", "  : :error::x\n: :y"),
        ("50%\r::error::x", "50%\r: :error::x"),
        ("a ::error::x ##[group]y", "a ::error::x ## [group]y"),
    ],
)
def test_what_the_runner_takes_for_a_command_is_changed(text, shown):
    assert without_commands(text) == shown


def test_a_line_may_be_written_in_parts():
    written = io.StringIO()
    stream = LastingStream(written)
    for part in ("cell", "::opset13\n", "  ", "::error::x\r", "::y"):
        stream.write(part)
    assert written.getvalue() == "cell::opset13\n  : :error::x\r: :y"
