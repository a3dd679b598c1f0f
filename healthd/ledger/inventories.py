"""Asks nodes for their inventories over HTTP, side by side, each within one short deadline."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from http.client import HTTPException
from typing import Annotated

import msgspec

from healthd.ledger.changes import NodeReading, SeenFault, with_inventory
from healthd.ledger.entries import LedgerGpu, MachineIdentity

_TIMEOUT_S = 3.0
_AT_ONCE = 16
_MOST_BYTES = 256 * 1024


class _InventoryGpu(msgspec.Struct, frozen=True):
    uuid: str
    serial: str = ""
    index: str = ""


class _InventoryFault(msgspec.Struct, frozen=True):
    code: str
    component: str
    severity: str
    since: Annotated[datetime, msgspec.Meta(tz=True)]


class _Inventory(msgspec.Struct, frozen=True):
    node: str
    instance: str = ""
    instance_type: str = ""
    image: str = ""
    driver: str = ""
    gpus: tuple[_InventoryGpu, ...] = ()
    faults: tuple[_InventoryFault, ...] = ()


_READS = msgspec.json.Decoder(_Inventory)


def completed_readings(url: str, readings: Sequence[NodeReading]) -> dict[str, NodeReading]:
    """The readings whose node answered under its own name, completed by its inventory. ``url``: with ``{node}``; "":
    none is asked."""
    if not url or not readings:
        return {}
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(readings))) as pool:
        answers = pool.map(lambda each: _read(url.replace("{node}", each.node)), readings)
        return {
            each.node: _completed(each, answer)
            for each, answer in zip(readings, answers, strict=True)
            if answer is not None and answer.node == each.node
        }


def _completed(reading: NodeReading, answer: _Inventory) -> NodeReading:
    machine = MachineIdentity(
        instance=answer.instance,
        instance_type=answer.instance_type,
        image=answer.image,
        driver=answer.driver,
        gpus=tuple(LedgerGpu(uuid=each.uuid, serial=each.serial, index=each.index) for each in answer.gpus),
    )
    faults = tuple(
        SeenFault(code=each.code, component=each.component, since=each.since, critical=each.severity == "critical")
        for each in answer.faults
    )
    return with_inventory(reading, machine, faults)


def _read(url: str) -> _Inventory | None:
    """The answer, or None: a node that does not answer is asked again later, and its GPUs stay unknown until then."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            return _READS.decode(answer.read(_MOST_BYTES))
    except (OSError, ValueError, HTTPException, msgspec.MsgspecError):
        return None
