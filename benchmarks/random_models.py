"""Whether right random models pass: each is exported once, and its file is judged many times, every time with other seeds.

Prints for each model how many outputs were compared on how many probes, and how many of these comparisons failed.
Usage: ``python benchmarks/random_models.py [--runs 200]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import onnx_ci
from onnx_ci.config.settings import load_settings
from onnx_ci.matrix.plan import task_of
from onnx_ci.onnx_model.signature import read_signature
from onnx_ci.pipeline.compare.random_outputs import compare_random
from onnx_ci.pipeline.compare.runtime_run import feeds_of
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.pipeline.reference.random_samples import sample_of
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.results.records import Cell, Finding

OPSET = 13


class Function(torch.nn.Module):
    """A model without weights."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The function's result."""
        return self.function(x)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "noise": lambda: Function(lambda x: x + torch.randn_like(x)),
    "small noise": lambda: Function(lambda x: x + 1e-3 * torch.randn_like(x)),
    "uniform": lambda: Function(torch.rand_like),
    "one draw for all": lambda: Function(lambda x: x + torch.rand(1)),
    "one channel": lambda: Function(lambda x: torch.cat([x[:, :1] + torch.randn_like(x[:, :1]), x[:, 1:].exp()], 1)),
    "heavy tails": lambda: Function(lambda x: torch.randn_like(x) / torch.rand_like(x)),
    "bernoulli": lambda: Function(lambda x: torch.rand_like(x) < x),
    "multinomial": lambda: Function(lambda x: torch.multinomial(x, 8, replacement=True)),
    "scalar": lambda: Function(lambda x: x.mean(1) * torch.rand(1)),
    "dropout": lambda: torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.3)),
    "infinite": lambda: Function(lambda x: torch.log((torch.rand_like(x) < x).float())),
}


def measure(make: Callable[[], torch.nn.Module], runs: int) -> tuple[int, list[Finding]]:
    """The number of comparisons and what failed."""
    recipe = onnx_ci.recipe(
        name="random",
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "rows"}, "y": {0: "rows"}},
        nondeterministic=True,
        training=True,
    )(lambda: (make(), (0.1 + 0.8 * torch.rand(8, 16),)))
    cell = Cell(source="random_models.py", recipe=recipe.name, exporter="torchscript", opset=OPSET, device="cpu")
    prepared = prepare(task_of(cell, recipe, load_settings(Path(__file__).parent, flags={}, environment={})))
    generator = torch.Generator().manual_seed(0)
    count, found = 0, []
    with TemporaryDirectory() as folder:
        path = onnx_ci.export(recipe, opset=OPSET, path=Path(folder) / "random.onnx").path
        signature = read_signature(path)
        assert not isinstance(signature, Finding), signature.message
        session = OnnxRuntime().load(path, "cpu")
        for _ in range(runs):
            for probe in prepared.probes.all:
                feeds = feeds_of(signature, prepared.model.weights, probe)
                seeds = torch.randint(1, 2**31 - 1, (len(probe.samples),), generator=generator).tolist()
                drawn = [[*map(sample_of, session.run(feeds, seed=seed))] for seed in seeds]
                count += 1
                found += compare_random(["y"], drawn, probe)
    return count, found


def main() -> None:
    """Print a line for each model, and the total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how often each file is judged")
    runs = parser.parse_args().runs
    total, failed = 0, 0
    for name, make in MODELS.items():
        start = time.perf_counter()
        count, found = measure(make, runs)
        total, failed = total + count, failed + len(found)
        print(f"{name:18} {count:6} comparisons, {len(found)} failed, {time.perf_counter() - start:.0f} s", flush=True)
        for each in found[:3]:
            print(f"    {each.rule}: {each.message}", flush=True)
    print(f"{total} comparisons, {failed} failed")


if __name__ == "__main__":
    main()
