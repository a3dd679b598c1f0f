"""What is left with the cluster and not in the store: a place with its drain or its order, by a daemon before this one,
or by a claim without an answer that was made after its case had ended.

It reads. What it found is kept and gone on with by the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from healthd.errors import BackendError
from healthd.model import Refusal, Refused
from healthd.remediation.brakes import many_returns, returns_of
from healthd.remediation.case import Case
from healthd.remediation.marks import CaseMark, parse
from healthd.remediation.parts import Parts
from healthd.remediation.rules import roots_of
from healthd.remediation.successor import found_case, has_booted, must_be_shown

_BEFORE_A_DRAIN = timedelta(hours=1)  # a fault is older than its drain, by as long as it waited for a place
_EVERY_S = 60.0  # a list of the places costs slurmctld 0.2 ms


class Leftovers:
    """The search of one node. ``unknown``: why nothing may be begun, as long as it was not answered once, or ""."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self.unknown = parts, ""
        self._answered = False
        self._since: datetime | None = None  # when the finding that the mark shows was first seen
        self._due_s: float | None = None
        self._until_s: float | None = None

    def search(self, *, anew: bool) -> None:
        """Have it searched from now on, for as long as what got no answer may be applied; ``anew``: that begins now."""
        if anew or self._until_s is None:
            self._due_s = self._parts.monotonic_s()
            self._until_s = self._due_s + self._parts.patience.unanswered_s

    def found(self, now: datetime, keep: Callable[[Case], None]) -> Case | None:
        """The case of what is left, told to ``keep`` before it counts as found; None where there is nothing, or it is
        not time to look.

        Asked until it is answered, and again for as long as such a claim may come: every minute after a case; after
        a start, when nothing says that there was one, once when that time is over.
        """
        now_s = self._parts.monotonic_s()
        if self._due_s is None or self._until_s is None or now_s < self._due_s:
            return None
        soon_s = now_s + _EVERY_S
        try:
            case = self._left_behind(now)
        except BackendError as error:
            self._due_s = soon_s if self._answered else now_s
            self.unknown = "" if self._answered else f"what an earlier daemon left with it is not known: {error}"
            return None
        if case is not None:
            keep(case)
        again_s = soon_s if self._answered else self._until_s
        self._answered, self.unknown = True, ""
        self._due_s = again_s if now_s < self._until_s else None
        return case

    def _shown(self, case: Case) -> Case:
        """The case of a drain, with what cannot be shown of the fault that it names. A fault that is found in what was
        logged since is open again, and decided about like any other."""
        hindsight = self._parts.hindsight
        ends_by, booted_at = hindsight.ends_by(case.code), hindsight.booted_at()
        if has_booted(case, booted_at):  # which explains that the node is DOWN
            case = replace(case, drain_boot_id="")
        if case.hold is None or not must_be_shown(case, ends_by, booted_at) or self._is_open(case.code):
            return case
        drained = datetime.fromtimestamp(case.hold.stamp, UTC)
        read = hindsight.look_back(case.code, min(self._since or drained, drained) - _BEFORE_A_DRAIN)
        if self._is_open(case.code):
            return replace(case, why=f"{case.why}; {case.code} was found in what was logged")
        unproven = (
            f"{case.code} on {case.component} is over only after a {ends_by}, and none is known of since the drain of"
            f" {drained:%Y-%m-%d %H:%M:%S} UTC; {read}, and nothing shows that it is over"
        )
        return replace(case, unproven=unproven, boot_id=self._parts.judgement.boot_id)

    def _is_open(self, code: str) -> bool:
        return any(root.code == code for each in self._parts.judgement.diagnoses() for root in roots_of(each))

    def _left_behind(self, now: datetime) -> Case | None:
        """It is asked while no case is open: one that the store knows has ended. What its mark says is over, and its
        record is not written over."""
        parts = self._parts
        own = parts.slots.held()
        if not own:
            return None
        view = parts.orchestrator.view(jobs=True)
        mark = next((mark.text for mark in parts.orchestrator.level().marks if mark.node == view.name), "")
        shown = parse(mark)
        self._since = shown.since if shown is not None else None
        is_over = shown is not None and parts.cases.knows(shown.case)
        case = found_case(
            view,
            own,
            "" if is_over else mark,
            platform_texts=parts.platform_texts,
            mode=parts.rules().mode,
            boot_id=parts.judgement.boot_id,
            now=now,
        )
        if case is None:
            return None
        if parts.cases.knows(case.id):  # and what became of its fault
            return replace(case, id=parts.new_id())
        return self._shown(self._returning(case, shown or CaseMark(), now))

    def _returning(self, case: Case, shown: CaseMark, now: datetime) -> Case:
        """With how often the node was let in after the same finding: an empty disk lets it in no sooner. Another
        machine has not returned, and what an operator ordered waits for no settling."""
        if case.attempts or case.order:
            return case
        returns = returns_of(shown.history, case.code, now)
        words = many_returns(returns, case.code, self._parts.rules().bounds)
        return replace(case, returns=returns, asks=Refused(kind=Refusal.LEMON, words=words) if words else None)
