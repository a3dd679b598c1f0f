"""The record of one node during a replay: its story, its outages, and its longest time without a message.

It decides nothing, and reads nothing but its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from healthd.core.model import Action, Decision, Refusal, Remedy
from healthd.judge.history import Change, Fault
from healthd.replay.figures import Silence, flaps
from healthd.replay.machine import Act
from healthd.replay.remediations import Moved
from healthd.replay.story import Happening, Outage, Quality, Story, of_change, of_decision, of_move

_VARIES = re.compile(r"\(.*?\)|\b\d+ (?=nodes|machines|repairs)")
"""The part of a reason that may change while the decision stays: the number and names of nodes with the same fault."""
NOTHING = Decision(action=Action.HOLD, reason="nothing calls for taking the node out")


@dataclass(kw_only=True)
class _Out:
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
        self._happenings: list[Happening] = []
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
        self._happenings += [told for moved in moves if (told := of_move(moved, now)) is not None]

    def holds(self, code: str) -> None:
        """Note that this code was held, because many nodes had it."""
        self._held[code] = None

    def note(self, now: datetime, kind: str, text: str) -> None:
        """Note an assumed event."""
        self._happenings.append(Happening(at=now, kind=kind, text=text))

    def message(self, now: datetime, *, wrong: bool, told: bool) -> None:
        """Note whether the node is out or critical, and whether a message is sent at this moment."""
        self._silence.note(now, wrong=wrong, told=told)
        self._messages += told

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
