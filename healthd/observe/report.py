"""The verdict of a node, as text and as JSON. Pure: data in, text out.

The JSON is the published schema ``healthd.verdict/v1``; fields are added to it, never renamed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from healthd.core.model import SEVERITY_RANK, Diagnosis, Outcome, Reading, Severity, Status, Verdict
from healthd.judge.history import Fault, acknowledged_text

SCHEMA = "healthd.verdict/v1"
EXIT_CODE: Mapping[Verdict, int] = {Verdict.OK: 0, Verdict.WARNING: 0, Verdict.CRITICAL: 1, Verdict.UNKNOWN: 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckView:
    """One check: its last outcome and its open faults, whenever they were found.

    ``figures``: the measurements of an active test for this report.
    """

    outcome: Outcome
    age_s: float
    faults: tuple[Fault, ...] = ()
    figures: tuple[Reading, ...] = ()

    @property
    def status(self) -> Status:
        """Findings while a fault of the check is open, even if its last run was clean or unknown."""
        return Status.FINDINGS if self.faults else self.outcome.result.status


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The report of ``healthd check``. ``source``: ``daemon`` or ``local``. ``notices``: lines that the operator must
    not miss."""

    node: str
    boot_id: str
    instance_type: str | None
    generated_at: datetime
    source: str
    verdict: Verdict
    checks: tuple[CheckView, ...]
    diagnoses: tuple[Diagnosis, ...]
    notices: tuple[str, ...] = ()


def as_json(report: Report, *, evidence: bool = True) -> str:
    """The verdict as one JSON object, two-space indented, ending in a newline. ``evidence``: as in ``as_data``."""
    return json.dumps(as_data(report, evidence=evidence), indent=2, default=str) + "\n"


def as_data(report: Report, *, evidence: bool = True) -> dict[str, Any]:
    """The verdict in the shape of ``healthd.verdict/v1``. ``evidence``: with the evidence of each fault; else only its
    count."""
    return {
        "schema": SCHEMA,
        "node": report.node,
        "boot_id": report.boot_id,
        "instance_type": report.instance_type,
        "generated_at": report.generated_at.isoformat(),
        "source": report.source,
        "verdict": report.verdict,
        "checks": [_check_data(view, evidence) for view in report.checks],
        "diagnoses": [diagnosis_data(diagnosis) for diagnosis in report.diagnoses],
    }


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """One diagnosis in the shape of ``healthd.verdict/v1``."""
    return {
        "code": diagnosis.code,
        "component": str(diagnosis.component),
        "severity": diagnosis.severity,
        "remedy": diagnosis.remedy,
        "reasons": list(diagnosis.reasons),
        "since": diagnosis.since.isoformat(),
    }


def as_text(report: Report) -> str:
    """The verdict as text: the worst first, all healthy checks in one line."""
    kind = report.instance_type or "unknown instance type"
    lines = [f"{report.verdict.upper()}  {report.node}  {kind}  ({report.source}, boot {report.boot_id[:8]})"]
    lines += [f"! {notice}" for notice in report.notices]
    for diagnosis in report.diagnoses:
        lines.append(f"  {diagnosis.severity:<9} {diagnosis.code}  {diagnosis.component}  calls for {diagnosis.remedy}")
        lines += [f"            {reason}" for reason in diagnosis.reasons]
    loud = {view.outcome.check: _fault_lines(view) for view in report.checks}
    lines += chain.from_iterable(loud.values())
    lines += _unknown_lines(report.checks)
    lines += [_figure_line(figure) for view in report.checks for figure in view.figures]
    quiet = [each.outcome for each in report.checks if each.outcome.result.is_whole and not loud[each.outcome.check]]
    lines.append(_healthy(quiet))
    return "\n".join(printable(line) for line in lines) + "\n"


def printable(line: str) -> str:
    """The line without control characters: a user may have named the mount in it."""
    if line.isprintable():
        return line
    return "".join(character if character.isprintable() else "?" for character in line)


def _check_data(view: CheckView, evidence: bool) -> dict[str, Any]:
    figures = {"figures": [_figure_data(figure) for figure in view.figures]} if view.figures else {}
    return {
        "name": view.outcome.check,
        "outcome": view.status,
        "reason": view.outcome.result.reason,
        "age_s": round(view.age_s, 3),
        "duration_ms": round(view.outcome.duration_s * 1000, 3),
        "findings": [_finding_data(fault, evidence) for fault in view.faults],
        **figures,
    }


def _figure_data(figure: Reading) -> dict[str, Any]:
    return {
        "component": str(figure.component),
        "name": figure.name,
        "value": figure.value,
        "limit": figure.limit,
        "limit_source": figure.limit_source,
    }


def _finding_data(fault: Fault, evidence: bool) -> dict[str, Any]:
    seen_there = fault.evidence if evidence else {}
    seen = {"acknowledged": acknowledged_text(fault)} if fault.acknowledged else {}
    return {
        "code": fault.code,
        "severity": fault.severity,
        "component": str(fault.component),
        "message": fault.message,
        "evidence": {**seen_there, "count": fault.count, "first": fault.first.isoformat()},
        "time": fault.last.isoformat(),
        **seen,
    }


def _fault_lines(view: CheckView) -> list[str]:
    """A line per finding that is more than news."""
    ranked = sorted(view.faults, key=lambda fault: SEVERITY_RANK[fault.severity], reverse=True)
    return [_fault_line(view.outcome.check, each) for each in ranked if each.severity is not Severity.INFO]


def _unknown_lines(checks: Sequence[CheckView]) -> Iterator[str]:
    """A line for each reason of an unknown: one cause is one line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for outcome in (view.outcome for view in checks if not view.outcome.result.is_whole):
        label = "(unknown)" if outcome.optional else "unknown"
        by_reason.setdefault((label, outcome.result.reason), []).append(outcome.check)
    yield from (f"  {label:<9} {', '.join(names)}: {reason}" for (label, reason), names in by_reason.items())


def _fault_line(name: str, fault: Fault) -> str:
    seen = f"  ({acknowledged_text(fault)})" if fault.acknowledged else ""
    return f"  {fault.severity:<9} {name}: {fault.message}  [{fault.code}]{seen}"


def _figure_line(figure: Reading) -> str:
    limit = "" if figure.limit is None else f" (limit {figure.limit:g}, {figure.limit_source})"
    return f"  measured  {figure.component} {figure.name} {figure.value:g}{limit}"


def _healthy(quiet: Sequence[Outcome]) -> str:
    absent = [outcome.check for outcome in quiet if outcome.result.status is Status.NOT_APPLICABLE]
    healthy = [outcome.check for outcome in quiet if outcome.check not in absent]
    names, others = ", ".join(healthy) or "none", ", ".join(absent) or "none"
    return f"  ok        {len(healthy)} checks ({names}); not applicable: {others}"
