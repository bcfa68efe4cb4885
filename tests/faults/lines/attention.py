"""Mistakes in attention: masks, positions and windows."""

from __future__ import annotations

import math

import numpy as np
import torch
from faults.lines import layers
from faults.lines.line_fault import TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional

import onnx_ci

BATCH_TIME = {"x": "batch time _", "y": "batch time _"}


def tokens() -> tuple[torch.Tensor]:
    return (torch.randn(2, 5, 8),)


class SelfAttention(nn.Module):
    """Two heads of four; subclasses add to the scores."""

    def __init__(self):
        super().__init__()
        self.heads = 2
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def split(self, x):
        batch, time, _ = x.shape
        return x.reshape(batch, time, self.heads, 4).transpose(1, 2)

    def bias(self, scores):
        return scores

    def forward(self, x):
        q, k, v = (self.split(each) for each in self.qkv(self.norm(x)).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(4)
        mixed = torch.softmax(self.bias(scores), dim=-1) @ v
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class CachedMask(SelfAttention):
    def __init__(self):
        super().__init__()
        self.mask = None

    def bias(self, scores):
        size = scores.shape[-1]
        if self.mask is None or self.mask.shape[0] != size:  # FAULT
            self.mask = torch.full((size, size), float("-inf")).triu(1)
        return scores + self.mask


class CachedMaskRight(CachedMask):
    def bias(self, scores):
        size = scores.shape[-1]
        return scores + torch.full((size, size), float("-inf")).triu(1)


class LinearBias(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([0.5, 0.25])[:, None, None])

    def bias(self, scores):
        size = scores.shape[-1]
        positions = torch.from_numpy(np.arange(size, dtype=np.float32))  # FAULT
        distance = (positions[None, :] - positions[:, None]).abs()
        return scores - self.slopes * distance


class LinearBiasRight(LinearBias):
    def bias(self, scores):
        size = scores.shape[-1]
        positions = torch.arange(size, dtype=torch.float32)
        distance = (positions[None, :] - positions[:, None]).abs()
        return scores - self.slopes * distance


class RelativeBuckets(SelfAttention):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 2)

    def buckets(self, size):
        steps = torch.arange(int(size))  # FAULT
        return (steps[None, :] - steps[:, None]).clamp(-4, 4) + 4

    def bias(self, scores):
        biases = self.table(self.buckets(scores.shape[-1]))
        return scores + biases.permute(2, 0, 1)


class RelativeBucketsRight(RelativeBuckets):
    def buckets(self, size):
        steps = torch.arange(size)
        return (steps[None, :] - steps[:, None]).clamp(-4, 4) + 4


class SparseAttention(SelfAttention):
    """Each query attends to the keys with the largest scores."""

    def bias(self, scores):
        kept = min(int(scores.shape[-1]), 6)  # FAULT
        smallest = scores.topk(kept, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < smallest, float("-inf"))


class SparseAttentionRight(SparseAttention):
    def bias(self, scores):
        padded = functional.pad(scores, (0, 6), value=float("-inf"))
        smallest = padded.topk(6, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < smallest, float("-inf"))


class MergedHeads(SelfAttention):
    def forward(self, x):
        _, time, _ = x.shape
        q, k, v = (self.split(each) for each in self.qkv(x).chunk(3, dim=-1))
        mixed = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        merged = mixed.transpose(1, 2).reshape(-1, int(time), 8)  # FAULT
        return torch.tanh(self.out(merged))


class MergedHeadsRight(MergedHeads):
    def forward(self, x):
        _, time, _ = x.shape
        q, k, v = (self.split(each) for each in self.qkv(x).chunk(3, dim=-1))
        mixed = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        merged = mixed.transpose(1, 2).reshape(-1, time, 8)
        return torch.tanh(self.out(merged))


class BlockAttention(nn.Module):
    """Tokens attend within blocks of four; the last block is padded."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def padding(self, time):
        return math.ceil(time / 4) * 4 - time  # FAULT

    def forward(self, x):
        batch, time, width = x.shape
        padded = functional.pad(x, (0, 0, 0, self.padding(time)))
        blocks = padded.reshape(batch, -1, 4, width)
        scores = self.query(blocks) @ self.key(blocks).transpose(-1, -2)
        mixed = torch.softmax(scores / math.sqrt(width), dim=-1) @ blocks
        return mixed.reshape(batch, -1, width)[:, :time]


class BlockAttentionRight(BlockAttention):
    def padding(self, time):
        return -time % 4


class ScaledByLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(-1, -2)
        scale = math.log(float(mask.sum(-1).max()) + 1)  # FAULT
        scores = scores * scale / math.sqrt(8)
        scores = scores.masked_fill(~mask[:, None, :], -1e4)
        return torch.softmax(scores, dim=-1) @ v


class ScaledByLengthRight(ScaledByLength):
    def forward(self, x, mask):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(-1, -2)
        scale = torch.log(mask.sum(-1).max().float() + 1)
        scores = scores * scale / math.sqrt(8)
        scores = scores.masked_fill(~mask[:, None, :], -1e4)
        return torch.softmax(scores, dim=-1) @ v


class PaddedKeys(nn.Module):
    """A mask is applied only if something is masked."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def masked(self, scores, padding):
        if padding.any():  # FAULT
            scores = scores.masked_fill(padding[:, None, :], -1e4)
        return scores

    def forward(self, x, padding):
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        attention = torch.softmax(self.masked(scores, padding), dim=-1)
        return attention @ self.value(x)


class PaddedKeysRight(PaddedKeys):
    def masked(self, scores, padding):
        return scores.masked_fill(padding[:, None, :], -1e4)


class LearnedQueries(nn.Module):
    """Perceiver: a few learned queries read the whole input."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, 8))
        self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8)
        self.feed = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def queries(self, x):
        return self.latents.unsqueeze(0).repeat(len(x), 1, 1)  # FAULT

    def forward(self, x):
        latents = self.queries(x)
        scores = torch.einsum("bqc,bkc->bqk", latents, self.key(x))
        latents = latents + torch.softmax(scores, dim=-1) @ self.value(x)
        return latents + self.feed(latents)


class LearnedQueriesRight(LearnedQueries):
    def queries(self, x):
        return self.latents.unsqueeze(0).repeat(x.shape[0], 1, 1)


class RotaryAttention(SelfAttention):
    """The rotation is in a module of its own, and so is its mistake."""

    rotate = staticmethod(layers.rotate_frozen)

    def forward(self, x):
        q, k, v = (self.split(each) for each in self.qkv(self.norm(x)).chunk(3, dim=-1))
        scores = self.rotate(q) @ self.rotate(k).transpose(-1, -2)
        mixed = torch.softmax(scores / 2, dim=-1) @ v
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class RotaryAttentionRight(RotaryAttention):
    rotate = staticmethod(layers.rotate)


class TrimmedCausal(SelfAttention):
    """Two mistakes: the mask is made for one size, and the tokens are trimmed to the longest row of the example."""

    def bias(self, scores):
        size = int(scores.shape[-1])  # FAULT1
        allowed = torch.ones(size, size, dtype=torch.bool).tril()
        return scores.masked_fill(~allowed, float("-inf"))

    def trimmed(self, x, lengths):
        return x[:, : int(lengths.max())]  # FAULT2

    def forward(self, x, lengths):
        x = self.trimmed(x, lengths)
        return super().forward(x).sum(1)


class TrimmedCausalRight(TrimmedCausal):
    def bias(self, scores):
        size = scores.shape[-1]
        allowed = torch.ones(size, size, dtype=torch.bool).tril()
        return scores.masked_fill(~allowed, float("-inf"))

    def trimmed(self, x, lengths):
        return x[:, : lengths.max()]


LENGTHS = {"x": "batch time _", "mask": "batch time", "y": "batch time _"}

FAULTS = [
    line_fault(CachedMask, CachedMaskRight, tokens, BATCH_TIME, TS14, is_run_first=True),
    line_fault(LinearBias, LinearBiasRight, tokens, BATCH_TIME, TS13),
    line_fault(RelativeBuckets, RelativeBucketsRight, tokens, BATCH_TIME, TS15),
    line_fault(SparseAttention, SparseAttentionRight, tokens, BATCH_TIME, TS13),
    line_fault(MergedHeads, MergedHeadsRight, tokens, BATCH_TIME, TS16),
    line_fault(BlockAttention, BlockAttentionRight, tokens, BATCH_TIME, TS13),
    line_fault(
        ScaledByLength,
        ScaledByLengthRight,
        lambda: (torch.randn(2, 5, 8), torch.arange(5) < torch.tensor([[3], [4]])),
        LENGTHS,
        TS17,
    ),
    line_fault(
        PaddedKeys,
        PaddedKeysRight,
        lambda: (torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)),
        {"x": "batch time _", "padding": "batch time", "y": "batch time _"},
        TS13,
    ),
    line_fault(LearnedQueries, LearnedQueriesRight, tokens, {"x": "batch time _", "y": "batch _ _"}, TS14),
    line_fault(RotaryAttention, RotaryAttentionRight, tokens, BATCH_TIME, TS15, marked=layers.rotate_frozen),
    line_fault(
        TrimmedCausal,
        TrimmedCausalRight,
        lambda: (torch.randn(2, 5, 8), torch.tensor([5, 4])),
        {"x": "batch time _", "lengths": "batch", "y": "batch _"},
        TS14,
        inputs={"lengths": onnx_ci.lengths(of="time")},
    ),
]
