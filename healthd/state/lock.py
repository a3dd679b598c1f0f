"""The lock of a state directory: only the process that holds it may write there, and act.

It is flock, which NFS carries to other hosts as well, and which the kernel takes back when its holder ends, however it
ends. It decides nothing.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path

from healthd.core.errors import StoreError

LOCK = "lock"
"""The file in the state directory."""

_POLL_S = 0.05
_SOME_BYTES = 1 << 20  # a fresh database with its log, some times over


class StateUnusable(StoreError):
    """The folder cannot be used because of its disk, not because another process has the lock."""


def lock_state(state_dir: Path, *, wait_s: float = 0.0) -> int:
    """Take the lock of the daemon's state directory, and return its descriptor, which holds it until it is closed.

    ``wait_s``: how long to wait for another healthd that holds it.
    Raises StoreError when another healthd has it, or the directory cannot be used.
    """
    until = time.monotonic() + wait_s
    while (lock := try_lock(state_dir, "[daemon] state_dir")) is None:
        if time.monotonic() >= until:
            raise StoreError(f"{state_dir}: another healthd uses it; stop that one, or set another [daemon] state_dir")
        time.sleep(_POLL_S)
    return lock


def is_usable(folder: Path) -> bool:
    """Whether a store would work there now: no other process holds the lock, and a file of some size can be created."""
    try:
        lock = try_lock(folder, "")
    except StoreError:
        return False
    if lock is None:
        return False
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _SOME_BYTES)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def try_lock(folder: Path, setting: str) -> int | None:
    """The descriptor of a folder's lock, held until it is closed or its process ends; None while another has it.

    ``setting``: the configuration key of the folder. Raises StoreError where the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        wrong = f"cannot use {folder}: {error.strerror}; expected a folder that healthd can write"
        raise StateUnusable(f"{wrong}; check {setting}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"cannot lock {folder}: {error.strerror}; check {setting} and its file system") from error
    return descriptor
