"""Networks of diffusers: UNets, transformers that denoise, autoencoders for images, video and audio, and ControlNets."""

import functools

import torch
from _libraries import import_diffusers

import onnx_ci

LATENTS = {0: "batch", 2: "height", 3: "width"}
DIVISIBLE = dict.fromkeys(("height", "width"), onnx_ci.multiple_of(8))
"""The sizes of a network that reduces its input to an eighth of its size. Some take others, which a file does not."""

UNET = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
CONDITIONED = {**UNET, "cross_attention_dim": 16, "attention_head_dim": 4}

SEEN = "torch 2.13.0, diffusers 0.42.1"

wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
NO_RMS_NORM = onnx_ci.unsupported("aten::rms_norm", seen=SEEN)
NO_SQUEEZE = "squeeze(1) of an axis that is longer than one does nothing in PyTorch, and is an error in ONNX"
NO_TRANSPOSE = "a transpose of the last two axes is written with a negative axis"
AUTOENCODER_DC = {
    "expect": {
        "torchscript": [wrong("checker", NO_TRANSPOSE), wrong("load-error", NO_TRANSPOSE)],
        "dynamo": wrong("nonfinite-mismatch", "the 1e-15 that is added to a denominator is optimized away as if it were 0"),
    }
}
KNOWN = {
    "AutoencoderDC decoder": AUTOENCODER_DC,
    "AutoencoderDC encoder": AUTOENCODER_DC,
    "AutoencoderKLCogVideoX encoder": {
        "expect": {"dynamo": wrong("export-error", "a traced number of frames is used in control flow")}
    },
    "AutoencoderKLWan encoder": {
        "expect": {
            "torchscript": wrong("shape-mismatch", "shape inference takes the number of frames for the batch"),
        }
    },
    "FluxTransformer2DModel": {"expect": {"torchscript": NO_RMS_NORM}},
    "MochiTransformer3DModel": {
        "expect": {
            "torchscript": wrong("baked-shape", "a modulated norm is traced for the batch of the example"),
            "dynamo": wrong("export-error", "torch.export infers that the batch is static"),
        }
    },
    "PixArtTransformer2DModel": {
        "expect": {
            "torchscript": [wrong("checker", NO_SQUEEZE), wrong("load-error", NO_SQUEEZE)],
            "dynamo": [wrong("checker", NO_SQUEEZE), wrong("load-error", NO_SQUEEZE)],
        }
    },
    "WanTransformer3DModel": {"expect": {"torchscript": NO_RMS_NORM}},
}
"""What is known to fail, by case."""


def build(name, options):
    return getattr(import_diffusers(), name)(**options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("unet_2d", "unet_2d_attention")},
    input_names=["sample", "timestep"],
    output_names=["out_sample"],
    dynamic_axes={"sample": LATENTS, "timestep": {0: "batch"}, "out_sample": LATENTS},
    dynamic_sizes=DIVISIBLE,
    tags=["diffusers", "unet"],
)
def unconditional(case):
    blocks = ("AttnDownBlock2D", "AttnUpBlock2D") if case.endswith("attention") else ("DownBlock2D", "UpBlock2D")
    options = {**UNET, "down_block_types": ("DownBlock2D", blocks[0]), "up_block_types": (blocks[1], "UpBlock2D")}
    model = build("UNet2DModel", {**options, "attention_head_dim": 8})
    return onnx_ci.adapt(model, outputs=["sample"]), (torch.randn(2, 3, 16, 16), torch.tensor([3, 700]))


TEXT = {0: "batch", 1: "tokens"}


@onnx_ci.recipe(
    input_names=["sample", "timestep", "encoder_hidden_states"],
    output_names=["out_sample"],
    dynamic_axes={"sample": LATENTS, "timestep": {0: "batch"}, "encoder_hidden_states": TEXT, "out_sample": LATENTS},
    dynamic_sizes=DIVISIBLE,
    tags=["diffusers", "unet"],
    **KNOWN.get("unet_2d_condition", {}),
)
def unet_2d_condition():
    options = {
        **CONDITIONED,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    model = onnx_ci.adapt(build("UNet2DConditionModel", options), outputs=["sample"])
    return model, (torch.randn(2, 4, 16, 16), torch.tensor([3, 700]), torch.randn(2, 7, 16))


@onnx_ci.recipe(
    input_names=["sample", "timestep", "encoder_hidden_states", "text_embeds", "time_ids"],
    output_names=["out_sample"],
    dynamic_axes={
        "sample": LATENTS,
        "timestep": {0: "batch"},
        "encoder_hidden_states": TEXT,
        "text_embeds": {0: "batch"},
        "time_ids": {0: "batch"},
        "out_sample": LATENTS,
    },
    dynamic_sizes=DIVISIBLE,
    tags=["diffusers", "unet"],
    **KNOWN.get("unet_sdxl", {}),
)
def unet_sdxl():
    options = {
        **CONDITIONED,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 16 + 6 * 8,
    }
    model = onnx_ci.adapt(
        build("UNet2DConditionModel", options),
        inputs=lambda sample, timestep, states, text, time: {
            "sample": sample,
            "timestep": timestep,
            "encoder_hidden_states": states,
            "added_cond_kwargs": {"text_embeds": text, "time_ids": time},
        },
        outputs=["sample"],
    )
    time_ids = torch.tensor([[64.0, 64.0, 0.0, 0.0, 64.0, 64.0]] * 2)
    return model, (torch.randn(2, 4, 16, 16), torch.tensor([3, 700]), torch.randn(2, 7, 16), torch.randn(2, 16), time_ids)


@onnx_ci.recipe(
    input_names=["sample", "timestep"],
    output_names=["out_sample"],
    dynamic_axes={"sample": {0: "batch", 2: "time"}, "timestep": {0: "batch"}, "out_sample": {0: "batch", 2: "time"}},
    dynamic_sizes={"time": (16, 64)},
    tags=["diffusers", "unet"],
    **KNOWN.get("unet_1d", {}),
)
def unet_1d():
    options = {
        "block_out_channels": (16, 32),
        "in_channels": 4,
        "out_channels": 4,
        "extra_in_channels": 0,
        "norm_num_groups": 8,
        "time_embedding_type": "positional",
        "use_timestep_embedding": True,
        "out_block_type": "OutConv1DBlock",
        "act_fn": "swish",
        "down_block_types": ("DownResnetBlock1D", "DownResnetBlock1D"),
        "up_block_types": ("UpResnetBlock1D",),
        "mid_block_type": "MidResTemporalBlock1D",
        "flip_sin_to_cos": False,
        "freq_shift": 1,
    }
    return onnx_ci.adapt(build("UNet1DModel", options), outputs=["sample"]), (torch.randn(2, 4, 32), torch.tensor([3, 700]))


@onnx_ci.recipe(
    input_names=["sample", "timestep", "encoder_hidden_states"],
    output_names=["out_sample"],
    dynamic_axes={
        "sample": {0: "batch", 3: "height", 4: "width"},
        "timestep": {0: "batch"},
        "encoder_hidden_states": TEXT,
        "out_sample": {0: "batch", 3: "height", 4: "width"},
    },
    dynamic_sizes=DIVISIBLE,
    tags=["diffusers", "unet", "video"],
    **KNOWN.get("unet_3d_condition", {}),
)
def unet_3d_condition():
    options = {
        **CONDITIONED,
        "attention_head_dim": 8,
        "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
    }
    options["block_out_channels"] = (32, 64)
    model = onnx_ci.adapt(build("UNet3DConditionModel", options), outputs=["sample"])
    return model, (torch.randn(2, 4, 3, 16, 16), torch.tensor([3, 700]), torch.randn(2, 7, 16))


@onnx_ci.recipe(
    input_names=["sample", "timestep", "encoder_hidden_states", "controlnet_cond"],
    dynamic_axes={
        "sample": {0: "batch"},
        "timestep": {0: "batch"},
        "encoder_hidden_states": TEXT,
        "controlnet_cond": {0: "batch"},
    },
    tags=["diffusers", "controlnet"],
    **KNOWN.get("controlnet", {}),
)
def controlnet():
    options = {
        **CONDITIONED,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "conditioning_embedding_out_channels": (8, 16),
    }
    model = onnx_ci.adapt(build("ControlNetModel", options), outputs=["down_block_res_samples", "mid_block_res_sample"])
    inputs = torch.randn(2, 4, 16, 16), torch.tensor([3, 700]), torch.randn(2, 7, 16), torch.randn(2, 3, 32, 32)
    return model, inputs


BLOCKS = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16}
AUTOENCODERS = {
    "AsymmetricAutoencoderKL": {
        "down_block_out_channels": (16, 32),
        "up_block_out_channels": (16, 32),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 8,
    },
    "AutoencoderDC": {
        "encoder_block_out_channels": (16, 32),
        "decoder_block_out_channels": (16, 32),
        "encoder_layers_per_block": (1, 1),
        "decoder_layers_per_block": (1, 1),
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)),
        "decoder_norm_types": "rms_norm",
        "decoder_act_fns": "silu",
        "latent_channels": 4,
        "attention_head_dim": 8,
    },
    "AutoencoderKL": {
        "block_out_channels": (16, 32),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 8,
    },
    "AutoencoderKLFlux2": {
        "block_out_channels": (16, 32),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 8,
        "latent_channels": 4,
    },
    "AutoencoderTiny": {
        "encoder_block_out_channels": (16, 16),
        "decoder_block_out_channels": (16, 16),
        "num_encoder_blocks": (1, 1),
        "num_decoder_blocks": (1, 1),
    },
    "VQModel": {
        "block_out_channels": (16, 32),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 8,
        "num_vq_embeddings": 16,
    },
}


class Encoder(torch.nn.Module):
    """An image in, the moments of its latents, or the latents themselves, out."""

    def __init__(self, autoencoder):
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, image):
        made = self.autoencoder.encode(image)
        return made.latent_dist.parameters if hasattr(made, "latent_dist") else made[0]


class Decoder(torch.nn.Module):
    """Latents in, an image out."""

    def __init__(self, autoencoder):
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, latents):
        return self.autoencoder.decode(latents).sample


@onnx_ci.recipe(
    each={case: KNOWN.get(f"{case} encoder", {}) for case in AUTOENCODERS},
    input_names=["image"],
    output_names=["latents"],
    dynamic_axes={"image": LATENTS, "latents": {0: "batch", 2: "rows", 3: "columns"}},
    dynamic_sizes=DIVISIBLE,
    tags=["diffusers", "autoencoder"],
)
def image_encoder(case):
    return Encoder(build(case, AUTOENCODERS[case])), (torch.randn(2, 3, 16, 32),)


@onnx_ci.recipe(
    each={case: KNOWN.get(f"{case} decoder", {}) for case in AUTOENCODERS},
    input_names=["latents"],
    output_names=["image"],
    dynamic_axes={"latents": LATENTS, "image": {0: "batch", 2: "rows", 3: "columns"}},
    dynamic_sizes=DIVISIBLE,
    tags=["diffusers", "autoencoder"],
)
def image_decoder(case):
    options = AUTOENCODERS[case]
    return Decoder(build(case, options)), (torch.randn(2, 3 if case == "VQModel" else 4, 8, 16),)


VIDEO_AUTOENCODERS = {
    "AutoencoderKLCogVideoX": {
        "down_block_types": ("CogVideoXDownBlock3D",) * 2,
        "up_block_types": ("CogVideoXUpBlock3D",) * 2,
        "block_out_channels": (16, 16),
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "temporal_compression_ratio": 2,
    },
    "AutoencoderKLWan": {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1, "temperal_downsample": [False]},
}

TRANSFORMERS = {
    "DiTTransformer2DModel": (
        {**BLOCKS, "in_channels": 4, "out_channels": 8, "sample_size": 8, "patch_size": 2, "norm_num_groups": 4},
        {"hidden_states": (2, 4, 8, 8), "timestep": "timestep", "class_labels": "labels"},
    ),
    "AuraFlowTransformer2DModel": (
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pos_embed_max_size": 64,
        },
        {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 32), "timestep": "time"},
    ),
    "CogView3PlusTransformer2DModel": (
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 1,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "text_embed_dim": 16,
            "time_embed_dim": 16,
            "condition_dim": 4,
            "pos_embed_max_size": 8,
            "sample_size": 8,
        },
        {
            "hidden_states": (2, 4, 8, 8),
            "encoder_hidden_states": (2, 7, 16),
            "timestep": "timestep",
            "original_size": "size",
            "target_size": "size",
            "crop_coords": "size",
        },
    ),
    "FluxTransformer2DModel": (
        {
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 4, 8),
        },
        {
            "hidden_states": (2, 16, 4),
            "encoder_hidden_states": (2, 7, 32),
            "pooled_projections": (2, 32),
            "timestep": "time",
            "img_ids": (16, 3),
            "txt_ids": (7, 3),
        },
    ),
    "PixArtTransformer2DModel": (
        {
            **BLOCKS,
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 8,
            "cross_attention_dim": 32,
            "caption_channels": 16,
            "use_additional_conditions": False,
        },
        {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 16), "timestep": "timestep"},
    ),
    "PriorTransformer": (
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 1,
            "embedding_dim": 16,
            "num_embeddings": 7,
            "additional_embeddings": 4,
        },
        {"hidden_states": (2, 16), "timestep": "timestep", "proj_embedding": (2, 16), "encoder_hidden_states": (2, 7, 16)},
    ),
    "SD3Transformer2DModel": (
        {
            **BLOCKS,
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 32,
            "pos_embed_max_size": 16,
        },
        {
            "hidden_states": (2, 4, 8, 8),
            "encoder_hidden_states": (2, 7, 32),
            "pooled_projections": (2, 32),
            "timestep": "timestep",
        },
    ),
    "SanaTransformer2DModel": (
        {
            **BLOCKS,
            "sample_size": 8,
            "patch_size": 1,
            "in_channels": 4,
            "out_channels": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 32,
            "caption_channels": 16,
        },
        {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 16), "timestep": "timestep"},
    ),
    "UVit2DModel": (
        {
            "hidden_size": 32,
            "cond_embed_dim": 16,
            "micro_cond_encode_dim": 4,
            "micro_cond_embed_dim": 20,
            "encoder_hidden_size": 16,
            "vocab_size": 20,
            "codebook_size": 16,
            "in_channels": 16,
            "block_out_channels": 16,
            "num_res_blocks": 1,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "block_num_heads": 2,
            "sample_size": 8,
            "intermediate_size": 32,
        },
        {"input_ids": "codes", "encoder_hidden_states": (2, 7, 16), "pooled_text_emb": (2, 16), "micro_conds": (2, 5)},
    ),
    "CogVideoXTransformer3DModel": (
        {
            **BLOCKS,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 2,
            "text_embed_dim": 8,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
            "patch_size": 2,
            "temporal_compression_ratio": 4,
            "max_text_seq_length": 8,
        },
        {"hidden_states": (2, 2, 4, 8, 8), "encoder_hidden_states": (2, 8, 8), "timestep": "timestep"},
    ),
    "MochiTransformer3DModel": (
        {
            **BLOCKS,
            "num_layers": 2,
            "patch_size": 2,
            "pooled_projection_dim": 16,
            "in_channels": 4,
            "text_embed_dim": 16,
            "time_embed_dim": 4,
            "max_sequence_length": 16,
        },
        {
            "hidden_states": (2, 4, 2, 8, 8),
            "encoder_hidden_states": (2, 7, 16),
            "timestep": "timestep",
            "encoder_attention_mask": (2, 7),
        },
    ),
    "WanTransformer3DModel": (
        {
            **BLOCKS,
            "patch_size": (1, 2, 2),
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 16,
            "freq_dim": 8,
            "ffn_dim": 32,
            "cross_attn_norm": True,
            "rope_max_seq_len": 32,
            "qk_norm": "rms_norm_across_heads",
        },
        {"hidden_states": (2, 4, 2, 8, 8), "timestep": "timestep", "encoder_hidden_states": (2, 7, 16)},
    ),
}


def example(kind):
    """Values for an input of :data:`TRANSFORMERS`: random ones of a shape, or those that a word stands for."""
    if isinstance(kind, tuple):
        return torch.randn(*kind)
    return {
        "timestep": torch.tensor([3, 700]),
        "time": torch.tensor([0.25, 0.75]),
        "labels": torch.tensor([1, 2]),
        "size": torch.tensor([[64.0, 64.0]] * 2),
        "mask": torch.ones(2, 4),
        "meta": torch.tensor([[64.0, 64.0, 64.0, 64.0, 0.0, 0.0]] * 2),
        "codes": torch.randint(0, 16, (2, 8, 8)),
    }[kind]


UNBATCHED = ("img_ids", "txt_ids")


def signature(case):
    """The inputs of a transformer, all with a dynamic batch."""
    names = list(TRANSFORMERS[case][1])
    return {
        "input_names": names,
        "dynamic_axes": {name: {0: "batch"} for name in (*names, "out_sample") if name not in UNBATCHED},
    }


@onnx_ci.recipe(
    each={case: signature(case) | KNOWN.get(case, {}) for case in TRANSFORMERS},
    output_names=["out_sample"],
    tags=["diffusers", "transformer"],
)
def denoiser(case):
    options, inputs = TRANSFORMERS[case]
    model = onnx_ci.adapt(
        build(case, options), inputs=list(inputs), outputs=lambda made: made if isinstance(made, torch.Tensor) else made[0]
    )
    return model, tuple(example(each) for each in inputs.values())


@onnx_ci.recipe(
    each={case: KNOWN.get(f"{case} encoder", {}) for case in VIDEO_AUTOENCODERS},
    input_names=["video"],
    output_names=["latents"],
    dynamic_axes={"video": {0: "batch", 3: "height", 4: "width"}, "latents": {0: "batch", 3: "rows", 4: "columns"}},
    dynamic_sizes=DIVISIBLE,
    tags=["diffusers", "autoencoder", "video"],
)
def video_autoencoder(case):
    return Encoder(build(case, VIDEO_AUTOENCODERS[case])), (torch.randn(2, 3, 5, 16, 32),)
