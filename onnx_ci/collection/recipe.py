"""Recipes: declarations of exports, and the decorator that creates them."""

from __future__ import annotations

import copyreg
import functools
import inspect
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal, Unpack, overload

from onnx_ci.collection.axis_sizes import DeclaredSizes
from onnx_ci.collection.domains import Domain
from onnx_ci.collection.expectations import CellPattern, expectations_of
from onnx_ci.collection.importing import import_module_of
from onnx_ci.collection.keywords import Limit, RecipeKeywords, StepInputs, check_sequence, check_stages, fields_of
from onnx_ci.collection.post_export import EXPORT, PostExportStage
from onnx_ci.errors import RecipeError
from onnx_ci.results.verdict import Expectation
from onnx_ci.text import listed

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_CASE = re.compile(r"[\w.-]+")
_OWN_PARAMETER = "weights"
"""The parameter of a recipe's function that the settings can fill."""


@dataclass(frozen=True)
class Recipe:
    """A named declaration of one export. Created by :func:`recipe`; its fields are that decorator's keywords."""

    function: Callable[..., Any]
    _: KW_ONLY
    name: str
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    dynamic_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    dynamic_shapes: Any = None
    opsets: tuple[int, ...] | None = None
    exporters: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    runtimes: tuple[str, ...] | None = None
    max_drift: Limit = None
    rtol: Limit = None
    atol: Limit = None
    seed: int = 0
    training: bool = False
    nondeterministic: bool = False
    weights: Literal["seeded", "trained"] | None = None
    tf32: bool = False
    all_on_device: bool = False
    dynamic_sizes: Mapping[str, DeclaredSizes] = field(default_factory=dict)
    feedback: Mapping[str, str] = field(default_factory=dict)
    steps: int | None = None
    step_inputs: StepInputs | None = None
    inputs: tuple[str, ...] = ()
    domains: Mapping[str, Domain] = field(default_factory=dict)
    """The domains that ``inputs`` declares."""
    then: tuple[PostExportStage, ...] = ()
    expect: Mapping[CellPattern, tuple[Expectation, ...]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    manual: str = ""
    allow: tuple[str, ...] = ()
    allow_warnings: tuple[str, ...] = ()
    timeout: float | None = None
    export_options: Mapping[str, Any] = field(default_factory=dict)
    case: str | None = None
    """The key of ``each`` that the recipe was created for, which its function is called with."""

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
        code: CodeType = inspect.unwrap(self.function).__code__
        return code

    @property
    def takes_weights(self) -> bool:
        """Whether the function has a parameter ``weights``, so that the settings can specify trained weights for it."""
        return _OWN_PARAMETER in inspect.signature(self.function).parameters

    def expectations(
        self, exporter: str, opset: int, stage: str | None = None, *, device: str = "cpu"
    ) -> tuple[Expectation, ...]:
        """What the recipe expects to go wrong in a cell. Without a ``stage``, it is about the exporter's own file."""
        return expectations_of(self.expect.items(), exporter=exporter, device=device, opset=opset, stage=stage or EXPORT)

    def __reduce__(self) -> Any:
        """Sent to another process, it is the recipe of the same name in the same file, if a file declares it.

        So a copy of a recipe is the recipe itself, and with other keywords it is the same one with these.
        """
        same = [each for each in _declarations if each.recipe.function is self.function]
        declared = next((each for each in same if each.recipe.name == self.name), same[0] if same else None)
        if declared is None or declared.file is None or declared.module is None or declared.module == "__main__":
            return copyreg.__newobj__, (type(self),), vars(self)  # type: ignore[attr-defined]
        original = vars(declared.recipe)
        import cloudpickle  # not installed where a report is only read

        changes = {name: value for name, value in vars(self).items() if value is not original[name]}
        sent = (
            cloudpickle.dumps(changes) if changes else None
        )  # to be read when the file is imported, whose functions are in it
        return recipe_in, (declared.module, declared.file, declared.recipe.name, sent)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decorated function, with its case if it has one."""
        return self.function(*(args if self.case is None else (self.case, *args)), **kwargs)


Cases = Mapping[str, RecipeKeywords]
"""One recipe for each key, with keywords of its own."""


@overload
def recipe(function: Callable[..., Any], /, **keywords: Unpack[RecipeKeywords]) -> Recipe: ...


@overload
def recipe(*, each: Cases, **keywords: Unpack[RecipeKeywords]) -> Callable[[Callable[..., Any]], dict[str, Recipe]]: ...


@overload
def recipe(function: None = None, /, **keywords: Unpack[RecipeKeywords]) -> Callable[[Callable[..., Any]], Recipe]: ...


def recipe(function: Callable[..., Any] | None = None, /, **keywords: Any) -> Any:
    """Declare an export. The decorated function returns ``(model, args)`` or ``(model, args, kwargs)``.

    The function runs under a fixed seed. It may take a parameter ``weights``, which is ``None`` unless the settings specify
    trained weights for it.

    Besides the keywords below, those of ``torch.onnx.export`` in :data:`EXPORT_OPTIONS` are passed on unchanged.

    Every recipe that a recipe file creates is run, whether or not the file keeps a name for it, so recipes can be created in
    a loop or by a function.

    Args:
        function: the function, if the decorator is used without keywords.
        each: one recipe for each key, with keywords that override the others or, for ``expect``, ``tags``, ``allow`` and
            ``allow_warnings``, add to them: ``{"small": {}, "large": {"max_drift": 32, "opsets": "13-"}}``. The function is
            called with the key; the recipes are called ``family-small`` and ``family-large`` if it is called ``family``.
        name: the recipe's name, unique in a run. Default: the function's name.
        input_names: names of the graph's inputs, in the order of the tensors in ``args`` (flattened) and then ``kwargs``.
        output_names: names of the graph's outputs, in the order of the tensors that the model returns (flattened).
        dynamic_axes: the dynamic axes, by the name of the input or output: ``{"input": {0: "batch"}}``, or
            ``{"input": [0]}`` for axes without names. Axes of the same name have the same size, and the name of an axis whose
            size follows from others is an expression of theirs, with integers, ``+``, ``-``, ``*`` and ``//``:
            ``{"past": {1: "past"}, "mask": {1: "past + 1"}}``, or ``{"image": {2: "8*h"}}`` for multiples.
        dynamic_shapes: the same in the form of ``torch.export``: a tree like ``args`` whose leaves are ``{axis: name}`` or
            ``{axis: Dim("past") + 1}``. Either form works with both exporters.
        opsets: the opsets that the recipe supports, such as ``"11-17"``. Default: all.
        exporter: ``"torchscript"``, ``"dynamo"`` or the name of a plug-in, or several of them. Default: TorchScript below opset
            18, dynamo from 18.
        devices: the devices that the recipe supports, such as ``"cpu"``. Default: all.
        runtimes: the runtimes that support the file, such as ``("onnxruntime", "reference")``. Default: all. Of these, the
            settings' runtimes run it: ONNX Runtime unless they name others.
        max_drift: the largest drift that passes, in units of PyTorch's own rounding error, instead of the settings' limit:
            one number, or numbers by output name or data type: ``{"logits": 64, "float16": 100}``.
        rtol: judge by ``|error| <= atol + rtol * |reference|`` instead of by drift.
        atol: see ``rtol``. Both also take numbers by output name or data type.
        seed: the seed of torch, numpy and random while the function runs.
        training: export in training mode; otherwise ``eval()`` is called on the model.
        nondeterministic: the model draws random numbers on purpose: shapes, data types and distributions are compared.
        weights: ``"trained"`` if the function itself loads trained weights: the model is exported with them, and with probe
            weights, which make a wrong layer visible, if they hide layers. ``"seeded"`` if it does not: the model is exported
            with probe weights. Default: ``"trained"`` if the function, while it runs, loads weights with ``load_state_dict``,
            ``torch.load``, ``torch.jit.load`` or safetensors, or calls what does, such as ``from_pretrained``.
        tf32: on CUDA, use TensorFloat-32, which is off on both sides by default. The noise is then that of TensorFloat-32,
            about a thousand times that of float32.
        all_on_device: on CUDA, every node that computes with floating-point numbers must run there. By default, nodes that
            ONNX Runtime places on the CPU are only noted.
        dynamic_sizes: other sizes to try for a dynamic axis, by the axis's name: one or several, of which the first that the
            model accepts is used; or those that it can have, a ``range`` or ``onnx_ci.multiple_of(8)``, from which onnx-ci
            chooses. Default: any.
        feedback: outputs that are inputs of the next step, by name: ``{"present": "past"}`` for a cache, ``{"hn": "h0"}`` for
            the state of an RNN. The file is then also run several times in a row on its own outputs, and compared after each
            step with the eager model run in the same way. An axis that grows from step to step must be declared dynamic.
        steps: how many times in a row, the example included. Default: 8.
        step_inputs: a function that returns those inputs of a step, by name, that depend on the step. It is called with the
            step's number, counted from 0 for the example, and all inputs by name: those that are fed back have this step's
            values, and the others the example's. So the mask of a growing cache and the position in a static one are
            ``lambda step, inputs: {"mask": torch.ones(1, inputs["past"].shape[1] + inputs["tokens"].shape[1])}`` and
            ``lambda step, inputs: {"position": inputs["position"] + step}``.
            Inputs that it does not return are drawn like the example's: floats and integers from their values, but an
            integer input with a single value keeps it.
        inputs: what inputs the model gets. Either which values they can have, by name:
            ``{"tokens": onnx_ci.integers(0, 1000), "mask": onnx_ci.mask()}``, where a function of the sizes of the dynamic axes
            and a generator, such as ``lambda sizes, generator: torch.rand(sizes["batch"], 3, generator=generator)``, draws
            anything else; every other input is like the example's. Or files with inputs: ``.npz`` files, whose keys are
            names in ``input_names``, or positions; folders with ``input_0.pb`` and so on; or globs such as ``"data/*.npz"``,
            relative to the recipe's file. Or both, in a list.
        then: what happens to the file before it ships, in order: names of built-in stages, functions, or
            :func:`onnx_ci.stage` with options. The file of each stage is judged as a cell of its own.
        expect: known failures, by opset: ``{"9-10": onnx_ci.unsupported("index_put")}``, or several for one opset; by
            exporter, ``"dynamo"``; by device, ``"cuda"``; or by several of them, in this order: ``"torchscript cuda 9-10"``.
            With ``+float16`` at its end, a key is about the file of that stage, and with ``+export`` about the exporter's own;
            otherwise it is about all of them.
        tags: words by which ``--tags``, and pytest's ``-k``, select the recipe.
        manual: why the recipe runs only on request, such as ``"needs 8 GiB"``: by the name of its file, by a glob of
            ``--select`` that does not begin with ``*``, or by one of its tags.
        allow: rules that are reported without failing the cell.
        allow_warnings: regular expressions; exporter warnings that match one of them are not reported.
        timeout: the time limit of each of its cells in seconds, instead of the settings' limit.

    Returns:
        A :class:`Recipe`, or a decorator that creates one; with ``each``, a decorator that creates a dictionary of recipes.

    Raises:
        RecipeError: a keyword is unknown, its value is invalid, or the function takes parameters that are not filled.
    """
    declare = declaration(**keywords)
    namespace = _importing_module()

    def register(function: Callable[..., Any]) -> Recipe | dict[str, Recipe]:
        declared = declare(function)
        check_together(declared)
        _declarations.extend(Declaration(each, namespace) for each in _recipes_of(declared))
        return declared

    return register if function is None else register(function)


@dataclass(frozen=True, eq=False)
class Declaration:
    """A recipe, and the module whose import creates it, itself or by calling a function."""

    recipe: Recipe
    namespace: Mapping[str, Any] | None
    """The names of the module; ``None`` if no module was being imported."""

    @property
    def file(self) -> str | None:
        """The file of the module."""
        return None if self.namespace is None else self.namespace.get("__file__")

    @property
    def module(self) -> str | None:
        """The name of the module."""
        return None if self.namespace is None else self.namespace.get("__name__")


_declarations: list[Declaration] = []


def declarations(since: int = 0) -> Sequence[Declaration]:
    """All recipes that :func:`recipe` has created in this process, in order, without the first ``since``."""
    return tuple(_declarations[since:])


def declared_in(recipe: Recipe) -> str | None:
    """The file whose top-level code created a recipe; ``None`` if that is not known."""
    return next((each.file for each in _declarations if each.recipe is recipe), None)


def recipe_in(module: str, file: str, name: str, changes: bytes | None) -> Recipe:
    """The recipe ``name`` that a module declares when it is imported, but for pickled ``changes`` of its fields.

    Raises:
        RecipeError: the module no longer declares it.
    """
    import_module_of(module, Path(file))
    for each in reversed(_declarations):
        if each.recipe.name == name and each.file == file:
            return each.recipe if changes is None else replace(each.recipe, **pickle.loads(changes))
    raise RecipeError(f"{file} declares no recipe {name!r} when it is imported in another process; declare it there, too")


def _importing_module() -> Mapping[str, Any] | None:
    """The names of the innermost module whose top-level code is running."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame.f_globals if frame.f_code.co_name == "<module>" else None


def check_together(declared: Recipe | dict[str, Recipe]) -> None:
    """Check keywords of recipes against each other, which needs all of them: those of some recipes are not literals.

    Raises:
        RecipeError: one of them does not fit the others.
    """
    for each in _recipes_of(declared):
        check_sequence(vars(each))
        check_stages(vars(each))


def _recipes_of(declared: Recipe | dict[str, Recipe]) -> Iterable[Recipe]:
    return [declared] if isinstance(declared, Recipe) else declared.values()


def declaration(
    *, each: Cases | None = None, **keywords: Unpack[RecipeKeywords]
) -> Callable[[Callable[..., Any]], Recipe | dict[str, Recipe]]:
    """What :func:`recipe` does, except that the recipes that it creates are not registered, and so never run."""
    if each is None:
        return functools.partial(_declare, fields=fields_of(keywords))
    cases = _cases(each, keywords)

    def declare(function: Callable[..., Any]) -> dict[str, Recipe]:
        return {case: _declare(function, fields, case) for case, fields in cases.items()}

    return declare


def _cases(each: Cases, shared: RecipeKeywords) -> dict[str, dict[str, Any]]:
    """The fields of the recipe of each case."""
    if not isinstance(each, Mapping) or not each:
        example = '{"small": {}, "large": {"max_drift": 32}}'
        raise RecipeError(f"each must map names to keywords, such as {example}, not {each!r}")
    cases = {}
    for case, own in each.items():
        if not isinstance(case, str) or not _CASE.fullmatch(case):
            raise RecipeError(f"each has the key {case!r}; use letters, digits, '_', '-' and '.', such as 'small'")
        if not isinstance(own, Mapping):
            raise RecipeError(f"each[{case!r}] must be a dictionary of keywords, not {own!r}")
        if "name" in own:
            raise RecipeError(f"each[{case!r}] has the keyword 'name', but its recipe is named after the function and {case!r}")
        try:
            fields = fields_of({**shared, **own})
            for name in _ADDED & shared.keys() & own.keys():
                before, more = fields_of({name: shared[name]})[name], fields[name]  # type: ignore[misc]
                fields[name] = before | more if name == "expect" else tuple(dict.fromkeys((*before, *more)))
        except RecipeError as error:
            raise RecipeError(f"each[{case!r}]: {error}") from None
        cases[case] = fields
    return cases


_ADDED = frozenset({"expect", "tags", "allow", "allow_warnings"})
"""The keywords of a case that add to those of the decorator instead of overriding them."""


def _declare(function: Callable[..., Any], fields: Mapping[str, Any], case: str | None = None) -> Recipe:
    """The recipe of ``function``.

    Raises:
        RecipeError: it is not a function, has no usable name, or takes parameters that are not filled.
    """
    if not isinstance(inspect.unwrap(function), FunctionType):
        raise RecipeError(f"@recipe decorates a function, not {function!r}; wrap it in one")
    name = fields.get("name") or function.__name__
    if not _NAME.fullmatch(name):
        raise RecipeError(f"{name!r} is not a valid recipe name; use letters, digits, '_', '-' and '.', such as 'resnet50'")
    if getattr(function, "pytestmark", None):
        raise RecipeError(
            f"{name} has a mark of pytest, which does not apply to recipes; {FOR_EACH}, and tags=... to select it"
        )
    _check_parameters(function, name, case)
    return Recipe(function, **{**fields, "name": name if case is None else f"{name}-{case}", "case": case})


FOR_EACH = "for several recipes of one function use @onnx_ci.recipe(each={...})"


def _check_parameters(function: Callable[..., Any], name: str, case: str | None) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    if case is not None:
        first = parameters.pop(0) if parameters else None
        if first is None or first.name == _OWN_PARAMETER or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
            raise RecipeError(f"{name} must take the key of each as its first parameter: def {name}(case)")
    given = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    unfilled = [each.name for each in parameters if each.default is each.empty and each.kind not in given]
    if unfilled := [name for name in unfilled if name != _OWN_PARAMETER]:
        raise RecipeError(
            f"{name} takes {listed(unfilled)}, but a recipe's function is called without arguments, except for weights; "
            f"pytest's fixtures and parameters do not apply to it; {FOR_EACH}"
        )
