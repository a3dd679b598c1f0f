"""One drill: plays a fault and follows it, link by link, to the decision and the steps. It carries out none of them.

It has its own view of the machine, its own memory, and the thread of its client. The daemon sends it three events, and
never waits for it: a record came through the reader of the kernel log, a check is due, the engine has reconciled.
Checks, fold, diagnosis, policy and the texts of the steps are the real ones, with their real settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import HealthdError
from healthd.core.model import SEVERITY_RANK, Decision, Diagnosis, Mode, Outcome, Refusal
from healthd.core.node import KernelRecord
from healthd.drill.chain import (
    TITLE,
    DrillReport,
    DrillRequest,
    DrillStage,
    Level,
    StageReached,
    ended,
    limit_s,
    next_link,
)
from healthd.drill.injection import Injection
from healthd.judge.diagnose import diagnose
from healthd.judge.history import Change, Fault, observe
from healthd.observe.checkup import Checkup
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.decide.policy import Considered
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.engine import Engine

_TICK_S = 5.0
_MOST_CHECK_RUNS = 100


class DrillEvent(Struct, frozen=True, kw_only=True):
    """An event from the daemon: its monotonic second, and its kind."""

    what: Literal["records", "due", "round", "end"]
    at: float
    records: tuple[KernelRecord, ...] = ()
    text: str = ""


class Stage(Struct, frozen=True, kw_only=True):
    """The parts of the daemon that a drill reads. It changes none of them.

    ``inject`` hands a text to the reader of the kernel log, ``wake`` makes the engine reconcile, ``open_remediation``
    reads the store.
    """

    checkup: Checkup
    engine: Engine
    open_remediation: Callable[[], Remediation | None]
    inject: Callable[[str], None]
    wake: Callable[[], None]


class Rehearsal:
    """One drill, from the injection to the report. ``queue`` gets the daemon's events. ``tick`` gets the progress; if
    it raises, because the client is gone, so does :meth:`follow`."""

    def __init__(
        self,
        stage: Stage,
        request: DrillRequest,
        injection: Injection,
        *,
        drill_id: str,
        began: datetime,
        tick: Callable[[str], None],
    ) -> None:
        self.request, self.injection, self.id, self.began = request, injection, drill_id, began
        self.queue: SimpleQueue[DrillEvent] = SimpleQueue()
        self._stage, self._checkup, self._engine, self._tick = stage, stage.checkup, stage.engine, tick
        self._codes = request.kind.codes_of(request.number)
        self._history = replace(self._checkup.monitor.history, faults={}, lasting={}, sightings={})
        self._t0 = self._opened_at = self._ran_at = 0.0
        self._limit_s = request.timeout_s or self._own_limit_s()
        self._marks: list[StageReached] = []
        self._check_runs: list[tuple[float, str]] = []
        self._levels: tuple[Level, ...] = ()
        self._plan: tuple[str, ...] = ()
        self._plan_mode = self._why = self._interrupted = self._ends_by = ""
        self._missing: DrillStage | None = None
        self._diagnosis: Diagnosis | None = None
        self._decisions: Mapping[Mode, Decision] = {}

    def follow(self) -> DrillReport:
        """Inject the fault, and take events until the chain is complete, broken, or out of time."""
        check = self.request.kind.check
        self._t0 = time.monotonic()
        self._mark(DrillStage.INJECTED, f"at {self.injection.where}: {self.injection.line or self.injection.what}")
        if check not in self._checkup.checks:
            self._break(DrillStage.FINDING, f'check {check} is not enabled here: [checks."{check}"] enabled')
        elif self.injection.line:
            self._stage.inject(self.injection.line)
        ticks, until = 1, self._t0 + self._limit_s
        while self._goes_on() and time.monotonic() < until:
            wait_until = min(until, self._t0 + ticks * _TICK_S)
            try:
                self._hear(self.queue.get(timeout=max(0.0, wait_until - time.monotonic())))
            except Empty:
                ticks += 1
                waited_s = time.monotonic() - self._t0
                self._tick(f"{TITLE}: no {next_link(self._marks)} yet, {waited_s:.0f} of at most {self._limit_s:.0f} s")
        return self._report()

    def _own_limit_s(self) -> float:
        kind, checks = self.request.kind, self._checkup.checks
        if kind.check not in checks:
            return 0.0
        silence_s = getattr(self._checkup.settings_of(kind.check), kind.silence) if kind.silence else 0.0
        interval_s, timeout_s = self._checkup.interval_s(kind.check), self._checkup.timeout_s(kind.check)
        return limit_s(kind, interval_s=interval_s, timeout_s=timeout_s, silence_s=silence_s)

    def _goes_on(self) -> bool:
        return self._missing is None and not self._interrupted and next_link(self._marks) is not None

    # -- events -------------------------------------------------------------------------------------------------------

    def _hear(self, heard: DrillEvent) -> None:
        kind = self.request.kind
        match heard.what:
            case "end":
                self._interrupted = self._why = heard.text
            case "records" if kind.of_kernel and self._lacks(DrillStage.READ):
                self._read(heard)
            case "due" if heard.text == kind.check and not kind.of_kernel and self._lacks(DrillStage.FAULT):
                if heard.at >= self._ran_at:  # else it joined the check run that was under way, as in the daemon
                    self._run(kind.check, heard.at)
            case "round" if self._diagnosis is not None and heard.at >= self._opened_at:
                self._decide()

    def _read(self, heard: DrillEvent) -> None:
        """Judge injected records as the daemon judges a batch. Records of a blind reader prove nothing."""
        log = self._checkup.machine.kernel_log
        if log.error or not log.alive:
            self._break(DrillStage.READ, log.error or f"the reader of {log.source} has ended")
            return
        self._mark(DrillStage.READ, f"by the reader of {log.source}", heard.at)
        node = replace(self.injection.machine, kernel_records=heard.records)
        for name, check in self._checkup.checks.items():
            if check.on == "kernel":
                self._fold(self._checkup.run_elsewhere(name, node))
        if self._lacks(DrillStage.FINDING):
            self._break(DrillStage.FINDING, f"no check found {' or '.join(self._codes)} in that line")

    def _run(self, check: str, at: float) -> None:
        if self._lacks(DrillStage.READ):
            self._mark(DrillStage.READ, f"{check} runs, as it does every {self._checkup.interval_s(check):g} s", at)
        outcome = self._checkup.run_elsewhere(check, self.injection.machine)
        self._ran_at = time.monotonic()
        self._fold(outcome)

    def _fold(self, outcome: Outcome) -> None:
        """Fold one outcome into the memory of the drill, as the monitor folds it into the node's."""
        limits = self._checkup.checks[outcome.check].limits
        self._history, changes = observe(self._history, outcome, limits, outcome.at)
        self._note_check_run(outcome)
        opened = sorted((each.fault for each in changes if self._is_mine(each)), key=_gravity)
        seen = [f"{fault.code}: {fault.message}" for fault in opened]
        seen += [f"{found.code}: {found.message}" for found in outcome.result.findings if found.code in self._codes]
        if seen and self._lacks(DrillStage.FINDING):
            self._mark(DrillStage.FINDING, f"by {outcome.check}: {seen[0]}")
        if opened and self._lacks(DrillStage.FAULT):
            self._has_opened(opened[0])

    def _is_mine(self, change: Change) -> bool:
        return change.opened and change.fault.code in self._codes

    def _has_opened(self, fault: Fault) -> None:
        self._ends_by = str(fault.clears_by) if fault.clears_by else f"{fault.check}, when it no longer finds it"
        self._mark(
            DrillStage.FAULT, f"{fault.code} on {fault.component}, {fault.severity}, in the drill's memory alone"
        )
        about = next(each for each in diagnose(self._history) if fault.code in each.codes)
        self._diagnosis, self._opened_at = about, time.monotonic()
        self._mark(
            DrillStage.DIAGNOSIS, f"{about.code} on {about.component}, {about.severity}, calls for {about.remedy}"
        )
        self._stage.wake()

    def _note_check_run(self, outcome: Outcome) -> None:
        if not self.request.kind.of_kernel and len(self._check_runs) < _MOST_CHECK_RUNS:
            reason = f": {outcome.result.reason}" if outcome.result.reason else ""
            message = f"{outcome.check} is {outcome.result.status}{reason}"
            at_s = time.monotonic() - self._t0
            self._check_runs.append((at_s, message))
            self._tick(f"{TITLE}: {at_s:.0f} s: {message}")

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Ask the engine what it would decide and do now; after an error, again when it reconciles next."""
        assert self._diagnosis is not None  # noqa: S101 - the chain came so far
        try:
            if self._lacks(DrillStage.DECISION):
                self._ask_the_policy(self._diagnosis)
            if not self._lacks(DrillStage.DECISION):
                self._ask_the_steps(self._diagnosis)
        except HealthdError as error:
            self._why = str(error)

    def _ask_the_policy(self, about: Diagnosis) -> None:
        """In every mode: observe mode does not ask the cluster, and would hide that it does not answer."""
        here = self._engine.rules.mode
        considered = {mode: each for mode in Mode for each in self._engine.considered_in([about], mode)}
        self._levels = tuple(_level(mode, each, is_here=mode is here) for mode, each in considered.items())
        self._decisions = {mode: each.decision for mode, each in considered.items()}
        blind = [each.reason for each in self._decisions.values() if each.refusal is Refusal.UNREADABLE]
        self._why = blind[0] if blind else ""
        if not blind:
            decision = self._decisions[here]
            self._mark(DrillStage.DECISION, f"in mode {here}: {decision.action}: {decision.reason}")

    def _ask_the_steps(self, about: Diagnosis) -> None:
        """The steps in the mode of this node, else in the highest mode that has any."""
        by_preference = (self._engine.rules.mode, *reversed(Mode))
        mode = next((mode for mode in by_preference if self._decisions[mode].steps), None)
        if mode is None:
            self._mark(DrillStage.PLAN, "no step in any mode")
            return
        self._plan_mode, decision = mode, self._decisions[mode]
        self._tick(f"{TITLE}: reads what each step would do now")
        self._plan, self._why = self._engine.planned_effects(decision, about, f"{TITLE.lower()} {self.id}"), ""
        self._mark(DrillStage.PLAN, f"{len(self._plan)} steps in mode {self._plan_mode}: {', '.join(decision.steps)}")

    # -- the chain ----------------------------------------------------------------------------------------------------

    def _lacks(self, link: DrillStage) -> bool:
        return all(mark.link is not link for mark in self._marks)

    def _mark(self, link: DrillStage, message: str, at: float | None = None) -> None:
        at_s = (time.monotonic() if at is None else at) - self._t0
        self._marks.append(StageReached(link=link, at_s=at_s, message=message))

    def _break(self, link: DrillStage, why: str) -> None:
        self._missing, self._why = link, why

    def _report(self) -> DrillReport:
        missing = self._missing or next_link(self._marks)
        return DrillReport(
            id=self.id,
            node=self._checkup.machine.name,
            kind=self.request.kind.name,
            what=self.injection.what,
            who=self.request.who,
            began=self.began,
            limit_s=self._limit_s,
            ended=ended(self._marks, self._interrupted),
            forced=self.request.forced,
            marks=tuple(self._marks),
            check_runs=tuple(self._check_runs),
            missing=missing,
            why="" if missing is None else self._why or self._why_missing(missing),
            levels=self._levels,
            plan=self._plan,
            plan_mode=self._plan_mode,
            budget=self._budget(),
            ends_by=self._ends_by,
            real=tuple(self._really()),
            notes=tuple(self._notes()),
        )

    def _why_missing(self, link: DrillStage) -> str:
        check = self.request.kind.check
        match link:
            case DrillStage.READ if self.request.kind.of_kernel:
                log = self._checkup.machine.kernel_log
                return (
                    log.error
                    or f"the reader of {log.source} delivered no record; its loop last ran {log.idle_s:.0f} s ago"
                )
            case DrillStage.READ if self._limit_s < self._own_limit_s():
                every_s = self._checkup.interval_s(check)
                return f"{check} runs every {every_s:g} s, and was not due within {self._limit_s:g} s (--timeout)"
            case DrillStage.READ:
                return f"{check} was never due; see the log for errors of the scheduler"
            case DrillStage.FINDING:
                return f"its last run: {self._check_runs[-1][1]}" if self._check_runs else f"{check} found nothing"
            case DrillStage.FAULT:
                last = self._check_runs[-1][1] if self._check_runs else check
                return f"the finding must last or repeat before it is a fault: {last}"
            case _:
                return "the engine has not reconciled since; see `healthd status`"

    def _budget(self) -> tuple[int, int, int] | None:
        try:
            level = self._engine.fleet() if self._levels else None
        except HealthdError:
            return None  # the decision above says what could not be read
        if level is None:
            return None
        limit = out_limit(self._engine.rules.max_out, level.total) if level.limit is None else level.limit
        return len(level.out), limit, level.total

    def _really(self) -> Sequence[str]:
        """Faults of the node itself that opened meanwhile."""
        faults = self._checkup.monitor.history.faults.values()
        return [f"{fault.code} on {fault.component}: {fault.message}" for fault in faults if fault.first >= self.began]

    def _notes(self) -> Sequence[str]:
        notes = [self.injection.note] if self.injection.note else []
        notes += [
            f"{fault.code} is really open on {fault.component} since {fault.first:%Y-%m-%d %H:%M:%S} UTC"
            for fault in self._checkup.monitor.history.faults.values()
            if fault.code in self._codes and fault.first < self.began
        ]
        try:
            remediation = self._stage.open_remediation()
        except HealthdError as error:
            return [*notes, f"cannot read whether a remediation is open: {error}"]
        if remediation is not None:
            notes.append(
                f"remediation {remediation.id} is open for {remediation.code}: until its end healthd starts no other"
            )
        return notes


def _gravity(fault: Fault) -> int:
    """The most severe first."""
    return -SEVERITY_RANK[fault.severity]


def _level(mode: Mode, each: Considered, *, is_here: bool) -> Level:
    return Level(
        mode=mode,
        is_here=is_here,
        action=each.decision.action,
        reason=each.decision.reason,
        steps=tuple(each.decision.steps),
        rule=each.rule.name,
        rule_reason=each.rule.reason,
        ladder=tuple(each.ladder),
        cannot={str(remedy): why for remedy, why in each.cannot},
    )
