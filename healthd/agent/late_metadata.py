"""A start waits for no metadata service: where it kept silent it is asked later, and then healthd starts again.

Which instance this is, which platform runs it and which ``[[match]]`` sections hold is settled once, when the daemon is
put together. A service that answers later changes all of that, as a new configuration does, and is taken up like one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from healthd.sources.imds import Hurry, MetadataSource

_AGAIN_S = 10.0
_TAKES_TIME = "_HEALTHD_TAKES_TIME"
"""In the environment of a start that follows an answer: it gives the service its whole second for each item. Without
that a service that is always slow would have healthd start again and again."""


def begun() -> Hurry:
    """The hurry of this start."""
    return Hurry(is_on=os.environ.pop(_TAKES_TIME, "") == "")


class Latecomer:
    """The metadata service of a daemon whose start is over."""

    def __init__(self, imds: MetadataSource) -> None:
        self._imds, self._asked = imds, threading.Event()
        self.is_awaited = imds.hurry.end()
        """Whether there is anything to ask it again."""

    def wait(self, timeout_s: float) -> None:
        """Wait until the service has had its whole second, or answered: for who acts by what it tells."""
        if self.is_awaited:
            self._asked.wait(timeout_s)

    def ask(self, stop: threading.Event, start_again: Callable[[], None]) -> None:
        """The work of a thread: ask until it answers or ``stop`` is set."""
        while not self._imds.answers():
            self._asked.set()
            if stop.wait(_AGAIN_S):
                return
        os.environ[_TAKES_TIME] = "yes"
        start_again()
