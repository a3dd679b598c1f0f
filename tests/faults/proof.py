"""What of the matrix has been seen to be so, and what only hardware can prove.

Nothing here has run on an NVIDIA GPU, an NVSwitch, an EFA device, a Nitro disk or a Lustre client. What a case takes
from documentation or source code only is *unproven on hardware*: it warns, or the source that makes it certain is
named here. A line of the kernel log that is published as it was seen in the field is proof of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from healthd.checklib.loglines import line_rows
from healthd.checklib.xids import sxid_table, xid_cases, xid_table
from healthd.core.check import discover
from healthd.core.model import REMEDY_RANK, SEVERITY_RANK, Remedy, Severity
from tests.faults.case import Case, Made

_GPU, _SWITCH, _EFA = "an NVIDIA GPU", "an NVSwitch", "an EFA device"
NEEDS: Mapping[str, str] = {
    **{name: _GPU for name in discover() if name.startswith(("gpu.", "nvml.", "nccl.", "gdrcopy."))},
    **{name: _EFA for name in discover() if name.startswith("efa.")},
    **dict.fromkeys(("kernel.lustre", "lustre.client"), "a Lustre client"),
    "gpu.nvswitch": _SWITCH,
    "kernel.xid": _GPU,
    "kernel.sxid": _SWITCH,
    "kernel.efa": _EFA,
    "storage.nvme": "a Nitro disk",
    "ebs.allowances": "an EBS volume",
    "ena.allowances": "an ENA interface",
}
"""What would prove a check; the others look at what Linux shows of itself, on this kernel or any other."""

_REAL = frozenset({Made.LINE, Made.KMSG, Made.FUSE, Made.EXT4, Made.TMPFS, Made.NAMESPACE})
_MEMORY = "NVIDIA, GPU memory error management"
_ACTIONS = "open-gpu-kernel-modules 595.45.04 gpu.c (recovery actions); nvml.h field 230"
_SYSFS = "Linux sysfs lists what the kernel has; amzn-drivers efa_main.c, efa_verbs.c"
CERTAIN: Mapping[str, str] = {
    "gpu.count.off_bus": "Linux sysfs lists the PCI bus; NVIDIA Health Validation: a count mismatch is critical",
    "gpu.count.driver_lost": "EKS node monitoring agent 1.7.0, dcgm_devices.go; NVIDIA Health Validation",
    "gpu.ecc.uncorrected": f"{_MEMORY}: every uncorrectable error calls for a GPU reset",
    "gpu.remap.failure": f"{_MEMORY}: a failed row remap is its criterion for an exchange",
    "gpu.remap.pending": f"{_MEMORY}: a pending remap takes effect with a GPU reset",
    "gpu.repair.pending": "NVIDIA XID catalog, 160: a repair takes effect with a GPU reset; nvml.h",
    "gpu.pages.pending": "NVIDIA, Dynamic Page Retirement: a pending retirement takes effect with a driver reload",
    "gpu.sram.threshold": f"{_MEMORY}: the SRAM threshold is its criterion for an exchange",
    "gpu.driver.absent": "Linux sysfs shows which driver has a device; nvml.h, DRIVER_NOT_LOADED",
    "gpu.driver.mismatch": "nvml.h, LIB_RM_VERSION_MISMATCH: no program that begins now can use a GPU",
    "gpu.lost": "nvml.h, GPU_IS_LOST: fallen off the bus or otherwise inaccessible",
    "gpu.fabric.not_ready": "NVIDIA Fabric Manager user guide: CUDA answers 802; EKS node monitoring agent 1.7.0",
    "gpu.fabric.no_partition": "NVIDIA Fabric Manager user guide: CUDA answers 802 where a GPU has not joined",
    "gpu.fabric.failed": "NVIDIA Fabric Manager user guide: CUDA answers 802; EKS node monitoring agent 1.7.0",
    "gpu.nvlink.dead": "nvml.h, nvmlDeviceGetNvLinkState: without a link no peer is in reach over NVLink",
    "gpu.failing": "gpud 4a8de33a: Unknown Error for a device handle calls for a reboot, so no job can use that GPU",
    "gpu.reset_required": "nvml.h, RESET_REQUIRED: needs a reset before it can be used again",
    "nvml.unresponsive": "open-gpu-kernel-modules (GSP RPC time-out 6 s); DCGM 4.6 DcgmCacheManager.cpp",
    **{
        f"gpu.recovery.{action}": _ACTIONS
        for action in ("reset", "reboot", "drain_p2p", "drain_and_reset", "imex", "bus_reset", "system_reboot")
    },
    **{f"efa.{word}": _SYSFS for word in ("missing", "driver_lost", "driver_absent", "no_verbs")},
    "nvswitch.sxid.31999": "open-gpu-kernel-modules, error_nvswitch.c: the driver itself prints Fatal",
    "lustre.lbug": "lustre-release, obd_sysfs.c: LBUG in health_check; the manual: a reboot is needed",
}
"""Codes that are unproven and yet keep jobs off, or take the node out of service: what makes them certain."""


def unproven(case: Case) -> str:
    """What would have to be seen to prove this case; "" where it is proven, or nothing was to be found."""
    return "" if case.made in _REAL or not case.findings else NEEDS.get(case.check, "")


def acts(case: Case) -> bool:
    """Whether the diagnosis keeps jobs off, or takes the node out of service."""
    _, severity, remedy = case.diagnosis.split(" ")
    critical = SEVERITY_RANK[Severity(severity)] > SEVERITY_RANK[Severity.WARNING]
    return critical or REMEDY_RANK[Remedy(remedy)] >= REMEDY_RANK[Remedy.RESET_GPU]


def sources(code: str) -> Iterator[str]:
    """The published sources that make a code certain: of its row in a table of facts, or as above."""
    if code in CERTAIN:
        yield CERTAIN[code]
    family, _, number = code.rpartition(".")
    if family == "gpu.xid":
        yield from (row.source for row in xid_table().values() if row.xid == int(number))
        yield from (row.source for row in xid_cases().values() if row.xid == int(number))
    if family == "nvswitch.sxid":
        yield from (row.source for row in sxid_table().values() if row.sxid == int(number))
    yield from (row.source for check in ("kernel.efa", "kernel.lustre") for row in line_rows(check) if row.code == code)
