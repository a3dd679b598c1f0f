"""The notices of open incidents that the controller leaves with the cluster. Pure.

A node reads them before it sends a message: what an incident has reported already, the node need not repeat. A notice
is a reason to say less and nothing else: no repair reads it, and it ends by itself where no controller renews it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

LASTS = timedelta(minutes=10)
"""How long a notice holds without being renewed: nodes send what they held so long after a controller died."""
DOMAIN_ROOT = "NVLink domain "
"""The beginning of the root of an incident of one NVLink domain."""
_FABRIC = ("gpu.fabric.", "gpu.imex.", "gpu.nvlink.", "gpu.nvswitch.")
"""Codes of the hardware of an NVLink domain: links, switches, fabric manager and IMEX (checks gpu.fabric, gpu.imex,
gpu.nvlink and gpu.nvswitch)."""
_MOUNT = "mount:"
_SHOWN = 48  # characters of a component that a summary of any version has; a blank in it is written as an underscore


class IncidentNotice(Struct, frozen=True, kw_only=True):
    """One open incident whose message the receivers have accepted. ``nodes``: those that it covers. ``critical``: it is
    more than a warning. ``until``: when the notice ends; None for one that is not shown yet."""

    id: str
    root: str
    began: datetime
    nodes: frozenset[str]
    critical: bool = False
    until: datetime | None = None

    def covers(self, node: str, code: str, component: str, *, critical: bool, now: datetime) -> bool:
        """Whether it says of this fault of this node all that a message of the node would say."""
        is_on = self.until is not None and now < self.until
        is_as_grave = self.critical or not critical
        return is_on and is_as_grave and node in self.nodes and of_root(self.root, code, component)


class IncidentNotices(Struct, frozen=True, kw_only=True):
    """All notices of a cluster as they were read. ``watched_until``: until when a controller looks for incidents and
    reports them; None where none does."""

    watched_until: datetime | None = None
    open: tuple[IncidentNotice, ...] = ()

    def is_watched(self, now: datetime) -> bool:
        """Whether a controller reports incidents now."""
        return self.watched_until is not None and now < self.watched_until

    def covering(self, node: str, code: str, component: str, *, critical: bool, now: datetime) -> IncidentNotice | None:
        """The incident that covers this fault of this node; None for none."""
        if not code:
            return None
        found = (each for each in self.open if each.covers(node, code, component, critical=critical, now=now))
        return next(found, None)


def root_of(code: str, component: str, domain: str) -> str:
    """The root that findings of one cause have in common: ``lustre mount:/fsx``, ``NVLink domain rack-7``, or the code.
    ``domain``: the NVLink domain of the node, or ""."""
    if component.startswith(_MOUNT):
        return f"{code.partition('.')[0]} {component}"
    return f"{DOMAIN_ROOT}{domain}" if domain and is_fabric(code) else code


def of_root(root: str, code: str, component: str) -> bool:
    """Whether a fault has this root, on a node that the incident of the root lists."""
    if root.startswith(DOMAIN_ROOT):
        return is_fabric(code)
    return _plain(root_of(code, component, "")) == _plain(root)


def is_fabric(code: str) -> bool:
    """Whether a finding is of the hardware of an NVLink domain."""
    return code.startswith(_FABRIC)


def _plain(root: str) -> str:
    head, mount, path = root.partition(f" {_MOUNT}")
    return f"{head}{mount}{path.replace('_', ' ')[: _SHOWN - len(_MOUNT)]}" if mount else root
