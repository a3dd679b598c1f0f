"""gpu.peermem: three ways into GPU memory, and none. The trees are constructed from the sources cited there."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.gpu_peermem import GpuPeermemSettings, gpu_peermem
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.testing import Entry, FakeNode, fake_pci, pci_tree

RDMA = "class/infiniband/rdmap79s0/device"
PEERMEM: dict[str, Entry] = {"module/nvidia_peermem/initstate": "live"}
EFA: dict[str, Entry] = {f"{RDMA}/p2p": "NVIDIA"}
MELLANOX: dict[str, Entry] = {f"{RDMA}/vendor": "0x15b3"}
OPEN, CLOSED = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module",
)


def run(
    *sys: dict[str, Entry], driver: str = CLOSED, kernel: str = "6.8.0-1015-aws", gpus: int = 1, **settings: Any
) -> Result:
    tree = pci_tree(gpus=[fake_pci(index) for index in range(gpus)])
    for part in sys:
        tree |= part
    proc = {"driver/nvidia/version": driver, "sys/kernel/osrelease": kernel}
    return gpu_peermem(FakeNode(sys=tree, proc=proc), GpuPeermemSettings(**settings))


def the_code(result: Result) -> str:
    (finding,) = result.findings
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.ASK_HUMAN)
    return finding.code


@pytest.mark.parametrize(
    ("result", "way"),
    [
        (run(MELLANOX, PEERMEM), "nvidia_peermem"),
        (run(EFA), "EFA's own provider"),
        (run({f"{RDMA}/p2p": "NVIDIA peermem"}), "EFA's own provider"),
        (run(MELLANOX, driver=OPEN), "dma-buf"),
        (run(MELLANOX, driver=OPEN, kernel="5.12.0"), "dma-buf"),
    ],
)
def test_each_way_is_enough(result: Result, way: str) -> None:
    """Any one of the three is ok, and says which."""
    assert (result.status, result.reason) == (Status.OK, f"by {way}")


def test_beside_efa_devices_no_other_is_asked() -> None:
    """The management ports of an NVLink switch board have no way into GPU memory, and need none."""
    bridge: dict[str, Entry] = {"class/infiniband/mlx5_0/device/vendor": "0x15b3"}
    assert run(EFA, {f"{RDMA}/vendor": "0x1d0f"}, bridge).status is Status.OK
    assert the_code(run({f"{RDMA}/p2p": "", f"{RDMA}/vendor": "0x1d0f"}, bridge)) == "gpu.peermem.no_route"


@pytest.mark.parametrize(
    "result",
    [
        run(MELLANOX),
        run(MELLANOX, driver=OPEN, kernel="5.10.230-223.885.amzn2.x86_64"),
        run({f"{RDMA}/p2p": ""}),
        run({f"{RDMA}/p2p": "NEURON"}),
        run(EFA, {"class/infiniband/mlx5_0/device/vendor": "0x15b3"}),
    ],
)
def test_no_way(result: Result) -> None:
    """A closed driver, an old kernel, or one adapter of several without a way, is a warning."""
    assert the_code(result) == "gpu.peermem.no_route"


def test_a_site_may_need_the_module_itself() -> None:
    """Where software knows no other way, the module is asked for even if there are others."""
    assert the_code(run(EFA, driver=OPEN, module_required=True)) == "gpu.peermem.not_loaded"
    assert run(EFA, PEERMEM, module_required=True).status is Status.OK


def test_nothing_to_reach() -> None:
    """Without an adapter, or without a GPU, the question does not arise."""
    assert run().status is Status.NOT_APPLICABLE
    assert run(EFA, gpus=0).status is Status.NOT_APPLICABLE


def test_a_hidden_sys_is_unknown() -> None:
    """No /sys is no missing adapter, and one that fails is no missing way."""
    with pytest.raises(SourceMissing):
        gpu_peermem(FakeNode(sys={}), GpuPeermemSettings())
    with pytest.raises(SourceUnreadable):
        run(EFA, {f"{RDMA}/p2p": SourceUnreadable("EIO")})
