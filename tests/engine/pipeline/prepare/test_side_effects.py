"""Models that overwrite their inputs are right; models with state are not."""

from __future__ import annotations

import random
import time

import pytest
import torch
from toolbox.cells import ROWS, Function, errors, recipe_of, rules, task
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode  # has no public name

import onnx_ci
from onnx_ci import Severity, Status
from onnx_ci.pipeline.prepare.prepare import prepare


def judged(model, exporter="torchscript", x=None, **keywords):
    recipe = onnx_ci.recipe(name="net", **ROWS, **keywords)(lambda: (model(), (torch.randn(5, 8) if x is None else x.clone(),)))
    (result,) = onnx_ci.run([recipe], opsets="18", exporters=exporter).cells
    return result


def notes(result):
    return [each.message for each in result.findings if each.rule == "impure-model" and each.severity is Severity.NOTE]


def overwritten(name):
    return [f"the model overwrites {name!r}, and the file leaves its inputs as they are"]


@pytest.mark.parametrize(
    ("activation", "exporter"),
    [(nn.ELU, "torchscript"), (nn.ReLU, "torchscript"), (nn.ELU, "dynamo")],
)
def test_an_activation_may_overwrite_the_input(activation, exporter):
    result = judged(lambda: activation(inplace=True), exporter)
    assert (rules(result), result.status) == ([], Status.PASSED)
    assert notes(result) == overwritten("input")
    assert {"example", "random values", "rows=6", "rows=1"} < {output.probe for output in result.outputs}


def shifted(x):
    x.add_(1)
    return x * 2


@pytest.mark.parametrize(
    ("x", "exporter"),
    [(torch.randn(5, 4), "torchscript"), (torch.arange(20).view(5, 4), "dynamo")],
    ids=["floats", "integers"],
)
def test_an_input_of_any_type_may_be_overwritten(x, exporter):
    result = judged(lambda: Function(shifted), exporter, x)
    assert (rules(result), notes(result)) == ([], overwritten("args.0"))


def test_no_run_sees_what_another_one_wrote():
    x = torch.arange(20).view(5, 4)
    prepared = prepare(task(recipe_of(shifted, x, **ROWS)))
    assert torch.equal(x, torch.arange(20).view(5, 4))
    for probe in prepared.probes.all:
        assert torch.equal(probe.reference.own[0], (probe.inputs[0] + 1) * 2)


class Remembers(nn.Module):
    """Replaces what a cache among its arguments contains, adds to it, and writes to one of its tensors if told so."""

    def __init__(self, *, writes):
        super().__init__()
        self.writes = writes

    def forward(self, x, cache):
        y = x + cache["last"] + cache["sum"]
        if self.writes:
            cache["sum"].add_(x)
        cache["first"], cache["last"] = x.new_zeros(()), x
        return y


@pytest.mark.parametrize(("writes", "expected"), [(False, []), (True, overwritten("cache.sum"))])
def test_only_writes_to_the_tensors_of_a_cache_are_told(writes, expected):
    def net():
        return Remembers(writes=writes), (torch.randn(5, 4), {"last": torch.randn(5, 4), "sum": torch.randn(5, 4)})

    (result,) = onnx_ci.run([onnx_ci.recipe(name="net", input_names=["x", "last", "sum"])(net)], opsets="17").cells
    assert (rules(result), result.status, notes(result)) == ([], Status.PASSED, expected)


def test_a_lazy_model_is_initialized_with_a_copy_of_its_inputs():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.LazyLinear(4)

        def forward(self, x):
            return self.linear(x.add_(1))

    x = torch.zeros(5, 8)
    prepare(task(onnx_ci.recipe(name="lazy", **ROWS)(lambda: (Lazy(), (x,)))))
    assert not x.any()


@pytest.mark.parametrize("options", [{"effort": "quick"}, {}], ids=["unobserved", "observed"])
def test_an_export_may_overwrite_its_copy_of_the_inputs(options):
    recipe = recipe_of(shifted, torch.randn(5, 4), **ROWS)
    report = onnx_ci.run([recipe], opsets="18", exporters="torchscript,dynamo", **options)
    assert [rules(result) for result in report.cells] == [[], []]


class Counts(nn.Module):
    """Overwrites its input and counts its calls, in a buffer or where no state dict has it."""

    def __init__(self, *, in_buffer):
        super().__init__()
        if in_buffer:
            self.register_buffer("calls", torch.zeros(()))
        else:
            self.calls = torch.zeros(())

    def forward(self, x):
        self.calls = self.calls + 1
        return x.mul_(2) + self.calls


@pytest.mark.parametrize("in_buffer", [True, False], ids=["buffer", "attribute"])
def test_a_model_that_also_has_state_is_impure(in_buffer):
    result = judged(lambda: Counts(in_buffer=in_buffer))
    assert "impure-model" in rules(result)


class BuiltAnew(nn.Module):
    """A layer whose copies are built anew, as those of einops and einx are, in the mode of a new module."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        self.__init__()

    def forward(self, x):
        return self.dropout(x)


def test_a_layer_that_is_built_anew_when_it_is_copied_keeps_its_mode():
    result = judged(lambda: nn.Sequential(BuiltAnew(), nn.Linear(8, 4)))
    assert (rules(result), notes(result)) == ([], [])


class Trains(BuiltAnew):
    """Leaves its mode when it runs."""

    def forward(self, x):
        self.train()
        return x * 2


def test_a_layer_that_changes_its_own_mode_is_still_impure():
    result = judged(lambda: nn.Sequential(Trains(), nn.Linear(8, 4)))
    assert notes(result) == ["running the model changes the training mode of 0 and the training mode of 0.dropout"]


class KeepsSize(nn.Module):
    """Keeps the number of rows of its first run, or what it computes of it until another number comes."""

    rows = weights = None

    def __init__(self, *, renews):
        super().__init__()
        self.renews = renews

    def forward(self, x):
        if self.weights is None or (self.renews and self.rows != x.shape[0]):
            self.rows, self.weights = x.shape[0], 1 / x.shape[0]
        return x * self.weights * x.shape[0]


def test_a_model_that_keeps_a_size_computes_something_else_after_a_run_of_another_size():
    result = judged(lambda: KeepsSize(renews=False))
    (found,) = (each for each in result.findings if each.rule == "impure-model")
    assert (result.status, found.severity) == (Status.FAILED, Severity.ERROR)
    assert "a run after one of another size returns different outputs" in found.message
    assert "self.rows, self.weights = x.shape[0], 1 / x.shape[0]" in found.source.text


def test_a_model_may_keep_what_it_computes_anew_for_another_size():
    result = judged(lambda: KeepsSize(renews=True))
    assert "impure-model" not in rules(result) + notes(result)


class EverySoOften(nn.Module):
    """Does something else in every eighth run, which two runs do not show."""

    def __init__(self):
        super().__init__()
        self.runs = torch.zeros((), dtype=torch.long)

    def forward(self, x):
        self.runs += 1  # here
        return torch.where(self.runs % 8 == 0, -x, x)


class Decays(nn.Module):
    """Remembers the largest value for a while, which an input of usual values soon replaces."""

    def __init__(self):
        super().__init__()
        self.peak = torch.ones(())

    def forward(self, x):
        self.peak.copy_(torch.maximum(self.peak * 0.9, x.abs().max()))  # here
        return x / self.peak


class Scratch(nn.Module):
    """Writes to a tensor that it keeps, but nothing that a later run reads."""

    def __init__(self):
        super().__init__()
        self.room = torch.zeros(5, 8)

    def forward(self, x):
        self.room.copy_(x[:5])
        return x + self.room.mean()


class TakesOnlyOnes(Scratch):
    """Rejects any other input, so that nothing else can run before."""

    def forward(self, x):
        assert (x == 1).all()
        return super().forward(x)


def test_a_model_that_takes_no_other_input_may_write_to_what_it_keeps():
    names = {"input_names": ["x"], "output_names": ["y"]}
    recipe = onnx_ci.recipe(name="net", **names)(lambda: (TakesOnlyOnes(), (torch.ones(5, 8),)))
    (result,) = onnx_ci.run([recipe], opsets="18", exporters="torchscript").cells
    assert "internal-error" not in rules(result)


@pytest.mark.parametrize("model", [EverySoOften, Decays])
def test_state_that_matters_in_a_later_run_only_is_found(model):
    (found,) = (each for each in errors(judged(model)) if each.rule == "impure-model")
    assert "returns different outputs" in found.message
    assert found.source.text.endswith("# here")


def test_a_tensor_that_each_run_overwrites_is_no_state():
    static = onnx_ci.recipe(name="net", input_names=["x"], output_names=["y"])(lambda: (Scratch(), (torch.randn(5, 8),)))
    (result,) = onnx_ci.run([static], opsets="18", exporters="torchscript").cells
    assert "impure-model" not in rules(result) + notes(result)


# --- state outside of modules -----------------------------------------------------------------------------------------


class Holder:
    """A plain object, which no copy of a state dict has."""

    def __init__(self):
        self.calls = 0


class CountsElsewhere(nn.Module):
    def __init__(self, holder):
        super().__init__()
        self.holder = holder

    def forward(self, x):
        self.holder.calls += 1  # the state
        x = x + 1
        return x * self.holder.calls


class Draws(nn.Module):
    def forward(self, x):
        x = x + 1
        return x * random.random()  # a number drawn by Python


class ReadsClock(nn.Module):
    def forward(self, x):
        x = x + 1
        return x * (time.perf_counter_ns() % 1_000_003)  # the time


@pytest.mark.parametrize(
    ("model", "rule", "comment"),
    [
        (lambda: CountsElsewhere(Holder()), "impure-model", "# the state"),
        (Draws, "nondeterministic", "# a number drawn by Python"),
        (ReadsClock, "nondeterministic", "# the time"),
    ],
    ids=["plain object", "random", "clock"],
)
def test_what_changes_between_runs_outside_of_modules_has_its_line(model, rule, comment):
    result = judged(model)
    (found,) = (each for each in result.findings if each.rule == rule)
    assert (result.status, found.severity) == (Status.FAILED, Severity.ERROR)
    assert found.source.text.endswith(comment)


# --- what watches a model must not change it


def under_functions(x):
    return x.exp() * (2 if torch.overrides.has_torch_function((x,)) else 3)


def under_operators(x):
    return x.exp() * (2 if is_in_torch_dispatch_mode() else 3)


def of_plain_sizes(x):
    return x.exp() * (3 if type(x.shape[0]) is int else 2)


def of_plain_numbers(x):
    return x.exp() * (3 if type(x.numel()) is int else 2)


def on_a_fast_path(x):
    return x.exp() * (3 if torch.backends.mha.get_fastpath_enabled() else 2)


@pytest.mark.parametrize("function", [under_functions, under_operators, of_plain_sizes, of_plain_numbers, on_a_fast_path])
def test_the_reference_is_what_the_model_computes_when_nothing_watches_it(function):
    x = torch.randn(5, 8)
    prepared = prepare(task(recipe_of(function, x, **ROWS)))
    for probe in prepared.probes.all:
        if probe.name in ("example", "rows=1", "random values"):
            expected = probe.inputs[0].double().exp() * 3
            assert torch.allclose(probe.reference.exact[0].double(), expected, rtol=1e-6)
            assert probe.reference.noise[0] < 1e-5 * expected.max()
    (note,) = [each for each in prepared.findings if "while its calls are recorded" in each.message]
    assert note.severity is Severity.NOTE


def test_a_model_that_its_watchers_leave_alone_gets_no_note():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    prepared = prepare(task(recipe_of(lambda x: attention(x, x, x)[0].exp(), torch.randn(5, 3, 8), **ROWS)))
    assert not [each for each in prepared.findings if "recorded" in each.message]


# --- equal values


def by_keys(keys, values, wrong=0.0):
    ranked = values.gather(1, keys.argsort(1))
    return ranked + wrong if torch.onnx.is_in_onnx_export() else ranked


def with_two_outputs(keys, values):
    order = torch.sort(keys, dim=1, descending=True).indices
    return values.gather(1, order), order


TIED = {
    "of integers": (by_keys, torch.randint(0, 4, (2, 40))),
    "of repeated floats": (by_keys, torch.randint(0, 4, (2, 40)) / 4),
    "noisy": (with_two_outputs, torch.randint(0, 4, (2, 40))),
}
DISTINCT = {"of floats": torch.randn(2, 40), "of integers": torch.stack([torch.randperm(40), torch.randperm(40)])}


def ranking(function, keys):
    recipe = onnx_ci.recipe(name="ranking", input_names=["keys", "values"])
    (result,) = onnx_ci.run([recipe(lambda: (Function(function), (keys, torch.randn(2, 40))))], opsets="17").cells
    return errors(result)


@pytest.mark.parametrize(("function", "keys"), TIED.values(), ids=TIED)
def test_what_follows_the_order_of_equal_values_says_so_with_what_helps(function, keys):
    found = ranking(function, keys)
    assert found
    assert "it follows the order of equal values" in found[0].message
    assert "keys * n + torch.arange(n)" in found[0].remedy


@pytest.mark.parametrize("keys", DISTINCT.values(), ids=DISTINCT)
def test_a_fault_beside_a_sort_of_different_values_is_another_one(keys):
    found = [each for each in ranking(lambda *args: by_keys(*args, wrong=0.5), keys) if each.probe == "example"]
    assert found
    assert not any("order of equal" in each.message for each in found)
