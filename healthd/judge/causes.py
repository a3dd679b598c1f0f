"""The causes of a node's state: the findings of one code are one cause, with its devices as a range. Pure.

Every surface shows these: ``healthd check``, ``status``, ``plan``, the page and the messages. ``--json`` and ``-v``
show each finding by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from healthd.core.model import SEVERITY_RANK, Component, Diagnosis, Outcome, Remedy, Severity
from healthd.core.name_lists import number_of
from healthd.judge.devices import DeviceNames, device_range, folded_about, folded_texts
from healthd.judge.diagnose import reasons_of, roots_of
from healthd.judge.history import Fault, FaultKey, acknowledged_text

_MOST_WORDS = 2
"""Sentences of one cause that are shown: its findings differ in more than a device and numbers, which is rare."""


class Cause(Struct, frozen=True, kw_only=True):
    """One cause. ``severity``: of the worst finding; None where checks are unknown, and ``code`` is the first check.

    ``where``: its devices as a range, "" for the whole node, or how many more checks are unknown for the same reason.
    ``messages``: of its findings. ``remedy``: what the worst one calls for. ``explains``: codes that are open
    because of it. ``optional``: an unknown that does not count. ``components``: its devices by their own names.
    ``checks``: the checks that are unknown. ``do``: the operator's next step about them, "" where `healthd doctor`
    names it.
    """

    code: str
    severity: Severity | None
    where: str
    messages: tuple[str, ...]
    remedy: Remedy = Remedy.NONE
    since: datetime | None = None
    explains: tuple[str, ...] = ()
    acknowledged: str = ""
    optional: bool = False
    components: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    do: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether it is a finding that is more than news."""
        return self.severity in (Severity.WARNING, Severity.CRITICAL)


class _Part(Struct, frozen=True, kw_only=True):
    """One finding of a cause: at its component, with the codes that it explains."""

    code: str
    component: Component
    severity: Severity
    remedy: Remedy
    since: datetime
    message: str
    explains: tuple[str, ...] = ()


def causes_of(diagnoses: Iterable[Diagnosis], faults: Iterable[Fault], names: DeviceNames) -> tuple[Cause, ...]:
    """The causes behind these diagnoses, the worst first; of the same severity in the order of the diagnoses.

    ``faults``: the open ones, which say what is acknowledged. One that no diagnosis has stands for itself.
    """
    open_now = {fault.key: fault for fault in faults}
    parts = [part for diagnosis in diagnoses for part in _parts(diagnosis)]
    known = {code for part in parts for code in (part.code, *part.explains)}
    parts += [_of_fault(fault) for fault in open_now.values() if fault.code not in known]
    by_code: dict[str, list[_Part]] = {}
    for part in parts:
        by_code.setdefault(part.code, []).append(part)
    found = [_cause(code, members, open_now, names) for code, members in by_code.items()]
    return tuple(sorted(found, key=lambda each: -SEVERITY_RANK[each.severity] if each.severity else 0))


def unknowns_of(outcomes: Iterable[Outcome], names: DeviceNames) -> tuple[Cause, ...]:
    """The checks that are unknown, each reason once: a missing driver makes a dozen checks unknown. Those that count
    come first."""
    by_reason: dict[tuple[bool, str], list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.result.is_whole:
            by_reason.setdefault((outcome.optional, _reason(outcome, names)), []).append(outcome)
    found = [
        Cause(
            code=same[0].check,
            severity=None,
            where=f"and {number_of(len(same) - 1, 'more check')}" if len(same) > 1 else "",
            messages=(reason,),
            optional=optional,
            checks=tuple(each.check for each in same),
            do=_do(same),
        )
        for (optional, reason), same in by_reason.items()
    ]
    return tuple(sorted(found, key=lambda each: each.optional))


# ---------------------------------------------------------------------------------------------------------------------


def _parts(diagnosis: Diagnosis) -> Iterator[_Part]:
    """A part for each fault that nothing else explains; the first has what they explain."""
    roots = roots_of(diagnosis)
    own = {root.code for root in roots}
    symptoms = tuple(code for code in diagnosis.codes if code not in own)
    for index, root in enumerate(roots):
        yield _Part(
            code=root.code,
            component=diagnosis.component,
            severity=root.severity,
            remedy=root.remedy,
            since=root.since,
            message=next(iter(reasons_of(diagnosis, index)), ""),
            explains=() if index else symptoms,
        )


def _of_fault(fault: Fault) -> _Part:
    return _Part(
        code=fault.code,
        component=fault.component,
        severity=fault.severity,
        remedy=fault.remedy,
        since=fault.first,
        message=fault.message,
    )


def _cause(code: str, parts: Sequence[_Part], open_now: Mapping[FaultKey, Fault], names: DeviceNames) -> Cause:
    worst, *_ = ordered = sorted(parts, key=lambda part: (-SEVERITY_RANK[part.severity], _place(part, names)))
    reported = folded_about((names.of(part.component), names.plain(part.message)) for part in ordered)
    words = [
        each.text if len(reported) == 1 or not each.devices else f"{each.devices}: {each.text}" for each in reported
    ]
    left = len(words) - _MOST_WORDS
    return Cause(
        code=code,
        severity=worst.severity,
        where=device_range(names.of(part.component) for part in ordered),
        messages=(*words[:_MOST_WORDS], *([f"and {left} more; see -v"] if left > 0 else ())),
        remedy=worst.remedy,
        since=min(part.since for part in parts),
        explains=tuple(dict.fromkeys(symptom for part in parts for symptom in part.explains)),
        acknowledged=_acknowledged(parts, open_now, names),
        components=tuple(str(part.component) for part in ordered),
    )


def _place(part: _Part, names: DeviceNames) -> tuple[int, str]:
    """GPU 2 before GPU 10."""
    return len(names.of(part.component)), names.of(part.component)


def _acknowledged(parts: Sequence[_Part], open_now: Mapping[FaultKey, Fault], names: DeviceNames) -> str:
    """Until when an operator knows of it; the devices, where that is not so of all of them."""
    by_text: dict[str, list[str]] = {}
    for part in parts:
        fault = open_now.get((str(part.component), part.code))
        if fault is not None and fault.acknowledged:
            by_text.setdefault(acknowledged_text(fault), []).append(names.of(part.component))
    return "; ".join(
        text if len(devices) == len(parts) else f"{device_range(devices)} {text}" for text, devices in by_text.items()
    )


def _do(outcomes: Sequence[Outcome]) -> str:
    """The next step that the first run names which could read nothing. Where each has read a part, nothing is missing:
    the check says what it reads."""
    whole = next((each for each in outcomes if not each.result.undecided), None)
    if whole is not None:
        return whole.result.do
    return f"a part did not answer; see what the check reads: `healthd explain {outcomes[0].check}`"


def _reason(outcome: Outcome, names: DeviceNames) -> str:
    """Why a check is unknown: a value that it could not read of many devices stands there once."""
    undecided = outcome.result.undecided
    rest = outcome.result.reason.removeprefix("; ".join(undecided)).lstrip("; ") if undecided else outcome.result.reason
    reported = [each.text for each in folded_texts(names.plain(gap) for gap in undecided)]
    return "; ".join([*reported, *([names.plain(rest)] if rest else [])]) or "undecided"
