"""What the cells of one recipe and device share: the prepared model, for each kind of weights, and the rounding of passes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from onnx_ci.matrix.plan import CellTask
from onnx_ci.pipeline.model.call import PrepareError, SkippedByRecipeError
from onnx_ci.pipeline.post_export.shipped_reference import ShippedReference
from onnx_ci.pipeline.prepare.prepare import Prepared, Weights, prepare
from onnx_ci.processes.capture import timed


@dataclass(frozen=True, kw_only=True)
class _Shipped:
    """What files after some passes are compared with, and what that was computed from."""

    prepared: Prepared
    passes: int
    """After how many of the recipe's passes."""
    reference: ShippedReference


@dataclass
class Shared:
    """What the cells of one recipe and device share, each computed when a cell needs it first.

    It takes the memory of several models, so it is that of the last recipe and device only. :meth:`close` restores the global
    state that the recipe has changed.
    """

    _group: tuple[str, str] | None = None
    _prepared: dict[Weights, Prepared | PrepareError | SkippedByRecipeError] = field(default_factory=dict)
    _shipped: list[_Shipped] = field(default_factory=list)

    def close(self) -> None:
        """Free the models, and restore the global state that building them has changed."""
        changes = [each.model.pristine.global_changes for each in self._prepared.values() if isinstance(each, Prepared)]
        self._prepared.clear()
        self._shipped.clear()
        for change in reversed(changes):
            change.undo()

    def prepared(self, task: CellTask, weights: Weights, timings: dict[str, float]) -> Prepared:
        """The recipe of a cell, ready for an export. What cells of another recipe or device shared is freed first."""
        group = task.recipe.name, task.cell.device
        if group != self._group:
            self.close()
            self._group = group
        if weights not in self._prepared:
            try:
                prepared = prepare(task, weights)
                for stage, seconds in prepared.timings.items():
                    timings[stage] = timings.get(stage, 0.0) + seconds
                if prepared.model.has_probe_weights and prepared.hides_all_modules:  # such as by a clamp, which they exceed
                    with_own_weights = self.prepared(task, Weights.OWN, timings)
                    prepared = prepared if with_own_weights.hides_all_modules else with_own_weights
                self._prepared[weights] = prepared
            except (PrepareError, SkippedByRecipeError) as error:
                self._prepared[weights] = error
        outcome = self._prepared[weights]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def shipped_reference(self, task: CellTask, prepared: Prepared, timings: dict[str, float]) -> ShippedReference:
        """What the file of a cell is compared with: ``prepared``, in units of the rounding of the cell's passes."""
        for shipped in self._shipped:
            if shipped.prepared is prepared and shipped.passes == len(task.passes):
                return shipped.reference
        with timed("rounding", timings) if task.is_lossy else contextlib.nullcontext():
            reference = ShippedReference.of(prepared.model, prepared.probes, task.passes, task.drift_limit)
        self._shipped.append(_Shipped(prepared=prepared, passes=len(task.passes), reference=reference))
        return reference
