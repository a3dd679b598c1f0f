"""The daemon: threads, signals and doors around an agent. The composition root; it decides nothing.

Each thread waits for its own event: the kernel log and the journal for a line, the engine for a change or its next
time, the doors for a client. Everything that comes at an interval is a duty of ``schedule``, which the main thread
turns while it waits for signals. A SIGHUP ends in a new start (``service_manager``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from healthd import __version__
from healthd.agent.agent import Agent, StateInMemory, acting_agent, notices_of, open_kernel_log, open_reporter
from healthd.agent.late_metadata import LateMetadata
from healthd.agent.node_facts import runs_slurm
from healthd.api.exit_codes import ExitCode
from healthd.api.scrape import metrics_of
from healthd.api.server import Server
from healthd.config.match import Match
from healthd.config.schema.config import Config
from healthd.core.errors import ConfigError, HealthdError, SourceError
from healthd.core.model import Action, Event, Mode
from healthd.core.unseen import Unseen
from healthd.daemon.logging import SENTENCES, service_logger
from healthd.daemon.schedule import Schedule
from healthd.daemon.service_manager import Signals, notify, take_address, watchdog_every_s
from healthd.daemon.textfile import TextFile
from healthd.drill.drills import Drills
from healthd.judge.clock import ClockWatch, was_set
from healthd.notify.node import open_notifier
from healthd.notify.notifier import TICK_S, NotifyDuty
from healthd.observe import journal
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.dependencies import Heartbeat
from healthd.sources.identity import boot_time
from healthd.sources.imds import FastStart
from healthd.sources.kmsg import KernelLog
from healthd.state.lock import StateUnusable, is_usable, lock_state
from healthd.state.store import StoreUnopened

if TYPE_CHECKING:
    from healthd.api.http import HttpDoor

_TICK_S = 5.0  # checks that are due behind one that hangs run beside it from the next tick on
_WATCHDOG_S = 15.0  # that the clock was set is seen as often
_ENGINE_POLL_S = 5.0
_ENGINE_IS_STUCK_AFTER_S = 300.0  # beyond what it said that its present step may take
_DUTIES_ON_DISK = ("housekeeping", "fleet")  # they end by their own deadlines, or the disk hangs
_READER_IS_STUCK_AFTER_S = _SCHEDULE_IS_STUCK_AFTER_S = 60.0
_HOUSEKEEPING_S = 15.0
_TEXTFILE_FIRST_S = 5.0  # until the checks have run once
_KERNEL_LOG_POLL_S = 15.0
_CATCH_UP_S = 30.0
_SLURM_S, _SLURM_FIRST_S = 30.0, 10.0
_MATCHES_S = 300.0  # a slurmctld that answers a start seldom in time does not have healthd start again and again
_JOIN_S = 15.0  # a check run, a call of the cluster or a message (CHILD_TIMEOUT_S), by their own deadlines
_LOCK_WAIT_S = 5.0  # a hook without a daemon holds it for as long as it looks


def serve(
    config: Config,
    notices: tuple[str, ...],
    *,
    load: Callable[[], object],
    hurry: FastStart,
    by_job: tuple[Match, ...] = (),
    is_decided: Callable[[], bool] | None = None,
) -> int:
    """Run until SIGTERM or SIGINT. Raises HealthdError for what cannot work from the start; returns the exit code.

    ``load`` says whether the configuration can be used as it is at a SIGHUP, by raising HealthdError where it cannot.
    ``hurry``: this start's, in which the configuration may have asked the metadata service already. ``by_job``: its
    matches by the job on this node. ``is_decided``: whether every match can be decided by now; None where they are.
    """
    log = service_logger(config.daemon.log_level)
    manager = take_address()
    signals = Signals(manager, log, load)

    def begin(config: Config, stopgap: StateInMemory | None = None) -> Daemon:
        jobs = () if stopgap is not None else by_job  # it only observes then
        return Daemon(
            config,
            log,
            notices,
            manager=manager,
            signals=signals,
            hurry=hurry,
            stopgap=stopgap,
            by_job=jobs,
            is_decided=is_decided,
        )

    with contextlib.ExitStack() as held:
        try:
            lock = lock_state(Path(config.daemon.state_dir), wait_s=_LOCK_WAIT_S)
            held.callback(os.close, lock)
            try:
                daemon = begin(config)
            except ConfigError:
                if not hurry.end():
                    raise
                daemon = begin(config)  # the platform may be one that only a slow service tells
        except (StateUnusable, StoreUnopened) as error:
            held.close()
            why = SENTENCES["state.unusable"].format(error=error)
            log.error("state.unusable", error=str(error))
            stopgap = StateInMemory(folder=_memory(held), why=why)
            observing = replace(config, remediation=replace(config.remediation, mode=Mode.OBSERVE))
            daemon = begin(observing, stopgap)
        daemon.run()
        if daemon.left:  # the end of this process lets go of it: until then what is under way may still write
            held.pop_all()
    signals.start_again()
    return ExitCode.FAILED if daemon.failed else 0


def _memory(held: contextlib.ExitStack) -> Path:
    """A folder in memory for the state of a daemon that observes; it goes with the end of ``held``."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a folder of its own is made there
    folder = Path(tempfile.mkdtemp(prefix="healthd-", dir=where))
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _Listening(Protocol):
    """A socket that clients connect to."""

    def problem(self) -> str:
        """Why no client is answered there, or ""."""

    def close(self) -> None:
        """Accept no client any more."""


class Daemon:
    """One running daemon."""

    def __init__(
        self,
        config: Config,
        log: Any,
        notices: tuple[str, ...] = (),
        *,
        manager: str,
        signals: Signals,
        hurry: FastStart,
        stopgap: StateInMemory | None = None,
        by_job: tuple[Match, ...] = (),
        is_decided: Callable[[], bool] | None = None,
    ) -> None:
        self._config, self._log, self._manager, self._signals = config, log, manager, signals
        self._is_decided = is_decided
        self._wake, self._stop, self._caught_up = threading.Event(), threading.Event(), threading.Event()
        self._is_stopgap = stopgap is not None
        self._beat, self._clock = Heartbeat(), ClockWatch(datetime.now(UTC), time.monotonic())
        self.agent: Agent = acting_agent(
            config,
            source="daemon",
            environ=os.environ,
            changed=self._wake.set,
            notices=notices,
            beat=self._beat,
            stopgap=stopgap,
            hurry=hurry,
            by_job=by_job,
        )
        self._log = log.bind(node=self.agent.machine.name)
        self._metadata = LateMetadata(self.agent.machine.imds)
        self._kernel_log: KernelLog = open_kernel_log(self.agent)
        self.agent.machine.kernel_log_state = self._kernel_log.state
        self.agent.unseen = Unseen(config.daemon.socket)
        self._drills = self.agent.drills = self._open_drills()
        self._journal = journal.open_journal(self.agent.checkup, self.agent.monitor)
        self._report = open_reporter(self.agent, os.environ)
        self.agent.notifier = open_notifier(
            config.notify,
            self.agent.checkup,
            engine=self.agent.engine,
            store=self.agent.store,
            mode=self.agent.mode,
            state_dir=config.daemon.state_dir,
            absent=lambda: self.agent.paged_absent,
            absent_pages=lambda: self.agent.absent_pages,
            notices=notices_of(self.agent, os.environ),
        )
        self._page = metrics_of(self.agent)
        metrics = config.metrics
        self._text_file = TextFile(metrics.textfile, lambda: self._page()[1], self._log) if metrics.textfile else None
        self._doors: list[_Listening] = []
        self.failed = False
        self.left: tuple[str, ...] = ()
        """The threads that did not end in time; the next start finds again what they were doing."""
        self._schedule = Schedule(self._duty_failed)
        self.agent.duties = self._schedule.runs

    def run(self) -> None:
        """Start everything, say READY, turn the schedule until a signal, and end in order."""
        self._signals.listen()
        self._say_hello()
        daemon = self._config.daemon
        server = Server(daemon.socket, self.agent, group=daemon.group, readers=daemon.readers, log=self._log)
        threads = [
            threading.Thread(target=self._or_end, args=(name, work), name=name, daemon=True)
            for name, work in (
                ("kmsg", self._follow_kernel_log),
                *((("journal", self._follow_journal),) if self._journal is not None else ()),
                ("engine", self._reconcile),
                *((("jobs", self._tell_of_jobs),) if self.agent.job_verdicts is not None else ()),
                ("api", server.serve),
            )
        ]
        self._doors.append(server)
        if (http := self._open_http()) is not None:
            self._doors.append(http)
            self.agent.troubles.append(http.missing)
        self._set_duties()
        for thread in threads:
            thread.start()
        notify(self._manager, "READY=1")
        while not self._signals.wait(self._run_schedule()):
            self._check_clock()
        self._stop.set()
        self._signals.say_ending()
        self._log.info("daemon.stopping")
        for door in self._doors:
            door.close()
        self._end(threads)

    def problem(self) -> str:
        """Why the daemon itself makes no progress, or "". A sick node is not a problem of the daemon."""
        if (idle := self._kernel_log.state().idle_s) > _READER_IS_STUCK_AFTER_S:
            return f"the kernel log reader has made no progress for {idle:.0f} s"
        if (silent := self._beat.silent_s()) > _ENGINE_IS_STUCK_AFTER_S:
            return f"the engine has made no progress for {silent:.0f} s"
        if (silent := self._schedule.silent_s()) > _SCHEDULE_IS_STUCK_AFTER_S:
            return f"the schedule has started no duty for {silent:.0f} s"
        for duty in _DUTIES_ON_DISK:
            if (lasts := self._schedule.under_way_s(duty)) > _ENGINE_IS_STUCK_AFTER_S:
                return f"{duty} has made no progress for {lasts:.0f} s"
        return next((message for door in self._doors if (message := door.problem())), "")

    def _check_clock(self) -> None:
        """Where the clock was set since this was asked last: move the times that are remembered, and make every duty
        due.

        An outcome from the future is not fresh, so no client got a wrong answer in between. The engine and the notifier
        keep times of their own, and have their own watch.
        """
        now = datetime.now(UTC)
        if not (by := self._clock.was_set_by(now, time.monotonic())):
            return
        undated = ""
        try:
            self._kernel_log.dates_from(boot_time(self.agent.machine.proc))
        except SourceError as error:
            undated = f"; kernel records are dated by the clock as it was: {error}"
        change = was_set(by)
        text = SENTENCES["clock.set"].format(change=change, undated=undated)
        self.agent.monitor.clock_was_set(by, now, text)
        self._schedule.again()
        self.agent.checkup.all_are_due()
        self._wake.set()
        self._log.warning("clock.set", change=change, undated=undated)

    # -- what comes at an interval ------------------------------------------------------------------------------------

    def _set_duties(self) -> None:
        """The duties of this daemon: docs/explanation/the-spine.md has the table."""
        schedule, checkup, report, notifier = self._schedule, self.agent.checkup, self._report, self.agent.notifier
        schedule.duty("watchdog", watchdog_every_s(_WATCHDOG_S), self._keep_watchdog, waits=False)
        for name, check in checkup.checks.items():
            if check.on == "interval":
                schedule.check(name, checkup.asked_every_s(name), self._start_check)
        schedule.duty("housekeeping", _HOUSEKEEPING_S, lambda: self.agent.housekeeping(datetime.now(UTC)))
        if self.agent.reads_fleet:
            schedule.duty("fleet", _HOUSEKEEPING_S, self._learn_fleet)
        if report is not None:
            schedule.duty("cluster", report.every_s, lambda: self._report_to_cluster(report.tick))
        if notifier is not None:
            schedule.duty("notify", TICK_S, NotifyDuty(notifier, self._log, stopping=self._stop.is_set))
        if self._text_file is not None:
            schedule.duty("textfile", self._config.metrics.every_s, self._text_file.write, first_s=_TEXTFILE_FIRST_S)
        self._set_late_duties()

    def _set_late_duties(self) -> None:
        """Those that wait for what a start did not find; once it is there the daemon starts again."""
        schedule = self._schedule
        if self._metadata.is_awaited:
            self._log.warning("metadata.silent")
            schedule.duty("metadata", self._metadata.again_s, self._ask_metadata, first_s=self._metadata.first_s)
        if self._is_decided is not None:
            schedule.duty("matches", _MATCHES_S, self._ask_matches)
        if self._is_stopgap:
            schedule.duty("state", _TICK_S, self._ask_state)
        if self._config.orchestrator.kind == "auto" and self._alone:
            schedule.duty("slurm", _SLURM_S, self._look_for_slurm, first_s=_SLURM_FIRST_S)

    def _run_schedule(self) -> float:
        """Start what is due. Returns the seconds until this is to be called again."""
        wait_s = self._schedule.run_due()
        return min(_TICK_S if self.agent.checkup.run_due() else _WATCHDOG_S, wait_s)

    def _keep_watchdog(self) -> None:
        if not self.problem():
            notify(self._manager, "WATCHDOG=1")

    def _start_check(self, name: str) -> None:
        """It may be time for a check."""
        if self.agent.checkup.is_due(name):
            self._drills.due(name)

    def _learn_fleet(self) -> None:
        """In quiet times. A fleet that could not be read or kept is read when it is needed."""
        engine = self.agent.engine
        if engine is None or not engine.has_decided:  # it reads the fleet itself where it has to
            return
        try:
            self.agent.learn_fleet(datetime.now(UTC))
        except HealthdError as error:
            self._log.warning("fleet.unread", error=str(error))

    def _report_to_cluster(self, report: Callable[[], str]) -> None:
        if message := report():
            self._log.info("cluster", message=message)

    def _ask_metadata(self) -> None:
        if self._signals.may_reload and self._metadata.answers():
            self._log.info("metadata.answers")
            self._signals.reload()

    def _ask_matches(self) -> None:
        """A configuration that is wrong by now is left to the next reload, which reports it."""
        assert self._is_decided is not None  # noqa: S101 - else there is no such duty
        with contextlib.suppress(ConfigError):
            if self._is_decided():
                self._log.info("matches.decided")
                self._signals.reload()

    @property
    def _alone(self) -> bool:
        return self.agent.orchestrator is not None and self.agent.orchestrator.kind == "local"

    def _look_for_slurm(self) -> None:
        """At a boot slurmd may start after healthd, and bring its configuration with it."""
        if self._signals.may_reload and runs_slurm(self._config, os.environ):
            self._log.info("slurm.found")
            self._signals.reload()

    def _ask_state(self) -> None:
        if self._signals.may_reload and is_usable(Path(self._config.daemon.state_dir)):
            self._log.info("state.usable")
            self._signals.reload()

    def _duty_failed(self, duty: str, error: BaseException) -> None:
        """A defect. A duty that fails ends the daemon; a check that could not be started is due again."""
        self._log.critical("duty.failed", duty=duty, exc_info=error)
        if duty in self._schedule.runs:
            self._end_failed()

    # -- threads ------------------------------------------------------------------------------------------------------

    def _or_end(self, name: str, work: Callable[[], None]) -> None:
        """Do the work of a thread. A defect that ends it ends the daemon, and its service manager restarts it."""
        try:
            work()
        except Exception:  # noqa: BLE001 - half a daemon looks alive and is not: this one says so and goes
            self._log.critical("daemon.failed", thread=name, exc_info=True)
            self._end_failed()

    def _end_failed(self) -> None:
        self.failed = True
        self._stop.set()
        self._signals.end()

    def _follow_kernel_log(self) -> None:
        """Judge each batch as it arrives. An empty one is judged too: the log was read, and held nothing."""
        timeout_s = 0.0
        while not self._stop.is_set():
            batch = self._kernel_log.read_batch(timeout_s)
            cursor = (batch.cursor.boot_id, batch.cursor.sequence) if batch.cursor else None
            unread = self._kernel_log.state().error
            self.agent.checkup.judge_kernel(batch.records, cursor, until=batch.until, unread=unread)
            self._drills.saw(batch.drilled)
            if batch.records:
                self._log.debug("kernel.records", count=len(batch.records), last=batch.records[-1].text)
            if batch.caught_up and not self._caught_up.is_set():
                self._caught_up.set()
                timeout_s = _KERNEL_LOG_POLL_S

    def _follow_journal(self) -> None:
        assert self._journal is not None  # noqa: S101 - else there is no such thread
        journal.follow(self._journal, self.agent.checkup, self._stop)

    def _tell_of_jobs(self) -> None:
        """Tell slurmctld of the jobs that ended here, as soon as there is something to tell."""
        verdicts = self.agent.job_verdicts
        assert verdicts is not None  # noqa: S101 - else there is no such thread
        while not self._stop.is_set():
            verdicts.wake.clear()
            wait_s, problems = verdicts.tell(self._stop.is_set)
            for problem in problems:
                self._log.warning("job.unreported", problem=problem)
            verdicts.wake.wait(wait_s)

    def _reconcile(self) -> None:
        engine, last, before = self.agent.engine, "", None
        assert engine is not None  # noqa: S101 - an acting agent has one
        self._caught_up.wait(_CATCH_UP_S)  # a fault early in the log may be over later in it
        self._metadata.wait(_CATCH_UP_S)  # which platform this is decides whether a node may be drained at all
        poll_s = min(_ENGINE_POLL_S, self._config.remediation.settle_s)
        while not self._stop.is_set():
            self._wake.clear()
            message = engine.reconcile(datetime.now(UTC))
            self._drills.came_round()
            if message != last:
                last, log = message, self._log_of(engine.remediation or before)  # its end is logged as its own
                level = log.error if engine.decision.action is Action.PAGE else log.info
                level("engine", message=message, mode=self.agent.mode, action=engine.decision.action)
            before = engine.remediation
            if self.agent.job_verdicts is not None:
                self.agent.job_verdicts.sees(before)
            self._wake.wait(engine.next_in_s(poll_s))

    def _log_of(self, remediation: Remediation | None) -> Any:
        """The log of one remediation: which it is, what it is for, and the step that it is at."""
        if remediation is None:
            return self._log
        return self._log.bind(
            remediation_id=remediation.id, component=remediation.component, code=remediation.code, step=remediation.step
        )

    # -- beginning and end --------------------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        agent = self.agent
        for notice in agent.checkup.notices:
            self._log.warning("daemon.notice", message=notice)
        kind = agent.orchestrator and agent.orchestrator.kind
        about = {"version": __version__, "mode": agent.mode}
        text = SENTENCES["daemon.started"].format(node=agent.machine.name, **about)
        self._log.info("daemon.started", **about, orchestrator=kind, boot_id=agent.monitor.boot_id)
        agent.monitor.record(Event(at=datetime.now(UTC), kind="daemon", text=text))

    def _open_drills(self) -> Drills:
        agent = self.agent
        assert agent.engine is not None  # noqa: S101 - an acting agent has both
        assert agent.store is not None  # noqa: S101
        return Drills(
            checkup=agent.checkup,
            engine=agent.engine,
            orchestrator=agent.orchestrator,
            open_remediation=agent.store.open_remediation,
            inject=self._kernel_log.inject,
            wake=self._wake.set,
            say=self._log.info,
        )

    def _open_http(self) -> HttpDoor | None:
        if not self._config.daemon.http:
            return None
        from healthd.api.http import agent_routes, open_http

        routes = agent_routes(self.agent, metrics=self._page, problem=self.problem)
        daemon = self._config.daemon
        names = (self.agent.machine.name, *daemon.http_names)
        return open_http(daemon.http, routes, self._log, names, local=not daemon.readers)

    def _end(self, threads: list[threading.Thread]) -> None:
        """Stop in order. An act has ``daemon.stop_s`` to end. One that takes longer is left to its intent on disk, and
        the store stays open for the thread that may still write to it."""
        self._schedule.end()
        self._drills.close("the daemon is stopping")
        self._wake.set()
        self._caught_up.set()
        self._kernel_log.close()
        if self.agent.job_verdicts is not None:
            self.agent.job_verdicts.wake.set()
        if self._journal is not None:
            self._journal.close()
        acts = not self._engine_ends()
        for thread in threads:
            self._still_ending()
            thread.join(timeout=0.0 if acts and thread.name == "engine" else _JOIN_S)
        unfinished = (*(thread.name for thread in threads if thread.is_alive()), *self._schedule.left(_JOIN_S))
        self.left = unfinished or (("engine",) if acts else ())
        if self._text_file is not None:
            self._text_file.remove()
        self._report_stop()
        self.agent.checkup.close()
        text = "healthd stopped, to restart with its new configuration" if self._signals.reloads else "healthd stopped"
        if self.left:
            left = ", ".join(self.left)
            text = SENTENCES["daemon.ended_early"].format(left=left)
            self._log.error("daemon.ended_early", left=left, waited_s=self._config.daemon.stop_s)
            self.failed = True
        self.agent.monitor.record(Event(at=datetime.now(UTC), kind="daemon", text=text))
        self.agent.close(keep_open=bool(self.left))

    def _report_stop(self) -> None:
        """Have the cluster show that this end is on purpose: no reload, no defect, and nothing left under way."""
        if self._report is None or self._signals.reloads or self.failed or self.left:
            return
        if message := self._report.stop():
            self._log.warning("cluster", message=message)

    def _still_ending(self) -> None:
        """Keep the watchdog while a reload ends what runs: for systemd the service is up all the while."""
        if self._signals.reloads:
            notify(self._manager, "WATCHDOG=1")

    def _engine_ends(self) -> bool:
        """Have the engine begin nothing more, and wait for its step under way. Whether that has ended."""
        engine, until_s = self.agent.engine, time.monotonic() + self._config.daemon.stop_s
        assert engine is not None  # noqa: S101 - an acting agent has one
        is_logged = False
        while not engine.end(min(_TICK_S, max(0.0, until_s - time.monotonic()))):
            if time.monotonic() >= until_s:
                return False
            notify(self._manager, f"EXTEND_TIMEOUT_USEC={int(4 * _TICK_S * 1e6)}")
            self._still_ending()
            if not is_logged:
                is_logged = True
                self._log.info("daemon.waiting", at_most_s=self._config.daemon.stop_s)
        return True
