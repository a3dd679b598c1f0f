"""The hold-down: a finding that must last, or repeat, before it counts is in no diagnosis until then.

Pure. It takes its memory, one check run's findings, and ``now``, and returns the findings that count. ``history`` keeps
the memory: sightings of findings that must repeat are stored; the beginning of a finding that must last is not, and is
measured again by a new daemon. A fault that is open need not last or repeat again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from healthd.core.model import (
    REMEDY_RANK,
    SEVERITY_RANK,
    Finding,
    Remedy,
    Repeats,
    Result,
    Severity,
)

Key = tuple[str, str]
"""A component's name and a code."""

_NAMED = 8
"""How many waiting findings a reason names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sightings:
    """The sightings of a finding that must repeat to count: (time, distinct value), oldest first."""

    check: str
    rule: Repeats
    seen: tuple[tuple[float, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldDown:
    """The findings that do not count yet: since when its check reports each, or when it was seen."""

    lasting: Mapping[Key, tuple[str, datetime]] = field(default_factory=dict)
    sightings: Mapping[Key, Sightings] = field(default_factory=dict)


def wait(
    waiting: HeldDown,
    seen: Iterable[tuple[Key, Finding]],
    *,
    check: str,
    open_faults: Container[Key],
    saw_all: bool,
    now: datetime,
) -> tuple[HeldDown, list[Finding], set[Key]]:
    """The findings of a check run that count now; with them, the faults that stay although this run has no news of
    them.

    A fault that is open need not last or repeat again. ``saw_all``: a fault that this check does not report is over.
    """
    lasting, sightings = dict(waiting.lasting), dict(waiting.sightings)
    counting, reported = [], set()
    for key, finding in seen:
        reported.add(key)
        known_log_fault = finding.clears_by is not None and key in open_faults
        if finding.lasting_s and key not in open_faults:
            _, since = lasting.setdefault(key, (check, now))
            if (now - since).total_seconds() < finding.lasting_s:
                continue
        elif finding.repeats and not known_log_fault:
            sightings[key] = _sighted(sightings.get(key), finding, finding.repeats, check, now)
            if not _has_repeated(sightings[key], now if finding.clears_by is None else None):
                continue
            if finding.clears_by is not None:
                del sightings[key]  # once it is over, it must repeat as often again
        counting.append(finding)
        lasting.pop(key, None)
    if saw_all:
        lasting = {key: each for key, each in lasting.items() if key in reported or each[0] != check}
    sightings = {key: each for key, each in sightings.items() if not _is_over(each, now)}
    staying = {key for key, each in sightings.items() if each.check == check and _has_repeated(each, now)}
    return HeldDown(lasting=lasting, sightings=sightings), counting, staying


def seen_once(finding: Finding) -> Finding:
    """The finding for a single check run, which cannot wait: one that must last is a warning to watch at most."""
    if not finding.lasting_s:
        return finding
    return replace(
        finding,
        message=f"{finding.message} (seen once; it counts after {finding.lasting_s:g} s)",
        severity=min(finding.severity, Severity.WARNING, key=SEVERITY_RANK.__getitem__),
        remedy=min(finding.remedy, Remedy.WATCH, key=REMEDY_RANK.__getitem__),
        lasting_s=0.0,
    )


def without_waiting(result: Result, is_open: Callable[[Finding], bool]) -> Result:
    """The result without findings that wait to last or to repeat; its reason names them."""
    waits = [each for each in result.findings if (each.lasting_s or each.repeats) and not is_open(each)]
    if not waits:
        return result
    waiting = {id(each) for each in waits}
    findings = tuple(each for each in result.findings if id(each) not in waiting)
    names = list(dict.fromkeys(f"{each.code} on {each.component} does not count yet" for each in waits))
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    reason = "; ".join([*([result.reason] if result.reason else []), *names[:_NAMED], *more])
    return replace(result.with_findings(findings), reason=reason)


def _sighted(known: Sightings | None, finding: Finding, rule: Repeats, check: str, now: datetime) -> Sightings:
    """The sightings with this one, without those that are too old for a window with the newest."""
    at = (finding.time or now).timestamp()
    seen = sorted([*(known.seen if known else ()), *((at, value) for value in _values(finding, rule))])
    if rule.distinct:
        seen = sorted((when, value) for value, when in {value: when for when, value in seen}.items())
    kept = [mark for mark in seen if mark[0] >= seen[-1][0] - rule.window_s][-rule.times :]
    return Sightings(check=check, rule=rule, seen=tuple(kept))


def _has_repeated(known: Sightings, until: datetime | None = None) -> bool:
    """Whether it was seen often enough within the window that ends ``until``, or with the newest sighting."""
    end = known.seen[-1][0] if until is None else until.timestamp()
    return sum(when >= end - known.rule.window_s for when, _ in known.seen) >= known.rule.times


def _is_over(known: Sightings, now: datetime) -> bool:
    return known.seen[-1][0] < now.timestamp() - known.rule.window_s


def _values(finding: Finding, rule: Repeats) -> list[str]:
    """The sightings of one finding: one for each distinct value, or as many as it counts."""
    if not rule.distinct:
        count = finding.evidence.get("count", 1)
        return [""] * (max(1, min(count, rule.times)) if isinstance(count, int) else 1)
    value = finding.evidence.get(rule.distinct, "")
    return [str(each) for each in value] or [""] if isinstance(value, list | tuple | frozenset) else [str(value)]
