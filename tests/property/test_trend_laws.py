"""Laws of judgement over time, against plain oracles; and what the growth of corrected errors costs in false alarms.

The simulations have fixed seeds. Where the thresholds come from is in the docstring of ``healthd.judge.trends``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.check import Accelerating, FindingCode, Learned, Rate, Stall, ok
from healthd.core.model import Component, Outcome, Reading, ReadingKind, Remedy, Repeats, Severity
from healthd.judge.history import History, observe
from healthd.judge.trends import Days, judge, log_ratio
from tests.support.judgement import GPU, answered, at, could_not_tell, counter, looked
from tests.support.sampling import examples, of_this_run

CODE = FindingCode(code="part.bad", severity=Severity.WARNING, remedy=Remedy.WATCH, meaning="It is bad")
WINDOW_S = 60
RATE = Rate(reading="errors_total", max_increase=10, window_s=WINDOW_S, code=CODE, source="this test")
STALL = Stall(reading="errors_total", for_s=WINDOW_S, code=CODE, source="this test")
LEARNED = Learned(reading="errors_total", code=CODE, source="this test")
GROWING = Accelerating(reading="errors_total", code=CODE, source="this test")
DAY_S = 86_400.0
LAW = settings(max_examples=examples(100), deadline=None)

# Looks: seconds since the last one (at least a sixtieth of the window, so none is thinned), and the counter's step.
looks = st.lists(st.tuples(st.integers(1, 150), st.sampled_from([0, 0, 0, 1, 4, 11, 30, -1])), min_size=1, max_size=40)


def series(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(second, value) of each look; a step of -1 is a reset to zero."""
    second, value, found = 0, 5, []
    for gap, step in steps:
        second, value = second + gap, 0 if step < 0 else value + step
        found.append((second, value))
    return found


def open_after(limit: Rate | Stall | Learned, values: Sequence[tuple[int, int]]) -> list[bool]:
    """After which looks the fault was open."""
    known, hits = History(), []
    for second, value in values:
        outcome = answered(ok([counter(value)]), seconds=second)
        known, _ = observe(known, outcome, [limit], outcome.at)
        hits.append(bool(known.faults))
    return hits


def since_reset(values: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """The looks since the counter last went back."""
    begin = max((i for i in range(1, len(values)) if values[i][1] < values[i - 1][1]), default=0)
    return values[begin:]


def windowed_increase(values: Sequence[tuple[int, int]]) -> float:
    """The increase in the last window: since the oldest look in it, or the share of what grew across its begin."""
    now, value = values[-1]
    inside = [each for second, each in values if second >= now - WINDOW_S]
    outside = [(second, each) for second, each in values if second < now - WINDOW_S]
    spread = [(value - each) * WINDOW_S / (now - second) for second, each in outside[-1:]]
    return max([value - inside[0], *spread])


@LAW
@given(looks)
def test_a_rate_is_found_exactly_where_a_window_holds_more(steps: list[tuple[int, int]]) -> None:
    """Against an oracle that keeps everything: found where it is above the limit; ended where a whole window is not."""
    values = series(steps)
    was_open = False
    for end, is_open in enumerate(open_after(RATE, values), start=1):
        run = since_reset(values[:end])
        if windowed_increase(run) > RATE.max_increase:
            assert is_open
        elif run[0][0] <= run[-1][0] - WINDOW_S:
            assert not is_open
        else:
            assert is_open == was_open
        was_open = is_open


@LAW
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=12))
def test_a_stall_among_siblings_is_found_only_beside_one_that_moves(steps: list[list[bool]]) -> None:
    """Whatever four devices do: a fault opens on one that stands still while another moved within the window."""
    limit, known, values, moved = replace(STALL, among_siblings=True), History(), [0] * 4, [-WINDOW_S] * 4
    for number, step in enumerate(steps):
        now_s = number * WINDOW_S
        values = [value + one for value, one in zip(values, step, strict=True)]
        moved = [now_s if one and number else at_s for at_s, one in zip(moved, step, strict=True)]
        parts = [Component(kind="efa", id=str(index)) for index in range(4)]
        readings = [
            Reading(component=part, name=limit.reading, value=value, kind=ReadingKind.COUNTER, epoch="a")
            for part, value in zip(parts, values, strict=True)
        ]
        before = set(known.faults)
        outcome = answered(ok(readings), seconds=now_s)
        known, _ = observe(known, outcome, [limit], outcome.at)
        for where, _ in set(known.faults) - before:
            index = int(where.removeprefix("efa:"))
            assert now_s - moved[index] >= WINDOW_S
            assert any(now_s - at_s <= WINDOW_S for other, at_s in enumerate(moved) if other != index)


@LAW
@given(looks)
def test_a_stall_is_found_exactly_where_nothing_moved(steps: list[tuple[int, int]]) -> None:
    """For as long as the limit says and at three looks or more; and it never opens at a look that saw movement."""
    values = series(steps)
    hits = open_after(STALL, values)
    for end in range(1, len(values) + 1):
        now, _ = values[end - 1]
        still = [second for second, _ in values[end - unmoved(values[:end]) : end]]
        if now - still[0] >= WINDOW_S and len(still) >= 3:
            assert hits[end - 1]
        elif end == 1 or not hits[end - 2]:
            assert not hits[end - 1]


def unmoved(values: Sequence[tuple[int, int]]) -> int:
    """How many looks, counted from the last, have seen the last value."""
    count = 0
    for _, each in reversed(values):
        if each != values[-1][1]:
            break
        count += 1
    return count


@LAW
@given(looks)
def test_below_the_best_is_a_fault_and_nothing_else_is(steps: list[tuple[int, int]]) -> None:
    """Open exactly while the value is below the highest so far, whatever else it did."""
    values = series(steps)
    best = [max(value for _, value in values[: end + 1]) for end in range(len(values))]
    assert open_after(LEARNED, values) == [value < top for (_, value), top in zip(values, best, strict=True)]


LASTING = replace(CODE, lasting_s=100)


@LAW
@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["bad", "bad", "bad", "good", "blind"])), max_size=40))
def test_a_lasting_fault_counts_exactly_when_it_lasted(steps: list[tuple[int, str]]) -> None:
    """Open when every look that could tell has reported it for so long; blind looks change nothing."""
    known, second, since, is_open = History(), 0, None, False
    for gap, what in steps:
        second += gap
        outcome: Outcome = could_not_tell(seconds=second)
        if what == "good":
            outcome, since, is_open = looked(seconds=second), None, False
        elif what == "bad":
            outcome = looked(LASTING.at(GPU[0], "bad"), seconds=second)
            since = second if since is None else since
            is_open = is_open or second - since >= LASTING.lasting_s
        known, _ = observe(known, outcome, (), outcome.at)
        assert bool(known.faults) == is_open


REPEATS = replace(CODE, repeats=Repeats(times=3, window_s=100))


@LAW
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2)), max_size=40))
def test_a_repeating_fault_is_open_exactly_while_its_window_holds_enough(steps: list[tuple[int, int]]) -> None:
    """With three or more looks that saw it in the window that ends now, in however many readings each of them did, and
    not otherwise; the store never holds more than it needs."""
    known, second, seen = History(), 0, []
    for gap, count in steps:
        second += gap
        seen += [second] * bool(count)
        found = [REPEATS.at(GPU[0], "lost", time=at(second)) for _ in range(count)]
        known, _ = observe(known, looked(*found, seconds=second), (), at(second))
        assert bool(known.faults) == (sum(second - each <= 100 for each in seen) >= 3)
        assert all(len(each.seen) <= 3 for each in known.sightings.values())


# ---------------------------------------------------------------------------------------------------------------------
# growth or noise


class Watched:
    """One counter as a daemon watches it. A restart comes back with what equality says was worth writing."""

    def __init__(self) -> None:
        self._days: Days | None = None
        self._saved = b""
        self.growing = False
        self.writes = self.turns = 0

    def look(self, second: float, value: float, epoch: str = "inforom") -> bool:
        """Whether the growth is an open fault after this look."""
        before, was = self._days, self.growing
        judged = judge(self._days, GROWING, GPU[0], counter(value, epoch=epoch), at(second))
        self._days, self.growing = judged.state, judged.finding is not None
        self.turns += self.growing is not was
        if self._days != before:
            self._saved = msgspec.json.encode(self._days)
            self.writes += 1
        return self.growing

    def restart(self) -> None:
        """Come back with what was written last."""
        self._days = msgspec.json.decode(self._saved, type=Days)


def poisson(mean: float, random: Random) -> int:
    """Knuth's method; means beyond its range as a sum."""
    if mean > 15:
        return poisson(mean / 2, random) + poisson(mean / 2, random)
    floor, count, product = math.exp(-mean), 0, random.random()
    while product > floor:
        count, product = count + 1, product * random.random()
    return count


def noisy_days(per_day: float, days: int, random: Random) -> int:
    """On how many days a counter with Poisson noise alarms, looked at eight times a day, as often as it is judged."""
    watched, second, value, alarms = Watched(), 0.0, float(random.randrange(10**6)), set()
    for look in range(8 * days):
        gap_s = DAY_S / 8 * random.uniform(1.0, 1.01)
        second, value = second + gap_s, value + poisson(per_day * gap_s / DAY_S, random)
        if watched.look(second, value):
            alarms.add(look // 8)
    return len(alarms)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "rate"),
    [(100, lambda random: random.uniform(0, 50)), (20, lambda random: 50.0), (20, lambda random: random.uniform(0, 2))],
    ids=["0 to 50 a day", "50 a day", "0 to 2 a day"],
)
def test_noise_alarms_at_most_once_in_ten_thousand_node_days(nodes: int, rate: Callable[[Random], float]) -> None:
    """Nodes with 8 GPUs for a hundred days each, every GPU with its own constant rate: no more than was promised.
    `make test` counts the alarms of a tenth of them."""
    alarms = 0
    for node in of_this_run().some(f"{nodes} noisy nodes", range(nodes), nodes // 10):
        random = Random(20260101 + node)  # noqa: S311 - a simulation
        alarms += sum(noisy_days(rate(random), 100, random) for _gpu in range(8))
    assert alarms <= nodes * 100 / 10_000


@given(st.integers(1, 3), st.lists(st.floats(0.2, 3), min_size=2, max_size=5))
@settings(max_examples=examples(200), deadline=None)
def test_the_likelihood_ratio_has_a_mean_of_at_most_one(total: int, lengths: list[float]) -> None:
    """The inequality that the threshold rests on, for few errors exactly: over all ways in which they can fall into
    buckets of any lengths, weighted by what a constant rate makes of each way, the ratio comes to at most 1."""
    shares = [each / sum(lengths) for each in lengths]
    mean = 0.0
    for counts in ways(total, len(lengths)):
        odds = (share**count / math.factorial(count) for share, count in zip(shares, counts, strict=True))
        buckets = [(each * DAY_S, count) for each, count in zip(lengths, counts, strict=True)]
        mean += math.factorial(total) * math.prod(odds) * math.exp(log_ratio(buckets))
    assert 0 < mean <= 1 + 1e-9


def ways(total: int, buckets: int) -> Iterator[tuple[int, ...]]:
    """All ways in which so many errors can fall into so many buckets."""
    if buckets == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in ways(total - first, buckets - 1):
            yield (first, *rest)


def doubling(style: str, random: Random) -> list[float]:
    """When, in days, the errors of seven days come that have 1, 2, 4, 8, 16, 32 and 64."""
    moments: list[float] = []
    for day in range(7):
        count = 2**day
        match style:
            case "evenly":
                moments += [day + (each + 0.5) / count for each in range(count)]
            case "at its start":
                moments += [float(day)] * count
            case "at noon":
                moments += [day + 0.5] * count
            case _:
                moments += [day + random.random() for _ in range(count)]
    return moments


def found_after(style: str, random: Random, *, quiet_days: int, phase: int, restart_after: int) -> float:
    """After how many days the doubling is found by a daemon that first looked so many days and hours before it."""
    moments, watched, begin = sorted(doubling(style, random)), Watched(), -quiet_days - phase / 24
    looks_at = [begin + (look + 0.1 * random.random()) / 96 for look in range(round((7 - begin) * 96))]
    for number, moment in enumerate(sorted([*looks_at, 6.0])):
        if restart_after and number and number % restart_after == 0:
            watched.restart()
        if watched.look(moment * DAY_S, 700 + bisect_right(moments, moment)):
            assert watched.writes <= moment - begin + 2, "written at first, once a day, and when it was found"
            return moment
    return math.inf


@pytest.mark.sampled(7)
@pytest.mark.parametrize("style", ["evenly", "at its start", "at noon"])
@pytest.mark.parametrize("restart_after", [0, 17, 50])
@pytest.mark.parametrize("quiet_days", [0, 1, 9])
def test_one_a_day_that_doubles_is_found_by_day_six(style: str, restart_after: int, quiet_days: int) -> None:
    """At every phase of the day, however errors fall within their day, after any calm, with restarts between."""
    random = Random(7)  # noqa: S311 - a simulation
    for phase in range(24):
        days = found_after(style, random, quiet_days=quiet_days, phase=phase, restart_after=restart_after)
        assert days <= 6, f"phase {phase} h"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("quiet_days", [0, 1, 9])
def test_errors_at_random_moments_hide_no_doubling(quiet_days: int) -> None:
    """Where the errors of each day come at any moments, it is found by day six in 99 of 100, and by day 6.5 in all."""
    random = Random(11)  # noqa: S311 - a simulation
    days = [
        found_after("anyhow", random, quiet_days=quiet_days, phase=phase, restart_after=50)
        for phase in range(24)
        for _ in range(10)
    ]
    assert sum(each <= 6 for each in days) >= 0.99 * len(days)
    assert max(days) <= 6.5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_a_counter_reset_never_alarms(seed: int) -> None:
    """Noise with a reset every few hours, unannounced or with a new epoch, to zero or to what came since."""
    random = Random(seed)  # noqa: S311 - a simulation
    for per_day in (1, 10, 50):
        watched, second, value, epoch = Watched(), 0.0, 10.0**6, 0
        for _ in range(60 * 8):
            second += random.uniform(0.9, 1.1) * DAY_S / 8
            value += poisson(per_day / 8, random)
            if random.random() < 0.2:
                value, epoch = float(poisson(per_day / 16, random)), epoch + random.randrange(2)
            assert not watched.look(second, value, str(epoch))
            if random.random() < 0.05:
                watched.restart()
