"""The fence of an NVLink domain: one hold that keeps new jobs off all of its nodes. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DomainFence:
    """One fence. ``incident``: the id of the incident that it is for."""

    domain: str
    incident: str
    nodes: frozenset[str]

    @property
    def text(self) -> str:
        """``NVLink domain rack-7, incident 1124-3f2a9c``."""
        return f"NVLink domain {self.domain}, incident {self.incident}"
