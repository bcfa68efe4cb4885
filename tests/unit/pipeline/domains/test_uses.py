"""What a run shows about the uses of inputs: as indices, and tested for NaN or infinity."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from onnx_ci.pipeline.domains.uses import InputUse, uses_of
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.operators import OperatorCall
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import Operator, Ref, Role, Trace, Value

INF = math.inf


def uses_in(function, *inputs):
    with torch.no_grad(), Recorder(Call(model=torch.nn.Module(), args=inputs, kwargs={})) as recorder:
        function(*inputs)
    return uses_of(recorder.trace)


# --- indices ----------------------------------------------------------------------------------------------------------

TABLE = torch.randn(7, 4)


@pytest.mark.parametrize(
    ("function", "rows", "overwrites"),
    [
        (lambda i: TABLE[i], 7, False),
        (lambda i: TABLE[:, i], 4, False),
        (lambda i: TABLE.index_select(0, i.view(3, 2).flatten()), 7, False),
        (lambda i: TABLE.gather(1, i.to(torch.int32).long()[None].expand(7, -1)), 4, False),
        (lambda i: TABLE.take(i), 28, False),
        (lambda i: torch.zeros(9, 4).index_add(0, i, torch.ones(6, 4)), 9, False),
        (lambda i: torch.zeros(9, 4).scatter_add(0, i[:, None].expand(6, 4), torch.ones(6, 4)), 9, False),
        (lambda i: torch.zeros(9, 4).scatter(0, i[:, None], torch.ones(6, 1)), 9, True),
        (lambda i: torch.zeros(9).index_put((i,), torch.ones(6)), 9, True),
        (lambda i: torch.zeros(9).index_put((i,), torch.ones(6), accumulate=True), 9, False),
        (lambda i: functional.one_hot(i, 5), 5, False),
        (lambda i: (TABLE[i.clamp(0, 6)], TABLE[:3][i]), 3, False),
        (lambda i: torch.arange(int(i.max()) + 1), 3, False),
        (lambda i: torch.zeros((i.amax() + 1).item()), 3, False),
        # the number of rows is unknown, or it is no index
        (lambda i: TABLE[i + 1], None, False),
        (lambda i: TABLE[:3] * (i[:3, None] > 0), None, False),
        (lambda i: TABLE[:6][i.bool()], None, False),
        (lambda i: i.max() > 0, None, False),
        (lambda i: torch.arange(int(i.sum())), None, False),
    ],
)
def test_integers_are_indices_wherever_they_are_used_as_such(function, rows, overwrites):
    (use,) = uses_in(function, torch.tensor([0, 2, 1, 1, 0, 2]))
    assert (use.rows, use.overwrites, use.vocabulary) == (rows, overwrites, None)


def test_lengths_whose_largest_is_a_size_are_no_indices():
    assert uses_in(lambda lengths: torch.arange(int(lengths.max())), torch.tensor([3, 1])) == (InputUse(),)


def test_what_is_looked_up_in_embeddings_has_the_size_of_the_smallest():
    large, small = torch.nn.Embedding(30, 4), torch.nn.Embedding(12, 4)
    tokens, others = torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (2, 5))
    first, second = uses_in(
        lambda tokens, others: (large(tokens.view(-1, 5)), small(tokens[:, 1:]), large(others)), tokens, others
    )
    assert (first.vocabulary, second.vocabulary, first.rows) == (12, 30, None)


# --- tests ------------------------------------------------------------------------------------------------------------

X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (lambda x: x.isnan(), {math.nan}),
        (lambda x: x != x, {math.nan}),
        (lambda x: x.nan_to_num(0.0), {math.nan}),
        (lambda x: x.nan_to_num(0.0, posinf=1.0), {math.nan, INF}),
        (lambda x: x.nansum(), {math.nan}),
        (lambda x: torch.fmax(x, torch.zeros(3)), {math.nan}),
        (lambda x: x.isfinite(), {math.nan, INF, -INF}),
        (lambda x: x.isinf(), {INF, -INF}),
        (lambda x: x == -INF, {-INF}),
        (lambda x: ((x.t() - 0.5) / torch.full((2,), 2.0)).double().isnan(), {math.nan}),
        (lambda x: x.clone().sub_(1).isnan(), {math.nan}),
        # computed values can be NaN for other reasons
        (lambda x: x.log().isnan(), set()),
        (lambda x: (x / x.sum()).nan_to_num(), set()),
        (lambda x: (x @ torch.ones(3, 3)).softmax(-1).isnan(), set()),
        (lambda x: x == 0, set()),
        (lambda x: x.relu_().isnan(), set()),
    ],
)
def test_only_elements_of_an_input_are_tested(function, values):
    (use,) = uses_in(function, X.clone())
    assert use.tested.keys() == values
    assert all(bool(mask.all()) for mask in use.tested.values())


def test_some_elements_can_be_tested():
    first, second = uses_in(lambda x, y: (x[:, 1:].isnan(), torch.stack([x, y])[1, 0].isinf()), X, X.clone())
    assert first.tested[math.nan].tolist() == [[False, True, True]] * 2
    assert first.tested.keys() == {math.nan}
    assert second.tested[INF].tolist() == [[True] * 3, [False] * 3]


def test_integers_are_never_nan():
    assert uses_in(lambda count: (count.isnan(), count.float().isnan()), torch.tensor([1, 2])) == (InputUse(),)


# --- traces made by hand ----------------------------------------------------------------------------------------------


def test_an_index_is_followed_through_what_moves_it():
    aten = torch.ops.aten
    values = [
        Value(Role.INPUT, (2, 3), torch.int64, stride=(3, 1)),
        Value(Role.WEIGHT, (9, 4), torch.float32, stride=(4, 1), name="table"),
        Value(Role.RESULT, (6,), torch.int64, stride=(1,)),
        Value(Role.RESULT, (6, 4), torch.float32, stride=(4, 1)),
    ]
    ids, table, flat = map(Ref, range(3))
    moved = Operator(OperatorCall(aten.view.default, (ids, [6]), {}), (2,))
    chosen = Operator(OperatorCall(aten.embedding.default, (table, flat), {}), (3,))
    assert uses_of(Trace(values=values, events=[moved, chosen], inputs=(0,))) == (InputUse(vocabulary=9),)
    assert uses_of(Trace(values=values, events=[chosen], inputs=(0,))) == (
        InputUse(),
    )  # nothing says that these are its elements
