"""What a daemon without a memory makes of what another left with the cluster under its node's name. Pure.

A replaced machine begins with an empty store, and so does one whose database was set aside. The place in the budget is
kept under the node's name by the cluster, the reason names the case, the mark says what was replaced: that is evidence,
never permission. A successor takes nothing further; it proves that the node is well, releases it, gives the place back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from healthd.model import Mode, Remedy, Step
from healthd.remediation.case import PREFIX, Case, End
from healthd.remediation.fleet import REPLACED
from healthd.remediation.playbook import QUARANTINE, REPLACE, without_drain
from healthd.remediation.ports import NodeView, Slot

_TEXT = re.compile(rf"{PREFIX}(\S+) (\S+) \[([0-9A-Za-z]+)\]")
_MARK = re.compile(r"healthd case=([0-9A-Za-z]+) machine=(\S+) ")
_NO_CASE = "without-a-case"


def replacement_mark(case: Case, now: datetime) -> str:
    """What is left with the node before its machine is given away."""
    return f"healthd case={case.id} machine={case.machine} {REPLACED}={int(now.timestamp())}"


def code_of(text: str) -> str:
    """The finding that a reason of a healthd names, or ""."""
    words = _TEXT.fullmatch(text)
    return words[1] if words else ""


def found_case(
    view: NodeView,
    own: Sequence[Slot],
    mark: str,
    *,
    platform_texts: Collection[str],
    mode: Mode,
    boot_id: str,
    now: datetime,
) -> Case | None:
    """The case to go on with, or None where nothing of ours is there.

    Without a place of ours nothing is: a text alone anybody can write. With a place and somebody else's drain, or none,
    only the place is left, and is given back.
    """
    if not own:
        return None
    words = _TEXT.fullmatch(view.hold.text) if view.hold else None
    given = _MARK.match(mark)
    if words is None and given is not None and (view.hold is None or view.hold.text in platform_texts):
        return _follows(given[1], given[2], without_drain(REPLACE), mode, now)
    if words is None:
        return _case(_NO_CASE, mode, now, why="only a slot was left", steps=QUARANTINE, end=End.ABANDONED)
    code, component, case_id = words.groups()
    if given is not None and given[1] == case_id:
        case = _follows(case_id, given[2], REPLACE, mode, now)
    else:
        why = "our drain was found, and no case of it in the store"
        case = _case(case_id, mode, now, why=why, steps=QUARANTINE)
        case = replace(case, index=QUARANTINE.index(Step.VERIFY), drain_boot_id=boot_id)
    text = view.hold.text if view.hold else ""
    return replace(case, code=code, component=component, hold=view.hold, text=text, controller=view.controller)


def _follows(case_id: str, machine: str, steps: tuple[Step, ...], mode: Mode, now: datetime) -> Case:
    why = f"this machine follows {machine} under the same name"
    case = _case(case_id, mode, now, why=why, steps=steps)
    return replace(case, index=steps.index(Step.VERIFY), machine=machine, attempts=1)


def _case(
    case_id: str, mode: Mode, now: datetime, *, why: str, steps: tuple[Step, ...], end: End | None = None
) -> Case:
    """A case of which nothing is known but that it was there."""
    return Case(
        id=case_id,
        opened=now,
        since=now,
        mode=mode,
        code="",
        component="",
        remedy=Remedy.NONE,
        why=why,
        text="",
        steps=steps,
        fenced=True,
        end=end,
        note=why,
    )
