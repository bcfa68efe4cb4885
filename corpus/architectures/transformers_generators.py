"""Generators of transformers as its own exporter takes them apart: the part that continues a text, run on its own cache."""

import torch
from _libraries import import_transformers
from _transformers import DECODER, LATENT_ATTENTION, build

import onnx_ci

GROUPED = {**DECODER, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ATTENTION, CONVOLUTION, STATE_SPACE = ("key", "value"), ("conv",), ("conv", "state")
GENERATORS = {
    "deepseek_v2": {**DECODER, **EXPERTS, **LATENT_ATTENTION, "head_dim": 8},
    "glm4": {**GROUPED, "head_dim": 8},
    "gpt_neox": GROUPED,
    "granite": GROUPED,
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention"]},
    "mamba2": {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 1,
        "chunk_size": 4,
    },
    "olmo2": GROUPED,
    "olmoe": {**GROUPED, **EXPERTS},
    "smollm3": {**GROUPED, "no_rope_layers": [1, 0]},
}
CACHES = {"lfm2": (CONVOLUTION, ATTENTION), "mamba2": (STATE_SPACE, STATE_SPACE)}
ONE_TOKEN = ["mamba2"]
"""Models whose exported step takes one token: they compute several in chunks, which the export fixes."""


def signature(case):
    """The inputs of a step, the cache that it returns, and the positions that follow from the cache."""
    layers = CACHES.get(case, (ATTENTION, ATTENTION))
    past = [f"past.{layer}.{part}" for layer, parts in enumerate(layers) for part in parts]
    present = [name.replace("past", "present") for name in past]
    tokens = ["input_ids"] if case in ONE_TOKEN else ["input_ids", "position_ids"]
    axes = dict.fromkeys(tokens, {0: "batch"} if case in ONE_TOKEN else {0: "batch", 1: "new"})
    axes |= {name: {0: "batch", 2: "past"} if name.endswith(ATTENTION) else {0: "batch"} for name in past}
    keys = [name for name in past if name.endswith("key")]

    def follow(step, inputs):
        batch, new = inputs["input_ids"].shape
        length = inputs[keys[0]].shape[2]
        return {"position_ids": torch.arange(length, length + new).repeat(batch, 1)}

    return {
        "input_names": [*tokens, *past],
        "output_names": ["logits", *present],
        "dynamic_axes": axes,
        "feedback": dict(zip(present, past, strict=True)),
        "steps": 4,
        **({"step_inputs": follow} if keys else {}),
    }


@onnx_ci.recipe(
    each={case: signature(case) for case in GENERATORS},
    exporter="transformers",
    opsets="18",
    tags=["transformers", "decoder", "cache"],
)
def generator(case):
    import_transformers()
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model
    from transformers.exporters.utils import decompose_for_generation

    model = build("AutoModelForCausalLM", case, GENERATORS[case])
    register_cache_pytrees_for_model(model)
    ids = torch.randint(5, 100, (2, 7))
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    module, arguments = decompose_for_generation(model, text, multi_token_decode=case not in ONE_TOKEN)["decode"]
    return module, (), dict(arguments)
