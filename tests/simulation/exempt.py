"""The invariants that are not held against a simulated fleet yet, each with the rule that is missing."""

from __future__ import annotations

from collections.abc import Mapping

EXEMPT: Mapping[str, str] = {
    "bounded_by_name": "issue 12, section 1: limits still count what the disk remembers",
    "bounded_in_a_day": "issue 12, section 1: there is no bound a day yet",
    "bounded_in_the_fleet": "issue 12, section 1: replacements an hour still count names, not events",
    "what_counts_was_begun": "issue 12, section 1: a request that nobody took still counts as a repair",
    "no_slow_storm": "issue 12, section 4: there is no window of a day yet",
    "returns_are_bounded": "issue 12, section 4: returns are not counted yet",
    "nothing_in_a_window": "issue 12, section 3: a foreign maintenance window is not seen yet",
}
