"""Mistakes in decoders with a cache of keys and values."""

from __future__ import annotations

import torch
from faults.lines import layers
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional

import onnx_ci

GROWING = {"x": "batch time _", "past": "batch past _", "y": "batch time _", "present": "batch past+time _"}


def token_and_past() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 2, 8), torch.randn(2, 4, 16)


class Decoder(nn.Module):
    """One layer with one head; keys and values are kept side by side."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key_value = nn.Linear(8, 16)
        self.position = nn.Embedding(64, 8)

    def positions(self, x, past):
        return torch.arange(x.shape[1]) + past.shape[1]

    def mask(self, x, past):
        rows = torch.arange(x.shape[1])[:, None] + past.shape[1]
        return torch.arange(past.shape[1] + x.shape[1])[None, :] <= rows

    def joined(self, past, new):
        return torch.cat([past, new], dim=1)

    def forward(self, x, past):
        mask, x = self.mask(x, past), x + self.position(self.positions(x, past))
        present = self.joined(past, self.key_value(x))
        key, value = present.chunk(2, dim=-1)
        scores = self.query(x) @ key.transpose(-1, -2) / 8**0.5
        scores = scores.masked_fill(~mask, -1e4)
        return x + torch.softmax(scores, dim=-1) @ value, present


class FrozenOffset(Decoder):
    def positions(self, x, past):
        offset = int(past.shape[1])  # FAULT
        return torch.arange(x.shape[1]) + offset


class LowerMask(Decoder):
    def mask(self, x, past):
        whole = past.shape[1] + x.shape[1]
        return torch.ones(len(x[0]), whole, dtype=torch.bool).tril(len(past[0]))  # FAULT


class LowerMaskRight(Decoder):
    def mask(self, x, past):
        whole = past.shape[1] + x.shape[1]
        return torch.ones(whole, whole, dtype=torch.bool).tril()[past.shape[1] :]


class SlidingWindow(Decoder):
    """The cache keeps eight steps at most."""

    def joined(self, past, new):
        joined = torch.cat([past, new], dim=1)
        if joined.shape[1] > 8:  # FAULT
            joined = joined[:, -8:]
        return joined

    def forward(self, x, past):
        present = self.joined(past, self.key_value(x))
        key, value = present.chunk(2, dim=-1)
        scores = self.query(x) @ key.transpose(-1, -2) / 8**0.5
        return x + torch.softmax(scores, dim=-1) @ value, present.mean(1)


class SlidingWindowRight(SlidingWindow):
    def joined(self, past, new):
        return torch.cat([past, new], dim=1)[:, -8:]


class StaticCache(nn.Module):
    """New keys are written into a buffer of a fixed size, at a position that is an input."""

    def __init__(self):
        super().__init__()
        self.key, self.query = nn.Linear(8, 8), nn.Linear(8, 8)

    def written(self, cache, key, position):
        cache = cache.clone()
        cache[:, int(position)] = key  # FAULT
        return cache

    def forward(self, x, cache, position):
        cache = self.written(cache, self.key(x), position)
        scores = torch.einsum("bd,btd->bt", self.query(x), cache)
        return torch.softmax(scores, dim=-1), cache


class StaticCacheRight(StaticCache):
    def written(self, cache, key, position):
        here = torch.arange(cache.shape[1]) == position
        return torch.where(here[None, :, None], key[:, None], cache)


class ExpandedMask(Decoder):
    """A mask of the caller's, made as long as the cache."""

    def forward(self, x, past, mask):
        missing = int(past.shape[1]) + int(x.shape[1]) - mask.shape[1]  # FAULT
        mask = functional.pad(mask, (missing, 0), value=True)
        return self.attended(x, past, mask)

    def attended(self, x, past, mask):
        present = torch.cat([past, self.key_value(x)], dim=1)
        key, value = present.chunk(2, dim=-1)
        scores = self.query(x) @ key.transpose(-1, -2)
        scores = scores.masked_fill(~mask[:, None, :], -1e4)
        return torch.softmax(scores, dim=-1) @ value, present


class ExpandedMaskRight(ExpandedMask):
    def forward(self, x, past, mask):
        mask = functional.pad(mask, (past.shape[1] + x.shape[1] - mask.shape[1], 0), value=True)
        return self.attended(x, past, mask)


class RotaryCache(Decoder):
    """Keys are rotated by a function of the project's layers."""

    rotate = staticmethod(layers.rotate_frozen)

    def forward(self, x, past):
        present = torch.cat([past, self.key_value(x)], dim=1)
        key, value = present.chunk(2, dim=-1)
        key = self.rotate(key.reshape(*key.shape[:2], 2, 4).transpose(1, 2))
        query = self.query(x).reshape(*x.shape[:2], 2, 4).transpose(1, 2)
        scores = (query @ key.transpose(-1, -2)).mean(1)
        return x + torch.softmax(scores, dim=-1) @ value, present


class RotaryCacheRight(RotaryCache):
    rotate = staticmethod(layers.rotate)


class RememberedKeys(nn.Module):
    """The cache is an attribute of the module, to which each call adds."""

    def __init__(self):
        super().__init__()
        self.key, self.query = nn.Linear(8, 8), nn.Linear(8, 8)
        self.keys = None

    def extended(self, keys):
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=1)
        self.keys = keys  # FAULT
        return keys

    def forward(self, x):
        keys = self.extended(self.key(x))
        scores = self.query(x) @ keys.transpose(-1, -2)
        return torch.logsumexp(scores, dim=-1)


class RememberedKeysRight(RememberedKeys):
    def extended(self, keys):
        return keys


class PackedCache(Decoder):
    """Two mistakes: the offset of the positions, and the layout of the cache that is returned."""

    def positions(self, x, past):
        return torch.arange(past.shape[1], len(past[0]) + x.shape[1])  # FAULT1

    def packed(self, present, x):
        return present.reshape(-1, int(present.shape[1]) * 16)  # FAULT2

    def forward(self, x, past):
        attended, present = super().forward(x, past)
        return attended, torch.tanh(self.packed(present, x))


class PackedCacheRight(PackedCache):
    def positions(self, x, past):
        return torch.arange(past.shape[1], past.shape[1] + x.shape[1])

    def packed(self, present, x):
        return present.flatten(1)


def static() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(2, 8), torch.randn(2, 6, 8), torch.tensor(3)


PAST = {"dynamic_sizes": {"past": range(1, 24), "time": range(1, 24)}}


class CachedTable(nn.Module):
    """A part of the table of positions is kept by its length, under a name."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(64)[:, None] / 50 ** (torch.arange(8) / 8)
        self.register_buffer("table", angles.sin())
        self.parts = {}
        self.letters = nn.Linear(8, 5)

    def positions(self, x):
        length = x.shape[1]
        key = f"first_{length}"  # FAULT
        if key not in self.parts:
            self.parts[key] = self.table[:length]
        return self.parts[key]

    def forward(self, x):
        return self.letters(torch.relu(x + self.positions(x)))


class CachedTableRight(CachedTable):
    def positions(self, x):
        return self.table[: x.shape[1]]


FAULTS = [
    line_fault(FrozenOffset, Decoder, token_and_past, GROWING, TS13, **PAST),
    line_fault(LowerMask, LowerMaskRight, token_and_past, GROWING, TS14, **PAST),
    line_fault(
        SlidingWindow,
        SlidingWindowRight,
        token_and_past,
        {"x": "batch time _", "past": "batch past _", "y": "batch time _", "mean": "batch _"},
        TS15,
        DYNAMO,
    ),
    line_fault(
        StaticCache,
        StaticCacheRight,
        static,
        {"x": "batch _", "cache": "batch _ _", "position": "", "y": "batch _", "present": "batch _ _"},
        TS13,
        inputs={"position": onnx_ci.integers(0, 6)},
    ),
    line_fault(
        ExpandedMask,
        ExpandedMaskRight,
        lambda: (torch.randn(2, 2, 8), torch.randn(2, 4, 16), torch.tensor([[True, True], [False, True]])),
        {
            "x": "batch time _",
            "past": "batch past _",
            "mask": "batch time",
            "y": "batch time _",
            "present": "batch past+time _",
        },
        TS16,
    ),
    line_fault(RotaryCache, RotaryCacheRight, token_and_past, GROWING, TS17, DYNAMO, marked=layers.rotate_frozen),
    line_fault(RememberedKeys, RememberedKeysRight, lambda: (torch.randn(2, 3, 8),), {"x": "_ time _", "y": "_ time"}, TS13),
    line_fault(
        PackedCache,
        PackedCacheRight,
        token_and_past,
        {"x": "batch time _", "past": "batch past _", "y": "batch time _", "packed": "batch width"},
        TS14,
        **PAST,
    ),
    line_fault(
        CachedTable,
        CachedTableRight,
        lambda: (torch.randn(2, 10, 8),),
        {"x": "batch width _", "y": "batch width _"},
        TS17,
        is_run_first=True,
    ),
]
