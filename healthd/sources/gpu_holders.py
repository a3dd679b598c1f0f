"""The processes that have a GPU open, by /proc: without the driver, so also when the driver hangs. Reads only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from healthd.core.errors import BackendUnknown

MONITORS = frozenset(
    {
        "nvidia-persiste",  # nvidia-persistenced
        "nv-fabricmanage",  # nv-fabricmanager
        "nvidia-imex",
        "nv-hostengine",  # DCGM
        "dcgm-exporter",
        "nvidia-device-p",  # nvidia-device-plugin
    }
)
"""Services that keep GPUs open and are no job, as /proc/PID/comm cuts them: 15 characters (proc(5))."""
FABRIC_MANAGERS = frozenset({"nv-fabricmanage"})
_UNIT = re.compile(r"/([^/\n]+\.service)(?:/|$)", re.MULTILINE)


class Holder(Struct, frozen=True, kw_only=True):
    """A process with a ``/dev/nvidia<N>`` open. ``state``: the letter of proc(5); D cannot be ended by a signal. Of a
    process that was killed, and of which a thread sleeps in the driver, it is that thread's.

    ``unit``: the service of systemd whose process it is, by its control group, or "". ``is_pod``: it runs in a pod.
    """

    pid: int
    name: str
    state: str
    unit: str = ""
    is_pod: bool = False


def gpu_holders(proc_root: Path, dev_root: Path) -> tuple[Holder, ...]:
    """Every process that has a ``/dev/nvidia<N>`` node open, in pid order.

    Control nodes (nvidiactl, nvidia-uvm) do not count: monitoring keeps them open. Raises BackendUnknown when the
    descriptors of a process may not be read, because a hidden process may be a job.
    """
    if not any(re.fullmatch(r"nvidia\d+", path.name) for path in dev_root.glob("nvidia*")):
        return ()  # without a GPU node no process can have one open: certain without root
    pids = sorted(int(path.name) for path in proc_root.glob("[0-9]*"))
    on_gpu = [pid for pid in pids if _has_gpu_open(proc_root / str(pid), f"{dev_root}/nvidia")]
    return tuple(_holder(pid, proc_root / str(pid)) for pid in on_gpu)


def _holder(pid: int, process: Path) -> Holder:
    group = _text(process / "cgroup")
    units = _UNIT.findall(group)
    return Holder(
        pid=pid,
        name=_text(process / "comm").strip() or "?",
        state=_state(process),
        unit=units[-1] if units else "",
        is_pod="kubepods" in group,
    )


def _has_gpu_open(process: Path, prefix: str) -> bool:
    fd_dir = process / "fd"
    try:
        if descriptors := os.listdir(fd_dir):
            return any(
                _link(fd_dir / fd).removeprefix(prefix).removesuffix(" (deleted)").isdecimal() for fd in descriptors
            )
        return any(_has_gpu_open(thread, prefix) for thread in _threads(process))
    except PermissionError as error:
        raise BackendUnknown(
            f"{fd_dir}: {error.strerror}: the jobs on the GPUs are unknown; run as root, with CAP_SYS_PTRACE"
        ) from error
    except OSError:  # the process has ended
        return False


def _threads(process: Path) -> Iterator[Path]:
    """The threads of a process but for the first one. Once that has ended its folder shows no descriptor, though the
    others have them open (proc_pid_fd(5)); so it is in a process that was killed and does not die."""
    tasks = process / "task"
    try:
        names = os.listdir(tasks)
    except OSError:  # the process has ended, or it is a thread
        return
    yield from (tasks / each for each in names if each != process.name)


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # closed since it was listed
        return ""


def _state(process: Path) -> str:
    """The word behind the name, which may itself hold blanks and brackets."""
    words = _text(process / "stat").rpartition(")")[2].split()
    state = words[0] if words else "?"
    return "D" if state == "Z" and "D" in map(_state, _threads(process)) else state


def _text(path: Path) -> str:
    """The text, or "" where the process has ended since it was found. A user may give names that are no UTF-8."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
