"""How a model uses its weights: which of them an exported file must contain as they are, and which BatchNorm is folded in.

Exporters and optimizers evaluate whatever depends on weights alone: ``weight * gain`` becomes one tensor, which can be close to
the weight without being wrong. One run of the model, observed operator by operator, shows for which weights that cannot happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.onnx_model.weights import CLOSE, is_close
from onnx_ci.stages.model.live_model import (
    Call,
    OperatorMode,
    PrepareError,
    force_eager,
    input_tensors,
    run_tree,
    tensor_leaves,
)


@dataclass(frozen=True, kw_only=True)
class FoldedNorm:
    """What BatchNorm does to the result of a layer, one number for each channel."""

    weight: str
    bias: str | None
    """The layer's own weights by name."""
    norm_bias: str | None = None
    """The last bias that is added."""
    scale: torch.Tensor
    shift: torch.Tensor
    terms: torch.Tensor
    """The size of what was added up to ``shift``, which determines its rounding."""

    def followed_by(
        self,
        mean: torch.Tensor,
        var: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        *,
        eps: float,
        name: str | None,
    ) -> Self:
        """The same with another BatchNorm after it, which has these statistics and weights; its bias is called ``name``."""
        mean, var = _exact(mean), _exact(var)
        scale = (1 if weight is None else _exact(weight)) / (var + eps).sqrt()
        bias = torch.zeros_like(mean) if bias is None else _exact(bias)
        return replace(
            self,
            norm_bias=name,
            scale=self.scale * scale,
            shift=(self.shift - mean) * scale + bias,
            terms=(self.terms + mean.abs()) * scale.abs() + bias.abs(),
        )


@dataclass(frozen=True, kw_only=True)
class WeightUses:
    """The weights of a model by how it uses them. Of shared weights, the first name counts."""

    direct: frozenset[str] = frozenset()
    """Those that a file contains unchanged or with a folded norm: all their uses combine them with data, in operators that
    exporters translate as they are."""
    reshaped: frozenset[str] = frozenset()
    """Those of which the model uses parts or other shapes, so that a file may contain their elements in another order."""
    norms: tuple[FoldedNorm, ...] = ()


def likely_norms(model: torch.nn.Module) -> Iterator[FoldedNorm]:
    """The BatchNorms that stand behind a layer with as many channels, which is where most models apply them.

    What equals a weight with one of them folded in needs no run of the model to be explained.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers: dict[int, tuple[str, str | None]] = {}
    for module in model.modules():
        weight, bias = (names.get(id(getattr(module, each, None))) for each in ("weight", "bias"))
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            if weight is not None:
                channels = model.get_parameter(weight).shape[:2] if bias is None else model.get_parameter(bias).shape
                layers |= dict.fromkeys(channels, (weight, bias))
        elif module.num_features in layers and not module.training:
            mean, var = module.running_mean, module.running_var
            if mean is None or var is None:
                continue
            layer = _no_norm(*layers[module.num_features], channels=module.num_features)
            yield layer.followed_by(mean, var, module.weight, module.bias, eps=module.eps, name=bias)


def _no_norm(weight: str, bias: str | None, *, channels: int) -> FoldedNorm:
    """What no BatchNorm does to the result of a layer."""
    one = torch.ones(channels, dtype=torch.float64)
    return FoldedNorm(weight=weight, bias=bias, scale=one, shift=one * 0, terms=one * 0)


def weight_uses(call: Call, doubtful: Mapping[str, torch.Tensor]) -> WeightUses:
    """How the model of ``call`` uses its weights; none are direct if it cannot be observed.

    Args:
        call: a call of a model; it must not be used afterwards.
        doubtful: weights by name. If the model uses another tensor that is close to one of them, that one is not direct.
    """
    observer = _Observer(call, doubtful)
    try:
        with force_eager(), observer:
            run_tree(call)
    except PrepareError:
        return WeightUses()
    return observer.uses()


_UNCHANGED = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "linear", "matmul", "convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution",
        "embedding", "native_layer_norm", "native_group_norm", "mkldnn_rnn_layer", "_cudnn_rnn", "lstm", "gru",
        "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_prelu_kernel", "cat", "mul", "add",
        "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
    )
)  # fmt: skip
"""Operators whose operands exporters write into files as they are."""

_KEEPS_ORDER = frozenset(
    f"aten::{name}" for name in ("t", "transpose", "permute", "detach", "alias", "unsqueeze", "squeeze", "expand")
)
_COPIES = frozenset({"aten::clone", "aten::_unsafe_view"})
_ADDITIVE = frozenset({"aten::add", "aten::sub", "aten::rsub"})
_ARITHMETIC = _ADDITIVE | {"aten::mul", "aten::div", "aten::addcmul", "aten::addcdiv", "aten::lerp"}


@dataclass(frozen=True, kw_only=True)
class _Product:
    """A tensor that is the result of weights and data, without other arithmetic that could be folded into the weights."""

    weights: frozenset[str]
    norm: FoldedNorm | None = None


@dataclass(frozen=True, kw_only=True)
class _Operator:
    """One call of an operator."""

    name: str
    given: Mapping[str, Any]
    """Its arguments by name."""
    operands: Sequence[torch.Tensor]
    made: Sequence[torch.Tensor]
    """Its results, and the operands that it changed."""
    is_view: bool

    @property
    def is_norm(self) -> bool:
        """Whether it is BatchNorm; each kind of device has its own operator."""
        return self.name.startswith("aten::") and "batch_norm" in self.name

    @property
    def is_scaled(self) -> bool:
        """Whether it multiplies an operand by a number, which an exporter may do beforehand."""
        return any(self.given.get(name, 1) != 1 for name in ("alpha", "beta"))

    @property
    def is_product_with_zero(self) -> bool:
        """Whether it multiplies a weight by zeros, such as an initial state: the result is zero, or the bias itself."""
        return self.name in ("aten::mm", "aten::addmm") and not self.given["mat1" if "mat1" in self.given else "self"].any()


class _Observer(OperatorMode):
    def __init__(self, call: Call, doubtful: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors = {**dict(call.model.named_parameters()), **dict(call.model.named_buffers())}
        self._doubtful = doubtful
        # Weak, so that observing a run needs no more memory than the run.
        self._held: MutableMapping[torch.Tensor, frozenset[str]] = WeakIdKeyDictionary()
        self._from_data: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
        self._products: MutableMapping[torch.Tensor, _Product] = WeakIdKeyDictionary()
        self._used: set[str] = set()
        self._changed: set[str] = set()
        self._reshaped: set[str] = set()
        self._norms: list[FoldedNorm] = []
        for name, tensor in self._tensors.items():
            self._held[tensor] = frozenset({name})
        for tensor in input_tensors(call):
            self._from_data[tensor] = True

    def uses(self) -> WeightUses:
        """What was observed."""
        similar = {
            name
            for name, tensor in self._doubtful.items()
            if any(_may_be(tensor, self._tensors[other]) for other in self._changed)
        }
        direct = frozenset(self._used - self._changed - similar)
        return WeightUses(direct=direct, reshaped=frozenset(self._reshaped), norms=tuple(self._norms))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = func._schema
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
        changed = [
            given.get(each.name) for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write
        ]
        self._changed |= self._names(tensor_leaves(changed))
        operator = _Operator(
            name=schema.name.rstrip("_"),  # relu_ is relu, in place
            given=given,
            operands=tensor_leaves(given),
            made=tensor_leaves([result, changed]),
            is_view=func.is_view,
        )
        if any(each in self._from_data for each in operator.operands):
            for each in operator.made:
                self._from_data[each] = True
            self._combine(operator)
        else:
            self._fold(operator)
        return result

    def _names(self, tensors: Iterable[torch.Tensor]) -> frozenset[str]:
        return frozenset().union(*(self._held.get(each, ()) for each in tensors))

    def _fold(self, operator: _Operator) -> None:
        """An operator on weights and constants alone, which an exporter may evaluate."""
        held = self._names(operator.operands)
        if operator.is_view or operator.name in _COPIES:
            for each in operator.made:
                self._held[each] = held
            if operator.name not in _KEEPS_ORDER:
                self._reshaped |= held
        elif held and not operator.is_product_with_zero:
            self._changed |= held
        self._compare_constants(operator)

    def _combine(self, operator: _Operator) -> None:
        """An operator on data, and perhaps on weights."""
        held = self._names(operator.operands)
        products = [self._products[each] for each in operator.operands if each in self._products]
        for each in operator.made:
            self._products.pop(each, None)
        if operator.is_view or operator.name in _COPIES:
            for each in operator.made if products else ():
                self._products[each] = products[0]
            return
        self._used |= held
        self._compare_constants(operator)
        if operator.is_norm:
            self._normalize(operator, products[0] if products else None)
            return
        if operator.name not in _UNCHANGED or operator.is_scaled:
            self._changed |= held
        norm = None
        if operator.name not in _ARITHMETIC:
            norm = self._identity(operator) if held else None
        elif products and self._has_constant(operator):
            weights = frozenset[str]().union(*(each.weights for each in products))
            self._changed |= self._foldable(operator, weights, held)
            held |= weights
        if held:
            self._products[operator.made[0]] = _Product(weights=held, norm=norm)

    def _compare_constants(self, operator: _Operator) -> None:
        """Weights that another constant of the model is close to are not direct: the file may contain that constant."""
        for tensor in operator.operands:
            if tensor not in self._from_data and not self._held.get(tensor):
                self._changed |= {name for name, weight in self._doubtful.items() if _may_be(weight, tensor)}

    def _has_constant(self, operator: _Operator) -> bool:
        sides = (operator.given.get("self"), operator.given.get("other"))
        return any(not isinstance(each, torch.Tensor) or each not in self._from_data for each in sides)

    def _foldable(self, operator: _Operator, weights: frozenset[str], held: frozenset[str]) -> frozenset[str]:
        """The weights that an optimizer may combine into one tensor, if their result is added to or multiplied by a constant.

        Args:
            weights: those of the result.
            held: those that the constant is.
        """
        if operator.name in _ADDITIVE:
            biases = frozenset(name for name in weights if self._tensors[name].dim() <= 1)
            return biases | held if biases else biases
        other = operator.given.get("other")
        if isinstance(other, (int, float)) and not 0 < abs(abs(other) - 1) < 4 * CLOSE:
            return frozenset()  # the combination would be far from the weights
        return weights | held

    # --- BatchNorm

    def _identity(self, operator: _Operator) -> FoldedNorm | None:
        """What no BatchNorm does to the result of a layer, if one may follow."""
        given, made = operator.given, operator.made[0]
        weight = self._names(tensor_leaves(given.get("weight", given.get("mat2"))))
        bias = self._names(tensor_leaves(given.get("bias", given["self"] if "mat1" in given else None)))
        has_mixed_channels = given.get("transposed") and given.get("groups") != 1  # no axis of the weight is the channels
        if len(weight) != 1 or len(bias) > 1 or made.dim() < 2 or has_mixed_channels:
            return None
        return _no_norm(min(weight), min(bias, default=None), channels=made.shape[1])

    def _normalize(self, operator: _Operator, product: _Product | None) -> None:
        given = operator.given
        mean, var = self._constant(given.get("running_mean")), self._constant(given.get("running_var"))
        eps = given.get("eps", given.get("epsilon"))
        if given.get("training") or eps is None or mean is None or var is None:
            # It changes its statistics, and a wrong file may have it folded into the layer as in inference.
            self._changed |= self._names(operator.operands).union(product.weights if product is not None else ())
            return
        # Where BatchNorm is decomposed, the file contains the square root of the variance.
        self._changed |= self._names([given["running_var"]])
        weight, bias = self._constant(given.get("weight")), self._constant(given.get("bias"))
        norm = product.norm if product is not None else None
        if norm is not None and norm.scale.shape == mean.shape:
            name = min(self._names(tensor_leaves(given.get("bias"))), default=None)
            norm = norm.followed_by(mean, var, weight, bias, eps=eps, name=name)
            self._norms.append(norm)
        elif product is not None:
            self._changed |= product.weights
        weights = self._names(operator.operands).union(product.weights if product is not None else ())
        self._products[operator.made[0]] = _Product(weights=weights, norm=norm)

    def _constant(self, tensor: Any) -> torch.Tensor | None:
        return tensor if isinstance(tensor, torch.Tensor) and tensor not in self._from_data else None


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().double()


def _may_be(weight: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether another tensor is so close to a weight that a file may contain that one."""
    if not other.is_floating_point() or other.layout is not torch.strided or other.numel() != weight.numel():
        return False
    return is_close(*(each.detach().cpu().double().flatten().numpy() for each in (other, weight)))
