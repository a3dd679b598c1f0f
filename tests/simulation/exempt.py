"""The invariants that are not held against a simulated fleet yet, each with the rule that is missing."""

from __future__ import annotations

from collections.abc import Mapping

EXEMPT: Mapping[str, str] = {
    "what_counts_was_begun": "a request that no controller took still counts as a repair (seed 3, 40 nodes)",
    "law_of_requests": "a request to the controller is not withdrawn when its fault ends (seed 3, 40 nodes)",
    "returns_are_bounded": "a request that no controller took is neither a repair nor a return (seed 4, 40 nodes)",
}
