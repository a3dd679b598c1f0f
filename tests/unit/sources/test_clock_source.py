"""The kernel's clock, really asked: adjtimex in its reading form needs no privilege."""

from __future__ import annotations

from healthd.sources.clock import kernel_clock


def test_the_kernel_answers() -> None:
    """An offset is at most half a second either way (MAXPHASE in linux/timex.h)."""
    clock = kernel_clock()
    assert abs(clock.offset_s) <= 0.5
