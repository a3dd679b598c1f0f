"""The metrics pages of daemon and controller: their bound, their format, and the metrics that both have.

A metric has at most ``MOST_SERIES`` series. Series beyond that are counted, so that none is dropped in silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from healthd.notify.notifier import Notifier
from healthd.remediation.decide.fleet import Scope

MOST_SERIES = 1_000
"""The most series of one metric. A p5.48xlarge has some 300 of its largest; more means a storm of faults."""


class Bounded(ABC):
    """A page in Prometheus text format."""

    def render(self) -> str:
        """The text."""
        registry = CollectorRegistry()
        registry.register(self)  # the library's Collector is an ABC, any collect() will do
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Every metric, with at most ``MOST_SERIES`` series, and the number of dropped series."""
        dropped = 0
        for family in self.families():
            dropped += max(0, len(family.samples) - MOST_SERIES)
            del family.samples[MOST_SERIES:]
            yield family
        yield GaugeMetricFamily(
            "healthd_metrics_dropped_series", "Series beyond the bound of their metric", value=dropped
        )

    @abstractmethod
    def families(self) -> Iterator[Metric]:
        """Every metric."""


def started(at: float) -> Metric:
    """``at``: in Unix time."""
    return GaugeMetricFamily("healthd_start_time_seconds", "When the process began, in Unix time", value=at)


def store_failing(failing: bool) -> Metric:
    """Whether the state cannot be written, so that healthd changes nothing."""
    return GaugeMetricFamily("healthd_store_failing", "1 while the state cannot be written or read", value=failing)


def budget(scopes: Iterable[Scope], *, limits: bool = True) -> Iterator[Metric]:
    """The nodes that are out, and the limit. ``limits``: whether the limit is known here."""
    out = GaugeMetricFamily(
        "healthd_budget_out_nodes", "Nodes of a scope that are out, by the last fleet snapshot", labels=["scope"]
    )
    limit = GaugeMetricFamily(
        "healthd_budget_limit_nodes", "Nodes of a scope that may be out at once", labels=["scope"]
    )
    total = GaugeMetricFamily("healthd_budget_nodes", "Nodes of a scope", labels=["scope"])
    for scope in scopes:
        out.add_metric([scope.name], len(scope.out))
        total.add_metric([scope.name], scope.total)
        if limits:
            limit.add_metric([scope.name], scope.limit)
    yield from (out, limit, total)


def notifications(notifier: Notifier | None) -> Iterator[Metric]:
    """Messages to operators; no sample without a receiver."""
    sent = CounterMetricFamily(
        "healthd_notifications", "Messages to operators, by channel and result", labels=["channel", "result"]
    )
    waiting = GaugeMetricFamily(
        "healthd_notifications_undelivered", "Pieces of news that a channel has not accepted yet", labels=["channel"]
    )
    for channel in notifier.channels if notifier else ():
        sent.add_metric([channel.name, "delivered"], channel.delivered)
        sent.add_metric([channel.name, "failed"], channel.failed)
        waiting.add_metric([channel.name], channel.undelivered)
    held = GaugeMetricFamily(
        "healthd_notifications_held", "Messages that an incident of many nodes reports, or that wait for one"
    )
    if notifier is not None:
        held.add_metric([], len(notifier.held))
    yield from (sent, waiting, held)


def one_of(family: GaugeMetricFamily, words: Iterable[str], current: str | None) -> GaugeMetricFamily:
    """1 for the word that holds, 0 for each of the others."""
    for word in words:
        family.add_metric([word], float(word == current))
    return family
