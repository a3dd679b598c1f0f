"""Acknowledged faults: the operator knows of the fault, and the node stays in service all the same.

Pure: it takes ``now`` as an argument. An acknowledgement ends with the fault, or at its own time; it survives a
restart, because it is kept with the fault. ``diagnose`` has its meaning for a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from healthd.judge.history import Fault, FaultKey, History


def acknowledge(history: History, keys: Iterable[FaultKey], until: datetime | None = None) -> History:
    """Acknowledge open faults, until ``until`` or until they end. The newest command counts, longer or shorter.

    Keys that are not open are ignored: there is nothing to acknowledge.
    """
    faults = dict(history.faults)
    for key in keys:
        if key in faults:
            faults[key] = replace(faults[key], acknowledged=True, acknowledged_until=until)
    return replace(history, faults=faults)


def expire(history: History, now: datetime) -> tuple[History, tuple[Fault, ...]]:
    """End the acknowledgements whose time is over, and return their faults as they were."""
    over = tuple(fault for fault in history.faults.values() if fault.acknowledged and _is_over(fault, now))
    if not over:
        return history, ()
    back = {fault.key: replace(fault, acknowledged=False, acknowledged_until=None) for fault in over}
    return replace(history, faults={**history.faults, **back}), over


def holds_as_long(fault: Fault, until: datetime) -> bool:
    """Whether a fault is acknowledged until then already, or for longer."""
    return fault.acknowledged and (fault.acknowledged_until is None or fault.acknowledged_until >= until)


def named(history: History, wanted: str) -> tuple[Fault, ...]:
    """The open faults that ``CODE`` or ``CODE@COMPONENT`` names; a component by any of its names."""
    code, _, where = wanted.partition("@")
    known = history.names.get(where)
    return tuple(
        fault
        for fault in history.faults.values()
        if fault.code == code and (not where or fault.component == known or where in fault.component.all_names())
    )


def in_words(fault: Fault) -> str:
    """``acknowledged until 2026-11-28 07:00 UTC``, or "" for a fault that is not acknowledged."""
    if not fault.acknowledged:
        return ""
    until = fault.acknowledged_until
    return f"acknowledged until {until:%Y-%m-%d %H:%M} UTC" if until else "acknowledged until it ends"


def _is_over(fault: Fault, now: datetime) -> bool:
    return fault.acknowledged_until is not None and fault.acknowledged_until <= now
