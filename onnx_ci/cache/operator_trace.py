"""The operators that a model runs on its example, as one digest."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from onnx_ci.cache.object_digest import Digester
from onnx_ci.stages.prepare.devices import exact_arithmetic
from onnx_ci.stages.prepare.live_model import Call, OperatorMode, input_tensors, seeded

_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Recorder(OperatorMode):
    """Digests every operator that runs, with its arguments: tensors by their origin, constants by content."""

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
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf not in self._known:
                self._digester.put("made", str(leaf.dtype), str(tuple(leaf.shape)))
                self._note(leaf)
        return result


def program_digest(call: Call, seed: int) -> str:
    """A digest of the operators that a call runs, in order, with their constants. Running ``call`` may modify it.

    A recorded run may fail where a plain one does not. The result then names the type of the exception.
    """
    digester = Digester()
    known = [*call.model.parameters(), *call.model.buffers(), *input_tensors(call)]
    try:
        with warnings.catch_warnings(), torch.no_grad(), exact_arithmetic(), seeded(seed), _Recorder(digester, known):
            warnings.simplefilter("ignore")
            call.model(*call.args, **call.kwargs)
    except Exception as error:  # a model may raise anything while it is recorded
        if compiler := sys.modules.get("torch._dynamo"):
            compiler.reset()  # otherwise torch.cond never compiles what it failed to compile here
        return f"cannot be recorded: {type(error).__name__}"
    return digester.hexdigest()
