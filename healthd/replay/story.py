"""The story of each node in a replay: its events, its outages, its figures, and the faults open at the end of the log.

Nothing here decides. The figures are the longest silence, the most replacements at a time, and the faults that came
back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from healthd.core.model import REMEDY_RANK, REPAIRS, Action, Decision, Refusal, Remedy, Step
from healthd.judge.history import Change, Fault
from healthd.remediation.decide.remediation import End
from healthd.replay.machine import Act
from healthd.replay.remediations import Moved

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
NOTHING = Decision(action=Action.HOLD, reason="nothing calls for taking the node out")
_VARIES = re.compile(r"\(.*?\)|\b\d+ (?=nodes|machines|repairs)")
"""The part of a reason that may change while the decision stays: the number and names of nodes with the same fault."""


class StoryEntry(Struct, frozen=True, kw_only=True):
    """One entry of a node's story. ``kind``: found, ended, decided, done, back, or log ends."""

    at: datetime
    kind: str
    text: str
    code: str = ""
    component: str = ""
    severity: str = ""
    remedy: str = ""
    rule: str = ""


class Outage(Struct, frozen=True, kw_only=True):
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


class Quality(Struct, frozen=True, kw_only=True):
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


class Story(Struct, frozen=True, kw_only=True):
    """The story of one node. ``faults`` and ``decision``: the open faults at the end of the log, and the decision about
    them."""

    host: str
    happenings: tuple[StoryEntry, ...]
    outages: tuple[Outage, ...]
    decision: Decision
    faults: tuple[Fault, ...]
    quality: Quality

    @property
    def open_faults(self) -> tuple[str, ...]:
        """The open faults at the end of the log, in words."""
        return tuple(f"{fault.code} on {fault.component}" for fault in self.faults)


def of_change(change: Change, now: datetime) -> StoryEntry:
    """The event of a fault that opened or ended."""
    fault = change.fault
    return StoryEntry(
        at=fault.first if change.opened else now,
        kind="found" if change.opened else "ended",
        text=fault.message if change.opened else change.why,
        code=fault.code,
        component=str(fault.component),
        severity=fault.severity,
        remedy=fault.remedy,
    )


def of_decision(decision: Decision, now: datetime) -> StoryEntry:
    """The event of a decision, in the daemon's words."""
    message, about = decision.reason, decision.diagnosis
    return StoryEntry(
        at=now,
        kind="decided",
        text=message if message.startswith(decision.action) else f"{decision.action}: {message}",
        code=about.code if about else "",
        component=str(about.component) if about else "",
        rule=decision.rule,
    )


def of_move(moved: Moved, now: datetime) -> StoryEntry | None:
    """The event of a step that operators see; None for a slot, an intent or a wait."""
    before, remediation = moved.before, moved.remediation
    if before is None:
        return None
    has_ended = remediation.has_ended and not before.has_ended
    is_out = remediation.hold is not None and before.hold is None
    is_made = before.step in REPAIRS and remediation.step is not before.step and not has_ended
    is_next = remediation.ladder != before.ladder or moved.is_raised
    if not (has_ended or is_out or is_made or is_next):
        return None
    is_back = has_ended and before.step not in (Step.SLOT, Step.DRAIN) and remediation.end is not End.LOST
    return StoryEntry(
        at=now,
        kind="back" if is_back else "done",
        text=moved.message,
        code=remediation.code,
        component=remediation.component,
    )


class Silence(Struct, kw_only=True):
    """The longest time without a message while a node was out or critical, in seconds."""

    longest_s: float = 0.0
    _since: datetime | None = None

    def note(self, now: datetime, *, wrong: bool, reported: bool) -> None:
        """Note the state now. ``wrong``: the node is out, or critical; ``reported``: a message is sent now."""
        if self._since is not None:
            self.longest_s = max(self.longest_s, (now - self._since).total_seconds())
        if not wrong:
            self._since = None
        elif reported or self._since is None:
            self._since = now


def most_within(times: Sequence[datetime], window: timedelta) -> int:
    """The largest number of these, in order, within any such time."""
    most = first = 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


def flaps(returns: Sequence[tuple[datetime, str]], taken_out: Sequence[tuple[datetime, str]]) -> int:
    """How often a node that was back was taken out for the same code within a day. Both are (when, code)."""
    return sum(any(same == code and back <= at < back + DAY for at, same in taken_out) for back, code in returns)


class _Out(Struct, kw_only=True):
    """An outage that is not over. ``idle``: when its job ended; ``acts``: how many repairs began before it."""

    began: datetime
    action: Action
    code: str
    acts: int
    idle: datetime | None = None


class Account:
    """The account of one node."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._happenings: list[StoryEntry] = []
        self._outages: list[Outage] = []
        self._out: _Out | None = None
        self._silence, self._messages, self._raised = Silence(), 0, 0
        self._held: dict[str, None] = {}
        self._decided = ""
        self._end: tuple[Decision, tuple[Fault, ...]] = (NOTHING, ())

    # -- what happens -------------------------------------------------------------------------------------------------

    def changes(self, changes: Iterable[Change], now: datetime) -> None:
        """Faults that were found, or ended."""
        self._happenings += [of_change(change, now) for change in changes]

    def decision(self, decision: Decision, now: datetime) -> None:
        """Note a new decision. A node that is out for too long causes a message only."""
        if decision.refusal is Refusal.OVERDUE:
            return
        if decision.diagnosis is None and decision.action is not Action.PAGE:
            self._decided = ""  # the same decision about a fault that comes back is new
        elif (gist := _VARIES.sub("", decision.reason)) != self._decided:
            self._decided = gist
            self._happenings.append(of_decision(decision, now))

    def moves(self, moves: Sequence[Moved], now: datetime) -> None:
        """Note the steps of the remediation."""
        self._raised += sum(moved.is_raised for moved in moves)
        self._happenings += [entry for moved in moves if (entry := of_move(moved, now)) is not None]

    def holds(self, code: str) -> None:
        """Note that this code was held, because many nodes had it."""
        self._held[code] = None

    def note(self, now: datetime, kind: str, text: str) -> None:
        """Note an assumed event."""
        self._happenings.append(StoryEntry(at=now, kind=kind, text=text))

    def message(self, now: datetime, *, wrong: bool, reported: bool) -> None:
        """Note whether the node is out or critical, and whether a message is sent at this moment."""
        self._silence.note(now, wrong=wrong, reported=reported)
        self._messages += reported

    # -- out and back -------------------------------------------------------------------------------------------------

    def goes_out(self, now: datetime, action: Action, code: str, made: Sequence[Act]) -> None:
        """The node was drained."""
        self._out = _Out(began=now, action=action, code=code, acts=len(made))

    def is_idle(self, now: datetime) -> None:
        """Its job has ended."""
        if self._out is not None:
            self._out.idle = self._out.idle or now

    def comes_back(self, now: datetime, made: Sequence[Act]) -> None:
        """The node is in service again."""
        self._closed(now, now, made)
        self._decided = ""

    def _closed(self, now: datetime, ended: datetime | None, made: Sequence[Act]) -> None:
        if (out := self._out) is None:
            return
        self._out = None
        self._outages.append(
            Outage(
                began=out.began,
                ended=ended,
                out_s=(now - out.began).total_seconds(),
                waiting_s=((out.idle or now) - out.began).total_seconds(),
                action=out.action,
                code=out.code,
                remedies=tuple(act.remedy for act in made[out.acts :]),
            )
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def log_ends(self, now: datetime, decision: Decision, faults: tuple[Fault, ...], stands: str) -> None:
        """Note the open faults at the end of the log; ``stands``: the decision about them."""
        self._end = (decision, faults)
        if faults:
            listed = ", ".join(f"{fault.code} on {fault.component}" for fault in faults)
            self.note(now, "log ends", f"open: {listed}; decision: {stands}")

    def story(self, now: datetime, made: Sequence[Act]) -> Story:
        """The whole record. The outage of a node that is still out ends now."""
        self._closed(now, None, made)
        back = [(each.ended, each.code) for each in self._outages if each.ended is not None]
        decision, faults = self._end
        return Story(
            host=self._host,
            happenings=tuple(self._happenings),
            outages=tuple(self._outages),
            decision=decision,
            faults=faults,
            quality=Quality(
                longest_silence_s=self._silence.longest_s,
                messages=self._messages,
                flaps=flaps(back, [(each.began, each.code) for each in self._outages]),
                held_codes=tuple(self._held),
                raised=self._raised,
                replaced_at=tuple(act.at for act in made if act.remedy is Remedy.REPLACE_NODE),
            ),
        )
