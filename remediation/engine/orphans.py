"""Drains and budget slots that healthd left with the cluster and no remediation of the store accounts for.

A drain was applied late, or its store is lost. Its text alone proves nothing, since every user can write it: it is
reported, and undone by an operator's `healthd release` alone. The search runs after a start, and for a day after each
remediation, because such a drain comes from nowhere else.

A slot was left by a daemon before this one, with its drain or its order, or by a claim without an answer that was made
after its remediation had ended. ``OrphanSlots`` puts what it finds on disk, and the engine goes on with it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from healthd.core.errors import BackendError
from healthd.core.model import Action, Decision, Refusal, Refused
from healthd.judge.diagnose import roots_of
from healthd.remediation.decide.adoption import found_remediation, has_booted, must_be_shown
from healthd.remediation.decide.ledger import many_returns, returns_of
from healthd.remediation.decide.remediation import Remediation, remediation_id_of
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.step_result import StepJournal
from healthd.remediation.ports import Hold, is_drain
from healthd.remediation.records.handoff import HandoffRecord, parse

_DRAIN_EVERY_S = 1800.0  # one reading of this node
_FOR_S = 86_400.0


class OrphanDrains:
    """The search of one node. Asked while no remediation is open."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self.fence = ""
        """The fence of a slot of ours on the node, in words, or "": as the cluster showed it last."""
        self._found: Hold | None = None
        self._due_s = dependencies.monotonic_s() + dependencies.timeouts.unanswered_s
        self._until_s = self._due_s

    def search(self) -> None:
        """A remediation is open: search for what may come of it once it has ended."""
        now_s = self._dependencies.monotonic_s()
        self._found, self._due_s, self._until_s = None, now_s + _DRAIN_EVERY_S, now_s + _FOR_S

    def named(self, decision: Decision, now: datetime) -> Decision:
        """The same, unless such a drain keeps the node out: then that is the reason, and pages once it is overdue."""
        if decision.action is Action.HOLD and self.fence:
            return replace(decision, reason=self.fence, refusal=Refusal.ORPHAN)
        if decision.action is not Action.HOLD or (hold := self._looked()) is None:
            return decision
        since = hold.at
        late = now - since >= timedelta(seconds=self._dependencies.timeouts.overdue_s)
        message = f'held since {since:%Y-%m-%d %H:%M} UTC by "{hold.text}", a drain of ours without a remediation'
        return Decision(
            action=Action.PAGE if late else Action.HOLD,
            reason=f"{message}; `healthd release` undoes it",
            diagnosis=decision.diagnosis,
            refusal=Refusal.ORPHAN,
        )

    def _looked(self) -> Hold | None:
        now_s = self._dependencies.monotonic_s()
        if self._due_s > now_s or (self._found is None and self._due_s > self._until_s):
            return self._found
        self._due_s = now_s + _DRAIN_EVERY_S
        try:
            view = self._dependencies.orchestrator.view()
        except BackendError:  # as it was seen last, until an answer comes
            self._until_s = max(self._until_s, self._due_s)
            return self._found
        is_out = is_drain(view.flags) or "DOWN" in view.flags  # a controller that lost the drain keeps the reason
        is_ours = view.hold is not None and is_out and bool(remediation_id_of(view.hold.text))
        self._found = view.hold if is_ours else None
        return self._found


_BEFORE_A_DRAIN = timedelta(hours=1)  # a fault is older than its drain, by as long as it waited for a place
_SLOT_EVERY_S = 60.0  # a list of the places costs slurmctld 0.2 ms


class OrphanSlots:
    """The search of one node. ``unknown``: why nothing may be begun, as long as it was not answered once, or ""."""

    def __init__(self, dependencies: Dependencies, journal: StepJournal) -> None:
        self._dependencies, self._journal, self.unknown = dependencies, journal, ""
        self._answered = False
        self._since: datetime | None = None  # when the finding that the record shows was first seen
        self._due_s: float | None = None
        self._until_s: float | None = None

    def search(self, *, again: bool) -> None:
        """Have it searched from now on, for as long as what got no answer may be applied; ``again``: that begins
        now."""
        if again or self._until_s is None:
            self._due_s = self._dependencies.monotonic_s()
            self._until_s = self._due_s + self._dependencies.timeouts.unanswered_s

    def found(self, now: datetime) -> Remediation | None:
        """The remediation of what is left, on disk before it counts as found; None where there is nothing, or it is not
        time to look. Raises StoreError.

        Asked until it is answered, and again for as long as such a claim may come: every minute after a remediation;
        after a start, when nothing says that there was one, once when that time is over.
        """
        now_s = self._dependencies.monotonic_s()
        if self._due_s is None or self._until_s is None or now_s < self._due_s:
            return None
        soon_s = now_s + _SLOT_EVERY_S
        try:
            remediation = self._left_behind(now)
        except BackendError as error:
            self._due_s = soon_s if self._answered else now_s
            self.unknown = "" if self._answered else f"what an earlier daemon left with it is not known: {error}"
            return None
        if remediation is not None:
            self._journal.write(remediation, f"found: {remediation.why}")
        again_s = soon_s if self._answered else self._until_s
        self._answered, self.unknown = True, ""
        self._due_s = again_s if now_s < self._until_s else None
        return remediation

    def _shown(self, remediation: Remediation) -> Remediation:
        """The remediation of a drain, with what cannot be shown of the fault that it names. A fault that is found in
        what was logged since is open again, and decided about like any other."""
        hindsight = self._dependencies.hindsight
        ends_by = hindsight.ends_by(remediation.code)
        if (
            remediation.hold is None
            or not must_be_shown(remediation, ends_by, hindsight.booted_at())
            or self._is_open(remediation.code)
        ):
            return remediation
        drained = remediation.hold.at
        read = hindsight.reread_log(remediation.code, min(self._since or drained, drained) - _BEFORE_A_DRAIN)
        if self._is_open(remediation.code):
            return replace(remediation, why=f"{remediation.why}; {remediation.code} was found in what was logged")
        unproven = (
            f"{remediation.code} on {remediation.component} is over only after a {ends_by}, and none is known of since"
            f" the drain of {drained:%Y-%m-%d %H:%M:%S} UTC; {read}, and nothing shows that it is over"
        )
        return replace(remediation, unproven=unproven, boot_id=self._dependencies.judgement.boot_id)

    def _is_open(self, code: str) -> bool:
        return any(root.code == code for each in self._dependencies.judgement.diagnoses() for root in roots_of(each))

    def _left_behind(self, now: datetime) -> Remediation | None:
        """It is asked while no remediation is open: one that the store knows has ended. Its handoff record names
        nothing that is open, and is not written over."""
        dependencies = self._dependencies
        own = dependencies.slots.held()
        if not own:
            return None
        view = dependencies.orchestrator.view(jobs=True)
        record = next(
            (record.text for record in dependencies.orchestrator.snapshot().records if record.node == view.name), ""
        )
        shown = parse(record)
        self._since = shown.since if shown is not None else None
        is_over = shown is not None and dependencies.remediations.knows(shown.remediation_id)
        remediation = found_remediation(
            view,
            own,
            "" if is_over else record,
            platform_texts=dependencies.platform_texts,
            mode=dependencies.rules().mode,
            boot_id=dependencies.judgement.boot_id,
            now=now,
        )
        if remediation is None:
            return None
        if has_booted(remediation, dependencies.hindsight.booted_at()):  # which explains that the node is DOWN
            remediation = replace(remediation, drain_boot_id="", overwritten_boot_id="")
        elif (
            remediation.hold is not None and remediation.hold.remark
        ):  # so does what Slurm appended, with its own stamp
            remediation = replace(remediation, drain_boot_id="")
        if dependencies.remediations.knows(remediation.id):  # and what became of its fault
            return replace(remediation, id=dependencies.new_id())
        return self._shown(self._returning(remediation, shown or HandoffRecord(), now))

    def _returning(self, remediation: Remediation, shown: HandoffRecord, now: datetime) -> Remediation:
        """With how often the node was released after the same finding: an empty disk releases it no sooner. Another
        machine has not returned, and what an operator commanded waits for no settling."""
        if remediation.attempts or remediation.command:
            return remediation
        returns = returns_of(shown.history, remediation.code, now)
        message = many_returns(returns, remediation.code, self._dependencies.rules().bounds)
        return replace(
            remediation, returns=returns, asks=Refused(kind=Refusal.LEMON, reason=message) if message else None
        )
