"""A mount namespace for each process of a shared run."""

from __future__ import annotations

import ctypes

_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_REC, _MS_PRIVATE = 16384, 1 << 18  # linux/mount.h


def take_own_mounts() -> bool:
    """What this thread, and all that it starts from now on, mounts is seen by them alone, and is gone with the last of
    them. False where this process may not mount.

    A disk that one test breaks is a fault of the machine to each daemon that a test beside it has started.
    """
    libc = ctypes.CDLL(None)
    unshared: int = libc.unshare(_CLONE_NEWNS)
    return unshared == 0 and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
