"""The metrics page of a node's daemon: a snapshot of the agent, made at each scrape.

A scrape asks neither the machine nor the cluster; it reads the daemon's memory and its store. ``metric_families`` has
the bound of a page, and the metrics that the controller's page has as well.

Prometheus wants base units in full, and no ``_count`` on a gauge; checks name their readings with short units, which
the store keeps. Source: prometheus.io/docs/practices/naming, as ``promtool check metrics`` holds names to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from healthd import __version__
from healthd.agent.agent import Agent
from healthd.api.metric_families import Bounded, budget, notifications, one_of, started, store_failing
from healthd.core.check import Check
from healthd.core.errors import StoreError
from healthd.core.model import NODE, Action, Mode, Outcome, ReadingKind, Refusal, Severity, Status, Step, Verdict
from healthd.drill.chain import KINDS, Ended
from healthd.job.blame import Blame
from healthd.judge.history import Fault, History, canonical
from healthd.remediation.decide.approval import awaited
from healthd.remediation.decide.on_job import JobOutcome
from healthd.remediation.decide.remediation import Approval


class MetricsPage(Bounded):
    """The page of one agent. Label values are bounded: checks, codes and components of this node. ``began_s``: when the
    process began, monotonic; None: now.

    It remembers which components each check has read, so that one that is no longer reported is unknown, not gone.
    """

    def __init__(self, agent: Agent, *, began_s: float | None = None) -> None:
        self._agent, self._health = agent, Health()
        self._began_s = time.monotonic() if began_s is None else began_s
        self._began = time.time() - (time.monotonic() - self._began_s)

    def families(self) -> Iterator[Metric]:
        """Every metric of the node."""
        yield from self._node()
        yield from self._checks()
        yield from self._duties()
        yield from self._faults()
        yield from self._readings()
        yield from self._workers()
        yield from self._acts()
        yield from budget(self._agent.engine.budget() if self._agent.engine else ())
        yield from notifications(self._agent.notifier)
        yield from self._drilled()

    def _node(self) -> Iterator[Metric]:
        agent, machine = self._agent, self._agent.machine
        info = GaugeMetricFamily(
            "healthd_node_info",
            "Always 1; the identity of this node, and its mode",
            labels=["node", "instance_type", "instance_id", "mode", "orchestrator", "version"],
        )
        kind = agent.orchestrator.kind if agent.orchestrator else ""
        identity = (machine.name, machine.instance_type or "", machine.identity.instance_id)
        info.add_metric([*identity, agent.mode, kind, __version__], 1)
        yield info
        yield started(self._began)
        yield one_of(
            GaugeMetricFamily("healthd_mode", "1 for the mode of this node", labels=["mode"]), Mode, agent.mode
        )
        yield one_of(
            GaugeMetricFamily("healthd_verdict", "1 for the verdict of the node", labels=["verdict"]),
            Verdict,
            agent.monitor.verdict(agent.monitor.outcomes().values()),
        )
        opted_out = bool(agent.engine.opted_out()) if agent.engine else False
        yield GaugeMetricFamily(
            "healthd_opted_out", "1 while an opt-out of this node makes healthd only observe", value=opted_out
        )

    def _checks(self) -> Iterator[Metric]:
        status = GaugeMetricFamily(
            "healthd_check_status", "1 for the outcome of the last run of a check", labels=["check", "status"]
        )
        age = GaugeMetricFamily("healthd_check_last_run_seconds", "Seconds since a check last ran", labels=["check"])
        success = GaugeMetricFamily(
            "healthd_last_success_seconds",
            "Seconds since a check was last not unknown, or since the daemon started where it always was; optional "
            "checks have none",
            labels=["check"],
        )
        interval = GaugeMetricFamily(
            "healthd_check_interval_seconds",
            "How often a check runs; without those that are optional",
            labels=["check"],
        )
        took = GaugeMetricFamily(
            "healthd_check_duration_seconds", "Duration of the last run of a check", labels=["check"]
        )
        ran = SummaryMetricFamily(
            "healthd_check_run_seconds", "Runs of a check, and their total duration", labels=["check"]
        )
        kept = GaugeMetricFamily(
            "healthd_check_readings_age_seconds",
            "Age of the readings that a check keeps while their source is paused; 0 where it keeps none",
            labels=["check"],
        )
        unknown = CounterMetricFamily(
            "healthd_check_unknown_runs", "Runs of a check that were unknown or partial", labels=["check"]
        )
        monitor, now = self._agent.monitor, datetime.now(UTC)
        outcomes, runs = monitor.outcomes(), monitor.stats.runs.copy()
        for name in self._agent.checkup.checks:
            outcome, counted = outcomes.get(name), runs.get(name)
            for value in Status:
                status.add_metric([name, value], float(outcome is not None and outcome.result.status is value))
            if outcome is not None:
                age.add_metric([name], max(0.0, (now - outcome.at).total_seconds()))
                took.add_metric([name], outcome.duration_s)
                read_at = outcome.read_at or now
                kept.add_metric([name], max(0.0, (now - read_at).total_seconds()))
            if not self._agent.checkup.is_optional(name):
                reported = (now - counted.told).total_seconds() if counted and counted.told else None
                success.add_metric([name], time.monotonic() - self._began_s if reported is None else max(0.0, reported))
                interval.add_metric([name], self._agent.checkup.interval_s(name))
            ran.add_metric([name], counted.total if counted else 0, counted.took_s if counted else 0.0)
            unknown.add_metric([name], counted.unknown if counted else 0)
        yield from (status, age, success, interval, took, ran, kept, unknown)

    def _duties(self) -> Iterator[Metric]:
        """The daemon's own duties, as the events of its scheduler count them."""
        ran = SummaryMetricFamily(
            "healthd_duty_run_seconds", "Runs of a duty of the daemon, and how long they took together", labels=["duty"]
        )
        failed = CounterMetricFamily(
            "healthd_duty_failed_runs", "Runs of a duty that ended in a defect of healthd", labels=["duty"]
        )
        missed = CounterMetricFamily(
            "healthd_duty_missed_runs",
            "Runs of a duty that were due while the one before was under way",
            labels=["duty"],
        )
        age = GaugeMetricFamily(
            "healthd_duty_last_success_seconds",
            "Seconds since a duty last came to its end, or since the daemon began",
            labels=["duty"],
        )
        for name, runs in self._agent.duties.items():
            ran.add_metric([name], runs.done, runs.took_s)
            failed.add_metric([name], runs.failed)
            missed.add_metric([name], runs.missed)
            age.add_metric([name], time.monotonic() - runs.last_s)
        yield from (ran, failed, missed, age)

    def _faults(self) -> Iterator[Metric]:
        monitor, checks = self._agent.monitor, self._agent.checkup.checks
        health = GaugeMetricFamily(
            "healthd_component_health",
            "Health of a component by a check: 0 ok, 1 warning, 2 unknown, 3 critical; component node also stands for "
            "the check itself",
            labels=["check", "component"],
        )
        for labels, worst in self._health.of(checks, monitor.outcomes(), monitor.history).items():
            health.add_metric(labels, worst)
        found = CounterMetricFamily(
            "healthd_findings", "Faults, each counted once when it opened", labels=["check", "code"]
        )
        opened = {(name, code.code): 0 for name, check in checks.items() for code in check.codes}
        for labels, count in {**opened, **monitor.stats.opened}.items():
            found.add_metric(labels, count)
        faults = GaugeMetricFamily(
            "healthd_fault_occurrences", "Occurrences of each open fault", labels=["code", "component", "severity"]
        )
        age = GaugeMetricFamily(
            "healthd_fault_age_seconds", "Seconds since each open fault began", labels=["code", "component", "severity"]
        )
        now = datetime.now(UTC)
        for fault in monitor.history.faults.values():
            which = [fault.code, str(fault.component), fault.severity]
            faults.add_metric(which, fault.count)
            age.add_metric(which, max(0.0, (now - fault.first).total_seconds()))
        acknowledged = sum(fault.acknowledged for fault in monitor.history.faults.values())
        yield from (health, found, faults, age)
        yield GaugeMetricFamily(
            "healthd_faults_acknowledged", "Open faults that an operator has acknowledged", value=acknowledged
        )

    def _readings(self) -> Iterator[Metric]:
        """The readings of the last runs. If two checks read the same value it appears once: node_exporter refuses a
        page with a duplicate sample."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        history, seen = self._agent.monitor.history, set()
        for outcome in self._agent.monitor.outcomes().values():
            for reading in outcome.result.readings:
                name, scale = metric_of(reading.name)
                part = str(canonical(history, reading.component))
                if (name, part) in seen:
                    continue
                seen.add((name, part))
                kind = CounterMetricFamily if reading.kind is ReadingKind.COUNTER else GaugeMetricFamily
                family = families.setdefault(name, kind(name, f"Reading {reading.name}", labels=["component"]))
                family.add_metric([part], reading.value * scale)
        yield from families.values()

    def _workers(self) -> Iterator[Metric]:
        machine = self._agent.machine
        log, states = machine.kernel_log, {"nvml": machine.nvml.state(), **machine.file_systems.states()}
        yield GaugeMetricFamily("healthd_kernel_log_idle_seconds", "Since the reader last polled", value=log.idle_s)
        stalled = GaugeMetricFamily(
            "healthd_worker_stalled_seconds", "Since the first request that a worker did not answer", labels=["worker"]
        )
        stalls = CounterMetricFamily(
            "healthd_worker_stalls", "Requests that a worker did not answer in time", labels=["worker"]
        )
        paused = GaugeMetricFamily(
            "healthd_worker_paused_seconds", "Time until a worker is asked again", labels=["worker"]
        )
        stuck = GaugeMetricFamily(
            "healthd_worker_abandoned",
            "Workers that were killed and live on, in uninterruptible sleep",
            labels=["worker"],
        )
        restarts = CounterMetricFamily("healthd_worker_restarts", "Restarts of a worker", labels=["worker"])
        for name, state in states.items():
            stalled.add_metric([name], state.stalled_s)
            stalls.add_metric([name], state.stalls)
            paused.add_metric([name], state.paused_s)
            stuck.add_metric([name], state.abandoned)
            restarts.add_metric([name], state.restarts)
        yield from (stalled, stalls, paused, stuck, restarts)

    def _acts(self) -> Iterator[Metric]:
        stats = self._agent.engine.stats if self._agent.engine else None
        decided = CounterMetricFamily(
            "healthd_decisions", "Decisions, each counted once when it is new", labels=["action"]
        )
        for action in Action:
            decided.add_metric([action], stats.decided[action] if stats else 0)
        now = self._agent.engine.decision.action if self._agent.engine else None
        yield one_of(
            GaugeMetricFamily("healthd_decision", "1 for the current decision", labels=["action"]), Action, now
        )
        refused = CounterMetricFamily(
            "healthd_refusals", "Refusals and waits, each counted once when it is new", labels=["reason"]
        )
        for reason in Refusal:
            refused.add_metric([reason], stats.refused[reason] if stats else 0)
        steps = SummaryMetricFamily(
            "healthd_step_duration_seconds",
            "Steps that ended, and their total duration, waiting included",
            labels=["step"],
        )
        for step in Step:
            steps.add_metric([step], stats.steps[step] if stats else 0, stats.steps_s[step] if stats else 0.0)
        yield from (decided, refused, steps)
        yield from self._remediation()
        hooks = CounterMetricFamily(
            "healthd_hooks",
            "Slurm hooks answered; only a prolog refuses, only an epilog blames the node",
            labels=["kind", "verdict", "answer"],
        )
        for labels, count in self._agent.hooks.copy().items():
            hooks.add_metric(labels, count)
        unseen = CounterMetricFamily(
            "healthd_hooks_unanswered",
            "Slurm hooks without an answer since the machine booted; a prolog among them let its job pass",
            labels=["kind"],
        )
        for kind, count in (self._agent.unseen.counted() if self._agent.unseen else {}).items():
            unseen.add_metric([kind], count)
        ended = CounterMetricFamily(
            "healthd_jobs",
            "Slurm jobs that ended on this node, by whose fault it was; none: the job completed",
            labels=["verdict"],
        )
        for blame in Blame:
            ended.add_metric([blame], self._agent.job_verdicts.counted[blame] if self._agent.job_verdicts else 0)
        restarts = CounterMetricFamily(
            "healthd_job_restarts",
            "Acts of on_job on Slurm jobs that could not go on: signalled, requeued, or left to themselves",
            labels=["act"],
        )
        for outcome in JobOutcome:
            restarts.add_metric([outcome], self._agent.engine.job_outcomes[outcome] if self._agent.engine else 0)
        yield from (hooks, unseen, ended, restarts)

    def _remediation(self) -> Iterator[Metric]:
        failing = bool(self._agent.monitor.store_problem)
        at: Step | None = None
        approval: Approval | None = None
        try:
            remediation = self._agent.store.open_remediation() if self._agent.store else None
            at, approval = remediation.step if remediation is not None else None, awaited(remediation)
        except StoreError:
            failing = True
        yield one_of(
            GaugeMetricFamily(
                "healthd_remediation_step", "1 for the current step of the open remediation", labels=["step"]
            ),
            Step,
            at,
        )
        waits = GaugeMetricFamily(
            "healthd_approval_wait_seconds",
            'How long an act has waited for `healthd approve` (mode "approve"); absent while none waits',
            labels=["remedy"],
        )
        if approval is not None:
            waits.add_metric([approval.remedy], max(0.0, (datetime.now(UTC) - approval.asked).total_seconds()))
        yield waits
        yield store_failing(failing)

    def _drilled(self) -> Iterator[Metric]:
        drills = self._agent.drills
        yield one_of(
            GaugeMetricFamily("healthd_drill_running", "1 for the fault that a drill plays now", labels=["kind"]),
            KINDS,
            drills.running if drills else None,
        )
        ended = CounterMetricFamily(
            "healthd_drills", "Drills, by the fault that was played and the result", labels=["kind", "result"]
        )
        for kind in KINDS:
            for result in Ended:
                ended.add_metric([kind, result], drills.ran[kind, result] if drills else 0)
        yield ended


OK, WARNING, UNKNOWN, CRITICAL = 0.0, 1.0, 2.0, 3.0
_OF: Mapping[Severity, float] = {Severity.INFO: OK, Severity.WARNING: WARNING, Severity.CRITICAL: CRITICAL}


class Health:
    """The health of each component by each check, as one number: 0 ok, 1 warning, 2 unknown, 3 critical.

    Remembers the components that each check read in its last complete run: one that it can no longer read is unknown,
    not dropped. One call covers all checks.
    """

    def __init__(self) -> None:
        self._known: dict[str, frozenset[str]] = {}

    def of(
        self, checks: Mapping[str, Check], outcomes: Mapping[str, Outcome], history: History
    ) -> dict[tuple[str, str], float]:
        """The worst health by check and component. Every check that runs on an interval has ``node``, which is unknown
        before its first run."""
        health: dict[tuple[str, str], float] = {}
        for name, check in checks.items():
            outcome = outcomes.get(name)
            if outcome is None and check.on == "active":
                continue
            faults = [fault for fault in history.faults.values() if fault.check == name]
            for component, worst in self._check(name, outcome, faults, history).items():
                health[name, component] = worst
        return health

    def _check(self, name: str, outcome: Outcome | None, faults: Iterable[Fault], history: History) -> dict[str, float]:
        readings = outcome.result.readings if outcome and outcome.read_at is None else ()  # kept readings are old
        read = frozenset(str(canonical(history, reading.component)) for reading in readings)
        could_tell = outcome is not None and outcome.result.is_whole
        known = read if could_tell else read | self._known.get(name, frozenset())
        self._known[name] = known
        health = {part: OK if part in read else UNKNOWN for part in sorted(known)}
        health[str(NODE)] = OK if could_tell else UNKNOWN
        for fault in faults:
            part = str(fault.component)
            health[part] = max(health.get(part, OK), _OF[fault.severity])
        return health


_UNITS: Mapping[str, tuple[str, float]] = {
    "c": ("celsius", 1.0),
    "w": ("watts", 1.0),
    "mhz": ("hertz", 1e6),
    "ms": ("seconds", 1e-3),
    "s": ("seconds", 1.0),
    "mib": ("bytes", float(1 << 20)),
    "bool": ("", 1.0),
}
_RATES: Mapping[str, tuple[str, float]] = {
    "_bytes_per_s": ("_bytes_per_second", 1.0),
    "_gb_s": ("_bytes_per_second", 1e9),
}
_NAMES: Mapping[str, str] = {
    "cpus_online_count": "cpus_online",
    "efa_device_count": "efa_devices",
    "efa_domain_count": "efa_domains",
    "gdrcopy_good_gpus_count": "gdrcopy_good_gpus",
    "gpu_pci_count": "gpu_pci_devices",
    "gpu_process_count": "gpu_processes",
    "imex_domain_gpu_count": "imex_domain_gpus",
    "zombies_count": "zombies",
}
"""Counts of things, in the plural; a count that is not listed only loses its ending."""


def metric_of(reading: str) -> tuple[str, float]:
    """The metric's name, for a counter without ``_total``, and the factor for its value."""
    name = _NAMES.get(reading, reading).replace(".", "_").removesuffix("_total")
    for ending, (full, scale) in _RATES.items():
        if name.endswith(ending):
            return f"healthd_{name.removesuffix(ending)}{full}", scale
    stem, _, unit = name.rpartition("_")
    if unit in _UNITS:
        full, scale = _UNITS[unit]
        return f"healthd_{stem}_{full}".rstrip("_"), scale
    return f"healthd_{name.removesuffix('_count')}", 1.0
