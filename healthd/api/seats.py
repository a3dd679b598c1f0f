"""Who of those that ask at the unix socket is answered now, and who waits in line. It starts and closes nothing.

No user can keep another from an answer: some seats are for those that may act, which a prolog's hook is, and no other
user has more than a few, however many ask at once. The ranks of a job that all ask wait for one another, and nobody
else does.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

SEATS = 32
KEPT = 8
"""Of the seats, for those that may act alone."""
EACH = 8
"""Seats that a user has at most who may not act."""
WAITING = 512
"""Clients that wait, of all that may not act: each holds a file descriptor, of which a process has 1,024 where nobody
says more."""
WAITING_EACH = 256
"""Clients of one user that wait: a p5.48xlarge has 192 cores, and a rank on each may ask."""


class ClientLane(Enum):
    """Where a client goes."""

    SEAT = "seat"
    LINE = "line"
    NOWHERE = "nowhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Who:
    """For whom a seat is taken. ``may_act``: as far as that is known without asking anybody."""

    uid: int
    may_act: bool


_Guest = TypeVar("_Guest")


class Seats(Generic[_Guest]):
    """The seats, and the line before them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[Who] = Counter()
        self._line: deque[tuple[Who, _Guest]] = deque()

    def take(self, who: Who, guest: _Guest) -> ClientLane:
        """A seat, if there is one; else a place in line, where ``guest`` stays until ``leave`` hands it out."""
        with self._lock:
            if self._is_free(who):
                self._taken[who] += 1
                return ClientLane.SEAT
            alike = sum(each == who for each, _ in self._line)
            if alike >= WAITING_EACH or (len(self._line) >= WAITING and not who.may_act):
                return ClientLane.NOWHERE
            self._line.append((who, guest))
            return ClientLane.LINE

    def leave(self, who: Who) -> _Guest | None:
        """Give a seat back, and hand out who has it now: the first of those that may act, else the first of all."""
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

    def _is_free(self, who: Who) -> bool:
        if self._taken.total() >= SEATS:
            return False
        others = sum(count for each, count in self._taken.items() if not each.may_act)
        return who.may_act or (others < SEATS - KEPT and self._taken[who] < EACH)
