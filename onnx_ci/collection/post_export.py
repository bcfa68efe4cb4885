"""Post-export stages as recipes declare them: what happens to an exported file before it ships. Does not import torch."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.plugins import STAGES

LossyType = Literal["float16", "int8"]
"""What a lossy stage rounds to."""

EXPORT = "export"
"""Stands for the exporter's own file where stages are named."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class PostExportStage:
    """One step between the exporter's file and the file that ships. Created by :func:`stage`.

    An entry point of the group ``onnx_ci.stages`` names an object of this class.
    """

    name: str
    transform: Callable[..., Any]
    """The function that makes the new file; see :func:`stage`."""
    lossy: LossyType | None = None
    """What the stage rounds to; ``None`` if it keeps the numbers."""
    keep_io_types: bool = True
    """Whether inputs and outputs keep their types; otherwise a float16 stage makes those of float32 float16."""
    max_drift: float | None = None
    """The largest drift that passes, for every output; ``None`` for the default."""
    domains: tuple[str, ...] = ()
    """Domains of operators that the stage may introduce."""
    is_static: bool = False
    """Whether activations are quantized by ranges from a calibration. Otherwise each tensor's own range is used."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords for the function."""


BUILT_IN = tuple(STAGES.ours)
"""The names of the built-in stages."""


def stage(
    what: str | Callable[..., Any],
    /,
    *,
    name: str | None = None,
    lossy: LossyType | None = None,
    keep_io_types: bool | None = None,
    max_drift: float | None = None,
    domains: str | Sequence[str] = (),
    **options: Any,
) -> PostExportStage:
    """A post-export stage with options, for ``@recipe(then=[...])``.

    Args:
        what: the name of a built-in stage, ``onnxsim``, ``onnxslim``, ``ort-optimized``, ``float16``, ``int8-dynamic`` or
            ``int8-static``, or of one that an installed package adds. Or a function that takes a model and returns one. It
            gets a ``ModelProto`` with its weights or, if it annotates its parameter as ``Path`` or ``str``, the path of a copy
            of the file. If its first two parameters are annotated so, it reads the file at the first path and writes the new
            file to the second. Without a default, a parameter ``keep_io_types`` gets that of the stage, and a parameter
            ``feeds`` a function that returns the inputs for a calibration: a list with a dictionary of numpy arrays by name
            for each.
        name: the name of a function's stage in ids and reports, unique in a recipe. Default: the function's name.
        lossy: what a function rounds to, ``"float16"`` or ``"int8"``. Its file is judged in units of that rounding.
        keep_io_types: whether inputs and outputs keep their types. Default: yes, except for ``float16``.
        max_drift: the largest drift that passes. Default: the limit of the exporter's own file, or 4 after a lossy stage.
        domains: domains of operators that the stage may introduce, besides those that a stage with a name is known for.
        **options: for a stage with a name, keywords for its package, such as ``per_channel=True`` for
            ``onnxruntime.quantization`` or ``level="basic"`` for ``ort-optimized``.

    Raises:
        RecipeError: there is no such stage, or an option is invalid.
    """
    if isinstance(what, str):
        declared = _named(what)
        if name is not None or lossy is not None:
            raise RecipeError(f"the stage {what!r} is known by its name: it takes neither name nor lossy")
        if keep_io_types is not None and declared.lossy != "float16":
            raise RecipeError(f"the stage {what!r} takes no keep_io_types")
    elif callable(what):
        if options:
            raise RecipeError(f"a function's stage has no option {next(iter(options))!r}; bind it with functools.partial")
        declared = _function(what, name or getattr(what, "__name__", None), lossy)
    else:
        raise RecipeError(f"a post-export stage is the name of a built-in one or a function, not {what!r}")
    if max_drift is not None and (isinstance(max_drift, bool) or not 0 < max_drift < float("inf")):
        raise RecipeError(f"max_drift must be a number above 0, not {max_drift!r}")
    return dataclasses.replace(
        declared,
        keep_io_types=declared.keep_io_types if keep_io_types is None else keep_io_types,
        max_drift=declared.max_drift if max_drift is None else max_drift,
        domains=(*declared.domains, *((domains,) if isinstance(domains, str) else domains)),
        options={**declared.options, **options},
    )


def _named(name: str) -> PostExportStage:
    """The stage of a name, as onnx-ci or a package declares it."""
    if name not in STAGES:
        raise RecipeError(f"there is no post-export stage {name!r}{did_you_mean(name, STAGES)}")
    declared: PostExportStage = STAGES.load(name)
    return dataclasses.replace(declared, name=name)


def _function(function: Callable[..., Any], name: str | None, lossy: LossyType | None) -> PostExportStage:
    """The stage of a function."""
    if name is None or not _NAME.fullmatch(name):
        raise RecipeError(f"the stage {function!r} needs a name: onnx_ci.stage(function, name='fuse')")
    if name in (*BUILT_IN, EXPORT):
        raise RecipeError(f"the name {name!r} is taken: give the stage another one, onnx_ci.stage(function, name=...)")
    if lossy not in (None, "float16", "int8"):
        raise RecipeError(f"lossy must be 'float16' or 'int8', not {lossy!r}")
    return PostExportStage(name=name, transform=function, lossy=lossy)


def stages_of(value: Any) -> tuple[PostExportStage, ...]:
    """The stages that ``@recipe(then=value)`` declares.

    Raises:
        RecipeError: one of them is invalid, or two have the same name.
    """
    entries = value if isinstance(value, (list, tuple)) else [value]
    stages = tuple(entry if isinstance(entry, PostExportStage) else stage(entry) for entry in entries)
    names = [each.name for each in stages]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(f"then has two stages {repeated[0]!r}; every name must be unique")
    return stages
