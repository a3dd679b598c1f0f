"""Handoff records of a healthd that knew no NodeHealth: read from their Lease, and answered there."""

from __future__ import annotations

import pytest

from healthd.core.errors import BackendRefused
from healthd.remediation.orchestrators.kubernetes.old_records import marked_with, marks_in, odd_marks


def test_records_are_read_back_and_what_is_not_ours_is_left_out() -> None:
    """Taken away with an empty text."""
    notes = {**marked_with("n1", "healthd case=1"), "mark.healthd.io/n2": "by hand", "other": "x"}
    assert marks_in({key: value for key, value in notes.items() if value}) == {"n1": "healthd case=1"}
    assert marked_with("n1", "") == {"mark.healthd.io/n1": None}


def test_a_record_belongs_to_the_node_of_its_key() -> None:
    """A record under the key of n9 is never one of n1: what names another node, or is no record, is odd and not
    read."""
    honest = str(marked_with("n1", "healthd case=1")["mark.healthd.io/n1"])
    notes = {"mark.healthd.io/n1": honest, "mark.healthd.io/n9": honest, "mark.healthd.io/n8": "by hand", "other": "x"}
    assert marks_in(notes) == {"n1": "healthd case=1"}
    assert set(odd_marks(notes)) == {"n8", "n9"}


@pytest.mark.parametrize("text", ["two\nlines", "x" * 2001])
def test_a_record_is_one_short_line(text: str) -> None:
    """Marks of many nodes share an object."""
    with pytest.raises(BackendRefused, match="expected one line"):
        marked_with("n1", text)
