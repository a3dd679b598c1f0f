"""Reads the fleet of a Slurm cluster: every node with its summary, and the budget slots. Three requests side by side
(nodes, reservations, the configuration), four with racks; nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from msgspec.structs import replace

from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, BackendRefused, BackendUnknown
from healthd.core.hostlist import unfolded
from healthd.core.model import CLUSTER
from healthd.fleet.nodes import FleetPicture, FleetState, fleet_nodes
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.decide.freeze import in_words
from healthd.remediation.orchestrators.slurm.incident_reservations import parse_fences
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, parse_nodes
from healthd.remediation.orchestrators.slurm.slots import parse_freezes, parse_slots, slot_times
from healthd.remediation.records.summary import SILENT_AFTER

_REQUESTS = 4
_SETTING = re.compile(r"^(\w+)\s*=\s*(\S+)", re.MULTILINE)
_SWITCH = re.compile(r"SwitchName=(\S+) Level=0 .*? Nodes=(\S+)")
_BLOCK = re.compile(r"BlockName=(\S+) .*?Nodes=(\S+)")


def read_fleet(config: Config, host: str, clock: Callable[[], datetime], *, racks: bool = False) -> FleetPicture:
    """The fleet now. ``host``: a name for this machine, which need not be a node. ``racks``: with the leaf switch or
    block of each node, by Slurm's topology. Raises BackendError, ConfigError."""
    slurm = SlurmOrchestrator.of(config, host)
    with ThreadPoolExecutor(max_workers=_REQUESTS) as pool:
        asked = pool.submit(slurm.all_nodes), pool.submit(slurm.reservations)
        configured = pool.submit(_settings, slurm)
        topology = pool.submit(_racks, slurm) if racks else None
    nodes, reservations = (each.result() for each in asked)
    now, settings = clock(), configured.result()
    listed = list(parse_nodes(nodes))
    if not listed:
        raise BackendUnknown("scontrol show nodes lists no node; see `scontrol ping`, and PrivateData in slurm.conf")
    if topology is not None:
        of = topology.result()
        listed = [replace(each, group=of.get(each.name, "")) for each in listed]
    if "reservations" in settings.get("PrivateData", "") and os.geteuid() != 0:
        raise BackendRefused("PrivateData in slurm.conf hides reservations, and so the budget slots: run it as root")
    slots = parse_slots(reservations)
    silent_after_s = config.orchestrator.slurm.heartbeat_s * SILENT_AFTER
    fences = parse_fences(reservations)
    found = fleet_nodes(listed, slots, slot_times(reservations), now, silent_after_s=silent_after_s, fences=fences)
    machines = sum(each.state is not FleetState.ASLEEP for each in found)
    return FleetPicture(
        cluster=settings.get("ClusterName", ""),
        at=now,
        nodes=found,
        limit=out_limit(config.budget.max_out, machines),
        freeze=in_words(parse_freezes(reservations).values()),
        taken=len({each.index for each in slots if each.scope == CLUSTER}),
        fences=fences,
    )


def _settings(slurm: SlurmOrchestrator) -> dict[str, str]:
    """The settings of slurmctld; none where they cannot be read, which hides no node."""
    try:
        return dict(_SETTING.findall(slurm.scontrol("show", "config")))
    except BackendError:
        return {}


def _racks(slurm: SlurmOrchestrator) -> dict[str, str]:
    """Node to leaf switch (topology/tree) or block (topology/block, 23.11); none where that cannot be read."""
    try:
        lines = slurm.scontrol("-o", "show", "topology").splitlines()
    except BackendError:
        return {}
    found = filter(None, (_SWITCH.search(line) or _BLOCK.search(line) for line in lines))
    return {name: each[1] for each in found for name in unfolded(each[2])}
