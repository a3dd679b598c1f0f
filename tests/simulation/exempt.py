"""The invariants that are not held against a simulated fleet yet, each with the rule that is missing."""

from __future__ import annotations

from collections.abc import Mapping

EXEMPT: Mapping[str, str] = {}
