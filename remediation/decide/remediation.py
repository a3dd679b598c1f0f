"""A remediation: one node taken out for one diagnosis, from the first intent to the end, as plain data.

Pure. The store keeps it; the engine moves it; after a kill -9 it is all that is needed to go on. The reason text that
the cluster shows is made and read here: it names the remediation to the daemon that finds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Diagnosis, Mode, Refused, Remedy, Step
from healthd.judge.clock import moved
from healthd.remediation.decide.on_job import JobRestart
from healthd.remediation.ports import Hold
from healthd.remediation.records.handoff import (
    CLOSE,
    HandoffRecord,
    PastAct,
    PastRepair,
    RepairResult,
    RequestAnswer,
    parse,
    remembering,
    text_of_record,
    with_outcome,
    word,
)

PREFIX = "healthd: "
_TEXT = re.compile(rf"{PREFIX}(\S+) (\S.*) \[([0-9A-Za-z]+)\]")  # a mount may have spaces
QUARANTINE_CODE, REPAIR_CODE = ORDERED = "operator.quarantine", "operator.repair"
"""Stands instead of a finding's code where an operator's command began the remediation, whatever is found."""


class Phase(StrEnum):
    """Where the current step stands. INTENDED: written down, and so possibly done."""

    PLANNED = "planned"
    INTENDED = "intended"


class End(StrEnum):
    """How a remediation ended. Only RELEASED means that the node is back by our hand."""

    RELEASED = "released"
    ABANDONED = "abandoned"  # the fault was over before anything was done
    LOST = "lost"  # somebody else holds the node now: not touched again
    ACKNOWLEDGED = "acknowledged"  # an operator undid our drain: a command
    DONE = "done"  # the controller's: what it was asked for has happened
    FAILED = "failed"  # out of attempts: a person is paged, the node stays out and is watched until somebody acts


class Repair(Struct, frozen=True, kw_only=True):
    """One repair of a node: of what, by what, since when, and how it ended ("" where that is not known).

    ``component``: "" where it was another machine's, or the record alone tells of it.
    """

    code: str
    component: str
    remedy: Remedy
    began: datetime
    ended: datetime | None = None
    outcome: str = ""

    @property
    def at(self) -> datetime:
        """When it was over, or else begun: what a relapse is counted from."""
        return self.ended or self.began


class Approval(Struct, frozen=True, kw_only=True):
    """An approval that was asked for: of which act, for which fault, since when; and by whom it was given, None: not
    yet. ``why``: what asks for it, "" for the mode."""

    remedy: Remedy
    code: str
    component: str
    asked: datetime
    given: datetime | None = None
    by: str = ""
    why: str = ""

    def is_of(self, remediation: Remediation, remedy: Remedy) -> bool:
        """Whether it is of this act of a remediation."""
        return (self.remedy, self.code, self.component) == (remedy, remediation.code, remediation.component)


class Remediation(Struct, frozen=True, kw_only=True):
    """The state of one remediation.

    ``hold`` is the drain exactly as the cluster showed it after we made it: what a release must match. ``boot_id`` is
    that of the moment a repair was intended, ``machine`` the instance id then: evidence that a reboot or a replacement
    happened is another one. ``drain_boot_id`` is that of our drain, ``overwritten_boot_id`` that in which the cluster's
    controller wrote a text of its own over it. ``ladder``: the remedies to try in turn, the present one first;
    ``fenced``: it may hold a slot. ``settling``: drained in a hurry, before its slot had settled. ``attempts`` counts
    those of the present one. ``acts``: the remedies of all acts that were begun, oldest first; one that turned out not
    to be needed, or was refused, is none. ``earlier``: the repairs that it made for the faults that it was about before
    the present one. ``stopped``: services that a GPU reset stopped and owes a start. ``unanswered`` is when an undrain
    last got no answer, ``drain_unanswered`` the same of a drain. ``since`` is when the current step, or the current
    wait inside it, began. ``unproven``: of a drain that was found, what cannot be shown: that the fault it names is
    over, in the boot ``boot_id``. ``returns``: how often the node was released after the same finding, in the day
    before. ``command``: why, and in brackets by whom, the command was given; "" where the policy opened it.
    ``release_command``: the same of a command to release the node; ``forced_at``: when that was given, whatever was
    open then; None where the node has to be healthy. ``asks``: why it was opened to wait for an operator, whom it pages
    for as long as it is open; None where it repairs, or waits for the fault to end. ``adopted``: the cluster's
    controller made the drain by itself before ours; only a repair undoes it. ``approval``: the last that was asked for,
    or given. ``evidence``: the address of its bundle outside this machine, "" for none. ``job``: the restart of the job
    that its fault ended; None where none was looked for. ``denied``: its last attempt was not permitted, so that no
    other remedy follows.
    """

    id: str
    opened: datetime
    since: datetime
    mode: Mode
    code: str
    component: str
    remedy: Remedy
    why: str
    text: str
    steps: tuple[Step, ...]
    index: int = 0
    phase: Phase = Phase.PLANNED
    hold: Hold | None = None
    controller: str = ""
    drain_boot_id: str = ""
    overwritten_boot_id: str = ""
    boot_id: str = ""
    fenced: bool = False
    settling: bool = False
    machine: str = ""
    ladder: tuple[Remedy, ...] = ()
    stopped: tuple[str, ...] = ()
    attempts: int = 0
    acts: tuple[Remedy, ...] = ()
    earlier: tuple[Repair, ...] = ()
    good_since: datetime | None = None
    unanswered: datetime | None = None
    drain_unanswered: datetime | None = None
    end: End | None = None
    note: str = ""
    unproven: str = ""
    returns: int = 0
    command: str = ""
    release_command: str = ""
    forced_at: datetime | None = None
    asks: Refused | None = None
    adopted: bool = False
    approval: Approval | None = None
    evidence: str = ""
    job: JobRestart | None = None
    denied: bool = False

    @property
    def by_command(self) -> bool:
        """Whether what is left of it is an operator's command, for which no mode is too low."""
        return bool(self.command or self.release_command)

    @property
    def forced(self) -> bool:
        """Whether it is released whatever is open on the node."""
        return self.forced_at is not None

    @property
    def step(self) -> Step:
        """The step that the remediation stands at."""
        return self.steps[self.index]

    @property
    def is_open(self) -> bool:
        """Whether the engine still has to look after it: a node that was given up is out by our drain all the same, and
        one whose slot was not given back is kept off jobs."""
        return not self.has_ended or self.fenced

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is done for it than to give its slot back. One that was given up is still watched."""
        return self.end not in (None, End.FAILED)


def ended_last(remediation: Remediation, before: Remediation | None) -> Remediation | None:
    """Of a remediation and the one that ended before it, the last whose end says what became of the node."""
    took_nothing_out = remediation.end is End.ABANDONED and remediation.hold is None
    return remediation if remediation.has_ended and not remediation.fenced and not took_nothing_out else before


def shifted(remediation: Remediation, by: timedelta, now: datetime) -> Remediation:
    """The remediation after the clock was set by ``by``: what it waits for it waits for as long as before."""
    return replace(
        remediation,
        opened=moved(remediation.opened, by, now),
        since=moved(remediation.since, by, now),
        good_since=remediation.good_since and moved(remediation.good_since, by, now),
        unanswered=remediation.unanswered and moved(remediation.unanswered, by, now),
        drain_unanswered=remediation.drain_unanswered and moved(remediation.drain_unanswered, by, now),
        approval=remediation.approval
        and replace(remediation.approval, asked=moved(remediation.approval.asked, by, now)),
        job=remediation.job and remediation.job.shifted(by, now),
        forced_at=remediation.forced_at and moved(remediation.forced_at, by, now),
    )


def reason_text(diagnosis: Diagnosis, remediation_id: str) -> str:
    """The visible text of a remediation for this diagnosis."""
    return visible_text(diagnosis.code, str(diagnosis.component), remediation_id)


def visible_text(code: str, component: str, remediation_id: str) -> str:
    """The reason that the cluster shows: ``healthd: gpu.xid.79 gpu:GPU-… [id]``. One printable line, no ``|``: Slurm
    keeps all of them, readers trip.

    Slurm stores a reason unescaped, puts its own stamp behind the *first* line, and separates sinfo columns by what we
    choose (facts: Slurm 22.05.8, measured).
    """
    words = f"{PREFIX}{code} {component} [{remediation_id}]"
    return " ".join("".join(c if c.isprintable() else " " for c in words.replace("|", "/")).split())


def parse_reason(text: str) -> tuple[str, str, str] | None:
    """Code, component and remediation id that the visible text of a healthd names; None for any other text."""
    words = _TEXT.fullmatch(text)
    return (words[1], words[2], words[3]) if words else None


def code_of(text: str) -> str:
    """The finding that a visible text of a healthd names, or ""."""
    fields = parse_reason(text)
    return fields[0] if fields else ""


def remediation_id_of(text: str) -> str:
    """The id of the remediation that a visible text of a healthd names, or ""."""
    fields = parse_reason(text)
    return fields[2] if fields else ""


def is_our_text(text: str) -> bool:
    """Whether a reason is written as ours. It is a hint for an operator, never proof of ownership: every user can write
    it."""
    return text.startswith(PREFIX)


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


def begun(
    old: HandoffRecord, remediation: Remediation, remedy: Remedy, now: datetime, revision: str = ""
) -> tuple[PastRepair, ...]:
    """The history of a node on which this remediation begins an act now. ``revision``: see ``canary``."""
    entry = PastRepair(act=PAST_OF[remedy], at=now, code=remediation.code or old.code, revision=revision)
    return remembering(followed(old, remediation), entry)


def followed(old: HandoffRecord, remediation: Remediation) -> tuple[PastRepair, ...]:
    """The history before an act of this remediation: what the remediation did before for the same finding did not
    help."""
    newest = next((each for each in reversed(old.history) if each.act is not PastAct.RETURN), None)
    is_same = newest is not None and newest.code == (remediation.code or old.code)
    is_mine = old.remediation_id == remediation.id and is_begun(old)
    return with_outcome(old.history, RepairResult.FAILED) if is_mine and is_same else old.history


def is_begun(record: HandoffRecord) -> bool:
    """Whether the act that a record names was begun. A request to the controller is none until the controller has taken
    it, which it says by its answer and by its entry in the history; one that it refused without taking never was."""
    if record.is_withdrawn:
        return False
    if not record.asks or record.answer is RequestAnswer.TAKEN or record.remedy is None or record.asked is None:
        return True
    return has_entry(record, record.remedy, record.asked)


def has_entry(record: HandoffRecord, remedy: Remedy, since: datetime) -> bool:
    """Whether a history says that this was begun then or later."""
    return any(each.act is PAST_OF[remedy] and each.at >= since - CLOSE for each in record.history)


def with_act(
    there: HandoffRecord, remedy: Remedy, at: datetime, *, boot_id: str, after_silence: bool = False
) -> HandoffRecord:
    """A record with the act that the controller begins at that moment, or began: then nothing is entered twice.

    ``boot_id``: the boot that a reboot is to end. ``after_silence``: the node did not come back from its last repair,
    which has not helped.
    """
    made = PastRepair(
        act=PAST_OF[remedy],
        at=at.replace(microsecond=0),
        code=there.code or (there.history[-1].code if there.history else ""),
        revision=there.revision,
    )
    is_entered = any((each.act, each.at) == (made.act, made.at) for each in there.history)
    past = with_outcome(there.history, RepairResult.FAILED) if after_silence and not is_entered else there.history
    return replace(
        there,
        history=past if is_entered else remembering(past, made),
        boot=word(boot_id) if remedy is Remedy.REBOOT_NODE else "",
        replaced=at if remedy is Remedy.REPLACE_NODE else there.replaced,
    )


def after(before: str, remediation: Remediation) -> str:
    """The record of a node whose remediation has ended: it wants to be out no more, and what was done has helped or
    not. A node that came back without a repair for its last finding has returned; that is an entry as well. One that
    was given up stays out for its finding."""
    record = parse(before) or HandoffRecord()
    is_given_up = remediation.end is End.FAILED
    over = (
        replace(record, given_up=remediation.id)
        if is_given_up
        else replace(record, given_up="", code="", since=None, watched=None)
    )
    return text_of_record(replace(over, history=_ended(record, remediation)))


def _ended(record: HandoffRecord, remediation: Remediation) -> tuple[PastRepair, ...]:
    history = record.history
    if remediation.end is End.FAILED:
        return (
            with_outcome(history, RepairResult.FAILED)
            if record.remediation_id == remediation.id and is_begun(record)
            else history
        )
    if remediation.end is not End.RELEASED or remediation.forced:
        return history
    back, code = remediation.since.replace(microsecond=0), remediation.code or record.code
    is_repaired = record.remediation_id == remediation.id and is_begun(record)
    kept = with_outcome(history, RepairResult.HELPED, back) if is_repaired else history
    is_known = any(each.code == code and back in (each.at, each.back) for each in kept)
    if is_known or remediation.settling or remediation.by_command or remediation.code in ORDERED:
        return kept
    return remembering(kept, PastRepair(act=PastAct.RETURN, at=back, code=code))
