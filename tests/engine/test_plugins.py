"""An exporter, a runtime and a pass of an installed package, used as ours are; their faults are found as ours are."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from toolbox.distributions import TINY_ONNX, TINY_ONNX_CODE, install

import onnx_ci
from onnx_ci.results.verdict import broken_rules

AXES = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
NET = f"""
    @onnx_ci.recipe(**{AXES}, then=THEN)
    def net():
        return Scale(), (torch.randn(3, 4),)
"""


@pytest.fixture
def tiny_onnx(tmp_path_factory, monkeypatch):
    """The folder of the package, which is on the path of this process and of its children."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "tiny-onnx", TINY_ONNX, {"tiny_onnx.py": TINY_ONNX_CODE})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    yield folder
    sys.modules.pop("tiny_onnx", None)


@pytest.fixture
def cells(project, tiny_onnx):
    """Run a recipe with a pass by a front-end, and give the cells of its report by their labels."""

    def cells(*arguments, graph_pass="tidy", front_end="onnx_ci", code=0):
        project.recipes(NET.replace("THEN", repr([graph_pass])))
        command = {"onnx_ci": ["onnx_ci", "run"], "pytest": ["pytest", "-p", "no:cacheprovider", "--onnx-export"]}[front_end]
        prefix = "--onnx-" if front_end == "pytest" else "--"
        flags = [f"{prefix}{argument}" for argument in ("opsets=17", "report=r.json", *arguments)]
        done = project.command(*command, *flags)
        assert done.returncode == code, done.stdout + done.stderr
        report = json.loads((project.root / "r.json").read_text(encoding="utf-8"))
        assert report["environment"]["tiny-onnx"] == "1.0"
        return {cell["id"].rpartition("::")[2]: cell for cell in report["cells"]}

    return cells


def broken(cell):
    return {finding["rule"] for finding in cell["findings"] if finding["severity"] == "error"}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", "spawn", "none"])
@pytest.mark.parametrize("front_end", ["onnx_ci", "pytest"])
def test_all_three_are_used_by_name(cells, front_end, isolation):
    found = cells("exporters=signed", "runtimes=graph", f"isolation={isolation}", front_end=front_end)
    assert {label: cell["status"] for label, cell in found.items()} == {
        "opset17-cpu-signed": "passed",
        "opset17-cpu-signed+tidy": "passed",
    }
    assert {output["runtime"] for cell in found.values() for output in cell["outputs"]} == {"graph"}


def recipe_of_a_net(**declared):
    return onnx_ci.recipe(name="net", **declared, **AXES)(
        lambda: (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),))
    )


@pytest.mark.parametrize(
    ("exporter", "runtimes", "graph_pass", "rules"),
    [
        ("negating", "onnxruntime", "tidy", {"numeric-drift"}),
        ("signed", "off-by-one", "tidy", {"numeric-drift"}),
        ("signed", "off-by-one,onnxruntime", "tidy", {"runtime-disagreement"}),
        ("signed", "onnxruntime", "forgetful", {"numeric-drift"}),
    ],
)
def test_a_wrong_one_is_found(tiny_onnx, exporter, runtimes, graph_pass, rules):
    recipe = recipe_of_a_net(exporter=exporter, then=graph_pass)
    report = onnx_ci.run([recipe], opsets=17, runtimes=runtimes, isolation="none")
    own, shipped = report.cells
    found = [{each.rule for each in cell.findings if each.severity == "error"} for cell in (own, shipped)]
    if graph_pass == "forgetful":
        assert found == [set(), rules]
        assert {each.introduced_by for each in shipped.findings if each.severity == "error"} == {"forgetful"}
    else:
        assert found == [rules, rules]


def test_a_recipe_can_name_them(project, tiny_onnx):
    project.recipes("""
        @onnx_ci.recipe(exporter="signed", runtimes="graph", then="tidy", expect={"negating": onnx_ci.unsupported("why")})
        def net():
            return Scale(), (torch.randn(3, 4),)
    """)
    done = project.command("onnx_ci", "run", "--opsets=17")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_exporter_is_told_with_the_nearest_name(tmp_path):
    recipe = onnx_ci.recipe(name="net")(lambda: None)
    with pytest.raises(
        onnx_ci.ConfigurationError,
        match="unknown exporter 'dynam'; use torchscript, dynamo, custom, transformers; did you mean 'dynamo'",
    ):
        onnx_ci.run([recipe], exporters="dynam")


@pytest.mark.slow
def test_a_cell_runs_again_if_the_package_changes(project, tiny_onnx, monkeypatch):
    monkeypatch.delenv("ONNX_CI_CACHE")
    project.recipes(NET.replace("THEN", "'tidy'"))

    def cached(code=0):
        done = project.command(
            *("onnx_ci", "run", "--opsets=17", "--exporters=signed", "--runtimes=graph", "--report=r.json"), is_fresh=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return [cell["cached"] for cell in json.loads((project.root / "r.json").read_text(encoding="utf-8"))["cells"]]

    assert cached() == [False, False]
    assert cached() == [True, True]
    code = {"tiny_onnx.py": TINY_ONNX_CODE.replace('"tiny"', '"small"')}
    install(tiny_onnx, "tiny-onnx", TINY_ONNX, code)
    assert cached() == [False, False]
    install(tiny_onnx, "tiny-onnx", {**TINY_ONNX, "onnx_ci.runtimes": {"graph": "tiny_onnx:OffByOne"}}, code)
    assert cached(code=1) == [False, False]


def test_a_package_that_does_not_load_is_told_once(project, tiny_onnx):
    install(tiny_onnx, "tiny-onnx", TINY_ONNX, {"tiny_onnx.py": "raise OSError('no libtiny.so')"})
    project.recipes(NET.replace("THEN", "[]"))
    done = project.command("onnx_ci", "run", "--exporters=signed", "--opsets=9-17")
    assert done.returncode == 4, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("of tiny-onnx 1.0 cannot be loaded: OSError: no libtiny.so") == 1
    project.recipes(NET.replace("THEN", "'tidy'"))
    done = project.command("onnx_ci", "run", "--opsets=9-17")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the post-export pass 'tidy' of tiny-onnx 1.0 cannot be loaded: OSError: no libtiny.so" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        ("[output for output in outputs]", "run() must return a list of torch tensors"),
        ("[torch.as_tensor(outputs[0])] * 2", "run() returned 2 tensors, and the file has 1 outputs"),
        ("[torch.as_tensor(output).double() for output in outputs]", "output 'y' as double, and the file declares float"),
    ],
)
def test_a_runtime_that_returns_something_else_is_a_mistake_of_it(tiny_onnx, returns, words):
    wrong = TINY_ONNX_CODE.replace("[torch.as_tensor(output) + self.error for output in outputs]", returns)
    install(tiny_onnx, "tiny-onnx", TINY_ONNX, {"tiny_onnx.py": wrong})
    report = onnx_ci.run([recipe_of_a_net()], opsets=17, runtimes="onnxruntime,graph", isolation="none")
    assert {(each.rule, each.details["breaks"]) for each in report.cells[0].findings if each.severity == "error"} == {
        ("runtime-disagreement", "run-error")
    }
    assert words in report.cells[0].findings[0].message


def test_a_runtime_that_overwrites_its_inputs_and_uses_its_memory_again_harms_no_other(tiny_onnx):
    wrong = TINY_ONNX_CODE.replace(
        "return [torch.as_tensor(output) + self.error for output in outputs]",
        """self.kept = getattr(self, "kept", {})
            kept = self.kept.setdefault(outputs[0].shape, torch.empty(outputs[0].shape))
            kept.copy_(torch.as_tensor(outputs[0]))
            [tensor.zero_() for tensor in inputs.values()]
            return [kept]""",
    )
    install(tiny_onnx, "tiny-onnx", TINY_ONNX, {"tiny_onnx.py": wrong})
    [cell] = onnx_ci.run([recipe_of_a_net()], opsets=17, runtimes="graph,onnxruntime", isolation="none").cells
    assert (cell.status, broken_rules(cell.findings)) == (onnx_ci.Status.PASSED, set())


@pytest.mark.slow
def test_operators_are_listed_for_an_exporter_of_a_package(project, tiny_onnx):
    project.recipes(NET.replace("THEN", "[]"))
    done = project.command("onnx_ci", "ops", "net", "--exporters=signed", "--opsets=17")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "net, signed at opset 17:"), done.stdout + done.stderr


@pytest.mark.parametrize("call", ["export", "verify"])
def test_an_exporter_that_does_not_exist_is_told_before_anything_runs(tmp_path, call):
    def never():
        raise AssertionError("the recipe ran")

    recipe = onnx_ci.recipe(name="net", **AXES)(never)
    with pytest.raises(onnx_ci.ConfigurationError, match="there is no exporter 'dynmo'; did you mean 'dynamo'"):
        if call == "export":
            onnx_ci.export(recipe, opset=18, exporter="dynmo")
        else:
            (tmp_path / "net.onnx").write_bytes(b"")
            onnx_ci.verify(tmp_path / "net.onnx", recipe, opset=18, exporter="dynmo")
