"""A model and the arguments of one call of it: built from a recipe, moved to a device, given other inputs, run."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree  # where classes are registered for torch.export; it has no public name
from torch.utils._python_dispatch import TorchDispatchMode  # has no public name

from onnx_ci.collection.keywords import RecipeKeywords, fields_of
from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import OnnxCiError, describe_exception
from onnx_ci.pipeline.model import devices
from onnx_ci.pipeline.model.containers import containers_in, name_of, named_leaves, tensors_in
from onnx_ci.pipeline.model.global_state import Changes, watched
from onnx_ci.pipeline.model.loaded_weights import watch_loading
from onnx_ci.pipeline.model.module import (
    as_model,
    has_closures,
    is_exportable,
    own_example,
    own_keywords,
    plain_weights_of,
    set_training,
    signature_of,
    to_device,
    unlike_others,
    unlisted,
    weights_of,
)
from onnx_ci.pipeline.model.recipe_remedies import remedy_of
from onnx_ci.processes.signals import no_forks_leave
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.text import listed

Outputs = tuple[torch.Tensor, ...]
"""A model's outputs: the tensors among them, flattened, on the CPU."""


class SkippedByRecipeError(Exception):
    """A recipe skips itself with ``pytest.skip`` or ``unittest.SkipTest``; the message is the reason."""


class PrepareError(Exception):
    """A recipe cannot be prepared; ``finding`` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True, kw_only=True)
class Call:
    """A model and the arguments of one call of it; ``kwargs`` follow the order of forward's parameters, as the graph does."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    global_changes: Changes = field(default_factory=Changes)
    """What building it changed in the global state of the process."""
    loaded_with: tuple[str, ...] = ()
    """The functions that loaded weights while it was built, such as ``torch.load``."""
    remarks: tuple[str, ...] = ()
    """What is not as the recipe returned it, or could not be asked of its model."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, random and numpy, and restore their states afterwards."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    gpus = devices.gpus
    with torch.random.fork_rng(devices=range(gpus.count()) if gpus.in_use() else []):
        if gpus.count():
            torch.manual_seed(seed)
        else:  # without a GPU, torch.manual_seed queues a CUDA call with a stack trace: milliseconds and memory each time
            torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The base of modes that intercept every operator in eager mode."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The inherited method imports all of torch.compile, which takes half a second.
        return False


def tensor_leaves(values: Any) -> list[torch.Tensor]:
    """The tensors in the arguments or results of an operator, or of a model whose classes PyTorch can flatten."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by name, defaults included."""
    parameters = func._schema.arguments  # torch names the parameters of an operator nowhere else
    defaults = {each.name: each.default_value for each in parameters if each.has_default_value()}
    return defaults | dict(zip((each.name for each in parameters), args, strict=False)) | dict(kwargs)


def written_to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    if not func._schema.is_mutable:
        return []
    names = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    arguments = named_arguments(func, args, kwargs)
    return tensor_leaves([arguments.get(name) for name in names])


def is_higher_order(func: Any) -> bool:
    """Whether an operator takes functions, as ``torch.cond`` does."""
    return isinstance(func, torch._ops.HigherOrderOperator)  # has no public name


class WrappingMode(OperatorMode):  # type: ignore[no-untyped-call]
    """The base of modes that also intercept the operators in the branches of ``torch.cond`` and similar operators.

    Derived classes define :meth:`call_operator`. One that changes the arguments of ``torch.cond``, too, replaces
    ``__torch_dispatch__``.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_higher_order(func):
            return func(*self.wrapped(args), **kwargs)
        return self.call_operator(func, args, kwargs)

    def call_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the operator ``func`` returns under this mode."""
        return func(*args, **kwargs)

    def wrapped(self, args: Any) -> Any:
        """The arguments of such an operator, with functions that run under this mode."""
        return pytree.tree_map_only(FunctionType, self._with_mode, args)

    def _with_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self:
                return function(*args)

        return call


@contextlib.contextmanager
def in_small_operators() -> Iterator[None]:
    """Run attention and encoder layers as several operators, as an exported file does, not as one."""
    backend = torch.backends.mha
    before = backend.get_fastpath_enabled()
    backend.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        backend.set_fastpath_enabled(before)


@contextlib.contextmanager
def force_eager() -> Iterator[None]:
    """Disable torch.compile: compiled code bypasses dispatch modes, and torch.cond compiles even in eager mode."""
    if "torch._dynamo" not in sys.modules:  # torch.compile was not imported, and setting the stance would import it
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def recipe_error(message: str, remedy: str | None = None) -> PrepareError:
    """The exception that says that a recipe cannot be used."""
    return PrepareError(finding("recipe-error", message, remedy=remedy))


def build(recipe: Recipe, weights: str | None) -> Call:
    """Call the recipe's function under its seed and check what it returns.

    Raises:
        PrepareError: it raises, or does not return a model with matching arguments.
    """
    call = _with_mode(_checked(recipe, _result_of(recipe, weights)), recipe.training)
    for container in containers_in(bound_arguments(call)):
        if container.has_tensors and not container.is_registered:
            name, kind = name_of(container.path), container.kind.__name__
            raise recipe_error(
                f"the argument {name} is of the class {kind}, whose tensors PyTorch cannot replace",
                "Let the model take tensors: onnx_ci.adapt(model, inputs=FUNCTION), where FUNCTION makes the "
                f"{kind} from them; or register the class as a pytree.",
            )
    for path, leaf in named_leaves(bound_arguments(call)):
        if isinstance(leaf, torch.Tensor) and (reason := unlike_others(leaf)):
            raise recipe_error(
                f"the argument {name_of(path)} {reason}, so no input of a file can be compared with it",
                "Let the model take a plain tensor and make the other one of it: onnx_ci.adapt(model, inputs=FUNCTION).",
            )
    if any(is_lazy(parameter) for parameter in call.model.parameters()):
        run_tree(with_own_inputs(call), seed=recipe.seed)  # a lazy module initializes its weights in its first run
    return _outside_inference_mode(call)


def _with_mode(call: Call, is_training: bool) -> Call:
    """``call`` in training or inference mode, with a remark about what has a mode of its own."""
    fixed = set_training(call.model, is_training)
    if not fixed:
        return call
    names = listed(repr(name) if name else "the model" for name in fixed)
    mode = "training" if is_training else "inference"
    remark = f"train() fails for {names}, which may not be in {mode} mode: it computes as the recipe leaves it"
    return dataclasses.replace(call, remarks=(*call.remarks, remark))


def _outside_inference_mode(call: Call) -> Call:
    """``call``, or a copy whose tensors can be changed: those that are made in inference mode can be changed only there."""
    if not any(tensor.is_inference() for tensor in (*plain_weights_of(call.model), *input_tensors(call))):
        return call
    if not has_closures(call.model):
        with contextlib.suppress(Exception):  # copying a model can raise anything
            return copy.deepcopy(call)
    message = "the model has weights of torch.inference_mode, which cannot be changed outside of it, and cannot be copied"
    raise recipe_error(message, "Build the model outside of torch.inference_mode.")


def _result_of(recipe: Recipe, weights: str | None) -> Any:
    options = {"weights": weights} if recipe.takes_weights else {}
    try:
        with no_forks_leave(), seeded(recipe.seed):
            result = recipe(**options)
            return own_example(result) if is_exportable(result) else result
    except OnnxCiError as error:
        raise recipe_error(str(error), "Fix what the message names; the model was not built.") from None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever a recipe raises is reported, SystemExit included
        if devices.ran_out_of_memory(error):
            raise
        if type(error).__name__ in ("Skipped", "SkipTest"):
            raise SkippedByRecipeError(str(error) or "the recipe skips itself") from None
        raise recipe_error(f"the recipe raised {describe_exception(error)}", remedy_of(error)) from None


def _checked(recipe: Recipe, result: Any) -> Call:
    """The call that a recipe's function returned."""
    remedy = f"Return (model, args) or (model, args, kwargs) from {recipe.name}, or a torch.onnx.ExportableModule."
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise recipe_error(f"the recipe returned {what} instead of (model, args) or (model, args, kwargs)", remedy)
    returned, args, kwargs = result if len(result) == 3 else (*result, {})
    if (as_module := as_model(returned)) is None:
        what = (
            f"the class {returned.__name__}; create an instance of it"
            if isinstance(returned, type)
            else type(returned).__name__
        )
        raise recipe_error(f"the recipe's model is not a torch.nn.Module but {what}", remedy)
    model, remarks = as_module
    if (error := unlisted(model)) is not None:
        raise recipe_error(
            f"{type(model).__name__} cannot list its modules and weights: {describe_exception(error)}",
            _NESTED
            if isinstance(error, RecursionError)
            else "Exporters need named_modules, named_parameters and named_buffers.",
        )
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, tuple):
        raise recipe_error(f"the recipe's args are a {type(args).__name__}, not a tuple", remedy)
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise recipe_error("the recipe's kwargs are not a dict with names as keys", remedy)
    signature = signature_of(model)
    if signature is None:
        return Call(model=model, args=args, kwargs=kwargs, remarks=tuple(remarks))
    if args and not kwargs and _are_keywords(args[-1], list(signature.parameters)[len(args) - 1 :]):
        args, kwargs = args[:-1], args[-1]
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise recipe_error(
            f"the recipe's args do not match {type(model).__name__}.forward{signature}: {error}",
            "Return the arguments of forward as a tuple: (model, (x,)), with nested tuples as forward takes them; and those by "
            "name as a third item: (model, (x,), {'mask': mask}).",
        ) from None
    in_order = {name: kwargs[name] for name in signature.parameters if name in kwargs}
    return Call(model=model, args=args, kwargs=in_order | kwargs, remarks=tuple(remarks))


def _are_keywords(last: Any, free: Sequence[str]) -> bool:
    """Whether the last of the args is a dict of keyword arguments, as torch.onnx.export takes them there.

    Args:
        last: the last of the args.
        free: the parameters of forward that the args before it leave.
    """
    return isinstance(last, dict) and all(key in free for key in last)


_NESTED = (
    "Its modules are nested more deeply than Python's calls may be: raise the limit with sys.setrecursionlimit in the recipe."
)


def completed(recipe: Recipe, call: Call) -> Recipe:
    """The recipe, with the names and the dynamic axes that the model itself declares where the recipe declares none.

    Such a model is an ``ExportableModule`` or an ``ExportedProgram``.

    Raises:
        PrepareError: the model raises, or what it declares cannot be used.
    """
    try:
        declared = dict(own_keywords(call.model))
        if recipe.dynamic_axes or recipe.dynamic_shapes is not None:
            declared.pop("dynamic_shapes", None)
        fields = fields_of(cast("RecipeKeywords", declared))
    except Exception as error:  # the methods of a model can raise anything
        raise recipe_error(f"what {type(call.model).__name__} declares cannot be used: {describe_exception(error)}") from None
    return dataclasses.replace(recipe, **{name: fields[name] for name in declared if not getattr(recipe, name)})


def with_names(recipe: Recipe, call: Call) -> Recipe:
    """The recipe; if it declares dynamic axes and no names of inputs, with those that they have in the model."""
    if recipe.input_names or (recipe.dynamic_shapes is None and not recipe.dynamic_axes):
        return recipe
    return dataclasses.replace(recipe, input_names=tuple(filter(None, names_in_model(call))))


def names_in_model(call: Call) -> list[str | None]:
    """What the model calls its inputs: the parameters of forward, or keys and fields within them."""
    paths = [path for path, leaf in named_leaves(bound_arguments(call)) if isinstance(leaf, torch.Tensor)]
    return [name_of(path) for path in paths]


def move(call: Call, device: str) -> Call:
    """``call`` with its model and tensors moved to ``device``."""
    if device == "cpu" and not _is_elsewhere(call):
        return call
    place = torch.device("cpu") if device == "cpu" else devices.gpus.place(device)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(place), (call.args, call.kwargs))
    return dataclasses.replace(call, model=to_device(call.model, place), args=args, kwargs=kwargs)


def _is_elsewhere(call: Call) -> bool:
    """Whether the recipe has put tensors on a GPU or another accelerator."""
    tensors = [*weights_of(call.model), *tensor_leaves((call.args, call.kwargs))]
    return any(tensor.device.type not in ("cpu", "meta") for tensor in tensors)


def build_on(recipe: Recipe, device: str, weights: str | None) -> Call:
    """The recipe's model and arguments on ``device``. Raises as :func:`build` does."""
    with watched() as state, watch_loading() as loaded_with:
        call = move(build(recipe, weights), device)
    return dataclasses.replace(call, global_changes=state.changes, loaded_with=tuple(sorted(loaded_with)))


def arguments_of(call: Call) -> list[Any]:
    """The arguments, in the order of forward's parameters."""
    return [*call.args, *call.kwargs.values()]


def bound_arguments(call: Call) -> dict[str, Any]:
    """The arguments by the names of forward's parameters. As in ``torch.export``, variadic arguments are one entry."""
    signature = signature_of(call.model)
    if signature is None:
        return {str(position): value for position, value in enumerate(arguments_of(call))}
    return dict(signature.bind(*call.args, **call.kwargs).arguments)


def default_values(call: Call) -> dict[str, float | torch.Tensor]:
    """The defaults that are numbers or tensors, of the parameters of forward for which the call has no argument."""
    signature = signature_of(call.model)
    arguments = bound_arguments(call)
    defaults = {} if signature is None else {name: each.default for name, each in signature.parameters.items()}
    kinds = (int, float, torch.Tensor)
    return {name: default for name, default in defaults.items() if name not in arguments and isinstance(default, kinds)}


def wrapper_without_constants(call: Call) -> str | None:
    """``onnx_ci.adapt(model, inputs=['x'], fixed={'k': 2})``, if some arguments of the call are not tensors."""
    arguments = bound_arguments(call)
    fixed = {name: value for name, value in arguments.items() if _can_be_written(value)}
    return _wrapper([name for name in arguments if name not in fixed and arguments[name] is not None], fixed) if fixed else None


def _can_be_written(value: Any) -> bool:
    """Whether a value consists of constants whose ``repr`` is their code."""
    leaves = pytree.tree_leaves(value)
    return bool(leaves) and all(isinstance(leaf, (bool, int, float, str, torch.dtype, torch.Size)) for leaf in leaves)


def wrapper_by_position(call: Call) -> str | None:
    """``onnx_ci.adapt(model, inputs=['x', 'scale'])``, if the call has arguments that forward takes by name only."""
    signature = signature_of(call.model)
    parameters = {} if signature is None else signature.parameters
    arguments = bound_arguments(call)
    kinds = {parameters[name].kind for name in arguments if name in parameters}
    if kinds.isdisjoint({inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}):
        return None
    variadic = [name for name in arguments if parameters[name].kind is inspect.Parameter.VAR_KEYWORD]
    named = {**arguments, **{key: value for name in variadic for key, value in arguments[name].items()}}
    return _wrapper([name for name in named if name not in variadic and named[name] is not None], {})


def _wrapper(inputs: Sequence[str], fixed: Mapping[str, Any]) -> str:
    constants = f", fixed={dict(fixed)!r}" if fixed else ""
    return f"onnx_ci.adapt(model, inputs={list(inputs)!r}{constants})"


def input_tensors(call: Call) -> list[torch.Tensor]:
    """The tensors among the arguments, in the order of the graph's inputs."""
    return tensors_in(arguments_of(call))


def flatten_outputs(result: Any) -> Outputs:
    """Copies of the tensors that a model returned, in the order of the graph's outputs.

    Raises:
        PrepareError: one of them is of another kind than files have, such as a sparse tensor.
    """
    tensors = [(path, leaf) for path, leaf in named_leaves(result) if isinstance(leaf, torch.Tensor)]
    for path, tensor in tensors:
        if reason := unlike_others(tensor):
            where = f"the output {name_of(path)}" if path else "what the model returns"
            remedy = ON_META if tensor.is_meta else "Return a plain tensor, such as to_dense() or dequantize() of it."
            raise recipe_error(f"{where} {reason}, so no output of a file can be compared with it", remedy)
    return tuple(tensor.detach().cpu().clone() for _, tensor in tensors)


def on_cpu(tensors: Sequence[torch.Tensor]) -> Outputs:
    """``tensors`` on the CPU, detached."""
    return tuple(tensor.detach().cpu() for tensor in tensors)


def with_inputs(call: Call, tensors: Sequence[torch.Tensor]) -> Call:
    """``call`` with copies of ``tensors``, on the devices of its tensor arguments, in their place and order.

    They are copies because the model may overwrite them.
    """
    pairs = zip(tensors, input_tensors(call), strict=True)
    return filled(call, [new.to(old.device, copy=True) for new, old in pairs])


def with_own_inputs(call: Call) -> Call:
    """``call`` with copies of its tensor arguments, which the model may overwrite."""
    return with_inputs(call, input_tensors(call))


def filled(call: Call, tensors: Sequence[torch.Tensor]) -> Call:
    """``call`` with ``tensors`` themselves in the place of its tensor arguments, in their order."""
    rest = iter(tensors)
    arguments = pytree.tree_map_only(torch.Tensor, lambda _: next(rest), arguments_of(call))
    count = len(call.args)
    return Call(model=call.model, args=tuple(arguments[:count]), kwargs=dict(zip(call.kwargs, arguments[count:], strict=True)))


def run_tree(call: Call, *, seed: int = 0) -> Any:
    """Run the model under ``seed`` and return its result unchanged.

    Raises:
        PrepareError: the model raises. An out-of-memory error of a GPU is raised unchanged.
    """
    try:
        with no_forks_leave(), torch.no_grad(), seeded(seed):
            return call.model(*call.args, **call.kwargs)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever the model raises is reported, SystemExit included
        if devices.ran_out_of_memory(error):
            raise
        has_meta = any(weight.is_meta for weight in weights_of(call.model))
        raise recipe_error(f"the model raised {describe_exception(error)}", ON_META if has_meta else None) from None


ON_META = (
    "Weights on the device meta have no values: give them some with model.to_empty(device='cpu') and load_state_dict, or build "
    "the model without that device."
)
"""What helps a model whose weights are on the device meta."""


def run(call: Call, *, seed: int = 0) -> Outputs:
    """The model's flattened outputs, on the CPU. Raises as :func:`run_tree` does."""
    return flatten_outputs(run_tree(call, seed=seed))


def dtype_name(tensor: torch.Tensor) -> str:
    """The tensor's data type as torch names it, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def is_float8(tensor: torch.Tensor) -> bool:
    """Whether the tensor has an 8-bit floating type, which torch can store and convert but supports in few operators."""
    return tensor.is_floating_point() and tensor.itemsize == 1


def has_noise(tensor: torch.Tensor) -> bool:
    """Whether the tensor has rounding errors for which its comparison needs a tolerance.

    Integers and booleans are compared exactly. So are 8-bit floats, but a few of them may be one step apart: see
    :mod:`onnx_ci.pipeline.compare.drift`.
    """
    return tensor.is_floating_point() and not is_float8(tensor)


def is_finite(tensor: torch.Tensor) -> torch.Tensor:
    """:func:`torch.isfinite`, for 8-bit floats too."""
    return torch.isfinite(tensor.float() if is_float8(tensor) else tensor)


def has_same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether tensors of the same shape have equal values; NaN equals NaN."""
    if not is_float8(first) and torch.equal(first, second):
        return True
    return first.is_floating_point() and bool(((first == second) | (first.isnan() & second.isnan())).all())


def differences(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """How far the elements of two tensors are apart; infinitely where only one of them is NaN."""
    a, b = first.flatten().double(), second.flatten().double()
    is_same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(is_same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
