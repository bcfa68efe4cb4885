"""From a recipe to what a cell needs before any export: the live model, its inputs, and what it computes on them.

The reference is the eager model twice: in its own data type, and in float64. Their difference is the noise, the yardstick
of every comparison. A model that cannot run in float64 gets its noise from perturbation instead (:func:`_perturbation`).
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ci.errors import OnnxCiError, describe_exception, did_you_mean
from onnx_ci.recipe import Recipe
from onnx_ci.records import Finding
from onnx_ci.rules import finding

EXAMPLE = "example"
"""The name of the recipe's own input among the probes."""

PERTURBATIONS = 4
"""How many perturbed runs estimate the noise where float64 cannot."""

Outputs = tuple[torch.Tensor, ...]


class PrepareError(Exception):
    """A recipe cannot be prepared; carries the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True, kw_only=True)
class Call:
    """A model and the arguments of one call of it; ``kwargs`` in forward's own order, which the graph's inputs follow."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the eager model computes on one input. All tensors lie on the CPU."""

    own: Outputs
    """The flattened outputs in the model's own data type."""
    exact: Outputs
    """The same in float64; for integers and booleans the outputs themselves."""
    noise: tuple[float, ...]
    """For each output, how far PyTorch's own rounding moves it; 1 for integers and booleans."""
    method: str
    """``float64`` or ``perturbation``."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One input on which the file and the model are compared."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    """The tensors among the arguments, flattened in the order of the graph's inputs, on the CPU."""
    reference: Reference


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A recipe ready for its cells. ``fresh()`` gives each export its own copy of the model and its arguments."""

    recipe: Recipe
    device: str
    fresh: Callable[[], Call]
    probes: tuple[Probe, ...]
    """The example first, then the moved axes."""
    input_names: tuple[str | None, ...]
    """For each tensor argument its declared name, or ``None``."""
    axes: Mapping[str, Mapping[int, str]]
    """The declared dynamic axes by input or output name, whichever way the recipe declared them."""
    dynamic_shapes: tuple[Any, ...] | None
    """The dynamic axes of the inputs as ``torch.export`` takes them: a tree like the arguments in forward's order."""
    findings: tuple[Finding, ...]
    """What the references already show: an axis that cannot be moved, noise too large to judge by, no float64."""

    @property
    def example(self) -> Probe:
        """The recipe's own input."""
        return self.probes[0]


def missing_device(device: str) -> str | None:
    """Why torch cannot use ``device``, or ``None`` if it can."""
    if device == "cpu":
        return None
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device (no GPU, or no driver that fits)"
    if torch.device(device).index is not None and torch.device(device).index >= torch.cuda.device_count():
        return f"torch finds {torch.cuda.device_count()} CUDA device(s), counted from cuda:0"
    return None


def prepare(recipe: Recipe, device: str = "cpu", *, weights: str | None = None) -> Prepared:
    """Build the recipe's model on ``device`` and compute its references.

    Args:
        weights: handed to a recipe function that takes ``weights``: which trained weights to load.

    Raises:
        PrepareError: the recipe cannot be used; the error carries the finding.
    """

    def rebuild() -> Call:
        return _move(_build(recipe, weights), device)

    pristine = rebuild()

    def fresh() -> Call:
        try:
            return copy.deepcopy(pristine)
        except Exception:  # a model that cannot be copied (non-leaf tensors as attributes) is built again under its seed
            return rebuild()

    flat = _flatten_inputs(pristine)
    tensors = [value for _, value in flat]
    names = recipe.input_names
    if len(names) > len(tensors):
        raise PrepareError(
            finding(
                "name-mismatch",
                f"input_names declares {len(names)} names and args hold {len(tensors)} tensors",
                remedy="Declare one name for every tensor in args, nested ones included, and none for Python numbers.",
            )
        )
    input_names = tuple(names[i] if i < len(names) else None for i in range(len(tensors)))
    with exact_arithmetic():
        own = _run(fresh())
        if not own:
            raise _recipe_error("the model returns no tensor", "Return at least one tensor from forward.")
        if any(tensor.is_complex() for tensor in own):
            raise _recipe_error("the model returns a complex tensor, which ONNX cannot", "Return torch.view_as_real of it.")
        axes = _declared_axes(recipe, pristine, flat, own)
        example = Probe(name=EXAMPLE, inputs=_on_cpu(tensors), reference=_reference(fresh, own))
        moved, immovable = _moved_probes(recipe, fresh, example, input_names, axes)
    probes = (example, *moved)
    return Prepared(
        recipe=recipe,
        device=device,
        fresh=fresh,
        probes=probes,
        input_names=input_names,
        axes=axes,
        dynamic_shapes=_dynamic_shapes_tree(pristine, input_names, axes),
        findings=(*immovable, *_too_noisy(recipe, probes), *_without_float64(probes)),
    )


# --- building -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch, random and numpy, and put back afterwards what they were."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if in_use else []):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


@contextlib.contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Switch TensorFloat-32 off, which cuDNN uses by default: it would pass for rounding and hide a wrong export."""
    if not torch.cuda.is_available():
        yield
        return
    # The older of torch's two switches: torch.export reads it, and raises where only the newer one was set (torch 2.13).
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _recipe_error(message: str, remedy: str | None = None) -> PrepareError:
    return PrepareError(finding("recipe-error", message, remedy=remedy))


def _build(recipe: Recipe, weights: str | None) -> Call:
    options = {"weights": weights} if recipe.takes_weights else {}
    try:
        with _seeded(recipe.seed):
            made = recipe.function(**options)
    except OnnxCiError as error:
        raise _recipe_error(str(error), "Mend what the message names; the model was never built.") from None
    except (Exception, SystemExit) as error:  # whatever a recipe raises is its author's to read
        raise _recipe_error(f"the recipe raised {_describe(error)}") from None
    remedy = f"Return (model, args) or (model, args, kwargs) from {recipe.name}."
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        what = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise _recipe_error(f"the recipe returned {what} instead of (model, args) or (model, args, kwargs)", remedy)
    model, args, kwargs = made if len(made) == 3 else (*made, {})
    if not isinstance(model, torch.nn.Module):
        what = f"the class {model.__name__}; call it to make a model" if isinstance(model, type) else type(model).__name__
        raise _recipe_error(f"the recipe's model is no torch.nn.Module but {what}", remedy)
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, tuple):
        raise _recipe_error(f"the recipe's args are a {type(args).__name__}, not a tuple", remedy)
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise _recipe_error("the recipe's kwargs are no dict with names as keys", remedy)
    signature = _signature(model)
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _recipe_error(
                f"the recipe's args do not fit {type(model).__name__}.forward{signature}: {error}",
                "Return the arguments of forward as a tuple: (model, (x,)), with nested tuples as forward takes them.",
            ) from None
        kwargs = {name: kwargs[name] for name in signature.parameters if name in kwargs} | kwargs
    model.train(recipe.training)
    return Call(model=model, args=args, kwargs=kwargs)


def _signature(model: torch.nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):  # a scripted model does not always tell
        return None


def _describe(error: BaseException) -> str:
    return describe_exception(error, not_from=[Path(torch.__file__).parent])


def _move(call: Call, device: str) -> Call:
    if device == "cpu":
        return call
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), (call.args, call.kwargs))
    return Call(model=call.model.to(device), args=args, kwargs=kwargs)


# --- inputs and axes ------------------------------------------------------------------------------------------------


def _arguments(call: Call) -> list[Any]:
    return [*call.args, *call.kwargs.values()]


def _flatten_inputs(call: Call) -> list[tuple[pytree.KeyPath, torch.Tensor]]:
    leaves, _ = pytree.tree_flatten_with_path(_arguments(call))
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _flatten_outputs(made: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _on_cpu(tensors: Sequence[torch.Tensor]) -> Outputs:
    return tuple(tensor.detach().cpu() for tensor in tensors)


def _with_inputs(call: Call, tensors: Sequence[torch.Tensor]) -> Call:
    """``call`` with its tensor arguments, in their flattened order, replaced by ``tensors`` on the same devices."""
    rest = iter(tensors)
    arguments = pytree.tree_map_only(torch.Tensor, lambda old: next(rest).to(old.device), _arguments(call))
    count = len(call.args)
    return Call(model=call.model, args=tuple(arguments[:count]), kwargs=dict(zip(call.kwargs, arguments[count:], strict=True)))


def _declared_axes(
    recipe: Recipe, call: Call, flat: list[tuple[pytree.KeyPath, torch.Tensor]], outputs: Outputs
) -> dict[str, dict[int, str]]:
    """The dynamic axes by tensor name, checked against the names and ranks that are really there."""
    ranks = {name: tensor.dim() for name, (_, tensor) in zip(recipe.input_names, flat, strict=False)}
    ranks |= {name: tensor.dim() for name, tensor in zip(recipe.output_names, outputs, strict=False)}
    if recipe.dynamic_shapes is not None:
        axes = _axes_from_shapes(recipe, call, flat)
    else:
        axes = {name: dict(declared) for name, declared in recipe.dynamic_axes.items()}
    for name, declared in axes.items():
        if name not in ranks:
            said = f"dynamic_axes names {name!r}, which is neither in input_names nor in output_names"
            raise PrepareError(finding("unknown-axis", said + did_you_mean(name, ranks)))
        for axis in declared:
            if not 0 <= axis < ranks[name]:
                raise PrepareError(
                    finding("unknown-axis", f"{name!r} has no axis {axis}: it has {ranks[name]} axes, counted from 0")
                )
    known = {axis for declared in axes.values() for axis in declared.values()}
    for label in recipe.probes:
        if label not in known:
            said = f"probes names the axis {label!r}, which is not declared{did_you_mean(label, known)}"
            raise PrepareError(finding("unknown-axis", said))
    return axes


def _axes_from_shapes(recipe: Recipe, call: Call, flat: list[tuple[pytree.KeyPath, torch.Tensor]]) -> dict[str, dict[int, str]]:
    """``dynamic_shapes``, a tree like forward's arguments, as axes by input name."""
    if len(recipe.input_names) < len(flat):
        raise PrepareError(
            finding("name-mismatch", f"dynamic_shapes needs input_names: {len(flat)} names, one for every tensor in args")
        )
    spec = recipe.dynamic_shapes
    if isinstance(spec, Mapping):
        signature = _signature(call.model)
        order: list[str] = list(signature.parameters if signature else spec)
        unknown = next((name for name in spec if name not in order), None)
        if unknown is not None:
            raise PrepareError(
                finding(
                    "unknown-axis", f"dynamic_shapes names {unknown!r}, no argument of forward{did_you_mean(unknown, order)}"
                )
            )
        spec = [spec.get(name) for name in order[: len(_arguments(call))]]
    axes: dict[str, dict[int, str]] = {}
    for name, (path, _) in zip(recipe.input_names, flat, strict=True):
        leaf = spec
        for key in path:
            if leaf is None:
                break
            try:
                leaf = leaf[key.key if isinstance(key, pytree.MappingKey) else cast("pytree.SequenceKey[Any]", key).idx]
            except (LookupError, TypeError, AttributeError):
                raise PrepareError(
                    finding("unknown-axis", f"dynamic_shapes is no tree like args: it has no place for {name!r}")
                ) from None
        entries = leaf.items() if isinstance(leaf, Mapping) else enumerate(leaf or ())
        declared = {
            axis: dim if isinstance(dim, str) else getattr(dim, "__name__", f"{name}_dim_{axis}")
            for axis, dim in entries
            if dim is not None and not isinstance(dim, int) and dim != torch.export.Dim.STATIC
        }
        if declared:
            axes[name] = declared
    return axes


def _dynamic_shapes_tree(
    call: Call, input_names: tuple[str | None, ...], axes: Mapping[str, Mapping[int, str]]
) -> tuple[Any, ...] | None:
    if not axes:
        return None
    names = iter(input_names)

    def leaf(value: Any) -> dict[int, str] | None:
        return dict(axes.get(next(names) or "", {})) if isinstance(value, torch.Tensor) else None

    # torch.export counts the arguments of a variadic forward(*args) as one.
    signature = _signature(call.model)
    bound = list(signature.bind(*call.args, **call.kwargs).arguments.values()) if signature else _arguments(call)
    return tuple(pytree.tree_map(leaf, bound))


# --- references -----------------------------------------------------------------------------------------------------


def _run(call: Call) -> Outputs:
    """The model's flattened outputs, on the CPU.

    Raises:
        PrepareError: the model refuses its arguments.
    """
    try:
        with torch.no_grad(), _seeded(0):
            made = call.model(*call.args, **call.kwargs)
    except Exception as error:  # the model's own complaint is the finding
        raise _recipe_error(f"the model raised {_describe(error)}") from None
    return tuple(tensor.detach().cpu().clone() for tensor in _flatten_outputs(made))


class _KeepFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turn every request for a smaller floating type (``x.float()``, ``dtype=torch.float32``) into one for float64.

    Without it a hard-coded cast would round in the middle of the exact reference, or mix two types and raise.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.dtype, _widened, (args, kwargs or {}))
        return func(*args, **kwargs)


_SMALLER_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _widened(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in _SMALLER_FLOATS else dtype


def _run_in_float64(call: Call) -> Outputs:
    """The same call with every floating tensor and intermediate in float64, on the CPU."""
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.cpu().to(_widened(tensor.dtype)), (call.args, call.kwargs)
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _KeepFloat64():  # type: ignore[no-untyped-call]
            return _run(Call(model=call.model.cpu().double(), args=args, kwargs=kwargs))
    finally:
        torch.set_default_dtype(default)


def _reference(fresh: Callable[[], Call], own: Outputs) -> Reference:
    """The reference of the call that ``fresh`` makes anew each time; ``own`` is what it computes in its own type."""
    try:
        exact = _run_in_float64(fresh())
        comparable = len(exact) == len(own) and all(a.shape == b.shape for a, b in zip(exact, own, strict=True))
    except PrepareError:
        comparable = False
    if comparable:
        spread = [_max_difference(a, b) for a, b in zip(own, exact, strict=True)]
        method = "float64"
    else:
        exact, spread = own, _perturbation(fresh, own)
        method = "perturbation"
    return Reference(
        own=own,
        exact=tuple(b.double() if a.is_floating_point() else a for a, b in zip(own, exact, strict=True)),
        noise=tuple(max(s, _unit_in_last_place(a)) for s, a in zip(spread, own, strict=True)),
        method=method,
    )


def _perturbation(fresh: Callable[[], Call], own: Outputs) -> list[float]:
    """Noise without float64: how far the outputs move when every weight and input moves by half a unit in its last place.

    This is stochastic arithmetic (Vignes, 1993; Parker, 1997) on the inputs of the computation: an algorithm that is
    backward stable answers a rounding error as it answers a perturbation of its inputs of that size.
    """
    spread = [0.0] * len(own)
    generator = torch.Generator().manual_seed(0)

    def perturbed(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype) * 2 - 1
        return tensor + tensor * signs * (torch.finfo(tensor.dtype).eps / 2)

    for _ in range(PERTURBATIONS):
        call = fresh()
        with torch.no_grad():
            for tensor in (*call.model.parameters(), *call.model.buffers()):
                tensor.copy_(perturbed(tensor))
            args, kwargs = pytree.tree_map_only(torch.Tensor, perturbed, (call.args, call.kwargs))
        try:
            moved = _run(Call(model=call.model, args=args, kwargs=kwargs))
        except PrepareError:  # a perturbed input can be illegal; the other runs decide
            continue
        spread = [
            max(s, _max_difference(a, b)) if a.shape == b.shape else s for s, a, b in zip(spread, own, moved, strict=True)
        ]
    return spread


def _max_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = (one.double() - other.double()).abs()
    difference = difference[torch.isfinite(difference)]
    return difference.max().item() if difference.numel() else 0.0


def _unit_in_last_place(tensor: torch.Tensor) -> float:
    """The spacing of floating numbers at the tensor's largest finite value; 1 for integers and booleans."""
    if not tensor.is_floating_point():
        return 1.0
    info = torch.finfo(tensor.dtype)
    finite = tensor[torch.isfinite(tensor)].abs()
    largest = finite.max().double().item() if finite.numel() else 0.0
    exponent = torch.frexp(torch.tensor(max(largest, info.tiny), dtype=torch.float64)).exponent.item() - 1
    return float(info.eps * 2.0**exponent)


# --- moved axes -----------------------------------------------------------------------------------------------------


def _moved_probes(
    recipe: Recipe,
    fresh: Callable[[], Call],
    example: Probe,
    input_names: tuple[str | None, ...],
    axes: Mapping[str, Mapping[int, str]],
) -> tuple[list[Probe], list[Finding]]:
    """The example at another size of every dynamic axis: all moved together, or one at a time where the model refuses that.

    The eager model judges what is legal. An axis that it lets nobody move is a claim that nothing proves: ``vacuous``.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for index, name in enumerate(input_names):
        for axis, label in axes.get(name or "", {}).items():
            places.setdefault(label, []).append((index, axis))
    if not places:
        return [], []

    def attempt(sizes: Mapping[str, int]) -> Probe | None:
        tensors = list(example.inputs)
        for label, size in sizes.items():
            for index, axis in places[label]:
                tensors[index] = _resized(tensors[index], axis, size)

        def moved() -> Call:
            return _with_inputs(fresh(), [tensor.clone() for tensor in tensors])

        try:
            own = _run(moved())
        except PrepareError:
            return None
        name = ",".join(f"{label}={size}" for label, size in sizes.items())
        return Probe(name=name, inputs=tuple(tensors), reference=_reference(moved, own))

    candidates = {label: _other_sizes(recipe, example, label, where) for label, where in places.items()}
    for choice in range(max(len(sizes) for sizes in candidates.values())):
        together = attempt({label: sizes[min(choice, len(sizes) - 1)] for label, sizes in candidates.items()})
        if together is not None:
            return [together], []
    probes, immovable = [], []
    for label, sizes in candidates.items():
        probe = next((probe for size in sizes if (probe := attempt({label: size})) is not None), None)
        if probe is not None:
            probes.append(probe)
            continue
        immovable.append(
            finding(
                "vacuous",
                f"the dynamic axis {label!r} was never tried: the model itself refuses the sizes {', '.join(map(str, sizes))}",
                remedy=f"Name a size that the model takes, probes={{{label!r}: SIZE}}, or do not declare the axis dynamic.",
            )
        )
    return probes, immovable


def _other_sizes(recipe: Recipe, example: Probe, label: str, where: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Sizes to try for an axis: the recipe's, or the next one up, then multiples for models that ask for them."""
    if label in recipe.probes:
        return recipe.probes[label]
    index, axis = where[0]
    size = example.inputs[index].shape[axis]
    return tuple(
        other for other in dict.fromkeys((size + 1, 2 * size, size - 1, 3 * size, size // 2)) if other >= 1 and other != size
    )


def _resized(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """``tensor`` with ``size`` along ``axis``: the same slices again, floating values drawn anew from those it holds.

    Values drawn from the example stay in its range, and slices that differ cannot hide one another.
    """
    old = tensor.shape[axis]
    if old == 0:
        return tensor.new_zeros([size if i == axis else n for i, n in enumerate(tensor.shape)])
    resized = tensor.index_select(axis, torch.arange(size) % old)
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return resized
    draw = torch.randint(0, tensor.numel(), resized.shape, generator=torch.Generator().manual_seed(size))
    return tensor.flatten()[draw]


# --- what the references already show -------------------------------------------------------------------------------


def _too_noisy(recipe: Recipe, probes: Sequence[Probe]) -> list[Finding]:
    """Outputs whose noise exceeds half of their digits: a comparison by drift would let almost anything pass."""
    if recipe.rtol is not None or recipe.atol is not None:
        return []
    findings = []
    for probe in probes:
        for position, (own, noise) in enumerate(zip(probe.reference.own, probe.reference.noise, strict=True)):
            if not own.is_floating_point() or not own.numel():
                continue
            finite = own[torch.isfinite(own)].abs()
            largest = finite.max().double().item() if finite.numel() else 0.0
            if largest and noise > largest * torch.finfo(own.dtype).eps ** 0.5:
                findings.append(
                    finding(
                        "vacuous",
                        f"on {probe.name!r}, output {position} of the model in {_dtype_name(own)} and in float64 differ by "
                        f"{noise:.2g} where the largest value is {largest:.2g}: drift cannot judge it",
                        remedy="A random model needs eval() or a seed in forward; an ill-conditioned one needs rtol or atol.",
                        noise=noise,
                        max_abs=largest,
                    )
                )
    return findings


def _without_float64(probes: Sequence[Probe]) -> list[Finding]:
    fallen = [probe.name for probe in probes if probe.reference.method != "float64"]
    if not fallen:
        return []
    said = f"the model cannot run in float64 (on {', '.join(fallen)}): its noise is estimated by perturbation"
    return [finding("no-float64", said)]


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
