"""The messages of a controller that leads: incidents, nodes that need an operator, and syncs that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from healthd.api.controller_stats import ControllerStats, FenceStatus, IncidentStatus
from healthd.config.schema.notify import NotifySection
from healthd.core.model import Severity
from healthd.notify.delivery import Receiver
from healthd.notify.message import Sender
from healthd.notify.news import AGAIN_S, FLEET, LASTS_S, PAGED, Topic, TopicAbout
from healthd.notify.notifier import Notifier, still_told
from healthd.notify.receivers import channels_of
from healthd.remediation.controller.node_status import RepairState
from healthd.remediation.records.domain_fence import KUBE_TAINT

FAILING_LASTS_S = 300.0
"""How long no sync must have succeeded before a message is sent, in seconds: slurmctld and API servers restart."""


FENCED_LASTS_S = 1_800.0
"""How long a fence must have outlasted its incident before a message is sent, in seconds: a node may be rebooting."""


def controller_notifier(
    notify: NotifySection, stats: ControllerStats, *, name: str, kept: str, keep: Callable[[str], None], state_dir: str
) -> Notifier | None:
    """The notifier of the controller ``name``, or None where no receiver is configured. ``kept``: the state that the
    notifier before it gave to ``keep``. ``state_dir``: the controller's."""
    channels = {name: each for name, each in channels_of(notify, state_dir).items() if not each.service}
    return leader_notifier(channels, notify, stats, name=name, kept=kept, keep=keep) if channels else None


def leader_notifier(
    channels: Mapping[str, Receiver],
    notify: NotifySection,
    stats: ControllerStats,
    *,
    name: str,
    kept: str,
    keep: Callable[[str], None],
) -> Notifier:
    """The same for these receivers."""
    before = still_told(kept)

    def wrong() -> Sequence[Topic]:
        """A topic of the controller before this one stands until this one has read what it is about."""
        found = wrong_with_controller(stats)
        keys = {each.key for each in found}
        return [*found, *(each for each in before if each.key not in keys and not _has_read(stats, each.key))]

    return Notifier(
        channels,
        per_hour=notify.per_hour,
        wrong=wrong,
        about=lambda: about_controller(stats, name),
        keep=keep,
        kept=kept,
        cluster=notify.cluster,
        runbooks=notify.runbooks,
        page=notify.page,
    )


def _has_read(stats: ControllerStats, key: str) -> bool:
    """Whether this controller has read what the topic of this key is about: the fleet, or the nodes of a sync."""
    is_of_fleet = key.removeprefix(PAGED).startswith(("incident ", "fence "))
    return stats.fleet_read if is_of_fleet else stats.succeeded_s is not None


def wrong_with_controller(stats: ControllerStats) -> Sequence[Topic]:
    """The topics of a controller: incidents, a node that needs an operator, a node that does not come back, and failing
    syncs."""
    found = [_incident(each) for each in stats.incidents]
    found += [_fence(each, stats.orchestrator) for each in stats.fences if each.waits]
    for each in stats.statuses:
        if each.page:
            message = f"{each.node or 'the cluster'}: an operator is needed: {each.message}"
            cause = " ".join((each.state, each.refusal or "", *each.troubles))
            about = TopicAbout(incident="operator", subject=each.node or FLEET, severity=Severity.CRITICAL)
            key = f"{PAGED}{each.node or 'cluster'}"
            found.append(Topic(key=key, message=message, cause=cause, again_s=AGAIN_S, about=about))
        elif each.state is RepairState.SILENT:
            about = TopicAbout(incident="silent", subject=each.node, what=each.message, severity=Severity.CRITICAL)
            message = f"{each.node}: {each.message}"
            found.append(Topic(key=f"silent {each.node}", message=message, again_s=AGAIN_S, about=about))
    if why := stats.slow() or stats.problem:
        message = f"no sync succeeds: the controller counts, drains and replaces no node: {why}"
        lasts_s = LASTS_S if stats.slow() else FAILING_LASTS_S
        about = TopicAbout(subject=FLEET, incident="controller", severity=Severity.CRITICAL)
        found.append(
            Topic(key="rounds", message=message, lasts_s=lasts_s, cause="rounds", again_s=AGAIN_S, about=about)
        )
    return found


def _incident(incident: IncidentStatus) -> Topic:
    """The one topic of all its nodes, at once: their own messages wait for it. Another likely cause, and each time that
    twice as many nodes have had it, is news."""
    message = f"incident {incident.id}: {incident.message}"
    cause = f"{incident.ever.bit_length()} {incident.cause}"
    return Topic(
        key=incident_key(incident.id, critical=incident.critical),
        message=message,
        lasts_s=0.0,
        cause=cause,
        again_s=AGAIN_S,
        title=incident.title,
        about=TopicAbout(
            incident=incident.id,
            subject=FLEET,
            what=incident.message,
            severity=Severity.CRITICAL if incident.critical else Severity.WARNING,
        ),
    )


def _fence(fence: FenceStatus, orchestrator: str) -> Topic:
    """The page for nodes that stay out although their incident is over."""
    how = (
        f"remove the taint {KUBE_TAINT}={fence.incident} from all"
        if orchestrator == "kubernetes"
        else f"delete the reservation healthd-fence:{fence.incident}:…"
    )
    about = f"all {fence.nodes} nodes of NVLink domain {fence.domain} stay out after incident {fence.incident}"
    message = f"{about}: {fence.waits}; repair these nodes, or {how}"
    title = f"NVLink domain {fence.domain} is back in service"
    return Topic(
        key=f"{PAGED}fence {fence.domain}",
        message=message,
        lasts_s=FENCED_LASTS_S,
        again_s=AGAIN_S,
        title=title,
        about=TopicAbout(incident=f"fence {fence.domain}", subject=FLEET, severity=Severity.CRITICAL),
    )


def incident_key(id_: str, *, critical: bool) -> str:
    """The key of an incident's topic."""
    return f"{PAGED if critical else ''}incident {id_}"


def about_controller(stats: ControllerStats, name: str) -> Sender:
    """The sender of a controller's messages."""
    return Sender(
        controller=name,
        orchestrator=stats.orchestrator,
        provisioner=stats.provisioner,
        mode=stats.mode,
        nodes_that_need_an_operator=sum(each.page for each in stats.statuses),
    )
