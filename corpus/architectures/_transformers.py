"""What the recipes of transformers' models share."""

import functools

from _libraries import import_transformers

import onnx_ci

SEEN = "torch 2.13.0, transformers 5.23.0"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
unsupported = functools.partial(onnx_ci.unsupported, seen=SEEN)
SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
"""The configuration of a small model of text."""
DECODER = {**SMALL, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LATENT_ATTENTION = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
"""What DeepSeek's attention and experts need beside a decoder's."""
WINDOW = "the mask of the sliding window is written into views of the scores, which the trace does not follow"


def build(auto, case, options):
    """A model with random weights.

    Args:
        auto: the class that makes it, such as ``AutoModelForCausalLM``.
        case: the kind of its configuration, such as ``gpt2``.
        options: the configuration.
    """
    transformers = import_transformers()
    return getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(case, **options))
