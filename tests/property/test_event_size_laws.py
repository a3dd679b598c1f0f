"""The laws of an event's size: EventBridge accepts every entry, and an entry that was shortened says so."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from healthd.core.encodable import json_text
from healthd.notify.eventbridge import MOST_BYTES, detail_of
from healthd.notify.message import LONGEST_ID, NewsItem, Notification
from healthd.notify.news import NODE_KEY, NewsKind
from tests.support.notifications import SENDER, SINCE, a_message

KILO = 1_024
# What EventBridge counts beside the detail: an event's own keys, and the values that it writes itself.
ENVELOPE = json.dumps(
    {"version": "0", "id": "0" * 36, "detail-type": "d" * 128, "source": "healthd", "account": "0" * 12}
    | {"time": "2026-11-25T03:00:20Z", "region": "r" * 20, "resources": ["i-" + "0" * 17], "detail": ""}
)
# One character of each length in UTF-8 and in JSON, and half of a pair, which UTF-8 has no bytes for.
CHARACTERS = st.sampled_from(("x", "ü", "…", "🖥", '"', "\x00", "\ud800"))


@st.composite
def texts(draw: st.DrawFn, longest: int = 2_000) -> str:
    return draw(CHARACTERS) * draw(st.sampled_from((0, 1, 200, longest)))


@st.composite
def notifications(draw: st.DrawFn) -> Notification:
    """A document with up to as many states as a queue holds, and with texts for which no entry has room."""
    words = draw(texts())
    states = [
        NewsItem(
            key=NODE_KEY if draw(st.booleans()) else words,
            state=draw(st.sampled_from(NewsKind)),
            message=draw(texts()),
            since=SINCE + timedelta(seconds=draw(st.integers(0, 9))),
            over=None,
            next_step=draw(texts()),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    news = tuple(states) * draw(st.sampled_from((1, 50)))
    return a_message(
        id=words[:LONGEST_ID], title=draw(texts(longest=300_000)), devices=draw(texts()), node=words, news=news
    ).about


def of_many(nodes: int) -> Notification:
    """An incident that names each of these nodes in one text."""
    names = ", ".join(f"ip-10-0-{number // 256}-{number % 256}.us-east-1.compute.internal" for number in range(nodes))
    state = NewsItem(key=NODE_KEY, state=NewsKind.WRONG, message=names, since=SINCE, over=None, next_step="", out=True)
    return a_message(news=(state,)).about


@settings(max_examples=25)
@given(about=notifications())
@example(about=of_many(10_000))
@example(about=of_many(1))
def test_every_entry_fits(about: Notification) -> None:
    """Less than 256 KB, whatever a node has to report: a larger entry is refused each time that it is sent."""
    detail = detail_of(about)
    assert len(detail.encode()) <= MOST_BYTES
    assert len(detail.encode()) + len(ENVELOPE.encode()) < 256 * KILO


@settings(max_examples=25)
@given(about=notifications())
@example(about=of_many(10_000))
def test_a_short_document_is_whole_and_a_shortened_one_says_so(about: Notification) -> None:
    """Only a document without room is shortened. It has the same fields, and what identifies the event is as it was."""
    whole, sent = json.loads(json_text(about)), json.loads(detail_of(about))
    assert (sent == whole) is (len(json_text(about).encode()) <= MOST_BYTES)
    assert (sent["cut"] > 0) is (sent != whole)
    assert sent.keys() == whole.keys()
    kept = ("schema", "id", "event", "state", "severity", "step", "since", "at")
    assert {name: sent[name] for name in kept} == {name: whole[name] for name in kept}
    assert own(sent) == own(whole)
    assert longest(sent) <= longest(whole)


def own(document: dict[str, Any]) -> list[tuple[str, str]]:
    """State and time of the node's own news, the first 20 of it."""
    return [(each["state"], each["since"]) for each in document["news"] if each["key"] == NODE_KEY][:20]


def longest(value: Any) -> int:
    """The characters of the longest text in a document."""
    if isinstance(value, dict):
        return max(map(longest, value.values()), default=0)
    if isinstance(value, list):
        return max(map(longest, value), default=0)
    return len(value) if isinstance(value, str) else 0


def test_a_usual_event_is_small() -> None:
    """An incident of ten thousand nodes is ten thousand events of their own, each far below the limit."""
    state = NewsItem(
        key=NODE_KEY,
        state=NewsKind.WRONG,
        message="out of service for gpu.xid.79 on GPU 3: the driver lost the GPU (reboot_node)",
        since=SINCE,
        over=None,
        next_step="Read the kernel log around it",
        out=True,
    )
    assert len(detail_of(a_message(sender=SENDER, news=(state,)).about)) < 2 * KILO
