"""The user at the other end of the unix socket, as the kernel names them; the request's own claim does not count.

The kernel names the process's groups as well. Only if these do not decide whether the user may act is the user database
asked: it may be a directory on the network that does not answer.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from dataclasses import dataclass

_PEER = struct.Struct("3i")
_SO_PEERGROUPS = 59  # Linux 4.13, include/uapi/asm-generic/socket.h; the module socket has no name for it
_GROUPS_BYTES = 1024  # 256 groups: the most that the module socket reads


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """The process at the other end. ``groups``: all groups of the process, its primary group among them."""

    pid: int
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
    pid, uid, gid = _PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return Peer(pid=pid, uid=uid, gid=gid, groups=frozenset({gid, *_groups_of(client)}))


def _groups_of(client: socket.socket) -> tuple[int, ...]:
    """The process's further groups; none where the kernel does not report them, or there are too many."""
    try:
        raw = client.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)
