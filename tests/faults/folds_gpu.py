"""One fault of a GPU that several checks see at once: one diagnosis, with the others as its symptoms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.faults.case import Case, Made
from tests.faults.cases_gpu import BLIND, EVERY_GPU, hangs
from tests.faults.cases_gpu_memory import unlisted
from tests.faults.cases_host import processes
from tests.faults.cases_kernel import xid
from tests.faults.cases_nvlink import GB200
from tests.faults.rig import Rig
from tests.faults.together import example, failed, fold, lines, says, together

_PAUSE_S = 360.0
_BUS_DROP = "NVRM: Xid (PCI:{}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_ROWS = "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate."
_DOUBLE_BIT = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer"
_LINK = "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"


def after_the_pause(line: str, then: Callable[[Rig], Any]) -> Callable[[Rig], Iterator[float]]:
    """A line after which NVML is left alone for five minutes; then it is asked, and this is so."""

    def arrange(rig: Rig) -> Iterator[float]:
        rig.says(line)
        yield _PAUSE_S
        then(rig)

    return arrange


def hang_with_signs(rig: Rig) -> Iterator[float]:
    """The library hangs, and whoever asks it hangs too."""
    processes("nvidia-smi D nvidia")(rig)
    yield from hangs(rig)
    rig.says(example("kernel.hung_task"))
    for _ in range(5):
        yield 60.0


def after_gsp(rig: Rig) -> Iterator[float]:
    """XID 119; five minutes later the library still hangs."""
    rig.says(xid(119, "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 76"))
    yield _PAUSE_S
    yield from hangs(rig)


def lonely(rig: Rig) -> None:
    """All links of GPU 2 are down: it reaches nobody, and nobody reaches it."""
    rig.says(xid(74, _LINK))
    rig.gpu(2, nvmlDeviceGetNvLinkState="0", nvmlDeviceGetP2PStatus="5")
    for gpu in EVERY_GPU:
        rig.gpu(gpu, **{"nvmlDeviceGetP2PStatus(2,2)": "0" if gpu == 2 else "5"})


def apart(rig: Rig) -> None:
    """GPUs 2 and 5 do not reach each other."""
    rig.state("gpu2.nvmlDeviceGetP2PStatus(5,2) = 5", "gpu5.nvmlDeviceGetP2PStatus(2,2) = 5")


def hot(rig: Rig) -> Iterator[float]:
    """GPU 2 is at its threshold, and its hardware slows it down."""
    for minute in range(11):
        rig.gpu(
            2,
            nvmlDeviceGetTemperature="91",
            nvmlDeviceGetCurrentClocksEventReasons="0x48",
            **{"field.270": f"ull:{50 * minute * 10**9}"},
        )
        yield 60.0


_NO_FABRIC = tuple(f"gpu{gpu}.nvmlDeviceGetGpuFabricInfoV = 0 0 1 0 1" for gpu in EVERY_GPU)
_NOT_PERSISTENT = tuple(f"gpu{gpu}.nvmlDeviceGetPersistenceMode = 0" for gpu in EVERY_GPU)

GPUS = (
    fold(
        "gpu.recovery",
        "XID 79, then lost",
        after_the_pause(_BUS_DROP.format("0000:75:00"), lines("gpu2.fault = lost")),
        "gpu.xid.79@gpu:2 critical reboot_node",
        "gpu.lost@gpu:2",
    ),
    fold(
        "gpu.count",
        "XID 79, then the driver does not list it",
        after_the_pause(_BUS_DROP.format("0000:ca:00"), unlisted),
        "gpu.xid.79@gpu:7 critical reboot_node",
        "gpu.count.driver_lost@gpu:7",
        lasts_s=60.0,
    ),
    fold(
        "gpu.count",
        "XID 79, then off the bus",
        after_the_pause(
            _BUS_DROP.format("0000:ca:00"),
            together(unlisted, lambda rig: rig.take("sys/bus/pci/devices/0000:ca:00.0")),
        ),
        "gpu.xid.79@gpu:7 critical reboot_node",
        "gpu.count.off_bus@node",
    ),
    fold(
        "gpu.ecc",
        "XID 63, its counters and its pending remap",
        together(
            says(xid(63, _ROWS)),
            lines(
                "gpu2.nvmlDeviceGetTotalEccErrors(1,0) = 1",
                "gpu2.nvmlDeviceGetTotalEccErrors(1,1) = 1",
                "gpu2.nvmlDeviceGetRemappedRows = 0 1 1 0",
            ),
        ),
        "gpu.xid.63@gpu:2 warning reset_gpu",
        "gpu.remap.pending@gpu:2",
        "gpu.ecc.uncorrected@gpu:2",
        "gpu.ecc.recorded@gpu:2",
    ),
    fold(
        "gpu.remap",
        "XID 48 and 64, and the remapper's failure",
        together(
            says(xid(48, _DOUBLE_BIT), xid(64, "Row Remapper Error: (0x00000002eebc4100) - All reserved rows")),
            lines("gpu2.nvmlDeviceGetRemappedRows = 0 8 0 1", "gpu2.nvmlDeviceGetTotalEccErrors(1,0) = 2"),
        ),
        "gpu.remap.failure@gpu:2 critical replace_node",
        "gpu.xid.48@gpu:2",
        "gpu.xid.64@gpu:2",
        "gpu.ecc.uncorrected@gpu:2",
    ),
    fold(
        "gpu.recovery",
        "XID 154 and the field beside it",
        together(
            says("NVRM: Xid (PCI:0000:75:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"),
            lines("gpu2.field.230 = 2"),
        ),
        "gpu.xid.154@gpu:2 critical reboot_node",
        "gpu.recovery.reboot@gpu:2",
    ),
    fold(
        "nvml.probe",
        "XID 119, then no answer",
        after_gsp,
        "gpu.xid.119@gpu:2 critical reset_gpu",
        "nvml.unresponsive@driver:nvidia",
        unknown=BLIND - {"nvml.probe"},
    ),
    fold(
        "nvml.probe",
        "no answer, and tools that wait for it",
        hang_with_signs,
        "nvml.unresponsive@driver:nvidia critical reboot_node",
        "host.processes.nvidia_stuck@process:4711",
        "kernel.hung_task@node",
        unknown=BLIND - {"nvml.probe"},
    ),
    fold(
        "gpu.nvlink",
        "XID 74, all links of a GPU down, and no sibling reaches it",
        lonely,
        "gpu.xid.74@gpu:2 critical reset_gpu",
        "gpu.nvlink.dead@gpu:2",
        "gpu.nvlink.down@gpu:2",
        "gpu.nvlink.no_p2p@gpu:2",
        lasts_s=120.0,
    ),
    fold(
        "gpu.nvlink",
        "two GPUs do not reach each other",
        apart,
        "gpu.nvlink.no_p2p@gpu:2 warning ask_human",
        lasts_s=120.0,
    ),
    fold(
        "gpu.throttle",
        "hot, and slowed down for it",
        hot,
        "gpu.temperature.slowdown@gpu:2 warning watch",
        "gpu.throttle.heat@gpu:2",
        "gpu.throttle.hardware@gpu:2",
    ),
    fold(
        "gpu.fabric",
        "the Fabric Manager has failed",
        together(failed("nvidia-fabricmanager.service"), lines(*_NO_FABRIC)),
        "gpu.fabric.not_ready@node critical ask_human",
        "host.service.failed@service:nvidia-fabricmanager.service",
        lasts_s=300.0,
    ),
    fold(
        "host.services",
        "UltraServer: IMEX has failed, and no job has the node",
        together(failed("nvidia-imex.service"), lambda rig: rig.take("dev/nvidia-caps-imex-channels")),
        "host.service.failed@service:nvidia-imex.service warning ask_human",
        instance_type=GB200,
    ),
    fold(
        "gpu.power",
        "nvidia-persistenced has failed",
        together(failed("nvidia-persistenced.service"), lines(*_NOT_PERSISTENT)),
        "host.service.failed@service:nvidia-persistenced.service warning ask_human",
        "gpu.persistence.off@node",
    ),
    fold(
        "kernel.host",
        "a fatal PCIe error of a GPU, and XID 79",
        says(example("kernel.pcie_fatal"), _BUS_DROP.format("0000:53:00")),
        "gpu.xid.79@gpu:0 critical reboot_node",
        "kernel.pcie_fatal@gpu:0",
        made=Made.LINE,
        unknown=BLIND,
    ),
)

CASES: tuple[Case, ...] = GPUS
