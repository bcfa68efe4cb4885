from __future__ import annotations

import pytest

from onnx_ci.opsets import OPEN_END, default_exporter, format_opsets, parse_opsets, sample_opsets


@pytest.mark.parametrize(
    ("spec", "opsets"),
    [
        (13, (13,)),
        ("13", (13,)),
        ("9-17", tuple(range(9, 18))),
        ("9,11, 13-15", (9, 11, 13, 14, 15)),
        ([9, "11-12"], (9, 11, 12)),
        ("13,9,13", (9, 13)),
        ("9,18-", (9, *range(18, OPEN_END + 1))),
    ],
)
def test_a_specification_gives_ascending_opsets(spec, opsets):
    assert parse_opsets(spec) == opsets


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("17-9", "write 9-17"),
        ("banana", "'banana' is not an opset"),
        ("9,banana", "in '9,banana'"),
        ("9-170", "opset 170 does not exist"),
        (100, "opset 100 does not exist"),
        ("100-", "opset 100 does not exist"),
        ("0", "opset 0 does not exist"),
        ("", "is not an opset"),
        ([], "empty"),
        (True, "not True"),
        (9.5, "not 9.5"),
    ],
)
def test_a_wrong_specification_is_told_with_its_remedy(spec, said):
    with pytest.raises(ValueError, match=r".") as caught:
        parse_opsets(spec)
    assert said in str(caught.value)


def test_format_is_the_inverse_of_parse():
    for spec in ("9-17", "9,11,13-15", "7", "7-8", "18-", "9,11-", "90-99"):
        assert format_opsets(parse_opsets(spec)) == spec


def test_torchscript_serves_the_opsets_that_dynamo_cannot_write():
    assert [default_exporter(opset) for opset in (9, 17, 18, 23)] == ["torchscript", "torchscript", "dynamo", "dynamo"]


@pytest.mark.parametrize(
    ("opsets", "count", "sample"),
    [
        (range(9, 18), 3, (9, 13, 17)),
        (range(9, 18), 2, (9, 17)),
        (range(9, 18), 1, (17,)),
        ((17, 11, 14), 3, (11, 14, 17)),
        ((17, 11), 3, (11, 17)),
        ((18,), 2, (18,)),
    ],
)
def test_a_sample_has_the_ends_and_what_lies_evenly_between(opsets, count, sample):
    assert sample_opsets(opsets, count) == sample


def test_a_sample_of_any_size_repeats_no_opset():
    for size in range(1, 40):
        for count in range(1, 41):
            sample = sample_opsets(range(size), count)
            assert len(set(sample)) == min(size, count)
