"""The table of what differs between versions of Slurm."""

from __future__ import annotations

import pytest

from tests.support.slurm_versions import DIFFERENCES, TESTED, has, version_in


def test_each_row_says_since_when_and_where_it_was_seen() -> None:
    """Names are unique, and a row that not all versions share says what the older ones do."""
    assert len({row.name for row in DIFFERENCES}) == len(DIFFERENCES)
    for row in DIFFERENCES:
        assert row.since in TESTED
        assert row.what
        assert row.until in ("", *TESTED)
        assert row.source
        assert row.before or row.since == TESTED[0], row.name


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8", "22.05"), ("slurm 26.05.5", "26.05"), ("slurm 24.11.0-0rc1", "24.11"), ("no Slurm", "")],
)
def test_a_version_is_read_from_what_slurm_prints(text: str, version: str) -> None:
    """Year and month, as in the name of the release."""
    assert version_in(text) == version


def test_a_behaviour_is_there_from_its_version_on() -> None:
    """A name of no row is a mistake of whoever asks."""
    assert [has(version, "appends to a reason") for version in TESTED] == [False, True, True]
    assert [has(version, "reason of a node that is back") for version in TESTED] == [False, True, False]
    assert has("23.11", "extra of a node")
    with pytest.raises(KeyError):
        has("26.05", "cures nodes")
