"""Resets the GPUs of this machine: every holder stopped, ``nvidia-smi --gpu-reset``, every holder started again.

A reset works only when nobody has a GPU open (NVIDIA, GPU memory error management: response flags); a process in
uninterruptible sleep never lets go, so it is looked for first. All GPUs are reset together: those of an NVSwitch board
cannot be reset alone. It must not decide that a reset is wanted, and what it stopped it names, so that it is started
again whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from healthd.errors import BackendRefused, BackendUnknown, SourceError, SourceMissing
from healthd.node import CommandResult
from healthd.remediation.gpu_holders import Holder, gpu_holders

_STOP_S = 60.0
_RESET_S = 300.0
_SAID_CHARACTERS = 300


class Run(Protocol):
    """How commands are run: run_command, or a test's own."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        """As run_command."""


@dataclass(kw_only=True)
class GpuReset:
    """The Resetter of a real machine.

    ``services``: systemd units that may hold GPUs open. ``allowed``: False where none may be made at all. ``let_go``:
    ends our own NVML worker and keeps it away for a while, ``take_up`` lets it come back before that. ``own_pids``: our
    own processes, which ``let_go`` ends. ``after``: told of every reset that was made.
    """

    services: tuple[str, ...]
    run: Run
    let_go: Callable[[], None]
    own_pids: Callable[[], Collection[int]]
    allowed: bool = True
    take_up: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    proc_root: Path = Path("/proc")
    dev_root: Path = Path("/dev")

    def why_not(self) -> str:
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
        """Those of the services that are active now."""
        active = []
        for service in self.services:
            try:
                answer = self.run(("systemctl", "is-active", service), timeout_s=_STOP_S)
            except SourceMissing:
                return ()  # no systemd: who holds a GPU is seen when it is to be reset
            except SourceError as error:
                raise BackendUnknown(f"whether {service} is active could not be told: {error}") from error
            if answer.stdout.strip() == "active":
                active.append(service)
        return tuple(active)

    def reset(self, stop: tuple[str, ...]) -> str:
        """Stop, let go, make sure that nobody is left, and reset all GPUs."""
        for service in stop:
            self._done(("systemctl", "stop", service), _STOP_S)
        self.let_go()
        try:
            if left := self._holders():
                raise BackendRefused(f"not reset: the GPUs are held by {_named(left)}")
            self._done(("nvidia-smi", "--gpu-reset"), _RESET_S)
        except BackendRefused:
            self.take_up()
            raise
        self.after()
        self.take_up()  # not where the answer is unknown: a reset that hangs has NVML hang
        return f"nvidia-smi --gpu-reset, after stopping {', '.join(stop) or 'nothing'}"

    def start(self, services: tuple[str, ...]) -> str:
        """Start them in the order in which they are configured; each that fails is named, none hides another."""
        wrong = []
        for service in services:
            try:
                self._done(("systemctl", "start", service), _STOP_S)
            except (BackendRefused, BackendUnknown) as error:
                wrong.append(str(error))
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
            said = " ".join((result.stderr or result.stdout).split())[-_SAID_CHARACTERS:]
            raise BackendRefused(f"{' '.join(argv)}: exit status {result.code}: {said}")


def _named(holders: Sequence[Holder]) -> str:
    return ", ".join(f"{holder.pid} {holder.name}" for holder in holders)
