"""The metrics page of ``healthd controller``: the node statuses of its last sync and its stats, made at each scrape.

Its own metrics begin with ``healthd_controller_``, so that no sum over nodes includes it. ``metric_families`` has the
metrics that nodes have as well. No label names a node: the log and ``--status`` have the status of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from healthd import __version__
from healthd.api.controller_stats import SYNC_RESULTS, ControllerStats
from healthd.api.metric_families import Bounded, budget, notifications, started, store_failing
from healthd.core.model import ClusterTrouble, Refusal, Step
from healthd.judge.job_patterns import CODES
from healthd.remediation.controller.node_status import RepairState
from healthd.remediation.provisioners.ultraservers import UltraServerHealth

_STEPS = (Step.REBOOT, Step.REPLACE)


class ControllerPage(Bounded):
    """The page of one controller."""

    def __init__(self, stats: ControllerStats) -> None:
        self._stats = stats

    def families(self) -> Iterator[Metric]:
        """Every metric of the controller."""
        yield from self._process()
        yield from self._syncs()
        yield from self._nodes()
        yield from self._incidents()
        yield from self._ultraservers()
        yield from self._acts()
        yield from self._requests()
        yield from budget(self._stats.scopes, limits=self._stats.limits)
        yield from notifications(self._stats.notifier)
        yield from self._ledger()

    def _process(self) -> Iterator[Metric]:
        stats = self._stats
        info = GaugeMetricFamily(
            "healthd_controller_info",
            "Always 1; the cluster, platform and mode of this controller",
            labels=["orchestrator", "provisioner", "mode", "version"],
        )
        info.add_metric([stats.orchestrator, stats.provisioner, stats.mode, __version__], 1)
        yield info
        yield started(stats.began)
        yield store_failing(stats.store_failing)
        yield GaugeMetricFamily(
            "healthd_controller_leads", "1 while this controller acts, 0 while another does", value=stats.leads()
        )
        yield CounterMetricFamily(
            "healthd_controller_leads_taken", "How often this controller took the lead", value=stats.taken
        )

    def _syncs(self) -> Iterator[Metric]:
        stats = self._stats
        yield GaugeMetricFamily(
            "healthd_controller_last_success_seconds",
            "Seconds since a sync succeeded, or since the lead was taken where none has; 0 while another leads",
            value=stats.behind_s(),
        )
        syncs = SummaryMetricFamily(
            "healthd_controller_sync_seconds",
            "Syncs and their total duration, by result: ok, cluster (it did not answer), store",
            labels=["result"],
        )
        for result in SYNC_RESULTS:
            syncs.add_metric([result], stats.syncs[result], stats.syncs_s[result])
        yield syncs

    def _nodes(self) -> Iterator[Metric]:
        statuses = tuple(self._stats.statuses)
        nodes = GaugeMetricFamily("healthd_controller_nodes", "Nodes with a status in the last sync", labels=["state"])
        states = Counter(each.state for each in statuses if each.node)
        for state in RepairState:
            nodes.add_metric([state], states[state])
        yield nodes
        troubles = GaugeMetricFamily(
            "healthd_controller_troubles",
            "Nodes that page for a trouble that the controller found itself; no_policies is 1 for the cluster",
            labels=["trouble"],
        )
        seen = Counter(
            each for one in statuses for each in one.troubles if one.node or each is ClusterTrouble.NO_POLICIES
        )
        for trouble in ClusterTrouble:
            troubles.add_metric([trouble], seen[trouble])
        yield troubles
        yield GaugeMetricFamily(
            "healthd_controller_operator_needed",
            "Nodes that need an operator; the cluster itself counts as one",
            value=sum(each.page for each in statuses),
        )

    def _incidents(self) -> Iterator[Metric]:
        """Open incidents, and the nodes in them, by severity."""
        incidents = tuple(self._stats.incidents)
        count = GaugeMetricFamily(
            "healthd_controller_incidents", "Open incidents: one cause on many nodes", labels=["severity"]
        )
        nodes = GaugeMetricFamily(
            "healthd_controller_incident_nodes", "Nodes that have the findings of an open incident", labels=["severity"]
        )
        for severity in ("warning", "critical"):
            of_it = [each for each in incidents if each.critical is (severity == "critical")]
            count.add_metric([severity], len(of_it))
            nodes.add_metric([severity], sum(each.nodes for each in of_it))
        fenced = GaugeMetricFamily(
            "healthd_controller_fenced_domains",
            "NVLink domains that new jobs are kept off as one, for an incident",
            value=len(self._stats.fences),
        )
        jobs = GaugeMetricFamily(
            "healthd_controller_job_findings",
            "Stragglers and hangs of running jobs, in shadow: healthd does nothing about them",
            labels=["code"],
        )
        seen = Counter(self._stats.job_findings)
        for code in CODES:
            jobs.add_metric([code.code], seen[code.code])
        yield from (count, nodes, fenced, jobs)

    def _ultraservers(self) -> Iterator[Metric]:
        """UltraServers by SageMaker, where it is asked and answers."""
        found = tuple(self._stats.ultraservers)
        healths = GaugeMetricFamily(
            "healthd_controller_ultraservers",
            "UltraServers of active training plans, by SageMaker's health: ok, impaired, insufficient_data",
            labels=["health"],
        )
        instances = GaugeMetricFamily(
            "healthd_controller_ultraserver_instances",
            "Instances of these UltraServers by SageMaker: in_use, available, unhealthy, spare",
            labels=["state"],
        )
        if found:
            counted = Counter(each.health for each in found)
            for health in UltraServerHealth:
                healths.add_metric([health], counted[health])
            instances.add_metric(["in_use"], sum(each.in_use for each in found))
            instances.add_metric(["available"], sum(each.available for each in found))
            instances.add_metric(["unhealthy"], sum(each.unhealthy for each in found))
            instances.add_metric(["spare"], sum(each.spares for each in found))
        yield from (healths, instances)

    def _acts(self) -> Iterator[Metric]:
        repair_stats = self._stats.repair_stats
        decided = CounterMetricFamily(
            "healthd_controller_decisions",
            "Requests of nodes by their state, each counted once when it is new",
            labels=["state"],
        )
        for state in RepairState:
            decided.add_metric([state], repair_stats.answered[state])
        refused = CounterMetricFamily(
            "healthd_controller_refusals",
            "Requests that were refused or wait, by reason, each counted once when it is new",
            labels=["reason"],
        )
        for reason in Refusal:
            refused.add_metric([reason], repair_stats.stats.refused[reason])
        steps = SummaryMetricFamily(
            "healthd_controller_step_duration_seconds",
            "Reboots and replacements that ended, in success or failure, and their total duration, waiting included",
            labels=["step"],
        )
        for step in _STEPS:
            steps.add_metric([step], repair_stats.stats.steps[step], repair_stats.stats.steps_s[step])
        yield from (decided, refused, steps)

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "healthd_controller_requests",
            "Requests to slurm, kubernetes and aws, by result",
            labels=["to", "request", "result"],
        )
        for labels, count in sorted(self._stats.calls.counted.items()):
            requests.add_metric(labels, count)
        yield requests

    def _ledger(self) -> Iterator[Metric]:
        """The fleet over the last thirty days, by its ledger."""
        yield GaugeMetricFamily(
            "healthd_controller_ledger_failing",
            "1 while the fleet cannot be read for the ledger, or the ledger not written: a gap in its statistics",
            value=self._stats.ledger_failing,
        )
        report = self._stats.ledger
        hours = GaugeMetricFamily(
            "healthd_controller_ledger_node_seconds",
            "Node-seconds of the last 30 days that the ledger watched, by state; serving is the exposure",
            labels=["state"],
        )
        faults = GaugeMetricFamily(
            "healthd_controller_ledger_faults",
            "Critical faults that began in the exposure of the last 30 days, by code",
            labels=["code"],
        )
        repairs = GaugeMetricFamily(
            "healthd_controller_ledger_repairs",
            "Repairs that began in the last 30 days, by act and outcome: helped, failed, not_known",
            labels=["act", "outcome"],
        )
        lemons = GaugeMetricFamily(
            "healthd_controller_ledger_lemons",
            "Nodes and GPUs that failed in the last 30 days far more often than the rest of the fleet",
            labels=["kind"],
        )
        if report is not None:
            for state, value in report.hours.items():
                hours.add_metric([state], value * 3600.0)
            for rate in report.by_code:
                faults.add_metric([rate.key], rate.failures)
            acts: Counter[tuple[str, str]] = Counter()
            for each in report.repairs:
                acts[each.act, "helped"] += each.helped
                acts[each.act, "failed"] += each.failed
                acts[each.act, "not_known"] += each.tried - each.helped - each.failed
            for labels, count in sorted(acts.items()):
                repairs.add_metric(labels, count)
            for kind in ("node", "gpu"):
                lemons.add_metric([kind], sum(each.is_lemon and each.kind == kind for each in report.offenders))
        yield from (hours, faults, repairs, lemons)
