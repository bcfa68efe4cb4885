"""The report page, checked by axe-core in a headless Chromium."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toolbox.baselines import moment
from toolbox.chromium import NO_PROGRAM, PROGRAM, Page, chromium
from toolbox.records import failed, report
from toolbox.shown_runs import hostile_run, located_failure, some_run, timed_pass

from onnx_ci.config.values import BASELINE_LIMITS
from onnx_ci.report import html
from onnx_ci.report.comparison import compare_runs
from onnx_ci.tools.history.page import render


def _axe() -> Path | None:
    """The script of axe-core, which a package for another browser driver brings along; the package itself is not used."""
    package = importlib.util.find_spec("axe_playwright_python")
    return None if package is None or package.origin is None else Path(package.origin).with_name("axe.min.js")


AXE = _axe()

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason=NO_PROGRAM),
    pytest.mark.skipif(AXE is None, reason="there is no axe-core: pip install --no-deps axe-playwright-python"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as page:
        yield page


def everything() -> str:
    run = some_run()
    run = replace(run, cells=(*run.cells, located_failure(recipe="located")))
    earlier = report(timed_pass(100.0), timed_pass(recipe="raises"), timed_pass(recipe="gone"))
    return html.render(run, str, since=compare_runs(run, earlier), since_name="main.json")


def large() -> str:
    """A grid with groups."""
    cells = [
        timed_pass(recipe=f"{folder}{number}", source=f"{folder}/n.py")
        for folder in ("models", "types")
        for number in range(20)
    ]
    return html.render(report(*cells, *(failed(recipe=f"bad{number}") for number in range(5))), str)


PAGES = {
    "everything": everything,
    "large": large,
    "passed": lambda: html.render(report(timed_pass()), str),
    "nothing ran": lambda: html.render(report(), str),
    "hostile": lambda: html.render(hostile_run(), str),
    "history": lambda: render((moment(1), moment(2, drift=200.0, size=2000)), BASELINE_LIMITS),
}

CHECK = """axe.run(document).then(found => found.violations.map(
    each => `${each.id}: ${each.help}: ${each.nodes.map(node => node.target).join(', ')}`))"""


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (500, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(browser, tmp_path, name, width, colours):
    file = tmp_path / "report.html"
    file.write_text(PAGES[name](), encoding="utf-8")
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.send("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": colours}])
    browser.open(file, "#cell-located-opset9-cpu")  # where there is such a cell, it is highlighted
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    browser.wait_for("[...document.querySelectorAll('.details')].every(each => each.hasChildNodes())")
    browser.run(AXE.read_text(encoding="utf-8") + "; 0")
    assert browser.run(CHECK) == []
