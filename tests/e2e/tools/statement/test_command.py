"""``onnx-ci statement``: the verdict beside a file, and whether a file is still the one that was judged."""

from __future__ import annotations

import json
import shutil

import pytest
from toolbox.projects import FROZEN, Project

PASSED, FAILED, USAGE = 0, 1, 2
LARGE = """
    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
    def right():
        return torch.nn.Linear(64, 64), (torch.randn(3, 64),)
"""
"""Its weights are large enough for the dynamo exporter to put them into a file of their own."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run that kept its files: one that passes with its weights beside it, and one that fails."""
    project = Project(tmp_path_factory.mktemp("judged"))
    project.recipes(LARGE, FROZEN)
    chosen = "--opsets=17,20", "--select=right::opset20-cpu,total::opset17-cpu"
    done = project.command("onnx_ci", "run", *chosen, "--artifacts=files", "--report=report.json", "-q")
    assert done.returncode == FAILED, done.stderr
    written = project.in_process("statement", "write", "report.json")
    files = project.root / "files"
    assert (written.returncode, written.stderr) == (PASSED, "")
    assert written.stdout.splitlines() == [
        f"{files}/right/opset20-cpu.onnx.intoto.json: PASSED",
        f"{files}/total/opset17-cpu.onnx.intoto.json: FAILED",
    ]
    return project


@pytest.fixture
def shipped(judged, project):
    """A copy of these files, without the run."""
    shutil.copytree(judged.root / "files", project.root / "files")
    return project


def test_a_statement_names_the_files_and_what_was_proven(judged):
    statement = json.loads((judged.root / "files/right/opset20-cpu.onnx.intoto.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert [each["name"] for each in statement["subject"]] == ["opset20-cpu.onnx", "opset20-cpu.onnx.data"]
    predicate = statement["predicate"]
    assert predicate["result"] == "PASSED"
    assert predicate["passedTests"] == ["onnx_recipes.py::right::opset20-cpu"]
    assert predicate["warnedTests"] == predicate["failedTests"] == []
    uris = {each["name"]: each["uri"] for each in predicate["configuration"]}
    assert uris["onnx-ci"].startswith("pkg:pypi/onnx-ci@")
    assert uris["torch"].startswith("pkg:pypi/torch@")
    assert "+" not in uris["torch"]
    notes = next(each["annotations"] for each in predicate["configuration"] if each["name"] == "onnx-ci")
    assert notes["settings"]["opsets"] == "17,20"
    numbers = notes["cells"]["onnx_recipes.py::right::opset20-cpu"]["y"]
    assert numbers["drift"] <= numbers["limit"]


def test_a_file_is_the_judged_one_wherever_it_lies(shipped):
    done = shipped.in_process("statement", "verify", "files/right/opset20-cpu.onnx")
    assert (done.returncode, done.stderr) == (PASSED, "")
    assert done.stdout == "files/right/opset20-cpu.onnx: passed (onnx_recipes.py::right::opset20-cpu)\n"
    failed = shipped.in_process("statement", "verify", "files/right/opset20-cpu.onnx", "files/total/opset17-cpu.onnx")
    assert failed.returncode == FAILED
    assert failed.stdout.splitlines()[1] == "files/total/opset17-cpu.onnx: failed (onnx_recipes.py::total::opset17-cpu)"


@pytest.mark.parametrize("name", ["opset20-cpu.onnx", "opset20-cpu.onnx.data"])
def test_a_flipped_byte_is_found(shipped, name):
    file = shipped.root / "files/right" / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    done = shipped.in_process("statement", "verify", "files/right/opset20-cpu.onnx")
    assert done.returncode == FAILED
    assert f"not the judged file: {name} has changed" in done.stdout


def test_weights_that_are_gone_are_found(shipped):
    (shipped.root / "files/right/opset20-cpu.onnx.data").unlink()
    done = shipped.in_process("statement", "verify", "files/right/opset20-cpu.onnx")
    assert done.returncode == FAILED
    assert "not the judged file: opset20-cpu.onnx.data is missing" in done.stdout


def test_a_file_that_has_changed_since_the_run_gets_no_statement(judged, project):
    shutil.copytree(judged.root / "files", project.root / "files")
    report = (judged.root / "report.json").read_text().replace(f"{judged.root}/files", f"{project.root}/files")
    (project.root / "report.json").write_text(report)
    (project.root / "files/right/opset20-cpu.onnx.intoto.json").unlink()
    with (project.root / "files/right/opset20-cpu.onnx.data").open("ab") as file:
        file.write(b"\0")
    done = project.in_process("statement", "write", "report.json")
    assert done.returncode == USAGE
    assert "opset20-cpu.onnx.data has changed" in done.stderr
    assert "total/opset17-cpu.onnx.intoto.json: FAILED" in done.stdout  # the other one is written all the same
    assert not (project.root / "files/right/opset20-cpu.onnx.intoto.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no statement files/right/opset20-cpu.onnx.intoto.json; write it with onnx-ci statement write REPORT"),
        ("{", "cannot be read"),
        ("{}", "is no statement of onnx-ci about the result of tests"),
        ('{"_type": "https://in-toto.io/Statement/v1", "subject": []}', "is no statement of onnx-ci"),
    ],
)
def test_what_is_no_statement_is_said_with_its_remedy(shipped, content, said):
    path = shipped.root / "files/right/opset20-cpu.onnx.intoto.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    done = shipped.in_process("statement", "verify", "files/right/opset20-cpu.onnx")
    assert done.returncode == USAGE
    assert said in done.stderr


def test_subjects_that_are_none_are_an_error(shipped):
    path = shipped.root / "files/right/opset20-cpu.onnx.intoto.json"
    statement = json.loads(path.read_text())
    for subject in (3, {}, {"name": "a", "digest": {}}, {"name": 1, "digest": {"sha256": "0"}}):
        path.write_text(json.dumps({**statement, "subject": [subject]}))
        done = shipped.in_process("statement", "verify", "files/right/opset20-cpu.onnx")
        assert (done.returncode, "is no statement of onnx-ci" in done.stderr) == (USAGE, True)


def test_a_run_that_kept_no_file_has_nothing_to_state(judged, project):
    report = json.loads((judged.root / "report.json").read_text())
    for cell in report["cells"]:
        cell |= {"artifact": None, "digests": {}}
    (project.root / "report.json").write_text(json.dumps(report))
    done = project.in_process("statement", "write", "report.json")
    assert done.returncode == USAGE
    assert "the run has kept no file; repeat it with onnx-ci run --artifacts=DIR --report=PATH" in done.stderr
