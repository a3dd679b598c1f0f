"""gpu.temperature: every limit is the GPU's own. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.gpu_temperature import GpuTemperatureSettings, gpu_temperature
from healthd.core.model import Remedy, Result, Severity, Status
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

CORE, SLOWDOWN = "nvmlDeviceGetTemperature(0)", "nvmlDeviceGetTemperatureThreshold(1)"
MEMORY_MAX, MARGIN = "nvmlDeviceGetTemperatureThreshold(2)", "nvmlDeviceGetMarginTemperature"
REASONS, MEMORY, TLIMIT = "nvmlDeviceGetCurrentClocksEventReasons", "field:82", "field:194"
NO_THRESHOLDS = {SLOWDOWN: NOT_SUPPORTED, MEMORY_MAX: NOT_SUPPORTED}


def run(*gpus: GpuAnswer, **settings: Any) -> Result:
    return gpu_temperature(
        FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus)), GpuTemperatureSettings(**settings)
    )


def test_cool() -> None:
    """A cool GPU is ok, and its three temperatures are readings."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "gpu_temperature_c": 34,
        "gpu_memory_temperature_c": 41,
        "gpu_temperature_margin_c": 53,
    }


@pytest.mark.parametrize(("core", "found"), [(89, []), (90, ["gpu.temperature.slowdown"])])
def test_at_the_slowdown_threshold(core: int, found: list[str]) -> None:
    """At the GPU's own threshold it is a warning to watch; a degree below it is none."""
    result = run(healthy_gpu(0), gpu_with(1, {CORE: core}))
    assert codes(result) == found
    for finding in result.findings:
        assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.WATCH)
        assert finding.component.id == gpu_uuid(1)
        assert finding.evidence["limit_c"] == 90


@pytest.mark.parametrize(("memory", "found"), [(94, []), (95, ["gpu.temperature.memory"])])
def test_hot_memory(memory: int, found: list[str]) -> None:
    """The memory has its own threshold."""
    assert codes(run(gpu_with(0, {MEMORY: memory}))) == found


def test_the_margin_alone_is_not_believed() -> None:
    """An H100 that shows no margin while its clocks are fine is ok."""
    assert run(gpu_with(0, {MARGIN: -5, REASONS: 1})).status is Status.OK


@pytest.mark.parametrize("reason", [0x20, 0x40, 0x45])
def test_the_margin_with_heat_as_the_reason(reason: int) -> None:
    """A margin at the T.Limit while the driver names heat is the same finding, also without absolute thresholds."""
    hot = {**NO_THRESHOLDS, MARGIN: -2, REASONS: reason}
    assert codes(run(gpu_with(0, hot))) == ["gpu.temperature.slowdown"]
    assert codes(run(gpu_with(0, {**hot, MARGIN: -1}))) == []
    assert codes(run(gpu_with(0, {**hot, TLIMIT: NOT_SUPPORTED}))) == []


@pytest.mark.parametrize("reason", [0x4, 0x8, 0x80])
def test_other_reasons_are_not_heat(reason: int) -> None:
    """A power cap, a hardware slowdown or a power brake is the business of gpu.throttle."""
    assert run(gpu_with(0, {MARGIN: -2, REASONS: reason})).status is Status.OK


def test_an_earlier_warning_is_a_setting() -> None:
    """An operator may want to know some degrees before."""
    assert codes(run(gpu_with(0, {CORE: 80}), margin_c=10.0)) == ["gpu.temperature.slowdown"]
    assert codes(run(gpu_with(0, {CORE: 79}), margin_c=10.0)) == []


def test_without_thresholds_there_is_no_limit() -> None:
    """No number is made up for a GPU that reports none, or reports zero."""
    assert run(gpu_with(0, {**NO_THRESHOLDS, CORE: 120, MEMORY: 120})).status is Status.OK
    assert run(gpu_with(0, {SLOWDOWN: 0, MEMORY_MAX: 0})).status is Status.OK


def test_no_temperature_at_all() -> None:
    """A GPU that tells no temperature is out of scope; one that fails to tell is unknown."""
    assert run(gpu_with(0, dict.fromkeys((CORE, MARGIN, MEMORY), NOT_SUPPORTED))).status is Status.NOT_APPLICABLE
    assert run(gpu_with(0, {CORE: UNKNOWN}), healthy_gpu(1)).status is Status.UNKNOWN
