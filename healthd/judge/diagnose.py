"""From open faults to diagnoses: one per component, with the remedy that its root causes call for.

Pure. A fault that another open fault explains (its check says so in ``symptom_of``) is evidence for that one and calls
for nothing by itself: an ECC counter behind a contained XID 94, a missing GPU behind an XID 79, a silent NVML behind a
GSP timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from healthd.core.model import NODE, REMEDY_RANK, SEVERITY_RANK, Component, Diagnosis, Outcome, Root, Severity, Verdict
from healthd.judge.history import Fault, FaultKey, History


def diagnose(history: History) -> tuple[Diagnosis, ...]:
    """One diagnosis per component with an open fault, most far-reaching first."""
    faults = tuple(history.faults.values())
    cause = _causes(faults)
    roots: dict[str, list[Fault]] = {}
    symptoms: dict[str, list[Fault]] = {}
    for fault in faults:
        group = roots if cause[fault.key] is fault else symptoms
        group.setdefault(str(cause[fault.key].component), []).append(fault)
    found = [_fold(each, symptoms.get(where, [])) for where, each in roots.items()]
    return tuple(sorted(found, key=_urgency, reverse=True))


def acknowledged_parts(history: History, matters: Callable[[Fault], bool]) -> frozenset[Component]:
    """The components of which every fault that no other explains is acknowledged.

    Faults that do not matter (a job's own error) and symptoms of others call for nothing by themselves, so a later one
    does not undo the operator's command.
    """
    faults = tuple(history.faults.values())
    if not any(fault.acknowledged for fault in faults):  # as nearly always: the search for causes is expensive
        return frozenset()
    cause = _causes(faults)
    mine = [fault for fault in faults if cause[fault.key] is fault and matters(fault)]
    return frozenset(f.component for f in mine) - {f.component for f in mine if not f.acknowledged}


def judge(diagnoses: Iterable[Diagnosis], outcomes: Iterable[Outcome]) -> Verdict:
    """The node's verdict for a job. An unknown, or a gap, of an optional check does not count; neither does info."""
    severities = {diagnosis.severity for diagnosis in diagnoses}
    if Severity.CRITICAL in severities:
        return Verdict.CRITICAL
    if any(outcome.counts_as_unknown for outcome in outcomes):
        return Verdict.UNKNOWN
    return Verdict.WARNING if Severity.WARNING in severities else Verdict.OK


def roots_of(diagnosis: Diagnosis) -> tuple[Root, ...]:
    """The faults that nothing else explains; a diagnosis that names none has the one that it is called by."""
    if diagnosis.roots:
        return diagnosis.roots
    return (Root(code=diagnosis.code, severity=diagnosis.severity, remedy=diagnosis.remedy, since=diagnosis.since),)


def reasons_of(diagnosis: Diagnosis, index: int) -> tuple[str, ...]:
    """The messages of one root: ``diagnose`` puts those of the roots first, in their order, then the symptoms'."""
    if not diagnosis.roots:
        return diagnosis.reasons
    own = diagnosis.reasons[index : index + 1]
    return own if index else (*own, *diagnosis.reasons[len(diagnosis.roots) :])


def _causes(faults: Sequence[Fault]) -> Mapping[FaultKey, Fault]:
    """For every fault the root that explains it, itself if none does. Faults that explain each other are roots.

    Linear in the number of faults, however many explain however many.
    """
    present = _Present(faults)
    cause = {fault.key: fault for fault in faults if not present.explains(fault)}
    unexplained = _Unexplained((number, fault) for number, fault in enumerate(faults) if fault.key not in cause)
    frontier = list(cause.values())
    while frontier:
        known = frontier.pop()
        for fault in unexplained.taken_by(known):
            cause[fault.key] = cause[known.key]
            frontier.append(fault)
    return {fault.key: cause.get(fault.key, fault) for fault in faults}


class _Present:
    """Which codes are open, where: whether some other fault explains one, asked of all of them at once.

    Two parts of the same kind must be the same part; parts of different kinds (a GPU, the driver) may be related.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._keys: set[FaultKey] = set()
        self._kinds: dict[str, dict[str, Fault]] = {}
        for fault in faults:
            self._keys.add(fault.key)
            self._kinds.setdefault(fault.code, {})[fault.component.kind] = fault

    def explains(self, symptom: Fault) -> bool:
        """Whether a fault other than this one is its cause."""
        where, own = symptom.key
        return any(
            (code != own and (where, code) in self._keys)
            or any(
                kind != symptom.component.kind and _reaches(cause, symptom)
                for kind, cause in self._kinds.get(code, {}).items()
            )
            for code in symptom.symptom_of
        )


class _Unexplained:
    """Symptoms that wait for their cause: each is handed out once, to the first that explains it."""

    def __init__(self, faults: Iterable[tuple[int, Fault]]) -> None:
        self._at: dict[tuple[str, str], list[tuple[int, Fault]]] = {}
        self._of_kind: dict[str, dict[str, list[tuple[int, Fault]]]] = {}
        self._left: set[int] = set()
        for number, fault in faults:
            self._left.add(number)
            for code in fault.symptom_of:
                self._at.setdefault((code, str(fault.component)), []).append((number, fault))
                self._of_kind.setdefault(code, {}).setdefault(fault.component.kind, []).append((number, fault))

    def taken_by(self, cause: Fault) -> list[Fault]:
        """The symptoms that this fault explains and that no other has taken, in their order."""
        found = self._at.pop((cause.code, str(cause.component)), [])
        kinds = self._of_kind.get(cause.code, {})
        if cause.component == NODE:  # one fault of each code at most
            kinds = {kind: [each for each in waiting if _reaches(cause, each[1])] for kind, waiting in kinds.items()}
        for kind in [kind for kind in kinds if kind != cause.component.kind]:
            found = found + kinds.pop(kind)
        mine = {number: fault for number, fault in found if number in self._left}
        self._left -= mine.keys()
        return [mine[number] for number in sorted(mine)]


def _reaches(cause: Fault, symptom: Fault) -> bool:
    """Whether a fault may explain one of another kind of component.

    One of the node that does not say which of its devices it is about (one of them is missing), and that the operator
    has acknowledged, covers what began before it: a later fault of a device is most likely of another device.
    """
    is_known = cause.component == NODE and cause.acknowledged and not symptom.acknowledged
    return not (is_known and symptom.first > cause.first)


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
