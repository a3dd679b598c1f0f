"""The daemon's two unix sockets: one for all users, or for ``[daemon] readers`` alone, and one that only root and
``[daemon] group`` can open.

A user who can open a socket can fill its queue and block others. Hooks and operators therefore have a queue of their
own, and are accepted first.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
from pathlib import Path

from healthd.core.errors import StartError
from healthd.core.reach import OPERATORS, connected

_QUEUE = 128
_PROBE_S = 1.0
_LOOK_MS = 10_000
"""How often the thread that waits for clients checks whether a group exists now, in seconds."""


class Listener:
    """Both sockets, listening until closed. ``everybody``: all users may open the first one. Raises StartError where
    another daemon answers there, or a socket cannot be created."""

    def __init__(self, path: str, *, everybody: bool = True) -> None:
        self.path = path
        self._groups: tuple[int | None, int | None] = (None, None)
        try:
            _refuse_a_second(path)
            self._operators = _listening(path + OPERATORS, 0o600)
            self._everybody = _listening(path, 0o666 if everybody else 0o600)  # SO_PEERCRED decides about acts
        except OSError as error:
            wrong = f"daemon.socket = {path}: {error}; expected a path that can be created (104 bytes at most)"
            raise StartError(wrong) from error
        self._poll = select.poll()
        for each in (self._operators, self._everybody):
            self._poll.register(each, select.POLLIN)

    def accept(self, *, awaits_group: bool = True) -> socket.socket | None:
        """Wait for a client and accept it, hooks and operators first; None where none came for a while. Raises OSError,
        also after ``close``. Not ``awaits_group``: no group is left to look up, and the wait has no end."""
        ready = {number for number, _ in self._poll.poll(_LOOK_MS if awaits_group else None)}
        if not ready:
            return None
        first = self._operators if self._operators.fileno() in ready else self._everybody
        client, _ = first.accept()
        return client

    def is_due(self, operators: int | None, readers: int | None) -> bool:
        """Whether a socket does not belong to one of these groups yet."""
        return (operators, readers) != self._groups

    def give_to(self, operators: int | None, readers: int | None) -> None:
        """Give these groups access, as far as they are known. Raises OSError."""
        self._groups = (operators, readers)
        for path, group in ((self.path + OPERATORS, operators), (self.path, readers)):
            if group is not None:
                os.chown(path, -1, group)
                os.chmod(path, 0o660)

    def shut(self) -> None:
        """Accept no more clients, and remove both sockets. This wakes a thread in ``accept``, now or when it waits
        next. The descriptors stay until ``close``, because the kernel gives a free number to another file at once."""
        for each in (self._everybody, self._operators):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for path in (self.path, self.path + OPERATORS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def close(self) -> None:
        """Close the descriptors, once no thread waits for clients."""
        for each in (self._everybody, self._operators):
            each.close()


def _refuse_a_second(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    for each in (path, path + OPERATORS):
        if os.path.lexists(each) and not stat.S_ISSOCK(os.lstat(each).st_mode):
            raise StartError(f"daemon.socket = {path}: {each} is no socket; move it away or choose another path")
    if _is_alive(path):
        raise StartError(f"daemon.socket = {path}: another daemon answers there; stop it or choose another path")


def _is_alive(path: str) -> bool:
    """Whether a daemon listens there, also one whose queue is full."""
    try:
        reached = connected(path, _PROBE_S)
    except BlockingIOError:
        return True
    if reached is not None:
        reached.close()
    return reached is not None


def _listening(path: str, mode: int) -> socket.socket:
    """A socket at ``path`` in place of a dead one. It accepts no client before it has its mode."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path)
    os.chmod(path, mode)
    made.listen(_QUEUE)
    return made
