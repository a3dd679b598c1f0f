"""The check ``gpu.driver``: whether the NVIDIA driver is loaded and matches its library."""

from __future__ import annotations

from healthd.checklib.gpu_driver import DriverFault, driver_trouble
from healthd.checklib.gpus import without_answers
from healthd.core.check import FindingCode, check, judged, ok
from healthd.core.errors import SourceError, SourceMissing
from healthd.core.model import Component, Remedy, Result, Severity
from healthd.core.node import Node

_DRIVER = Component(kind="driver", id="nvidia")
ABSENT = FindingCode(
    code="gpu.driver.absent",
    severity=Severity.CRITICAL,
    remedy=Remedy.ASK_HUMAN,
    meaning="GPUs are on the PCI bus, but no NVIDIA driver is bound to them",
    lasting_s=300.0,
)
MISMATCH = FindingCode(
    code="gpu.driver.mismatch",
    severity=Severity.CRITICAL,
    remedy=Remedy.ASK_HUMAN,
    meaning="The driver's library and its kernel module have different versions",
    lasting_s=300.0,
)
_CODES = {DriverFault.ABSENT: ABSENT, DriverFault.MISMATCH: MISMATCH}
_NEXT = {
    DriverFault.ABSENT: "load the nvidia module; see the kernel log (NVRM), and dkms status after a kernel upgrade",
    DriverFault.MISMATCH: "an upgrade is half done; reload the driver or reboot",
}


@check("gpu.driver", interval_s=60, codes=(ABSENT, MISMATCH))
def gpu_driver(node: Node, _settings: object) -> Result:
    """The NVIDIA driver is loaded, is bound to the GPUs, and matches its library.

    No program can use a GPU while this is open, so it keeps jobs off. It takes positive evidence: NVIDIA GPUs on the
    PCI bus without a driver, or NVML's return codes 9 and 18 outside of any container. Inside one the GPUs may be bound
    and the node healthy: there it is unknown. An upgrade exchanges a driver within minutes, so it must last five, and
    is unknown meanwhile. While it is open, the other GPU checks do not apply: they would report the same fault.

    Sources: nvml.h (return codes 9 and 18); Linux sysfs (the link ``driver`` of a PCI device) and proc_ns.h.
    """
    try:
        node.nvml.system()
    except SourceError as error:
        trouble = driver_trouble(node, error)
        if trouble is not None:
            message = f"{trouble.message}; {_NEXT[trouble.fault]}"
            return judged([_CODES[trouble.fault].at(_DRIVER, message, nvml=str(error))], undecided=[str(error)])
        if isinstance(error, SourceMissing):
            return without_answers(node, str(error))
        raise
    return ok()
