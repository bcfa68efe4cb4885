from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import tomllib
import zlib
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest
from toolbox.records import cell, drift, report
from toolbox.shown_runs import HOSTILE, detailed_failure, hostile_run, some_run, timed_pass

from onnx_ci import CellResult, Finding, RunReport, Severity, Status
from onnx_ci.report import html
from onnx_ci.report.grid import grid, word
from onnx_ci.report.markup import printable
from onnx_ci.report.plot import plot

VOID = {"br", "input", "link", "meta", "path", "rect"}


@dataclass(eq=False)
class Element:
    """One element of a page, with all that stands in it."""

    tag: str
    attributes: dict[str, str]
    inside: list[Element | str] = field(default_factory=list)

    @property
    def elements(self) -> list[Element]:
        """The element and all below it, in order."""
        return [self, *(each for child in self.inside if isinstance(child, Element) for each in child.elements)]

    @property
    def text(self) -> str:
        return "".join(each if isinstance(each, str) else each.text for each in self.inside)

    def all(self, tag: str, kind: str | None = None) -> list[Element]:
        """The elements with a tag and, if it is given, a class."""
        return [e for e in self.elements if e.tag == tag and (kind is None or kind in e.attributes.get("class", "").split())]

    def one(self, id: str) -> Element:
        (found,) = [each for each in self.elements if each.attributes.get("id") == id]
        return found


class Reader(HTMLParser):
    """Builds the tree of a page, and refuses what is not well-formed."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].inside.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID, tag
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.stack[-1].inside.append(data)


def read(source: str) -> Element:
    reader = Reader()
    reader.feed(source)
    reader.close()
    (root,) = reader.stack
    return root


def page_of(run: RunReport, repeat=lambda cell: f"repeat {cell.id}") -> Element:
    """The page with the details of every cell in their place, as a reader has it who opened them all."""
    page = read(html.render(run, repeat))
    packed = json.loads(zlib.decompress(base64.b64decode(page.one("bodies").text)))
    for id, source in packed.items():
        entry = page.one(id)
        assert len([each for each in entry.inside if isinstance(each, Element)]) == 1, "the details stand in the page already"
        entry.inside += read(source).inside
    return page


def test_the_page_is_well_formed_and_every_link_leads_somewhere():
    page = page_of(some_run())
    ids = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    links = [each.attributes["href"] for each in page.all("a")]
    assert {link for link in links if not link.startswith("#q=")} <= {f"#{id}" for id in ids}
    assert any(link.startswith("#q=") for link in links)
    for table in page.all("table"):
        assert [each.tag for each in table.inside if isinstance(each, Element)] == ["caption", "thead", "tbody"]
        heads = [each for each in table.all("thead")[0].elements if each.tag in ("th", "td")]
        assert {th.attributes["scope"] for th in table.all("th")} == {"col", "row"}
        for row in table.all("tbody")[0].all("tr"):
            assert len([each for each in row.inside if isinstance(each, Element)]) == len(heads)


def test_the_page_says_what_came_of_the_run():
    page = page_of(some_run())
    assert page.all("title")[0].text == "✗ ONNX export: failed"
    assert page.all("h1")[0].text.endswith("ONNX export: failed")
    assert "9 cells: 4 passed, 1 failed, 1 error, 1 skipped, 1 xfailed, 1 xpassed, 1 of them cached, 1 problem" in page.text
    assert "bad.py" in page.one("problems").text
    assert "cannot be imported" in page.one("problems").text
    assert "a/b.py::late::opset9-cpu" in page.one("not-run").text
    assert "skipped 1 cell: no cuda: no driver" in page.one("grid").text
    assert "xfailed 1 cell: index_put" in page.one("grid").text
    assert [[each.text for each in row.elements if each.tag in ("th", "td")] for row in page.one("setup").all("tr")] == [
        ["name", "version"],
        ["torch", "2.13.0"],
        ["setting", "value", "source"],
        ["opsets", "9-10", "--opsets"],
        ["max-drift", "16", "default"],
        ["jobs", "not set", "default"],
    ]


@pytest.mark.parametrize(
    ("cells", "title"),
    [
        ((timed_pass(),), "✓ ONNX export: passed"),
        ((), "– ONNX export: nothing ran"),
        ((detailed_failure(),), "✗ ONNX export: failed"),
    ],
)
def test_the_title_is_the_verdict(cells, title):
    page = page_of(report(*cells))
    assert page.all("title")[0].text == title


def test_the_grid_has_a_place_for_each_cell_that_leads_to_it():
    run = some_run()
    page = page_of(run)
    table = page.one("grid").all("table")[0]
    assert [th.text for th in table.all("th") if th.attributes["scope"] == "col"] == ["opset", "9", "10"]
    rows = [[each.text for each in row.elements if each.tag in ("th", "td")] for row in table.all("tbody")[0].all("tr")]
    expected = [[row.title, *(word(result) for result in row.results)] for row in grid(run.cells).rows]
    assert [[text.replace("no cell", "") for text in row] for row in rows] == expected
    for row, known in zip(table.all("tbody")[0].all("tr"), grid(run.cells).rows, strict=True):
        for place, result in zip(row.all("td"), known.results, strict=True):
            for link in place.all("a"):
                assert (
                    f"{result.cell.recipe}::{result.cell.label}" in page.one(link.attributes["href"][1:]).all("summary")[0].text
                )


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (timed_pass(0.0), "p0"),
        (timed_pass(1.0), "p1"),
        (timed_pass(8.0), "p2"),
        (timed_pass(32.0), "p3"),
        (timed_pass(33.0), "p4"),  # it passed by tolerances of its recipe
        (CellResult(cell=cell(), status=Status.PASSED), "p0"),
        (detailed_failure(), "failed"),
        (CellResult(cell=cell(), status=Status.XFAILED), "xfailed"),
    ],
)
def test_a_place_is_coloured_by_its_share_of_the_limit(result, kind):
    page = page_of(report(result))
    assert [td.attributes["class"] for td in page.one("grid").all("td")] == [kind]
    assert page.one("grid").all("span", kind), "the legend tells the colour"


def test_each_cell_has_its_findings_numbers_log_and_the_way_to_repeat_it():
    run = some_run()
    page = page_of(run)
    entries = {each.attributes["id"]: each for each in page.all("details", "cell")}
    assert len(entries) == len(run.cells)
    for place, result in enumerate(run.cells):
        entry = entries[f"c{place}"]
        assert entry.attributes["data-status"] == result.status
        for found in result.findings:
            assert found.message in entry.text
            assert found.remedy in entry.text
            assert page.one(f"rule-{found.rule}-{found.severity}")
        assert [row.all("td")[0].text for row in entry.all("tr")[1:]] == [each.probe for each in result.outputs]
        assert [code.text for code in entry.all("code")][-1] == f"repeat {result.cell.id}"
        assert result.reason in entry.text
        assert [log.text for log in entry.all("pre", "log")] == [result.log] * bool(result.log)
    assert "50% of the model" in entries["c2"].text
    assert "×beyond the limit 4e+06" in entries["c2"].text
    assert "yes: the verdict and the times are from an earlier run" in entries["c3"].text
    assert "out/quick.onnx" in entries["c3"].text


def test_what_failed_comes_first_and_a_few_failures_stand_open():
    page = page_of(some_run())
    assert [each.attributes["id"] for each in page.one("failures").all("details", "cell")] == ["c2", "c6", "c7"]
    assert [each.attributes["id"] for each in page.all("details") if "open" in each.attributes] == ["c2", "c6", "c7"]
    many = page_of(report(*(detailed_failure(recipe=f"net{number}") for number in range(9))))
    assert not [each for each in many.all("details") if "open" in each.attributes]


def test_cells_that_fail_for_the_same_cause_are_one_failure_with_links_to_the_others():
    page = page_of(report(*(detailed_failure(opset=opset) for opset in range(9, 12)), timed_pass(recipe="fine")))
    (told,) = page.one("failures").all("details", "cell")
    assert (told.attributes["id"], "open" in told.attributes) == ("c0", True)
    (same,) = told.all("p", "same")
    assert [(each.attributes["href"], each.text) for each in same.all("a")] == [("#c1", "opset10-cpu"), ("#c2", "opset11-cpu")]
    assert [each.attributes["id"] for each in page.one("cells").all("details", "cell")] == ["c1", "c2", "c3"]


def test_findings_are_counted_by_rule_with_what_they_mean():
    run = report(
        timed_pass(),
        detailed_failure(),
        detailed_failure(opset=10),
        CellResult(cell=cell(opset=11), status=Status.FAILED, findings=(UNKNOWN,)),
    )
    page = page_of(run)
    rows = [[td.text for td in row.all("td")] for row in page.one("rules").all("tr")[1:]]
    assert rows[0][:2] == ["error", "2 cells"]
    assert "by more than rounding explains" in rows[0][2]
    assert "onnx-ci rules numeric-drift" in rows[0][2]
    assert "does not know this rule" in rows[1][2]
    assert not page.one("c3").all("a"), "a rule without a page has no link"


UNKNOWN = Finding(rule="rule of tomorrow", severity=Severity.ERROR, message="m", remedy="r")


def test_times_are_of_the_cells_that_ran():
    page = page_of(
        report(detailed_failure(), timed_pass(opset=10), replace(timed_pass(opset=11), cached=True, timings={"export": 100.0}))
    )
    stages, slowest = page.one("times").all("table")
    assert [[each.text for each in row.elements if each.tag in ("th", "td")][:3] for row in stages.all("tr")[1:]] == [
        ["export", "750 ms", "20%"],
        ["run", "3.0 s", "80%"],
    ]
    assert [[each.text for each in row.elements if each.tag in ("th", "td")] for row in slowest.all("tr")[1:]] == [
        ["net opset9-cpu", "3.2 s", "run"],
        ["net opset10-cpu", "500 ms", "export"],
    ]


def test_a_run_without_cells_has_a_page():
    page = page_of(report())
    assert "This run has no cells, so it proves nothing." in page.text
    assert not page.all("svg")


def test_text_from_outside_is_text_wherever_it_stands():
    page = page_of(hostile_run(), lambda cell: HOSTILE)
    usual = page_of(some_run())
    assert {each.tag for each in page.elements} <= {each.tag for each in usual.elements}
    assert {name for each in page.elements for name in each.attributes} <= {
        name for each in usual.elements for name in each.attributes
    }
    shown = printable(HOSTILE)
    assert shown.startswith("</script>")
    assert shown.endswith("`${hacked}␀red␇���😀\n]]>")
    for id in ("problems", "not-run", "grid", "failures", "drift", "rules", "times", "setup", "cells"):
        assert "<img src=x" in page.one(id).text, id
    for place in range(len(Status)):
        entry = page.one(f"c{place}")
        assert [pre.text for pre in entry.all("pre")] == [shown, shown], "the command and the log"
        assert entry.all("span", "message")[0].text == shown


def test_a_page_can_be_written_whatever_the_report_holds():
    source = html.render(hostile_run(), lambda cell: HOSTILE)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", source)
    assert source.encode("utf-8").decode("utf-8") == source


def test_the_page_needs_nothing_from_outside_and_its_policy_lets_it_load_nothing():
    page = page_of(some_run())
    for each in page.elements:
        for name, value in each.attributes.items():
            assert name not in ("src", "srcset", "action", "formaction", "data", "poster", "style"), each
            assert name != "href" or value.startswith(("#", "data:")), each
            assert not name.startswith("on"), each
    (style,), scripts = page.all("style"), [each for each in page.all("script") if "type" not in each.attributes]
    assert not re.search(r"url\(|@import", style.text)
    (policy,) = [each.attributes["content"] for each in page.all("meta") if "http-equiv" in each.attributes]
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == parts["form-action"] == parts["base-uri"] == "'none'"
    assert set(parts) == {"default-src", "form-action", "base-uri", "img-src", "style-src", "script-src"}
    assert parts["img-src"] == "data:"
    for kind, element in (("style-src", style), ("script-src", *scripts)):
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert parts[kind] == f"'sha256-{digest}'"


def test_what_the_page_is_made_of_is_installed_with_the_package():
    folder = Path(html.__file__).parent
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["onnx_ci.report"]
    parts = [each.name for each in folder.iterdir() if each.is_file() and each.suffix != ".py"]
    assert {"page.css", "page.js", "page.html.jinja"} <= set(parts)
    assert all(any(fnmatch(part, pattern) for pattern in patterns) for part in parts)


def test_the_same_report_gives_the_same_page():
    assert html.render(some_run(), str) == html.render(some_run(), str)


def test_the_page_stays_small_when_everything_fails_with_long_logs():
    cells = [replace(detailed_failure(recipe=f"net{number}"), log=f"{number}" + "x" * 100_000) for number in range(150)]
    source = html.render(report(*cells), str)
    assert len(source) < 11_000_000
    page = page_of(report(*cells))  # and nothing is lost
    assert [log.text for log in page.all("pre", "log")] == [result.log for result in cells]


def test_numbers_that_are_none_are_shown():
    outputs = (drift(drift=math.nan, error=math.nan, index=None), drift(drift=math.inf, limit=0.0, max_rel=math.inf))
    page = page_of(report(replace(detailed_failure(), outputs=outputs), timed_pass(opset=10)))
    assert [[td.text for td in row.all("td")][1] for row in page.one("c0").all("tr")[1:]] == [
        "×beyond the limit nan",
        "×beyond the limit inf",
    ]
    assert "drift nan with limit 32 at opset 9" in page.one("drift").text
    assert "nan" not in "".join(path.attributes["d"] for path in page.all("path"))


def heights(*results: CellResult) -> tuple[list[float], float]:
    """The heights of the points of a plot, from the left, and of the limit, both from the bottom up."""
    picture = read(plot(grid(results)).svg)
    points = [
        (float(x), -float(y) - (4 if path.attributes["class"] == "crosses" else 0))
        for path in picture.all("path")
        if path.attributes["class"] in ("dots", "crosses")
        for x, y in re.findall(r"M(\d+) ([\d.]+)", path.attributes["d"])
    ]
    (limit,) = [path.attributes["d"] for path in picture.all("path", "limit")]
    return [y for _, y in sorted(points)], -float(re.match(r"M\d+ ([\d.]+)", limit)[1])


def test_the_plot_shows_each_drift_against_its_limit_on_a_logarithmic_scale():
    values = [0.0, 1e-9, 0.032, 3.2, 32.0, 320.0, 3.2e7, 1e300, math.inf, math.nan]
    points, limit = heights(*(timed_pass(value, opset=opset) for opset, value in enumerate(values, start=9)))
    assert points == sorted(points)
    assert points[4] == limit
    assert points[3] - points[2] == pytest.approx(2 * (points[5] - points[4]), abs=0.3)
    assert points[0] == points[1] < points[2]
    assert points[6] < points[7] == points[8] == points[9]


def test_with_several_limits_the_plot_shows_shares_of_them():
    results = [timed_pass(value, opset=opset) for opset, value in ((9, 3.2), (10, 320.0))]
    results.append(replace(timed_pass(opset=11), outputs=(drift(drift=0.1, limit=1.0),)))
    points, limit = heights(*results)
    assert points[0] == points[2] < limit < points[1]
    assert "as a multiple of each output's limit" in plot(grid(results)).caption


def test_the_plot_says_in_words_what_it_shows():
    run = [timed_pass(), detailed_failure(opset=10), detailed_failure(recipe="other"), timed_pass(recipe="third", opset=10)]
    picture = plot(grid(run))
    assert "3 lines, one for each recipe and device; 2 of them cross the limit." in picture.caption
    assert "The largest: net cpu, drift 4e+06 with limit 32 at opset 10." in picture.caption
    svg = read(picture.svg)
    assert svg.all("svg")[0].attributes["role"] == "img"
    assert svg.all("svg")[0].attributes["aria-label"] in picture.caption
    assert [(g.attributes["data-row"], g.all("title")[0].text.split(",")[0]) for g in svg.all("g")] == [
        ("0", "net cpu"),
        ("1", "other cpu"),
        ("2", "third cpu"),
    ]
    assert plot(grid([CellResult(cell=cell(), status=Status.ERROR)])) is None


def test_names_in_a_crowded_plot_do_not_overlap():
    svg = read(plot(grid([timed_pass(1.0 + number / 1e3, recipe=f"net{number}") for number in range(50)])).svg)
    places = [float(text.attributes["y"]) for text in svg.all("text", "end")]
    assert 5 < len(places) < 50
    assert all(later - earlier >= 15 for earlier, later in zip(sorted(places), sorted(places)[1:], strict=False))
