"""Whether the GPU driver as a whole is missing, or does not fit its library, where the kernel itself proves it.

Pure over the Node protocol, like a check. NVML's answer alone is no evidence: in a container the library may be the
stale one, or the device files may be missing, while the node serves every other container.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

from healthd.checklib.nvml_codes import NvmlReturn
from healthd.checklib.pci import pci_driver, pci_gpus
from healthd.core.errors import SourceError, SourceMissing
from healthd.core.node import Node

_NO_DRIVER = frozenset({"", "nouveau"})
_OF_THE_HOST = {"pid": "pid:[4026531836]", "ipc": "ipc:[4026531839]", "cgroup": "cgroup:[4026531835]"}
"""The namespaces that the kernel boots with have fixed numbers (Linux, include/uapi/linux/nsfs.h and proc_ns.h). A
container has its own of at least one of these three; a service of systemd keeps them."""


class DriverFault(StrEnum):
    """A fault of the driver as a whole."""

    ABSENT = "absent"
    MISMATCH = "mismatch"


class DriverTrouble(Struct, frozen=True, kw_only=True):
    """A fault of the driver as a whole, with its evidence as a sentence."""

    fault: DriverFault
    message: str


def driver_trouble(node: Node, error: SourceError) -> DriverTrouble | None:
    """The certain fault of the driver, given the error that NVML's source raised.

    None where nothing is certain: no GPU on the PCI bus, another error, or evidence that cannot be read.
    """
    try:
        return _certain(node, error)
    except SourceError:  # unreadable evidence is none, and the caller still has the first error
        return None


def told_by_gpu_driver(node: Node, error: SourceError) -> str:
    """The text on a fault that the check ``gpu.driver`` reports for all GPU checks; "" where there is none."""
    trouble = driver_trouble(node, error)
    return f"{trouble.message}: gpu.driver reports it" if trouble else ""


def has_no_driver(node: Node) -> bool:
    """Whether there are GPUs on the PCI bus and NVIDIA's driver has none of them. Raises SourceError."""
    return _without_driver(node, pci_gpus(node))


def has_pids_of_host(node: Node) -> bool:
    """Whether this process sees the process ids of the host. False where the kernel does not show it. Raises
    SourceError."""
    try:
        return node.proc.target("self/ns/pid") == _OF_THE_HOST["pid"]
    except SourceMissing:
        return False


def _without_driver(node: Node, gpus: Collection[str]) -> bool:
    drivers = {pci_driver(node, f"{address}.0") for address in gpus}
    return bool(drivers) and drivers <= _NO_DRIVER


def _certain(node: Node, error: SourceError) -> DriverTrouble | None:
    not_loaded = NvmlReturn.DRIVER_NOT_LOADED.name in str(error)
    mismatch = NvmlReturn.LIB_RM_VERSION_MISMATCH.name in str(error)
    may_be_absent = not_loaded or isinstance(error, SourceMissing)
    gpus = pci_gpus(node) if may_be_absent or mismatch else ()
    if may_be_absent and _without_driver(node, gpus):
        message = f"the NVIDIA driver has none of the {len(gpus)} NVIDIA GPUs on the PCI bus"
        return DriverTrouble(fault=DriverFault.ABSENT, message=message)
    if not (not_loaded or mismatch) or not gpus or not _on_host(node):
        return None
    if mismatch:
        return DriverTrouble(fault=DriverFault.MISMATCH, message="library and loaded driver differ, on the host")
    return DriverTrouble(fault=DriverFault.ABSENT, message="NVML answers DRIVER_NOT_LOADED (9) on the host")


def _on_host(node: Node) -> bool:
    """Whether this process is outside every container. Raises SourceError where the kernel does not show it."""
    return all(node.proc.target(f"self/ns/{kind}") == first for kind, first in _OF_THE_HOST.items())
