"""The check ``host.cpu``: whether all processors of the node are present and online."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.host_text import cpu_list, pressure
from healthd.core.check import FindingCode, check, judged
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.model import NODE, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Count

_CPU = "devices/system/cpu"
_SMT_IS_OFF = frozenset({"off", "forceoff"})

OFFLINE = FindingCode(
    code="host.cpu.offline",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Processors of this node are offline",
)
COUNT = FindingCode(
    code="host.cpu.count",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The number of processors is not the configured one",
)
SOCKETS = FindingCode(
    code="host.cpu.sockets",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The number of processor sockets is not the configured one",
)
GOVERNOR = FindingCode(
    code="host.cpu.governor",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Processors are not under the configured frequency governor",
)


class HostCpuSettings(Struct, frozen=True, kw_only=True):
    """The processors that ``host.cpu`` expects."""

    count: Count = 0
    """How many processors (vCPUs) must be online. 0: all that the machine shows; the launch of an instance can switch
    some off (CPU options), so the number does not follow from the type."""

    offline: tuple[Count, ...] = ()
    """Processors that are offline on purpose, by number."""

    sockets: Count = 0
    """How many processor sockets there must be. 0: any number."""

    governor: str = ""
    """The frequency governor that every processor must have, such as ``performance``. Empty: any. Most EC2 instances
    have no governor: there the outcome is unknown."""


@check("host.cpu", interval_s=300, settings=HostCpuSettings, codes=(OFFLINE, COUNT, SOCKETS, GOVERNOR))
def host_cpu(node: Node, settings: HostCpuSettings) -> Result:
    """Every processor that the machine has is running.

    An operator, or the kernel after a hardware error, switched off a processor that is present and not online. Where
    simultaneous multithreading is off, its siblings are offline by that choice and do not count. The share of time in
    which a task waited for a processor is a reading.

    Sources: Linux, Documentation/admin-guide/cputopology.rst (present, online, sockets) and pm/cpufreq.rst (governor),
    Documentation/ABI/testing/sysfs-devices-system-cpu (smt/control), Documentation/accounting/psi.rst; EC2 user guide,
    "CPU options".
    """
    present, online = cpu_list(node.sys.read(f"{_CPU}/present")), cpu_list(node.sys.read(f"{_CPU}/online"))
    if not online:
        raise SourceUnreadable(f"/sys/{_CPU}/online lists no processor; expected at least the one that runs healthd")
    off = sorted(present - online - frozenset(settings.offline) - _siblings_off(node, present, online))
    findings = [*_findings(off, len(online), settings), *_sockets(node, online, settings), *_governor(node, settings)]
    readings = [Reading(component=NODE, name="cpus_online_count", value=len(online)), *_pressure(node)]
    return judged(findings, readings)


def _siblings_off(node: Node, present: frozenset[int], online: frozenset[int]) -> frozenset[int]:
    """The offline siblings where multithreading is off: at most every second processor."""
    try:
        off = node.sys.read(f"{_CPU}/smt/control") in _SMT_IS_OFF
    except SourceMissing:
        off = False
    return present - online if off and 2 * len(online) >= len(present) else frozenset()


def _findings(off: list[int], online: int, settings: HostCpuSettings) -> Iterator[Finding]:
    if off:
        message = f"{len(off)} processors are offline: {', '.join(map(str, off[:16]))}"
        yield OFFLINE.at(NODE, message, offline=off[:16], count=len(off))
    if settings.count and online != settings.count:
        yield COUNT.at(NODE, f"{online} processors are online; expected {settings.count}", online=online)


def _sockets(node: Node, online: frozenset[int], settings: HostCpuSettings) -> Iterator[Finding]:
    if not settings.sockets:
        return
    found = {node.sys.read(f"{_CPU}/cpu{cpu}/topology/physical_package_id") for cpu in online}
    if len(found) != settings.sockets:
        yield SOCKETS.at(NODE, f"{len(found)} processor sockets; expected {settings.sockets}", sockets=len(found))


def _governor(node: Node, settings: HostCpuSettings) -> Iterator[Finding]:
    if not settings.governor:
        return
    policies = [name for name in node.sys.names(f"{_CPU}/cpufreq") if name.startswith("policy")]
    if not policies:
        raise SourceUnreadable(f"/sys/{_CPU}/cpufreq has no policy: this machine shows no governor")
    found = {name: node.sys.read(f"{_CPU}/cpufreq/{name}/scaling_governor") for name in policies}
    if others := [name for name in policies if found[name] != settings.governor]:
        governors = ", ".join(sorted({found[name] for name in others}))
        message = (
            f"{len(others)} of {len(found)} processors have the governor {governors}; expected {settings.governor}"
        )
        yield GOVERNOR.at(NODE, message, policies=others[:16], governor=governors)


def _pressure(node: Node) -> Iterator[Reading]:
    try:
        shares = pressure(node.proc.read("pressure/cpu"))
    except SourceMissing:
        return  # a kernel without pressure stall information
    yield Reading(component=NODE, name="cpu_pressure_some_ratio", value=shares.get("some", 0.0))
