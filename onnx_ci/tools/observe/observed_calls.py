"""Notes how a running program builds and calls its models. It runs in that program, so it needs nothing but torch.

Each call of a model is one line of JSON: the class, how the model was built, and its arguments. What a model calls of its own
parts is not noted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import linecache
import sys
import sysconfig
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_MOST_CALLS = 64
"""How many calls of a class are noted."""
_LARGEST = 2**22  # of larger tensors, the smallest and largest values are looked for among so many elements
_BUILT = "_onnx_ci_built"
"""The attribute in which a model keeps how it was built."""
_LOADED = "_onnx_ci_loaded"
"""The attribute in which a model keeps the line that loaded its weights."""
_WRAPPERS = ("torch.jit.", "torch.nn.parallel.")
"""Where the classes are defined that only call another module, which is the model."""

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
"""Where the packages are that the program uses."""
_MAIN = ("__main__", "__mp_main__")
"""The names of the module that the program starts with, the second in processes that it starts."""


class _Depth(threading.local):
    """How many modules run in a thread, within each other."""

    modules = 0


def note_calls(file: Path) -> None:
    """Note from now on, in ``file``, how this process builds and calls models. Nothing of it can fail the program."""
    depth, counts = _Depth(), dict[type, int]()
    hooks = torch.nn.modules.module

    def note(line: Mapping[str, Any]) -> None:
        text = json.dumps(line)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(text + "\n")

    def entered(module: torch.nn.Module, args: Any) -> None:
        if not _is_wrapper(module):
            depth.modules += 1

    def left(module: torch.nn.Module, args: Any, kwargs: Any, output: Any = None) -> None:  # torch gives three if a call fails
        cls = type(module)
        if _is_wrapper(module):
            return
        depth.modules -= 1
        failed, is_loss = output is None, next(module.parameters(), None) is None
        if depth.modules or failed or is_loss or counts.get(cls, 0) >= _MOST_CALLS:
            return
        if torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined, no-untyped-call]
            return  # what is asked of the tensors would be in the graph
        with contextlib.suppress(Exception):
            note({**_call(module, args, kwargs), "outputs": _output_names(output)})
            counts[cls] = counts.get(cls, 0) + 1

    hooks.register_module_forward_pre_hook(entered)
    hooks.register_module_forward_hook(left, with_kwargs=True, always_call=True)
    build = torch.nn.Module.__init__

    @functools.wraps(build)
    def noting(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            self.__dict__.setdefault(_BUILT, _how_built(self, sys._getframe(1)))

    torch.nn.Module.__init__ = noting  # type: ignore[method-assign]
    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def loading(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            self.__dict__[_LOADED] = _line_of(sys._getframe(1))
        return load(self, *args, **kwargs)

    torch.nn.Module.load_state_dict = loading  # type: ignore[method-assign]
    export = torch.onnx.export

    @functools.wraps(export)
    def exporting(*args: Any, **kwargs: Any) -> Any:
        told: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            bound = inspect.signature(export).bind(*args, **kwargs)
            bound.apply_defaults()
            told = _export(**bound.arguments)
        program: Any = None
        try:
            program = export(*args, **kwargs)
            return program
        finally:
            with contextlib.suppress(Exception):
                told["export"]["opset"] = told["export"]["opset"] or _opset_of(program, bound.arguments["f"])
            with contextlib.suppress(Exception):
                if told:
                    note(told)

    torch.onnx.export = exporting


def _is_wrapper(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith(_WRAPPERS) and not isinstance(module, torch.jit.ScriptModule)


def _how_built(model: torch.nn.Module, frame: FrameType | None) -> dict[str, Any]:
    """The arguments of the constructor, and the line that calls it; empty for a class without a constructor of its own."""
    constructor = None
    while frame is not None and frame.f_code.co_name == "__init__" and _first_argument(frame) is model:
        constructor, frame = frame, frame.f_back
    if frame is None or constructor is None:
        return {}
    names, rest, keywords, values = inspect.getargvalues(constructor)
    names = [*names, *constructor.f_code.co_varnames[len(names) :][: constructor.f_code.co_kwonlyargcount]]
    given = {name: values[name] for name in names[1:]} | (values[keywords] if keywords else {})
    given = {name: _value(value) for name, value in given.items()}
    if rest and values[rest]:
        given[f"*{rest}"] = {"other": "tuple"}
    return {**_line_of(frame), "arguments": given}


def _line_of(frame: FrameType) -> dict[str, Any]:
    """The line of the program that runs in a frame or calls it: more is said by it than by a line of a library."""
    frames = (each for each, _ in traceback.walk_stack(frame) if not each.f_code.co_filename.startswith((*_INSTALLED, "<")))
    frame = next(frames, frame)
    file, line = frame.f_code.co_filename, frame.f_lineno
    return {"file": file, "line": line, "text": linecache.getline(file, line).strip()}


def _first_argument(frame: FrameType) -> Any:
    names = frame.f_code.co_varnames
    return frame.f_locals.get(names[0]) if names else None


def _call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    cls = type(module)
    signature = inspect.signature(module.forward)
    given: dict[str, Any] = {}
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()  # TorchScript makes inputs of numbers that are defaults
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            given |= {f"{name}_{place}": each for place, each in enumerate(value)}
        elif parameter.kind is parameter.VAR_KEYWORD:
            given |= value
        elif value is not None or parameter.default is not None:
            given[name] = value
    built = module.__dict__.get(_BUILT)
    is_script = isinstance(module, torch.jit.ScriptModule)
    if built is None and "__init__" not in vars(cls):
        built = {"arguments": {}}  # a class without a constructor takes none
    script = getattr(sys.modules[cls.__module__], "__file__", "") if cls.__module__ in _MAIN else None
    spec = getattr(sys.modules[cls.__module__], "__spec__", None) if script else None
    return {
        "class": module.original_name if is_script else cls.__qualname__,
        "module": spec.name if spec else Path(script).stem if script else cls.__module__,
        "script": script,
        "built": None if script == "" or is_script else built,  # a class of python -c cannot be imported
        "loaded": module.__dict__.get(_LOADED),
        "arguments": {name: _value(value) for name, value in given.items()},
    }


def _export(model: torch.nn.Module, args: Any, kwargs: Any, **options: Any) -> dict[str, Any]:
    """A call of ``torch.onnx.export``: the arguments of the model as in :func:`_call`, and what the export was told."""
    positional = list(args) if isinstance(args, tuple) else [args]
    if positional and isinstance(positional[-1], dict) and not kwargs:  # torch takes it for the keywords
        kwargs = positional.pop()
    inner: Any = model.module if _is_wrapper(model) else model
    call = _call(inner, tuple(positional), kwargs or {})
    options["dynamic_shapes"] = _without(options.get("dynamic_shapes"), call["arguments"])
    usual = {name: each.default for name, each in inspect.signature(torch.onnx.export).parameters.items()}
    told = {name: _written(value) for name, value in options.items() if value != usual.get(name)}
    export = {"dynamo": bool(options["dynamo"]), "opset": options["opset_version"], "told": told}
    return {**call, "outputs": [], "export": export}


def _opset_of(program: Any, file: Any) -> int | None:
    """The opset of what was exported; ``None`` if the file is not on disk, and torch returns no program."""
    if program is not None:
        return int(program.model.opset_imports[""])
    from onnx_ci.onnx_model.signature import opset_of  # which needs onnx, as an export does

    return opset_of(Path(file))


def _without(shapes: Any, arguments: Mapping[str, Any]) -> Any:
    """``dynamic_shapes`` without those of arguments that are plain values, which the recipe fixes."""
    if isinstance(shapes, dict):
        return {name: each for name, each in shapes.items() if "plain" not in arguments.get(name, {})}
    if isinstance(shapes, (tuple, list)):
        return type(shapes)(each for each, value in zip(shapes, arguments.values(), strict=False) if "plain" not in value)
    return shapes


def _dimension(name: str, value: Any) -> str:
    """A ``torch.export.Dim``: its name, or all of it if it has a range."""
    least, most = getattr(value, "min", 0), getattr(value, "max", None)
    bounds = [f"min={least}"] * (isinstance(least, int) and least > 0) + [f"max={most}"] * isinstance(most, int)
    return f"torch.export.Dim({', '.join([json.dumps(name), *bounds])})" if bounds else json.dumps(name)


def _written(value: Any) -> str:
    """What Python writes for an option of the export."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(key)}: {_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_written, value)) + "," * (isinstance(value, tuple) and len(value) == 1)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, torch.onnx.TrainingMode):
        return str(value is torch.onnx.TrainingMode.TRAINING)
    name = getattr(value, "__name__", "")  # that of a torch.export.Dim
    hint = getattr(getattr(value, "type", None), "name", "")  # that of torch.export.Dim.DYNAMIC
    return _dimension(name, value) if name else f"torch.export.Dim.{hint}" if hint else repr(value)


def _output_names(output: Any) -> list[str]:
    """Names for what a model returned: those of a dictionary, or ``output``, ``output_1``; empty for nested outputs."""
    if isinstance(output, Mapping):
        return [str(name) for name, value in output.items() if isinstance(value, torch.Tensor)]
    outputs = output if isinstance(output, (list, tuple)) else [output]
    if not all(isinstance(each, torch.Tensor) for each in outputs):
        return []
    return [f"output_{place}" if place else "output" for place in range(len(outputs))]


def _value(value: Any) -> Any:
    """What is known of a value, in JSON.

    Of a tensor that is its shape, its type and its range. Lists and dictionaries have those of their items, plain values what
    Python writes for them, objects such as those of data classes the arguments that make them, and all others their class.
    """
    if isinstance(value, torch.Tensor):
        sample = value.detach().flatten()[:: value.numel() // _LARGEST + 1]
        values = torch.zeros(1) if value.is_complex() or not value.numel() else sample
        least, most = values.min().item(), values.max().item()
        return {"dtype": str(value.dtype), "shape": [*value.shape], "least": least, "most": most}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_value(each) for each in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _value(each) for key, each in value.items()}}
    items = [*value.keys(), *value.values()] if type(value) is dict else [value]
    if all(item is None or type(item) in (bool, int, float, str) for item in items):
        return {"plain": repr(value)}  # such as the names of classes by their numbers
    if isinstance(value, torch.fx.Proxy):
        raise TypeError("torch.fx traces the model")
    if isinstance(value, torch.dtype):
        return {"plain": str(value)}
    if isinstance(value, type) and _can_be_imported(value):
        return {"class": value.__name__, "module": value.__module__}
    return _construction(value) or {"other": type(value).__name__}


def _can_be_imported(cls: type) -> bool:
    return "." not in cls.__qualname__ and cls.__module__ not in _MAIN


def _construction(value: Any) -> dict[str, Any] | None:
    """The class and the keyword arguments that make an equal object, or that made a module; ``None`` if they are not known."""
    cls = type(value)
    if not _can_be_imported(cls):
        return None
    if isinstance(value, torch.nn.Module):
        arguments = (value.__dict__.get(_BUILT) or {}).get("arguments")
        return None if arguments is None else {"class": cls.__name__, "module": cls.__module__, "keywords": arguments}
    if "__eq__" not in {name for base in cls.__mro__[:-1] for name in vars(base)}:
        return None  # two objects of it are never equal
    with contextlib.suppress(Exception):  # the class can raise anything, and take other arguments
        arguments = dict(value if isinstance(value, dict) else vars(value))
        with contextlib.suppress(Exception):
            usual = cls()
            defaults = usual if isinstance(usual, dict) else vars(usual)
            arguments = {name: each for name, each in arguments.items() if name not in defaults or defaults[name] != each}
        if cls(**arguments) == value:
            return {
                "class": cls.__name__,
                "module": cls.__module__,
                "keywords": {k: _value(each) for k, each in arguments.items()},
            }
    return None
