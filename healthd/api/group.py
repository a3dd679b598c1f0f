"""The unix group whose members may act through the socket.

It is looked up by its name when somebody asks to act, and never waited for: it may come from a directory (LDAP, sssd)
that answers only long after the boot, or be made after the configuration that names it. Until it is there only root may
act, and log and status say so.
"""

from __future__ import annotations

import grp
import threading
from collections.abc import Callable


class ActingGroup:
    """The group of ``[daemon] group``; "" is none. ``say`` is told when it is missing, and when it is there again."""

    def __init__(self, name: str, say: Callable[..., None]) -> None:
        self._name, self._say = name, say
        self._problem = ""
        self._known: int | None = None
        if name:  # a directory that does not answer holds this thread up, and no start
            threading.Thread(target=self.number, name="group", daemon=True).start()

    def number(self) -> int | None:
        """Its number now, or None where there is none."""
        if not self._name:
            return None
        found = group_number(self._name)
        problem = no_such_group(self._name) if found is None else ""
        if problem != self._problem:
            self._say(problem or f"daemon.group = {self._name}: the group is there now, and its members may act")
        self._problem, self._known = problem, found
        return found

    def known(self) -> int | None:
        """Its number as it was when it was last looked up: at once, whatever a directory does."""
        return self._known

    def problem(self) -> str:
        """Why nobody but root may act, as it was when somebody last asked to, or ""."""
        return self._problem


def group_number(name: str) -> int | None:
    """The number of a group, or None where this machine knows none of this name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def no_such_group(name: str) -> str:
    """What to say of a group that is not there."""
    return f"daemon.group = {name}: no such group on this machine, so only root may act; create it, or leave it empty"
