"""From open faults to diagnoses: one per component, with the remedy that its root causes call for.

Pure. A fault that another open fault explains (its check says so in ``symptom_of``) is evidence for that one and calls
for nothing by itself: an ECC counter behind a contained XID 94, a missing GPU behind an XID 79, a silent NVML behind a
GSP time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from healthd.history import Fault, History
from healthd.model import REMEDY_RANK, SEVERITY_RANK, Diagnosis, Outcome, Root, Severity, Verdict


def diagnose(history: History) -> tuple[Diagnosis, ...]:
    """One diagnosis per component with an open fault, most far-reaching first."""
    faults = tuple(history.faults.values())
    cause = _causes(faults)
    by_component: dict[str, list[Fault]] = {}
    for fault in faults:
        if cause[fault.key] is fault:
            by_component.setdefault(str(fault.component), []).append(fault)
    symptoms = [fault for fault in faults if cause[fault.key] is not fault]
    found = [_fold(roots, [s for s in symptoms if cause[s.key] in roots]) for roots in by_component.values()]
    return tuple(sorted(found, key=_urgency, reverse=True))


def is_acknowledged(history: History, diagnosis: Diagnosis, matters: Callable[[Fault], bool]) -> bool:
    """Whether a person has seen every fault behind this diagnosis and put the node back all the same.

    Faults that do not matter (a job's own error) and symptoms of others call for nothing by themselves, so
    one that comes later takes no order back.
    """
    faults = tuple(history.faults.values())
    if not any(fault.acknowledged for fault in faults):  # as nearly always: whose fault is whose is dear to tell
        return False
    cause = _causes(faults)
    mine = [
        fault
        for fault in faults
        if cause[fault.key] is fault and fault.component == diagnosis.component and matters(fault)
    ]
    return bool(mine) and all(fault.acknowledged for fault in mine)


def judge(diagnoses: Iterable[Diagnosis], outcomes: Iterable[Outcome]) -> Verdict:
    """The node's state for a job. An unknown, or a gap, of an optional check does not count; neither does info."""
    severities = {diagnosis.severity for diagnosis in diagnoses}
    if Severity.CRITICAL in severities:
        return Verdict.CRITICAL
    if any(outcome.counts_as_unknown for outcome in outcomes):
        return Verdict.UNKNOWN
    return Verdict.WARNING if Severity.WARNING in severities else Verdict.OK


def _causes(faults: Sequence[Fault]) -> Mapping[tuple[str, str], Fault]:
    """For every fault the root that explains it, itself if none does. Faults that explain each other are roots."""
    cause = {fault.key: fault for fault in faults if not any(_explains(other, fault) for other in faults)}
    frontier = list(cause.values())
    while frontier:
        known = frontier.pop()
        for fault in faults:
            if fault.key not in cause and _explains(known, fault):
                cause[fault.key] = cause[known.key]
                frontier.append(fault)
    return {fault.key: cause.get(fault.key, fault) for fault in faults}


def _explains(cause: Fault, symptom: Fault) -> bool:
    """Two parts of the same kind must be the same part; parts of different kinds (a GPU, the driver) may be related."""
    if cause.code not in symptom.symptom_of or cause is symptom:
        return False
    return cause.component.kind != symptom.component.kind or cause.component == symptom.component


def _fold(roots: Sequence[Fault], symptoms: Sequence[Fault]) -> Diagnosis:
    ranked = sorted(roots, key=lambda f: (REMEDY_RANK[f.remedy], SEVERITY_RANK[f.severity], f.last), reverse=True)
    primary, everything = ranked[0], (*ranked, *symptoms)
    return Diagnosis(
        code=primary.code,
        component=primary.component,
        severity=max((f.severity for f in roots), key=SEVERITY_RANK.__getitem__),
        remedy=primary.remedy,
        reasons=tuple(fault.message for fault in everything),
        since=min(fault.first for fault in everything),
        codes=tuple(dict.fromkeys(fault.code for fault in everything)),
        roots=tuple(Root(code=f.code, severity=f.severity, remedy=f.remedy, since=f.first) for f in ranked),
    )


def _urgency(diagnosis: Diagnosis) -> tuple[int, int, str]:
    return (REMEDY_RANK[diagnosis.remedy], SEVERITY_RANK[diagnosis.severity], str(diagnosis.component))
