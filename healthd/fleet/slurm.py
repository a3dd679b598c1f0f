"""Reads the fleet of a Slurm cluster: every node with its summary, and the budget slots. Two requests, three with
racks; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, BackendUnknown
from healthd.core.hostlist import unfolded
from healthd.fleet.nodes import FleetPicture, FleetState, fleet_nodes
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, parse_nodes
from healthd.remediation.orchestrators.slurm.slots import parse_slots, slot_times

SILENT_AFTER = 2.5
"""Of heartbeats: one may be lost, and the next one late."""
_SWITCH = re.compile(r"SwitchName=(\S+) Level=0 .*? Nodes=(\S+)")
_BLOCK = re.compile(r"BlockName=(\S+) .*?Nodes=(\S+)")


def read_fleet(config: Config, host: str, clock: Callable[[], datetime], *, racks: bool = False) -> FleetPicture:
    """The fleet now. ``host``: a name for this machine, which need not be a node. ``racks``: with the leaf switch or
    block of each node, by Slurm's topology. Raises BackendError, ConfigError."""
    slurm = SlurmOrchestrator.of(config, host)
    nodes, reservations = slurm.listing()
    now = clock()
    listed = list(parse_nodes(nodes))
    if not listed:
        raise BackendUnknown("scontrol show nodes lists no node; see `scontrol ping`, and PrivateData in slurm.conf")
    if racks:
        of = dict(_racks(slurm))
        listed = [replace(each, group=of.get(each.name, "")) for each in listed]
    slots = parse_slots(reservations)
    silent_after_s = config.orchestrator.slurm.heartbeat_s * SILENT_AFTER
    found = fleet_nodes(listed, slots, slot_times(reservations), now, silent_after_s=silent_after_s)
    machines = sum(each.state is not FleetState.ASLEEP for each in found)
    return FleetPicture(
        cluster=_cluster(slurm),
        at=now,
        nodes=found,
        limit=out_limit(config.budget.max_out, machines),
        taken=len({each.node for each in slots}),
    )


def _cluster(slurm: SlurmOrchestrator) -> str:
    """The name of the cluster; "" where it cannot be read, which hides no node."""
    try:
        found = re.search(r"^ClusterName\s*=\s*(\S+)", slurm.scontrol("show", "config"), re.MULTILINE)
    except BackendError:
        return ""
    return found[1] if found else ""


def _racks(slurm: SlurmOrchestrator) -> Iterator[tuple[str, str]]:
    """Node to leaf switch (topology/tree) or block (topology/block, 23.11)."""
    for line in slurm.scontrol("-o", "show", "topology").splitlines():
        if found := _SWITCH.search(line) or _BLOCK.search(line):
            yield from ((name, found[1]) for name in unfolded(found[2]))
