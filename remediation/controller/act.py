"""One act of ``healthd controller`` on one node, by the engine's own ``Repairs`` with the controller's permissions.

The act is built for each sync: what must be remembered is in the journal on disk and in the handoff record.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.model import Clearance, Event, Mode, Refusal, Refused, Remedy
from healthd.remediation.controller.node_status import RepairStats
from healthd.remediation.controller.requests import WantedAct, is_away, is_silent
from healthd.remediation.decide.freeze import frozen
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import End, Phase, Remediation, with_act
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.engine.gates import in_maintenance
from healthd.remediation.engine.repairs import RepairPort, Repairs
from healthd.remediation.engine.step_result import StepResult, ended, step_event
from healthd.remediation.ports import FleetSnapshot, Hold, NodeView, Provisioner, Slot
from healthd.remediation.records.handoff import CLOSE, HandoffRecord, RequestAnswer, instance_of, parse, word

_CLOSE_S = int(CLOSE.total_seconds())


class RequestStore(Protocol):
    """Where the controller keeps what it intends. Raises StoreError; then nothing is done."""

    def remediations(self) -> tuple[Remediation, ...]:
        """All remediations, oldest first."""

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        """Write a remediation and why it moved."""


class RequestJournal:
    """The controller's own remediations, one a request. ``clock`` stamps the trail; ``stats``: where they are timed."""

    def __init__(self, kept: RequestStore, *, clock: Callable[[], datetime], stats: RepairStats) -> None:
        self._kept, self._clock, self.stats = kept, clock, stats
        self.known = {remediation.id: remediation for remediation in kept.remediations()}

    def write(self, remediation: Remediation, message: str) -> None:
        """Put it and the sentence why it moved on disk. Raises StoreError; then nothing was written."""
        self._kept.save_remediation(remediation, step_event(remediation, message, self._clock()))
        self.stats.time(self.known.get(remediation.id), remediation, self._clock())
        self.known[remediation.id] = remediation


class FoundRequest(Struct, frozen=True, kw_only=True):
    """The readings of one sync: the act that is wanted, the handoff record that asks for it, and its text.

    ``has_slot``: a budget slot is held for the node.
    """

    want: WantedAct
    record: HandoffRecord
    text: str
    has_slot: bool = False


class Fleet(Protocol):
    """The whole cluster, read from a machine that need not be of it. Every call may raise BackendError."""

    def fleet(self) -> FleetSnapshot:
        """Every node."""

    def slots(self) -> tuple[Slot, ...]:
        """Every budget slot that is taken."""


class RequestedNode:
    """The node of one request as the controller sees it: its door, the witness of its boots, what permits an act there,
    and how that is announced.

    ``fleet`` lists the slots that are taken now. ``booted``: when slurmctld last heard of a node's boot. ``boot_id``:
    the boot as the cluster itself names it, "" where it does not; raises BackendError. ``too_many``: why no machine
    may be replaced now, or "". ``journal`` raises StoreError.
    """

    def __init__(
        self,
        *,
        orchestrator: RepairPort,
        provisioner: Provisioner,
        found: FoundRequest,
        fleet: Fleet,
        booted: Callable[[str], datetime | None],
        rules: Callable[[], Rules],
        journal: RequestJournal,
        too_many: str = "",
        boot_id: Callable[[str], str] | None = None,
    ) -> None:
        self.found, self.provisioner, self.journal = found, provisioner, journal
        self.remediation: Remediation | None = None
        """The remediation that is being carried out."""
        self._orchestrator, self._fleet, self._expected = orchestrator, fleet, found.text
        self._booted, self._rules, self._boot_id, self._too_many = booted, rules, boot_id, too_many
        self._has_slot, self._written, self._is_wanted = False, "", True

    def view(self, *, jobs: bool = False) -> NodeView:
        """The node's slot and record, and then its state: nothing but the act follows the last reading."""
        self._has_slot = self.found.want.node in {slot.node for slot in self._fleet.slots()}
        self._written = self._orchestrator.read_record()
        return self._orchestrator.view(jobs=jobs)

    def write_record(self, text: str) -> None:
        """Leave the record, unless the node has written its own since: the reading that follows finds that, and
        forbids."""
        if self._is_wanted:
            self._orchestrator.write_record(text)

    def read_record(self) -> str:
        """The record as the last reading found it."""
        return self._written

    def write_taken(self, remediation: Remediation) -> None:
        """As it was to be written before the act: the controller before this one may have been killed in between."""
        _, text = self.record_of(remediation, remediation.since)
        if _shown(text) != _shown(self._written):
            self.write_record(text)

    @property
    def boot_id(self) -> str:
        """The node's last boot as its cluster knows it; what it does not know is no evidence of another."""
        if known := self.known_boot():
            return known
        if (
            self.found.want.remedy is Remedy.REBOOT_NODE
            and self.remediation is not None
            and not self.remediation.boot_id
        ):
            raise BackendUnknown(f"the cluster does not know when {self.found.want.node} booted")
        return self.remediation.boot_id if self.remediation is not None else ""

    def known_boot(self) -> str:
        """The same, or "" where the cluster does not know it now."""
        if self._boot_id is not None and (known := self._boot_id(self.found.want.node)):
            return known
        booted = self._booted(self.found.want.node)
        before = self.remediation.boot_id if self.remediation is not None else ""
        return _boot_at(booted, before) if booted is not None else ""

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Faults are the node's."""

    def record(self, event: Event) -> None:
        """The trail comes with the remediation."""

    def is_over(self, remediation: Remediation) -> str:
        """Whether the fault is over is the node's to know: it would take its request back."""
        return ""

    def has_lost_slot(self, remediation: Remediation) -> bool:
        """The node itself takes its slot again: without one nothing is begun for it (``watched``)."""
        return False

    def watched(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult | None:
        """None while the node is as it was when it was judged: drain, place and record, and silent if it was."""
        want = self.found.want
        if not _is_still(view, remediation.hold):
            holder = f"{view.hold.user} with '{view.hold.shown}'" if view.hold else "nobody"
            return ended(remediation, End.LOST, f"the node is held by {holder} now: not touched")
        if not self._has_slot:
            return ended(remediation, End.LOST, "its budget slot is gone: not touched")
        if _request(self._written) != _request(self._expected):
            return ended(remediation, End.ABANDONED, "its handoff record was rewritten: not touched")
        if want.after_silence and not is_silent(view):
            return ended(remediation, End.ABANDONED, "it answers again: not touched")
        return None

    def no_repair_now(self, remediation: Remediation, view: NodeView) -> Refused | None:
        if why := self._rules().hands_off(view):
            return Refused(kind=Refusal.OPTED_OUT, reason=f"opted out: {why}")
        if not view.idle:
            return Refused(kind=Refusal.NOT_IDLE, reason="the node is not idle")
        if (reason_against := in_maintenance(view)) is not None:
            return reason_against
        if (reason_against := frozen(self._rules().freezes, remediation.step)) is not None:
            return reason_against
        mode = self._rules().mode
        kind = Refusal.OBSERVE if mode is Mode.OBSERVE else Refusal.LOWERED
        return None if mode.repairs else Refused(kind=kind, reason=f"the controller is in {mode} mode")

    def reason_against(self, remedy: Remedy) -> str:
        """Whether another remedy follows is the node's to say."""
        return "what follows is for the node itself to say"

    def too_many(self, *, by_command: bool, is_counted: bool = False) -> str:
        return self._too_many

    def intend(self, remediation: Remediation, now: datetime, act: str) -> Remediation:
        remediation = replace(remediation, phase=Phase.INTENDED, since=now)
        self.journal.write(remediation, f"intends: {act}, {remediation.why}")
        return remediation

    def record_of(self, remediation: Remediation, now: datetime) -> tuple[None, str]:
        """The record that shows it to the node, to another controller, and to the machine that follows. Where nothing
        is begun after all, the controller's answer replaces it.

        The record is read once more: since the last reading the platform was asked, and the node may have withdrawn."""
        self._written = self._orchestrator.read_record()
        self._is_wanted = _request(self._written) == _request(self._expected)
        if not self._is_wanted:
            return None, self._written
        want, there = self.found.want, parse(self._written) or self.found.record
        taken = replace(
            with_act(there, want.remedy, now, boot_id=remediation.boot_id, after_silence=want.unanswered),
            asks=True,
            remedy=want.remedy,
            attempt=want.attempt,
            following=() if want.unanswered else there.following,
            answer=RequestAnswer.TAKEN,
            answered=now,
            message="",
        )
        self._expected = taken.text
        return None, self._expected


class RequestedAct:
    """The act that was asked for, by the engine's own Repairs."""

    def __init__(self, node: RequestedNode, *, timeouts: Timeouts) -> None:
        self._node, self._provisioner, self._want = node, node.provisioner, node.found.want
        self._repairs = Repairs(
            orchestrator=node,
            provisioner=node.provisioner,
            resetter=_NoReset(),
            judgement=node,
            gates=node,
            intents=node,
            timeouts=timeouts,
        )

    def reason_against(self) -> str:
        """Why the platform cannot do it to this machine, or "". Raises BackendError where that is not known."""
        if why := self._provisioner.reason_against(self._want.remedy):
            return why
        machine = self._provisioner.machine()
        if word(instance_of(machine)) != self._node.found.record.machine:
            return f"{machine} is behind the name now, and {self._node.found.record.machine} was meant"
        return ""

    def go(self, remediation: Remediation, now: datetime) -> StepResult:
        """Act, or where that was done, look for its evidence."""
        self._node.remediation = remediation
        act = self._repairs.reboot if self._want.remedy is Remedy.REBOOT_NODE else self._repairs.replace
        return act(remediation, now)

    def again(self, result: StepResult, now: datetime) -> StepResult:
        """Ask once more for what a controller before this one may have asked for, or what has had no answer: where that
        is safe, and everything is as it was. A node that has moved is no loss, its evidence is awaited as before."""
        remediation = self._node.remediation = result.remediation
        why = self.reason_against() or self._provisioner.stands_down() or self._against(remediation, now)
        if not why:
            message = f"asks again for {self._want.remedy}: it is not known whether it was asked for"
            self._node.journal.write(remediation, message)
            self._node.write_taken(remediation)
            why = self._against(remediation, now)
        if why:
            return replace(result, message=f"{result.message}; not asked for again: {why}")
        return self._repairs.ask_again(result, now)

    def _against(self, remediation: Remediation, now: datetime) -> str:
        """The objection of a reading of everything to asking once more, or ""."""
        want, view = self._want, self._node.view(jobs=True)
        if (lost := self._node.watched(remediation, view, now)) is not None:
            return lost.message
        if (why := self._node.no_repair_now(remediation, view)) is not None:
            return why.reason
        if want.remedy is not Remedy.REBOOT_NODE:
            return ""
        if is_away(view):
            return "it does not answer, and may be in its reboot"
        is_known = remediation.boot_id and self._node.known_boot() == remediation.boot_id
        return "" if is_known else "which boot it has is not known"


def _is_still(view: NodeView, before: Hold | None) -> bool:
    """Whether the node is held as it was judged, or by what the cluster's controller wrote over that by itself."""
    if view.hold is None or before is None:
        return view.hold is before
    return view.drained_by_itself or view.hold.is_still(before)


def _boot_at(booted: datetime, before: str) -> str:
    """The id of a boot by its time: ``before`` where it is that one. slurmctld computes it at each registration, as its
    own time less the node's uptime, which differs by a second or more from one to the next."""
    near = (booted + timedelta(seconds=seconds) for seconds in range(-_CLOSE_S, _CLOSE_S + 1))
    return before if before in {f"{at:%d%H%M%S}" for at in near} else f"{booted:%d%H%M%S}"


def _request(text: str) -> HandoffRecord | None:
    """A record without what the node shows of itself beside it, which may change at any time, and without what a node
    of an earlier version leaves out when it does."""
    shown = _shown(text)
    return replace(shown, boot="") if shown is not None else None


def _shown(text: str) -> HandoffRecord | None:
    """A record without what the node shows of itself beside it, and without the sentence."""
    record = parse(text)
    if record is None:
        return None
    return replace(record, code="", since=None, driver="", kernel="", image="", history=(), message="")


class _NoReset:
    """GPUs are reset on the node."""

    def reason_against(self) -> str:
        return "GPUs are reset on the node itself"

    def holders(self) -> tuple[str, ...]:
        return ()

    def reset(self, stop: tuple[str, ...]) -> str:
        raise BackendRefused(self.reason_against())

    def start(self, services: tuple[str, ...]) -> str:
        return ""
