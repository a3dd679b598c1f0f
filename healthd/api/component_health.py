"""The health of each component by each check, as one number: 0 ok, 1 warning, 2 unknown, 3 critical.

A component that a check has read before, and can no longer read, is unknown; it is not dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from healthd.core.check import Check
from healthd.core.model import NODE, Outcome, Severity
from healthd.judge.history import Fault, History, canonical

OK, WARNING, UNKNOWN, CRITICAL = 0.0, 1.0, 2.0, 3.0
_OF: Mapping[Severity, float] = {Severity.INFO: OK, Severity.WARNING: WARNING, Severity.CRITICAL: CRITICAL}


class Health:
    """Remembers the components that each check read in its last complete run. One call covers all checks."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[str]] = {}

    def of(
        self, checks: Mapping[str, Check], outcomes: Mapping[str, Outcome], history: History
    ) -> dict[tuple[str, str], float]:
        """The worst health by check and component. Every check that runs on an interval has ``node``, which is unknown
        before its first run."""
        health: dict[tuple[str, str], float] = {}
        for name, check in checks.items():
            outcome = outcomes.get(name)
            if outcome is None and check.on == "active":
                continue
            faults = [fault for fault in history.faults.values() if fault.check == name]
            for component, worst in self._check(name, outcome, faults, history).items():
                health[name, component] = worst
        return health

    def _check(self, name: str, outcome: Outcome | None, faults: Iterable[Fault], history: History) -> dict[str, float]:
        readings = outcome.result.readings if outcome and outcome.read_at is None else ()  # kept readings are old
        read = frozenset(str(canonical(history, reading.component)) for reading in readings)
        could_tell = outcome is not None and outcome.result.is_whole
        known = read if could_tell else read | self._known.get(name, frozenset())
        self._known[name] = known
        health = {part: OK if part in read else UNKNOWN for part in sorted(known)}
        health[str(NODE)] = OK if could_tell else UNKNOWN
        for fault in faults:
            part = str(fault.component)
            health[part] = max(health.get(part, OK), _OF[fault.severity])
        return health
