"""The client at the other end of the unix socket, as the kernel reports it: its user, and whether it read its answer.

The request's own claim does not count. The kernel names the process's groups as well; only if these do not decide
whether the user may act is the user database asked: it may be a directory on the network that does not answer.

A client that ends its side with bytes that it never read leaves ECONNRESET on ours; one that has read them all leaves
our queue empty (Linux, unix_release_sock and SIOCOUTQ in net/unix/af_unix.c, as of 6.18).
"""

from __future__ import annotations

import fcntl
import os
import pwd
import socket
import struct
import termios
import time

from msgspec import Struct

from healthd.api.wire import Receipt

_PEER = struct.Struct("3i")
_SO_PEERGROUPS = 59  # Linux 4.13, include/uapi/asm-generic/socket.h; the module socket has no name for it
_GROUPS_BYTES = 1024  # 256 groups: the most that the module socket reads
_POLLS_S = (0.0005, 0.05)
"""The first and the longest pause between two polls, in seconds. A client that waits reads at once."""


class Peer(Struct, frozen=True, kw_only=True):
    """The process at the other end. ``groups``: all groups of the process, its primary group among them."""

    uid: int
    gid: int
    groups: frozenset[int]

    def may_act(self, group: int | None) -> bool:
        """Whether the user is root, or in the group. None: no group may act."""
        return self.surely_may_act(group) or (group is not None and group in self._groups_by_name())

    def surely_may_act(self, group: int | None) -> bool:
        """The same by the groups of the process alone, without asking the user database."""
        return self.uid == 0 or (group is not None and group in self.groups)

    def _groups_by_name(self) -> frozenset[int]:
        """The user's groups in the user database: the user may have joined one after the login."""
        try:
            user = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return frozenset()
        return frozenset(os.getgrouplist(user, self.gid))


def peer_of(client: socket.socket) -> Peer:
    """The process that connected. Raises OSError."""
    _, uid, gid = _PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return Peer(uid=uid, gid=gid, groups=frozenset({gid, *_groups_of(client)}))


def _groups_of(client: socket.socket) -> tuple[int, ...]:
    """The process's further groups; none where the kernel does not report them, or there are too many."""
    try:
        raw = client.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def sent(client: socket.socket, raw: bytes, *, wait_s: float) -> Receipt:
    """Send the whole answer, and return whether the client read it within ``wait_s``."""
    try:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        return _came_of(client, time.monotonic() + wait_s)
    except OSError:  # the client closed before the answer came
        return Receipt.GONE


def _came_of(client: socket.socket, until_s: float) -> Receipt:
    pause_s, longest_s = _POLLS_S
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
