"""Exact intervals of Poisson counts, against tables."""

from __future__ import annotations

import pytest

from healthd.ledger.failure_rate import FailureRate, at_least, poisson_interval


# Garwood (1936), and the same from chi-square quantiles in any statistics package: qchisq(0.025, 2n)/2 and
# qchisq(0.975, 2n+2)/2.
@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        (0, 0.0, 3.68888),
        (1, 0.025318, 5.57164),
        (2, 0.242209, 7.22469),
        (5, 1.623486, 11.66833),
        (10, 4.795389, 18.39036),
        (20, 12.216524, 30.88838),
        (50, 37.111, 65.919),
        (100, 81.364, 121.627),
    ],
)
def test_the_interval_is_that_of_the_tables(count: int, low: float, high: float) -> None:
    """Five digits of the published values."""
    assert list(poisson_interval(count)) == pytest.approx([low, high], rel=2e-5)


def test_a_large_count_has_the_interval_of_the_normal_law() -> None:
    """Near it: 100,000 events, within three thousandths of the half width."""
    low, high = poisson_interval(100_000)
    half = 1.959964 * 100_000**0.5
    assert high - 100_000 == pytest.approx(half, rel=0.01)
    assert 100_000 - low == pytest.approx(half, rel=0.01)


def test_without_a_failure_there_is_a_lower_end_alone() -> None:
    """The rule of three, exactly 3.689 for two sides."""
    rate = FailureRate(key="p5", failures=0, exposure_h=3688.8)
    assert (rate.mtbf_h, rate.high_h) == (None, None)
    assert rate.low_h == pytest.approx(1000.0, rel=1e-4)


def test_the_mean_time_lies_in_its_interval() -> None:
    """Exposure over failures."""
    rate = FailureRate(key="p5", failures=10, exposure_h=1000.0)
    assert rate.mtbf_h == 100.0
    assert rate.high_h is not None
    assert rate.low_h < 100.0 < rate.high_h


def test_how_unlikely_a_count_is() -> None:
    """The upper tail of the Poisson law; none of no events."""
    assert at_least(0, 3.0) == 1.0
    assert at_least(1, 1.0) == pytest.approx(0.6321206, rel=1e-6)
    assert at_least(3, 0.1) == pytest.approx(1.5465e-4, rel=1e-3)
    assert at_least(2, 0.0) == 0.0
    assert at_least(1, 5.0) == pytest.approx(1 - 0.006737947, rel=1e-6)
