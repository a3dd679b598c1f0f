"""The daemon's own path for kernel lines, on simulated machines: what ``healthd replay`` must agree with.

Lines are written in the kernel's form and read by the real reader; every kernel check looks at them, and one check by
the clock that sees a node in order; store and engine are the daemon's, and each engine turns every five seconds. A
repair works, and takes as long as the settings of ``[replay]`` say. Nothing here is taken from healthd.replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.agent.agent import kernel_needles
from healthd.agent.node_rules import rules_of
from healthd.agent.wiring import Cluster, timeouts_of
from healthd.config.schema.config import Config
from healthd.core.check import Check, NoSettings, judged
from healthd.core.errors import BackendBusy
from healthd.core.model import CLUSTER, NODE, REPAIRS, Action, Clearance, ClearsBy, Outcome, Remedy, Result
from healthd.core.node import Node
from healthd.observe.runner import run_check
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.rules import Policy
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.slots import SlotKeeper
from healthd.sim.cluster import FakeClusterNode, FakeOrchestrator
from healthd.sources.kmsg import read_all
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from healthd.testing import FakeClock, FakeNode
from tests.support.fake_repairs import FakeProvisioner, FakeResetter
from tests.support.judgement import LUSTRE_IS_LOADED
from tests.support.troubled_cluster import TroubledCluster

STEP_S = 5.0
_LEVEL_EVERY = timedelta(seconds=60)


class Said(Struct, frozen=True, kw_only=True, order=True):
    """One line of one node's kernel, so many seconds after the beginning."""

    at_s: float
    host: str
    text: str


def _in_order(node: Node, settings: NoSettings) -> Result:
    return judged([])


LEVEL = Check(
    name="node.level",
    run=_in_order,
    title="in order",
    doc="in order",
    interval_s=60.0,
    timeout_s=10.0,
    settings=NoSettings,
)


class Fleet(Struct, kw_only=True):
    """What the nodes share: their time, their cluster, what an operator has set."""

    folder: Path
    config: Config
    policy: Policy
    checks: Mapping[str, Check]
    clock: FakeClock
    cluster: TroubledCluster

    @property
    def like(self) -> Cluster:
        """The cluster as the parts of an engine know it."""
        return Cluster(
            settle_s=self.config.budget.settle_s,
            quotas=lambda: {CLUSTER: self.config.budget.max_out},
            opt_out=("", ""),
        )

    def rules(self) -> Rules:
        """What is allowed."""
        return rules_of(self.config, self.policy, self.like.opt_out)

    def seconds(self) -> float:
        """The wall clock."""
        return self.clock.now().timestamp()


class Daemon(Struct, kw_only=True, dict=True):
    """One node. ``decided`` and ``done`` list what its daemon decided and did, each when it was new."""

    name: str
    fleet: Fleet
    decided: list[str] = field(default_factory=list)
    done: list[Remedy] = field(default_factory=list)
    machine: int = 1
    boot: int = 1
    is_out: bool = False
    still: int = 0
    _sequence: int = 0
    _noted: str = ""
    _message: str = ""
    _comes: dict[Remedy, float] = field(default_factory=dict)
    _job_ends_s: float | None = None
    _looks: bool = True

    def __post_init__(self) -> None:
        self.cluster_node.jobs.append("a job")
        self.provisioner = FakeProvisioner(
            lambda: self._ask(Remedy.REBOOT_NODE, self.fleet.config.replay.reboot_s),
            lambda: self._ask(Remedy.REPLACE_NODE, self.fleet.config.replay.replace_s),
        )
        self.resetter = FakeResetter(self._reset)
        self.resetter.running = ()
        self._start()

    @property
    def cluster_node(self) -> FakeClusterNode:
        """The node as the cluster knows it."""
        return self.fleet.cluster.nodes[self.name]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way, but for what waits for a person."""
        remediation = self.store.open_remediation()
        waits = remediation is not None and remediation.hold is not None and not REPAIRS.intersection(remediation.steps)
        return not self._comes and (remediation is None or waits)

    def step(self, lines: Sequence[Said]) -> None:
        """Five seconds have passed: what was asked for comes, the checks look, and the engine turns."""
        now, now_s = self.fleet.clock.now(), self.fleet.clock()
        self._arrive(now, now_s)
        if lines:
            self._read(lines, now)
        self._look(now)
        message = self.engine.reconcile(now)
        self.still = self.still + 1 if message == self._message and not lines else 0
        self._message = message
        self._note()
        self._follow(now_s)

    def close(self) -> None:
        self.store.close()

    # -- the machine --------------------------------------------------------------------------------------------------

    def _ask(self, remedy: Remedy, takes_s: float) -> None:
        self.done.append(remedy)
        self._comes[remedy] = self.fleet.clock() + takes_s

    def _reset(self) -> None:
        """It takes its time: the first asking begins it."""
        now_s = self.fleet.clock()
        if Remedy.RESET_GPU not in self._comes:
            self._ask(Remedy.RESET_GPU, self.fleet.config.replay.reset_s)
        if now_s < self._comes[Remedy.RESET_GPU]:
            raise BackendBusy("the reset is under way")
        del self._comes[Remedy.RESET_GPU]

    def _arrive(self, now: datetime, now_s: float) -> None:
        if self._job_ends_s is not None and now_s >= self._job_ends_s:
            self._job_ends_s = None
            self.cluster_node.jobs.clear()
            self.monitor.clear(Clearance(by=ClearsBy.JOB_END, component=NODE), now)
        for remedy in (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE):
            if now_s >= self._comes.get(remedy, float("inf")):
                del self._comes[remedy]
                self.boot += 1
                self.machine += remedy is Remedy.REPLACE_NODE
                self.store.close()
                self._start()

    def _follow(self, now_s: float) -> None:
        if (is_out := bool(self.cluster_node.flags)) == self.is_out:
            return
        self.is_out = is_out
        self._job_ends_s = now_s + self.fleet.config.replay.drain_s if is_out else None
        if not is_out:
            self.cluster_node.jobs[:] = ["a job"]
            self._noted = ""

    # -- the daemon ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """A daemon that starts: on another boot its disk is the same, on another machine it is empty."""
        fleet, now = self.fleet, self.fleet.clock.now()
        self.provisioner.instance = f"i-{self.machine}"
        self.store = Store(fleet.folder / f"{self.name}-{self.machine}" / "healthd.db", now=now)
        self.monitor = Monitor({**fleet.checks, LEVEL.name: LEVEL}, self.store, policy=fleet.policy)
        self.monitor.begin_boot(f"boot-{self.boot}", now)
        orchestrator, store = FakeOrchestrator(fleet.cluster, self.name), self.store
        self._looks = True
        self.engine = Engine(
            Dependencies(
                orchestrator=orchestrator,
                provisioner=self.provisioner,
                resetter=self.resetter,
                slots=SlotKeeper(
                    orchestrator=orchestrator,
                    node=self.name,
                    quotas=fleet.like.quotas,
                    monotonic_s=fleet.clock,
                    random=Random(self.name).random,  # noqa: S311  it keeps nodes apart, and no secret
                    settle_s=fleet.like.settle_s,
                ),
                judgement=self.monitor,
                remediations=store,
                rules=fleet.rules,
                collect=lambda remediation: f"bundle-{remediation.id}",
                recheck=self._recheck,
                timeouts=replace(timeouts_of(fleet.config, fleet.like), let_go_s=3600.0),
                ledger=lambda: repairs_of(store.remediations()),
                clock=fleet.clock.now,
                monotonic_s=fleet.clock,
            )
        )

    def _read(self, lines: Sequence[Said], now: datetime) -> None:
        """The lines as the kernel writes them, read as the daemon reads them, judged by every kernel check."""
        path = self.fleet.folder / f"{self.name}.kmsg"
        path.write_text("".join(map(self._raw, lines)), encoding="utf-8")
        checks, settings = self.fleet.checks, self.fleet.config.checks
        booted = now - timedelta(seconds=self.fleet.clock())
        boot_id, needles = f"boot-{self.boot}", kernel_needles(checks, settings)
        records = read_all(str(path), boot_id=boot_id, boot_time=booted, needles=needles).records
        node = FakeNode(
            name=self.name,
            boot=boot_id,
            kernel_records=records,
            instance_type="p5.48xlarge",
            sys=LUSTRE_IS_LOADED,  # as replay takes it of a past log
        )
        for name, check in checks.items():
            outcome = run_check(check, node, settings[name].settings)
            self.monitor.absorb(replace(outcome, at=now))

    def _raw(self, line: Said) -> str:
        self._sequence += 1
        return f"3,{self._sequence},{int(line.at_s * 1e6)},-;{escaped(line.text)}\n"

    def _look(self, now: datetime) -> None:
        outcome = self.monitor.outcomes().get(LEVEL.name)
        if self._looks or outcome is None or now - outcome.at >= _LEVEL_EVERY:
            self._looks = False
            self.monitor.absorb(Outcome(check=LEVEL.name, result=judged([]), at=now, duration_s=0.01))
            for name in self.fleet.checks:
                self.monitor.absorb(Outcome(check=name, result=judged([]), at=now, duration_s=0.01))

    def _recheck(self, since: datetime) -> None:
        outcome = self.monitor.outcomes().get(LEVEL.name)
        self._looks = self._looks or outcome is None or outcome.at < since

    def _note(self) -> None:
        decision = self.engine.decision
        if decision.diagnosis is None and decision.action is not Action.PAGE:
            self._noted = ""
        elif decision.reason != self._noted:
            self._noted = decision.reason
            words = decision.reason
            self.decided.append(words if words.startswith(decision.action) else f"{decision.action}: {words}")


def escaped(text: str) -> str:
    """The words of a record as the kernel writes them."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in text.encode("utf-8"))


def played(fleet: Fleet, lines: Iterable[Said], *, until_s: float, rests: int) -> dict[str, Daemon]:
    """The daemons of all nodes that the lines name, after these seconds, or sooner: when none has had anything new for
    so many turns."""
    waiting = sorted(lines)
    daemons = {name: Daemon(name=name, fleet=fleet) for name in sorted({line.host for line in waiting})}
    while fleet.clock() < until_s:
        fleet.clock.advance(STEP_S)
        due = [line for line in waiting if line.at_s <= fleet.clock()]
        waiting = waiting[len(due) :]
        for name, daemon in daemons.items():
            daemon.step([line for line in due if line.host == name])
        if not waiting and all(
            each.still >= rests or (each.is_settled and each.still > 2) for each in daemons.values()
        ):
            break
    for daemon in daemons.values():
        daemon.close()
    return daemons
