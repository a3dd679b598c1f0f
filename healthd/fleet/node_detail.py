"""One node in detail, beside its part in the fleet: its own verdict and history, and its past by the ledger. Answers
in, text and data out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from healthd.api.timeline import SCHEMA as HISTORY_SCHEMA
from healthd.api.timeline import trail_text
from healthd.core.ages import age
from healthd.core.errors import BackendUnknown
from healthd.core.model import Severity, Status
from healthd.fleet.asking import NodeAnswer, NodeDocument
from healthd.ledger.entries import LedgerEntry
from healthd.ledger.text import entry_data, history_text
from healthd.observe.report import SCHEMA
from healthd.observe.text_lines import printable

_LAST = 10
"""How many entries of the past are shown."""


_OwnName = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
_Names = Annotated[dict[_OwnName, Annotated[str, msgspec.Meta(max_length=40)]], msgspec.Meta(max_length=512)]
"""Of the devices of a node: any of its users may answer at its port, and each name is searched for in each line."""


class _SeenFinding(msgspec.Struct, frozen=True):
    code: str
    severity: Severity
    message: str = ""
    acknowledged: str = ""


class _SeenCheck(msgspec.Struct, frozen=True):
    name: str
    outcome: Status
    reason: str = ""
    findings: tuple[_SeenFinding, ...] = ()


class NodeVerdict(NodeDocument, frozen=True, kw_only=True):
    """The parts of ``healthd.verdict/v1`` that are shown."""

    verdict: str
    generated_at: Annotated[datetime, msgspec.Meta(tz=True)]
    checks: tuple[_SeenCheck, ...] = ()


READS_VERDICT = msgspec.json.Decoder(NodeVerdict)


class _SeenChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of a line. ``opened``: whether a fault began or ended, where the line is about one. ``end``: of a
    remediation, None while it is open, or of a job, None where it is not known. ``evidence``: of a fault, or a list of
    a job's."""

    code: str = ""
    component: str = ""
    severity: str = ""
    opened: bool | msgspec.UnsetType = msgspec.UNSET
    end: str | None = ""
    evidence: dict[str, Any] | list[Any] = {}


class _SeenLine(msgspec.Struct, frozen=True):
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    kind: str
    text: str
    data: _SeenChange


class SeenRemediation(msgspec.Struct, frozen=True):
    """A remediation as a node shows it. ``end``: None while it is open."""

    id: str
    code: str
    component: str
    remedy: str
    opened: Annotated[datetime, msgspec.Meta(tz=True)]
    since: Annotated[datetime, msgspec.Meta(tz=True)]
    steps: tuple[str, ...]
    step: str
    end: str | None
    note: str


class NodeHistory(NodeDocument, frozen=True, kw_only=True):
    """The parts of ``healthd.history/v1`` that are shown."""

    newest: int
    cut: str
    events: tuple[_SeenLine, ...]
    remediations: tuple[SeenRemediation, ...]
    names: _Names = msgspec.field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The timeline, newest last."""
        return trail_text(msgspec.to_builtins(self)).splitlines()


READS_HISTORY = msgspec.json.Decoder(NodeHistory)


class NodeDetail(Struct, frozen=True, kw_only=True):
    """All that is known of one node beside the cluster's own part. ``answer``, ``history``: its verdict and its
    timeline, None where the node was not asked. ``past``: its entries of the ledger, oldest first."""

    now: datetime
    answer: NodeAnswer | None = None
    history: NodeAnswer | None = None
    past: Sequence[LedgerEntry] = ()

    @property
    def text(self) -> str:
        """The lines under those of ``node_text``."""
        return "".join(f"{printable(line)}\n" for line in (*self._answer_lines(), *self._past_lines()))

    @property
    def data(self) -> dict[str, Any]:
        """The same as data: verdict and history as the node wrote them."""
        timeline, problem = _document(self.history, READS_HISTORY, HISTORY_SCHEMA)
        past = [entry_data(each) for each in self.past[-_LAST:]]
        return {"answer": self._answer_data(), "timeline": timeline, "timeline_problem": problem, "past": past}

    def _answer_lines(self) -> Iterator[str]:
        if self.answer is None:
            return
        try:
            verdict = self.answer.document(READS_VERDICT, SCHEMA)
        except BackendUnknown as error:
            yield f"answer    none: {error}; run `healthd status` on {self.answer.node}"
            return
        ago = age(verdict.generated_at, self.now)
        yield f"answer    {verdict.verdict.upper()}, {ago} ago, from {self.answer.asked}"
        yield from _check_lines(verdict.checks)

    def _answer_data(self) -> dict[str, Any] | None:
        if self.answer is None:
            return None
        verdict, problem = _document(self.answer, READS_VERDICT, SCHEMA)
        return {"asked": self.answer.asked, "problem": problem, "verdict": verdict}

    def _past_lines(self) -> Iterator[str]:
        if self.history is not None:
            yield from _history_lines(self.history)
        if self.past:
            more = len(self.past) - _LAST
            earlier = f", and {more} earlier" if more > 0 else ""
            yield f"ledger    the last entries{earlier}: `healthd fleet history --node {self.past[-1].node}`"
            yield from (f"  {line}" for line in history_text(self.past[-_LAST:], (), ()).splitlines())


def _document(answer: NodeAnswer | None, reads: msgspec.json.Decoder[Any], schema: str) -> tuple[Any, str]:
    """(the document as the node wrote it or None, why there is none or "")."""
    if answer is None:
        return None, ""
    try:
        answer.document(reads, schema)
    except BackendUnknown as error:
        return None, str(error)
    return msgspec.json.decode(answer.body), ""


def _history_lines(answer: NodeAnswer) -> Iterator[str]:
    try:
        lines = answer.document(READS_HISTORY, HISTORY_SCHEMA).lines
    except BackendUnknown as error:
        yield f"history   none: {error}"
        return
    yield f"history   from {answer.asked}"
    yield from (f"  {line}" for line in lines[-_LAST:])


def _check_lines(checks: Sequence[_SeenCheck]) -> Iterator[str]:
    """A line for each code, one for each reason for which checks cannot tell, and one for the rest."""
    for check in checks:
        by_code: dict[tuple[Severity, str, str], list[_SeenFinding]] = {}
        for each in check.findings:
            if each.severity is not Severity.INFO:
                by_code.setdefault((each.severity, each.code, each.acknowledged), []).append(each)
        for (severity, code, acknowledged), alike in by_code.items():
            times = f" x{len(alike)}" if len(alike) > 1 else ""
            seen = f"  ({acknowledged})" if acknowledged else ""
            yield f"  {severity:<9} {check.name}: {alike[0].message}  [{code}{times}]{seen}"
    by_reason: dict[str, list[str]] = {}
    for check in checks:
        if check.outcome is Status.UNKNOWN:
            by_reason.setdefault(check.reason, []).append(check.name)
    for reason, names in by_reason.items():
        yield f"  unknown   {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}"
    fine = sum(each.outcome is Status.OK for each in checks)
    absent = sum(each.outcome is Status.NOT_APPLICABLE for each in checks)
    yield f"  ok        {fine} checks; not applicable: {absent}"
