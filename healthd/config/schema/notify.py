"""The receivers of messages, and the file of metrics: ``[notify]`` and ``[metrics]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from healthd.config.value_types import MaybePath, MaybeUrl

MaybeMetricsFile = Annotated[
    str, Meta(pattern=r"^(/[^\0]*\.prom)?\Z", description='an absolute path that ends in .prom, or ""')
]
PerHour = Annotated[int, Meta(ge=1, le=3_600, description="a whole number from 1 to 3600")]
IncidentWait = Annotated[float, Meta(ge=0, le=600, description="seconds, from 0 to 600")]
Seconds = Annotated[float, Meta(ge=5, le=3_600, description="seconds, from 5 to 3600")]


@dataclass(frozen=True, kw_only=True)
class MetricsSection:
    """A second way to the metrics, beside ``/metrics`` of ``daemon.http``."""

    textfile: MaybeMetricsFile = ""
    """A file for node_exporter's textfile collector, such as ``/var/lib/node_exporter/textfile/healthd.prom``, for
    nodes on which no further port may be scraped. It is replaced whole, never written in place. Its
    folder must be root's: one that others may write is refused. Empty: none."""

    every_s: Seconds = 60.0
    """How often the file is written, in seconds. A minute: as often as most checks run; each time costs some hundredths
    of a second of CPU."""


@dataclass(frozen=True, kw_only=True)
class NotifySection:
    """The receivers of messages about faults of this node, and about their end. Every node sends its own messages: in a
    large cluster prefer Alertmanager (docs/how-to/prometheus.md) if you have one. ``healthd controller`` reads the same
    section: the controller that leads reports nodes that need an operator or do not come back, and syncs that fail for
    five minutes."""

    severity: Literal["critical", "warning"] = "critical"
    """The lowest severity of faults that cause a message. Pages, a node that is out, and a node that is unknown for ten
    minutes always cause one. Critical: a warning can wait for the morning."""

    slack_url_file: MaybePath = ""
    """The file whose first line is the URL of an incoming webhook of Slack, or of a compatible service. A file, because
    the URL is a secret, and ``healthd config show`` shows all other settings. Empty: no message to Slack."""

    webhook_url: MaybeUrl = ""
    """The URL to which each message is sent as JSON, by POST. Empty: none. ``healthd config show`` shows it."""

    webhook_url_file: MaybePath = ""
    """The file whose first line is that URL, if it is a secret; healthd reads it for each message, and never shows it.
    Set one of the two. Empty: ``webhook_url`` holds."""

    webhook_token_file: MaybePath = ""
    """The file whose first line is sent as ``Authorization: Bearer``. Empty: no such header."""

    command: tuple[str, ...] = ()
    """A command that reads each message as JSON from its standard input; it runs without a shell, for 10 seconds at
    most. Empty: none."""

    owner_command: tuple[str, ...] = ()
    """A command of the head node for the owners of Slurm jobs: ``healthd controller`` runs it at the end of a job that
    failed, once for each, with the user, the verdict and a sentence for the user as JSON on its standard input; without
    a shell, for 10 seconds at most. It needs the ledger; ``policy.notify_owner`` says of which ends. Empty: none.
    Slurm's own mail (``MailProg``) is not affected."""

    per_hour: PerHour = 12
    """The most messages of this node to each receiver within an hour. Further news waits, and one later message has all
    of it. Twelve: one message holds all faults that begin together."""

    incident_wait_s: IncidentWait = 90.0
    """How long at most a message about a fault waits, in seconds, for whether the fault is an incident of many nodes.
    Only where ``healthd controller`` reports incidents: it then sends one message, and the messages of the
    nodes that it covers are held until the incident ends. 0: none waits or is held, and a controller with 0 asks no
    node to. Ninety seconds: the node's summary, the controller's reading and its message take up to a minute, on
    Kubernetes up to a minute and a half."""

    runbooks: MaybeUrl = ""
    """The address below which the runbook pages lie, such as ``https://docs.example.com/docs/reference/runbooks``.
    Messages, the status page and ``healthd explain`` then lead to ``ADDRESS/CODE.html``. ``make site`` builds the
    pages; your own pages do as well. Empty: messages name ``healthd explain CODE`` alone."""

    def __post_init__(self) -> None:
        """Refuse two URLs for one webhook."""
        if self.webhook_url and self.webhook_url_file:
            raise ValueError("webhook_url and webhook_url_file are both set; expected one of them")
