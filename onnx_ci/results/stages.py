"""The table of stages, and what follows from a name: the phase, and what the process is doing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Something that is done for a cell."""

    name: str
    phase: str
    """The part of the flow that it belongs to; a rule names the phase that reports it."""
    activity: str = ""
    """What a process is doing meanwhile, in words. Empty for what is not timed by itself."""


_TABLE = (
    Stage("build", "prepare", "building the model"),
    Stage("reference", "prepare", "computing the reference outputs"),
    Stage("sketch", "prepare", "summarizing the weights"),
    Stage("side-effects", "prepare", "running the model again"),
    Stage("probes", "prepare", "running the model on other inputs"),
    Stage("branches", "prepare", "looking for the other sides of branches"),
    Stage("long-axes", "prepare", "running the model on far longer inputs"),
    Stage("observability", "prepare", "measuring observability"),
    Stage("export", "export", "exporting"),
    Stage("post-export", "post-export", "applying the post-export stages"),
    Stage("rounding", "post-export", "simulating the rounding of the post-export stages"),
    Stage("contract", "contract", "checking the file"),
    Stage("load", "run", "loading the file"),
    Stage("run", "run", "running the file"),
    Stage("compare", "compare", "comparing"),
    Stage("locate", "compare", "locating the fault"),
    Stage("baseline", "baseline"),
    Stage("verdict", "verdict"),
    Stage("engine", "engine"),
)
"""In the order in which a cell goes through them."""
PHASES = tuple(dict.fromkeys(stage.phase for stage in _TABLE))
ACTIVITY = {stage.name: stage.activity for stage in _TABLE if stage.activity}
"""What a process is doing, by the name of the stage that it times."""
SHARED_STAGES = frozenset(stage.name for stage in _TABLE if stage.phase == "prepare")
"""The stages that run once for all cells of a recipe on a device. Their times are those of the first cell."""
