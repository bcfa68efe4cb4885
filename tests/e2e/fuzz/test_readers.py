"""Damaged documents are refused with a message, or read as what they say: two thousand of them in every run.

With ``FUZZ_TIMES=100`` they are a hundred times as many. A case that fails names its reader and its number.
"""

from __future__ import annotations

import os

import pytest
from e2e.fuzz.damage import damaged
from e2e.fuzz.readers import READERS

from onnx_ci.errors import OnnxCiError

_TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


@pytest.mark.parametrize("name", READERS)
def test_a_document_that_is_right_is_read(name, tmp_path):
    READERS[name].use(READERS[name].right(), tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_document_costs_a_message_at_most(name, tmp_path):
    reader = READERS[name]
    right = reader.right()
    for number in range(reader.cases * _TIMES):
        content = damaged(right, f"{name} {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            reader.use(content, folder)
        except OnnxCiError as error:
            assert str(error).strip()
        except BaseException as error:
            raise AssertionError(f"case {number} of {name}: {content!r}") from error


def test_two_thousand_are_read():
    assert sum(reader.cases for reader in READERS.values()) >= 2000
