"""Whether the controller's own thread goes on: a round, or a try for the lead, must end within a patience.

Every request of a round has a deadline of its own. A round that does not end all the same (a disk that hangs, a server
that lets each of many requests run out, a defect) would keep the lead and do nothing with it, for ever.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class Progress:
    """Written by the controller's thread, asked by any. ``patience_s``: how long one thing may take."""

    def __init__(self, patience_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s, self._clock = patience_s, clock
        self._under_way: tuple[str, float] | None = None

    @contextlib.contextmanager
    def at(self, what: str) -> Iterator[None]:
        """The thread is at this until the block ends: "a round"."""
        self._under_way = (what, self._clock())
        try:
            yield
        finally:
            self._under_way = None

    def slow(self) -> str:
        """What has taken half of the patience, in words that stay the same, or ""."""
        return self._longer_than(self._patience_s / 2)

    def stuck(self) -> str:
        """What has taken all of the patience, or "": this process will not do it any more."""
        return self._longer_than(self._patience_s)

    def _longer_than(self, seconds: float) -> str:
        under_way = self._under_way
        if under_way is None:
            return ""
        what, since_s = under_way
        return f"{what} has been under way for over {seconds:g} s" if self._clock() - since_s >= seconds else ""
