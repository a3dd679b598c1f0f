"""The metrics page: a snapshot of the agent in Prometheus text format, made when it is scraped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE

from healthd.agent import Agent
from healthd.model import ReadingKind, Refusal, Status, Verdict

__all__ = ["CONTENT_TYPE", "render"]


def render(agent: Agent) -> str:
    """The page. Label values are bounded: checks, codes and components of this node."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(agent))  # the library's Collector is an ABC, any collect() will do
    return generate_latest(registry).decode()


class _Snapshot:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        yield from self._checks()
        yield from self._faults()
        yield from self._readings()
        yield from self._daemon()

    def _checks(self) -> Iterator[Metric]:
        status = GaugeMetricFamily(
            "healthd_check_status", "1 for what the last run of a check came to", labels=["check", "status"]
        )
        age = GaugeMetricFamily("healthd_check_last_run_seconds", "Seconds since a check last ran", labels=["check"])
        took = GaugeMetricFamily(
            "healthd_check_duration_seconds", "Duration of the last run of a check", labels=["check"]
        )
        now = datetime.now(UTC)
        outcomes = self._agent.monitor.outcomes()
        for name in self._agent.checkup.checks:
            outcome = outcomes.get(name)
            for value in Status:
                status.add_metric([name, value], float(outcome is not None and outcome.result.status is value))
            if outcome is not None:
                age.add_metric([name], (now - outcome.at).total_seconds())
                took.add_metric([name], outcome.duration_s)
        yield from (status, age, took)

    def _faults(self) -> Iterator[Metric]:
        faults = GaugeMetricFamily(
            "healthd_fault_occurrences", "Occurrences of each open fault", labels=["code", "component", "severity"]
        )
        for fault in self._agent.monitor.history.faults.values():
            faults.add_metric([fault.code, str(fault.component), fault.severity], fault.count)
        verdict = GaugeMetricFamily("healthd_verdict", "1 for the verdict of the node", labels=["verdict"])
        current = self._agent.monitor.verdict(self._agent.monitor.outcomes().values())
        for value in Verdict:
            verdict.add_metric([value], float(value is current))
        yield from (faults, verdict)

    def _readings(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for outcome in self._agent.monitor.outcomes().values():
            for reading in outcome.result.readings:
                counter = reading.kind is ReadingKind.COUNTER
                kind = CounterMetricFamily if counter else GaugeMetricFamily
                name = f"healthd_{reading.name.replace('.', '_')}"
                family = families.setdefault(name, kind(name, f"Reading {reading.name}", labels=["component"]))
                family.add_metric([str(reading.component)], reading.value)
        yield from families.values()

    def _daemon(self) -> Iterator[Metric]:
        log, nvml = self._agent.machine.kernel_log, self._agent.machine.nvml.state()
        yield GaugeMetricFamily("healthd_kernel_log_idle_seconds", "Since the reader last came round", value=log.idle_s)
        yield GaugeMetricFamily(
            "healthd_nvml_stalled_seconds", "Since the first unanswered NVML question", value=nvml.stalled_s
        )
        yield CounterMetricFamily("healthd_nvml_worker_restarts", "Starts of a new NVML worker", value=nvml.restarts)
        refusals = CounterMetricFamily(
            "healthd_decisions", "Decisions and refusals, each counted once when it is new", labels=["action"]
        )
        if self._agent.engine is not None:
            for action, count in self._agent.engine.tally.decided.items():
                refusals.add_metric([action], count)
        yield refusals
        refused = CounterMetricFamily(
            "healthd_refusals",
            "What was refused, or is waited for, each counted once when it is new",
            labels=["reason"],
        )
        for reason in Refusal:
            refused.add_metric([reason], self._agent.engine.tally.refused[reason] if self._agent.engine else 0)
        yield refused
        hooks = CounterMetricFamily(
            "healthd_hooks", "Slurm hooks answered; only a prolog refuses", labels=["kind", "verdict", "answer"]
        )
        for labels, count in self._agent.hooks.copy().items():
            hooks.add_metric(labels, count)
        yield hooks
        yield GaugeMetricFamily(
            "healthd_store_failing",
            "1 while the state cannot be written",
            value=float(bool(self._agent.monitor.store_problem)),
        )
