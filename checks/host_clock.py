"""The check ``host.clock``: whether the node's time is right."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.host_text import Tracking, tracking
from healthd.core.check import FindingCode, check, judged
from healthd.core.errors import SourceMissing
from healthd.core.model import NODE, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Seconds, Words

_SOURCE = "devices/system/clocksource/clocksource0/current_clocksource"

UNSYNCHRONISED = FindingCode(
    code="host.clock.unsynchronised",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="No time service synchronises the clock of this node",
    lasting_s=600.0,
)
OFFSET = FindingCode(
    code="host.clock.offset",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The clock of this node is wrong",
    lasting_s=300.0,
)
SLOW_SOURCE = FindingCode(
    code="host.clock.source",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The kernel reads the time from a slow clock source",
)


class HostClockSettings(Struct, frozen=True, kw_only=True):
    """How far the clock may be off, and the clock sources that are fast."""

    max_offset_s: Seconds = 0.5
    """How far the clock may be off, in seconds. munge refuses credentials minutes off, and time stamps of ranks in logs
    and traces become useless long before; the Amazon Time Sync Service keeps nodes within 1 ms."""

    sources: Words = ("tsc", "kvm-clock", "arch_sys_counter")
    """The clock sources that programs read without entering the kernel. The kernel leaves ``tsc`` for another when it
    finds it unstable, and each reading of the time then costs hundreds of times more."""


@check("host.clock", interval_s=120, settings=HostClockSettings, codes=(UNSYNCHRONISED, OFFSET, SLOW_SOURCE))
def host_clock(node: Node, settings: HostClockSettings) -> Result:
    """The clock is synchronised, is right, and is quick to read.

    The check asks chronyd where it runs, because the kernel knows of chronyd's work only where ``rtcsync`` is set; else
    it asks the kernel, which notes whether a program disciplines its clock. After a boot either takes minutes to
    settle, so an unsynchronised clock is a finding only once it has lasted.

    Sources: chronyc(1) ``tracking``; chrony.conf(5) ``rtcsync``; adjtimex(2) STA_UNSYNC; Linux,
    Documentation/timers/timekeeping.rst (clock sources); EC2 user guide, Amazon Time Sync Service.
    """
    found = _chrony(node) or _kernel(node)
    findings = [*_source(node, settings), *_time(found, settings)]
    return judged(findings, [Reading(component=NODE, name="clock_offset_s", value=found.offset_s)])


def _chrony(node: Node) -> Tracking | None:
    """chronyd's answer; None where it is not installed or does not run. Raises SourceError for anything else."""
    try:
        answer = node.command("chronyc", "-c", "tracking", timeout_s=3.0)
    except SourceMissing:
        return None
    return tracking(answer.stdout) if answer.code == 0 else None


def _kernel(node: Node) -> Tracking:
    clock = node.clock()
    return Tracking(source="adjtimex", synchronised=clock.synchronised, offset_s=clock.offset_s)


def _time(found: Tracking, settings: HostClockSettings) -> Iterator[Finding]:
    if not found.synchronised:
        yield UNSYNCHRONISED.at(NODE, f"the clock is not synchronised ({found.source or 'chronyd has no source'})")
    if abs(found.offset_s) > settings.max_offset_s:
        message = f"the clock is {found.offset_s:+.3f} s off, more than {settings.max_offset_s:g} s"
        seen = {"offset_s": found.offset_s, "limit_s": settings.max_offset_s}
        yield OFFSET.at(NODE, message, time_source=found.source, seen=seen)


def _source(node: Node, settings: HostClockSettings) -> Iterator[Finding]:
    found = node.sys.read(_SOURCE)
    if found not in settings.sources:
        expected = ", ".join(settings.sources)
        yield SLOW_SOURCE.at(
            NODE, f"the kernel's clock source is {found}; expected one of {expected}", clock_source=found
        )
