"""Nodes that healthd holds and whose own daemon has said nothing for hours: crashed, not started, or without a disk.

Only a node's own daemon knows whether the node is overdue, and pages. So a daemon that holds its node says in the
handoff record that it watches over it: with the finding, once it has a slot, and every WATCH_S from then on. Where that
word stays out for SILENT_S, another daemon pages: ``healthd controller``, or the first agent in service. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from healthd.remediation.decide.paging import OUT_BY_COMMAND_S
from healthd.remediation.decide.remediation import QUARANTINE_CODE, code_of, remediation_id_of
from healthd.remediation.ports import FleetSnapshot, HeldNode, Slot
from healthd.remediation.records.handoff import HandoffRecord, is_ahead, parse

WATCH_S = 7_200.0
"""How often a daemon that holds its node says in the record that it watches over it, in seconds."""
SILENT_S = 2 * WATCH_S + 900.0
"""After how many seconds without that word another daemon pages: one word may get lost, with the state of a slurmctld
that was killed for example, and each comes some minutes late."""


class HeldOut(Struct, frozen=True, kw_only=True):
    """A node that healthd holds, as another daemon sees it. ``text``: of its drain, or which slot holds it where there
    is no drain of healthd's. ``since``: when the cluster says that it was drained. ``watched``: when its own daemon
    said last that it watches over it, by that node's clock. ``found``: when the finding of its record began."""

    node: str
    text: str
    code: str = ""
    remediation_id: str = ""
    since: datetime | None = None
    watched: datetime | None = None
    found: datetime | None = None

    @property
    def seen(self) -> str:
        """Changes with each word of its daemon, and with what the node is out for: another daemon counts from the last
        change. A text that the cluster writes over the drain meanwhile is none."""
        return f"{self.node} {self.found} {self.watched}"

    def is_silent(self, now: datetime, overdue_s: float) -> bool:
        """Whether the times that the cluster and the record show are old enough to page. A time ahead is no time. A
        slot has none: the node was held by it when its daemon said so last."""
        since = self.since or self.watched
        if since is None or is_ahead(self.watched, now):
            return False
        is_out_long = now - since >= timedelta(seconds=self.bound_s(overdue_s))
        return is_out_long and now - max(since, self.watched or since) >= timedelta(seconds=SILENT_S)

    def bound_s(self, overdue_s: float) -> float:
        """How long the node may be out before that pages: its operator knows of a command for a day, where a drain
        shows when it was given."""
        by_command = self.code == QUARANTINE_CODE and self.since is not None
        return OUT_BY_COMMAND_S if by_command else max(overdue_s, SILENT_S)

    @property
    def message(self) -> str:
        """The message to an operator."""
        since = f" since {self.since:%Y-%m-%d %H:%M} UTC" if self.since is not None else ""
        heard = f"since {self.watched:%Y-%m-%d %H:%M} UTC" if self.watched is not None else "of it"
        why = f" for {self.code} [{self.remediation_id}]" if self.remediation_id else ""
        return (
            f'held{since} by "{self.text}"{why}, and its own healthd has said nothing {heard}: see on the node'
            f" whether `healthd run` runs, in which mode, whether its disk is full, and whether it reaches the cluster"
            f" (`healthd status`)."
            f" Only that daemon repairs and releases the node"
        )


def held_out(snapshot: FleetSnapshot, slots: Iterable[Slot]) -> tuple[HeldOut, ...]:
    """The nodes with a machine that healthd holds, by their drain or by a slot. Those that are DOWN with a slot and do
    not answer page for that."""
    holders = {slot.node: slot for slot in slots if " " not in slot.node}  # a slot that was taken by hand names no node
    held = {each.node: each for each in snapshot.held}
    records = {record.node: parse(record.text) or HandoffRecord() for record in snapshot.records}
    names = (held.keys() | holders.keys()) - snapshot.asleep - (snapshot.down & holders.keys())
    return tuple(
        _held_out(name, held.get(name), holders, records.get(name) or HandoffRecord()) for name in sorted(names)
    )


def _held_out(name: str, drain: HeldNode | None, holders: Mapping[str, Slot], record: HandoffRecord) -> HeldOut:
    if drain is None:
        slot = holders[name]
        text = f"slot {slot.scope} {slot.index}"
        return HeldOut(
            node=name,
            text=text,
            code=record.code,
            remediation_id=record.remediation_id,
            watched=record.watched,
            found=record.since,
        )
    since, code = drain.at, code_of(drain.text)
    return HeldOut(
        node=name,
        text=drain.text,
        code=code,
        remediation_id=remediation_id_of(drain.text) or "",
        since=since,
        watched=record.watched,
        found=record.since,
    )
