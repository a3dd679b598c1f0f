"""Causes for a terminal, and as data. Pure: causes in, lines out.

A line has its severity beside it; ``text_lines.joined`` is the one place where lines become a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from healthd.core.ages import age
from healthd.core.json_documents import json_fields
from healthd.core.model import Remedy
from healthd.judge.causes import Cause
from healthd.judge.devices import DeviceNames, with_range
from healthd.observe.text_lines import Level, TextLine

SIGNS: Mapping[str, str] = {"critical": "X", "warning": "!", "unknown": "?", "info": "i", "ok": "ok"}
WIDTH = 72
"""The column at which the facts of a node begin, in the first line."""
_DOCTOR = "`healthd doctor` names what is missing, and how to fix it"


def cause_data(cause: Cause) -> dict[str, Any]:
    """A cause as data, for the page and the text of the status."""
    return {
        "code": cause.code,
        "severity": cause.severity or "unknown",
        "where": cause.where,
        **json_fields(cause, "since", "messages", "explains", "acknowledged"),
        "next_step": _step_of(cause),
        **json_fields(cause, "optional", "components", "checks"),
    }


def operators_step(code: str, remedy: Remedy) -> str:
    """The first step of the code's runbook, and the command that shows all of them."""
    from healthd.checklib import runbooks  # loads its table; a healthy node needs none

    step = runbooks.next_step(code, remedy)
    return "; ".join(filter(None, (step, f"`healthd explain {code}`")))


def for_reading(text: str, causes: Iterable[Mapping[str, Any]], names: DeviceNames) -> str:
    """A text about one device, with the names that operators use, and with all devices of its cause. ``causes``: as
    ``cause_data`` has them."""
    text = names.plain(text)
    for each in causes:
        text = with_range(text, each["code"], map(names.of, each["components"]))
    return text


def _step_of(cause: Cause) -> str:
    if cause.severity is None:
        return "" if cause.optional else cause.do or _DOCTOR
    return operators_step(cause.code, cause.remedy)


def head_line(node: str, state: str, message: str, facts: Iterable[str | None], level: Level) -> TextLine:
    """``gpu-51  WARNING   usable, 1 problem      p5.48xlarge · quarantine · healthd 0.2.0``."""
    return TextLine(
        f"{f'{node}  {state.upper():<8}  {message}':<{WIDTH}}  {' · '.join(fact for fact in facts if fact)}", level
    )


def cause_lines(
    causes: Sequence[Mapping[str, Any]], now: datetime, more: Mapping[str, Sequence[str]] | None = None
) -> Iterator[TextLine]:
    """The lines of each cause: code, devices and age; what its findings say; what to do about it.

    ``causes``: as ``cause_data`` has them. ``more``: further lines of a code, such as the decision about it.
    """
    more = more or {}
    code_width = max((len(each["code"]) for each in causes), default=0)
    where_width = min(max((len(each["where"]) for each in causes), default=0), 40)
    for each in causes:
        level: Level = each["severity"]
        since = datetime.fromisoformat(each["since"]) if each["since"] else None
        facts = (f"{each['code']:<{code_width}}", f"{each['where']:<{where_width}}",
                 f"since {age(since, now)}" if since else "optional" if each["optional"] else "")  # fmt: skip
        yield TextLine(f"  {SIGNS[level]} {'   '.join(facts)}".rstrip(), level)
        for text in (*each["messages"], *_beside(each), *more.get(each["code"], ())):
            yield TextLine(f"    {text}")
        if each["next_step"] and level != "info":
            yield TextLine(f"    do: {each['next_step']}")


def _beside(cause: Mapping[str, Any]) -> Iterator[str]:
    if cause["explains"]:
        yield f"explains {', '.join(cause['explains'])}"
    if cause["acknowledged"]:
        yield str(cause["acknowledged"])


def finding_lines(code: str, checks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """For ``-v``: each finding of a code by itself, with the component's own name and its check. ``checks``: as in
    ``healthd.verdict/v1``."""
    for check in checks:
        for found in check["findings"]:
            if found["code"] == code:
                yield f"{found['component']}  {found['message']}  [{check['name']}]"
