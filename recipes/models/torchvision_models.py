"""Models from torchvision's definitions, for recipes: seeded by default, trained weights on request."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import onnx_ci

_declared: list[torch.library.Library] = []
"""Keeps the declared schemas alive: torch drops them together with their library."""


def import_torchvision() -> ModuleType:
    """Import torchvision, even if its compiled operators do not match the installed torch.

    The wheel on the package index is built for torch with CUDA. With a CPU build of torch its import fails because the
    schemas of its compiled operators are missing, although the model definitions do not use them. Declaring them is enough.

    Raises:
        onnx_ci.RecipeError: torchvision is not installed.
    """
    try:
        import torchvision
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise onnx_ci.RecipeError(
            "this recipe needs torchvision, which is not installed; install the version that goes with your torch"
        ) from None
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    else:
        return torchvision
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    import torchvision

    return torchvision


def build(name: str, weights: str | None, **config: Any) -> torch.nn.Module:
    """The torchvision model ``name``.

    Args:
        weights: ``None`` for new weights; the path of a state dict; or a name that torchvision knows, such as
            ``"DEFAULT"`` or ``"IMAGENET1K_V1"``, which downloads them.
        **config: other keywords of the model's builder.
    """
    models = import_torchvision().models
    if weights is None or not Path(weights).is_file():
        model: torch.nn.Module = models.get_model(name, weights=weights, **config)
        return model
    model = models.get_model(name, weights=None, **config)
    model.load_state_dict(torch.load(weights, weights_only=True))
    return model
