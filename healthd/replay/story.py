"""The story of each node in a replay: its events, its outages, and the faults that are open at the end of the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from healthd.core.model import REMEDY_RANK, Action, Decision, Remedy, Step
from healthd.judge.history import Change, Fault
from healthd.remediation.decide.remediation import End
from healthd.remediation.decide.rules import REPAIRS
from healthd.replay.remediations import Moved


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
    """An outage of a node: its code, its repairs, and the part of it that waits for the end of the job. ``ended`` None:
    the replay ends before the node is back; ``out_s`` counts until then.
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
    """The quality of healthd's decisions on one node. ``longest_silence_s``: the longest time out or critical without a
    message, in seconds. ``flaps``: returns after which the same code came back within a day. ``held_codes``: codes that
    were held, because many nodes had them. ``raised``: remediations that a more serious fault raised. ``replaced_at``:
    when machines were replaced.
    """

    longest_silence_s: float
    messages: int
    flaps: int
    held_codes: tuple[str, ...]
    raised: int
    replaced_at: tuple[datetime, ...]


@dataclass(frozen=True, kw_only=True)
class Story:
    """The story of one node. ``faults`` and ``decision``: the open faults at the end of the log, and the decision about
    them."""

    host: str
    happenings: tuple[Happening, ...]
    outages: tuple[Outage, ...]
    decision: Decision
    faults: tuple[Fault, ...]
    quality: Quality

    @property
    def open_faults(self) -> tuple[str, ...]:
        """The open faults at the end of the log, in words."""
        return tuple(f"{fault.code} on {fault.component}" for fault in self.faults)


def of_change(change: Change, now: datetime) -> Happening:
    """The event of a fault that opened or ended."""
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
    """The event of a decision, in the daemon's words."""
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
    """The event of a step that operators see; None for a slot, an intent or a wait."""
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
