"""Domains of inputs and examples of them, as strategies of Hypothesis."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

import onnx_ci

SIZES = {"frames": 7}
"""The sizes of the axes that the domains name."""

_numbers = st.floats(-1000, 1000)
_shapes = st.lists(st.integers(1, 6), max_size=3)
_rows = st.lists(st.integers(1, 6), min_size=1, max_size=3)
_floats = st.sampled_from([torch.float16, torch.float32, torch.float64])
_integers = st.sampled_from([torch.int32, torch.int64])
_masks = st.sampled_from([torch.bool, torch.int64, torch.float32])


def _inputs(domains, dtypes, shapes):
    return st.builds(lambda domain, dtype, shape: (domain, torch.zeros(shape, dtype=dtype)), domains, dtypes, shapes)


def _between(make, numbers, **keywords):
    ends = st.lists(numbers, min_size=2, max_size=2, unique=True).map(sorted)
    return st.builds(lambda ends, options: make(*ends, **options), ends, st.fixed_dictionaries(keywords))


declared_inputs = st.one_of(
    _inputs(_between(onnx_ci.floats, st.integers(-500, 500).map(lambda number: number / 10)), _floats, _shapes),
    _inputs(_between(onnx_ci.integers, st.integers(-50, 50), ascending=st.booleans()), _integers, _shapes),
    _inputs(st.builds(onnx_ci.one_of, _numbers, _numbers, _numbers), _floats, _shapes),
    _inputs(st.just(onnx_ci.lengths(of="frames")), _integers, _rows),
    _inputs(st.just(onnx_ci.permutation()), _integers, _rows),
    _inputs(st.just(onnx_ci.one_hot()), _masks, _rows),
    _inputs(st.builds(onnx_ci.mask, min_true=st.integers(0, 2), starts_with=st.sampled_from([None, True])), _masks, _rows),
    _inputs(
        st.builds(onnx_ci.boxes, st.sampled_from(["xyxy", "xywh", "cxcywh"]), within=st.just((640.0, 480.0))),
        st.just(torch.float32),
        _rows.map(lambda shape: [*shape[:-1], 4]),
    ),
)
"""A domain, and a tensor of a type and shape that an input with this domain can have."""
