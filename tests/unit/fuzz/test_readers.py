"""Damaged documents are refused with a message, or read as what they say: two thousand of them in every run.

Those whose reading takes a process are in tests/e2e/fuzz.
"""

from __future__ import annotations

import pytest
from toolbox.readers import DOCUMENTS, READ_WITH_PROCESSES


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_right_document_is_read_and_a_damaged_one_costs_a_message_at_most(name, tmp_path):
    DOCUMENTS[name].check(name, tmp_path)


def test_two_thousand_are_read():
    assert sum(reader.cases for reader in (*DOCUMENTS.values(), *READ_WITH_PROCESSES.values())) >= 2000
