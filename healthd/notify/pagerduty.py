"""PagerDuty, by Events API v2: an incident is triggered, acknowledged and resolved under its id.

Source: PagerDuty, "Send an event" and "PD-CEF" (``dedup_key`` has 255 characters at most, ``summary`` 1,024; "While an
incident is acknowledged, it won't generate any additional notifications, even if it receives new trigger events"; a
trigger after a resolve opens a new incident).
"""

from __future__ import annotations

from typing import Any

from healthd.core.model import Severity
from healthd.notify.delivery import TIMEOUT_S, Deliver, post, secret_of
from healthd.notify.message import IncidentState, Message, Notification, Occasion
from healthd.notify.news import NewsKind
from healthd.sources.deadline import Deadline

URL = "https://events.pagerduty.com"
_SUMMARY = 1_024
_ACKNOWLEDGED, _QUIET, _LOUD = "acknowledged", "warning", "critical"
"""How PagerDuty has an incident after a message, for the next one: acknowledged by healthd, or with this severity."""


def to_pagerduty(key_file: str, url: str = URL, *, timeout_s: float = TIMEOUT_S) -> Deliver:
    """``key_file``: the file whose first line is the integration key (routing key) of a service with an Events API v2
    integration."""

    def deliver(message: Message) -> str:
        key, deadline = secret_of(key_file), Deadline(timeout_s)
        done = actions(message.about, message.before)
        for action in done:
            post(f"{url.rstrip('/')}/v2/enqueue", event(message, key, action), {}, deadline, secrets=(key,))
        stays = message.before == _ACKNOWLEDGED and "resolve" not in done
        return _ACKNOWLEDGED if "acknowledge" in done or stays else severity(message.about)

    return deliver


def actions(about: Notification, before: str = "") -> tuple[str, ...]:
    """The event actions of a message. One that PagerDuty does not have can be neither acknowledged nor, in a drill,
    resolved. ``before``: what ``to_pagerduty`` returned for the last message of the same incident."""
    if about.event is Occasion.DRILL:
        return ("trigger", "resolve")
    match about.state:
        case IncidentState.OPEN:
            return ("resolve", "trigger") if _must_notify(about, before) else ("trigger",)
        case IncidentState.ACKNOWLEDGED:
            return ("trigger", "acknowledge") if about.event is Occasion.OPENED else ("acknowledge",)
        case IncidentState.RESOLVED | IncidentState.CLOSED:
            return ("resolve",)


def _must_notify(about: Notification, before: str) -> bool:
    """Whether operators are to hear of an open incident again that healthd, or an operator, may have acknowledged: that
    is over, or healthd gives up what it did about the fault by itself."""
    is_new = any(each.over is None and each.state is not NewsKind.STEP for each in about.news)
    return is_new and (before == _ACKNOWLEDGED or (before == _QUIET and severity(about) == _LOUD))


def severity(about: Notification) -> str:
    """PagerDuty's word, by which a service with dynamic urgency decides whether it wakes up an operator: it does for
    ``critical`` and ``error``. A fault that healthd repairs by itself is a ``warning``."""
    if about.event is Occasion.DRILL:
        return "info"
    if about.needs_operator:
        return _LOUD
    is_on_it = bool(about.step)
    return "error" if about.severity is Severity.CRITICAL and not is_on_it else _QUIET


def event(message: Message, key: str, action: str) -> dict[str, Any]:
    """The body of one event. The payload is required of a trigger alone."""
    about = message.about
    made: dict[str, Any] = {"routing_key": key, "event_action": action, "dedup_key": about.id}
    if action != "trigger":
        return made
    links = (("Runbook", about.runbook), ("Status page", about.page))
    is_own = about.node == about.sender.node  # a node also pages for another one, whose machine it does not know
    machine = {"instance": about.sender.instance_id, "instance type": about.sender.instance_type} if is_own else {}
    return {
        **made,
        "client": "healthd",
        **({"client_url": about.page} if about.page else {}),
        "links": [{"href": url, "text": name} for name, url in links if url],
        "payload": {
            "summary": about.title[:_SUMMARY],
            "source": about.node or about.sender.name,
            "severity": severity(about),
            "timestamp": about.since.isoformat(),
            "component": about.devices or "node",
            "group": about.cluster,
            "class": about.code,
            "custom_details": {"text": message.text, "next step": about.next_step, "step": about.step, **machine},
        },
    }
