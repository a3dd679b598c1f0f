"""Each receiver gets a message in its own form: verified by servers on loopback that stand for the services."""

from __future__ import annotations

import email
import json
import socket
import socketserver
import time
import urllib.parse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from healthd.config.schema.notify import NotifySection
from healthd.core.model import Severity
from healthd.core.node import CommandResult
from healthd.daemon.daemon import _JOIN_S
from healthd.notify.apprise_child import ABSENT, delivered
from healthd.notify.apprise_services import keeps_incidents, kind_of, secrets_of, to_apprise
from healthd.notify.delivery import CHILD_TIMEOUT_S, TIMEOUT_S, NotDeliveredError, RefusedError
from healthd.notify.eventbridge import to_eventbridge
from healthd.notify.message import IncidentState, NewsItem, Occasion
from healthd.notify.news import NewsKind
from healthd.notify.pagerduty import actions, event, severity, to_pagerduty
from healthd.notify.receivers import channels_of
from healthd.notify.slack import content_of, to_slack, to_slack_bot
from healthd.remediation.provisioners.aws import Aws
from tests.support.limits import limit_s
from tests.support.notifications import SINCE, a_message
from tests.support.services import Mailbox, Service, a_service, serving, the_internet

RESOLVED = {"state": IncidentState.RESOLVED, "event": Occasion.RESOLVED, "step": ""}
STEP = {"event": Occasion.STEP, "step": "verify"}


def answering(answer: Any, *_: Any) -> tuple[int, Any]:
    """The answer of a server that has one for all."""
    return 200, answer


@pytest.fixture
def service() -> Iterator[Service]:
    with a_service() as made:
        yield made


@pytest.fixture
def secret(tmp_path: Path) -> Callable[[str, str], str]:
    def written(name: str, text: str) -> str:
        (tmp_path / name).write_text(f"{text}\n")
        return str(tmp_path / name)

    return written


Secret = Callable[[str, str], str]
BUS = "arn:aws:events:us-east-1:123456789012:event-bus/healthd"

# ---------------------------------------------------------------------------------------------------------------------
# one deadline


def test_a_message_has_one_deadline_for_all_of_its_requests(service: Service, secret: Secret) -> None:
    """Two requests that are slow, each within it, are too long together. A daemon that stops waits for a message."""

    def slow(path: str, body: Any) -> tuple[int, Any]:
        time.sleep(0.6)
        return 200, {"ok": True, "channel": "C9", "ts": "18"}

    service.answers = slow
    bot = to_slack_bot(secret("token", "xoxb-1"), "C9", service.url, timeout_s=1.0)
    pagerduty = to_pagerduty(secret("key", "R0"), service.url, timeout_s=1.0)
    for deliver, message in (
        (bot, a_message(before="C9 17.5")),
        (pagerduty, a_message(state=IncidentState.ACKNOWLEDGED)),
    ):
        with pytest.raises(NotDeliveredError, match="timed out|no whole answer within 1 s"):
            deliver(message)


def test_the_events_of_a_message_have_one_deadline() -> None:
    """A child each, of which the second has the rest of the time."""
    asked: list[float] = []

    def run(argv: tuple[str, ...], *, timeout_s: float, **_: Any) -> CommandResult:
        asked.append(timeout_s)
        time.sleep(0.2)
        return CommandResult(argv=argv, code=0, stdout='{"answer": {}}', stderr="", duration_s=0.2)

    out = NewsItem(key="node", state=NewsKind.WRONG, message="out", since=SINCE, over=None, next_step="", out=True)
    deliver = partial(to_eventbridge, BUS, Aws(region="us-east-1", timeout_s=60.0, run=run))
    deliver(timeout_s=30.0)(a_message(step="reboot", news=(out,)))
    first, second = asked
    assert second <= first - 0.2
    with pytest.raises(NotDeliveredError, match=r"no whole answer within 0\.1 s"):
        deliver(timeout_s=0.1)(a_message(step="reboot", news=(out,)))


def test_a_daemon_that_stops_waits_longer_than_a_message_takes() -> None:
    """Else an orderly stop would count as failed while a receiver hangs."""
    assert max(TIMEOUT_S, CHILD_TIMEOUT_S) + 1.0 < _JOIN_S


# ---------------------------------------------------------------------------------------------------------------------
# Slack


def test_a_webhook_of_slack_gets_blocks(service: Service, secret: Secret) -> None:
    """The title as header, the facts as fields, the news as text that Slack reads nothing into, links at the end."""
    to_slack(secret("url", f"{service.url}/services/T0/B0/x"))(a_message())
    ((path, body),) = service.asked
    assert path == "/services/T0/B0/x"
    header, facts, text, context = body["blocks"]
    assert header["text"]["text"] == ":red_circle: gpu-213 drained: GPU 3 fell off the bus (XID 79). Rebooting now."
    assert [each["text"] for each in facts["fields"]] == [
        "*Cluster*\ntrain-a",
        "*Node*\ngpu-213",
        "*Severity*\ncritical",
        "*State*\nopen",
        "*Code*\ngpu.xid.79",
        "*Devices*\nGPU 3",
    ]
    assert text["text"] == {"type": "plain_text", "text": "PROBLEM: <a> & b"}
    assert context["elements"][0]["text"] == (
        "<https://docs.example.com/runbooks/gpu.xid.79.html|Runbook> · "
        "<https://healthd.example.com/gpu-213|Status page> · train-a/gpu-213/gpu.xid.79"
    )


@pytest.mark.parametrize(
    ("fields", "sign"),
    [
        ({"severity": Severity.WARNING}, ":large_orange_circle:"),
        (RESOLVED, ":large_green_circle:"),
        ({"state": IncidentState.CLOSED}, ":white_circle:"),
    ],
)
def test_the_sign_shows_how_it_stands(fields: dict[str, Any], sign: str) -> None:
    """Red, orange, green; white where healthd's part is over and the fault is not. No text is too long for Slack."""
    header, *rest = content_of(a_message(title="t" * 400, text="t\n" + "x" * 9_000, **fields))["blocks"]
    assert header["text"]["text"].startswith(sign)
    assert len(header["text"]["text"]) == 150
    assert len(rest[1]["text"]["text"]) == 3_000
    bare = content_of(a_message(text="t", runbook="", page=""))["blocks"]
    assert [each["type"] for each in bare] == ["header", "section", "context"]


def test_a_bot_updates_its_one_message_and_answers_below_it(service: Service, secret: Secret) -> None:
    """A step changes the message alone. The name of the message is Slack's, and the token is in no body."""
    service.answers = lambda path, body: (200, {"ok": True, "channel": "C9", "ts": "17.5"})
    deliver = to_slack_bot(secret("token", "xoxb-1"), "#gpu", f"{service.url}/api")
    name = deliver(a_message())
    assert name == "C9 17.5"
    assert deliver(a_message(before="C9 17.5", **STEP)) == name
    assert deliver(a_message(before="C9 17.5", **RESOLVED)) == name
    assert [path.rpartition("/")[2] for path, _ in service.asked] == [
        "chat.postMessage",
        "chat.update",
        "chat.update",
        "chat.postMessage",
    ]
    (_, first), (_, update), _, (_, reply) = service.asked
    assert (first["channel"], first["blocks"][0]["type"]) == ("#gpu", "header")
    assert (update["channel"], update["ts"]) == ("C9", "17.5")
    assert (reply["channel"], reply["thread_ts"], "blocks" in reply) == ("C9", "17.5", False)
    assert {each["Authorization"] for each in service.headers} == {"Bearer xoxb-1"}
    assert "xoxb-1" not in json.dumps([body for _, body in service.asked])


def test_a_message_that_was_deleted_is_posted_anew(service: Service, secret: Secret) -> None:
    """Other errors are said; Slack says them with status 200."""
    errors = {"chat.update": "message_not_found", "chat.postMessage": ""}

    def answers(path: str, body: Any) -> tuple[int, Any]:
        error = errors[path.rpartition("/")[2]]
        return 200, {"ok": False, "error": error} if error else {"ok": True, "channel": "C9", "ts": "18"}

    service.answers = answers
    deliver = to_slack_bot(secret("token", "xoxb-1"), "C9", service.url)
    assert deliver(a_message(before="C9 17.5")) == "C9 18"
    errors["chat.update"] = "ratelimited"
    with pytest.raises(NotDeliveredError, match=r"Slack's chat\.update answered ratelimited"):
        deliver(a_message(before="C9 17.5"))
    errors["chat.postMessage"] = "invalid_auth"
    with pytest.raises(NotDeliveredError, match=r"Slack's chat\.postMessage answered invalid_auth"):
        deliver(a_message())
    told: tuple[tuple[Any, str], ...] = (("<html>", "no JSON"), ([], "no object"), ({"ok": False}, "no reason"))
    for answer, words in told:
        service.answers = partial(answering, answer)
        with pytest.raises(NotDeliveredError, match=words):
            deliver(a_message())


# ---------------------------------------------------------------------------------------------------------------------
# PagerDuty


def test_pagerduty_triggers_acknowledges_and_resolves_under_one_key(service: Service, secret: Secret) -> None:
    """By Events API v2: what is required, the links, and the key that is the same in each event."""
    service.answers = lambda path, body: (202, {"status": "success", "dedup_key": body["dedup_key"]})
    deliver = to_pagerduty(secret("key", "R0UT1NG"), service.url)
    deliver(a_message())
    deliver(a_message(state=IncidentState.ACKNOWLEDGED, event=Occasion.CHANGED))
    deliver(a_message(**RESOLVED))
    assert {path for path, _ in service.asked} == {"/v2/enqueue"}
    bodies = [body for _, body in service.asked]
    assert [each["event_action"] for each in bodies] == ["trigger", "acknowledge", "resolve"]
    assert {(each["routing_key"], each["dedup_key"]) for each in bodies} == {("R0UT1NG", "train-a/gpu-213/gpu.xid.79")}
    trigger = bodies[0]
    assert trigger["links"][0] == {"href": "https://docs.example.com/runbooks/gpu.xid.79.html", "text": "Runbook"}
    assert trigger["client_url"] == "https://healthd.example.com/gpu-213"
    payload = trigger["payload"]
    assert payload["summary"] == "gpu-213 drained: GPU 3 fell off the bus (XID 79). Rebooting now."
    assert {name: payload[name] for name in ("source", "severity", "component", "group", "class", "timestamp")} == {
        "source": "gpu-213",
        "severity": "warning",
        "component": "GPU 3",
        "group": "train-a",
        "class": "gpu.xid.79",
        "timestamp": "2026-11-25T03:00:05+00:00",
    }
    assert payload["custom_details"]["instance"] == a_message().about.sender.instance_id != ""


def test_a_page_for_another_node_names_no_instance() -> None:
    """A node pages for one whose daemon is away: the instance of the sender is not the one to look at."""
    details = event(a_message(node="gpu-7"), "key", "trigger")["payload"]["custom_details"]
    assert not {"instance", "instance type"} & details.keys()


@pytest.mark.parametrize(
    ("fields", "done", "word"),
    [
        ({}, ("trigger",), "warning"),
        ({"step": ""}, ("trigger",), "error"),
        ({"needs_operator": True}, ("trigger",), "critical"),
        ({"severity": Severity.WARNING, "step": ""}, ("trigger",), "warning"),
        ({"state": IncidentState.ACKNOWLEDGED}, ("trigger", "acknowledge"), "warning"),
        ({"state": IncidentState.CLOSED, "event": Occasion.CLOSED}, ("resolve",), "warning"),
        ({"event": Occasion.DRILL, "state": IncidentState.RESOLVED}, ("trigger", "resolve"), "info"),
    ],
)
def test_what_healthd_repairs_wakes_nobody_up(fields: dict[str, Any], done: tuple[str, ...], word: str) -> None:
    """A service with dynamic urgency pages for critical and error. A drill leaves nothing open."""
    about = a_message(page="", **fields).about
    assert (actions(about), severity(about)) == (done, word)


ACKED = {"state": IncidentState.ACKNOWLEDGED, "event": Occasion.CHANGED}


def news(state: NewsKind, *, is_over: bool = False) -> tuple[NewsItem, ...]:
    over = SINCE if is_over else None
    return (NewsItem(key="k", state=state, message="m", since=SINCE, over=over, next_step=""),)


@pytest.mark.parametrize(
    ("messages", "done"),
    [
        (
            [{}, ACKED, ACKED, {"news": news(NewsKind.NOW)}, {"news": news(NewsKind.NOW)}],
            "trigger ack ack again trigger",
        ),
        ([ACKED, {"news": news(NewsKind.OVER, is_over=True)}, {"news": news(NewsKind.WRONG)}], "ack trigger again"),
        ([{}, STEP, {"needs_operator": True, "news": news(NewsKind.WRONG)}, STEP], "trigger trigger again trigger"),
        ([{"step": ""}, {"needs_operator": True, "news": news(NewsKind.WRONG)}], "trigger trigger"),
        ([ACKED, {**STEP, "news": news(NewsKind.STEP)}, RESOLVED], "ack trigger resolve"),
    ],
)
def test_an_operator_hears_of_what_is_no_longer_acknowledged(
    service: Service, secret: Secret, messages: list[dict[str, Any]], done: str
) -> None:
    """PagerDuty notifies of no trigger while an incident is acknowledged: a resolve goes before it. So where a repair
    is given up that was a warning until then, which an operator may have acknowledged there."""
    service.answers = lambda path, body: (202, {"status": "success"})
    deliver, before = to_pagerduty(secret("key", "R0"), service.url), ""
    for fields in messages:
        before = deliver(a_message(before=before, **fields)) or ""
    sent = " ".join(body["event_action"] for _, body in service.asked)
    assert sent.replace("acknowledge", "ack").replace("resolve trigger", "again") == done


def test_a_refusal_of_pagerduty_is_said_without_the_key(service: Service, secret: Secret) -> None:
    """Which stands in the body, and PagerDuty may quote it."""
    service.answers = lambda path, body: (400, {"errors": [f"routing key {body['routing_key']} is unknown"]})
    with pytest.raises(NotDeliveredError, match="answered 400") as caught:
        to_pagerduty(secret("key", "R0UT1NG'x"), service.url)(a_message())
    assert "R0UT1NG" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Apprise


@pytest.fixture
def internet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Every host of https."""
    with the_internet(tmp_path / "internet.pem") as (made, environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.process
def test_opsgenie_opens_comments_and_closes_one_alert(internet: Service, tmp_path: Path, secret: Secret) -> None:
    """Under the incident's id as alias; each by a child of its own."""
    internet.answers = lambda path, body: (202, {"result": "Request will be processed", "requestId": "43a2-9c5c"})
    deliver = to_apprise(secret("url", "opsgenie://0a1b2c3d-key/"), str(tmp_path), timeout_s=limit_s(60))
    deliver(a_message())
    deliver(a_message(**STEP))
    deliver(a_message(**RESOLVED))
    assert [urllib.parse.urlsplit(path).path for path, _ in internet.asked] == [
        "/v2/alerts",
        "/v2/alerts/43a2-9c5c/notes",
        "/v2/alerts/43a2-9c5c/close",
    ]
    opened = internet.asked[0][1]
    assert (opened["alias"], opened["message"]) == (
        "train-a/gpu-213/gpu.xid.79",
        "gpu-213 drained: GPU 3 fell off the bus (XID 79). Rebooting now.",
    )
    assert "PROBLEM: <a> & b" in opened["description"]
    assert internet.headers[0]["Authorization"] == "GenieKey 0a1b2c3d-key"
    kept = [each for each in (tmp_path / "apprise").rglob("*") if each.is_file()]
    assert kept
    assert not [each for each in kept if b"0a1b2c3d" in each.read_bytes()]


@pytest.mark.process
def test_teams_and_sns_get_the_title_and_the_text(internet: Service, tmp_path: Path, secret: Secret) -> None:
    """Teams by a workflow's adaptive card, SNS by Publish; both at the services' own addresses."""
    topic = "<CreateTopicResult><TopicArn>arn:aws:sns:eu-west-1:1:gpu-alerts</TopicArn></CreateTopicResult>"
    internet.answers = lambda path, body: (200, f"<R>{topic}</R>") if "sns" in path else (202, "")
    teams = "workflows://prod-1.westeurope.logic.azure.com:443/643e69f83c8944/abcdefghij0123456789"
    to_apprise(secret("teams", teams), str(tmp_path), timeout_s=limit_s(60))(a_message())
    sns = "sns://AKIA0123456789/secretKey01234567/eu-west-1/gpu-alerts/"
    to_apprise(secret("sns", sns), str(tmp_path), timeout_s=limit_s(60))(a_message())
    (_, card), *calls = internet.asked
    assert "GPU 3 fell off the bus" in json.dumps(card)
    assert card["attachments"][0]["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert all(path.startswith("https://sns.eu-west-1.amazonaws.com") for path, _ in calls)
    publish = urllib.parse.parse_qs(calls[-1][1])
    assert (publish["Action"], publish["TopicArn"]) == (["Publish"], ["arn:aws:sns:eu-west-1:1:gpu-alerts"])
    assert "GPU 3 fell off the bus" in publish["Message"][0]


@pytest.mark.process
def test_an_e_mail_arrives(tmp_path: Path, secret: Secret) -> None:
    """With the title as its subject."""
    Mailbox.got.clear()
    with socketserver.TCPServer(("127.0.0.1", 0), Mailbox) as server, serving(server):
        port = server.server_address[1]
        url = f"mailto://127.0.0.1:{port}/?from=healthd@example.com&to=oncall@example.com&mode=insecure"
        to_apprise(secret("mail", url), str(tmp_path), timeout_s=limit_s(60))(a_message())
    (raw,) = Mailbox.got
    mail = email.message_from_string(raw)
    subject = str(email.header.make_header(email.header.decode_header(mail["Subject"])))
    assert subject == "gpu-213 drained: GPU 3 fell off the bus (XID 79). Rebooting now."
    assert "oncall@example.com" in mail["To"]
    parts = [each.get_payload(decode=True) for each in mail.walk() if not each.is_multipart()]
    assert any(b"PROBLEM:" in part for part in parts if isinstance(part, bytes))


@pytest.mark.process
def test_a_service_that_does_not_accept_is_named_and_its_url_is_not(tmp_path: Path, secret: Secret) -> None:
    """Nobody listens; a URL that Apprise does not know; a child that takes too long."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    deliver = to_apprise(secret("url", f"json://user:s3cretpass@127.0.0.1:{port}/h00ks-42"), str(tmp_path))
    with pytest.raises(RefusedError, match=r"Apprise \(json\): not accepted: ") as caught:
        deliver(a_message())
    assert not [each for each in ("s3cretpass", "h00ks-42") if each in str(caught.value)]
    with pytest.raises(RefusedError, match="does not understand") as caught:
        to_apprise(secret("url", "nosuch://s3cretpass/"), str(tmp_path), timeout_s=limit_s(60))(a_message())
    assert "s3cretpass" not in str(caught.value)
    with pytest.raises(NotDeliveredError, match=r"Apprise \(json\):"):
        to_apprise(secret("url", "json://127.0.0.1/"), str(tmp_path), timeout_s=0.01)(a_message())


def test_without_apprise_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """healthd runs without it."""
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    assert delivered({"url": "json://x"}) == ABSENT


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "failure"),
        ({"severity": Severity.WARNING}, "warning"),
        ({"event": Occasion.REMINDER}, "failure"),
        ({"event": Occasion.CHANGED}, "info"),
        (STEP, "info"),
        (RESOLVED, "success"),
        ({"state": IncidentState.CLOSED}, "success"),
        ({"event": Occasion.DRILL, "state": IncidentState.RESOLVED}, "info"),
    ],
)
def test_apprise_is_told_the_kind(fields: dict[str, Any], kind: str) -> None:
    """By which a service chooses colour, and whether it opens or closes."""
    assert kind_of(a_message(**fields).about) == kind


def test_no_part_of_a_services_url_is_shown() -> None:
    """User, password, key, path and parameters; also of a URL that cannot be read."""
    found = secrets_of("mailto://user-1:pass word@host.example/a-path?to=on-call@x&k=a'quote")
    assert {"user-1", "pass word", "host.example", "a-path", "on-call@x", "a'quote"} <= set(found)
    assert "json://[half-open" in secrets_of("json://[half-open")
    assert (keeps_incidents("opsgenie://x"), keeps_incidents("json://x")) == (True, False)


def test_each_setting_adds_its_receiver(secret: Secret) -> None:
    """Bots, programs and Opsgenie get each incident and each step; what operators read does not."""
    opsgenie, teams = secret("opsgenie.url", "opsgenie://key/"), "/etc/healthd/teams.url"
    section = NotifySection(
        slack_url_file="/etc/s",
        slack_token_file="/etc/t",  # noqa: S106  a path
        slack_channel="C1",
        pagerduty_key_file="/etc/p",
        webhook_url="https://x.example/",
        command=("/bin/cat",),
        eventbridge_bus=BUS,
        apprise_url_files=(opsgenie, teams),
    )
    found = channels_of(section, "/var/lib/healthd")
    assert {name: each.each_incident for name, each in found.items()} == {
        "slack": False,
        "slack-bot": True,
        "pagerduty": True,
        "webhook": True,
        "command": False,
        "eventbridge": True,
        "apprise-opsgenie": True,
        "apprise-teams": False,
    }
    assert all(each.steps is each.each_incident for each in found.values())
    assert [name for name, each in found.items() if each.service] == ["eventbridge"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"slack_token_file": "/etc/t"}, "slack_token_file and slack_channel belong together"),
        ({"apprise_url_files": ("/a/x.url", "/b/x.url")}, "two files make the receiver apprise-x"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    """With the expected ones."""
    with pytest.raises(ValueError, match=words):
        NotifySection(**settings)
