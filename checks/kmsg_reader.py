"""Whether healthd itself can still see the kernel log. Not seeing is *unknown*, never health."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from healthd.core.check import FindingCode, Limit, check, judged
from healthd.core.model import NODE, ClearsBy, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import KernelLogState, Node


@dataclass(frozen=True, kw_only=True)
class KmsgReaderSettings:
    """Settings of kmsg.reader."""

    stalled_after_s: float = 30.0
    """Seconds without the reader coming round its loop until the node counts as unseen. It comes round at least once a
    second; the default forgives a host that swaps or is paused."""


GAP = FindingCode(
    code="kmsg.gap",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="Kernel records were overwritten before they were read; XIDs may have been among them",
    clears_by=ClearsBy.REBOOT,
)
INCOMPLETE = FindingCode(
    code="kmsg.incomplete",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The running reader of the kernel log has lost records since it started",
    symptom_of=(GAP.code,),
)


@check(
    "kmsg.reader",
    interval_s=15.0,
    timeout_s=2.0,
    settings=KmsgReaderSettings,
    codes=(GAP, INCOMPLETE),
    limits=(
        Limit(
            reading="kernel_log_gaps_total",
            max_increase=0,
            code=GAP,
            source="a lost record may have been any XID: none is acceptable (DESIGN: a gap is never silence)",
        ),
    ),
)
def kmsg_reader(node: Node, settings: KmsgReaderSettings) -> Result:
    """The kernel log is being read, and nothing of it is lost.

    A reader that ended, does not come round, or cannot open its source makes this unknown: the node's XIDs are unseen.
    What was overwritten unread is counted, and any growth of the count is a finding that stays until a reboot, which
    ends whatever the lost records reported. A loss before the count was first read has no growth to show, so while this
    reader runs its losses are a finding by themselves as well.
    """
    state = node.kernel_log
    lost = f"{state.source}: records were overwritten unread, {state.gaps} times since this reader started"
    findings = [INCOMPLETE.at(NODE, lost, gaps=state.gaps, limit=0)] if state.gaps else []
    return judged(findings, _readings(state, node.boot_id), gaps=_blind(state, settings))


def _blind(state: KernelLogState, settings: KmsgReaderSettings) -> tuple[str, ...]:
    """Why the kernel log is not seen; empty while it is."""
    if not state.alive:
        return (f"the reader of {state.source} has ended: XIDs are not seen; restart healthd",)
    if state.error:
        return (state.error,)
    if state.idle_s > settings.stalled_after_s:
        idle = f"{state.idle_s:.0f} s (limit {settings.stalled_after_s:g} s)"
        return (f"the reader of {state.source} has not come round for {idle}: XIDs are not seen; restart healthd",)
    return ()


def _readings(state: KernelLogState, boot_id: str) -> Iterator[Reading]:
    for name, value in (("gaps", state.gaps), ("malformed", state.malformed), ("untrusted", state.untrusted)):
        yield Reading(
            component=NODE,
            name=f"kernel_log_{name}_total",
            value=float(value),
            kind=ReadingKind.COUNTER,
            epoch=boot_id,
        )
