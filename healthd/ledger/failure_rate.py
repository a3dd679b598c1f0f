"""Failure rates: the exact confidence interval of a Poisson count, and how unlikely a count is. Pure, standard library.

A count of ``n`` events in an exposure ``t`` has the interval of Garwood (1936): its ends are the means under which at
least, and at most, ``n`` events have the probability alpha / 2. They equal quantiles of chi-square with an even number
of degrees of freedom, which have this sum for a distribution function; here it is inverted by bisection.
"""

from __future__ import annotations

import math

from msgspec import Struct

CONFIDENCE = 0.95


class FailureRate(Struct, frozen=True, kw_only=True):
    """How often something failed. ``exposure_h``: the node-hours in which it would have been seen.

    ``mtbf_h``: the mean time between failures in node-hours, None without a failure. ``low_h`` and ``high_h``: its
    interval at ``CONFIDENCE``; ``high_h`` None: without an upper end.
    """

    key: str
    failures: int
    exposure_h: float

    @property
    def mtbf_h(self) -> float | None:
        """Exposure per failure."""
        return self.exposure_h / self.failures if self.failures else None

    @property
    def low_h(self) -> float:
        """The lower end of the interval."""
        return self.exposure_h / poisson_interval(self.failures)[1]

    @property
    def high_h(self) -> float | None:
        """The upper end of the interval."""
        return self.exposure_h / poisson_interval(self.failures)[0] if self.failures else None


def poisson_interval(count: int) -> tuple[float, float]:
    """The exact two-sided interval at ``CONFIDENCE`` for the mean of a Poisson count."""
    tail = (1.0 - CONFIDENCE) / 2.0
    low = _mean_where(count - 1, 1.0 - tail) if count else 0.0
    return low, _mean_where(count, tail)


def at_least(count: int, mean: float) -> float:
    """The probability of ``count`` or more events where ``mean`` are expected."""
    return 1.0 - _at_most(count - 1, mean) if count > 0 else 1.0


def _mean_where(count: int, probability: float) -> float:
    """The mean under which ``count`` or fewer events have this probability."""
    low, high = 0.0, count + 20.0 + 10.0 * math.sqrt(count + 1.0)
    while low < (middle := (low + high) / 2.0) < high:  # until two neighbouring numbers are left
        low, high = (middle, high) if _at_most(count, middle) > probability else (low, middle)
    return (low + high) / 2.0


def _at_most(count: int, mean: float) -> float:
    """The probability of ``count`` or fewer events: a sum from its largest term outwards, which ends where a term no
    longer counts."""
    if mean <= 0.0 or count < 0:
        return float(count >= 0)
    peak = min(count, int(mean))
    top = math.exp(peak * math.log(mean) - mean - math.lgamma(peak + 1))
    total, term = top, top
    for number in range(peak, 0, -1):
        term *= number / mean
        total += term
        if term < total * 1e-17:
            break
    term = top
    for number in range(peak + 1, count + 1):
        term *= mean / number
        total += term
    return min(total, 1.0)
