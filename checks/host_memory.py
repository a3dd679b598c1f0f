"""The check ``host.memory``: errors of the node's main memory, and whether there is enough of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from healthd.checklib import main_memory
from healthd.checklib.host_text import key_numbers
from healthd.core.check import FindingCode, Rate, check, judged
from healthd.core.errors import SourceUnreadable
from healthd.core.model import NODE, Component, Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Count, Ratio

_WARNING, _ASK, _WATCH = Severity.WARNING, Remedy.ASK_HUMAN, Remedy.WATCH

UNCORRECTED = FindingCode(
    code="host.memory.uncorrected", severity=_WARNING, remedy=_ASK, meaning="Memory errors beyond correction"
)
CORRECTED = FindingCode(
    code="host.memory.corrected", severity=_WARNING, remedy=_WATCH, meaning="Many corrected memory errors"
)
OUT_OF_MEMORY = FindingCode(
    code="host.memory.out_of_memory",
    severity=Severity.INFO,
    remedy=Remedy.NONE,
    meaning="The kernel killed a process because memory ran out",
)
PRESSURE = FindingCode(
    code="host.memory.pressure", severity=_WARNING, remedy=_WATCH, meaning="Programs wait for memory", lasting_s=300.0
)
SMALL = FindingCode(code="host.memory.small", severity=_WARNING, remedy=_ASK, meaning="Less memory than configured")
MISSING = FindingCode(
    code="host.memory.missing", severity=_WARNING, remedy=_ASK, meaning="Less memory than the instance type has"
)
SWAP = FindingCode(code="host.memory.swap", severity=_WARNING, remedy=_ASK, meaning="Swap is not as configured")

# A failing module corrects thousands of errors a day, a healthy one a few.
_FEW, _NONE = "healthd's choice", "each is a process that a job lost"
_LIMITS = (
    Rate(reading="memory_corrected_errors_total", max_increase=100, window_s=86_400.0, code=CORRECTED, source=_FEW),
    Rate(reading="oom_kills_total", max_increase=0, window_s=600.0, code=OUT_OF_MEMORY, source=_NONE),
)


class HostMemorySettings(Struct, frozen=True, kw_only=True):
    """How much memory and swap ``host.memory`` expects."""

    min_total_bytes: Count = 0
    """The least main memory that this node must have, in bytes, as MemTotal of /proc/meminfo. Firmware and kernel keep
    1 to 3 % of the nominal size for themselves. 0: what EC2 publishes for the instance type, less 5 % and 1 GiB."""

    max_pressure_ratio: Ratio = 0.2
    """The share of the last 5 minutes in which all runnable tasks waited for memory. A training node never waits; at 20
    % it thrashes."""

    swap: bool | None = None
    """``false``: swap must be off, as kubelet requires. ``true``: swap must be on. Default: either is fine."""


@check(
    "host.memory",
    interval_s=60,
    settings=HostMemorySettings,
    codes=(UNCORRECTED, CORRECTED, OUT_OF_MEMORY, PRESSURE, SMALL, MISSING, SWAP),
    limits=_LIMITS,
)
def host_memory(node: Node, settings: HostMemorySettings) -> Result:
    """Main memory has no errors, and there is enough of it.

    Errors come from EDAC, and from the pages that the kernel gave up (HardwareCorrupted). Most virtual machines have no
    EDAC, because their hypervisor keeps the errors to itself: there only the pages count. Uncorrected errors are a
    warning here, unproven on hardware. A job that ran out of memory is no fault of the node. A memory module that is
    lost shows as less memory than EC2 publishes for the instance type; the GPU memory of an UltraServer may count as
    main memory, so those types are not judged.

    Sources: Linux, Documentation/admin-guide/RAS/main.rst (ce_count, ue_count), Documentation/mm/hwpoison.rst,
    Documentation/accounting/psi.rst, proc_vmstat(5) oom_kill, proc_meminfo(5); EC2 DescribeInstanceTypes, MemoryInfo
    (instance_types.toml); AWS ParallelCluster, SchedulableMemory (95 % of it is what Slurm may count on).
    """
    meminfo, vmstat = key_numbers(node.proc.read("meminfo")), key_numbers(node.proc.read("vmstat"))
    if "MemTotal" not in meminfo:
        raise SourceUnreadable("/proc/meminfo has no MemTotal: is the host's /proc visible here?")
    counts = dict(main_memory.errors_by_controller(node))
    stalled = main_memory.stalled(node)
    nominal_mib = 0 if settings.min_total_bytes else main_memory.published_mib(node.instance_type)
    little = [*_lost(meminfo, nominal_mib), *_little(meminfo, stalled, settings)]
    findings = [*_uncorrected(meminfo, counts), *little]
    return judged(findings, _readings(meminfo, vmstat, counts, stalled, node.boot_id))


def _uncorrected(meminfo: Mapping[str, int], counts: Mapping[str, tuple[int, int]]) -> Iterator[Finding]:
    for name, (_, uncorrected) in counts.items():
        if uncorrected:
            where = Component(kind="memory", id=name)
            yield UNCORRECTED.at(where, f"{name} counts {uncorrected} uncorrected errors since boot", count=uncorrected)
    if poisoned := meminfo.get("HardwareCorrupted", 0):
        message = f"the kernel gave up {poisoned} KiB of memory after hardware errors"
        yield UNCORRECTED.at(NODE, message, hardware_corrupted_kib=poisoned)


def _lost(meminfo: Mapping[str, int], nominal_mib: int) -> Iterator[Finding]:
    """Less than the type has; ``nominal_mib`` 0: not judged."""
    total, least = meminfo["MemTotal"] * 1024, main_memory.least_bytes(nominal_mib)
    if nominal_mib and total < least:
        mib, source = total // main_memory.MIB, main_memory.SHARE_SOURCE
        message = f"{mib} MiB of memory; EC2 publishes {nominal_mib} MiB for this type. A memory module may be lost"
        yield MISSING.at(NODE, message, total_bytes=total, limit_bytes=least, limit_source=source)


def _little(meminfo: Mapping[str, int], stalled: float | None, settings: HostMemorySettings) -> Iterator[Finding]:
    total = meminfo["MemTotal"] * 1024
    if total < settings.min_total_bytes:
        message = f"{total} bytes of memory; expected at least {settings.min_total_bytes}"
        yield SMALL.at(NODE, message, total_bytes=total, limit_bytes=settings.min_total_bytes)
    if settings.swap is not None and bool(swap := meminfo.get("SwapTotal", 0)) is not settings.swap:
        yield SWAP.at(NODE, f"{swap} KiB of swap; expected {'some' if settings.swap else 'none'}", swap_kib=swap)
    if stalled is not None and stalled > settings.max_pressure_ratio:
        message = f"all runnable tasks waited for memory during {stalled:.0%} of the last 5 minutes"
        yield PRESSURE.at(NODE, message, stalled_ratio=stalled, limit_ratio=settings.max_pressure_ratio)


def _readings(
    meminfo: Mapping[str, int],
    vmstat: Mapping[str, int],
    counts: Mapping[str, tuple[int, int]],
    stalled: float | None,
    boot_id: str,
) -> Iterator[Reading]:
    for where, name, total in (
        *((Component(kind="memory", id=mc), "memory_corrected_errors_total", count[0]) for mc, count in counts.items()),
        (NODE, "oom_kills_total", vmstat.get("oom_kill")),
    ):
        if total is not None:
            yield Reading(component=where, name=name, value=total, kind=ReadingKind.COUNTER, epoch=boot_id)
    if "MemAvailable" in meminfo:
        yield Reading(component=NODE, name="memory_available_bytes", value=meminfo["MemAvailable"] * 1024)
    if stalled is not None:
        yield Reading(component=NODE, name="memory_pressure_full_ratio", value=stalled)
