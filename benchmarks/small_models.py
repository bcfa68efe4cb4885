"""Small models of many kinds, written down once and not tuned: what a first cell costs where fixed costs weigh most."""

import math

import torch
from torch import nn
from torch.nn import functional

import onnx_ci

BATCH = {0: "batch"}


def small(name, model, example, *inputs):
    """A recipe with one output and a dynamic batch."""
    axes = dict.fromkeys((*inputs, "out"), BATCH)
    return onnx_ci.recipe(lambda: (model(), example()), name=name, input_names=inputs, output_names=["out"], dynamic_axes=axes)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, image):
        x = functional.max_pool2d(torch.relu(self.conv1(image)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Sequential):
    def __init__(self):
        blocks = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
        super().__init__(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Separable(nn.Sequential):
    def __init__(self):
        layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6()]
        for inside, outside in ((16, 24), (24, 40), (40, 80)):
            layers += [nn.Conv2d(inside, inside, 3, 2, 1, groups=inside), nn.BatchNorm2d(inside), nn.Hardswish()]
            layers += [nn.Conv2d(inside, outside, 1), nn.BatchNorm2d(outside), nn.Hardswish()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, 20))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.middle, self.up2 = nn.Conv2d(32, 64, 3, padding=1), nn.ConvTranspose2d(64, 32, 2, 2)
        self.fuse2, self.up1 = nn.Conv2d(64, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, 2)
        self.fuse1, self.head = nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(16, 2, 1)

    def forward(self, image):
        a = torch.relu(self.down1(image))
        b = torch.relu(self.down2(functional.max_pool2d(a, 2)))
        c = torch.relu(self.middle(functional.max_pool2d(b, 2)))
        b = torch.relu(self.fuse2(torch.cat([self.up2(c), b], 1)))
        return self.head(torch.relu(self.fuse1(torch.cat([self.up1(b), a], 1))))


class Perceptron(nn.Sequential):
    def __init__(self):
        layers = []
        for inside, outside in ((20, 64), (64, 64), (64, 32)):
            layers += [nn.Linear(inside, outside), nn.BatchNorm1d(outside), nn.SiLU(), nn.Dropout(0.2)]
        super().__init__(*layers, nn.Linear(32, 3), nn.Softmax(1))


class TextGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(200, 32), nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, 4)

    def forward(self, tokens):
        _, state = self.gru(self.embedding(tokens))
        return self.head(state[-1])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 9)

    def forward(self, tokens):
        return functional.log_softmax(self.head(self.lstm(self.embedding(tokens))[0]), -1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens))[:, 0])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (each.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(200, 32), nn.Embedding(64, 32)
        self.blocks, self.norm = nn.Sequential(Block(32, 4), Block(32, 4)), nn.LayerNorm(32)
        self.head = nn.Linear(32, 200, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.first = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 17, 32) * 0.02)
        self.attention, self.norm = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)
        self.mlp, self.head = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), nn.Linear(32, 10)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + self.mlp(x))[:, 0])


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, nodes, adjacency):
        degree = adjacency.sum(-1, keepdim=True).clamp(min=1)
        x = torch.relu(self.first(adjacency @ nodes / degree))
        return self.second(adjacency @ x / degree)


class Temporal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(16 if i else 4, 16, 3, dilation=2**i, padding=2**i) for i in range(4))
        self.head = nn.Conv1d(16, 1, 1)

    def forward(self, series):
        x = functional.elu(self.layers[0](series))
        for layer in self.layers[1:]:
            x = x + functional.elu(layer(x))
        return self.head(x)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(100, 16), nn.EmbeddingBag(100, 16)
        self.user, self.item = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, user, items):
        left = functional.normalize(self.user(self.users(user)), dim=-1)
        right = functional.normalize(self.item(self.items(items)), dim=-1)
        return torch.sigmoid((left * right).sum(-1))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.norms = nn.Conv2d(3, 32, 8, 8), nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.tokens = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))
        self.channels = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2))
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        for place, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + tokens(self.norms[2 * place](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * place + 1](x))
        return self.head(x.mean(1))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


def image(size, channels=3):
    return lambda: (torch.randn(2, channels, size, size),)


def tokens():
    return (torch.randint(0, 200, (2, 12)),)


lenet = small("lenet", LeNet, image(28, 1), "image")
resnet = small("resnet", ResNet, image(32), "image")
separable = small("separable", Separable, image(64), "image")
unet = small("unet", UNet, image(32), "image")
perceptron = small("perceptron", Perceptron, lambda: (torch.randn(4, 20),), "x")
autoencoder = small("autoencoder", Autoencoder, lambda: (torch.rand(4, 64),), "x")
text_gru = small("text_gru", TextGru, tokens, "tokens")
tagger = small("tagger", Tagger, tokens, "tokens")
encoder = small("encoder", Encoder, tokens, "tokens")
decoder = small("decoder", Decoder, tokens, "tokens")
patches = small("patches", Patches, image(32), "image")
mixer = small("mixer", Mixer, image(32), "image")
graph = small("graph", Graph, lambda: (torch.randn(2, 10, 8), (torch.rand(2, 10, 10) > 0.7).float()), "nodes", "adjacency")
temporal = small("temporal", Temporal, lambda: (torch.randn(2, 4, 50),), "series")
towers = small("towers", Towers, lambda: (torch.randint(0, 100, (3,)), torch.randint(0, 100, (3, 5))), "user", "items")
