"""The libraries of the corpus, imported only where a recipe needs them.

torchvision, torchaudio and what imports them need care beside a CPU build of torch, because the wheels on the package index
are built for CUDA. None of the libraries asks the network for anything.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from types import ModuleType

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import import_torchvision

os.environ |= {"YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "true"}  # ultralytics reads them when it is imported

__all__ = [
    "import_after_torchvision",
    "import_deepctr",
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


def import_after_torchvision(module: str) -> ModuleType:
    """Import a module of a library that imports torchvision or torchaudio itself, where they are installed."""
    import_torchvision()
    import_torchaudio()
    return importlib.import_module(module)


def import_deepctr() -> ModuleType:
    """Import deepctr_torch without what asks for its newest version over the network."""
    if "deepctr_torch" not in sys.modules:
        utils = sys.modules["deepctr_torch.utils"] = ModuleType("deepctr_torch.utils")
        utils.__dict__["check_version"] = lambda version: None
    return import_after_torchvision("deepctr_torch")


_IMPORTED_LATE = (
    "transformers.modeling_utils",
    "diffusers.models.autoencoders",
    "diffusers.models.transformers",
    "diffusers.models.unets",
)
"""What these libraries import when a model is first used."""
_OTHERS = (
    "e3nn.o3",
    "encodec",
    "kornia",
    "monai.networks.nets",
    "ncps.torch",
    "open_clip",
    "pytorch_tabnet.tab_network",
    "segment_anything",
    "snntorch",
    "speechbrain",
    "stable_baselines3",
    "torch_geometric.nn",
    "torchdiffeq",
    "ultralytics.nn.tasks",
    "vit_pytorch",
)
"""Libraries that are imported by :func:`import_after_torchvision`."""


def _import_installed() -> None:
    """Import the libraries once, in the process that reads the recipe files; otherwise each recipe would take seconds more.

    The files can be read without them, which the tests do.
    """
    late = (functools.partial(importlib.import_module, name) for name in _IMPORTED_LATE)
    others = (functools.partial(import_after_torchvision, name) for name in _OTHERS)
    for load in (import_timm, import_segmentation_models, import_diffusers, import_deepctr, *late, *others):
        with contextlib.suppress(ImportError, onnx_ci.RecipeError):
            load()


_import_installed()
