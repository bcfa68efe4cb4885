"""The libraries of the corpus, imported only where a recipe needs them.

torchvision, torchaudio and what imports them need care beside a CPU build of torch, because the wheels on the package index
are built for CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from types import ModuleType

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import import_torchvision

__all__ = [
    "import_diffusers",
    "import_segmentation_models",
    "import_timm",
    "import_torchaudio",
    "import_torchvision",
    "import_transformers",
]


def import_timm() -> ModuleType:
    """Import timm, which imports torchvision."""
    import_torchvision()
    import timm

    return timm


def import_segmentation_models() -> ModuleType:
    """Import segmentation_models_pytorch, which imports torchvision."""
    import_torchvision()
    import segmentation_models_pytorch

    return segmentation_models_pytorch


def import_transformers() -> ModuleType:
    """Import transformers, which imports torchvision and torchaudio where they are installed."""
    import_torchvision()
    import_torchaudio()
    import transformers

    return transformers


def import_diffusers() -> ModuleType:
    """Import diffusers, which imports transformers."""
    import_transformers()
    import diffusers

    return diffusers


def import_torchaudio() -> ModuleType:
    """Import torchaudio; beside a CPU build of torch, without its compiled operators, which its models do not use."""
    if "torchaudio" not in sys.modules and torch.version.cuda is None:
        extension = ModuleType("torchaudio._extension")
        extension.__dict__.update(
            _IS_TORCHAUDIO_EXT_AVAILABLE=False, _IS_ALIGN_AVAILABLE=False, fail_if_no_align=lambda function: function
        )
        sys.modules[extension.__name__] = extension
    import torchaudio

    return torchaudio


_IMPORTED_LATE = (
    "transformers.modeling_utils",
    "diffusers.models.autoencoders",
    "diffusers.models.transformers",
    "diffusers.models.unets",
)
"""What these libraries import when a model is first used."""


def _import_installed() -> None:
    """Import the libraries once, in the process that reads the recipe files; otherwise each recipe would take seconds more.

    The files can be read without them, which the tests do.
    """
    late = (functools.partial(importlib.import_module, name) for name in _IMPORTED_LATE)
    for load in (import_timm, import_segmentation_models, import_diffusers, *late):
        with contextlib.suppress(ImportError, onnx_ci.RecipeError):
            load()


_import_installed()
