"""A simulated cluster that hangs, forgets, restarts, lists what is old, and drains nodes by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.orchestrators.slurm.reasons import SEPARATOR
from healthd.remediation.ports import Hold
from healthd.sim.cluster import FakeCluster, FakeClusterNode, FakeLists


class PastLists(FakeLists, kw_only=True):
    """The lists as they were until a time."""

    at_s: float


class FakeUpdate(Struct, frozen=True, kw_only=True):
    """One update that a cluster applied: ``before`` and ``after`` are the node's hold around it."""

    node: str
    word: str
    user: str
    before: Hold | None
    after: Hold | None


class TroubledCluster(FakeCluster):
    """``updates`` lists the applied updates. ``appends``: whether it appends to an existing reason, as Slurm does from
    24.11 on. ``stale_s``: the age of the lists of nodes and slots that it returns, by ``monotonic_s`` where the clock
    may step. ``hung``: it raises BackendUnknown, and applies what it was asked for when it wakes up.
    """

    def __init__(
        self,
        *names: str,
        clock: Callable[[], float],
        monotonic_s: Callable[[], float] | None = None,
        partitions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(*names, clock=clock)
        self.partitions = dict(partitions or {})
        self.updates: list[FakeUpdate] = []
        self.hung = False
        self.stale_s = 0.0
        self.appends = False
        self._monotonic_s = monotonic_s or clock
        self._waiting: list[Callable[[], object]] = []
        self._past: list[PastLists] = []
        self._saved: PastLists | None = None

    def update(self, name: str, word: str, text: str = "", *, user: str = "admin") -> None:
        self._before_change(f"update of {name}", partial(self.update, name, word, text, user=user))
        before = self.nodes[name].hold
        super().update(name, word, text, user=user)
        self.updates.append(FakeUpdate(node=name, word=word, user=user, before=before, after=self.nodes[name].hold))

    def claim(self, scope: str, index: int, node: str) -> None:
        self._before_change(f"claim by {node}", partial(self.claim, scope, index, node))
        super().claim(scope, index, node)

    def give_back(self, scope: str, index: int) -> None:
        self._before_change(f"deletion of {scope}-{index}", partial(self.give_back, scope, index))
        super().give_back(scope, index)

    def shown(self) -> FakeLists:
        """``stale_s`` old, but of this run of the controller."""
        self.ask()
        seen_s = self._monotonic_s() - self.stale_s
        return next((lists for lists in self._past if lists.at_s > seen_s), super().shown())

    def ask(self) -> None:
        if self.hung:
            raise BackendUnknown("slurm_load_node error: Socket timed out on send/recv operation")

    def restart(self, *, losing: Sequence[str] = ()) -> None:
        """Restart the controller; unsaved drains of some nodes and waiting updates are lost. So is the state of power
        saving."""
        self.starts, self.hung, self._waiting = self.starts + 1, False, []
        self.awake.clear()
        for name in losing:
            self.nodes[name].flags.discard("DRAIN")
            self.nodes[name].hold = self.nodes[name].hold if self.nodes[name].flags else None

    def wake(self) -> None:
        """End a hang: waiting updates are applied."""
        self.hung, waiting, self._waiting = False, self._waiting, []
        for apply in waiting:
            with contextlib.suppress(SlotTaken, BackendRefused, BackendUnknown):  # its client is gone
                apply()

    def save(self) -> None:
        """Write the state to disk: a :meth:`kill` loses every update acknowledged after this."""
        self._saved = self._lists()

    def kill(self) -> None:
        """kill -9 and start again from the last saved state; jobs live on. Without a save, only the start is new."""
        if self._saved is not None:
            jobs = {name: node.jobs for name, node in self.nodes.items()}
            self.nodes = {name: _copy(node) for name, node in self._saved.nodes.items()}
            self.slots = dict(self._saved.slots)
            for name, node in self.nodes.items():
                node.jobs = jobs[name]
        self._past = []
        self.restart()

    def rebooted(self, name: str) -> None:
        """A node came back with an unannounced boot time: it is DOWN; an existing reason is kept."""
        node = self.nodes[name]
        node.flags.add("DOWN")
        node.jobs.clear()
        text, stamp = "Node unexpectedly rebooted", int(self._clock())
        if self.appends and node.hold is not None:
            node.hold = Hold(text=f"{node.hold.text}{SEPARATOR}Not responding", user="slurm", stamp=stamp)
        node.hold = node.hold or Hold(text=text, user="slurm", stamp=stamp)

    def drains_by_itself(self, name: str, text: str = "Kill task failed") -> None:
        """The controller drains a node for a reason of its own, and replaces any text."""
        self._remember()
        self.nodes[name].flags.add("DRAIN")
        self.nodes[name].hold = Hold(text=text, user="root", stamp=int(self._clock()))

    def _before_change(self, change: str, again: Callable[[], object]) -> None:
        """Raise BackendUnknown while it hangs, after which the change is made; else keep the state before it."""
        if self.hung:
            self._waiting.append(again)
            raise BackendUnknown(f"{change}: Socket timed out on send/recv operation")
        self._remember()

    def _remember(self) -> None:
        """Keep the lists before a change: ``at_s`` of past ones is when they ended."""
        if self.stale_s:
            self._past = [lists for lists in self._past if lists.at_s > self._monotonic_s() - self.stale_s]
            self._past.append(self._lists())

    def _lists(self) -> PastLists:
        nodes = {name: _copy(node) for name, node in self.nodes.items()}
        return PastLists(at_s=self._monotonic_s(), nodes=nodes, slots=dict(self.slots))


def _copy(node: FakeClusterNode) -> FakeClusterNode:
    """The same, which does not change with it."""
    return replace(
        node,
        flags=set(node.flags),
        jobs=list(node.jobs),
        suspended=list(node.suspended),
        features=set(node.features),
    )
