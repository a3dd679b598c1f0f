"""Watches the controller's own thread: a sync, or an attempt to take the lead, must end within a timeout.

Every request of a sync has a deadline of its own. A sync that still does not end (a disk that hangs, a server that lets
each of many requests time out, a defect) would keep the lead for ever and do nothing with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class Progress:
    """Written by the controller's thread, read by any. ``timeout_s``: the timeout of one activity."""

    def __init__(self, timeout_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._under_way: tuple[str, float] | None = None

    @contextlib.contextmanager
    def at(self, what: str) -> Iterator[None]:
        """Note that the thread does this until the block ends, such as "a sync"."""
        self._under_way = (what, self._clock())
        try:
            yield
        finally:
            self._under_way = None

    def slow(self) -> str:
        """The activity that has taken half of the timeout, in a sentence that does not change, or ""."""
        return self._longer_than(self._timeout_s / 2)

    def stuck(self) -> str:
        """The activity that has timed out, or "": this process will not finish it."""
        return self._longer_than(self._timeout_s)

    def _longer_than(self, seconds: float) -> str:
        under_way = self._under_way
        if under_way is None:
            return ""
        what, since_s = under_way
        return f"{what} has not finished for over {seconds:g} s" if self._clock() - since_s >= seconds else ""
