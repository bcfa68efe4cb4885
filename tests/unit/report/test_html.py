from __future__ import annotations

import base64
import hashlib
import json
import linecache
import math
import re
import tomllib
import zlib
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest
from toolbox.records import cell, drift, failed, passed, report, run_of
from toolbox.shown_runs import HOSTILE, detailed_failure, hostile_run, located_failure, some_run, timed_pass

from onnx_ci import CellResult, Finding, Revision, RunReport, Severity, Status
from onnx_ci.report import html
from onnx_ci.report.comparison import compare_runs
from onnx_ci.report.grid import format_result, grid
from onnx_ci.report.markup import printable
from onnx_ci.report.merge import merge

VOID = {"br", "input", "link", "meta", "rect"}


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


def page_of(run: RunReport, repeat=lambda cell: f"repeat {cell.id}", **context) -> Element:
    """The page with the details of every cell in their place, as a reader has it who opened them all."""
    page = read(html.render(run, repeat, **context))
    packed = json.loads(zlib.decompress(base64.b64decode(page.one("bodies").text)))
    for id, source in packed.items():
        entry = page.one(id)
        assert entry.inside == [], "the details stand in the page already"
        entry.inside += read(source).inside
    return page


def id_of(result: CellResult) -> str:
    """The id that a cell has in every page."""
    return f"cell-{result.cell.recipe}-{result.cell.label}"


def entry_of(page: Element, result: CellResult) -> Element:
    """The cell in the page, with the line that opens it."""
    (found,) = [each for each in page.all("details", "cell") if each.all("div", "details")[0].attributes["id"] == id_of(result)]
    return found


def ids(entries: list[Element]) -> list[str]:
    return [each.all("div", "details")[0].attributes["id"] for each in entries]


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
    assert (
        "9 of 10 cells: 4 passed, 1 failed, 1 error, 1 skipped, 1 xfailed, 1 xpassed, 1 of them cached, 1 problem" in page.text
    )
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
    expected = [[row.title, *(format_result(result) for result in row.results)] for row in grid(run.cells).rows]
    assert [[text.replace("no cell", "") for text in row] for row in rows] == expected
    for row, known in zip(table.all("tbody")[0].all("tr"), grid(run.cells).rows, strict=True):
        for place, result in zip(row.all("td"), known.results, strict=True):
            for link in place.all("a"):
                assert link.attributes["href"] == f"#{id_of(result)}"
                assert f"{result.cell.recipe}::{result.cell.label}" in entry_of(page, result).all("summary")[0].text


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
    assert len(page.all("details", "cell")) == len(run.cells)
    for result in run.cells:
        entry = entry_of(page, result)
        assert entry.attributes["data-status"] == result.status
        for found in result.findings:
            assert found.message in entry.text
            assert found.remedy in entry.text
            assert page.one(f"rule-{found.rule}-{found.severity}")
        assert [row.all("td")[0].text for row in entry.all("tr")[1:]] == [each.probe for each in result.outputs]
        assert [code.text for code in entry.all("code")][-1] == f"repeat {result.cell.id}"
        assert result.reason in entry.text
        assert [log.text for log in entry.all("pre", "log")] == [result.log] * bool(result.log)
    failed, quick = (page.one(id).text for id in ("cell-net-opset10-cpu", "cell-quick-opset9-cpu"))
    assert "50% of the model" in failed
    assert "×beyond the limit 4e+06" in failed
    assert "yes: the verdict and the times are from an earlier run" in quick
    assert "out/quick.onnx" in quick


def test_what_failed_comes_first_and_a_few_failures_stand_open():
    page = page_of(some_run())
    assert [each.attributes["id"] for each in page.all("section")][:4] == ["problems", "not-run", "failures", "grid"]
    failures = ["cell-net-opset10-cpu", "cell-closed-opset9-cpu", "cell-raises-opset9-cpu"]
    assert ids(page.one("failures").all("details", "cell")) == failures
    assert ids([each for each in page.all("details", "cell") if "open" in each.attributes]) == failures
    many = page_of(report(*(detailed_failure(recipe=f"net{number}") for number in range(9))))
    assert not [each for each in many.all("details", "cell") if "open" in each.attributes]
    # What stands open says itself what to do.
    assert [len(each.all("p", "remedy")) for each in page.all("div", "cause")] == [1] * len(page.all("div", "cause"))
    for cause in many.all("div", "cause"):
        of_heading, *_ = cause.all("p", "remedy")
        assert of_heading.text.strip() in cause.all("details", "cell")[0].text


def test_cells_that_fail_for_the_same_cause_are_one_failure_with_links_to_the_others():
    page = page_of(report(*(detailed_failure(opset=opset) for opset in range(9, 12)), timed_pass(recipe="fine")))
    (told,) = page.one("failures").all("details", "cell")
    assert (ids([told]), "open" in told.attributes) == (["cell-net-opset9-cpu"], True)
    (same,) = told.all("p", "same")
    others = ["cell-net-opset10-cpu", "cell-net-opset11-cpu"]
    assert [(each.attributes["href"][1:], each.text) for each in same.all("a")] == list(
        zip(others, ["opset10-cpu", "opset11-cpu"], strict=True)
    )
    assert ids(page.one("cells").all("details", "cell")) == [*others, "cell-fine-opset9-cpu"]


def test_recipes_that_fail_at_one_line_are_one_cause():
    page = page_of(
        report(
            located_failure(),
            located_failure(opset=10),
            located_failure(recipe="other"),
            detailed_failure(recipe="third"),
            detailed_failure(recipe="fourth"),
        )
    )
    causes = page.one("failures").all("div", "cause")
    assert [each.attributes["id"] for each in causes] == [
        "cause-numeric-drift-net",
        "cause-numeric-drift-third",
        "cause-numeric-drift-fourth",  # the words are the same, but nothing says that the cause is
    ]
    assert causes[0].all("h3")[0].text.startswith("net.py:7 return x * 2")
    assert [each.text for each in causes[0].all("ul", "recipes")[0].all("li")] == [
        "net at opsets 9-10 on cpu",
        "other at opset 9 on cpu",
    ]
    assert ids(causes[0].all("details", "cell")) == ["cell-net-opset9-cpu", "cell-other-opset9-cpu"]
    assert ["open" in each.attributes for each in causes[0].all("details", "cell")] == [True, False]


def test_the_line_of_a_cause_is_shown_with_the_code_around_it(tmp_path):
    run = report(located_failure())
    assert [each.text for each in page_of(run).all("pre", "code")] == [">   return x * 2"]
    (tmp_path / "net.py").write_text("\n" * 5 + "def forward(self, x):\n    return x * 2\n", encoding="utf-8")
    (code,) = page_of(run, code_in=tmp_path).all("pre", "code")
    assert code.text == "    def forward(self, x):\n>       return x * 2"
    assert [each.text for each in code.all("mark")] == [">       return x * 2"]
    (tmp_path / "net.py").write_text("changed since", encoding="utf-8")
    linecache.clearcache()
    assert [each.text for each in page_of(run, code_in=tmp_path).all("pre", "code")] == [">   return x * 2"]


def test_the_nodes_around_a_fault_are_a_table_in_which_those_at_fault_are_marked():
    (nodes,) = [each for each in page_of(report(located_failure())).all("table") if "Node by node" in each.text]
    assert nodes.all("caption")[0].text == "Node by node on n=3"
    assert [[each.text for each in row.elements if each.tag in ("th", "td")] for row in nodes.all("tr")] == [
        ["", "node", "line", "error ÷ rounding", "at", "file", "model"],
        ["", "Mul 'a'", "net.py:7", "0", "[1, 2]", "1.5", "1.5"],
        ["×at fault", "Mul 'b'", "net.py:7", "5e+06", "[1, 2]", "2", "1.5"],
        ["", "Mul 'c'", "net.py:7", "2.5e+06", "[1, 2]", "1.75", "1.5"],
    ]


def test_the_page_begins_with_what_the_run_is_about():
    revision = Revision(commit="a1b2c3d4" * 5, branch="main", is_modified=True)
    page = page_of(some_run(revision=revision))
    (about,) = page.all("dl", "run")
    assert [(each.all("dt")[0].text, each.all("dd")[0].text) for each in about.all("div")] == [
        ("commit", "a1b2c3d with uncommitted changes"),
        ("branch", "main"),
        ("versions", "torch 2.13.0"),
    ]
    assert revision.commit in page.one("setup").text
    parts = [run_of(passed(opset=opset), revision=replace(revision, commit=str(opset % 10) * 40)) for opset in (9, 10)]
    (about,) = page_of(merge([("a.json", parts[0]), ("b.json", parts[1])])).all("dl", "run")
    assert "9999999 with uncommitted changes and 0000000 with uncommitted changes" in about.text


def test_a_cell_has_the_same_id_in_every_page_and_none_twice():
    first = page_of(report(timed_pass(), timed_pass(recipe="net.x", opset=18, exporter="torchscript")))
    assert ids(first.all("details", "cell")) == ["cell-net-opset9-cpu", "cell-net.x-opset18-cpu-torchscript"]
    later = page_of(
        report(
            timed_pass(recipe="new"),
            timed_pass(graph_pass="int8"),
            timed_pass(graph_pass="int8", device="cuda:1"),
            timed_pass(),
        )
    )
    assert ids(later.all("details", "cell")) == [
        "cell-new-opset9-cpu",
        "cell-net-opset9-cpu-int8",
        "cell-net-opset9-cuda-1-int8",
        "cell-net-opset9-cpu",
    ]
    hostile = ids(page_of(hostile_run()).all("details", "cell"))
    assert len(set(hostile)) == len(hostile)
    assert all(re.fullmatch(r"[\w.-]+", each, re.ASCII) for each in hostile)


def test_what_moved_since_an_earlier_run_is_a_section_and_marked_in_the_grid():
    run = run_of(timed_pass(), timed_pass(10.0, opset=10), failed(opset=11), passed(recipe="new"), settings={"strict": "true"})
    revision = Revision(commit="a1b2c3d4" * 5, branch="main", is_modified=False)
    earlier = run_of(
        timed_pass(), timed_pass(0.5, opset=10), passed(opset=11), passed(recipe="old"), torch="2.12.0", revision=revision
    )
    page = page_of(run, since=compare_runs(run, earlier), since_name="main.json")
    told = page.one("since")
    assert (
        "Compared with main.json (a1b2c3d on main):\n2 cells moved (1 broke, 1 changed), 1 cell new, 1 cell gone." in told.text
    )
    assert "Versions: torch 2.12.0 → 2.13.0. Settings: max-drift 16 → none, strict none → true." in told.text
    assert [[each.text for each in row.elements if each.tag in ("th", "td")] for row in told.all("table")[1].all("tr")[1:]] == [
        ["net cpu", "11", "▲ worse verdict", "passed", "failed"],
        ["net cpu", "10", "▲ larger drift", "0.5", "10"],
    ]
    links = page.one("grid").all("a")
    assert [each.text for each in links] == ["1.5", "10 ▲ worse than before", "FAIL ▲ worse than before", "1.5"]
    assert links[1].attributes["title"] == "drift 10 of 32, 500 ms; before: drift 0.5 of 32, 500 ms"
    assert links[2].attributes["title"] == "before: passed, drift 1.5 of 32"
    assert "worse than in the earlier run" in page.one("grid").text
    assert "a/b.py::old::opset9-cpu" in told.text
    assert "passed, drift 1.5 of 32" in entry_of(page, run.cells[2]).text
    assert "▲" not in page_of(run).text


def test_the_rows_of_a_large_grid_are_in_groups():
    def groups(*files):
        page = page_of(report(*(timed_pass(recipe=f"net{number}", source=file) for number, file in enumerate(files))))
        assert len(page.one("grid").all("tr")) >= len(files)
        return [each.text.removeprefix(" Show ") for each in page.one("grid").all("label")]

    assert groups(*["models/a.py"] * 20, *["types/b.py"] * 20) == ["models 20 rows: 20 passed", "types 20 rows: 20 passed"]
    assert groups(*["a.py"] * 20, *["b.py"] * 20) == ["a.py 20 rows: 20 passed", "b.py 20 rows: 20 passed"]
    assert groups(*["models/a.py"] * 10, *["types/b.py"] * 10) == [], "a small grid needs none"
    assert groups(*["a.py"] * 40) == []
    assert groups(*(f"{number}.py" for number in range(40))) == []


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
    assert "onnx-ci why numeric-drift" in rows[0][2]
    assert "does not know this rule" in rows[1][2]
    assert not page.one("cell-net-opset11-cpu").all("a"), "a rule without a page has no link"


UNKNOWN = Finding(rule="rule of tomorrow", severity=Severity.ERROR, message="m", remedy="r")


def test_times_are_of_the_cells_that_ran():
    page = page_of(
        report(detailed_failure(), timed_pass(opset=10), replace(timed_pass(opset=11), cached=True, timings={"export": 100.0}))
    )
    passes, slowest = page.one("times").all("table")
    assert [[each.text for each in row.elements if each.tag in ("th", "td")][:3] for row in passes.all("tr")[1:]] == [
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
    run = hostile_run()
    earlier = replace(run, cells=(replace(run.cells[1], status=Status.PASSED),), environment={})
    page = page_of(run, lambda cell: HOSTILE, since=compare_runs(run, earlier), since_name=HOSTILE)
    usual = page_of(some_run(), since=compare_runs(some_run(), report(timed_pass(99.0))))
    assert {each.tag for each in page.elements} <= {each.tag for each in usual.elements}
    assert {name for each in page.elements for name in each.attributes} <= {
        name for each in usual.elements for name in each.attributes
    }
    shown = printable(HOSTILE)
    assert shown.startswith("</script>")
    assert shown.endswith("`${hacked}␀red␇���😀\n]]>")
    assert "<img src=x" in page.all("dl", "run")[0].text
    for id in ("problems", "not-run", "grid", "failures", "since", "rules", "times", "setup", "cells"):
        assert "<img src=x" in page.one(id).text, id
    entries = page.all("div", "details")
    assert len(entries) == len(Status)
    for entry in entries:
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
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["onnx_ci.report"]
    parts = [each.name for each in folder.iterdir() if each.is_file() and each.suffix != ".py"]
    assert {"page.css", "page.js", "page.html.jinja"} <= set(parts)
    assert all(any(fnmatch(part, pattern) for pattern in patterns) for part in parts)


def test_the_same_report_gives_the_same_page():
    assert html.render(some_run(), str) == html.render(some_run(), str)


@pytest.mark.slow
def test_the_page_stays_small_when_everything_fails_with_long_logs():
    cells = [replace(detailed_failure(recipe=f"net{number}"), log=f"{number}" + "x" * 100_000) for number in range(150)]
    source = html.render(report(*cells), str)
    assert len(source) < 11_000_000
    page = page_of(report(*cells))  # and nothing is lost
    assert [log.text for log in page.all("pre", "log")] == [result.log for result in cells]


def test_numbers_that_are_none_are_shown():
    outputs = (drift(drift=math.nan, error=math.nan, index=None), drift(drift=math.inf, limit=0.0, max_rel=math.inf))
    page = page_of(report(replace(detailed_failure(), outputs=outputs), timed_pass(opset=10)))
    assert [[td.text for td in row.all("td")][1] for row in page.one("cell-net-opset9-cpu").all("tr")[1:]] == [
        "×beyond the limit nan",
        "×beyond the limit inf",
    ]
