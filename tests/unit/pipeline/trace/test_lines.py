"""What the lines of a model do that tensors do not show."""

from __future__ import annotations

import itertools
import random
import sys
import time

import numpy as np
import pytest
import torch

from onnx_ci.pipeline.trace.lines import LineRecorder, first_difference, lines_that_keep

COUNT = 0
KEPT = {}


def steps_of(function, *args):
    with LineRecorder() as recorder:
        function(*args)
    return recorder.steps


# --- what another run does otherwise


def draws_in_a_function(x):
    def scale():
        half = 0.5
        return half * random.random()  # here

    x = x + 1
    return x * scale()


def reads_a_clock(x):
    now = time.perf_counter_ns()  # here
    return x * (now % 1_000_003)


def draws_with_numpy(x):
    noise = np.random.default_rng().normal(size=3)  # here
    noise = noise * 2
    return x + torch.from_numpy(noise)


def makes_a_tensor(x):
    x = x + 1
    noise = torch.tensor([time.perf_counter_ns() % 1000])  # here
    return x + noise


SIDES = itertools.cycle([True, False])


def decides(x):
    x = x * float("nan")  # which is the same each time
    if next(SIDES):  # here
        x = x + 1
    return x


@pytest.mark.parametrize("model", [draws_in_a_function, reads_a_clock, draws_with_numpy, makes_a_tensor, decides])
def test_the_first_line_that_leaves_something_else_or_goes_another_way(model):
    first, second = (steps_of(model, torch.ones(3)) for _ in range(2))
    assert first_difference(first, first) is None
    assert first_difference(first, second).text.endswith("# here")


# --- what a run keeps


class Memory:
    runs = 0

    def __init__(self):
        self.mean, self.rows, self.calls, self.last = torch.zeros(3), [], 0, None

    def count(self, x):
        self.last = x + 1
        y = x * self.calls
        self.calls += 1  # here
        return y

    def count_elsewhere(self, x):
        self._raise_count()
        return x * self.runs

    def _raise_count(self):
        Memory.runs += 1  # here

    def smooth(self, x):
        y = x + self.mean
        self.mean = self.mean * 0.5 + x  # here
        return y

    def write(self, x):
        self.mean.add_(x)  # here
        return x + self.mean

    def collect(self, x):
        rows = self.rows
        rows.append(x)  # here
        return torch.stack(self.rows).mean(0)


def counts_in_its_module(x):
    global COUNT
    COUNT += 1  # here
    return x * COUNT


def keeps_the_first(x):
    if "first" not in KEPT:
        KEPT["first"] = x.sum()  # here
    return x + KEPT["first"]


MODELS = [getattr(Memory(), name) for name in ("count", "count_elsewhere", "smooth", "write", "collect")]


@pytest.mark.parametrize("model", [*MODELS, counts_in_its_module, keeps_the_first])
def test_the_line_that_keeps_something_is_told_from_those_that_set_the_same_each_time(model):
    first, second = (steps_of(model, torch.ones(3)) for _ in range(2))
    assert [line.text.partition("# ")[2] for line in lines_that_keep(first, second)][:1] == ["here"]


def test_a_model_that_keeps_nothing_has_no_such_line():
    def model(x):
        sizes = {"rows": x.shape[0]}
        sizes["twice"] = 2 * sizes["rows"]
        return x * sizes["twice"]

    first, second = (steps_of(model, torch.ones(3)) for _ in range(2))
    assert [*lines_that_keep(first, second)] == []
    assert first_difference(first, second) is None


def test_a_recorder_puts_back_what_watched_before():
    def watcher(frame, event, arg):
        return None

    before = sys.gettrace()
    sys.settrace(watcher)
    try:
        steps_of(reads_a_clock, torch.ones(3))
        assert sys.gettrace() is watcher
    finally:
        sys.settrace(before)


def test_only_numbers_are_recorded_if_nothing_else_is_asked_for():
    def model(x):
        scale, text = 2 * x.dim(), "text"
        y = x * scale
        return y, text

    with LineRecorder(numbers_only=True) as recorder:
        model(torch.ones(3))
    assert [step.left for step in recorder.steps] == [{"scale": "2"}, {}, {}]
