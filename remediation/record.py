"""What of a case goes into the history of its node, which outlives the disk and the machine. Pure.

An entry is made when an act is begun, never when it is only decided on; an act that was written down and not begun
leaves none. What came of it is filled in when the case ends, or when the next act follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from healthd.model import Remedy, Step
from healthd.remediation.case import ORDERED, Case, End
from healthd.remediation.marks import (
    CLOSE,
    Answer,
    CaseMark,
    Helped,
    PastAct,
    PastRepair,
    parse,
    remembering,
    said_of,
    with_outcome,
    word,
)

ACTS: Mapping[Step, Remedy] = {
    Step.RESET: Remedy.RESET_GPU,
    Step.REBOOT: Remedy.REBOOT_NODE,
    Step.REPLACE: Remedy.REPLACE_NODE,
}
"""The steps that repair, and by what."""

PAST_OF: Mapping[Remedy, PastAct] = {
    Remedy.RESET_GPU: PastAct.RESET,
    Remedy.REBOOT_NODE: PastAct.REBOOT,
    Remedy.REPLACE_NODE: PastAct.REPLACE,
}
"""The words by which a history names the remedies."""


def begun(old: CaseMark, case: Case, remedy: Remedy, now: datetime) -> tuple[PastRepair, ...]:
    """The history of a node on which this case begins an act now."""
    return remembering(followed(old, case), PastRepair(act=PAST_OF[remedy], at=now, code=case.code or old.code))


def followed(old: CaseMark, case: Case) -> tuple[PastRepair, ...]:
    """The history before an act of this case: what the case did before for the same finding did not help."""
    newest = next((each for each in reversed(old.history) if each.act is not PastAct.RETURN), None)
    is_same = newest is not None and newest.code == (case.code or old.code)
    is_mine = old.case == case.id and is_begun(old)
    return with_outcome(old.history, Helped.FAILED) if is_mine and is_same else old.history


def is_begun(mark: CaseMark) -> bool:
    """Whether the act that a mark names was begun. A request to the controller is none until the controller has taken
    it, which it says by its answer and by its entry in the history; one that it refused without taking never was."""
    if mark.is_withdrawn:
        return False
    if not mark.asks or mark.answer is Answer.TAKEN or mark.remedy is None or mark.asked is None:
        return True
    return has_entry(mark, mark.remedy, mark.asked)


def has_entry(mark: CaseMark, remedy: Remedy, since: datetime) -> bool:
    """Whether a history says that this was begun then or later."""
    return any(each.act is PAST_OF[remedy] and each.at >= since - CLOSE for each in mark.history)


def with_act(there: CaseMark, remedy: Remedy, at: datetime, *, boot_id: str, after_silence: bool = False) -> CaseMark:
    """A record with the act that the controller begins at that moment, or began: then nothing is entered twice.

    ``boot_id``: the boot that a reboot is to end. ``after_silence``: the node did not come back from its last repair,
    which has not helped.
    """
    made = PastRepair(
        act=PAST_OF[remedy],
        at=at.replace(microsecond=0),
        code=there.code or (there.history[-1].code if there.history else ""),
    )
    is_entered = any((each.act, each.at) == (made.act, made.at) for each in there.history)
    past = with_outcome(there.history, Helped.FAILED) if after_silence and not is_entered else there.history
    return replace(
        there,
        history=past if is_entered else remembering(past, made),
        boot=word(boot_id) if remedy is Remedy.REBOOT_NODE else "",
        replaced=at if remedy is Remedy.REPLACE_NODE else there.replaced,
    )


def after(before: str, case: Case) -> str:
    """The mark of a node whose case has come to its end: it wants to be out no more, and what was done has helped or
    not. A node that came back without a repair for its last finding has returned; that is an entry as well. One that
    was given up stays out for its finding."""
    mark = parse(before) or CaseMark()
    is_given_up = case.end is End.FAILED
    over = (
        replace(mark, given_up=case.id)
        if is_given_up
        else replace(mark, given_up="", code="", since=None, watched=None)
    )
    return said_of(replace(over, history=_ended(mark, case)))


def _ended(mark: CaseMark, case: Case) -> tuple[PastRepair, ...]:
    history = mark.history
    if case.end is End.FAILED:
        return with_outcome(history, Helped.FAILED) if mark.case == case.id and is_begun(mark) else history
    if case.end is not End.RELEASED or case.forced:
        return history
    back, code = case.since.replace(microsecond=0), case.code or mark.code
    is_repaired = mark.case == case.id and is_begun(mark)
    told = with_outcome(history, Helped.HELPED, back) if is_repaired else history
    is_known = any(each.code == code and back in (each.at, each.back) for each in told)
    if is_known or case.settling or case.by_order or case.code in ORDERED:
        return told
    return remembering(told, PastRepair(act=PastAct.RETURN, at=back, code=code))
