"""Mistakes in models that rank items for users."""

from __future__ import annotations

import numpy as np
import torch
from faults.lines.line_fault import TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn

import onnx_ci

HISTORY = {"history": "users time", "items": "users items", "y": "users items"}
IDS = {"inputs": {"history": onnx_ci.integers(0, 20), "items": onnx_ci.integers(0, 20)}}


def ids() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(1, 20, (3, 5)), torch.randint(1, 20, (3, 4))


class Ranker(nn.Module):
    """The items of each user are ranked by how much they resemble what the user has seen; item 0 is padding."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(20, 6)
        self.user = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))

    def taste(self, history):
        return self.user(self.items(history).mean(1))

    def scores(self, taste, items):
        return (taste.unsqueeze(1) * self.items(items)).sum(-1)

    def forward(self, history, items):
        return self.scores(self.taste(history), items)


class RepeatedUser(Ranker):
    """Users and items are paired in one long batch."""

    def scores(self, taste, items):
        count = int(items.shape[1])  # FAULT
        pairs = torch.repeat_interleave(taste, count, dim=0)
        return (pairs * self.items(items).flatten(0, 1)).sum(-1).reshape(items.shape)


class RepeatedUserRight(Ranker):
    def scores(self, taste, items):
        pairs = taste.unsqueeze(1).expand(-1, items.shape[1], -1).flatten(0, 1)
        return (pairs * self.items(items).flatten(0, 1)).sum(-1).reshape(items.shape)


class ColdStart(Ranker):
    """Without any history, all items are equal."""

    def taste(self, history):
        taste = super().taste(history)
        if history.sum() == 0:  # FAULT
            taste = torch.zeros_like(taste)
        return taste


class ColdStartRight(Ranker):
    def taste(self, history):
        return torch.where(history.sum() == 0, 0.0, super().taste(history))


class RecencyWeights(Ranker):
    """What was seen last weighs most."""

    def taste(self, history):
        ages = torch.tensor(list(range(history.shape[1]))[::-1])  # FAULT
        weights = 0.8 ** ages.float()
        return self.user((self.items(history) * weights[:, None]).sum(1) / weights.sum())


class RecencyWeightsRight(Ranker):
    def taste(self, history):
        ages = torch.arange(history.shape[1]).flip(0)
        weights = 0.8 ** ages.float()
        return self.user((self.items(history) * weights[:, None]).sum(1) / weights.sum())


class PerUser(Ranker):
    """Padding is removed user by user."""

    def taste(self, history):
        tastes = []
        for user in range(history.size(0)):  # FAULT
            seen = (history[user] > 0).float()
            tastes.append(seen @ self.items(history[user]) / (seen.sum() + 1))
        return self.user(torch.stack(tastes))


class PerUserRight(Ranker):
    def taste(self, history):
        seen = (history > 0).float()
        total = (seen.unsqueeze(-1) * self.items(history)).sum(1)
        return self.user(total / (seen.sum(1, keepdim=True) + 1))


class Popularity(Ranker):
    """The newest item is worth less if many look at it."""

    def scores(self, taste, items):
        scores = super().scores(taste, items)
        popularity = (items == items.max()).float()
        count = popularity.sum().item()  # FAULT
        return scores - popularity / count


class PopularityRight(Ranker):
    def scores(self, taste, items):
        scores = super().scores(taste, items)
        popularity = (items == items.max()).float()
        return scores - popularity / popularity.sum()


class Interactions(nn.Module):
    """DLRM: each pair of features is multiplied."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(4, 6)
        self.table = nn.Embedding(20, 6)
        self.top = nn.Linear(6, 1)

    def pairs(self, features):
        products = features @ features.transpose(1, 2)
        rows, columns = np.tril_indices(features.shape[1], -1)  # FAULT
        return products[:, rows, columns]

    def forward(self, dense, categories):
        features = torch.cat([self.dense(dense).unsqueeze(1), self.table(categories)], dim=1)
        pairs = self.pairs(features)
        return self.top(features.sum(1)) + pairs.mean(1, keepdim=True)


class InteractionsRight(Interactions):
    def pairs(self, features):
        steps = torch.arange(features.shape[1])
        products = features @ features.transpose(1, 2)
        lower = (steps[:, None] > steps).float()
        pairs = (products * lower).sum((1, 2)) / lower.sum()
        return pairs.unsqueeze(1)


class LastSeen(Ranker):
    """Two mistakes: the position of the last item, and a softmax over all scores of a frozen count."""

    def taste(self, history):
        last = int((history[0] > 0).sum()) - 1  # FAULT1
        return self.user(self.items(history[:, last]))

    def scores(self, taste, items):
        scores = super().scores(taste, items)
        return scores.softmax(-1) * float(items.shape[1])  # FAULT2


class LastSeenRight(Ranker):
    def taste(self, history):
        last = (history[0] > 0).sum() - 1
        return self.user(self.items(history[:, last % history.shape[1]]))

    def scores(self, taste, items):
        return super().scores(taste, items).softmax(-1) * items.shape[1]


FAULTS = [
    line_fault(RepeatedUser, RepeatedUserRight, ids, HISTORY, TS13, **IDS),
    line_fault(ColdStart, ColdStartRight, ids, HISTORY, TS14, **IDS),
    line_fault(RecencyWeights, RecencyWeightsRight, ids, HISTORY, TS15, **IDS),
    line_fault(PerUser, PerUserRight, ids, HISTORY, TS16, **IDS),
    line_fault(Popularity, PopularityRight, ids, HISTORY, TS17, **IDS),
    line_fault(
        Interactions,
        InteractionsRight,
        lambda: (torch.randn(2, 4), torch.randint(0, 20, (2, 3))),
        {"dense": "batch _", "categories": "batch features", "y": "batch _"},
        TS13,
        inputs={"categories": onnx_ci.integers(0, 20)},
    ),
    line_fault(LastSeen, LastSeenRight, ids, HISTORY, TS14, **IDS),
]
