"""The invariants that are not held against a simulated fleet yet, each with the rule that is missing."""

from __future__ import annotations

from collections.abc import Mapping

EXEMPT: Mapping[str, str] = {
    "what_counts_was_begun": "issue 12, section 1: a request that no controller took still counts as a repair",
    "law_of_requests": "issue 12, sections 2 and 6: a request to the controller outlives its fault",
    "returns_are_bounded": "issue 12, section 1: a request that no controller took is neither a repair nor a return",
}
