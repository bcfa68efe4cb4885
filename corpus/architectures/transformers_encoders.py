"""Text encoders of transformers: two layers, a width of 32, and a batch in which one text is padded."""

import torch
from _libraries import import_transformers
from _transformers import SMALL, WINDOW, build, unsupported, wrong

import onnx_ci

XLM = {"vocab_size": 100, "emb_dim": 32, "n_layers": 2, "n_heads": 4}
ENCODERS = {
    "albert": {**SMALL, "embedding_size": 16},
    "bert": SMALL,
    "canine": {**SMALL, "num_hash_functions": 2, "num_hash_buckets": 64, "local_transformer_stride": 8, "downsampling_rate": 2},
    "convbert": {**SMALL, "embedding_size": 32},
    "deberta": {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16},
    "deberta-v2": {
        **SMALL,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    "distilbert": {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    "electra": {**SMALL, "embedding_size": 16},
    "esm": {**SMALL, "position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 2},
    "ibert": SMALL,
    "layoutlm": {**SMALL, "max_2d_position_embeddings": 64},
    "longformer": {**SMALL, "attention_window": [4, 4], "pad_token_id": 1},
    "megatron-bert": SMALL,
    "mobilebert": {**SMALL, "embedding_size": 32, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "modernbert": {
        **SMALL,
        "local_attention": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 3,
        "sep_token_id": 4,
    },
    "mpnet": SMALL,
    "nomic_bert": SMALL,
    "rembert": {**SMALL, "input_embedding_size": 16, "output_embedding_size": 16, "bos_token_id": 1, "eos_token_id": 2},
    "roberta": SMALL,
    "roformer": {**SMALL, "embedding_size": 32},
    "splinter": {**SMALL, "question_token_id": 99},
    "squeezebert": {**SMALL, "embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2},
    "tapas": SMALL,
    "xlm": XLM,
    "xlnet": {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "yoso": {**SMALL, "use_expectation": True},
}

KNOWN = {
    "canine": {
        "expect": {
            "torchscript": wrong("run-error", "an attention mask is traced before it is expanded to all heads"),
            "dynamo": wrong(
                "export-error", "torch.export infers from the downsampling of characters that the length is static"
            ),
        }
    },
    "deberta": {
        "expect": {"torchscript": wrong("baked-shape", "relative positions are clamped for the length of the example")}
    },
    "longformer": {
        "expect": {
            "torchscript": [
                wrong("numeric-drift", WINDOW),
                wrong("baked-shape", "the padding to whole windows is computed for the length of the example"),
            ],
            "dynamo": wrong("export-error", "the size of a tensor depends on the number of tokens with global attention"),
        }
    },
    "tapas": {
        "expect": {"torchscript": wrong("export-error", "scatter_reduce with include_self=False, which averages over cells")}
    },
    "xlnet": {
        "expect": {
            "dynamo": wrong(
                "export-error", "dynamo finds no overload of aten.sub for its arguments when it decomposes the graph"
            )
        }
    },
}
"""What is known to fail, by case."""


def padded_within_a_window(sizes, generator):
    """Masks that hide fewer tokens than a window of local attention sees: where it sees none, exporters and PyTorch differ."""
    padding = torch.randint(0, 4, (sizes["batch"], 1), generator=generator)
    return (torch.arange(sizes["length"]) < (sizes["length"] - padding).clamp(min=1)).long()


LOCAL = {"modernbert": {"inputs": {"attention_mask": padded_within_a_window}}}
"""What models with local attention get."""


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) | LOCAL.get(case, {}) for case in ENCODERS},
    input_names=["input_ids", "attention_mask"],
    output_names=["last_hidden_state"],
    dynamic_axes={name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask", "last_hidden_state")},
    tags=["transformers", "encoder"],
)
def encoder(case):
    model = onnx_ci.adapt(
        build("AutoModel", case, ENCODERS[case]), inputs=["input_ids", "attention_mask"], outputs=["last_hidden_state"]
    )
    ids, mask = torch.randint(5, 100, (2, 8)), torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    return model, (ids, mask)


@onnx_ci.recipe(
    input_names=["input_ids"],
    output_names=["last_hidden_state"],
    dynamic_axes={name: {0: "batch", 1: "length"} for name in ("input_ids", "last_hidden_state")},
    expect={"torchscript": unsupported("a Fourier transform (aten::fft_fftn)")},
    tags=["transformers", "encoder"],
)
def encoder_fnet():
    transformers = import_transformers()
    model = transformers.FNetModel(transformers.FNetConfig(**SMALL))
    return onnx_ci.adapt(model, inputs=["input_ids"], outputs=["last_hidden_state"]), (torch.randint(5, 100, (2, 8)),)
