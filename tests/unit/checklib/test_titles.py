"""The titles of findings: each of a code that exists, and readable for one device, for many and for none."""

from __future__ import annotations

import pytest

from healthd.checklib import titles
from healthd.checklib.runbooks import steps


def test_every_title_is_of_a_code_that_exists() -> None:
    """A code has a runbook; a title has no full stop, and begins as the rest of a sentence."""
    for code, title in titles.titles().items():
        assert steps(code), code
        assert not title.endswith("."), title
        assert title[0].islower() or title.startswith((titles.WHERE, "EC2", "EFA", "I/O")), title


@pytest.mark.parametrize(
    ("code", "where", "title"),
    [
        ("gpu.xid.79", "GPU 3", "GPU 3 fell off the bus (XID 79)"),
        ("gpu.lost", "8 GPUs (0-7)", "8 GPUs (0-7) went missing"),
        ("gpu.lost", "", "a GPU went missing"),
        ("efa.missing", "", "EFA devices are missing"),
        ("site.anything", "GPU 3", ""),
    ],
)
def test_a_title_names_its_device(code: str, where: str, title: str) -> None:
    """An XID its number; a code without a title has none."""
    assert titles.title_of(code, where) == title
