"""The report page as a person has it: in a headless Chromium, from a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toolbox.chromium import NO_PROGRAM, PROGRAM, Page, chromium
from toolbox.projects import FROZEN, RIGHT
from toolbox.records import report
from toolbox.shown_runs import HOSTILE, detailed_failure, hostile_run, some_run, timed_pass

from onnx_ci import RunReport
from onnx_ci.report import html
from onnx_ci.report.grid import format_result, grid

pytestmark = [pytest.mark.browser, pytest.mark.skipif(PROGRAM is None, reason=NO_PROGRAM)]

SHOWN = """[...document.querySelectorAll('details.cell')].filter(each => each.checkVisibility())
    .map(each => each.lastElementChild.id)"""
GRID = """[...document.querySelectorAll('.grid tbody tr')].filter(row => row.checkVisibility()).map(row =>
    [...row.cells].map(place => place.classList.contains('out') ? '' : (place.querySelector('a') ?? place).textContent))"""


def cell(id: str) -> str:
    """An expression for the cell in the page whose content has this id."""
    return f"document.getElementById('{id}').closest('details')"


NET, QUICK, FAILED, RAISES = (f"cell-{name}-cpu" for name in ("net-opset9", "quick-opset9", "net-opset10", "raises-opset9"))
"""Cells of :func:`some_run`."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as page:
        yield page


@pytest.fixture
def show(browser: Page, tmp_path: Path):
    """Opens the page of a report; at the end no request may have left it, and it may have said nothing."""

    def open_page(run: RunReport, fragment: str = "", repeat=lambda cell: f"repeat {cell.id}") -> Page:
        file = tmp_path / "report.html"
        file.write_text(html.render(run, repeat), encoding="utf-8")
        browser.send("Emulation.setDeviceMetricsOverride", width=900, height=800, deviceScaleFactor=1, mobile=False)
        browser.send("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "light"}])
        browser.open(file, fragment)
        return browser

    yield open_page
    requests = [each["request"]["url"] for each in browser.said("Network.requestWillBeSent")]
    assert [each.partition("#")[0] for each in requests if not each.startswith("data:")] == [
        (tmp_path / "report.html").as_uri()
    ]
    assert browser.said("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []


def type_into_search(page: Page, text: str) -> None:
    page.run("document.getElementById('search').select()")
    page.send("Input.insertText", text=text)


def test_a_run_with_failures_is_shown_and_filtered(show, run_cells, project):
    project.recipes(RIGHT, FROZEN)
    run = run_cells(opsets="12-13")
    assert run.counts == {"passed": 2, "failed": 2}
    page = show(run)
    rows = [[row.title, *map(format_result, row.results)] for row in grid(run.cells).rows]
    assert page.run(GRID) == rows
    right, total = ([f"cell-{recipe}-opset{opset}-cpu" for opset in (12, 13)] for recipe in ("right", "total"))
    assert page.run(SHOWN) == [total[0], *right, total[1]]
    assert page.run(f"{cell(total[0])}.innerText").count("baked-value") >= 1

    page.run("document.querySelector('input[value=failed]').click()")
    page.wait_for("document.getElementById('shown').textContent === '2 of 4 cells'")
    assert page.run(SHOWN) == total
    assert page.run(GRID) == [rows[1]]
    type_into_search(page, "TOTAL baked-value opset13")
    page.wait_for("document.getElementById('shown').textContent === '1 of 4 cells'")
    assert page.run(SHOWN) == total[1:]
    assert not page.run("document.querySelector('.cause').checkVisibility()"), "a cause without cells has no heading"
    assert page.run(GRID) == [["total cpu", "", "FAIL"]]
    assert page.run("location.hash") == "#q=TOTAL+baked-value+opset13&status=failed"
    page.run("document.getElementById('clear').click()")
    page.wait_for("document.getElementById('shown').textContent === 'all 4 cells'")
    assert page.run(GRID) == rows


def test_the_address_holds_the_filter_and_the_place(show):
    page = show(some_run(), f"#q=a%2Fb.py&status=failed,error&at={NET}")
    assert page.run("document.getElementById('search').value") == "a/b.py"
    assert page.run(SHOWN) == [FAILED, RAISES, NET]  # what was gone to is shown, too
    assert page.run(f"document.activeElement === {cell(NET)}.firstElementChild")
    assert page.run("document.getElementById('shown').textContent") == "2 of 9 cells"
    page = show(some_run(), f"#{NET}")
    assert page.run(f"{cell(NET)}.open")
    assert 0 < page.run(f"{cell(NET)}.getBoundingClientRect().top / innerHeight") < 1
    page.run(f"document.querySelector('.grid a[href=\"#{QUICK}\"]').click()")
    page.wait_for(f"{cell(QUICK)}.open")
    assert page.run("location.hash") == f"#{QUICK}", "an address that also works without JavaScript"
    page.run("document.querySelector('#rules a').click()")
    page.wait_for("location.hash.startsWith('#q=')")
    page.wait_for(f"{SHOWN}.length === 1")
    page.run("history.back()")
    page.wait_for(f"{SHOWN}.length === 9")


def test_a_link_opens_a_cell_or_a_cause_without_javascript(show, browser):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        show(some_run(), f"#{QUICK}")
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run(f"{cell(QUICK)}.open")
    assert browser.run(f"{cell(QUICK)}.querySelector('.outputs').checkVisibility()")
    top = f"{cell(QUICK)}.getBoundingClientRect().top"
    assert 0 <= browser.run(top) < browser.run("innerHeight")
    marked = "getComputedStyle(document.querySelector('{}')).backgroundColor !== 'rgba(0, 0, 0, 0)'"
    assert browser.run(marked.format(f".cell:has(#{QUICK}) > summary"))
    page = show(some_run(), "#cause-numeric-drift-net")
    assert page.run("document.querySelector(':target h3').textContent").startswith("numeric-drift")
    assert page.run(marked.format(".cause:target > h3"))


def test_details_of_a_cell_of_a_large_run_are_built_when_it_is_opened(show):
    page = show(report(timed_pass(), replace(timed_pass(opset=10), log="x" * 500_000)))
    assert page.run(f"document.getElementById('{NET}').childElementCount") == 0
    page.run(f"document.querySelector('.grid a[href=\"#{NET}\"]').click()")
    page.wait_for(f"document.querySelector('#{NET} .outputs') !== null")
    assert page.run(f"{cell(NET)}.open")
    assert page.run(f"document.querySelector('#{NET} pre').textContent") == "repeat a/b.py::net::opset9-cpu"
    page.run(f"{cell(NET)}.open = false; {cell(NET)}.open = true")
    assert page.run(f"document.querySelectorAll('#{NET} .repeat').length") == 1


def test_the_groups_of_a_large_grid_can_be_closed(show):
    folders = {"models": range(30), "types": range(30, 60)}
    cells = [timed_pass(recipe=f"net{n}", source=f"{folder}/n.py") for folder, numbers in folders.items() for n in numbers]
    page = show(report(*cells))
    titles = "[...document.querySelectorAll('.group label')].map(each => each.textContent.trim())"
    assert page.run(titles) == ["Show models 30 rows: 30 passed", "Show types 30 rows: 30 passed"]
    rows = "[...document.querySelectorAll('.grid tbody tr:not(.group)')].filter(each => each.checkVisibility()).length"
    assert page.run(rows) == 60
    page.run("document.querySelector('.group input').focus()")
    page.press(" ", 32, " ")
    page.wait_for(f"{rows} === 30")
    type_into_search(page, "net7")
    page.wait_for("document.getElementById('shown').textContent === '1 of 60 cells'")
    assert page.run(rows) == 1, "what is looked for is shown, whatever is closed"
    assert page.run("[...document.querySelectorAll('.group')].filter(each => each.checkVisibility()).length") == 1


def test_the_page_is_usable_by_keyboard_alone(show):
    page = show(some_run())
    page.press("Tab", 9)
    assert page.run("document.activeElement.className") == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().left >= 0")
    page.press("Enter", 13, "\r")
    page.wait_for("document.activeElement.textContent === 'Failures'")
    page.press("Tab", 9)
    assert page.run("document.activeElement.closest('.cause').id") == "cause-numeric-drift-net"
    page.press("Tab", 9)
    assert page.run(f"document.activeElement === {cell(FAILED)}.firstElementChild")
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter", 13, "\r")
    page.wait_for(f"!{cell(FAILED)}.open")
    page.run(f"document.querySelector('.grid a[href=\"#{FAILED}\"]').focus()")
    page.press("Enter", 13, "\r")
    page.wait_for(f"document.activeElement === {cell(FAILED)}.firstElementChild")
    assert page.run(f"{cell(FAILED)}.open")
    assert page.run("getComputedStyle(document.querySelector('.filter')).position") == "sticky"
    top, bar = page.run("[document.activeElement.getBoundingClientRect().top, document.querySelector('.filter').offsetHeight]")
    assert top >= bar, "the filter hides what has the focus"


def test_the_command_is_copied(show, browser):
    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page = show(report(detailed_failure()), repeat=lambda cell: "onnx-ci run --select='a b' \"c\" <d>")
    page.send("Page.bringToFront")
    page.run("document.querySelector('.copy').click()")
    page.wait_for("document.querySelector('.copy').textContent === 'Copied'")
    assert page.run("document.getElementById('announcement').textContent") == "The command is copied."
    assert page.run("navigator.clipboard.readText()") == "onnx-ci run --select='a b' \"c\" <d>"


def test_text_from_outside_does_nothing(show):
    page = show(hostile_run(), repeat=lambda cell: HOSTILE)
    page.run("document.querySelectorAll('details.cell').forEach(each => { each.open = true })")
    page.wait_for("[...document.querySelectorAll('.details')].every(each => each.hasChildNodes())")
    assert page.run("typeof hacked") == "undefined"
    assert page.run("document.images.length") == 0
    assert page.run("document.querySelectorAll('pre.log').length") == 6


def test_no_script_of_the_page_could_send_anything(browser, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(html.render(some_run(), str), encoding="utf-8")
    browser.open(file)
    refused = browser.run(
        """new Promise(done => {
            const refused = [];
            document.addEventListener('securitypolicyviolation', (event) => {
                refused.push(event.effectiveDirective);
                if (refused.length === 3) done(refused.sort());
            });
            fetch('http://127.0.0.1:8123/').catch(() => {});
            document.body.append(Object.assign(new Image(), { src: 'http://127.0.0.1:8123/' }));
            document.body.append(Object.assign(document.createElement('script'), { textContent: 'hacked = 1' }));
        })"""
    )
    assert refused == ["connect-src", "img-src", "script-src-elem"]


def test_on_paper_the_failures_are_open_and_the_colours_light(show, browser):
    cells = [detailed_failure(recipe=f"net{number}") for number in range(9)]
    page = show(report(*cells, timed_pass(recipe="fine")))
    opened = "document.querySelectorAll('details.cell[open]').length"
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.run(opened) == 0
    light = page.run(colour)
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(opened) == len(cells)
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(opened) == 0
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.send("Emulation.setEmulatedMedia", media="", features=dark)
    assert page.run(colour) != light
    page.send("Emulation.setEmulatedMedia", media="print", features=dark)
    assert page.run(colour) == light
    assert not page.run("document.querySelector('.filter').checkVisibility()")
    assert not page.run("document.querySelector('#cells').checkVisibility()"), "a list of thousands, which the grid has, too"
    closed = "document.querySelector('#failures .cell:not([open]) .repeat')"
    assert page.run(f"{closed}.checkVisibility({{ contentVisibilityAuto: true }})"), "without a script, too"


def test_thousands_of_cells_are_filtered(show):
    cells = [replace(timed_pass(recipe=f"net{number}", opset=opset)) for number in range(300) for opset in range(9, 18)]
    page = show(report(*cells))
    type_into_search(page, "net299")
    page.wait_for("document.getElementById('shown').textContent === '9 of 2700 cells'")
    assert page.run(GRID) == [["net299 cpu", *["1.5"] * 9]]
