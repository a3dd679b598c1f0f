"""The nodes of a fleet, each in the state that an operator calls it. Pure: listed nodes and slots in, values out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from healthd.remediation.decide.remediation import is_our_text
from healthd.remediation.ports import ListedNode, Slot, is_drain
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.handoff import HandoffRecord, parse
from healthd.remediation.records.summary import NodeState, NodeSummary, parse_summary

AHEAD = timedelta(minutes=5)
"""A summary from further ahead counts as not written: its node's clock is wrong, and it would never be silent."""


class FleetState(StrEnum):
    """The state of a node in the fleet, in the order in which they are shown.

    The first two, CRITICAL and UNKNOWN: in service, by what it says itself. DRAINING, REPAIRING, HELD, NEEDS_OPERATOR:
    see ``NodeState``. STOPPED: its agent ended on purpose, and has not begun again for as long as makes one silent.
    SILENT: its agent has said nothing for too long, or never, or its machine does not answer. DOWN: the cluster calls
    it down. DRAINED: out by a hold that is not healthd's. ASLEEP: a name without a machine. NO_AGENT: in service in a
    cluster that has nodes without healthd, and healthd has never run there.
    """

    OK = "ok"
    WARNING = "warning"
    DRAINING = "draining"
    REPAIRING = "repairing"
    HELD = "held"
    NEEDS_OPERATOR = "needs-operator"
    CRITICAL = "critical"
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    SILENT = "silent"
    DOWN = "down"
    DRAINED = "drained"
    ASLEEP = "asleep"
    NO_AGENT = "no-agent"


USABLE = frozenset({FleetState.OK, FleetState.WARNING})
NOT_OURS = frozenset({FleetState.DRAINED, FleetState.ASLEEP, FleetState.NO_AGENT})
"""Nothing that healthd has to say something about."""
RESERVED = "a maintenance reservation"
"""The reason of a node that another's reservation alone keeps jobs off."""
_OUT_BY_US = frozenset({NodeState.REPAIRING, NodeState.HELD})
_HELD_BY_US = frozenset({NodeState.DRAINING, NodeState.REPAIRING, NodeState.HELD, NodeState.NEEDS_OPERATOR})


class FleetNode(Struct, frozen=True, kw_only=True, dict=True):
    """One node. ``silent_s``: for how many seconds its agent has said nothing; None where it never said anything.
    ``slot``: the budget slot that it holds, taken at ``slot_since``. ``fence``: the fence of its NVLink domain, as
    text; "" for none."""

    listed: ListedNode
    now: datetime
    silent_after_s: float
    slot: Slot | None = None
    slot_since: datetime | None = None
    fence: str = ""

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self.listed.name

    @cached_property
    def summary(self) -> NodeSummary | None:
        """The last summary of its agent; None where there is none, or it is from far ahead."""
        summary = parse_summary(self.listed.summary)
        return None if summary is None or summary.at is None or summary.at > self.now + AHEAD else summary

    @cached_property
    def record(self) -> HandoffRecord:
        """Its handoff record; an empty one where it has none."""
        return parse(self.listed.record) or HandoffRecord()

    @property
    def silent_s(self) -> float | None:
        """For how long its agent has said nothing, in seconds."""
        if self.summary is None or self.summary.at is None:
            return None
        return max((self.now - self.summary.at).total_seconds(), 0.0)

    @property
    def is_silent(self) -> bool:
        """Whether its agent has said nothing for too long, or never."""
        return self.silent_s is None or self.silent_s > self.silent_after_s

    @property
    def is_stopped(self) -> bool:
        """Whether its agent has said nothing for so long because it was stopped on purpose, on a machine that
        answers."""
        return self.summary is not None and self.summary.stopped and self.is_silent and not self.listed.dead

    @property
    def is_ours(self) -> bool:
        """Whether healthd keeps it out: by its text, by a provisioner's text beside our slot, by the slot alone, or by
        the fence of its NVLink domain."""
        if not self.is_drained:
            return self.slot is not None or bool(self.fence)
        hold = self.listed.hold
        if hold is None:
            return False
        return is_our_text(hold.text) or (self.slot is not None and hold.text in OUR_TEXTS)

    @property
    def is_drained(self) -> bool:
        """Whether the cluster says that it is drained."""
        return is_drain(self.listed.flags)

    @cached_property
    def state(self) -> FleetState:
        """Its state in the fleet."""
        if self.listed.asleep and not self.is_ours:
            return FleetState.ASLEEP
        if self._pages and (self.listed.hold is None or self.listed.hold.automatic or self.is_ours):
            return FleetState.NEEDS_OPERATOR
        if self.is_kept_off and not self.is_ours:
            return FleetState.DRAINED
        if self.listed.agentless and not self.is_ours:
            return self._without_agent
        if self.is_stopped:
            return FleetState.STOPPED
        if self.summary is None or self.is_silent or (self.listed.dead and not self._is_expected_away):
            return FleetState.SILENT
        if self.summary.state in _HELD_BY_US:
            return FleetState(self.summary.state.value)
        if self.is_ours:
            return FleetState.HELD
        return FleetState.DOWN if self.listed.out else FleetState(self.summary.state.value)

    @property
    def _without_agent(self) -> FleetState:
        if self.listed.dead:
            return FleetState.SILENT
        return FleetState.DOWN if self.listed.out else FleetState.NO_AGENT

    @property
    def is_kept_off(self) -> bool:
        """Whether the cluster keeps jobs off for another cause than that it is down: a drain, an operator's FAIL, a
        reboot, or a maintenance reservation."""
        flags = self.listed.flags
        in_maintenance = "MAINT" in flags or {"MAINTENANCE", "RESERVED"} <= flags
        return in_maintenance or (self.listed.out and (self.is_drained or "DOWN" not in flags))

    @property
    def is_trouble(self) -> bool:
        """Whether it is neither usable nor out by another owner."""
        return self.state not in USABLE and self.state not in NOT_OURS

    @property
    def _pages(self) -> bool:
        return not self.is_silent and self.summary is not None and self.summary.state is NodeState.NEEDS_OPERATOR

    @property
    def _is_expected_away(self) -> bool:
        """Whether its machine does not answer because healthd has it rebooted or replaced."""
        return self.summary is not None and self.summary.state is NodeState.REPAIRING

    @property
    def code(self) -> str:
        """The finding that it is, or wants to be, out for, else its worst one."""
        message = self.summary.code if self.summary is not None else ""
        return message or self.record.code

    @property
    def instance_type(self) -> str:
        """Its instance type, by the cluster or its agent; "" where neither says it."""
        return self.listed.instance_type or (self.summary.instance_type if self.summary is not None else "")

    @property
    def since(self) -> datetime | None:
        """Since when it is in this state, as far as that is known."""
        if self.state in NOT_OURS or self.state is FleetState.DOWN:
            return self.held_since
        return self.summary.since if self.summary is not None else self.record.since

    @property
    def held_since(self) -> datetime | None:
        """Since when the cluster shows the hold that it is out by."""
        hold = self.listed.hold
        return hold.at if hold is not None and hold.stamp else None

    @property
    def oddity(self) -> str:
        """A part of healthd's own that stands there without the rest, as a sentence; or ""."""
        if self.slot is not None and self.is_drained and not self.is_ours:
            return "a slot of healthd's beside another's drain"
        hold = self.listed.hold
        if hold is not None and is_our_text(hold.text) and self.is_drained and self.slot is None:
            return "healthd's drain without a slot"
        acts = self.summary is not None and not self.is_silent and self.summary.state in _HELD_BY_US
        if self.slot is not None and not self.is_drained and not acts and self._is_old_slot:
            return "a slot of healthd's without a remediation"
        if self.summary is not None and self.summary.state in _OUT_BY_US and self.slot is None and not self.listed.out:
            return "its agent says that it is out, and the cluster gives it jobs"
        return ""

    @property
    def _is_old_slot(self) -> bool:
        """A summary comes some seconds after its slot."""
        return self.slot_since is None or self.now - self.slot_since > timedelta(minutes=1)


class FleetPicture(Struct, frozen=True, kw_only=True):
    """All nodes as they were read at ``at``. ``limit``: how many may be out, for any cause, by the configuration of the
    machine that reads or by the cluster itself; None where that is not known. ``taken``: the slots of the whole cluster
    that are taken. ``only_slots``: the limit holds slots alone, as where no controller counts the nodes that are out.
    ``remarks``: what of the cluster is not as healthd needs it, a sentence each. ``freeze``: that of the fleet.
    ``fences``: the NVLink domains that are fenced as one; ``out`` does not count their nodes."""

    cluster: str
    at: datetime
    nodes: tuple[FleetNode, ...]
    limit: int | None
    taken: int
    only_slots: bool = False
    remarks: tuple[str, ...] = ()
    freeze: str = ""
    fences: tuple[DomainFence, ...] = ()

    def with_racks(self, racks: Mapping[str, str]) -> FleetPicture:
        """The fleet with these racks for the nodes of which the cluster names none. ``racks``: by node."""
        if not any(each.name in racks and not each.listed.group for each in self.nodes):
            return self
        return replace(self, nodes=tuple(_in_rack(each, racks.get(each.name, "")) for each in self.nodes))

    @property
    def machines(self) -> tuple[FleetNode, ...]:
        """The nodes that have a machine."""
        return tuple(each for each in self.nodes if each.state is not FleetState.ASLEEP)

    @property
    def out(self) -> int:
        """How many machines are out of service now, for any cause, as the budget counts them."""
        if self.only_slots:
            return self.taken
        return sum(each.listed.out or each.slot is not None for each in self.machines)


def _in_rack(node: FleetNode, rack: str) -> FleetNode:
    return node if node.listed.group or not rack else replace(node, listed=replace(node.listed, group=rack))


def fleet_nodes(
    listed: Iterable[ListedNode],
    slots: Iterable[Slot],
    times: Mapping[tuple[str, int], int],
    now: datetime,
    *,
    silent_after_s: float,
    fences: Iterable[DomainFence] = (),
) -> tuple[FleetNode, ...]:
    """The nodes, each once, by name. ``times``: when each slot was taken, in epoch seconds, by scope and index."""
    fenced = {name: each.text for each in fences for name in each.nodes}
    of: dict[str, Slot] = {}
    for slot in sorted(slots, key=lambda each: (each.scope == "cluster", each.scope), reverse=True):
        of.setdefault(slot.node, slot)
    found: dict[str, FleetNode] = {}
    for each in listed:
        held = of.get(each.name)
        since = times.get((held.scope, held.index)) if held is not None else None
        node = FleetNode(
            listed=each,
            now=now,
            silent_after_s=silent_after_s,
            slot=held,
            slot_since=datetime.fromtimestamp(since, UTC) if since else None,
            fence=fenced.get(each.name, ""),
        )
        if each.name not in found or each.out:  # a name that is listed twice is out if either record says so
            found[each.name] = node
    return tuple(found[name] for name in sorted(found))


def in_states(nodes: Iterable[FleetNode], states: Collection[str]) -> Iterator[FleetNode]:
    """The nodes in one of these states; all of them for none."""
    return (each for each in nodes if not states or each.state.value in states)
