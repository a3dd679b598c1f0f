"""The laws of held messages over any story of faults, notices, dead controllers and clocks: none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from healthd.notify.held import WAITS, held
from healthd.notify.news import PAGED, NewsKind, Piece, Topic, TopicMemory, tell
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice, IncidentNotices

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
NODE = "gpu-007"
WAIT = timedelta(seconds=90)
TICK = timedelta(seconds=5)
FAULTS = (
    Topic(key="imex", message="imex", code="gpu.imex.not_up", component="node", critical=True),
    Topic(key="lustre", message="lustre", code="lustre.missing", component="mount:/fsx_data", critical=True),
    Topic(key="xid", message="xid", code="gpu.xid.79", component="gpu:GPU-1", critical=True, lasts_s=0.0),
    Topic(key="warns", message="warns", code="gpu.nvlink.dead", component="nvlink:1", lasts_s=15.0),
    Topic(key=f"{PAGED}repair", message="a repair failed", critical=True, lasts_s=0.0),
    Topic(key="unknown", message="unknown", lasts_s=600.0),
)
ROOTS = ("NVLink domain rack-7", "lustre mount:/fsx data", "gpu.xid.79", "gpu.count")


@st.composite
def notices(draw: st.DrawFn, now: datetime) -> IncidentNotices:
    found = []
    for root in draw(st.sets(st.sampled_from(ROOTS))):
        nodes = frozenset(draw(st.sets(st.sampled_from((NODE, "gpu-001", "gpu-002")))))
        until = now + draw(st.sampled_from((-TICK, TICK, LASTS)))
        critical = draw(st.booleans())
        found.append(IncidentNotice(id=root, root=root, began=NOW, nodes=nodes, critical=critical, until=until))
    watched = draw(st.sampled_from((None, now - TICK, now + LASTS)))
    return IncidentNotices(watched_until=watched, open=tuple(found))


Story = list[tuple[datetime, tuple[Topic, ...], IncidentNotices]]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Up to forty ticks, in which faults come and go and notices are what they are."""
    now, found = NOW, []
    for _ in range(draw(st.integers(1, 8))):
        topics = tuple(each for each in FAULTS if draw(st.booleans()))
        known = draw(notices(now))
        for _ in range(draw(st.integers(1, 30))):
            found.append((now, topics, known))
            now += TICK
    return found


def lived(
    story: Story, memory: Mapping[str, TopicMemory] | None = None
) -> tuple[dict[str, TopicMemory], list[tuple[datetime, Piece]]]:
    memory, news = dict(memory or {}), []
    for now, topics, known in story:
        keys = held(topics, memory, known, node=NODE, now=now, wait=WAIT)
        memory, pieces = tell(memory, topics, now, keys)
        news += [(now, each) for each in pieces]
    return memory, news


@given(stories())
def test_a_controller_that_dies_loses_no_message(story: Story) -> None:
    """Whatever was held: once no notice is left, all that is open is reported, as soon as it has lasted."""
    memory, _ = lived(story)
    end, topics, _ = story[-1]
    after: Story = [(end + number * TICK, topics, IncidentNotices()) for number in range(1, 130)]
    memory, _ = lived(after, memory)
    assert all(memory[each.key].reported for each in topics)


@given(stories())
def test_only_what_a_notice_covers_or_a_short_wait_is_held(story: Story) -> None:
    """Each held topic has a notice that lists this node, holds now and is no milder; or it is younger than the wait,
    and a controller watches. Beside anything critical that has neither nothing is held."""
    memory: dict[str, TopicMemory] = {}
    for now, topics, known in story:
        keys = held(topics, memory, known, node=NODE, now=now, wait=WAIT)
        for topic in topics:
            notice = known.covering(NODE, topic.code, topic.component, critical=topic.critical, now=now)
            seen = memory.get(topic.key)
            is_young = seen is None or seen.gone is not None or now - seen.since < WAIT
            may_wait = bool(topic.code) and known.is_watched(now) and is_young and not (seen and seen.reported)
            if topic.key in keys:
                assert may_wait if keys[topic.key] == WAITS else notice is not None
            elif keys and topic.critical:
                assert notice is not None
        memory, _ = tell(memory, topics, now, keys)


@given(stories())
def test_what_no_notice_ever_covered_is_reported_if_it_lasted(story: Story) -> None:
    """Also if it ended while it waited for an incident: then with its end."""
    _, news = lived([(now, topics, IncidentNotices(watched_until=known.watched_until)) for now, topics, known in story])
    reported = {piece.key for _, piece in news}
    for topic in FAULTS:
        run = longest = 0
        for _, topics, _ in story:
            run = run + 1 if topic in topics else 0
            longest = max(longest, run)
        gone = topic not in story[-1][1]
        if (longest - 1) * TICK >= timedelta(seconds=topic.lasts_s) + (timedelta() if gone else WAIT):
            assert topic.key in reported


@given(stories())
def test_nothing_is_reported_twice(story: Story) -> None:
    """Between two problems of one topic there is its end."""
    _, news = lived(story)
    for topic in FAULTS:
        kinds = [piece.news for _, piece in news if piece.key == topic.key]
        assert all(first is not NewsKind.WRONG or second is not NewsKind.WRONG for first, second in pairwise(kinds))
