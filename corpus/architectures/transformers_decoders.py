"""Language models of transformers: over a whole text, and one step with a key-value cache that grows."""

import torch
from _libraries import import_transformers
from _transformers import DECODER, LATENT_ATTENTION, build, unsupported, wrong

import onnx_ci

GROUPED = {**DECODER, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GPT = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2}
LATENT = {**DECODER, **EXPERTS, **LATENT_ATTENTION}
DECODERS = {
    "biogpt": DECODER,
    "bitnet": GROUPED,
    "bloom": {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
    "codegen": {**GPT, "rotary_dim": 4},
    "cohere2": {**GROUPED, "sliding_window": 4},
    "ctrl": {"vocab_size": 100, "n_embd": 32, "dff": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "deepseek_v3": LATENT,
    "falcon": {**DECODER, "alibi": False},
    "falcon_h1": {
        **GROUPED,
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_chunk_size": 4,
    },
    "gemma2": {**GROUPED, "head_dim": 8, "sliding_window": 4},
    "gemma3_text": {**GROUPED, "head_dim": 8, "sliding_window": 4},
    "gpt2": GPT,
    "gpt_neo": {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_oss": {**GROUPED, **EXPERTS, "head_dim": 8, "sliding_window": 4},
    "jetmoe": {**GROUPED, **EXPERTS, "kv_channels": 8},
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention"]},
    "llama": GROUPED,
    "mamba": {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
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
    "mistral": {**GROUPED, "sliding_window": 4},
    "mixtral": {**GROUPED, **EXPERTS},
    "mpt": {"vocab_size": 100, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "opt": {**DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi": GROUPED,
    "phi3": GROUPED,
    "qwen2_moe": {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": {**GROUPED, "head_dim": 8},
    "qwen3_next": {
        **GROUPED,
        **EXPERTS,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "recurrent_gemma": {
        **DECODER,
        "lru_width": 32,
        "num_key_value_heads": 1,
        "attention_window_size": 8,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv": {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "context_length": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "stablelm": GROUPED,
}
WITH_CACHE = ["bloom", "gpt2", "llama", "opt", "phi3", "qwen3"]

EXPERTS_UNSUPPORTED = {
    "expect": {
        "torchscript": unsupported("aten::histc, which counts the tokens of each expert"),
        "dynamo": unsupported("the grouped matrix product of the experts"),
    }
}
NO_TRANSPOSE = "a transpose of the last two axes is written with a negative axis"
STATE_SPACE = {
    "expect": {
        "torchscript": [wrong("checker", NO_TRANSPOSE), wrong("load-error", NO_TRANSPOSE)],
        "dynamo": wrong("baked-shape", "the padding of the text to whole chunks is computed for the length of the example"),
    }
}
ROUTED = "the tokens are sent to experts through Python lists, which are traced"
UNROLLED = "a loop over the tokens is unrolled for the length of the example"
STATIC_LENGTH = wrong("export-error", "torch.export infers from a loop over the tokens that the length is static")
KNOWN = {
    "cohere2": {
        "expect": {"torchscript": wrong("run-error", "a reshape has the number of heads from before the text was split")}
    },
    "deepseek_v3": EXPERTS_UNSUPPORTED,
    "falcon_h1": STATE_SPACE,
    "gpt_oss": EXPERTS_UNSUPPORTED,
    "jetmoe": {
        "expect": {
            "torchscript": [wrong("numeric-drift", ROUTED), wrong("baked-shape", ROUTED)],
        }
    },
    "mamba": {
        "expect": {
            "torchscript": wrong("baked-shape", UNROLLED),
            "dynamo": STATIC_LENGTH,
        }
    },
    "mamba2": STATE_SPACE,
    "mixtral": EXPERTS_UNSUPPORTED,
    "qwen2_moe": EXPERTS_UNSUPPORTED,
    "qwen3_next": {
        "expect": {
            "torchscript": unsupported("aten::linalg_solve_triangular"),
            "dynamo": unsupported("the grouped matrix product of the experts"),
        }
    },
    "recurrent_gemma": {
        "expect": {
            "torchscript": [wrong("baked-value", UNROLLED), wrong("baked-shape", UNROLLED)],
            "dynamo": STATIC_LENGTH,
        }
    },
    "rwkv": {
        "expect": {
            "torchscript": [wrong("baked-value", UNROLLED), wrong("baked-shape", UNROLLED)],
            "dynamo": STATIC_LENGTH,
        }
    },
}
"""What is known to fail over a whole text, by case."""

KNOWN_WITH_CACHE = {}
"""What is known to fail in a step, by case."""


TEXT = {0: "batch", 1: "length"}
NO_MASK = ["rwkv"]


def right_padded(sizes, generator):
    """Masks of texts that are padded at the end, by less than a window of attention.

    Where attention and the mask leave a token nothing to see, exporters and PyTorch differ, but such a token is padding.
    """
    padding = torch.randint(0, 4, (sizes["batch"], 1), generator=generator)
    return (torch.arange(sizes["length"]) < (sizes["length"] - padding).clamp(min=1)).long()


def text_signature(case):
    """A text, and its mask if the model regards it."""
    names = ["input_ids"] if case in NO_MASK else ["input_ids", "attention_mask"]
    masks = {} if case in NO_MASK else {"inputs": {"attention_mask": right_padded}}
    return {"input_names": names, "dynamic_axes": dict.fromkeys((*names, "logits"), TEXT), **masks}


@onnx_ci.recipe(
    each={case: text_signature(case) | KNOWN.get(case, {}) for case in DECODERS},
    output_names=["logits"],
    tags=["transformers", "decoder"],
)
def decoder(case):
    names = text_signature(case)["input_names"]
    model = onnx_ci.adapt(
        build("AutoModelForCausalLM", case, DECODERS[case]), inputs=names, outputs=["logits"], fixed={"use_cache": False}
    )
    ids, mask = torch.randint(5, 100, (2, 8)), torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    return model, (ids, mask)[: len(names)]


LAYERS = ("0.key", "0.value", "1.key", "1.value")
PAST, PRESENT = [f"past.{each}" for each in LAYERS], [f"present.{each}" for each in LAYERS]
NEW_TOKENS = {0: "batch", 1: "new"}
ALIBI = ["bloom"]
"""Models whose attention depends on distances, so that they take no positions."""


def signature(case):
    """The inputs of a step: the new tokens, the mask and the positions that belong to them, and the cache."""
    positions = [] if case in ALIBI else ["position_ids"]
    axes = dict.fromkeys(("input_ids", *positions, "logits"), NEW_TOKENS)
    axes |= {"attention_mask": {0: "batch", 1: "total"}}
    axes |= {name: {0: "batch", 2: "past"} for name in PAST} | {name: {0: "batch", 2: "total"} for name in PRESENT}
    return {"input_names": ["input_ids", "attention_mask", *positions, *PAST], "dynamic_axes": axes}


def follow(step, inputs):
    """The mask and the positions that belong to the length of the cache."""
    batch, new = inputs["input_ids"].shape
    past, mask = inputs["past.0.key"].shape[2], inputs["attention_mask"]
    made = {"attention_mask": torch.nn.functional.pad(mask, (0, past + new - mask.shape[1]), value=1)}
    if "position_ids" in inputs:
        made["position_ids"] = torch.arange(past, past + new).repeat(batch, 1)
    return made


@onnx_ci.recipe(
    each={case: signature(case) | KNOWN_WITH_CACHE.get(case, {}) for case in WITH_CACHE},
    output_names=["logits", *PRESENT],
    feedback=dict(zip(PRESENT, PAST, strict=True)),
    steps=3,
    step_inputs=follow,
    tags=["transformers", "decoder", "cache"],
)
def decoder_with_cache(case):
    transformers = import_transformers()
    model = build("AutoModelForCausalLM", case, DECODERS[case])
    config = model.config

    def to_forward(input_ids, attention_mask, *rest):
        past = rest[-len(LAYERS) :]
        positions = {} if case in ALIBI else {"position_ids": rest[0]}
        cache = transformers.DynamicCache([past[:2], past[2:]])
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            **positions,
            "past_key_values": cache,
            "use_cache": True,
        }

    def to_outputs(made):
        return made.logits, *((layer.keys, layer.values) for layer in made.past_key_values.layers)

    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    mask = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])  # padded on the left, as for generation
    positions = [] if case in ALIBI else [torch.tensor([[6, 7], [3, 4]])]
    past = torch.randn(len(LAYERS), 2, heads, 6, size)
    model = onnx_ci.adapt(model, inputs=to_forward, outputs=to_outputs)
    return model, (torch.randint(5, 100, (2, 2)), mask, *positions, *past)
