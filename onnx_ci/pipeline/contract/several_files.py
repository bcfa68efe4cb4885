"""What several files of one model declare together.

Which inputs and outputs each of them should have is not declared here. A recipe of that part alone says so.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import torch

from onnx_ci.onnx_model.signature import Signature, Value
from onnx_ci.pipeline.contract.contract import element_type_of
from onnx_ci.pipeline.prepare.prepare import Prepared


def merged_signature(signatures: Sequence[Signature], prepared: Prepared) -> Signature:
    """What the files of a model declare together: its inputs and outputs, and the sum of what they contain."""
    opsets = {each.opset for each in signatures}
    operators = sum((Counter(each.operators) for each in signatures), Counter[str]())
    domains = sorted(itertools.chain.from_iterable(each.domains.items() for each in signatures))
    return Signature(
        inputs=_values("input", prepared.input_names, prepared.example.inputs),
        weights=(),
        outputs=_values("output", prepared.recipe.output_names, prepared.example.reference.own),
        opset=opsets.pop() if len(opsets) == 1 else None,
        ir_version=max(each.ir_version for each in signatures),
        foreign_domains=tuple(dict.fromkeys(domain for each in signatures for domain in each.foreign_domains)),
        paths=tuple(path for each in signatures for path in each.paths),
        external_data=tuple(data for each in signatures for data in each.external_data),
        domains=dict(domains),
        operators=dict(sorted(operators.items())),
        has_other_powers=any(each.has_other_powers for each in signatures),
        initializers=sum(each.initializers for each in signatures),
        initializer_bytes=sum(each.initializer_bytes for each in signatures),
        largest_initializer_bytes=max(each.largest_initializer_bytes for each in signatures),
        text_bytes=sum(each.text_bytes for each in signatures),
        has_probe_weights=any(each.has_probe_weights for each in signatures),
    )


def _values(role: str, names: Sequence[str | None], tensors: Sequence[torch.Tensor]) -> tuple[Value, ...]:
    """The model's tensors as a file would declare them, but without shapes: no file has these inputs and outputs."""
    named = itertools.zip_longest(names[: len(tensors)], tensors)
    return tuple(
        Value(name=name or f"{role}_{place}", element_type=element_type_of(tensor) or 0, dims=None)
        for place, (name, tensor) in enumerate(named)
    )
