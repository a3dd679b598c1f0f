"""Names in a sentence: all of a few, and of many the first and how many more."""

from __future__ import annotations

from healthd.core.name_lists import listed, number_of


def test_as_many_as_may_be_are_all_named() -> None:
    """None is left out while they fit, and no names are no text."""
    assert listed(["a", "b"], 2) == "a, b"
    assert listed([]) == ""


def test_of_more_the_first_are_named_and_the_rest_counted() -> None:
    """Eight are named where nothing else is said."""
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert listed([str(number) for number in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_one_alone_has_no_plural() -> None:
    """None and several have it."""
    assert [number_of(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
