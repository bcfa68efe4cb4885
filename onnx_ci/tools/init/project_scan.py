"""What ``onnx-ci init`` finds in a project: its models and where to import them from, its checkpoints and its workflows.

Source is read, never imported: importing a project may take long, fail, or do anything.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import importlib.util
import os
import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_ci.collection.discovery import SKIPPED_FOLDERS
from onnx_ci.collection.pythonpath import pytest_file, pytest_paths

_MODULES = frozenset(
    {
        "torch.nn.Module",
        "torch.nn.Sequential",
        "lightning.LightningModule",
        "lightning.pytorch.LightningModule",
        "pytorch_lightning.LightningModule",
    }
)
"""Classes of libraries whose subclasses are models."""
_TESTS = ("test_*.py", "*_test.py", "conftest.py", "onnx_recipes.py", "setup.py")
"""Files that are not searched for models."""
_CHECKPOINTS = (".pt", ".pth", ".safetensors")
_PLAIN_PATH = re.compile(r"(?!-)[A-Za-z0-9_./-]+")
"""Paths that need no quotes in a shell, in YAML and in GitHub's expressions."""
_LARGEST = 2**20
"""The size in bytes above which a source file is not read, because it is probably generated."""


@dataclass(frozen=True, kw_only=True)
class ModelClass:
    """A class of the project that is a model, and not a part of another one."""

    name: str
    module: str
    """The dotted name of its module."""
    folder: str
    """The folder that the module is imported from, relative to the project's; empty for the project's own."""
    source: str
    line: int
    arguments: tuple[str, ...]
    """The arguments that its constructor requires."""
    inputs: tuple[str, ...]
    """The arguments of its ``forward``."""


@dataclass(frozen=True, kw_only=True)
class Workflows:
    """The workflows of GitHub Actions that use onnx-ci already, relative to the project's folder."""

    gate: str | None = None
    verdict: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScannedProject:
    """What was found in a project. Paths are relative to its folder, with forward slashes."""

    models: tuple[ModelClass, ...] = ()
    checkpoints: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """The folders that pip can install: the project's own as ``.``, and those of a monorepo that contain models.

    Without those that ``requirements.txt`` installs.
    """
    has_requirements: bool = False
    """Whether there is a ``requirements.txt``."""
    unreachable: tuple[str, ...] = ()
    """The folders with models that a recipe cannot import from yet."""
    pytest_file: str | None = None
    """The file that configures pytest."""
    workflows: Workflows = field(default_factory=Workflows)


def scan(root: Path) -> ScannedProject:
    """Look at the project in ``root``."""
    files = sorted(_files(root), key=lambda path: path.parts)
    tests = pytest_paths("testpaths", root)
    sources = [path for path in files if path.suffix == ".py" and not _is_test(path, root, tests)]
    models = tuple(_models(sources, root))
    configuration = pytest_file(root)
    return ScannedProject(
        models=models,
        checkpoints=tuple(_relative(path, root) for path in files if path.suffix in _CHECKPOINTS),
        packages=tuple(_packages(models, root)),
        has_requirements=(root / "requirements.txt").is_file(),
        unreachable=tuple(_unreachable(models, root)),
        pytest_file=None if configuration is None else configuration.name,
        workflows=_workflows(root),
    )


def _read_toml(file: Path) -> Mapping[str, Any]:
    """The content of a TOML file; empty if the file does not exist or is not valid."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return tomllib.loads(file.read_text(encoding="utf-8"))
    return {}


def _files(root: Path) -> Iterator[Path]:
    """The source files and checkpoints below ``root``, without those of virtual environments, caches and builds."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if not any(fnmatch.fnmatch(name, pattern) for pattern in (*SKIPPED_FOLDERS, "site-packages"))
            and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        for name in names:
            path = Path(folder, name)
            if path.suffix in (".py", *_CHECKPOINTS) and path.is_file():
                yield path


def _is_test(path: Path, root: Path, tests: Iterable[Path]) -> bool:
    folders = path.relative_to(root).parent.parts
    return (
        any(path.is_relative_to(folder) for folder in tests if folder != root)
        or not {"test", "tests"}.isdisjoint(folders)
        or any(fnmatch.fnmatch(path.name, pattern) for pattern in _TESTS)
    )


# --- models


@dataclass(frozen=True)
class _Class:
    """A class at the top level of a file."""

    node: ast.ClassDef
    path: Path
    bases: tuple[str, ...]
    """Their dotted names, each with the name that the file imports replaced with what it stands for."""

    def method(self, name: str) -> ast.FunctionDef | None:
        functions = (node for node in self.node.body if isinstance(node, ast.FunctionDef))
        return next((function for function in functions if function.name == name), None)

    def calls(self) -> Iterator[str]:
        """The last parts of the names that it calls."""
        for node in ast.walk(self.node):
            if isinstance(node, ast.Call) and (name := _dotted(node.func)):
                yield name.rpartition(".")[2]


def _models(sources: Iterable[Path], root: Path) -> Iterator[ModelClass]:
    """The models in source files: the modules of torch with a ``forward``, except those that another module uses as a part."""
    modules = _only_modules([declared for path in sources for declared in _classes(path)])
    by_name = {module.node.name: module for module in modules}
    parts = {name for module in modules for name in module.calls() if name != module.node.name}
    for module in modules:
        forward = _inherited("forward", module, by_name)
        is_sequential = "torch.nn.Sequential" in module.bases
        name = module.node.name
        place = _module_of(module.path, root)
        if name.startswith("_") or name in parts or place is None or (forward is None and not is_sequential):
            continue
        folder, dotted_name = place
        yield ModelClass(
            name=name,
            module=dotted_name,
            folder=_relative(folder, root) if folder != root else "",
            source=_relative(module.path, root),
            line=module.node.lineno,
            arguments=_required(_inherited("__init__", module, by_name)),
            inputs=() if forward is None else tuple(argument.arg for argument in forward.args.args[1:]),
        )


def _classes(path: Path) -> Iterator[_Class]:
    """The classes at the top level of a file that uses torch; none if it is not valid Python."""
    try:
        text = path.read_bytes() if path.stat().st_size <= _LARGEST else b""
        if b"torch" not in text and b"lightning" not in text:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the project's code
            tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    meanings = _imported(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield _Class(node, path, tuple(_meaning(_dotted(base), meanings) for base in node.bases))


def _imported(tree: ast.Module) -> dict[str, str]:
    """What each name that a file imports stands for, as a dotted name."""
    meanings: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meanings |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            meanings |= {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
    return meanings


def _meaning(name: str, meanings: Mapping[str, str]) -> str:
    first, dot, rest = name.partition(".")
    return meanings.get(first, first) + dot + rest


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` as text; empty if the expression is anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (value := _dotted(node.value)):
        return f"{value}.{node.attr}"
    return ""


def _only_modules(classes: list[_Class]) -> list[_Class]:
    """The classes that derive from a module of torch, directly or through other classes of the project."""
    names: set[str] = set()
    while True:
        modules = [
            declared
            for declared in classes
            if any(base in _MODULES or base.rpartition(".")[2] in names for base in declared.bases)
        ]
        if {module.node.name for module in modules} <= names:
            return modules
        names |= {module.node.name for module in modules}


def _inherited(method: str, of: _Class, by_name: Mapping[str, _Class], depth: int = 8) -> ast.FunctionDef | None:
    """A method of a class or of the classes of the project that it derives from."""
    if (function := of.method(method)) is not None or depth == 0:
        return function
    parents = (by_name.get(base.rpartition(".")[2]) for base in of.bases)
    functions = (_inherited(method, parent, by_name, depth - 1) for parent in parents if parent is not None)
    return next((function for function in functions if function is not None), None)


def _required(function: ast.FunctionDef | None) -> tuple[str, ...]:
    """The arguments without a default."""
    if function is None:
        return ()
    positional = [*function.args.posonlyargs, *function.args.args]
    required = positional[1 : len(positional) - len(function.args.defaults)]
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    required += [argument for argument, default in keywords if default is None]
    return tuple(argument.arg for argument in required)


# --- where the models are


def _module_of(path: Path, root: Path) -> tuple[Path, str] | None:
    """The folder from which a file is imported, and the dotted name of its module; ``None`` if it cannot be imported."""
    folder = path.parent
    if (folder / "__init__.py").is_file():
        while folder != root and (folder / "__init__.py").is_file():
            folder = folder.parent
    else:  # a script, or a module of a namespace package
        parents = [parent for parent in path.parents if parent.is_relative_to(root)]
        folder = next((parent for parent in parents if parent.name == "src" or _is_installable(parent)), root)
    parts = path.relative_to(folder).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    is_importable = bool(parts) and all(part.isidentifier() for part in parts)
    is_plain = folder == root or _PLAIN_PATH.fullmatch(_relative(folder, root)) is not None
    return (folder, ".".join(parts)) if is_importable and is_plain else None


def _packages(models: Iterable[ModelClass], root: Path) -> Iterator[str]:
    """What pip installs besides ``requirements.txt``, as its arguments."""
    places = {Path()} | {place for model in models for place in (Path(model.folder), Path(model.folder).parent)}
    for place in sorted(places - set(_required_folders(root))):
        if _is_installable(root / place):
            yield f"./{place.as_posix()}" if place != Path() else "."


def _required_folders(root: Path) -> Iterator[Path]:
    """The folders that ``requirements.txt`` names; pip refuses to install one of them twice."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines():
            if match := re.match(r"\s*(?:-e\s*|--editable[= ]\s*)?(\.[\w./-]*)", line):
                yield Path(os.path.normpath(match[1]))


def _is_installable(folder: Path) -> bool:
    """Whether pip can install the project in ``folder``."""
    project = _read_toml(folder / "pyproject.toml")
    tools = project.get("tool")
    tools = tools if isinstance(tools, dict) else {}
    uv, poetry = (table if isinstance(table, dict) else {} for table in (tools.get("uv"), tools.get("poetry")))
    if uv.get("package") is False or poetry.get("package-mode") is False:
        return False
    if "workspace" in uv and "build-system" not in project:
        return False
    return "project" in project or bool(poetry) or (folder / "setup.py").is_file()


def _unreachable(models: Iterable[ModelClass], root: Path) -> Iterator[str]:
    """The folders of models that are neither on pytest's ``pythonpath`` nor installed."""
    reachable = {path.resolve() for path in pytest_paths("pythonpath", root)}
    for folder in sorted({model.folder for model in models} - {""}):
        names = {model.module.partition(".")[0] for model in models if model.folder == folder}
        if (root / folder).resolve() not in reachable and not all(_is_installed(name) for name in names):
            yield folder


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _workflows(root: Path) -> Workflows:
    """The first workflow with the gate and the first that publishes its verdict."""
    workflows: dict[str, str] = {}
    for path in sorted((root / ".github" / "workflows").glob("*.y*ml")):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        if re.search(r"onnx-ci/publish@", text):
            workflows.setdefault("verdict", _relative(path, root))
        if re.search(r"onnx-ci(/\.github/workflows/onnx-export\.yml)?@|\bonnx-ci run\b|--onnx-export\b", text):
            workflows.setdefault("gate", _relative(path, root))
    return Workflows(**workflows)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
