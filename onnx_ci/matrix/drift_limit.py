"""The limit of drift: what recipes, settings and post-export passes say about the largest drift that passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx_ci.collection.keywords import Limit
from onnx_ci.collection.post_export import GraphPass
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings

LOSSY_MAX_DRIFT = 4.0
"""The limit after a lossy pass, in units of its simulated rounding."""


@dataclass(frozen=True, kw_only=True)
class DriftLimit:
    """The largest drift that passes, or the largest error if ``rtol`` or ``atol`` is set."""

    default: float
    by_name_or_dtype: Mapping[str, float] = field(default_factory=dict)
    """Limits of individual outputs, by name or else by data type, as torch names it."""
    rtol: Limit = None
    """With ``atol``, judge by ``|error| <= atol + rtol * |reference|``: for every output, or by name or data type."""
    atol: Limit = None

    @property
    def has_tolerance(self) -> bool:
        """Whether errors are judged by ``rtol`` and ``atol``."""
        return self.rtol is not None or self.atol is not None

    @property
    def names(self) -> dict[str, str]:
        """The names of outputs and data types that have a limit of their own, each with the keyword that says so."""
        limits = {"max_drift": self.by_name_or_dtype, "rtol": self.rtol, "atol": self.atol}
        return {name: keyword for keyword, limit in limits.items() if isinstance(limit, Mapping) for name in limit}

    def of(self, name: str | None, dtype: str) -> float:
        """The limit of an output, by its name in the graph, if known, and its data type as torch names it: ``float16``."""
        by_type = self.by_name_or_dtype.get(dtype, self.default)
        return by_type if name is None else self.by_name_or_dtype.get(name, by_type)

    def tolerance_of(self, name: str, dtype: str) -> tuple[float | None, float | None]:
        """``rtol`` and ``atol`` of an output. The arguments are those of :meth:`of`."""

        def of_output(limit: Limit) -> float | None:
            return limit.get(name, limit.get(dtype)) if isinstance(limit, Mapping) else limit

        return of_output(self.rtol), of_output(self.atol)


def limit_of(recipe: Recipe, settings: Settings) -> DriftLimit:
    """The limit for the exporter's own file. What the recipe declares takes precedence over the settings."""
    tolerance = {"rtol": recipe.rtol, "atol": recipe.atol}
    if recipe.rtol is None and recipe.atol is None:
        tolerance = {name: settings.recipe_defaults.get(name) for name in tolerance}
    return DriftLimit(
        default=recipe.max_drift if isinstance(recipe.max_drift, (int, float)) else settings.max_drift,
        by_name_or_dtype=recipe.max_drift if isinstance(recipe.max_drift, Mapping) else {},
        **tolerance,
    )


def limit_after(passes: Sequence[GraphPass], limit: DriftLimit) -> DriftLimit:
    """The limit after post-export passes: the last one's own, or else that of the lossy ones, or else ``limit``.

    ``rtol`` and ``atol`` are about a file without a lossy pass.
    """
    if passes and passes[-1].max_drift:
        return DriftLimit(default=passes[-1].max_drift)
    lossy = [graph_pass.max_drift or LOSSY_MAX_DRIFT for graph_pass in passes if graph_pass.lossy]
    return DriftLimit(default=max(lossy)) if lossy else limit
