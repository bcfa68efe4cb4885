"""Names and messages from models and files are text in every output: no terminal's control, no runner's command, no markup."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil

import pytest
from toolbox.projects import Project
from toolbox.records import cell, failed, passed, report

from onnx_ci.cli.common import with_exit_code
from onnx_ci.cli.output import LastingStream
from onnx_ci.plugins import COMMANDS
from onnx_ci.results.files import write_json
from onnx_ci.results.records import Problem
from onnx_ci.results.run_report import RunReport
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
LINES = {
    "run": ("run", "--opsets=13", "-v", "--no-cache", "--report=r.json", "--summary=summary.md", "--artifacts=kept"),
    "run, not verbose": ("run", "--opsets=13", "--no-cache"),
    "why": ("why", CELL),
    "list": ("list", "-v"),
    "show a cell": ("show", CELL),
    "show a file": ("show", "{file}"),
    "verify without a recipe": ("verify", "{file}"),
    "ops": ("ops", "{file}"),
    "compare": ("compare", "{file}", "{file}"),
    "why a file": ("why", "{file}", "--recipe=hostile"),
    "verify": ("verify", "{file}", "--recipe=hostile"),
    "report": ("report", "r.json", "-v"),
    "markdown": ("report", "r.json", "--markdown=-"),
    "baseline update": ("baseline", "update", "--opsets=13"),
    "matrix": ("matrix", "--format=text"),
    "report of others": ("report", "others.json", "-v", "--color=always"),
    **{
        f"{command}, with colours": (command, *more, "--color=always")
        for command, more in {
            "show": ("{named}",),
            "compare": ("{named}", "{named}"),
            "why": ("{named}", "--recipe=hostile"),
            "verify": ("{named}", "--recipe=hostile"),
            "list": ("no\x1b[31m\x1b[2Jwhere",),
        }.items()
    },
    **{f"{command}, a name": (command, "{named}") for command in ("show", "verify", "ops")},
    **{f"{command}, no file": (command, "no\x1b[2J\x1b[31m.onnx") for command in ("show", "verify", "ops", "why", "report")},
}


def others() -> RunReport:
    """A report that somebody else wrote."""
    evil = "\x1b[31mred\x1b[2J\x9b2J"
    source = "\x9b2J\u202e.py"  # a report with more in an id is refused
    cells = [cell(source=source, opset=opset) for opset in (13, 14)]
    results = [dataclasses.replace(result, cell=each) for result, each in zip((passed(), failed()), cells, strict=True)]
    problem = Problem(source=evil, message=evil)
    not_run = (cell(source=source, opset=15).id,)
    return dataclasses.replace(report(*results), environment={evil: evil}, problems=(problem,), not_run=not_run)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("hostile"))
    project.recipes(CODE)
    found = {"run": project.command("onnx_ci", *LINES["run"])}
    (file,) = project.root.glob("kept/**/*.onnx")
    named = project.root / "\x1b[31mred\x1b[2J\n##[group]x\x9b2J.onnx"
    shutil.copyfile(file, named)
    write_json(others(), project.root / "others.json")
    for name, arguments in LINES.items():
        if name not in found:
            found[name] = project.command("onnx_ci", *(each.format(file=file, named=named.name) for each in arguments))
    found["pytest"] = project.command("pytest", "--onnx-export", "--onnx-opsets=13", "-v", "-p", "no:cacheprovider")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LINES, "pytest"])
def test_what_is_printed_is_text(name, done):
    for output in (done[name].stdout, done[name].stderr):
        assert "Traceback" not in output
        ours = re.sub(r"\x1b\[[0-9]{1,2}m", "", output) if "colours" in name or name == "report of others" else output
        assert "\x1b[31mred" not in output
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", ours.replace("\r\n", "\n")), ours
        assert not re.search(r"^\s*::", output, flags=re.MULTILINE), output
        assert "##[" not in output
    assert done[name].stdout or "no file" in name or name == "list, with colours"


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


def test_no_terminal_is_controlled_but_by_colours():
    written = io.StringIO()
    stream = LastingStream(written)
    for part in ("\x1b[32mgreen\x1b[0m\ta\x07b\x1b[2J\x1b", "[2Jc\x9b2J\x1b]0;title\x07\u202ed\n"):
        stream.write(part)
    gone = "\N{REPLACEMENT CHARACTER}"
    shown = f"\x1b[32mgreen\x1b[0m\ta{gone}b{gone}[2J{gone}[2Jc{gone}2J{gone}]0;title{gone}{gone}d\n"
    assert written.getvalue() == shown


def test_every_command_prints_through_such_a_stream():
    for name, command in ((name, COMMANDS.load(name)) for name in COMMANDS):
        inner = getattr(command, "commands", {name: command})
        for each in inner.values():
            callback = each.callback
            while callback is not None and callback.__code__.co_filename != with_exit_code.__code__.co_filename:
                callback = getattr(callback, "__wrapped__", None)
            assert callback is not None, f"{name} lacks with_exit_code"
