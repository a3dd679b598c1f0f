"""Who asks at the unix socket, as the kernel names them: never what the request says.

The kernel names the process's groups as well. Only where those do not settle who may act is the user database asked,
which may be a directory on the network that does not answer.
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
    """The process at the other end. ``groups``: those that it has, its own among them."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]

    def may_act(self, group: int | None) -> bool:
        """Whether it is root, or in the group. None: no group may act."""
        return self.surely_may_act(group) or (group is not None and group in self._groups_by_name())

    def surely_may_act(self, group: int | None) -> bool:
        """The same as far as the kernel tells: at once, and of the groups that the process itself has."""
        return self.uid == 0 or (group is not None and group in self.groups)

    def _groups_by_name(self) -> frozenset[int]:
        """Of the user, whom somebody may have put into a group since they logged in."""
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
    """The process's further groups; none where the kernel does not say, or where there are more than fit."""
    try:
        raw = client.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)
