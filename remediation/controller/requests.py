"""``healthd controller`` reads a handoff record: is anything wanted of it, and may it be done? Pure.

Two things are wanted: what a node asked for, and another machine for a node that asked for a reboot and did not come
back from it. Nothing is done for a node that healthd's own place, record and text do not all stand for.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec import Struct

from healthd.core.model import Refusal, Refused, Remedy
from healthd.remediation.decide.remediation import remediation_id_of
from healthd.remediation.ports import NodeView
from healthd.remediation.records.handoff import CLOSE, HandoffRecord, RequestAnswer

_SILENT = frozenset({"DOWN", "NOT_RESPONDING"})
_AWAY = _SILENT | {"NOTREADY"}


class WantedAct(Struct, frozen=True, kw_only=True):
    """One act on one machine. ``unanswered``: no node asked for it, this one does not answer after its reboot.

    ``asked``: when the request was made, or that reboot. It never changes while the request stands, and no later
    request of the node has the same (``successor.repair_record``).
    """

    node: str
    remediation_id: str
    remedy: Remedy
    attempt: int
    asked: datetime
    unanswered: bool = False

    @property
    def after_silence(self) -> bool:
        """Whether it replaces a node that does not answer after its reboot, taken or not: a node's own requests count
        their attempts from 1."""
        return self.remedy is Remedy.REPLACE_NODE and not self.attempt

    @property
    def id(self) -> str:
        """The id under which this request is carried out once. A second order for the same remediation, remedy and
        attempt is another request. Ids in stores of before 2026-11-22 end without ``@`` and the time: they are no
        request's."""
        return f"{self.node}/{self.remediation_id}/{self.remedy}-{self.attempt}@{int(self.asked.timestamp())}"


def wanted(node: str, record: HandoffRecord, now: datetime, *, reboot_timeout_s: float) -> WantedAct | None:
    """The act that a record asks the controller to consider, or None. A reboot that should be over long ago is looked
    after; and so is, also after a no, a replacement that no node asked for: none would hear the answer and page."""
    if record.remedy is None or record.asked is None or not record.remediation_id:
        return None
    was_begun = not record.asks or record.answer is RequestAnswer.TAKEN
    if record.remedy is Remedy.REBOOT_NODE and was_begun and _is_late(record.asked, now, reboot_timeout_s):
        replacement = Remedy.REPLACE_NODE
        return WantedAct(
            node=node,
            remediation_id=record.remediation_id,
            remedy=replacement,
            attempt=0,
            asked=record.asked,
            unanswered=True,
        )
    if not record.asks:
        return None
    want = WantedAct(
        node=node,
        remediation_id=record.remediation_id,
        remedy=record.remedy,
        attempt=record.attempt,
        asked=record.asked,
    )
    return None if record.is_refused and not want.after_silence else want


def withdrawn(node: str, record: HandoffRecord) -> WantedAct | None:
    """The request that a node has withdrawn, or None. Nothing is begun for it: it tells what may have been begun."""
    if not record.is_withdrawn or record.withdrawn is None or record.asked is None or not record.remediation_id:
        return None
    return WantedAct(
        node=node,
        remediation_id=record.remediation_id,
        remedy=record.withdrawn,
        attempt=record.attempt,
        asked=record.asked,
    )


def refusal(
    want: WantedAct,
    record: HandoffRecord,
    view: NodeView,
    *,
    has_slot: bool,
    platform_texts: Collection[str],
    now: datetime,
    timeout_s: float,
) -> Refused | None:
    """Why it is not done, now or later, or None. ``timeout_s``: after which the node itself no longer waits for it."""
    if not has_slot:
        message = "no budget slot is held for this node, so it is not healthd's to repair"
        return Refused(kind=Refusal.NOT_PERMITTED, reason=message)
    if why := _not_our_text(want, view, platform_texts):
        return Refused(kind=Refusal.FOREIGN_HOLD, reason=why)
    if not record.machine:
        return Refused(kind=Refusal.UNREADABLE, reason="its handoff record does not name the machine")
    if not want.after_silence and record.asked is not None and _is_late(record.asked, now, timeout_s):
        message = f"it was asked for at {record.asked:%Y-%m-%d %H:%M:%S} UTC, which is too long ago"
        return Refused(kind=Refusal.LATE, reason=message)
    return None


def is_silent(view: NodeView) -> bool:
    """Whether slurmctld itself has given this node up: what speaks, speaks for itself."""
    return view.flags >= _SILENT


def is_away(view: NodeView) -> bool:
    """Whether the node may be in its reboot."""
    return bool(view.flags & _AWAY)


def is_moot(want: WantedAct, booted: datetime | None) -> bool:
    """Whether the node has booted since it asked for a reboot: it says itself what is still wrong, once it can."""
    return want.remedy is Remedy.REBOOT_NODE and booted is not None and booted > want.asked + CLOSE


def needs_person(record: HandoffRecord, booted: datetime | None) -> str:
    """Why a node that is silent after its reboot is not replaced but left to an operator, or ""."""
    if Remedy.REPLACE_NODE not in record.following:
        return "it did not come back from its reboot, and another machine is not what its policy has next"
    if booted is not None and record.asked is not None and booted > record.asked:
        return f"it came back from its reboot at {booted:%H:%M:%S} UTC and fell silent again"
    return ""


def _not_our_text(want: WantedAct, view: NodeView, platform_texts: Collection[str]) -> str:
    if view.hold is None:
        return "it is not drained"
    if view.drained_by_itself or remediation_id_of(view.hold.text) == want.remediation_id:
        return ""
    if want.after_silence and view.hold.text in platform_texts:
        return ""
    return f"it is held by {view.hold.user} with '{view.hold.text}'"


def _is_late(asked: datetime, now: datetime, timeout_s: float) -> bool:
    return now - asked > timedelta(seconds=timeout_s)
