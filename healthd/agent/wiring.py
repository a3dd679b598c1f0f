"""The acting half of one node, put together by its configuration: orchestrator, provisioner, slots, reset, engine.

The cluster is none, Slurm, or Kubernetes: what depends on that stands side by side here, in ``Cluster``, so that the
code that puts an engine together does not ask which it is. Nothing runs here, and nothing is decided here.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from healthd import __version__
from healthd.agent.hindsight import JournalHindsight
from healthd.agent.node_facts import runs_kubernetes, runs_slurm
from healthd.agent.node_rules import DriverAtFault, JobsHere, bounds_of, rules_of
from healthd.checklib.nvlink_domain import DOMAIN
from healthd.checks.gpu_recovery import OWED
from healthd.checks.nccl_loopback import FALLBACK
from healthd.config.load import NO_JOBS
from healthd.config.match import Match
from healthd.config.schema.config import Config
from healthd.core.check import judged
from healthd.core.encodable import NOT_JSON
from healthd.core.errors import ConfigError, ExtraMissing, SourceError, StoreError
from healthd.core.model import NODE, Event, Outcome, Remedy, Step
from healthd.core.node import CommandResult
from healthd.judge.findings import OwnResets
from healthd.observe.checkup import Checkup, boot_id_or_unknown
from healthd.remediation.decide.canary import revision_of
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Phase, Remediation
from healthd.remediation.decide.rules import FEATURE, LABEL, Policy
from healthd.remediation.engine.absent import AbsentNodes, AbsentWatch
from healthd.remediation.engine.dependencies import Dependencies, Heartbeat, Timeouts
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.gpu_reset import Clients, GpuReset
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.local import LocalOrchestrator
from healthd.remediation.orchestrators.slurm.jobs import SlurmJobs
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import FleetSnapshot, JobControl, Orchestrator, Provisioner
from healthd.remediation.provisioners.slurm_node import MANAGERS_TEXTS, OUR_TEXTS, Scontrol
from healthd.remediation.records.handoff import Versions
from healthd.sources.command import run_command
from healthd.sources.machine import Machine
from healthd.state.monitor import Monitor
from healthd.state.store import Store

if TYPE_CHECKING:  # it loads lightkube, which a node of Slurm need not have
    from healthd.remediation.orchestrators.kubernetes.gpu_clients import OwnNode
    from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator

_CALM_S = 30.0
_READS_FLEET = msgspec.json.Decoder(FleetSnapshot)
_ABOUT_PODS = ", and no unit stops them; pods of NVIDIA's GPU Operator: [orchestrator.kubernetes] pause_gpu_operator"


class Cluster(Struct, frozen=True, kw_only=True):
    """Arguments of an engine's parts. ``settle_s``, ``unanswered_s``, ``calm_s``: seconds, see SlotKeeper and the
    engine's timeouts. ``quotas``: how many nodes may be out, by scope. ``opt_out``: the feature of the node by which an
    operator opts it out, and the cluster's word for such a feature. ``records``, ``scontrol``, ``own_node``: see
    open_provisioner. ``gpu_clients``: services that hold the GPUs and may be stopped for a reset; ``clients_help``: the
    advice about those that may not. ``jobs``: restarts the jobs of the node; None where the cluster has no such jobs.
    """

    settle_s: float
    quotas: Callable[[], Mapping[str, str | int]]
    opt_out: tuple[str, str]
    unanswered_s: float = 0.0
    calm_s: float = 0.0
    records: Orchestrator | None = None
    scontrol: Scontrol | None = None
    own_node: OwnNode | None = None
    gpu_clients: Clients | None = None
    clients_help: str = ""
    jobs: JobControl | None = None


def cluster_of(config: Config, orchestrator: Orchestrator) -> Cluster:
    """That of the node which this orchestrator takes out of service."""
    if (kubernetes := as_kubernetes(orchestrator)) is not None:
        return _kubernetes(config, kubernetes)
    opt_out, quotas = (config.remediation.opt_out_feature, FEATURE), config.budget.quotas
    if isinstance(orchestrator, SlurmOrchestrator):
        return Cluster(
            settle_s=config.budget.settle_s,
            quotas=lambda: quotas,
            opt_out=opt_out,
            unanswered_s=config.orchestrator.slurm.unanswered_s,
            records=orchestrator,
            scontrol=orchestrator.scontrol,
            jobs=SlurmJobs(orchestrator),
        )
    return Cluster(settle_s=0.0, quotas=lambda: quotas, opt_out=opt_out)  # it has nobody to wait for


def as_kubernetes(orchestrator: Orchestrator | None) -> KubernetesOrchestrator | None:
    """The orchestrator where it is that of Kubernetes, else None."""
    if orchestrator is None or orchestrator.kind != "kubernetes":
        return None
    from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator

    assert isinstance(orchestrator, KubernetesOrchestrator)  # noqa: S101 - its kind says so
    return orchestrator


def _kubernetes(config: Config, orchestrator: KubernetesOrchestrator) -> Cluster:
    """A patch says what it changes, so that none can meet what came after it: nothing is waited for. Many nodes may be
    out for days, and one API server hears all of them. The Leases say how many may be, where the server holds all to
    it. A label of the Node is among its features, and read with its state."""
    from healthd.remediation.orchestrators.kubernetes.gpu_clients import KubeGpuClients

    stops = config.orchestrator.kubernetes.pause_gpu_operator
    return Cluster(
        settle_s=config.budget.settle_s,
        quotas=orchestrator.quotas,
        opt_out=(config.remediation.opt_out_label, LABEL),
        calm_s=min(_CALM_S, config.remediation.settle_s),
        records=orchestrator,
        own_node=orchestrator,
        gpu_clients=KubeGpuClients(orchestrator) if stops else None,
        clients_help=_ABOUT_PODS,
    )


# ---------------------------------------------------------------------------------------------------------------------
# the orchestrator


def open_orchestrator(config: Config, machine: Machine, environ: Mapping[str, str]) -> Orchestrator:
    """The orchestrator that the configuration names, or the one that this node runs."""
    if runs_kubernetes(config, environ):
        return _open_kubernetes(config, machine.name, environ)
    if runs_slurm(config, environ):
        return SlurmOrchestrator.of(config, machine.name)
    return LocalOrchestrator(
        node=machine.name,
        state_dir=Path(config.daemon.state_dir),
        dev_root=Path(config.sources.dev_root),
        proc_root=Path(config.sources.proc_root),
        ignore_pids=lambda: [pid for pid in (machine.nvml.worker_pid(),) if pid is not None],
    )


_ORCHESTRATOR = "orchestrator"
"""Under which key the store keeps the kind of the orchestrator that was opened last."""


def as_before(orchestrator: Orchestrator, config: Config, name: str, store: Store) -> Orchestrator:
    """The orchestrator that was found, or Slurm's where ``kind = "auto"`` finds none on a node that was Slurm's.

    A node that slurmctld configures shows no sign of Slurm after a boot until its slurmd is up. Without a cluster
    healthd would take its own drain for undone, which acknowledges the fault. Raises StoreError.
    """
    before, kind = store.fact(_ORCHESTRATOR) or "local", orchestrator.kind
    if config.orchestrator.kind == "auto" and (before, kind) == ("slurm", "local"):
        return SlurmOrchestrator.of(config, name)
    if before != kind:
        with contextlib.suppress(StoreError):  # a full disk: the next start finds it as it is
            store.keep(_ORCHESTRATOR, kind)
    return orchestrator


def _open_kubernetes(config: Config, node: str, environ: Mapping[str, str]) -> Orchestrator:
    """The back end is imported where it is used: it loads lightkube. Raises ExtraMissing where that is not there."""
    try:
        from healthd.remediation.orchestrators.kubernetes import from_config as kubernetes
    except ImportError as error:
        raise ExtraMissing("orchestrator.kind = kubernetes", error) from error
    return kubernetes.open_orchestrator(config, kubernetes.open_api(config, environ), node)


def open_absent(config: Config, name: str, orchestrator: Orchestrator, policy: Policy) -> AbsentWatch | None:
    """The watch that releases held nodes which Slurm has powered down; None where the cluster is not Slurm."""
    if not isinstance(orchestrator, SlurmOrchestrator):
        return None
    cluster = cluster_of(config, orchestrator)
    absent = AbsentNodes(
        node=lambda name: SlurmOrchestrator.of(config, name),
        rules=lambda: rules_of(config, policy, cluster.opt_out),
        timeouts=timeouts_of(config, cluster),
        monotonic_s=time.monotonic,
    )
    return AbsentWatch(absent, orchestrator, name)


# ---------------------------------------------------------------------------------------------------------------------
# the engine


FLEET = "fleet"
"""Under which key the store keeps the fleet as it was read last."""

_RESET_PAUSE_S = 330.0  # a little longer than the reset's own deadline; it ends with the reset
_RESET_REASON = "the GPUs are being reset"
_RESET_LASTS = timedelta(seconds=Timeouts().let_go_s + _RESET_PAUSE_S)  # at most, with the wait for its holders


def make_engine(
    *,
    config: Config,
    machine: Machine,
    monitor: Monitor,
    checkup: Checkup,
    store: Store,
    orchestrator: Orchestrator,
    policy: Policy,
    collect: Callable[[Remediation], str],
    upload: Callable[[Remediation], str] = lambda _: "",
    run: Callable[..., CommandResult] = run_command,
    after_reset: Callable[[], None] = lambda: None,
    beat: Heartbeat | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    monotonic_s: Callable[[], float] = time.monotonic,
    by_job: Sequence[Match] = (),
) -> Engine:
    """The engine of this node. ``collect`` saves the evidence of a remediation and returns where, ``upload`` puts it
    into the site's bucket. ``run``: how repairs run commands; tests count them. ``after_reset`` is called after each
    GPU reset. ``beat``: the engine's sign of life, with the time that the evidence and each command may take. ``clock``
    and ``monotonic_s``: the engine's own; budget slots settle by the machine's. ``by_job``: the matches by the job on
    this node. Raises ConfigError where nothing tells the jobs."""
    beat, cluster = beat or Heartbeat(), cluster_of(config, orchestrator)
    run, bounds = beat.announcing(run), bounds_of(config.policy)
    jobs_here = jobs_of(by_job, orchestrator, monotonic_s)
    # There the next machine comes under another name, and the handoff record goes with the Node.
    uncounted = frozenset({Remedy.REPLACE_NODE} if orchestrator.kind == "kubernetes" else ())
    revision = cache(partial(revision_of, __version__, policy, bounds))
    driver = DriverAtFault(lambda: driver_of(machine))

    runs_tests = config.remediation.active_tests
    if monitor.boot_id == boot_id_or_unknown(machine):  # else a reboot has ended whatever it brought about
        _know_interrupted(checkup.own_resets, store.open_remediation(), clock())

    def rules() -> Rules:
        made = rules_of(config, policy, cluster.opt_out, clock())
        now = jobs_here.mode(made.mode, is_calling=bool(by_job and monitor.diagnoses()))
        decider = revision(driver(monitor.history.faults))
        return replace(made, mode=now.mode, by_job=now.why, revision=decider, uncounted=uncounted)

    def announced(remediation: Remediation) -> str:
        beat(config.evidence.timeout_s)  # its commands run side by side, in threads of their own
        return collect(remediation)

    def announced_upload(remediation: Remediation) -> str:
        beat(config.evidence.upload_timeout_s)
        return upload(remediation)

    return Engine(
        Dependencies(
            orchestrator=orchestrator,
            provisioner=provisioner_of(
                config,
                machine,
                orchestrator,
                made_by_us=lambda reason: reason in OUR_TEXTS and store.open_remediation() is not None,
                run=run,
            ),
            resetter=_resetter(
                config,
                machine,
                cluster,
                run,
                after_reset,
                resets=checkup.own_resets,
                clock=clock,
                owe=lambda why: owe(monitor, why, clock()),
            ),
            slots=_slots(machine, orchestrator, cluster, store),
            judgement=monitor,
            remediations=store,
            rules=rules,
            ledger=lambda: repairs_of(store.remediations()),
            versions=versions_of(machine),
            hindsight=JournalHindsight(checkup, machine.proc),
            jobs=cluster.jobs,
            collect=announced,
            upload=announced_upload,
            run_tests=lambda tick: found_by_tests(machine, orchestrator, checkup, tick) if runs_tests else "",
            recheck=checkup.start_older_than,
            timeouts=timeouts_of(config, cluster),
            platform_texts=OUR_TEXTS | MANAGERS_TEXTS,
            beat=beat,
            clock=clock,
            monotonic_s=monotonic_s,
        )
    )


def found_by_tests(machine: Machine, orchestrator: Orchestrator, checkup: Checkup, tick: Callable[[], None]) -> str:
    """Run the active tests of a node that is verified. Returns what is open of them then, in a sentence, or "": a test
    that cannot run ends no earlier finding, and the audit trail says why. An installation that lacks a library, and
    what an operator acknowledged, keep no node out. An exception of ``tick`` ends the tests, and is passed on."""
    names = [name for name, check in checkup.checks.items() if check.on == "active"]
    if not names:
        return ""
    from healthd.observe.idle import not_idle  # nearly every reconcile is without active tests

    if (busy := not_idle(machine, orchestrator)) is not None:
        text = f"the active tests do not run: {busy.why}"
        checkup.monitor.record(Event(at=datetime.now(UTC), kind="check", text=text))
    else:
        checkup.run_active(names, lambda _: tick())
    faults = [fault for name in names for fault in checkup.monitor.faults_of(name)]
    holding = [fault for fault in faults if not fault.acknowledged and fault.code != FALLBACK.code]
    return "; ".join(f"{fault.code} was found: {fault.message}" for fault in holding)


def jobs_of(matches: Sequence[Match], orchestrator: Orchestrator, monotonic_s: Callable[[], float]) -> JobsHere:
    """The jobs of this node for the matches by job; none on a node without a cluster. Raises ConfigError where the
    cluster does not tell them."""
    if matches and orchestrator.kind == "kubernetes":
        places = ", ".join(each.place for each in matches)
        raise ConfigError((f"{places}: {NO_JOBS}; remove the job_ conditions, or match by label",))
    read = orchestrator.running if isinstance(orchestrator, SlurmOrchestrator) else tuple
    return JobsHere(matches, read, monotonic_s)


def provisioner_of(
    config: Config,
    machine: Machine,
    orchestrator: Orchestrator,
    *,
    made_by_us: Callable[[str], bool] | None = None,
    run: Callable[..., CommandResult] = run_command,
) -> Provisioner:
    """The back end that reboots or replaces this machine. See ``open_provisioner``; raises ConfigError."""
    from healthd.remediation.provisioners.from_config import open_provisioner  # all kinds; an observing agent has none

    cluster = cluster_of(config, orchestrator)
    return open_provisioner(
        config,
        machine,
        cluster.scontrol,
        made_by_us=made_by_us,
        run=run,
        records=cluster.records,
        own_node=cluster.own_node,
    )


def _slots(machine: Machine, orchestrator: Orchestrator, cluster: Cluster, store: Store) -> SlotKeeper:
    """The places of this node in the budget."""
    known, known_age_s = fleet_of(store.fact(FLEET), datetime.now(UTC))
    return SlotKeeper(
        orchestrator=orchestrator,
        node=machine.name,
        quotas=cluster.quotas,
        monotonic_s=time.monotonic,
        random=random.SystemRandom().random,
        settle_s=cluster.settle_s,
        known=known,
        known_age_s=known_age_s,
    )


def fleet_of(kept: str, now: datetime) -> tuple[FleetSnapshot | None, float]:
    """The fleet as a daemon before this one read it, and how long ago that was in seconds; None where it did not, or
    kept it in another form, or by a clock that was set back since: it is worth one reading of the fleet, and no more.
    """
    at, _, body = kept.partition(" ")
    try:
        age_s = (now - datetime.fromisoformat(at)).total_seconds()
        return (_READS_FLEET.decode(body), age_s) if age_s >= 0 else (None, 0.0)
    except (*NOT_JSON, TypeError):
        return None, 0.0


def kept_of(fleet: FleetSnapshot, at: datetime) -> str:
    """A reading of the fleet as it is kept."""
    return f"{at.isoformat()} {msgspec.json.encode(fleet).decode()}"


def _resetter(
    config: Config,
    machine: Machine,
    cluster: Cluster,
    run: Callable[..., CommandResult],
    after: Callable[[], None],
    *,
    resets: OwnResets,
    clock: Callable[[], datetime],
    owe: Callable[[str], None],
) -> GpuReset:
    """The reset of this machine's GPUs. NVML is left alone while it lasts: our worker would hold them open."""
    nvml = machine.nvml

    def let_go() -> None:
        resets.begin(clock())
        nvml.pause(_RESET_PAUSE_S, _RESET_REASON)
        nvml.close()

    return GpuReset(
        allowed=config.remediation.gpu_reset,
        clients=cluster.gpu_clients,
        help_=cluster.clients_help,
        services=config.remediation.reset_services,
        run=run,
        let_go=let_go,
        take_up=lambda: nvml.resume(_RESET_REASON),
        after=after,
        over=lambda: resets.end(clock()),
        owe=owe,
        own_pids=lambda: [pid for pid in (nvml.worker_pid(),) if pid is not None],
        proc_root=Path(config.sources.proc_root),
        dev_root=Path(config.sources.dev_root),
    )


def _know_interrupted(resets: OwnResets, left: Remediation | None, now: datetime) -> None:
    """Note the reset that the daemon before this one may have been ended in the middle of: its lines are unread."""
    if left is not None and left.step is Step.RESET and left.phase is Phase.INTENDED:
        resets.begin(left.since)
        resets.end(min(now, left.since + _RESET_LASTS))


def owe(monitor: Monitor, why: str, now: datetime) -> None:
    """Open the fault that only a reset ends. It is no look of the check that declares it: the gap ends nothing."""
    result = judged([OWED.at(NODE, why)], undecided=[why])
    monitor.absorb(Outcome(check="gpu.recovery", result=result, at=now, duration_s=0.0), past=True)


def timeouts_of(config: Config, cluster: Cluster) -> Timeouts:
    """How long this node's engine waits for what, as configured."""
    remediation = config.remediation
    return Timeouts(
        settle_s=remediation.settle_s,
        verify_timeout_s=remediation.verify_timeout_s,
        reboot_timeout_s=remediation.reboot_timeout_s,
        replace_timeout_s=remediation.replace_timeout_s,
        unanswered_s=cluster.unanswered_s,
        max_attempts=remediation.max_attempts,
        calm_s=cluster.calm_s,
        overdue_s=remediation.overdue_s,
        wait_idle_timeout_s=remediation.wait_idle_timeout_s,
        undrain_holds_s=remediation.undrain_holds_s,
    )


def versions_of(machine: Machine) -> Callable[[], Versions]:
    """The versions on this machine, read at each call: not by NVML, which may hang after a fault, and by IMDS once,
    for an image never changes."""

    @cache
    def image() -> str:
        return _told(lambda: machine.imds.read("ami-id"))

    return lambda: Versions(
        driver=driver_of(machine), kernel=_told(lambda: machine.proc.read("sys/kernel/osrelease")), image=image()
    )


def driver_of(machine: Machine) -> str:
    """The version of the NVIDIA driver that is loaded, or ""."""
    return _told(lambda: machine.sys.read("module/nvidia/version"))


def domain_of(outcomes: Mapping[str, Outcome]) -> str:
    """The NVLink domain that the GPUs of this node are in, as eight hexadecimal digits; "" where it is not known."""
    fabric = outcomes.get("gpu.fabric")
    readings = fabric.result.readings if fabric is not None else ()
    return next((f"{int(each.value):08x}" for each in readings if each.name == DOMAIN), "")


def _told(read: Callable[[], str | None]) -> str:
    """The text, or "" where it cannot be read."""
    try:
        return (read() or "").strip()
    except SourceError:
        return ""
