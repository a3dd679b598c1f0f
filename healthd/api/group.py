"""The unix groups whose members may act, and may ask, through the sockets.

They are looked up by their names, again and again until they are there, and never waited for: they may come from a
directory (LDAP, sssd) that answers only long after the boot, or be made after the configuration that names them. Until
then only root is let in, and log and status say so.
"""

from __future__ import annotations

import grp
import threading
import time
from collections.abc import Callable

_AGAIN_S = 10.0
_WITHOUT = {"group": "only root may act", "readers": "only root and [daemon] group may ask"}


class SocketGroup:
    """A group of ``[daemon]``: ``setting`` names it, and is what ``name`` was set to; "" is none. ``say``
    is told when it is missing, and when it is there again."""

    def __init__(self, setting: str, name: str, say: Callable[..., None]) -> None:
        self._setting, self._name, self._say = setting, name, say
        self._problem = ""
        self._known: int | None = None
        if name:  # a directory that does not answer holds this thread up, and no start
            threading.Thread(target=self._await, name="group", daemon=True).start()

    def number(self) -> int | None:
        """Its number now, or None where there is none."""
        if not self._name:
            return None
        found = group_number(self._name)
        problem = no_such_group(self._setting, self._name) if found is None else ""
        if problem != self._problem:
            self._say(problem or f"daemon.{self._setting} = {self._name}: the group is there now")
        self._problem, self._known = problem, found
        return found

    def known(self) -> int | None:
        """Its number as it was when it was last looked up: at once, whatever a directory does."""
        return self._known

    def problem(self) -> str:
        """Why its members are not let in, as it was when it was last looked up, or ""."""
        return self._problem

    def _await(self) -> None:
        """Look it up until it is there."""
        while self.number() is None:
            time.sleep(_AGAIN_S)


def group_number(name: str) -> int | None:
    """The number of a group, or None where this machine knows none of this name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def no_such_group(setting: str, name: str) -> str:
    """What to say of a group that is not there."""
    without = _WITHOUT[setting]
    return f"daemon.{setting} = {name}: no such group on this machine, so {without}; create it, or leave it empty"
