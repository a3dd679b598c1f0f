"""The unix groups whose members may act, and may ask, through the sockets.

A thread looks each group up by its name until it exists, and nothing waits for it: the group may come from a directory
(LDAP, sssd) that answers only long after the boot, or be created after the configuration that names it. Until then only
root has access, and log and status say so.
"""

from __future__ import annotations

import grp
import threading
import time
from collections.abc import Callable

_AGAIN_S = 10.0
_WITHOUT = {"group": "only root may act", "readers": "only root and [daemon] group may ask"}


class SocketGroup:
    """A group of ``[daemon]``: ``setting`` is the key, ``name`` its value; "" is none. ``say`` gets a message when the
    group is missing, and when it exists again."""

    def __init__(self, setting: str, name: str, say: Callable[..., None]) -> None:
        self._setting, self._name, self._say = setting, name, say
        self._problem = ""
        self._known: int | None = None
        if name:  # a directory that does not answer delays this thread, not the daemon's start
            threading.Thread(target=self._await, name="group", daemon=True).start()

    def number(self) -> int | None:
        """The group's number now, or None where it does not exist."""
        if not self._name:
            return None
        found = group_number(self._name)
        problem = no_such_group(self._setting, self._name) if found is None else ""
        if problem != self._problem:
            self._say(problem or f"daemon.{self._setting} = {self._name}: the group exists now")
        self._problem, self._known = problem, found
        return found

    def known(self) -> int | None:
        """The group's number by the last lookup: returns at once, even if a directory does not answer."""
        return self._known

    def problem(self) -> str:
        """Why its members have no access, by the last lookup, or ""."""
        return self._problem

    def _await(self) -> None:
        """Look the group up until it exists."""
        while self.number() is None:
            time.sleep(_AGAIN_S)


def group_number(name: str) -> int | None:
    """The number of a group, or None where this machine has no group of this name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def no_such_group(setting: str, name: str) -> str:
    """The message for a group that does not exist."""
    without = _WITHOUT[setting]
    return f"daemon.{setting} = {name}: no such group on this machine, so {without}; create it, or leave it empty"
