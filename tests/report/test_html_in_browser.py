"""The report page as a person has it: in a headless Chromium, from a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toolbox.chromium import PROGRAM, Page, chromium
from toolbox.projects import FROZEN, RIGHT
from toolbox.records import report
from toolbox.shown_runs import HOSTILE, detailed_failure, hostile_run, some_run, timed_pass

from onnx_ci import RunReport
from onnx_ci.report import html
from onnx_ci.report.grid import grid, word

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="there is no chromium, chromium-browser or google-chrome on the PATH"),
]

SHOWN = "[...document.querySelectorAll('details.cell')].filter(each => each.checkVisibility()).map(each => each.id)"
GRID = """[...document.querySelectorAll('.grid tbody tr')].filter(row => row.checkVisibility()).map(row =>
    [...row.cells].map(place => place.classList.contains('out') ? '' : (place.querySelector('a') ?? place).textContent))"""


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
    rows = [[row.title, *map(word, row.results)] for row in grid(run.cells).rows]
    assert page.run(GRID) == rows
    assert page.run(SHOWN) == ["c2", "c0", "c1", "c3"]
    assert page.run("document.querySelector('#c2').innerText").count("baked-value") >= 1

    page.run("document.querySelector('input[value=failed]').click()")
    page.wait_for("document.getElementById('shown').textContent === '2 of 4 cells'")
    assert page.run(SHOWN) == ["c2", "c3"]
    assert page.run(GRID) == [rows[1]]
    type_into_search(page, "TOTAL baked-value opset13")
    page.wait_for("document.getElementById('shown').textContent === '1 of 4 cells'")
    assert page.run(SHOWN) == ["c3"]
    assert page.run(GRID) == [["total cpu", "", "FAIL"]]
    assert page.run("location.hash") == "#q=TOTAL+baked-value+opset13&status=failed"
    page.run("document.getElementById('clear').click()")
    page.wait_for("document.getElementById('shown').textContent === 'all 4 cells'")
    assert page.run(GRID) == rows


def test_the_address_holds_the_filter_and_the_place(show):
    page = show(some_run(), "#q=a%2Fb.py&status=failed,error&at=c0")
    assert page.run("document.getElementById('search').value") == "a/b.py"
    assert page.run(SHOWN) == ["c2", "c7", "c0"]  # what was gone to is shown, too
    assert page.run("document.activeElement.closest('details').id") == "c0"
    assert page.run("document.getElementById('shown').textContent") == "2 of 9 cells"
    page = show(some_run(), "#c0")
    assert page.run("document.querySelector('#c0').open")
    assert 0 < page.run("document.querySelector('#c0').getBoundingClientRect().top / innerHeight") < 1
    page.run("document.querySelector('#rules a').click()")
    page.wait_for("location.hash.startsWith('#q=')")
    page.wait_for(f"{SHOWN}.length === 1")
    page.run("history.back()")
    page.wait_for(f"{SHOWN}.length === 9")


def test_details_of_a_passed_cell_are_built_when_it_is_opened(show):
    page = show(some_run())
    assert page.run("document.querySelector('#c0').childElementCount") == 1
    page.run("document.querySelector('.grid a[href=\"#c0\"]').click()")
    page.wait_for("document.querySelector('#c0 .outputs') !== null")
    assert page.run("document.querySelector('#c0').open")
    assert page.run("document.querySelector('#c0 pre').textContent") == "repeat a/b.py::net::opset9-cpu"
    page.run("document.querySelector('#c0').open = false; document.querySelector('#c0').open = true")
    assert page.run("document.querySelector('#c0').childElementCount") == 2


def test_the_page_is_usable_by_keyboard_alone(show):
    page = show(some_run())
    page.press("Tab", 9)
    assert page.run("document.activeElement.className") == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().left >= 0")
    page.press("Enter", 13, "\r")
    page.wait_for("document.activeElement.textContent === 'Failures'")
    page.press("Tab", 9)
    assert page.run("document.activeElement.closest('details').id") == "c2"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter", 13, "\r")
    page.wait_for("!document.querySelector('#c2').open")
    page.run("document.querySelector('.grid a[href=\"#c2\"]').focus()")
    page.press("Enter", 13, "\r")
    page.wait_for("document.querySelector('#c2').open")
    assert page.run("document.activeElement.matches('#c2 summary')")
    assert page.run("getComputedStyle(document.querySelector('.filter')).position") == "sticky"
    top, bar = page.run("[document.activeElement.getBoundingClientRect().top, document.querySelector('.filter').offsetHeight]")
    assert top >= bar, "the filter hides what has the focus"


def test_the_command_is_copied(show, browser):
    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page = show(report(detailed_failure()), repeat=lambda cell: "onnx-ci run --select='a b' \"c\" <d>")
    page.send("Page.bringToFront")
    page.run("document.querySelector('#c0 .copy').click()")
    page.wait_for("document.querySelector('#c0 .copy').textContent === 'Copied'")
    assert page.run("document.getElementById('announcement').textContent") == "The command is copied."
    assert page.run("navigator.clipboard.readText()") == "onnx-ci run --select='a b' \"c\" <d>"


def test_text_from_outside_does_nothing(show):
    page = show(hostile_run(), repeat=lambda cell: HOSTILE)
    page.run("document.querySelectorAll('details.cell').forEach(each => { each.open = true })")
    page.wait_for("[...document.querySelectorAll('details.cell')].every(each => each.querySelector('.details'))")
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


def test_thousands_of_cells_are_filtered(show):
    cells = [replace(timed_pass(recipe=f"net{number}", opset=opset)) for number in range(300) for opset in range(9, 18)]
    page = show(report(*cells))
    type_into_search(page, "net299")
    page.wait_for("document.getElementById('shown').textContent === '9 of 2700 cells'")
    assert page.run(GRID) == [["net299 cpu", *["1.5"] * 9]]
