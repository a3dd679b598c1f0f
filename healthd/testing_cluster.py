"""Handwritten stand-ins for the back ends of remediation: a cluster in memory, its orchestrator, a provisioner.

They keep the laws of the real ones, the inconvenient ones above all, and can be made to hang, forget and restart.

    from healthd.testing import FakeClock
    from healthd.testing_cluster import FakeCluster, FakeOrchestrator

    cluster = FakeCluster("n1", "n2", clock=FakeClock())
    FakeOrchestrator(cluster, "n1").quarantine("healthd: gpu.xid.79 gpu:0 [1]")
    cluster.update("n1", "drain", "mine now")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from healthd.errors import BackendRefused, BackendUnknown
from healthd.model import Remedy
from healthd.remediation.ports import FleetLevel, Hold, NodeView


@dataclass(kw_only=True)
class FakeClusterNode:
    """What a :class:`FakeCluster` knows of one node. ``flags``: DRAIN, DOWN, FAIL."""

    flags: set[str] = field(default_factory=set)
    hold: Hold | None = None
    jobs: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeUpdate:
    """One update that a :class:`FakeCluster` applied: ``before`` and ``after`` are the node's hold around it."""

    node: str
    word: str
    user: str
    before: Hold | None
    after: Hold | None


class FakeCluster:
    """A controller that treats its nodes as slurmctld does (measured on 22.05.8), in memory.

    A second drain silently takes over text, user and stamp; the same text again changes nothing; undrain and resume
    wipe them. ``clock`` gives seconds since the epoch, of which stamps keep the whole ones. ``updates`` lists what was
    applied.
    """

    def __init__(self, *names: str, clock: Callable[[], float]) -> None:
        self.nodes = {name: FakeClusterNode() for name in names}
        self.updates: list[FakeUpdate] = []
        self.hung = False
        self.starts = 1
        self._clock = clock
        self._waiting: list[tuple[str, str, str, str]] = []

    def update(self, name: str, word: str, text: str = "", *, user: str = "admin") -> None:
        """Set a node's state to ``drain``, ``down``, ``fail``, ``undrain`` or ``resume``; "" sets the text alone.

        While the controller hangs, nobody answers: BackendUnknown, and it is applied when the controller wakes up.
        """
        if self.hung:
            self._waiting.append((name, word, text, user))
            raise BackendUnknown(f"update of {name}: Socket timed out on send/recv operation")
        node = self.nodes[name]
        if word in ("drain", "down", "fail") and not text:
            raise BackendRefused("You must specify a reason when DOWNING or DRAINING a node. Request denied")
        if word == "resume" and not node.flags:
            raise BackendUnknown("slurm_update error: Invalid node state specified")
        before = node.hold
        self._apply(node, word)
        if not node.flags or (word == "resume"):
            node.hold = None
        elif text and (node.hold is None or node.hold.text != text):
            node.hold = Hold(text=text, user=user, stamp=int(self._clock()))
        self.updates.append(FakeUpdate(node=name, word=word, user=user, before=before, after=node.hold))

    def restart(self, *, losing: Sequence[str] = ()) -> None:
        """Start the controller anew; the drains of some nodes had not been saved, and waiting updates are gone."""
        self.starts, self.hung, self._waiting = self.starts + 1, False, []
        for name in losing:
            self.nodes[name].flags.discard("DRAIN")
            self.nodes[name].hold = self.nodes[name].hold if self.nodes[name].flags else None

    def wake(self) -> None:
        """End a hang: what was waiting is applied."""
        self.hung, waiting, self._waiting = False, self._waiting, []
        for name, word, text, user in waiting:
            self.update(name, word, text, user=user)

    def rebooted(self, name: str) -> None:
        """A node came back with a new boot time that nobody announced: it is DOWN; a reason that was there is kept."""
        node = self.nodes[name]
        node.flags.add("DOWN")
        node.jobs.clear()
        text = "Node unexpectedly rebooted"
        node.hold = node.hold or Hold(text=text, user="slurm", stamp=int(self._clock()))

    def ask(self) -> None:
        """Raise BackendUnknown where the controller does not answer."""
        if self.hung:
            raise BackendUnknown("slurm_load_node error: Socket timed out on send/recv operation")

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

    def __init__(self, cluster: FakeCluster, node: str, *, user: str = "healthd") -> None:
        self._cluster, self._node, self._user = cluster, node, user

    def view(self, *, jobs: bool = False) -> NodeView:
        """The node as it is; work shows as an allocated CPU even where jobs are not asked for."""
        self._cluster.ask()
        node = self._cluster.nodes[self._node]
        return NodeView(
            name=self._node,
            in_service=not node.flags,
            flags=frozenset(node.flags),
            hold=node.hold,
            allocated_cpus=len(node.jobs),
            jobs=tuple(node.jobs) if jobs else (),
            controller=f"start {self._cluster.starts}" if jobs else "",
        )

    def level(self) -> FleetLevel:
        """Who is out."""
        self._cluster.ask()
        nodes = self._cluster.nodes
        return FleetLevel(out=frozenset(name for name, node in nodes.items() if node.flags), total=len(nodes))

    def quarantine(self, text: str) -> None:
        """Drain."""
        self._cluster.update(self._node, "drain", text, user=self._user)

    def release(self, *, resume: bool) -> None:
        """Undrain or resume."""
        self._cluster.update(self._node, "resume" if resume else "undrain", user=self._user)


class FakeProvisioner:
    """A ``Provisioner`` that counts requests. ``reboots`` is called for each; it may raise what a back end raises."""

    kind = "fake"

    def __init__(self, reboots: Callable[[], None]) -> None:
        self._reboots = reboots
        self.requests = 0

    def can(self, remedy: Remedy) -> bool:
        """A reboot, and a GPU reset on the way."""
        return remedy in (Remedy.REBOOT_NODE, Remedy.RESET_GPU)

    def reboot(self) -> None:
        """Count, and pass on."""
        self.requests += 1
        self._reboots()
