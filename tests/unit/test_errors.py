"""What messages say of an exception of user code."""

from __future__ import annotations

import pytest

from onnx_ci.errors import describe_exception, first_line


@pytest.mark.parametrize(("keys", "is_whole"), [(2, True), (60, False)])
def test_a_long_message_keeps_its_begin_and_its_end(keys, is_whole):
    missing = ", ".join(f'"layers.{number}.weight"' for number in range(keys))
    told = describe_exception(RuntimeError(f'Missing key(s): {missing}. \n\tUnexpected key(s): "state_dict", "epoch". '))
    assert told.startswith("RuntimeError: Missing key(s): ")
    assert told.endswith('Unexpected key(s): "state_dict", "epoch".')
    assert ("…" not in told, len(told) < 650) == (is_whole, True)


def test_an_exception_that_cannot_be_shown_has_its_class_as_its_message():
    class UnshownError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    assert describe_exception(UnshownError()).startswith("test_an_exception_that_cannot_be_shown")
    assert first_line(UnshownError()) == "UnshownError"
