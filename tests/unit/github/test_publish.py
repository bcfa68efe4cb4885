"""What GitHub sends after a run, replayed against its API: one comment or none, and nothing that a fork decides."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
from toolbox.fake_github import BOT, FORK, FakeGitHub, zipped
from toolbox.github_runner import commands_in
from toolbox.records import failed, passed, report, skipped, with_facts

from onnx_ci.github import artifact as artifacts
from onnx_ci.github import rest
from onnx_ci.github.action import main
from onnx_ci.report.merge import merge
from onnx_ci.results.files import as_text
from onnx_ci.results.records import Status

OLD, NEW, NEWER = ("a" * 40, "b" * 40, "c" * 40)
GREEN = report(*(passed(opset=opset) for opset in range(9, 18)))
RED = report(*(passed(opset=opset) for opset in range(9, 17)), failed(opset=17))


def upload(found):
    return zipped(report_json=as_text(found), report_html="<p>page</p>")


@pytest.fixture
def github():
    with FakeGitHub() as fake:
        yield fake


@pytest.fixture
def publish(github, monkeypatch, tmp_path, capsys):
    """Takes a payload and inputs of the action, and returns the exit code and the annotations."""

    def run(payload, environment=None, **inputs):
        event = tmp_path / "event.json"
        event.write_text(json.dumps(payload))
        variables = {
            "GITHUB_API_URL": github.address, "GITHUB_EVENT_NAME": "workflow_run", "GITHUB_EVENT_PATH": str(event),
            "GITHUB_REPOSITORY": "me/nets", "GITHUB_TOKEN": "secret",
            **{f"INPUT_{name.upper()}": text for name, text in (inputs or {"comment": "true"}).items()}, **(environment or {}),
        }  # fmt: skip
        with monkeypatch.context() as patch:
            for name, text in variables.items():
                patch.setenv(name, text)
            patch.setattr(rest.time, "sleep", lambda seconds: None)
            code = main(["publish"])
        found, listens = commands_in(capsys.readouterr().out)
        assert listens
        return code, [(each.name, each.message) for each in found if each.name in ("error", "warning", "notice")]

    return run


def pushed(github, found, sha=NEW, *, base=GREEN, of=None):
    """A base with a report, and a pull request with another one: the payload of its run."""
    if base is not None and not github.runs:
        github.run("push", OLD, branch="main", artifact=upload(base))
    where = {} if of is None else {"of": of}
    github.pull(7, sha, **where)
    return github.run("pull_request", sha, branch="topic", artifact=upload(found), **where)


def bodies(github):
    return [each["body"] for each in github.comments.get(7, [])]


def test_nothing_moved_and_everything_is_green(github, publish):
    assert publish(pushed(github, GREEN)) == (0, [])
    assert github.requests == []


@pytest.mark.parametrize("of", [None, FORK], ids=["own branch", "fork"])
def test_something_broke(github, publish, of):
    assert publish(pushed(github, RED, of=of)) == (0, [])
    (body,) = bodies(github)
    marker, first, *_ = body.splitlines()
    assert marker == "<!-- onnx-ci: onnx-export is failed -->"
    assert first == "### ❌ ONNX export: 1 of 9 cells broke: `net at opset 17 on cpu`"
    assert "| broke | `net at opset 17 on cpu` | passed → failed |" in body
    assert "is compared with [the last one](https://github.com/me/nets/actions/runs/1000) on `main`" in body


def test_the_base_fails_in_the_same_way(github, publish):
    publish(pushed(github, RED, base=RED))
    assert github.requests == []


def test_something_moved_and_everything_is_green(github, publish):
    small, large = (report(with_facts(passed(), size=size)) for size in (1000, 9000))
    publish(pushed(github, large, base=small))
    assert "### ✅ ONNX export: 1 cell passed; 1 changed" in bodies(github)[0]


def test_a_run_is_repeated_with_the_same_result(github, publish):
    payload = pushed(github, RED)
    publish(payload)
    github.requests.clear()
    publish(github.again(payload, upload(RED)))
    assert github.requests == []
    assert len(bodies(github)) == 1


def test_a_run_without_a_report_that_ended_well_changes_nothing(github, publish):
    told = [("notice", "nothing is published: the run has no artifact 'onnx-export'")]
    github.pull(7, NEW)
    assert publish(github.run("pull_request", NEW, branch="topic"), check="true", comment="true") == (0, told)
    assert github.requests == []


def test_only_details_change_and_nobody_is_notified(github, publish):
    publish(pushed(github, RED))
    worse = report(*RED.cells[:7], failed(opset=16), failed(opset=17))
    publish(pushed(github, worse, NEWER))
    assert [method for method, _ in github.requests] == ["POST", "PATCH"]
    (body,) = bodies(github)
    assert "2 of 9 cells broke" in body


def test_green_after_red_is_a_new_comment(github, publish):
    publish(pushed(github, RED))
    (before,) = github.comments[7]
    publish(pushed(github, GREEN, NEWER))
    (after,) = github.comments[7]
    assert after["id"] != before["id"]
    assert "### ✅ ONNX export: all 9 cells passed" in after["body"]
    assert [method for method, _ in github.requests] == ["POST", "POST", "DELETE"]  # at no time is there none


def test_red_after_green_is_a_new_comment(github, publish):
    publish(pushed(github, report(*GREEN.cells[:8], skipped(opset=17))))
    publish(pushed(github, RED, NEWER))
    assert ["❌" in body for body in bodies(github)] == [True]
    assert [method for method, _ in github.requests] == ["POST", "POST", "DELETE"]


def test_three_hundred_cells_are_one_comment_that_github_takes(github, publish):
    cells = [(make(recipe=f"r{number}", opset=opset)) for make in (failed,) for number in range(60) for opset in range(9, 14)]
    base = report(*(passed(recipe=f"r{number}", opset=opset) for number in range(60) for opset in range(9, 14)))
    publish(pushed(github, report(*cells), base=base))
    (body,) = bodies(github)
    assert len(body) < 65_536
    assert "300 of 300 cells broke: `r0 at opsets 9-13 on cpu`, and 59 other failures" in body


def test_without_a_base_only_what_fails_is_told(github, publish):
    publish(pushed(github, GREEN, base=None))
    assert bodies(github) == []
    publish(pushed(github, RED, NEWER, base=None))
    assert "is compared with nothing" in bodies(github)[0]


def test_a_base_that_cannot_be_read_is_none(github, publish):
    github.run("push", OLD, branch="main", artifact=zipped(report_json='{"schema_version": 99}'))
    assert publish(pushed(github, RED)) == (0, [])
    assert "is compared with nothing" in bodies(github)[0]


def test_a_base_that_is_too_large_is_none(github, publish, monkeypatch):
    large = zipped(report_json=as_text(GREEN), report_html="".join(chr(33 + place * place % 89) for place in range(100_000)))
    monkeypatch.setattr("onnx_ci.github.publish.DOWNLOAD_LIMIT", len(large) - 1)
    github.run("push", OLD, branch="main", artifact=large)
    assert publish(pushed(github, RED)) == (0, [])
    assert "is compared with nothing" in bodies(github)[0]


def test_a_base_that_is_gone_is_none(github, publish):
    github.run("push", OLD, branch="main", artifact=upload(GREEN))
    (base,) = github.artifacts
    github.failures.append(("GET", f"actions/artifacts/{base}/zip", 410, {}))
    assert publish(pushed(github, RED)) == (0, [])
    assert "is compared with nothing" in bodies(github)[0]


def test_the_base_is_the_last_run_of_this_repository_that_has_a_report(github, publish):
    github.run("push", OLD, branch="main", artifact=upload(RED))
    github.run("push", OLD, branch="main")
    github.run("push", OLD, branch="main", of=FORK, artifact=upload(GREEN))
    publish(pushed(github, RED))
    assert github.requests == []  # it fails there, too


def test_a_push_to_a_branch_has_no_comment(github, publish):
    assert publish(github.run("push", NEW, branch="main", artifact=upload(RED))) == (0, [])
    assert github.requests == []


def test_an_older_commit_is_not_told_of(github, publish):
    payload = pushed(github, RED)
    github.pull(7, NEWER)
    code, ((level, message),) = publish(payload)
    assert (code, level) == (0, "notice")
    assert "no open pull request has this commit as its head" in message
    assert github.requests == []


def test_a_branch_of_the_same_name_elsewhere_is_another(github, publish):
    """The pull request is from a fork, and the run of this repository's own branch is not about it."""
    github.pull(7, NEW, of={**FORK, "owner": {"login": "me"}})
    assert publish(github.run("pull_request", NEW, branch="topic", artifact=upload(RED)))[0] == 0
    assert github.requests == []


def test_the_report_decides_neither_the_pull_request_nor_the_commit(github, publish):
    github.pull(8, OLD, branch="other")
    data = json.loads(as_text(RED)) | {"pull_request": 8, "number": 8, "head_sha": OLD}
    github.pull(7, NEW, of=FORK)
    content = zipped(report_json=json.dumps(data), pr_txt="8", event_json='{"number": 8}')
    publish(github.run("pull_request", NEW, branch="topic", of=FORK, artifact=content), comment="true", check="true")
    assert [path for _, path in github.requests] == ["check-runs", "issues/7/comments"]
    assert github.checks[0]["head_sha"] == NEW


def test_a_marker_in_the_comment_of_someone_else_is_theirs(github, publish):
    own = github.say(7, "<!-- onnx-ci: onnx-export is passed -->\nmine", {"login": "stranger", "type": "User"})
    publish(pushed(github, RED))
    assert own in github.comments[7]
    assert len(bodies(github)) == 2


def test_the_comment_is_found_among_many(github, publish):
    for number in range(150):
        github.say(7, f"{number}", BOT)
    publish(pushed(github, RED))
    publish(pushed(github, GREEN, NEWER))
    assert len(bodies(github)) == 151
    assert "✅" in bodies(github)[-1]


def bomb():
    return zipped(report_json=" " * 2_000_000)


def twice():
    buffer = io.BytesIO(zipped(report_json=as_text(GREEN)))
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("report.json", as_text(RED))
    return buffer.getvalue()


def encrypted():
    content = bytearray(upload(RED))
    place = content.find(b"PK\x01\x02")
    content[place + 8] |= 1
    return bytes(content)


def damaged():
    content = bytearray(upload(RED))
    content[60:70] = b"\0" * 10
    return bytes(content)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: b"", "is not a zip archive"),
        (lambda: b"PK\x03\x04" + b"\0" * 100, "is not a zip archive"),
        (lambda: zipped(other_json="{}"), "contains no report.json"),
        (lambda: zipped(report_json="{"), "truncated or not JSON"),
        (lambda: zipped(report_json="[" * 100_000), "truncated or not JSON"),
        (lambda: zipped(report_json='{"schema_version": 1}'), "is not a report that this onnx-ci can read"),
        (bomb, "contains report.json with more than 1 MiB"),
        (twice, "contains 2 report.json"),
        (encrypted, "in a form that GitHub does not write"),
        (damaged, "is not a zip archive that can be read"),
        (lambda: zipped(**{"../../report_json": as_text(RED)}), "contains no report.json"),
    ],
)
def test_an_artifact_is_data_from_nowhere(github, publish, monkeypatch, make, told):
    monkeypatch.setattr(artifacts, "MEMBER_LIMIT", 1 << 20)
    github.pull(7, NEW, of=FORK)
    code, ((level, message),) = publish(github.run("pull_request", NEW, branch="topic", of=FORK, artifact=make()))
    assert (code, level) == (2, "error")
    assert told in message
    (body,) = bodies(github)  # the run is in doubt, and nothing of its report is told
    assert body.splitlines()[1:2] == [
        "### ❌ ONNX export: `workflow run: the run ended as success, without a report that can be used`"
    ]


def test_a_number_that_nothing_can_be_computed_with_is_refused(github, publish):
    def of_size(size):
        return zipped(report_json=as_text(report(with_facts(passed(), size=size))))

    github.run("push", OLD, branch="main", artifact=of_size(2000))
    github.pull(7, NEW, of=FORK)
    code, ((_, message),) = publish(github.run("pull_request", NEW, branch="topic", of=FORK, artifact=of_size(10**400)))
    assert code == 2
    assert "cells[0].facts.file_bytes is 1000" in message
    assert "which is too large" in message


def test_an_artifact_that_is_too_large_is_not_downloaded_to_its_end(github, publish, monkeypatch):
    monkeypatch.setattr("onnx_ci.github.publish.DOWNLOAD_LIMIT", 100)
    ((_, message),) = publish(pushed(github, RED))[1]
    assert message.startswith("the artifact is too large; merge the reports in a job with mode 'report'")
    assert github.requests == []


def test_what_a_report_says_is_text_on_github_and_in_the_log(github, publish):
    hostile = "::error::owned @someone <img> `x`"
    cells = [failed(source=f"{hostile}.py"), passed(opset=10)]
    assert publish(pushed(github, report(*cells)), comment="true", check="true") == (0, [])
    for text in (*bodies(github), github.checks[0]["output"]["summary"]):
        outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
        assert "@" not in outside
        assert "<img" not in outside


def test_a_check_has_the_headline_as_its_title(github, publish):
    publish(pushed(github, RED, of=FORK), check="true")
    (check,) = github.checks
    assert (check["name"], check["head_sha"], check["conclusion"]) == ("onnx-ci: onnx-export", NEW, "failure")
    assert check["output"]["title"] == "1 of 9 cells broke: net at opset 17 on cpu"
    assert check["output"]["summary"].startswith("### ❌ ONNX export: 1 of 9 cells broke")
    assert bodies(github) == []
    publish(github.run("push", NEW, branch="main", artifact=upload(GREEN)), check="true")
    assert (github.checks[1]["conclusion"], github.checks[1]["output"]["title"]) == ("success", "all 9 cells passed")


@pytest.mark.parametrize(
    ("failure", "is_repeated"),
    [
        (("GET", "pulls", 502, {}), True),
        (("GET", "artifacts", 429, {"Retry-After": "3"}), True),
        (("POST", "comments", 403, {"Retry-After": "3"}), True),
        (("POST", "comments", 403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}), True),
        (("POST", "comments", 429, {"Retry-After": "4000"}), False),
        (("POST", "comments", 502, {}), False),
        (("POST", "comments", 403, {}), False),
        (("GET", "pulls", 404, {}), False),
        (("GET", "pulls", 401, {}), False),
    ],
)
def test_a_request_is_repeated_where_that_helps_and_is_harmless(github, publish, failure, is_repeated):
    payload = pushed(github, RED)
    github.failures.append(failure)
    code, told = publish(payload)
    assert (code == 0) == is_repeated
    assert len(bodies(github)) == is_repeated
    if not is_repeated:
        method, part, status, _ = failure
        ((_, message),) = told
        assert code == 4
        assert re.match(rf"GitHub answered {method} \S*{part} with {status}: not now", message)
        assert ("permissions" in message) == (status in (403, 404))


@pytest.mark.parametrize(("method", "part", "status"), [("GET", "pulls", 301), ("POST", "issues/7/comments", 307)])
def test_only_a_download_is_redirected(github, publish, method, part, status):
    payload = pushed(github, RED)
    github.failures.append((method, part, status, {"Location": f"{github.address}/repositories/1/{part}"}))
    code, ((_, message),) = publish(payload)
    assert code == 4
    assert message.startswith(f"GitHub answered {method} {part} with {status}: the repository may have been renamed")


def test_a_comment_that_someone_has_deleted_meanwhile_is_none(github, publish):
    publish(pushed(github, RED))
    github.failures.append(("DELETE", "issues/comments", 404, {}))
    assert publish(pushed(github, GREEN, NEWER)) == (0, [])


def test_github_that_cannot_be_reached_is_an_error(github, publish, monkeypatch):
    payload = pushed(github, RED)
    github.address = "http://127.0.0.1:9"
    code, ((_, message),) = publish(payload)
    assert code == 4
    assert message.startswith("GitHub cannot be reached: ")


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"comment": "false"}, "nothing is to be published"),
        ({"comment": "yes"}, "the input 'comment' must be false or true, not 'yes'"),
        ({"comment": "true", "artifact_name": "a/b"}, "'artifact-name' may contain"),
    ],
)
def test_an_input_that_cannot_be_used_is_named(github, publish, inputs, told):
    code, ((_, message),) = publish(pushed(github, RED), **inputs)
    assert code == 2
    assert told in message


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("GITHUB_EVENT_NAME", "pull_request_target", "start it with 'on: workflow_run'"),
        ("GITHUB_TOKEN", "", "there is no token"),
        ("GITHUB_REPOSITORY", "me/other", "the event is about another repository"),
    ],
)
def test_it_publishes_only_after_another_workflow_with_its_own_token(github, publish, name, text, told):
    code, ((_, message),) = publish(pushed(github, RED), {name: text})
    assert code in (2, 4)
    assert told in message


@pytest.mark.parametrize("event", ["pull_request_target", "issue_comment", "merge_group"])
def test_a_run_for_anything_else_publishes_nothing(github, publish, event):
    payload = github.run(event, OLD, branch="main", artifact=upload(GREEN))
    assert publish(payload, comment="true", check="true")[0] == 0
    assert github.requests == []


def test_a_fork_that_is_gone_has_no_verdict(github, publish):
    payload = pushed(github, RED, of=FORK)
    payload["workflow_run"]["head_repository"] = None
    assert publish(payload) == (0, [("notice", "nothing is published: the repository that the run's commit is from is gone")])


def test_space_around_the_token_is_not_part_of_it(github, publish):
    assert publish(pushed(github, RED), {"GITHUB_TOKEN": " secret\n"}) == (0, [])
    assert len(bodies(github)) == 1


@pytest.mark.parametrize("token", ["not\nshown", "not shown", "notshown\x7f", "notshown€"])
def test_a_token_that_no_header_can_have_is_refused_without_showing_it(github, publish, token):
    code, ((_, message),) = publish(pushed(github, RED), {"GITHUB_TOKEN": token})
    assert code == 2
    assert message.startswith("the token contains characters that a token cannot have")
    assert "shown" not in message


# --- a run that is not what its report says -----------------------------------------------------------------------------

PLAN = report(in_other_jobs=tuple(each.cell.id for each in GREEN.cells))
LOST = merge([("plan", PLAN), ("most", report(*GREEN.cells[:8]))])
SHARD = report(*GREEN.cells[:8], in_other_jobs=(GREEN.cells[8].cell.id,))
CLAIM = report(*GREEN.cells[:8], dataclasses.replace(RED.cells[8], status=Status.PASSED))
RUNS = {
    "every job ended well": [("success", GREEN)],
    "a cell failed": [("failure", RED)],
    "a job of the matrix is lost, and the plan has its cells": [("failure", LOST)],
    "the same, but the job is allowed to fail (`continue-on-error`)": [("success", LOST)],
    "a job of the matrix is lost, and no plan was uploaded": [("failure", GREEN)],
    "one of two shards has no report": [("success", SHARD)],
    "cancelled with a report": [("cancelled", GREEN)],
    "cancelled without a report": [("cancelled", None)],
    "out of time with a report": [("timed_out", GREEN)],
    "failed without a report": [("failure", None)],
    "the report says that a cell with an error passed": [("success", CLAIM)],
    "ended well without a report": [("success", None)],
    "skipped, because of a condition": [("skipped", None)],
    "not approved": [("action_required", None)],
    "repeated: a cell failed, then all passed": [("failure", RED), ("success", GREEN)],
    "repeated: all passed, then cancelled": [("success", GREEN), ("cancelled", None)],
    "repeated: another job failed, then only that was repeated": [("failure", GREEN), ("success", None)],
}
PLACES = {"pull request": {}, "pull request of a fork": {"of": FORK}, "default branch": None}
DOCS = Path(__file__).parents[3] / "docs/github-actions.md"
TABLE = re.compile("(?<=<!-- what is published: begin -->\n).*(?=<!-- what is published: end -->)", re.DOTALL)


def replay(github, publish, attempts, place):
    """Publish each attempt of a run in a new repository."""
    github.forget()
    if place is None:
        event = {"event": "push", "sha": NEW, "branch": "main"}
    else:
        github.run("push", OLD, branch="main", artifact=upload(LOST))  # so that every verdict is news
        github.pull(7, NEW, **place)
        event = {"event": "pull_request", "sha": NEW, "branch": "topic", **place}
    payload = None
    for conclusion, found in attempts:
        content = None if found is None else upload(found)
        if payload is None:
            jobs = {"opset 9": "success", "opset 17": conclusion}
            payload = github.run(**event, artifact=content, conclusion=conclusion, jobs=jobs)
        else:
            payload = github.again(payload, content, conclusion)
        publish(payload, comment="true", check="true")


def test_what_is_published_of_each_run_stands_in_the_docs(github, publish):
    """``REWRITE=1 python -m pytest tests/unit/github/test_publish.py`` writes the table anew."""
    columns = [name for name, place in PLACES.items() if place is not None]
    rows = ["| the run | check | " + " | ".join(columns) + " |", "| --- | --- | --- | --- |"]
    for name, attempts in RUNS.items():
        checks, shown = set(), []
        for place in PLACES.values():
            replay(github, publish, attempts, place)
            checks.add(github.checks[-1]["conclusion"] if github.checks else "none")
            if place is not None:
                marks = [body.splitlines()[1].split()[1] for body in bodies(github)]
                shown.append(" ".join(["comment", *marks] if marks else ["nothing"]))
        (check,) = checks
        if attempts[-1][0] != "success":  # nothing green is published of a run that did not end well
            assert check in ("none", "failure")
            assert "✅" not in "".join(shown)
        rows.append(f"| {name} | {check} | {' | '.join(shown)} |")
    table = "".join(f"{row}\n" for row in rows)
    if os.environ.get("REWRITE"):
        DOCS.write_text(TABLE.sub(lambda _: table, DOCS.read_text(encoding="utf-8")), encoding="utf-8")
    assert TABLE.findall(DOCS.read_text(encoding="utf-8")) == [table]


def test_the_reason_names_the_jobs(github, publish):
    replay(github, publish, [("cancelled", GREEN)], PLACES["pull request"])
    assert "the run ended as cancelled, although its report says passed; job opset 17" in bodies(github)[0]
    assert github.checks[0]["output"]["title"].startswith("workflow run: the run ended as cancelled, although its report says")


def test_a_repeated_run_whose_gate_may_fail_and_is_lost_publishes_nothing(github, publish):
    first = github.run("push", NEW, branch="main", artifact=upload(RED), conclusion="success", jobs={"gate": "failure"})
    publish(first, check="true")
    github.upload(first["workflow_run"]["id"], upload(GREEN), "onnx-export")  # of the attempt after it
    again = github.again(first, None, jobs={"gate": "failure"})
    code, ((_, message),) = publish(again, check="true")
    assert (code, "the run has no artifact" in message) == (0, True)
    assert [check["conclusion"] for check in github.checks] == ["failure"]


def test_jobs_that_github_does_not_list_leave_the_verdict(github, publish):
    github.failures.append(("GET", "attempts", 403, {}))
    github.pull(7, NEW)
    publish(github.run("pull_request", NEW, branch="topic", artifact=upload(GREEN), conclusion="cancelled"), check="true")
    assert [check["conclusion"] for check in github.checks] == ["failure"]


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "[]", "null"])
def test_an_event_that_cannot_be_read_is_an_error_of_the_machine(publish, tmp_path, content):
    event = tmp_path / "other.json"
    event.write_text(content)
    code, ((_, message),) = publish({}, {"GITHUB_EVENT_PATH": str(event)})
    assert code == 4
    assert "the event" in message
