"""A machine without a cluster: the hold is a file, the fleet is this node, the jobs are processes on its GPUs.

Keeps the same laws as a real cluster, so that the engine, the demo and a single workstation use one path. Nothing
here stops a process: whoever starts jobs asks `healthd check` first. A file that cannot be read is not "no hold".
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path

from healthd.errors import BackendRefused, BackendUnknown
from healthd.remediation.ports import FleetLevel, Hold, NodeView

HOLD_FILE = "hold.json"


def _nobody() -> Collection[int]:
    return ()


class LocalOrchestrator:
    """The Orchestrator of a machine that belongs to no cluster.

    ``state_dir``: where the hold is kept, created when it is first needed. ``proc_root`` and ``dev_root``: the trees in
    which jobs are looked for. ``ignore_pids``: processes that have a GPU open and are no job, such as our own probe
    workers. ``user`` and ``clock`` (seconds since the epoch) sign the hold.
    """

    kind = "local"

    def __init__(
        self,
        *,
        state_dir: Path | str,
        node: str,
        proc_root: Path | str = "/proc",
        dev_root: Path | str = "/dev",
        ignore_pids: Callable[[], Collection[int]] = _nobody,
        user: str = "healthd",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._node = Path(state_dir) / HOLD_FILE, node
        self._proc, self._dev = Path(proc_root), Path(dev_root)
        self._ignore_pids, self._user, self._clock = ignore_pids, user, clock

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read the hold; ``jobs`` also lists ``"<pid> <name>"`` of each process on a GPU. Raises BackendUnknown."""
        hold = self._read()
        return NodeView(
            name=self._node,
            in_service=hold is None,
            flags=frozenset() if hold is None else frozenset({"DRAIN"}),
            hold=hold,
            jobs=gpu_processes(self._proc, self._dev, self._ignore_pids()) if jobs else (),
        )

    def level(self) -> FleetLevel:
        """A fleet of one."""
        return FleetLevel(out=frozenset() if self._read() is None else frozenset({self._node}), total=1)

    def quarantine(self, text: str) -> None:
        """Write the hold, durably. The same text again changes nothing; another text over a hold is refused."""
        if not text or not text.isprintable():
            raise BackendRefused(f"hold of {self._node} not written: the reason is {text!r}, expected one line of text")
        hold = self._read()
        if hold is not None and hold.text != text:
            raise BackendRefused(f"{self._node} is held already, by {hold.user}: {hold.text}")
        if hold is None:
            self._write(Hold(text=text, user=self._user, stamp=int(self._clock())))

    def release(self, *, resume: bool) -> None:
        """Remove the hold. There is no DOWN here, so ``resume`` makes no difference."""
        try:
            self._path.unlink(missing_ok=True)
            _sync_folder(self._path.parent)
        except FileNotFoundError:
            return  # no state_dir: nothing was ever held
        except OSError as error:
            raise BackendUnknown(f"{self._path}: the hold could not be removed: {error}; remove it by hand") from error

    def _read(self) -> Hold | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendUnknown(f"{self._path}: the hold could not be read: {error}") from error
        try:
            fields = json.loads(content)
        except ValueError:
            fields = None
        match fields:
            case {"text": str(text), "user": str(user), "stamp": int(stamp)}:
                return Hold(text=text, user=user, stamp=stamp)
        problem = f"{self._path}: expected a hold as JSON with text, user and stamp, got {content[:80]!r}"
        raise BackendUnknown(f"{problem}; look at it, and remove it to put the node back in service")

    def _write(self, hold: Hold) -> None:
        body = json.dumps({"text": hold.text, "user": hold.user, "stamp": hold.stamp})
        part = self._path.with_suffix(f".{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "w", encoding="utf-8") as file:
                file.write(body + "\n")
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):  # a read-only or full disk is what is being reported below
                part.unlink(missing_ok=True)
            problem = f"{self._path}: the hold could not be written: {error}"
            raise BackendUnknown(f"{problem}; make room, or set another state_dir") from error


def gpu_processes(proc_root: Path, dev_root: Path, ignore: Collection[int] = ()) -> tuple[str, ...]:
    """``"<pid> <name>"`` of every process that has a ``/dev/nvidia<N>`` node open, in pid order.

    Control nodes (nvidiactl, nvidia-uvm) do not count: monitoring keeps them open. Raises BackendUnknown when a process
    may not be looked into, because one that is hidden may be a job.
    """
    if not any(re.fullmatch(r"nvidia\d+", path.name) for path in dev_root.glob("nvidia*")):
        return ()  # no GPU node, nobody can have one open: no need of root to say so
    pids = sorted(int(path.name) for path in proc_root.glob("[0-9]*"))
    on_gpu = [pid for pid in pids if pid not in ignore and _has_gpu_open(proc_root / f"{pid}/fd", f"{dev_root}/nvidia")]
    return tuple(f"{pid} {_name(proc_root / str(pid))}" for pid in on_gpu)


def _has_gpu_open(fd_dir: Path, prefix: str) -> bool:
    try:
        for fd in os.listdir(fd_dir):
            if _link(fd_dir / fd).removeprefix(prefix).removesuffix(" (deleted)").isdecimal():
                return True
    except PermissionError as error:
        raise BackendUnknown(
            f"{fd_dir}: {error.strerror}: jobs on the GPUs cannot be told; run as root, with CAP_SYS_PTRACE"
        ) from error
    except OSError:  # the process has ended
        return False
    return False


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # closed since it was listed
        return ""


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:  # ended since it was found
        return "?"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
