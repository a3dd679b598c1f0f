"""Runs checks on a node and puts the report together: the same for the daemon and for ``healthd check`` without one.

Each check runs at most once at a time, on a small pool of threads; a second caller gets the outcome of the run under
way. An active check runs only when ``run_active`` is called, one after the other. The caller knows whether the node is
idle.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs

from healthd.config.schema.config import CheckConfig
from healthd.core.check import SOON, Check, judged, unknown
from healthd.core.errors import SourceError
from healthd.core.model import Event, Outcome, Result, Status
from healthd.core.node import KernelRecord, Node
from healthd.judge.clock import JUMP
from healthd.judge.findings import OwnResets
from healthd.judge.history import UNKNOWN_BOOT
from healthd.observe.report import CheckView, Report
from healthd.observe.runner import run_check
from healthd.sources.machine import Machine
from healthd.state.monitor import Monitor

if TYPE_CHECKING:
    from healthd.core.capabilities import PrivilegedThreads  # a check run without a daemon has no such threads

T = TypeVar("T")

NVML_PAUSE_S = 300.0
_RETRY_S = 300.0  # an outcome that is unknown is asked again within so many seconds, however rare the check is
_READER_IS_STUCK_AFTER_S = 30.0
_JOURNAL = "see why the journal cannot be read: `journalctl -n 1`"
_RESTART = "restart the daemon: `systemctl restart healthd`"
_EARLIER_RUNS_S = 1.0  # how long an answer waits for runs that began before it
_TICK_S = 5.0


class _Run(Struct, frozen=True):
    future: Future[Outcome]
    began: float
    """Monotonic seconds."""


class Checkup:
    """The checks of one node. ``source`` is what the report calls itself: ``daemon`` or ``local``.

    ``privileged``: for threads that have dropped their capabilities, such as those of clients; else None.
    """

    def __init__(
        self,
        *,
        checks: Mapping[str, Check],
        settings: Mapping[str, CheckConfig],
        machine: Machine,
        monitor: Monitor,
        source: str,
        workers: int,
        notices: tuple[str, ...] = (),
        privileged: PrivilegedThreads | None = None,
    ) -> None:
        self.checks, self.machine, self.monitor = checks, machine, monitor
        self._settings, self._source, self.notices = settings, source, notices
        self._workers = workers
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="check")
        self.privileged = privileged
        self._running: dict[str, _Run] = {}
        self._due: deque[str] = deque()
        self._lock, self._counting, self._active_lock = Lock(), Lock(), Lock()
        self._closed = self._has_thread = False
        self.own_resets = OwnResets()
        self.journal_problem: Callable[[], str] = lambda: "healthd does not read the journal"

    def close(self) -> None:
        """Start nothing more. Runs under way end at their own deadlines, and do not count: their sources are being
        closed."""
        with self._counting:
            self._closed = True
        self._due.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.privileged is not None:
            self.privileged.close()

    def do(self, work: Callable[[], T]) -> T:
        """Run ``work`` with the capabilities of the process, also for a thread that has dropped its own."""
        return work() if self.privileged is None else self.privileged.do(work)

    def interval_s(self, name: str) -> float:
        """How often a check runs: as configured, else as it declares."""
        return self._settings[name].interval_s or self.checks[name].interval_s

    def run_elsewhere(self, name: str, node: Node) -> Outcome:
        """Run a check with its settings on another view of this machine, without folding the outcome: for a drill."""
        return run_check(self.checks[name], node, self._settings[name].settings, optional=self.is_optional(name))

    def settings_of(self, name: str) -> Any:
        """The settings of a check."""
        return self._settings[name].settings

    def timeout_s(self, name: str) -> float:
        """How long one run of a check may take: as configured, else as it declares."""
        return self._settings[name].timeout_s or self.checks[name].timeout_s

    def start(self, name: str) -> Future[Outcome]:
        """Run a check, or join the run that is under way."""
        with self._lock:
            running = self._running.get(name)
            if running is None or running.future.done():
                run = Future[Outcome]()
                self.do(lambda: self._submit(lambda: self._complete(name, run)))  # it may start a thread of the pool
                running = self._running[name] = _Run(run, time.monotonic())
            return running.future

    def _submit(self, work: Callable[[], None]) -> None:
        """Have a thread of the pool do it. Where the system gives the pool no further thread, one of those that it has
        takes the work up: it is in their queue by then. Raises RuntimeError where there is none."""
        try:
            self._pool.submit(work)
        except RuntimeError:
            if self._closed or not self._has_thread:
                raise
        self._has_thread = True

    def asked_every_s(self, name: str) -> float:
        """How often :meth:`is_due` is to be called for a check, in seconds: a part of its interval where that is
        long."""
        interval_s = self.interval_s(name)
        return interval_s / math.ceil(interval_s / _RETRY_S)

    def is_due(self, name: str) -> bool:
        """Whether it is time for a check; if so, :meth:`run_due` has it run after those that are due already. It is
        time after its interval, and sooner where its last outcome is unknown: a GPU that was being reset when a check
        looked that looks once an hour is not unknown for an hour."""
        if self._is_told(name):
            return False
        self._add(name)
        return True

    def all_are_due(self) -> None:
        """Every check that runs at an interval is due, whatever it has told: the clock was set."""
        for name, check in self.checks.items():
            if check.on == "interval":
                self._add(name)

    def _add(self, name: str) -> None:
        if name not in self._due:
            self._due.append(name)

    def _is_told(self, name: str) -> bool:
        """Whether a check that is rare has told something in this interval."""
        interval_s, asked_every_s = self.interval_s(name), self.asked_every_s(name)
        if interval_s == asked_every_s or (outcome := self.monitor.outcomes().get(name)) is None:
            return False
        age_s = (datetime.now(UTC) - outcome.at).total_seconds()
        return outcome.result.status is not Status.UNKNOWN and 0 <= age_s < interval_s - asked_every_s / 2

    def run_due(self) -> bool:
        """Have a thread run the checks that are due, one after the other; whether there are any. Each call adds a
        thread, so that a check that hangs delays the others until the next call only.

        One thread is woken once for all of them, and none has its deadline run out while it waits for NVML.
        """
        if not self._due:
            return False
        self._submit(self._run_those_due)
        return True

    def _run_those_due(self) -> None:
        while self._due:
            with self._lock:
                name, run = self._due.popleft() if self._due else "", Future[Outcome]()
                running = self._running.get(name)
                if not name or (running is not None and not running.future.done()):
                    continue
                self._running[name] = _Run(run, time.monotonic())
            self._complete(name, run)

    def _complete(self, name: str, run: Future[Outcome]) -> None:
        try:
            run.set_result(self._run(name))
        except BaseException as error:  # noqa: BLE001 - each caller that waits for this run gets it
            run.set_exception(error)

    def start_older_than(self, since: datetime) -> None:
        """Start every interval check that has not run since then, and wait for none."""
        known = self.monitor.outcomes()
        for name, check in self.checks.items():
            outcome = known.get(name)
            if check.on == "interval" and (outcome is None or outcome.at < since):
                self.start(name)

    def run_active(self, names: Sequence[str], tick: Callable[[str], None]) -> dict[str, Outcome]:
        """Run these active checks, one after the other, and return their outcomes.

        ``tick`` gets the running test and its age every few seconds. If it raises, because the client is gone, the
        running test is ended and the rest do not begin.
        """
        ran: dict[str, Outcome] = {}
        while not self._active_lock.acquire(timeout=_TICK_S):
            tick("waits for active tests that others asked for")
        try:
            for name in names:
                future, began = self.start(name), time.monotonic()
                try:
                    while not wait((future,), timeout=_TICK_S).done:
                        tick(f"{name}: {time.monotonic() - began:.0f} s")
                except BaseException:
                    self.machine.active.interrupt()
                    raise
                ran[name] = structs.replace(future.result(), optional=self._settings[name].optional)
                tick(f"{name}: {ran[name].result.status}, {time.monotonic() - began:.1f} s")
        finally:
            self._active_lock.release()
        return ran

    def judge_kernel(
        self,
        records: Sequence[KernelRecord],
        cursor: tuple[str, int] | None,
        *,
        until: datetime | None = None,
        unread: str = "",
        past: bool = False,
    ) -> None:
        """Run the kernel checks on one batch, and fold their outcomes in together with the cursor. ``until``: every
        record of before then was judged, with these. ``unread``: why the log cannot be read; an empty batch of it is no
        run that found nothing. ``past``: the batch is of an earlier boot, and shows nothing about the running driver.
        """
        outcomes, events = list[Outcome](), list[Event]()
        names, is_unread = self._kernel_checks(), bool(unread) and not records
        outcomes_now = (
            (self._unknown(name, unread) for name in names) if is_unread else self._outcomes_of(names, records)
        )
        for found in outcomes_now:
            outcome, own = self.own_resets.without(found)
            outcomes.append(outcome)
            if own:
                text = f"{own} lines of {outcome.check} about links come from healthd's own GPU reset, and do not count"
                events.append(Event(at=outcome.at, kind="daemon", text=text))
            for reason in () if past else self._pause_nvml(outcome):
                text = f"NVML is {reason}: the GPU checks keep their last results"
                events.append(Event(at=outcome.at, kind="daemon", text=text))
        if outcomes:
            self.monitor.absorb_batch(outcomes, cursor=cursor, read_until=until, past=past)
        for event in events:
            self.monitor.record(event)

    def pause_nvml_again(self, now: datetime) -> None:
        """Keep the rest of a pause that an XID began before healthd started again: its line was judged
        then, and does not come back."""
        for fault in self.monitor.history.faults.values():
            left_s = NVML_PAUSE_S - (now - fault.last).total_seconds()
            if 0 < left_s <= NVML_PAUSE_S and (reason := _pause_after(fault.code)):
                self.machine.nvml.pause(left_s, reason)

    def judge_past_kernel(self, records: Sequence[KernelRecord], code: str) -> None:
        """Run the kernel checks on lines that may have been judged before, and fold in the findings of this code."""
        for outcome in self._outcomes_of(self._kernel_checks(), records):
            findings = tuple(finding for finding in outcome.result.findings if finding.code == code)
            if findings:
                self.monitor.absorb(structs.replace(outcome, result=judged(findings)), past=True)

    def of_the_journal(self) -> Mapping[str, Any]:
        """The settings of the kernel checks that also read lines of the journal, by check."""
        settings = {name: self._settings[name].settings for name in self._kernel_checks()}
        return {name: each for name, each in settings.items() if getattr(each, "journal_needles", ())}

    def own_codes(self) -> Mapping[str, frozenset[str]]:
        """The codes that a check's settings give it, such as those of the site's rules, by check."""
        settings = {name: self._settings[name].settings for name in self.checks}
        return {name: each.own_codes for name, each in settings.items() if hasattr(each, "own_codes")}

    def judge_journal(self, records: Sequence[KernelRecord], cursor: str) -> None:
        """Run the checks that read the journal on one batch of it and fold it in with the cursor."""
        outcomes = tuple(self._outcomes_of(self.of_the_journal(), records))
        if outcomes:
            self.monitor.absorb_batch(outcomes, journal_cursor=cursor)

    def _kernel_checks(self) -> Sequence[str]:
        return [name for name, check in self.checks.items() if check.on == "kernel"]

    def _outcomes_of(self, names: Iterable[str], records: Sequence[KernelRecord]) -> Iterator[Outcome]:
        """The outcome of each of these checks on a batch of log lines. A check that fails on the batch gets each line
        by itself, so that no line but the one that it fails on is lost; that one is named in its outcome, the last."""
        known = self.monitor.outcomes()
        for name in names:
            whole = self._again(known.get(name), records) or self._outcome_of(name, records)
            if whole.result.status is not Status.UNKNOWN or not records:
                yield whole
                continue
            by_line = [(record, self._outcome_of(name, (record,))) for record in records]
            reported = [each.result for _, each in by_line if each.result.status is not Status.UNKNOWN]
            yield structs.replace(whole, result=_joined(reported))
            failed = [(record, each) for record, each in by_line if each.result.status is Status.UNKNOWN]
            if failed:
                record, last = failed[-1]
                reason = (
                    f"{len(failed)} log lines were not judged, the last one {record.text[:200]!r}: {last.result.reason}"
                )
                yield structs.replace(last, result=structs.replace(last.result, reason=reason))

    def _outcome_of(self, name: str, records: Sequence[KernelRecord]) -> Outcome:
        node = structs.replace(self.machine, kernel_records=records)
        return run_check(self.checks[name], node, self._settings[name].settings, optional=self.is_optional(name))

    def _again(self, last: Outcome | None, records: Sequence[KernelRecord]) -> Outcome | None:
        """The last outcome, as of now, of a check that found nothing and reads none of these lines: it would find
        nothing again."""
        if last is None or not _found_nothing(last.result):
            return None
        if self.checks[last.check].reads(records, self._settings[last.check].settings):
            return None
        return structs.replace(last, at=datetime.now(UTC), duration_s=0.0)

    def report(
        self,
        names: Sequence[str] = (),
        *,
        deadline_s: float = 20.0,
        active: Mapping[str, Outcome] | None = None,
        look: bool = True,
    ) -> Report:
        """The state of the node, or of some checks. A missing or old outcome is refreshed within the deadline. Without
        ``look`` nothing is run or waited for, and such an outcome is unknown.

        ``active``: the outcomes of active checks that were run for this report. Other active checks are in it only
        while a fault that they found earlier is open.
        """
        active = active or {}
        wanted = tuple(name for name in names or self.checks if self._counts(name) or name in active)
        outcomes = tuple(
            active.get(outcome.check, outcome) for outcome in self._refreshed(wanted, deadline_s, look=look)
        )
        now = datetime.now(UTC)
        verdict = self.monitor.verdict(outcomes)
        views = tuple(
            CheckView(
                outcome=outcome,
                age_s=max(0.0, (now - outcome.at).total_seconds()),
                faults=self.monitor.faults_of(outcome.check),
                figures=outcome.result.readings if outcome.check in active else (),
            )
            for outcome in outcomes
        )
        codes = {fault.code for view in views for fault in view.faults}
        return Report(
            node=self.machine.name,
            boot_id=self.monitor.boot_id,
            instance_type=self.machine.instance_type,
            generated_at=now,
            source=self._source,
            verdict=verdict,
            checks=views,
            diagnoses=tuple(d for d in self.monitor.diagnoses() if codes.intersection(d.codes)),
            notices=(*self.notices, *((self.monitor.store_problem,) if self.monitor.store_problem else ())),
            names=self.monitor.device_names(),
        )

    # -- running ------------------------------------------------------------------------------------------------------

    def _run(self, name: str) -> Outcome:
        before = self.machine.nvml.state()
        outcome = run_check(
            self.checks[name], self.machine, self._settings[name].settings, optional=self.is_optional(name)
        )
        pauses = [each.reason for each in (before, self.machine.nvml.state()) if each.paused_s > 0]  # or since it began
        reasons = (outcome.result.reason, *outcome.result.undecided)
        paused = any(pause in reason for pause in pauses for reason in reasons)
        with self._counting:
            if not self._closed:
                self._absorb(outcome, paused=paused)
        return self.monitor.outcomes().get(name, outcome)

    def _absorb(self, outcome: Outcome, *, paused: bool) -> None:
        try:
            self.monitor.absorb(outcome, paused=paused)
        except Exception as error:  # noqa: BLE001 - a check whose outcomes vanish would be stale, and not say why
            reason = f"the outcome could not be judged: {type(error).__name__}: {error}; this is a defect of healthd"
            self.monitor.absorb(structs.replace(outcome, result=unknown(reason, "report it")))

    def _refreshed(self, names: Sequence[str], deadline_s: float, *, look: bool) -> tuple[Outcome, ...]:
        """The last outcomes, with stale ones refreshed. It waits only briefly for a run that began earlier and does not
        end: a source that hangs must not make the answer hang with it."""
        if look:
            self._refresh(names, deadline_s)
        known = self.monitor.outcomes()
        return tuple(
            self._kernel_outcome(name, known.get(name))
            if self.checks[name].on == "kernel"
            else self._answered(name, known.get(name), f", and none within {deadline_s:g} s" if look else "")
            for name in names
        )

    def _refresh(self, names: Sequence[str], deadline_s: float) -> None:
        known, now, began = self.monitor.outcomes(), datetime.now(UTC), time.monotonic()
        stale = [name for name in names if self.checks[name].on == "interval" and not self._fresh(known.get(name), now)]
        earlier = [future for name in stale if (future := self._under_way(name)) is not None]
        if len(stale) <= self._workers:  # all run at once, and those that may take long begin first
            stale.sort(key=self.timeout_s, reverse=True)
        new = [future for future in map(self.start, stale) if future not in earlier]
        wait(new, timeout=min(deadline_s, max((self.timeout_s(name) for name in stale), default=0.0)))
        wait(earlier, timeout=max(0.0, min(deadline_s, _EARLIER_RUNS_S) - (time.monotonic() - began)))

    def _fresh(self, outcome: Outcome | None, now: datetime) -> bool:
        """Counted from the end of the run: an outcome that waited for a source until its deadline is fresh all the
        same. An outcome from the future is older than a change of the clock, and may be of any age."""
        if outcome is None:
            return False
        age = now - outcome.at
        return age > -JUMP and age.total_seconds() - outcome.duration_s <= 2 * self.interval_s(outcome.check)

    def _under_way(self, name: str) -> Future[Outcome] | None:
        with self._lock:
            running = self._running.get(name)
        return None if running is None or running.future.done() else running.future

    def _counts(self, name: str) -> bool:
        return self.checks[name].on != "active" or bool(self.monitor.faults_of(name))

    def _answered(self, name: str, outcome: Outcome | None, waited: str) -> Outcome:
        if outcome is not None and (self.checks[name].on == "active" or self._fresh(outcome, datetime.now(UTC))):
            return outcome
        running = self._running.get(name)
        if running is not None and not running.future.done():
            age_s = time.monotonic() - running.began
            return self._unknown(name, f"no answer yet; it has been running for {age_s:.1f} s", SOON)
        return self._unknown(name, f"no result younger than twice its interval{waited}", SOON)

    def _kernel_outcome(self, name: str, outcome: Outcome | None) -> Outcome:
        """A kernel check is as fresh as the reader of the log; a blind reader makes it unknown."""
        log = self.machine.kernel_log
        if log.error or not log.alive:
            ended = f"the reader of the kernel log {log.source} has ended"
            return self._unknown(name, log.error or ended, "" if log.error else _RESTART)
        if log.idle_s > _READER_IS_STUCK_AFTER_S:
            return self._unknown(name, f"the reader of {log.source} stands still for {log.idle_s:.0f} s", _RESTART)
        if outcome is None:
            return self._unknown(name, f"the records of {log.source} have not been judged yet", SOON)
        if name in self.of_the_journal() and (problem := self.journal_problem()):
            return self._unknown(name, problem, _JOURNAL)
        return structs.replace(outcome, at=datetime.now(UTC))

    def _unknown(self, name: str, reason: str, do: str = "") -> Outcome:
        now = datetime.now(UTC)
        return Outcome(check=name, result=unknown(reason, do), at=now, duration_s=0.0, optional=self.is_optional(name))

    def is_optional(self, name: str) -> bool:
        """Whether an unknown of this check does not count. That of an active check counts in its own report."""
        return self._settings[name].optional or self.checks[name].on == "active"

    def _pause_nvml(self, outcome: Outcome) -> tuple[str, ...]:
        """Pause NVML after XIDs with which it is likely to hang, and return the reasons that are new."""
        new: dict[str, None] = {}
        for finding in outcome.result.findings:
            if reason := _pause_after(finding.code):
                if self.machine.nvml.state().reason != reason:
                    new[reason] = None
                self.machine.nvml.pause(NVML_PAUSE_S, reason)
        return tuple(new)


def _pause_after(code: str) -> str:
    """Why NVML is paused after a finding; "" where it is not."""
    from healthd.checklib.xids import xid_number, xid_row  # a cold check of the host loads no table

    number = xid_number(code)
    return f"paused for {NVML_PAUSE_S:g} s after {code}" if number is not None and xid_row(number).pauses_nvml else ""


def _found_nothing(result: Result) -> bool:
    """Whether a run says nothing but that it could read, or that the check does not apply."""
    return result == judged(()) or (result.status is Status.NOT_APPLICABLE and not result.readings)


def _joined(results: Sequence[Result]) -> Result:
    """The results of one check on line after line, as one."""
    return judged(
        [finding for result in results for finding in result.findings],
        [reading for result in results for reading in result.readings],
        clearances=[clearance for result in results for clearance in result.clearances],
    )


def boot_id_or_unknown(machine: Machine) -> str:
    """The boot id, or the word ``unknown`` where /proc does not have it: the key of the state is then that word."""
    try:
        return machine.boot_id
    except SourceError:
        return UNKNOWN_BOOT
