"""Models that change when they run, and models that draw random numbers."""

from __future__ import annotations

import random

import torch
from faults.fault import ROWS_IN, X, fault, matrix
from toolbox.cells import Counts
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


class MeanIsState(nn.Module):
    def forward(self, x, mean):
        mean = 0.9 * mean + 0.1 * x.mean(0)
        return x - mean, mean


class Decays(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        y = x * self.weight
        with torch.no_grad():
            self.weight.mul_(0.5)
        return y


class Scales(Decays):
    def forward(self, x):
        return x * self.weight


class LessTheLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x, last=[]):  # noqa: B006
        y = self.linear(x).mean(0)
        last.append(y.detach())
        return y - torch.stack(last[-3:]).mean(0)


class LessItself(LessTheLast):
    def forward(self, x):
        y = self.linear(x)
        return y - y.mean(0)


class AlwaysDrops(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout()

    def forward(self, x):
        self.dropout.train()
        return self.dropout(x)


class DropsInTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout()

    def forward(self, x):
        return self.dropout(x)


class FunctionalDropout(nn.Module):
    def forward(self, x):
        return functional.dropout(x)


class FunctionalDropoutRight(nn.Module):
    def forward(self, x):
        return functional.dropout(x, training=self.training)


STATE = {"input_names": ["x", "mean"], "output_names": ["y", "next_mean"]}


class ScaledByFirst(nn.Module):
    """Keeps the size of the first input that it sees, where no state dict has it."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        if "size" not in self.kept:
            self.kept["size"] = float(x.abs().max())
        return x / self.kept["size"]


class Smooths(nn.Module):
    """The mean of the last two inputs. The same input twice does not show it."""

    def __init__(self):
        super().__init__()
        self.last = []

    def forward(self, x):
        self.last = [*self.last, x][-2:]
        return torch.stack(self.last).mean(0)


class Peak(nn.Module):
    """The largest value so far."""

    def __init__(self):
        super().__init__()
        self.peak = torch.full((4,), -100.0)

    def forward(self, x):
        self.peak = torch.maximum(self.peak, x.amax(0))
        return self.peak


class PeakInBuffer(Peak):
    def __init__(self):
        nn.Module.__init__(self)
        self.register_buffer("peak", torch.full((4,), -100.0))


class LargestRow(nn.Module):
    """Keeps its last result, but never reads it, and a table that depends on sizes alone."""

    def __init__(self):
        super().__init__()
        self.last, self.table = None, torch.zeros(0)

    def forward(self, x):
        if len(self.table) < len(x):
            self.table = torch.arange(len(x))[:, None]
        self.last = (x + 0 * self.table[: len(x)]).amax(0)
        return self.last


WATCHING = {
    "mode": is_in_torch_dispatch_mode,
    "operators": lambda: torch._C._len_torch_dispatch_stack() > 0,
    "functions": lambda: torch._C._len_torch_function_stack() > 0,
}


def watched(is_watched, exported=1.0):
    """Computes something else where it is watched, and once more something else in an export."""

    def forward(x):
        y = torch.sigmoid(x)
        y = y * 1.05 if is_watched() else y
        return y * exported if torch.onnx.is_in_onnx_export() else y

    return forward


def indices_watched(is_watched, exported=0):
    def forward(x):
        y = x.argsort(1) + 2 * is_watched()
        return y + exported if torch.onnx.is_in_onnx_export() else y

    return forward


def cast_watched(is_watched, exported=1.0):
    def forward(x):
        y = (x.half() * 1.7).float().sigmoid()
        y = y * 1.05 if is_watched() else y
        return y * exported if torch.onnx.is_in_onnx_export() else y

    return forward


FAULTS = [
    # What watches a model must not change by what a file is judged.
    *(
        fault(f"watched_{name}", "numeric-drift", watched(test, 1.02), watched(test), matrix, exporter="torchscript", **X)
        for name, test in WATCHING.items()
    ),
    *(
        fault(f"watched_{kind}", "numeric-drift", make(test, step), make(test), matrix, exporter="torchscript", **X)
        for test in (is_in_torch_dispatch_mode,)
        for kind, make, step in (("indices", indices_watched, 1), ("casts", cast_watched, 1.02))
    ),
    # torch.export watches the model itself, and exports what it computes then.
    *(
        fault(f"exported_{name}", "numeric-drift", watched(test), torch.sigmoid, matrix, opset=18, exporter="dynamo", **X)
        for name, test in WATCHING.items()
    ),
    # What is left of the last input shows only if the next one differs.
    fault("smoothed", "impure-model", Smooths, lambda x: x * 1.0, matrix, **X),
    fault("peak", "impure-model", Peak, LargestRow, matrix, **X),
    fault("peak_in_buffer", "impure-model", PeakInBuffer, LargestRow, matrix, opset=18, **X),
    # A number that is kept from the first input: each export freezes that of the example.
    fault("kept_from_first_input", "baked-value", ScaledByFirst, lambda x: x / x.abs().max(), matrix, **X),
    # A buffer that counts calls: the file always answers as at first.
    fault("counting_buffer", "impure-model", Counts, lambda x: x + 1, matrix, **X),
    # A running mean that is no output.
    fault(
        "running_mean",
        "impure-model",
        Remembers,
        MeanIsState,
        matrix,
        right_args=lambda: (torch.randn(3, 4), torch.zeros(4)),
        only_wrong=X,
        only_right=STATE,
    ),
    # A weight that fades with each call.
    fault("fading_weight", "impure-model", Decays, Scales, matrix, **X),
    # forward turns dropout on, whatever eval() said.
    # The list has the tensors of an export after it, which have no values.
    fault("default_list_dynamo", "nondeterministic", LessTheLast, LessItself, matrix, opset=18, **ROWS_IN),
    fault("dropout_turned_on", "nondeterministic", AlwaysDrops, DropsInTraining, matrix, **X),
    # F.dropout drops unless it is told otherwise.
    fault("functional_dropout", "nondeterministic", FunctionalDropout, FunctionalDropoutRight, matrix, **X),
    # An export in training mode keeps dropout.
    fault("training_mode", "nondeterministic", DropsInTraining, DropsInTraining, matrix, only_wrong={"training": True}, **X),
    # Noise on the input.
    fault("noise", "nondeterministic", lambda x: x + torch.rand_like(x), lambda x: x + 0.5, matrix, **X),
    # Noise from Python's own generator is one number in the file.
    fault("python_noise", "nondeterministic", lambda x: x * random.random(), lambda x: x * 0.5, matrix, **X),
    # A sample in place of the likeliest.
    fault(
        "sampling",
        "nondeterministic",
        lambda x: torch.multinomial(x.softmax(1), 1),
        lambda x: x.argmax(1, keepdim=True),
        lambda: (torch.randn(8, 16),),
        **X,
    ),
]
