"""A cluster in memory, a node that asks for a repair, and the real controller over a real store, killed anywhere.

What the controller passes is numbered as in ``engine_wire``. Time passes in steps of ten seconds, and only here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from healthd.core.errors import BackendBusy
from healthd.core.model import Mode, Remedy, Step
from healthd.remediation.controller.controller import Controller
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Phase
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.ports import Provisioner
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, parse
from healthd.sim.cluster import FakeOrchestrator
from healthd.state.store import Store
from healthd.testing import FakeClock
from tests.support.engine_wire import Killed, Wire, WiredFleet, WiredKept, WiredOrchestrator, WiredProvisioner
from tests.support.fake_repairs import FakeProvisioner
from tests.support.troubled_cluster import TroubledCluster

NODE, TEXT = "n1", "healthd: gpu.xid.79 gpu:0 [k3]"
TIMEOUTS = Timeouts(reboot_timeout_s=600.0, replace_timeout_s=900.0)
SILENT_S, TAKES_S, STEP_S = 60.0, 45.0, 10.0


class AskedWorld:
    """``n1`` is drained by its own daemon, holds a place, and left a record that asks for ``remedy``."""

    def __init__(self, folder: Path, remedy: Remedy = Remedy.REPLACE_NODE, *, asks: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.clock, self.wire = folder, FakeClock(), Wire()
        self.cluster = TroubledCluster(*(f"n{number}" for number in range(1, 9)), clock=self.seconds)
        self.rules = Rules(mode=Mode.REPAIR, replacements_per_hour=4)
        self.provisioner = FakeProvisioner(lambda: None, self._replaces)
        self.provisioner.instance = "i-1"
        self.comes_at_s, self.boots_at_s, self.poll_s = 0.0, 0.0, 0.0
        self.booted: datetime | None = datetime(2025, 12, 29, tzinfo=UTC)
        self.boot = ""  # as Kubernetes names it; Slurm knows only when that was
        self.standings: tuple[NodeStatus, ...] = ()
        self.message: list[str] = []
        self.kills = 0
        self.cluster.update(NODE, "drain", TEXT, user="healthd")
        self.cluster.claim("cluster", 0, NODE)
        self.ask(HandoffRecord(remediation_id="k3", machine="i-1", remedy=remedy, asks=asks, attempt=1))
        self.start()

    def repeats(self, after_s: float) -> AskedWorld:
        """From now on acts are safe to repeat after so long, and whoever has taken one says so until it is over."""
        self.provisioner.repeats_s = after_s
        self.provisioner._replaces, self.provisioner._reboots = self._replaces_and_shows, self._reboots_and_shows
        return self

    def seconds(self) -> float:
        return self.clock.now().timestamp()

    def ask(self, record: HandoffRecord) -> None:
        following = (Remedy.REPLACE_NODE,) if record.remedy is Remedy.REBOOT_NODE else ()
        self.cluster.nodes[NODE].record = replace(record, asked=self.clock.now(), following=following).text

    @property
    def record(self) -> HandoffRecord:
        return parse(self.cluster.nodes[NODE].record) or HandoffRecord()

    def start(self) -> None:
        """A new process on the same disk."""
        self.store = Store(self.folder / "controller.db", now=self.clock.now())
        self.controller = Controller(
            fleet=WiredFleet(FakeOrchestrator(self.cluster, NODE), self.wire),
            node=lambda name: WiredOrchestrator(
                FakeOrchestrator(self.cluster, name), self.wire, self._acts, lambda: None
            ),
            booted=lambda _: self.booted,
            provisioner=lambda node, instance: WiredProvisioner(self.acts_on(node, instance), self.wire, self._acts),
            kept=WiredKept(self.store, self.wire),
            rules=lambda: self.rules,
            timeouts=TIMEOUTS,
            silent_s=SILENT_S,
            monotonic_s=self.clock,
            clock=self.clock.now,
            poll_s=self.poll_s,
            platform_texts=frozenset({"Action:Reboot"}),
            boot_id=lambda _: self.boot,
        )

    def acts_on(self, node: str, instance: str) -> Provisioner:
        """Who acts on a machine; another provisioner in other tests."""
        return self.provisioner

    def restart(self) -> None:
        self.kills += 1
        self.store.close()
        self.start()

    def forget(self) -> None:
        """Another process leads, and has nothing of the one before it, as each pod of Kubernetes."""
        self.store.close()
        for path in self.folder.iterdir():
            path.unlink()
        self.start()

    def run(self, steps: int) -> AskedWorld:
        for _ in range(steps):
            self.clock.advance(STEP_S)
            if self.comes_at_s and self.clock() >= self.comes_at_s:
                self.comes_at_s, self.provisioner.instance, self.provisioner.others = 0.0, "i-2", ""
            if self.boots_at_s and self.clock() >= self.boots_at_s:
                self.boots_at_s, self.booted = 0.0, self.clock.now()
                self.cluster.nodes[NODE].flags -= {"DOWN", "NOT_RESPONDING"}
            try:
                self.standings = self.controller.sync(self.clock.now())
                self.message += [each.message for each in self.standings]
            except Killed:
                self.restart()
        return self

    def goes_silent(self) -> None:
        self.cluster.nodes[NODE].flags |= {"DOWN", "NOT_RESPONDING"}

    @property
    def acts(self) -> int:
        return self.provisioner.requests + self.provisioner.replacements

    def close(self) -> None:
        self.store.close()

    def _replaces(self) -> None:
        self.comes_at_s = self.clock() + TAKES_S

    def _replaces_and_shows(self) -> None:
        if self.provisioner.others:
            raise BackendBusy(self.provisioner.others)
        self._replaces()
        self.provisioner.others = "the platform is at it already"

    def _reboots_and_shows(self) -> None:
        """EC2 shows nothing of a reboot, and takes a second one; the node is away for a while."""
        assert not self.boots_at_s, "a second reboot while the first one is on its way"
        self.boots_at_s = self.clock() + TAKES_S
        self.goes_silent()

    def _acts(self, step: Step) -> None:
        """What must hold at every act of every test."""
        assert step in (Step.REBOOT, Step.REPLACE), f"the controller's hand is on {step}"
        node = self.cluster.nodes[NODE]
        remediation = self.store.remediations()[-1]
        assert remediation.phase is Phase.INTENDED, "no act without a written intent"
        assert self.record.answer is RequestAnswer.TAKEN, "no act without a mark that says so"
        assert self.rules.mode is Mode.REPAIR
        assert not node.jobs, "an act under a job"


Happening = Callable[[AskedWorld], object]
