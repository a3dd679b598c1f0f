"""``healthd controller``: one process that acts for nodes without rights. The composition root.

On a head node of Slurm, a lock in its state directory says which of several leads: the others wait, and go on from what
it wrote down when it ends, however it ends; on Kubernetes a Lease does (``controlling_kubernetes``). It decides
nothing; ``remediation.controller`` does. What it said last is in ``status.json``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from healthd import __version__
from healthd.api.wire import EXIT_FAILED
from healthd.config.schema import Config
from healthd.controlling_parts import make_controller, metadata_of
from healthd.errors import BackendError, ConfigError, StoreError
from healthd.jsonlog import json_logger
from healthd.model import Mode
from healthd.notify import notify, take_address
from healthd.remediation.controller import Standing
from healthd.remediation.orchestrators.slurm import SlurmOrchestrator
from healthd.remediation.provisioners.opening import found_by_controller, open_elsewhere
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS, read_node
from healthd.signals import Signals
from healthd.store import Event, Store
from healthd.whoami import runs_kubernetes, runs_slurm

_TICK_S = 5.0  # the watchdog's
_STUCK_AFTER_S = 600.0
_STOP_S = 60.0  # a call to AWS and its reading back; the chart gives the pod longer
_LOCK, _STATUS, _STORE = "lock", "status.json", "controller.db"
FRESH_ROUNDS, FRESH_S = 3.0, 60.0
"""A status that is older than this, in rounds and at least in seconds, is of a controller that no longer runs."""


def control(config: Config, *, once: bool = False, load: Callable[[], object]) -> int:
    """Run until SIGTERM or SIGINT, or for one round. Raises HealthdError for what cannot work from the start.

    ``load`` says whether the configuration can be used as it is at a SIGHUP, by raising HealthdError where it cannot.
    """
    log = json_logger(config.daemon.log_level)
    manager = take_address()
    signals = Signals(manager, log, load)
    code = ControllerService(config, log, _work(config), once=once, manager=manager, signals=signals).run()
    signals.start_again()
    return code


class Work(Protocol):
    """What differs between clusters: how one controller comes to lead, and what it does in a round."""

    @property
    def about(self) -> str:
        """Of whose nodes, for the log."""

    @property
    def leader(self) -> str:
        """Who leads, as far as that is known."""

    def take_lead(self, held: contextlib.ExitStack) -> bool:
        """Try once to take the lead, which ends with ``held``. Raises StoreError where that cannot ever succeed."""

    def leads(self) -> bool:
        """Whether this controller may act at this moment."""

    def rounds(self, store: Store) -> Callable[[datetime], Sequence[Standing]]:
        """What is done every few seconds. Raises BackendError, StoreError."""


class ControllerService:
    """One controller, leading or waiting to lead."""

    def __init__(
        self, config: Config, log: Any, work: Work, *, once: bool = False, manager: str, signals: Signals
    ) -> None:
        self._config, self._log, self._once, self._manager, self._signals = config, log, once, manager, signals
        self._folder, self._work = Path(config.controller.state_dir), work
        self._stop, self._beat, self._failed = threading.Event(), time.monotonic(), False
        self._said: dict[str, str] = {}

    def run(self) -> int:
        """Wait for the lead, then go round; the main thread keeps the watchdog and waits for signals."""
        self._signals.listen()
        self._log.info(
            f"healthd {__version__} controller started: {self._work.about}",
            mode=self._mode,
            state_dir=str(self._folder),
        )
        worker = threading.Thread(target=self._or_end, name="controller", daemon=True)
        worker.start()
        notify(self._manager, "READY=1")
        while not self._signals.wait(min(_TICK_S, self._config.controller.interval_s)):
            if time.monotonic() - self._beat < _STUCK_AFTER_S:
                notify(self._manager, "WATCHDOG=1")
        self._stop.set()
        self._signals.say_ending()
        worker.join(timeout=_STOP_S)
        if worker.is_alive():
            self._log.error(
                "stopped with a round under way: what it asked for is in the marks, and never asked for twice"
            )
        self._log.info("stopping")
        return EXIT_FAILED if self._failed else 0

    @property
    def _mode(self) -> Mode:
        return self._config.remediation.mode

    def _or_end(self) -> None:
        """A defect ends the process, for its service manager to start it anew."""
        try:
            while not self._stop.is_set():
                with contextlib.ExitStack() as held:
                    if self._leads(held):
                        self._lead(held)
                if self._once:
                    return
        except StoreError as error:
            self._log.error("the controller cannot go on", said=str(error))
            self._failed = True
        except Exception:  # noqa: BLE001 - half a controller looks alive and is not: this one says so and goes
            self._log.critical("the controller failed; this is a defect of healthd", exc_info=True)
            self._failed = True
        finally:
            if not self._stop.is_set():  # else the main thread ends already, maybe for a reload, which END would undo
                self._signals.end()

    def _leads(self, held: contextlib.ExitStack) -> bool:
        """Take the lead, however long that takes; False where a signal came first."""
        waiting = False
        while not self._work.take_lead(held):
            if not waiting:
                self._log.info("another controller leads; waiting to take over", leader=self._work.leader)
                waiting = True
            self._beat = time.monotonic()
            if self._once:
                raise StoreError(f"{self._folder}: another controller leads ({self._work.leader})")
            if self._stop.wait(min(1.0, self._config.controller.interval_s)):
                return False
        self._log.info("leads: this controller acts from now on", took_over=waiting)
        return True

    def _lead(self, held: contextlib.ExitStack) -> None:
        store = Store(self._folder / _STORE, now=datetime.now(UTC))
        held.callback(store.close)
        if store.set_aside:
            self._log.error("database set aside", said=store.set_aside)
        rounds = self._work.rounds(store)
        while not self._stop.is_set() and self._work.leads():
            self._tell(self._round(rounds), store)
            self._beat = time.monotonic()
            if self._once:
                return
            self._stop.wait(self._config.controller.interval_s)
        if not self._stop.is_set():
            self._log.error("lost the lead: this controller acts no more until it leads", leader=self._work.leader)

    def _round(self, rounds: Callable[[datetime], Sequence[Standing]]) -> Sequence[Standing]:
        try:
            return rounds(datetime.now(UTC))
        except BackendError as error:
            return (Standing(node="", said=f"the cluster did not answer, so nothing was done: {error}"),)
        except StoreError as error:
            return (Standing(node="", said=f"nothing was done: {error}", page=True),)

    def _tell(self, standings: Sequence[Standing], store: Store) -> None:
        """What is new goes to the log and the trail; all of it to the file that ``--status`` reads."""
        for each in standings:
            if self._said.get(each.node) == each.said:
                continue
            level = self._log.error if each.page else self._log.info
            level(
                "controller", node=each.node, said=each.said, remedy=each.remedy, machine=each.machine, page=each.page
            )
            with contextlib.suppress(StoreError):  # the next round says that nothing can be written
                text = f"{each.node}: {each.said}" if each.node else each.said
                store.append(Event(at=datetime.now(UTC), kind="decision", text=text))
        self._said = {each.node: each.said for each in standings}
        write_status(self._folder, self._mode, standings, leader=self._work.leader)


class SlurmWork:
    """Nodes of Slurm, from a head node: a lock on a folder, and the marks in the nodes' comments."""

    def __init__(self, config: Config) -> None:
        self._config, self._folder = config, Path(config.controller.state_dir)
        self._metadata = metadata_of(config)
        self._found = found_by_controller(config.provisioner, self._metadata)
        self._fleet = _slurm(config, socket.gethostname().partition(".")[0])

    @property
    def about(self) -> str:
        """The platform of the nodes, and how that is known."""
        return f"{self._found.platform}, {self._found.why}"

    @property
    def leader(self) -> str:
        """Who holds the lock."""
        return _leader(self._folder)

    def take_lead(self, held: contextlib.ExitStack) -> bool:
        """Try the lock."""
        lock = take_lead(self._folder)
        if lock is not None:
            held.callback(os.close, lock)
        return lock is not None

    def leads(self) -> bool:
        """A lock is held until its process ends."""
        return True

    def rounds(self, store: Store) -> Callable[[datetime], Sequence[Standing]]:
        """The controller's own."""
        config, scontrol = self._config, self._fleet.scontrol
        controller = make_controller(
            config,
            store,
            fleet=self._fleet,
            node=lambda name: _slurm(config, name),
            booted=lambda name: read_node(scontrol, name).booted,
            opt_out=config.remediation.opt_out_feature,
            provisioner=lambda name, instance: open_elsewhere(config, name, instance, self._metadata, scontrol),
            platform_texts=OUR_TEXTS,
        )
        return controller.round


# ---------------------------------------------------------------------------------------------------------------------
# the lead


def take_lead(folder: Path) -> int | None:
    """The lock's descriptor, held until it is closed or its process ends; None while another has it.

    flock, which NFS carries to other hosts as well. Raises StoreError where the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be used: {error.strerror}; check [controller] state_dir") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{socket.gethostname()} process {os.getpid()}\n".encode(), 0)
    return descriptor


def _leader(folder: Path) -> str:
    try:
        return (folder / _LOCK).read_text(errors="replace").strip() or "its name is not written down yet"
    except OSError as error:
        return f"its name cannot be read: {error.strerror}"


# ---------------------------------------------------------------------------------------------------------------------
# the status


def write_status(folder: Path, mode: Mode, standings: Sequence[Standing], *, leader: str) -> None:
    """Replace the status file whole. A folder that cannot be written is what the next round's store says loudly."""
    body = {
        "at": datetime.now(UTC).isoformat(),
        "leader": leader,
        "mode": mode,
        "nodes": [asdict(each) for each in standings],
    }
    new = folder / f"{_STATUS}.new"
    with contextlib.suppress(OSError):
        new.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        os.replace(new, folder / _STATUS)


def read_status(folder: Path) -> dict[str, Any] | None:
    """What the leading controller said last, or None where there is nothing to read."""
    try:
        body: dict[str, Any] = json.loads((folder / _STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body


# ---------------------------------------------------------------------------------------------------------------------
# parts


def _work(config: Config) -> Work:
    if runs_kubernetes(config, os.environ):
        try:
            from healthd.controlling_kubernetes import KubernetesWork  # heavy: lightkube
        except ImportError as error:
            extra = f"pip install 'healthd[kubernetes]' ({error})"
            raise ConfigError((f"the controller needs an extra that is not installed: {extra}",)) from error
        return KubernetesWork(config, os.environ)
    if not runs_slurm(config, os.environ):
        found_by_controller(config.provisioner, metadata_of(config))  # what is wrong with that is said first
        wrong = "the controller acts on nodes of Slurm or Kubernetes, and there is none here: set [orchestrator]"
        raise ConfigError((wrong,))
    return SlurmWork(config)


def _slurm(config: Config, node: str) -> SlurmOrchestrator:
    slurm = config.orchestrator.slurm
    return SlurmOrchestrator(node=node, bin_dir=slurm.bin_dir, conf=slurm.conf, timeout_s=slurm.timeout_s)
