"""What is missing on a node for healthd to do its work, and how to mend it: the lines, and what they come to. Pure.

Who looks is ``healthd.setup.looks``. A line says what it was about, ok, missing or could not tell, why, and the fix;
what a node does not need has no line, and is named in one at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from healthd.observe.report import printable

SCHEMA = "healthd.doctor/v1"
_WIDTH = 16


class LookResult(StrEnum):
    """What a look came to."""

    OK = "ok"
    MISSING = "missing"
    UNTOLD = "could not tell"
    UNNEEDED = "not needed"


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorResult:
    """One line. ``fix``: what to do, where something is missing or could not be told. ``optional``: healthd does its
    work without it, less well; it does not count."""

    about: str
    told: LookResult
    why: str
    fix: str = ""
    optional: bool = False


def exit_code(lines: Sequence[DoctorResult]) -> int:
    """1 where something is missing, 2 where none is but something could not be told, else 0."""
    counted = {line.told for line in lines if not line.optional}
    if LookResult.MISSING in counted:
        return 1
    return 2 if LookResult.UNTOLD in counted else 0


def as_json(lines: Sequence[DoctorResult]) -> str:
    """All lines, in the shape of ``healthd.doctor/v1``."""
    return json.dumps({"schema": SCHEMA, "lines": [asdict(line) for line in lines]}, indent=2) + "\n"


def as_text(lines: Sequence[DoctorResult]) -> str:
    """For a person: what to do stands below its line."""
    said = [text for line in lines if line.told is not LookResult.UNNEEDED for text in _shown(line)]
    unneeded = "; ".join(f"{line.about} ({line.why})" for line in lines if line.told is LookResult.UNNEEDED)
    said += [f"not needed here: {unneeded}"] if unneeded else []
    return "".join(f"{printable(text)}\n" for text in [*said, _summary(lines)])


def _shown(line: DoctorResult) -> list[str]:
    told = f"({line.told})" if line.optional and line.told is not LookResult.OK else line.told
    fix = [f"{'':<{_WIDTH}} fix: {line.fix}"] if line.fix and line.told is not LookResult.OK else []
    return [f"{told:<{_WIDTH}} {line.about}: {line.why}", *fix]


def _summary(lines: Sequence[DoctorResult]) -> str:
    missing, untold = (
        [line for line in lines if line.told is told] for told in (LookResult.MISSING, LookResult.UNTOLD)
    )
    if not missing and not untold:
        return "nothing is missing"
    optional = sum(line.optional for line in (*missing, *untold))
    more = f" (of them {optional} in brackets: healthd works without)" if optional else ""
    return f"{len(missing)} missing, {len(untold)} could not be told{more}"
