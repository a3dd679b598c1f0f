"""A person's word about a fault: which fault it names, and how it reads."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthd.core.model import Component
from healthd.judge.history import acknowledge, acknowledged_text, expire, faults_named, holds_as_long
from tests.support.judgement import BY_PCI, GPU, at, fault, history

BY_BOTH = Component(kind="gpu", id="GPU-0", aliases=("0000:05:00", "0"))
KNOWN = history(
    fault("gpu.sick", BY_BOTH), fault("gpu.sick", GPU[1]), fault("gpu.ecc", GPU[1]), names={str(BY_PCI[1]): GPU[1]}
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("gpu.sick", ["gpu:GPU-0", "gpu:GPU-1"]),
        ("gpu.ecc", ["gpu:GPU-1"]),
        ("gpu.sick@gpu:GPU-1", ["gpu:GPU-1"]),
        ("gpu.sick@gpu:0000:05:00", ["gpu:GPU-0"]),
        ("gpu.sick@gpu:0", ["gpu:GPU-0"]),
        (f"gpu.sick@{BY_PCI[1]}", ["gpu:GPU-1"]),
        ("gpu.sick@", ["gpu:GPU-0", "gpu:GPU-1"]),
        ("gpu.sick@node", []),
        ("gpu", []),
    ],
)
def test_a_fault_is_named_by_code_and_by_any_name_of_its_part(wanted: str, found: list[str]) -> None:
    """A code alone means it wherever it is open."""
    assert [str(each.component) for each in faults_named(KNOWN, wanted)] == found


def test_the_newest_word_holds() -> None:
    """A shorter one too: a person may think again."""
    key = ("gpu:GPU-1", "gpu.ecc")
    later = acknowledge(acknowledge(KNOWN, [key], at(900)), [key], at(300))
    assert later.faults[key].acknowledged_until == at(300)


def test_nothing_changes_where_nothing_is_over() -> None:
    """The history is the very same: no write follows."""
    known = acknowledge(KNOWN, [("gpu:GPU-1", "gpu.ecc")], at(300))
    assert expire(known, at(299))[0] is known


def test_how_it_reads() -> None:
    """With its end, without one, and not at all."""
    plain = fault()
    assert acknowledged_text(plain) == ""
    assert acknowledged_text(replace(plain, acknowledged=True)) == "acknowledged until it ends"
    told = acknowledged_text(replace(plain, acknowledged=True, acknowledged_until=at(60)))
    assert told == "acknowledged until 2026-01-01 00:01 UTC"


def test_a_longer_word_is_known_from_a_shorter_one() -> None:
    """One without an end is the longest; where nobody has spoken there is none."""
    silent = fault("gpu.sick", GPU[1])
    spoken = replace(silent, acknowledged=True)
    assert not holds_as_long(silent, at(1))
    assert holds_as_long(spoken, at(1))
    assert holds_as_long(replace(spoken, acknowledged_until=at(1)), at(1))
    assert not holds_as_long(replace(spoken, acknowledged_until=at(0)), at(1))
