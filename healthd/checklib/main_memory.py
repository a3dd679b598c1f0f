"""A node's main memory: the kernel's counts of its errors, and its expected size.

Pure over the Node protocol; ``host.memory`` judges it.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.host_text import pressure, whole
from healthd.checklib.tables import instance_profile
from healthd.core.errors import SourceMissing
from healthd.core.node import Node

_EDAC = "devices/system/edac/mc"
MIB = 1 << 20
# The kernel shows EC2's memory less its own tables (1.6 %: 64 bytes for each page of 4 KiB), the firmware's
# part, and a crash kernel of up to 1 GiB.
_SHARE, _CRASH_KERNEL_BYTES = 0.95, 1 << 30
SHARE_SOURCE = "AWS ParallelCluster: RealMemory of a Slurm node is 95 % of EC2's MemoryInfo; 1 GiB less (crash kernel)"


def errors_by_controller(node: Node) -> Iterator[tuple[str, tuple[int, int]]]:
    """Corrected and uncorrected errors of each memory controller since boot; none on a machine without EDAC.

    Source: Linux, Documentation/admin-guide/RAS/main.rst. Raises SourceError.
    """
    names = [name for name in node.sys.names(_EDAC) if name.startswith("mc")] if node.sys.exists(_EDAC) else []
    for name in names:
        if node.sys.exists(f"{_EDAC}/{name}/ue_count"):
            corrected, uncorrected = (
                whole(node.sys.read(f"{_EDAC}/{name}/{kind}_count"), f"{name}/{kind}_count") for kind in ("ce", "ue")
            )
            yield name, (corrected, uncorrected)


def stalled(node: Node) -> float | None:
    """The share of the last 5 minutes in which every runnable task waited for memory; None on a kernel without
    pressure stall information. Source: Linux, Documentation/accounting/psi.rst."""
    try:
        return pressure(node.proc.read("pressure/memory")).get("full", 0.0)
    except SourceMissing:
        return None


def published_mib(instance_type: str | None) -> int:
    """EC2's published memory of the type; 0 where that, or the type, is not known."""
    profile = instance_profile(instance_type)
    return profile.memory_mib if profile else 0


def least_bytes(nominal_mib: int) -> int:
    """The least memory that the kernel shows while no module is lost."""
    return int(nominal_mib * MIB * _SHARE) - _CRASH_KERNEL_BYTES
