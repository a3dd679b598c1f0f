"""gpu.driver: no driver is a fault where the kernel shows that there is none, and unknown where only NVML says so."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from healthd.checks.gpu_driver import gpu_driver
from healthd.checks.gpu_ecc import gpu_ecc
from healthd.checks.gpu_gdrcopy import GpuGdrcopySettings as GdrCopySettings
from healthd.checks.gpu_gdrcopy import gpu_gdrcopy
from healthd.checks.gpu_peermem import GpuPeermemSettings as PeermemSettings
from healthd.checks.gpu_peermem import gpu_peermem
from healthd.core.check import NoSettings
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Result, Severity, Status
from healthd.testing import Entry, FakeLink, FakeNode, FakeNvml, FakeTree, codes, fake_pci, healthy_gpu, pci_tree

NOT_LOADED = SourceUnreadable("NVML: nvmlInit answered DRIVER_NOT_LOADED (9): the module is not loaded")
MISMATCH = SourceUnreadable("NVML: nvmlInit answered LIB_RM_VERSION_MISMATCH (18): library and loaded driver differ")
NO_LIBRARY = SourceMissing("NVML: libnvidia-ml.so.1 is not there")
HOST: dict[str, Entry] = {
    "self/ns/pid": FakeLink("pid:[4026531836]"),
    "self/ns/ipc": FakeLink("ipc:[4026531839]"),
    "self/ns/cgroup": FakeLink("cgroup:[4026531835]"),
}
NOWHERE: dict[str, Entry] = {}


def node(
    error: SourceError | None, *, driver: str | None = "nvidia", gpus: int = 2, proc: Mapping[str, Entry] = NOWHERE
) -> FakeNode:
    """GPUs that are bound to this driver, or to none."""
    sys = pci_tree(gpus=[fake_pci(index) for index in range(gpus)])
    for path in [path for path in sys if path.endswith("/driver")]:
        del sys[path]
        if driver:
            sys[path] = FakeLink(f"../../bus/pci/drivers/{driver}")
    nvml = FakeNvml(*map(healthy_gpu, range(gpus)), error=error)
    return FakeNode(sys=sys, proc=proc, nvml=nvml, instance_type="p5.48xlarge")


def run(machine: FakeNode) -> Result:
    return gpu_driver(machine, NoSettings())


def test_a_driver_that_answers_is_ok() -> None:
    """NVML answers: nothing else is asked, not even whether the GPUs are bound."""
    assert run(node(None, driver=None)).status is Status.OK


@pytest.mark.parametrize("driver", [None, "nouveau"])
@pytest.mark.parametrize("error", [NOT_LOADED, NO_LIBRARY])
def test_unbound_gpus_are_evidence_everywhere(driver: str | None, error: SourceError) -> None:
    """GPUs that no driver of NVIDIA's has are critical, in a container as well; until it lasts it is unknown."""
    result = run(node(error, driver=driver))
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.lasting_s) == ("gpu.driver.absent", Severity.CRITICAL, 300.0)
    assert "none of the 2 NVIDIA GPUs" in finding.message
    assert not result.is_whole


@pytest.mark.parametrize(("error", "code"), [(NOT_LOADED, "gpu.driver.absent"), (MISMATCH, "gpu.driver.mismatch")])
def test_nvml_is_believed_on_a_host(error: SourceError, code: str) -> None:
    """Its word about the driver counts where this process is in no container, though the GPUs are bound."""
    result = run(node(error, proc=HOST))
    assert codes(result) == [code]
    assert not result.is_whole


@pytest.mark.parametrize("kind", ["pid", "ipc", "cgroup"])
@pytest.mark.parametrize("other", [FakeLink("x:[4026532201]"), SourceUnreadable("EACCES")])
@pytest.mark.parametrize("error", [NOT_LOADED, MISMATCH])
def test_nvml_alone_is_unknown_in_a_container(error: SourceError, kind: str, other: Entry) -> None:
    """One namespace of its own, or one that cannot be read, is enough for a container that sees an old library."""
    with pytest.raises(SourceUnreadable):
        run(node(error, proc={**HOST, f"self/ns/{kind}": other}))


@pytest.mark.parametrize("error", [SourceTimeout("no answer in 5 s"), SourceUnreadable("NVML: UNKNOWN (999)")])
def test_other_silence_is_unknown(error: SourceError) -> None:
    """A library that hangs or answers something else says nothing about the driver, whatever the bus shows."""
    with pytest.raises(type(error)):
        run(node(error, driver=None, proc=HOST))


def test_a_gpu_that_another_driver_has_is_unknown() -> None:
    """GPUs handed to virtual machines are somebody's purpose."""
    assert run(node(NO_LIBRARY, driver="vfio-pci", proc=HOST)).status is Status.UNKNOWN


def test_a_node_without_gpus_has_no_driver_to_miss() -> None:
    """No GPU on the bus: not applicable where none is expected; a bus that cannot be read is no evidence."""
    machine = node(NO_LIBRARY, gpus=0)
    machine.instance_type = None
    assert run(machine).status is Status.NOT_APPLICABLE
    with pytest.raises(SourceUnreadable, match="DRIVER_NOT_LOADED"):
        run(FakeNode(sys={"": SourceUnreadable("EIO")}, nvml=FakeNvml(error=NOT_LOADED)))


@pytest.mark.parametrize("error", [NOT_LOADED, NO_LIBRARY])
def test_other_checks_leave_it_to_this_one(error: SourceError) -> None:
    """What is told once as a fault is no unknown of every other GPU check; what is not certain still is."""
    assert gpu_ecc(node(error, driver=None), NoSettings()).status is Status.NOT_APPLICABLE
    assert gpu_ecc(node(NO_LIBRARY), NoSettings()).status is Status.UNKNOWN


def test_what_the_driver_carries_does_not_apply_without_it() -> None:
    """GDRCopy and GPUDirect RDMA cannot be there without the driver: no warning of their own beside it."""
    machine = node(NOT_LOADED, driver=None)
    machine.sys = FakeTree({**machine.sys.entries, "class/infiniband/rdmap79s0/node_type": ""})
    for check, settings in ((gpu_gdrcopy, GdrCopySettings()), (gpu_peermem, PeermemSettings())):
        assert check(machine, settings).status is Status.NOT_APPLICABLE
