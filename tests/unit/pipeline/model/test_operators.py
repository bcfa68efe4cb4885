"""What a call of an operator says of itself, and interventions: what operators get and return while one is active."""

from __future__ import annotations

import pytest
import torch

from onnx_ci.pipeline.model.operators import Intervention, OperatorCall

aten = torch.ops.aten
X, Y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])


def call_of(operator, *args, **kwargs):
    return OperatorCall(operator, args, kwargs)


def test_arguments_have_their_names_and_defaults():
    call = call_of(aten.add.Tensor, X, Y)
    assert call.name == "aten::add"
    assert call.arguments == {"self": X, "other": Y, "alpha": 1}
    assert call_of(aten.add.Tensor, X, other=Y, alpha=2).arguments == {"self": X, "other": Y, "alpha": 2}
    assert call.run().tolist() == [4.0, 6.0]


def test_the_operands_are_the_tensors_in_lists_and_keywords_too():
    call = call_of(aten.cat.out, [X, Y], 0, out=torch.empty(4))
    assert list(map(id, call.operands)) == [id(X), id(Y), id(call.kwargs["out"])]


@pytest.mark.parametrize(
    ("call", "name", "written"),
    [
        (call_of(aten.mul.Tensor, X, Y), "aten::mul", []),
        (call_of(aten.mul_.Tensor, X, Y), "aten::mul_", [X]),
        (call_of(aten.mul.out, X, X, out=Y), "aten::mul", [Y]),
        (call_of(aten._foreach_mul_.Scalar, [X, Y], 2.0), "aten::_foreach_mul_", [X, Y]),
    ],
)
def test_operators_in_place_and_with_out_write(call, name, written):
    assert call.name == name
    assert call.writes == bool(written)
    assert list(map(id, call.written)) == list(map(id, written))


def test_views_and_random_numbers():
    assert call_of(aten.view.default, X, [2, 1]).is_view
    assert not call_of(aten.clone.default, X).is_view
    assert call_of(aten.bernoulli.p, X, 0.5).is_random
    assert not call_of(aten.relu.default, X).is_random


def test_an_operator_that_takes_functions():
    call = call_of(torch.ops.higher_order.cond, X.sum() > 0, torch.relu, torch.neg, (X,))
    assert (call.name, call.is_higher_order) == ("cond", True)
    assert not (call.writes or call.is_view or call.is_random or call.written)
    assert [tensor.shape for tensor in call.operands] == [(), (2,)]


def test_arguments_of_a_type_are_changed_in_lists_too():
    call = call_of(aten.cat.default, [X, Y], 0).with_changed(torch.Tensor, torch.neg)
    assert call.run().tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert call.with_changed(int, lambda each: each - 1).args[1] == -1


class DoublesAndAdds(Intervention):
    """Doubles floating operands, and adds one to what operators return."""

    def __init__(self):
        super().__init__()
        self.names = []

    def run(self, call):
        self.names.append(call.name)
        result = call.with_changed(torch.Tensor, lambda tensor: tensor * 2 if tensor.is_floating_point() else tensor).run()
        return result + 1


def test_operators_get_and_return_what_the_intervention_says():
    with DoublesAndAdds():
        assert torch.relu(X).tolist() == [3.0, 5.0]
    assert torch.relu(X).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "is_in_place"), [(call_of(aten.neg.default, X), False), (call_of(aten.neg_.default, X), True)]
)
def test_what_replaces_the_result_of_an_operator_in_place_is_what_it_has_written(call, is_in_place):
    call = call.with_changed(torch.Tensor, torch.clone)
    result = call.run()
    replaced = call.replace_result(result, result + 1)
    assert replaced.tolist() == [0.0, -1.0]
    assert (replaced is call.args[0]) == is_in_place


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.ReLU()

    def method(self, x):
        return torch.relu(x)

    def forward(self, x, branch):
        branches = {"function": lambda x: torch.relu(x), "method": self.method, "module": self.module}
        return torch.cond(torch.tensor(True), branches[branch], branches[branch], (x,))


@pytest.mark.parametrize("branch", ["function", "method", "module"])
def test_the_branches_of_cond_run_under_the_intervention(branch):
    mode = DoublesAndAdds()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), mode:
        result = Branches()(X, branch)
    assert result.tolist() == [3.0, 5.0]
    assert mode.names[-1] == "aten::relu"


def test_the_operators_of_one_intervention_pass_through_those_around_it():
    outer, inner = DoublesAndAdds(), DoublesAndAdds()
    with outer, inner:
        torch.relu(X)
    assert inner.names == ["aten::relu"]
    assert outer.names == ["aten::mul", "aten::relu", "aten::add"]
