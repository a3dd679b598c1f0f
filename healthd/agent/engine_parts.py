"""Puts one node's engine together from its configuration: rules, budget slots, reset, provisioner.

Nothing runs here, and nothing is decided here.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec

from healthd.agent.cluster import Cluster, cluster_of
from healthd.agent.hindsight import JournalHindsight
from healthd.checks.gpu_recovery import OWED
from healthd.config.schema.config import Config
from healthd.core.check import judged
from healthd.core.errors import SourceError
from healthd.core.model import NODE, Outcome
from healthd.core.node import CommandResult
from healthd.judge.own_reset import OwnResets
from healthd.observe.checkup import Checkup
from healthd.remediation.decide.handoff import Versions
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import Policy, by_label
from healthd.remediation.engine.dependencies import Dependencies, Timeouts
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.gpu_reset import GpuReset
from healthd.remediation.engine.heartbeat import Beat
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.policy_files import bounds_of
from healthd.remediation.ports import FleetSnapshot, Orchestrator, Provisioner
from healthd.remediation.provisioners.slurm_node import MANAGERS_TEXTS, OUR_TEXTS
from healthd.sources.command import run_command
from healthd.sources.machine import Machine
from healthd.state.monitor import Monitor
from healthd.state.store import Store

FLEET = "fleet"
"""Under which key the store keeps the fleet as it was read last."""

_RESET_PAUSE_S = 330.0  # a little longer than the reset's own deadline; it ends with the reset
_RESET_REASON = "the GPUs are being reset"


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
    run: Callable[..., CommandResult] = run_command,
    after_reset: Callable[[], None] = lambda: None,
    beat: Beat | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Engine:
    """The engine of this node. ``collect`` saves the evidence of a remediation and returns where. ``run``: how repairs
    run commands; tests count them. ``after_reset`` is called after each GPU reset. ``beat``: the engine's sign of life,
    with the time that the evidence and each command may take. ``clock`` and ``monotonic_s``: the engine's own; budget
    slots settle by the machine's."""
    beat, cluster = beat or Beat(), cluster_of(config, orchestrator)
    run = beat.announcing(run)

    def announced(case: Remediation) -> str:
        beat(config.evidence.timeout_s)  # its commands run side by side, in threads of their own
        return collect(case)

    return Engine(
        Dependencies(
            orchestrator=orchestrator,
            provisioner=provisioner_of(
                config,
                machine,
                orchestrator,
                made_by_us=lambda reason: reason in OUR_TEXTS and store.open_case() is not None,
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
            cases=store,
            rules=lambda: rules_of(config, policy, cluster),
            ledger=lambda: repairs_of(store.cases()),
            versions=versions_of(machine),
            hindsight=JournalHindsight(checkup, machine.proc),
            collect=announced,
            look_again=checkup.start_older_than,
            patience=patience_of(config, cluster),
            platform_texts=OUR_TEXTS | MANAGERS_TEXTS,
            beat=beat,
            clock=clock,
            monotonic_s=monotonic_s,
        )
    )


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
        marks=cluster.marks,
        asking=cluster.asking,
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
        return (msgspec.json.decode(body, type=FleetSnapshot), age_s) if age_s >= 0 else (None, 0.0)
    except (msgspec.MsgspecError, ValueError, TypeError):
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


def owe(monitor: Monitor, why: str, now: datetime) -> None:
    """Open the fault that only a reset ends. It is no look of the check that declares it: the gap ends nothing."""
    result = judged([OWED.at(NODE, why)], gaps=[why])
    monitor.absorb(Outcome(check="gpu.recovery", result=result, at=now, duration_s=0.0), past=True)


def patience_of(config: Config, cluster: Cluster) -> Timeouts:
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
        idle_patience_s=remediation.idle_patience_s,
        undrain_holds_s=remediation.undrain_holds_s,
    )


def rules_of(config: Config, policy: Policy, cluster: Cluster) -> Rules:
    """The operator's rules for this node, as configured; each call checks for the opt-out file."""
    remediation, (feature, called) = config.remediation, cluster.opt_out
    opt_out = remediation.opt_out_file
    by_file = f"{opt_out} exists" if opt_out and os.path.exists(opt_out) else ""
    return Rules(
        mode=remediation.mode,
        max_out=config.budget.max_out,
        replacements_per_hour=config.budget.replacements_per_hour,
        replacements_per_day=config.budget.replacements_per_day,
        opted_out=by_file or by_label(config.node.labels, remediation.opt_out_label),
        opt_out_feature=feature,
        feature_is=called,
        adopt_automatic=config.orchestrator.slurm.adopt_automatic_drains,
        policy=policy,
        bounds=bounds_of(config.policy),
    )


def versions_of(machine: Machine) -> Callable[[], Versions]:
    """The versions on this machine, read at each call: not by NVML, which may hang after a fault, and by IMDS once,
    for an image never changes."""

    @cache
    def image() -> str:
        return _told(lambda: machine.imds.read("ami-id"))

    return lambda: Versions(
        driver=_told(lambda: machine.sys.read("module/nvidia/version")),
        kernel=_told(lambda: machine.proc.read("sys/kernel/osrelease")),
        image=image(),
    )


def _told(read: Callable[[], str | None]) -> str:
    """The text, or "" where it cannot be read."""
    try:
        return (read() or "").strip()
    except SourceError:
        return ""
