"""Reads the health of the account's UltraServers beside the syncs, for the metrics and the log. It decides nothing.

Where SageMaker does not answer, nothing is known of them: no last answer stands for the present.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from healthd.api.controller_stats import ControllerStats
from healthd.core.errors import BackendError
from healthd.remediation.provisioners.ultraservers import UltraServer, UltraServerHealth

EVERY_S = 600.0
"""Between two answers, in seconds. AWS replaces an UltraServer in hours."""


class UltraServerWatch:
    """Asks again and again, for as long as this controller leads. ``ask`` raises BackendError."""

    def __init__(
        self,
        ask: Callable[[], Sequence[UltraServer]],
        stats: ControllerStats,
        log: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._stats, self._log, self._clock = ask, stats, log, clock
        self._due_s, self._problem = clock(), ""
        self._told: dict[str, str] = {}

    def __call__(self) -> None:
        """Ask, where that is due, and log each UltraServer that is not as it was."""
        if self._clock() < self._due_s:
            return
        self._due_s, problem = self._clock() + EVERY_S, ""
        found: Sequence[UltraServer] = ()
        try:
            found = self._ask()
        except BackendError as error:
            problem = str(error)
        self._stats.ultraservers = tuple(found)
        if problem:
            if problem != self._problem:
                self._log.error("health of UltraServers is not known", message=problem)
        else:
            self._tell(found)
        self._problem = problem

    def close(self) -> None:
        """Show none any longer."""
        self._stats.ultraservers = ()

    def _tell(self, found: Sequence[UltraServer]) -> None:
        for each in found:
            if self._told.get(each.id) != each.text:
                say = self._log.error if each.health is UltraServerHealth.IMPAIRED else self._log.info
                say("ultraserver", id=each.id, message=each.text)
        for gone in self._told.keys() - {each.id for each in found}:
            self._log.info("ultraserver", id=gone, message="in no active training plan any longer")
        self._told = {each.id: each.text for each in found}
