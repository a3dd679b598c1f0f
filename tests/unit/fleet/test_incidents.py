"""Many nodes with one cause are one incident: its id, root, likely cause, trend and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import StoreError
from healthd.fleet.incident_memory import FILE, keep_memory, kept_memory
from healthd.fleet.incident_text import incident_data, incidents_data, incidents_text, sentence
from healthd.fleet.incidents import (
    ENDS_AFTER,
    KEPT,
    TREND_WINDOW,
    CauseKind,
    Incident,
    IncidentMemory,
    IncidentRules,
    SharedCause,
    Trend,
    nvlink_domains,
    observed,
)
from healthd.fleet.nodes import FleetNode
from healthd.remediation.decide.remediation import ORDERED
from healthd.remediation.records.summary import NodeState
from tests.support.fleet_readings import GB200, NOW, names, rack, reading

RULES = IncidentRules()
MINUTE = timedelta(minutes=1)


def seen(nodes: Iterable[FleetNode], memory: IncidentMemory | None = None, now: datetime = NOW) -> IncidentMemory:
    return observed(memory or IncidentMemory(), tuple(nodes), now, RULES)


def only(memory: IncidentMemory) -> Incident:
    (incident,) = memory.open
    return incident


def test_a_lost_file_server_is_one_incident_whatever_each_node_calls_it() -> None:
    """500 nodes with two codes on one mount: one incident, the file system named, and the node that had it first."""
    nodes = [
        reading(
            name, "lustre.missing" if number % 3 else "lustre.hung", "mount:/fsx", since=NOW + number * MINUTE / 200
        )
        for number, name in enumerate(names(500))
    ]
    memory = seen([*nodes, *(reading(name) for name in names(20, 501))], now=NOW + 3 * MINUTE)
    incident = only(memory)
    assert incident.cause == SharedCause(kind=CauseKind.FILE_SYSTEM, value="/fsx")
    assert incident.codes == ("lustre.missing", "lustre.hung")
    assert len(incident.active) == 500
    assert incident.first == "gpu-001"
    assert not incident.broken_domain
    assert "gpu-[001-500]" in sentence(incident)


def test_a_dead_rack_is_one_incident_that_names_its_domain() -> None:
    """18 nodes of one NVLink domain with codes of NVLink and IMEX, and no node outside: the domain is to be fenced."""
    dead = [*rack("rack-7", 1, "gpu.imex.not_up", 9), *rack("rack-7", 10, "gpu.fabric.unhealthy", 9)]
    incident = only(seen([*dead, *rack("rack-8", 101)]))
    assert incident.broken_domain == "rack-7"
    assert incident.cause == SharedCause(kind=CauseKind.NVLINK_DOMAIN, value="rack-7")
    assert "most of NVLink domain rack-7 is broken" in sentence(incident)
    assert incident_data(incident)["domain_broken"] == "rack-7"


def test_most_of_a_small_domain_is_an_incident_and_half_of_it_is_not() -> None:
    """A domain of four nodes needs three; a silent node counts as one of it and not as faulty; a sleeping one not."""
    three = rack("r", 1, "gpu.imex.not_up", 3)
    assert only(seen([*three, *rack("r", 4, count=1, silent=True)])).broken_domain == "r"
    assert not seen([*three[:2], *rack("r", 3, count=2, silent=True)]).open
    assert only(seen([*three[:2], *rack("r", 3, count=1), *rack("r", 4, count=1, asleep=True)])).broken_domain == "r"
    assert not seen(rack("r", 1, "gpu.imex.not_up", 1)).open


def test_the_domain_is_what_the_gpus_say_where_no_block_says_it() -> None:
    """A block of one domain keeps its name, one of two is told apart, and a node that says nothing is in none of the
    two. What a node said once is remembered while it says nothing."""
    one = [with_domain(each, "aaaaaaaa") for each in rack("rack-7", 1, count=3)]
    two = [
        with_domain(each, own)
        for each, own in zip(rack("rack-8", 11, count=3), ("bbbbbbbb", "cccccccc", ""), strict=True)
    ]
    alone = [with_domain(each, "dddddddd") for each in rack("", 21, count=2)]
    assert nvlink_domains([*one, *two, *alone, reading("gpu-030", group="leaf")]) == {
        "gpu-001": "rack-7",
        "gpu-002": "rack-7",
        "gpu-003": "rack-7",
        "gpu-011": "rack-8/bbbbbbbb",
        "gpu-012": "rack-8/cccccccc",
        "gpu-021": "dddddddd",
        "gpu-022": "dddddddd",
    }
    memory = observed(IncidentMemory(), alone, NOW, RULES)
    broken = [reading(each.name, "gpu.imex.not_up", kind=GB200) for each in alone]
    after = observed(memory, broken, NOW, RULES)
    assert after.open[0].broken_domain == "dddddddd"
    assert observed(after, [], NOW, RULES).domains == {}


def with_domain(node: FleetNode, domain: str) -> FleetNode:
    assert node.summary is not None
    summary = replace(node.summary, domain=domain)
    return replace(node, listed=replace(node.listed, summary=summary.text))


def test_a_single_root_in_a_rack_is_one_node() -> None:
    """17 nodes that warn beside a neighbour's dead NVLink share no incident; the same warnings without it do."""
    symptoms = rack("rack-7", 2, "gpu.xid.149", 17, state=NodeState.WARNING)
    assert not seen([*rack("rack-7", 1, "gpu.nvlink.dead", 1), *symptoms]).open
    assert only(seen([*rack("rack-7", 1, count=1), *symptoms])).broken_domain == ""
    far = rack("rack-8", 1, "gpu.nvlink.dead", 1)
    assert seen([*far, *symptoms]).open
    disk = rack("rack-7", 2, "disk.full", 17, state=NodeState.WARNING)
    assert seen([*rack("rack-7", 1, "gpu.nvlink.dead", 1), *disk]).open


def test_a_fault_that_is_outside_as_well_fences_no_domain() -> None:
    """One node of another domain with the fabric's fault at that time is enough; one of a week ago is none."""
    dead = rack("rack-7", 1, "gpu.imex.not_up")
    outside = rack("rack-8", 101, "gpu.fabric.failed", 1)
    assert only(seen([*dead, *outside])).broken_domain == ""
    old = rack("rack-8", 101, "gpu.fabric.failed", 1, since=NOW - timedelta(days=7))
    assert only(seen([*dead, *old])).broken_domain == "rack-7"


def test_a_node_that_was_grave_days_ago_counts_as_what_it_is_today() -> None:
    """A warning that has come since, beside one grave neighbour, is not most of a domain of two: none is fenced."""
    days_ago = NOW - timedelta(days=2)
    memory = seen(rack("r", 1, "gpu.imex.not_up", 1, since=days_ago, now=days_ago), now=days_ago)
    for hours in (24, 25):
        at = days_ago + timedelta(hours=hours)
        memory = seen(rack("r", 1, count=2, now=at), memory, at)
    warns = rack("r", 1, "gpu.imex.not_up", 1, since=NOW - 11 * MINUTE, state=NodeState.WARNING)
    grave = rack("r", 2, "gpu.imex.not_up", 1)
    assert not seen([*warns, *grave]).open
    assert not seen([*warns, *grave], memory).open


def test_a_file_server_of_one_rack_fences_nothing() -> None:
    """Only codes of the NVLink domain's own hardware do."""
    lost = [reading(each, "lustre.missing", "mount:/fsx", group="rack-7", kind=GB200) for each in names(18)]
    incident = only(seen([*lost, *rack("rack-8", 101)]))
    assert incident.broken_domain == ""
    assert incident.cause.kind is CauseKind.FILE_SYSTEM


def test_a_rolling_driver_is_named() -> None:
    """The nodes that have it run a driver that the others do not; the rack and the type are no better explanation."""
    new = [reading(each, "gpu.count", driver="590.10", since=NOW + at * MINUTE) for at, each in enumerate(names(8))]
    rest = [reading(each, driver="580.95.05") for each in names(32, 9)]
    incident = only(seen([*new, *rest], now=NOW + 8 * MINUTE))
    assert incident.cause == SharedCause(kind=CauseKind.DRIVER, value="590.10")
    assert "shared cause driver 590.10" in sentence(incident)


def test_without_a_contrast_no_cause_is_named() -> None:
    """All nodes run the same, or the only thing that is known is known of the members alone."""
    same = [reading(each, "gpu.count" if number < 8 else "") for number, each in enumerate(names(20))]
    assert only(seen(same)).cause.kind is CauseKind.NOT_KNOWN
    assert "no shared cause is known" in sentence(only(seen(same)))
    every = [reading(each, "gpu.count", group="rack-1") for each in names(8)]
    assert only(seen(every)).cause.text == "no shared cause known"


def test_a_rack_of_ordinary_nodes_is_a_likely_cause() -> None:
    """A leaf switch whose nodes have it, and no others."""
    leaf = [reading(each, "efa.missing", group="leaf-3") for each in names(8)]
    others = [reading(each, group="leaf-4") for each in names(30, 9)]
    assert only(seen([*leaf, *others])).cause == SharedCause(kind=CauseKind.RACK, value="leaf-3")


def test_few_nodes_or_slow_ones_are_each_their_own() -> None:
    """Three nodes within minutes, or four an hour apart."""
    assert not seen(reading(each, "gpu.xid.79") for each in names(3)).open
    apart = [reading(each, "gpu.xid.79", since=NOW - at * 60 * MINUTE) for at, each in enumerate(names(4))]
    assert not seen(apart).open


def test_unknown_and_silent_nodes_are_not_faulty() -> None:
    """Nor are sleeping ones, nor those that are held without a finding."""
    unknown = [reading(each, "gpu.count", state=NodeState.UNKNOWN) for each in names(9)]
    silent = [reading(each, "gpu.count", silent=True) for each in names(9, 10)]
    asleep = [reading(each, "gpu.count", asleep=True) for each in names(9, 20)]
    held = [reading(each, state=NodeState.HELD) for each in names(9, 30)]
    assert not seen([*unknown, *silent, *asleep, *held]).open


@pytest.mark.parametrize("code", ORDERED)
def test_nodes_that_an_operator_takes_out_are_no_incident(code: str) -> None:
    """Also where a command goes to a whole rack at once: what it names is no finding."""
    assert not seen([reading(each, code, state=NodeState.HELD) for each in names(18)]).open


def test_the_id_is_the_same_from_every_reader() -> None:
    """It does not depend on what is remembered, on the order of nodes, or on how many have it by then."""
    four = [reading(each, "gpu.count") for each in names(4)]
    kept = seen(four)
    later = [reading(each, "gpu.count", now=NOW + MINUTE) for each in names(9)]
    assert only(seen(later[::-1], now=NOW + MINUTE)).id == only(seen(later, kept, NOW + MINUTE)).id == only(kept).id


def passed(
    nodes: Callable[[datetime], list[FleetNode]], memory: IncidentMemory, start: datetime, end: datetime
) -> IncidentMemory:
    now = start
    while now <= end:
        memory = seen(nodes(now), memory, now)
        now += MINUTE
    return memory


def test_an_incident_ends_after_a_while_and_comes_back_as_itself_on_that_day() -> None:
    """Not at the first reading without it; it is listed for a week; another day's is another."""
    bad = seen(reading(each, "gpu.count") for each in names(6))
    well: Callable[[datetime], list[FleetNode]] = lambda now: [reading(each, now=now) for each in names(6)]  # noqa: E731
    soon = passed(well, bad, NOW + MINUTE, NOW + ENDS_AFTER)
    assert only(soon).trend is Trend.SHRINKING
    over = passed(well, soon, NOW + ENDS_AFTER + MINUTE, NOW + ENDS_AFTER + 2 * MINUTE)
    assert not over.open
    (ended,) = over.incidents
    assert ended.ended is not None
    assert ended.hosts == "gpu-[001-006]"
    again_at = NOW + 60 * MINUTE
    again = seen((reading(each, "gpu.count", since=again_at, now=again_at) for each in names(6)), over, again_at)
    assert only(again).id == ended.id
    assert len(again.incidents) == 1
    assert not seen(well(NOW + KEPT * 2), over, NOW + KEPT * 2).incidents


def test_nodes_that_had_it_before_have_it_again_at_once() -> None:
    """Each had it by itself on a day of its own: what they have together today is an incident of today. One that was
    away for less than it takes to end an incident was never gone."""
    days = {name: NOW - timedelta(days=day) for day, name in enumerate(names(4), start=3)}

    def fleet(now: datetime) -> list[FleetNode]:
        begins = {name: NOW if now >= NOW else days[name] for name in names(4)}
        has = {name: at for name, at in begins.items() if at <= now < at + timedelta(hours=2)}
        return [reading(each, "gpu.count" if each in has else "", since=has.get(each, now), now=now) for each in begins]

    memory, now = IncidentMemory(), NOW - timedelta(days=7)
    while now <= NOW:
        memory = seen(fleet(now), memory, now)
        now += timedelta(hours=1)
    assert (only(memory).began, len(only(memory).active)) == (NOW, 4)
    away = seen((reading(each, now=NOW + MINUTE) for each in names(4)), memory, NOW + MINUTE)
    later = NOW + 9 * MINUTE
    back = seen((reading(each, "gpu.count", since=later, now=later) for each in names(4)), away, later)
    assert {each.at for each in back.sightings} == {NOW}


def test_a_member_that_falls_silent_keeps_it_open_for_a_day() -> None:
    """Its end is not known; a node that stays dead does not keep it for ever, and one that is gone not at all."""
    bad = seen(reading(each, "gpu.count") for each in names(6))

    def dead(now: datetime) -> list[FleetNode]:
        return [reading(each, silent=True, now=now) for each in names(6)]

    later = NOW + timedelta(hours=5)
    incident = only(seen(dead(later), seen(dead(later - ENDS_AFTER), bad, later - ENDS_AFTER), later))
    assert len(incident.unknown) == 6
    assert "6 of its nodes do not report" in sentence(incident)
    day = NOW + timedelta(hours=25)
    assert not seen(dead(day + ENDS_AFTER), seen(dead(day), bad, day), day + ENDS_AFTER).open
    gone = [reading("other", now=later)]
    assert not seen(gone, seen([reading("other", now=later - ENDS_AFTER)], bad, later - ENDS_AFTER), later).open


def test_an_incident_ends_whatever_the_clock_of_its_reader_said() -> None:
    """A head node starts with a clock that is a year ahead: at first every node is silent by it. The incident keeps its
    domain fenced, and must not stay open for that year."""
    bad = seen(rack("rack-7", 1, "gpu.imex.not_up"))
    year = NOW + timedelta(days=365)
    ahead = seen(rack("rack-7", 1, silent=True, now=year), bad, year)
    assert only(ahead).id == only(bad).id

    def repaired(now: datetime) -> list[FleetNode]:
        return rack("rack-7", 1, since=now, now=now)

    assert not passed(repaired, ahead, NOW + MINUTE, NOW + MINUTE + ENDS_AFTER).open


def test_a_story_of_days_is_an_incident_with_a_trend() -> None:
    """Nine more nodes in the second week than in the first, one or two a day: chance does not explain it. It needs all
    days to have been watched, and is no incident where as many came before."""
    start = NOW
    days = {number: start + timedelta(days=7 + number * 0.7) for number in range(9)}

    def fleet(now: datetime) -> list[FleetNode]:
        return [
            reading(each, "gpu.remap.pending" if days[at] <= now else "", since=min(days[at], now), now=now)
            for at, each in enumerate(names(9))
        ]

    memory, now = IncidentMemory(), start
    while now <= start + TREND_WINDOW:
        memory = seen(fleet(now), memory, now)
        now += timedelta(hours=6)
    incident = only(memory)
    assert incident.slow
    assert incident.trend is Trend.GROWING
    assert "more and more nodes over days" in sentence(incident)
    end = start + TREND_WINDOW
    repaired = [reading(each, now=end) for each in names(9)]
    after = seen(repaired, seen(repaired, memory, end), end + ENDS_AFTER)
    assert after.open  # each was repaired, and more and more nodes get it
    assert not seen(fleet(end), replace(memory, watched=end - timedelta(days=3), incidents=()), end).open
    even = tuple(
        replace(each, at=start + timedelta(hours=6 * number)) if number % 2 else each
        for number, each in enumerate(memory.sightings)
    )
    assert not seen(fleet(end), replace(memory, sightings=even, incidents=()), end).open


def test_a_story_of_days_may_have_more_nodes_than_a_number_has_digits() -> None:
    """A driver that is rolled out over two weeks, node by node: what is counted exactly has no limit of a float."""
    began = NOW - timedelta(days=20)
    memory = IncidentMemory(watched=began)
    got_it: list[FleetNode] = []
    for hour, name in enumerate(names(1_500)):
        at = NOW - timedelta(days=10) + hour * timedelta(minutes=9.5)
        got_it.append(reading(name, "gpu.throttle", "GPU 3", since=at, state=NodeState.WARNING))
    memory = seen(got_it, memory)
    incident = only(memory)
    assert (incident.slow, len(incident.active), incident.trend) == (True, 1_500, Trend.GROWING)


def test_many_at_once_are_an_incident_beside_a_story_of_days() -> None:
    """Nine nodes over days, and then thirty within a minute: these are an incident of today, whose nodes hold their own
    messages. Neither those nor that incident itself, once it is over, are a story of days."""
    start, now = NOW - timedelta(days=7), NOW - timedelta(days=20)
    days = {name: start + timedelta(days=number * 0.7) for number, name in enumerate(names(9))}
    begins = {**days, **dict.fromkeys(names(30, 10), NOW)}

    def fleet(now: datetime, last: datetime) -> list[FleetNode]:
        has = {name: at for name, at in begins.items() if at <= now < last}
        return [reading(each, "gpu.count" if each in has else "", since=has.get(each, now), now=now) for each in begins]

    memory = IncidentMemory()
    while now < NOW:
        memory, now = seen(fleet(now, NOW), memory, now), now + timedelta(hours=6)
    (story,) = memory.open
    assert (story.slow, len(story.active)) == (True, 9)
    memory = seen(fleet(NOW, NOW + MINUTE), memory, NOW)
    slow, many = memory.open
    assert (slow.id, slow.slow) == (story.id, True)
    assert (many.slow, many.began, many.id) != (True, NOW, story.id)
    assert set(names(30, 10)) <= set(many.active)
    memory = passed(lambda now: fleet(now, NOW), memory, NOW + MINUTE, NOW + 60 * MINUTE)
    assert {each.id: each.is_open for each in memory.incidents} == {story.id: False, many.id: False}


def test_what_an_operator_reads() -> None:
    """Open ones first, each with its id, age, nodes and root; the same as data."""
    memory = seen(reading(each, "lustre.missing", "mount:/fsx") for each in names(4))
    incident = only(memory)
    ended = replace(incident, id="1123-aaaaaa", began=NOW - timedelta(days=1), ended=NOW - timedelta(hours=20))
    several = replace(incident, codes=("lustre.missing", "lustre.hung"))
    assert sentence(several).startswith("lustre.missing and 1 more codes on 4 nodes (gpu-[001-004]), first gpu-001: ")
    text = incidents_text([ended, several], NOW + 5 * MINUTE, "remembered by the controller")
    assert text.splitlines() == [
        "1 open, 1 ended within 7 days  ·  remembered by the controller",
        f"{incident.id}  OPEN for 5 min, growing",
        f"  {sentence(several)}",
        "1123-aaaaaa  ENDED 20 h ago, lasted 4 h",
        "  lustre.missing on 4 nodes (gpu-[001-004]), first gpu-001: shared cause file system /fsx [1123-aaaaaa]",
    ]
    data = incidents_data([ended], NOW, remembered=False)
    assert data["incidents"][0]["ended"] == (NOW - timedelta(hours=20)).isoformat()


def test_the_memory_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    """It comes back as it was; another version is no memory; a folder that takes nothing is said."""
    tmp_path.chmod(0o755)
    memory = seen(reading(each, "gpu.count") for each in names(6))
    assert kept_memory(tmp_path) is None
    keep_memory(tmp_path, memory)
    assert kept_memory(tmp_path) == memory
    (tmp_path / FILE).write_text('{"watched": 7}')
    assert kept_memory(tmp_path) is None
    with pytest.raises(StoreError, match=FILE):
        keep_memory(tmp_path / "missing", memory)
