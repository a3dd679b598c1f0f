"""The check ``kernel.lustre``: lines of the Lustre client in the kernel log. They are rows of ``kernel_lines.csv``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from healthd.checklib.loglines import Groups, LineRow, codes_of, explain_row, judge_lines, recognises
from healthd.checklib.lustre import connection
from healthd.core.check import FindingCode, check, judged, ok
from healthd.core.errors import SourceError
from healthd.core.model import NODE, ClearsBy, Component, Finding, Remedy, Repeats, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import AtLeastOne, WindowSeconds

_NAME = "kernel.lustre"
_FILE_SYSTEM = re.compile(r"(\w+)-(?:OST|MDT)[0-9a-f]{4}")

UNSTEADY = FindingCode(
    code="lustre.unsteady",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="This client was evicted, or lost its connection, again and again",
    clears_by=ClearsBy.REBOOT,
)
_MODULES = ("lustre", "lnet", "libcfs")
_COUNTED = ("lustre.evicted", "lustre.connection_lost")


class KernelLustreSettings(Struct, frozen=True, kw_only=True):
    """How many lost connections ``kernel.lustre`` tolerates."""

    unsteady_times: AtLeastOne = 3
    """From how many evictions and lost connections of one server target, together, the connection is unsteady. Every
    client sees a single one when a server fails over or the weekly maintenance begins."""

    unsteady_window_s: WindowSeconds = 3_600.0
    """Within how many seconds. An hour holds a whole maintenance window (30 minutes) with its two moves."""


@check(
    _NAME,
    on="kernel",
    needles=("^Lustre", "^LNet"),
    settings=KernelLustreSettings,
    codes=(*codes_of(_NAME), UNSTEADY),
    wants=partial(recognises, _NAME),
    explain=partial(explain_row, _NAME),
)
def kernel_lustre(node: Node, settings: KernelLustreSettings) -> Result:
    """Lustre client errors in the kernel log.

    An assertion that failed (LBUG) is this client's own and needs a reboot. All else is a warning: evictions, lost
    connections and slow servers look the same from every node, and a node must not be drained for its file server. A
    lost connection ends when the client logs that it is restored; only repeated losses of one target page the operator.
    On a node whose kernel has no Lustre module such lines are forged, and do not count. Sources: lustre-release, ptlrpc
    import.c and client.c.
    """
    result = judge_lines(_NAME, node.kernel_records, place=_import, more=lambda _record, groups: _mount(node, groups))
    if result.findings and not _is_loaded(node):
        return ok(reason="no Lustre module is loaded, so the Lustre client did not write these lines")
    again = [_unsteady(finding, settings) for finding in result.findings if finding.code in _COUNTED]
    return judged([*result.findings, *again], clearances=result.clearances)


def _is_loaded(node: Node) -> bool:
    """Whether a Lustre module is loaded; True for a past log, whose kernel cannot be read."""
    try:
        return any(node.sys.exists(f"module/{name}") for name in _MODULES)
    except SourceError:
        return True


def _import(_row: LineRow, groups: Groups) -> Component:
    """The connection to one target."""
    name = groups.get("obd") or groups.get("target") or ""
    return connection(name) if name else NODE


def _mount(node: Node, groups: Groups) -> Mapping[str, Any]:
    """The mount point: every target's name begins with the file system's name, and the mount's source ends with it."""
    found = _FILE_SYSTEM.match(groups.get("obd") or groups.get("target") or "")
    return dict(_points(node, found[1])) if found else {}


def _points(node: Node, name: str) -> Iterator[tuple[str, str]]:
    try:
        yield from (
            ("mount", m.point) for m in node.mounts() if m.fstype == "lustre" and m.source.endswith(f":/{name}")
        )
    except SourceError as error:
        yield "mount_unknown", str(error)


def _unsteady(finding: Finding, settings: KernelLustreSettings) -> Finding:
    return Finding(
        code=UNSTEADY.code,
        severity=UNSTEADY.severity,
        component=finding.component,
        message=f"{finding.component.id or 'Lustre'}: {UNSTEADY.meaning}, the last time by {finding.code}",
        remedy=UNSTEADY.remedy,
        evidence={
            "count": finding.evidence["count"],
            "line": finding.evidence["line"],
            "limit": settings.unsteady_times,
            "limit_source": "settings.unsteady_times",
        },
        time=finding.time,
        clears_by=UNSTEADY.clears_by,
        repeats=Repeats(times=settings.unsteady_times, window_s=settings.unsteady_window_s),
    )
