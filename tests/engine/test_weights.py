"""Which weights a cell is judged with, and which its files have."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxscript import opset18 as op
from toolbox.cells import rules, run_one, task

import onnx_ci
from onnx_ci import Status
from onnx_ci.engine.evidence import Evidence
from onnx_ci.pipeline.model import copies, float64_on_use
from onnx_ci.results.rules import finding

LARGE = 20.0
"""Weights as large as this can be a model's own, but not its probe weights."""


class Net(torch.nn.Module):
    """Tracing freezes a sum of the input if ``is_wrong`` is true of the weights, of which the exporter knows nothing."""

    def __init__(self, is_wrong=None):
        super().__init__()
        self.first, self.norm, self.head = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
        self.is_wrong = is_wrong

    def forward(self, x):
        hidden = self.norm(self.first(x)).relu()
        if self.is_wrong is not None and self.is_wrong(float(self.first.weight.abs().max())):
            hidden = hidden + float(x.sum())
        return self.head(hidden)


def net(is_wrong=None, *, head=1.0, **keywords):
    """A recipe whose model has large weights of its own."""

    @onnx_ci.recipe(name="net", input_names=["x"], output_names=["y"], **keywords)
    def made():
        model = Net(is_wrong)
        with torch.no_grad():
            model.first.weight.mul_(100)
            model.head.weight.mul_(head)
        return model, (torch.randn(3, 8),)

    return made


def weights_of(path):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def own_weights(recipe):
    torch.manual_seed(0)
    return {name: tensor.numpy() for name, tensor in recipe()[0].state_dict().items()}


# --- disagreements


def disagreements(result):
    return [each.message for each in result.findings if "own weights is" in each.message]


@pytest.mark.parametrize(("isolation", "is_kept"), [("none", False), ("fork", True)])
def test_where_only_probe_weights_show_a_fault_both_files_are_shown(tmp_path, isolation, is_kept):
    kept = {"artifacts": tmp_path} if is_kept else {}
    result = run_one(net(lambda largest: largest < LARGE), isolation=isolation, **kept)
    assert rules(result) == ["baked-value"]
    assert all(each.probe_weights for each in result.findings if each.severity is onnx_ci.Severity.ERROR)
    assert {output.input_title for output in result.outputs} >= {"example", "example, probe weights"}
    (note,) = disagreements(result)
    assert "own weights is right, with a drift of" in note
    assert "probe weights is wrong (baked-value), with a drift of" in note
    assert not is_kept or onnx_ci.verify(result.artifact, net()).status is Status.PASSED


def test_where_only_own_weights_show_a_fault_it_is_said_of_the_kept_file(tmp_path):
    recipe = net(lambda largest: largest > LARGE)
    assert run_one(recipe).status is Status.PASSED
    result = run_one(recipe, artifacts=tmp_path)
    assert rules(result) == ["baked-value"]
    assert not result.findings[-1].probe_weights
    (note,) = disagreements(result)
    assert "own weights is wrong (baked-value), with a drift of" in note
    assert "probe weights is right, with a drift of" in note
    assert not list(tmp_path.rglob("*probe*"))
    assert run_one(net(), artifacts=tmp_path).status is Status.PASSED


def by_torchscript(model, args, kwargs, opset, path):
    torch.onnx.export(model, args, path, opset_version=opset, dynamo=False, input_names=["x"], output_names=["y"])


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_model_in_which_probe_weights_show_nothing_is_judged_with_its_own(is_wrong):
    class Clipped(torch.nn.Linear):
        def forward(self, x):
            value = super().forward(x).mean(1)
            return value if is_wrong and torch.onnx.is_in_onnx_export() else value.clamp(-0.5, 0.5)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch", 1: "time"}, "y": {0: "batch"}})
    def clipped():
        return Clipped(3, 1), (torch.randn(2, 6, 3),)

    result = run_one(clipped)
    assert rules(result) == (["numeric-drift"] if is_wrong else [])


@pytest.mark.parametrize("kept", [False, True])
def test_a_function_that_exports_another_model_than_it_gets_is_told(tmp_path, kept):
    def export(model, args, *others):
        torch.manual_seed(0)
        by_torchscript(recipe()[0].eval(), args, *others)

    recipe = net(export=export)
    result = run_one(recipe, **({"artifacts": tmp_path} if kept else {}))
    assert rules(result) == ["weight-mismatch", "numeric-drift"]
    (note,) = (each for each in result.findings if "own weights is" in each.message)
    assert "It must export the model that it gets" in note.remedy
    remedied = run_one(net(export=export, weights="trained"))
    assert (remedied.status, rules(remedied)) == (Status.PASSED, [])


def test_a_function_that_exports_the_model_wrongly_is_not_said_to_export_another_one():
    result = run_one(net(lambda largest: largest < LARGE, export=by_torchscript))
    (note,) = (each for each in result.findings if "own weights is" in each.message)
    assert "a fault that the model's own weights hide" in note.remedy


def test_where_both_show_a_fault_it_is_reported_once():
    result = run_one(net(lambda _: True))
    assert rules(result) == ["baked-value"]
    assert not any(each.probe_weights for each in (*result.findings, *result.outputs))
    assert disagreements(result) == []


def test_what_the_exporter_refuses_with_both_is_reported_once_if_a_remedy_was_found_for_one():
    evidence = Evidence(task=task(net()), timings={})
    for remedy in ("Declare exporter='dynamo'.", None):
        evidence.new_trial(None).findings.append(finding("export-error", "the exporter raised an error", remedy=remedy))
    (reported,) = evidence.complete().findings
    assert (reported.remedy, reported.probe_weights) == ("Declare exporter='dynamo'.", False)


# --- kept files


@pytest.mark.parametrize(("opset", "isolation"), [(13, "fork"), (18, "none")])
def test_a_kept_file_has_the_models_own_weights_and_is_judged_with_both(tmp_path, opset, isolation):
    recipe = net()
    result = run_one(recipe, opsets=opset, artifacts=tmp_path, isolation=isolation)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    kept, own = weights_of(result.artifact), own_weights(recipe)
    assert all(np.array_equal(kept[name], own[name]) for name in ("head.weight", "head.bias"))  # dynamo fuses the other layers
    assert {output.input_title for output in result.outputs} >= {"example", "example, probe weights"}
    assert not list(tmp_path.rglob("*probe*"))


def test_a_model_whose_own_weights_show_nothing_passes_with_artifacts_too(tmp_path):
    recipe = net(head=0.0)
    assert run_one(recipe).status is Status.PASSED
    result = run_one(recipe, artifacts=tmp_path)
    assert (result.status, result.observability) == (Status.PASSED, 1.0)
    assert not weights_of(result.artifact)["head.weight"].any()


def test_what_a_baseline_records_does_not_depend_on_whether_files_are_kept(tmp_path):
    assert run_one(net(), artifacts=tmp_path).facts == run_one(net()).facts


def test_a_model_that_fails_with_its_own_weights_only_is_an_error_if_files_are_kept(tmp_path):
    class Strict(Net):
        def forward(self, x):
            if float(self.first(x).abs().max()) > LARGE:
                raise ValueError("too large")
            return super().forward(x)

    def made():
        model = Strict()
        torch.nn.init.constant_(model.first.weight, 100)
        return model, (torch.randn(3, 8),)

    recipe = onnx_ci.recipe(name="strict")(made)
    assert run_one(recipe).status is Status.PASSED
    result = run_one(recipe, artifacts=tmp_path)
    assert (result.status, result.artifact, rules(result)) == (Status.ERROR, None, ["recipe-error"])
    assert "too large" in result.findings[0].message


# --- recipes that load weights


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(x).relu())

    @classmethod
    def from_pretrained(cls, path):
        """As libraries do it: without ``load_state_dict``, and with a loader that is imported where it is needed."""
        from safetensors import safe_open

        model = cls()
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is not a dictionary)
                owner, _, attribute = name.partition(".")
                getattr(getattr(model, owner), attribute).data = file.get_tensor(name)
        return model


def with_state(path, load):
    model = Small()
    model.load_state_dict(load(path))
    return model


def save_safetensors(model, path):
    pytest.importorskip("safetensors.torch").save_file(model.state_dict(), path)


def save_state(model, path):
    torch.save(model.state_dict(), path)


def load_safetensors(path):
    from safetensors.torch import load_file

    return load_file(path)


WAYS = {
    "a state dict": (save_state, lambda path: with_state(path, torch.load), {"load_state_dict", "torch.load"}),
    "a state dict from a URL": (
        save_state,
        lambda path: with_state(
            path.as_uri(), lambda url: torch.hub.load_state_dict_from_url(url, model_dir=path.parent / "hub")
        ),
        {"load_state_dict", "torch.load"},
    ),
    "a module": (torch.save, lambda path: torch.load(path, weights_only=False), {"torch.load"}),
    "a script": (
        lambda model, path: torch.jit.save(torch.jit.script(model), path),
        lambda path: torch.jit.load(path),
        {"torch.jit.load"},
    ),
    "safetensors": (save_safetensors, lambda path: with_state(path, load_safetensors), {"load_state_dict", "safetensors"}),
    "from_pretrained": (save_safetensors, Small.from_pretrained, {"safetensors"}),
}


def trained():
    """A model whose weights are neither those of a seed nor probe weights."""
    torch.manual_seed(3)
    model = Small().eval()
    with torch.no_grad():
        model.head.weight.mul_(100)
    return model


@pytest.fixture
def checkpoint(tmp_path):
    """A file with the weights of :func:`trained`."""
    path = tmp_path / "checkpoint.pt"
    save_state(trained(), path)
    return path


def loading(path, load=lambda path: with_state(path, torch.load), **keywords):
    """A recipe that loads its weights from a file."""
    return onnx_ci.recipe(name="small", **keywords)(lambda: (load(path), (torch.randn(3, 4),)))


def sketch_of(recipe, **options):
    """A sketch of the weights with which the recipe's baseline is recorded."""
    return run_one(recipe, **options).facts.weights


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("way", WAYS)
def test_a_recipe_that_loads_weights_is_judged_with_these(tmp_path, way):
    save, load, functions = WAYS[way]
    path = tmp_path / "checkpoint"
    save(trained(), path)
    recipe = loading(path, load)
    result = run_one(recipe, artifacts=tmp_path / "kept")
    assert (result.status, [each.rule for each in result.findings]) == (Status.PASSED, ["loaded-weights"])
    assert all(name in result.findings[0].message for name in functions)
    assert np.array_equal(weights_of(result.artifact)["head.weight"], trained().head.weight.detach().numpy())
    assert result.facts.weights == sketch_of(loading(path, load, weights="trained"))


def test_what_a_recipe_declares_about_its_weights_counts(checkpoint):
    found = sketch_of(loading(checkpoint), isolation="fork")
    declared = run_one(loading(checkpoint, weights="trained"), isolation="fork")
    seeded = run_one(loading(checkpoint, weights="seeded"), isolation="fork")
    assert (declared.findings, seeded.findings) == ((), ())
    assert declared.facts.weights == found
    assert seeded.facts.weights != found


def test_loaded_weights_that_hide_layers_are_judged_with_probe_weights_too(tmp_path):
    path = tmp_path / "checkpoint.pt"
    model = trained()
    torch.nn.init.zeros_(model.norm.weight)
    save_state(model, path)
    result = run_one(loading(path))
    assert {output.input_title for output in result.outputs} >= {"example", "example, probe weights"}
    assert result.observability == 1.0


class Pooled(Net):
    """A net with a layer of which nothing but ``use`` depends, as the pooler of many transformers."""

    def __init__(self, use):
        super().__init__()
        self.pooler, self.use = torch.nn.Linear(8, 8), use

    def forward(self, x):
        return self.use(super().forward(x), self.pooler(x))


@pytest.mark.parametrize(
    ("use", "is_judged_twice"),
    [
        (lambda outputs, pooled: outputs, False),
        (lambda outputs, pooled: outputs + pooled.argmax(-1, keepdim=True), True),
        (lambda outputs, pooled: outputs + 0 * pooled[:, :1], True),
    ],
    ids=["unused", "by its largest", "times zero"],
)
def test_a_layer_that_nothing_uses_needs_no_second_export(use, is_judged_twice):
    recipe = onnx_ci.recipe(name="pooled", input_names=["x"], output_names=["y"], weights="trained")
    result = run_one(recipe(lambda: (Pooled(use), (torch.randn(3, 8),))))
    assert result.status is Status.PASSED
    assert any("'pooler'" in each.message for each in result.findings if each.rule == "vacuous")
    assert any(output.probe_weights for output in result.outputs) is is_judged_twice


def test_a_fault_that_only_loaded_weights_show_is_found_without_artifacts(tmp_path):
    path = tmp_path / "checkpoint.pt"
    large = Net()
    with torch.no_grad():
        large.first.weight.mul_(100)
    save_state(large, path)

    def load(is_wrong):
        model = Net(is_wrong)
        model.load_state_dict(torch.load(path))
        return model, (torch.randn(3, 8),)

    recipes = [onnx_ci.recipe(name="net")(lambda is_wrong=is_wrong: load(is_wrong)) for is_wrong in (lambda m: m > LARGE, None)]
    assert [rules(run_one(recipe)) for recipe in recipes] == [["baked-value"], []]


def copied(_):
    model, other = Small(), Small()
    model.load_state_dict(other.state_dict())
    return model


@pytest.mark.parametrize(
    ("saved", "load"),
    [
        ({}, copied),
        ([torch.ones(3), torch.ones(2)], lambda path: (torch.load(path), Small())[1]),
    ],
    ids=["a copy between models", "tensors"],
)
def test_what_is_not_a_models_weights_does_not_count_as_loading(tmp_path, saved, load):
    path = tmp_path / "saved.pt"
    torch.save(saved, path)
    assert run_one(loading(path, load)).findings == ()


def test_torch_is_left_as_it_was(checkpoint):
    def watched():
        watched = (torch.nn.Module, "load_state_dict"), (torch.nn.Module, "state_dict"), (torch, "load"), (torch.jit, "load")
        return [getattr(owner, name) for owner, name in watched], vars(torch.UntypedStorage).keys()

    before = watched()
    assert rules(run_one(loading(checkpoint), isolation="none")) == []
    assert watched() == before
    assert rules(run_one(loading(checkpoint.with_name("missing.pt")), isolation="none")) == ["recipe-error"]
    assert watched() == before


# --- files with probe weights


@pytest.fixture
def probed(tmp_path):
    """A file with probe weights, which is kept because only it shows the fault."""
    run_one(net(lambda largest: largest < LARGE), artifacts=tmp_path)
    return tmp_path / "net" / "opset13-cpu.probe-weights.onnx"


def test_a_file_with_probe_weights_says_so(probed):
    model = onnx.load(probed)
    assert {entry.key: entry.value for entry in model.metadata_props} == {"onnx-ci.weights": "probe"}
    onnx.checker.check_model(model, full_check=True)
    assert not onnx.load(probed.with_name("opset13-cpu.onnx")).metadata_props


def test_verify_refuses_a_file_with_probe_weights(probed):
    result = onnx_ci.verify(probed, net())
    assert rules(result) == ["probe-weights"]
    assert "do not deploy it" in result.findings[0].message


def test_a_file_with_probe_weights_does_not_outlive_its_fault(probed):
    run_one(net(), artifacts=probed.parents[1])
    assert [path.name for path in probed.parent.iterdir()] == ["opset13-cpu.onnx"]


@pytest.mark.slow
def test_a_file_with_probe_weights_keeps_its_external_data(tmp_path):
    def wrong_relu(x):
        return op.Identity(x)

    @onnx_ci.recipe(name="wide", custom_translation_table={torch.ops.aten.relu.default: wrong_relu})
    def wide():
        model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))
        torch.nn.init.zeros_(model[2].weight)
        return model, (torch.randn(3, 100),)

    result = run_one(wide, opsets=18, artifacts=tmp_path)
    assert rules(result) == ["numeric-drift"]
    (kept,) = tmp_path.rglob("*.probe-weights.onnx")
    assert "kept as " + str(kept) in result.log
    assert weights_of(kept)["2.weight"].any()
    assert not weights_of(result.artifact)["2.weight"].any()
    assert rules(onnx_ci.verify(kept, wide, opset=18)) == ["probe-weights"]
    run_one(onnx_ci.recipe(name="wide")(wide.function), opsets=18, artifacts=tmp_path)
    assert not list(tmp_path.rglob("*probe*"))


# --- weights that are too large to be copied


@pytest.fixture
def large(monkeypatch):
    """Every model counts as large, and so does every weight."""
    monkeypatch.setattr(copies, "LARGE", 0)
    monkeypatch.setattr(float64_on_use, "LEAST", 0)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_a_large_model_is_exported_without_a_copy_of_its_parameters(large, exporter, monkeypatch):
    own, exported = [], []
    export = torch.onnx.export

    def watched(model, *args, **options):
        exported.extend(parameter.data_ptr() for parameter in model.parameters())
        return export(model, *args, **options)

    monkeypatch.setattr(torch.onnx, "export", watched)

    @onnx_ci.recipe(name="net", input_names=["x"], output_names=["y"], weights="trained")
    def made():
        model = Net()
        own.extend(parameter.data_ptr() for parameter in model.parameters())
        return model, (torch.randn(3, 8),)

    result = run_one(made, opsets="18", exporters=exporter, isolation="none")
    assert rules(result) == []
    assert exported == own


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_wrong", [None, lambda largest: largest < LARGE], ids=["right", "wrong"])
def test_a_large_model_is_judged_as_any_other(exporter, is_wrong, monkeypatch):
    monkeypatch.setattr(float64_on_use, "LEAST", 0)
    results = []
    for least in (2**40, 0):
        monkeypatch.setattr(copies, "LARGE", least)
        results.append(run_one(net(is_wrong), opsets="18", exporters=exporter, isolation="none"))
    one, other = results
    assert one.outputs == other.outputs
    assert one.findings == other.findings
    assert one.observability == other.observability


class DoublesItsWeight(torch.nn.Module):
    """Writes to its weight when it is exported, and at no other time."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            self.weight.data.mul_(2)
        return x * self.weight


def test_an_export_that_changes_the_weights_of_a_large_model_leaves_nothing_to_compare_with(large):
    @onnx_ci.recipe(name="net", input_names=["x"], output_names=["y"])
    def made():
        return DoublesItsWeight(), (torch.randn(3, 4),)

    result = run_one(made, isolation="none")
    assert [(each.rule, each.message) for each in result.findings] == [("impure-model", "the export changed the weights")]
    assert result.outputs == ()


# --- weights that are NaN


class Diverged(torch.nn.Module):
    """Has a weight with NaN, which its outputs get unless it is replaced."""

    def __init__(self, replaces):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        with torch.no_grad():
            self.first.weight[1, 2] = torch.nan
        self.replaces = replaces

    def forward(self, x):
        weight = self.first.weight.nan_to_num() if self.replaces else self.first.weight
        return self.second(torch.relu(x @ weight))


@pytest.mark.parametrize("weights", ["seeded", "trained"])
def test_a_weight_that_makes_outputs_nan_is_named(weights):
    recipe = onnx_ci.recipe(lambda: (Diverged(replaces=False), (torch.randn(2, 4),)), name="net", weights=weights)
    result = run_one(recipe)
    assert (result.status, rules(result)) == (Status.ERROR, ["recipe-error"])
    message = "the weight 'first.weight' is NaN in 1 of 16 values, and the model returns NaN on its example"
    assert result.findings[0].message == message


@pytest.mark.parametrize(("exporter", "opset"), [("torchscript", "17"), ("dynamo", "18")])
def test_a_weight_with_nan_that_the_model_replaces_is_one_like_others(exporter, opset):
    recipe = onnx_ci.recipe(lambda: (Diverged(replaces=True), (torch.randn(2, 4),)), name="net", weights="trained")
    assert run_one(recipe, exporters=exporter, opsets=opset).status is Status.PASSED
