"""gpu.inforom: only NVML's own return code for it is a finding. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

from healthd.checklib.nvml_codes import NvmlReturn
from healthd.checks.gpu_inforom import CORRUPTED, gpu_inforom
from healthd.core.check import NoSettings
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.testing import (
    GPU_IS_LOST,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    failed_gpu,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
    refusal,
)

CALL = "nvmlDeviceValidateInforom"
WRONG = refusal(NvmlReturn.CORRUPTED_INFOROM)


def run(*gpus: GpuAnswer) -> Result:
    pci = pci_tree(gpus=[fake_pci(index) for index in range(len(gpus))])
    return gpu_inforom(FakeNode(sys=pci, nvml=FakeNvml(*gpus)), NoSettings())


def test_a_valid_inforom_is_ok() -> None:
    """NVML answers nothing but success."""
    assert run(healthy_gpu(0), healthy_gpu(1)).status is Status.OK


def test_a_corrupted_one_is_a_finding_of_that_gpu() -> None:
    """A warning that asks the operator, and no gap besides."""
    result = run(healthy_gpu(0), gpu_with(1, {CALL: WRONG}))
    (finding,) = result.findings
    assert (finding.code, finding.component.id) == (CORRUPTED.code, gpu_uuid(1))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.ASK_HUMAN)
    assert result.undecided == ()


def test_one_that_cannot_be_validated_is_unknown() -> None:
    """Another refusal says nothing about it; a GPU without an InfoROM has none to validate."""
    assert run(gpu_with(0, {CALL: UNKNOWN})).status is Status.UNKNOWN
    assert run(gpu_with(0, {CALL: NOT_SUPPORTED})).status is Status.OK


def test_a_gpu_that_does_not_answer_hides_no_other() -> None:
    """What a sibling shows is found all the same, and the silent one is a gap."""
    result = run(failed_gpu(0, UNKNOWN), gpu_with(1, {CALL: WRONG}))
    assert ([finding.component.id for finding in result.findings], len(result.undecided)) == ([gpu_uuid(1)], 1)


def test_a_lost_gpu_is_left_to_another_check() -> None:
    """gpu.recovery reports it: what was open here stays open, and nothing is unknown."""
    result = run(healthy_gpu(0), failed_gpu(1, GPU_IS_LOST, named=True))
    assert (result.status, result.findings, result.undecided) == (Status.OK, (), ())
    assert [part.id for part, _ in result.not_reported] == [gpu_uuid(1)]
