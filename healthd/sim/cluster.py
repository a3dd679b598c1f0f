"""A cluster in memory and its orchestrator: they replace the back ends of remediation.

They keep the laws of the real ones, the inconvenient ones above all.

    from healthd.testing import FakeClock
    from healthd.sim.cluster import FakeCluster, FakeOrchestrator

    cluster = FakeCluster("n1", "n2", clock=FakeClock())
    FakeOrchestrator(cluster, "n1").quarantine("healthd: gpu.xid.79 gpu:0 [1]")
    cluster.update("n1", "drain", "mine now")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest

from msgspec import Struct, field

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.orchestrators.slurm.reasons import hold_of, is_automatic, without_remarks
from healthd.remediation.ports import (
    FleetSnapshot,
    HeldNode,
    Hold,
    NodeRecord,
    NodeView,
    ScopeSnapshot,
    Slot,
    is_drain,
)


class FakeClusterNode(Struct, kw_only=True):
    """A node of a :class:`FakeCluster`. ``flags``: DRAIN, DOWN, FAIL. ``features``: the cluster's labels.
    ``suspended``: jobs that allocate no CPU."""

    flags: set[str] = field(default_factory=set)
    hold: Hold | None = None
    jobs: list[str] = field(default_factory=list)
    suspended: list[str] = field(default_factory=list)
    record: str = ""
    features: set[str] = field(default_factory=set)


class FakeLists(Struct, kw_only=True):
    """The nodes and the slots of a :class:`FakeCluster`, as it lists them."""

    nodes: dict[str, FakeClusterNode]
    slots: dict[tuple[str, int], str]


class FakeCluster:
    """A controller that treats its nodes as slurmctld does (measured on 22.05.8), in memory.

    A second drain silently takes over text, user and stamp; the same text again changes nothing; undrain and resume
    wipe them. ``clock`` gives seconds since the epoch; stamps keep whole seconds. ``partitions``: name to its nodes.
    ``slots``: scope and index to the holder; a slot fences its holder. ``maintenance``: the nodes that an
    administrator's own reservation fences. ``freeze``: the freeze of the fleet, in words, or "". ``asleep``:
    powered-down nodes, whose names keep their settings without a machine; ``powering``: those on their way there or
    back, each with its flag. ``power_saving``: "" for none, else the version of Slurm that has it; from 23.02 on it
    never powers down those in ``awake``. ``starts``: how often it was started.
    """

    def __init__(self, *names: str, clock: Callable[[], float]) -> None:
        self.nodes = {name: FakeClusterNode() for name in names}
        self.partitions: Mapping[str, Sequence[str]] = {}
        self.slots: dict[tuple[str, int], str] = {}
        self.maintenance: set[str] = set()
        self.freeze = ""
        self.asleep: set[str] = set()
        self.powering: dict[str, str] = {}
        self.power_saving = ""
        self.awake: set[str] = set()
        self.starts = 1
        self._clock = clock

    def update(self, name: str, word: str, text: str = "", *, user: str = "admin") -> None:
        """Set a node's state to ``drain``, ``down``, ``fail``, ``undrain`` or ``resume``; "" sets the text alone."""
        node = self.nodes[name]
        if word in ("drain", "down", "fail") and not text:
            raise BackendRefused("You must specify a reason when DOWNING or DRAINING a node. Request denied")
        if word == "resume" and not node.flags:
            raise BackendUnknown("slurm_update error: Invalid node state specified")
        self._apply(node, word)
        if not node.flags or (word == "resume"):
            node.hold = None
        elif text and (node.hold is None or node.hold.text != text):
            node.hold = Hold(text=text, user=user, stamp=int(self._clock()))

    def claim(self, scope: str, index: int, node: str) -> None:
        """Create a slot, as nodes and administrators do."""
        if (scope, index) in self.slots:
            raise SlotTaken("Error creating the reservation: Duplicate reservation name")
        self.slots[(scope, index)] = node

    def give_back(self, scope: str, index: int) -> None:
        """Delete a slot of any owner; a missing one is fine."""
        self.slots.pop((scope, index), None)

    def shown(self) -> FakeLists:
        """The lists as a reading now shows them."""
        return FakeLists(nodes=self.nodes, slots=self.slots)

    def ask(self) -> None:
        """Raise BackendUnknown where the controller does not answer. This one always does."""

    def _apply(self, node: FakeClusterNode, word: str) -> None:
        match word:
            case "drain" | "fail":
                node.flags -= {"DRAIN", "FAIL"}
                node.flags.add(word.upper())
            case "down":
                node.flags.add("DOWN")
                node.jobs.clear()
            case "undrain":
                node.flags -= {"DRAIN", "FAIL"}
            case "resume":
                node.flags.clear()


class FakeOrchestrator:
    """The ``Orchestrator`` of one node of a :class:`FakeCluster`."""

    kind = "fake"

    def __init__(self, cluster: FakeCluster, node: str) -> None:
        self._cluster, self._node = cluster, node

    def view(self, *, jobs: bool = False) -> NodeView:
        """The node as it is. A running job shows as an allocated CPU even in a view without jobs, a suspended one does
        not."""
        self._cluster.ask()
        node = self._cluster.nodes[self._node]
        is_fenced = self._node in self._cluster.slots.values() or self._node in self._cluster.maintenance
        fence = {"MAINTENANCE", "RESERVED"} if is_fenced else set()
        power = {"POWERED_DOWN"} if self._node in self._cluster.asleep else set()
        power |= {self._cluster.powering[self._node]} if self._node in self._cluster.powering else set()
        return NodeView(
            name=self._node,
            in_service=not node.flags and not fence,
            fenced=bool(fence) and not node.flags,
            flags=frozenset(node.flags | fence | power),
            hold=None if node.hold is None else hold_of(node.hold.text, node.hold.user, node.hold.stamp),
            allocated_cpus=len(node.jobs),
            jobs=(*node.jobs, *node.suspended) if jobs else (),
            maintenance="maintenance" if jobs and self._node in self._cluster.maintenance else "",
            freeze=self._cluster.freeze if jobs else "",
            may_sleep=jobs and bool(self._cluster.power_saving) and self._node not in self._cluster.awake,
            controller=f"start {self._cluster.starts}" if jobs else "",
            features=frozenset(node.features),
        )

    def snapshot(self) -> FleetSnapshot:
        """The nodes that are out, and the nodes in the partitions of this node."""
        nodes = self._cluster.shown().nodes
        asleep = (frozenset(self._cluster.asleep) | self._cluster.powering.keys()) - {self._node}
        out = frozenset(name for name, node in nodes.items() if node.flags) - asleep
        mine = {
            name: frozenset(members) - asleep
            for name, members in self._cluster.partitions.items()
            if self._node in members
        }
        return FleetSnapshot(
            out=out,
            total=len(nodes.keys() - asleep),
            asleep=asleep,
            drained=frozenset(name for name in asleep if _is_drained_by_itself(nodes[name])),
            down=frozenset(name for name in out if nodes[name].flags >= {"DOWN", "NOT_RESPONDING"}),
            speakers=tuple(nsmallest(2, nodes.keys() - asleep - out)),
            scopes=tuple(
                ScopeSnapshot(scope=name, out=out & mine[name], total=len(mine[name])) for name in sorted(mine)
            ),
            records=tuple(NodeRecord(node=name, text=node.record) for name, node in nodes.items() if node.record),
            held=tuple(
                HeldNode(node=name, text=without_remarks(node.hold.text)[0], stamp=node.hold.stamp)
                for name, node in nodes.items()
                if node.hold is not None and node.hold.text.startswith("healthd: ")
            ),
        )

    def slots(self) -> tuple[Slot, ...]:
        """Every slot."""
        slots = self._cluster.shown().slots
        return tuple(Slot(scope=scope, index=index, node=node) for (scope, index), node in sorted(slots.items()))

    def claim(self, scope: str, index: int) -> None:
        """Create a slot for this node."""
        self._cluster.claim(scope, index, self._node)

    def keep_awake(self, *, on: bool) -> None:
        """As SuspendExcNodes += and -=; refused where ``power_saving`` says so."""
        self._cluster.ask()
        if self._cluster.power_saving == "22.05":
            raise BackendRefused("No valid entity in update command")
        (self._cluster.awake.add if on else self._cluster.awake.discard)(self._node)

    def fence(self) -> None:
        """Nothing: a slot keeps jobs off by itself, as Slurm's does."""

    def give_back(self, slot: Slot) -> None:
        """Delete a slot of this node's."""
        self._cluster.ask()
        holder = self._cluster.slots.get((slot.scope, slot.index), self._node)
        if holder != self._node:
            raise BackendRefused(f"slot {slot.scope}-{slot.index} is held by {holder}")
        self._cluster.give_back(slot.scope, slot.index)

    def write_record(self, text: str) -> None:
        """Write the handoff record; only healthd writes here."""
        self._cluster.ask()
        self._cluster.nodes[self._node].record = text

    def read_record(self) -> str:
        """The handoff record."""
        self._cluster.ask()
        return self._cluster.nodes[self._node].record

    def quarantine(self, text: str) -> None:
        """Drain, with one line of text."""
        if not text.isprintable():
            raise BackendRefused(f"drain of {self._node} not asked for: the reason is {text!r}, expected one line")
        self._cluster.update(self._node, "drain", text, user="healthd")

    def release(self, *, resume: bool) -> None:
        """Undrain or resume."""
        self._cluster.update(self._node, "resume" if resume else "undrain", user="healthd")


def _is_drained_by_itself(node: FakeClusterNode) -> bool:
    return is_drain(node.flags) and node.hold is not None and is_automatic(node.hold.text)
