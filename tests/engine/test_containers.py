"""Containers and caches: what a model takes and returns is flattened with readable names, or refused by its class's name."""

from __future__ import annotations

import collections
import copy
import dataclasses
import re
import typing

import pytest
import torch
from toolbox.cells import errors, rules, run_one
from torch.utils import _pytree as pytree

import onnx_ci
from onnx_ci import RecipeError, Severity, Status

EXPORTERS = {"torchscript": "13", "dynamo": "18"}


class Pair(typing.NamedTuple):
    key: torch.Tensor
    value: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Answer:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


@dataclasses.dataclass
class RegisteredAnswer:
    logits: torch.Tensor
    hidden: torch.Tensor


torch.export.register_dataclass(RegisteredAnswer)


class ModelOutput(collections.OrderedDict):
    """As transformers' and diffusers' outputs are; diffusers registers its own without keys."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class KeylessOutput(ModelOutput):
    pass


class Cache:
    """A list of keys and one of values, with a tensor for each layer."""

    def __init__(self, keys=(), values=()):
        self.key_cache, self.value_cache = list(keys), list(values)

    def update(self, key, value):
        self.key_cache[0] = torch.cat([self.key_cache[0], key], 1)
        self.value_cache[0] = torch.cat([self.value_cache[0], value], 1)
        return self


class KeylessCache(Cache):
    pass


class KeyedCache(Cache):
    pass


class Layer:
    def __init__(self, keys, values):
        self.keys, self.values, self.is_initialized = keys, values, True


class LayeredCache:
    """As transformers' own are now: a list of layers."""

    def __init__(self, *layers):
        self.layers = [Layer(*each) for each in layers]


class EncoderDecoderCache:
    """As transformers' cache of an encoder-decoder: one for the decoder's own tokens, one for the encoder's."""

    def __init__(self, keys, values):
        self.self_attention_cache = LayeredCache((keys, values))
        self.cross_attention_cache = LayeredCache((keys + 1, values + 1))
        self.is_updated = {0: True}


class Opaque:
    def __init__(self, tensor):
        self.tensor = tensor


pytree.register_pytree_node(
    KeylessOutput,
    lambda each: (list(each.values()), list(each)),
    lambda values, keys: KeylessOutput(zip(keys, values, strict=True)),
)
for cache, keyed in (
    (KeylessCache, None),
    (KeyedCache, lambda each: ([(pytree.GetAttrKey(name), held) for name, held in vars(each).items()], None)),
):
    pytree.register_pytree_node(
        cache,
        lambda each: ([each.key_cache, each.value_cache], None),
        lambda values, _, cache=cache: cache(*values),
        flatten_with_keys_fn=keyed,
    )  # fmt: skip


class Returns(torch.nn.Module):
    """Returns two tensors of its own, in a container."""

    def __init__(self, container):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.container = container

    def forward(self, x):
        logits = self.linear(x)
        return self.container(logits, logits.relu() + 1)


class Takes(torch.nn.Module):
    """Takes a cache of one layer and extends it."""

    def __init__(self, read):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.read = read

    def forward(self, x, past, scale: int = 2):
        key, value = self.read(past)
        return self.linear(x) * key + scale * value


def result_of(model, args, exporter, **keywords):
    """The result of a model, or of one that a function makes for each copy, because its own functions are closures."""
    make = (lambda: model) if isinstance(model, torch.nn.Module) else model
    recipe = onnx_ci.recipe(name="net", exporter=exporter, **keywords)(lambda: (make(), args))
    result = run_one(recipe, opsets=EXPORTERS[exporter], isolation="none")
    assert "internal-error" not in rules(result), result.log
    return result


def returning(container, exporter, **keywords):
    return result_of(Returns(container), (torch.randn(2, 4),), exporter, input_names=["x"], **keywords)


CONTAINERS = {
    "tuple_with_none": (lambda a, b: (a, None, b), None, "both"),
    "nested": (lambda a, b: {"heads": {"logits": a, "none": None}, "hidden": [b]}, "heads.logits, hidden.0", "both"),
    "named_tuple": (Pair, "key, value", "both"),
    "keyless": (lambda a, b: KeylessOutput(logits=a, hidden=b), "logits, hidden", "both"),
    "unregistered_dict": (lambda a, b: ModelOutput(logits=a, hidden=b), "logits, hidden", "torchscript"),
    "dataclass": (Answer, "logits, loss", "none"),
    "registered_dataclass": (RegisteredAnswer, "logits, hidden", "dynamo"),
    "layered_cache": (lambda a, b: {"past": LayeredCache((a, b), (b + 1, a + 1))}, "past.0.key, past.0.value, past.1.key, past.1.value", "none"),
    "two_caches": (lambda a, b: {"past": EncoderDecoderCache(a, b)}, "past.self_attention.0.key, past.self_attention.0.value, past.cross_attention.0.key, past.cross_attention.0.value", "none"),
    "keyed_cache": (lambda a, b: {"past": KeyedCache([a], [b])}, "past.0.key, past.0.value", "dynamo"),
    "keyless_cache": (lambda a, b: {"past": KeylessCache([a, b], [a + 1, b + 1])}, "past.0.key, past.1.key, past.0.value, past.1.value", "dynamo"),
}  # fmt: skip
"""Containers of two tensors, the names of these, and the exporters that support the class."""


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("case", CONTAINERS)
def test_an_output_is_flattened_with_readable_names_or_refused_by_its_class(case, exporter):
    container, names, supported = CONTAINERS[case]
    result = returning(container, exporter)
    if supported in ("both", exporter):
        notes = [each.message for each in result.findings if (each.rule, each.severity) == ("output-mismatch", Severity.NOTE)]
        assert notes == ([] if names is None else [f"the outputs of the model have names ({names}) that are not in the file"])
        assert (result.status, rules(result)) == (Status.PASSED, [])
    else:
        assert rules(result) == ["export-error"]
        [error] = errors(result)
        assert re.match(
            rf"the {exporter} exporter does not support (Answer|RegisteredAnswer|ModelOutput|\w*Cache), the class of (what the model returns|the output past): ",
            error.message,
        )
        assert "onnx_ci.adapt(model)" in error.remedy


def cases(table, quick):
    """Every case with both exporters. The adapter leaves dynamo nothing but tensors, which one case shows; all others are slow."""
    for case in table:
        yield case, "torchscript"
        yield pytest.param(case, "dynamo", marks=[] if case == quick else pytest.mark.slow)


@pytest.mark.parametrize(("case", "exporter"), [*cases(CONTAINERS, "keyless_cache")])
def test_the_adapter_returns_the_tensors_of_every_container(case, exporter):
    container, names, _ = CONTAINERS[case]
    model = onnx_ci.adapt(Returns(container))
    count = len(names.split(", ")) if names else 2
    result = result_of(
        model, (torch.randn(2, 4),), exporter, input_names=["x"], output_names=names.split(", ") if names else ()
    )
    assert (result.status, rules(result), len({each.name for each in result.outputs})) == (Status.PASSED, [], count)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_wrong_file_of_a_model_with_containers_is_found(exporter):
    class Frozen(Returns):
        def forward(self, x):
            return KeylessOutput(logits=self.linear(x) * x.shape[0], hidden=torch.full((1,), float(x.sum())))

    result = result_of(onnx_ci.adapt(Frozen(None)), (torch.randn(2, 4),), "torchscript")
    assert "baked-value" in rules(result)
    swapped = returning(lambda a, b: {"past": KeyedCache([a], [b])}, exporter, output_names=["past.0.value", "past.0.key"])
    assert "name-mismatch" in rules(swapped)


def test_an_output_of_an_unknown_class_is_refused_by_its_name():
    result = returning(lambda a, b: (a, Opaque(b)), "torchscript")
    first, second = (each for each in result.findings if each.severity is Severity.ERROR)
    assert first.message == "the model returns a Opaque at 1, which an ONNX output cannot hold"
    assert "the torchscript exporter does not support Opaque, the class of the output 1" in second.message
    assert "onnx_ci.adapt(model, outputs=" in first.remedy
    [alone] = returning(lambda a, b: Opaque(b), "dynamo").findings
    assert (alone.rule, alone.message) == ("recipe-error", "the model returns no tensor: its output is of the class Opaque")
    adapted = onnx_ci.adapt(Returns(lambda a, b: (a, Opaque(b))))
    [unknown] = result_of(adapted, (torch.randn(2, 4),), "torchscript").findings
    assert "the output 1 is of the class Opaque, whose tensors are unknown" in unknown.message


# --- arguments

READ = {
    "named_tuple": (Pair, lambda pair: (pair.key, pair.value), "dynamo"),
    "nested": (lambda a, b: {"key": a, "rest": {"value": b}}, lambda past: (past["key"], past["rest"]["value"]), "both"),
    "dataclass": (Answer, lambda answer: (answer.logits, answer.loss), "none"),
    "registered_dataclass": (RegisteredAnswer, lambda answer: (answer.logits, answer.hidden), "dynamo"),
    "keyless_dict": (lambda a, b: KeylessOutput(key=a, value=b), lambda past: (past.key, past.value), "none"),
    "cache": (lambda a, b: Cache([a], [b]), lambda past: (past.key_cache[0], past.value_cache[0]), "none"),
    "keyless_cache": (lambda a, b: KeylessCache([a], [b]), lambda past: (past.key_cache[0], past.value_cache[0]), "none"),
    "keyed_cache": (lambda a, b: KeyedCache([a], [b]), lambda past: (past.key_cache[0], past.value_cache[0]), "dynamo"),
}  # fmt: skip
ROWS = {"input_names": ["x", "key", "value"], "output_names": ["y"]}
DYNAMIC = {name: {0: "rows"} for name in ("x", "key", "value", "y")}


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("case", READ)
def test_an_argument_is_flattened_or_refused_by_its_class(case, exporter):
    container, read, supported = READ[case]
    past = container(torch.randn(2, 4), torch.randn(2, 4))
    model = onnx_ci.adapt(Takes(read), inputs=["x", "past"])
    result = result_of(model, (torch.randn(2, 4), past), exporter, dynamic_axes=DYNAMIC, **ROWS)
    if supported in ("both", exporter):
        assert (result.status, rules(result)) == (Status.PASSED, [])
        return
    [error] = errors(result)
    name = type(past).__name__
    is_known = case not in ("cache", "dataclass")
    assert error.rule == ("export-error" if is_known else "recipe-error")
    refused = f"the {exporter} exporter does not support {name}, the class of the argument past: "
    assert error.message.startswith(
        refused if is_known else f"the argument past is of the class {name}, whose tensors PyTorch cannot"
    )
    assert "onnx_ci.adapt(model, inputs=FUNCTION)" in error.remedy


@pytest.mark.parametrize(("case", "exporter"), [*cases(READ, "nested")])
def test_the_adapter_makes_an_argument_of_any_class_from_tensors(case, exporter):
    container, read, _ = READ[case]

    def adapted():
        return onnx_ci.adapt(Takes(read), inputs=lambda x, key, value: {"x": x, "past": container(key, value)})

    args = torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 4)
    result = result_of(adapted, args, exporter, dynamic_axes=DYNAMIC, **ROWS)
    assert (result.status, rules(result)) == (Status.PASSED, [])


# --- defaults of forward


class Decoder(torch.nn.Module):
    """Returns the logits of the last tokens, as transformers' decoders do."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 5)

    def forward(self, hidden, mask=None, logits_to_keep=0, use_cache=True):
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.linear(hidden if mask is None else hidden * mask)[:, kept, :]
        past = Cache([hidden], [hidden * 2]) if use_cache else None
        return ModelOutput(logits=logits, past_key_values=past) if past else ModelOutput(logits=logits)


HIDDEN = torch.randn(2, 3, 4)


def test_the_finding_about_an_invented_input_names_the_default_and_the_adapter():
    class WithoutCache(Decoder):
        def forward(self, hidden, mask=None, logits_to_keep=0):
            return super().forward(hidden, mask, logits_to_keep, use_cache=False)

    result = result_of(WithoutCache(), (HIDDEN,), "torchscript", input_names=["hidden"])
    assert rules(result) == ["input-extra", "shape-mismatch"]
    [extra] = [each for each in result.findings if each.rule == "input-extra"]
    assert extra.message.endswith(
        ": TorchScript makes inputs of numbers and tensors, and logits_to_keep=0 is a default of forward"
    )
    assert "onnx_ci.adapt(model, fixed={'logits_to_keep': 0})" in extra.remedy
    assert "Remove numbers" not in extra.remedy
    fixed = onnx_ci.adapt(WithoutCache(), fixed={"logits_to_keep": 0})
    assert result_of(fixed, (HIDDEN,), "torchscript", input_names=["hidden"]).status is Status.PASSED


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_inputs_and_outputs_are_chosen_and_renamed(exporter):
    names = {
        "input_names": ["mask", "hidden"],
        "output_names": ["present.0.key", "present.0.value", "scores"],
        "dynamic_axes": {"hidden": {1: "length"}, "mask": {1: "length"}, "scores": {1: "length"}},
    }
    model = onnx_ci.adapt(Decoder(), inputs=["mask", "hidden"], outputs={"past_key_values": "present", "logits": "scores"})
    result = result_of(model, (torch.rand(2, 3, 1), HIDDEN), exporter, **names)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    swapped = result_of(model, (torch.rand(2, 3, 1), HIDDEN), exporter, input_names=["hidden", "mask"])
    assert "name-mismatch" in rules(swapped)


def test_what_the_adapter_returns():
    decoder = Decoder().eval()
    expected = decoder(HIDDEN)
    every = onnx_ci.adapt(decoder, inputs=["hidden"])(HIDDEN)
    alone = onnx_ci.adapt(decoder, inputs="hidden", outputs="logits")(HIDDEN)
    assert list(alone) == ["logits"]
    assert list(every) == ["logits", "past_key_values.0.key", "past_key_values.0.value"]
    assert torch.equal(every["logits"], expected.logits)
    assert list(onnx_ci.adapt(decoder, outputs=["past_key_values.0.value"])(HIDDEN)) == ["past_key_values.0.value"]
    assert torch.equal(onnx_ci.adapt(decoder, outputs=lambda made: made.logits)(HIDDEN), expected.logits)
    assert list(onnx_ci.adapt(decoder, fixed={"use_cache": False})(HIDDEN)) == ["logits"]
    assert isinstance(onnx_ci.adapt(Returns(lambda a, b: (a, 3, b)))(HIDDEN), tuple)


def test_the_adapter_keeps_the_model_as_its_submodule():
    model = onnx_ci.adapt(Decoder(), inputs=["hidden"])
    assert isinstance(model.model, Decoder)
    assert set(model.state_dict()) == {"model.linear.weight", "model.linear.bias"}
    copied = copy.deepcopy(model)
    assert copied.model is not model.model
    assert torch.equal(copied(HIDDEN)["logits"], model(HIDDEN)["logits"])


def test_a_wrong_use_of_the_adapter_is_an_error_that_names_it():
    decoder = Decoder()
    with pytest.raises(RecipeError, match=r"Decoder\.forward has no parameter 'hiden'; did you mean 'hidden'"):
        onnx_ci.adapt(decoder, inputs=["hiden"])
    with pytest.raises(RecipeError, match="the parameter 'mask' is given twice"):
        onnx_ci.adapt(decoder, inputs=["hidden", "mask"], fixed={"mask": None})
    with pytest.raises(
        RecipeError,
        match="the fixed value of 'mask' has tensors in an object of the class Answer, where PyTorch cannot find them",
    ):
        onnx_ci.adapt(decoder, fixed={"mask": Answer(torch.ones(3))})
    with pytest.raises(RecipeError, match=r"the model is not a torch\.nn\.Module but str"):
        onnx_ci.adapt("decoder")
    with pytest.raises(
        RecipeError, match=r"returns no tensor 'logit', but logits, past_key_values\.0\.key.*did you mean 'logits'"
    ):
        onnx_ci.adapt(decoder, outputs=["logit"])(HIDDEN)
    with pytest.raises(RecipeError, match="two outputs have the name 'same'"):
        onnx_ci.adapt(decoder, outputs={"logits": "same", "past_key_values.0.key": "same"})(HIDDEN)
    [finding] = result_of(onnx_ci.adapt(decoder, inputs=["hidden", "mask"]), (HIDDEN,), "torchscript").findings
    assert finding.rule == "recipe-error"
    assert finding.message.endswith("missing a required argument: 'mask'")
