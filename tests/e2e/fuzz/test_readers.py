"""Damaged documents are refused with a message, or read as what they say: those whose reading takes a process."""

from __future__ import annotations

import pytest
from toolbox.readers import READ_WITH_PROCESSES


@pytest.mark.parametrize("name", READ_WITH_PROCESSES)
def test_a_right_document_is_read_and_a_damaged_one_costs_a_message_at_most(name, tmp_path):
    READ_WITH_PROCESSES[name].check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", READ_WITH_PROCESSES)
def test_more_damaged_documents_cost_a_message_at_most(name, tmp_path):
    READ_WITH_PROCESSES[name].check(name, tmp_path, times=8)
