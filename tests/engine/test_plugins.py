"""An exporter, a runtime and a pass of an installed package, used as ours are; their faults are found as ours are."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import torch
from toolbox.distributions import TINY_ONNX, TINY_ONNX_CODE, install

import onnx_ci
from onnx_ci.results.verdict import broken_rules

FORKS = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
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


LOADED = "return GraphSession(ReferenceEvaluator(str(path)), self.error)"
BY_A_PROGRAM = """import subprocess, sys
            done = subprocess.run([sys.executable, "SCRIPT"], stdout=subprocess.PIPE, text=True, check=True)
            return GraphSession(ReferenceEvaluator(str(path)), float(done.stdout))"""


@pytest.mark.slow
def test_the_process_of_a_runtime_does_not_turn_the_cache_off(project, tiny_onnx, monkeypatch, tmp_path):
    monkeypatch.delenv("ONNX_CI_CACHE")
    script = tmp_path / "server.py"
    script.write_text("print(0.0)")
    assert LOADED in TINY_ONNX_CODE
    code = TINY_ONNX_CODE.replace(LOADED, BY_A_PROGRAM.replace("SCRIPT", str(script)))
    install(tiny_onnx, "tiny-onnx", TINY_ONNX, {"tiny_onnx.py": code})
    project.recipes(NET.replace("THEN", "[]"))

    def cached(code=0):
        arguments = ("run", "--opsets=17", "--runtimes=onnxruntime,graph", "--report=r.json")
        done = project.command("onnx_ci", *arguments, is_fresh=True)
        assert done.returncode == code, done.stdout + done.stderr
        return [cell["cached"] for cell in json.loads((project.root / "r.json").read_text(encoding="utf-8"))["cells"]]

    assert [cached(), cached()] == [[False], [True]]
    script.write_text("print(1.0)")
    assert cached(code=1) == [False]


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


RETURNS = {
    "numpy": ("[output for output in outputs]", "returned a list with a ndarray instead of torch tensors"),
    "None": ("None", "returned None instead of a list of torch tensors"),
    "too many": ("[torch.as_tensor(outputs[0])] * 2", "returned 2 tensors, and the file has 1 output"),
    "too few": ("[]", "returned 0 tensors, and the file has 1 output"),
    "another type": (
        "[torch.as_tensor(output).double() for output in outputs]",
        "returned output 'y' as double, and the file declares float",
    ),
}


def cell_with(tiny_onnx, returns, isolation, runtimes="onnxruntime,graph", **settings):
    """The cell of a net whose runtime ``graph`` returns ``returns``."""
    wrong = TINY_ONNX_CODE.replace("[torch.as_tensor(output) + self.error for output in outputs]", returns)
    install(tiny_onnx, "tiny-onnx", TINY_ONNX, {"tiny_onnx.py": f"import os\nimport time\n{textwrap.dedent(wrong)}"})
    return onnx_ci.run([recipe_of_a_net()], opsets=17, runtimes=runtimes, isolation=isolation, **settings).cells[0]


@pytest.mark.parametrize("isolation", ["none", pytest.param("fork", marks=FORKS)])
@pytest.mark.parametrize(("returns", "words"), RETURNS.values(), ids=RETURNS)
def test_a_runtime_that_returns_something_else_is_one_finding_of_it(tiny_onnx, returns, words, isolation):
    cell = cell_with(tiny_onnx, returns, isolation)
    [fault] = cell.findings
    assert (fault.rule, fault.message) == ("run-error", f"on 'example', graph {words} (onnxruntime is right)")
    assert fault.remedy == "pytest --onnx-runtime=graph shows what the plug-in gets wrong, on small files."
    assert {output.runtime for output in cell.outputs} == {"onnxruntime"}


DIES = {
    "a crash": ("os.kill(os.getpid(), 11)", "crash", "was killed by SIGSEGV"),
    "an exit": ("os._exit(7)", "crash", "ended by itself with exit code 7"),
    "a hang": ("time.sleep(100)", "timeout", "did not answer within 3 s"),
}


@FORKS
@pytest.mark.parametrize("order", ["onnxruntime,graph", "graph,onnxruntime"])
@pytest.mark.parametrize(("dies", "rule", "words"), DIES.values(), ids=DIES)
def test_a_runtime_that_dies_costs_no_other_its_verdict(tiny_onnx, dies, rule, words, order):
    cell = cell_with(tiny_onnx, dies, "fork", order, timeout=9)
    [fault] = cell.findings
    assert (fault.rule, fault.message) == (rule, f"on 'example', graph {words} (onnxruntime is right)")
    assert {output.runtime for output in cell.outputs} == {"onnxruntime"}


@FORKS
def test_a_runtime_that_dies_alone_is_named(tiny_onnx):
    cell = cell_with(tiny_onnx, "os.abort()", "fork", "graph")
    assert [each.message for each in cell.findings] == ["on 'example', graph was killed by SIGABRT"]


@FORKS
def test_what_a_runtime_prints_goes_to_the_log_of_its_cell(tiny_onnx):
    prints = "print('loaded', flush=True) or [torch.as_tensor(output) for output in outputs]"
    cell = cell_with(tiny_onnx, prints, "fork")
    assert (cell.status, cell.findings) == (onnx_ci.Status.PASSED, ())
    assert "loaded" in cell.log


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
