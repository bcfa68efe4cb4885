"""Numbers that report what they are compared with: a model computes with them as with plain ones."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_ci.pipeline.trace.tracked_numbers import Origin, TrackedFloat, TrackedInt, reporting_to, tracked

numbers = st.one_of(st.integers(-20, 20), st.floats(-20, 20))
operations = st.sampled_from(
    [operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.pow, divmod]
)
comparisons = st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])


class Listener:
    def __init__(self):
        self.heard, self.periods = [], []

    def compared(self, outcome, gap, origin):
        self.heard.append((outcome, gap, origin.by_sizes))
        self.periods.append(origin.period)
        return outcome

    def converted(self, value, function):
        self.heard.append(function)
        return value

    def read_unseen(self, function, values):
        self.heard.append((function, values))


def of_sizes(number):
    return tracked(number, Origin(by_sizes=True))


@given(operations, numbers, numbers)
def test_arithmetic_is_that_of_plain_numbers_and_its_results_are_tracked(operation, left, right):
    operands = [(of_sizes(left), right), (of_sizes(left), of_sizes(right))]
    if not (isinstance(left, float) and isinstance(right, int)):
        operands.append((left, of_sizes(right)))
    try:
        expected = operation(left, right)
    except ArithmeticError as error:
        for pair in operands:
            with pytest.raises(type(error)):
                operation(*pair)
        return
    for result in (operation(*pair) for pair in operands):
        assert result == expected
        for number in result if isinstance(result, tuple) else (result,):
            assert isinstance(number, TrackedInt | TrackedFloat | complex)


@given(comparisons, numbers, numbers, st.booleans())
def test_a_comparison_is_reported_with_its_gap(compare, left, right, by_sizes):
    listener = Listener()
    with reporting_to(listener):
        outcome = compare(of_sizes(left), tracked(right, Origin(by_sizes=by_sizes)))
    assert outcome is compare(left, right)
    assert listener.heard == [(outcome, left - right, by_sizes)]


@pytest.mark.parametrize(
    ("compute", "period"),
    [
        (lambda n: n % 16, 16),
        (lambda n: -n % 16 + 1, 16),
        (lambda n: n // 16 * 16, 16),
        (lambda n: n // 2 % 8, 16),
        (lambda n: divmod(n, 24)[1], 24),
        (lambda n: n * 2 + 1, 0),
        (lambda n: 48 % n, 0),
    ],
)
def test_a_comparison_is_reported_with_the_number_by_which_was_divided(compute, period):
    listener = Listener()
    with reporting_to(listener):
        assert compute(of_sizes(21)) != 1000
    assert listener.periods == [period]


@given(st.floats(-20, 20) | st.integers(-20, 20).map(float))
def test_whether_a_float_is_an_integer_is_reported_like_a_comparison(number):
    listener = Listener()
    with reporting_to(listener):
        outcome = of_sizes(number).is_integer()
    assert outcome is number.is_integer()
    ((heard, gap, by_sizes),) = listener.heard
    assert (heard, gap == 0, by_sizes) == (outcome, outcome, True)


@given(numbers)
def test_a_conversion_is_reported_and_no_number_reports_after_the_run(number):
    listener, size = Listener(), of_sizes(number)
    with reporting_to(listener):
        assert (int(size), float(size)) == (int(number), float(number))
    assert bool(size) is bool(number)
    assert listener.heard == ["int", "float"]


@given(numbers)
def test_a_number_that_becomes_text_is_reported(number):
    listener, size = Listener(), of_sizes(number)
    with reporting_to(listener):
        assert (f"{size}", f"{size:8}", str(size)) == (f"{number}", f"{number:8}", str(number))
    assert listener.heard == ["format"] * 3


class Answering:
    """Gives other answers than the numbers do."""

    def compared(self, outcome, gap, origin):
        return not outcome

    def converted(self, value, function):
        return value + 1


@given(numbers)
def test_the_code_gets_what_the_listener_answers(number):
    size = of_sizes(number)
    with reporting_to(Answering()):
        assert (size == number, int(size)) == (False, int(number) + 1)
    assert (size == number, int(size)) == (True, int(number))


def test_a_number_remembers_what_it_was_read_from_and_tells_when_it_becomes_a_text():
    listener = Listener()
    with reporting_to(listener):
        first, second = (tracked(number, Origin(by_sizes=False, values=(value,))) for number, value in ((3, 7), (2.5, 8)))
        assert (first * second - first).origin.values == (7, 8)
        assert f"{first + 1}" == "4"
        assert f"{of_sizes(3)}" == "3"
    assert [each for each in listener.heard if isinstance(each, tuple)] == [("format", (7,))]
