"""Who is told when something is wrong, and how metrics are written to a file: ``[notify]`` and ``[metrics]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from healthd.config.kinds import MaybePath, MaybeUrl

MaybeMetricsFile = Annotated[
    str, Meta(pattern=r"^(/[^\0]*\.prom)?\Z", description='an absolute path that ends in .prom, or ""')
]
PerHour = Annotated[int, Meta(ge=1, le=3_600, description="a whole number from 1 to 3600")]
Seconds = Annotated[float, Meta(ge=5, le=3_600, description="seconds, from 5 to 3600")]


@dataclass(frozen=True, kw_only=True)
class MetricsSection:
    """A second way to the metrics, beside ``/metrics`` of ``daemon.http``."""

    textfile: MaybeMetricsFile = ""
    """A file for node_exporter's textfile collector, such as ``/var/lib/node_exporter/textfile/healthd.prom``, for
    nodes on which no further port may be scraped. It is replaced whole, never written in place. Its
    folder must be root's: one that others may write is refused. Empty: none."""

    every_s: Seconds = 60.0
    """How often the file is written, in seconds. A minute: as often as most checks look; each time costs some
    hundredths of a second of CPU."""


@dataclass(frozen=True, kw_only=True)
class NotifySection:
    """Who is told what is wrong with this node, and that it is over. Every node speaks for itself: a large cluster is
    better served by Alertmanager (docs/how-to/prometheus.md), and by this where there is none. ``healthd controller``
    reads the same section: the one that leads tells of nodes for which it needs a person or that do not come back, and
    of rounds that have not succeeded for five minutes."""

    severity: Literal["critical", "warning"] = "critical"
    """The least severe fault that is told. What asks for a person, and that the node is out or cannot be judged for ten
    minutes, is always told. Critical: what only weakens a node can wait for the morning."""

    slack_url_file: MaybePath = ""
    """The file whose first line is the URL of an incoming webhook of Slack, or of what takes the same messages. A file,
    because the URL is a secret, and ``healthd config show`` shows the rest. Empty: no message to Slack."""

    webhook_url: MaybeUrl = ""
    """Where each message is sent to as JSON, by POST. Empty: nowhere. ``healthd config show`` shows it."""

    webhook_url_file: MaybePath = ""
    """The file whose first line is that URL, where it is a secret; it is read for each message, and never shown. Set
    one of the two. Empty: ``webhook_url`` holds."""

    webhook_token_file: MaybePath = ""
    """The file whose first line goes along as ``Authorization: Bearer``. Empty: no such header."""

    command: tuple[str, ...] = ()
    """A command that reads each message as JSON from its standard input; run without a shell, for 10 seconds at most.
    Empty: none."""

    per_hour: PerHour = 12
    """The most messages of this node to each receiver within an hour. What is more waits, and is told in one message
    when there is room again. Twelve: one message holds all that broke together."""

    def __post_init__(self) -> None:
        """Refuse two places for one webhook."""
        if self.webhook_url and self.webhook_url_file:
            raise ValueError("webhook_url and webhook_url_file are both set; expected one of them")
