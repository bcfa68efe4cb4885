"""Every example of the documentation is run, or checked as far as that goes, or says why it cannot be.

A comment before a block says what is special about it: ``<!-- example: run -->`` or ``run, exit code 1`` for commands, which
otherwise are only checked; ``raises ERROR``; ``not run, because …``. A block with a title is a file of that name.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from e2e.project.test_readme import shape
from toolbox import warm_python
from toolbox.distributions import install
from toolbox.github_runner import ACTION
from toolbox.projects import FROZEN, RIGHT, on_path

import onnx_ci
from onnx_ci.cli.main import main
from onnx_ci.collection.keywords import KEYWORDS
from onnx_ci.collection.recipe import declarations
from onnx_ci.config.options import FLAGS, OPTIONS
from onnx_ci.config.settings import load_settings
from onnx_ci.plugins import COMMANDS
from onnx_ci.results.rules import RULES

ROOT = Path(__file__).parents[3]
REFERENCE = runpy.run_path(str(ROOT / "docs" / "reference.py"))
GENERATED = {name: text for name, text in REFERENCE["pages"]().items() if name.endswith(".md")}
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))} | GENERATED
BLOCK = re.compile(
    r'^(?:<!-- example: (?P<mark>.*?) -->\n)?```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
RULE_PAGES = sorted((ROOT / "docs" / "rules").glob("*.md"))
"""Their examples are run by ``tests/e2e/results/test_rule_pages.py``."""


@dataclass(frozen=True)
class Example:
    """A block of a page."""

    page: str
    number: int
    mark: str
    language: str
    title: str
    text: str

    @property
    def is_run(self) -> bool:
        return not self.mark.startswith("not run, because ")

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a block of shell commands."""
        return commands_in(self.text)


def commands_in(script: str) -> list[list[str]]:
    """The words of each command of a script; of one within another, ``$(…)``, those of the inner one."""
    lines = re.sub(r"^.*\$\((.+?)\).*$", r"\1", script.replace("\\\n", " "), flags=re.MULTILINE).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def examples_of(page: str) -> list[Example]:
    found = enumerate(BLOCK.finditer(PAGES[page]), start=1)
    return [Example(page, number, **{name: text or "" for name, text in each.groupdict().items()}) for number, each in found]


EXAMPLES = [each for page in PAGES for each in examples_of(page)]


def in_language(*languages: str) -> list[object]:
    return [
        pytest.param(each, id=f"{each.page}-{each.number}") for each in EXAMPLES if each.language in languages and each.is_run
    ]


def test_every_block_has_a_language_and_a_mark_that_is_known():
    known = re.compile(r"|raises \w+|run( in the repository)?(, exit code \d)?|not run, because .+|started by the code above")
    assert {each.language for each in EXAMPLES} == {"groovy", "ini", "python", "sh", "text", "toml", "yaml"}
    assert [each for each in EXAMPLES if not known.fullmatch(each.mark)] == []


def test_output_is_shown_below_the_command_that_prints_it():
    for page in PAGES.keys() - GENERATED.keys():
        has_run = False
        for each in examples_of(page):
            has_run |= each.mark.startswith("run")
            assert each.language != "text" or has_run or not each.is_run, each


def test_few_blocks_are_not_run():
    assert [(each.page, each.mark.removeprefix("not run, because ")) for each in EXAMPLES if not each.is_run] == [
        ("ci.md", "it installs hooks"),
        ("coverage.md", "the tests of the plugin follow this advice"),
        ("deployed-runtimes.md", "it downloads packages"),
        ("deployed-runtimes.md", "it downloads packages"),
        ("deployed-runtimes.md", "it downloads packages"),
        ("deployed-runtimes.md", "it needs a file"),
        ("exporters.md", "a test of the exporter runs this model"),
        ("exporters.md", "a test of the exporter runs these models"),
        ("failures.md", "it takes several minutes"),
        ("failures.md", "a test of the command changes such a model"),
        ("get-started.md", "it installs packages"),
        ("get-started.md", "it installs packages"),
        ("green-cells.md", "it installs packages"),
        ("index.md", "it is the end of the main job, which takes minutes"),
        ("library-exporters.md", "a test of the exporter runs this generator"),
        ("library-exporters.md", "a test of the exporter runs this generator"),
        ("library-exporters.md", "the tests do not install Ultralytics"),
        ("library-exporters.md", "optimum needs another version of transformers than the tests"),
        ("library-exporters.md", "the tests do not install timm"),
        ("upgrade-torch.md", "it downloads packages"),
        ("upgrade-torch.md", "it downloads packages"),
        ("upgrade-torch.md", "it downloads packages"),
        ("upgrade-torch.md", "it downloads packages"),
        ("upgrade-torch.md", "it needs a version that does not exist yet"),
        ("upgrade-torch.md", "it needs the reports of two environments"),
        ("upgrade-torch.md", "it needs the reports of two environments"),
        ("upgrade-torch.md", "it takes two versions of torch"),
    ]


# --- files, scripts and commands, page by page


def file_of(example):
    return example.title or f"block_{example.number}.py"


def write_files(project, examples):
    """Write the files that blocks are; blocks with the same title follow each other in one file."""
    for each in examples:
        path = project.root / file_of(each)
        before = path.read_text(encoding="utf-8") + "\n\n" if path.exists() else ""
        project.write(file_of(each), before + each.text)
    if not (project.root / "onnx_recipes.py").exists():
        project.recipes(RIGHT)


def run_commands(project, examples, python):
    """Run the blocks that are marked so, in order, and compare the blocks of text below them with what they print."""
    printed = ""
    for each in examples:
        if IS_RUN.match(each.mark):
            for words in each.commands:
                done = project.run(python, *PROGRAMS[words[0]], *words[1:])
                assert done.returncode == exit_code_of(each), done.stdout + done.stderr
                printed += done.stdout
        elif each.language == "text" and printed and each.is_run:
            assert_shown(each.text, printed)


IS_RUN = re.compile(r"run(,|$)")
PROGRAMS = {"onnx-ci": ["-m", "onnx_ci"], "pytest": ["-m", "pytest"], "python": []}


def exit_code_of(example):
    return int(example.mark.partition("exit code ")[2] or 0)


def assert_shown(text, printed):
    """Every line of ``text`` was printed, with other numbers; ``…`` stands for anything."""
    lines = [shape(line) for line in printed.splitlines()]
    missing = [line for line in text.splitlines() if not any(each.startswith(shape(line.partition("…")[0])) for each in lines)]
    assert missing == [], printed


def run_script(path, mark):
    """Run a Python file, and every recipe that it creates."""
    before, error = len(declarations()), mark.removeprefix("raises ")
    fails = pytest.raises(getattr(builtins, error)) if error else contextlib.nullcontext()
    with fails, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a script that exports gets those of torch
        runpy.run_path(str(path), run_name="__main__")
    for each in declarations(before):
        declared = each.recipe.opsets or (17,)
        report = onnx_ci.run([each.recipe], opsets=17 if 17 in declared else declared[0], isolation="none")
        assert report.verdict == "passed", [finding.message for cell in report.cells for finding in cell.findings]


RUNNABLE = sorted({each.page for each in EXAMPLES if (each.language == "python" and each.is_run) or IS_RUN.match(each.mark)})


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_examples_of_a_page_run(page, project, monkeypatch):
    monkeypatch.syspath_prepend(project.root)
    examples = examples_of(page)
    files = [each for each in examples if each.language == "python" and each.is_run]
    write_files(project, [*files, *(each for each in examples if each.language == "toml" and each.title)])
    if page == "plugins.md":
        install_example(project.root)
        monkeypatch.setenv("PYTHONPATH", str(project.root))
    if page == "cache.md":  # only the cache needs processes that began after their files were written
        monkeypatch.delenv("ONNX_CI_CACHE")
        run_commands(project, examples, sys.executable)
    else:
        run_commands(project, examples, warm_python.executable())
    scripts = {file_of(each): each.mark for each in files if each.mark != "started by the code above"}
    commands = [words for each in examples if IS_RUN.match(each.mark) for words in each.commands]
    for name in scripts.keys() - {file for words in commands for file in files_run_by(words)}:
        run_script(project.root / name, scripts[name])


def install_example(folder):
    """Install the package of plugins.md into a folder, as its pyproject.toml says."""
    (text,) = (each.text for each in examples_of("plugins.md") if each.title == "pyproject.toml")
    declared = tomllib.loads(text)["project"]
    install(folder, declared["name"], declared["entry-points"], files={}, version=declared["version"])


def files_run_by(words):
    """The files that a command runs."""
    if words[0] == "python":
        return {words[1]}
    return {"onnx_recipes.py"} if words[0] == "pytest" or words[1] == "run" else set()


REPOSITORY = [
    pytest.param(each, EXAMPLES[place + 1], id=str(each.number))
    for place, each in enumerate(EXAMPLES)
    if each.mark.startswith("run in the repository")
]


@pytest.mark.slow
@pytest.mark.parametrize(("example", "output"), REPOSITORY)
def test_the_library_shows_what_a_page_says_of_it(example, output):
    (words,) = example.commands
    done = subprocess.run(
        # The script, not "python -m onnx_ci": that would put the checkout's onnx_ci before the installed one.
        [str(Path(sys.executable).with_name("onnx-ci")), *words[1:], "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == exit_code_of(example), done.stdout + done.stderr
    assert_shown(output.text, done.stdout)


# --- what is checked without being run


def script_of(page):
    """The shell commands of a pipeline on a page."""
    scripts = []
    for each in examples_of(page):
        if each.language == "sh":
            scripts.append(each.text)
        elif each.language == "yaml":
            scripts.append("\n".join(yaml.safe_load(each.text)["onnx"]["script"]))
        elif each.language == "groovy":
            scripts += re.findall(r"\'\'\'(.*?)\'\'\'", each.text, re.DOTALL)
    return "\n".join(scripts)


PIPELINES = {"gitlab.md": ".", "jenkins.md": ".", "monorepo.md": "packages/vision", "uv.md": "."}
"""Pages with a pipeline, and the folder in which it writes its files."""
WITHOUT_INSTALLING = """
    pip() { :; }
    python3() { mkdir -p .venv/bin && touch .venv/bin/activate; }
    uv() { while [ $# -gt 0 ] && [ "$1" != onnx-ci ]; do shift; done; "${@:-true}"; }
    set -e
"""


@pytest.mark.slow
@pytest.mark.parametrize("recipes", [[RIGHT], [RIGHT, FROZEN]], ids=["green", "red"])
@pytest.mark.parametrize("page", PIPELINES)
def test_a_pipeline_fails_if_a_cell_does_and_writes_its_files_either_way(page, recipes, project, tmp_path_factory):
    folder = project.root / PIPELINES[page]
    project.recipes(*recipes, name=f"{PIPELINES[page]}/onnx_recipes.py")
    project.write(f"{PIPELINES[page]}/pyproject.toml", '[tool.onnx-ci]\nopsets = "17"\n')
    project.write("packages/other/pyproject.toml", '[tool.onnx-ci]\nopsets = "17"\n')
    project.recipes(RIGHT.replace("def right", "def other"), name="packages/other/onnx_recipes.py")
    if page != "monorepo.md":
        shutil.rmtree(project.root / "packages")
    bash = [shutil.which("bash"), "-c", textwrap.dedent(WITHOUT_INSTALLING) + script_of(page)]
    done = project.run(*bash, **on_path(tmp_path_factory.mktemp("bin")))
    assert (done.returncode == 0) == (FROZEN not in recipes), done.stdout + done.stderr
    files = set(re.findall(r"--(?:report|html|junit)=(\S+?)[\s)]", script_of(page) + " "))
    assert {"report.json", "report.html"} <= files
    assert {each for each in files if not (folder / each).is_file()} == set()
    assert "total" in (folder / "report.html").read_text(encoding="utf-8") or FROZEN not in recipes


def weekly_steps():
    """The scripts of the weekly workflow, without the installation."""
    (example,) = [each for each in examples_of("upgrade-torch.md") if each.title == ".github/workflows/upgrades.yml"]
    steps = yaml.safe_load(example.text)["jobs"]["upgrades"]["steps"]
    return [step["run"] for step in steps if "run" in step][1:]


@pytest.mark.parametrize(
    ("code", "issue", "does"),
    [
        (1, "", "create --title An upgrade breaks the ONNX export --body-file body.md"),
        (1, "7", "edit 7 --body-file body.md"),
        (0, "7", "close 7 --comment Nothing breaks any more."),
        (0, "", None),
        (2, "7", None),
    ],
)
def test_the_weekly_workflow_keeps_one_issue(tmp_path, code, issue, does):
    fakes = f"""
        onnx-ci() {{ echo "a breaks b"; return {code}; }}
        gh() {{ if [ "$2" = list ]; then printf %s "{issue}"; else shift; echo "$*" >> did; fi; }}
        export GITHUB_OUTPUT=output
    """
    compare, tell = weekly_steps()
    script = f"set -e\n{textwrap.dedent(fakes)}\n{compare}\nCODE=$(sed s/code=// output)\n{tell}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (code < 2), done.stderr
    did = tmp_path / "did"
    assert (did.read_text().strip() if did.exists() else None) == does
    if does and "body.md" in does:
        assert (tmp_path / "body.md").read_text() == "```text\na breaks b\n```\n"


@pytest.mark.parametrize("example", in_language("sh"))
def test_the_commands_of_a_block_have_options_that_exist(example, tmp_path, request, monkeypatch):
    if example.page == "plugins.md":
        install_example(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    for words in example.commands if example.page not in PIPELINES else ():
        check = {"onnx-ci": check_command, "pytest": check_pytest, "tox": check_tox, "python": check_python, "git": None}[
            words[0]
        ]
        if check is not None:
            check(words[1:], example, tmp_path, request)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_in_sentences_have_options_that_exist(page, request):
    """They leave out arguments, and the values of their options can be placeholders."""
    sentences = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    for text in re.findall(r"`((?:onnx-ci|pytest) [^`…]+)`", sentences):
        program, *words = shlex.split(text)
        if program == "pytest":
            ours = [word for word in words if word.startswith(("--onnx", "--no-onnx"))]
            assert request.config._parser.parse_known_and_unknown_args(ours)[1] == [], text
        else:
            command, rest = command_of(words)
            known = {"-h", "--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
            assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= known, text


def check_command(words, example, root, request):
    given = parsed(words)
    load_settings(root, flags={option.field: given[option.field] for option in FLAGS if given.get(option.field)})


def parsed(words):
    """The values that a command of ``onnx-ci`` gets; click raises an error for an option that does not exist."""
    command, rest = command_of(itertools.takewhile(lambda word: word not in (">", ">>"), words))
    return {} if rest in (["-h"], ["--help"]) else command.make_context("onnx-ci", rest).params


def command_of(words):
    """The command that words begin with, and the other words."""
    command, rest = main, [*words]
    while rest and isinstance(command, click.Group) and (called := command.get_command(click.Context(command), rest[0])):
        command, rest = called, rest[1:]
    return command, rest


def check_pytest(words, example, root, request):
    known, unknown = request.config._parser.parse_known_and_unknown_args(words)
    assert unknown == []
    settings = {option.field: getattr(known, f"onnx_{option.field}", None) for option in FLAGS}
    load_settings(root, flags={name: value for name, value in settings.items() if value})


def check_tox(words, example, root, request):
    run, flag, environment = words
    assert (run, flag) == ("run", "-e")
    assert re.search(rf"^\[testenv:{environment}[\]{{]", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE)


def check_python(words, example, root, request):
    assert words[0] in {each.title for each in examples_of(example.page)}


@pytest.mark.parametrize("example", in_language("toml"))
def test_a_block_of_toml_is_accepted(example, tmp_path):
    data = tomllib.loads(example.text)
    if "onnx-ci" in data.get("tool", {}):
        (tmp_path / "pyproject.toml").write_text(example.text, encoding="utf-8")
        load_settings(tmp_path, environment={})


@pytest.mark.parametrize("example", in_language("yaml"))
def test_a_block_of_yaml_uses_what_exists(example):
    data = yaml.safe_load(example.text)
    workflow = yaml.safe_load((ROOT / ".github/workflows/onnx-export.yml").read_text(encoding="utf-8"))
    hooks = {each["id"] for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    for repository in data.get("repos", []):
        assert {each["id"] for each in repository["hooks"]} <= hooks
    for job in data.get("jobs", {}).values():
        if "uses" in job:
            assert job["uses"] == "OWNER/onnx-ci/.github/workflows/onnx-export.yml@REF"
            assert job["with"].keys() <= workflow[True]["workflow_call"]["inputs"].keys()  # "on" is a boolean in YAML
        for step in job.get("steps", []):
            if step.get("uses") == "OWNER/onnx-ci@REF":
                assert step["with"].keys() <= ACTION["inputs"].keys()
            for words in commands_in(step.get("run", "")):
                if words[0] == "onnx-ci":
                    parsed(words[1:])


# --- the generated pages


def test_the_reference_has_every_setting_keyword_command_rule_and_public_name():
    settings, recipe, commands = (GENERATED[f"reference/{name}.md"] for name in ("settings", "recipe", "command-line"))
    assert set(re.findall(r"^### `(.+)`$", settings, re.MULTILINE)) == {option.name for option in OPTIONS}
    assert set(re.findall(r"^## `(.+)`$", recipe, re.MULTILINE)) == {*KEYWORDS, "each"}
    assert set(re.findall(r"^## `onnx-ci (\w+)`$", commands, re.MULTILINE)) == set(COMMANDS)
    assert re.findall(r"^\| \[`(.+?)`\]", GENERATED["rules/index.md"], re.MULTILINE) == list(RULES)
    shown = re.findall(r"^::: onnx_ci\.(\w+)$", GENERATED["reference/python.md"], re.MULTILINE)
    assert {*shown, "__version__", "recipe"} == {*onnx_ci.__all__}


def test_a_report_has_the_layout_that_the_schema_says(project):
    project.recipes(RIGHT, FROZEN)
    done = project.command("onnx_ci", "run", "--opsets=13", "--devices=cpu,cuda", "--report=r.json")
    assert done.returncode == 1, done.stdout + done.stderr
    schema = REFERENCE["report_schema"]()
    report = json.loads((project.root / "r.json").read_text(encoding="utf-8"))
    for each in (schema, *(each for each in schema["$defs"].values() if "properties" in each)):
        each["additionalProperties"] = False  # nothing is left out of the schema
    schema["properties"]["summary"].pop("additionalProperties", None)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(report)


# --- links, as GitHub shows the pages


FILES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *RULE_PAGES, ROOT / "recipes" / "README.md"]


def anchors_in(text):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_to_a_heading(file):
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for path, _, anchor in (each.partition("#") for each in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", text)):
        target = file.parent / path if path else file
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors_in(target.read_text(encoding="utf-8")), f"{path}#{anchor}"
