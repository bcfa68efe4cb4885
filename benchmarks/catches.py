"""Which checks notice the faults of ``tests/faults``: exporting, onnx.checker, a comparison on the example, and onnx-ci.

Each fault is a model that is wrong in one way. *torch* is how many exports raise an error, *onnx.checker* how many of the
other files do with ``full_check=True``, *allclose* how many of the rest differ from the model on the example, in ONNX
Runtime, by more than the documentation of torch.onnx allows (``rtol=1e-3, atol=1e-5``), and *onnx-ci* how many cells fail
with the rule that names the fault.
Usage: ``python benchmarks/catches.py [--write README.md | --check README.md]``; about four minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np
import onnx
import onnxruntime
import torch
from faults import declarations, dtypes, frozen_shapes, frozen_values, in_place, operators, purity, semantics
from faults.fault import Fault

import onnx_ci
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import processes_of
from onnx_ci.processes.supervisor import LAST, Death, Message, Send

GROUPS = {
    "a value of the example is frozen (loops, branches, numbers)": frozen_values,
    "a size of the example is frozen": frozen_shapes,
    "a write into a tensor is lost": in_place,
    "an operator means something else in ONNX": semantics,
    "a data type is computed in another way": dtypes,
    "the opset, the checker or the runtime lacks an operator": operators,
    "names, types or axes are not those declared": declarations,
    "the model is random, or changes when it runs": purity,
}
Key = tuple[str, str, str]
"""The group of a fault, its name, and who checks it."""
COLUMNS = ("torch", "onnx.checker", "allclose", "onnx-ci")
BEGIN, END = "<!-- python benchmarks/catches.py: begin -->", "<!-- end -->"


def by_plain_checks(fault: Fault, send: Send) -> None:
    """The main function of a process: send which checks of a plain script notice a fault."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        send({LAST: plain(fault)})


def by_onnx_ci(fault: Fault, send: Send) -> None:
    """The main function of a process: send whether onnx-ci names a fault."""
    (result,) = onnx_ci.run([fault.wrong], opsets=str(fault.opset), cache="off", isolation="none").cells
    send({LAST: [fault.rule in {each.rule for each in result.findings if each.severity == "error"}]})


def plain(fault: Fault) -> list[bool]:
    """Whether each check of a plain script notices a fault; a check that cannot run because of an earlier one does not."""
    recipe = fault.wrong
    torch.manual_seed(recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        steps: tuple[Callable[[], None], ...] = (
            lambda: export(fault, path),
            lambda: onnx.checker.check_model(path, full_check=True),
            lambda: compare(fault, path),
        )
        for number, step in enumerate(steps):
            try:
                step()
            except Exception:  # whatever a check raises: it notices something
                return [each == number for each in range(len(steps))]
    return [False] * len(steps)


def made(fault: Fault) -> tuple[torch.nn.Module, tuple[object, ...]]:
    torch.manual_seed(fault.wrong.seed)
    model, args, *_ = fault.wrong()
    return model.eval(), args


def export(fault: Fault, path: Path) -> None:
    recipe = fault.wrong
    model, args = made(fault)
    torch.onnx.export(
        model,
        args,
        path,
        dynamo=fault.opset >= 18,
        opset_version=fault.opset,
        input_names=list(recipe.input_names) or None,
        output_names=list(recipe.output_names) or None,
        dynamic_axes={name: dict(axes) for name, axes in recipe.dynamic_axes.items()} or None,
        **recipe.export_options,
    )


def compare(fault: Fault, path: Path) -> None:
    model, args = made(fault)
    with torch.no_grad():
        expected = flat(model(*args))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    model, args = made(fault)
    got = session.run(None, dict(zip(names, [each.numpy() for each in flat(args)], strict=False)))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-3, atol=1e-5)


def flat(values: object) -> list[torch.Tensor]:
    return [each for each in torch.utils._pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]


def outcomes(works: Mapping[Key, Callable[[Send], None]]) -> Iterator[tuple[Key, Message | Death]]:
    """What each work has sent last, or how its process has died; two processes run at a time."""
    waiting, running = [*works.items()], set[Key]()
    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(processes_of("fork", Path(scratch))) as processes:
        while waiting or running:
            while waiting and len(running) < 2:
                key, work = waiting.pop(0)
                processes.start(key, work, Limits(seconds=300))
                running.add(key)
            for key, event in processes.wait():
                if key in running and (isinstance(event, Death) or LAST in event):
                    running.remove(key)
                    yield key, event


def counts() -> dict[str, list[int]]:
    """How many faults of each group each check notices, in the order of the columns."""
    works: dict[Key, Callable[[Send], None]] = {}
    for group, module in GROUPS.items():
        for fault in module.FAULTS:
            works[group, fault.name, "plain"] = functools.partial(by_plain_checks, fault)
            works[group, fault.name, "onnx-ci"] = functools.partial(by_onnx_ci, fault)
    found = {group: [0] * len(COLUMNS) for group in GROUPS}
    for (group, name, by), event in outcomes(works):
        if isinstance(event, Death) and by == "onnx-ci":
            sys.exit(f"{name}: the process {event.message}\n{event.log}")
        # A crash of the exporter is noticed, too.
        noticed = [True, False, False] if isinstance(event, Death) else event[LAST]
        first = 0 if by == "plain" else 3
        for column, is_noticed in enumerate(noticed, start=first):
            found[group][column] += is_noticed
    return found


def table() -> list[str]:
    """The table, line by line."""
    found = counts()
    lines = ["| what is wrong | faults | " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * (1 + len(COLUMNS))]
    for group, module in GROUPS.items():
        lines.append(f"| {group} | {len(module.FAULTS)} | " + " | ".join(map(str, found[group])) + " |")
    whole = [sum(len(module.FAULTS) for module in GROUPS.values()), *map(sum, zip(*found.values(), strict=True))]
    lines.append("| **all** | " + " | ".join(f"**{count}**" for count in whole) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="insert the table into a page")
    parser.add_argument("--check", type=Path, metavar="FILE", help="fail if the page has another table")
    options = parser.parse_args()
    lines = table()
    print("\n".join(lines))
    page = options.write or options.check
    if page is None:
        return
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    new = "\n".join([before + BEGIN, "", *lines, "", END]) + rest.partition(END)[2]
    if options.write:
        page.write_text(new, encoding="utf-8")
    elif new != text:
        sys.exit(f"{page} is out of date: python benchmarks/catches.py --write={page}")


if __name__ == "__main__":
    main()
