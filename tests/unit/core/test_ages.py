"""Lengths of time, as an operator reads them."""

from __future__ import annotations

import pytest

from healthd.core.ages import age, lasting
from tests.support.judgement import START, at


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_799, "47 h"), (172_800, "2 d")],
)
def test_a_length_of_time_has_one_unit(seconds: float, text: str) -> None:
    """Rounded down."""
    assert lasting(seconds) == text
    assert age(START, at(seconds)) == text
    assert age(None, START) == ""
