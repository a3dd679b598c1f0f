"""Puts one node's agent together from its configuration: machine, store, monitor, checks, engine.

Nothing runs here: no thread, no signal, no socket. ``daemon`` gives it threads and a life, a hook without a daemon uses
it for one answer.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.config.match import Match
from healthd.config.schema.config import CheckConfig, Config
from healthd.core.check import Check, discover
from healthd.core.errors import SourceError
from healthd.core.model import Event, Mode
from healthd.core.node import KernelLogState
from healthd.observe.checkup import Checkup, boot_id_or_unknown
from healthd.observe.report import as_data
from healthd.sources.identity import boot_time
from healthd.sources.imds import FastStart
from healthd.sources.machine import Machine, open_machine
from healthd.state.monitor import Monitor, gone_jobs

# An agent that only observes loads no remediation, no SQLite, no drills and no notifications; one without kernel checks
# loads no reader of the kernel log either.
if TYPE_CHECKING:
    from healthd.agent.duty_runs import DutyRuns
    from healthd.agent.job_verdicts import JobVerdicts
    from healthd.agent.plugin_restart import PluginRestart
    from healthd.core.capabilities import PrivilegedThreads
    from healthd.core.unseen import Unseen
    from healthd.drill.drills import Drills
    from healthd.notify.notifier import Notifier
    from healthd.remediation.decide.remediation import Remediation
    from healthd.remediation.decide.rules import Policy
    from healthd.remediation.engine.absent import AbsentNode, AbsentWatch
    from healthd.remediation.engine.dependencies import Heartbeat
    from healthd.remediation.engine.engine import Engine
    from healthd.remediation.ports import Orchestrator
    from healthd.remediation.records.incident_notices import IncidentNotices
    from healthd.sources.kmsg import KernelBatch, KernelLog
    from healthd.state.store import Store

_CATCHES_UP_WITHIN_S = 3.0
_SUMMARY_POLL_S = 5.0
_A_TENTH_LATE = 1.1  # a run of a check comes up to so much later than its interval


class Agent(Struct, kw_only=True):
    """Everything of one node, connected and at rest."""

    config: Config
    machine: Machine
    monitor: Monitor
    checkup: Checkup
    store: Store | None = None
    engine: Engine | None = None
    orchestrator: Orchestrator | None = None
    ends: list[Callable[[], None]] = field(default_factory=list)
    """Closed at the end: connections to the cluster."""
    troubles: list[Callable[[], str]] = field(default_factory=list)
    """Problems of the service itself that stop no work: each returns a sentence, or ""."""
    hooks: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Hooks answered, by (kind, verdict, ``passed`` or ``refused``)."""
    unseen: Unseen | None = None
    """Hooks that had no answer of this daemon; None where none is asked."""
    notifier: Notifier | None = None
    """Sends notifications; None where no receiver is configured."""
    changed: Callable[[], None] = lambda: None
    """Wakes the engine: there is something to do."""
    duties: Mapping[str, DutyRuns] = field(default_factory=dict)
    """The daemon's own duties, by name; none where no daemon runs."""
    drills: Drills | None = None
    """Plays faults that are not there; None where no daemon runs."""
    absent: AbsentWatch | None = None
    """Releases what healthd holds of nodes that Slurm has powered down; None where the cluster is not Slurm."""
    job_verdicts: JobVerdicts | None = None
    """Judges the jobs that end here; None where only an answer is read."""
    plugin_restart: PluginRestart | None = None
    """Asks for the device plugin's restart after a GPU reset, where that is configured."""

    def close(self, *, keep_open: bool = False) -> None:
        """End the workers and close the store. ``keep_open``: store and connections to the cluster stay open, to the
        end of the process, for a thread that still acts with them."""
        self.checkup.close()
        self.machine.close()
        if keep_open:
            self.monitor.flush(datetime.now(UTC))
            return
        for close in self.ends:
            close()
        if self.store is not None:
            self.monitor.flush(datetime.now(UTC))
            self.store.close()

    @property
    def mode(self) -> Mode:
        """How far this agent may go."""
        return self.config.remediation.mode

    @property
    def reads_fleet(self) -> bool:
        """Whether this agent may act in a fleet that is dear to read. A local node has none; on Kubernetes the nodes
        that are out are one small object, which is read when it is needed."""
        is_dear = self.orchestrator is not None and self.orchestrator.kind not in ("local", "kubernetes")
        return is_dear and self.mode is not Mode.OBSERVE

    def learn_fleet(self, now: datetime) -> None:
        """Read the fleet, where there is one that this agent may act in and it is time, and keep it for a restart.
        Held nodes that Slurm has powered down are released.

        Raises BackendUnknown, StoreError.
        """
        if self.engine is None or self.store is None or not self.reads_fleet:
            return
        from healthd.agent.wiring import FLEET, kept_of

        if fleet := self.engine.learn(while_open=bool(self.paged_absent)):  # each of these pages ends with its cause
            self.store.keep(FLEET, kept_of(fleet, now))
            for message in self.absent.reconcile(fleet, now) if self.absent is not None else ():
                self.monitor.record(Event(at=now, kind="decision", text=message))

    @property
    def paged_absent(self) -> tuple[AbsentNode, ...]:
        """Other nodes for which this agent calls an operator."""
        return () if self.absent is None else self.absent.paged

    @property
    def absent_pages(self) -> frozenset[str] | None:
        """Those for which any agent calls an operator; None where the fleet was not read yet."""
        return self.absent.pages if self.absent is not None and self.reads_fleet else frozenset()

    def housekeeping(self, now: datetime) -> None:
        """Follow up: end the faults of jobs that ended, repeat a request to the cluster, write again to a disk that
        refused."""
        for clearance in gone_jobs(self.monitor.history, lambda pid: self.machine.proc.exists(str(pid))):
            self.monitor.clear(clearance, now)
        if self.plugin_restart is not None and (message := self.plugin_restart.due()):
            self.monitor.record(Event(at=now, kind="step", text=message))
        if self.unseen is not None and (message := self.unseen.news()):
            self.monitor.record(Event(at=now, kind="hook", text=message))
        self.monitor.flush(now)
        if self.store is not None and not self.monitor.store_problem:
            self.store.ballast.lay()


def enabled_checks(config: Config, names: Collection[str] = ()) -> Mapping[str, Check]:
    """The checks that run here. ``names``: as of discover."""
    return {name: check for name, check in discover(names).items() if config.checks[name].enabled}


def simulated(config: Config) -> tuple[str, ...]:
    """The notices that every report of a node with simulated parts carries."""
    notices = []
    if config.sources.nvml_library.endswith(".sim"):
        notices.append(f"SIMULATED: the GPUs are {config.sources.nvml_library}, not hardware")
    if config.sources.trust_user_kmsg:
        notices.append("trust_user_kmsg is on: kernel lines may have been written by a user, for a test or a drill")
    return tuple(notices)


def never_found(checks: Mapping[str, Check], settings: Mapping[str, CheckConfig]) -> tuple[str, ...]:
    """The notices about findings that count check runs, where the configured interval leaves too few of them."""
    notices = []
    for name, check in checks.items():
        interval_s = settings[name].interval_s or check.interval_s
        for code in check.codes:
            if check.on != "interval" or code.repeats is None:
                continue
            times, window_s = code.repeats.times, code.repeats.window_s
            most_s = window_s / max(1, times - 1) / _A_TENTH_LATE
            if interval_s > most_s:
                notices.append(
                    f"{code.code} is never found: it takes {times} runs of {name} within {window_s:g} s, and that runs "
                    f'every {interval_s:g} s; set [checks."{name}"] interval_s to {int(most_s)} at most'
                )
    return tuple(notices)


def reading_agent(
    config: Config, notices: tuple[str, ...] = (), names: Collection[str] = (), *, asks_all: bool = False
) -> Agent:
    """An agent that observes: no store, no engine. The kernel log of this boot is read once, before anything else, or
    when a check asks how its reader is.

    ``notices``: what its reports say beside the checks. ``names``: its checks, as of discover. ``asks_all``: all of
    them are about to run, and the workers that they ask start before the kernel log is read.
    """
    machine = open_machine(config)
    if asks_all:
        machine.begin()
    checks = enabled_checks(config, names)
    monitor = Monitor(checks, None)
    agent = _assembled(config, checks, machine, monitor, source="local", notices=(*notices, *simulated(config)))
    monitor.begin_boot(boot_id_or_unknown(machine), datetime.now(UTC))
    machine.kernel_log_state = cache(lambda: _read_kernel_once(agent))
    if any(check.on == "kernel" for check in checks.values()):
        from healthd.observe import journal

        machine.kernel_log_state()
        journal.read_once(agent.checkup, monitor)
    return agent


class StateInMemory(Struct, frozen=True, kw_only=True):
    """A folder in memory, for the state of a daemon that observes. ``why``: the refusal of its own folder, as a
    sentence."""

    folder: Path
    why: str


def acting_agent(
    config: Config,
    *,
    source: str,
    environ: Mapping[str, str],
    changed: Callable[[], None],
    notices: tuple[str, ...] = (),
    beat: Heartbeat | None = None,
    stopgap: StateInMemory | None = None,
    hurry: FastStart | None = None,
    by_job: Sequence[Match] = (),
) -> Agent:
    """An agent with a store and an engine. ``changed`` is called when a fault opened or ended; ``beat``: make_engine's.
    ``stopgap``: where the store is while its own folder refuses. ``hurry``: as of MetadataSource.
    ``by_job``: as of make_engine.

    Raises ConfigError for an orchestrator that is not there, StoreError where the state directory cannot be used.
    """
    from healthd.agent.plugin_restart import open_plugin_restart
    from healthd.agent.wiring import as_before, make_engine, open_absent, open_orchestrator
    from healthd.core.capabilities import PrivilegedThreads
    from healthd.judge.peers import COMPARED
    from healthd.observe import journal
    from healthd.remediation.policy_files import policy_of
    from healthd.state.recent_readings import RecentReadings
    from healthd.state.store import Owner, Store

    now = datetime.now(UTC)
    machine = open_machine(config, hurry=hurry)
    orchestrator = open_orchestrator(config, machine, environ)
    folder = Path(config.daemon.state_dir) if stopgap is None else stopgap.folder
    owner = Owner(node=machine.name, instance=machine.identity.instance_id)
    store = Store(folder / "healthd.db", now=now, owner=owner)
    orchestrator = as_before(orchestrator, config, machine.name, store)
    checks = enabled_checks(config)
    policy = policy_of(config.policy, machine.instance_type)
    unkept = stopgap.why if stopgap is not None else ""
    recent = RecentReadings(COMPARED)
    monitor = Monitor(checks, store, changed=changed, policy=policy, unkept=unkept, recent=recent)
    notices = (*notices, *simulated(config), *never_found(checks, config.checks))
    notices += (store.set_aside,) if store.set_aside else ()
    agent = _assembled(config, checks, machine, monitor, source=source, notices=notices, privileged=PrivilegedThreads())
    agent.store, agent.orchestrator, agent.changed = store, orchestrator, changed
    agent.ends += [close] if (close := getattr(orchestrator, "close", None)) is not None else []
    agent.plugin_restart = open_plugin_restart(config, orchestrator, store)
    agent.absent = open_absent(config, machine.name, orchestrator, policy)
    agent.engine = make_engine(
        config=config,
        machine=machine,
        monitor=monitor,
        checkup=agent.checkup,
        store=store,
        orchestrator=orchestrator,
        policy=policy,
        collect=lambda remediation: collect_evidence(agent, remediation),
        upload=lambda remediation: upload_evidence(config, machine, remediation),
        after_reset=agent.plugin_restart.wanted if agent.plugin_restart is not None else lambda: None,
        beat=beat,
        by_job=by_job,
    )
    agent.job_verdicts = open_job_verdicts(agent, policy)
    if store.set_aside:
        monitor.record(Event(at=now, kind="daemon", text=f"database set aside: {store.set_aside}"))
    monitor.retire(now, agent.checkup.own_codes())
    before = monitor.history.instance_id
    monitor.begin_instance(machine.identity.instance_id, now)
    if before in ("", monitor.history.instance_id):  # else the disk was another machine's
        journal.judge_past_boot(agent.checkup, monitor, boot_id_or_unknown(machine), now)
    monitor.begin_boot(boot_id_or_unknown(machine), now)
    agent.checkup.pause_nvml_again(now)
    return agent


class Reporter(Struct, frozen=True, kw_only=True):
    """Reports this node to its cluster. ``tick`` does what is due and returns what it did, ``every_s``: how often it is
    to be called. ``stop`` reports that the daemon ends on purpose, and returns why it could not, or ""."""

    tick: Callable[[], str]
    stop: Callable[[], str]
    every_s: float


def open_reporter(agent: Agent, environ: Mapping[str, str]) -> Reporter | None:
    """The reporter of this node, or None where there is no report.

    Raises ConfigError where the cluster cannot be reached as it is configured.
    """
    kind = agent.orchestrator.kind if agent.orchestrator is not None else ""
    if kind == "kubernetes" and agent.config.orchestrator.kubernetes.report:
        return _kubernetes_reporter(agent, environ)
    if kind == "slurm" and agent.config.orchestrator.slurm.report:
        return _slurm_reporter(agent)
    return None


def open_job_verdicts(agent: Agent, policy: Policy) -> JobVerdicts | None:
    """The judge of the jobs of this node; None without a store or an engine."""
    if agent.store is None or agent.engine is None:
        return None
    from healthd.agent.job_verdicts import JobVerdicts
    from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

    engine, is_slurm = agent.engine, agent.orchestrator is not None and agent.orchestrator.kind == "slurm"

    def holds() -> Remediation | None:
        remediation = engine.remediation
        return remediation if remediation is not None and remediation.hold is not None else None

    return JobVerdicts(
        node=agent.machine.name,
        monitor=agent.monitor,
        store=agent.store,
        checks=agent.checkup.checks,
        mode=agent.mode,
        section=agent.config.orchestrator.slurm,
        slurm=SlurmOrchestrator.of(agent.config, agent.machine.name) if is_slurm else None,
        holds=holds,
        clock=lambda: datetime.now(UTC),
        policy=policy,
    )


def notices_of(agent: Agent, environ: Mapping[str, str]) -> Callable[[], IncidentNotices] | None:
    """Where the notices of incidents are read; None where the cluster has none."""
    kind = agent.orchestrator.kind if agent.orchestrator is not None else ""
    if kind == "kubernetes":
        from healthd.remediation.orchestrators.kubernetes.from_config import open_api, read_notices

        api = open_api(agent.config, environ)
        agent.ends.append(api.close)
        return lambda: read_notices(api, agent.config.orchestrator.kubernetes.namespace)
    if kind != "slurm":
        return None
    from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

    return SlurmOrchestrator.of(agent.config, agent.machine.name).incident_notices


def _kubernetes_reporter(agent: Agent, environ: Mapping[str, str]) -> Reporter | None:
    from healthd.agent.wiring import as_kubernetes
    from healthd.remediation.orchestrators.kubernetes.from_config import open_api
    from healthd.remediation.orchestrators.kubernetes.from_config import open_reporter as open_it
    from healthd.remediation.orchestrators.kubernetes.reporter import AgentState

    config, orchestrator, engine = agent.config, as_kubernetes(agent.orchestrator), agent.engine
    if orchestrator is None:
        return None

    def known() -> AgentState:
        return AgentState(
            diagnoses=agent.monitor.diagnoses(),
            outcomes=agent.monitor.outcomes(),
            expected=_expected(agent),
            decision=engine.decision if engine is not None else None,
            remediation=engine.remediation if engine is not None else None,
            has_decided=engine is None or engine.has_decided,
        )

    def fenced(message: str) -> None:
        if engine is not None:
            engine.fenced(message)

    api = open_api(config, environ)
    agent.ends.append(api.close)
    reporter = open_it(config, api, orchestrator, node=agent.machine.name, known=known, fenced=fenced)
    return Reporter(tick=reporter.tick, stop=reporter.stop, every_s=1.0)


def _slurm_reporter(agent: Agent) -> Reporter:
    from healthd.agent.wiring import domain_of, driver_of
    from healthd.remediation.decide.node_summary import summary_of
    from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
    from healthd.remediation.orchestrators.slurm.reporter import SlurmReporter
    from healthd.remediation.records.summary import NodeSummary

    engine, expected = agent.engine, frozenset(_expected(agent))
    domain = ""

    def known() -> NodeSummary | None:
        nonlocal domain
        outcomes = agent.monitor.outcomes()
        domain = domain_of(outcomes) or domain  # a fabric that broke has none
        if not expected <= outcomes.keys() or (engine is not None and not engine.has_decided):
            return None
        unknown = [each for each in outcomes.values() if each.counts_as_unknown]
        # The reader of the kernel log before the checks that need it.
        blind = min(unknown, key=lambda each: agent.checkup.checks[each.check].on == "kernel", default=None)
        return summary_of(
            agent.monitor.verdict(outcomes.values()),
            agent.monitor.diagnoses(),
            mode=agent.mode,
            unknown=(blind.check, blind.result.reason) if blind is not None else ("", ""),
            remediation=engine.remediation if engine is not None else None,
            decision=engine.decision if engine is not None else None,
            names=agent.monitor.history.names,
            instance_type=agent.machine.instance_type or "",
            job=agent.job_verdicts.blamed_run() if agent.job_verdicts is not None else "",
            domain=domain,
            driver=driver_of(agent.machine),
        )

    slurm = SlurmOrchestrator.of(agent.config, agent.machine.name)
    heartbeat_s = agent.config.orchestrator.slurm.heartbeat_s
    reporter = SlurmReporter(slurm, known=known, heartbeat_s=heartbeat_s)
    return Reporter(tick=reporter.tick, stop=reporter.stop, every_s=_SUMMARY_POLL_S)


def _expected(agent: Agent) -> tuple[str, ...]:
    """The checks that run here by themselves."""
    return tuple(name for name, check in agent.checkup.checks.items() if check.on != "active")


def open_kernel_log(agent: Agent) -> KernelLog:
    """The follower of the kernel log, where the last run left off."""
    from healthd.sources.kmsg import Cursor, KernelLog

    sources, cursor = agent.config.sources, agent.monitor.cursor
    return KernelLog(
        sources.kmsg,
        boot_id=agent.monitor.boot_id,
        boot_time=boot_time(agent.machine.proc),
        cursor=Cursor(boot_id=cursor[0], sequence=cursor[1]) if cursor else None,
        needles=kernel_needles(agent.checkup.checks, agent.config.checks),
        trust_user_kmsg=sources.trust_user_kmsg,
    )


def _read_kernel_once(agent: Agent) -> KernelLogState:
    """Judge the records that the kernel log holds now. The reports show why, where it cannot be read."""
    sources = agent.config.sources
    try:
        batch = _kernel_log_now(agent, kernel_needles(agent.checkup.checks, agent.config.checks))
    except SourceError as error:
        return KernelLogState(source=sources.kmsg, alive=False, error=str(error))
    agent.checkup.judge_kernel(batch.records, None)
    late = (
        ""
        if batch.caught_up
        else f"{sources.kmsg} grows faster than it can be read: its newest records were not judged"
    )
    return KernelLogState(source=sources.kmsg, alive=True, gaps=int(batch.gap), error=late)


def _kernel_log_now(agent: Agent, needles: tuple[bytes, ...]) -> KernelBatch:
    """The records that the kernel log holds now, all of them without needles. Raises SourceError."""
    from healthd.sources.kmsg import read_all

    return read_all(
        agent.config.sources.kmsg,
        boot_id=agent.monitor.boot_id,
        boot_time=boot_time(agent.machine.proc),
        needles=needles,
        trust_user_kmsg=agent.config.sources.trust_user_kmsg,
    )


def catch_up_kernel_log(agent: Agent) -> None:
    """Judge what came since the last run and keep the new cursor, as the daemon would: for a hook that acts alone.

    What was judged before is not judged again: what ended by other evidence must not come back from an old line.
    """
    from healthd.observe import journal

    journal.read_once(agent.checkup, agent.monitor)
    source, until = agent.config.sources.kmsg, time.monotonic() + _CATCHES_UP_WITHIN_S
    try:
        log = open_kernel_log(agent)
    except SourceError as error:
        unread = KernelLogState(source=source, alive=False, error=str(error))
        agent.machine.kernel_log_state = lambda: unread
        return
    caught_up = False
    while not caught_up and not log.state().error and time.monotonic() < until:
        batch = log.read_batch(0.0)
        cursor = (batch.cursor.boot_id, batch.cursor.sequence) if batch.cursor else None
        agent.checkup.judge_kernel(batch.records, cursor, until=batch.until, unread=log.state().error)
        caught_up = batch.caught_up
    read = log.state()
    if not caught_up and not read.error:
        read = replace(read, error=f"{source} could not be read to its end within {_CATCHES_UP_WITHIN_S:g} s")
    log.close()
    agent.machine.kernel_log_state = lambda: read


def kernel_needles(checks: Mapping[str, Check], settings: Mapping[str, CheckConfig]) -> tuple[bytes, ...]:
    """The texts of which a kernel record must hold one for any check to want it."""
    needles = {needle for name, check in checks.items() for needle in check.needles_with(settings[name].settings)}
    return tuple(sorted(needle.encode() for needle in needles))


def collect_evidence(agent: Agent, remediation: Remediation) -> str:
    """Save what is known about the node before a repair changes it. Returns where, and what could not be had."""
    from healthd.observe.evidence import save_bundle

    config = agent.config
    return save_bundle(
        _bundle(config, remediation),
        {
            "verdict.json": lambda: json.dumps(as_data(agent.checkup.report(deadline_s=0.0)), indent=2, default=str),
            "events.txt": lambda: _trail_text(agent),
            "kernel.txt": lambda: _kernel_text(agent),
        },
        config.evidence.commands,
        timeout_s=config.evidence.timeout_s,
        keep=config.evidence.keep,
    )


def upload_evidence(config: Config, machine: Machine, remediation: Remediation) -> str:
    """Upload the bundle of a remediation; returns its address, or "" where the site has no bucket. Raises BackendError,
    StoreError."""
    from healthd.remediation.provisioners.evidence_bucket import open_bucket

    bucket = open_bucket(config, machine.imds.read)
    if bucket is None:
        return ""
    return bucket.upload(_bundle(config, remediation), node=machine.name, remediation_id=remediation.id)


def _bundle(config: Config, remediation: Remediation) -> Path:
    return Path(config.daemon.state_dir) / "bundles" / remediation.id


def _trail_text(agent: Agent) -> str:
    events = agent.store.events() if agent.store else ()
    return "".join(f"{event.at.isoformat()} {event.kind} {event.text}\n" for event in events)


def _kernel_text(agent: Agent) -> str:
    return "".join(f"{record.time.isoformat()} {record.text}\n" for record in _kernel_log_now(agent, ()).records)


# ---------------------------------------------------------------------------------------------------------------------
# parts


def _assembled(
    config: Config,
    checks: Mapping[str, Check],
    machine: Machine,
    monitor: Monitor,
    *,
    source: str,
    notices: tuple[str, ...],
    privileged: PrivilegedThreads | None = None,
) -> Agent:
    checkup = Checkup(
        checks=checks,
        settings=config.checks,
        machine=machine,
        monitor=monitor,
        source=source,
        workers=config.daemon.workers if source == "daemon" else max(1, len(checks)),  # no slow source delays a look
        notices=notices,
        privileged=privileged,
    )
    return Agent(config=config, machine=machine, monitor=monitor, checkup=checkup)
