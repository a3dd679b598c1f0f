"""gpu.sram: the driver's flag decides, the counters are told. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.gpu_sram import gpu_sram
from healthd.core.check import NoSettings
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer, NvmlFailure
from healthd.testing import (
    HEALTHY_GPU,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)

STATUS = "nvmlDeviceGetSramEccErrorStatus"
UNIQUE = "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts"


def run(*gpus: GpuAnswer) -> Result:
    return gpu_sram(FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus)), NoSettings())


def sram(index: int, *, places: int = 0, **members: Any) -> GpuAnswer:
    place = {"unit": 1, "location": 0, "sublocation": 0, "extlocation": 0, "address": 64, "isParity": 1, "count": 2}
    return gpu_with(index, {STATUS: {**HEALTHY_GPU[STATUS], **members}, UNIQUE: [place] * places})


def values(result: Result) -> dict[str, float]:
    return {reading.name: reading.value for reading in result.readings}


def test_healthy() -> None:
    """A GPU without SRAM errors is ok, with all its counters read."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert len(result.readings) == 8
    assert set(values(result).values()) == {0}


def test_the_flag_calls_for_an_exchange() -> None:
    """The driver's own flag is critical, names the unit with most errors, and condemns its GPU only."""
    (finding,) = run(healthy_gpu(0), sram(1, places=3, bThresholdExceeded=1, aggregateUncBucketSm=3)).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.sram.threshold",
        Severity.CRITICAL,
        Remedy.REPLACE_NODE,
    )
    assert finding.component.id == gpu_uuid(1)
    assert finding.message.endswith("are in Sm")
    assert len(finding.evidence["unique"]) == 3


def test_errors_below_the_threshold_are_readings() -> None:
    """Many errors without the flag are counted and are no finding: healthd does not count banks itself."""
    result = run(sram(0, places=5, volatileUncParity=5, aggregateUncParity=40, aggregateUncSecDed=2))
    assert result.status is Status.OK
    assert values(result)["gpu_sram_uncorrected_parity_aggregate_total"] == 40
    assert (values(result)["gpu_sram_unique_parity_count"], values(result)["gpu_sram_unique_secded_count"]) == (5, 0)


def test_epochs() -> None:
    """What a driver reload resets belongs to it, and what the board keeps does not."""
    for reading in run(healthy_gpu(0)).readings:
        kept = {"volatile": "boot ", "aggregate": "inforom", "unique": ""}
        assert reading.epoch.startswith(next(epoch for word, epoch in kept.items() if word in reading.name))


@pytest.mark.parametrize("code", [3, 13])
def test_no_such_call(code: int) -> None:
    """An old driver or a GPU without ECC has nothing to say; the places alone may be missing."""
    refused = NvmlFailure(code=code, name="…")
    assert run(gpu_with(0, {STATUS: refused, UNIQUE: refused})).status is Status.NOT_APPLICABLE
    older = run(gpu_with(0, {UNIQUE: refused}))
    assert older.status is Status.OK
    assert len(older.readings) == 6
    assert run(gpu_with(0, {STATUS: {**HEALTHY_GPU[STATUS], "bThresholdExceeded": 1}, UNIQUE: refused})).findings


def test_unknown_error_is_unknown() -> None:
    """A GPU that fails to answer is unknown, and hides no finding of another."""
    assert run(gpu_with(0, {STATUS: UNKNOWN}), healthy_gpu(1)).status is Status.UNKNOWN
    result = run(gpu_with(0, {STATUS: UNKNOWN}), sram(1, bThresholdExceeded=1))
    assert (result.status, len(result.undecided)) == (Status.FINDINGS, 1)
