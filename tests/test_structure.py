"""The shape of the project: which module may import which, and what must stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "onnx_ci"

# The rows of ARCHITECTURE.md's table: a module imports only from rows above its own.
LAYERS = [
    {"bisect_step", "capture", "errors", "opsets"},
    {"records"},
    {"cache", "report"},
    {"report.json_file"},
    {"rules", "shards"},
    {"environment", "git", "onnx_file", "sources"},
    {"graph_text"},
    {"installed", "processes"},
    {"packages"},
    {"recipe"},
    {"config"},
    {"schema"},
    {"discovery"},
    {"lint", "matrix", "strategy"},
    {"content", "devices", "global_state"},
    {"calls"},
    {"axes", "copies", "module_values", "program"},
    {"fingerprint"},
    {"reference"},
    {"probes"},
    {"notices", "observability", "purity", "sketch", "weights"},
    {"prepare"},
    {"exporting"},
    {"contract", "facts"},
    {"skeleton"},
    {"runtime"},
    {"runtime.arrays"},
    {"runtime.onnxruntime", "runtime.openvino", "runtime.reference"},
    {"compare"},
    {"running"},
    {"blame", "four_ways"},
    {"engine"},
    {"isolation"},
    {"unconvertible"},
    {"report.grid", "report.markup", "report.repeat"},
    {"baseline"},
    {"baseline.entry"},
    {"baseline.changes", "baseline.file"},
    {"baseline.differences", "baseline.folder"},
    {"baseline.check", "baseline.revisions"},
    {"baseline.history"},
    {"report.plot", "report.text", "report.trend"},
    {"report.html", "report.markdown", "report.merge"},
    {"report.support"},
    {"api"},
    {"scheduling"},
    {"diagnosis"},
    {"commands"},
    {"commands.common", "commands.progress"},
    {"commands.history", "commands.run"},
    {
        "commands.baseline",
        "commands.bisect",
        "commands.cache",
        "commands.check",
        "commands.completion",
        "commands.config",
        "commands.doctor",
        "commands.init",
        "commands.list",
        "commands.matrix",
        "commands.ops",
        "commands.report",
        "commands.rules",
        "commands.show",
        "commands.table",
        "commands.verify",
    },
    {"cli", "pytest_plugin"},
    {"github"},
    {"github.inputs", "github.runner"},
    {"github.annotations", "github.install"},
    {"github.action"},
    {"__main__"},
]
HEAVY = {"torch", "onnx", "onnxruntime", "numpy", "click", "torchvision", "onnxscript"}


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imports_of(file: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in the file; those for type checking only are left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onnx_ci":
            base = node.module.removeprefix("onnx_ci").removeprefix(".")
            for alias in node.names:
                deeper = f"{base}.{alias.name}".removeprefix(".")
                found.add(deeper if deeper in MODULES else base)
    return found - {""}


MODULES = {module_name(file) for file in PACKAGE.rglob("*.py")}


def test_every_module_has_its_place():
    assert set.union(*LAYERS) == MODULES - {"__init__"}


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=module_name)
def test_a_module_imports_only_from_above(file):
    name = module_name(file)
    if name == "__init__":
        return
    row = next(index for index, layer in enumerate(LAYERS) if name in layer)
    above = set.union(set(), *LAYERS[:row])
    assert imports_of(file) <= above


def test_the_table_in_the_architecture_page_is_the_one_that_is_tested():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [name.strip(" `").replace("/", ".") for row in rows for name in row.split(",")]
    assert named == [name for layer in LAYERS for name in sorted(layer)]


@pytest.mark.parametrize("module", ["onnx_ci", "onnx_ci.pytest_plugin", "onnx_ci.github.action"])
def test_importing_it_imports_nothing_heavy(module):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"], capture_output=True, text=True, check=True, timeout=60
    )
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert module.split(".")[0] in imported
    assert not imported & HEAVY


def test_the_cli_lists_cells_without_loading_torch(tmp_path):
    (tmp_path / "onnx_recipes.py").write_text("import onnx_ci\n\n@onnx_ci.recipe\ndef net(): ...\n")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "onnx_ci", "list"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 9
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & (HEAVY - {"click"})
