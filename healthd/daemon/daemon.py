"""The daemon: threads, signals and doors around an agent. The composition root; it decides nothing.

Threads: the kernel log is followed and judged as it arrives; APScheduler starts the interval checks; the engine turns
when something changed and every few seconds; the doors answer. The main thread keeps the watchdog, sees the clock being
set, and waits for signals, of which SIGHUP ends in a start anew (``signals``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from healthd import __version__
from healthd.agent.agent import Agent, Stopgap, acting_agent, open_kernel_log, open_reporter
from healthd.agent.late_metadata import Latecomer
from healthd.api.scrape import metrics_of
from healthd.api.server import Server
from healthd.api.wire import EXIT_FAILED
from healthd.config.schema.config import Config
from healthd.core.errors import ConfigError, HealthdError, SourceError
from healthd.core.model import Action, Event, Mode
from healthd.core.unseen import Unseen
from healthd.daemon.logging import json_logger
from healthd.daemon.schedule import CheckSchedule
from healthd.daemon.sd_notify import notify, take_address
from healthd.daemon.signals import Signals
from healthd.daemon.textfile import keep_writing
from healthd.drill.drills import Drills
from healthd.judge.clock import ClockWatch, was_set
from healthd.notify.telling import keep_telling, open_notifier
from healthd.observe import journal
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.heartbeat import Beat
from healthd.sources.identity import boot_time
from healthd.sources.imds import Hurry
from healthd.sources.kmsg import KernelLog
from healthd.state.lock import StateUnusable, is_usable, lock_state
from healthd.state.store import StoreUnopened

_TICK_S = 5.0  # the watchdog's, which systemd may set as low as twice this; a signal or a defect ends the wait at once
_ENGINE_POLL_S = 5.0
_REPORT_POLL_S = 1.0
_ENGINE_IS_STUCK_AFTER_S = 300.0  # beyond what it said that its present step may take
_READER_IS_STUCK_AFTER_S = 60.0
_HOUSEKEEPING_S = 10.0
_KERNEL_LOG_POLL_S = 10.0
_CATCH_UP_S = 30.0
_JOIN_S = 15.0  # a look at the machine or a word to the cluster, by their own deadlines
_LOCK_WAIT_S = 5.0  # a hook without a daemon holds it for as long as it looks


def serve(config: Config, notices: tuple[str, ...], *, load: Callable[[], object], hurry: Hurry) -> int:
    """Run until SIGTERM or SIGINT. Raises HealthdError for what cannot work from the start; returns the exit code.

    ``load`` says whether the configuration can be used as it is at a SIGHUP, by raising HealthdError where it cannot.
    ``hurry``: this start's, in which the configuration may have asked the metadata service already.
    """
    log = json_logger(config.daemon.log_level)
    manager = take_address()
    signals = Signals(manager, log, load)

    def begin(config: Config, stopgap: Stopgap | None = None) -> Daemon:
        return Daemon(config, log, notices, manager=manager, signals=signals, hurry=hurry, stopgap=stopgap)

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
            why = f"healthd only looks, and acts on nothing until its state can be kept: {error}"
            log.error(why)
            stopgap = Stopgap(folder=_memory(held), why=why)
            observing = replace(config, remediation=replace(config.remediation, mode=Mode.OBSERVE))
            daemon = begin(observing, stopgap)
        daemon.run()
        if daemon.left:  # the end of this process lets go of it: until then what is under way may still write
            held.pop_all()
    signals.start_again()
    return EXIT_FAILED if daemon.failed else 0


def _memory(held: contextlib.ExitStack) -> Path:
    """A folder in memory for the state of a daemon that only looks; it goes with the end of ``held``."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a folder of its own is made there
    folder = Path(tempfile.mkdtemp(prefix="healthd-", dir=where))
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _Door(Protocol):
    """Where somebody asks from outside."""

    def problem(self) -> str:
        """Why nobody is answered there, or ""."""

    def close(self) -> None:
        """Let nobody in any more."""


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
        hurry: Hurry,
        stopgap: Stopgap | None = None,
    ) -> None:
        self._config, self._log, self._manager, self._signals = config, log, manager, signals
        self._wake, self._stop, self._caught_up = threading.Event(), threading.Event(), threading.Event()
        self._waits_for_state = stopgap is not None
        self._beat, self._clock = Beat(), ClockWatch(datetime.now(UTC), time.monotonic())
        self.agent: Agent = acting_agent(
            config,
            source="daemon",
            environ=os.environ,
            changed=self._wake.set,
            notices=notices,
            beat=self._beat,
            stopgap=stopgap,
            hurry=hurry,
        )
        self._log = log.bind(node=self.agent.machine.name)
        self._metadata = Latecomer(self.agent.machine.imds)
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
            absent=lambda: self.agent.paged_absent,
        )
        self._page = metrics_of(self.agent)
        self._doors: list[_Door] = []
        self.failed = False
        self.left: tuple[str, ...] = ()
        """The threads that did not end in time; what they were doing is found again at the next start."""
        checkup = self.agent.checkup
        on_interval = [name for name, check in checkup.checks.items() if check.on == "interval"]
        self._rounds = CheckSchedule({name: checkup.interval_s(name) for name in on_interval}, self._look)

    def run(self) -> None:
        """Start everything, say READY, keep the watchdog until a signal, and end in order."""
        self._signals.listen()
        self._say_hello()
        daemon = self._config.daemon
        server = Server(daemon.socket, self.agent, group=daemon.group, readers=daemon.readers, log=self._log)
        threads = [
            threading.Thread(target=self._or_end, args=(work,), name=name, daemon=True)
            for name, work in (
                ("kmsg", self._follow_kernel_log),
                ("journal", self._follow_journal),
                ("engine", self._turn_engine),
                ("cluster", self._report_to_cluster),
                ("api", server.serve),
                *self._telling(),
            )
        ]
        self._doors.append(server)
        if (http := self._open_http()) is not None:
            self._doors.append(http)
        self._rounds.begin()
        for thread in threads:
            thread.start()
        notify(self._manager, "READY=1")
        while not self._signals.wait(_TICK_S):
            if not self.problem():
                notify(self._manager, "WATCHDOG=1")
            self._look_at_clock()
            if self._waits_for_state and is_usable(Path(self._config.daemon.state_dir)):
                self._waits_for_state = False
                self._log.info("the state directory can be used again: starting again with it")
                self._signals.reload()
        self._stop.set()
        self._signals.say_ending()
        self._log.info("stopping")
        for door in self._doors:
            door.close()
        self._end(threads)

    def problem(self) -> str:
        """Why the daemon itself is not going round, or "". A sick node is not a problem of the daemon."""
        if (idle := self._kernel_log.state().idle_s) > _READER_IS_STUCK_AFTER_S:
            return f"the kernel log reader has not come round for {idle:.0f} s"
        if (silent := self._beat.silent_s()) > _ENGINE_IS_STUCK_AFTER_S:
            return f"the engine has not come round for {silent:.0f} s"
        return next((said for door in self._doors if (said := door.problem())), "")

    def _look_at_clock(self) -> None:
        """Where the clock was set since the last look: move what is remembered by it, and have every check look now.

        Whoever asked between the two was told no lie: an outcome from the future is not fresh. The engine and the
        notifier keep times of their own, and look for themselves.
        """
        now = datetime.now(UTC)
        if not (by := self._clock.look(now, time.monotonic())):
            return
        text = f"{was_set(by)}: every check looks anew, and times that are remembered are moved with it"
        try:
            self._kernel_log.dates_from(boot_time(self.agent.machine.proc))
        except SourceError as error:
            text += f"; kernel records are dated by the clock as it was: {error}"
        self.agent.monitor.clock_was_set(by, now, text)
        self._rounds.anew()
        self._wake.set()
        self._log.warning(text)

    # -- threads ------------------------------------------------------------------------------------------------------

    def _or_end(self, work: Callable[[], None]) -> None:
        """Do the work of a thread; a defect that ends it ends the daemon, for its service manager to start it anew."""
        try:
            work()
        except Exception:  # noqa: BLE001 - half a daemon looks alive and is not: this one says so and goes
            self._log.critical("a thread of the daemon failed; this is a defect of healthd", exc_info=True)
            self.failed = True
            self._stop.set()
            self._signals.end()

    def _follow_kernel_log(self) -> None:
        """Judge each batch as it arrives. An empty one is judged too: it says that the log was looked at."""
        timeout_s = 0.0
        while not self._stop.is_set():
            batch = self._kernel_log.read_batch(timeout_s)
            cursor = (batch.cursor.boot_id, batch.cursor.sequence) if batch.cursor else None
            self.agent.checkup.judge_kernel(batch.records, cursor)
            self._drills.saw(batch.drilled)
            if batch.records:
                self._log.debug("kernel records", count=len(batch.records), last=batch.records[-1].text)
            if batch.caught_up and not self._caught_up.is_set():
                self._caught_up.set()
                timeout_s = _KERNEL_LOG_POLL_S

    def _follow_journal(self) -> None:
        if self._journal is not None:
            journal.follow(self._journal, self.agent.checkup, self._stop)

    def _report_to_cluster(self) -> None:
        """Tell the cluster about this node, where it is one that is told. One that does not answer keeps nobody waiting
        but this thread."""
        while self._report is not None and not self._stop.wait(_REPORT_POLL_S):
            if said := self._report():
                self._log.info("cluster", said=said)

    def _await_metadata(self) -> None:
        def start_again() -> None:
            self._log.info("the metadata service answers now: starting again with what it tells")
            self._signals.reload()

        self._log.warning("the metadata service has not answered yet; what only it tells is unknown until then")
        self._metadata.ask(self._stop, start_again)

    def _telling(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """What the daemon says and asks on its own, where there is anything."""
        notifier, metrics, page = self.agent.notifier, self._config.metrics, self._page
        if notifier is not None:
            yield "notify", lambda: keep_telling(notifier, self._stop, self._log)
        if self._metadata.is_awaited:
            yield "metadata", self._await_metadata
        if metrics.textfile:
            yield "textfile", lambda: keep_writing(metrics, lambda: page()[1], self._stop, self._log)

    def _turn_engine(self) -> None:
        engine, last, before = self.agent.engine, "", None
        assert engine is not None  # noqa: S101 - an acting agent has one
        self._caught_up.wait(_CATCH_UP_S)  # a fault early in the log may be over later in it
        self._metadata.wait(_CATCH_UP_S)  # which platform this is decides whether a node may be drained at all
        poll_s = min(_ENGINE_POLL_S, self._config.remediation.settle_s)
        housekeeping = time.monotonic()
        while not self._stop.is_set():
            self._wake.clear()
            said = engine.turn(datetime.now(UTC))
            self._drills.came_round()
            if said != last:
                last, log = said, self._log_of(engine.case or before)  # what ends a case is said of it too
                level = log.error if engine.decision.action is Action.PAGE else log.info
                level("engine", said=said, mode=self.agent.mode, action=engine.decision.action)
            before = engine.case
            if time.monotonic() - housekeeping > _HOUSEKEEPING_S:
                housekeeping = time.monotonic()
                self.agent.housekeeping(datetime.now(UTC))
                self._learn_fleet()
            self._wake.wait(engine.next_in_s(poll_s))

    def _log_of(self, case: Remediation | None) -> Any:
        """The log of one remediation: which it is, what it is for, and the step that it is at."""
        if case is None:
            return self._log
        return self._log.bind(case=case.id, component=case.component, code=case.code, step=case.step)

    def _learn_fleet(self) -> None:
        """In quiet times. What could not be read or kept is no reason for anything: it is read when it is needed."""
        try:
            self.agent.learn_fleet(datetime.now(UTC))
        except HealthdError as error:
            self._log.warning("the fleet was not read", error=str(error))

    def _look(self, name: str) -> None:
        """It is time for a check."""
        self.agent.checkup.start(name)
        self._drills.due(name)

    # -- beginning and end --------------------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        agent = self.agent
        text = f"healthd {__version__} started: node {agent.machine.name}, mode {agent.mode}"
        for notice in agent.checkup.notices:
            self._log.warning(notice)
        self._log.info(text, orchestrator=agent.orchestrator and agent.orchestrator.kind, boot_id=agent.monitor.boot_id)
        agent.monitor.record(Event(at=datetime.now(UTC), kind="daemon", text=text))

    def _open_drills(self) -> Drills:
        agent = self.agent
        assert agent.engine is not None  # noqa: S101 - an acting agent has both
        assert agent.store is not None  # noqa: S101
        return Drills(
            checkup=agent.checkup,
            engine=agent.engine,
            orchestrator=agent.orchestrator,
            open_case=agent.store.open_case,
            inject=self._kernel_log.inject,
            wake=self._wake.set,
            say=self._log.info,
        )

    def _open_http(self) -> _Door | None:
        if not self._config.daemon.http:
            return None
        from healthd.api.http import agent_routes, open_http

        routes = agent_routes(self.agent, metrics=self._page, problem=self.problem)
        daemon = self._config.daemon
        names = (self.agent.machine.name, *daemon.http_names)
        return open_http(daemon.http, routes, self._log, names, local=not daemon.readers)

    def _end(self, threads: list[threading.Thread]) -> None:
        """Stop in order. What an act is waited for is ``daemon.stop_s``; one that takes longer is left to its intent on
        disk, and so is the store: it stays open under whoever may still write to it."""
        self._rounds.end()
        self._drills.close("the daemon is stopping")
        self._wake.set()
        self._caught_up.set()
        self._kernel_log.close()
        if self._journal is not None:
            self._journal.close()
        acts = not self._engine_ends()
        for thread in threads:
            self._still_ending()
            thread.join(timeout=0.0 if acts and thread.name == "engine" else _JOIN_S)
        self.left = tuple(thread.name for thread in threads if thread.is_alive()) or (("engine",) if acts else ())
        self.agent.checkup.close()
        text = (
            "healthd stopped, to start again with its new configuration" if self._signals.reloads else "healthd stopped"
        )
        if self.left:
            text += f" with work under way ({', '.join(self.left)}): it is found again at the next start"
            self._log.error(text, waited_s=self._config.daemon.stop_s)
            self.failed = True
        self.agent.monitor.record(Event(at=datetime.now(UTC), kind="daemon", text=text))
        self.agent.close(keep_open=bool(self.left))

    def _still_ending(self) -> None:
        """Keep the watchdog while a reload ends what runs: for systemd the service is up all the while."""
        if self._signals.reloads:
            notify(self._manager, "WATCHDOG=1")

    def _engine_ends(self) -> bool:
        """Have the engine begin nothing more, and wait for what it is doing; whether that has ended."""
        engine, until_s = self.agent.engine, time.monotonic() + self._config.daemon.stop_s
        assert engine is not None  # noqa: S101 - an acting agent has one
        said = False
        while not engine.end(min(_TICK_S, max(0.0, until_s - time.monotonic()))):
            if time.monotonic() >= until_s:
                return False
            notify(self._manager, f"EXTEND_TIMEOUT_USEC={int(4 * _TICK_S * 1e6)}")
            self._still_ending()
            if not said:
                said = True
                self._log.info("stopping: waiting for what is under way to end", at_most_s=self._config.daemon.stop_s)
        return True
