"""The kernel's clock, really asked: adjtimex in its reading form needs no privilege."""

from __future__ import annotations

from healthd.sources.clock import kernel_clock


def test_the_kernel_answers() -> None:
    """The kernel's bound on the error is never negative, and ends at 16 s (NTP_PHASE_LIMIT) while nobody keeps time."""
    clock = kernel_clock()
    assert 0 <= clock.max_error_s <= 16
    assert abs(clock.offset_s) <= 0.5
    assert not clock.synchronised or clock.max_error_s < 16
