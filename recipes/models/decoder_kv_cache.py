"""A decoder with a key-value cache, fed back from step to step: one cache that grows, and one of fixed size. From opset 9.

The cache that grows has a mask that grows with it and positions that follow it, as in Hugging Face's decoders. The cache of
fixed size is written at a position, which is an input.
"""

import torch
from torch import nn

import onnx_ci

VOCABULARY, SIZE, HEADS, LONGEST = 50, 32, 4, 16


class Decoder(nn.Module):
    """One layer; a cache has the shape (batch, heads, length, size of a head)."""

    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(4 * LONGEST, SIZE)
        self.query, self.key, self.value, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.logits = nn.Linear(SIZE, VOCABULARY)

    def project(self, tokens, position_ids):
        """The embedded tokens, and their queries, keys and values."""
        x = self.embedding(tokens) + self.positions(position_ids)
        heads = (
            layer(x).view(x.shape[0], x.shape[1], HEADS, SIZE // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        return x, *heads

    def attend(self, x, query, key, value, is_seen):
        scores = query @ key.transpose(-2, -1) * (SIZE // HEADS) ** -0.5
        scores = scores.masked_fill(~is_seen, float("-inf"))
        attended = (scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape[0], x.shape[1], SIZE)
        return self.logits(torch.relu(x + self.out(attended)))


class GrowingCache(Decoder):
    def forward(self, tokens, attention_mask, position_ids, past_key, past_value):
        x, query, key, value = self.project(tokens, position_ids)
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
        is_earlier = torch.arange(key.shape[2], device=key.device) <= position_ids[:, None, :, None]
        return self.attend(x, query, key, value, is_earlier & (attention_mask[:, None, None, :] > 0)), key, value


class StaticCache(Decoder):
    def forward(self, tokens, position, key_cache, value_cache):
        x, query, key, value = self.project(tokens, position)
        key, value = key_cache.index_copy(2, position, key), value_cache.index_copy(2, position, value)
        return self.attend(x, query, key, value, torch.arange(LONGEST, device=position.device) <= position[:, None]), key, value


def follow(step, inputs):
    """The mask and the positions that belong to the length of the cache."""
    batch, new = inputs["tokens"].shape
    past, mask = inputs["past_key"].shape[2], inputs["attention_mask"]
    return {
        "attention_mask": nn.functional.pad(mask, (0, past + new - mask.shape[1]), value=1),
        "position_ids": torch.arange(past, past + new).repeat(batch, 1),
    }


@onnx_ci.recipe(
    input_names=["tokens", "attention_mask", "position_ids", "past_key", "past_value"],
    output_names=["logits", "present_key", "present_value"],
    dynamic_axes={
        "tokens": {0: "batch", 1: "new"},
        "attention_mask": {0: "batch", 1: "past + new"},
        "position_ids": {0: "batch", 1: "new"},
        "past_key": {0: "batch", 2: "past"},
        "past_value": {0: "batch", 2: "past"},
        "logits": {0: "batch", 1: "new"},
        "present_key": {0: "batch", 2: "past + new"},
        "present_value": {0: "batch", 2: "past + new"},
    },
    feedback={"present_key": "past_key", "present_value": "past_value"},
    steps=8,
    step_inputs=follow,
    tags=["text", "transformer"],
)
def decoder_kv_cache():
    past_key, past_value = torch.randn(2, 2, HEADS, 5, SIZE // HEADS)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])  # the second row is padded on the left
    return GrowingCache(), (torch.tensor([[7], [23]]), mask, torch.full((2, 1), 5), past_key, past_value)


@onnx_ci.recipe(
    input_names=["tokens", "position", "past_key", "past_value"],
    output_names=["logits", "present_key", "present_value"],
    feedback={"present_key": "past_key", "present_value": "past_value"},
    steps=8,
    step_inputs=lambda step, inputs: {"position": inputs["position"] + step},
    tags=["text", "transformer"],
)
def decoder_static_cache():
    past_key, past_value = torch.randn(2, 2, HEADS, LONGEST, SIZE // HEADS)
    return StaticCache(), (torch.tensor([[7], [23]]), torch.tensor([5]), past_key, past_value)
