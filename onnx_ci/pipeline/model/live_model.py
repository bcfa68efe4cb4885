"""A model and the arguments of one call of it: built from a recipe, moved to a device, given other inputs, run."""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree  # where classes are registered for torch.export; it has no public name
from torch.utils._python_dispatch import TorchDispatchMode  # has no public name

from onnx_ci.errors import describe_exception
from onnx_ci.pipeline.model import devices
from onnx_ci.pipeline.model.containers import name_of, named_leaves, tensors_in
from onnx_ci.pipeline.model.global_state import Changes
from onnx_ci.pipeline.model.module import (
    signature_of,
    unlike_others,
    weights_of,
)
from onnx_ci.processes.signals import no_forks_leave
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding

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


def names_in_model(call: Call) -> list[str | None]:
    """What the model calls its inputs: the parameters of forward, or keys and fields within them."""
    paths = [path for path, leaf in named_leaves(bound_arguments(call)) if isinstance(leaf, torch.Tensor)]
    return [name_of(path) for path in paths]


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
    kinds = (bool, int, float, str, torch.dtype, torch.Size)  # those whose repr is their code
    leaves = {name: pytree.tree_leaves(value) for name, value in arguments.items()}
    fixed = {name: arguments[name] for name, each in leaves.items() if each and all(isinstance(leaf, kinds) for leaf in each)}
    return _wrapper([name for name in arguments if name not in fixed and arguments[name] is not None], fixed) if fixed else None


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


def largest_value(tensor: torch.Tensor) -> float:
    """The largest finite absolute value; 0 if there is none."""
    finite = tensor.double()[is_finite(tensor)].abs()  # torch 2.9 has no index for 8-bit floats
    return finite.max().item() if finite.numel() else 0.0


def same_shapes(first: Outputs, second: Outputs) -> bool:
    """Whether two runs return as many outputs, of the same shapes."""
    return [tensor.shape for tensor in first] == [tensor.shape for tensor in second]
