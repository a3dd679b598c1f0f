"""What a replay says of each node: what happened when, how long it was out, and what is open where the log ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from healthd.core.model import REMEDY_RANK, Action, Decision, Remedy, Step
from healthd.judge.history import Change, Fault
from healthd.remediation.decide.remediation import End
from healthd.remediation.decide.rules import REPAIRS
from healthd.replay.cases import Moved


@dataclass(frozen=True, kw_only=True, slots=True)
class Happening:
    """One entry of a node's story. ``kind``: found, ended, decided, done, back, or log ends."""

    at: datetime
    kind: str
    text: str
    code: str = ""
    component: str = ""
    severity: str = ""
    remedy: str = ""
    rule: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A time that a node would have been out: for which code, with which repairs, and how much of it is waiting for its
    job to end. ``ended`` None: the replay ends before the node is back; ``out_s`` counts until then.
    """

    began: datetime
    ended: datetime | None
    out_s: float
    waiting_s: float
    action: Action
    code: str
    remedies: tuple[Remedy, ...]

    @property
    def remedy(self) -> Remedy | None:
        """The most far-reaching repair; None without one."""
        return max(self.remedies, key=REMEDY_RANK.__getitem__, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What a replay says of its own conduct on one node. ``longest_silence_s``: out or critical without a message, in
    seconds. ``flaps``: returns after which the same code came back within a day. ``held_codes``: held, because many
    nodes had the same. ``raised``: cases that a more serious fault took over. ``replaced_at``: when machines were given
    away.
    """

    longest_silence_s: float
    messages: int
    flaps: int
    held_codes: tuple[str, ...]
    raised: int
    replaced_at: tuple[datetime, ...]


@dataclass(frozen=True, kw_only=True)
class Story:
    """What came of one node. ``faults`` and ``decision``: what is open where the log ends, and what is decided then."""

    host: str
    happenings: tuple[Happening, ...]
    outages: tuple[Outage, ...]
    decision: Decision
    faults: tuple[Fault, ...]
    quality: Quality

    @property
    def open_faults(self) -> tuple[str, ...]:
        """What is open where the log ends, in words."""
        return tuple(f"{fault.code} on {fault.component}" for fault in self.faults)


def of_change(change: Change, now: datetime) -> Happening:
    """A fault that was found, or ended."""
    fault = change.fault
    return Happening(
        at=fault.first if change.opened else now,
        kind="found" if change.opened else "ended",
        text=fault.message if change.opened else change.why,
        code=fault.code,
        component=str(fault.component),
        severity=fault.severity,
        remedy=fault.remedy,
    )


def of_decision(decision: Decision, now: datetime) -> Happening:
    """What was decided, in the daemon's words."""
    words, about = decision.reason, decision.diagnosis
    return Happening(
        at=now,
        kind="decided",
        text=words if words.startswith(decision.action) else f"{decision.action}: {words}",
        code=about.code if about else "",
        component=str(about.component) if about else "",
        rule=decision.rule,
    )


def of_move(moved: Moved, now: datetime) -> Happening | None:
    """What a case did that people see; None for what leads there: a place in the budget, an intent, a wait."""
    before, case = moved.before, moved.case
    if before is None:
        return None
    has_ended = case.has_ended and not before.has_ended
    is_out = case.hold is not None and before.hold is None
    is_made = before.step in REPAIRS and case.step is not before.step and not has_ended
    is_next = case.ladder != before.ladder or moved.is_raised
    if not (has_ended or is_out or is_made or is_next):
        return None
    is_back = has_ended and before.step not in (Step.SLOT, Step.DRAIN) and case.end is not End.LOST
    return Happening(
        at=now, kind="back" if is_back else "done", text=moved.said, code=case.code, component=case.component
    )
