"""Whether correct exports pass: torchvision's architectures, each at several opsets.

Every cell runs the real gate, with a dynamic batch axis and small images, in one process per model. Prints the drift or the
broken rules of every cell, the largest drift of a correct export, the correct exports that failed (false alarms), the
exports that are known to be wrong, and those that the exporter rejects. The exit code is 1 if there is a false alarm, or if
one that is known to be wrong passes.
Usage: ``python benchmarks/false_alarms.py [--models resnet18,swin_t] [--opsets 9,11,13,15,17] [--timeout 600]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
import time
from typing import Any

from models import architectures

_BILINEAR = "bilinear interpolation: Resize and Upsample do not support half-pixel centers below opset 11"
KNOWN_WRONG = {
    (name, opset): _BILINEAR
    for name in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
    for opset in (9, 10)
}
"""Files that the exporter writes without an error, that pass the checker, and that compute different outputs."""


def judge(name: str, opsets: str) -> list[dict[str, Any]]:
    """Run one model's cells in this process."""
    import onnx_ci

    cells = []
    for result in onnx_ci.run([architectures()[name]], opsets=opsets).cells:
        errors = [each for each in result.findings if each.severity == "error"]
        cells.append(
            {
                "opset": result.cell.opset,
                "status": str(result.status),
                "drift": max((each.drift for each in result.outputs), default=None),
                "probe": result.worst.probe if result.worst else None,
                "rules": list(dict.fromkeys(each.rule for each in errors)),
                "messages": [f"{each.rule}: {each.message}" for each in errors],
                "notes": [f"{each.rule}: {each.message}" for each in result.findings if each.severity == "note"],
                "seconds": sum(result.timings.values()),
            }
        )
    return cells


def measure(name: str, opsets: tuple[int, ...], timeout: float) -> list[dict[str, Any]]:
    """Run one model's cells in a separate process; a crash affects only this model."""
    command = [sys.executable, __file__, "--one", name, "--opsets", ",".join(map(str, opsets))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        problem = f"timeout: no result after {timeout:g} s"
    else:
        if done.returncode == 0:
            cells: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
            return cells
        problem = f"crash: exit code {done.returncode}: {done.stderr.strip()[-300:]}"
    rule = problem.partition(":")[0]
    unknown = {
        "status": "error",
        "drift": None,
        "probe": None,
        "rules": [rule],
        "messages": [problem],
        "notes": [],
        "seconds": 0.0,
    }
    return [{"opset": opset, **unknown} for opset in opsets]


def category_of(cell: dict[str, Any]) -> str:
    """What the verdict means, given what is known about the model."""
    refusals = {"unsupported-operator": "unsupported", "export-error": "refused"}
    if (refused := refusals.get("+".join(cell["rules"]))) is not None:
        return refused
    if (cell["model"], cell["opset"]) in KNOWN_WRONG:
        return "missed" if cell["status"] == "passed" else "caught"
    return "right" if cell["status"] == "passed" else "false alarm"


def show(cell: dict[str, Any]) -> str:
    category = category_of(cell)
    return f"{cell['drift']:.2g}" if category == "right" else category


def main() -> None:
    from onnx_ci.opsets import parse_opsets

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(architectures()))
    parser.add_argument("--opsets", default="9,11,13,15,17")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one model")
    parser.add_argument("--notes", action="store_true", help="also print the notes of the cells")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(judge(options.one, options.opsets)))
        return
    opsets = parse_opsets(options.opsets)
    start, every = time.perf_counter(), []
    print("the largest drift of a correct export, or the result of the cell; seconds for all its cells")
    print(f"{'opset':30} " + " ".join(f"{opset:>11}" for opset in opsets) + f" {'seconds':>8}")
    for name in options.models.split(","):
        begin = time.perf_counter()
        cells = [{"model": name, **cell} for cell in measure(name, opsets, options.timeout)]
        seconds = time.perf_counter() - begin
        print(f"{name:30} " + " ".join(f"{show(cell):>11}" for cell in cells) + f" {seconds:8.1f}", flush=True)
        every += cells
    categories: dict[str, list[dict[str, Any]]] = {}
    for cell in every:
        categories.setdefault(category_of(cell), []).append(cell)
    right = categories.get("right", [])
    if right:
        worst = max(right, key=lambda cell: cell["drift"])
        where = f"{worst['model']} at {worst['opset']} on {worst['probe']!r}"
        print(f"\n{len(right)} correct exports passed, the largest drift is {worst['drift']:.3g} ({where})")
    titles = {
        "false alarm": "correct exports that failed (false alarms)",
        "caught": "exports known to be wrong that were caught",
        "missed": "exports known to be wrong that passed",
        "unsupported": "exports that the exporter rejects (unsupported-operator)",
        "refused": "exports that the exporter rejects with another error (export-error)",
    }
    for category, title in titles.items():
        cells = categories.get(category, [])
        print(f"\n{title}: {len(cells)} of {len(every)}")
        for cell in cells:
            print(f"  {cell['model']} at {cell['opset']}")
            for message in cell["messages"]:
                print(f"    {textwrap.shorten(message, 240)}")
            if (cell["model"], cell["opset"]) in KNOWN_WRONG and category in ("caught", "missed"):
                print(f"    cause: {KNOWN_WRONG[cell['model'], cell['opset']]}")
    if options.notes:
        print("\nnotes")
        for cell in every:
            for note in cell["notes"]:
                print(f"  {cell['model']} at {cell['opset']}: {note}")
    print(f"\n{time.perf_counter() - start:.0f} s")
    sys.exit(bool(categories.keys() & {"false alarm", "missed"}))


if __name__ == "__main__":
    main()
