"""The pages of the site that are generated, from the tables and docstrings that the program itself uses.

``docs/site_hooks.py`` adds them while the site is built, so none of them is a file that could be out of date. Nothing here
imports torch.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import json
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from onnx_ci.cli.main import main
from onnx_ci.collection.keywords import EXPORT_OPTIONS, ExportOptions, RecipeKeywords
from onnx_ci.collection.recipe import recipe
from onnx_ci.config.options import OPTIONS, Option, Role
from onnx_ci.plugins import COMMANDS
from onnx_ci.results.rules import RULES
from onnx_ci.results.run_report import SCHEMA_VERSION, RunReport

ROOT = Path(__file__).parents[1]

PAGE_OF = {
    "docs/rules": "rules/index.md",
    "onnx_ci/__init__.py": "reference/python.md",
    "onnx_ci/cli": "reference/command-line.md",
    "onnx_ci/collection/keywords.py": "reference/recipe.md",
    "onnx_ci/config/options.py": "reference/settings.md",
    "onnx_ci/results/run_report.py": "reference/report.md",
}
"""The page that shows what a file or folder of the repository contains. Pages in ``docs`` link to the file, which GitHub can
show; on the site, the link leads to the page."""

SCHEMA_FILE = "reference/report.schema.json"


def pages() -> dict[str, str]:
    """The text of every generated page, and of the schema, by its path in the site."""
    return {
        "reference/command-line.md": command_line(),
        "reference/settings.md": settings(),
        "reference/recipe.md": recipe_keywords(),
        "reference/report.md": report(),
        "reference/python.md": python_interface(),
        "rules/index.md": rules(),
        SCHEMA_FILE: json.dumps(report_schema(), indent=2) + "\n",
    }


# --- Markdown ---------------------------------------------------------------------------------------------------------

_SPECIAL = re.compile(r"([\\*_<>|\[\]#])")
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def prose(text: str) -> str:
    """Text of a docstring or of a help text as Markdown: only what is in backticks is code."""
    text = _ROLE.sub(r"`\1`", text).replace("``", "`")
    parts = text.split("`")
    return "`".join(part if number % 2 else _SPECIAL.sub(r"\\\1", part) for number, part in enumerate(parts))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, whose cells are Markdown, too."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(' '.join(each.split()) for each in line)} |\n" for line in lines)


def code(text: str) -> str:
    """``text`` as code in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


# --- the command line -------------------------------------------------------------------------------------------------

_COMMAND_LINE = """\
# The command line

What `onnx-ci … --help` prints. An option that is a [setting](settings.md) can also be given in `pyproject.toml` and in the
environment.

| exit code | meaning |
| --- | --- |
| 0 | every cell passed |
| 1 | a cell failed |
| 2 | usage or configuration error |
| 3 | internal error of onnx-ci |
| 4 | the environment lacks a package or device that was requested |
| 5 | nothing ran |

`_ONNX_CI_COMPLETE=bash_source onnx-ci` prints the script that completes commands and options in bash, `zsh_source` and
`fish_source` those of other shells.

"""


def command_line() -> str:
    """Every command, with its help text, its examples and its options."""
    rows = [
        (f"[`onnx-ci {name}`](#onnx-ci-{name})", prose(command.get_short_help_str(limit=200)))
        for name, command in ((name, COMMANDS.load(name)) for name in COMMANDS)
    ]
    sections = [_command(command, names) for command, names in _commands(main, ("onnx-ci",))]
    return "\n".join([_COMMAND_LINE + table(["command", "what it does"], rows), *sections])


def _commands(group: click.Group, names: tuple[str, ...]) -> Iterator[tuple[click.Command, tuple[str, ...]]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield command, (*names, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*names, name))


def _command(command: click.Command, names: tuple[str, ...]) -> str:
    # click keeps the help option that it makes for the first context.
    context = click.Context(command, info_name=" ".join(names), **main.context_settings)
    usage = context.get_usage().removeprefix("Usage: ")
    rows = [
        (", ".join(map(code, _spellings(each, context))), prose(each.help or ""))
        for each in command.get_params(context)
        if isinstance(each, click.Option) and not each.hidden and "--help" not in each.opts
    ]
    parts = [
        f"## `{' '.join(names)}`\n",
        f"```text\n{' '.join(usage.split())}\n```\n",
        *_help(inspect.cleandoc(command.help or "")),
    ]
    return "\n".join([*parts, *([table(["option", "meaning"], rows)] if rows else [])])


def _spellings(option: click.Option, context: click.Context) -> list[str]:
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag or option.count else f"={option.make_metavar(context)}"
    return [name + (value if name.startswith("--") else "") for name in names]


def _help(text: str) -> Iterator[str]:
    """The paragraphs of a help text; examples become a block of shell commands with what they do as comments."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.removeprefix("\b\n").splitlines()
        if lines and lines[0] == "Examples:":
            yield f"```sh\n{''.join(_example(line.strip()) for line in lines[1:])}```\n"
        elif lines:
            yield prose(" ".join(lines)) + "\n"


def _example(line: str) -> str:
    command, _, what = line.partition("  ")
    return f"{command}  # {what.strip()}\n" if what.strip() else f"{command}\n"


# --- settings ---------------------------------------------------------------------------------------------------------

_SETTINGS = """\
# Settings

A setting has the same name everywhere. A flag takes precedence over an environment variable, and that over
`[tool.onnx-ci]` in `pyproject.toml`. A misspelled name is an error that suggests the nearest valid one.

If the flag of a list, such as `--select`, is given several times, its values add up; of other flags the last one counts. So
keep defaults in `[tool.onnx-ci]`, not in pytest's `addopts`.

| where | for the setting `max-drift` |
| --- | --- |
| a flag of `onnx-ci` | `--max-drift=8` |
| a flag of pytest | `--onnx-max-drift=8` |
| the environment | `ONNX_CI_MAX_DRIFT=8` |
| `pyproject.toml` | `max-drift = 8` |
| Python | `onnx_ci.run([net], max_drift=8)` |

`onnx-ci config` shows the values that hold in a project and where each comes from. `onnx-ci config --check` shows what is wrong
with them. `onnx-ci config --schema` prints their JSON Schema, which validate-pyproject finds by itself.

"""
_ROLES = {
    Role.MATRIX: "Which cells there are",
    Role.SELECTION: "Which of them run",
    Role.DISCOVERY: "Where recipes are found",
    Role.VERDICT: "How a cell is judged",
    Role.BASELINE: "Baselines",
    Role.EXECUTION: "How cells are run",
    Role.CACHE: "Which verdicts are kept",
    Role.FILES: "Files that are read",
    Role.OUTPUT: "Files that are written",
}


def settings() -> str:
    """Every setting, by what it affects."""
    parts = [_SETTINGS]
    for role, title in _ROLES.items():
        parts += [f"## {title}\n\n", *(_setting(option) for option in OPTIONS if option.role is role)]
    return "".join(parts)


def _setting(option: Option) -> str:
    value = "" if option.is_switch else f"={option.metavar}"
    spellings = f"`--{option.name}{value}` · pytest `--onnx-{option.name}{value}` · `{option.variable}`"
    spellings = spellings if option.has_flag else "In `pyproject.toml` only"
    return f"### `{option.name}`\n\n{prose(option.help)}\n\n{spellings}\n\n"


# --- keywords of recipes ----------------------------------------------------------------------------------------------

_RECIPE = """\
# Keywords of `@onnx_ci.recipe`

The decorated function returns `(model, args)` or `(model, args, kwargs)`. It runs under a fixed seed, and may take a parameter
`weights`, which is `None` unless the [setting `weights`](settings.md#weights) specifies trained weights for the recipe.

Everything that a recipe file creates is run, so recipes can also be created in a loop or by a function.

"""


def recipe_keywords() -> str:
    """Every keyword of the decorator, with its type and meaning."""
    types_of = _annotations(RecipeKeywords) | {"each": "Mapping[str, RecipeKeywords]"}
    parts = [_RECIPE]
    for name, meaning in _arguments(recipe):
        if name != "function":
            parts.append(f"## `{name}`\n\n`{types_of[name]}`\n\n{prose(meaning[0].upper() + meaning[1:])}\n\n")
    passed_on = ", ".join(f"`{name}`" for name in ExportOptions.__annotations__)
    parts.append(f"## Passed on to `torch.onnx.export`\n\nThese {len(EXPORT_OPTIONS)} are passed on unchanged: {passed_on}.\n")
    return "".join(parts)


def _annotations(kind: type) -> dict[str, str]:
    """The types of the fields of a class as they are written."""
    return {
        each.target.id: ast.unparse(each.annotation)
        for each in _class_body(kind)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _class_body(kind: type) -> list[ast.stmt]:
    source = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return next(each.body for each in source.body if isinstance(each, ast.ClassDef))


def _arguments(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """The section "Args" of a docstring: each name with its text."""
    _, _, section = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    section = re.split(r"^(?=\S)", section, maxsplit=1, flags=re.MULTILINE)[0]
    for entry in re.split(r"^ {4}(?=\w)", section, flags=re.MULTILINE)[1:]:
        name, _, text = entry.partition(":")
        yield name, " ".join(text.split())


# --- the report -------------------------------------------------------------------------------------------------------

_REPORT = f"""\
# The JSON report

`onnx-ci run --report=report.json` and `pytest --onnx-export --onnx-report=report.json` write it, and `onnx-ci report` reads it.
[report.schema.json](report.schema.json) is its JSON Schema. This page shows the same in tables.

- `schema_version` is {SCHEMA_VERSION}. It is incremented when readers of the old layout would misread the new one. Fields can
  be added without that, so a reader should ignore those that it does not know.
- Numbers that JSON cannot represent are strings: `"inf"`, `"-inf"` and `"nan"`.
- The file takes the place of the old one only when it is complete. Until then, a journal beside it holds the results so far:
  see [A run that was ended](../failures.md#a-run-that-was-ended).

"""
_SCHEMA_URI = "https://json-schema.org/draft/2020-12/schema"
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
_PLAIN = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}, float: _NUMBER, Any: {}}
_SUMMARY = {
    "verdict": "`passed`, `failed`, or `nothing-ran`.",
    "cells": "How many cells there are; the number with each status follows under the name of the status.",
    "warned": "How many cells passed with warnings.",
    "problems": "How many problems with recipe files there are.",
    "not_run": "How many cells did not run.",
    "seconds": "How long the run took; the total of merged runs.",
}


def report_schema() -> dict[str, Any]:
    """The JSON Schema of a report, from the records that it is made of."""
    definitions: dict[str, Any] = {}
    document = _object_schema(RunReport, definitions)
    cell = definitions["CellResult"]
    own = definitions.pop("Cell")["properties"]
    identity = {"id": {"type": "string", "description": "`FILE::RECIPE::CELL`, which pytest takes as an argument."}}
    del cell["properties"]["cell"], document["properties"]["seconds"]
    cell["properties"] = {**identity, **own, **cell["properties"]}
    summary = {name: {"description": text} for name, text in _SUMMARY.items()}
    version = {"const": SCHEMA_VERSION, "description": "The version of this layout."}
    document["properties"] = {
        "schema_version": version,
        **document["properties"],
        "summary": {
            "type": "object",
            "description": "The verdict and the counts.",
            "properties": summary,
            "required": [*summary],
        },
    }
    for each in (document, cell):
        each["required"] = [*each["properties"]]
    return {"$schema": _SCHEMA_URI, "title": "The JSON report of onnx-ci", **document, "$defs": definitions}


def _object_schema(record: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record; those of the types of its fields are added to ``definitions``."""
    meanings = _meanings(record)
    hints = typing.get_type_hints(record)
    properties = {
        each.name: _schema(hints[each.name], definitions)
        | ({"description": meanings[each.name]} if each.name in meanings else {})
        for each in dataclasses.fields(record)
    }
    return {"type": "object", "description": _opening(record), "properties": properties, "required": [*properties]}


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type as in an annotation."""
    inner = typing.get_args(kind)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if isinstance(kind, types.UnionType):
        return {"anyOf": [_schema(inner[0], definitions), {"type": "null"}]}
    if typing.get_origin(kind) is tuple:
        return {"type": "array", "items": _schema(inner[0], definitions)}
    if typing.get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": _schema(inner[1], definitions)}
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # first, so that records come in the order in which they are used
        made = _enumeration_schema(kind) if issubclass(kind, enum.Enum) else _object_schema(kind, definitions)
        definitions[kind.__name__].update(made)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _enumeration_schema(kind: type[enum.Enum]) -> dict[str, Any]:
    meanings = _meanings(kind)
    values = [{"const": each.value, "description": meanings.get(each.name, "")} for each in kind]
    return {"description": _opening(kind), "oneOf": values}


def _meanings(kind: type) -> dict[str, str]:
    """The text below each field of a class, those that it inherits included, in the words of JSON."""
    found = {}
    for each in reversed([each for each in kind.__mro__ if each.__module__.startswith("onnx_ci")]):
        body = _class_body(each)
        for field, text in itertools.pairwise(body):
            target = field.target if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [None])[0]
            if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[target.id] = " ".join(text.value.value.split()).replace("``None``", "``null``")
    return found


def _opening(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")


def report() -> str:
    """The schema in tables."""
    schema = report_schema()
    records = schema["$defs"]
    parts = [_REPORT, "## The document\n\n", _fields(schema, records)]
    for name, definition in records.items():
        parts += [f"\n## {name}\n\n", prose(definition["description"]) + "\n\n", _fields(definition, records)]
    return "".join(parts)


def _fields(definition: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    if "oneOf" in definition:
        return table(["value", "meaning"], [(code(each["const"]), prose(each["description"])) for each in definition["oneOf"]])
    rows = []
    for name, each in definition["properties"].items():
        record = each.get("items", each).get("$ref", "").rpartition("/")[2]
        meaning = each.get("description") or records.get(record, {}).get("description", "")
        rows.append((code(name), _type(each), prose(meaning)))
    return table(["field", "type", "meaning"], rows)


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in words; the names of records are links to their sections."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return code(str(schema["const"]))
    if "anyOf" in schema:
        first, second = schema["anyOf"]
        return "number" if "enum" in second else f"{_type(first)} or null"
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"object of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


# --- Python and the rules ---------------------------------------------------------------------------------------------

_PYTHON = """\
# The Python interface

`import onnx_ci` imports no torch: it is loaded when `run`, `export`, `verify`, `compare` or `adapt` is first used. The package
is typed.

```python title="gate.py"
import onnx_ci
import torch


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),)


if __name__ == "__main__":
    report = onnx_ci.run([net], opsets="13,17")
    for cell in report.cells:
        print(cell.cell.id, cell.status, cell.worst and cell.worst.drift)

    exported = onnx_ci.export(net, opset=17, path="net.onnx")
    result = onnx_ci.verify(exported, net)
    print(result.status, [finding.rule for finding in result.findings])

    print(onnx_ci.compare("net.onnx", "net.onnx", sizes={"batch": 2}).status)
```

"""
_SECTIONS = {
    "Run, export, verify, compare": ("onnx_ci.api",),
    "Declare a recipe": ("onnx_ci.collection", "onnx_ci.pipeline.model"),
    "Results": ("onnx_ci.results", "onnx_ci.pipeline.export.export", "onnx_ci.tools.two_files"),
    "Plug-ins": ("onnx_ci.pipeline.export.exporter", "onnx_ci.pipeline.run"),
    "Errors": ("onnx_ci.errors",),
}
"""By the modules that the names come from."""


def python_interface() -> str:
    """The page whose texts mkdocstrings takes from the docstrings, without importing anything."""
    source = (ROOT / "onnx_ci" / "__init__.py").read_text(encoding="utf-8")
    imports = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ImportFrom)]
    parts = [_PYTHON]
    for title, modules in _SECTIONS.items():
        names = [alias.name for each in imports if (each.module or "").startswith(modules) for alias in each.names]
        parts += [f"## {title}\n\n", *(f"::: onnx_ci.{name}\n\n" for name in sorted(names, key=str.lower))]
    return "".join(parts)


_RULES = """\
# Rules

Everything that a cell can break, in the order in which it is checked. Each page explains a rule, with an example that breaks it
and how to fix it; `onnx-ci why RULE` prints it. An error fails the cell, a warning marks it, and a note is only reported. A
recipe's [`expect`](../reference/recipe.md#expect) declares a rule as a known failure, and
[`allow`](../reference/recipe.md#allow) turns it into a note.

"""


def rules() -> str:
    """Every rule, with a link to its page."""
    rows = [(f"[`{each.id}`]({each.id}.md)", each.phase, str(each.severity), prose(each.meaning)) for each in RULES.values()]
    return _RULES + table(["rule", "stage", "severity", "meaning"], rows)
