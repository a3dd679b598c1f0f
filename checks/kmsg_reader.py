"""The check ``kmsg.reader``: whether healthd itself still reads the kernel log. Without it the node is *unknown*."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from healthd.core.check import FindingCode, Limit, check, judged
from healthd.core.model import NODE, ClearsBy, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import KernelLogState, Node

StallSeconds = Annotated[float, Meta(ge=20, le=86_400, description="seconds, from 20 to 86400")]
"""Shorter than this is no stall: the loop waits up to 15 s for a record."""


class KmsgReaderSettings(Struct, frozen=True, kw_only=True):
    """When ``kmsg.reader`` calls the reader stalled."""

    stalled_after_s: StallSeconds = 30.0
    """For how many seconds the loop of the reader may stand still before the kernel log counts as unread. The loop runs
    at least every 15 s; the default tolerates a host that swaps or is paused."""


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
    interval_s=30.0,
    timeout_s=2.0,
    settings=KmsgReaderSettings,
    codes=(GAP, INCOMPLETE),
    limits=(
        Limit(
            reading="kernel_log_gaps_total",
            max_increase=0,
            code=GAP,
            source="a lost record may have been any XID: none is acceptable",
        ),
    ),
)
def kmsg_reader(node: Node, settings: KmsgReaderSettings) -> Result:
    """healthd reads the kernel log, and loses no record of it.

    A reader that ended, whose loop stands still, or that cannot open its source makes this unknown: the node's XIDs go
    unnoticed. healthd counts records that the kernel overwrote before it read them. Growth of the count is a finding
    that stays until a reboot, which ends the faults in the lost records. A loss before the first value of the count
    shows no growth, so while this reader runs its losses are a finding by themselves as well.

    Source: Linux, Documentation/ABI/testing/dev-kmsg (EPIPE: a record was overwritten before it was read).
    """
    state = node.kernel_log
    lost = f"{state.source}: the kernel overwrote unread records {state.gaps} times since this reader started"
    findings = [INCOMPLETE.at(NODE, lost, gaps=state.gaps, limit=0)] if state.gaps else []
    return judged(findings, _readings(state, node.boot_id), undecided=_blind(state, settings))


def _blind(state: KernelLogState, settings: KmsgReaderSettings) -> tuple[str, ...]:
    """Why the kernel log is not read; empty while it is."""
    if state.error:
        return (state.error,)
    if not state.alive:
        return (f"the reader of {state.source} has ended, XIDs go unnoticed; restart healthd",)
    if state.idle_s > settings.stalled_after_s:
        idle = f"{state.idle_s:.0f} s (limit {settings.stalled_after_s:g} s)"
        return (f"the reader of {state.source} stands still for {idle}, XIDs go unnoticed; restart healthd",)
    return ()


def _readings(state: KernelLogState, boot_id: str) -> Iterator[Reading]:
    for name, value in (("gaps", state.gaps), ("malformed", state.malformed), ("untrusted", state.untrusted)):
        yield Reading(
            component=NODE, name=f"kernel_log_{name}_total", value=float(value), kind=ReadingKind.COUNTER, epoch=boot_id
        )
