"""Resets the GPUs of this machine: every holder stopped, ``nvidia-smi --gpu-reset``, every holder started again.

A reset works only when no process has a GPU open (NVIDIA, GPU memory error management: response flags); a process in
uninterruptible sleep never lets go, so it is looked for first. A holder that may not be ended here is
searched before anything is stopped: then there is no reset, and the sentence names it. Clients that a
cluster keeps here end when they end, and until then the reset is *busy*; then the units of systemd are stopped, the
Fabric Manager last. Where that was stopped and no reset followed, the node owes one: NVLink SHARP fails with a Fabric
Manager that was started again over GPUs that were not reset (NVIDIA Fabric Manager user guide). All GPUs are reset
together: those of an NVSwitch board cannot be reset alone. It must not decide that a reset is wanted, and what it
stopped it names, so that it is started again whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown, SourceError, SourceMissing
from healthd.core.node import CommandResult
from healthd.sources.gpu_holders import FABRIC_MANAGERS, MONITORS, Holder, gpu_holders

_STOP_S = 60.0
_RESET_S = 300.0
_MESSAGE_CHARACTERS = 300
_FABRIC = "nvidia-fabricmanager"


class RunReset(Protocol):
    """How commands are run: run_command, or a test's own."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        """As run_command."""


class Clients(Protocol):
    """The clients that a cluster keeps on this node and that hold its GPUs. The names have a ``/``, which no systemd
    unit's has."""

    def running(self) -> tuple[str, ...]:
        """Those that are to run. Raises BackendError."""

    def stop(self, clients: Collection[str]) -> None:
        """Ask for their end. Raises BackendError."""

    def start(self, clients: Collection[str]) -> str:
        """Let them come back; why that could not be, or ""."""


class GpuReset(Struct, kw_only=True):
    """The Resetter of a real machine.

    ``services``: systemd units that may hold GPUs open. ``clients``: those that the cluster keeps here, None where they
    may not be stopped; ``help_``: what an operator can do about a holder that is none of these. ``allowed``: False
    where none may be made at all. ``let_go``: ends our own NVML worker and keeps it away for a while, ``take_up`` lets
    it come back before that. ``own_pids``: our own processes, which ``let_go`` ends. ``after``: called after every
    reset that was made; ``over``, at the end of every one that was begun. ``owe``: told why a reset is owed that was
    not made.
    """

    services: tuple[str, ...]
    run: RunReset
    let_go: Callable[[], None]
    own_pids: Callable[[], Collection[int]]
    allowed: bool = True
    clients: Clients | None = None
    help_: str = ""
    take_up: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    over: Callable[[], None] = lambda: None
    owe: Callable[[str], None] = lambda _why: None
    proc_root: Path = Path("/proc")
    dev_root: Path = Path("/dev")

    def reason_against(self) -> str:
        """No reset can be made without nvidia-smi, or past a process in uninterruptible sleep."""
        if not self.allowed:
            return "GPUs are not reset on this node ([remediation] gpu_reset is false)"
        try:
            self.run(("nvidia-smi", "--help"), timeout_s=_STOP_S)
        except SourceMissing as error:
            return str(error)
        except SourceError as error:
            return f"nvidia-smi does not answer: {error}"
        try:
            stuck = [holder for holder in self._holders() if holder.state == "D"]
        except BackendUnknown as error:
            return str(error)
        return f"held by {_named(stuck)} in uninterruptible sleep: only a reboot ends that" if stuck else ""

    def holders(self) -> tuple[str, ...]:
        """Those of the services that are active now, and the cluster's clients. Raises BackendError."""
        return (*self._active(), *(self.clients.running() if self.clients is not None else ()))

    def _active(self) -> tuple[str, ...]:
        active = []
        for service in self.services:
            try:
                is_active = self._is_active(service)
            except SourceMissing:
                return ()  # no systemd: who holds a GPU is seen when it is to be reset
            except SourceError as error:
                raise BackendUnknown(f"whether {service} is active is not known: {error}") from error
            if is_active:
                active.append(service)
        return tuple(active)

    def reset(self, stop: tuple[str, ...]) -> str:
        """Stop, let go, make sure that no holder is left, and reset all GPUs. Raises BackendError where not."""
        if others := self._others(stop):
            raise BackendRefused(f"not reset, nothing was stopped: the GPUs are held by {_named(others)}{self.help_}")
        try:
            self._stop(stop)
            self._reset(tuple(service for service in stop if service.startswith(_FABRIC)))
        except (BackendRefused, BackendUnknown, BackendBusy) as error:
            if down := [name for name in stop if name.startswith(_FABRIC) and self._may_be_stopped(name)]:
                self.owe(f"{', '.join(down)} was stopped for a GPU reset that was not made: {error}")
            raise
        self.after()
        self.take_up()  # not where the answer is unknown: a reset that hangs has NVML hang
        return f"nvidia-smi --gpu-reset, after stopping {', '.join(stop) or 'nothing'}"

    def _stop(self, stop: tuple[str, ...]) -> None:
        """Everything but the Fabric Manager."""
        clients = _clients_in(stop)
        if self.clients is not None and clients:
            self.clients.stop(clients)
            if left := [holder for holder in self._holders() if holder.unit not in _units(stop)]:
                raise BackendBusy(f"{', '.join(clients)} asked to end; the GPUs are still held by {_named(left)}")
        for service in stop:
            if service not in clients and not service.startswith(_FABRIC):
                self._done(("systemctl", "stop", service), _STOP_S)

    def _reset(self, fabric: tuple[str, ...]) -> None:
        self.let_go()
        try:
            self._refuse_held(but=fabric)
            for service in fabric:
                self._done(("systemctl", "stop", service), _STOP_S)
            self._refuse_held()
            self._done(("nvidia-smi", "--gpu-reset"), _RESET_S)
        except BackendRefused:
            self.take_up()
            raise
        finally:
            self.over()

    def _refuse_held(self, *, but: tuple[str, ...] = ()) -> None:
        left = [holder for holder in self._holders() if holder.unit not in _units(but)]
        if left and not (but and all(holder.name in FABRIC_MANAGERS for holder in left)):
            raise BackendRefused(f"not reset: the GPUs are held by {_named(left)}{self.help_}")

    def _others(self, stop: tuple[str, ...]) -> list[Holder]:
        """Holders that stopping these does not end: no unit of theirs, no monitor, no client of the cluster's."""
        units, clients = _units(stop), _clients_in(stop)
        return [
            holder
            for holder in self._holders()
            if holder.unit not in units and holder.name not in MONITORS and not (clients and holder.is_pod)
        ]

    def _may_be_stopped(self, service: str) -> bool:
        try:
            return not self._is_active(service)
        except SourceError:
            return True  # a reset too many harms nobody

    def _is_active(self, service: str) -> bool:
        """Raises SourceError."""
        return self.run(("systemctl", "is-active", service), timeout_s=_STOP_S).stdout.strip() == "active"

    def start(self, services: tuple[str, ...]) -> str:
        """Start them in the order in which they are configured; each that fails is named, none hides another."""
        wrong = []
        clients = _clients_in(services)
        for service in services:
            if service in clients:
                continue
            try:
                self._done(("systemctl", "start", service), _STOP_S)
            except (BackendRefused, BackendUnknown) as error:
                wrong.append(str(error))
        if self.clients is not None and clients and (why := self.clients.start(clients)):
            wrong.append(why)
        return "; ".join(wrong)

    def _holders(self) -> list[Holder]:
        own = self.own_pids()
        return [holder for holder in gpu_holders(self.proc_root, self.dev_root) if holder.pid not in own]

    def _done(self, argv: tuple[str, ...], timeout_s: float) -> None:
        try:
            result = self.run(argv, timeout_s=timeout_s)
        except SourceMissing as error:
            raise BackendRefused(str(error)) from error
        except SourceError as error:
            raise BackendUnknown(str(error)) from error
        if result.code:
            output = " ".join((result.stderr or result.stdout).split())[-_MESSAGE_CHARACTERS:]
            raise BackendRefused(f"{' '.join(argv)}: exit status {result.code}: {output}")


def _clients_in(names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if "/" in name)


def _units(services: Collection[str]) -> frozenset[str]:
    return frozenset(service if service.endswith(".service") else f"{service}.service" for service in services)


def _named(holders: Sequence[Holder]) -> str:
    return ", ".join(f"{holder.pid} {holder.name}" for holder in holders)
