"""The daemon's view of the node: the fold of all outcomes, kept in memory and on disk together.

It joins the threads that observe (checks, kernel log) with those that act or answer (engine, API): every method is
short, takes one lock, and does no I/O but the store's. Judgement itself is in ``history`` and ``diagnose``. The
stats of check runs and of faults are for the metrics page.

If the disk refuses, outcomes stay in memory and are written as soon as possible. No fault is lost, the audit trail says
how many of its lines did not fit into memory, and the engine does not act meanwhile, because it cannot write its intent
either.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.check import Check, Learned
from healthd.core.errors import StoreError
from healthd.core.json_documents import json_fields
from healthd.core.model import (
    NODE,
    Clearance,
    ClearsBy,
    Component,
    Diagnosis,
    Event,
    Outcome,
    Remedy,
    Severity,
    Status,
    Verdict,
)
from healthd.judge.clock import moved
from healthd.judge.devices import DeviceNames, device_names
from healthd.judge.diagnose import acknowledged_parts, diagnose, judge
from healthd.judge.findings import named_pids, seen_once
from healthd.judge.history import (
    Change,
    Fault,
    FaultKey,
    History,
    acknowledge,
    begin_boot,
    begin_instance,
    clear,
    counted,
    expire,
    holds_as_long,
    moved_fault,
    observe,
    relearn,
    retire,
    shifted,
    worsened,
)
from healthd.judge.trends import Highest, Key

if TYPE_CHECKING:  # a monitor in memory needs neither a policy nor SQLite
    from healthd.remediation.decide.rules import Policy
    from healthd.state.recent_readings import RecentReadings
    from healthd.state.store import Store

_PENDING_EVENTS = 10_000
_ENDED_FAULTS = 500
_CURSOR_EVERY_S = 60.0


class _Judgement(Struct, frozen=True, kw_only=True):
    """The judgement of these faults: the diagnoses, and the components whose faults the operator has acknowledged."""

    faults: Mapping[FaultKey, Fault]
    diagnoses: tuple[Diagnosis, ...]
    acknowledged: frozenset[Component]


class Monitor:
    """The state of one node, as judged. ``store`` None keeps it in memory only: ``healthd check`` without a daemon.

    ``policy`` says which faults keep jobs off the node; None: each finding's own remedy. ``unkept``: why the contents
    of the store do not last; "" where they do. ``recent``: the kept readings; None: none are.
    """

    def __init__(
        self,
        checks: Mapping[str, Check],
        store: Store | None,
        *,
        changed: Callable[[], None] = lambda: None,
        policy: Policy | None = None,
        unkept: str = "",
        recent: RecentReadings | None = None,
    ) -> None:
        self.unkept, self.recent = unkept, recent
        self._checks, self._store, self._changed, self._policy = checks, store, changed, policy
        self._lock = threading.RLock()
        self._history = self._saved = store.history() if store else History()
        self._unseen = frozenset(self._history.faults)  # read from the disk, and found by no check run since
        self._cursor = store.cursor() if store else None
        self._cursor_at = store.cursor_at() if store else None
        self._journal_cursor = store.journal_cursor() if store else ""
        self._cursor_saved_at = datetime.min.replace(tzinfo=UTC)
        self._outcomes: dict[str, Outcome] = {}
        self._reported: dict[str, tuple[Status, bool]] = {}
        self.stats = CheckStats()
        self._pending: deque[Event] = deque()
        self._ended = deque(_ended_before(store, self._history) if store else (), maxlen=_ENDED_FAULTS)
        self._dropped = 0
        self._judged = self._judge(self._history)
        self.store_problem = unkept

    # -- outcomes and evidence ----------------------------------------------------------------------------------------

    def begin_boot(self, boot_id: str, now: datetime) -> None:
        """Enter a boot: a new boot id ends what a reboot ends. A time that is still to come is of before the clock was
        set back, while no daemon ran."""
        with self._lock:
            self._fold(*begin_boot(shifted(self._history, timedelta(), now), boot_id), now)

    def retire(self, now: datetime, own_codes: Mapping[str, Collection[str]] | None = None) -> None:
        """Forget the faults of checks that were disabled or removed since: disabling a check ends its false alarms, as
        taking away a rule or a plug-in ends those of its code. ``own_codes``: by check the codes that it has by its
        settings."""
        with self._lock:
            self._fold(*retire(self._history, self._checks, own_codes or {}), now)

    def begin_instance(self, instance_id: str, now: datetime) -> None:
        """Enter an instance: a new instance id drops everything learned or counted on the old one."""
        with self._lock:
            self._fold(*begin_instance(self._history, instance_id), now)

    def absorb(self, outcome: Outcome, *, past: bool = False, paused: bool = False) -> tuple[Change, ...]:
        """Fold one outcome in. ``past``: the outcome is about an earlier boot, and is no check run on this one.
        ``paused``: the outcome is not whole because healthd itself has paused a source. It keeps the last readings, and
        adds no line to the audit trail: the pause has its own.
        """
        return self.absorb_batch((outcome,), past=past, paused=paused)

    def absorb_batch(
        self,
        outcomes: Sequence[Outcome],
        *,
        cursor: tuple[str, int] | None = None,
        read_until: datetime | None = None,
        journal_cursor: str = "",
        past: bool = False,
        paused: bool = False,
    ) -> tuple[Change, ...]:
        """Fold the outcomes of one batch of log lines in, and save them at once with the place where the batch ends:
        ``cursor``, its last kernel record, or ``journal_cursor``, the journal's line. ``read_until``: the batch and
        those before it hold every kernel record of before then; None: that is not known.
        """
        with self._lock:
            history, changes, events = self._history, list[Change](), list[Event]()
            for each in outcomes:
                outcome = self._seen_once(each)
                limits = self._checks[outcome.check].limits if outcome.check in self._checks else ()
                before = history.faults
                history, changed = observe(history, outcome, limits, outcome.at)
                self._unseen = frozenset(key for key in self._unseen if _is_as_before(history.faults, before, key))
                changes += changed
                if not past:
                    events += self._remember(
                        history, counted(history, outcome), is_kept=paused and not outcome.result.is_whole
                    )
            self._cursor, self._cursor_at = cursor or self._cursor, read_until or self._cursor_at
            self._journal_cursor = journal_cursor or self._journal_cursor
            self._fold(history, tuple(changes), outcomes[-1].at, events)
        return tuple(changes)

    def _seen_once(self, outcome: Outcome) -> Outcome:
        """The outcome; of a check run without a store, in which nothing can last, with findings that do not wait."""
        if self._store is not None:
            return outcome
        findings = tuple(map(seen_once, outcome.result.findings))
        return replace(outcome, result=replace(outcome.result, findings=findings))

    def _remember(self, history: History, outcome: Outcome, *, is_kept: bool) -> tuple[Event, ...]:
        """Keep the outcome as the check's last one; return an event if its status differs from the last event's."""
        self.stats.ran(outcome)
        if self.recent is not None:
            self.recent.add(outcome)
        name, before = outcome.check, self._outcomes.get(outcome.check)
        self._outcomes[name] = outcome.keeping(before) if is_kept and before is not None else outcome
        status = outcome.result.status
        if status is Status.OK and _has_open(history, name):  # a fault from the log, which a check run does not end
            status = Status.FINDINGS
        reported = (status, bool(outcome.result.undecided))
        if (is_kept and before is not None) or self._reported.get(name) == reported:
            return ()
        self._reported[name] = reported
        reason = f": {outcome.result.reason}" if outcome.result.reason else ""
        return (Event(at=outcome.at, kind="check", text=f"{name} is {status}{reason}"),)

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Apply evidence from elsewhere than a check, such as the end of a job."""
        with self._lock:
            self._fold(*clear(self._history, clearance), now)

    def clock_was_set(self, by: timedelta, now: datetime, message: str) -> None:
        """Move every stored time with the wall clock, which was set by ``by``, and record ``message`` in the audit
        trail. The lines of the trail keep their times."""
        with self._lock:
            self._outcomes = {
                name: replace(
                    outcome, at=moved(outcome.at, by, now), read_at=outcome.read_at and moved(outcome.read_at, by, now)
                )
                for name, outcome in self._outcomes.items()
            }
            self.stats.clock_was_set(by, now)
            ended = ((moved(at, by, now), moved_fault(each, by, now)) for at, each in self._ended)
            self._ended = deque(ended, maxlen=_ENDED_FAULTS)
            if self.recent is not None:
                self.recent.shift(by)
            self._cursor_at = self._cursor_at and moved(self._cursor_at, by, now)
            self._cursor_saved_at = datetime.min.replace(tzinfo=UTC)  # due
            self._fold(shifted(self._history, by, now), (), now, [Event(at=now, kind="daemon", text=message)])

    def record(self, event: Event) -> None:
        """Add a line to the audit trail; if the disk refuses, it is kept and written later."""
        with self._lock:
            self._queue(event)
            self._save(event.at)

    def flush(self, now: datetime) -> None:
        """Write everything that is not on disk yet, and the cursor if it is due. End acknowledgements whose time is
        over."""
        with self._lock:
            self._fold(self._history, (), now)
            if self._pending or self._saved != self._history or self._cursor_is_due(now):
                self._save(now)

    # -- the state ----------------------------------------------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        return self._history.boot_id

    @property
    def cursor(self) -> tuple[str, int] | None:
        """The kernel record up to which everything was folded in."""
        return self._cursor

    @property
    def cursor_at(self) -> datetime | None:
        """Every kernel record of before then was judged; None where that was never known."""
        return self._cursor_at

    @property
    def journal_cursor(self) -> str:
        """The journal's line up to which everything was folded in; "" where none was."""
        return self._journal_cursor

    @property
    def history(self) -> History:
        """The state of judgement; immutable, so it may be read without the lock."""
        return self._history

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        return self._judgement().diagnoses

    def is_acknowledged(self, diagnosis: Diagnosis) -> bool:
        """Whether the operator has acknowledged every fault of this diagnosis's component."""
        return diagnosis.component in self._judgement().acknowledged

    def acknowledge(self, *, by: datetime, now: datetime, why: str) -> None:
        """Acknowledge every fault that was open ``by`` then until it ends: a command is about the whole node."""
        with self._lock:
            known = [fault for fault in self._history.faults.values() if fault.first <= by]
            keys = [each.key for each in known if not each.acknowledged or each.acknowledged_until is not None]
            events = [
                Event(at=now, kind="fault", text=f"acknowledged {code} on {where}: {why}") for where, code in keys
            ]
            self._fold(acknowledge(self._history, keys), (), now, events)

    def acknowledge_shown(
        self, code: str, component: str, *, by: datetime, until: datetime, now: datetime, why: str
    ) -> None:
        """Acknowledge the faults that the operator knew: this one, and those that were open at ``by``. A critical one
        until ``until`` at most, others until they end; a longer acknowledgement from before stays."""
        with self._lock:
            shown = [
                fault
                for fault in self._history.faults.values()
                if fault.first <= by or (fault.code == code and component in fault.component.all_names())
            ]
            open_now = [fault for fault in shown if not holds_as_long(fault, until)]
            critical = [fault.key for fault in open_now if fault.severity is Severity.CRITICAL]
            others = [fault.key for fault in open_now if fault.severity is not Severity.CRITICAL]
            lasts = f" until {until:%Y-%m-%d %H:%M:%S} UTC"
            events = [
                Event(at=now, kind="fault", text=f"acknowledged {what} on {where}{message}: {why}")
                for keys, message in ((critical, lasts), (others, ""))
                for where, what in keys
            ]
            history = acknowledge(acknowledge(self._history, critical, until), others)
            self._fold(history, (), now, events)

    def acknowledge_until(self, keys: Iterable[FaultKey], until: datetime, now: datetime, why: str) -> None:
        """Acknowledge these faults until then, or until they end; ``until`` now ends it. The audit trail keeps who and
        why."""
        with self._lock:
            open_now = [key for key in keys if key in self._history.faults]
            texts = (
                f"acknowledged {code} on {at} until {until:%Y-%m-%d %H:%M:%S} UTC: {why}"
                if until > now
                else f"{code} on {at} counts again: {why}"
                for at, code in open_now
            )
            events = [Event(at=now, kind="fault", text=text) for text in texts]
            self._fold(acknowledge(self._history, open_now, until), (), now, events)
        self._changed()

    def learned(self, names: Iterable[str]) -> Mapping[Key, Highest]:
        """The highest values that these checks have learned on this instance, by component and reading."""
        readings = self._learning(names)
        return {key: best for key, best in sorted(self._history.learned.items()) if key[1] in readings}

    def relearn(self, names: Iterable[str], now: datetime, why: str) -> Mapping[Key, Highest]:
        """Forget what these checks have learned, and return it: their next run learns from the node as it is."""
        names = tuple(names)
        with self._lock:
            forgotten = self.learned(names)
            was = ", ".join(f"{reading} {best.value:g} of {where}" for (where, reading), best in forgotten.items())
            text = f"healthd relearn: {why}; forgotten: {was or 'nothing'}"
            self._fold(
                relearn(self._history, self._learning(names)), (), now, [Event(at=now, kind="daemon", text=text)]
            )
        return forgotten

    def device_names(self) -> DeviceNames:
        """The operator's names of this node's devices."""
        return device_names(self.outcomes(), self.history.faults.values(), self.history.names)

    def outcomes(self) -> Mapping[str, Outcome]:
        """The last outcome of every check that has run."""
        with self._lock:
            return dict(self._outcomes)

    def faults_of(self, check: str) -> tuple[Fault, ...]:
        """The open faults that a check reported, now or earlier."""
        return tuple(fault for fault in self._history.faults.values() if fault.check == check)

    def open_since(self, since: datetime) -> tuple[Fault, ...]:
        """The faults that were open then or later: those that are over by now first, of the last 500 that ended."""
        with self._lock:
            ended = tuple(fault for at, fault in self._ended if at >= since)
            return (*ended, *self._history.faults.values())

    def verdict(self, outcomes: Iterable[Outcome]) -> Verdict:
        """The node's state for a job, judged from these outcomes and the faults of the checks behind them."""
        outcomes = tuple(outcomes)
        names, history = {outcome.check for outcome in outcomes}, self._history
        part = {key: fault for key, fault in history.faults.items() if fault.check in names}
        is_all = len(part) == len(history.faults)
        return judge(self.diagnoses() if is_all else diagnose(replace(history, faults=part)), outcomes)

    def trouble(self, since: datetime | None) -> str:
        """Why the node must not get a job yet, or "": a diagnosis is open, a check has not run since then, or one that
        counts is unknown. None: however long ago the checks ran."""
        with self._lock:
            return self.still_open() or self.not_checked(since)

    def still_open(self) -> str:
        """The first diagnosis that calls for something and is not acknowledged, or ""."""
        with self._lock:
            for diagnosis in self._rules().calling(self.diagnoses()):
                if not self.is_acknowledged(diagnosis):
                    fault = self._history.faults.get((str(diagnosis.component), diagnosis.code))
                    message = f"{diagnosis.code} on {diagnosis.component} is still open"
                    if fault is not None and self._is_test(fault):
                        message += f" until `healthd check --active {fault.check}` passes"
                    return message
        return ""

    def awaits_test(self) -> bool:
        """Whether active tests found everything that keeps the node out, and nothing else: only they can end it."""
        with self._lock:
            matters, faults = self._matters(self._history), self._history.faults.values()
            holding = [fault for fault in faults if not fault.acknowledged and matters(fault)]
            return bool(holding) and all(self._is_test(fault) for fault in holding)

    def not_checked(self, since: datetime | None, *, unknowns: bool = True) -> str:
        """The first check that counts and is unknown, or has not run since then, or "". None: however long ago the
        checks ran. ``unknowns``: whether one that has run and is unknown counts as not checked."""
        with self._lock:
            for name, check in self._checks.items():
                if check.on == "active":
                    continue
                outcome = self._outcomes.get(name)
                if outcome is None and since is None:
                    continue
                if outcome is None or (since is not None and outcome.at < since and check.on == "interval"):
                    return f"{name} has not run since {since:%H:%M:%S}"
                if unknowns and outcome.counts_as_unknown:
                    return f"{name} is unknown: {outcome.result.reason}"
        return ""

    def not_seen_again(self, code: str, component: Component, since: datetime | None = None) -> str:
        """Why an open fault may be over, or "": no check run has found it since then, None: since this daemon started.
        An unknown finds nothing, and ends nothing. A fault from the log needs no second check run."""
        with self._lock:
            fault = self._history.faults.get((str(component), code))
            if fault is None or fault.clears_by is not None:
                return ""
            may_be_over = f"{code} on {component} may be over: {fault.check} has not found it since"
            if fault.key in self._unseen:
                return f"{may_be_over} healthd started"
            return f"{may_be_over} {since:%H:%M:%S}" if since is not None and fault.last < since else ""

    def _judgement(self) -> _Judgement:
        """The judgement of the open faults, computed once for each change of them."""
        history, judged = self._history, self._judged
        if judged.faults is not history.faults:
            self._judged = judged = self._judge(history)
        return judged

    def _judge(self, history: History) -> _Judgement:
        faults = history.faults
        is_acknowledged = any(fault.acknowledged for fault in faults.values())
        components = self._acknowledged(history) if is_acknowledged else frozenset()
        return _Judgement(faults=faults, diagnoses=diagnose(history), acknowledged=components)

    def _acknowledged(self, history: History) -> frozenset[Component]:
        """The components whose faults the operator has acknowledged."""
        return acknowledged_parts(history, self._matters(history))

    def _matters(self, history: History) -> Callable[[Fault], bool]:
        """Whether one of these faults keeps jobs off the node."""
        from healthd.remediation.decide.rules import OpenCodes

        policy = self._rules()
        beside = OpenCodes((each.component, (each.code,)) for each in history.faults.values())
        return lambda fault: policy.matters(fault, fault.component, beside.beside(fault.component))

    def _is_test(self, fault: Fault) -> bool:
        """Whether an active test found it."""
        check = self._checks.get(fault.check)
        return check is not None and check.on == "active"

    def _rules(self) -> Policy:
        from healthd.remediation.decide.rules import BY_REMEDY

        return self._policy or BY_REMEDY

    def _learning(self, names: Iterable[str]) -> frozenset[str]:
        limits = [limit for name in names for limit in self._checks[name].limits]
        return frozenset(limit.reading for limit in limits if isinstance(limit, Learned))

    # -- keeping ------------------------------------------------------------------------------------------------------

    def _fold(self, history: History, changes: tuple[Change, ...], now: datetime, events: Iterable[Event] = ()) -> None:
        worse = worsened(self._history, history)
        history, over = expire(history, now)
        moved = history != self._history  # a change in memory alone needs no write
        self._history = history
        for change in changes:
            if change.opened:
                self.stats.has_opened(change.fault)
            else:
                self._ended.append((now, change.fault))
        self._queue(*events, *(_change_event(change, now) for change in changes))
        self._queue(*(_expiry_event(fault, now) for fault in over), *(_worse_event(fault, now) for fault in worse))
        if moved or self._pending or self._cursor_is_due(now):
            self._save(now)
        if changes or over or worse:
            self._changed()

    def _save(self, now: datetime) -> None:
        if self._store is None:
            self._pending.clear()
            return
        lost = f"{self._dropped} older lines of this audit trail are lost: memory was full while the disk refused them"
        first = (Event(at=now, kind="daemon", text=lost),) if self._dropped else ()
        events = (*first, *self._pending)
        try:
            self._store.save_history(
                self._saved,
                self._history,
                events=events,
                cursor=self._cursor,
                cursor_at=self._cursor_at,
                journal_cursor=self._journal_cursor,
            )
        except StoreError as error:
            self.store_problem = str(error)
            return
        self._saved, self._cursor_saved_at, self.store_problem = self._history, now, self.unkept
        self._pending.clear()
        self._dropped = 0

    def _queue(self, *events: Event) -> None:
        """Keep the newest events, in bounded memory, until they are written; count the dropped ones."""
        self._pending.extend(events)
        while len(self._pending) > _PENDING_EVENTS:
            self._pending.popleft()
            self._dropped += 1

    def _cursor_is_due(self, now: datetime) -> bool:
        return self._cursor is not None and (now - self._cursor_saved_at).total_seconds() > _CURSOR_EVERY_S


def gone_jobs(history: History, is_alive: Callable[[int], bool]) -> tuple[Clearance, ...]:
    """Clearances for job-level faults whose processes have ended: a fault of a job ends with the job.

    A clearance ends every job-level fault of its component, so it is given only where all of them are over.
    """
    jobs: dict[Component, list[frozenset[int]]] = {}
    for fault in history.faults.values():
        if fault.clears_by is ClearsBy.JOB_END:
            jobs.setdefault(fault.component, []).append(named_pids(fault.evidence))
    if NODE in jobs:
        jobs[NODE] = [pids for each in jobs.values() for pids in each]
    return tuple(
        Clearance(by=ClearsBy.JOB_END, component=component, note=_ended(frozenset().union(*each)))
        for component, each in jobs.items()
        if all(pids and not any(is_alive(pid) for pid in pids) for pids in each)
    )


def has_live_job(history: History, is_alive: Callable[[int], bool]) -> bool:
    """Whether a process that a job-level fault names still lives."""
    named = [named_pids(fault.evidence) for fault in history.faults.values() if fault.clears_by is ClearsBy.JOB_END]
    return any(is_alive(pid) for pids in named for pid in pids)


def _ended(pids: frozenset[int]) -> str:
    return f"process {', '.join(str(pid) for pid in sorted(pids))} has ended"


def _change_event(change: Change, now: datetime) -> Event:
    fault = change.fault
    word = "opened" if change.opened else "ended"
    return Event(
        at=now,
        kind="fault",
        text=f"{fault.code} on {fault.component} {word}: {change.why}",
        data={
            "code": fault.code,
            "component": str(fault.component),
            "severity": fault.severity,
            "opened": change.opened,
            "evidence": fault.evidence,
            **({} if change.opened else json_fields(fault, *_OF_THE_ENDED)),
        },
    )


class _EndedFault(Struct, frozen=True, kw_only=True):
    """The line of the audit trail about the end of a fault."""

    code: str
    component: str
    severity: Severity
    first: datetime
    last: datetime
    message: str
    clears_by: ClearsBy | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


_OF_THE_ENDED = ("first", "last", "message", "clears_by")
_READS_ENDED = msgspec.json.Decoder(_EndedFault)
"""Made here: threads that meet a type at the same moment have crashed msgspec."""


def _ended_before(store: Store, history: History) -> Iterator[tuple[datetime, Fault]]:
    """The faults that ended before this daemon began, with the times of their ends: a job that runs on may have met
    them. An end that an earlier version wrote does not say enough."""
    from healthd.state.store import EventFilter

    names = {each: each for each in history.names.values()}
    try:
        events, _ = store.events_of(EventFilter(kinds=("fault",)), last=_ENDED_FAULTS)
    except StoreError:
        return  # of a damaged trail nothing is read, and what is open is known all the same
    for event in events:
        try:
            ended = msgspec.convert(event.data, _EndedFault)
        except msgspec.ValidationError:
            continue
        component = Component.named(ended.component)
        fault = Fault(
            code=ended.code,
            component=names.get(component, component),
            check="",
            severity=ended.severity,
            remedy=Remedy.NONE,
            message=ended.message,
            first=ended.first,
            last=ended.last,
            boot_id="",
            clears_by=ended.clears_by,
            evidence=ended.evidence,
        )
        yield event.at, fault


def _expiry_event(fault: Fault, now: datetime) -> Event:
    until = f"{fault.acknowledged_until:%Y-%m-%d %H:%M:%S} UTC"
    return Event(at=now, kind="fault", text=f"no longer acknowledged: {fault.code} on {fault.component}, until {until}")


def _worse_event(fault: Fault, now: datetime) -> Event:
    text = f"no longer acknowledged: {fault.code} on {fault.component}, worse than it was: {fault.message}"
    return Event(at=now, kind="fault", text=text)


def _is_as_before(faults: Mapping[FaultKey, Fault], before: Mapping[FaultKey, Fault], key: FaultKey) -> bool:
    """Whether this fault is still open, and was not found again."""
    return key in faults and key in before and faults[key].last == before[key].last


def _has_open(history: History, check: str) -> bool:
    """Whether a fault of this check is open. News never opens one."""
    faults = history.faults.values()
    return any(fault.check == check and fault.clears_by is not ClearsBy.NOTHING for fault in faults)


# ---------------------------------------------------------------------------------------------------------------------
# stats of check runs and of faults


COUNTED_APART = 1_000
"""The number of pairs of check and code that are counted by name; further ones are counted as OTHER."""
OTHER = "other"


class Runs(Struct, frozen=True, kw_only=True):
    """Stats of the runs of one check. ``told``: the time of the last one that was not unknown; None where all were."""

    total: int = 0
    unknown: int = 0
    took_s: float = 0.0
    told: datetime | None = None


class CheckStats:
    """The counts of one monitor, under its lock."""

    def __init__(self) -> None:
        self.runs: dict[str, Runs] = {}
        self.opened: Counter[tuple[str, str]] = Counter()
        """Faults that opened, by check and code."""

    def ran(self, outcome: Outcome) -> None:
        """Count one run. A partial outcome counts as unknown."""
        before = self.runs.get(outcome.check, Runs())
        could_tell = outcome.result.is_whole
        self.runs[outcome.check] = Runs(
            total=before.total + 1,
            unknown=before.unknown + (not could_tell),
            took_s=before.took_s + outcome.duration_s,
            told=outcome.at if could_tell else before.told,
        )

    def clock_was_set(self, by: timedelta, now: datetime) -> None:
        """Move the times with the clock, so that an age stays what it was."""
        for name, runs in self.runs.items():
            if runs.told is not None:
                self.runs[name] = replace(runs, told=moved(runs.told, by, now))

    def has_opened(self, fault: Fault) -> None:
        """Count a fault that was not open before."""
        key = (fault.check, fault.code)
        if key not in self.opened and len(self.opened) >= COUNTED_APART:
            key = (OTHER, OTHER)
        self.opened[key] += 1
