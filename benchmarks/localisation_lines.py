"""How often onnx-ci names the line of a mistake, of the faults of ``tests/faults/lines``, whose mistakes are lines of Python.

*Failed* is how many of the wrong models fail, and *red twins* how many of the right ones do. *First* means that the first line
of the first finding is a marked one; *any*, that one of its lines is; *all*, that the findings together name every marked line.
*Torch* is how often the first TracerWarning of ``torch.onnx.export`` is about a marked line; dynamo gives none.
The exit code is 1 if a verdict or a first line is not what the tests say.
Usage: ``python benchmarks/localisation_lines.py [--faults Grid,FrozenWindows] [--write FILE.json]``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import torch
from faults.lines.line_fault import LineFault
from faults.lines.test_lines import FAULTS, GREEN, UNNAMED, errors, lines

import onnx_ci
from onnx_ci import CellResult

COLUMNS = ("failed", "red twins", "first", "any", "all", "torch")


def measured(fault: LineFault, exporter: str, opset: int, wrong: CellResult, right: CellResult) -> dict[str, bool]:
    """What is true of one cell of a fault, by column."""
    found = [lines(finding) for finding in errors(wrong)]
    first = found[0] if found else []
    return {
        "failed": wrong.status == "failed",
        "red twins": right.status != "passed" or bool(errors(right)),
        "first": bool(first) and first[0] in fault.marks,
        "any": bool(fault.marks & set(first)),
        "all": fault.marks <= {line for each in found for line in each},
        "torch": exporter == "torchscript" and first_warning(fault, opset) in fault.marks,
    }


def first_warning(fault: LineFault, opset: int) -> tuple[str, int] | None:
    """The line of the first TracerWarning that exporting the wrong model gives."""
    torch.manual_seed(fault.wrong.seed)
    model, args, *_ = fault.wrong()
    axes = {name: dict(each) for name, each in fault.wrong.dynamic_axes.items()}
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        torch.onnx.export(
            model.eval(),
            args,
            io.BytesIO(),
            dynamo=False,
            opset_version=opset,
            input_names=list(fault.wrong.input_names),
            output_names=list(fault.wrong.output_names),
            dynamic_axes=axes or None,
        )
    about = (each for each in caught if issubclass(each.category, torch.jit.TracerWarning))
    return next(((Path(each.filename).name, each.lineno) for each in about), None)


def main() -> None:
    """Print the table, then what fails to fail, what fails and should not, and what is not named first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", metavar="NAMES", help="only these, with commas between them")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what was measured as JSON")
    options = parser.parse_args()
    faults = [each for each in FAULTS if options.faults is None or each.name in options.faults.split(",")]
    table: dict[str, dict[str, dict[str, bool]]] = {"torchscript": {}, "dynamo": {}}
    shares: list[float] = []
    """The time of the search, in units of the rest of the cell."""
    for exporter, opset in sorted({cell for fault in faults for cell in fault.cells}):
        with_cell = [fault for fault in faults if (exporter, opset) in fault.cells]
        recipes = [recipe for fault in with_cell for recipe in (fault.wrong, fault.right)]
        cells = onnx_ci.run(recipes, exporters=exporter, opsets=str(opset), cache="off").cells
        results = {result.cell.recipe: result for result in cells}
        for fault in with_cell:
            wrong, right = results[fault.wrong.name], results[fault.right.name]
            table[exporter][fault.name] = measured(fault, exporter, opset, wrong, right)
            search = wrong.timings.get("locate", 0.0)
            shares.append(search / (sum(wrong.timings.values()) - search))
    print(f"{'exporter':12} {'faults':>7} " + " ".join(f"{column:>9}" for column in COLUMNS))
    for exporter, rows in table.items():
        counts = {column: str(sum(row[column] for row in rows.values())) for column in COLUMNS}
        if exporter == "dynamo":
            counts["torch"] = "-"
        print(f"{exporter:12} {len(rows):7} " + " ".join(f"{count:>9}" for count in counts.values()))
    print(f"\nsearch: {statistics.median(shares):.2f} of the rest of the cell in the median, {max(shares):.2f} at worst")
    for column, is_bad in {"failed": False, "red twins": True, "first": False}.items():
        print(f"\n{column}:" if is_bad else f"\nnot {column}:")
        for exporter, rows in table.items():
            names = [name for name, row in rows.items() if row[column] is is_bad]
            if names:
                print(f"  {exporter}: {', '.join(names)}")
    if options.write is not None:
        options.write.write_text(json.dumps(table, indent=2), encoding="utf-8")
    others = [
        f"{name} with {exporter}"
        for exporter, rows in table.items()
        for name, row in rows.items()
        if row["red twins"]
        or row["failed"] is (name in GREEN)
        or (row["failed"] and row["first"] is ((exporter, name) in UNNAMED))
    ]
    if others:
        sys.exit(f"\nnot what the tests say: {', '.join(others)}")


if __name__ == "__main__":
    main()
