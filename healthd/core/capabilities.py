"""Linux capabilities of one thread: dropped for good in threads that serve other users.

Each thread has its own (capabilities(7)), and a thread that it starts inherits them as they are. A thread that has
dropped them can never get them back, nor can a program that it runs (PR_SET_NO_NEW_PRIVS(2const)). Work that needs them
runs in a thread that still has them: ``PrivilegedThreads``. This limits the damage of a confused answer; it is no wall
within a process, whose threads share their memory.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from healthd.core.errors import HealthdError

T = TypeVar("T")

_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3, include/uapi/linux/capability.h
_HEADER = struct.Struct("Ii")
_SETS = struct.Struct("6I")  # effective, permitted, inheritable of the lower 32 bits, then of the upper
_NO_NEW_PRIVS = 38  # PR_SET_NO_NEW_PRIVS, include/uapi/linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def drop_capabilities() -> None:
    """Drop every capability of this thread, and of each program that it runs, for good. Raises OSError."""
    if any(_get()):
        _call(_libc.capset, ctypes.create_string_buffer(_SETS.size))
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _error()


class PrivilegedThreads:
    """Runs work with the capabilities of the thread that creates it, each call in a thread of its own.

    A thread that has those capabilities itself runs the work itself.
    """

    def __init__(self) -> None:
        self._may = _permitted()
        self._asked: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._lock, self._closed = threading.Lock(), False
        threading.Thread(target=self._serve, name="privileged", daemon=True).start()

    def do(self, work: Callable[[], T]) -> T:
        """Run ``work`` and return its result; its exception passes through. Raises HealthdError for a thread without
        the capabilities once this is closed, or where no thread can be started."""
        if _permitted() == self._may:
            return work()
        done: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise HealthdError("healthd is stopping and begins no more work")
            self._asked.put((work, done))
        return done.result()

    def close(self) -> None:
        """Begin no more work."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._asked.put(None)

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                threading.Thread(target=_done, args=asked, name="privileged work", daemon=True).start()
            except RuntimeError as error:  # no more threads of this process, of its cgroup, of the machine
                asked[1].set_exception(HealthdError(f"not done, no thread could be started for it: {error}"))


def _done(work: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        done.set_exception(error)


def _permitted() -> tuple[int, int]:
    _, low, _, _, high, _ = _get()
    return low, high


def _get() -> tuple[int, ...]:
    sets = ctypes.create_string_buffer(_SETS.size)
    _call(_libc.capget, sets)
    return _SETS.unpack(sets.raw)


def _call(function: Any, sets: ctypes.Array[ctypes.c_char]) -> None:
    header = ctypes.create_string_buffer(_HEADER.pack(_VERSION_3, 0), _HEADER.size)  # 0: the calling thread
    if function(header, sets) != 0:
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"capabilities of this thread: {os.strerror(number)}")
