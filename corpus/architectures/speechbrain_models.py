"""Speech models of SpeechBrain, and the codec EnCodec, with few and narrow layers."""

import functools

import torch
from _libraries import import_after_torchvision

import onnx_ci

SEEN = "torch 2.13.0, speechbrain 1.1.2"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
INITIAL = "torch.export fixes the number of frames into a recurrent layer, and the file is wrong there"
FIXED = {"expect": {"dynamo": [wrong("checker", INITIAL), wrong("static-axis", INITIAL), wrong("load-error", INITIAL)]}}
KNOWN = {
    "crdnn_gru": FIXED,
    "crdnn_ligru": {
        "expect": {
            "torchscript": [
                wrong("baked-shape", "a recurrent layer written in Python is unrolled for the frames of the example"),
                wrong("shape-mismatch", "a recurrent layer written in Python is unrolled for the frames of the example"),
            ],
            "dynamo": wrong("export-error", "a recurrent layer written in Python makes the number of frames static"),
        }
    },
    "crdnn_lstm": FIXED,
    "ecapa_tdnn": {
        "expect": {
            "torchscript": [
                wrong("baked-shape", "the number of rows of a mask is len() of a tensor, the example's"),
                wrong("shape-mismatch", "an axis of size 1 gets the name of the batch"),
            ]
        }
    },
    "xvector": {
        "expect": {"dynamo": wrong("export-error", "torch.export cannot name the parameters of blocks that share a module")},
        "nondeterministic": True,  # the statistics that it pools get noise
    },
}
"""What is known to fail, by case."""

FRAMES = {0: "batch", 1: "frames"}
EMBEDDINGS = {
    "ecapa_tdnn": (
        "ECAPA_TDNN.ECAPA_TDNN",
        {
            "input_size": 16,
            "channels": [16, 16, 16, 16, 48],
            "attention_channels": 8,
            "res2net_scale": 4,
            "se_channels": 8,
            "lin_neurons": 12,
        },
    ),
    "resnet": ("ResNet.ResNet", {"input_size": 16, "channels": [8, 8, 16, 16], "block_sizes": [1, 1, 1, 1], "lin_neurons": 12}),
    "xvector": ("Xvector.Xvector", {"in_channels": 16, "tdnn_channels": [16, 16, 16, 16, 32], "lin_neurons": 12}),
}


def build(name, options):
    module, _, attribute = name.rpartition(".")
    return getattr(import_after_torchvision(f"speechbrain.lobes.models.{module}"), attribute)(**options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in EMBEDDINGS},
    input_names=["features"],
    output_names=["embedding"],
    dynamic_axes={"features": FRAMES, "embedding": {0: "batch"}},
    tags=["speechbrain", "audio"],
)
def speaker_embedding(case):
    return build(*EMBEDDINGS[case]), (torch.randn(2, 24, 16),)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("crdnn_gru", "crdnn_ligru", "crdnn_lstm")},
    input_names=["features"],
    output_names=["encoded"],
    dynamic_axes={"features": FRAMES, "encoded": FRAMES},
    tags=["speechbrain", "audio"],
)
def recognizer(case):
    networks = import_after_torchvision("speechbrain.nnet.RNN")
    options = {
        "input_shape": (None, None, 16),
        "cnn_blocks": 1,
        "cnn_channels": [8],
        "rnn_class": {"gru": networks.GRU, "ligru": networks.LiGRU, "lstm": networks.LSTM}[case.partition("_")[2]],
        "rnn_layers": 1,
        "rnn_neurons": 8,
        "inter_layer_pooling_size": [2],
        "dnn_blocks": 1,
        "dnn_neurons": 8,
    }
    return build("CRDNN.CRDNN", options), (torch.randn(2, 12, 16),)


@onnx_ci.recipe(
    each={case: {} for case in ("branchformer", "conformer", "transformer")},
    input_names=["features", "tokens"],
    output_names=["encoded", "decoded"],
    dynamic_axes={
        "features": FRAMES,
        "tokens": {0: "batch", 1: "tokens"},
        "encoded": FRAMES,
        "decoded": {0: "batch", 1: "tokens"},
    },
    inputs={"tokens": onnx_ci.integers(1, 20)},  # 0 is padding
    tags=["speechbrain", "audio"],
)
def speech_transformer(case):
    options = {
        "tgt_vocab": 20,
        "input_size": 16,
        "d_model": 16,
        "nhead": 2,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_ffn": 16,
        "kernel_size": 5,
        "csgu_linear_units": 16,
        "encoder_module": case,
        "attention_type": "regularMHA" if case == "transformer" else "RelPosMHAXL",
        "causal": False,
        "normalize_before": True,
        "max_length": 200,
    }
    model = build("transformer.TransformerASR.TransformerASR", options)
    model = onnx_ci.adapt(model, inputs=["src", "tgt"])  # TorchScript would make an input of another argument
    return model, (torch.randn(2, 12, 16), torch.randint(1, 20, (2, 5)))


@onnx_ci.recipe(
    input_names=["spectrogram"],
    output_names=["waveform"],
    dynamic_axes={"spectrogram": {0: "batch", 2: "frames"}, "waveform": {0: "batch", 2: "time"}},
    tags=["speechbrain", "audio"],
)
def speech_hifigan():
    options = {
        "in_channels": 8,
        "out_channels": 1,
        "resblock_type": "1",
        "resblock_dilation_sizes": [[1, 3, 5]],
        "resblock_kernel_sizes": [3],
        "upsample_kernel_sizes": [4, 4],
        "upsample_initial_channel": 16,
        "upsample_factors": [2, 2],
    }
    return build("HifiGAN.HifiganGenerator", options), (torch.randn(2, 8, 12),)


@onnx_ci.recipe(
    input_names=["mixture"],
    output_names=["masks"],
    dynamic_axes={"mixture": {0: "batch", 2: "frames"}, "masks": {1: "batch", 3: "frames"}},
    tags=["speechbrain", "audio"],
)
def dual_path_separator():
    module = import_after_torchvision("speechbrain.lobes.models.dual_path")
    blocks = [module.SBTransformerBlock(1, 16, 2, d_ffn=16, norm_before=True) for _ in range(2)]
    model = module.Dual_Path_Model(16, 16, *blocks, num_layers=1, norm="ln", K=8, num_spks=2)
    return model, (torch.randn(2, 16, 40),)


@onnx_ci.recipe(
    input_names=["waveform"],
    dynamic_axes={"waveform": {0: "batch", 2: "time"}},
    dynamic_sizes={"time": range(64, 2049, 16)},  # whole frames
    expect={"torchscript": wrong("baked-shape", "the padding of the waveform to whole frames is computed for its length")},
    tags=["encodec", "audio"],
)
def encodec():
    modules = import_after_torchvision("encodec.modules")
    quantization = import_after_torchvision("encodec.quantization")
    small = {"dimension": 16, "n_filters": 4, "ratios": [4, 4], "lstm": 1, "norm": "weight_norm"}
    with torch.no_grad():  # weights that weight_norm computes with a history cannot be copied
        encoder, decoder = modules.SEANetEncoder(**small), modules.SEANetDecoder(**small)
    quantizer = quantization.ResidualVectorQuantizer(dimension=16, n_q=2, bins=16, kmeans_init=False)

    class Codec(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder, self.quantizer = encoder, decoder, quantizer
            for layer in self.quantizer.vq.layers:
                torch.nn.init.normal_(layer._codebook.embed)  # without training data, all codes would be zero

        def forward(self, waveform):
            codes = self.quantizer.encode(self.encoder(waveform), 50)
            return codes, self.decoder(self.quantizer.decode(codes))

    return Codec(), (torch.randn(2, 1, 320),)
