"""The remediations of one node of a replay, in memory, in place of the daemon's store.

A disk outlives every daemon of its machine, and no machine: a replaced node begins with none.
"""

from __future__ import annotations

from msgspec import Struct, field

from healthd.core.model import Event
from healthd.remediation.decide.remediation import Remediation


class Moved(Struct, frozen=True, kw_only=True):
    """A remediation as it was written, its state before (None for a new one), and the reason of the step."""

    before: Remediation | None
    remediation: Remediation
    message: str

    @property
    def is_raised(self) -> bool:
        """Whether a more serious fault raised the remediation."""
        return self.before is not None and self.before.code != self.remediation.code


class PastRemediations(Struct, kw_only=True):
    """The remediations of one machine. ``moved``: every write since the list was last emptied."""

    moved: list[Moved] = field(default_factory=list)
    _remediations: dict[str, Remediation] = field(default_factory=dict)

    def open_remediation(self) -> Remediation | None:
        return next((remediation for remediation in reversed(self._remediations.values()) if remediation.is_open), None)

    def knows(self, remediation_id: str) -> bool:
        return remediation_id in self._remediations

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        message = event.text.removeprefix(f"[{remediation.id}] ")
        self.moved.append(
            Moved(before=self._remediations.get(remediation.id), remediation=remediation, message=message)
        )
        self._remediations[remediation.id] = remediation

    def remediations(self) -> tuple[Remediation, ...]:
        return tuple(self._remediations.values())
