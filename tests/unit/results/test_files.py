"""Which files onnx-ci replaces: those that it wrote, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from toolbox.records import failed, passed, report

from onnx_ci.config.settings import check_writable, load_settings
from onnx_ci.errors import ConfigurationError
from onnx_ci.report import html, junit, markdown
from onnx_ci.results.files import as_text, check_replaceable, write_json, write_text
from onnx_ci.results.journal import Journal, journal_of
from onnx_ci.tools.history import page as history_page

REPORTS = {"passed": report(passed()), "failed": report(failed()), "empty": report()}
ROOT = Path(__file__).parents[3]


def command(_: object) -> str:
    return "onnx-ci run"


RENDERINGS = {
    "json": as_text,
    "html": lambda run: html.render(run, command),
    "junit": lambda run: junit.render(run, command),
    "markdown": lambda run: markdown.render(run, command),
}


@pytest.mark.parametrize("kind", REPORTS)
@pytest.mark.parametrize("form", RENDERINGS)
def test_what_onnx_ci_wrote_is_replaced(tmp_path, form, kind):
    path = tmp_path / "written"
    text = RENDERINGS[form](REPORTS[kind])
    write_text(text, path)
    write_text(text, path)
    check_writable(load_settings(tmp_path, environment={}, flags={"report": str(path)}))
    assert path.read_text() == text


def test_a_journal_and_a_baseline_are_replaced(tmp_path):
    journal = Journal(tmp_path / "r.json", revision=None, environment={}, settings={})
    journal.close()
    check_replaceable(journal.path)
    baselines = [*(ROOT / "onnx-baselines").glob("*.toml")]
    assert baselines
    for path in baselines:
        check_replaceable(path)


@pytest.mark.parametrize(
    "content",
    [
        "import onnx_ci\n",
        "# onnx-ci\n\nREADME: ## ONNX export: passed\n",
        "[project]\nname = 'net'\n",
        '{"schema_version": 1}',
        "<html></html>",
        '<?xml version="1.0"?>\n<testsuites name="pytest tests"></testsuites>',
        '{"$schema": "https://x/sarif-2.1.0.json", "version": "2.1.0", "runs": [{"tool": {"driver": {"name": "ruff"}}}]}',
        "\0\1",
    ],
)
def test_what_others_wrote_is_refused_before_and_after_the_run(tmp_path, content):
    path = tmp_path / "written"
    path.write_text(content)
    for write in (
        lambda: check_writable(load_settings(tmp_path, environment={}, flags={"report": str(path)})),
        lambda: check_writable(load_settings(tmp_path, environment={}), path),
        lambda: write_json(REPORTS["passed"], path),
        lambda: write_text("text", path),
    ):
        with pytest.raises(ConfigurationError, match="but onnx-ci did not write it; name another file, or remove it"):
            write()
    assert path.read_text() == content
    path.rename(journal_of(tmp_path / "r.json"))
    with pytest.raises(ConfigurationError, match=r"r\.json\.journal would be overwritten"):
        check_writable(load_settings(tmp_path, environment={}, flags={"report": str(tmp_path / "r.json")}))


def test_an_empty_file_costs_nobody_anything(tmp_path):
    (tmp_path / "written").touch()
    write_json(REPORTS["passed"], tmp_path / "written")


def test_the_page_of_the_history_is_replaced(tmp_path):
    limits = load_settings(tmp_path, environment={}).baseline_limits
    assert '<meta name="generator" content="onnx-ci">' in history_page.render((), limits)
