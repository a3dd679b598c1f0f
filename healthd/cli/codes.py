"""The forms of a finding's code, as an operator writes it: ``gpu.xid.79``, ``xid 79``, ``79``, ``site.disk.slow``."""

from __future__ import annotations

from collections.abc import Iterable

from healthd.checklib.xids import xid_table
from healthd.config.values import did_you_mean
from healthd.core.check import Check, CodeForm, FindingCode, declared_by, discover
from healthd.core.errors import UsageError

NUMBERED = ("gpu.xid.*", "nvswitch.sxid.*")
"""The families whose members are rows of a table."""


def forms_of(wanted: str) -> tuple[Check, tuple[CodeForm, ...]] | None:
    """The check that finds a code, and the code's forms, the plain one first; None for a code that no check finds."""
    checks = discover().values()
    for check in checks:
        if check.explain is not None and (forms := check.explain(wanted)):
            return check, forms
    found = declared_by(wanted, checks)
    if found is None or (found[1].code in NUMBERED and wanted != found[1].code):
        return None
    check, code = found
    return check, (form_of(check, code, wanted),)


def form_of(check: Check, code: FindingCode, name: str = "") -> CodeForm:
    """The one form of a code that a check declares. ``name``: that of a member of a family."""
    notes = []
    if code.lasting_s:
        notes.append(f"It counts once it has lasted {code.lasting_s:g} s.")
    if code.repeats is not None:
        what = f"different {code.repeats.distinct}" if code.repeats.distinct else "times"
        notes.append(f"It counts once seen {code.repeats.times} {what} within {code.repeats.window_s:g} s.")
    return CodeForm(
        code=name or code.code,
        meaning=code.meaning,
        severity=code.severity,
        remedy=code.remedy,
        clears_by=code.clears_by,
        source=source_of(check, code),
        notes=tuple(notes),
    )


def source_of(check: Check, code: FindingCode) -> str:
    """Where a check's own docstring says that its facts are from, and where the numbers of the code's limits are."""
    limits = [limit.source for limit in check.limits if limit.code == code]
    paragraphs = (" ".join(part.split()) for part in check.doc.split("\n\n"))
    cited = [text.partition(": ")[2] for part in paragraphs if (text := _citation(part))]
    return "; ".join(dict.fromkeys([*limits, *(each.rstrip(".") for each in cited)]))


def unknown_code(verb: str, wanted: str, expected: str, texts: Iterable[str] = ()) -> UsageError:
    """The error for a code that no check finds, with the nearest one. ``texts``: what else it may have been."""
    declared = [code.code for check in discover().values() for code in check.codes if code.code not in NUMBERED]
    known = [*declared, *(f"gpu.xid.{xid}" for xid in xid_table()), *texts]
    members = [code for code in known if code.startswith(f"{wanted}.")]
    if len(members) > 1:
        near = f"{len(members)} codes begin so, such as {members[-1]}; see `healthd checks`"
    else:
        near = did_you_mean(wanted, members or known, "see `healthd checks`")
    return UsageError(f"{verb}: {expected} {wanted!r}; {near}")


def _citation(paragraph: str) -> str:
    """The part of a docstring's paragraph from ``Source:`` or ``Sources:`` on."""
    at = max(paragraph.find("Sources: "), paragraph.find("Source: "))
    return paragraph[at:] if at >= 0 else ""
