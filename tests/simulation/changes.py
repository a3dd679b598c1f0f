"""Old faults, put back one at a time: what a test changes in the parts that a simulated fleet is made of.

Production has no switch for any of them: a change wraps or replaces what is handed in. Each says which invariants are
to find it; a fault that none finds means that an invariant is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from msgspec import field
from msgspec.structs import replace

from healthd.core.model import Component, Diagnosis, Event
from healthd.notify.delivery import Deliver
from healthd.notify.message import Message
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.dependencies import Dependencies, Judgement, RemediationStore
from healthd.remediation.ports import FleetSnapshot, NodeRecord, NodeView, Orchestrator, Slot, StateOwner
from healthd.remediation.records.handoff import HandoffRecord, parse
from tests.support.engine_wire import Wire, WiredOrchestrator, WiredProvisioner, WiredRemediations


class Quiet(Wire):
    """A wire at which nothing happens."""

    def boundary(self, name: str) -> None:
        pass


class Through(WiredOrchestrator):
    """An orchestrator that a change alters in a call or two."""

    wire: Wire = field(default_factory=Quiet)
    intended: Callable[..., None] = lambda _: None
    fencing: Callable[[], None] = lambda: None


class Change:
    """None: the parts as production has them. ``found_by``: the invariants that see it, any one of them."""

    found_by: tuple[str, ...] = ()

    def orchestrator(self, door: Orchestrator, node: str) -> Orchestrator:
        """The door of one daemon to the cluster."""
        return door

    def dependencies(self, dependencies: Dependencies, node: str) -> Dependencies:
        """The parts of one daemon's engine."""
        return dependencies

    def deliver(self, deliver: Deliver) -> Deliver:
        """How the messages of one daemon leave it."""
        return deliver

    def seen_by_head(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        """The fleet as the controller reads it."""
        return snapshot

    def at_head(self, door: Orchestrator, node: str) -> Orchestrator:
        """The controller's door to one node."""
        return door


# ---------------------------------------------------------------------------------------------------------------------
# memory


def _forgotten(text: str) -> str:
    record = parse(text)
    return text if record is None else replace(record, history=()).text


class _WithoutHistory(Through):
    def read_record(self) -> str:
        return _forgotten(super().read_record())

    def write_record(self, text: str) -> None:
        super().write_record(_forgotten(text))

    def snapshot(self) -> FleetSnapshot:
        snapshot = super().snapshot()
        return replace(
            snapshot, records=tuple(NodeRecord(node=each.node, text=_forgotten(each.text)) for each in snapshot.records)
        )


class SuccessorForgets(Change):
    """The history of a name is lost with its disk: a bad slot is rebooted and replaced without end."""

    found_by = ("bounded_by_name", "bounded_in_a_day")

    def orchestrator(self, door: Orchestrator, node: str) -> Orchestrator:
        return _WithoutHistory(door)


class _Unbounded(Change):
    """Some bounds are as far away as if there were none. Set ``bounds``."""

    bounds: Mapping[str, int]

    def dependencies(self, dependencies: Dependencies, node: str) -> Dependencies:
        return replace(dependencies, rules=lambda: self._without(dependencies.rules()))

    def _without(self, rules: Rules) -> Rules:
        return replace(rules, bounds=replace(rules.bounds, **self.bounds))


class FlapsWithoutEnd(_Unbounded):
    """Returns without a repair are not bounded."""

    found_by = ("returns_are_bounded",)
    bounds: Mapping[str, int] = {"returns_per_day": 9}


class StormGoesOn(_Unbounded):
    """A code that takes its time over the fleet holds nothing."""

    found_by = ("no_slow_storm",)
    bounds: Mapping[str, int] = {
        "same_fault_nodes": 999,
        "storm_nodes": 999,
        "repairs_in_vain": 999,
        "repairs_judged": 0,
        "replacements_in_vain": 999,
    }


class RepairsWithoutEnd(_Unbounded):
    """Nothing is counted by name and code: what comes back is repaired again, and again."""

    found_by = ("bounded_by_name", "returns_are_bounded")
    bounds: Mapping[str, int] = {
        "repairs_per_remedy": 999,
        "repairs_per_fault": 999,
        "lemon_repairs": 999,
        "repairs_in_vain": 999,
        "repairs_judged": 0,
        "replacements_in_vain": 999,
        "returns_per_day": 999,
        "storm_nodes": 999,
    }


# ---------------------------------------------------------------------------------------------------------------------
# what counts


class _CountsAll(WiredRemediations):
    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        needless = remediation.has_ended and not remediation.attempts and bool(remediation.ladder)
        super().save_remediation(
            replace(remediation, attempts=1, acts=remediation.ladder[:1]) if needless else remediation, event
        )


class NeedlessActCounts(Change):
    """A repair that was not begun, because the fault was over, counts as one."""

    found_by = ("what_counts_was_begun",)

    def dependencies(self, dependencies: Dependencies, node: str) -> Dependencies:
        return replace(dependencies, remediations=_CountsAll(dependencies.remediations, Quiet()))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# judgement


class _Judged:
    """A judgement that a change alters in a call or two."""

    def __init__(self, inner: Judgement, remediations: RemediationStore) -> None:
        self._inner, self._remediations = inner, remediations

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class _AnyFaultIsOurs(_Judged):
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        found, remediation = self._inner.diagnoses(), self._remediations.open_remediation()
        if remediation is None or not remediation.acts or any(each.code == remediation.code for each in found):
            return found
        return tuple(self._taken_for_ours(each, remediation) for each in found)

    def _taken_for_ours(self, other: Diagnosis, remediation: Remediation) -> Diagnosis:
        kind, _, name = remediation.component.partition(":")
        where = Component(kind=kind, id=name)
        return replace(other, code=remediation.code, component=where, remedy=remediation.remedy, roots=())


class ForeignFaultDrives(Change):
    """Whatever is open after a repair says that it did not help: a machine is rebooted because a mount is missing."""

    found_by = ("law_of_acts",)

    def dependencies(self, dependencies: Dependencies, node: str) -> Dependencies:
        return replace(dependencies, judgement=_AnyFaultIsOurs(dependencies.judgement, dependencies.remediations))


class _Forever(_Judged):
    def acknowledge_shown(
        self, code: str, component: str, *, by: datetime, until: datetime, now: datetime, why: str
    ) -> None:
        self._inner.acknowledge(by=now, now=now, why=why)


class ResumeHoldsForever(Change):
    """``scontrol update nodename=ALL state=resume`` acknowledges what is open, however bad, until it ends."""

    found_by = ("a_resume_holds_a_day",)

    def dependencies(self, dependencies: Dependencies, node: str) -> Dependencies:
        return replace(dependencies, judgement=_Forever(dependencies.judgement, dependencies.remediations))


# ---------------------------------------------------------------------------------------------------------------------
# the cluster


class _ByHand(Through):
    def view(self, *, jobs: bool = False) -> NodeView:
        view = super().view(jobs=jobs)
        if view.hold is None or not (view.hold.automatic or view.hold.remark):
            return view
        return replace(view, hold=replace(view.hold, text="taken out by hand", automatic=False, remark=""))


class KillFailedIsAnOrder(Change):
    """Slurm's own drain over ours is read as an operator's: the remediation is lost."""

    found_by = ("over_is_over", "the_good_come_back", "nothing_out_in_silence", "every_slot_lives")

    def orchestrator(self, door: Orchestrator, node: str) -> Orchestrator:
        return _ByHand(door)


class _Keeps(Through):
    def give_back(self, slot: Slot) -> None:
        """It says that it did."""


class SlotLeaks(Change):
    """The slot of a remediation that ended is not given back."""

    found_by = ("every_slot_lives", "the_good_come_back", "nothing_out_in_silence")

    def orchestrator(self, door: Orchestrator, node: str) -> Orchestrator:
        return _Keeps(door)


class _FirstReading(Through):
    first: FleetSnapshot | None = None

    def snapshot(self) -> FleetSnapshot:
        snapshot = super().snapshot()
        self.first = self.first or snapshot
        return replace(snapshot, out=self.first.out)


class BudgetFromMemory(Change):
    """Who is out is what the daemon read first: it counts its own acts, and nobody else's."""

    found_by = ("within_the_budget",)

    def orchestrator(self, door: Orchestrator, node: str) -> Orchestrator:
        return _FirstReading(door)


# ---------------------------------------------------------------------------------------------------------------------
# the controller


class _FirstOrder(Through):
    """``first``: the record as it would be if the node's first order were its last."""

    first: Callable[[HandoffRecord], HandoffRecord] = lambda record: record
    _asked: datetime | None = None

    def read_record(self) -> str:
        text = super().read_record()
        record = parse(text)
        self._asked = record.asked if record is not None else None
        return text if record is None else self.first(record).text

    def write_record(self, text: str) -> None:
        record = parse(text)
        super().write_record(text if record is None else replace(record, asked=self._asked).text)


class OrderFromMemory(Change):
    """A second order of a node is taken for the first, and answered by what came of that."""

    found_by = ("an_answer_has_its_act",)

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str, str, int], HandoffRecord] = {}

    def seen_by_head(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        return replace(snapshot, records=tuple(self._first_shown(each) for each in snapshot.records))

    def at_head(self, door: Orchestrator, node: str) -> Orchestrator:
        first = _FirstOrder(door)
        first.first = lambda record: self._first(node, record)
        return first

    def _first_shown(self, shown: NodeRecord) -> NodeRecord:
        record = parse(shown.text)
        return shown if record is None else NodeRecord(node=shown.node, text=self._first(shown.node, record).text)

    def _first(self, node: str, record: HandoffRecord) -> HandoffRecord:
        if not record.asks:
            return record
        first = self._asked.setdefault((node, record.remediation_id, str(record.remedy), record.attempt), record)
        return replace(record, asked=first.asked)


class _NeverTakenBack(WiredProvisioner):
    def take_back(self, *, carried_out: bool) -> bool:
        return False


class RequestStands(Change):
    """What a node has asked of the controller is done to it, also once its fault is over."""

    found_by = ("law_of_requests",)

    def dependencies(self, dependencies: Dependencies, node: str) -> Dependencies:
        return replace(dependencies, provisioner=_NeverTakenBack(dependencies.provisioner, Quiet(), lambda _: None))


class _OwnsTheState(WiredProvisioner):
    @property
    def state_owner(self) -> StateOwner:
        return StateOwner.ENGINE


class DrainsWhatIsReplaced(Change):
    """A node is drained before its repair, also where its manager replaces each node that is drained."""

    found_by = ("a_drain_is_no_quarantine",)

    def dependencies(self, dependencies: Dependencies, node: str) -> Dependencies:
        return replace(dependencies, provisioner=_OwnsTheState(dependencies.provisioner, Quiet(), lambda _: None))


# ---------------------------------------------------------------------------------------------------------------------
# messages


class FirstCauseStays(Change):
    """What people were told once is not told again while it stands, whatever its cause is by then."""

    found_by = ("a_page_has_its_cause", "paged_every_day")

    def deliver(self, deliver: Deliver) -> Deliver:
        stands: set[str] = set()

        def once(message: Message) -> None:
            news = [piece for piece in message.about.news if piece.over or piece.key not in stands]
            for piece in news:
                (stands.discard if piece.over else stands.add)(piece.key)
            deliver(replace(message, about=replace(message.about, news=tuple(news))))

        return once


CHANGES: Mapping[str, Callable[[], Change]] = {
    "successor-forgets": SuccessorForgets,
    "needless-act-counts": NeedlessActCounts,
    "kill-failed-is-an-order": KillFailedIsAnOrder,
    "slot-leaks": SlotLeaks,
    "foreign-fault-drives": ForeignFaultDrives,
    "resume-holds-forever": ResumeHoldsForever,
    "flaps-without-end": FlapsWithoutEnd,
    "storm-goes-on": StormGoesOn,
    "repairs-without-end": RepairsWithoutEnd,
    "budget-from-memory": BudgetFromMemory,
    "order-from-memory": OrderFromMemory,
    "request-stands": RequestStands,
    "drains-what-is-replaced": DrainsWhatIsReplaced,
    "first-cause-stays": FirstCauseStays,
}
"""The old faults by their names, for ``--change`` of the command line."""
