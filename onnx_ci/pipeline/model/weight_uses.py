"""How a model uses its weights: which of them an exported file must contain as they are, and which BatchNorm is folded in.

Exporters and optimizers evaluate whatever depends on weights alone, and keep names: ``weight * gain`` becomes one tensor, which
can be close to the weight without being wrong. So a weight of the file is judged only if it must be the model's. If it equals
neither a weight nor one with the BatchNorm behind its layer folded in, one run of the model, observed operator by operator,
decides. Only those weights must be in the file that every use combines with data, in operators that exporters translate as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.onnx_model.weights import CLOSE, is_close
from onnx_ci.pipeline.model.call import Call, PrepareError, input_tensors
from onnx_ci.pipeline.model.module import named_weights_of
from onnx_ci.pipeline.model.operators import OperatorMode, named_arguments, tensor_leaves, written_to
from onnx_ci.pipeline.model.running import force_eager, run_tree


@dataclass(frozen=True, kw_only=True)
class FoldedNorm:
    """What BatchNorm does to the result of a layer, one number for each channel."""

    weight: str
    bias: str | None
    """The layer's own weights by name."""
    norm_bias: str | None = None
    """The name of the bias that is added last."""
    scale: torch.Tensor
    shift: torch.Tensor
    terms: torch.Tensor
    """The sum of the sizes of the terms of ``shift``, which determines its rounding."""

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
        """The same, followed by another BatchNorm with these statistics and weights, whose bias is called ``name``."""
        exact_mean, exact_var = _exact(mean), _exact(var)
        scale = (1 if weight is None else _exact(weight)) / (exact_var + eps).sqrt()
        exact_bias = torch.zeros_like(exact_mean) if bias is None else _exact(bias)
        return replace(
            self,
            norm_bias=name,
            scale=self.scale * scale,
            shift=(self.shift - exact_mean) * scale + exact_bias,
            terms=(self.terms + exact_mean.abs()) * scale.abs() + exact_bias.abs(),
        )


@dataclass(frozen=True, kw_only=True)
class WeightUses:
    """The weights of a model by how it uses them. Of shared weights, the first name counts."""

    direct: frozenset[str] = frozenset()
    """Those that a file contains unchanged or with a folded norm. All their uses combine them with data, in operators that
    exporters translate as they are."""
    reshaped: frozenset[str] = frozenset()
    """Those that the model uses in part or in another shape. A file may contain their elements in another order."""
    norms: tuple[FoldedNorm, ...] = ()


def likely_norms(model: torch.nn.Module) -> Iterator[FoldedNorm]:
    """The BatchNorms that stand behind a layer with as many channels, which is where most models apply them.

    If a tensor equals a weight with one of them folded in, no run of the model is needed to explain it. Such runs would take a
    third of the time of ResNet-18 at nine opsets.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers: dict[int, tuple[str, str | None]] = {}
    for module in model.modules():
        weight, bias = (names.get(id(getattr(module, attribute, None))) for attribute in ("weight", "bias"))
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):  # the base of all of them has no public name
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
    """A layer without a BatchNorm: it changes nothing."""
    ones = torch.ones(channels, dtype=torch.float64)
    return FoldedNorm(weight=weight, bias=bias, scale=ones, shift=ones * 0, terms=ones * 0)


def weight_uses(call: Call, doubtful: Mapping[str, torch.Tensor]) -> WeightUses:
    """How the model of ``call`` uses its weights. If it cannot be observed, no weight is direct.

    Args:
        call: a call of a model; it must not be used afterwards.
        doubtful: the weights in question by name. If the model uses another tensor that is close to one of them, that weight is
            not direct.
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
    """A tensor that is computed from weights and data. What follows may be folded into these weights."""

    weights: frozenset[str]
    norm: FoldedNorm | None = None


@dataclass(frozen=True, kw_only=True)
class _Operator:
    """One call of an operator."""

    name: str
    arguments: Mapping[str, Any]
    """Its arguments by name, defaults included."""
    operands: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]
    """What it returned, and the operands that it changed."""
    is_view: bool

    @property
    def is_norm(self) -> bool:
        """Whether it is BatchNorm; each kind of device has its own operator."""
        return self.name.startswith("aten::") and "batch_norm" in self.name

    @property
    def is_scaled(self) -> bool:
        """Whether it multiplies an operand by a number, which an exporter may do in advance."""
        return any(self.arguments.get(name, 1) != 1 for name in ("alpha", "beta"))

    @property
    def is_product_with_zero(self) -> bool:
        """Whether it multiplies a weight by zeros, such as an initial state. The result is zero, or the bias itself."""
        arguments = self.arguments
        return self.name in ("aten::mm", "aten::addmm") and not arguments["mat1" if "mat1" in arguments else "self"].any()


class _Observer(OperatorMode):
    def __init__(self, call: Call, doubtful: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = named_weights_of(call.model)
        self._doubtful = doubtful
        # Weak, so that observing a run needs no more memory than the run.
        self._names: MutableMapping[torch.Tensor, frozenset[str]] = WeakIdKeyDictionary()
        """The names of the weights whose numbers a tensor has."""
        self._from_data: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
        """The tensors that depend on the inputs."""
        self._products: MutableMapping[torch.Tensor, _Product] = WeakIdKeyDictionary()
        self._used: set[str] = set()
        """The weights that were combined with data."""
        self._changed: set[str] = set()
        """The weights that a file may contain in another form."""
        self._reshaped: set[str] = set()
        self._norms: list[FoldedNorm] = []
        for name, weight in self._weights.items():
            self._names[weight] = frozenset({name})
        for tensor in input_tensors(call):
            self._from_data[tensor] = True

    def uses(self) -> WeightUses:
        """What was observed."""
        similar = {
            name
            for name, tensor in self._doubtful.items()
            if any(_may_be(tensor, self._weights[changed]) for changed in self._changed)
        }
        direct = frozenset(self._used - self._changed - similar)
        return WeightUses(direct=direct, reshaped=frozenset(self._reshaped), norms=tuple(self._norms))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        arguments, written = named_arguments(func, args, kwargs), written_to(func, args, kwargs)
        self._changed |= self._names_of(written)
        operator = _Operator(
            name=func.name().partition(".")[0].rstrip("_"),  # relu_ is relu, in place
            arguments=arguments,
            operands=tensor_leaves(arguments),
            results=[*tensor_leaves(result), *written],
            is_view=func.is_view,
        )
        if any(operand in self._from_data for operand in operator.operands):
            for tensor in operator.results:
                self._from_data[tensor] = True
            self._combine(operator)
        else:
            self._fold(operator)
        return result

    def _names_of(self, tensors: Iterable[torch.Tensor]) -> frozenset[str]:
        """The names of the weights whose numbers the tensors have."""
        return frozenset().union(*(self._names.get(tensor, ()) for tensor in tensors))

    def _fold(self, operator: _Operator) -> None:
        """An operator on weights and constants alone, which an exporter may evaluate."""
        names = self._names_of(operator.operands)
        if operator.is_view or operator.name in _COPIES:
            for tensor in operator.results:
                self._names[tensor] = names
            if operator.name not in _KEEPS_ORDER:
                self._reshaped |= names
        elif names and not operator.is_product_with_zero:
            self._changed |= names
        self._compare_constants(operator)

    def _combine(self, operator: _Operator) -> None:
        """An operator on data, and perhaps on weights."""
        names = self._names_of(operator.operands)
        products = [self._products[operand] for operand in operator.operands if operand in self._products]
        for tensor in operator.results:
            self._products.pop(tensor, None)
        if operator.is_view or operator.name in _COPIES:
            for tensor in operator.results if products else ():
                self._products[tensor] = products[0]
            return
        self._used |= names
        self._compare_constants(operator)
        if operator.is_norm:
            self._normalize(operator, products[0] if products else None)
            return
        if operator.name not in _UNCHANGED or operator.is_scaled:
            self._changed |= names
        norm = self._identity(operator) if names and operator.name not in _ARITHMETIC else None
        of_products = frozenset[str]()
        if operator.name in _ARITHMETIC and products and self._has_constant(operator):
            of_products = of_products.union(*(product.weights for product in products))
            self._changed |= self._foldable(operator, of_products, names)
        if names or of_products:
            self._products[operator.results[0]] = _Product(weights=names | of_products, norm=norm)

    def _compare_constants(self, operator: _Operator) -> None:
        """A weight is not direct if a constant of the model is close to it: the file may contain that constant."""
        for tensor in operator.operands:
            if tensor not in self._from_data and not self._names.get(tensor):
                self._changed |= {name for name, weight in self._doubtful.items() if _may_be(weight, tensor)}

    def _has_constant(self, operator: _Operator) -> bool:
        sides = (operator.arguments.get("self"), operator.arguments.get("other"))
        return any(not isinstance(side, torch.Tensor) or side not in self._from_data for side in sides)

    def _foldable(self, operator: _Operator, of_product: frozenset[str], of_constant: frozenset[str]) -> frozenset[str]:
        """The weights that an optimizer may combine into one tensor where a constant is added to a product or multiplies it.

        Args:
            of_product: the weights that the product is computed from.
            of_constant: the weights that the constant consists of.
        """
        if operator.name in _ADDITIVE:
            biases = frozenset(name for name in of_product if self._weights[name].dim() <= 1)
            return biases | of_constant if biases else biases
        factor = operator.arguments.get("other")
        if isinstance(factor, (int, float)) and not 0 < abs(abs(factor) - 1) < 4 * CLOSE:
            return frozenset()  # the combination would be far from the weights
        return of_product | of_constant

    # --- BatchNorm

    def _identity(self, operator: _Operator) -> FoldedNorm | None:
        """A layer that no BatchNorm has followed yet; ``None`` if none can be folded into it."""
        arguments, result = operator.arguments, operator.results[0]
        weight = self._names_of(tensor_leaves(arguments.get("weight", arguments.get("mat2"))))
        bias = self._names_of(tensor_leaves(arguments.get("bias", arguments["self"] if "mat1" in arguments else None)))
        has_mixed_channels = (
            arguments.get("transposed") and arguments.get("groups") != 1
        )  # no axis of the weight is the channels
        if len(weight) != 1 or len(bias) > 1 or result.dim() < 2 or has_mixed_channels:
            return None
        return _no_norm(min(weight), min(bias, default=None), channels=result.shape[1])

    def _normalize(self, operator: _Operator, product: _Product | None) -> None:
        """A BatchNorm, perhaps of the result of a layer."""
        arguments, of_product = operator.arguments, frozenset[str]() if product is None else product.weights
        names = self._names_of(operator.operands) | of_product
        mean, var = self._constant(arguments.get("running_mean")), self._constant(arguments.get("running_var"))
        eps = arguments.get("eps", arguments.get("epsilon"))
        if arguments.get("training") or eps is None or mean is None or var is None:
            # It changes its statistics, and a wrong file may have it folded into the layer as in inference.
            self._changed |= names
            return
        # Where BatchNorm is decomposed, the file contains the square root of the variance.
        self._changed |= self._names_of([arguments["running_var"]])
        layer = product.norm if product is not None else None
        if layer is None or layer.scale.shape != mean.shape:
            self._changed |= of_product
            self._products[operator.results[0]] = _Product(weights=names, norm=layer)
            return
        weight, bias = self._constant(arguments.get("weight")), self._constant(arguments.get("bias"))
        name = min(self._names_of(tensor_leaves(arguments.get("bias"))), default=None)
        norm = layer.followed_by(mean, var, weight, bias, eps=eps, name=name)
        self._norms.append(norm)
        self._products[operator.results[0]] = _Product(weights=names, norm=norm)

    def _constant(self, tensor: Any) -> torch.Tensor | None:
        return tensor if isinstance(tensor, torch.Tensor) and tensor not in self._from_data else None


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().double()


def _may_be(weight: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor is so close to a weight that a file may contain it in the place of the weight."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.numel() != weight.numel():
        return False
    return is_close(*(_exact(each).flatten().numpy() for each in (tensor, weight)))
