"""The results of ``healthd doctor``: what a node lacks for healthd to work, and how to fix it. Pure.

``healthd.setup.machine_probes`` makes the results. Each names its subject, its outcome (ok, missing, could not tell,
not needed), the reason and the fix; the text has one line at the end for all that is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import asdict

from healthd.core.json_documents import json_document
from healthd.observe.text_lines import Level, TextLine, joined

SCHEMA = "healthd.doctor/v1"
_WIDTH = 16


class DoctorStatus(StrEnum):
    """The outcome of one result."""

    OK = "ok"
    MISSING = "missing"
    NOT_REPORTED = "could not tell"
    UNNEEDED = "not needed"


_LEVEL: Mapping[DoctorStatus, Level] = {
    DoctorStatus.OK: "ok",
    DoctorStatus.MISSING: "critical",
    DoctorStatus.NOT_REPORTED: "unknown",
    DoctorStatus.UNNEEDED: "",
}


class DoctorResult(Struct, frozen=True, kw_only=True):
    """One result. ``fix``: the operator's next step, where the subject is missing or unknown. ``optional``: healthd
    works without it, less well; it does not count for the exit code."""

    about: str
    status: DoctorStatus
    why: str
    fix: str = ""
    optional: bool = False

    @classmethod
    def ok(cls, about: str, why: str) -> DoctorResult:
        """It is there and works."""
        return cls(about=about, status=DoctorStatus.OK, why=why)

    @classmethod
    def missing(cls, about: str, why: str, fix: str, *, optional: bool = False) -> DoctorResult:
        """It is not there, or does not work."""
        return cls(about=about, status=DoctorStatus.MISSING, why=why, fix=fix, optional=optional)

    @classmethod
    def not_reported(cls, about: str, why: str, fix: str, *, optional: bool = False) -> DoctorResult:
        """It gave no answer."""
        return cls(about=about, status=DoctorStatus.NOT_REPORTED, why=why, fix=fix, optional=optional)

    @classmethod
    def unneeded(cls, about: str, why: str) -> DoctorResult:
        """Nothing here needs it."""
        return cls(about=about, status=DoctorStatus.UNNEEDED, why=why)


def exit_code(lines: Sequence[DoctorResult]) -> int:
    """1 where a subject is missing, 2 where none is missing but one is unknown, else 0."""
    counted = {line.status for line in lines if not line.optional}
    if DoctorStatus.MISSING in counted:
        return 1
    return 2 if DoctorStatus.NOT_REPORTED in counted else 0


def as_json(lines: Sequence[DoctorResult]) -> str:
    """All lines, in the shape of ``healthd.doctor/v1``."""
    return json_document({"schema": SCHEMA, "lines": [asdict(line) for line in lines]})


def as_text(lines: Sequence[DoctorResult], *, colour: bool = False) -> str:
    """The results as text, each with its fix below."""
    rows = [text for line in lines if line.status is not DoctorStatus.UNNEEDED for text in _shown(line)]
    unneeded = "; ".join(f"{line.about} ({line.why})" for line in lines if line.status is DoctorStatus.UNNEEDED)
    rows += [TextLine(f"not needed here: {unneeded}")] if unneeded else []
    return joined([*rows, _summary(lines)], colour=colour)


def _shown(line: DoctorResult) -> list[TextLine]:
    status = f"({line.status})" if line.optional and line.status is not DoctorStatus.OK else line.status
    fix = [TextLine(f"{'':<{_WIDTH}} fix: {line.fix}")] if line.fix and line.status is not DoctorStatus.OK else []
    level = "info" if line.optional and line.status is not DoctorStatus.OK else _LEVEL[line.status]
    return [TextLine(f"{status:<{_WIDTH}} {line.about}: {line.why}", level), *fix]


def _summary(lines: Sequence[DoctorResult]) -> TextLine:
    missing, unknown = (
        [line for line in lines if line.status is status]
        for status in (DoctorStatus.MISSING, DoctorStatus.NOT_REPORTED)
    )
    if not missing and not unknown:
        return TextLine("nothing is missing", "ok")
    optional = sum(line.optional for line in (*missing, *unknown))
    more = f" ({optional} of them optional, in brackets)" if optional else ""
    level: Level = "critical" if exit_code(lines) == 1 else "unknown" if exit_code(lines) else "info"
    return TextLine(f"{len(missing)} missing, {len(unknown)} unknown{more}", level)
