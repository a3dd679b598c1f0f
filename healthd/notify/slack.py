"""Slack: a message as blocks, by an incoming webhook, or by a bot that updates one message for each incident.

Sources: Slack, "Block Kit" (a header has 150 characters at most, a text 3,000, a section 10 fields), "Formatting text"
(the three escapes), "chat.postMessage" and "chat.update". Services that take Slack's webhooks read ``text`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from healthd.core.model import Severity
from healthd.notify.delivery import TIMEOUT_S, Deliver, RefusedError, post, secret_of
from healthd.notify.message import IncidentState, Message, Notification, Occasion
from healthd.sources.deadline import Deadline

API = "https://slack.com/api"
_HEADER, _TEXT = 150, 3_000
_GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "channel_not_found"})
"""Errors of chat.update after which the incident gets a new message."""


def to_slack(url_file: str) -> Deliver:
    """Slack's incoming webhook, or a compatible one (Mattermost, Rocket.Chat, Discord's ``/slack``).

    ``url_file``: the file whose first line is the webhook's URL, a secret. It is read for each message, so that you can
    change it.
    """

    def deliver(message: Message) -> str:
        post(secret_of(url_file), content_of(message), {}, Deadline(TIMEOUT_S))
        return ""

    return deliver


def to_slack_bot(token_file: str, channel: str, api: str = API, *, timeout_s: float = TIMEOUT_S) -> Deliver:
    """A bot with the scope ``chat:write`` in a channel. It posts one message for each incident, updates that as the
    incident goes on, and writes each further piece of news into its thread.

    ``token_file``: the file whose first line is the bot's token.
    """

    def deliver(message: Message) -> str:
        call = partial(_called, api, secret_of(token_file), Deadline(timeout_s))
        place, _, stamp = message.before.partition(" ")
        content = content_of(message)
        if stamp:
            error, _ = call("chat.update", {"channel": place, "ts": stamp, **content})
            if not error:
                if message.about.event is not Occasion.STEP:
                    reply = {"channel": place, "thread_ts": stamp, "text": escaped(message.text)}
                    _must(*call("chat.postMessage", reply))
                return message.before
            if error not in _GONE:
                raise RefusedError(f"Slack's chat.update answered {error}")
        answer = _must(*call("chat.postMessage", {"channel": channel, **content}))
        return f"{answer.get('channel', channel)} {answer.get('ts', '')}"

    return deliver


def content_of(message: Message) -> dict[str, Any]:
    """The text and the blocks of a message."""
    return {"text": escaped(message.text), "blocks": list(_blocks(message.about, message.text))}


def escaped(text: str) -> str:
    """A text in which Slack reads nothing as its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _blocks(about: Notification, text: str) -> Iterator[dict[str, Any]]:
    yield {
        "type": "header",
        "text": {"type": "plain_text", "text": _cut(f"{_sign(about)} {about.title}", _HEADER), "emoji": True},
    }
    facts = {
        "Cluster": about.cluster,
        "Node": about.node,
        "Severity": about.severity,
        "State": about.state,
        "Code": about.code,
        "Devices": about.devices,
    }
    fields = [_marked(f"*{name}*\n{escaped(value)}") for name, value in facts.items() if value]
    yield {"type": "section", "fields": fields}
    shown = {f"runbook: {about.runbook}", f"page: {about.page}"}  # links of their own, at the end
    reported = "\n".join(line for line in text.split("\n")[1:] if line not in shown)
    if reported:
        yield {"type": "section", "text": {"type": "plain_text", "text": _cut(reported, _TEXT)}}
    links = [f"<{url}|{name}>" for name, url in (("Runbook", about.runbook), ("Status page", about.page)) if url]
    yield {"type": "context", "elements": [_marked(" · ".join([*links, escaped(about.id)]))]}


def _sign(about: Notification) -> str:
    if about.state in (IncidentState.RESOLVED, IncidentState.CLOSED):
        return ":large_green_circle:" if about.state is IncidentState.RESOLVED else ":white_circle:"
    return ":red_circle:" if about.severity is Severity.CRITICAL else ":large_orange_circle:"


def _marked(text: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": text}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _called(
    api: str, token: str, deadline: Deadline, method: str, data: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """The error of a call of Slack's Web API, "" for none, and its answer. Slack reports errors with status 200."""
    text = post(f"{api.rstrip('/')}/{method}", data, {"Authorization": f"Bearer {token}"}, deadline)
    try:
        answer = json.loads(text)
    except ValueError:
        return "no JSON", {}
    if not isinstance(answer, dict):
        return "no object", {}
    return ("" if answer.get("ok") is True else str(answer.get("error", "no reason"))[:80]), answer


def _must(error: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if error:
        raise RefusedError(f"Slack's chat.postMessage answered {error}")
    return answer
