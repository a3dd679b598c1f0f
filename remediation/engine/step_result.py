"""What one step of a remediation comes to, and the few ways in which it ends or waits. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from healthd.core.model import Refusal, Refused, Step
from healthd.remediation.decide.paging import Stands
from healthd.remediation.decide.remediation import End, Phase, Remediation


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one step came to: the case as it is now, the sentence, and whether the next step may follow at once.

    ``page``: a person has to know. ``refusal``: what the case waits for, or why it is paused; None where it moved.
    ``asked``: the platform has answered in this step that it was asked.
    """

    case: Remediation
    said: str
    go_on: bool = False
    page: bool = False
    refusal: Refusal | None = None
    asked: bool = False

    @property
    def stands(self) -> Stands:
        """Where its case stands."""
        return Stands(case=self.case, page=self.page, refusal=self.refusal)


def at_next(case: Remediation, now: datetime) -> Remediation:
    """The case at the step after this one."""
    return replace(case, index=case.index + 1, phase=Phase.PLANNED, since=now, good_since=None)


def is_out(case: Remediation, now: datetime) -> Remediation:
    """The case whose node is out now: at the step after, or where it was repaired before its drain or place got lost,
    where it would be after that. What did not help is tried again from there."""
    if not case.attempts:
        return at_next(case, now)
    repaired = Step.STAY if Step.STAY in case.steps else Step.VERIFY
    return replace(at_next(case, now), index=case.steps.index(repaired))


def ended(case: Remediation, end: End, said: str) -> StepResult:
    """The case is over."""
    return StepResult(case=replace(case, end=end), said=said)


def left_to_cluster(case: Remediation, why: str) -> StepResult:
    """The end of a case that nothing was repaired for, on a node that the cluster's controller drained by itself."""
    return ended(case, End.ABANDONED, f"{why}; the node stays drained by the cluster itself, whose drain is not ours")


def paused(case: Remediation, why: Refused) -> StepResult:
    """An open case that goes on when the operator lets it."""
    said = f"case {case.id} is paused at {case.step}: {why.words}, nothing is touched"
    return StepResult(case=case, said=said, refusal=why.kind)


def lingers(case: Remediation, why: str, until: datetime) -> StepResult:
    """A case that would be at its end, had every update of its own been answered."""
    said = f"{why}; its place is kept until {until:%H:%M:%S}: an update without an answer may still be applied"
    return StepResult(case=case, said=said, refusal=Refusal.UNREADABLE)


def waits(case: Remediation, act: str, why: Refused, *, page: bool = False) -> StepResult:
    """An act that is tried again."""
    return StepResult(case=case, said=f"{act} waits: {why.words}", page=page, refusal=why.kind)
