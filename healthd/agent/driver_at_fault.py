"""The driver's version for the revision of a decision: read when a fault opens, not at each reconcile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from healthd.judge.history import Fault, FaultKey


class DriverAtFault:
    """The version that ``read`` gave when a fault opened last; "" without a driver, which is read again for as long as
    a fault is open."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read, self._version = read, ""
        self._seen: Mapping[FaultKey, Fault] | None = None

    def __call__(self, faults: Mapping[FaultKey, Fault]) -> str:
        """The version now. ``faults``: those that are open."""
        if self._has_opened(faults) or (faults and not self._version):
            self._version = self._read()
        self._seen = faults
        return self._version

    def _has_opened(self, faults: Mapping[FaultKey, Fault]) -> bool:
        if faults is self._seen:  # nothing was folded in since
            return False
        return self._seen is None or not faults.keys() <= self._seen.keys()
