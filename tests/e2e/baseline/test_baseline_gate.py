"""Committed baselines in the gate: a scratch project that records, then changes one thing at a time."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy

import pytest
import torch
from onnx import TensorProto, helper, save_model
from toolbox.discovered import discover

import onnx_ci
from onnx_ci.baseline.check import Baselines
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.one_process import Engine
from onnx_ci.matrix.plan import plan
from onnx_ci.onnx_model.signature import read_signature
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import decide

NET = """
    import torch
    import onnx_ci

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

        def forward(self, x):
            y = self.layers(x)
            return y, torch.sigmoid(y)

    @onnx_ci.recipe(
        input_names=["x"],
        output_names=["output", "score"],
        dynamic_axes={"x": {0: "batch"}, "output": {0: "batch"}, "score": {0: "batch"}},
        opsets="13-14",
        weights="trained",
    )
    def net():
        return Net(), (torch.randn(3, 8),)
"""

CHANGES = {
    "a cast is added": ("self.layers(x)", "self.layers(x).double().float()", "+2 Cast"),
    "another opset": ("13-14", "15", "nothing is recorded at opset 15 (torchscript, cpu); recorded: opset 13-14"),
    "a weight is perturbed": (
        "return Net(), (",
        "model = Net(); model.layers[0].weight.data[3, 5] += 0.01; return model, (",
        "the weights differ (same shapes, different values; probe weights also change with what the model computes), so values are not compared",
    ),
    "a dynamic axis is lost": (
        'dynamic_axes={"x": {0: "batch"}, "output": {0: "batch"}, "score": {0: "batch"}},',
        "",
        "input 'x' axis 0 batch → 3, now static",
    ),
    "outputs are swapped": ("return y, torch.sigmoid(y)", "return torch.sigmoid(y), y", "outputs 'output' and 'score' swapped their values"),
    "another number": ("self.layers(x)", "self.layers(x) * 1.001", "values of 'output' changed by "),
}  # fmt: skip


def gate(project, mode):
    """Run the project in this process, with its baselines."""
    return onnx_ci.run([recipe_of(project)], baseline=mode, isolation="none")


@pytest.fixture
def recorded(project):
    """A project with a baseline."""
    project.write("onnx_recipes.py", NET)
    assert gate(project, "update").verdict == "passed"
    return project


def told(report):
    return {each.message for result in report.cells for each in result.findings if each.rule.startswith("baseline-")}


def test_what_was_recorded_holds(recorded):
    text = baseline_of(recorded)
    assert told(gate(recorded, "check")) == set()
    gate(recorded, "update")
    assert baseline_of(recorded) == text


def test_the_file_after_a_pass_has_a_baseline_of_its_own(project):
    """The pass changes, and the exporter's own file does not."""
    with_pass = NET.replace("@onnx_ci.recipe(", "PASS\n\n    @onnx_ci.recipe(then=[named],")
    first = with_pass.replace("PASS", "def named(model):\n        return model")
    second = with_pass.replace("PASS", "def named(model):\n        model.ir_version += 1\n        return model")
    project.write("onnx_recipes.py", NET)
    gate(project, "update")
    project.write("onnx_recipes.py", first)
    missing = "nothing is recorded at opset {} (torchscript, cpu+named); recorded: opset 13-14 (torchscript, cpu)"
    assert told(gate(project, "check")) == {missing.format(13), missing.format(14)}
    gate(project, "update")
    assert told(gate(project, "check")) == set()
    project.write("onnx_recipes.py", second)
    by_pass = {}
    for result in gate(project, "check").cells:
        by_pass.setdefault(result.cell.graph_pass, set()).update(each.message for each in result.findings)
    assert by_pass == {None: set(), "named": {"IR version 7 → 8"}}


def recipe_of(project):
    return runpy.run_path(str(project.root / "onnx_recipes.py"))["net"]


@pytest.mark.parametrize("weights", ["seeded", "trained"])
def test_verify_looks_at_the_baseline_of_a_file(project, weights):
    source = NET.replace('weights="trained"', f'weights="{weights}"')
    project.write("onnx_recipes.py", source)
    right = recipe_of(project)

    def verify(recipe, opset=13):
        exported = onnx_ci.export(recipe, opset=opset)
        result = onnx_ci.verify(exported, recipe, baseline="check")
        return result.status, [(each.rule, each.baseline_change) for each in result.findings]

    assert verify(right) == (onnx_ci.Status.FAILED, [("baseline-missing", "missing")])
    gate(project, "update")  # of a recipe without trained weights, with probe weights
    assert verify(right) == (onnx_ci.Status.PASSED, [])
    assert verify(right, opset=15) == (onnx_ci.Status.FAILED, [("baseline-missing", "missing")])
    project.write("onnx_recipes.py", source.replace('"output"', '"logits"'))
    assert verify(recipe_of(project)) == (onnx_ci.Status.FAILED, [("baseline-drift", "signature")])
    project.write("onnx_recipes.py", source.replace("self.layers(x)", "self.layers(x).double().float()"))
    status, changes = verify(recipe_of(project))
    assert (status, changes[0]) == (onnx_ci.Status.FAILED, ("baseline-drift", "operators"))


def test_verify_holds_trained_weights_against_those_that_were_recorded(recorded):
    changed = "model = Net(); model.layers[0].weight.data[3, 5] += 0.01; return model, ("
    recorded.write("onnx_recipes.py", NET.replace("return Net(), (", changed))
    other = recipe_of(recorded)
    result = onnx_ci.verify(onnx_ci.export(other, opset=13), other, baseline="check")
    assert [(each.rule, each.baseline_change) for each in result.findings] == [("baseline-drift", "weights")]


def test_verify_records_nothing_and_says_so(recorded):
    before, recipe = baseline_of(recorded), recipe_of(recorded)
    with pytest.raises(
        onnx_ci.ConfigurationError, match=r"verify does not record baselines; record one with run\(.*'update'\)"
    ):
        onnx_ci.verify(onnx_ci.export(recipe, opset=13), recipe, baseline="update")
    assert baseline_of(recorded) == before


def test_a_known_missing_baseline_is_strict(project):
    expect = '"13", expect={"13": onnx_ci.known_failure("baseline-missing", "still being written")}'
    project.write("onnx_recipes.py", NET.replace('"13-14"', expect))
    assert [each.status for each in gate(project, "check").cells] == [onnx_ci.Status.XFAILED]
    assert [each.status for each in gate(project, "off").cells] == [onnx_ci.Status.PASSED]
    assert [each.status for each in gate(project, "update").cells] == [onnx_ci.Status.PASSED]
    assert [each.status for each in gate(project, "check").cells] == [onnx_ci.Status.XPASSED]


def baseline_of(project):
    return (project.root / "onnx-baselines" / "net.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_told_as_what_it_is_in_one_line(recorded, name):
    old, new, words = CHANGES[name]
    assert old in NET
    recorded.write("onnx_recipes.py", NET.replace(old, new))
    report = gate(recorded, "check")
    assert report.verdict == "failed"
    (line,) = [each for each in told(report) if each.startswith(words)]
    assert "\n" not in line


def test_a_runtime_that_is_another_version_is_named(recorded):
    text = baseline_of(recorded)
    version = re.search(r'onnxruntime = "(.*)"', text)[1]
    path = recorded.root / "onnx-baselines" / "net.toml"
    path.write_text(text.replace(f'onnxruntime = "{version}"', 'onnxruntime = "1.0.0"'), encoding="utf-8")
    report = gate(recorded, "check")
    assert (report.verdict, told(report)) == ("passed", {f"onnxruntime 1.0.0 → {version}, and nothing else changed"})
    recorded.write("onnx_recipes.py", NET.replace('"output"', '"logits"'))
    assert f"output 'output' renamed to 'logits'; meanwhile onnxruntime 1.0.0 → {version}" in told(gate(recorded, "check"))


def test_other_threads_and_another_optimizer_are_no_change(project):
    project.write(
        "onnx_recipes.py", NET.replace("Linear(8, 16)", "Linear(8, 3000)").replace("Linear(16, 4)", "Linear(3000, 4)")
    )

    def run(mode, threads, runtime):
        torch.set_num_threads(threads)
        settings = load_settings(project.root, flags={"baseline": mode})
        baselines = Baselines(settings)
        judged = []
        with Engine(runtimes=[runtime]) as engine:
            for found in map(engine.run_cell, plan(discover(settings).recipes.values(), settings).cells):
                findings = (*found.findings, *baselines.findings(found, is_clean=not found.findings))
                judged.append(decide(dataclasses.replace(found, findings=findings)))
        if baselines.is_recording:
            baselines.record(judged)
        assert judged and all((each.status, each.findings) == (onnx_ci.Status.PASSED, ()) for each in judged)

    threads = torch.get_num_threads()
    try:
        run("update", 1, OnnxRuntime())
        run("check", 4, OnnxRuntime())
        run("check", 1, OnnxRuntime(optimize=False))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_another_kind_of_processor_is_no_change(project):
    """torch without vector instructions draws other last digits from a seed, and computes others."""
    project.write("onnx_recipes.py", NET.replace("8", "64").replace("16", "500"))
    gate(project, "update")
    before = baseline_of(project)
    environment = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    done = project.command("onnx_ci", "run", "--baseline=check", "--report=p.json", **environment)
    assert (done.returncode, told(read(project))) == (0, set()), done.stdout
    project.command("onnx_ci", "run", "--baseline=update", **environment)
    assert baseline_of(project) == before


DOUBLE = """
    import torch
    import onnx_ci

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets="13")
    def net():
        return torch.nn.Linear(64, 64).double(), (torch.randn(2, 64).double(),)
"""


@pytest.mark.slow  # Python is started anew, for other instructions
def test_another_kind_of_processor_is_no_change_in_float64(project):
    """What is drawn in float32 keeps the last digits of float32."""
    project.write("onnx_recipes.py", DOUBLE)
    gate(project, "update")
    environment = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    done = project.command("onnx_ci", "run", "--baseline=check", "--report=p.json", **environment)
    assert (done.returncode, told(read(project))) == (0, set()), done.stdout


@pytest.mark.slow
def test_the_three_front_ends_say_the_same(recorded):
    recorded.write("onnx_recipes.py", NET.replace('"output"', '"logits"'))
    expected = {"output 'output' renamed to 'logits'"}
    assert told(gate(recorded, "check")) == expected
    command = recorded.command("onnx_ci", "run", "--baseline=check", "--report=p.json")
    assert (command.returncode, told(read(recorded))) == (1, expected)
    for words in ([], ["-n", "2"]):
        done = recorded.command(
            "pytest", "--onnx-export", "--onnx-baseline=check", "--onnx-report=p.json", "-p", "no:cacheprovider", *words
        )
        assert done.returncode == 1, done.stdout
        assert told(read(recorded)) == expected
        assert "since the baseline: net at opsets 13-14 on cpu: output 'output' renamed to 'logits'" in done.stdout
    assert told(onnx_ci.run([recipe_of(recorded)], baseline="check")) == expected


def read(project):
    return RunReport.from_json(json.loads((project.root / "p.json").read_text(encoding="utf-8")))


@pytest.mark.slow
def test_pytest_records_what_it_ran_from_several_workers(project):
    project.write("onnx_recipes.py", NET)
    run_pytest = ["pytest", "--onnx-export", "-p", "no:cacheprovider", "-n", "2"]
    missing = project.command(*run_pytest, "--onnx-baseline=check")
    assert (missing.returncode, "baseline-missing: nothing is recorded for 'net'" in missing.stdout) == (1, True)
    part = project.command(*run_pytest, "--onnx-baseline=update", "-k", "opset14")
    assert (part.returncode, "baseline: net torchscript cpu, opset 14: new" in part.stdout) == (0, True), part.stdout
    rest = project.command(*run_pytest, "--onnx-baseline=update")
    assert (rest.returncode, "baseline: net torchscript cpu, opset 13: new" in rest.stdout) == (0, True), rest.stdout
    assert 'opsets = "13-14"' in baseline_of(project)
    assert project.command(*run_pytest, "--onnx-baseline=check").returncode == 0


@pytest.mark.slow
def test_a_verdict_from_the_cache_is_checked_and_recorded_like_any_other(project):
    project.write("onnx_recipes.py", NET)

    def run(mode):
        project.command("onnx_ci", "run", f"--baseline={mode}", "--cache=verdicts", "--report=p.json", "--opsets=13")
        return read(project)

    assert not run("off").cells[0].cached
    assert run("update").cells[0].cached
    path = project.root / "onnx-baselines" / "net.toml"
    path.write_text(baseline_of(project).replace("Gemm = 2", "Gemm = 5"), encoding="utf-8")
    report = run("check")
    assert report.cells[0].cached
    assert (report.verdict, told(report)) == ("failed", {"−3 Gemm"})


@pytest.mark.parametrize("words", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)])
def test_a_conflict_stops_the_run_before_any_work(recorded, words):
    path = recorded.root / "onnx-baselines" / "net.toml"
    path.write_text("<<<<<<< HEAD\n" + baseline_of(recorded), encoding="utf-8")
    command = recorded.in_process("run", "--baseline=check")
    assert (command.returncode, command.stdout) == (2, "")
    assert "net.toml:1 contains a merge conflict" in command.stderr
    plugin = recorded.command("pytest", "--onnx-export", "--onnx-baseline=check", "-p", "no:cacheprovider", *words)
    assert plugin.returncode == pytest.ExitCode.USAGE_ERROR, plugin.stdout
    assert (plugin.stdout + plugin.stderr).count("net.toml:1 contains a merge conflict") == 1
    assert "passed" not in plugin.stdout


def test_the_reports_show_what_moved(recorded):
    recorded.write("onnx_recipes.py", NET.replace('"output"', '"logits"'))
    recorded.command("onnx_ci", "run", "--baseline=check", "--report=report.json", "--summary=summary.md")
    recorded.in_process("report", "report.json", "--html=report.html")
    summary = (recorded.root / "summary.md").read_text(encoding="utf-8")
    assert "### Since the baseline" in summary
    assert "| net at opsets 13-14 on cpu | output 'output' renamed to 'logits' | error |" in summary
    page = (recorded.root / "report.html").read_text(encoding="utf-8")
    (section,) = re.findall(r'<section id="baseline">.*?</section>', page, re.DOTALL)
    assert "output &#39;output&#39; renamed to &#39;logits&#39;" in section and "13-14" in section


def test_show_and_prune(recorded):
    shown = recorded.in_process("baseline", "show")
    assert shown.stdout.startswith("net: torchscript cpu opset 13-14 (file ")
    assert recorded.in_process("baseline", "show", "net").stdout == baseline_of(recorded)
    assert 'opsets = "14"' in recorded.in_process("baseline", "show", "net::opset14-cpu").stdout
    wrong = recorded.in_process("baseline", "show", "net::opset15-cpu")
    assert (wrong.returncode, "did you mean 'opset14-cpu'?" in wrong.stderr) == (2, True)

    def prune(*words, **environment):
        return recorded.command("onnx_ci", "baseline", "prune", *words, **environment)

    text = baseline_of(recorded)
    assert prune("--yes").stdout == "everything that is recorded belongs to a cell of the project\n"
    recorded.write("onnx_recipes.py", NET.replace("@onnx_ci.recipe(", "@onnx_ci.recipe(manual='needs 8 GiB', "))
    assert prune("--yes").stdout == "everything that is recorded belongs to a cell of the project\n"
    # Python takes bytecode for new if neither the size nor the second has changed.
    recorded.write("onnx_recipes.py", NET.replace("13-14", "14-15"), "# of another size")
    listed = prune()
    assert listed.stdout.startswith("net.toml: torchscript cpu opset 13\n") and "prune --yes" in listed.stdout
    narrowed = prune("--yes", ONNX_CI_SELECT="net::opset14-cpu")
    assert (narrowed.returncode, "ONNX_CI_SELECT excludes cells" in narrowed.stderr) == (2, True)
    narrowed = prune("--yes", ONNX_CI_OPSETS="15")
    assert (narrowed.returncode, "ONNX_CI_OPSETS excludes cells" in narrowed.stderr) == (2, True)
    recorded.write("broken.py", "import onnx_ci\n1 / 0\n")
    broken = prune("--yes", "--recipe-files=onnx_recipes.py,broken.py")
    assert (broken.returncode, "fix those first" in broken.stderr) == (2, True)
    assert baseline_of(recorded) == text
    assert prune("--yes").stdout.endswith("removed\n")
    assert 'opsets = "14"' in baseline_of(recorded)
    recorded.write("onnx_recipes.py", NET.replace("def net()", "def other()"))
    assert "net.toml: torchscript cpu opset 14" in prune("--yes").stdout
    assert list((recorded.root / "onnx-baselines").iterdir()) == []
    recorded.write("onnx_recipes.py", "")
    assert prune("--yes").returncode == 2


def test_a_baseline_of_a_recipe_that_is_gone_is_told(recorded):
    recorded.write("onnx_recipes.py", NET.replace("def net()", "def other()"))
    recorded.command("onnx_ci", "run", "--baseline=update")
    done = recorded.command("onnx_ci", "run", "--baseline=check")
    assert done.returncode == 0, done.stdout
    assert "baseline: net.toml belongs to no recipe of the project; onnx-ci baseline prune removes it" in done.stdout
    part = recorded.command("onnx_ci", "run", "--baseline=check", "onnx_recipes.py")
    assert (part.returncode, "belongs to no recipe" in part.stdout) == (0, False), (
        "who asks for a part says nothing of the rest"
    )


KINDS = """
    import torch
    import onnx_ci

    class Kinds(torch.nn.Module):
        def forward(self, x, y):
            return x.argmax(-1), (x > y).any(-1), torch.log(x - x), x[..., :0]

    @onnx_ci.recipe(input_names=["x", "y"], output_names=["index", "any", "log", "none"], opsets="13")
    def net():
        return Kinds(), (torch.rand(5, 4), torch.rand(5, 4))
"""


OVERFLOW = """
    import torch
    import onnx_ci

    class Overflow(torch.nn.Module):
        def forward(self, x):
            return torch.exp(x)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets="13")
    def net():
        return Overflow(), (torch.tensor([0.5, 1.5, 300.0]),)
"""


def test_values_that_overflow_in_the_model_are_not_those_of_float64(project):
    project.write("onnx_recipes.py", OVERFLOW)
    (values,) = gate(project, "off").cells[0].facts.values
    assert values.largest == pytest.approx(4.48, abs=0.01)
    assert values.sample[-1] == float("inf")


def test_values_are_those_that_can_be_compared(project):
    project.write("onnx_recipes.py", KINDS)
    facts = gate(project, "off").cells[0].facts
    index, some = facts.values
    assert (index.name, index.noise, some.name, some.noise) == ("index", 0, "any", 0), "-inf and nothing have no statistics"
    assert all(each == int(each) for each in index.sample) and len(index.sample) == 5
    assert (facts.inputs[0].dims, facts.outputs[0].dtype, facts.outputs[1].dtype) == (("5", "4"), "int64", "bool")
    gate(project, "update")
    assert told(gate(project, "check")) == set()


def test_what_is_counted_in_a_file(tmp_path):
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    inner = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "inner", [], [value], [weight])
    choice = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner, doc_string="from here")
    node = helper.make_node("Gelu", ["z"], ["y"], domain="com.acme")
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
    ]
    gelu = helper.make_function(
        "com.acme", "Gelu", ["a"], ["b"], [helper.make_node("Erf", ["a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.acme", 3)]
    save_model(
        helper.make_model(helper.make_graph([choice, node], "g", inputs, [value]), opset_imports=opsets, functions=[gelu]),
        tmp_path / "m.onnx",
    )
    found = read_signature(tmp_path / "m.onnx")
    assert found.operators == {"Add": 2, "Erf": 1, "If": 1, "com.acme.Gelu": 1}
    assert (found.domains, found.initializers, found.initializer_bytes) == ({"com.acme": 3}, 2, 16)
    assert found.text_bytes == len("from here")


def test_the_json_report_holds_the_facts_of_each_cell(recorded):
    report = gate(recorded, "check")
    data = report.as_json()
    assert all(cell["facts"] for cell in data["cells"])
    read = RunReport.from_json(json.loads(json.dumps(data)))
    assert [each.facts for each in read.cells] == [each.facts for each in report.cells]
