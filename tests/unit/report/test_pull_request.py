"""The verdict on a pull request: one headline, and a comment in which no text of a report is anything but text."""

from __future__ import annotations

import dataclasses
import re

import pytest
from toolbox.records import failed, passed, report, run_of, setting, skipped, warned, with_facts
from toolbox.shown_runs import HOSTILE, hostile_run

from onnx_ci import Problem, Severity, SourceLine
from onnx_ci.report import html
from onnx_ci.report.comparison import changed_rows, compare_runs
from onnx_ci.report.markup import code_block, code_span
from onnx_ci.report.pull_request import COMMENT_LIMIT, Links, comment, headline
from onnx_ci.results.rules import finding

LINE = SourceLine(file="model.py", line=41, text="return x")
LINKS = Links(head="https://github.com/me/nets/actions/runs/2", base="https://github.com/me/nets/actions/runs/1", branch="main")
PROBLEM = Problem(source="c.py", message="cannot be imported")


def wrong(**changes):
    """A cell that fails at a line."""
    return dataclasses.replace(failed(**changes), findings=(finding("numeric-drift", "off by 3", source=LINE),))


def other(**changes):
    """A cell that fails for another reason."""
    return dataclasses.replace(failed(**changes), findings=(finding("checker", "bad"),))


def many(make, opsets, **changes):
    return [make(opset=opset, **changes) for opset in opsets]


GREEN = many(passed, range(9, 18), recipe="lstm")


@pytest.mark.parametrize(
    ("head", "base", "line"),
    [
        (
            report(*GREEN, *many(wrong, (13, 14, 15), recipe="resnet50")),
            report(*GREEN, *many(passed, (13, 14, 15), recipe="resnet50")),
            "3 of 12 cells broke: resnet50 at opsets 13-15 on cpu, since model.py:41",
        ),
        (
            report(*GREEN, wrong(recipe="resnet50"), failed(recipe="vit")),
            None,
            "2 of 11 cells failed: resnet50 at opset 9 on cpu, since model.py:41, and 1 other failure",
        ),
        (
            report(*GREEN, wrong(recipe="resnet50"), failed(recipe="vit")),
            report(*GREEN, passed(recipe="resnet50"), failed(recipe="vit")),
            "1 of 11 cells broke: resnet50 at opset 9 on cpu, since model.py:41; 1 failed before, too",
        ),
        (report(failed()), report(failed()), "1 of 1 cell failed, as on the base: net at opset 9 on cpu"),
        (report(other()), report(failed()), "1 of 1 cell fails differently than on the base: net at opset 9 on cpu"),
        (
            report(*GREEN, failed(recipe="vit"), *many(other, (13, 14), recipe="resnet50")),
            report(*GREEN, failed(recipe="vit"), *many(failed, (13, 14), recipe="resnet50")),
            "2 of 12 cells fail differently than on the base: resnet50 at opsets 13-14 on cpu; 1 failed as on the base",
        ),
        (report(passed()), report(failed()), "1 of 1 cell is fixed: net at opset 9 on cpu"),
        (report(*GREEN), report(*GREEN), "all 9 cells passed"),
        (report(*GREEN), None, "all 9 cells passed"),
        (report(*GREEN, skipped()), report(*GREEN, skipped()), "9 of 10 cells passed, 1 skipped"),
        (report(with_facts(passed(), size=2000)), report(with_facts(passed())), "1 cell passed; 1 changed"),
        (report(passed()), report(passed(), passed(opset=10)), "1 cell passed; 1 gone"),
        (report(skipped()), None, "nothing ran: no cell was judged"),
        (report(passed(), problems=(PROBLEM,)), None, "c.py: cannot be imported"),
        (report(passed(), not_run=("a", "b")), None, "2 cells did not run: the run was stopped, or a job is missing"),
    ],
)
def test_the_headline_says_what_happened_and_since_which_line(head, base, line):
    assert headline(compare_runs(head, base)) == line


def test_the_comment_has_a_table_of_base_and_head():
    before = with_facts(passed(1.5, opset=13), size=1024)
    after = with_facts(passed(9.0, opset=13), size=4096, operators={"Conv": 3, "Relu": 1})
    times = {"timings": {"run": 2.0}}, {"timings": {"run": 3.0}}
    head, base = (
        report(dataclasses.replace(each, **time)) for each, time in zip((after, before), reversed(times), strict=True)
    )
    text = comment(compare_runs(head, base), LINKS)
    assert text.startswith("### ✅ ONNX export: 1 cell passed; 1 changed\n")
    assert "| | cells | verdict | drift | size | operators | time |" in text
    assert "| changed | `net at opset 13 on cpu` | passed | 1.5 → 9 | 1 KiB → 4 KiB | `+1 Conv` | 2.0 s → 3.0 s |" in text
    assert f"[This run]({LINKS.head}) is compared with [the last one]({LINKS.base}) on `main`." in text
    totals = (
        "drift of passed cells, median 1.5 → 9 (+500 %); file size, total 1 KiB → 4 KiB (+300 %); time, total 2.0 s → 3.0 s"
    )
    assert f"Over the cells that both have: {totals} (+50 %)." in text


def test_cells_that_moved_alike_are_one_row_and_one_failure():
    head, base = report(*many(wrong, range(9, 18))), report(*many(passed, range(9, 18)))
    text = comment(compare_runs(head, base), LINKS)
    assert text.count("| broke |") == 1
    assert "| broke | `net at opsets 9-17 on cpu` | passed → failed |" in text
    assert text.count("model.py:41: numeric-drift\n    >   return x\n    off by 3") == 1
    assert "repeat with: onnx-ci run --opsets=9 --no-cache --select=net::opset9-cpu a/b.py" in text


def test_what_fails_is_one_row_with_its_operators_on_both_sides():
    before = [with_facts(passed(opset=opset), operators={"Conv": 2}) for opset in (9, 10)]
    after = [with_facts(failed(opset=opset), operators={"Conv": 2, "Relu": opset}) for opset in (9, 10)]
    text = comment(compare_runs(report(*after), report(*before)), LINKS)
    assert text.count("| broke |") == 1
    assert "| `+9 Relu` |" in text


def test_other_changes_are_told_in_words_and_so_are_other_packages():
    head, base = (with_facts(passed(), output=name) for name in ("z", "y"))
    text = comment(compare_runs(run_of(head, torch="2.13.0"), run_of(base, torch="2.12.0")), LINKS)
    assert "`output 'y' renamed to 'z'`" in text
    assert "The packages differ: `torch 2.12.0 → 2.13.0`." in text


def test_other_settings_of_what_is_checked_are_listed():
    given = {"opsets": None, "max-drift": "1000", "strict": "false", "jobs": "1", "rules": "`@someone`\n=ignore"}
    before = {"opsets": "9-17", "max-drift": "16", "strict": "false", "jobs": "2", "rules": None}
    text = comment(compare_runs(run_of(passed(), settings=given), run_of(passed(), settings=before)), LINKS)
    changed = "opsets 9-17 → none, max-drift 16 → 1000, rules none → `@someone` =ignore"
    assert f"The settings differ: {code_span(changed)}." in text
    assert "settings differ" not in comment(compare_runs(run_of(passed(), settings=given), run_of(settings=given)), LINKS)


def test_without_a_base_the_comment_says_so():
    text = comment(compare_runs(report(failed()), None), Links(head=LINKS.head))
    assert "is compared with nothing: there is no report of the base branch" in text
    assert "| failed | `net at opset 9 on cpu` | failed |" in text


def test_changes_of_a_baseline_come_with_the_commands_that_accept_them():
    changed = finding("baseline-drift", "+1 Conv", baseline_change="operators")
    cells = [dataclasses.replace(each, findings=(changed,)) for each in many(failed, (13, 14, 18), recipe="lstm")]
    cells[2] = dataclasses.replace(cells[2], cell=dataclasses.replace(cells[2].cell, exporter="dynamo", device="cuda"))
    head = dataclasses.replace(
        report(*cells), settings={"max-drift": setting("8", "--max-drift"), "select": setting("l*", "--select")}
    )
    text = comment(compare_runs(head, None), LINKS)
    _, _, commands = text.partition("To accept what changed since the baselines, run the commands")
    assert re.findall(r"onnx-ci baseline update .*", commands) == [
        "onnx-ci baseline update --opsets=13-14 --max-drift=8 '--select=lstm::*' a/b.py",
        "onnx-ci baseline update --opsets=18 --devices=cuda --max-drift=8 '--select=lstm::*' a/b.py",
    ]


def test_what_is_only_noted_needs_no_acceptance():
    noted = dataclasses.replace(
        passed(), findings=(finding("baseline-drift", "torch", baseline_change="versions", severity=Severity.NOTE),)
    )
    assert "baseline update" not in comment(compare_runs(report(noted, failed(opset=10)), None), LINKS)


def test_three_hundred_broken_cells_fit_and_what_is_left_out_is_counted():
    long = "x" * 5000
    cells = [
        dataclasses.replace(
            failed(recipe=f"recipe_{number}"),
            findings=(finding("numeric-drift", f"{long} {number}"), finding("baseline-drift", long, baseline_change="size")),
        )
        for number in range(300)
    ]
    base = report(*(passed(recipe=f"recipe_{number}") for number in range(300)))
    text = comment(compare_runs(report(*cells), base), LINKS)
    assert len(text.encode()) <= COMMENT_LIMIT
    assert text.startswith("### ❌ ONNX export: 300 of 300 cells broke: `recipe_0 at opset 9 on cpu`, and 299 other failures\n")
    rows, told = text.count("| broke |"), text.count("repeat with:")
    assert rows > 100
    assert told > 5
    assert f"… and {300 - rows} more rows, in the report." in text
    assert f"… and {300 - told} more failures, in the report." in text
    assert "onnx-ci baseline update --opsets=9\n" in text


SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
BLOCK = re.compile(r"^(`{3,})\w*\n.*?^\1\n", re.DOTALL | re.MULTILINE)


def outside_of_code(text):
    return SPAN.sub("", BLOCK.sub("", text))


NASTY = "@someone #1 GH-2 https://evil.example www.evil.example 0123456789abcdef0123456789abcdef01234567 ![x](y) </code> <!-- | \\| ```` ~~~"


@pytest.mark.parametrize(
    "text", [HOSTILE, NASTY, "", "`", "``a`", "a\n```\nb", "a\\|b", "| a |", "``\x1b[0m`", "<!-- onnx-ci: a is b -->"]
)
def test_code_ends_where_it_should(text):
    span = code_span(text)
    assert "|" not in span
    assert "\n" not in span
    assert SPAN.fullmatch(span)
    block = "\n".join(code_block(text)) + "\n"
    assert BLOCK.fullmatch(block)


@pytest.mark.parametrize("hostile", [HOSTILE, NASTY])
@pytest.mark.parametrize("has_base", [True, False])
def test_no_text_of_a_report_is_markup_a_link_or_a_mention(hostile, has_base):
    head = hostile_run()
    texts = {"message": hostile, "remedy": hostile}
    cells = tuple(
        dataclasses.replace(
            each,
            cell=dataclasses.replace(each.cell, source=hostile, recipe=hostile),
            findings=tuple(dataclasses.replace(found, **texts, source=SourceLine(file=hostile, line=1, text=hostile), baseline_change=hostile) for found in each.findings),
        )
        for each in head.cells
    )  # fmt: skip
    head = dataclasses.replace(
        head, cells=cells, problems=(Problem(source=hostile, message=hostile),), environment={hostile: hostile}
    )
    base = report(*(passed(recipe=f"r{number}") for number in range(3))) if has_base else None
    text = comment(compare_runs(head, base), LINKS)
    left = (
        outside_of_code(text)
        .replace(LINKS.head, "")
        .replace(LINKS.base, "")
        .replace("<br>", "")
        .replace("<sub>", "")
        .replace("</sub>", "")
    )
    for part in ("<", "@", "#1", "http", "www", "evil", "hacked", "0123456", "![", "`"):
        assert part not in left, part
    assert all(line.count("|") == 8 for line in text.splitlines() if line.startswith("| ") and "`" in line)
    title = headline(compare_runs(head, base))
    assert title.isprintable()


def test_a_new_warning_is_told_in_words_before_what_only_changed_and_on_the_page():
    head = report(passed(9.0, recipe="drifts"), warned(recipe="warns"), passed(1.5, recipe="recovers"), wrong(recipe="breaks"))
    base = report(passed(recipe="drifts"), passed(recipe="warns"), warned(recipe="recovers"), passed(recipe="breaks"))
    found = compare_runs(head, base)
    rows = [line.split(" | ")[:3] for line in comment(found, LINKS).splitlines() if " at opset 9 on cpu` | " in line]
    assert rows == [
        ["| broke", "`breaks at opset 9 on cpu`", "passed → failed"],
        ["| new warning", "`warns at opset 9 on cpu`", "passed → passed with edge-mismatch"],
        ["| changed", "`drifts at opset 9 on cpu`", "passed"],
        ["| changed", "`recovers at opset 9 on cpu`", "passed with edge-mismatch → passed"],
    ]
    assert headline(compare_runs(report(warned()), report(passed()))) == "1 cell passed; 1 with a new warning"
    verdicts = [(row.title, row.before, row.after) for row in changed_rows(found)]
    assert verdicts[:2] == [("breaks cpu", "passed", "failed"), ("warns cpu", "passed", "passed with edge-mismatch")]
    page = html.render(head, str, since=found)
    assert "passed with edge-mismatch</td>" in page
    assert '<input type="checkbox" value="warned">' in page
    assert page.count('data-status="passed warned"') == 1
