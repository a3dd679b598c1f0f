"""A start waits for no metadata service: where it kept silent it is asked later, and then healthd starts again.

Which instance this is, which platform runs it and which ``[[match]]`` sections hold is settled once, when the daemon is
put together. A service that answers later changes all of that, as a new configuration does, and is taken up like one.
"""

from __future__ import annotations

import os
import threading

from healthd.sources.imds import FastStart, MetadataSource

_AGAIN_S, _AT_MOST_S = 10.0, 3600.0
_RESTARTS = "_HEALTHD_METADATA_RESTARTS"
"""In the environment of a start that follows an answer: how many such starts there were in a row. Such a start gives
the service its whole second for each item, and waits twice as long for the next answer: a service that is always slow
does not have healthd start again and again."""


def begun() -> FastStart:
    """The hurry of this start."""
    restarts = int(os.environ.pop(_RESTARTS, "0"))
    return FastStart(is_on=not restarts, restarts=restarts)


class LateMetadata:
    """The metadata service of a daemon whose start is over."""

    def __init__(self, imds: MetadataSource) -> None:
        self._imds, self._asked, self._restarts = imds, threading.Event(), imds.hurry.restarts
        self.is_awaited = imds.hurry.end()
        """Whether there is anything to ask it again."""
        self.again_s = min(_AT_MOST_S, _AGAIN_S * 2**self._restarts)
        """Seconds between two questions."""
        self.first_s = self.again_s if self._restarts else 0.0
        """Seconds until the first one."""
        if self._restarts:  # the service had its whole second in this start
            self._asked.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until the service has had its whole second, or answered: for who acts by what it tells."""
        if self.is_awaited:
            self._asked.wait(timeout_s)

    def answers(self) -> bool:
        """Ask once. Where it answers, the next start of this process is one that follows an answer."""
        if not self._imds.answers():
            self._asked.set()
            return False
        os.environ[_RESTARTS] = str(self._restarts + 1)
        return True
