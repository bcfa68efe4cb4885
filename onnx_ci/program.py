"""What a model does on its example, operator by operator, in one digest."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from onnx_ci.calls import Call, EveryOperator, exact_arithmetic, flatten_inputs, seeded
from onnx_ci.content import Digester

_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Recorder(EveryOperator):
    """Takes in every operator that runs, with what it is given: tensors by where they come from, constants by content."""

    def __init__(self, digester: Digester, known: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._digester = digester
        self._count = 0
        self._known = WeakTensorKeyDictionary()
        for tensor in known:
            self._note(tensor)

    def _note(self, tensor: torch.Tensor) -> None:
        self._known[tensor] = self._count
        self._count += 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._digester.put(str(func))
        leaves = pytree.tree_leaves((args, dict(kwargs or {})))
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                self._digester.put(type(leaf).__name__, repr(leaf) if type(leaf) in _PLAIN else "")
            elif leaf in self._known:
                self._digester.put("tensor", str(self._known[leaf]))
            else:
                self._digester.put("constant")
                self._digester.add(leaf, "a constant of the program")
                self._note(leaf)
        made = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf not in self._known:
                self._digester.put("made", str(leaf.dtype), str(tuple(leaf.shape)))
                self._note(leaf)
        return made


def program_digest(call: Call, seed: int) -> str:
    """The operators that a call runs, in order, with their constants. ``call`` is used up: running it may change it.

    A run that is observed so may fail where a plain one does not. Then the digest names the kind of failure.
    """
    digester = Digester()
    known = [*call.model.parameters(), *call.model.buffers(), *(tensor for _, tensor in flatten_inputs(call))]
    try:
        with warnings.catch_warnings(), torch.no_grad(), exact_arithmetic(), seeded(seed), _Recorder(digester, known):
            warnings.simplefilter("ignore")
            call.model(*call.args, **call.kwargs)
    except Exception as error:  # whatever a model raises under observation
        if compiler := sys.modules.get("torch._dynamo"):
            compiler.reset()  # what torch.cond could not compile under observation, it would never compile again
        return f"cannot be observed: {type(error).__name__}"
    return digester.hexdigest()
