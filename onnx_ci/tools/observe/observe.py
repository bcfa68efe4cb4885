"""``onnx-ci init --observe``: recipes for the models that a program of the project calls, with their inputs and dynamic axes.

The program runs as usual, and :mod:`.observed_calls` in it. Sizes that differ between calls are dynamic axes. Where the program
exports a model with ``torch.onnx.export``, the recipe has its names, axes, options, exporter and opsets as they stand.
"""

from __future__ import annotations

import itertools
import json
import keyword
import os
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.collection.keywords import EXPORT_OPTIONS
from onnx_ci.errors import ConfigurationError
from onnx_ci.opsets import DEFAULT_OPSETS, FIRST_DYNAMO_OPSET
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.text import count, listed

_STARTUP = """\
import importlib.machinery, importlib.util, pathlib, sys
sys.path.remove({folder!r})
found = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if found is not None and found.loader is not None:  # that of the environment, which this one hides
    found.loader.exec_module(importlib.util.module_from_spec(found))
sys.path.append({package!r})
try:
    from onnx_ci.tools.observe.observed_calls import note_calls
except ImportError:  # this Python has no torch
    pass
else:
    note_calls(pathlib.Path({file!r}))
finally:
    sys.path.remove({package!r})
"""
"""What each Python process of the program runs when it starts."""

_DECLARED = ("input_names", "output_names", "dynamic_axes", "dynamic_shapes", "training", *sorted(EXPORT_OPTIONS))
"""The keywords of ``torch.onnx.export`` that a recipe takes, too, except those that say which cells it has."""

Value = Mapping[str, Any]
"""What is known of a value: see ``_value`` of :mod:`.observed_calls`."""


@dataclass(frozen=True, kw_only=True)
class ObservedModel:
    """A model that the program called."""

    name: str
    module: str
    """The module that defines the class, as the recipe imports it."""
    obstacle: str
    """Why the recipe cannot build the model; empty if it can."""
    built: Mapping[str, Any]
    """How it was built, as far as is known: ``file``, ``line``, ``text``, ``arguments`` and what ``loaded`` its weights."""
    calls: Sequence[Mapping[str, Value]]
    """The arguments of each call, by name."""
    outputs: Sequence[str]
    """Names for the outputs; empty if they are not known."""
    export: Mapping[str, Any] | None
    """What ``torch.onnx.export`` was told: ``dynamo``, ``opsets`` and ``told``; ``None`` if the program does not call it."""


def observed_models(command: str, folder: Path) -> list[ObservedModel]:
    """Run a command as in a shell, and return the models that it called, those with most calls first.

    Raises:
        ConfigurationError: it cannot be started, or calls no model.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"--observe: {command!r} is not a command: {error}") from None
    if not words:
        raise ConfigurationError('--observe needs a command, such as "python serve.py"')
    if words[0] in ("python", "python3"):
        words[0] = sys.executable
    with scratch_folder() as scratch:
        file = scratch / "calls.jsonl"
        package = str(Path(__file__).parents[2])
        startup = _STARTUP.format(folder=str(scratch), package=package, file=str(file))
        (scratch / "sitecustomize.py").write_text(startup, encoding="utf-8")
        path = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "TORCHDYNAMO_DISABLE": "1"}  # a compiled model calls no hooks
        try:
            program = subprocess.Popen(words, cwd=folder, env=environment)
        except OSError as error:
            raise ConfigurationError(f"--observe: {words[0]} cannot be started: {error.strerror or error}") from None
        code = _ended(program)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if not lines:
        ended = f"ended with exit code {code} and " if code else ""
        needs = "it must run a Python in which torch is installed, and call the model in PyTorch"
        raise ConfigurationError(f"--observe: {command} {ended}called or exported no model with parameters; {needs}")
    return [*_models(map(json.loads, lines))]


def _ended(program: subprocess.Popen[bytes]) -> int:
    """The exit code of the program, which the user may end with Ctrl-C, as a server must be."""
    while True:
        try:
            return program.wait()
        except KeyboardInterrupt:
            continue


def _models(noted: Iterable[Mapping[str, Any]]) -> Iterator[ObservedModel]:
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    exported: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for each in noted:
        arguments = (each["built"] or {}).get("arguments")  # other ones may mean other sizes, which do not vary in a file
        model = (each["module"], each["class"], json.dumps(arguments))
        export = each.get("export")
        told = json.dumps([export["dynamo"], [export["told"].get(name) for name in _DECLARED]]) if export else ""
        exported[model] |= {told: None} if export else {}
        alike[*model, told].append(each)
    # What a program exports is not what it runs to warm up.
    wanted = {key: calls for key, calls in alike.items() if key[-1] or not exported[key[:-1]]}
    for (module, name, *_), calls in sorted(wanted.items(), key=lambda item: -len(item[1])):
        first = calls[0]
        built: Mapping[str, Any] = {**(first["built"] or {}), "loaded": first.get("loaded")}
        opsets = sorted({opset for each in calls if (opset := each.get("export", {}).get("opset"))})
        yield ObservedModel(
            name=name,
            module=module,
            obstacle=_obstacle(name, module, built, Path(first["script"]) if first["script"] else None),
            built=built,
            calls=[each["arguments"] for each in calls],
            outputs=first["outputs"],
            export={**first["export"], "opsets": opsets} if "export" in first else None,
        )


def _obstacle(name: str, module: str, built: Mapping[str, Any], script: Path | None) -> str:
    """Why a recipe cannot build a model as the program does; empty if it can."""
    if "." in name or built.get("arguments") is None:
        return f"return the {name} that the program builds, or build it as the program does"
    if script is not None and "__name__" not in script.read_text(encoding="utf-8"):
        return f"move {name} from {script.name}, which runs when it is imported, to a module, and build it here"
    if script is not None and not all(map(str.isidentifier, module.split("."))):
        return f"rename {script.name}, which has no name that can be imported, or move {name} to a module, and build it here"
    unknown = [argument for argument, value in built["arguments"].items() if _written(value) is None]
    return f"build the {name} as the program does, with its {', '.join(unknown)}" if unknown else ""


def recipes_of(models: Sequence[ObservedModel]) -> str:
    """The text of a recipe file for the models."""
    header = '"""The models that must export to ONNX, as the program called them. Verified by `onnx-ci run`."""\n'
    names: Counter[str] = Counter()
    text = f"{header}\nimport onnx_ci\nimport torch\n"
    for model in models:
        name = recipe_name(model.name.rpartition(".")[2])
        names[name] += 1
        lines = _recipe(model, f"{name}_{names[name]}" if names[name] > 1 else name)
        text += "\n\n" + "".join(f"{line}\n" for line in lines)
    return text


def recipe_name(name: str) -> str:
    """``small_net`` for a class called ``SmallNet``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return f"{words}_model" if keyword.iskeyword(words) else words


def _recipe(model: ObservedModel, name: str) -> Iterator[str]:
    names = Counter(tuple(_tensors(call)) for call in model.calls)
    usual, _ = names.most_common(1)[0]
    calls = [call for call in model.calls if tuple(_tensors(call)) == usual]
    axes = _dynamic_axes(calls)
    call = _example_among(calls, axes)
    yield "@onnx_ci.recipe("
    for others in names:
        if others != usual:
            had = listed(map(repr, others)) if others else "no tensors"
            yield f"    # {count(names[others], 'call')} of {len(model.calls)} had {had} instead: that is another recipe."
    if model.export is not None:
        yield from _declared(model.export)
    else:
        if usual and all("dtype" in call.get(name, {}) for name in usual):
            yield f"    input_names={json.dumps(usual)},"
        if model.outputs:
            outputs = [f"{each}_out" if each in usual else each for each in model.outputs]
            yield f"    output_names={json.dumps(outputs)},"
        if axes:
            yield f"    # The sizes that differed between {count(len(calls), 'call')}. Declare what else may vary, too."
            yield "    # Axes whose sizes were equal in each call have one name."
            yield f"    dynamic_axes={axes!r},".replace("'", '"')
        else:
            yield f"    # No size differed between {count(len(calls), 'call')}. Declare what may vary, such as the batch:"
            yield f'    # dynamic_axes={{"{next(iter(usual), "x")}": {{0: "batch"}}}},'
    yield ")"
    loaded = model.built.get("loaded")
    yield f"def {name}({'weights=None' if loaded else ''}):"
    yield from _imports(model, call)
    if place := model.built.get("file"):
        yield f"    # {Path(place).name}, line {model.built['line']}: {model.built['text']}"
    if model.obstacle:
        yield f"    raise NotImplementedError({json.dumps(model.obstacle)})"
    else:
        given = ", ".join(f"{name}={_written(value)}" for name, value in model.built["arguments"].items())
        yield f"    model = {model.name}({given})"
        if loaded:
            yield f"    if weights is not None:  # {Path(loaded['file']).name}, line {loaded['line']}: {loaded['text']}"
            yield '        model.load_state_dict(torch.load(weights, map_location="cpu"))'
    yield from _returned(call, calls)


def _declared(export: Mapping[str, Any]) -> Iterator[str]:
    """What an export was told, as keywords of the recipe."""
    exporter, told = "dynamo" if export["dynamo"] else "torchscript", export["told"]
    for name in _DECLARED:
        if name in told:
            yield f"    {name}={told[name]},"
    yield f'    exporter="{exporter}",'
    opsets = export["opsets"] or [FIRST_DYNAMO_OPSET if export["dynamo"] else DEFAULT_OPSETS[-1]]
    yield f"    opsets={opsets if len(opsets) > 1 else opsets[0]},"


def _imports(model: ObservedModel, call: Mapping[str, Value]) -> Iterator[str]:
    """The imports of a recipe. They are its own: a class may have the name of another recipe, or of a class elsewhere."""
    if model.obstacle:
        return
    names: dict[str, set[str]] = defaultdict(set, {model.module: {model.name}})
    for module, name in _classes([*model.built["arguments"].values(), *call.values()]):
        names[module].add(name)
    yield from (f"    from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names))
    yield ""


def _returned(call: Mapping[str, Value], calls: Sequence[Mapping[str, Value]]) -> Iterator[str]:
    """The lines that return the model and its arguments. Numbers, texts and None are fixed: a file has no inputs for them."""
    fixed = {name: value["plain"] for name, value in call.items() if "plain" in value}
    given = {name: value for name, value in call.items() if name not in fixed}
    if unknown := [f"{name}, a {value['other']}" for name, value in given.items() if "other" in value]:
        yield f"    raise NotImplementedError({json.dumps(f'give the model {unknown[0]}, as the program does')})"
    for name in (name for name, value in call.items() if "plain" in value):
        given_too = {each[name]["plain"] for each in calls if "plain" in each.get(name, {})} - {call[name]["plain"]}
        if given_too:
            yield f"    # {name} was {listed(sorted(given_too))}, too. A file has one value of it; declare a recipe for each."
    if fixed:
        values = ", ".join(f'"{name}": {value}' for name, value in fixed.items())
        yield f"    model = onnx_ci.adapt(model, inputs=[{', '.join(map(json.dumps, given))}], fixed={{{values}}})"
    positional = [*given] if fixed else [*itertools.takewhile(lambda name: "dtype" in given[name], given)]
    args = [str(_written(given[name])) for name in positional]
    others = ", ".join(f'"{name}": {_written(value)}' for name, value in given.items() if name not in positional)
    tuple_of_args = f"({', '.join(args)}{',' if len(args) == 1 else ''})"
    yield f"    return model, {tuple_of_args}" + (f", {{{others}}}" if others else "")


def _tensors(value: Any, path: tuple[str, ...] = ()) -> dict[str, Value]:
    """The tensors in the arguments of a call, by the names that the recipe gives them: ``image``, ``pair.0``."""
    if "dtype" in value:
        return {".".join(path): value}
    items = next((value[kind] for kind in ("list", "tuple", "dict", "keywords") if kind in value), {} if path else value)
    pairs = items.items() if isinstance(items, Mapping) else enumerate(items)
    return {name: each for key, item in pairs for name, each in _tensors(item, (*path, str(key))).items()}


def _dynamic_axes(calls: Sequence[Mapping[str, Value]]) -> dict[str, dict[int, str]]:
    """The axes whose sizes differ between calls. Axes that always have the same sizes have one name."""
    names: dict[tuple[int, ...], str] = {}
    axes: dict[str, dict[int, str]] = defaultdict(dict)
    tensors = [_tensors(call) for call in calls]
    for name in tensors[0]:
        shapes = [each[name]["shape"] for each in tensors]
        if len({len(shape) for shape in shapes}) != 1:
            continue
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            if len(set(sizes)) > 1:
                usual = {0: "batch", 1: "length"} if len(shapes[0]) < 4 else {0: "batch", 2: "height", 3: "width"}
                free = usual.get(axis) if usual.get(axis) not in names.values() else None
                axes[name][axis] = names.setdefault(sizes, free or f"{name.replace('.', '_')}_{axis}")
    return dict(axes)


def _example_among(calls: Sequence[Mapping[str, Value]], axes: Mapping[str, Mapping[int, str]]) -> Mapping[str, Value]:
    """The call for the example. A size of 1, or one that two axes have, may be taken for a constant or for the other axis.

    A call with zeros is likely to be one that warms up or counts operations.
    """

    def merit(call: Mapping[str, Value]) -> tuple[int, int, int]:
        tensors = _tensors(call)
        sizes = {label: tensors[name]["shape"][axis] for name, of in axes.items() for axis, label in of.items()}
        given = sum(bool(each["least"] or each["most"]) for each in tensors.values())
        return given, sum(size > 1 for size in sizes.values()), len(set(sizes.values()))

    return max(calls, key=merit)


def _written(value: Value) -> str | None:
    """A value as the recipe makes it, a tensor with random values; ``None`` if that is not possible."""
    match value:
        case {"plain": text}:
            return str(text)
        case {"dtype": _}:
            return _tensor(value)
        case {"list": items} | {"tuple": items}:
            texts = [_written(item) for item in items]
            if None in texts:
                return None
            inside = ", ".join(map(str, texts))
            return f"[{inside}]" if "list" in value else f"({inside}{',' if len(texts) == 1 else ''})"
        case {"dict": items}:
            written = {key: _written(item) for key, item in items.items()}
            return None if None in written.values() else f"{{{', '.join(f'{json.dumps(k)}: {v}' for k, v in written.items())}}}"
        case {"keywords": items}:
            written = {key: _written(item) for key, item in items.items()}
            given = ", ".join(f"{name}={text}" for name, text in written.items())
            return None if None in written.values() else f"{value['class']}({given})"
        case {"class": name}:
            return str(name)
    return None


def _classes(value: Any) -> Iterator[tuple[str, str]]:
    """The modules and names of the classes that the recipe names."""
    if isinstance(value, Mapping) and "module" in value:
        yield value["module"], value["class"]
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in inside:
        yield from _classes(each)


def _tensor(value: Value) -> str:
    """A tensor of the same shape, type and range."""
    shape, dtype, least, most = value["shape"], value["dtype"], value["least"], value["most"]
    sizes, kind = ", ".join(map(str, shape)) or "()", "" if dtype == "torch.float32" else f", dtype={dtype}"
    is_mask = dtype == "torch.bool" or (isinstance(most, int) and 0 <= least <= most == 1)
    if is_mask or least == most == 1:
        return f"torch.ones({sizes}{kind})"  # of a mask that is drawn, a row may be empty
    if least == most == 0:
        return f"torch.zeros({sizes}{kind})"
    if isinstance(most, int):
        return f"torch.randint({least}, {most + 1}, {tuple(shape)}{kind})"
    if least >= 0 and most > 1:
        return f"torch.empty({sizes}{kind}).uniform_({least:.6g}, {most:.6g})"
    return f"torch.{'rand' if 0 <= least <= most <= 1 else 'randn'}({sizes}{kind})"
