"""Encoder-decoders of transformers: a source text, or audio, and a target text. Without caches."""

import _known
import torch
from _transformers import WINDOW, build, unsupported, wrong

import onnx_ci

IDS = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
LAYERS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
BART = {**IDS, **LAYERS, "max_position_embeddings": 64}
T5 = {**IDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
TEXT_TO_TEXT = {
    "bart": BART,
    "bigbird_pegasus": {**BART, "attention_type": "original_full"},
    "fsmt": {**LAYERS, "src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["en", "de"], "max_position_embeddings": 64},
    "led": {
        **IDS,
        **LAYERS,
        "attention_window": 4,
        "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": 64,
    },
    "longt5": {**T5, "local_radius": 3},
    "m2m_100": BART,
    "marian": BART,
    "nllb-moe": {**BART, "num_experts": 4, "expert_capacity": 16},
    "pegasus": BART,
    "pegasus_x": {**BART, "block_size": 4, "num_global_tokens": 2},
    "prophetnet": {
        **IDS,
        "hidden_size": 32,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 64,
    },
    "switch_transformers": {
        **T5,
        "num_experts": 4,
        "expert_capacity": 16,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
    },
    "t5": T5,
    "umt5": T5,
}
AUDIO_TO_TEXT = {
    "moonshine": (
        {
            **IDS,
            "hidden_size": 32,
            "intermediate_size": 64,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
        },
        "input_values",
        (2, 2000),
    ),
    "speech_to_text": (
        {**BART, "input_feat_per_channel": 16, "conv_channels": 32, "max_source_positions": 128, "max_target_positions": 64},
        "input_features",
        (2, 40, 16),
    ),
    "whisper": (
        {**IDS, **LAYERS, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64},
        "input_features",
        (2, 16, 64),
    ),
}

NOT_CONTIGUOUS = wrong("export-error", _known.NOT_CONTIGUOUS)
BLOCKS = "the padding of the source to whole blocks is computed for the length of the example"
LENGTHS = {"source": range(1, 65), "target": range(1, 65)}
"""What the tables of positions have rows for. In Python the model makes a longer table for a longer text."""
OWN = {
    "fsmt": {
        "dynamic_sizes": LENGTHS,
        # It looks for padding in the target and masks it there, which no text changes whose padding is at its end.
        "inputs": {"decoder_input_ids": onnx_ci.integers(2, 100)},
        "allow": "untaken-branch",
        "expect": {"dynamo": wrong("export-error", "a branch depends on values of the target")},
    },
    "led": {
        "expect": {
            "torchscript": [
                wrong("numeric-drift", WINDOW),
                wrong("baked-shape", "the padding to whole windows is computed for the length of the example"),
            ],
            "dynamo": wrong("export-error", "the size of a tensor depends on the number of tokens with global attention"),
        }
    },
    "longt5": {"expect": {"torchscript": wrong("baked-shape", BLOCKS), "dynamo": wrong("baked-shape", BLOCKS)}},
    "m2m_100": {"dynamic_sizes": LENGTHS},
    "moonshine": {
        "expect": {"torchscript": wrong("export-error", "a concatenation in its rotary embedding has inputs of unknown rank")}
    },
    "nllb-moe": {"dynamic_sizes": LENGTHS},
    "pegasus_x": {"expect": {"torchscript": wrong("baked-shape", BLOCKS), "dynamo": wrong("baked-shape", BLOCKS)}},
    "prophetnet": {
        "expect": {
            "dynamo": wrong(
                "export-error", "dynamo finds no overload of aten.sub for its arguments when it decomposes the graph"
            )
        }
    },
    "speech_to_text": {"dynamic_sizes": {"target": LENGTHS["target"]}},
    "switch_transformers": {
        "expect": {
            "torchscript": wrong("baked-shape", "the file has as many tokens for each expert as the example"),
            "dynamo": wrong("export-error", "torch.export cannot replace the weight of the router, which is cast in forward"),
        }
    },
    "t5": {"expect": {"dynamo": NOT_CONTIGUOUS}},
    "umt5": {"expect": {"dynamo": NOT_CONTIGUOUS}},
    "whisper": {"expect": {"torchscript": unsupported("aten::diff")}},
}
"""What one case has of its own: limits of its sizes, and what is known to fail."""


SOURCE, TARGET = {0: "batch", 1: "source"}, {0: "batch", 1: "target"}


@onnx_ci.recipe(
    each={case: OWN.get(case, {}) for case in TEXT_TO_TEXT},
    input_names=["input_ids", "attention_mask", "decoder_input_ids"],
    output_names=["logits"],
    dynamic_axes={"input_ids": SOURCE, "attention_mask": SOURCE, "decoder_input_ids": TARGET, "logits": TARGET},
    tags=["transformers", "seq2seq"],
)
def text_to_text(case):
    model = onnx_ci.adapt(
        build("AutoModelForSeq2SeqLM", case, TEXT_TO_TEXT[case]),
        inputs=["input_ids", "attention_mask", "decoder_input_ids"],
        outputs=["logits"],
        fixed={"use_cache": False},
    )
    source, mask = torch.randint(5, 100, (2, 8)), torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    return model, (source, mask, torch.randint(5, 100, (2, 6)))


@onnx_ci.recipe(
    each={case: OWN.get(case, {}) for case in AUDIO_TO_TEXT},
    input_names=["audio", "decoder_input_ids"],
    output_names=["logits"],
    dynamic_axes={"audio": {0: "batch"}, "decoder_input_ids": TARGET, "logits": TARGET},
    tags=["transformers", "seq2seq", "audio"],
)
def audio_to_text(case):
    options, audio, shape = AUDIO_TO_TEXT[case]
    model = onnx_ci.adapt(
        build("AutoModelForSpeechSeq2Seq", case, options),
        inputs=[audio, "decoder_input_ids"],
        outputs=["logits"],
        fixed={"use_cache": False},
    )
    return model, (torch.randn(*shape), torch.randint(5, 100, (2, 6)))
