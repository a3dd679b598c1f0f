"""The simulated slurmctld: a TroubledCluster that tells what was applied to whom.

All that is inconvenient is that cluster's: texts that are taken over in silence, stale lists, hangs after which the
waiting updates are applied late, restarts that lose drains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec.structs import replace

from healthd.core.errors import BackendError
from healthd.sim.cluster import FakeOrchestrator
from tests.simulation.timeline import Timeline, WallClock
from tests.support.troubled_cluster import FakeUpdate, TroubledCluster

US, SLURM = "healthd", frozenset({"slurm", "root"})
KILL_FAILED = "Kill task failed"


class Slurm(TroubledCluster):
    """``heard``: called after each update that was applied, with whether it came late, after a hang. ``touched``:
    for each name whose node, slot or record may have changed. ``lets_go``: for each name whose slot was given back.
    ``returns_nodes``: slurm.conf's ReturnToService is 2.
    """

    def __init__(self, names: list[str], timeline: Timeline, wall: WallClock) -> None:
        super().__init__(*names, clock=wall.seconds, monotonic_s=timeline)
        self.wall = wall
        self.heard: Callable[[FakeUpdate, bool], None] = lambda *_: None
        self.touched: Callable[[str], None] = lambda _: None
        self.lets_go: Callable[[str], None] = lambda _: None
        self._waking = False
        # slurmctld knows the boot of each node that has ever registered.
        self.boots = {name: datetime.fromtimestamp(int(wall.seconds()), UTC) for name in names}
        self.returns_nodes = True
        self.killed_s = float("-inf")

    def kill(self) -> None:
        super().kill()
        self.killed_s = self._monotonic_s()

    def update(self, name: str, word: str, text: str = "", *, user: str = "admin") -> None:
        super().update(name, word, text, user=user)
        update, node = self.updates.pop(), self.nodes[name]
        if text == KILL_FAILED and node.hold is not None:  # what the table of Slurm's own texts makes of it
            node.hold = replace(node.hold, automatic=True)
            update = replace(update, after=node.hold)
        if update.before != update.after or word in ("drain", "undrain", "resume"):
            self.heard(update, self._waking)
        self.touched(name)

    def or_later(self, apply: Callable[[], object]) -> None:
        """Raise BackendUnknown where the controller does not answer; it is applied when that wakes."""
        if self.hung:
            self._waiting.append(apply)
        self.ask()

    def wake(self) -> None:
        self._waking = True
        super().wake()
        self._waking = False

    def people(self, name: str, word: str, text: str = "", *, user: str = "admin") -> None:
        """What a person or slurmctld does; where it does not answer it is applied when it wakes, or not at all."""
        with contextlib.suppress(BackendError):
            self.update(name, word, text, user=user)

    def claim(self, scope: str, index: int, node: str) -> None:
        super().claim(scope, index, node)
        self.touched(node)

    def give_back(self, scope: str, index: int) -> None:
        holder = self.slots.get((scope, index), "")
        super().give_back(scope, index)
        if holder:
            self.lets_go(holder)
            self.touched(holder)

    def holders(self) -> set[str]:
        return set(self.slots.values())

    def booted(self, name: str) -> None:
        """A slurmd says that its machine booted; where nobody holds the node it may return by itself."""
        self.boots[name] = datetime.fromtimestamp(int(self._clock()), UTC)
        hold = self.nodes[name].hold
        if self.returns_nodes and (hold is None or (hold.user == "slurm" and "DRAIN" not in self.nodes[name].flags)):
            self.people(name, "resume", user="slurm")
        self.touched(name)

    def is_out(self, name: str) -> bool:
        return bool(self.nodes[name].flags)

    def is_ours(self, name: str) -> bool:
        """Whether the node is drained by healthd's own update."""
        hold = self.nodes[name].hold
        return hold is not None and hold.user == US


class Door(FakeOrchestrator):
    """One node's door to the cluster, which tells that its record was written."""

    def __init__(self, cluster: Slurm, node: str) -> None:
        super().__init__(cluster, node)
        self._slurm, self._name = cluster, node

    def write_record(self, text: str) -> None:
        super().write_record(text)
        self._slurm.touched(self._name)
