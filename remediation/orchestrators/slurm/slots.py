"""Reservations: a slot or a freeze is one of ours, a maintenance window is one of an administrator's. Text only.

Names of reservations are unique, so that slurmctld's own answer to a creation is the test-and-set. The reservation also
keeps new jobs off while running jobs continue, without touching the node's state, its reason, or any drain.

A reservation that is not ours may hold any text, line breaks in its comment included (Comment=, Slurm 23.02 and newer).
It neither hides nor adds a slot. A record of ours that cannot be read leaves the slots unknown.

Texts and behaviour: Slurm 22.05.8 with a real slurmctld; tests/live/slurm/test_slots.py repeats each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.hostlist import unfolded
from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.ports import Slot
from healthd.remediation.records.handoff import epoch_time

DUPLICATE = "Duplicate reservation name"
"""scontrol's text when the slot is taken."""

GONE = "Requested reservation is invalid"
"""scontrol's text when there is no reservation of this name to delete."""

_FLAGS = ("MAINT", "IGNORE_JOBS", "STATIC_ALLOC")
# Slurm adds SPEC_NODES because the node is named, and shows STATIC_ALLOC as STATIC.
_SHOWN = frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES", "STATIC"})
_USER = "root"

_SCOPE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"healthd-({_SCOPE})-(0|[1-9][0-9]{{0,5}})")
HEAD = "ReservationName="
_RECORDS = re.compile(rf"^(?={HEAD})", re.MULTILINE)
_RECORD = re.compile(
    r"ReservationName=(?P<name>.+?) StartTime=\S+ EndTime=\S+ Duration=\S+ Nodes=(?P<nodes>\S+) NodeCnt=\d+ .*?"
    r" Flags=(?P<flags>\S*) .*?Users=(?P<users>\S+) .*?State=(?P<state>\S+).*",
    re.DOTALL,
)
_START = re.compile(r" StartTime=(\d{1,11}) ")
_NONE = "No reservations in the system"


def slot_name(scope: str, index: int) -> str:
    """The reservation's name. Raises BackendRefused for a scope or an index that could not be read back from it."""
    name = f"healthd-{scope}-{index}"
    match = _NAME.fullmatch(name)
    if not match or (match[1], match[2]) != (scope, str(index)):
        expected = "a scope of letters, digits, '_', '.' and '-', and an index of at most six digits"
        raise BackendRefused(f"slot {name!r} not requested: expected {expected}")
    return name


def creation(name: str, node: str) -> tuple[str, ...]:
    """The arguments of scontrol that create a slot for ``node``. UNLIMITED is kept as 365 days."""
    times = ("starttime=now", "duration=UNLIMITED")
    return (
        "create",
        "reservation",
        f"reservationname={name}",
        f"nodes={node}",
        *times,
        f"users={_USER}",
        f"flags={','.join(_FLAGS)}",
    )


def parse_slots(answer: str) -> tuple[Slot, ...]:
    """The slots in the output of ``scontrol -o show reservation``.

    A reservation of such a name that healthd did not make (other flags, other users, several nodes) is a taken slot
    that no node holds: its ``node`` describes it. Raises BackendUnknown for a list of another form, and for a broken
    record whose name begins as ours do. A broken record of another name is skipped.
    """
    found = [_slot(record) for record in records(answer)]
    return tuple(slot for slot in found if slot is not None)


def slot_times(answer: str) -> dict[tuple[str, int], int]:
    """When each slot of ours was taken, in epoch seconds, by its scope and index. From the same list, with
    SLURM_TIME_FORMAT=%s; a slot whose time is not known is missing."""
    found = {}
    for record in records(answer):
        slot, began = _slot(record), _START.search(record)
        if slot is not None and began is not None:
            found[slot.scope, slot.index] = int(began[1])
    return found


def parse_maintenance(answer: str, node: str) -> str:
    """The names of the active maintenance reservations on ``node`` that are not healthd's, or "". From the same
    list."""
    windows = []
    for record in records(answer):
        read = _RECORD.fullmatch(record)
        if read is None or read["state"] != "ACTIVE" or "MAINT" not in read["flags"].split(","):
            continue
        slot = _slot(record)
        if (slot is None or slot.node != node) and node in unfolded(read["nodes"]):
            windows.append(read["name"])
    return ", ".join(windows)


FREEZE = "healthd-freeze:"
"""The beginning of the name of a freeze. It has no nodes, so that it keeps no job off; its name has the reason and the
user, because Comment= came with 23.02; slurmctld ends it by itself."""
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")
_END = re.compile(r" EndTime=(\d{1,11}) ")
_FREEZE_CHARACTERS = 80


def freeze_name(reason: str, by: str) -> str:
    """The name of a freeze: ``healthd-freeze:driver_rollout:alice``."""
    return f"{FREEZE}{_PLAIN.sub('_', reason)[:_FREEZE_CHARACTERS]}:{_PLAIN.sub('_', by)[:32]}"


def freeze_creation(name: str, minutes: int, *, units: int = 1) -> tuple[str, ...]:
    """The arguments of scontrol that create a freeze, or another text without nodes, from now on. A reservation must
    reserve something: ``units`` of a burst buffer, which nothing else of Slurm heeds where there is none."""
    times = ("starttime=now", f"duration={minutes}")
    return (
        "create",
        "reservation",
        f"reservationname={name}",
        *times,
        f"users={_USER}",
        "flags=ANY_NODES",
        f"burstbuffer={units}",
    )


def parse_freezes(answer: str) -> dict[str, Freeze]:
    """The freezes that are on, by the names of their reservations. From the list of the slots. Any
    reservation of such a name is one, whatever it reserves."""
    found = {}
    for name, until in ends_of(answer):
        if name.startswith(FREEZE):
            reason, _, by = name.removeprefix(FREEZE).partition(":")
            found[name] = Freeze(reason=reason.replace("_", " "), until=until, by=by)
    return found


def ends_of(answer: str) -> Iterator[tuple[str, datetime | None]]:
    """The name of each reservation that is on, and its end."""
    for record in records(answer):
        if " State=INACTIVE" not in record:
            end = _END.search(record)
            yield record.removeprefix(HEAD).partition(" StartTime=")[0], epoch_time(end[1]) if end else None


def records(answer: str) -> list[str]:
    """One text for each reservation. Only a line that begins as a record does begins one."""
    first, *records = _RECORDS.split(answer)
    if first.strip() not in ("", _NONE):
        raise BackendUnknown(f"scontrol show reservation: expected {HEAD}…, got {first[:200]!r}")
    return records


def _slot(record: str) -> Slot | None:
    read = _RECORD.fullmatch(record)
    if read is None:
        if record.startswith(f"{HEAD}healthd-"):
            problem = f"expected {HEAD}… Nodes=… Flags=… Users=… State=…, got {record[:200]!r}"
            raise BackendUnknown(f"scontrol show reservation: {problem}")
        return None
    name = _NAME.fullmatch(read["name"])
    if name is None:
        return None
    node, flags = read["nodes"], frozenset(read["flags"].split(","))
    is_plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", node) is not None
    if not is_plain or flags != _SHOWN or read["users"] != _USER:
        node = f"nodes {node}, flags {read['flags']}, users {read['users']}: not made by healthd"
    return Slot(scope=name[1], index=int(name[2]), node=node)
