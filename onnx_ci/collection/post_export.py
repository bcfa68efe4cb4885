"""Post-export stages as recipes declare them: what happens to an exported file before it ships."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onnx_ci.errors import RecipeError, did_you_mean

LossyType = Literal["float16", "int8"]
"""What a lossy stage rounds to."""

EXPORT = "export"
"""The name of the exporter's own file among those of stages."""

LOSSY_MAX_DRIFT = 4.0
"""The largest drift that passes after a lossy stage, in units of its simulated rounding."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_MICROSOFT = ("com.microsoft",)


@dataclass(frozen=True, kw_only=True)
class PostExportStage:
    """One step between the exporter's file and the file that ships. Created by :func:`stage`."""

    name: str
    transform: Callable[[Any], Any] | None = None
    """The function of a stage that is not built in."""
    lossy: LossyType | None = None
    """What the stage rounds to; ``None`` if it keeps the numbers."""
    keep_io_types: bool = True
    """Whether inputs and outputs keep their types; otherwise a float16 stage makes those of float32 float16."""
    max_drift: float | None = None
    """The largest drift that passes, for every output; ``None`` for the default."""
    domains: tuple[str, ...] = ()
    """Domains of operators that the stage may introduce."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords for the package of a built-in stage."""

    @property
    def is_static(self) -> bool:
        """Whether activations are quantized by ranges from a calibration. Otherwise each tensor's own range is used."""
        return self.name == "int8-static"


_BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "onnxsim": {},
    "onnxslim": {},
    "ort-optimized": {"domains": _MICROSOFT},
    "float16": {"lossy": "float16", "keep_io_types": False},
    "int8-dynamic": {"lossy": "int8", "domains": _MICROSOFT},
    "int8-static": {"lossy": "int8", "domains": _MICROSOFT},
}
BUILT_IN = tuple(_BUILT_IN)
"""The names of the built-in stages."""


def stage(
    what: str | Callable[[Any], Any],
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
        what: the name of a built-in stage: ``onnxsim``, ``onnxslim``, ``ort-optimized``, ``float16``, ``int8-dynamic`` or
            ``int8-static``. Or a function that takes a model and returns one. It gets a ``ModelProto`` with its weights or,
            if it annotates its parameter as ``Path`` or ``str``, the path of a copy of the file.
        name: the name of a function's stage in ids and reports, unique in a recipe. Default: the function's name.
        lossy: what a function rounds to, ``"float16"`` or ``"int8"``. Its file is judged in units of that rounding.
        keep_io_types: whether inputs and outputs keep their types. Default: yes, except for ``float16``.
        max_drift: the largest drift that passes. Default: the limit of the exporter's own file, or 4 after a lossy stage.
        domains: domains of operators that the stage may introduce, besides those that a built-in stage is known for.
        **options: for a built-in stage, keywords for its package, such as ``per_channel=True`` for
            ``onnxruntime.quantization`` or ``level="basic"`` for ``ort-optimized``.

    Raises:
        RecipeError: there is no such stage, or an option is invalid.
    """
    usual: Mapping[str, Any] = {}
    transform = None
    if isinstance(what, str):
        if what not in _BUILT_IN:
            raise RecipeError(f"there is no post-export stage {what!r}{did_you_mean(what, BUILT_IN)}")
        if name is not None or lossy is not None:
            raise RecipeError(f"the stage {what!r} is built in: it takes neither name nor lossy")
        if keep_io_types is not None and what != "float16":
            raise RecipeError(f"the stage {what!r} takes no keep_io_types")
        name, usual = what, _BUILT_IN[what]
    elif callable(what):
        if options:
            raise RecipeError(f"a function's stage has no option {next(iter(options))!r}; bind it with functools.partial")
        transform = what
        name = name or getattr(what, "__name__", None)
        if name is None or not _NAME.fullmatch(name):
            raise RecipeError(f"the stage {what!r} needs a name: onnx_ci.stage(function, name='fuse')")
        if name in (*BUILT_IN, EXPORT):
            raise RecipeError(f"the name {name!r} is taken: give the stage another one, onnx_ci.stage(function, name=...)")
        if lossy not in (None, "float16", "int8"):
            raise RecipeError(f"lossy must be 'float16' or 'int8', not {lossy!r}")
    else:
        raise RecipeError(f"a post-export stage is the name of a built-in one or a function, not {what!r}")
    if max_drift is not None and (isinstance(max_drift, bool) or not 0 < max_drift < float("inf")):
        raise RecipeError(f"max_drift must be a number above 0, not {max_drift!r}")
    more_domains = (domains,) if isinstance(domains, str) else tuple(domains)
    return PostExportStage(
        name=name,
        transform=transform,
        lossy=usual.get("lossy", lossy),
        keep_io_types=usual.get("keep_io_types", True) if keep_io_types is None else keep_io_types,
        max_drift=max_drift,
        domains=(*usual.get("domains", ()), *more_domains),
        options=options,
    )


def stages_of(value: Any) -> tuple[PostExportStage, ...]:
    """The stages that ``@recipe(then=value)`` declares.

    Raises:
        RecipeError: one of them is invalid, or two have the same name.
    """
    items = value if isinstance(value, (list, tuple)) else [value]
    stages = tuple(item if isinstance(item, PostExportStage) else stage(item) for item in items)
    names = [item.name for item in stages]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(f"then has two stages {repeated[0]!r}; every name must be unique")
    return stages
