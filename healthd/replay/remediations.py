"""The remediations of one node of a replay, in memory, in place of the daemon's store.

A disk outlives every daemon of its machine, and no machine: a replaced node begins with none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from healthd.core.model import Event
from healthd.remediation.decide.remediation import Remediation


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A remediation as it was written, its state before (None for a new one), and the reason of the step."""

    before: Remediation | None
    case: Remediation
    said: str

    @property
    def is_raised(self) -> bool:
        """Whether a more serious fault raised the remediation."""
        return self.before is not None and self.before.code != self.case.code


@dataclass(kw_only=True)
class PastCases:
    """The remediations of one machine. ``moved``: every write since the list was last emptied."""

    moved: list[Moved] = field(default_factory=list)
    _cases: dict[str, Remediation] = field(default_factory=dict)

    def open_case(self) -> Remediation | None:
        """The open remediation."""
        return next((case for case in reversed(self._cases.values()) if case.is_open), None)

    def knows(self, case_id: str) -> bool:
        """Whether a remediation of this id was ever kept."""
        return case_id in self._cases

    def save_case(self, case: Remediation, event: Event) -> None:
        """Keep a remediation and the reason of its step."""
        said = event.text.removeprefix(f"[{case.id}] ")
        self.moved.append(Moved(before=self._cases.get(case.id), case=case, said=said))
        self._cases[case.id] = case

    def cases(self) -> tuple[Remediation, ...]:
        """All remediations, oldest first."""
        return tuple(self._cases.values())
