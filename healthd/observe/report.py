"""The verdict of a node, as text and as JSON. Pure: data in, text out.

The JSON is the published schema ``healthd.verdict/v1``; fields are added to it, never renamed or removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from healthd import __version__
from healthd.core.json_documents import json_document, json_fields
from healthd.core.model import Diagnosis, Outcome, Reading, Severity, Status, Verdict
from healthd.core.name_lists import number_of
from healthd.judge.causes import Cause, causes_of, unknowns_of
from healthd.judge.devices import DeviceNames, device_range
from healthd.judge.history import Fault, acknowledged_text
from healthd.observe.cause_text import cause_data, cause_lines, finding_lines, head_line
from healthd.observe.text_lines import Level, TextLine, joined, printable

SCHEMA = "healthd.verdict/v1"
EXIT_CODE: Mapping[Verdict, int] = {Verdict.OK: 0, Verdict.WARNING: 0, Verdict.CRITICAL: 1, Verdict.UNKNOWN: 2}

VERDICT_LEVEL: Mapping[Verdict, Level] = {
    Verdict.OK: "ok",
    Verdict.WARNING: "warning",
    Verdict.CRITICAL: "critical",
    Verdict.UNKNOWN: "unknown",
}


class CheckView(Struct, frozen=True, kw_only=True):
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


class Report(Struct, frozen=True, kw_only=True):
    """The report of ``healthd check``. ``source``: ``daemon`` or ``local``. ``notices``: lines that the operator must
    not miss. ``names``: of its devices."""

    node: str
    boot_id: str
    instance_type: str | None
    generated_at: datetime
    source: str
    verdict: Verdict
    checks: tuple[CheckView, ...]
    diagnoses: tuple[Diagnosis, ...]
    notices: tuple[str, ...] = ()
    names: DeviceNames = field(default_factory=DeviceNames)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The problems, then the unknowns, then news: each cause once."""
        found = causes_of(self.diagnoses, (fault for view in self.checks for fault in view.faults), self.names)
        unknowns = unknowns_of((view.outcome for view in self.checks), self.names)
        problems = [each for each in found if each.is_problem]
        return (*problems, *unknowns, *(each for each in found if not each.is_problem))


def as_json(report: Report, *, evidence: bool = True) -> str:
    """The verdict as one JSON object, two-space indented, ending in a newline. ``evidence``: as in ``as_data``."""
    return json_document(as_data(report, evidence=evidence))


def as_data(report: Report, *, evidence: bool = True) -> dict[str, Any]:
    """The verdict in the shape of ``healthd.verdict/v1``. ``evidence``: with the evidence of each fault; else only its
    count."""
    return {
        "schema": SCHEMA,
        **json_fields(report, "node", "boot_id", "instance_type", "generated_at", "source", "verdict"),
        "checks": [_check_data(view, evidence) for view in report.checks],
        "diagnoses": [diagnosis_data(diagnosis) for diagnosis in report.diagnoses],
    }


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """One diagnosis in the shape of ``healthd.verdict/v1``."""
    return json_fields(diagnosis, "code", "component", "severity", "remedy", "reasons", "since")


def as_text(report: Report, *, mode: str = "", verbose: bool = False, colour: bool = False) -> str:
    """The verdict as text: each cause once, the worst first; what is ok or not applicable is a count.

    ``mode``: how far the daemon may go; "" without one. ``verbose``: each finding by itself, and the names of the
    checks.
    """
    return joined(_lines(report, mode, verbose=verbose), colour=colour)


def as_brief(report: Report) -> str:
    """The verdict in one line that is the same on equal nodes, for ``clush -b``: the codes of the faults, with how many
    devices have each, and the checks that are unknown; no host, device, boot or time."""
    parts = [_counted(each) for each in report.causes if each.is_problem]
    unknown = sorted(view.outcome.check for view in report.checks if view.outcome.counts_as_unknown)
    parts += [f"unknown {name}" for name in unknown]
    return printable("  ".join([report.verdict.upper(), "; ".join(parts)]).rstrip()) + "\n"


def usable(verdict: Verdict, causes: Iterable[Cause]) -> str:
    """``usable, 1 problem``; ``not usable, 2 problems, 15 checks unknown``."""
    causes = tuple(causes)
    problems = sum(each.is_problem for each in causes)
    unknown = sum(len(each.checks) for each in causes if not each.optional)
    counts = [number_of(problems, "problem")] * bool(problems)
    counts += [f"{number_of(unknown, 'check')} unknown"] * bool(unknown)
    return ", ".join([_USABLE[verdict], *counts])


def ok_line(fine: int, absent: int, *facts: str) -> TextLine:
    """``ok 32 checks · 8 not applicable``."""
    parts = [f"  ok {number_of(fine, 'check')}", *facts, *([f"{absent} not applicable"] if absent else [])]
    return TextLine(" · ".join(parts), "ok")


def _check_data(view: CheckView, evidence: bool) -> dict[str, Any]:
    figures = [json_fields(each, "component", "name", "value", "limit", "limit_source") for each in view.figures]
    return {
        "name": view.outcome.check,
        "outcome": view.status,
        "reason": view.outcome.result.reason,
        "age_s": round(view.age_s, 3),
        "duration_ms": round(view.outcome.duration_s * 1000, 3),
        "findings": [_finding_data(fault, evidence) for fault in view.faults],
        **({"figures": figures} if figures else {}),
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


def _lines(report: Report, mode: str, *, verbose: bool) -> Iterator[TextLine]:
    causes = report.causes
    about = "no daemon" if report.source == "local" else mode
    facts = (report.instance_type or "unknown instance type", about, f"healthd {__version__}")
    yield head_line(report.node, report.verdict, usable(report.verdict, causes), facts, VERDICT_LEVEL[report.verdict])
    yield from (TextLine(f"! {notice}", "warning") for notice in report.notices)
    checks = as_data(report, evidence=False)["checks"] if verbose else ()
    more = {each.code: list(finding_lines(each.code, checks)) for each in causes} if verbose else {}
    more |= {each.code: list(each.checks) for each in causes if verbose and len(each.checks) > 1}
    yield from cause_lines([cause_data(each) for each in causes], report.generated_at, more)
    yield from (TextLine(line) for line in _figure_lines(report))
    fine, absent = _quiet(report.checks)
    if fine or absent:
        yield ok_line(len(fine), len(absent))
    if verbose:
        yield from (TextLine(f"     {each.check}", "ok") for each in fine)
        yield from (TextLine(f"  -- {each.check}: {each.result.reason}") for each in absent)


_USABLE: Mapping[Verdict, str] = {
    Verdict.OK: "usable",
    Verdict.WARNING: "usable",
    Verdict.CRITICAL: "not usable",
    Verdict.UNKNOWN: "cannot tell",
}


def _counted(cause: Cause) -> str:
    devices = len(cause.components)
    return f"{cause.severity} {cause.code}" + (f" x{devices}" if devices > 1 else "")


def _figure_lines(report: Report) -> Iterator[str]:
    """``measured  8 GPUs (0-7) nccl_busbw 380 to 391 (limit 350, source)``: a measurement of many devices once."""
    alike: dict[tuple[str, float | None, str], list[Reading]] = {}
    for figure in (figure for view in report.checks for figure in view.figures):
        alike.setdefault((figure.name, figure.limit, figure.limit_source), []).append(figure)
    for (name, limit, source), figures in alike.items():
        low, high = (f"{edge(each.value for each in figures):g}" for edge in (min, max))
        where = device_range(report.names.of(each.component) for each in figures)
        about = "" if limit is None else f" (limit {limit:g}, {source})"
        yield f"  measured  {where or 'node'} {name} {low if low == high else f'{low} to {high}'}{about}"


def _quiet(checks: Sequence[CheckView]) -> tuple[list[Outcome], list[Outcome]]:
    """The checks that are ok, news or not, and those that are not applicable."""
    quiet = [view for view in checks if view.outcome.result.is_whole]
    absent = [view.outcome for view in quiet if view.status is Status.NOT_APPLICABLE]
    loud = (Severity.WARNING, Severity.CRITICAL)
    fine = [
        view.outcome
        for view in quiet
        if view.outcome not in absent and not any(fault.severity in loud for fault in view.faults)
    ]
    return fine, absent
