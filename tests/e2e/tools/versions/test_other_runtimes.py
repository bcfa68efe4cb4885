"""Files are judged with other versions of ONNX Runtime than the installed one, and ``onnx-ci runtimes`` tells the oldest."""

from __future__ import annotations

import json
import re

import pytest
from e2e.tools.versions.stand_in import CRASHES, NEGATES, OLD_IR

TWO = """
    @onnx_ci.recipe(input_names=["x", "rows"], output_names=["y", "half", "picked"], opsets=13)
    def several_types():
        return Several(), (torch.randn(3, 4), torch.tensor([2, 0]))

    class Several(torch.nn.Module):
        def forward(self, x, rows):
            return x + 1, (x * 2).half(), x[rows] > 0

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets=(13, 14))
    def scale():
        return Scale(), (torch.randn(3, 4),)
"""


@pytest.fixture
def cli(project, index):
    """Run ``onnx-ci`` with the stand-in index."""
    project.write("pyproject.toml", "")
    project.recipes(TWO)
    return lambda *words, **more: project.command("onnx_ci", *words, **{**index.environment, **more})


def findings(project):
    """The rule, the runtime and the message of each error."""
    cells = json.loads((project.root / "r.json").read_text(encoding="utf-8"))["cells"]
    errors = [each for cell in cells for each in cell["findings"] if each["severity"] == "error"]
    return [(each["rule"], each["details"].get("runtime"), each["message"]) for each in errors]


def test_a_right_file_passes_in_another_version(cli, index, project):
    index.onnxruntime("1.21.0")
    constraints = project.write("constraints.txt", "onnxruntime==1.31.1\n")  # of what is installed here
    done = cli("run", "--runtimes=onnxruntime,onnxruntime@1.21", "--report=r.json", PIP_CONSTRAINT=str(constraints))
    assert (done.returncode, done.stderr) == (0, "")
    outputs = [
        each for cell in json.loads((project.root / "r.json").read_text(encoding="utf-8"))["cells"] for each in cell["outputs"]
    ]
    assert {each["runtime"] for each in outputs} == {"onnxruntime", "onnxruntime@1.21"}
    assert {each["dtype"] for each in outputs if each["runtime"] == "onnxruntime@1.21"} == {"float32", "float16", "bool"}
    assert index.overlays == ["onnxruntime-1.21"]


@pytest.mark.parametrize(
    ("code", "rule", "message"),
    [
        pytest.param(
            NEGATES, "runtime-disagreement", "onnxruntime@1.21 is wrong where onnxruntime is right: ", id="wrong values"
        ),
        pytest.param(
            OLD_IR,
            "load-error",
            "onnxruntime@1.21 cannot load the file: Unsupported model IR version (onnxruntime can)",
            id="cannot load",
            marks=pytest.mark.slow,
        ),
        pytest.param(CRASHES, "runtime-disagreement", "its process was killed by SIGSEGV", id="crash", marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_with_another_version_fails_the_cell(cli, index, project, code, rule, message):
    index.onnxruntime("1.21.0", **code)
    done = cli("run", "--runtimes=onnxruntime,onnxruntime@1.21", "--select=scale::opset13-cpu", "--report=r.json")
    assert done.returncode == 1
    found = findings(project)
    assert {each[:2] for each in found} == {(rule, "onnxruntime@1.21")}
    assert all(message in each[2] for each in found)


@pytest.mark.slow
def test_a_verdict_is_kept_for_its_versions_only(cli, index):
    index.onnxruntime("1.20.0")
    index.onnxruntime("1.21.0", **NEGATES)
    codes = [cli("run", f"--runtimes=onnxruntime@{version}", "--cache=kept").returncode for version in ("1.20", "1.21", "1.20")]
    assert codes == [0, 1, 0]


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ("onnxruntime@1.19", "the package index has no wheel of onnxruntime==1.19 for"),
        ("openvino@2024.1", "unknown runtime 'openvino@2024.1'"),
        ("onnxruntime@new", "unknown runtime 'onnxruntime@new'"),
    ],
)
def test_a_version_that_cannot_be_had_ends_the_run_with_one_line(cli, index, runtime, message):
    index.onnxruntime("1.20.0")
    done = cli("run", f"--runtimes={runtime}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert message in done.stderr


def test_a_recipe_names_no_version(cli, project):
    project.recipes(TWO.replace("opsets=13", 'runtimes="onnxruntime@1.20"'))
    done = cli("run")
    assert done.returncode != 0
    assert "'onnxruntime@1.20', a version, is a setting: --runtimes" in done.stdout + done.stderr


@pytest.mark.slow
def test_the_oldest_version_that_is_right_is_told(cli, index):
    index.onnxruntime("1.18.0", **CRASHES)  # not tried
    index.onnxruntime("1.19.0", **OLD_IR)
    index.onnxruntime("1.20.0")
    index.onnxruntime("1.20.1", **NEGATES)  # not the first of its minor version
    index.onnxruntime("1.21.0", **NEGATES)
    done = cli("runtimes", "--since=1.19", "--select=scale")
    assert (done.returncode, done.stderr) == (0, "")
    heading, row, tried, *reasons = done.stdout.splitlines()
    installed = re.search(r"and (\S+)\)", tried)[1]
    assert (heading.split(), row.split()) == (["opset", "13", "14"], ["scale", "cpu", installed, installed])
    assert "tried: 1.19.0, 1.20.0, 1.21.0 and" in tried
    assert reasons[0].startswith("load-error with 1.19.0: it cannot load the file: Unsupported model IR version (")
    assert reasons[0].endswith(": scale at opsets 13-14 on cpu")
    assert any(line.startswith("runtime-disagreement with 1.21.0: it is wrong where ") for line in reasons[1:])


def test_without_an_older_version_nothing_is_told(cli, index):
    index.onnxruntime("1.20.0")
    done = cli("runtimes", "--since=1.99", "--select=scale")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--since=1.99: no release from there on is older than the installed " in done.stderr


@pytest.mark.slow
def test_a_file_that_is_wrong_with_the_installed_version_has_no_oldest(cli, index, project):
    index.onnxruntime("1.20.0")
    project.recipes("""
        class Frozen(torch.nn.Module):
            def forward(self, x):
                return x * int(x.shape[0])

        @onnx_ci.recipe(
            input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, opsets=13,
            exporter="torchscript",
        )
        def frozen():
            return Frozen(), (torch.randn(3, 4),)
    """)
    done = cli("runtimes")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].split() == ["frozen", "cpu", "-"]
    assert "- none, because the installed one is not" in done.stdout


@pytest.mark.slow
def test_the_matrix_says_what_each_version_does_and_at_which_node(cli, index, project):
    index.onnxruntime("1.19.0", **OLD_IR)
    index.onnxruntime("1.20.0")
    index.onnxruntime("1.21.0", **NEGATES)
    words = ("runtimes", "--runtimes=onnxruntime@1.19,onnxruntime@1.20,onnxruntime@1.21", "--select=scale::opset13-cpu")
    done = cli(*words, "--json=m.json", "--html=m.html")
    assert (done.returncode, done.stderr) == (1, "")
    data = json.loads((project.root / "m.json").read_text(encoding="utf-8"))
    (of_cell,) = data["cells"]
    verdicts = {name: outcome["verdict"] for name, outcome in of_cell["runtimes"].items()}
    expected = {"onnxruntime@1.19": "refused", "onnxruntime@1.20": "right", "onnxruntime@1.21": "wrong"}
    assert verdicts == {"onnxruntime": "right", **expected}
    node, *others = of_cell["runtimes"]["onnxruntime@1.21"]["nodes"]
    assert all(re.match(r"\w+ '.+': off by ", each) for each in (node, *others))
    assert of_cell["runtimes"]["onnxruntime@1.19"]["nodes"] == []  # any file of that IR version is refused
    assert f"    {node}" in done.stdout.splitlines()
    assert "<strong>refused</strong>" in (project.root / "m.html").read_text(encoding="utf-8")
    assert cli(*words, "--no-nodes", "--fail-on=none").returncode == 0
    unknown = cli(*words, "--fail-on=slow")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "--fail-on takes wrong and refused or none, not 'slow'" in unknown.stderr


def test_only_the_matrix_is_written(cli):
    done = cli("runtimes", "--json=m.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "name the runtimes, --runtimes=LIST" in done.stderr


@pytest.mark.slow
def test_why_runs_each_node_alone_in_another_version(cli, index):
    index.onnxruntime("1.21.0", **NEGATES)
    done = cli("why", "scale::opset13-cpu", "--runtimes=onnxruntime,onnxruntime@1.21")
    assert done.returncode == 1
    _, _, nodes = done.stdout.partition("    in onnxruntime@1.21, each node alone, with its right inputs:\n")
    assert nodes and all(re.match(r"      \w+ '.+': off by ", each) for each in nodes.splitlines())
    assert "was not found" not in done.stdout
