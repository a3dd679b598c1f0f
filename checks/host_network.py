"""The check ``host.network``: the node's ordinary network interfaces (ENA), for control and storage."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.host_text import whole
from healthd.core.check import FindingCode, Rate, check, judged, not_applicable
from healthd.core.errors import SourceMissing
from healthd.core.model import NODE, Component, Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Ratio, Word

_NET, _CONNTRACK = "class/net", "sys/net/netfilter/nf_conntrack"
_IFF_UP = 1
_WARNING, _ASK, _WATCH = Severity.WARNING, Remedy.ASK_HUMAN, Remedy.WATCH

LINK_DOWN = FindingCode(code="host.network.link_down", severity=_WARNING, remedy=_ASK, meaning="A link is down")
MISSING = FindingCode(code="host.network.missing", severity=_WARNING, remedy=_ASK, meaning="An interface is missing")
NO_ROUTE = FindingCode(
    code="host.network.no_route",
    severity=_WARNING,
    remedy=_ASK,
    meaning="No default route",
    symptom_of=(LINK_DOWN.code, MISSING.code),
)
ERRORS = FindingCode(code="host.network.errors", severity=_WARNING, remedy=_WATCH, meaning="Lost or broken packets")
CONNTRACK = FindingCode(
    code="host.network.conntrack", severity=_WARNING, remedy=_WATCH, meaning="Connection tracking is nearly full"
)

# /sys/class/net/X/statistics, and what an hour may add.
_PER_HOUR = {"rx_errors": 100, "tx_errors": 100, "rx_dropped": 10_000, "tx_dropped": 10_000}
_SOURCE = "healthd's choice: a healthy ENA interface has next to none"
_LIMITS = tuple(
    Rate(reading=f"network_{name}_total", max_increase=most, window_s=3600.0, code=ERRORS, source=_SOURCE)
    for name, most in _PER_HOUR.items()
)


class HostNetworkSettings(Struct, frozen=True, kw_only=True):
    """The interfaces that ``host.network`` reads, and the routes that it expects."""

    interfaces: tuple[Word, ...] = ()
    """Interfaces that must exist and be up, by name. Empty: those of ``drivers`` that are switched on."""

    drivers: tuple[Word, ...] = ("ena",)
    """The drivers whose interfaces are read. EFA interfaces with an IP address are ENA interfaces too."""

    default_route: bool = True
    """Whether the node must have a default route, of IPv4 or IPv6. Switch it off in an isolated subnet."""

    conntrack_ratio: Ratio = 0.8
    """How full the connection tracking table may be. A full one drops the packets of new connections."""


@check(
    "host.network",
    interval_s=60,
    settings=HostNetworkSettings,
    codes=(LINK_DOWN, MISSING, NO_ROUTE, ERRORS, CONNTRACK),
    limits=_LIMITS,
)
def host_network(node: Node, settings: HostNetworkSettings) -> Result:
    """The network interfaces are up, have a default route, and drop few packets.

    An interface that is switched off is a choice; one that is switched on without a link is a finding. All are
    warnings: the cluster takes a node without network for dead anyway. EFA devices, and the allowances of EC2, have
    checks of their own.

    Sources: Linux, Documentation/ABI/testing/sysfs-class-net (operstate, flags) and sysfs-class-net-statistics,
    Documentation/networking/operstates.rst; proc_net(5) route, ipv6_route; EKS node monitoring agent (InterfaceNotUp,
    MissingDefaultRoutes, ConntrackExceededKernel).
    """
    names = settings.interfaces or tuple(_of_drivers(node, settings))
    if not names:
        return not_applicable(f"no interface of the driver {', '.join(settings.drivers)} is switched on")
    findings, readings = [*_route(node, settings), *_conntrack(node, settings)], list[Reading]()
    for name in names:
        if not node.sys.exists(f"{_NET}/{name}"):
            findings.append(MISSING.at(_interface(name), f"interface {name} does not exist"))
            continue
        findings.extend(_link(node, name))
        readings.extend(_statistics(node, name))
    return judged(findings, readings)


def _of_drivers(node: Node, settings: HostNetworkSettings) -> Iterator[str]:
    for name in node.sys.names(_NET):
        if _driver(node, name) in settings.drivers and int(node.sys.read(f"{_NET}/{name}/flags"), 16) & _IFF_UP:
            yield name


def _driver(node: Node, name: str) -> str:
    try:
        return node.sys.target(f"{_NET}/{name}/device/driver")
    except SourceMissing:
        return ""  # a virtual interface has no device


def _link(node: Node, name: str) -> Iterator[Finding]:
    state = node.sys.read(f"{_NET}/{name}/operstate")
    if state not in ("up", "unknown"):  # unknown: the driver does not report it, as for loopback
        yield LINK_DOWN.at(_interface(name), f"{name} is switched on, but its link is {state}", operstate=state)


def _statistics(node: Node, name: str) -> Iterator[Reading]:
    where, epoch = _interface(name), node.boot_id
    for each in _PER_HOUR:
        value, kind = whole(node.sys.read(f"{_NET}/{name}/statistics/{each}"), each), ReadingKind.COUNTER
        yield Reading(component=where, name=f"network_{each}_total", value=value, kind=kind, epoch=epoch)


def _route(node: Node, settings: HostNetworkSettings) -> Iterator[Finding]:
    if not settings.default_route:
        return
    v4 = (line.split() for line in node.proc.read("net/route").splitlines()[1:])
    if any(fields[1:2] == ["00000000"] and fields[7:8] == ["00000000"] for fields in v4):
        return
    v6 = node.proc.read("net/ipv6_route") if node.proc.exists("net/ipv6_route") else ""
    if not any(line.startswith(f"{'0' * 32} 00 ") and not line.endswith(" lo") for line in v6.splitlines()):
        yield NO_ROUTE.at(NODE, "no default route, neither for IPv4 nor for IPv6")


def _conntrack(node: Node, settings: HostNetworkSettings) -> Iterator[Finding]:
    if not node.proc.exists(f"{_CONNTRACK}_max"):
        return  # connections are not tracked here
    count, most = (whole(node.proc.read(f"{_CONNTRACK}_{word}"), word) for word in ("count", "max"))
    if most and count / most > settings.conntrack_ratio:
        message = f"connection tracking has {count} of {most} entries; a full table drops new connections"
        yield CONNTRACK.at(NODE, message, count=count, max=most)


def _interface(name: str) -> Component:
    return Component(kind="interface", id=name)
