"""The fence of an NVLink domain: what keeps new jobs off all of its nodes, as one. Plain values."""

from __future__ import annotations

from msgspec import Struct

KUBE_TAINT = "healthd.io/domain-fence"
"""The taint of each node on Kubernetes; its value is the id of the incident. On Slurm it is one reservation."""


class DomainFence(Struct, frozen=True, kw_only=True):
    """One fence. ``incident``: the id of the incident that it is for. ``nodes``: those that it keeps new jobs off.
    ``missing``: those that it does not keep them off yet; a single reservation misses none."""

    domain: str
    incident: str
    nodes: frozenset[str]
    missing: frozenset[str] = frozenset()

    @property
    def stands(self) -> bool:
        """Whether an operator has left any of it."""
        return bool(self.nodes or self.missing)

    @property
    def text(self) -> str:
        """``NVLink domain rack-7, incident 1124-3f2a9c``."""
        return f"NVLink domain {self.domain}, incident {self.incident}"
