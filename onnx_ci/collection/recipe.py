"""Recipes: declarations of exports, and the decorator that creates them."""

from __future__ import annotations

import copyreg
import inspect
import pickle
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Unpack, overload

from onnx_ci.collection.expectations import expectations_of
from onnx_ci.collection.importing import import_module_of
from onnx_ci.collection.keywords import RecipeFields, RecipeKeywords, check_together, fields_of, fields_of_case
from onnx_ci.errors import RecipeError
from onnx_ci.opsets import FIRST_DYNAMO_OPSET, parse_opsets
from onnx_ci.results.verdict import Expectation
from onnx_ci.text import listed

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_CASE = re.compile(r"[\w.-]+")
_WEIGHTS = "weights"
"""The parameter of a recipe's function that the settings fill."""


@dataclass(frozen=True)
class Recipe(RecipeFields):
    """A named declaration of one export. Created by :func:`recipe`; its fields are that decorator's keywords."""

    function: Callable[..., Any]
    _: KW_ONLY
    export_options: Mapping[str, Any]
    """The keywords of ``torch.onnx.export``, which are passed on."""
    case: str | None = None
    """The key of ``each`` that the recipe was created for. Its function is called with the key."""

    @property
    def file(self) -> str:
        """The file that defines the recipe."""
        return self._code.co_filename

    @property
    def line(self) -> int:
        """The line on which the recipe's definition starts, counted from 1."""
        return self._code.co_firstlineno

    @property
    def _code(self) -> CodeType:
        function = inspect.unwrap(self.function)
        if isinstance(function, type):
            methods = [each.__code__ for each in vars(function).values() if isinstance(each, FunctionType)]
            return min(methods, key=lambda code: code.co_firstlineno)
        code: CodeType = function.__code__
        return code

    @property
    def takes_weights(self) -> bool:
        """Whether the function has a parameter ``weights``, so that the settings can specify trained weights for it."""
        return _WEIGHTS in inspect.signature(self.function).parameters

    def expectations(
        self, exporter: str, opset: int, graph_pass: str | None = None, *, device: str = "cpu"
    ) -> tuple[Expectation, ...]:
        """What the recipe expects to go wrong in a cell: in the file of a pass, or in the exporter's own file."""
        return expectations_of(self.expect, exporter, opset, graph_pass, device)

    def __reduce__(self) -> Any:
        """A recipe that a file declares is sent to another process as its name and its file, with the fields that differ.

        So a copy of a recipe is the recipe itself. One with other keywords than those declared has the name of its function's.
        """
        of_function = [each for each in _declarations if each.recipe.function is self.function]
        of_name = [each for each in of_function if each.recipe.name == self.name]
        original = next(iter(of_name or of_function), None)
        if original is None or original.file is None or original.module is None or original.module == "__main__":
            return copyreg.__newobj__, (type(self),), vars(self)  # type: ignore[attr-defined]
        declared = vars(original.recipe)
        changes = {name: value for name, value in vars(self).items() if value is not declared[name]}
        import cloudpickle  # not installed where a report is only read

        # They may refer to functions of the file, so they are read once the other process has imported it.
        pickled = cloudpickle.dumps(changes) if changes else None
        return recipe_in, (original.module, original.file, original.recipe.name, pickled)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decorated function, with its case if it has one."""
        return self.function(*(args if self.case is None else (self.case, *args)), **kwargs)


Cases = Mapping[str, RecipeKeywords]
"""By the key of each case, the keywords of its recipe."""


@overload
def recipe(function: Callable[..., Any], /, **keywords: Unpack[RecipeKeywords]) -> Recipe: ...


@overload
def recipe(*, each: Cases, **keywords: Unpack[RecipeKeywords]) -> Callable[[Callable[..., Any]], dict[str, Recipe]]: ...


@overload
def recipe(function: None = None, /, **keywords: Unpack[RecipeKeywords]) -> Callable[[Callable[..., Any]], Recipe]: ...


def recipe(function: Callable[..., Any] | None = None, /, *, each: Cases | None = None, **keywords: Any) -> Any:
    """Declare an export. The decorated function returns ``(model, args)`` or ``(model, args, kwargs)``.

    It may also return a ``torch.onnx.ExportableModule``, which has its own example, names and dynamic axes, or be such a class,
    ``net = onnx_ci.recipe(Net)``. torch exports these with dynamo alone.

    The function runs under a fixed seed. It may take a parameter ``weights``, which is ``None`` unless the settings specify
    trained weights for it.

    Besides the keywords below, those of ``torch.onnx.export`` in :data:`EXPORT_OPTIONS` are passed on unchanged. ``None``
    stands for the default of a keyword.

    Every recipe that a recipe file creates is run, even if the file keeps no name for it. So recipes can be created in a loop
    or by a function.

    Args:
        function: the function, if the decorator is used without keywords.
        each: one recipe for each key, with keywords of its own: ``{"small": {}, "large": {"max_drift": 32, "opsets": "13-"}}``.
            They override the decorator's keywords, but add to its ``expect``, ``tags``, ``allow`` and ``allow_warnings``. The
            function is called with the key. If it is called ``family``, the recipes are ``family-small`` and ``family-large``.
        name: the recipe's name, unique in a run. Default: the function's name.
        input_names: names of the graph's inputs, in the order of the tensors in ``args`` (flattened) and then ``kwargs``.
        output_names: names of the graph's outputs, in the order of the tensors that the model returns (flattened).
        dynamic_axes: the dynamic axes, by the name of the input or output: ``{"input": {0: "batch"}}``, or
            ``{"input": [0]}`` for axes without names. Axes of the same name have the same size. If the size of an axis follows
            from others, its name is an expression of theirs, with integers, ``+``, ``-``, ``*`` and ``//``:
            ``{"past": {1: "past"}, "mask": {1: "past + 1"}}``, or ``{"image": {2: "8*h"}}`` for multiples.
        dynamic_shapes: the same in the form of ``torch.export``: a tree like ``args`` whose leaves are ``{axis: name}`` or
            ``{axis: Dim("past") + 1}``. Either form works with both exporters. Without ``input_names``,
            inputs are called after the parameters of forward.
        opsets: the opsets that the recipe supports, such as ``"11-17"``. Default: all.
        exporter: ``"torchscript"``, ``"dynamo"``, the name of a plug-in or, for ``export``, ``"custom"``, or several of them.
            Default: ``"custom"`` with ``export``, otherwise TorchScript below opset 18 and dynamo from 18.
        export: the project's own way to export, a function that is called with ``(model, args, kwargs, opset, path)``. It
            writes ``path``, or returns an ``ONNXProgram``, a ``ModelProto`` or the path of the file that it wrote. It must
            export the model that it gets: a copy, which may have probe weights. The keywords of ``torch.onnx.export`` are not
            passed to it; ``input_names`` and ``output_names`` are what its file must have.
        run_files: for an export of several files, such as a generator's prefill and decode: ``export`` then returns them by
            name, ``{"prefill": path, "decode": path}``, and this function runs them, as the project does where it ships them.
            It is called with the files by name and the arguments of ``forward``, and returns what ``forward`` returns. Each
            file is called with its inputs by name, ``files["decode"](tokens=tokens)`` or with a dictionary, and returns its
            outputs by name; its attributes ``inputs`` and ``outputs`` are their names. What the function computes is compared
            with the model on all inputs that are tried.
        devices: the devices that the recipe supports: ``"cpu"``, ``"cuda"`` (any GPU), or both. Default: all.
        runtimes: the runtimes that support the file, such as ``("onnxruntime", "reference")``. Default: all. Of these, the
            file runs in those that the settings name, or else in ONNX Runtime.
        max_drift: the largest drift that passes, in units of PyTorch's own rounding error: one number, or numbers by output
            name or data type: ``{"logits": 64, "float16": 100}``. Default: the settings' limit.
        rtol: judge by ``|error| <= atol + rtol * |reference|`` instead of by drift: one number, or numbers by output name or
            data type. Default: that of ``recipe-defaults``, or by drift.
        atol: see ``rtol``.
        seed: the seed of torch, numpy and random while the function runs.
        training: export in training mode. Otherwise ``eval()`` is called on the model.
        nondeterministic: the model draws random numbers on purpose, so shapes, data types and distributions are compared.
        weights: ``"trained"`` if the function itself loads trained weights. The model is exported with them. If they hide
            layers, it is also exported with probe weights, which make a wrong layer visible. ``"seeded"`` if the function loads
            none: the model is exported with probe weights. Default: ``"trained"`` if the function, while it runs, loads
            weights with ``load_state_dict``, ``torch.load``, ``torch.jit.load`` or safetensors, or calls a function that does,
            such as ``from_pretrained``.
        tf32: on CUDA, use TensorFloat-32, which is off on both sides by default. The noise is then that of TensorFloat-32,
            about a thousand times that of float32.
        all_on_device: on CUDA, every node that computes with floating-point numbers must run there. By default, nodes that
            ONNX Runtime places on the CPU are only noted.
        dynamic_sizes: other sizes to try for a dynamic axis, by the axis's name: one or several, all of which are tried. Or
            the sizes that the axis can have, a ``range`` or ``onnx_ci.multiple_of(8)``, from which onnx-ci chooses. Default:
            any.
        feedback: outputs that are inputs of the next step, by name: ``{"present": "past"}`` for a cache, ``{"hn": "h0"}`` for
            the state of an RNN. The file is then also run several times in a row on its own outputs. After each step it is
            compared with the eager model, which is run in the same way. An axis that grows from step to step must be declared
            dynamic.
        steps: how many times in a row, the example included. Default: 8.
        step_inputs: a function that returns those inputs of a step, by name, that depend on the step. It is called with the
            step's number, which is 0 for the example, and with all inputs by name. Inputs that are fed back have their values
            of this step, and the others those of the example. So the mask of a growing cache is
            ``lambda step, inputs: {"mask": torch.ones(1, inputs["past"].shape[1] + inputs["tokens"].shape[1])}``, and the
            position in a static cache is ``lambda step, inputs: {"position": inputs["position"] + step}``.
            Inputs that it does not return are drawn like the example's, floats and integers from its values. An integer input
            with a single value keeps it.
        inputs: what inputs the model gets. Either the values that they can have, by name:
            ``{"tokens": onnx_ci.integers(0, 1000), "mask": onnx_ci.mask()}``. Anything else is drawn by a function of the sizes
            of the dynamic axes and a generator, such as
            ``lambda sizes, generator: torch.rand(sizes["batch"], 3, generator=generator)``. Every other input is like the
            example's. Or files with inputs: ``.npz`` files, whose keys are names in ``input_names``, or positions; folders with
            ``input_0.pb`` and so on; or globs such as ``"data/*.npz"``, relative to the recipe's file. Or both, in a list.
        then: what happens to the file before it ships, in order: names of built-in passes, functions, or
            :func:`onnx_ci.graph_pass` with options. The file of each pass is judged as a cell of its own.
        operators: the operators that the file may use, such as those of a runtime: ``["Conv", "com.microsoft.Gelu"]``. Default:
            those of the settings' ``recipe-defaults``, or all. This keyword and the next three are about the file that ships:
            that of the last pass of ``then``, or else the exporter's own.
        max_ir_version: the newest version of ONNX's intermediate representation that the file may have. Default: that of
            ``recipe-defaults``, or any.
        static: whether every shape in the file must be fixed: those of inputs and outputs, and of all values between. Default:
            that of ``recipe-defaults``, or no.
        external_data: ``True`` if the weights must be in another file, ``False`` if they must not. It is passed to dynamo.
            Default: either.
        expect: known failures, by opset: ``{"9-10": onnx_ci.unsupported("index_put")}``, or several for one opset. A key can
            also name an exporter, ``"dynamo"``, a device, ``"cuda"``, or several of the three in this order:
            ``"torchscript cuda 9-10"``. With ``+float16`` at its end, a key is about the file of that pass, and with
            ``+export`` about the exporter's own. Otherwise it is about all files.
        tags: words by which ``--tags``, and pytest's ``-k``, select the recipe.
        manual: why the recipe runs only on request, such as ``"needs 8 GiB"``. It is requested by the name of its file, by a
            glob of ``--select`` that does not begin with ``*``, or by one of its tags.
        allow: rules that are reported without failing the cell.
        allow_warnings: regular expressions. Exporter warnings that match one of them are not reported.
        timeout: the time limit of each of its cells in seconds. Default: the settings' limit.

    Returns:
        A :class:`Recipe`, or a decorator that creates one. With ``each``, a decorator that creates a dictionary of recipes.

    Raises:
        RecipeError: a keyword is unknown, its value is invalid, or the function takes parameters that are not filled.
    """
    fields_by_case = {None: fields_of(keywords)} if each is None else _fields_by_case(each, keywords)
    namespace = _importing_module()

    def register(function: Callable[..., Any]) -> Any:
        recipes = {case: _declare(function, fields, case) for case, fields in fields_by_case.items()}
        for declared in recipes.values():
            check_together(declared)
        file, module = (None if namespace is None else namespace.get(name) for name in ("__file__", "__name__"))
        _declarations.extend(Declaration(declared, namespace, file, module) for declared in recipes.values())
        return recipes[None] if each is None else recipes

    return register if function is None else register(function)


@dataclass(frozen=True, eq=False)
class Declaration:
    """A recipe, and the module whose top-level code creates it, itself or through a function that it calls."""

    recipe: Recipe
    namespace: Mapping[str, Any] | None
    """The names of the module; ``None`` if no module was being imported."""
    file: str | None
    module: str | None
    """Its name."""


_declarations: list[Declaration] = []


def declarations(since: int = 0) -> Sequence[Declaration]:
    """The recipes that :func:`recipe` has created in this process, in order, without the first ``since``."""
    return tuple(_declarations[since:])


def declared_in(recipe: Recipe) -> str | None:
    """The file whose top-level code created a recipe; ``None`` if that is not known."""
    return next((each.file for each in _declarations if each.recipe is recipe), None)


def recipe_in(module: str, file: str, name: str, changes: bytes | None) -> Recipe:
    """The recipe that a module declares when it is imported, with fields of the pickled ``changes``. Raises ``RecipeError``."""
    import_module_of(module, Path(file))
    for candidate in reversed(_declarations):
        if candidate.recipe.name == name and candidate.file == file:
            return candidate.recipe if changes is None else replace(candidate.recipe, **pickle.loads(changes))
    raise RecipeError(f"{file} declares no recipe {name!r} when it is imported in another process; declare it there, too")


def _importing_module() -> Mapping[str, Any] | None:
    """The names of the innermost module whose top-level code is running; in a thread, of that which declares the recipe."""
    frame = sys._getframe(2)
    if threading.current_thread() is not threading.main_thread():  # no frame leads to the code that started it
        return frame.f_globals
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame.f_globals if frame.f_code.co_name == "<module>" else None


def _fields_by_case(cases: Cases, shared: Mapping[str, Any]) -> dict[str | None, dict[str, Any]]:
    """The fields of the recipe of each case."""
    if not isinstance(cases, Mapping) or not cases:
        example = '{"small": {}, "large": {"max_drift": 32}}'
        raise RecipeError(f"each must map names to keywords, such as {example}, not {cases!r}")
    fields_by_case: dict[str | None, dict[str, Any]] = {}
    for case, keywords in cases.items():
        if not isinstance(case, str) or not _CASE.fullmatch(case):
            raise RecipeError(f"each has the key {case!r}; use letters, digits, '_', '-' and '.', such as 'small'")
        if not isinstance(keywords, Mapping):
            raise RecipeError(f"each[{case!r}] must be a dictionary of keywords, not {keywords!r}")
        if "name" in keywords:
            raise RecipeError(f"each[{case!r}] has the keyword 'name', but its recipe is named after the function and {case!r}")
        try:
            fields_by_case[case] = fields_of_case(shared, keywords)
        except RecipeError as error:
            raise RecipeError(f"each[{case!r}]: {error}") from None
    return fields_by_case


def _declare(function: Callable[..., Any], fields: Mapping[str, Any], case: str | None = None) -> Recipe:
    """The recipe of ``function``. Raises ``RecipeError``."""
    if not (isinstance(inspect.unwrap(function), FunctionType) or _is_exportable(function)):
        raise RecipeError(f"@recipe decorates a function, not {function!r}; wrap it in one")
    name = fields["name"] or function.__name__
    if not _NAME.fullmatch(name):
        raise RecipeError(f"{name!r} is not a valid recipe name; use letters, digits, '_', '-' and '.', such as 'resnet50'")
    if getattr(function, "pytestmark", None):
        raise RecipeError(
            f"{name} has a mark of pytest, which does not apply to recipes; {FOR_EACH}, and tags=... to select it"
        )
    _check_parameters(function, name, case)
    named = {**fields, "name": name if case is None else f"{name}-{case}", "case": case}
    if isinstance(function, type):
        named["exporters"] = named["exporters"] or ("dynamo",)
        named["opsets"] = named["opsets"] or parse_opsets(f"{FIRST_DYNAMO_OPSET}-")
    return Recipe(function, **named)


def _is_exportable(function: object) -> bool:
    """Whether it is a class derived from ``torch.onnx.ExportableModule``, which torch exports with dynamo alone."""
    mro = function.__mro__ if isinstance(function, type) else ()
    has_methods = any(isinstance(each, FunctionType) for each in vars(function).values()) if mro else False
    return has_methods and any((each.__module__, each.__name__) == ("torch.onnx", "ExportableModule") for each in mro)


FOR_EACH = "for several recipes of one function use @onnx_ci.recipe(each={...})"


def _check_parameters(function: Callable[..., Any], name: str, case: str | None) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    if case is not None:
        first = parameters.pop(0) if parameters else None
        if first is None or first.name == _WEIGHTS or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
            raise RecipeError(f"{name} must take the key of each as its first parameter: def {name}(case)")
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in any_number]
    if unfilled := [name for name in needed if name != _WEIGHTS]:
        raise RecipeError(
            f"{name} takes {listed(unfilled)}, but a recipe's function is called without arguments, except for weights; "
            f"pytest's fixtures and parameters do not apply to it; {FOR_EACH}"
        )
