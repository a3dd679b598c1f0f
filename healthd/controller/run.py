"""``healthd controller``: one process that acts for nodes without rights. The composition root.

A lock on a head node of Slurm (``controller.slurm``), or a Lease on Kubernetes (``controller.kubernetes``), says which
of several controllers leads; the others wait. This module decides nothing: ``remediation.controller`` does. Every
controller shows the leader's last status (``controller.status``); so do ``/metrics`` and messages to operators
(``controller.notifications``).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from healthd import __version__
from healthd.agent.node_facts import runs_kubernetes, runs_slurm
from healthd.api.controller_stats import ControllerStats
from healthd.api.exit_codes import ExitCode
from healthd.api.http import HttpDoor, common_routes, open_http
from healthd.api.scrape import on_demand
from healthd.config.schema.config import Config
from healthd.controller.compared_jobs import JobComparer
from healthd.controller.dependencies import metadata_of
from healthd.controller.fleet import FleetKeeper
from healthd.controller.fleet_page import FleetPage
from healthd.controller.fleet_reader import SharedReading
from healthd.controller.incidents import FenceBackend, IncidentBackend
from healthd.controller.jobs import JobKeeper, JobList, JobWatch
from healthd.controller.ledger import LedgerFile, ledger_path
from healthd.controller.notifications import controller_notifier
from healthd.controller.progress import Progress
from healthd.controller.status import KeptText, StatusBoard, StatusFile, status_of
from healthd.core.errors import BackendError, ConfigError, ExtraMissing, StoreError
from healthd.core.model import Event, Mode
from healthd.daemon.logging import service_logger
from healthd.daemon.service_manager import Signals, notify, take_address
from healthd.notify.delivery import run_with
from healthd.notify.notifier import keep_notifying
from healthd.remediation.controller.node_status import NodeStatus, merged
from healthd.remediation.decide.fleet import Scope
from healthd.remediation.provisioners.from_config import found_by_controller
from healthd.sources.command import adopt_children
from healthd.state.store import Store

if TYPE_CHECKING:
    from healthd.api.metric_families import Bounded

_TICK_S = 5.0  # the watchdog's
_YIELD_S = 10.0  # a controller whose sync is stuck gives up the lead within that time
_JOIN_S = 15.0  # a message under way, by its own deadlines
_STOP_S = 60.0  # a call to AWS and its reading back; the chart gives the pod longer
_STORE = "controller.db"
_REPORTED_S = 60.0
FRESH_SYNCS, FRESH_S = 3.0, 60.0
"""A status older than this, in syncs and at least in seconds, comes from a controller that no longer runs."""


def control(config: Config, *, once: bool = False, load: Callable[[], object]) -> int:
    """Run until SIGTERM or SIGINT, or for one sync. Raises HealthdError for what cannot work from the start.

    ``load`` says whether the configuration can be used as it is at a SIGHUP, by raising HealthdError where it cannot.
    """
    log = service_logger(config.daemon.log_level)
    manager = take_address()
    adopt_children()
    signals = Signals(manager, log, load)
    code = ControllerService(config, log, open_work(config), once=once, manager=manager, signals=signals).run()
    signals.start_again()
    return code


class ControllerSync(Protocol):
    """The sync of a controller that leads, called every few seconds."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The budget as the last sync read it."""

    def __call__(self, now: datetime) -> Sequence[NodeStatus]:
        """One sync. Raises BackendError, StoreError."""


class Work(Protocol):
    """The differences between clusters: how one controller takes the lead, and what its sync does."""

    @property
    def stats(self) -> ControllerStats:
        """The stats of this controller, for its metrics and messages."""

    @property
    def about(self) -> str:
        """The platform of the nodes, for the log."""

    @property
    def leader(self) -> str:
        """The controller that leads, as far as that is known."""

    def take_lead(self, held: contextlib.ExitStack, progress: Progress) -> bool:
        """Try once to take the lead, which ends with ``held``, or at the latest with a process whose ``progress`` is
        stuck. Raises StoreError where that cannot ever succeed."""

    def leads(self) -> bool:
        """Whether this controller may act at this moment."""

    def status(self) -> StatusBoard:
        """Where any controller finds what the leading one said last."""

    def told(self, store: Store) -> KeptText:
        """The place where the next leader finds the messages that were sent."""

    def sync(self, store: Store) -> ControllerSync:
        """The sync that runs every few seconds."""

    @property
    def reading(self) -> SharedReading:
        """The whole fleet as it was read last."""

    @property
    def incident_backend(self) -> IncidentBackend | None:
        """Where notices of incidents are left; None where nodes hold no message."""

    @property
    def jobs(self) -> JobList | None:
        """The jobs of the cluster; None where their ends are not judged."""

    @property
    def fence_backend(self) -> FenceBackend | None:
        """The fences of NVLink domains; None where there are none."""


class ControllerService:
    """One controller, leading or waiting to lead."""

    def __init__(
        self, config: Config, log: Any, work: Work, *, once: bool = False, manager: str, signals: Signals
    ) -> None:
        self._config, self._log, self._once, self._manager, self._signals = config, log, once, manager, signals
        self._folder, self._work = Path(config.controller.state_dir), work
        self._stop, self._failed = threading.Event(), False
        self._progress = Progress(config.controller.sync_timeout_s)
        self._messages: dict[str, str] = {}
        self._status, self._unshown = work.status(), ""
        self._http: HttpDoor | None = None
        self._leading, self._stats = False, work.stats
        self._stats.leads = lambda: self._leading and work.leads()
        self._stats.slow = self._progress.slow

    def run(self) -> int:
        """Wait for the lead, then sync in a loop; the main thread keeps the watchdog and waits for signals."""
        self._signals.listen()
        self._log.info(
            f"healthd {__version__} controller started: {self._work.about}",
            mode=self._mode,
            state_dir=str(self._folder),
        )
        worker = threading.Thread(target=self._or_end, name="controller", daemon=True)
        worker.start()
        http = self._http = None if self._once else self._open_http()
        notify(self._manager, "READY=1")
        while not self._signals.wait(min(_TICK_S, self._config.controller.interval_s)) and not self._is_stuck():
            if not self.problem():
                notify(self._manager, "WATCHDOG=1")
        self._stop.set()
        self._signals.say_ending()
        worker.join(timeout=_YIELD_S if self._progress.stuck() else _STOP_S)
        if http is not None:
            http.close()
        if worker.is_alive():
            self._log.error("stopped during a sync; its requests are in the handoff records, and none is sent twice")
        self._log.info("stopping")
        return ExitCode.FAILED if self._failed else 0

    def _open_http(self) -> HttpDoor | None:
        settings = self._config.controller
        fleet = FleetPage(
            self._work.reading,
            self._config,
            self._log,
            leads=self._stats.leads,
            leader=lambda: self._work.leader,
            host=socket.gethostname(),
        )
        routes = {**fleet.routes(), **common_routes(metrics=on_demand(self._page), problem=self.problem)}
        local = not self._config.daemon.readers
        return open_http(settings.http, routes, self._log, settings.http_names, local=local)

    def problem(self) -> str:
        """Why the controller itself does not sync, or "". A cluster that does not answer is no such reason."""
        return self._progress.stuck() or (self._http.problem() if self._http is not None else "")

    def _is_stuck(self) -> bool:
        """Whether a sync does not end. The process then logs it and exits: another one leads, or this one restarts."""
        if why := self._progress.stuck():
            self._log.critical(
                "the controller is stuck: giving up the lead and exiting", message=why, leads=self._leading
            )
            self._failed = True
        return bool(why)

    def _page(self) -> Bounded:
        from healthd.api.controller_metrics import ControllerPage  # heavy, and seldom asked for

        return ControllerPage(self._stats)

    @property
    def _mode(self) -> Mode:
        return self._config.remediation.mode

    def _or_end(self) -> None:
        """Exit at a defect, so that the service manager starts the process again."""
        try:
            while not self._stop.is_set():
                with contextlib.ExitStack() as held:
                    if self._leads(held):
                        self._lead(held)
                if self._once:
                    return
        except StoreError as error:
            self._log.error("the controller cannot go on", message=str(error))
            self._failed = True
        except Exception:  # noqa: BLE001 - half a controller looks alive and is not: this one says so and goes
            self._log.critical("the controller failed; please report this defect of healthd", exc_info=True)
            self._failed = True
        finally:
            if not self._stop.is_set():  # else the main thread ends already, maybe for a reload, which END would undo
                self._signals.end()

    def _leads(self, held: contextlib.ExitStack) -> bool:
        """Take the lead, however long that takes; False if a signal comes first."""
        waiting = False
        while not self._took_lead(held):
            if not waiting:
                self._log.info("another controller leads; waiting to take over", leader=self._work.leader)
                waiting = True
            if self._once:
                raise StoreError(f"{self._folder}: another controller leads ({self._work.leader})")
            if self._stop.wait(min(1.0, self._config.controller.interval_s)):
                return False
        self._log.info("leads: this controller acts from now on", took_over=waiting)
        return True

    def _took_lead(self, held: contextlib.ExitStack) -> bool:
        with self._progress.at("taking the lead"):
            return self._work.take_lead(held, self._progress)

    def _lead(self, held: contextlib.ExitStack) -> None:
        with self._progress.at("opening the state"):
            store = Store(self._folder / _STORE, now=datetime.now(UTC))
            held.callback(store.close)
            if store.set_aside:
                self._log.error("database set aside", message=store.set_aside)
            sync = self._work.sync(store)
            self._stats.took_lead()
            self._leading = True
            held.callback(self._left)
            ledger = self._ledger(held)
            self._begin_jobs(held, ledger)
            self._begin_fleet(held, ledger)  # first: open incidents are shown before messages begin
            self._begin_telling(store, held)
        while not self._stop.is_set() and self._work.leads():
            with self._progress.at("a sync"):
                self._tell(self._sync(sync), store)
                if not self._stats.store_failing:
                    store.ballast.lay()
            if self._once:
                return
            self._stop.wait(self._config.controller.interval_s)
        if not self._stop.is_set():
            self._log.error("lost the lead: this controller stops acting until it leads", leader=self._work.leader)

    def _left(self) -> None:
        self._leading = False
        self._stats.left_lead()

    def _begin_telling(self, store: Store, held: contextlib.ExitStack) -> None:
        """Send messages for as long as this controller leads, from a thread of its own."""
        if not self._once:
            telling = partial(self._tell_receivers, self._work.told(store))
            _begin_thread(held, "notify", partial(self._keep, "the notifier", telling))

    def _tell_receivers(self, reported: KeptText, stop: threading.Event) -> None:
        notifier = controller_notifier(
            self._config.notify,
            self._stats,
            name=socket.gethostname(),
            kept=self._reported_before(reported, stop),
            keep=reported.keep,
            state_dir=self._config.controller.state_dir,
        )
        if notifier is not None:
            self._stats.notifier = notifier
            keep_notifying(notifier, stop, self._log, speaks=self._stats.leads)

    def _reported_before(self, reported: KeptText, stop: threading.Event) -> str:
        """The reports of the leader before this one, asked for until they are read, for a minute at most: without them
        what has ended since stays open with its receivers for good."""
        end_s = time.monotonic() + _REPORTED_S
        while True:
            try:
                return reported.kept()
            except StoreError as error:
                problem = str(error)
            if stop.wait(min(_TICK_S, self._config.controller.interval_s)) or time.monotonic() >= end_s:
                break
        self._log.error("notification", message=f"{problem}; some messages may be sent twice, and some ends not at all")
        return ""

    def _keep(self, what: str, keep: Callable[[threading.Event], None], stop: threading.Event) -> None:
        """Keep it until ``stop``. A defect ends the controller: operators would wait for messages, and owners for
        notices, that never come."""
        try:
            keep(stop)
        except Exception:  # noqa: BLE001 - as in _or_end
            self._log.critical(f"{what} failed; please report this defect of healthd", exc_info=True)
            self._failed = True
            if not self._stop.is_set():  # as in _or_end
                self._signals.end()

    def _ledger(self, held: contextlib.ExitStack) -> LedgerFile | None:
        """The ledger of the keepers; its file is opened by the first that needs it."""
        if self._once:
            return None
        if not self._config.ledger.enabled:
            self._log.info("no ledger here: [ledger] enabled is false")
            return None
        file = LedgerFile(ledger_path(self._config), self._log)
        held.callback(file.close)
        return file

    def _begin_fleet(self, held: contextlib.ExitStack, ledger: LedgerFile | None) -> None:
        """Keep incidents and ledger for as long as this controller leads, from one thread and one reading."""
        if self._once:
            return
        work, log = self._work, self._log
        cluster, fencer = work.incident_backend, work.fence_backend
        keeper = FleetKeeper(self._config, work.reading, cluster, self._stats, log, ledger=ledger, fencer=fencer)
        _begin_thread(held, "fleet", partial(self._keep, "the reading of the fleet", keeper.keep))

    def _begin_jobs(self, held: contextlib.ExitStack, ledger: LedgerFile | None) -> None:
        """Keep the ends of jobs in the ledger, and tell their owners."""
        jobs, config = self._work.jobs, self._config
        if jobs is None or ledger is None:
            return
        command = config.notify.owner_command
        tell = partial(run_with, command) if command else None
        keeper = JobKeeper(jobs, ledger.opened, config.policy, self._log, tell=tell)
        compare = JobComparer.of(config, jobs.running, self._stats, self._log)
        watch = JobWatch(jobs, self._work.reading, keeper, self._log, compare=compare)
        _begin_thread(held, "jobs", partial(self._keep, "the watch of jobs", watch.keep))

    def _sync(self, sync: ControllerSync) -> Sequence[NodeStatus]:
        """The node statuses after one more sync. A sync that fails keeps the last known statuses in the stats."""
        began, result, message = time.monotonic(), "ok", ""
        statuses: Sequence[NodeStatus] = ()
        try:
            statuses = sync(datetime.now(UTC))
        except BackendError as error:
            result, message = "cluster", f"sync failed, no node was changed: the cluster does not answer: {error}"
        except StoreError as error:
            result, message = "store", f"sync failed, no node was changed: {error}"
        if message:
            statuses = (NodeStatus(node="", message=message, page=result == "store"),)
        else:
            if self._stats.fleet_problem:
                statuses = (*statuses, NodeStatus(node="", message=self._stats.fleet_problem))
            statuses = merged(statuses)
            self._stats.statuses, self._stats.scopes = statuses, sync.scopes
        self._stats.ended(result, time.monotonic() - began, message)
        return statuses

    def _tell(self, statuses: Sequence[NodeStatus], store: Store) -> None:
        """Write new statuses to the log and the audit trail, and all of them to where ``--status`` reads them."""
        for each in statuses:
            if self._messages.get(each.node) == each.message:
                continue
            snapshot = self._log.error if each.page else self._log.info
            snapshot(
                "controller",
                node=each.node,
                message=each.message,
                remedy=each.remedy,
                machine=each.machine,
                page=each.page,
            )
            with contextlib.suppress(StoreError):  # the next sync reports that nothing can be written
                text = f"{each.node}: {each.message}" if each.node else each.message
                store.append(Event(at=datetime.now(UTC), kind="decision", text=text))
        before = self._messages if self._stats.problem else {}  # a sync that failed says nothing of the nodes
        self._messages = {**before, **{each.node: each.message for each in statuses}}
        notices = self._stats.notifier.problems() if self._stats.notifier is not None else ()
        self._show(status_of(self._mode, statuses, leader=self._work.leader, now=datetime.now(UTC), notices=notices))

    def _show(self, status: Mapping[str, Any]) -> None:
        """Show the status; log once that it cannot be shown, and stop no sync."""
        problem = ""
        try:
            self._status.show(status)
        except StoreError as error:
            problem = str(error)
        if problem and not self._unshown:
            self._log.error("`healthd controller --status` is out of date", message=problem)
        self._unshown = problem


# ---------------------------------------------------------------------------------------------------------------------
# parts


def _begin_thread(held: contextlib.ExitStack, name: str, keep: Callable[[threading.Event], None]) -> None:
    """Run ``keep`` in a thread of its own until what is held is given back: then its event is set, and it is joined."""
    stop = threading.Event()
    thread = threading.Thread(target=keep, args=(stop,), name=name, daemon=True)
    thread.start()
    held.callback(thread.join, timeout=_JOIN_S)
    held.callback(stop.set)


def read_status(config: Config) -> dict[str, Any] | None:
    """The last status of the controller that leads, or None where there is none. Raises ConfigError, StoreError."""
    if not runs_kubernetes(config, os.environ):
        return StatusFile(Path(config.controller.state_dir)).shown()
    try:
        from healthd.controller.kubernetes import read_status as read_it  # heavy: lightkube
    except ImportError as error:
        raise ExtraMissing("the controller of a Kubernetes cluster", error) from error
    return read_it(config, os.environ)


def open_work(config: Config) -> Work:
    """The work of a controller on this cluster. No request is sent. Raises ConfigError."""
    if runs_kubernetes(config, os.environ):
        try:
            from healthd.controller.kubernetes import KubernetesWork  # heavy: lightkube
        except ImportError as error:
            raise ExtraMissing("the controller of a Kubernetes cluster", error) from error
        return KubernetesWork(config, os.environ)
    if not runs_slurm(config, os.environ):
        found_by_controller(config.provisioner, metadata_of(config))  # its error comes first
        wrong = "no Slurm and no Kubernetes found, and the controller needs one of them; set [orchestrator] kind"
        raise ConfigError((wrong,))
    from healthd.controller.slurm import SlurmWork

    return SlurmWork(config)
