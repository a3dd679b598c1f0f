"""Where the daemon is reached, and when there is none: shared by the hot path, the client and the daemon.

Two sockets: one for everybody, and beside it one that only root and ``[daemon] group`` can open. Hooks and operators
come by the second, so that no other user can fill the queue that they wait in.

``connect`` with a time-out of Python's own is a non-blocking one, which a full queue answers with EAGAIN at once; a
blocking one waits for room as long as SO_SNDTIMEO says (unix(7), unix_wait_for_peer in net/unix/af_unix.c as of 6.18).
"""

from __future__ import annotations

import _socket
import sys

OPERATORS = ".op"
"""What the path of the operators' socket has after that of everybody's."""


def connected(path: str, within_s: float) -> _socket.socket | None:
    """A connection to the daemon, or None where no daemon listens: no such socket, or nobody behind it.

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
    """A struct timeval. Zero would be no time-out at all."""
    size, microseconds = (sys.maxsize.bit_length() + 1) // 8, max(1, int(seconds * 1e6))
    return b"".join(each.to_bytes(size, sys.byteorder) for each in divmod(microseconds, 1_000_000))
