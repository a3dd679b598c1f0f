"""gpu.health: what one GPU, or NVML as a whole, says oddly. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

import pytest

from healthd.checks.gpu_health import gpu_health
from healthd.core.check import NoSettings
from healthd.core.errors import SourceError, SourceTimeout, SourceUnreadable
from healthd.core.model import REMEDY_RANK, Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer, NvmlFailure
from healthd.testing import (
    GPU_IS_LOST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    codes,
    failed_gpu,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)

MODEL, VBIOS = "nvmlDeviceGetName", "nvmlDeviceGetVbiosVersion"


def run(*gpus: GpuAnswer, error: SourceError | None = None) -> Result:
    node = FakeNode(sys=pci_tree(gpus=[fake_pci(0), fake_pci(1)]), nvml=FakeNvml(*gpus, error=error))
    result = gpu_health(node, NoSettings())
    for finding in result.findings:  # all of it is unproven on hardware; of 999 at the handle a published source tells
        assert finding.severity is (Severity.CRITICAL if finding.code == "gpu.failing" else Severity.WARNING)
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]
    return result


def test_alike_and_whole() -> None:
    """Siblings that are alike and open are ok."""
    assert run(healthy_gpu(0), healthy_gpu(1)).status is Status.OK


def test_one_failing_while_others_answer() -> None:
    """A handle refused with Unknown Error keeps jobs off if a sibling answers, and a person is asked."""
    result = run(healthy_gpu(0), failed_gpu(1, UNKNOWN, named=True))
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.remedy) == ("gpu.failing", Severity.CRITICAL, Remedy.ASK_HUMAN)
    assert (finding.component.id, finding.lasting_s) == (gpu_uuid(1), 300.0)
    assert result.undecided == ()


@pytest.mark.parametrize(
    "gpu",
    [
        failed_gpu(1, NvmlFailure(code=17, name="OPERATING_SYSTEM"), named=True),
        gpu_with(1, dict.fromkeys((MODEL, VBIOS), UNKNOWN)),
    ],
)
def test_one_that_is_refused_otherwise_is_a_warning(gpu: GpuAnswer) -> None:
    """Another return code, or Unknown Error to each question with a handle: no source says what that calls for."""
    assert codes(run(healthy_gpu(0), gpu)) == ["gpu.refused"]


def test_a_gpu_that_this_process_may_not_open_is_a_gap() -> None:
    """A device cgroup keeps it away: that is no fault of the GPU, and not seen either."""
    result = run(healthy_gpu(0), failed_gpu(1, NvmlFailure(code=4, name="NO_PERMISSION"), named=True))
    assert (result.status, result.findings, len(result.undecided)) == (Status.UNKNOWN, (), 1)


def test_all_failing_is_unknown() -> None:
    """If no GPU answers it is NVML that fails, and unknown."""
    result = run(failed_gpu(0, UNKNOWN), failed_gpu(1, UNKNOWN))
    assert (result.status, len(result.undecided)) == (Status.UNKNOWN, 2)


@pytest.mark.parametrize("failure", [GPU_IS_LOST, RESET_REQUIRED])
def test_lost_and_reset_required_belong_to_another_check(failure: NvmlFailure) -> None:
    """gpu.recovery finds these: here they are no gap, and whatever was open there stays."""
    result = run(healthy_gpu(0), failed_gpu(1, failure, named=True))
    assert (result.status, result.findings, result.undecided) == (Status.OK, (), ())
    assert [(part.id, code) for part, code in result.not_reported] == [(gpu_uuid(1), "")]


@pytest.mark.parametrize("error", [SourceUnreadable("NVML: nvmlInit answered UNKNOWN (999)"), SourceTimeout("5 s")])
def test_other_silence_is_unknown(error: SourceError) -> None:
    """Whatever else NVML as a whole answers is an error of the source."""
    with pytest.raises(type(error)):
        run(error=error)


def test_different_vbios() -> None:
    """Two firmwares on one model are one finding that names who has which."""
    result = run(healthy_gpu(0), healthy_gpu(1), gpu_with(2, {VBIOS: "96.00.99.00.01"}))
    assert codes(result) == ["gpu.mixed.vbios"]
    assert result.findings[0].evidence["gpus"]["96.00.99.00.01"] == [f"gpu:{gpu_uuid(2)}"]


def test_different_models() -> None:
    """Two models are one finding, and their firmwares may differ then."""
    other = gpu_with(1, {MODEL: "NVIDIA H200", VBIOS: "96.00.99.00.01"})
    assert codes(run(healthy_gpu(0), other)) == ["gpu.mixed.model"]


def test_a_sibling_that_does_not_say_is_no_odd_one() -> None:
    """A GPU that cannot tell its model or firmware is unknown, and not different."""
    result = run(healthy_gpu(0), gpu_with(1, {MODEL: UNKNOWN, VBIOS: NOT_SUPPORTED}))
    assert (result.status, result.findings) == (Status.UNKNOWN, ())


def test_everything_at_once() -> None:
    """One GPU's trouble hides no other's."""
    result = run(healthy_gpu(0), gpu_with(1, {VBIOS: "x"}), failed_gpu(2, UNKNOWN))
    assert set(codes(result)) == {"gpu.failing", "gpu.mixed.vbios"}
