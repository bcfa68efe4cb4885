"""Mistakes in recurrent models: states, steps and lengths."""

from __future__ import annotations

import numpy as np
import torch
from faults.lines.line_fault import TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn

import onnx_ci


def steps() -> tuple[torch.Tensor]:
    return (torch.randn(3, 5, 4),)


SAME = {"x": "batch time _", "y": "batch time _"}
LAST = {"x": "batch time _", "y": "batch _"}
LENGTHS = {"x": "batch time _", "lengths": "batch", "y": "batch _"}
OF_TIME = {"inputs": {"lengths": onnx_ci.lengths(of="time")}}


class InitialState(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)
        self.start = nn.Parameter(torch.randn(2, 1, 5))

    def states(self, batch):
        start = self.start.expand(-1, int(batch), -1).contiguous()  # FAULT
        return start, torch.zeros_like(start)

    def forward(self, x):
        embedded = torch.relu(self.embed(x))
        return self.lstm(embedded, self.states(x.shape[0]))[0]


class InitialStateRight(InitialState):
    def states(self, batch):
        start = self.start.expand(-1, batch, -1).contiguous()
        return start, torch.zeros_like(start)


class UnrolledCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def states(self, x):
        weights = (self.gru.weight_ih_l0, self.gru.weight_hh_l0, self.gru.bias_ih_l0, self.gru.bias_hh_l0)
        state = torch.zeros(x.shape[0], 5)
        states = []
        for step in range(x.shape[1]):  # FAULT
            state = torch.gru_cell(x[:, step], state, *weights)
            states.append(state)
        return torch.stack(states, dim=1)

    def forward(self, x):
        return self.out(self.states(x).tanh())


class UnrolledCellRight(UnrolledCell):
    def states(self, x):
        return self.gru(x)[0]


class LastValidStep(nn.Module):
    """The state after the last step of the longest row."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(4, 6, batch_first=True)
        self.out = nn.Linear(6, 2)

    def last(self, states, lengths):
        return states[:, lengths.max().item() - 1]  # FAULT

    def forward(self, x, lengths):
        states, _ = self.rnn(x)
        return self.out(self.last(states, lengths))


class LastValidStepRight(LastValidStep):
    def last(self, states, lengths):
        return states.index_select(1, (lengths.max() - 1).reshape(1)).squeeze(1)


class EachLength(nn.Module):
    """The mean of the states of each row."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)

    def mean(self, states, lengths):
        rows = [row[:length].mean(0) for row, length in zip(states, lengths.tolist(), strict=True)]  # FAULT
        return torch.stack(rows)

    def forward(self, x, lengths):
        states, _ = self.rnn(x)
        return torch.tanh(self.mean(states, lengths))


class EachLengthRight(EachLength):
    def mean(self, states, lengths):
        mask = torch.arange(states.shape[1]) < lengths[:, None]
        return (states * mask[..., None]).sum(1) / lengths[:, None]


class Backwards(nn.Module):
    """Reads the sequence from its end."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.norm = nn.LayerNorm(5)

    def reversed(self, x):
        order = np.arange(x.shape[1])[::-1].copy()  # FAULT
        return x[:, torch.from_numpy(order)]

    def forward(self, x):
        states, _ = self.rnn(self.reversed(x))
        return self.norm(states)


class BackwardsRight(Backwards):
    def reversed(self, x):
        return x.flip(1)


class KeptState(nn.Module):
    """A decoder that goes on from where its last call ended."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.out = nn.Linear(5, 4)
        self.register_buffer("state", torch.zeros(1, 3, 5))

    def forward(self, x):
        states, last = self.rnn(x, self.state)
        self.state = last.detach()  # FAULT
        return self.out(states)


class KeptStateRight(KeptState):
    def forward(self, x):
        states, _ = self.rnn(x, self.state)
        return self.out(states)


class Averages(nn.Module):
    """Exponential moving averages, written step by step into a tensor of the example's size."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.decay = nn.Parameter(torch.rand(4) * 0.5)

    def averages(self, x):
        time = int(x.shape[1])  # FAULT
        powers = torch.arange(time)[:, None] - torch.arange(time)[None, :]
        kernel = self.decay.sigmoid() ** powers.clamp(min=0)[..., None] * (powers >= 0)[..., None]
        return torch.einsum("tsd,bsd->btd", kernel, x)

    def forward(self, x):
        return torch.relu(self.averages(self.project(x)))


class AveragesRight(Averages):
    def averages(self, x):
        time = x.shape[1]
        powers = torch.arange(time)[:, None] - torch.arange(time)[None, :]
        kernel = self.decay.sigmoid() ** powers.clamp(min=0)[..., None] * (powers >= 0)[..., None]
        return torch.einsum("tsd,bsd->btd", kernel, x)


class TimeDistributed(nn.Module):
    """A layer for each step, then a recurrence. Steps are folded into the batch, and unfolded with the wrong axis fixed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.rnn = nn.LSTM(6, 3, batch_first=True)

    def unfolded(self, flat, x):
        batch = int(x.size(0))  # FAULT
        return flat.view(batch, -1, 6)

    def forward(self, x):
        flat = self.layer(x.reshape(-1, 4))
        return self.rnn(self.unfolded(flat, x))[0]


class TimeDistributedRight(TimeDistributed):
    def unfolded(self, flat, x):
        return flat.view(x.size(0), -1, 6)


class LearnedStart(nn.Module):
    """The first state is replaced by a learned one, in a tensor whose time comes first."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.start = nn.Parameter(torch.randn(5))
        self.out = nn.Linear(5, 3)

    def started(self, states):
        states = states.clone()
        time_first = states.transpose(0, 1)
        time_first[0] = self.start  # FAULT
        return states

    def forward(self, x):
        states, _ = self.rnn(x)
        return torch.relu(self.out(self.started(states)))


class LearnedStartRight(LearnedStart):
    def started(self, states):
        start = self.start.expand(states.shape[0], 1, -1)
        return torch.cat([start, states[:, 1:]], dim=1)


class Summaries(nn.Module):
    """Two mistakes: a last state by a frozen index, and a mean over the example's steps."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.out = nn.Linear(20, 2)

    def last(self, states):
        index = torch.tensor([states.shape[1] - 1])  # FAULT1
        return states.index_select(1, index).squeeze(1)

    def mean(self, states):
        return states.sum(1) / len(states[0])  # FAULT2

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.out(torch.cat([self.last(states), self.mean(states)], dim=-1))


class SummariesRight(Summaries):
    def last(self, states):
        return states[:, -1]

    def mean(self, states):
        return states.sum(1) / states.shape[1]


def with_lengths() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 5, 4), torch.tensor([5, 2, 4])


class EpisodeMemory(nn.Module):
    """The memory of an episode that has ended is cleared."""

    def __init__(self):
        super().__init__()
        self.cell, self.actions = nn.GRUCell(5, 7), nn.Linear(7, 3)

    def cleared(self, state, done):
        if done.any():  # FAULT
            state = state * (1 - done.float())[:, None]
        return state

    def forward(self, x, state, done):
        return self.actions(self.cell(x, self.cleared(state, done)))


class EpisodeMemoryRight(EpisodeMemory):
    def cleared(self, state, done):
        return state * (1 - done.float())[:, None]


FAULTS = [
    line_fault(InitialState, InitialStateRight, steps, SAME, TS13),
    line_fault(UnrolledCell, UnrolledCellRight, steps, SAME, TS14),
    line_fault(LastValidStep, LastValidStepRight, with_lengths, LENGTHS, TS15, **OF_TIME),
    line_fault(EachLength, EachLengthRight, with_lengths, LENGTHS, TS16, **OF_TIME),
    line_fault(Backwards, BackwardsRight, steps, SAME, TS17),
    line_fault(KeptState, KeptStateRight, steps, {"x": "_ time _", "y": "_ time _"}, TS13),
    line_fault(Averages, AveragesRight, steps, SAME, TS14),
    line_fault(TimeDistributed, TimeDistributedRight, steps, SAME, TS15),
    line_fault(LearnedStart, LearnedStartRight, steps, SAME, TS16),
    line_fault(Summaries, SummariesRight, steps, LAST, TS13),
    line_fault(
        EpisodeMemory,
        EpisodeMemoryRight,
        lambda: (torch.randn(3, 5), torch.randn(3, 7), torch.zeros(3, dtype=torch.bool)),
        {"x": "envs _", "state": "envs _", "done": "envs", "y": "envs _"},
        TS17,
    ),
]
