"""A message is one incident as it stands: its title can be read at night, its id stays the same, and it ends."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from healthd.core.model import Severity, Step
from healthd.notify.message import (
    LONGEST_ID,
    Addresses,
    IncidentState,
    Message,
    Occasion,
    Sender,
    composed,
    drill,
    summary,
)
from healthd.notify.news import (
    APPROVE,
    FLEET,
    NODE_KEY,
    OUT,
    PAGED,
    NewsKind,
    Piece,
    Topic,
    TopicAbout,
    step_of,
)
from healthd.remediation.decide.remediation import Approval, Phase
from tests.support.judgement import a_remediation

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "notification.schema.json"
NOW = datetime(2026, 11, 25, 3, 0, 20, tzinfo=UTC)
SINCE = NOW - timedelta(seconds=15)
SENDER = Sender(node="gpu-213", notices=("the GPUs are simulated",))
CODE, WHAT = "gpu.xid.79", "GPU 3 fell off the bus (XID 79)"
ABOUT = TopicAbout(code=CODE, device="GPU 3", what=WHAT, severity=Severity.CRITICAL)
FAULT = Topic(key=f"{CODE} gpu:GPU-3", message="gpu.xid.79 on GPU 3: critical", about=ABOUT, next_step="look")
OUT_NOW = Topic(
    key=NODE_KEY, message="out of service", step="reboot", about=replace(ABOUT, severity=Severity.WARNING, out=True)
)
PAGE = Topic(
    key=f"{PAGED}{CODE} gpu:GPU-3", message="an operator is needed: rebooted twice, the fault is back", about=ABOUT
)
ADDRESSES = Addresses(
    cluster="train-a", runbooks={CODE: "https://docs.example/gpu.xid.79.html"}, page="https://healthd.example/{node}"
)


def piece(topic: Topic, news: NewsKind = NewsKind.WRONG) -> Piece:
    over = NOW if news in (NewsKind.OVER, NewsKind.ENDED) else None
    return Piece(key=topic.key, message=topic.message, since=SINCE, over=over, news=news, about=topic.about)


def made(*pieces: Piece, standing: tuple[Topic, ...] = (), open_now: bool = True, **more: Any) -> Message:
    given: dict[str, Any] = {"sender": SENDER, "addresses": ADDRESSES, "now": NOW, **more}
    return composed(pieces, standing, open_now=open_now, **given)


def test_all_that_an_operator_needs_first_is_in_fields() -> None:
    """Cluster, node, code, devices, severity, the step, links and the key under which a receiver finds it again."""
    about = made(piece(FAULT), standing=(FAULT, OUT_NOW)).about
    assert about.title == "gpu-213 drained: GPU 3 fell off the bus (XID 79). Rebooting now."
    assert (about.id, about.event, about.state) == ("train-a/gpu-213/gpu.xid.79", Occasion.OPENED, IncidentState.OPEN)
    assert (about.cluster, about.node, about.code, about.devices) == ("train-a", "gpu-213", CODE, "GPU 3")
    assert (about.severity, about.needs_operator, about.step, about.next_step) == (
        Severity.CRITICAL,
        False,
        "reboot",
        "look",
    )
    assert (about.runbook, about.page) == ("https://docs.example/gpu.xid.79.html", "https://healthd.example/gpu-213")
    assert [each.key for each in about.news] == [FAULT.key]


def test_a_message_is_what_its_schema_says() -> None:
    """The shipped one, which no further field passes; drills and summaries are such documents as well."""
    schema = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    several = summary([piece(FAULT)], 1, sender=SENDER, addresses=ADDRESSES, now=NOW, lost=1)
    exercise = drill("d", sender=SENDER, addresses=ADDRESSES, now=NOW)
    for message in (made(piece(FAULT), standing=(FAULT,)), several, exercise):
        jsonschema.validate(message.data, schema)
        assert set(message.data) == set(schema["$defs"]["Notification"]["properties"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**exercise.data, "state": "odd"}, schema)


def test_the_text_begins_with_the_title_and_ends_with_the_links() -> None:
    """The cluster before it, what is simulated and the news below, and how many pieces were dropped."""
    text = made(piece(FAULT), standing=(FAULT, OUT_NOW), lost=3).text.splitlines()
    assert text == [
        "[train-a] gpu-213 drained: GPU 3 fell off the bus (XID 79). Rebooting now.",
        "the GPUs are simulated",
        "PROBLEM: gpu.xid.79 on GPU 3: critical (since 2026-11-25 03:00:05 UTC)",
        "  do: look",
        "runbook: https://docs.example/gpu.xid.79.html",
        "page: https://healthd.example/gpu-213",
        "3 older pieces of news were dropped",
    ]
    bare = made(piece(FAULT), standing=(FAULT,), addresses=Addresses(), sender=Sender(node="n")).text.splitlines()
    assert bare[0] == "n critical: GPU 3 fell off the bus (XID 79)."
    assert bare[2:] == ["  do: look"]


def test_a_message_about_a_drained_node_says_what_to_do() -> None:
    """The news is that the node is out; the next step is that of its fault, once, and none when all is over."""
    text = made(piece(OUT_NOW), standing=(OUT_NOW, FAULT)).text.splitlines()
    assert text[2:5] == [
        "PROBLEM: out of service (since 2026-11-25 03:00:05 UTC)",
        "  do: look",
        "runbook: https://docs.example/gpu.xid.79.html",
    ]
    told = replace(piece(FAULT), next_step="look")
    assert made(told, piece(OUT_NOW), standing=(OUT_NOW, FAULT)).text.count("  do: look") == 1
    assert "do:" not in made(piece(OUT_NOW, NewsKind.OVER), open_now=False).text


@pytest.mark.parametrize(
    ("standing", "title"),
    [
        ((FAULT,), "gpu-213 critical: GPU 3 fell off the bus (XID 79)."),
        (
            (replace(FAULT, about=replace(ABOUT, acknowledged=True)),),
            "gpu-213 critical, acknowledged: GPU 3 fell off the bus (XID 79).",
        ),
        (
            (FAULT, PAGE),
            "gpu-213 needs an operator: GPU 3 fell off the bus (XID 79). rebooted twice, the fault is back.",
        ),
        (
            (OUT_NOW, replace(PAGE, message="odd", about=TopicAbout())),
            "gpu-213 drained, and needs an operator: GPU 3 fell off the bus (XID 79). odd.",
        ),
        (
            (FAULT, replace(OUT_NOW, step="verify")),
            "gpu-213 drained: GPU 3 fell off the bus (XID 79). It returns to service once it is healthy.",
        ),
        ((Topic(key="unknown", message="no check answers"),), "gpu-213: no check answers."),
        (
            (replace(OUT_NOW, step="", message="out", about=TopicAbout(out=True)),),
            "gpu-213 drained: out.",
        ),
    ],
)
def test_the_title_says_the_state_the_cause_and_what_happens(standing: tuple[Topic, ...], title: str) -> None:
    """What needs an operator comes before what healthd does by itself."""
    assert made(piece(standing[0]), standing=standing).about.title == title


def test_eight_gpus_are_one_incident_with_a_range() -> None:
    """Not eight titles, and not the first of them."""
    faults = tuple(
        replace(
            FAULT,
            key=f"{CODE} {number}",
            about=replace(ABOUT, device=f"GPU {number}", what=f"GPU {number} went missing"),
        )
        for number in range(8)
    )
    about = made(*map(piece, faults), standing=faults).about
    assert about.title == "gpu-213 critical: 8 GPUs (0-7) went missing."
    assert about.devices == "8 GPUs (0-7)"


def test_an_incident_is_over_with_the_last_of_its_topics() -> None:
    """While its node is out, or an end may still be taken back, it is open under the same id."""
    over = piece(FAULT, NewsKind.OVER)
    still = made(over, standing=(OUT_NOW,)).about
    assert (still.state, still.event, still.is_over) == (IncidentState.OPEN, Occasion.CHANGED, False)
    back = made(piece(OUT_NOW, NewsKind.OVER)).about
    assert (back.state, back.title) == (
        IncidentState.OPEN,
        "gpu-213 back in service: GPU 3 fell off the bus (XID 79). Watching whether it comes back.",
    )
    better = made(over).about
    assert better.title.startswith("gpu-213 better: GPU 3 fell off the bus")
    done = made(over, piece(OUT_NOW, NewsKind.OVER), open_now=False).about
    assert (done.state, done.event, done.id) == (IncidentState.RESOLVED, Occasion.RESOLVED, still.id)
    assert done.title == "gpu-213 back in service. Resolved: GPU 3 fell off the bus (XID 79)."
    assert made(over, open_now=False).about.title == "gpu-213 resolved: GPU 3 fell off the bus (XID 79)."


def test_what_healthd_leaves_to_others_is_closed_and_not_resolved() -> None:
    """The title names the owner."""
    about = made(replace(piece(OUT_NOW, NewsKind.ENDED), message="held by root"), open_now=False).about
    assert (about.state, about.event, about.is_over) == (IncidentState.CLOSED, Occasion.CLOSED, True)
    assert about.title == "gpu-213 handed over: GPU 3 fell off the bus (XID 79). held by root."


@pytest.mark.parametrize(
    ("news", "occasion"),
    [
        (NewsKind.NOW, Occasion.CHANGED),
        (NewsKind.STILL, Occasion.REMINDER),
        (NewsKind.STEP, Occasion.STEP),
        (NewsKind.OVER, Occasion.CHANGED),
    ],
)
def test_the_occasion_is_that_of_the_news(news: NewsKind, occasion: Occasion) -> None:
    """The end of one part of an open incident is a change of it."""
    assert made(piece(FAULT, news), standing=(FAULT,)).about.event is occasion


def test_all_that_is_known_of_makes_an_incident_acknowledged() -> None:
    """One fault that is not acknowledged leaves it open."""
    known = replace(FAULT, about=replace(ABOUT, acknowledged=True))
    assert made(piece(known), standing=(known,)).about.state is IncidentState.ACKNOWLEDGED
    assert made(piece(known), standing=(known, FAULT)).about.state is IncidentState.OPEN


def test_an_incident_of_a_fleet_has_one_id_whoever_reports_it() -> None:
    """Of no node, and without a status page; one of a node that cannot speak has that node's."""
    fleet = replace(FAULT, about=replace(ABOUT, subject=FLEET))
    first, second = (made(piece(fleet), standing=(fleet,), sender=Sender(node=name)).about for name in ("a", "b"))
    assert first.id == second.id == "train-a/fleet/gpu.xid.79"
    assert (first.node, first.page, first.title) == ("", "", "fleet critical: GPU 3 fell off the bus (XID 79).")
    silent = replace(FAULT, about=TopicAbout(subject="gpu-9", incident="absent"))
    assert made(piece(silent), standing=(silent,)).about.id == "train-a/gpu-9/absent"
    assert made(piece(silent), standing=(silent,)).about.node == "gpu-9"
    own = Topic(key="rounds", message="no sync succeeds")
    about = made(piece(own), standing=(own,), sender=Sender(controller="head-1"), addresses=Addresses()).about
    assert (about.id, about.node, about.code) == ("controller/rounds", "", "")


def test_an_id_and_a_title_are_bounded() -> None:
    """PagerDuty takes 255 characters of a key; a long reason is cut where a title would be a paragraph."""
    long = Topic(key="x" * 400, message="word " * 200)
    about = made(piece(long), standing=(long,)).about
    assert len(about.id) == LONGEST_ID
    assert (about.title[-1], len(about.title) <= 240) == ("…", True)
    handed = made(replace(piece(OUT_NOW, NewsKind.ENDED), message="held " * 100), open_now=False).about
    assert len(handed.title) <= 240
    longest = replace(OUT_NOW, about=replace(OUT_NOW.about, what="w" * 500))
    named = made(piece(longest), standing=(longest,), sender=Sender(node="n" * 200)).about
    assert (len(named.title), named.title[-1]) == (240, "…")


def test_several_incidents_in_one_message_say_how_many() -> None:
    """For a receiver that has had its messages of this hour: each piece, each runbook once."""
    pieces = (piece(FAULT), piece(Topic(key="a", message="a is bad"), NewsKind.OVER), piece(PAGE))
    told = [replace(each, code=each.about.code) for each in pieces]
    message = summary(told, 2, sender=SENDER, addresses=ADDRESSES, now=NOW, lost=0)
    about = message.about
    assert (about.event, about.state, about.needs_operator) == (Occasion.SUMMARY, IncidentState.OPEN, True)
    assert (about.id, about.title) == ("train-a/gpu-213/summary", "gpu-213: news of 2 incidents")
    assert message.text.count("https://docs.example/gpu.xid.79.html") == 1
    ended = summary([told[1]], 1, sender=Sender(controller="h"), addresses=ADDRESSES, now=NOW, lost=0).about
    assert (ended.state, ended.node, ended.page) == (IncidentState.RESOLVED, "", "")


def test_a_drill_says_so_in_every_field() -> None:
    """Nothing is wrong, and nothing stays open."""
    about = drill("DRILL d1, nothing is wrong", sender=SENDER, addresses=ADDRESSES, now=NOW).about
    assert (about.drill, about.event, about.state, about.news) == (True, Occasion.DRILL, IncidentState.RESOLVED, ())
    assert (about.title, about.severity) == ("gpu-213: DRILL d1, nothing is wrong", Severity.INFO)
    assert drill("d", sender=Sender(controller="h"), addresses=ADDRESSES, now=NOW).about.page == ""


@pytest.mark.parametrize(
    ("step", "changes", "told"),
    [
        (Step.DRAIN, {}, OUT),
        (Step.REBOOT, {}, OUT),
        (Step.REBOOT, {"phase": Phase.INTENDED}, "reboot"),
        (Step.VERIFY, {}, "verify"),
        (Step.RELEASE, {}, "verify"),
        (Step.STAY, {}, "stay"),
    ],
)
def test_a_step_is_told_once_it_is_taken(step: Step, changes: dict[str, Any], told: str) -> None:
    """An act that was not begun is none: the node is out, and its jobs may still run."""
    assert step_of(a_remediation(steps=(step,), index=0, **changes)) == told


def test_an_act_may_wait_for_an_approval() -> None:
    """Until that is given."""
    remediation = a_remediation(steps=(Step.REBOOT,), index=0)
    asked = Approval(remedy=remediation.remedy, code="c", component="n", asked=NOW)
    assert step_of(replace(remediation, approval=asked)) == APPROVE
    assert step_of(replace(remediation, approval=replace(asked, given=NOW))) == OUT
