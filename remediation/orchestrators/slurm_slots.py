"""Slots as Slurm keeps them: one maintenance reservation each, by the name ``healthd-<scope>-<index>``. Text only.

Names of reservations are unique, so that slurmctld's own answer to a creation is the test-and-set. The reservation also
keeps new jobs off while running ones go on, without touching the node's state, its reason, or anybody's drain.

Texts and behaviour: Slurm 22.05.8 with a real slurmctld; tests/integration/slurm/test_slots.py repeats each.
"""

from __future__ import annotations

import re

from healthd.errors import BackendRefused, BackendUnknown
from healthd.remediation.ports import Slot

DUPLICATE = "Duplicate reservation name"
"""What scontrol prints when the slot is taken."""

GONE = "Requested reservation is invalid"
"""What scontrol prints when there is no reservation of this name to delete."""

_FLAGS = ("MAINT", "IGNORE_JOBS", "STATIC_ALLOC")
# Slurm adds SPEC_NODES because the node is named, and shows STATIC_ALLOC as STATIC.
_SHOWN = frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES", "STATIC"})
_USER = "root"

_SCOPE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"healthd-({_SCOPE})-(0|[1-9][0-9]{{0,5}})")
_RECORD = re.compile(
    r"ReservationName=(?P<name>.+?) StartTime=\S+ EndTime=\S+ Duration=\S+ Nodes=(?P<nodes>\S+) NodeCnt=\d+ .*"
    r" Flags=(?P<flags>\S*) .*Users=(?P<users>\S+) .*"
)
_NONE = "No reservations in the system"


def slot_name(scope: str, index: int) -> str:
    """The reservation's name. Raises BackendRefused for a scope or an index that could not be read back from it."""
    name = f"healthd-{scope}-{index}"
    match = _NAME.fullmatch(name)
    if not match or (match[1], match[2]) != (scope, str(index)):
        expected = "a scope of letters, digits, '_', '.' and '-', and an index of at most six digits"
        raise BackendRefused(f"slot {name!r} not asked for: expected {expected}")
    return name


def creation(name: str, node: str) -> tuple[str, ...]:
    """What scontrol is told to create a slot for ``node``. UNLIMITED is kept as 365 days."""
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
    """The slots in what ``scontrol -o show reservation`` printed.

    A reservation of such a name that healthd would not have made so (other flags, other users, several nodes) is a
    taken slot that no node holds: its ``node`` says what it is. Raises BackendUnknown for a line of another form.
    """
    found = [_slot(line) for line in answer.splitlines() if line.strip() and line.strip() != _NONE]
    return tuple(slot for slot in found if slot is not None)


def _slot(line: str) -> Slot | None:
    record = _RECORD.fullmatch(line.rstrip())
    if record is None:
        problem = f"scontrol show reservation: expected ReservationName=… Nodes=… Flags=… Users=…, got {line[:200]!r}"
        raise BackendUnknown(problem)
    name = _NAME.fullmatch(record["name"])
    if name is None:
        return None
    node, flags = record["nodes"], frozenset(record["flags"].split(","))
    is_plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", node) is not None
    if not is_plain or flags != _SHOWN or record["users"] != _USER:
        node = f"nodes {node}, flags {record['flags']}, users {record['users']}: not made by healthd"
    return Slot(scope=name[1], index=int(name[2]), node=node)
