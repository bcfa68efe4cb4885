"""Audio models of torchaudio, and encoders, codecs and vocoders for audio of transformers."""

import functools

import _known
import torch
from _libraries import import_torchaudio, import_transformers
from _transformers import build

import onnx_ci

FRAMES = {0: "batch", 1: "frames"}
SEEN = "torch 2.13.0, torchaudio 2.11.0, transformers 5.23.0"

wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
NOT_CONTIGUOUS = wrong("export-error", _known.NOT_CONTIGUOUS)
PADDED = wrong("baked-shape", "the padding of the waveform to whole frames is computed for the length of the example")
KNOWN = {
    "encodec": {
        "expect": {"dynamo": wrong("export-error", "a branch compares a tensor that holds the number of padded samples")}
    },
    "mimi": {
        "expect": {
            "torchscript": onnx_ci.unsupported("aten::diff", seen=SEEN),
            "dynamo": wrong("export-error", "a branch compares tensors that hold numbers of padded samples"),
        }
    },
    "wav2vec2-conformer": {"expect": {"dynamo": NOT_CONTIGUOUS}},
}
"""What is known to fail, by case."""


@onnx_ci.recipe(
    input_names=["frames", "lengths"],
    output_names=["encoded", "encoded_lengths"],
    dynamic_axes={"frames": FRAMES, "lengths": {0: "batch"}, "encoded": FRAMES, "encoded_lengths": {0: "batch"}},
    inputs={"lengths": onnx_ci.lengths(of="frames")},  # one of them is the number of frames
    expect={"torchscript": wrong("baked-shape", "attention is traced for the number of frames of the example")},
    tags=["torchaudio", "audio"],
)
def conformer():
    model = import_torchaudio().models.Conformer(
        input_dim=16, num_heads=2, ffn_dim=32, num_layers=2, depthwise_conv_kernel_size=7
    )
    return model, (torch.randn(2, 12, 16), torch.tensor([12, 9]))


@onnx_ci.recipe(
    input_names=["waveform"],
    output_names=["sources"],
    dynamic_axes={"waveform": {0: "batch", 2: "time"}, "sources": {0: "batch", 2: "time"}},
    expect={"torchscript": PADDED, "dynamo": PADDED},
    tags=["torchaudio", "audio"],
)
def conv_tasnet():
    model = import_torchaudio().models.ConvTasNet(
        num_sources=2, enc_num_feats=32, msk_num_feats=16, msk_num_hidden_feats=32, msk_num_layers=2, msk_num_stacks=2
    )
    return model, (torch.randn(2, 1, 400),)


@onnx_ci.recipe(
    input_names=["features"],
    output_names=["log_probabilities"],
    dynamic_axes={"features": {0: "batch", 2: "frames"}, "log_probabilities": FRAMES},
    expect={"dynamo": wrong("export-error", "torch.export infers that the number of frames into an RNN is static")},
    tags=["torchaudio", "audio"],
)
def deepspeech():
    return import_torchaudio().models.DeepSpeech(n_feature=16, n_hidden=32, n_class=10), (torch.randn(2, 1, 12, 16),)


@onnx_ci.recipe(
    input_names=["frames", "lengths"],
    output_names=["encoded", "encoded_lengths"],
    dynamic_axes={"frames": {0: "batch"}, "lengths": {0: "batch"}, "encoded": {0: "batch"}, "encoded_lengths": {0: "batch"}},
    tags=["torchaudio", "audio"],
)
def emformer():
    model = import_torchaudio().models.Emformer(
        input_dim=16, num_heads=2, ffn_dim=32, num_layers=2, segment_length=4, right_context_length=1
    )
    return model, (torch.randn(2, 13, 16), torch.tensor([13, 10]))


@onnx_ci.recipe(
    input_names=["waveform"],
    output_names=["sources"],
    dynamic_axes={"waveform": {0: "batch", 2: "time"}, "sources": {0: "batch", 3: "time"}},
    expect={
        "torchscript": wrong("export-error", "its Fourier transform has complex values"),
        "dynamo": onnx_ci.unsupported("padding of complex values", seen=SEEN),
    },
    tags=["torchaudio", "audio"],
)
def hybrid_demucs():
    model = import_torchaudio().models.HDemucs(sources=["voice", "rest"], channels=8, depth=4, nfft=256, norm_starts=3)
    return model, (torch.randn(2, 2, 2048),)


@onnx_ci.recipe(
    input_names=["sources", "source_lengths", "targets", "target_lengths"],
    output_names=["joint", "joint_source_lengths", "joint_target_lengths"],
    dynamic_axes={
        "sources": {0: "batch"},
        "source_lengths": {0: "batch"},
        "targets": {0: "batch", 1: "tokens"},
        "target_lengths": {0: "batch"},
        "joint": {0: "batch"},
    },
    expect={
        "torchscript": wrong("baked-shape", "an LSTM written in Python is unrolled for the number of tokens of the example"),
        "dynamo": wrong("export-error", "the length of the source mask is a value, the largest of the lengths"),
    },
    tags=["torchaudio", "audio"],
)
def rnn_transducer():
    torchaudio = import_torchaudio()
    model = torchaudio.models.emformer_rnnt_model(
        input_dim=16,
        encoding_dim=32,
        num_symbols=20,
        segment_length=16,
        right_context_length=4,
        time_reduction_input_dim=16,
        time_reduction_stride=4,
        transformer_num_heads=2,
        transformer_ffn_dim=32,
        transformer_num_layers=2,
        transformer_dropout=0.0,
        transformer_activation="gelu",
        transformer_left_context_length=8,
        transformer_max_memory_size=0,
        transformer_weight_init_scale_strategy="depthwise",
        transformer_tanh_on_mem=True,
        symbol_embedding_dim=16,
        num_lstm_layers=1,
        lstm_layer_norm=True,
        lstm_layer_norm_epsilon=1e-3,
        lstm_dropout=0.0,
    )
    lengths = torch.tensor([36, 28], dtype=torch.int32), torch.tensor([5, 4], dtype=torch.int32)
    targets = torch.randint(0, 20, (2, 5), dtype=torch.int32)
    model = onnx_ci.adapt(model, outputs=lambda made: made[:3])
    return model, (torch.randn(2, 36, 16), lengths[0], targets, lengths[1])


@onnx_ci.recipe(
    input_names=["waveform"],
    output_names=["scores"],
    dynamic_axes={"waveform": {0: "batch", 1: "time"}},
    expect={"torchscript": wrong("baked-shape", "attention between chunks is traced for the number of chunks of the example")},
    tags=["torchaudio", "audio"],
)
def squim_objective():
    model = import_torchaudio().models.squim_objective_model(
        feat_dim=32, win_len=16, d_model=16, nhead=2, hidden_dim=16, num_blocks=1, rnn_type="LSTM", chunk_size=7
    )
    return onnx_ci.adapt(model, outputs=lambda made: torch.stack(made)), (torch.randn(2, 800),)


@onnx_ci.recipe(
    input_names=["tokens", "token_lengths", "mel", "mel_lengths"],
    output_names=["mel_before", "mel_after", "stop", "alignments"],
    dynamic_axes={
        "tokens": {0: "batch", 1: "tokens"},
        "token_lengths": {0: "batch"},
        "mel": {0: "batch", 2: "frames"},
        "mel_lengths": {0: "batch"},
        "mel_before": {0: "batch", 2: "frames"},
        "mel_after": {0: "batch", 2: "frames"},
        "stop": {0: "batch", 1: "frames"},
        "alignments": {0: "batch", 1: "frames", 2: "tokens"},
    },
    inputs={"token_lengths": onnx_ci.lengths(of="tokens"), "mel_lengths": onnx_ci.lengths(of="frames")},
    nondeterministic=True,  # dropout in its prenet is a part of the model
    expect={
        "torchscript": onnx_ci.unsupported("unsafe_chunk of an axis of unknown size, in the cell of an LSTM", seen=SEEN),
        "dynamo": wrong("export-error", "the size of a mask is a value, the largest of the lengths"),
    },
    tags=["torchaudio", "audio"],
)
def tacotron2():
    model = import_torchaudio().models.Tacotron2(
        n_mels=8,
        n_symbol=20,
        symbol_embedding_dim=16,
        encoder_embedding_dim=16,
        encoder_n_convolution=2,
        decoder_rnn_dim=16,
        prenet_dim=16,
        attention_rnn_dim=16,
        attention_hidden_dim=16,
        attention_location_n_filter=4,
        attention_location_kernel_size=5,
        postnet_n_convolution=2,
        postnet_embedding_dim=16,
    )
    return model, (torch.randint(0, 20, (2, 6)), torch.tensor([6, 4]), torch.randn(2, 8, 5), torch.tensor([5, 4]))


def waveform_options(layer_norm):
    """Two layers of a wav2vec 2.0 encoder with a classifier."""
    return {
        "extractor_mode": "layer_norm" if layer_norm else "group_norm",
        "extractor_conv_layer_config": [(16, 10, 5), (16, 3, 2), (16, 3, 2)],
        "extractor_conv_bias": False,
        "encoder_embed_dim": 32,
        "encoder_projection_dropout": 0.0,
        "encoder_pos_conv_kernel": 8,
        "encoder_pos_conv_groups": 2,
        "encoder_num_layers": 2,
        "encoder_num_heads": 2,
        "encoder_attention_dropout": 0.0,
        "encoder_ff_interm_features": 32,
        "encoder_ff_interm_dropout": 0.0,
        "encoder_dropout": 0.0,
        "encoder_layer_norm_first": layer_norm,
        "encoder_layer_drop": 0.0,
        "aux_num_out": 10,
    }


@onnx_ci.recipe(
    input_names=["waveform", "lengths"],
    output_names=["features", "feature_lengths"],
    dynamic_axes={
        "waveform": {0: "batch", 1: "time"},
        "lengths": {0: "batch"},
        "features": FRAMES,
        "feature_lengths": {0: "batch"},
    },
    each={"wav2vec2": {}, "wav2vec2_layer_norm": {}},
    expect={"torchscript": wrong("run-error", "x[mask] = 0 is written as Where over a mask that lacks the last axis")},
    tags=["torchaudio", "audio"],
)
def waveform_encoder(case):
    model = import_torchaudio().models.wav2vec2_model(**waveform_options(layer_norm=case.endswith("norm")))
    return model, (torch.randn(2, 800), torch.tensor([800, 600]))


@onnx_ci.recipe(
    input_names=["waveform"],
    output_names=["features"],
    dynamic_axes={"waveform": {0: "batch", 1: "time"}, "features": FRAMES},
    expect={"dynamo": NOT_CONTIGUOUS},
    tags=["torchaudio", "audio"],
)
def waveform_encoder_wavlm():
    options = waveform_options(layer_norm=False)
    model = import_torchaudio().models.wavlm_model(**options, encoder_num_buckets=16, encoder_max_distance=32)
    return onnx_ci.adapt(model, outputs=lambda made: made[0]), (torch.randn(2, 800),)


@onnx_ci.recipe(
    input_names=["features"],
    output_names=["log_probabilities"],
    dynamic_axes={"features": {0: "batch", 2: "frames"}, "log_probabilities": {0: "batch", 2: "outputs"}},
    tags=["torchaudio", "audio"],
)
def wav2letter():
    return import_torchaudio().models.Wav2Letter(num_classes=10, input_type="mfcc", num_features=8), (torch.randn(1, 8, 64),)


@onnx_ci.recipe(
    input_names=["waveform", "mel"],
    output_names=["logits"],
    dynamic_axes={"waveform": {0: "batch"}, "mel": {0: "batch"}, "logits": {0: "batch"}},
    expect={
        "torchscript": [
            wrong("checker", "an Unsqueeze has an axis beyond the rank of its input"),
            wrong("load-error", "an Unsqueeze has an axis beyond the rank of its input"),
        ]
    },
    tags=["torchaudio", "audio"],
)
def wavernn():
    model = import_torchaudio().models.WaveRNN(
        upsample_scales=[2, 2, 2],
        n_classes=16,
        hop_length=8,
        n_res_block=1,
        n_rnn=16,
        n_fc=16,
        kernel_size=5,
        n_freq=8,
        n_hidden=16,
        n_output=16,
    )
    return model, (torch.randn(2, 1, 48), torch.randn(2, 1, 8, 10))


SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 20,
    "layerdrop": 0.0,
}
SPEECH_ENCODERS = {
    "data2vec-audio": {**SPEECH, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3},
    "hubert": SPEECH,
    "sew": {**SPEECH, "squeeze_factor": 2},
    "sew-d": {**SPEECH, "squeeze_factor": 2, "max_position_embeddings": 64, "position_buckets": 8},
    "unispeech": SPEECH,
    "unispeech-sat": SPEECH,
    "wav2vec2": SPEECH,
    "wav2vec2-conformer": {**SPEECH, "conv_depthwise_kernel_size": 7},
    "wavlm": {**SPEECH, "num_buckets": 16, "max_bucket_distance": 32},
}


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in SPEECH_ENCODERS},
    input_names=["input_values"],
    output_names=["last_hidden_state"],
    dynamic_axes={"input_values": {0: "batch", 1: "time"}, "last_hidden_state": FRAMES},
    tags=["transformers", "audio"],
)
def speech_encoder(case):
    model = onnx_ci.adapt(
        build("AutoModel", case, SPEECH_ENCODERS[case]), inputs=["input_values"], outputs=["last_hidden_state"]
    )
    return model, (torch.randn(2, 800),)


@onnx_ci.recipe(
    input_names=["input_features", "attention_mask"],
    output_names=["last_hidden_state"],
    dynamic_axes=dict.fromkeys(("input_features", "attention_mask", "last_hidden_state"), FRAMES),
    expect={"dynamo": NOT_CONTIGUOUS},
    tags=["transformers", "audio"],
)
def speech_encoder_wav2vec2_bert():
    options = {**SPEECH, "feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 7}
    model = build("AutoModel", "wav2vec2-bert", options)
    mask = torch.tensor([[1] * 20, [1] * 15 + [0] * 5])
    model = onnx_ci.adapt(model, inputs=["input_features", "attention_mask"], outputs=["last_hidden_state"])
    return model, (torch.randn(2, 20, 16), mask)


@onnx_ci.recipe(
    input_names=["input_values"],
    output_names=["last_hidden_state"],
    dynamic_axes={"input_values": {0: "batch"}, "last_hidden_state": {0: "batch"}},
    tags=["transformers", "audio"],
)
def audio_spectrogram_transformer():
    options = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_length": 32,
        "num_mel_bins": 16,
        "patch_size": 8,
        "frequency_stride": 4,
        "time_stride": 4,
    }
    model = build("AutoModel", "audio-spectrogram-transformer", options)
    return onnx_ci.adapt(model, inputs=["input_values"], outputs=["last_hidden_state"]), (torch.randn(2, 32, 16),)


CODECS = {
    "dac": {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 4],
        "decoder_hidden_size": 32,
        "n_codebooks": 2,
        "codebook_size": 16,
        "codebook_dim": 4,
    },
    "encodec": {
        "sampling_rate": 800,
        "num_filters": 8,
        "hidden_size": 32,
        "num_lstm_layers": 1,
        "upsampling_ratios": [4, 2],
        "codebook_size": 16,
        "codebook_dim": 32,
        "target_bandwidths": [1.6],
    },
    "mimi": {
        "upsample_groups": 32,
        "num_filters": 8,
        "hidden_size": 32,
        "upsampling_ratios": [4, 2],
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 32,
        "codebook_size": 16,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 4,
        "num_semantic_quantizers": 1,
    },
}


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in CODECS},
    input_names=["waveform"],
    output_names=["audio_codes"],
    dynamic_axes={"waveform": {0: "batch", 2: "time"}},
    dynamic_sizes={"time": range(320, 6401)},  # a few samples are not audio
    tags=["transformers", "audio", "codec"],
)
def codec_encoder(case):
    model = build("AutoModel", case, CODECS[case])
    for name, buffer in model.named_buffers():
        if name.endswith((".embed_sum", ".embed")):  # of an untrained Mimi or EnCodec, every code is zero
            torch.nn.init.normal_(buffer)

    class Encode(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, waveform):
            return self.model.encode(waveform).audio_codes

    return Encode(), (torch.randn(2, 1, 640),)


@onnx_ci.recipe(
    input_names=["spectrogram"],
    output_names=["waveform"],
    dynamic_axes={"spectrogram": FRAMES, "waveform": {0: "batch", 1: "time"}},
    tags=["transformers", "audio"],
)
def hifigan():
    transformers = import_transformers()
    config = transformers.SpeechT5HifiGanConfig(
        model_in_dim=8,
        upsample_initial_channel=16,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    )
    return transformers.SpeechT5HifiGan(config), (torch.randn(2, 12, 8),)
