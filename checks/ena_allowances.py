"""The check ``ena.allowances``: packets that EC2 queues or drops because the instance exceeds a network allowance."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.host_text import key_numbers
from healthd.core.check import FindingCode, Rate, check, judged, not_applicable
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Component, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Word

_NET, _DRIVER = "class/net", "ena"

EXCEEDED = FindingCode(
    code="ena.allowance_exceeded",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="This instance exceeds a network allowance of EC2: packets are queued or dropped",
)

# Counter of the ENA driver, and what an hour may add: a shaped burst adds some, and the numbers are healthd's
# choice of more than a burst. A connection past the conntrack allowance cannot be made at all.
_PER_HOUR = {
    "bw_in_allowance_exceeded": 10_000,
    "bw_out_allowance_exceeded": 10_000,
    "pps_allowance_exceeded": 1_000,
    "conntrack_allowance_exceeded": 0,
    "linklocal_allowance_exceeded": 100,
}
_SOURCE = "EC2 user guide, Monitor network performance for ENA settings; the number is healthd's choice"
_LIMITS = tuple(
    Rate(reading=f"ena_{name}_total", max_increase=most, window_s=3600.0, code=EXCEEDED, source=_SOURCE)
    for name, most in _PER_HOUR.items()
)


class EnaAllowancesSettings(Struct, frozen=True, kw_only=True):
    """The interfaces that ``ena.allowances`` reads."""

    ignore: tuple[Word, ...] = ()
    """Names of interfaces to skip."""


@check(
    "ena.allowances", interval_s=300, timeout_s=30, settings=EnaAllowancesSettings, codes=(EXCEEDED,), limits=_LIMITS
)
def ena_allowances(node: Node, settings: EnaAllowancesSettings) -> Result:
    """The instance stays within the network allowances of EC2.

    A job exceeds them, or the instance type is too small for its work; the machine is not at fault, so this warns. The
    driver has the counters, which ``ethtool -S`` reads with a deadline; the first value after a boot is a baseline.
    Counters of an interface that does not answer are unknown; without ethtool the check does not apply.

    Sources: EC2 user guide, "Monitor network performance for ENA settings on your EC2 instance"; ethtool(8); EKS node
    monitoring agent (BandwidthInExceeded and its kind, all of them warnings).
    """
    names = [name for name in node.sys.names(_NET) if name not in settings.ignore and _is_ena(node, name)]
    if not names:
        return not_applicable("no interface of the ENA driver")
    readings, undecided = list[Reading](), []
    for name in names:
        try:
            readings.extend(_counters(node, name))
        except SourceMissing as error:
            return not_applicable(f"no tool to read the counters of ENA interfaces: {error}; install ethtool")
        except SourceError as error:
            undecided.append(f"{name}: {error}")
    return judged([], readings, undecided=undecided)


def _is_ena(node: Node, name: str) -> bool:
    try:
        return node.sys.target(f"{_NET}/{name}/device/driver") == _DRIVER
    except SourceMissing:
        return False  # a virtual interface has no device


def _counters(node: Node, name: str) -> Iterator[Reading]:
    answer = node.command("ethtool", "-S", name, timeout_s=3.0)
    if answer.code != 0:
        raise SourceUnreadable(f"ethtool -S: exit {answer.code}: {answer.stderr.strip()[:200]}; expected exit 0")
    counters = key_numbers(answer.stdout)
    where, kind, epoch = Component(kind="interface", id=name), ReadingKind.COUNTER, node.boot_id
    for each in _PER_HOUR:
        if each in counters:  # older drivers have fewer
            yield Reading(component=where, name=f"ena_{each}_total", value=counters[each], kind=kind, epoch=epoch)
