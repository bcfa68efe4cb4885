"""The table of stages, and what takes its names from it."""

from __future__ import annotations

import pytest

from onnx_ci.processes.capture import timed
from onnx_ci.results.rules import RULES
from onnx_ci.results.stages import ACTIVITY, PHASES, SHARED_STAGES


def test_only_a_stage_of_the_table_can_be_timed():
    with (
        pytest.raises(AssertionError, match=r"'lunch' is timed, so it needs an activity in onnx_ci/results/stages\.py"),
        timed("lunch", {}),
    ):
        pass
    timings = {}
    for _ in range(2):
        with timed("build", timings):
            pass
    assert list(timings) == ["build"]


def test_a_rule_names_a_phase():
    assert {rule.phase for rule in RULES.values()} == set(PHASES)


def test_what_is_shared_is_done_before_the_export():
    assert {"build", "reference", "probes", "observability"} <= SHARED_STAGES & ACTIVITY.keys()
    assert not SHARED_STAGES & {"export", "rounding", "contract", "run", "compare", "locate"}
