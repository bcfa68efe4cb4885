"""Torch's switches of arithmetic, as they are set."""

from __future__ import annotations

import os

import torch


def switches():
    """Everything that the exact arithmetic sets."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def told(read):
        try:
            return read()
        except RuntimeError:  # torch's older and newer switches disagree
            return "nothing"

    return {
        "matmul": told(lambda: cuda.allow_tf32),
        "precision": told(torch.get_float32_matmul_precision),
        "matmul, newer": cuda.fp32_precision,
        "cudnn": told(lambda: cudnn.allow_tf32),
        "conv": cudnn.conv.fp32_precision,
        "rnn": cudnn.rnn.fp32_precision,
        "cpu": torch.backends.mkldnn.matmul.fp32_precision,
        "float16": cuda.allow_fp16_reduced_precision_reduction,
        "bfloat16": cuda.allow_bf16_reduced_precision_reduction,
        "benchmark": cudnn.benchmark,
        "cudnn deterministic": cudnn.deterministic,
        "deterministic": torch.get_deterministic_debug_mode() > 0,
        "replaced operators": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
