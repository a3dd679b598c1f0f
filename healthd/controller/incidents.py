"""The controller that leads keeps the incidents of its fleet: it reads all nodes now and then, and remembers.

One incident is one topic of the messages, under its id. A fleet that cannot be read ends no incident and stops no sync.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from healthd.api.controller_stats import ControllerStats, IncidentStatus
from healthd.core.errors import BackendError, ConfigError, StoreError
from healthd.fleet.incident_memory import keep_memory, kept_memory
from healthd.fleet.incident_text import sentence
from healthd.fleet.incidents import Incident, IncidentMemory, IncidentRules, observed
from healthd.fleet.nodes import FleetPicture

EVERY_S = 20.0
"""How often the fleet is read for incidents at most, in seconds."""


class IncidentKeeper:
    """The incidents of one fleet. ``read`` reads all nodes; it raises BackendError, ConfigError. ``stats``: where open
    incidents are shown to messages and metrics. ``folder``: where they are remembered."""

    def __init__(
        self,
        read: Callable[[], FleetPicture],
        *,
        folder: Path,
        rules: IncidentRules,
        stats: ControllerStats,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._folder, self._rules, self._stats = read, folder, rules, stats
        self._monotonic_s, self._read_s = monotonic_s, float("-inf")
        self._memory = kept_memory(folder) or IncidentMemory()
        self._show(self._memory)
        self.problem = ""

    def __call__(self) -> str:
        """Read the fleet, where that is due, and remember. Returns why that is not possible now, or ""."""
        if self._monotonic_s() - self._read_s < EVERY_S:
            return self.problem
        self._read_s = self._monotonic_s()
        self.problem = self._observe()
        return self.problem

    def _observe(self) -> str:
        try:
            fleet = self._read()
        except (BackendError, ConfigError) as error:
            return f"incidents are as they were: the fleet could not be read: {error}"
        self._memory = observed(self._memory, fleet.nodes, fleet.at, self._rules)
        self._show(self._memory)
        try:
            keep_memory(self._folder, self._memory)
        except StoreError as error:
            return f"incidents are not remembered: {error}"
        return ""

    def _show(self, memory: IncidentMemory) -> None:
        self._stats.incidents = tuple(_status(each) for each in memory.open)


def _status(incident: Incident) -> IncidentStatus:
    return IncidentStatus(
        id=incident.id,
        message=sentence(incident),
        title=f"incident {incident.id}, {incident.codes[0] if incident.codes else incident.root}",
        cause=incident.cause.text,
        nodes=len(incident.active),
        ever=len(incident.nodes),
        critical=incident.grave,
        began=incident.began,
    )
