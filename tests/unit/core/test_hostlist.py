"""Host lists: what is folded unfolds to the same names, and reads as Slurm's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.core.hostlist import folded, unfolded

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}[0-9]{0,4}", fullmatch=True)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("gpu-1",), "gpu-1"),
        (("gpu-1", "gpu-1"), "gpu-1"),
        (("gpu-001", "gpu-003", "gpu-002", "gpu-007"), "gpu-[001-003,007]"),
        (("login", "gpu-9", "gpu-10"), "gpu-10,gpu-9,login"),
        (("a-st-x-1", "a-st-x-2", "b2"), "a-st-x-[1-2],b2"),
        (("n1x", "n2x"), "n[1-2]x"),
    ],
)
def test_names_fold_as_slurm_prints_them(names: tuple[str, ...], text: str) -> None:
    """By their last number, zeros in front included, each name once."""
    assert folded(names) == text


@given(st.sets(NAMES, max_size=40))
def test_what_is_folded_unfolds_to_the_same_names(names: set[str]) -> None:
    """Nothing is lost and nothing comes in."""
    found = list(unfolded(folded(names)))
    assert sorted(found) == sorted(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("r[1-2]n[08-09]", ["r1n08", "r2n08", "r1n09", "r2n09"]),
        ("a,b[3,5]", ["a", "b3", "b5"]),
        ("n[9-8]", ["n9-8"]),
        ("n[x-y]", ["nx-y"]),
        ("n[1-9999999999]", ["n1-9999999999"]),
        ("broken[1-2", ["broken[1-2"]),
    ],
)
def test_a_list_unfolds_and_an_odd_one_stays_what_it_is(text: str, names: list[str]) -> None:
    """Several brackets multiply; what is no range is no million of names."""
    assert list(unfolded(text)) == names


def test_a_name_of_a_thousand_brackets_is_text() -> None:
    """It costs no recursion, and hides no other name of the list."""
    odd = "n" + "[1-2]" * 1000
    assert list(unfolded(f"{odd},a[1-2]")) == [odd, "a1", "a2"]
