"""Mistakes in detectors: anchors, boxes and pyramids."""

from __future__ import annotations

import torch
from faults.lines import layers
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional

IMAGE = {"x": "batch _ height width", "y": "batch boxes _"}


def image() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 8, 12),)


def boxes() -> torch.Tensor:
    corner = torch.rand(6, 2) * 4
    return torch.cat([corner, corner + 1 + torch.rand(6, 2) * 4], dim=-1)


class Grid(nn.Module):
    """Each cell of the feature map predicts a box around its own center."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.head = nn.Conv2d(6, 4, 1)

    def centers(self, features):
        height, width = features.shape[-2:]
        rows, columns = torch.arange(int(height)), torch.arange(int(width))  # FAULT
        ys, xs = torch.meshgrid(rows, columns, indexing="ij")
        return torch.stack([xs, ys], dim=-1).reshape(-1, 2) + 0.5

    def forward(self, x):
        features = torch.relu(self.backbone(x))
        deltas = self.head(features).flatten(2).transpose(1, 2)
        centers = self.centers(features)
        return torch.cat([centers + deltas[..., :2], deltas[..., 2:].exp()], dim=-1)


class GridRight(Grid):
    def centers(self, features):
        height, width = features.shape[-2:]
        ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        return torch.stack([xs, ys], dim=-1).reshape(-1, 2) + 0.5


class CachedAnchors(Grid):
    """Anchors are made again when the shape changes, as in YOLO's head."""

    def __init__(self):
        super().__init__()
        self.shape = None
        self.anchors = torch.zeros(0)

    def centers(self, features):
        if self.shape != features.shape[-2:]:  # FAULT
            height, width = self.shape = features.shape[-2:]
            ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            self.anchors = torch.stack([xs, ys], dim=-1).reshape(-1, 2) + 0.5
        return self.anchors


class NormalizedBoxes(nn.Module):
    """Boxes in pixels are scaled to the size of the image."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.features = nn.Conv2d(3, 8, 3, padding=1)

    def scale(self, image):
        height, width = image.shape[-2:]
        return torch.tensor([width, height, width, height], dtype=torch.float32)  # FAULT

    def forward(self, image, boxes):
        context = self.features(image).mean((2, 3))
        embedded = self.embed(boxes / self.scale(image))
        return torch.tanh(embedded.unsqueeze(0) + context.unsqueeze(1))


class NormalizedBoxesRight(NormalizedBoxes):
    def forward(self, image, boxes):
        height, width = image.shape[-2:]
        context = self.features(image).mean((2, 3))
        scaled = torch.cat([boxes[:, 0::2] / width, boxes[:, 1::2] / height], dim=-1)
        embedded = self.embed(scaled[:, [0, 2, 1, 3]])
        return torch.tanh(embedded.unsqueeze(0) + context.unsqueeze(1))


class Suppression(nn.Module):
    """Soft suppression: each box lowers the scores of those after it."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 1)

    def overlaps(self, boxes):
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        common = (high - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        return common / (area[:, None] + area[None, :] - common)

    def suppressed(self, scores, overlaps):
        factors = torch.ones_like(scores)
        for box in range(scores.shape[0]):  # FAULT
            after = torch.arange(scores.shape[0]) > box
            factors = torch.where(after, factors * (1 - overlaps[box]), factors)
        return scores * factors

    def forward(self, boxes):
        scores = self.score(boxes).squeeze(-1).sigmoid()
        return self.suppressed(scores, self.overlaps(boxes) * 0.5)


class SuppressionRight(Suppression):
    def suppressed(self, scores, overlaps):
        steps = torch.arange(scores.shape[0])
        earlier = steps[:, None] < steps[None, :]
        return scores * torch.where(earlier, 1 - overlaps, 1.0).log().sum(0).exp()


class Confident(nn.Module):
    """Nothing is reported if no score is high enough."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, padding=1)
        self.classes = nn.Linear(4, 5)

    def forward(self, x):
        features = torch.relu(self.features(x)).mean((2, 3))
        scores = self.classes(features)
        if scores.amax() < 0.5:  # FAULT
            return torch.zeros_like(scores)
        return scores.softmax(-1)


class ConfidentRight(Confident):
    def forward(self, x):
        features = torch.relu(self.features(x)).mean((2, 3))
        scores = self.classes(features)
        return torch.where(scores.amax() < 0.5, 0.0, scores.softmax(-1))


class BestBoxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.refine = nn.Linear(4, 1), nn.Linear(4, 4)

    def best(self, boxes, scores):
        count = min(5, int(scores.numel() / 2))  # FAULT
        kept = scores.topk(count).indices
        return boxes[kept], scores[kept]

    def forward(self, boxes):
        scores = self.score(boxes).squeeze(-1)
        boxes, scores = self.best(self.refine(boxes), scores)
        return boxes * scores.sigmoid().unsqueeze(-1)


class BestBoxesRight(BestBoxes):
    def best(self, boxes, scores):
        count = torch.arange(scores.shape[0] // 2)[:5]
        kept = scores.sort(descending=True).indices[count]
        return boxes[kept], scores[kept]


class Pyramid(nn.Module):
    """The upper level is resized to the lower one."""

    def __init__(self):
        super().__init__()
        self.low = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.high = nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.smooth = nn.Conv2d(6, 4, 3, padding=1)

    def resized(self, high, low):
        height, width = low.shape[-2:]
        return functional.interpolate(high, size=(int(height), int(width)), mode="nearest")  # FAULT

    def forward(self, x):
        low = torch.relu(self.low(x))
        high = torch.relu(self.high(low))
        return self.smooth(low + self.resized(high, low))


class PyramidRight(Pyramid):
    def resized(self, high, low):
        return functional.interpolate(high, size=low.shape[-2:], mode="nearest")


class CroppedRegion(nn.Module):
    """Features of a region of interest."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, padding=1)
        self.out = nn.Linear(4, 3)

    def pooled(self, features, box):
        left, top, right, bottom = (int(side) for side in box)  # FAULT
        return features[:, :, top:bottom, left:right].mean((2, 3))

    def forward(self, x, box):
        features = torch.relu(self.features(x))
        return self.out(self.pooled(features, box))


class CroppedRegionRight(CroppedRegion):
    def pooled(self, features, box):
        rows, columns = torch.arange(features.shape[2])[:, None], torch.arange(features.shape[3])
        inside = (columns >= box[0]) & (columns < box[2]) & (rows >= box[1]) & (rows < box[3])
        return (features * inside).sum((2, 3)) / inside.sum()


class ClippedBoxes(nn.Module):
    """Boxes are clipped to the image, in place."""

    def __init__(self):
        super().__init__()
        self.refine = nn.Linear(4, 4)

    def clipped(self, boxes):
        boxes = boxes.clone()
        boxes.view(-1, 2, 2)[:, 0].clamp_(0, 3)  # FAULT
        return boxes

    def forward(self, boxes):
        boxes = boxes + torch.tanh(self.refine(boxes))
        boxes = self.clipped(boxes)
        return torch.cat([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], dim=-1)


class ClippedBoxesRight(ClippedBoxes):
    def clipped(self, boxes):
        return torch.cat([boxes[..., :2].clamp(0, 3), boxes[..., 2:]], dim=-1)


class Letterbox(nn.Module):
    """The image is padded to a square along its shorter side."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, padding=1)

    def square(self, x):
        height, width = x.shape[-2:]
        if height < width:  # FAULT
            return functional.pad(x, (0, 0, 0, width - height))
        return functional.pad(x, (0, height - width, 0, 0))

    def forward(self, x):
        features = self.features(self.square(x))
        return torch.relu(features).mean(2)


class LetterboxRight(Letterbox):
    def square(self, x):
        height, width = x.shape[-2:]
        x = functional.pad(x, (0, height, 0, width))
        side = torch.maximum(torch.ones(height).sum(), torch.ones(width).sum()).long()
        return x[..., :side, :side]


class PaddedImage(nn.Module):
    """The image is padded by a function of the project's layers."""

    pad = staticmethod(layers.pad_frozen)

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 4, stride=4)

    def forward(self, x):
        return torch.relu(self.patches(self.pad(x, 4)))


class PaddedImageRight(PaddedImage):
    pad = staticmethod(layers.pad)


class AnchorHead(Grid):
    """Two mistakes: the count of the predictions, and the boxes of a frozen size."""

    def flattened(self, predicted):
        return predicted.reshape(-1, 4, int(predicted.shape[2] * predicted.shape[3])).transpose(1, 2)  # FAULT1

    def limits(self, x):
        return torch.tensor([x.shape[3], x.shape[2]])  # FAULT2

    def forward(self, x):
        features = torch.relu(self.backbone(x))
        deltas = self.flattened(self.head(features))
        return torch.cat([deltas[..., :2].sigmoid() * self.limits(x), deltas[..., 2:].exp()], dim=-1)


class AnchorHeadRight(AnchorHead):
    def flattened(self, predicted):
        return predicted.flatten(2).transpose(1, 2)

    def limits(self, x):
        columns, rows = torch.ones(x.shape[3]).sum(), torch.ones(x.shape[2]).sum()
        return torch.stack([columns, rows])


MAPS = {"x": "batch _ height width", "y": "batch _ rows columns"}

FAULTS = [
    line_fault(Grid, GridRight, image, IMAGE, TS13, DYNAMO),
    line_fault(CachedAnchors, GridRight, image, IMAGE, TS14, DYNAMO, is_run_first=True),
    line_fault(
        NormalizedBoxes,
        NormalizedBoxesRight,
        lambda: (torch.randn(2, 3, 8, 12), boxes()),
        {"image": "batch _ height width", "boxes": "boxes _", "y": "batch boxes _"},
        TS15,
    ),
    line_fault(Suppression, SuppressionRight, lambda: (boxes(),), {"boxes": "boxes _", "y": "boxes"}, TS16),
    line_fault(Confident, ConfidentRight, image, {"x": "batch _ _ _", "y": "batch _"}, TS17),
    line_fault(BestBoxes, BestBoxesRight, lambda: (boxes(),), {"boxes": "boxes _", "y": "best _"}, TS13, DYNAMO),
    line_fault(Pyramid, PyramidRight, image, MAPS, TS14, DYNAMO),
    line_fault(
        CroppedRegion,
        CroppedRegionRight,
        lambda: (torch.randn(2, 3, 8, 12), torch.tensor([2, 1, 7, 6])),
        {"x": "batch _ _ _", "box": "", "y": "batch _"},
        TS15,
        inputs={
            "box": lambda sizes, generator: (
                torch.tensor([0, 0, 1, 1]) + torch.randint(0, 6, (2,), generator=generator).repeat(2)
            )
        },
    ),
    line_fault(ClippedBoxes, ClippedBoxesRight, lambda: (boxes(),), {"boxes": "boxes _", "y": "boxes _"}, TS13),
    line_fault(Letterbox, LetterboxRight, image, {"x": "batch _ height width", "y": "batch _ side"}, TS14, DYNAMO),
    line_fault(PaddedImage, PaddedImageRight, lambda: (torch.randn(2, 3, 7, 10),), MAPS, TS13, marked=layers.pad_frozen),
    line_fault(AnchorHead, AnchorHeadRight, image, IMAGE, TS16, DYNAMO),
]
