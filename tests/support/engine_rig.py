"""A whole node around the real engine, store and monitor; machine and cluster are fakes that outlive the daemon.

Every boundary of the engine's ports is numbered, and a kill -9 may come at each. Time passes in steps of five seconds,
and only here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from healthd.agent.hindsight import ends_by
from healthd.core.check import Check, NoSettings, Trigger, judged, unknown
from healthd.core.errors import StoreError
from healthd.core.model import (
    CLUSTER,
    Clearance,
    ClearsBy,
    Component,
    Finding,
    Mode,
    Outcome,
    Remedy,
    Result,
    Severity,
    Step,
)
from healthd.core.node import Node
from healthd.judge.clock import ClockWatch, was_set
from healthd.remediation.decide.commands import Command, CommandOutcome, Verb
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.on_job import JobStage
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Phase, Remediation
from healthd.remediation.engine.dependencies import Dependencies, Heartbeat, Timeouts
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.ports import JobControl, Orchestrator
from healthd.remediation.records.handoff import Versions
from healthd.sim.cluster import FakeOrchestrator
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from healthd.testing import FakeClock
from tests.support.engine_wire import (
    Killed,
    Wire,
    WiredJobs,
    WiredOrchestrator,
    WiredProvisioner,
    WiredRemediations,
    WiredResetter,
)
from tests.support.fake_repairs import FakeProvisioner, FakeResetter
from tests.support.troubled_cluster import FakeUpdate, TroubledCluster

NODE = "n1"
GPU = Component(kind="gpu", id="GPU-5e1f")
TIMEOUTS = Timeouts(
    settle_s=30.0, verify_timeout_s=300.0, reboot_timeout_s=600.0, replace_timeout_s=900.0, max_attempts=2
)
STEP_S = 5.0
SETTLE_S = 10.0
OUT = Command(verb=Verb.QUARANTINE, who="uid 0", why="psu looks odd")
IN = Command(verb=Verb.RELEASE, who="uid 0", why="psu was changed")
BOOT_TAKES_S = 40.0
MACHINE_TAKES_S = 120.0
_ends_by = cache(ends_by)  # it looks for all checks each time

# ---------------------------------------------------------------------------------------------------------------------
# the checks


def _run_elsewhere(node: Node, settings: NoSettings) -> Result:
    raise AssertionError("the rig absorbs outcomes itself")


def _a_check(name: str, on: Trigger) -> Check:
    return Check(
        name=name,
        run=_run_elsewhere,
        title=name,
        doc=name,
        interval_s=60.0,
        timeout_s=10.0,
        settings=NoSettings,
        on=on,
    )


LEVEL, LOG, TEST = "gpu.level", "kernel.log", "nccl.test"
CHECKS = {LEVEL: _a_check(LEVEL, "interval"), LOG: _a_check(LOG, "kernel"), TEST: _a_check(TEST, "active")}


class Trouble(Struct, frozen=True, kw_only=True):
    """What breaks in a story, and what of it a reboot heals."""

    code: str = "gpu.xid.95"
    remedy: Remedy = Remedy.RESET_GPU
    clears_by: ClearsBy | None = ClearsBy.GPU_RESET
    component: Component = GPU
    severity: Severity = Severity.CRITICAL

    def finding(self) -> Finding:
        return Finding(
            code=self.code,
            severity=self.severity,
            component=self.component,
            message=f"{self.code} was seen",
            remedy=self.remedy,
            clears_by=self.clears_by,
        )


XID_95 = Trouble()
WORN_OUT = Trouble(code="gpu.remap.failure", remedy=Remedy.REPLACE_NODE, clears_by=ClearsBy.REPLACE)
XID_79 = Trouble(code="gpu.xid.79", remedy=Remedy.REBOOT_NODE, clears_by=ClearsBy.REBOOT)

# ---------------------------------------------------------------------------------------------------------------------
# the world


class Ending(Struct, frozen=True, kw_only=True):
    """Where a story ended: what must not depend on kills, time-outs or a full disk."""

    in_service: bool
    holder: str
    ends: tuple[str, ...]
    drains: int
    releases: int


class World:
    """One node, its cluster and its daemon. ``local`` gives another orchestrator than that of the fake cluster."""

    def __init__(
        self,
        folder: Path,
        *,
        mode: Mode = Mode.QUARANTINE,
        fleet: int = 40,
        max_out: str | int = "5%",
        local: Callable[[World], Orchestrator] | None = None,
        can_reset: bool = False,
        can_replace: bool = False,
        calm_s: float = 0.0,
    ) -> None:
        self.timeouts = replace(TIMEOUTS, calm_s=calm_s)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.clock, self.wire = folder, FakeClock(), Wire()
        self.beat = Heartbeat(self.clock)
        self.cluster = TroubledCluster(*(f"n{number}" for number in range(1, fleet + 1)), clock=self.seconds)
        self.rules = Rules(mode=mode, max_out=max_out)
        self.quotas: dict[str, str | int] = {}
        self.boot, self.boots_at_s, self.never_boots = 1, 0.0, False
        self.booted, self._booted_as, self.versions = self.clock.now(), self.boot, Versions()
        self.journal: list[tuple[datetime, Trouble]] | None = None
        self.reboot_heals = self.reset_heals = self.replacement_heals = True
        self.script: list[tuple[float, Callable[[], object]]] = []
        self.levels: set[Trouble] = set()
        self.blind = ""
        self.message: list[str] = []
        self.turned_at: list[datetime] = []
        self.kills = 0
        self.outcome: CommandOutcome | None = None
        self.held_by_at_reboot: list[str] = []
        self.bucket: Callable[[Remediation], str] | None = None
        self.found_by_tests, self.tests_take_s, self.tested = "", 0.0, 0
        self.while_tested: Callable[[], object] = lambda: None
        self.acting: Callable[[Step], None] = lambda _: None
        self.provisioner = FakeProvisioner(self._asked_to_reboot, self._asked_to_replace if can_replace else None)
        self.machine, self.replaced_at_s = 1, 0.0
        self.resetter = FakeResetter(self._asked_to_reset if can_reset else None)
        self.jobs: JobControl | None = None
        self.local = local is not None
        self.orchestrator = local(self) if local else FakeOrchestrator(self.cluster, NODE)
        self._ids = 0
        self._start()

    # -- time ---------------------------------------------------------------------------------------------------------

    def seconds(self) -> float:
        return self.clock.now().timestamp()

    def at(self, seconds: float, *happenings: Callable[[], object]) -> World:
        """Let something happen at a time of the story."""
        self.script += [(seconds, happening) for happening in happenings]
        self.script.sort(key=lambda item: item[0])
        return self

    def step(self) -> str:
        """Five seconds: what falls due happens, checks look, and the engine turns. Returns what it said."""
        self.clock.advance(1.0)
        while self.script and self.script[0][0] <= self.clock():
            self.script.pop(0)[1]()
        if self.boots_at_s and self.clock() >= self.boots_at_s:
            self.power_cycle()
        if self.replaced_at_s and self.clock() >= self.replaced_at_s:
            self.another_machine()
        if by := self._clock_watch.was_set_by(self.clock.now(), self.clock()):
            self.monitor.clock_was_set(by, self.clock.now(), was_set(by))
        self._look()
        self.clock.advance(STEP_S - 1.0)
        try:
            message = self.engine.reconcile(self.clock.now())
        except Killed:
            message = "killed"
            self.restart_daemon()
        self.message.append(message)
        self.turned_at.append(self.clock.now())
        return message

    def run(self, steps: int) -> World:
        for _ in range(steps):
            self.step()
        return self

    def run_to_end(self, *, steps: int = 600) -> World:
        """Until nothing is left to happen, no remediation is open, and it stays so for a while."""
        quiet = 0
        for _ in range(steps):
            self.step()
            remediation = self.store.open_remediation()
            quiet = quiet + 1 if not self.script and (remediation is None or remediation.end is not None) else 0
            if quiet > 4:
                return self
        raise AssertionError(f"no end after {steps} steps; last said: {self.message[-1]}")

    # -- what happens -------------------------------------------------------------------------------------------------

    def log_line(self, trouble: Trouble) -> None:
        """A fault is seen in the kernel log."""
        self._absorb(LOG, judged([trouble.finding()]))

    def test(self, *troubles: Trouble) -> None:
        """The active test runs, and finds these."""
        self._absorb(TEST, judged([trouble.finding() for trouble in troubles]))

    def execute(self, command: Command) -> CommandOutcome:
        """Execute an operator's command. A daemon that is killed meanwhile is asked once more when it is back: the
        result is not known, and the second answer shows it."""
        while True:
            try:
                self.outcome = self.engine.execute(command, self.clock.now())
            except Killed:
                self.restart_daemon()
                continue
            except StoreError as error:
                self.outcome = CommandOutcome(done=False, message=str(error))
            return self.outcome

    def reset_gpu(self) -> None:
        """A person resets the GPU, and a check sees it."""
        self.monitor.clear(Clearance(by=ClearsBy.GPU_RESET, component=GPU, note="the GPU was reset"), self.clock.now())

    def start_job(self, job: str = "12") -> None:
        self.cluster.nodes[NODE].jobs.append(job)

    def end_jobs(self) -> None:
        self.cluster.nodes[NODE].jobs.clear()

    def lose_store(self) -> None:
        """The database is set aside, and a daemon begins with a fresh one in the same boot. The kernel's ring has
        rolled over."""
        self.store.close()
        self.folder = self.folder.parent / f"{self.folder.name}-fresh"
        self.folder.mkdir()
        self._start()

    def restart_daemon(self) -> None:
        """kill -9, and the service manager starts it again."""
        self.kills += 1
        self.store.close()
        self._start()

    def power_cycle(self) -> None:
        """The machine goes through a reboot."""
        self.boots_at_s = 0.0
        self.boot += 1
        self.cluster.rebooted(NODE)
        if self.reboot_heals:
            self.levels.clear()
        self.restart_daemon()

    def another_machine(self) -> None:
        """A successor under the same name: another instance, another boot, an empty disk."""
        self.replaced_at_s = 0.0
        self.machine, self.boot = self.machine + 1, self.boot + 1
        self.provisioner.instance = f"i-0fake{self.machine}"
        self.levels = set() if self.replacement_heals else {replace(WORN_OUT, clears_by=None)}
        self.store.close()
        self.folder = self.folder.parent / f"{self.folder.name}-machine-{self.machine}"
        self.folder.mkdir()
        self.cluster.rebooted(NODE)
        self._start()

    def _asked_to_replace(self) -> None:
        assert self.local or not self.cluster.nodes[NODE].jobs, "a replacement under a job"
        self.replaced_at_s = self.replaced_at_s or self.clock() + MACHINE_TAKES_S

    def _asked_to_reset(self) -> None:
        assert self.local or not self.cluster.nodes[NODE].jobs, "a reset under a job"
        if self.reset_heals:
            self.levels.clear()

    def _asked_to_reboot(self) -> None:
        hold = self.cluster.nodes[NODE].hold
        self.held_by_at_reboot.append(hold.user if hold else "nobody")
        if not self.never_boots:
            self.boots_at_s = self.boots_at_s or self.clock() + BOOT_TAKES_S

    # -- what is known of what was -------------------------------------------------------------------------------------

    def ends_by(self, code: str) -> ClearsBy | None:
        return _ends_by(code)

    def booted_at(self) -> datetime:
        return self.booted

    def reread_log(self, code: str, since: datetime) -> str:
        """The journal, where the story has one."""
        if self.journal is None:
            return "the journal could not be read: journalctl is not installed"
        for at, trouble in self.journal:
            if trouble.code == code and at >= since:
                self._absorb(LOG, judged([trouble.finding()]))
        return "the journal was read"

    # -- what is seen -------------------------------------------------------------------------------------------------

    @property
    def ours(self) -> list[FakeUpdate]:
        """What we changed in the cluster; an update that changed nothing is none."""
        return [update for update in self.cluster.updates if update.user == "healthd" and update.before != update.after]

    @property
    def hold_text(self) -> str:
        hold = self.cluster.nodes[NODE].hold
        return hold.text if hold else ""

    def transcript(self) -> list[str]:
        """The time and the sentence of every turn that said something else than the one before."""
        turns = list(zip(self.turned_at, self.message, strict=True))
        return [
            f"{at:%H:%M:%S} {message}"
            for (at, message), before in zip(turns, ["", *self.message], strict=False)
            if message != before
        ]

    def audit(self, *kinds: str) -> list[str]:
        return [event.text for event in self.store.events() if event.kind in kinds]

    def ending(self) -> Ending:
        view = self.orchestrator.view()
        return Ending(
            in_service=view.in_service,
            holder=view.hold.user if view.hold else "",
            ends=tuple(str(remediation.end) for remediation in self.store.remediations()),
            drains=sum(update.word == "drain" for update in self.ours),
            releases=sum(update.word in ("undrain", "resume") for update in self.ours),
        )

    def close(self) -> None:
        self.store.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """A new daemon on the same disk: everything that was in memory is new."""
        now = self.clock.now()
        if self.boot != self._booted_as:
            self.booted, self._booted_as = now, self.boot
        self.store = Store(self.folder / "healthd.db", now=now)
        self.monitor = Monitor(CHECKS, self.store, policy=self.rules.policy)
        self._wanted: set[str] = {LEVEL}
        self._just_started = True
        self.monitor.begin_boot(f"boot-{self.boot}", now)
        self._clock_watch = ClockWatch(now, self.clock())
        orchestrator = WiredOrchestrator(self.orchestrator, self.wire, self._intended, self._fencing)
        self.engine = Engine(
            Dependencies(
                orchestrator=orchestrator,
                provisioner=WiredProvisioner(self.provisioner, self.wire, self._intended),
                resetter=WiredResetter(self.resetter, self.wire, self._intended),
                slots=SlotKeeper(
                    orchestrator=orchestrator,
                    node=NODE,
                    quotas=lambda: {CLUSTER: self.rules.max_out, **self.quotas},
                    monotonic_s=self.clock,
                    random=lambda: 0.0,
                    settle_s=SETTLE_S,
                ),
                judgement=self.monitor,
                remediations=WiredRemediations(self.store, self.wire),
                rules=lambda: self.rules,
                ledger=lambda: repairs_of(self.store.remediations()),
                versions=lambda: self.versions,
                hindsight=self,
                jobs=self.jobs and WiredJobs(self.jobs, self.wire, self._job_intended),
                collect=lambda remediation: self.wire.around("collect", lambda: f"bundle-{remediation.id}"),
                upload=self._upload,
                run_tests=self._run_tests,
                recheck=self._recheck,
                timeouts=self.timeouts,
                new_id=self._new_id,
                clock=self.clock.now,
                monotonic_s=self.clock,
                beat=self.beat,
            )
        )

    def _upload(self, remediation: Remediation) -> str:
        bucket = self.bucket
        return "" if bucket is None else self.wire.around("upload", lambda: bucket(remediation))

    def _run_tests(self, tick: Callable[[], None]) -> str:
        self.tested += 1
        self.clock.advance(self.tests_take_s)
        self.while_tested()
        tick()
        return self.found_by_tests

    def _new_id(self) -> str:
        self._ids += 1
        return f"c{self._ids}"

    def _intended(self, step: Step) -> None:
        """No act without a written intent: asserted at every act of every test."""
        remediation = self.store.open_remediation()
        assert remediation is not None
        assert (remediation.step, remediation.phase) == (step, Phase.INTENDED)
        self.acting(step)

    def _job_intended(self, stage: JobStage) -> None:
        """The same of every act on a job."""
        remediation = self.store.open_remediation()
        assert remediation is not None
        assert remediation.job is not None
        assert remediation.job.stage is stage

    def _fencing(self) -> None:
        """No slot is taken without a remediation that knows that it may hold one."""
        remediation = self.store.open_remediation()
        assert remediation is not None
        assert remediation.fenced

    def _look(self) -> None:
        """Run what is due: the kernel log at every step, the interval check every minute or when it was asked for.

        A daemon that has just started may turn its engine before any check has looked.
        """
        if self._just_started:
            self._just_started = False
            return
        self._absorb(LOG, judged([]))
        outcome = self.monitor.outcomes().get(LEVEL)
        if LEVEL in self._wanted or outcome is None or self.clock.now() - outcome.at >= timedelta(seconds=60):
            self._wanted.discard(LEVEL)
            seen = judged([trouble.finding() for trouble in sorted(self.levels, key=str)])
            self._absorb(LEVEL, unknown(self.blind) if self.blind else seen)

    def _recheck(self, since: datetime) -> None:
        outcome = self.monitor.outcomes().get(LEVEL)
        if outcome is None or outcome.at < since:
            self._wanted.add(LEVEL)

    def _absorb(self, check: str, result: Result) -> None:
        self.monitor.absorb(Outcome(check=check, result=result, at=self.clock.now(), duration_s=0.01))


# ---------------------------------------------------------------------------------------------------------------------
# the two happy stories


def quarantine_story(folder: Path, **options: object) -> World:
    """A GPU fault that a person mends: drained, out until it is healthy, verified, released."""
    world = World(folder, mode=Mode.QUARANTINE, **options)  # type: ignore[arg-type]
    return world.at(3, world.start_job).at(10, lambda: world.log_line(XID_95)).at(60, world.end_jobs, world.reset_gpu)


def repair_story(folder: Path, **options: object) -> World:
    """A GPU off the bus that a reboot mends: drained, job ended, evidence, reboot, verified, released."""
    world = World(folder, mode=Mode.REPAIR, **options)  # type: ignore[arg-type]
    return world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).at(40, world.end_jobs)


def reset_story(folder: Path, **options: object) -> World:
    """An uncontained error that a reset mends: drained, job ended, evidence, holders stopped, reset, verified, back."""
    world = World(folder, mode=Mode.REPAIR, can_reset=True, **options)  # type: ignore[arg-type]
    return world.at(3, world.start_job).at(10, lambda: world.log_line(XID_95)).at(40, world.end_jobs)


def replace_story(folder: Path, **options: object) -> World:
    """A GPU that is worn out: drained, job ended, evidence, another machine with an empty disk, verified, released."""
    world = World(folder, mode=Mode.REPAIR, can_replace=True, **options)  # type: ignore[arg-type]
    world.at(3, world.start_job).at(10, lambda: world.log_line(WORN_OUT)).at(40, world.end_jobs)
    return world


STORIES = {
    "quarantine": quarantine_story,
    "repair": repair_story,
    "reset": reset_story,
    "replace": replace_story,
}


def ordered_story(folder: Path, **options: object) -> World:
    """A person has a good node taken out in observe mode, and later let in again: drained, out, verified, released."""
    world = World(folder, mode=Mode.OBSERVE, **options)  # type: ignore[arg-type]
    world.at(3, world.start_job).at(10, lambda: world.execute(OUT)).at(60, world.end_jobs)
    return world.at(90, lambda: world.execute(IN))


def lowered(world: World, mode: Mode) -> None:
    world.rules = replace(world.rules, mode=mode)


def opted_out(world: World) -> None:
    world.rules = replace(world.rules, opted_out="/etc/healthd/hands-off exists")
