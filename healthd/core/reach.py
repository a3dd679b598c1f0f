"""Connections to the daemon's sockets: shared by the hot path, the client and the daemon.

There are two sockets: one for every user, and beside it one that only root and ``[daemon] group`` can open. Hooks and
operators use the second, so that no other user can fill the queue that they wait in.

``connect`` with Python's own timeout is non-blocking, and fails with EAGAIN at once where the queue is full; a blocking
one waits for room as long as SO_SNDTIMEO says (unix(7), unix_wait_for_peer in net/unix/af_unix.c as of 6.18).
"""

from __future__ import annotations

import _socket
import sys

OPERATORS = ".op"
"""The suffix of the operators' socket, after the path of the socket for every user."""


def connected(path: str, within_s: float) -> _socket.socket | None:
    """A connection to the daemon, or None where no daemon listens: no such socket, or no process behind it.

    Raises OSError for everything else: a queue without room for ``within_s`` is a daemon that does not answer.
    """
    for each in (path + OPERATORS, path):
        try:
            return _connected(each, within_s)
        except (FileNotFoundError, ConnectionRefusedError):
            continue
        except PermissionError:
            if each == path:
                raise
        except OSError as error:
            if error.errno is not None:  # without a number: no path of a socket is so long
                raise
    return None


def _connected(path: str, within_s: float) -> _socket.socket:
    made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        made.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, _timeval(within_s))
        made.connect(path)
    except BaseException:
        made.close()
        raise
    return made


def _timeval(seconds: float) -> bytes:
    """A struct timeval. Zero would be no timeout at all."""
    size, microseconds = (sys.maxsize.bit_length() + 1) // 8, max(1, int(seconds * 1e6))
    return b"".join(each.to_bytes(size, sys.byteorder) for each in divmod(microseconds, 1_000_000))
