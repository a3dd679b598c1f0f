"""One deadline for all that is done by it: the waits of one exchange, or the exchanges of one message."""

from __future__ import annotations

import time


class Deadline:
    """A moment, ``within_s`` from now, on the monotonic clock."""

    def __init__(self, within_s: float) -> None:
        self._within_s, self._until_s = within_s, time.monotonic() + within_s

    def left_s(self) -> float:
        """The rest in seconds, more than 0. Raises TimeoutError where it is over."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no whole answer within {self._within_s:g} s")
        return left_s
