"""Judgement of readings over time: a counter's growth, rate or standstill, a gauge against its best value.

Pure. It takes the memory of a reading, its value now, and ``now``, and returns the next memory; it reads no clock, and
it knows neither faults nor diagnoses. ``history`` keeps the memory.

**Growth or noise** (:class:`~healthd.core.check.Accelerating`). Corrected errors are counted in buckets of a day. Three
things must come together:

1. *It is no noise.* Given how many errors there were, a constant rate spreads them over the buckets by their lengths,
   and a rate that grows by a factor a day spreads them by the integral of that growth. The likelihood ratio of the two
   does not depend on the rate, and under a constant rate its mean is 1, for each factor and for the mean over factors;
   so it exceeds 1/a with a probability of at most a (Markov's inequality), whatever the rate. The required ratio is
   2,000,000: a node with 8 GPUs, judged 8 times a day, has a false alarm on at most 3.2 of 100,000 days, and there is
   room for three such counters on each GPU within one alarm in 10,000 node-days (Bonferroni's inequality).
2. *It is growth.* It must explain three quarters of all that differs from a constant rate (deviance explained), and the
   best single step from one rate to another must not explain it thirty times better. One bad day, a new rate that
   stays, and a rate that jumps about do not pass.
3. *It was watched long enough*: for 5 days. In fewer buckets much looks like growth.

One error a day that doubles daily passes within six days, at any phase of the day: tests/property/test_trend_laws.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.check import Accelerating, AnyLimit, Learned, Limit, Rate, Stall
from healthd.core.model import NODE, Component, Finding, Reading

Key = tuple[str, str]
"""A component's name, and a reading's or a code."""

_DAY_S = 86_400.0
_MARKS_PER_WINDOW = 60
_RUNS_OF_A_STALL = 3
_CLOSED_DAYS = 13
_BLIND_DAYS = 3  # after a longer time unwatched, the memory is dropped
_EIGHTHS = 8
_A_LITTLE_LATE = timedelta(minutes=15)
_FACTORS = (1.5, 2.0, 3.0)
_LOG_RATIO = math.log(2_000_000)
_EXPLAINED = 0.75
_LOG_STEP = math.log(30)
_WATCHED_DAYS = 5.0


class Baseline(Struct, frozen=True, kw_only=True):
    """A counter's first value in its epoch, or its value when it last raised a finding."""

    epoch: str
    value: float


class Window(Struct, frozen=True, kw_only=True):
    """A counter's recent values: (time, value), oldest first. ``still``: check runs since it moved.
    ``exceeded_s``: when it last grew faster than it may."""

    epoch: str
    marks: tuple[tuple[float, float], ...]
    still: int = 1
    exceeded_s: float = 0.0


class Highest(Struct, frozen=True, kw_only=True):
    """The highest value that a gauge had in an epoch, and when it was first seen."""

    value: float
    since: datetime
    epoch: str = ""


class Days(Struct, frozen=True, kw_only=True):
    """A counter's growth by day: (length in s, increase) of each closed bucket, and the open one.

    ``carried`` is the open bucket's increase before its last reset, ``base`` the value after that. ``last`` and
    ``judged`` change with every check run: they take no part in equality, and so cause no write to disk.
    """

    epoch: str
    opened: datetime
    base: float
    carried: float = 0.0
    closed: tuple[tuple[float, float], ...] = ()
    growing: bool = False
    last: float
    judged: int = 0
    """Eighths of the open day that were judged."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Days) and self._lasting() == other._lasting()

    __hash__ = None  # type: ignore[assignment]

    def _lasting(self) -> tuple[object, ...]:
        return self.epoch, self.opened, self.base, self.carried, self.closed, self.growing


class JudgedReading(Struct, frozen=True):
    """The next memory, the finding, and whether it is decided at all: a window may be too young."""

    state: Any
    finding: Finding | None = None
    sure: bool = True


# The name under which the memory of each kind of limit is kept, by component and reading.
MEMORY: Mapping[type[AnyLimit], str] = {
    Limit: "baselines",
    Rate: "rates",
    Stall: "stalls",
    Learned: "learned",
    Accelerating: "days",
}


class TrendResult(Struct, frozen=True):
    """The result of a check run's readings: changed memories, findings, and each (component, code) that is
    undecided."""

    changed: Mapping[str, Mapping[Key, Any]]
    findings: list[Finding]
    undecided: set[Key]


def judge_all(
    memory: Mapping[str, Mapping[Key, Any]],
    readings: Iterable[Reading],
    limits: Iterable[AnyLimit],
    name_of: Callable[[Component], Component],
    now: datetime,
) -> TrendResult:
    """Judge each reading by each limit on it. A value that is no number is no evidence. ``memory``: by the names of
    MEMORY."""
    by_name = _by_reading(limits)
    changed: dict[str, dict[Key, Any]] = {}
    reported: list[_LimitResult] = []
    moving, seen, component, name = set[str](), None, NODE, ""
    for reading in readings:
        for limit in by_name.get(reading.name, ()) if math.isfinite(reading.value) else ():
            if reading.component is not seen:  # a component's readings come one after the other
                seen, component = reading.component, name_of(reading.component)
                name = str(component)
            kind, key = MEMORY[type(limit)], (name, reading.name)
            known = changed.get(kind, memory[kind]).get(key)
            judged = judge(known, limit, component, reading, now)
            if judged.state is not known:
                if kind not in changed:
                    changed[kind] = dict(memory[kind])  # once: it holds every component's
                changed[kind][key] = judged.state
            if judged.finding is not None or not judged.sure:
                reported.append(_LimitResult(limit, key, judged.finding, judged.sure))
            elif isinstance(limit, Stall):
                moving.add(reading.name)
    results = tuple(_beside_their_siblings(reported, moving))
    findings = [each.finding for each in results if each.finding]
    return TrendResult(changed, findings, {(each.key[0], each.limit.code.code) for each in results if not each.sure})


def _by_reading(limits: Iterable[AnyLimit]) -> dict[str, list[AnyLimit]]:
    found: dict[str, list[AnyLimit]] = {}
    for limit in limits:
        found.setdefault(limit.reading, []).append(limit)
    return found


class _LimitResult(Struct, frozen=True):
    """The result of one limit on one component's reading that is a finding, or undecided, or a standstill."""

    limit: AnyLimit
    key: Key
    finding: Finding | None
    sure: bool


def _beside_their_siblings(reported: Sequence[_LimitResult], moving: Set[str]) -> Iterator[_LimitResult]:
    """The results, of which a standstill counts only beside a sibling that moves, where its limit requires one.
    ``moving``: the readings that do not stand still somewhere."""
    for each in reported:
        alone = isinstance(each.limit, Stall) and each.limit.among_siblings and each.key[1] not in moving
        yield replace(each, finding=None, sure=False) if alone else each


def judge(state: Any, limit: AnyLimit, component: Component, reading: Reading, now: datetime) -> JudgedReading:
    """Judge one reading by one limit. ``state``: the memory that the previous call returned, None at first."""
    match limit:
        case Limit():
            return _growth(state, limit, component, reading)
        case Rate():
            return _rate(state, limit, component, reading, now)
        case Stall():
            return _stall(state, limit, component, reading, now)
        case Learned():
            return _learned(state, limit, component, reading, now)
        case Accelerating():
            return _accelerating(state, limit, component, reading, now)
        case _:
            assert_never(limit)


# ---------------------------------------------------------------------------------------------------------------------
# growth, rate, standstill


def _growth(base: Baseline | None, limit: Limit, component: Component, reading: Reading) -> JudgedReading:
    if base is None or base.epoch != reading.epoch or reading.value < base.value:
        return JudgedReading(Baseline(epoch=reading.epoch, value=reading.value))
    increase, allowed = reading.value - base.value, _allowed(limit, reading)
    if increase <= allowed:
        return JudgedReading(base)
    message = f"{reading.name} rose by {increase:g}, from {base.value:g} to {reading.value:g}"
    found = _found(limit, component, reading, message, baseline=base.value, epoch=reading.epoch, limit=allowed)
    return JudgedReading(replace(base, value=reading.value), found)


def _rate(window: Window | None, limit: Rate, component: Component, reading: Reading, now: datetime) -> JudgedReading:
    """The highest rate over any stretch up to now. Where check runs were further apart than the window, the growth is
    spread evenly over the time between them."""
    window, allowed = _watched(window, reading, now, limit.window_s), _allowed(limit, reading)
    begin = now.timestamp() - limit.window_s
    started, first = window.marks[0]
    inside = first if started >= begin else window.marks[1][1]  # at most one mark is older than the window
    spread = (reading.value - first) * limit.window_s / max(now.timestamp() - started, limit.window_s)
    increase = max(reading.value - inside, spread)
    if increase <= allowed:
        is_calm = now.timestamp() - window.exceeded_s >= limit.calm_s - limit.window_s
        return JudgedReading(window, sure=started <= begin and is_calm)
    message = f"{reading.name} rose by {increase:.4g} in {limit.window_s:g} s (limit {allowed:g})"
    found = _found(limit, component, reading, message, increase=increase, window_s=limit.window_s, limit=allowed)
    return JudgedReading(replace(window, exceeded_s=now.timestamp()), found)


def _stall(window: Window | None, limit: Stall, component: Component, reading: Reading, now: datetime) -> JudgedReading:
    window = _watched(window, reading, now, limit.for_s)
    since = next(at for at, value in window.marks if value == reading.value)
    still_s = now.timestamp() - since
    if still_s < limit.for_s or window.still < _RUNS_OF_A_STALL:
        return JudgedReading(window, sure=window.marks[0][1] < reading.value)
    message = f"{reading.name} has stood still at {reading.value:g} for {still_s:.0f} s (limit {limit.for_s:g} s)"
    return JudgedReading(window, _found(limit, component, reading, message, still_s=still_s, limit=limit.for_s))


def _watched(window: Window | None, reading: Reading, now: datetime, length_s: float) -> Window:
    """The window with this value. It begins again with an epoch, and where the counter or the clock went back.

    Of a value that stays, the first and the last reading are kept. Readings closer together than a sixtieth of the
    window are thinned, so a window has some sixty values at most, however often the check runs.
    """
    mark = (now.timestamp(), reading.value)
    if window is None or window.epoch != reading.epoch or mark < window.marks[-1] or mark[1] < window.marks[-1][1]:
        return Window(epoch=reading.epoch, marks=(mark,))
    marks = window.marks
    same = mark[1] == marks[-1][1]
    if len(marks) > 1:
        crowded = mark[0] - marks[-2][0] < 2 * length_s / _MARKS_PER_WINDOW
        if (same and marks[-2][1] == mark[1]) or crowded:
            marks = marks[:-1]
    while len(marks) > 1 and marks[1][0] < mark[0] - length_s:
        marks = marks[1:]
    return replace(window, marks=(*marks, mark), still=window.still + 1 if same else 1)


# ---------------------------------------------------------------------------------------------------------------------
# a gauge against its best


def _learned(
    best: Highest | None, limit: Learned, component: Component, reading: Reading, now: datetime
) -> JudgedReading:
    if best is None or (best.epoch and reading.epoch not in ("", best.epoch)):
        return JudgedReading(Highest(value=reading.value, since=now, epoch=reading.epoch))
    if reading.value > best.value:
        best = replace(best, value=reading.value, since=now)
    if reading.epoch != best.epoch and reading.epoch:
        best = replace(best, epoch=reading.epoch)
    least = best.value * limit.within
    if reading.value >= least:
        return JudgedReading(best)
    message = f"{reading.name} is {reading.value:g}; on this instance it has been {best.value:g}"
    message += "" if limit.within == 1 else f" (limit {limit.within:.0%} of that)"
    found = _found(
        limit,
        component,
        reading,
        message,
        limit=least,
        highest=best.value,
        since=best.since.isoformat(),
        **({"found": reading.value} if limit.within == 1 else {}),
    )
    return JudgedReading(best, found)


# ---------------------------------------------------------------------------------------------------------------------
# growth or noise


def _accelerating(
    days: Days | None, limit: Accelerating, component: Component, reading: Reading, now: datetime
) -> JudgedReading:
    days = _counted(days, reading, now)
    if not days.growing:
        return JudgedReading(days)
    counts = [count for _, count in _buckets(days, reading.value, now)]
    message = f"{reading.name} grows faster from day to day: {', '.join(f'{count:g}' for count in counts)}"
    ratio = f"likelihood ratio to a constant rate above {math.exp(_LOG_RATIO):,.0f}"
    return JudgedReading(days, _found(limit, component, reading, message, by_day=counts, limit=ratio))


def _counted(days: Days | None, reading: Reading, now: datetime) -> Days:
    """The days with this value, judged again where another eighth of the open day is over. Growth ends with a day."""
    value = reading.value
    if days is None:
        return Days(epoch=reading.epoch, opened=now, base=value, last=value)
    if days.epoch != reading.epoch or value < days.last:
        carried = days.carried + max(0.0, days.last - days.base)
        days = replace(days, epoch=reading.epoch, base=value, last=value, carried=carried)
    if now < days.opened:  # the clock went back: what the open day counted cannot be placed
        return replace(days, opened=now, base=value, last=value, carried=0.0, judged=0)
    if value != days.last:
        days = replace(days, last=value)
    eighths = int((now - days.opened).total_seconds() / (_DAY_S / _EIGHTHS))
    if eighths <= days.judged:
        return days
    buckets, blind = _buckets(days, value, now), eighths >= _BLIND_DAYS * _EIGHTHS
    growing = not blind and (is_growing(buckets) or (days.growing and eighths < _EIGHTHS))
    if eighths < _EIGHTHS:
        return replace(days, growing=growing, judged=eighths)
    due = days.opened + timedelta(
        days=1
    )  # a check run comes a little late: a day's end must not drift through events that come daily
    opened = due if now - due < _A_LITTLE_LATE else now
    closed = () if blind else buckets[-_CLOSED_DAYS:]
    return replace(days, opened=opened, base=value, carried=0.0, judged=0, closed=closed, growing=growing)


def _buckets(days: Days, value: float, now: datetime) -> tuple[tuple[float, float], ...]:
    length_s = (now - days.opened).total_seconds()
    return (*days.closed, (length_s, days.carried + value - days.base)) if length_s > 0 else days.closed


def is_growing(buckets: Sequence[tuple[float, float]]) -> bool:
    """Whether counts in successive buckets, (length in s, count), come from a rate that grows from day to day.

    The module's docstring explains the test and its cost.
    """
    lengths, counts = [length_s / _DAY_S for length_s, _ in buckets], [count for _, count in buckets]
    if sum(lengths) < _WATCHED_DAYS or sum(counts) <= 0:
        return False
    differs = _log_likelihood(counts, counts) - _log_likelihood(counts, lengths)  # nothing can explain more
    if differs < _LOG_RATIO:
        return False
    ratio = log_ratio(buckets)
    return ratio >= max(_LOG_RATIO, _EXPLAINED * differs, _step(lengths, counts) - _LOG_STEP)


def log_ratio(buckets: Sequence[tuple[float, float]]) -> float:
    """The logarithm of the likelihood ratio of a rate that grows daily, by one of the factors, to a constant one.

    A third of the best factor's, which is at most the mean over the three.
    """
    lengths, counts = [length_s / _DAY_S for length_s, _ in buckets], [count for _, count in buckets]
    ends = [end - sum(lengths) for end in accumulate(lengths)]
    best = max(
        _log_likelihood(counts, [factor**end - factor ** (end - each) for end, each in zip(ends, lengths, strict=True)])
        for factor in _FACTORS
    )
    return best - math.log(len(_FACTORS)) - _log_likelihood(counts, lengths)


def _step(lengths: Sequence[float], counts: Sequence[float]) -> float:
    """The same for the best single step from one constant rate to another, each as large as fits best."""
    best = 0.0
    for at in range(1, len(counts)):
        before, after = sum(counts[:at]) / sum(lengths[:at]), sum(counts[at:]) / sum(lengths[at:])
        rates = [each * before for each in lengths[:at]] + [each * after for each in lengths[at:]]
        best = max(best, _log_likelihood(counts, rates) - _log_likelihood(counts, lengths))
    return best


def _log_likelihood(counts: Sequence[float], weights: Sequence[float]) -> float:
    """The log-likelihood of counts in buckets by these weights, without the terms that depend on the counts alone."""
    total = sum(weights)
    return sum(count * math.log(weight / total) for count, weight in zip(counts, weights, strict=True) if count > 0)


# ---------------------------------------------------------------------------------------------------------------------


def _allowed(limit: Limit | Rate, reading: Reading) -> float:
    return limit.max_increase if reading.limit is None else reading.limit


def _found(limit: AnyLimit, component: Component, reading: Reading, message: str, /, **evidence: Any) -> Finding:
    numbers: Mapping[str, Any] = {"reading": reading.name, "value": reading.value, **evidence}
    return limit.code.at(component, f"{limit.code.meaning}: {message}", **numbers, limit_source=limit.source)
