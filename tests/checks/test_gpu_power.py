"""gpu.power: the enforced limit against the default. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

import pytest

from healthd.checks.gpu_power import gpu_power
from healthd.core.check import NoSettings
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.testing import (
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)

ENFORCED, DEFAULT = "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit"
USAGE, PERSISTENCE = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetPersistenceMode"


def run(*gpus: GpuAnswer) -> Result:
    return gpu_power(FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus)), NoSettings())


def test_default_power() -> None:
    """A GPU at its default limit is ok, and watts are readings."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "gpu_power_w": 71,
        "gpu_power_limit_enforced_w": 700,
        "gpu_power_limit_default_w": 700,
    }


def test_limited() -> None:
    """Less than the default is a warning for a person, with both numbers."""
    (finding,) = run(healthy_gpu(0), gpu_with(1, {ENFORCED: 400_000})).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.power.limited",
        Severity.WARNING,
        Remedy.ASK_HUMAN,
    )
    assert finding.component.id == gpu_uuid(1)
    assert (finding.evidence["value_w"], finding.evidence["limit_w"]) == (400, 700)


def test_more_than_the_default_is_fine() -> None:
    """A limit that was raised slows nobody down."""
    assert run(gpu_with(0, {DEFAULT: 500_000})).status is Status.OK


@pytest.mark.parametrize("refused", [ENFORCED, DEFAULT])
def test_half_an_answer_is_no_comparison(refused: str) -> None:
    """With one of the two numbers nothing is compared; a failure to tell is unknown."""
    assert run(gpu_with(0, {refused: NOT_SUPPORTED})).status is Status.OK
    assert run(gpu_with(0, {refused: UNKNOWN})).status is Status.UNKNOWN


def test_persistence_off_is_news() -> None:
    """Persistence mode that is off calls for nothing."""
    (finding,) = run(gpu_with(0, {PERSISTENCE: 0})).findings
    assert (finding.code, finding.severity, finding.remedy) == ("gpu.persistence.off", Severity.INFO, Remedy.NONE)


def test_no_power_limits() -> None:
    """A GPU that knows none of it is out of scope."""
    refused = dict.fromkeys((ENFORCED, DEFAULT, USAGE, PERSISTENCE), NOT_SUPPORTED)
    assert run(gpu_with(0, refused)).status is Status.NOT_APPLICABLE
    assert run(gpu_with(0, refused), healthy_gpu(1)).status is Status.OK
