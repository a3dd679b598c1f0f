"""The readings of the last minutes, by which the nodes of a job are compared."""

from __future__ import annotations

from datetime import timedelta

from healthd.core.check import ok
from healthd.core.model import Component, Outcome, Reading, ReadingKind, gpu_component
from healthd.state.recent_readings import KEPT, RecentReadings
from tests.support.judgement import GPU, at

POWER, MOVED = "gpu_power_w", "gpu_nvlink_transmitted_bytes_total"


def run(seconds: float, value: float, name: str = POWER, *, epoch: str = "a", part: Component = GPU[0]) -> Outcome:
    kind = ReadingKind.COUNTER if name.endswith("_total") else ReadingKind.GAUGE
    reading = Reading(component=part, name=name, value=value, kind=kind, epoch=epoch)
    return Outcome(check="gpu.any", result=ok([reading]), at=at(seconds), duration_s=0.1)


def seen(*outcomes: Outcome) -> RecentReadings:
    recent = RecentReadings([POWER, MOVED])
    for outcome in outcomes:
        recent.add(outcome)
    return recent


def samples(recent: RecentReadings, seconds: float) -> list[tuple[float, float]]:
    return [sample for each in recent.series(at(seconds)) for sample in each.samples]


def test_a_gauge_is_kept_with_its_ages() -> None:
    """The oldest first; a reading that nobody compares is not kept."""
    recent = seen(run(0, 70), run(60, 680), run(60, 5, "gpu_index"))
    (only,) = recent.series(at(90))
    assert (only.component, only.name, only.samples) == (GPU[0], POWER, ((90.0, 70.0), (30.0, 680.0)))


def test_a_counter_is_its_growth_a_second() -> None:
    """One sample says nothing yet."""
    assert samples(seen(run(0, 600, MOVED)), 30) == []
    assert samples(seen(run(0, 600, MOVED), run(60, 1200, MOVED), run(120, 1260, MOVED)), 120) == [
        (60.0, 10.0),
        (0.0, 1.0),
    ]


def test_a_counter_starts_again_with_its_epoch_or_when_it_goes_backwards() -> None:
    """Between two loads of the driver nothing has grown by a negative amount, and nothing by a whole total."""
    reloaded = seen(run(0, 600, MOVED), run(60, 9000, MOVED, epoch="b"), run(120, 9060, MOVED, epoch="b"))
    assert samples(reloaded, 120) == [(0.0, 1.0)]
    assert samples(seen(run(0, 600, MOVED), run(60, 30, MOVED), run(120, 90, MOVED)), 120) == [(0.0, 1.0)]


def test_two_samples_of_one_moment_have_no_rate() -> None:
    """A check that `healthd check` runs again within the second divides nothing by zero."""
    assert samples(seen(run(0, 600, MOVED), run(0, 601, MOVED), run(60, 661, MOVED)), 60) == [(0.0, 1.0)]


def test_a_gpu_has_the_number_that_the_driver_gives_it_now() -> None:
    """Where one was lost and the driver was loaded again, the others have other numbers: by these a job has GPUs."""
    before, now = (gpu_component(uuid="GPU-0", pci="0000:10:1c", index=index) for index in (4, 3))
    (only,) = seen(run(0, 70, part=before), run(60, 680, part=now)).series(at(90))
    assert only.component.aliases == ("0000:10:1c", "3")
    assert len(only.samples) == 2


def test_what_is_old_is_forgotten() -> None:
    """A part that is gone leaves after forty minutes, and what is kept of one that stays is bounded."""
    recent = seen(run(0, 70), *(run(second, 71, part=GPU[1]) for second in range(1, 3000, 10)))
    late_s = KEPT.total_seconds() + 600
    assert {each.component for each in recent.series(at(late_s))} == {GPU[1]}
    assert len(samples(recent, late_s)) == 64
    assert samples(recent, 2 * late_s) == []


def test_the_clock_was_set() -> None:
    """Ages stay as they were, and a sample from ahead of the clock is not shown."""
    recent = seen(run(0, 70), run(60, 71))
    assert samples(recent, 30) == [(30.0, 70.0)]
    recent.shift(timedelta(hours=-2))
    assert samples(recent, 90 - 7200) == [(90.0, 70.0), (30.0, 71.0)]
