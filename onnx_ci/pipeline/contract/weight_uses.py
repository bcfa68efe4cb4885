"""How a model uses its weights: which of them an exported file must contain as they are, and which BatchNorm is folded in.

Exporters and optimizers evaluate whatever depends on weights alone, and keep names: ``weight * gain`` becomes one tensor, which
can be close to the weight without being wrong. So a weight of the file is judged only if it must be the model's. If it equals
neither a weight nor one with the BatchNorm behind its layer folded in, one run of the model, observed operator by operator,
decides. Only those weights must be in the file that every use combines with data, in operators that exporters translate as they
are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from onnx_ci.onnx_model.weights import CLOSE, is_close
from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.module import named_weights_of
from onnx_ci.pipeline.model.running import force_eager, run_tree
from onnx_ci.pipeline.model.tensors import has_noise
from onnx_ci.pipeline.trace.recorder import MOST_KEPT, Recorder
from onnx_ci.pipeline.trace.trace import Operator, Ref, Role, Trace, refs_in

_Names = frozenset[str]
_Tensors = Mapping[str, torch.Tensor]
"""Tensors by name."""


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
        mean, var = _exact(mean), _exact(var)
        scale = (1 if weight is None else _exact(weight)) / (var + eps).sqrt()
        bias = torch.zeros_like(mean) if bias is None else _exact(bias)
        shift = (self.shift - mean) * scale + bias
        terms = (self.terms + mean.abs()) * scale.abs() + bias.abs()
        return replace(self, norm_bias=name, scale=self.scale * scale, shift=shift, terms=terms)


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
    parameters = dict(model.named_parameters())  # a script refuses get_parameter
    names = {id(parameter): name for name, parameter in parameters.items()}
    layers: dict[int, tuple[str, str | None]] = {}
    for module in model.modules():
        weight, bias = (names.get(id(getattr(module, attribute, None))) for attribute in ("weight", "bias"))
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):  # the base of all of them has no public name
            if weight is not None:
                channels = parameters[weight].shape[:2] if bias is None else parameters[bias].shape
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


def recorded_weight_uses(call: Call, doubtful: _Tensors) -> WeightUses:
    """How the model of ``call`` uses its weights, as one run shows. The call must not be used afterwards.

    ``doubtful`` is that of :func:`weight_uses`.
    """
    weights = named_weights_of(call.model)
    in_weights = {each.untyped_storage().data_ptr() for each in weights.values() if each.layout is torch.strided}

    def keep(tensor: torch.Tensor, _role: Role) -> torch.Tensor | None:
        if not has_noise(tensor):
            return None
        if not tensor.any():
            return torch.zeros(()).expand(tensor.shape)  # takes no memory
        if tensor.dim() <= 1 and tensor.numel() <= MOST_KEPT:
            return _exact(tensor)
        is_weight = tensor.untyped_storage().data_ptr() in in_weights  # known by its name, and copies take memory
        return None if is_weight or not any(_may_be(each, tensor) for each in doubtful.values()) else _exact(tensor)

    recorder = Recorder(call, keep, kinds=[Operator])
    with contextlib.suppress(PrepareError), force_eager(), recorder:
        recorder.returned(run_tree(call))
    return weight_uses(recorder.trace, weights, doubtful)


def weight_uses(trace: Trace, weights: _Tensors, doubtful: _Tensors) -> WeightUses:
    """How a model uses its weights. If a trace does not show all that it does, no weight is direct.

    The trace has the numbers of vectors, of zeros, and of what is close to a doubtful weight. Such a weight is not direct if
    the model uses another tensor that is close to it.
    """
    operators = [*trace.of_kind(Operator)]
    if not (trace.is_accepted and trace.is_complete) or any(operator.call.is_higher_order for operator in operators):
        return WeightUses()
    uses = _Uses(trace, weights, doubtful)
    for operator in operators:
        uses.follow(operator)
    similar = {name for name, tensor in doubtful.items() if any(_may_be(tensor, weights[changed]) for changed in uses.changed)}
    direct = frozenset(uses.used - uses.changed - similar)
    return WeightUses(direct=direct, reshaped=frozenset(uses.reshaped), norms=tuple(uses.norms))


_UNCHANGED = frozenset((
    "mm", "addmm", "bmm", "linear", "matmul", "convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution",
    "embedding", "native_layer_norm", "native_group_norm", "mkldnn_rnn_layer", "_cudnn_rnn", "lstm", "gru",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_prelu_kernel", "cat", "mul", "add",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
))  # fmt: skip
"""Operators whose operands exporters write into files as they are."""

_KEEPS_ORDER = frozenset({"t", "transpose", "permute", "detach", "alias", "unsqueeze", "squeeze", "expand"})
_COPIES = frozenset({"clone", "_unsafe_view"})
_ADDITIVE = frozenset({"add", "sub", "rsub"})
_ARITHMETIC = _ADDITIVE | {"mul", "div", "addcmul", "addcdiv", "lerp"}


@dataclass(frozen=True, kw_only=True)
class _Product:
    """A value that is computed from weights and data. What follows may be folded into these weights."""

    weights: _Names
    norm: FoldedNorm | None = None


class _Uses:
    """Follows weights through the operators of a trace."""

    def __init__(self, trace: Trace, weights: _Tensors, doubtful: _Tensors) -> None:
        self._values, self._weights, self._doubtful = trace.values, weights, doubtful
        self._names = {
            position: _Names({value.name}) for position, value in enumerate(trace.values) if value.role is Role.WEIGHT
        }
        """The names of the weights whose numbers a value has."""
        self._from_data = {*trace.inputs}
        """The values that depend on the inputs."""
        self._products: dict[int, _Product] = {}
        self.used: set[str] = set()
        """The weights that were combined with data."""
        self.changed: set[str] = set()
        """The weights that a file may contain in another form."""
        self.reshaped: set[str] = set()
        self.norms: list[FoldedNorm] = []

    def follow(self, operator: Operator) -> None:
        """Note what an operator does with weights."""
        for each in operator.written:  # what a weight becomes still has its name
            self._names[each] = self._names.get(self._values[each].memory, _Names())
        self.changed |= self._names_of(operator.written)
        if self._from_data.isdisjoint(operator.operands):
            self._fold(operator)
        else:
            self._combine(operator)
            self._from_data.update(operator.results, operator.written)

    def _names_of(self, values: Iterable[int]) -> _Names:
        """The names of the weights whose numbers the values have."""
        return _Names().union(*(self._names.get(each, ()) for each in values))

    def _fold(self, operator: Operator) -> None:
        """An operator on weights and constants alone, which an exporter may evaluate."""
        names = self._names_of(operator.operands)
        if _keeps_numbers(operator):
            self._names |= dict.fromkeys(operator.results, names)
            if operator.name not in _KEEPS_ORDER:
                self.reshaped |= names
        elif names and not self._is_product_with_zero(operator):
            self.changed |= names
        self._compare_constants(operator)

    def _combine(self, operator: Operator) -> None:
        """An operator on data, and perhaps on weights."""
        names = self._names_of(operator.operands)
        products = [self._products[operand] for operand in operator.operands if operand in self._products]
        if _keeps_numbers(operator):
            self._products |= dict.fromkeys(operator.results, products[0]) if products else {}
            return
        self.used |= names
        self._compare_constants(operator)
        if operator.call.name.startswith("aten::") and "batch_norm" in operator.name:  # each kind of device has its own
            self._normalize(operator, products[0] if products else None)
            return
        is_scaled = any(operator.arguments.get(name, 1) != 1 for name in ("alpha", "beta"))  # exporters may do it in advance
        if operator.name not in _UNCHANGED or is_scaled:
            self.changed |= names
        norm = self._identity(operator) if names and operator.name not in _ARITHMETIC else None
        of_products = _Names()
        if operator.name in _ARITHMETIC and products and self._has_constant(operator):
            of_products = of_products.union(*(product.weights for product in products))
            self.changed |= self._foldable(operator, of_products, names)
        if names or of_products:
            self._products |= dict.fromkeys(operator.results[:1], _Product(weights=names | of_products, norm=norm))

    def _is_product_with_zero(self, operator: Operator) -> bool:
        """Whether it multiplies a weight by zeros, such as an initial state. The result is zero, or the bias itself."""
        if operator.name not in ("mm", "addmm"):
            return False
        kept = self._values[operator.arguments["mat1" if operator.name == "addmm" else "self"].value].kept
        return kept is not None and not kept.any()

    def _compare_constants(self, operator: Operator) -> None:
        """A weight is not direct if a constant of the model is close to it: the file may contain that constant."""
        for each in operator.operands:
            kept = self._values[each].kept
            if kept is not None and each not in self._from_data and not self._names.get(each):
                self.changed |= {name for name, weight in self._doubtful.items() if _may_be(weight, kept)}

    def _has_constant(self, operator: Operator) -> bool:
        # A cell of an LSTM adds products in place to what its initial state gives, which a file does not fold.
        names = ("other",) if operator.written else ("self", "other")
        sides = (operator.arguments.get(name) for name in names)
        return any(not isinstance(side, Ref) or side.value not in self._from_data for side in sides)

    def _foldable(self, operator: Operator, of_product: _Names, of_constant: _Names) -> _Names:
        """The weights that an optimizer may combine into one tensor where a constant is added to a product or multiplies it."""
        if operator.name in _ADDITIVE:
            biases = _Names(name for name in of_product if self._weights[name].dim() <= 1)
            return biases | of_constant if biases else biases
        factor = operator.arguments.get("other")
        if isinstance(factor, (int, float)) and not 0 < abs(abs(factor) - 1) < 4 * CLOSE:
            return _Names()  # the combination would be far from the weights
        return of_product | of_constant

    def _identity(self, operator: Operator) -> FoldedNorm | None:
        """A layer that no BatchNorm has followed yet; ``None`` if none can be folded into it."""
        arguments, shape = operator.arguments, self._values[operator.results[0]].shape if operator.results else ()
        weight = self._names_of(refs_in(arguments.get("weight", arguments.get("mat2"))))
        bias = self._names_of(refs_in(arguments.get("bias", arguments["self"] if "mat1" in arguments else None)))
        has_mixed_channels = arguments.get("transposed") and arguments.get("groups") != 1  # no axis of the weight is channels
        if len(weight) != 1 or len(bias) > 1 or len(shape) < 2 or has_mixed_channels:
            return None
        return _no_norm(min(weight), min(bias, default=None), channels=shape[1])

    def _normalize(self, operator: Operator, product: _Product | None) -> None:
        """A BatchNorm, perhaps of the result of a layer."""
        arguments, of_product = operator.arguments, _Names() if product is None else product.weights
        names = self._names_of(operator.operands) | of_product
        mean, var, weight, bias = map(self._constant, map(arguments.get, ("running_mean", "running_var", "weight", "bias")))
        eps = arguments.get("eps", arguments.get("epsilon"))
        if arguments.get("training") or eps is None or mean is None or var is None:
            # It changes its statistics, and a wrong file may have it folded into the layer as in inference.
            self.changed |= names
            return
        # Where BatchNorm is decomposed, the file contains the square root of the variance.
        self.changed |= self._names_of(refs_in(arguments["running_var"]))
        norm = None if product is None else product.norm
        if norm is None or norm.scale.shape != mean.shape:
            self.changed |= of_product
        else:
            name = min(self._names_of(refs_in(arguments.get("bias"))), default=None)
            norm = norm.followed_by(mean, var, weight, bias, eps=eps, name=name)
            self.norms.append(norm)
        self._products[operator.results[0]] = _Product(weights=names, norm=norm)

    def _constant(self, argument: Any) -> torch.Tensor | None:
        """The numbers of an argument that does not depend on data."""
        is_constant = isinstance(argument, Ref) and argument.value not in self._from_data
        return self._values[argument.value].kept if is_constant else None


def _keeps_numbers(operator: Operator) -> bool:
    return operator.call.is_view or operator.name in _COPIES


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float64, copy=True)


def _may_be(weight: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor is so close to a weight that a file may contain it in the place of the weight."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.numel() != weight.numel():
        return False
    return is_close(*(each.detach().cpu().double().flatten().numpy() for each in (tensor, weight)))
