"""The exporter of transformers: it converts what torch's own cannot, its files are judged as theirs are, and what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path

import onnx
import pytest
import torch
from toolbox.cells import errors, rules, run_one

import onnx_ci
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.plugins import EXPORTERS
from onnx_ci.recipes.models.torchvision_models import import_torchvision

NAMES, TEXT = ["input_ids", "attention_mask"], {0: "batch", 1: "length"}
AXES = {"input_names": NAMES, "output_names": ["logits"], "dynamic_axes": dict.fromkeys((*NAMES, "logits"), TEXT)}


def text():
    ids, mask = torch.randint(0, 100, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    return ids, mask


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


@pytest.fixture
def transformers():
    with contextlib.suppress(onnx_ci.RecipeError):
        import_torchvision()  # transformers imports torchvision if it is installed
    return pytest.importorskip("transformers", "5.23", reason="needs transformers 5.23")


@pytest.fixture
def mixtral(transformers):
    """A tiny mixture of experts."""
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    return transformers.MixtralForCausalLM(config).eval()


class LessVocabulary(torch.nn.Module):
    """Exported with other tokens than it has in PyTorch."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        if torch.compiler.is_exporting():
            input_ids = input_ids.clamp(max=50)
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


class AnyArguments(LessVocabulary):
    """Takes its arguments by position alone."""

    def forward(self, *args):
        return super().forward(*args)


def result_of(model, args, exporter="transformers", **keywords):
    recipe = onnx_ci.recipe(name="net", **{**AXES, **keywords})(lambda: (model, *args))
    return run_one(recipe, opsets="18", exporters=exporter)


@pytest.mark.slow
def test_a_mixture_of_experts_is_right_that_dynamo_cannot_convert(mixtral):
    args = (text(),)
    adapted = onnx_ci.adapt(mixtral, inputs=NAMES, outputs=["logits"], fixed={"use_cache": False})
    assert rules(result_of(adapted, args, "dynamo")) == ["unsupported-operator"]
    result = result_of(adapted, args)
    assert (result.status, rules(result)) == (onnx_ci.Status.PASSED, [])
    assert "length=15" in {output.probe for output in result.outputs}


@pytest.mark.slow
def test_names_that_the_recipe_leaves_out_are_those_of_the_model(mixtral, tmp_path):
    args = ((), dict(zip(NAMES, text(), strict=True)) | {"use_cache": False})
    recipe = onnx_ci.recipe(name="net")(lambda: (mixtral, *args))
    file = onnx_ci.export(recipe, opset=18, exporter="transformers", path=tmp_path / "net.onnx")
    graph = onnx.load(file.path, load_external_data=False).graph
    assert ([each.name for each in graph.input], [each.name for each in graph.output]) == (NAMES, ["logits"])


@pytest.mark.slow
def test_arguments_may_be_taken_by_any_name(mixtral):
    class ByName(LessVocabulary):
        def forward(self, input_ids, **others):
            return self.model(input_ids=input_ids, use_cache=False, **others).logits

    ids, mask = text()
    result = result_of(ByName(mixtral), ((ids,), {"attention_mask": mask}))
    assert (result.status, rules(result)) == (onnx_ci.Status.PASSED, [])


class Scaled(torch.nn.Module):
    """Takes arguments that are not tensors. The exporter removes one of them from the call."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, mask=None, scale=1, use_cache=None):
        return self.layer(x) * scale if mask is None else self.layer(x) * mask


@pytest.mark.slow
@pytest.mark.parametrize("others", [{"mask": None}, {"mask": None, "use_cache": None}, {"scale": 3, "use_cache": True}])
def test_arguments_that_are_no_tensors_do_not_stand_in_the_way_of_dynamic_axes(others, transformers):
    keywords = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}}}
    recipe = onnx_ci.recipe(name="net", allow="baked-argument", **keywords)(lambda: (Scaled(), (torch.randn(5, 4),), others))
    result = run_one(recipe, opsets="18", exporters="transformers")
    assert result.status is onnx_ci.Status.PASSED
    assert "batch=1" in {output.probe for output in result.outputs}


@pytest.mark.slow
def test_a_file_with_other_numbers_is_found(mixtral):
    assert rules(result_of(LessVocabulary(mixtral), (text(),))) == ["numeric-drift"]


@pytest.mark.slow
def test_arguments_without_names_are_refused(mixtral):
    result = result_of(AnyArguments(mixtral), (text(),))
    [error] = errors(result)
    assert error.rule == "export-error"
    assert "AnyArguments.forward has names for 0 of 2; declare them as parameters instead of *args" in error.message


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EnvironmentLacksError, match=r"5\.23 or later; install onnx-ci with the extra transformers"):
        EXPORTERS.load("transformers")


PAST = [f"past_key_values.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
CACHE = {name: {0: "batch", 2: "past"} for name in PAST}
TOKENS = ["input_ids", "position_ids"]
NEW = {0: "batch", 1: "new"}
PARTS = {
    "prefill": {
        "input_names": TOKENS,
        "dynamic_axes": dict.fromkeys(TOKENS, TEXT),
    },
    "decode": {
        "input_names": [*TOKENS, *PAST],
        "dynamic_axes": dict.fromkeys(TOKENS, NEW) | CACHE,
    },
}
"""What ``transformers`` calls the parts of a generator, and their inputs."""


@pytest.fixture(params=PARTS)
def part(request, transformers):
    """A part of a tiny generator: its keywords, the module and what it is called with."""
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model
    from transformers.exporters.utils import decompose_for_generation

    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    register_cache_pytrees_for_model(model)
    ids, _ = text()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return PARTS[request.param], *decompose_for_generation(model, inputs, multi_token_decode=True)[request.param]


@pytest.mark.slow
def test_the_parts_of_a_generator_are_judged_each(part):
    keywords, model, inputs = part
    result = result_of(model, ((), dict(inputs)), **{"output_names": [], **keywords})
    assert (result.status, {each.rule for each in result.findings}) == (onnx_ci.Status.PASSED, {"absolute-path"})


PAGE = Path(__file__).parents[4] / "docs" / "library-exporters.md"


def of_page(name):
    """What the block of the page that defines ``name`` defines."""
    blocks = PAGE.read_text(encoding="utf-8").split('```python title="onnx_recipes.py"\n')[1:]
    [code] = [block.partition("```")[0] for block in blocks if f"def {name}(" in block.partition("```")[0]]
    names = {"__name__": "onnx_recipes"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.slow
def test_the_decode_part_of_the_documentation_is_judged_on_its_own_cache(transformers):
    result = run_one(of_page("olmo2_decode")["olmo2_decode"], opsets="18")
    assert (result.status, rules(result)) == (onnx_ci.Status.PASSED, [])
    assert {"past=1", "prefill", "step=5"} <= {output.probe for output in result.outputs}


@pytest.mark.slow
def test_the_generator_of_the_documentation_is_judged_as_a_whole(transformers):
    result = run_one(of_page("olmo2")["olmo2"], opsets="18")
    assert (result.status, rules(result)) == (onnx_ci.Status.PASSED, [])
    assert {(each.name, each.probe) for each in result.outputs} > {("tokens", "length=15"), ("logits", "batch=1")}


@pytest.mark.slow
def test_a_generator_whose_parts_are_connected_wrongly_is_found(transformers):
    page = of_page("olmo2")

    def greedy(files, input_ids):
        decode = files["decode"]

        def connected(caches, **inputs):
            return decode({**caches, **inputs, "position_ids": inputs["position_ids"] + 1})

        connected.inputs = decode.inputs
        return page["greedy"]({**files, "decode": connected}, input_ids)

    result = run_one(dataclasses.replace(page["olmo2"], run_files=greedy), opsets="18", effort="quick")
    assert "numeric-drift" in rules(result)
