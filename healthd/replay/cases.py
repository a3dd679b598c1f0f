"""The cases of one node of the past, in memory: what the store is to the daemon's engine.

A disk outlives every daemon of its machine, and no machine: a replaced node begins with none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from healthd.core.model import Event
from healthd.remediation.decide.remediation import Remediation


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A case as it was written, what it was before (None where it is new), and why it moved."""

    before: Remediation | None
    case: Remediation
    said: str

    @property
    def is_raised(self) -> bool:
        """Whether a more serious fault took the case over."""
        return self.before is not None and self.before.code != self.case.code


@dataclass(kw_only=True)
class PastCases:
    """The cases of one machine. ``moved``: every write since somebody last emptied it."""

    moved: list[Moved] = field(default_factory=list)
    _cases: dict[str, Remediation] = field(default_factory=dict)

    def open_case(self) -> Remediation | None:
        """The case that is not at its end."""
        return next((case for case in reversed(self._cases.values()) if case.is_open), None)

    def knows(self, case_id: str) -> bool:
        """Whether a case of this id was ever kept."""
        return case_id in self._cases

    def save_case(self, case: Remediation, event: Event) -> None:
        """Keep a case and why it moved."""
        said = event.text.removeprefix(f"[{case.id}] ")
        self.moved.append(Moved(before=self._cases.get(case.id), case=case, said=said))
        self._cases[case.id] = case

    def cases(self) -> tuple[Remediation, ...]:
        """All cases, oldest first."""
        return tuple(self._cases.values())
