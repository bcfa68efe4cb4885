"""Inputs for the other sides of branches: which are found, which cannot exist, and what is no branch on the input."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from toolbox.cells import ROWS, recipe_of, task

import onnx_ci
from onnx_ci.pipeline.inputs import branch_search, long_axes
from onnx_ci.pipeline.inputs.probes import InputStatus
from onnx_ci.pipeline.prepare.prepare import prepare

X = torch.tensor([[1.0, 2.0, -0.5, 0.3], [0.1, 0.2, 0.3, 0.4], [2.0, 1.0, 0.5, 0.25]])


def branches_of(function, *args, settings=None, **keywords):
    """The probes for branches, and the branches of which no probe takes the other side."""
    prepared = prepare(task(recipe_of(function, *(args or (X,)), **{**ROWS, **keywords}), **(settings or {})))
    return [probe for probe in prepared.probes.all if probe.name.startswith("branch at")], prepared.untaken_branches


def large(x):
    return x / 10 if x.abs().max() > 1e6 else x * 2


def mean(x):
    if x.mean() > 50:
        return x / 10
    return x * 2


def item(x):
    if x.max().item() > 1e6:
        return x / 10
    return x * 2


def not_a_number(x):
    if torch.isnan(x - x.mean()).any():  # NaN in what the model itself tests is tried anyway
        return torch.nan_to_num(x)
    return x * 2


@pytest.mark.parametrize(
    ("function", "takes_it"),
    [
        (large, lambda x: x.abs().max() > 1e6),
        (mean, lambda x: x.mean() > 50),
        (item, lambda x: x.max() > 1e6),
        (not_a_number, lambda x: x.isnan().any()),
    ],
)
def test_values_are_found_that_take_the_other_side(function, takes_it):
    (probe,), untaken = branches_of(function)
    assert takes_it(probe.inputs[0])
    assert probe.inputs[0].shape == X.shape
    assert not untaken


def bright(x):
    """Neither multiples of a picture nor brighter ones decide otherwise; a white one does, and so does an empty one."""
    total = (1 - 2 * torch.exp(-((x * 6 - 6) ** 2))).sum()
    return x * 2 if total > 0 else x / 10


def dark(x):
    total = (1 - 2 * torch.exp(-((x * 6 - 1) ** 2))).sum()
    return x * 2 if total > 0 else x / 10


@pytest.mark.parametrize(("function", "value"), [(bright, 1.0), (dark, 0.1)])
def test_a_picture_of_its_largest_or_smallest_number_takes_the_other_side(function, value):
    picture = torch.tensor([[0.1, 1.0, 0.5, 0.6], [0.5, 0.5, 0.4, 0.7]])
    (probe,), untaken = branches_of(function, picture)
    assert probe.inputs[0].shape == picture.shape
    assert (probe.inputs[0] - value).abs().max() < 0.4
    assert not untaken


def nothing_beyond(x):
    return x * 2 if x.abs().max() < 1e6 else x / 0 - x / 0


@pytest.mark.parametrize("function", [nothing_beyond, lambda x: x * 2 if x.tanh().abs().sum() > -1e-9 * len(x) else x / 10])
def test_inputs_on_which_all_is_nan_or_empty_take_no_side(function):
    probes, (untaken,) = branches_of(function)
    assert probes == []
    assert untaken.outcome


def more_rows(x):
    if x.shape[0] > 100:
        return x / 10
    return x * 2


def length(x):
    if len(x) > 100:
        return x / 10
    return x * 2


def at_most(x):
    return x[: min(x.shape[0], 100)] * 2


def computed_rows(x):
    return x / 10 if math.ceil(x.shape[0] / 2) * 2 + 1 > 101 else x


def odd_patches(x):
    patches = x[3::4]
    return patches * 2 if patches.shape[0] % 2 == 1 else patches


def padded_patches(x):
    patches = x[3::4]
    missing = (2 - patches.shape[0] % 2) % 2
    return torch.nn.functional.pad(patches, (0, 0, 0, missing)) * 2 if missing > 0 else patches


@pytest.mark.parametrize("function", [odd_patches, padded_patches])
def test_a_size_is_found_at_which_the_remainder_after_a_stride_is_another_one(function):
    (probe,), untaken = branches_of(function, torch.randn(8, 4))
    assert probe.inputs[0].shape[0] // 4 % 2 == 1
    assert not untaken


HALVED = {
    "remainder": lambda n: n % 16 == 0,
    "remainders from one on": lambda n: n % 16 > 12,
    "up to the next multiple": lambda n: -n % 32 == 0,
    "quotient and remainder": lambda n: divmod(n, 24)[1] == 0,
    "rounded up": lambda n: math.ceil(n / 16) * 16 == n,
    "as a float": lambda n: (n / 32).is_integer(),
    "quotient of a quotient": lambda n: n // 2 // 8 == 4,
}


@pytest.mark.parametrize(("name", "rows"), [*((name, 5) for name in HALVED), ("remainder", 21)])
def test_a_size_is_found_at_which_what_was_divided_decides_otherwise(name, rows):
    is_halved = HALVED[name]
    (probe,), untaken = branches_of(lambda x: x / 2 if is_halved(x.shape[0]) else x * 2, torch.randn(rows, 4))
    assert is_halved(probe.inputs[0].shape[0])
    assert probe.inputs[0].numel()
    assert not untaken


def refuses_multiples(x):
    if x.shape[0] % 16 == 0:
        return x.reshape(3, -1)[:0].amax(0)  # raises
    return x * 2


def test_sizes_of_the_other_side_that_the_model_rejects_are_no_inputs():
    assert branches_of(refuses_multiples, torch.randn(5, 4)) == ([], ())


def always_even(x):
    patches = x.reshape(-1, 2, 4)[:, 0].repeat(2, 1)
    return patches * 2 if patches.shape[0] % 2 == 1 else patches


def test_a_remainder_that_no_size_changes_is_not_untaken():
    assert branches_of(always_even, torch.randn(8, 4)) == ([], ())


def elements(x):
    return x / 10 if x.numel() > 400 else x


@pytest.mark.parametrize("function", [more_rows, length, at_most, computed_rows, elements])
def test_sizes_are_found_that_take_the_other_side(function):
    (probe,), untaken = branches_of(function)
    assert probe.inputs[0].shape[0] > 100
    assert not untaken


def exactly(x):
    return x / 10 if x.shape[0] == 53 else x


def test_a_single_size_is_found():
    (probe,), _ = branches_of(exactly)
    assert probe.inputs[0].shape[0] == 53


def after_a_stride(x):
    return x * 3 if torch.nn.functional.avg_pool1d(x.t(), 2, ceil_mode=True).shape[1] > 40 else x * 2


def test_sizes_of_intermediate_tensors_count():
    (probe,), _ = branches_of(after_a_stride)
    assert probe.inputs[0].shape[0] > 80


def contains_padding(tokens):
    return tokens * 2.0 if (tokens == 40).any() else tokens * 3.0


def test_an_integer_is_found():
    (probe,), _ = branches_of(contains_padding, torch.tensor([[3, 5, 8], [2, 9, 4]]))
    assert (probe.inputs[0] == 40).any()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_an_integer_that_the_data_type_does_not_have_is_not_tried(dtype):
    def contains_a_large_number(tokens):
        return tokens * 2.0 if (tokens.double() == 1e30).any() else tokens * 3.0

    probes, _ = branches_of(contains_a_large_number, torch.tensor([[3, 5, 8], [2, 9, 4]], dtype=dtype))
    assert not probes


class Twice(torch.nn.Module):
    """Two submodules with the same code, of which each takes a side of its own."""

    class Block(torch.nn.Module):
        def __init__(self, limit):
            super().__init__()
            self.limit = limit

        def forward(self, x):
            if x.shape[0] > self.limit:
                return x + 1
            return x * 2

    def __init__(self):
        super().__init__()
        self.first, self.second = self.Block(0), self.Block(50)

    def forward(self, x):
        return self.second(self.first(x))


def test_each_submodule_has_branches_of_its_own():
    found = prepare(task(onnx_ci.recipe(**ROWS, name="net")(lambda: (Twice(), (X,)))))
    assert max(probe.inputs[0].shape[0] for probe in found.probes.all if probe.name.startswith("branch at")) == 51


def test_values_stay_in_their_domain():
    probes, (untaken,) = branches_of(large, inputs={"x": onnx_ci.floats(-3, 3)})
    assert probes == []
    assert (untaken.condition.text, untaken.outcome, untaken.by_sizes) == ("x.abs().max() > 1e6", False, False)


def far_away(x):
    if x.shape[0] > 10**9:
        return x / 10
    return x * 2


def test_a_size_that_is_too_large_is_left_untaken():
    probes, (untaken,) = branches_of(far_away)
    assert probes == []
    assert (untaken.condition.text, untaken.outcome, untaken.by_sizes) == ("x.shape[0] > 10**9", False, True)
    assert untaken.condition.line == far_away.__code__.co_firstlineno + 1


TWO_AXES = {"x": {0: "rows", 1: "columns"}, "y": {0: "rows", 1: "columns"}}


def shapes_seen(condition, **keywords):
    """The shapes of all inputs on which a model runs that has a branch on its sizes, and whether its other side was taken."""
    seen = []

    def function(x):
        seen.append(tuple(x.shape))
        return x / 10 if condition(*x.shape) else x * 2

    probes, untaken = branches_of(function, **{"dynamic_axes": TWO_AXES, **keywords})
    assert (len(probes), len(untaken)) in ((1, 0), (0, 1))
    return seen, bool(probes)


def test_sizes_that_have_to_grow_together_are_found():
    limits = {"rows": range(1, 65), "columns": range(1, 65)}
    _, is_taken = shapes_seen(lambda rows, columns: rows + columns > 100, dynamic_sizes=limits)
    assert is_taken


def test_the_other_sizes_do_not_grow_where_a_single_one_decides_and_cannot_get_there():
    seen, is_taken = shapes_seen(lambda rows, _: rows > 100, dynamic_sizes={"rows": range(1, 65)})
    assert not is_taken
    assert max(rows for rows, columns in seen if columns == 4) == 64
    assert max(rows for rows, columns in seen if columns != 4) <= 4


def test_sizes_that_grow_together_do_not_exceed_the_work(monkeypatch):
    computed = []

    def pairs_of_rows(x):
        pairs = x[None] + x[:, None]
        computed.append(pairs.numel())
        return x / 10 if pairs.numel() > 10**9 else pairs.sum(0)

    monkeypatch.setattr(branch_search, "MAX_WORK", 400)
    monkeypatch.setattr(long_axes, "MOST_WORK", 400)
    assert len(branches_of(pairs_of_rows, dynamic_axes=TWO_AXES)[1]) == 1
    assert max(computed) <= 400


def test_how_much_the_example_computes_is_counted_once():
    def runs_of_example(axes):
        seen, _ = shapes_seen(lambda rows, _: rows > 10**9, **axes)
        return seen.count(tuple(X.shape))

    one_axis = {name: {0: "rows"} for name in ("x", "y")}
    assert runs_of_example({}) == runs_of_example({"dynamic_axes": one_axis})


def test_a_recipe_that_allows_the_rule_gets_no_inputs_for_the_other_side():
    probes, (untaken,) = branches_of(more_rows, allow="untaken-branch")
    assert probes == []
    assert untaken.condition.text == "x.shape[0] > 100"


def test_a_quick_run_looks_for_no_branches():
    assert branches_of(far_away, settings={"effort": "quick"}) == ([], ())


# --- what must not be reported


def static_size(x):
    return x / 10 if x.shape[1] > 100 else x


def other_facts(x):
    if x.dtype == torch.float16 or x.dim() == 3 or x.device.type == "cuda" or x.is_complex():
        return x
    return x * 2


def raises(x):
    if x.shape[0] > 10**9:
        message = "too many rows"
        raise ValueError(message)
    if torch.isnan(x).any():
        raise ValueError("NaN")
    return x * 2


def raises_at_the_end(x):
    if x.shape[0] < 10**9:
        return x * 2
    raise ValueError("too many rows")


def checked(is_right):
    if not is_right:
        raise ValueError("not right")


def raises_elsewhere(x):
    checked(x.shape[0] < 100)
    checked(bool(x.abs().max() < 1e6))
    return x * 2


def asserts(x):
    torch._assert(x.shape[0] < 10**9, "too many rows")
    assert x.shape[0] < 10**9
    assert bool(x.abs().max() < 1e6)
    return x * 2


def warns(x):
    if x.shape[0] > 10**9:
        warnings.warn("that will take a while", stacklevel=2)
    return x * 2


def rejects_what_would_get_there(x):
    y = x + torch.arange(10.0)[:, None][: x.shape[0]]
    if x.shape[0] > 1000:
        return y * 2
    return y


def already_left(x):
    if x.shape[0] > 2000:
        return x
    if x.shape[0] > 1000:
        return x if x.shape[0] > 2000 else x * 2
    return x * 2


def both_sides_on_other_sizes(x):
    return x * 3 if x.shape[0] > 5 else x * 2


def loops(x):
    count = x.shape[0]
    while count > 1:
        count = count // 2
    for _ in range(int(x.shape[0] / 2)):
        x = x + 1
    return x


def same_shape(x):
    y = x * 2
    return y[:1] if y.shape != x.shape else y


def chosen_by_operators(x):
    return torch.where(x.abs().max() > 1e6, x / 10, x * 2)


def chosen_by_cond(x):
    return torch.cond(x.abs().max() > 1e6, lambda x: x / 10, lambda x: x * 2, (x,))


@pytest.mark.parametrize(
    "function",
    [
        static_size,
        other_facts,
        raises,
        raises_at_the_end,
        raises_elsewhere,
        asserts,
        warns,
        rejects_what_would_get_there,
        both_sides_on_other_sizes,
        loops,
        same_shape,
        chosen_by_operators,
        chosen_by_cond,
    ],
)
def test_nothing_is_said_of(function):
    assert branches_of(function) == ([], ())


def test_nothing_is_said_of_a_side_that_another_branch_excludes():
    probes, untaken = branches_of(already_left)
    assert {probe.inputs[0].shape[0] for probe in probes} == {1001, 2001}
    assert untaken == ()


class WithFlag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.flag = True
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x, mask=None):
        if mask is not None or self.training or not self.flag or self.weight.sum() > 100:
            return x
        return x * self.weight


def test_nothing_is_said_of_what_belongs_to_the_model():
    prepared = prepare(task(onnx_ci.recipe(**ROWS, name="net")(lambda: (WithFlag(), (X,)))))
    assert prepared.untaken_branches == ()
    assert not [probe for probe in prepared.probes.all if probe.name.startswith("branch at")]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_functions_are_left_to_the_exporter():
    assert branches_of(torch.jit.script(more_rows)) == ([], ())


def never_negative(x):
    low = x.min()
    return x if low >= 0 else x - low


def only_silence(x):
    return x / x.abs().max() if x.abs().max() > 0 else x


def test_a_side_that_zeros_take_is_tried_on_usual_values_too():
    probes, untaken = branches_of(never_negative, torch.linspace(-3, 3, 96).reshape(3, 32))
    assert [probe.legality for probe in probes] == [InputStatus.LEGAL]
    assert probes[0].inputs[0].min() > 0
    assert not untaken


def test_a_side_that_only_zeros_take_is_no_usual_one():
    probes, untaken = branches_of(only_silence)
    assert (probes, untaken) == ([], ())


def nothing_left(x):
    return x.new_ones(2, 4) if x.shape[0] == 0 else x * 2


def test_an_empty_input_is_a_degenerate_one():
    (probe,), _ = branches_of(nothing_left)
    assert probe.inputs[0].shape[0] == 0
    assert probe.legality is InputStatus.DEGENERATE


def kept(x, flags=[]):  # noqa: B006
    if x.shape[0] > 100 and len(flags) == 0:
        return x
    assert isinstance(int(x.shape[0]), int) and isinstance(x.shape[0], int) and not isinstance(float(x[0, 0]), int)
    return x * 2


def test_models_see_numbers_as_they_are():
    (probe,), _ = branches_of(kept)
    assert probe.inputs[0].shape[0] == 101
    assert "int" not in globals()


# --- numbers that Python gets in other ways


def is_large(x):
    return x > 700


COUNTS = {
    "places": lambda x: torch.nonzero(is_large(x)).shape[0],
    "elements of places": lambda x: is_large(x).nonzero().numel() > 0,
    "what is chosen": lambda x: x[is_large(x)].shape[0] > 0,
    "what a mask selects": lambda x: torch.masked_select(x, is_large(x)).numel(),
    "a count as a number": lambda x: torch.count_nonzero(is_large(x)).item() > 0,
    "a share": lambda x: is_large(x).float().mean() > 0,
    "a sum of Python": lambda x: sum(each > 700 for each in x.flatten()),
    "contains": lambda x: 3.25 in x,
}


@pytest.mark.parametrize("test", COUNTS.values(), ids=COUNTS)
def test_a_branch_on_how_many_values_are_so_is_found(test):
    [probe], untaken = branches_of(lambda x: x / 2 if test(x) else x * 2, torch.arange(12.0).reshape(3, 4) / 8 - 0.45)
    assert bool(test(probe.inputs[0]))
    assert untaken == ()


def rejects_large(x):
    if x.abs().max() > 700:
        raise ValueError("large")
    return x


def catches(x):
    try:
        return rejects_large(x)
    except ValueError:
        return x / 2


def catches_its_own(x):
    try:
        if x.abs().max() > 700:
            raise ValueError("large")
    except ValueError:
        return x / 2
    return x * 2


def raises_again(x):
    try:
        return rejects_large(x)
    except ValueError as error:
        raise TypeError("larger") from error


def cleans_up(x):
    try:
        return rejects_large(x)
    finally:
        x = None


@pytest.mark.parametrize(
    ("function", "is_branch"),
    [(catches, True), (catches_its_own, True), (rejects_large, False), (raises_again, False), (cleans_up, False)],
)
def test_a_check_is_a_branch_if_the_model_catches_what_it_raises(function, is_branch):
    probes, untaken = branches_of(function)
    assert (len(probes), untaken) == (int(is_branch), ())


def notes_of(function):
    findings = prepare(task(recipe_of(function, X, **ROWS))).findings
    return [each for each in findings if each.rule == "untaken-branch"]


UNSEEN = {
    "numpy": lambda x: x / 2 if np.abs(x.detach().numpy()).max() > 700 else x,
    "a text": lambda x: x / 2 if len(f"{x.abs().max().item():.0f}") > 3 else x,
    "str": lambda x: x / 2 if "e" in str(x.abs().max().item()) else x,
}


@pytest.mark.parametrize("function", UNSEEN.values(), ids=UNSEEN)
def test_numbers_that_are_read_unseen_are_told_with_the_line(function):
    [note] = notes_of(function)
    assert "what is decided by them is not seen" in note.message
    assert note.source.line == function.__code__.co_firstlineno


def reports(x):
    print(f"the largest is {x.max().item():.3f}")
    assert x.abs().max() < 1e30, f"{x.abs().max().item()} is too large"
    if x.abs().max() > 1e20:
        raise ValueError(f"{x.max().item()}")
    return x * 2


TABLE = torch.arange(4.0)
SEEN = {
    "a report": reports,
    "a constant": lambda x: x * float(TABLE.numpy().sum()),
    "a size as a key": lambda x: x * {"4": 2}[f"{x.shape[1]}"],
    "values of sizes": lambda x: x * torch.arange(x.shape[0]).numpy().sum(),
}


@pytest.mark.parametrize("function", SEEN.values(), ids=SEEN)
def test_nothing_is_said_of_texts_that_only_report_and_of_constants(function, capsys):
    assert notes_of(function) == []


# --- conditions behind conditions -----------------------------------------------------------------------------------------


def bright_and_nowhere_dark(x):
    if x.mean() > 5 and x.min() > 2:
        return x / 10
    return x * 2


def long_weeks(x):
    if x.shape[0] % 7 != 3:  # the example has 3 rows
        return x * 2
    return x / 10 if x.shape[0] > 60 else x * 2


def other_weeks(x):
    return x / 10 if x.shape[0] % 7 == 5 and x.shape[0] > 60 else x * 2


def never_both(x):
    if x.shape[0] > 1000:
        return x / 10 if x.shape[0] < 500 else x
    return x * 2


def guards_what_no_input_changes(x):
    return x / 10 if x.shape[0] > 1000 and torch.ones(3).sum() > 5 else x * 2


@pytest.mark.parametrize(
    ("function", "takes_it"),
    [
        (bright_and_nowhere_dark, lambda x: x.mean() > 5 and x.min() > 2),
        (long_weeks, lambda x: x.shape[0] % 7 == 3 and x.shape[0] > 60),
        (other_weeks, lambda x: x.shape[0] % 7 == 5 and x.shape[0] > 60),
    ],
)
def test_of_conditions_that_guard_each_other_an_input_is_found_that_takes_all(function, takes_it):
    probes, untaken = branches_of(function)
    assert any(takes_it(probe.inputs[0]) for probe in probes)
    assert untaken == ()


@pytest.mark.parametrize("function", [never_both, guards_what_no_input_changes])
def test_what_a_guarded_condition_never_decides_is_not_untaken(function):
    assert branches_of(function)[1] == ()


def test_of_two_axes_that_must_be_alike_an_input_is_found_that_is_not_a_single_row():
    def compares(x, y):
        similar = x @ y.T
        return similar - similar.diagonal().mean() if x.shape[0] == y.shape[0] else similar

    axes = {"x": {0: "rows"}, "y": {0: "others"}, "z": {0: "rows", 1: "others"}}
    names = {"input_names": ["x", "y"], "output_names": ["z"], "dynamic_axes": axes}
    probes, untaken = branches_of(compares, torch.rand(7, 4), torch.rand(5, 4), **names)
    assert any(len(probe.inputs[0]) == len(probe.inputs[1]) > 1 for probe in probes)
    assert untaken == ()
