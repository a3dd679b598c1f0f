"""nvml.probe: slow is unknown, silent for long is a fault, paused is neither."""

from __future__ import annotations

import pytest

from healthd.checks.nvml_probe import NvmlProbeSettings, nvml_probe
from healthd.core.errors import SourceBusy, SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import ProbeState
from healthd.testing import FakeNode, FakeNvml, failed_gpu, fake_pci, healthy_gpu, pci_tree

TIMEOUT, BUSY = SourceTimeout("NVML: no answer in 5 s"), SourceBusy("NVML: an earlier question is still out")


def run(error: SourceError, **state: float | str) -> Result:
    nvml = FakeNvml(error=error, probe=ProbeState(**state))  # type: ignore[arg-type]  # names are checked at run time
    return nvml_probe(FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=nvml), NvmlProbeSettings())


def test_it_answers() -> None:
    """One light question, answered, is ok."""
    nvml = FakeNvml(healthy_gpu(0))
    assert nvml_probe(FakeNode(nvml=nvml), NvmlProbeSettings()).status is Status.OK
    assert len(nvml.asked) == 1


def test_a_lost_gpu_is_no_silence() -> None:
    """A library that answers for a lost GPU answers."""
    assert nvml_probe(FakeNode(nvml=FakeNvml(failed_gpu(0, named=True))), NvmlProbeSettings()).status is Status.OK


@pytest.mark.parametrize("error", [TIMEOUT, BUSY])
@pytest.mark.parametrize("stalled_s", [0.0, 5.0, 19.9])
def test_a_short_silence_is_unknown(error: SourceError, stalled_s: float) -> None:
    """Before the limit the source's own error passes through, and the runner makes unknown of it."""
    with pytest.raises(type(error)):
        run(error, stalled_s=stalled_s)


@pytest.mark.parametrize("error", [TIMEOUT, BUSY])
def test_a_long_silence_is_a_fault(error: SourceError) -> None:
    """From the limit on it is critical, on the driver, explained by GSP time-outs and the bus drop."""
    (finding,) = run(error, stalled_s=20.0, abandoned=1).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "nvml.unresponsive",
        Severity.CRITICAL,
        Remedy.REBOOT_NODE,
    )
    assert str(finding.component) == "driver:nvidia"
    assert set(finding.symptom_of) == {"gpu.xid.119", "gpu.xid.120", "gpu.xid.79"}
    assert finding.evidence["abandoned_workers"] == 1


def test_paused_is_unknown_however_long_the_silence() -> None:
    """While healthd itself keeps NVML paused, silence means nothing."""
    with pytest.raises(SourceBusy):
        run(BUSY, stalled_s=600.0, paused_s=120.0, reason="XID 119 on gpu:0000:53:00")


def test_an_error_is_unknown() -> None:
    """A library that answers with an error, such as a version mismatch, is unknown and not unresponsive."""
    with pytest.raises(SourceUnreadable):
        run(SourceUnreadable("NVML: nvmlInit answered LIB_RM_VERSION_MISMATCH (18)"), stalled_s=600.0)


def test_no_library() -> None:
    """No library is unknown on a node with GPUs, not applicable on one without."""
    missing = SourceMissing("NVML: libnvidia-ml.so.1 is not there")
    assert run(missing).status is Status.UNKNOWN
    assert nvml_probe(FakeNode(sys=pci_tree()), NvmlProbeSettings()).status is Status.NOT_APPLICABLE
