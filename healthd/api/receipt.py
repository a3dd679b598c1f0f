"""Whether a client at the unix socket has read its answer, as the kernel reports it. The client does nothing for this.

A client that ends its side with bytes that it never read leaves ECONNRESET on ours; one that has read them all leaves
our queue empty (Linux, unix_release_sock and SIOCOUTQ in net/unix/af_unix.c, as of 6.18).
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from enum import Enum

_LOOKS_S = (0.0005, 0.05)
"""The first and the longest pause between two polls, in seconds. A client that waits reads at once."""


class Receipt(Enum):
    """Whether the client read an answer. UNKNOWN: the client may still read it."""

    TAKEN = "taken"
    GONE = "gone"
    UNKNOWN = "unknown"


def sent(client: socket.socket, raw: bytes, *, wait_s: float) -> Receipt:
    """Send the whole answer, and return whether the client read it within ``wait_s``."""
    try:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        return _came_of(client, time.monotonic() + wait_s)
    except OSError:  # the client closed before the answer came
        return Receipt.GONE


def _came_of(client: socket.socket, until_s: float) -> Receipt:
    pause_s, longest_s = _LOOKS_S
    while _unread_bytes(client):
        if time.monotonic() >= until_s:
            return Receipt.UNKNOWN
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
    is_reset = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # set before the kernel empties the queue
    return Receipt.GONE if is_reset else Receipt.TAKEN


def _unread_bytes(client: socket.socket) -> int:
    """SIOCOUTQ, which has the number of TIOCOUTQ (linux/sockios.h)."""
    (count,) = struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))
    return int(count)
