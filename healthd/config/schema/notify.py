"""The receivers of messages, and the file of metrics: ``[notify]`` and ``[metrics]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from healthd.config.value_types import MaybePath, MaybeUrl, Name, NodeUrl

MaybeMetricsFile = Annotated[
    str, Meta(pattern=r"^(/[^\0]*\.prom)?\Z", description='an absolute path that ends in .prom, or ""')
]
FilePath = Annotated[str, Meta(pattern=r"^/[^\0]*[^/\0]\Z", description="the absolute path of a file")]
EventBus = Annotated[
    str,
    Meta(
        pattern=r"^(arn:[a-z-]+:events:[a-z0-9-]+:[0-9]{12}:event-bus/[A-Za-z0-9_.-]+)?\Z",
        description='the ARN of an event bus, or ""',
    ),
]
SlackChannel = Annotated[str, Meta(pattern=r"^\S*\Z", description='a channel without spaces, or ""')]
Url = Annotated[str, Meta(pattern=r"^https?://[^\s/]+(/\S*)?\Z", description="a URL of http:// or https://")]
PerHour = Annotated[int, Meta(ge=1, le=3_600, description="a whole number from 1 to 3600")]
IncidentWait = Annotated[float, Meta(ge=0, le=600, description="seconds, from 0 to 600")]
Seconds = Annotated[float, Meta(ge=5, le=300, description="seconds, from 5 to 300")]


class MetricsSection(Struct, frozen=True, kw_only=True):
    """A second way to the metrics, beside ``/metrics`` of ``daemon.http``."""

    textfile: MaybeMetricsFile = ""
    """A file for node_exporter's textfile collector, such as ``/var/lib/node_exporter/textfile/healthd.prom``, for
    nodes on which no further port may be scraped. It is replaced whole, never written in place. Its
    folder must be root's: one that others may write is refused. Empty: none."""

    every_s: Seconds = 60.0
    """How often the file is written, in seconds. A minute: as often as most checks run; each time costs some hundredths
    of a second of CPU. At most five: ``HealthdTextfileOld`` fires for a file of ten."""


class NotifySection(Struct, frozen=True, kw_only=True):
    """The receivers of messages about faults of this node, and about their end. Every node sends its own messages: in a
    large cluster prefer Alertmanager (docs/how-to/prometheus.md) if you have one. ``healthd controller`` reads the same
    section: the controller that leads reports nodes that need an operator or do not come back, and syncs that fail for
    five minutes."""

    severity: Literal["critical", "warning"] = "critical"
    """The lowest severity of faults that cause a message. Pages, a node that is out, and a node that is unknown for ten
    minutes always cause one. Critical: a warning can wait for the morning."""

    cluster: Name = ""
    """The cluster's name, in each message and in the id by which receivers know an incident: set it where two clusters
    have the same receivers. Empty: messages name none."""

    page: NodeUrl = ""
    """The address of a node's status page, such as ``https://healthd.example.com/{node}``, for a link in each message.
    Empty: none."""

    slack_url_file: MaybePath = ""
    """The file whose first line is the URL of an incoming webhook of Slack, or of a compatible service. A file, because
    the URL is a secret, and ``healthd config show`` shows all other settings. Empty: no message by this way."""

    slack_token_file: MaybePath = ""
    """The file whose first line is the token of a Slack bot with the scope ``chat:write``. A bot updates the one
    message of an incident, which a webhook cannot. Needs ``slack_channel``. Empty: no message by this way."""

    slack_channel: SlackChannel = ""
    """The channel of the bot, as an ID such as ``C0123456789`` or as a name; invite the bot there."""

    slack_api: Url = "https://slack.com/api"
    """The address of Slack's Web API. GovSlack: ``https://slack-gov.com/api``."""

    pagerduty_key_file: MaybePath = ""
    """The file whose first line is the integration key of a PagerDuty service, by Events API v2. healthd triggers,
    acknowledges and resolves one alert for each incident. Empty: no message to PagerDuty."""

    pagerduty_url: Url = "https://events.pagerduty.com"
    """The address of PagerDuty's Events API. The EU service region: ``https://events.eu.pagerduty.com``."""

    apprise_url_files: tuple[FilePath, ...] = ()
    """Files whose first line is a service's URL of Apprise: Opsgenie, Microsoft Teams, Amazon SNS, e-mail and others.
    Each file is one receiver, by the file's name. Needs Apprise: healthd's extra ``notify``. Empty: none."""

    eventbridge_bus: EventBus = ""
    """The ARN of an Amazon EventBridge bus that gets an event when this node is drained, when its repair begins and
    when it is released. The node's role needs packaging/iam/events-node.json. A controller sends none. Empty: none."""

    webhook_url: MaybeUrl = ""
    """The URL to which each message is sent as JSON, by POST. Empty: none. ``healthd config show`` shows it. One with a
    user, ``https://name:password@…``, is a secret: it belongs in ``webhook_url_file``."""

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
    """The most messages of this node within an hour to each receiver that operators read: a Slack webhook, the command
    and Apprise's services. Half of them go out as they come, the others are spread over the hour, so that a page behind
    many messages waits for minutes. Where more incidents wait than fit, one message has all of them. A bot, PagerDuty
    and the webhook get each incident. Twelve: a node rarely has more incidents in an hour."""

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
        """Refuse two URLs for one webhook, a token without one, a bot without a channel, and two files of one name."""
        if self.webhook_url and self.webhook_url_file:
            raise ValueError("webhook_url and webhook_url_file are both set; expected one of them")
        if self.webhook_token_file and not (self.webhook_url or self.webhook_url_file):
            raise ValueError("webhook_token_file is set, and no webhook; expected webhook_url or webhook_url_file too")
        if bool(self.slack_token_file) != bool(self.slack_channel):
            raise ValueError("slack_token_file and slack_channel belong together; expected both, or neither")
        names = [receiver_of(path) for path in self.apprise_url_files]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"apprise_url_files: two files make the receiver {twice}; expected different names")


def receiver_of(path: str) -> str:
    """The name of a service's receiver, by its file: ``apprise-teams`` by ``/etc/healthd/teams``."""
    return f"apprise-{path.rpartition('/')[2].partition('.')[0]}"
