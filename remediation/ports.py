"""What the engine needs of a cluster and of a machine's provider: two Protocols and the plain values they exchange.

No I/O here. ``remediation/orchestrators`` and ``remediation/provisioners`` implement these against real systems,
``healthd.testing`` by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from healthd.model import Remedy


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """Who keeps a node out, exactly as the cluster shows it: the ownership of a drain is this triple, nothing less.

    ``stamp`` is the cluster's own time of the text, in whole seconds since the epoch.
    """

    text: str
    user: str
    stamp: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """One reading of the node's own state in the cluster.

    ``in_service``: nothing keeps new jobs off. ``flags``: the cluster's own words, upper case (DRAIN, DOWN, FAIL,
    COMPLETING, NOT_RESPONDING, …). ``allocated_cpus`` and ``jobs`` together say whether work is there.
    ``controller``: changes when the cluster's controller restarts (Slurm's BOOT_TIME); "" where it was not asked.
    """

    name: str
    in_service: bool
    flags: frozenset[str]
    hold: Hold | None
    allocated_cpus: int = 0
    jobs: tuple[str, ...] = ()
    controller: str = ""
    raw: str = ""

    @property
    def idle(self) -> bool:
        """Truly idle: no allocated CPU, no job of any state listed, nothing still completing."""
        return not self.jobs and not self.allocated_cpus and "COMPLETING" not in self.flags


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetLevel:
    """How many nodes are out of service now, for any cause, and how many there are. Read from the cluster itself."""

    out: frozenset[str]
    total: int


class Orchestrator(Protocol):
    """Takes one node, this one, out of service and puts it back.

    Every call has its own deadline. ``BackendRefused``: answered no, nothing applied. ``BackendUnknown``: no answer,
    may have been applied. Reading calls raise BackendUnknown when the state could not be read.
    """

    kind: str

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read this node's state; constant cost. ``jobs`` also lists its jobs and the controller's start."""

    def level(self) -> FleetLevel:
        """Read how many nodes are out, over the whole cluster."""

    def quarantine(self, text: str) -> None:
        """Keep new jobs off, with ``text`` as the visible reason. Never called on a node that is held already."""

    def release(self, *, resume: bool) -> None:
        """Let jobs in again. ``resume`` also clears a DOWN that the drain went through. The caller owns the drain."""


class Provisioner(Protocol):
    """Restarts or replaces the machine behind the node."""

    kind: str

    def can(self, remedy: Remedy) -> bool:
        """Whether this provider, as configured, can carry out ``remedy``."""

    def reboot(self) -> None:
        """Ask for a reboot. Evidence that it happened is a changed boot id, never this call's return."""
