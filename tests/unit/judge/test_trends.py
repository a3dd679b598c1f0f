"""Readings judged over time, case by case: rates, standstills, learned heights, growth from day to day."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.check import Accelerating, AnyLimit, FindingCode, Learned, Limit, Rate, Stall, judged, ok
from healthd.core.model import NODE, ClearsBy, Component, Reading, Remedy, Severity
from healthd.judge.history import Change, History, begin_instance, observe, relearn, shifted
from healthd.judge.trends import is_growing, judge
from tests.support.judgement import BY_PCI, GPU, answered, at, could_not_tell, counter, fault, history, looked

HOUR, DAY = 3600.0, 86_400.0
CODE = FindingCode(code="part.bad", severity=Severity.WARNING, remedy=Remedy.WATCH, meaning="It is bad")
OTHER = replace(CODE, code="part.worse")
RATE = Rate(reading="errors_total", max_increase=10, window_s=60, code=CODE, source="DCGM, per minute")
STALL = Stall(reading="errors_total", for_s=60, code=CODE, source="the driver sends one every second")
LEARNED = Learned(reading="devices", code=CODE, source="this instance")
GROWING = Accelerating(reading="errors_total", code=CODE, source="noise")
KEY = ("gpu:GPU-0", "errors_total")


def seen(limit: AnyLimit, *looks: tuple[float, float], epoch: str = "a", start: History | None = None) -> History:
    """The history after these looks, (seconds, value)."""
    known = start or History()
    for seconds, value in looks:
        outcome = answered(ok([counter(value, name=limit.reading, epoch=epoch)]), seconds=seconds)
        known, _ = observe(known, outcome, [limit], outcome.at)
    return known


def raised(limit: AnyLimit, *looks: tuple[float, float]) -> list[bool]:
    """After which of these looks the fault was open."""
    known, hits = History(), []
    for look in looks:
        known = seen(limit, look, start=known)
        hits.append(bool(known.faults))
    return hits


def words(known: History) -> list[str]:
    return [each.message for each in known.faults.values()]


# ---------------------------------------------------------------------------------------------------------------------
# rates


def test_a_rate_is_a_level() -> None:
    """It opens when a window holds more than the limit, stays while it does, and ends by itself in a calm one."""
    looks = [(0, 100.0), (30, 105), (60, 112), (90, 112), (95, 112), (150, 112)]
    assert raised(RATE, *looks) == [False, False, True, False, False, False]


def test_a_rate_at_its_limit_is_one_fault() -> None:
    """A counter that grows about as fast as it may, for an hour, opens once, and ends when it has been calm for as long
    as its limit says, whatever is done to the clock meanwhile."""
    limit, known, value = replace(RATE, calm_s=600.0), History(), 0.0
    opened = 0
    for minute in range(60):
        value += 12 if minute % 7 == 0 else 9
        known, changes = observe(known, answered(ok([counter(value)]), seconds=60 * minute), [limit], at(60 * minute))
        opened += sum(change.opened for change in changes)
    assert (opened, len(known.faults)) == (1, 1)
    last, hour = 60 * 57, timedelta(hours=1)  # spread over two minutes it is still more than ten
    moved = shifted(known, -hour, at(60 * 59) - hour)
    for start, by_s in ((known, 0), (moved, -3600)):
        waits = seen(limit, (last + 539 + by_s, value), epoch="boot-1", start=start)
        over = seen(limit, (last + 540 + by_s, value), epoch="boot-1", start=start)
        assert (len(waits.faults), len(over.faults)) == (1, 0)


def test_the_first_value_is_a_baseline() -> None:
    """What a counter had before anyone looked is no rate."""
    assert raised(RATE, (0, 1e9), (30, 1e9 + 10)) == [False, False]


def test_the_finding_carries_its_numbers() -> None:
    """Increase, window, limit and the limit's source."""
    known = seen(RATE, (0, 0), (30, 11))
    assert words(known) == ["It is bad: errors_total rose by 11 in 60 s (limit 10)"]
    (each,) = known.faults.values()
    assert each.evidence == {
        "reading": "errors_total",
        "value": 11,
        "increase": 11,
        "window_s": 60,
        "limit": 10,
        "limit_source": "DCGM, per minute",
    }


def test_growth_between_distant_looks_is_spread_over_the_time_between() -> None:
    """Forty errors in an hour without a look are not forty in a minute; eleven a minute are."""
    assert raised(RATE, (0, 0), (3600, 40)) == [False, False]
    assert raised(RATE, (0, 0), (3600, 661)) == [False, True]


def test_a_burst_after_a_long_calm_counts_in_full() -> None:
    """What came since the last look, which was inside the window, is not diluted by the calm before."""
    calm = [(30.0 * step, 7.0) for step in range(100)]
    assert raised(RATE, *calm, (3000, 18))[-1]


@pytest.mark.parametrize("then", [("b", 500.0), ("a", 0.0), ("b", 0.0)])
def test_a_new_epoch_or_a_reset_restarts_the_window(then: tuple[str, float]) -> None:
    """Neither a reload nor a counter that went back is growth, however large the first value."""
    known = seen(RATE, (0, 5), (30, 10))
    known = seen(RATE, (60, then[1]), epoch=then[0], start=known)
    assert (known.faults, known.rates[KEY].marks) == ({}, ((at(60).timestamp(), then[1]),))


def test_a_clock_that_went_back_restarts_the_window() -> None:
    """Growth cannot be placed in time then."""
    assert raised(RATE, (0, 0), (30, 5), (-3600, 12), (-3570, 22)) == [False, False, False, False]


def test_a_part_may_have_its_own_limit() -> None:
    """The limit that comes with the reading is judged and named; the declared one is for parts that bring none."""
    known = History()
    for seconds, value in ((0, 0.0), (30, 5)):
        readings = [replace(counter(value, gpu), limit=limit) for gpu, limit in zip(GPU, (4.0, None), strict=True)]
        known, _ = observe(known, answered(ok(readings), seconds=seconds), [RATE], at(seconds))
    assert words(known) == ["It is bad: errors_total rose by 5 in 60 s (limit 4)"]
    growth = Limit(reading="errors_total", max_increase=0, code=CODE, source="this test")
    own = [answered(ok([replace(counter(value), limit=9)])) for value in (0.0, 9.0)]
    for outcome in own:
        known, _ = observe(History() if outcome is own[0] else known, outcome, [growth], outcome.at)
    assert known.faults == {}


def test_after_a_restart_an_open_rate_waits_for_a_whole_window() -> None:
    """Windows live in memory: a fresh one cannot tell that the rate is over, so the fault is not ended and reopened."""
    known = replace(seen(RATE, (0, 0), (30, 50)), rates={})
    assert len(seen(RATE, (60, 50), (90, 50), start=known).faults) == 1
    assert seen(RATE, (60, 50), (90, 50), (120, 50), start=known).faults == {}


def test_a_part_that_is_no_longer_read_has_no_open_rate() -> None:
    """Its check saw everything and has no such reading: the level ends as any other."""
    known = seen(RATE, (0, 0), (30, 50))
    assert observe(known, looked(seconds=60), [RATE], at(60))[0].faults == {}
    assert len(observe(known, could_not_tell(seconds=60), [RATE], at(60))[0].faults) == 1


def test_a_window_is_bounded_however_often_it_is_fed() -> None:
    """Ten looks a second for five minutes leave some sixty marks, and a burst among them is still found."""
    looks = [(step / 10, float(step)) for step in range(3000)]
    known = seen(replace(RATE, max_increase=700), *looks)
    assert (len(known.rates[KEY].marks) <= 64, known.faults) == (True, {})
    assert seen(replace(RATE, max_increase=700), (300, 3800), start=known).faults != {}


def test_a_counter_that_stands_still_takes_two_marks() -> None:
    """The first and the last look at a value are all that matters of it: healthy counters cost next to nothing."""
    known = seen(RATE, *((30.0 * step, 7.0) for step in range(1000)))
    assert len(known.rates[KEY].marks) == 2


def test_two_limits_of_different_kinds_judge_one_reading() -> None:
    """Growth and rate of one counter are two findings, each with its own memory."""
    growth = Limit(reading="errors_total", max_increase=2, code=OTHER, source="this test")
    known = History()
    for seconds, value in ((0, 0), (30, 11)):
        known, _ = observe(known, answered(ok([counter(value)]), seconds=seconds), [RATE, growth], at(seconds))
    assert {each.code for each in known.faults.values()} == {"part.bad", "part.worse"}
    assert (known.baselines[KEY].value, len(known.rates[KEY].marks)) == (11, 2)


# ---------------------------------------------------------------------------------------------------------------------
# standstills


def test_a_counter_that_must_advance_and_does_not() -> None:
    """Standing still for the whole time is a level, with how long; moving again ends it."""
    looks = [(0, 5), (30, 6), (60, 6), (89, 6), (90, 6), (120, 6), (150, 7), (180, 7)]
    assert raised(STALL, *looks) == [False, False, False, False, True, True, False, False]
    assert words(seen(STALL, *looks[:6])) == ["It is bad: errors_total has stood still at 6 for 90 s (limit 60 s)"]


def test_two_looks_prove_no_standstill() -> None:
    """A clock that jumps between two looks is no stall: a third look must agree."""
    assert raised(STALL, (0, 5), (7200, 5), (7230, 5)) == [False, False, True]


def test_a_counter_that_went_back_has_moved() -> None:
    """A reset, or a new epoch, begins the standstill anew."""
    known = seen(STALL, (0, 5), (30, 5), (50, 0), (80, 0))
    known = seen(STALL, (120, 0), epoch="b", start=known)
    assert known.faults == {}


def test_after_a_restart_a_stall_stays_until_the_counter_moves() -> None:
    """A fresh window does not know; movement does."""
    known = replace(seen(STALL, (0, 5), (30, 5), (60, 5)), stalls={})
    assert len(known.faults) == 1
    known = seen(STALL, (90, 5), (120, 5), start=known)
    assert len(known.faults) == 1
    assert seen(STALL, (150, 6), start=known).faults == {}


# ---------------------------------------------------------------------------------------------------------------------
# learned


def test_less_than_there_was_is_a_level() -> None:
    """The highest value is remembered; below it is a fault until it is reached again."""
    looks = [(0, 31), (30, 32), (60, 31), (90, 31), (120, 32), (150, 33), (180, 32)]
    assert raised(LEARNED, *looks) == [False, False, True, True, False, False, True]
    known = seen(LEARNED, *looks)
    assert words(known) == ["It is bad: devices is 32; on this instance it has been 33"]
    (each,) = known.faults.values()
    assert (each.evidence["limit"], each.evidence["since"]) == (33, "2026-01-01T00:02:30+00:00")


def test_what_is_noisy_may_fall_to_a_share_of_its_best() -> None:
    """Down to the share and not below it; the best itself does not come down with it."""
    bandwidth = replace(LEARNED, within=0.9)
    looks = [(0, 400), (30, 360), (60, 359), (90, 380), (120, 500), (150, 449)]
    assert raised(bandwidth, *looks) == [False, False, True, False, False, True]
    known = seen(bandwidth, *looks)
    assert words(known) == ["It is bad: devices is 449; on this instance it has been 500 (limit 90% of that)"]
    (each,) = known.faults.values()
    assert (each.evidence["limit"], each.evidence["highest"]) == (450, 500)
    assert [each.text for each in (LEARNED, bandwidth)] == [
        "stays at the highest value seen on this instance",
        "stays at 90% of the highest value seen on this instance",
    ]


def test_what_was_learned_never_lowers_itself() -> None:
    """Not in a thousand looks, not by a reboot: only a new instance id starts anew."""
    known, _ = begin_instance(History(), "i-1")
    known = seen(LEARNED, (0, 32), *((step, 8) for step in range(1, 1000)), start=known)
    assert begin_instance(known, "") == (known, ())
    assert begin_instance(known, "i-1") == (known, ())
    assert known.learned["gpu:GPU-0", "devices"].value == 32
    moved, _ = begin_instance(known, "i-2")
    assert (moved.learned, moved.instance_id) == ({}, "i-2")
    assert seen(LEARNED, (2000, 8), start=moved).faults == {}


def test_a_person_may_say_that_what_is_there_is_right() -> None:
    """Of the readings that are named; the fault ends at the next look."""
    known = seen(LEARNED, (0, 32), (1, 8))
    assert relearn(known, {"nodes"}) == known
    assert relearn(known, {"devices"}).learned == {}
    assert seen(LEARNED, (2, 8), start=relearn(known, {"devices"})).faults == {}


def test_another_epoch_is_learned_anew() -> None:
    """A stopped instance may become another type and keep its id; a type that could not be told changes nothing."""
    known = seen(LEARNED, (0, 32), epoch="")
    known = seen(LEARNED, (1, 32), epoch="p5.48xlarge", start=known)
    (best,) = known.learned.values()
    assert (best.value, best.epoch, best.since) == (32, "p5.48xlarge", at(0))
    assert len(seen(LEARNED, (2, 8), epoch="", start=known).faults) == 1
    moved = seen(LEARNED, (2, 8), epoch="p5.4xlarge", start=known)
    assert moved.faults == {}
    assert len(seen(LEARNED, (3, 7), epoch="p5.4xlarge", start=moved).faults) == 1


def test_another_instance_inherits_no_fault_from_the_log() -> None:
    """A disk that moved brings no hardware along: faults from the log are over, levels wait for a look."""
    start = history(fault("gpu.xid.79", clears_by=ClearsBy.REPLACE), fault("level"), instance_id="i-1")
    after, changes = begin_instance(start, "i-2")
    assert [(each.fault.code, each.opened, each.why) for each in changes] == [
        ("gpu.xid.79", False, "instance i-1 became i-2")
    ]
    assert ([code for _, code in after.faults], after.boot_id) == (["level"], "boot-1")


def test_an_id_that_becomes_known_is_no_other_instance() -> None:
    """What was learned before the metadata service answered is this instance's."""
    known = seen(LEARNED, (0, 32))
    after, changes = begin_instance(known, "i-1")
    assert (after.learned, after.instance_id, changes) == (known.learned, "i-1", ())


# ---------------------------------------------------------------------------------------------------------------------
# growth from day to day


def every_six_hours(*per_day: float, start: float = 0.0) -> Iterable[tuple[float, float]]:
    """Looks four times a day at a counter that grows by so much each day, evenly."""
    value = start
    yield (0.0, value)
    for day, count in enumerate(per_day):
        for quarter in range(4):
            value += count / 4
            yield (day * DAY + (quarter + 1) * 6 * HOUR, value)


def test_doubling_is_found_and_says_its_days() -> None:
    """1, 2, 4, 8, 16, 32: the fault opens within the sixth day, and shows the series."""
    looks = list(every_six_hours(1, 2, 4, 8, 16, 32))
    hits = raised(GROWING, *looks)
    assert hits.index(True) <= 4 * 6
    known = seen(GROWING, *looks)
    assert words(known) == ["It is bad: errors_total grows faster from day to day: 1, 2, 4, 8, 16, 32"]
    (each,) = known.faults.values()
    assert each.evidence["by_day"] == [1, 2, 4, 8, 16, 32]
    assert each.evidence["limit"] == "likelihood ratio to a constant rate above 2,000,000"


@pytest.mark.parametrize(
    "per_day",
    [
        (50,) * 14,
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 500),
        (0,) * 6 + (50,) * 7,
        (0,) * 11 + (50, 50, 50),
        (1,) * 12 + (40, 60),
        (5,) * 7 + (50,) * 7,
        (50, 5, 40, 2, 45, 9, 50, 3, 48, 50),
        (64, 32, 16, 8, 4, 2, 1),
        (0,) * 14,
    ],
)
def test_what_is_no_growth(per_day: tuple[float, ...]) -> None:
    """A constant rate, one bad day, a step to a new rate, jumps, decay, silence: none of them is accelerating."""
    assert not any(raised(GROWING, *every_six_hours(*per_day)))


def test_growth_that_is_over_ends() -> None:
    """A level as any other: when the last two weeks no longer look like growth."""
    hits = raised(GROWING, *every_six_hours(1, 2, 4, 8, 16, 32, *([0] * 14)))
    assert (any(hits), hits[-1]) == (True, False)


@pytest.mark.parametrize("epoch", ["a", "b"])
def test_a_counter_reset_keeps_what_was_counted_and_alarms_nobody(epoch: str) -> None:
    """A value that goes back to zero, or to anything in a new epoch, is a baseline; the day keeps its errors."""
    known = seen(GROWING, (0, 1000), (HOUR, 1007))
    known = seen(GROWING, (2 * HOUR, 3), (3 * HOUR, 5), epoch=epoch, start=known)
    known = seen(GROWING, (DAY, 5), epoch=epoch, start=known)
    assert known.days[KEY].closed == ((DAY, 9),)
    assert known.faults == {}


def test_days_without_a_look_are_one_longer_bucket() -> None:
    """Growth while nobody looked is spread over that time; after three days of it, the days before are forgotten."""
    known = seen(GROWING, *every_six_hours(5, 5), (4 * DAY, 20))
    assert known.days[KEY].closed == ((DAY, 5), (DAY, 5), (2 * DAY, 10))
    assert seen(GROWING, (8 * DAY, 40), start=known).days[KEY].closed == ()


def test_a_clock_that_went_back_begins_the_day_anew() -> None:
    """What the open day counted cannot be placed; closed days stay."""
    known = seen(GROWING, *every_six_hours(5), (1.5 * DAY, 9))
    back = seen(GROWING, (0.5 * DAY, 9), start=known).days[KEY]
    assert (back.closed, back.base, back.opened) == (((DAY, 5),), 9, at(0.5 * DAY))


def test_memory_of_days_is_bounded() -> None:
    """Two weeks are kept, the open day included."""
    assert len(seen(GROWING, *every_six_hours(*([3] * 40))).days[KEY].closed) == 13


def test_a_day_writes_once() -> None:
    """Looks within a day leave a history that equals the saved one; the close of a day does not."""
    saved = seen(GROWING, (0, 0))
    assert seen(GROWING, (HOUR, 3), (7 * HOUR, 4), (13 * HOUR, 9), start=saved) == saved
    assert seen(GROWING, (DAY, 9), start=saved) != saved


def test_less_than_five_days_is_too_short() -> None:
    """In few buckets much looks like growth; and without a count there is nothing to tell."""
    doubling = [(DAY, 4.0**day) for day in range(7)]
    assert is_growing(doubling)
    assert not is_growing(doubling[3:])
    assert not is_growing([(DAY, 0.0)] * 7)
    assert not is_growing([])


# ---------------------------------------------------------------------------------------------------------------------
# all kinds


@pytest.mark.parametrize("limit", [RATE, STALL, LEARNED, GROWING])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_no_number_is_remembered_by_none(limit: AnyLimit, odd: float) -> None:
    """It is no evidence, and could not be stored."""
    known = seen(limit, (0, 5))
    after, changes = observe(known, answered(ok([counter(odd, name=limit.reading)]), seconds=30), [limit], at(30))
    assert (after, changes) == (known, ())


@pytest.mark.parametrize("limit", [RATE, STALL, LEARNED, GROWING])
def test_a_better_name_takes_the_memory_along(limit: AnyLimit) -> None:
    """What was remembered of a PCI address is the GPU's when its UUID is known."""
    known = History()
    for gpu, value in ((BY_PCI[0], 5.0), (GPU[0], 5.0)):
        known, _ = observe(known, answered(ok([counter(value, gpu, name=limit.reading)])), [limit], at(0))
    memories: list[Any] = [known.baselines, known.rates, known.stalls, known.learned, known.days]
    assert [key for memory in memories for key in memory] == [("gpu:GPU-0", limit.reading)]


def test_a_limit_says_what_it_allows() -> None:
    """For the table of the reference."""
    growth = Limit(reading="errors_total", max_increase=0, code=CODE, source="this test")
    assert [each.text for each in (growth, RATE, STALL, LEARNED, GROWING)] == [
        "grows by 0",
        "grows by 10 in 60 s",
        "stands still for 60 s",
        "stays at the highest value seen on this instance",
        "does not grow faster from day to day",
    ]


def test_what_a_limit_finds_may_have_to_last() -> None:
    """Limits and waiting go together: a low count that must last two minutes does not count at once."""
    low = replace(LEARNED, code=replace(CODE, lasting_s=120))
    assert raised(low, (0, 32), (30, 31), (90, 31), (150, 31), (151, 32)) == [False, False, False, True, False]


def test_findings_of_a_gap_and_of_a_limit_go_together() -> None:
    """A look with a gap judges the readings that it has, and ends nothing."""
    known = seen(RATE, (0, 0), (30, 50))
    blind = judged([], [counter(50)], undecided=["gpu:GPU-1 did not answer"])
    known, changes = observe(known, answered(blind, seconds=500), [RATE], at(500))
    assert (len(known.faults), changes) == (1, ())


def test_the_state_is_the_callers() -> None:
    """One function judges one reading: what it returns is all it remembers."""
    first = judge(None, LEARNED, NODE, Reading(component=NODE, name="devices", value=4), at(0))
    again = judge(first.state, LEARNED, NODE, Reading(component=NODE, name="devices", value=3), at(1))
    assert (first.finding, again.state, again.finding is not None) == (None, first.state, True)


def test_changes_tell_of_a_rate_what_they_tell_of_any_level() -> None:
    """Opened with its numbers, ended because its check no longer sees it."""
    known = History()
    trail: list[Change] = []
    for seconds, value in ((0, 0), (30, 50), (95, 50), (160, 50)):
        known, changes = observe(known, answered(ok([counter(value)]), seconds=seconds), [RATE], at(seconds))
        trail += changes
    assert [(each.opened, each.why) for each in trail] == [
        (True, "It is bad: errors_total rose by 50 in 60 s (limit 10)"),
        (False, "gpu.look no longer sees it"),
    ]


def test_an_efa_device_is_a_part_like_any_other() -> None:
    """Memory is by component: what one device does is not another's."""
    efa = [Component(kind="efa", id=name) for name in ("rdmap0s6", "rdmap1s6")]
    known = History()
    for seconds, values in ((0, (0, 0)), (30, (50, 3))):
        readings = [counter(value, device) for device, value in zip(efa, values, strict=True)]
        known, _ = observe(known, answered(ok(readings), seconds=seconds), [RATE], at(seconds))
    assert [where for where, _ in known.faults] == ["efa:rdmap0s6"]
