"""Decides which clients of the unix socket are answered now and which wait in line. It starts and closes nothing.

No user can block another: some seats are for users who may act, such as a prolog's hook, and each other user has a few
seats at most. If all ranks of a job ask at once, they wait for one another, and other users do not wait for them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from enum import Enum
from typing import Generic, TypeVar

from msgspec import Struct

SEATS = 32
KEPT = 8
"""The seats that only users who may act can take."""
EACH = 8
"""The most seats of one user who may not act."""
WAITING = 512
"""The most waiting clients of all users who may not act: each holds a file descriptor, of which a process has 1,024 by
default."""
WAITING_EACH = 256
"""The most waiting clients of one user: a p5.48xlarge has 192 cores, and a rank on each may ask."""


class ClientLane(Enum):
    """Where a client goes."""

    SEAT = "seat"
    LINE = "line"
    NOWHERE = "nowhere"


class ClientUser(Struct, frozen=True, kw_only=True):
    """The user of a seat. ``may_act``: as far as that is known without asking a directory service."""

    uid: int
    may_act: bool


_Guest = TypeVar("_Guest")


class ClientQueue(Generic[_Guest]):
    """The seats, and the line before them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[ClientUser] = Counter()
        self._line: deque[tuple[ClientUser, _Guest]] = deque()

    def take(self, who: ClientUser, guest: _Guest) -> ClientLane:
        """Take a seat if one is free; else put ``guest`` in line, until ``leave`` returns it."""
        with self._lock:
            if self._is_free(who):
                self._taken[who] += 1
                return ClientLane.SEAT
            alike = sum(each == who for each, _ in self._line)
            if alike >= WAITING_EACH or (len(self._line) >= WAITING and not who.may_act):
                return ClientLane.NOWHERE
            self._line.append((who, guest))
            return ClientLane.LINE

    def leave(self, who: ClientUser) -> _Guest | None:
        """Free a seat, and return the client that takes it: the first of those that may act, else the first of all."""
        with self._lock:
            self._taken[who] -= 1
            self._taken += Counter()  # forget users that have none
            for index in sorted(range(len(self._line)), key=lambda index: not self._line[index][0].may_act):
                found, guest = self._line[index]
                if self._is_free(found):
                    del self._line[index]
                    self._taken[found] += 1
                    return guest
            return None

    def _is_free(self, who: ClientUser) -> bool:
        if self._taken.total() >= SEATS:
            return False
        others = sum(count for each, count in self._taken.items() if not each.may_act)
        return who.may_act or (others < SEATS - KEPT and self._taken[who] < EACH)
