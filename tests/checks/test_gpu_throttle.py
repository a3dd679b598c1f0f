"""gpu.throttle: time spent held back, and looks that saw it. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.checks.gpu_throttle import GpuThrottleSettings, gpu_throttle
from healthd.core.check import discover
from healthd.core.model import REMEDY_RANK, Remedy, Repeats, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.testing import (
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    codes,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)
from tests.support.over_time import open_codes

REASONS, CLOCK = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetClockInfo(1)"
POWER, LOAD = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"
BUSY = {"gpu": 100, "memory": 0}
SECOND = 10**9


def run(*gpus: GpuAnswer, **settings: Any) -> Result:
    result = gpu_throttle(
        FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus)), GpuThrottleSettings(**settings)
    )
    for finding in result.findings:  # unproven on hardware
        assert finding.severity is Severity.WARNING
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]
    return result


def found_over_time(field: int, seconds_a_minute: float) -> set[str]:
    """What is found in half an hour of looks, one a minute, at so many throttled seconds each."""
    looks = [run(gpu_with(0, {f"field:{field}": int(minute * seconds_a_minute * SECOND)})) for minute in range(30)]
    return set().union(*open_codes("gpu.throttle", looks))


def test_idle() -> None:
    """An idle GPU is ok; four counters, a clock and the use are readings."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert len(result.readings) == 6


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x10, 0x20, 0x100])
def test_harmless_reasons(reasons: int) -> None:
    """Idling, capping by software, and clocks that somebody set are no fault."""
    assert run(gpu_with(0, {REASONS: reasons})).status is Status.OK


@pytest.mark.parametrize("reasons", [0x8, 0x40, 0x80, 0x48, 0x88, 0xE8])
def test_a_look_that_sees_the_hardware_hold_back(reasons: int) -> None:
    """It is noted on that GPU, and counts once six of ten looks saw it."""
    (finding,) = run(healthy_gpu(0), gpu_with(1, {REASONS: reasons})).findings
    assert (finding.code, finding.component.id) == ("gpu.throttle.hardware", gpu_uuid(1))
    assert finding.repeats == Repeats(times=6, window_s=600)
    assert set(finding.symptom_of) == {"gpu.throttle.heat", "gpu.throttle.power_brake"}


@pytest.mark.parametrize(("seen_in", "found"), [(5, False), (6, True), (10, True)])
def test_six_looks_of_ten(seen_in: int, found: bool) -> None:
    """Fewer than six of the last ten looks are noise; six are a finding, and a calm while ends it."""
    looks = [run(gpu_with(0, {REASONS: 0x8 if minute < seen_in else 0x1})) for minute in range(10)]
    calm = [run(healthy_gpu(0))] * 12
    after = open_codes("gpu.throttle", [*looks, *calm])
    assert ("gpu.throttle.hardware" in set().union(*after)) is found
    assert after[-1] == set()


@pytest.mark.parametrize(("field", "code"), [(270, "gpu.throttle.heat"), (271, "gpu.throttle.power_brake")])
@pytest.mark.parametrize(("seconds_a_minute", "found"), [(0, False), (35, False), (37, True), (60, True)])
def test_time_held_back(field: int, code: str, seconds_a_minute: float, found: bool) -> None:
    """Six tenths of the time is the limit, for each reason by itself."""
    assert found_over_time(field, seconds_a_minute) == ({code} if found else set())


def test_software_capping_is_a_reading() -> None:
    """A busy GPU at its power limit is what was paid for."""
    limited = {limit.reading for limit in discover()["gpu.throttle"].limits}
    result = run(gpu_with(0, {"field:74": 5 * SECOND, "field:269": 7 * SECOND, REASONS: 0x24}))
    values = {reading.name: reading.value for reading in result.readings if reading.name not in limited}
    assert values["gpu_throttled_software_power_seconds_total"] == pytest.approx(5)
    assert values["gpu_throttled_software_heat_seconds_total"] == pytest.approx(7)


def busy(index: int, clock: int = 1980, *, watt: float = 650, used: int = 100) -> GpuAnswer:
    load = {"gpu": used, "memory": 40}
    return gpu_with(index, {REASONS: 0x4, CLOCK: clock, POWER: int(watt * 1000), LOAD: load})


def eight(*odd: GpuAnswer) -> list[GpuAnswer]:
    """Busy GPUs, these among them."""
    return [*(busy(index) for index in range(8) if index not in {gpu.index for gpu in odd}), *odd]


@pytest.mark.parametrize("lag", [{"clock": 1583}, {"watt": 519}, {"clock": 345, "watt": 90}])
def test_a_straggler_is_a_warning_after_ten_minutes(lag: dict[str, Any]) -> None:
    """A busy GPU under eight tenths of its busy siblings, in clock or power, is told; nothing is done about it."""
    result = run(*eight(busy(5, **lag)))
    (finding,) = result.findings
    assert (finding.code, finding.component.id) == ("gpu.throttle.slower_than_siblings", gpu_uuid(5))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.WATCH)
    after = open_codes("gpu.throttle", [result] * 11)
    assert after[9:] == [set(), {"gpu.throttle.slower_than_siblings"}]


@pytest.mark.parametrize("lag", [{"clock": 1584}, {"watt": 520}])
def test_a_little_slower_is_no_straggler(lag: dict[str, Any]) -> None:
    """Eight tenths and more is how chips differ; a site may draw the line elsewhere, or nowhere."""
    assert codes(run(*eight(busy(5, **lag)))) == []
    assert codes(run(*eight(busy(5, **lag)), siblings_ratio=0.9)) == ["gpu.throttle.slower_than_siblings"]
    assert codes(run(*eight(busy(5, 345, watt=90)), siblings_ratio=0)) == []


def test_only_busy_siblings_are_compared() -> None:
    """A GPU that is used less, that idles, that does not tell, or that has few busy siblings is no straggler."""
    slow: dict[str, Any] = {"clock": 345, "watt": 90}
    assert codes(run(*eight(busy(5, used=89, **slow)))) == []
    assert codes(run(*eight(healthy_gpu(5)))) == []
    assert codes(run(*eight(gpu_with(5, {REASONS: 0x4, CLOCK: 345, LOAD: NOT_SUPPORTED})))) == []
    assert codes(run(busy(0), busy(1), busy(2, **slow), *(healthy_gpu(index) for index in range(3, 8)))) == []
    assert codes(run(*eight(gpu_with(5, {REASONS: 0x4, CLOCK: NOT_SUPPORTED, POWER: NOT_SUPPORTED, LOAD: BUSY})))) == []


@given(st.lists(st.tuples(st.integers(1600, 1980), st.integers(560, 700), st.integers(0, 100)), min_size=8, max_size=8))
def test_gpus_within_a_fifth_are_never_stragglers(gpus: list[tuple[int, int, int]]) -> None:
    """Whatever each is doing: where none is a fifth behind another, none is told."""
    answers = [busy(index, clock, watt=watt, used=used) for index, (clock, watt, used) in enumerate(gpus)]
    assert codes(run(*answers)) == []


def test_an_old_driver_has_the_reasons_only() -> None:
    """Without the time counters the looks remain; without both the GPU is out of scope."""
    without = dict.fromkeys(("field:74", "field:269", "field:270", "field:271"), NOT_SUPPORTED)
    assert codes(run(gpu_with(0, {**without, REASONS: 0x40}))) == ["gpu.throttle.hardware"]
    assert run(gpu_with(0, {**without, REASONS: NOT_SUPPORTED})).status is Status.NOT_APPLICABLE
    assert run(gpu_with(0, {**without, REASONS: UNKNOWN})).status is Status.UNKNOWN
