"""Which findings of one check run count now, and under which names. Pure.

Three rules stand between a check and ``history``:

1. Lines that healthd's own GPU reset causes are no fault: it takes every NVLink down, and the switches log it.
2. The hold-down: a finding that must last, or repeat, is in no diagnosis until it has. ``history`` keeps its sightings;
   the beginning of one that must last is measured again by a new daemon. A fault that is open need not last or repeat.
3. Of one code on very many parts the first are faults by name, and all others are one finding on the node. A user may
   choose the name of a part (a mount, a process, a device in a kernel line), and each would be a fault of its own: they
   must not cost more memory than the hardware of a large node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.model import NODE, REMEDY_RANK, SEVERITY_RANK, Finding, Outcome, Remedy, Repeats, Result, Severity

# ---------------------------------------------------------------------------------------------------------------------
# healthd's own GPU reset


_OF_LINKS = r"nvswitch\..*|gpu\.nvlink\..*|gpu\.xid\.(74|14[4-9]|150)"
_LATE = timedelta(seconds=2)
"""By how much the time of a record, which counts from the boot, may differ from that of this process. After weeks it
differs by more: no time service corrects the clock of the kernel log (Linux, printk.c, local_clock). So what was read
within a reset is its own as well."""
_KEPT = 4


class OwnResets:
    """The resets that healthd made or is making, by the wall clock."""

    def __init__(self) -> None:
        self._spans: list[tuple[datetime, datetime | None]] = []

    def begin(self, at: datetime) -> None:
        """Note the beginning of a reset: findings about links from now on are its own."""
        self._spans = [*self._spans, (at, None)][-_KEPT:]

    def end(self, at: datetime) -> None:
        """Note the end of the reset that began last, whatever its result."""
        self._spans = [(began, ended or at) for began, ended in self._spans]

    def without(self, outcome: Outcome) -> tuple[Outcome, int]:
        """The outcome without the findings of a reset, and their number. XID 79 and the like remain: a reset that loses
        a GPU is news."""
        findings = tuple(each for each in outcome.result.findings if not self._is_own(each, outcome.at))
        dropped = len(outcome.result.findings) - len(findings)
        if not dropped:
            return outcome, 0
        return replace(outcome, result=outcome.result.with_findings(findings)), dropped

    def _is_own(self, finding: Finding, read: datetime) -> bool:
        if finding.time is None or not re.fullmatch(_OF_LINKS, finding.code):
            return False
        return any(
            began - _LATE <= at and (ended is None or at <= ended + _LATE)
            for began, ended in self._spans
            for at in (finding.time, read)
        )


# ---------------------------------------------------------------------------------------------------------------------
# the hold-down


Key = tuple[str, str]
"""A component's name and a code."""

_WAITING_NAMED = 8
"""How many waiting findings a reason names."""


class Sightings(Struct, frozen=True, kw_only=True):
    """The sightings of a finding that must repeat to count: (time, distinct value), oldest first."""

    check: str
    rule: Repeats
    seen: tuple[tuple[float, str], ...]


class HeldDown(Struct, frozen=True, kw_only=True):
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

    A fault that is open need not last or repeat again. A level is seen once by a check run, however many of its
    readings show it. ``saw_all``: a fault that this check does not report is over.
    """
    lasting, sightings = dict(waiting.lasting), dict(waiting.sightings)
    counting, reported = [], set()
    for key, finding in seen:
        is_again = key in reported and key in sightings and finding.clears_by is None
        reported.add(key)
        known_log_fault = finding.clears_by is not None and key in open_faults
        if finding.lasting_s and key not in open_faults:
            _, since = lasting.setdefault(key, (check, now))
            if (now - since).total_seconds() < finding.lasting_s:
                continue
        elif finding.repeats and not known_log_fault:
            if not is_again:
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
    more = [f"and {len(names) - _WAITING_NAMED} more"] if len(names) > _WAITING_NAMED else []
    reason = "; ".join([*([result.reason] if result.reason else []), *names[:_WAITING_NAMED], *more])
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
        return [""] * max(1, min(count_of(finding), rule.times))
    value = finding.evidence.get(rule.distinct, "")
    return [str(each) for each in value] or [""] if isinstance(value, list | tuple | frozenset) else [str(value)]


# ---------------------------------------------------------------------------------------------------------------------
# one code on very many parts


MOST = 64
"""Parts of one code that are faults under their own names."""
_PARTS_NAMED = 8
"""Parts that the finding on the node names."""


def without_crowds(seen: Iterable[tuple[Key, Finding]], known: Iterable[Key]) -> list[tuple[Key, Finding]]:
    """The findings of one check run, each with its key: of the parts of a code beyond ``MOST`` one finding, on the
    node.

    ``known``: the keys that are remembered already, which keep their names.
    """
    named: dict[str, set[str]] = {}
    for where, code in known:
        named.setdefault(code, set()).add(where)
    kept: list[tuple[Key, Finding]] = []
    crowds: dict[str, list[Finding]] = {}
    for (where, code), finding in seen:
        parts = named.setdefault(code, set())
        if where in parts or len(parts) < MOST:
            parts.add(where)
            kept.append(((where, code), finding))
        else:
            crowds.setdefault(code, []).append(finding)
    return [*_apart(kept, crowds), *(((str(NODE), code), _crowd(each)) for code, each in crowds.items())]


def _apart(kept: Iterable[tuple[Key, Finding]], crowds: dict[str, list[Finding]]) -> list[tuple[Key, Finding]]:
    """The findings outside a crowd. A finding on the node itself joins the crowd of its code, which is on the node."""
    apart = []
    for (where, code), finding in kept:
        if code in crowds and where == str(NODE):
            crowds[code].append(finding)
        else:
            apart.append(((where, code), finding))
    return apart


def _crowd(findings: Sequence[Finding]) -> Finding:
    """One finding on the node for all of these: it calls for the remedy of the worst of them."""
    worst = max(findings, key=lambda each: (REMEDY_RANK[each.remedy], SEVERITY_RANK[each.severity]))
    parts = list(dict.fromkeys(str(each.component) for each in findings))
    evidence: dict[str, Any] = {
        "components": parts[:_PARTS_NAMED],
        "parts": len(parts),
        "count": sum(map(count_of, findings)),
    }
    if pids := sorted(set(chain.from_iterable(named_pids(each.evidence) for each in findings))):
        evidence["pids"] = pids
    return replace(
        worst,
        component=NODE,
        severity=max((each.severity for each in findings), key=SEVERITY_RANK.__getitem__),
        message=f"on more than {MOST} parts, such as {worst.component}: {worst.message}",
        evidence=evidence,
        time=max((each.time for each in findings if each.time is not None), default=None),
    )


# ---------------------------------------------------------------------------------------------------------------------
# the evidence that history reads


def count_of(finding: Finding) -> int:
    """How often it was seen, by its evidence: 1 where that has no number."""
    count = finding.evidence.get("count", 1)
    return count if isinstance(count, int) else 1


def there_of(evidence: Mapping[str, Any]) -> float | None:
    """How many are there of the parts that must be, by the evidence of a level; None where that has no number."""
    found = evidence.get("found")
    if isinstance(found, list | tuple):
        return len(found)
    return found if isinstance(found, int | float) else None


def named_pids(evidence: Mapping[str, Any]) -> frozenset[int]:
    """The processes that an evidence names: several as ``pids``, or one as ``pid``."""
    pids = evidence.get("pids") or [evidence.get("pid")]
    return frozenset(pid for pid in pids if isinstance(pid, int)) if isinstance(pids, list | tuple) else frozenset()
