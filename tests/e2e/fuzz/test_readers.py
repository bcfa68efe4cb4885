"""Damaged documents are refused with a message, or read as what they say: those whose reading takes a process."""

from __future__ import annotations

import pytest
from toolbox.readers import READ_WITH_PROCESSES


@pytest.mark.parametrize("name", READ_WITH_PROCESSES)
def test_a_document_that_is_right_is_read(name, tmp_path):
    READ_WITH_PROCESSES[name].use(READ_WITH_PROCESSES[name].right(), tmp_path)


@pytest.mark.parametrize("name", READ_WITH_PROCESSES)
def test_a_damaged_document_costs_a_message_at_most(name, tmp_path):
    READ_WITH_PROCESSES[name].read_damaged(name, tmp_path)
