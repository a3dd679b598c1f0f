"""The metrics page of ``healthd controller``: what its last round found and what it counted, made when it is scraped.

Its own metrics begin with ``healthd_controller_``, so that no sum over nodes takes it for a node; what it shares with
them is in ``families``. No label names a node: how it stands with each is in its log and in ``--status``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from healthd import __version__
from healthd.api.controller_stats import ROUND_RESULTS, ControllerStats
from healthd.api.families import Bounded, budget, started, store_failing, told
from healthd.core.model import ClusterTrouble, Refusal, Step
from healthd.remediation.controller.node_status import RepairState

_STEPS = (Step.REBOOT, Step.REPLACE)


class ControllerPage(Bounded):
    """The page of one controller."""

    def __init__(self, course: ControllerStats) -> None:
        self._course = course

    def families(self) -> Iterator[Metric]:
        """Every metric of the controller."""
        yield from self._process()
        yield from self._rounds()
        yield from self._nodes()
        yield from self._acts()
        yield from self._requests()
        yield from budget(self._course.scopes, limits=self._course.limits)
        yield from told(self._course.notifier)

    def _process(self) -> Iterator[Metric]:
        course = self._course
        info = GaugeMetricFamily(
            "healthd_controller_info",
            "Always 1; for which cluster and by which platform this controller acts, and how far it may go",
            labels=["orchestrator", "provisioner", "mode", "version"],
        )
        info.add_metric([course.orchestrator, course.provisioner, course.mode, __version__], 1)
        yield info
        yield started(course.began)
        yield store_failing(course.store_failing)
        yield GaugeMetricFamily(
            "healthd_controller_leads", "1 while this controller acts, 0 while another does", value=course.leads()
        )
        yield CounterMetricFamily(
            "healthd_controller_leads_taken", "How often this controller took the lead", value=course.taken
        )

    def _rounds(self) -> Iterator[Metric]:
        course = self._course
        yield GaugeMetricFamily(
            "healthd_controller_last_success_seconds",
            "Seconds since a round succeeded, or since the lead was taken where none has; 0 while another leads",
            value=course.behind_s(),
        )
        rounds = SummaryMetricFamily(
            "healthd_controller_round_seconds",
            "Rounds and how long they took, by result: ok, cluster (it did not answer), store",
            labels=["result"],
        )
        for result in ROUND_RESULTS:
            rounds.add_metric([result], course.rounds[result], course.rounds_s[result])
        yield rounds

    def _nodes(self) -> Iterator[Metric]:
        standings = tuple(self._course.standings)
        nodes = GaugeMetricFamily(
            "healthd_controller_nodes", "Nodes that the last round had something to say of", labels=["state"]
        )
        states = Counter(each.state for each in standings if each.node)
        for state in RepairState:
            nodes.add_metric([state], states[state])
        yield nodes
        troubles = GaugeMetricFamily(
            "healthd_controller_troubles",
            "Nodes that page by what the controller saw itself, by trouble; of no_policies 1, for the cluster",
            labels=["trouble"],
        )
        seen = Counter(
            each for one in standings for each in one.troubles if one.node or each is ClusterTrouble.NO_POLICIES
        )
        for trouble in ClusterTrouble:
            troubles.add_metric([trouble], seen[trouble])
        yield troubles
        yield GaugeMetricFamily(
            "healthd_controller_person_needed",
            "Nodes, and the cluster itself, for which a person is needed",
            value=sum(each.page for each in standings),
        )

    def _acts(self) -> Iterator[Metric]:
        reckoning = self._course.reckoning
        decided = CounterMetricFamily(
            "healthd_controller_decisions",
            "What became of the requests of nodes, each counted once when it is new",
            labels=["state"],
        )
        for state in RepairState:
            decided.add_metric([state], reckoning.answered[state])
        refused = CounterMetricFamily(
            "healthd_controller_refusals",
            "Why requests were refused or wait, each counted once when it is new",
            labels=["reason"],
        )
        for reason in Refusal:
            refused.add_metric([reason], reckoning.tally.refused[reason])
        steps = SummaryMetricFamily(
            "healthd_controller_step_duration_seconds",
            "Reboots and replacements that ended, well or not, and how long they took with all waiting",
            labels=["step"],
        )
        for step in _STEPS:
            steps.add_metric([step], reckoning.tally.steps[step], reckoning.tally.steps_s[step])
        yield from (decided, refused, steps)

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "healthd_controller_requests",
            "Requests to slurm, kubernetes and aws, by what they came to",
            labels=["to", "request", "result"],
        )
        for labels, count in sorted(self._course.calls.counted.items()):
            requests.add_metric(labels, count)
        yield requests
