"""The past of one node by itself, in the shape of the ledger: for the support case of a node that no ledger knows.

A node remembers what its disk has seen: after a replacement, what came since.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from healthd.api.timeline import SCHEMA
from healthd.config.schema.config import Config
from healthd.fleet.asking import ask_node
from healthd.fleet.inventories import machine_in
from healthd.fleet.node_detail import READS_HISTORY, NodeHistory, SeenRemediation
from healthd.ledger.entries import EntryKind, LedgerContents, LedgerEntry, MachineIdentity


def asked_contents(config: Config, node: str, now: datetime) -> LedgerContents:
    """The machine, its GPUs, faults and remediations, as the node says now over HTTP. Raises BackendUnknown."""
    machine = machine_in(ask_node(config, node, "/inventory"))
    return contents_of(machine, ask_node(config, node, "/history").document(READS_HISTORY, SCHEMA), now)


def contents_of(machine: MachineIdentity, history: NodeHistory, now: datetime) -> LedgerContents:
    """The entries of one node, oldest first, and the GPUs that it has now."""
    entries = (*_faults(machine, history), *(_repair(machine, history.node, each) for each in history.remediations))
    return LedgerContents(
        entries=tuple(sorted(entries, key=lambda each: each.at)),
        gpus=machine.sightings(history.node, now),
        machines={history.node: machine},
    )


def _faults(machine: MachineIdentity, history: NodeHistory) -> tuple[LedgerEntry, ...]:
    """An entry for each fault that began; one that began before the history is not in it."""
    found: dict[tuple[str, str], LedgerEntry] = {}
    over: list[LedgerEntry] = []
    for line in history.events:
        key = (line.data.code, line.data.component)
        if line.data.opened is True:
            gpu = machine.gpu_of(line.data.component)
            entry = machine.entry(EntryKind.FAULT, history.node, line.at, line.data.code)
            entry = replace(entry, component=line.data.component, critical=line.data.severity == "critical")
            found[key] = entry if gpu is None else replace(entry, gpu=gpu.uuid, serial=gpu.serial)
        elif line.data.opened is False and key in found:
            over.append(replace(found.pop(key), until=line.at))
    return (*over, *found.values())


def _repair(machine: MachineIdentity, node: str, remediation: SeenRemediation) -> LedgerEntry:
    kind = EntryKind.REPLACEMENT if remediation.remedy == "replace_node" else EntryKind.REPAIR
    entry = machine.entry(kind, node, remediation.opened, remediation.code)
    outcome = remediation.end or f"at {remediation.step}"
    return replace(entry, component=remediation.component, act=remediation.remedy, outcome=outcome)
