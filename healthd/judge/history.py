"""The fold of outcomes over time: the open faults, their ages, and the baselines of counters.

Pure: it takes ``now`` and limits as arguments and returns a new :class:`History`; it reads no clock and no file. The
store keeps the :class:`History`, and nothing else must survive a restart.

How a fault ends depends on its origin. A *level* (``clears_by`` None) ends when its check runs again, reads everything,
this fault's part too, and no longer reports it. A fault from the *log* ends by the evidence that its code names, and by
nothing else: age never clears it. *News* (``clears_by`` NOTHING) was never a state; it is listed for a day.

An *acknowledged* fault stays open: the operator knows of it, and the node stays in service all the same. The
acknowledgement ends with the fault, where it or what it explains gets worse, or at its own time. After the wall clock
was set every time is moved with it, so that ages stay right, and evidence that comes after a fault is later than the
fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.check import AnyLimit
from healthd.core.model import (
    NODE,
    REMEDY_RANK,
    SEVERITY_RANK,
    Clearance,
    ClearsBy,
    Component,
    Finding,
    Outcome,
    Reading,
    Remedy,
    Severity,
    Status,
)
from healthd.judge.clock import moved
from healthd.judge.findings import HeldDown, Sightings, count_of, there_of, wait, without_crowds, without_waiting
from healthd.judge.trends import MEMORY, Baseline, Days, Highest, Key, Window, judge_all

NEWS_IS_LISTED_FOR = timedelta(hours=24)
UNKNOWN_BOOT = "unknown"

# The faults that each kind of evidence ends, its own included. A reboot ends every job and resets every GPU; a reset
# does not reload the driver, and a driver reload does not activate a pending row remap (NVIDIA, "GPU memory error
# management": remaps are activated by a GPU reset).
_PROVES: Mapping[ClearsBy, frozenset[ClearsBy]] = {
    ClearsBy.NOTHING: frozenset(),
    ClearsBy.LOG_LINE: frozenset({ClearsBy.LOG_LINE}),
    ClearsBy.JOB_END: frozenset({ClearsBy.JOB_END}),
    ClearsBy.GPU_RESET: frozenset({ClearsBy.JOB_END, ClearsBy.GPU_RESET}),
    ClearsBy.DRIVER_RELOAD: frozenset({ClearsBy.JOB_END, ClearsBy.DRIVER_RELOAD}),
    ClearsBy.REBOOT: frozenset(ClearsBy) - {ClearsBy.NOTHING, ClearsBy.REPLACE},
    ClearsBy.REPLACE: frozenset(ClearsBy) - {ClearsBy.NOTHING},
}


def evidence_that_ends(clears_by: ClearsBy) -> tuple[ClearsBy, ...]:
    """The kinds of evidence that end a fault which waits for this one, the smallest first."""
    return tuple(evidence for evidence, ended in _PROVES.items() if clears_by in ended)


FaultKey = tuple[str, str]


class Fault(Struct, frozen=True, kw_only=True):
    """One fault that is not known to be over: all findings of one code on one component.

    ``count`` counts occurrences as the checks report them. ``acknowledged``: the operator knows of it and wants the
    node in service all the same, until the fault ends or gets worse, or ``acknowledged_until``; a fault that comes back
    is a new one.
    """

    code: str
    component: Component
    check: str
    severity: Severity
    remedy: Remedy
    message: str
    first: datetime
    last: datetime
    boot_id: str
    count: int = 1
    clears_by: ClearsBy | None = None
    symptom_of: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    acknowledged: bool = False
    acknowledged_until: datetime | None = None

    @property
    def key(self) -> FaultKey:
        """The identity of the fault: component and code."""
        return (str(self.component), self.code)


class History(Struct, frozen=True, kw_only=True):
    """Everything judgement remembers. ``names`` maps other names of a component to its canonical one.

    ``rates``, ``stalls`` and ``lasting`` live in memory only: they begin empty with the daemon, and take no part in
    equality, and so cause no write.
    """

    boot_id: str = ""
    instance_id: str = ""
    faults: Mapping[FaultKey, Fault] = field(default_factory=dict)
    names: Mapping[str, Component] = field(default_factory=dict)
    baselines: Mapping[Key, Baseline] = field(default_factory=dict)
    learned: Mapping[Key, Highest] = field(default_factory=dict)
    days: Mapping[Key, Days] = field(default_factory=dict)
    sightings: Mapping[FaultKey, Sightings] = field(default_factory=dict)
    rates: Mapping[Key, Window] = field(default_factory=dict)
    stalls: Mapping[Key, Window] = field(default_factory=dict)
    lasting: Mapping[FaultKey, tuple[str, datetime]] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and all(getattr(self, name) == getattr(other, name) for name in _KEPT)

    __hash__ = None  # type: ignore[assignment]


_KEPT = tuple(name for name in History.__struct_fields__ if name not in ("rates", "stalls", "lasting"))

# Everything that is kept by the name of a component, and renamed with it.
_BY_COMPONENT = (*MEMORY.values(), "sightings", "lasting")


class Change(Struct, frozen=True, kw_only=True):
    """A fault that opened or ended, and the sentence why: what the audit trail records."""

    fault: Fault
    opened: bool
    why: str


def observe(
    history: History, outcome: Outcome, limits: Iterable[AnyLimit], now: datetime
) -> tuple[History, tuple[Change, ...]]:
    """Fold one outcome in: learn names, judge readings, open and end faults, apply evidence that others are over.

    Clearances apply in the order of their time: a fault that is seen after the evidence stays open.
    """
    before = history
    history, proven = _learn_names(history, outcome)
    history, broken, undecided = _judge_readings(history, outcome.result.readings, limits, now)
    history, findings, repeated = _wait(history, outcome, [*outcome.result.findings, *broken], now)
    reported = {_key(history, finding) for finding in findings}
    history = _end_levels(history, outcome, undecided | repeated | reported)
    history, evident = _apply(history, outcome, findings)
    history, old = _forget_news(history, now)
    proven.update(evident)
    proven.update({change.fault.key: change.why for change in old})
    return history, _changes(before, history, f"{outcome.check} no longer sees it", proven)


def clear(history: History, clearance: Clearance) -> tuple[History, tuple[Change, ...]]:
    """Apply evidence that no check reports: a job's end, a finished repair."""
    after = _without(history, lambda fault: _proves_over(history, clearance, fault))
    return after, _changes(history, after, clearance.note or clearance.by)


def begin_boot(history: History, boot_id: str) -> tuple[History, tuple[Change, ...]]:
    """Enter a boot. A new boot id is evidence of a reboot; the first one ever seen is not. Levels stay until re-read.

    A boot id that could not be read (empty, or ``UNKNOWN_BOOT``) is evidence of nothing: the last known one stays.
    """
    if boot_id in ("", UNKNOWN_BOOT):
        return replace(history, boot_id=history.boot_id or boot_id), ()
    if history.boot_id in ("", UNKNOWN_BOOT, boot_id):
        return replace(history, boot_id=boot_id), ()
    rebooted = Clearance(by=ClearsBy.REBOOT, note=f"rebooted: boot id {history.boot_id} became {boot_id}")
    after = _without(history, lambda fault: _proves_over(history, rebooted, fault))
    return replace(after, boot_id=boot_id), _changes(history, after, rebooted.note)


def begin_instance(history: History, instance_id: str) -> tuple[History, tuple[Change, ...]]:
    """Enter an instance. A new id on an old disk is another machine: nothing learned or counted holds for it.

    An empty id (no cloud, or it could not be read) is evidence of nothing.
    """
    if instance_id in ("", history.instance_id):
        return history, ()
    if not history.instance_id:
        return replace(history, instance_id=instance_id), ()
    moved = Clearance(by=ClearsBy.REPLACE, note=f"instance {history.instance_id} became {instance_id}")
    faults = _without(history, lambda fault: _proves_over(history, moved, fault)).faults
    after = History(boot_id=history.boot_id, instance_id=instance_id, faults=faults)
    return after, _changes(history, after, moved.note)


def relearn(history: History, readings: Container[str]) -> History:
    """Forget the highest values of these readings: the operator confirms that the present values are right."""
    return replace(history, learned={key: each for key, each in history.learned.items() if key[1] not in readings})


def counted(history: History, outcome: Outcome) -> Outcome:
    """The outcome to show: without findings that wait to last or to repeat, which its reason names."""
    result = without_waiting(outcome.result, lambda each: _key(history, each) in history.faults)
    return outcome if result is outcome.result else replace(outcome, result=result)


def retire(
    history: History, enabled: Container[str], own_codes: Mapping[str, Container[str]] = MappingProxyType({})
) -> tuple[History, tuple[Change, ...]]:
    """Drop the faults of checks that no longer run here: no check would ever end them, and the operator disabled it.

    ``own_codes``: by check the codes that its settings give it. A fault of another code is of a rule, or a plug-in,
    that the operator took away.
    """
    gone = {key: "its check is no longer enabled" for key, each in history.faults.items() if each.check not in enabled}
    gone |= {
        key: "the configuration no longer has its rule or plug-in"
        for key, each in history.faults.items()
        if key not in gone and each.code not in own_codes.get(each.check, (each.code,))
    }
    after = _dropped(history, gone)
    return after, _changes(history, after, "", gone)


def canonical(history: History, component: Component) -> Component:
    """The stable name of a component, where a better one than its own has been learned."""
    return history.names.get(str(component), component)


# ---------------------------------------------------------------------------------------------------------------------
# names


def _learn_names(history: History, outcome: Outcome) -> tuple[History, dict[FaultKey, str]]:
    """Remember that ``gpu:0000:05:00`` is ``gpu:GPU-<uuid>``, and rename the former's memory.

    With it, the faults that end by that, and why: after a boot another GPU at the address of one that is gone has
    replaced it, also where the instance kept its id (EC2, stop and start). Where all are others, so are the disks.
    """
    result = outcome.result
    reported = (result.readings, result.findings, result.clearances)
    seen = {id(item.component): item.component for items in reported for item in items if item.component.aliases}
    new = {
        alias: component
        for component in seen.values()  # one object has many readings
        for alias in component.all_names()[1:]
        if not alias.rpartition(":")[2].isdigit() or alias.count(":") > 1  # an index names another GPU after a loss
    }
    before = history.names
    if changed := {
        alias: part
        for alias, part in new.items()
        if before.get(alias) != part or part.gpu_index not in (None, before[alias].gpu_index)
    }:
        history = _renamed(history, changed)
    if not (gone := _replaced(before, history, _gpus(new.values()))):
        return history, {}
    if history.names is not before:
        history = _without_others(history)
    known = _gpus(before.values())
    is_moved = bool(known) and gone >= known
    own, all_of_them = "since a boot another GPU is at its address", "since a boot every GPU is another"
    over = {
        key: own if fault.component in gone else all_of_them
        for key, fault in history.faults.items()
        if (is_moved or fault.component in gone) and _ended_with_its_machine(history, fault)
    }
    return _dropped(history, over), over


def _renamed(history: History, new: Mapping[str, Component]) -> History:
    history = replace(history, names=_with_one_index_each({**history.names, **new}, new))
    faults: dict[FaultKey, Fault] = {}
    for fault in history.faults.values():
        renamed = replace(fault, component=_known(history, fault.component))
        known = faults.get(renamed.key)
        faults[renamed.key] = renamed if known is None else _merge(known, renamed)
    memory: dict[str, Any] = {name: _rekeyed(history.names, getattr(history, name)) for name in _BY_COMPONENT}
    return replace(history, faults=faults, **memory)


def _with_one_index_each(names: Mapping[str, Component], new: Mapping[str, Component]) -> dict[str, Component]:
    """The names, in which an index is an alias of the GPU that answered last: it was another one's before a GPU was
    lost."""
    taken: dict[int | None, Component] = {part.gpu_index: part for part in new.values() if part.gpu_index is not None}

    def is_anothers(part: Component) -> bool:
        return taken.get(part.gpu_index, part) != part

    return {
        alias: replace(part, aliases=tuple(each for each in part.aliases if not each.isdigit()))
        if is_anothers(part)
        else part
        for alias, part in names.items()
    }


def _known(history: History, component: Component) -> Component:
    """The component with the aliases that are known of it: a line of the kernel's has no index."""
    part = canonical(history, component)
    return next((each for each in history.names.values() if each == part), part)


def _replaced(before: Mapping[str, Component], history: History, there: Set[Component]) -> Set[Component]:
    """The GPUs that are gone, now that those ``there`` answer: others have their addresses, whether since this outcome
    or since one in which only some answered. While fewer answer than were known, one that is missing may only have lost
    its address to another. ``before``: the names before this outcome."""
    gone = set[Component]()
    if not there:
        return gone
    if len(there) >= len(_gpus(before.values())):
        gone |= _gpus(part for alias, part in before.items() if history.names[alias] != part)
    if len(there) >= sum(part.kind == "gpu" for part in history.names.values()):
        broken = _gpus(fault.component for fault in history.faults.values())
        gone |= {part for part in broken if part.id.startswith("GPU-")} - _gpus(history.names.values())
    return gone - there


def _without_others(history: History) -> History:
    """The history without the memory of other GPUs than those of ``names``, and of their links: an instance that is
    stopped and started every day has other GPUs every day."""
    known = {part.id for part in _gpus(history.names.values())}

    def is_known(where: str) -> bool:
        gpu = where.partition(":")[2].partition("/")[0]
        return gpu in known or not gpu.startswith("GPU-")

    memory: dict[str, Any] = {
        name: {key: state for key, state in getattr(history, name).items() if is_known(key[0])}
        for name in _BY_COMPONENT
    }
    return replace(history, **memory)


def _gpus(parts: Iterable[Component]) -> set[Component]:
    return {part for part in parts if part.kind == "gpu"}


def _ended_with_its_machine(history: History, fault: Fault) -> bool:
    """Whether a fault of an earlier boot ends with another machine. Within a boot no GPU is exchanged."""
    return fault.boot_id != history.boot_id and fault.clears_by in _PROVES[ClearsBy.REPLACE]


def _rekeyed(names: Mapping[str, Component], memory: Mapping[Key, Any]) -> Mapping[Key, Any]:
    return {(str(names.get(where, where)), what): state for (where, what), state in memory.items()}


def _merge(known: Fault, other: Fault) -> Fault:
    """Two records of one fault become one: all occurrences, the worst remedy, and the strongest evidence to end it.

    One code may have a harmless and a fatal form (XID 74): a later harmless line weakens nothing, and an
    acknowledgement of the harmless form does not cover the fatal one.
    """
    both = (other, known)
    lead = max(both, key=lambda fault: (REMEDY_RANK[fault.remedy], fault.last))
    severity = max((fault.severity for fault in both), key=SEVERITY_RANK.__getitem__)
    seen = [each for each in both if each.acknowledged and (each.remedy, each.severity) == (lead.remedy, severity)]
    ends = [each.acknowledged_until for each in seen if each.acknowledged_until is not None]
    return replace(
        lead,
        severity=severity,
        first=min(fault.first for fault in both),
        last=max(fault.last for fault in both),
        count=known.count + other.count,
        clears_by=max((lead.clears_by, known.clears_by, other.clears_by), key=_hardness),
        acknowledged=bool(seen),
        acknowledged_until=max(ends, default=None) if len(ends) == len(seen) else None,
    )


def _hardness(by: ClearsBy | None) -> int:
    return -1 if by is None else len(_PROVES[by])


# ---------------------------------------------------------------------------------------------------------------------
# opening


def _key(history: History, finding: Finding) -> FaultKey:
    return (str(canonical(history, finding.component)), finding.code)


def _apply(history: History, outcome: Outcome, findings: Iterable[Finding]) -> tuple[History, dict[FaultKey, str]]:
    """Open and end faults, in the order of time, and why those ended that did."""
    signs: list[Clearance | Finding] = [*outcome.result.clearances, *findings]
    proven: dict[FaultKey, str] = {}
    if not signs:
        return history, proven
    in_order = sorted(signs, key=lambda sign: sign.time or outcome.at)
    for is_over, group in groupby(in_order, key=lambda sign: isinstance(sign, Clearance)):
        if not is_over:
            history = _open_all(history, (sign for sign in group if isinstance(sign, Finding)), outcome)
            continue
        for clearance in (sign for sign in group if isinstance(sign, Clearance)):
            history, over = clear(history, clearance)
            proven.update({change.fault.key: change.why for change in over})
    return history, proven


def _open_all(history: History, findings: Iterable[Finding], outcome: Outcome) -> History:
    faults = dict(history.faults)
    for finding in findings:
        fault = _fault(history, finding, outcome)
        known = faults.get(fault.key)
        faults[fault.key] = _opened(fault, known)
        if known is not None and fault.symptom_of and _is_worse(fault, known):
            faults.update(_not_acknowledged_any_more(faults, fault.symptom_of))
    return replace(history, faults=faults)


def _not_acknowledged_any_more(faults: Mapping[FaultKey, Fault], causes: Collection[str]) -> dict[FaultKey, Fault]:
    """The acknowledged faults of these codes, which the operator acknowledged for less than they now explain."""
    covered = ((key, fault) for key, fault in faults.items() if fault.acknowledged and fault.code in causes)
    return {key: replace(fault, acknowledged=False, acknowledged_until=None) for key, fault in covered}


def _fault(history: History, finding: Finding, outcome: Outcome) -> Fault:
    """The finding as a new fault."""
    time = finding.time or outcome.at
    return Fault(
        code=finding.code,
        component=_known(history, finding.component),
        check=outcome.check,
        severity=finding.severity,
        remedy=finding.remedy,
        message=finding.message,
        first=time,
        last=time,
        boot_id=history.boot_id,
        count=count_of(finding),
        clears_by=finding.clears_by,
        symptom_of=finding.symptom_of,
        evidence=finding.evidence,
    )


def _opened(fault: Fault, known: Fault | None) -> Fault:
    """The fault after this finding, merged with the known fault."""
    if known is None:
        return fault
    if known.clears_by is not None or fault.clears_by is not None:
        return _merge(known, fault)
    is_covered = known.acknowledged and not _is_worse(fault, known)
    fault = replace(fault, first=min(known.first, fault.first), boot_id=known.boot_id)
    if is_covered:
        fault = replace(fault, acknowledged=True, acknowledged_until=known.acknowledged_until)
    return fault


def _is_worse(fault: Fault, known: Fault) -> bool:
    return (
        REMEDY_RANK[fault.remedy] > REMEDY_RANK[known.remedy]
        or SEVERITY_RANK[fault.severity] > SEVERITY_RANK[known.severity]
        or _lost_more(fault, known)
    )


def _lost_more(fault: Fault, known: Fault) -> bool:
    """Whether fewer parts are there than before: an acknowledgement of seven GPUs of eight does not cover six."""
    now, before = there_of(fault.evidence), there_of(known.evidence)
    return now is not None and before is not None and now < before


def _judge_readings(
    history: History, readings: Sequence[Reading], limits: Iterable[AnyLimit], now: datetime
) -> tuple[History, list[Finding], set[FaultKey]]:
    """The findings of broken limits, and the faults of which it is undecided whether they are over."""
    if not readings:
        return history, [], set()
    memory = {name: getattr(history, name) for name in MEMORY.values()}
    result = judge_all(memory, readings, limits, lambda component: canonical(history, component), now)
    changed: dict[str, Any] = dict(result.changed)
    return (replace(history, **changed) if changed else history), result.findings, result.undecided


def _wait(
    history: History, outcome: Outcome, findings: list[Finding], now: datetime
) -> tuple[History, list[Finding], set[FaultKey]]:
    """Hold back findings that have not lasted, or repeated, long enough; of very many parts keep one finding."""
    if not (findings or history.lasting or history.sightings):
        return history, findings, set()
    before = HeldDown(lasting=history.lasting, sightings=history.sightings)
    keyed = [(_key(history, finding), finding) for finding in findings]
    if keyed:
        keyed = without_crowds(keyed, chain(history.faults, history.lasting, history.sightings))
    after, counting, staying = wait(
        before, keyed, check=outcome.check, open_faults=history.faults, saw_all=_saw_all(outcome), now=now
    )
    if after != before:
        history = replace(history, lasting=after.lasting, sightings=after.sightings)
    return history, counting, staying


# ---------------------------------------------------------------------------------------------------------------------
# ending


def _end_levels(history: History, outcome: Outcome, reported: set[FaultKey]) -> History:
    """End the levels of this check that it no longer reports, if it read everything."""
    if not _saw_all(outcome):
        return history
    not_reported = {(str(canonical(history, component)), code) for component, code in outcome.result.not_reported}
    silent, stays = {component for component, code in not_reported if not code}, reported | not_reported

    def is_over(fault: Fault) -> bool:
        is_level = fault.check == outcome.check and fault.clears_by is None
        return is_level and fault.key not in stays and not _belongs_to(fault.component, silent)

    return _without(history, is_over)


def _belongs_to(component: Component, silent: Set[str]) -> bool:
    """Whether a component is one of these or a part of one, such as ``nvlink:GPU-…/3`` of ``gpu:GPU-…``. The node is a
    part of any: a fault of all GPUs is also one of the silent GPU."""
    whole = component.id.partition("/")[0]
    return bool(silent) and (component == NODE or str(component) in silent or f"gpu:{whole}" in silent)


def _saw_all(outcome: Outcome) -> bool:
    result = outcome.result
    return result.is_whole and not (result.status is Status.NOT_APPLICABLE and result.is_expected)


def _proves_over(history: History, clearance: Clearance, fault: Fault) -> bool:
    """Whether this evidence ends that fault: strong enough, for its component, and not older than its last finding."""
    if clearance.time is not None and clearance.time < fault.last:
        return False
    if clearance.code and clearance.code != fault.code:
        return False
    where = canonical(history, clearance.component)
    if where not in (NODE, fault.component):
        return False
    if fault.clears_by is ClearsBy.NOTHING:
        return clearance.by is not ClearsBy.NOTHING
    return fault.clears_by in _PROVES[clearance.by]


def _forget_news(history: History, now: datetime) -> tuple[History, tuple[Change, ...]]:
    news = [(key, fault) for key, fault in history.faults.items() if fault.clears_by is ClearsBy.NOTHING]
    after = _dropped(history, [key for key, fault in news if now - fault.last > NEWS_IS_LISTED_FOR])
    return after, _changes(history, after, "news, which is listed for a day")


def _without(history: History, is_over: Callable[[Fault], bool]) -> History:
    return _dropped(history, [key for key, fault in history.faults.items() if is_over(fault)])


def _dropped(history: History, over: Collection[FaultKey]) -> History:
    """The history without these faults: nearly always there are none, of however many that are open."""
    if not over:
        return history
    kept = dict(history.faults)
    for key in over:
        del kept[key]
    return replace(history, faults=kept)


def _changes(
    before: History, after: History, why: str, proven: Mapping[FaultKey, str] = MappingProxyType({})
) -> tuple[Change, ...]:
    """The faults that opened and those that ended. A fault that only got a better name did neither; one that ended and
    came back, both.

    ``why``: the reason of each end without one in ``proven``.
    """
    if before.faults is after.faults:
        return ()
    was = _under_names_of(after, before)
    over = {key: fault for key, fault in was.items() if not _lives_on(fault, after.faults.get(key))}
    ended = [Change(fault=fault, opened=False, why=proven.get(key, why)) for key, fault in over.items()]
    if not over and len(was) == len(after.faults):
        return ()
    new = [(key, fault) for key, fault in after.faults.items() if key not in was or key in over]
    return (*ended, *(Change(fault=fault, opened=True, why=fault.message) for _, fault in new))


def _under_names_of(after: History, before: History) -> Mapping[FaultKey, Fault]:
    """The faults of a history by the names that a later one knows."""
    if before.names is after.names:
        return before.faults
    return {(str(canonical(after, fault.component)), fault.code): fault for fault in before.faults.values()}


def _lives_on(fault: Fault, later: Fault | None) -> bool:
    return later is fault or (later is not None and later.first <= fault.first)


# ---------------------------------------------------------------------------------------------------------------------
# acknowledged faults


def acknowledge(history: History, keys: Iterable[FaultKey], until: datetime | None = None) -> History:
    """Acknowledge open faults, until ``until`` or until they end. The newest command counts, longer or shorter.

    Keys that are not open are ignored: there is nothing to acknowledge.
    """
    faults = dict(history.faults)
    for key in keys:
        if key in faults:
            faults[key] = replace(faults[key], acknowledged=True, acknowledged_until=until)
    return replace(history, faults=faults)


def expire(history: History, now: datetime) -> tuple[History, tuple[Fault, ...]]:
    """End the acknowledgements whose time is over, and return their faults as they were."""
    over = tuple(fault for fault in history.faults.values() if fault.acknowledged and _is_over(fault, now))
    if not over:
        return history, ()
    back = {fault.key: replace(fault, acknowledged=False, acknowledged_until=None) for fault in over}
    return replace(history, faults={**history.faults, **back}), over


def worsened(before: History, after: History) -> tuple[Fault, ...]:
    """The faults that are no longer acknowledged because they got worse."""
    if before.faults is after.faults:
        return ()
    known = {key: fault for key, fault in before.faults.items() if fault.acknowledged}
    later = ((fault, after.faults.get(key)) for key, fault in known.items())
    return tuple(now for was, now in later if now is not None and _lives_on(was, now) and not now.acknowledged)


def holds_as_long(fault: Fault, until: datetime) -> bool:
    """Whether a fault is acknowledged until then already, or for longer."""
    return fault.acknowledged and (fault.acknowledged_until is None or fault.acknowledged_until >= until)


def faults_named(history: History, wanted: str) -> tuple[Fault, ...]:
    """The open faults that ``CODE`` or ``CODE@COMPONENT`` names; a component by any of its names."""
    code, _, where = wanted.partition("@")
    known = history.names.get(where)
    return tuple(
        fault
        for fault in history.faults.values()
        if fault.code == code and (not where or fault.component == known or where in fault.component.all_names())
    )


def acknowledged_text(fault: Fault) -> str:
    """``acknowledged until 2026-11-28 07:00 UTC``, or "" for a fault that is not acknowledged."""
    if not fault.acknowledged:
        return ""
    until = fault.acknowledged_until
    return f"acknowledged until {until:%Y-%m-%d %H:%M} UTC" if until else "acknowledged until it ends"


def _is_over(fault: Fault, now: datetime) -> bool:
    return fault.acknowledged_until is not None and fault.acknowledged_until <= now


# ---------------------------------------------------------------------------------------------------------------------
# the wall clock was set


def moved_fault(fault: Fault, by: timedelta, now: datetime) -> Fault:
    """The Fault with its times moved by ``by``, none later than ``now``."""
    return replace(fault, first=moved(fault.first, by, now), last=moved(fault.last, by, now))


def shifted(history: History, by: timedelta, now: datetime) -> History:
    """The History with its times moved by ``by``, none later than ``now``.

    Two times stay as they are: the end of an acknowledgement, which the operator gave by the right time; and since when
    a value is learned, from which nothing is counted. Faults of an earlier boot are not moved: its clock was another.
    """

    def seconds(at_s: float) -> float:
        return min(at_s + by.total_seconds(), now.timestamp())

    def window(known: Window) -> Window:
        marks = tuple((seconds(at_s), value) for at_s, value in known.marks)
        return replace(known, marks=marks, exceeded_s=seconds(known.exceeded_s))

    return replace(
        history,
        faults={
            key: moved_fault(fault, by if fault.boot_id == history.boot_id else timedelta(), now)
            for key, fault in history.faults.items()
        },
        days={key: replace(days, opened=moved(days.opened, by, now)) for key, days in history.days.items()},
        sightings={
            key: replace(known, seen=tuple((seconds(at_s), value) for at_s, value in known.seen))
            for key, known in history.sightings.items()
        },
        rates={key: window(known) for key, known in history.rates.items()},
        stalls={key: window(known) for key, known in history.stalls.items()},
        lasting={key: (check, moved(since, by, now)) for key, (check, since) in history.lasting.items()},
    )
