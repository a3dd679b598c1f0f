"""Linux capabilities of one thread: put down where strangers are heard, and taken up again to work.

Each thread has its own (capabilities(7)), and a thread that it starts inherits them as they are. What is put down is
what is effective; the permitted set stays, because checks and orders are root's work. A program that root's thread
starts gets root's capabilities again at its exec, whatever its parent had put down.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from typing import Any

_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3, include/uapi/linux/capability.h
_HEADER = struct.Struct("Ii")
_SETS = struct.Struct("6I")  # effective, permitted, inheritable of the lower 32 bits, then of the upper
_libc = ctypes.CDLL(None, use_errno=True)


def put_down() -> None:
    """Let this thread have no effective capability. Raises OSError."""
    low, low_may, low_passes, high, high_may, high_passes = _get()
    if low or high:
        _set(0, low_may, low_passes, 0, high_may, high_passes)


def take_up() -> None:
    """Let this thread have all that it may. Raises OSError."""
    low, low_may, low_passes, high, high_may, high_passes = _get()
    if (low, high) != (low_may, high_may):
        _set(low_may, low_may, low_passes, high_may, high_may, high_passes)


@contextlib.contextmanager
def taken_up() -> Iterator[None]:
    """For as long as it lasts. Raises OSError."""
    take_up()
    try:
        yield
    finally:
        put_down()


def _get() -> tuple[int, ...]:
    sets = ctypes.create_string_buffer(_SETS.size)
    _call(_libc.capget, sets)
    return _SETS.unpack(sets.raw)


def _set(*sets: int) -> None:
    _call(_libc.capset, ctypes.create_string_buffer(_SETS.pack(*sets), _SETS.size))


def _call(function: Any, sets: ctypes.Array[ctypes.c_char]) -> None:
    header = ctypes.create_string_buffer(_HEADER.pack(_VERSION_3, 0), _HEADER.size)  # 0: the calling thread
    if function(header, sets) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities of this thread: {os.strerror(number)}")
