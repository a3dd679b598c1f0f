"""The readings of the ledger, completed by the inventories of the nodes that answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from healthd.core.errors import BackendUnknown
from healthd.fleet.asking import NodeAnswer, NodeDocument, ask_nodes
from healthd.ledger.changes import NodeReading, SeenFault, with_inventory
from healthd.ledger.entries import LedgerGpu, MachineIdentity

_SCHEMA = "healthd.inventory/v1"
_MOST_GPUS, _MOST_FAULTS = 64, 8_192
"""Of one node. An inventory with more is none: while a daemon is down any user of its node may answer in its place, and
each GPU and each fault is a row that the ledger keeps for years."""
_Name = Annotated[str, msgspec.Meta(max_length=256)]
_TIMEOUT_S = 3.0  # no check runs for an inventory


class _InventoryGpu(msgspec.Struct, frozen=True):
    uuid: _Name
    serial: _Name = ""
    index: _Name = ""


class _InventoryFault(msgspec.Struct, frozen=True):
    code: _Name
    component: _Name
    severity: str
    since: Annotated[datetime, msgspec.Meta(tz=True)]


class _Inventory(NodeDocument, frozen=True, kw_only=True):
    instance: _Name = ""
    instance_type: _Name = ""
    image: _Name = ""
    driver: _Name = ""
    gpus: Annotated[tuple[_InventoryGpu, ...], msgspec.Meta(max_length=_MOST_GPUS)] = ()
    faults: Annotated[tuple[_InventoryFault, ...], msgspec.Meta(max_length=_MOST_FAULTS)] = ()


_READS_INVENTORY = msgspec.json.Decoder(_Inventory)


def completed_readings(url: str, readings: Sequence[NodeReading]) -> dict[str, NodeReading]:
    """The readings whose node answered under its own name, completed by its inventory. ``url``: with ``{node}``; "":
    none is asked."""
    if not url:
        return {}
    answers = ask_nodes(url, [each.node for each in readings], timeout_s=_TIMEOUT_S)
    return {
        each.node: _completed(each, inventory) for each in readings for inventory in _inventories(answers[each.node])
    }


def machine_in(answer: NodeAnswer) -> MachineIdentity:
    """The machine that answered with its inventory. Raises BackendUnknown where there is none."""
    return _machine(answer.document(_READS_INVENTORY, _SCHEMA))


def _machine(answer: _Inventory) -> MachineIdentity:
    return MachineIdentity(
        instance=answer.instance,
        instance_type=answer.instance_type,
        image=answer.image,
        driver=answer.driver,
        gpus=tuple(LedgerGpu(uuid=each.uuid, serial=each.serial, index=each.index) for each in answer.gpus),
    )


def _completed(reading: NodeReading, answer: _Inventory) -> NodeReading:
    faults = tuple(
        SeenFault(code=each.code, component=each.component, since=each.since, critical=each.severity == "critical")
        for each in answer.faults
    )
    return with_inventory(reading, _machine(answer), faults)


def _inventories(answer: NodeAnswer) -> Iterator[_Inventory]:
    """The inventory, or none: a node that does not answer is asked again later, and its GPUs stay unknown until
    then."""
    try:
        yield answer.document(_READS_INVENTORY, _SCHEMA)
    except BackendUnknown:
        return
