"""``healthd controller`` of a simulated fleet: production's own, over a store that outlives it, killed at times.

Its rounds come every ten seconds while a node asks for something, up to every minute while nothing moves, and else
every ten minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from healthd.api.controller_stats import ControllerStats
from healthd.controller.notifications import wrong_with_controller
from healthd.controller.slurm import SlurmSync
from healthd.core.errors import BackendError, StoreError
from healthd.core.model import Mode
from healthd.notify.delivery import Deliver, Receiver
from healthd.notify.message import Sender
from healthd.notify.notifier import NEWS, Notifier
from healthd.remediation.controller.controller import Controller
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.absent import AbsentNodes
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.ports import Orchestrator, Provisioner
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS
from healthd.state.store import IN_MEMORY, Store
from tests.simulation.daemon import Fuse, Ground
from tests.simulation.slurm import Door
from tests.simulation.timeline import WallClock
from tests.support.engine_wire import Killed, WiredFleet, WiredKept, WiredOrchestrator, WiredProvisioner

BUSY_S, STILL_S, QUIET_S, GROWS = 10.0, 60.0, 600.0, 1.3


class Head:
    """The head node: ``platform`` gives who acts on a machine, ``asks`` says whether any node asks for anything.
    ``dies`` is told its cases where it is killed in a round."""

    def __init__(
        self,
        ground: Ground,
        *,
        platform: Callable[[str], Provisioner],
        asks: Callable[[], bool],
        deliver: Deliver,
        dies: Callable[[Sequence[Remediation]], None],
    ) -> None:
        self._ground, self._platform, self._asks, self._deliver, self._dies = ground, platform, asks, deliver, dies
        self.wall, self.fuse = WallClock(ground.timeline), Fuse()
        self.store = Store(IN_MEMORY, now=self.wall.now())
        self.alive, self._due_s, self._poll_s = False, float("inf"), BUSY_S
        self.start()

    def start(self) -> None:
        """A new process over the same store."""
        if self.alive:
            return
        ground, self.alive = self._ground, True
        section, remediation = ground.config.controller, ground.config.remediation
        door = Door(ground.slurm, "")  # the head node is none of the nodes
        timeouts = Timeouts(
            reboot_timeout_s=remediation.reboot_timeout_s,
            replace_timeout_s=remediation.replace_timeout_s,
            overdue_s=remediation.overdue_s,
        )
        self.course = ControllerStats(
            orchestrator="slurm", provisioner="simulated", mode=Mode.REPAIR, leads=lambda: True
        )
        controller = Controller(
            fleet=WiredFleet(door, self.fuse, ground.change.seen_by_head),
            node=self._node,
            booted=ground.slurm.boots.get,
            provisioner=lambda name, _: WiredProvisioner(self._platform(name), self.fuse, lambda _: None),
            kept=WiredKept(self.store, self.fuse),
            rules=ground.head_rules,
            timeouts=timeouts,
            silent_s=section.silent_s,
            monotonic_s=ground.timeline,
            clock=self.wall.now,
            poll_s=3 * section.interval_s,
            platform_texts=OUR_TEXTS,
            stats=self.course.repair_stats,
        )
        absent = AbsentNodes(node=self._node, rules=ground.head_rules, timeouts=timeouts, monotonic_s=ground.timeline)
        self.rounds = SlurmSync(controller, absent)
        self.notifier = Notifier(
            {"oncall": Receiver(deliver=self._deliver)},
            per_hour=ground.config.notify.per_hour,
            wrong=lambda: wrong_with_controller(self.course),
            about=lambda: Sender(controller="head"),
            keep=lambda text: self.store.keep(NEWS, text),
            kept=self.store.fact(NEWS),
        )
        self.wake()

    def _node(self, name: str) -> Orchestrator:
        door = self._ground.change.at_head(Door(self._ground.slurm, name), name)
        return WiredOrchestrator(door, self.fuse, lambda _: None, lambda: None)

    def stop(self, back_in_s: float) -> None:
        """kill -9, and away for so long."""
        self.alive, self._due_s = False, float("inf")
        self._ground.timeline.after(back_in_s, self.start)

    def wake(self, in_s: float = 0.0) -> None:
        timeline = self._ground.timeline
        if self.alive and (s := timeline.s + in_s) < self._due_s:
            self._due_s = s
            timeline.at(s, lambda: self._round_at(s))

    def _round_at(self, s: float) -> None:
        if not self.alive or s != self._due_s:
            return
        self._due_s = float("inf")
        try:
            self._round(self.wall.now())
        except Killed:
            self._dies(self.store.remediations())
            self.stop(30.0)
            return
        self._poll_s = min(STILL_S, self._poll_s * GROWS)
        self.wake(self._poll_s if self._asks() else QUIET_S)

    def _round(self, now: datetime) -> None:
        try:
            before, self.course.statuses = self.course.statuses, self.rounds(now)
            self._poll_s = self._poll_s if before == self.course.statuses else BUSY_S
            self.course.problem = ""
        except (BackendError, StoreError) as error:
            self.course.problem = str(error)
        self.notifier.tick(now)
