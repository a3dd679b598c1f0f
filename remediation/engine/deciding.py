"""Reads what a decision depends on, and decides: while nothing is open, before an act, and for an operator who asks.

``decide.policy`` says what it needs; nothing else is read. Nothing here writes or acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from healthd.core.errors import BackendError
from healthd.core.model import Decision, Diagnosis, Mode, Refusal, Refused, Remedy
from healthd.remediation.decide.drive import KnownFaults, is_untried
from healthd.remediation.decide.ledger import on_record
from healthd.remediation.decide.policy import (
    Considered,
    Needs,
    Question,
    Readings,
    Rules,
    Situation,
    decide,
    decide_each,
    left_of,
    question,
)
from healthd.remediation.decide.remediation import Remediation, Repair
from healthd.remediation.engine.cluster_view import ClusterView
from healthd.remediation.engine.dependencies import Dependencies


class Decider:
    """Decides about one node. Calls never overlap, but for ``considered``."""

    def __init__(self, parts: Dependencies, cluster: ClusterView) -> None:
        self._parts, self._judgement, self._cluster = parts, parts.judgement, cluster

    def by_memory(self, now: datetime) -> Decision:
        """Decide by what is remembered of the fleet. After a refusal by that the fleet is read, ever more rarely while
        it stays one: a thousand nodes that may not go out must not read a thousand nodes each, every few seconds.
        """
        decision, known = self._decided(self._question(now), self._cluster.remembered)
        if (fresh := self._cluster.read_anew(decision, known)) is None:
            return decision
        decision = self.given(fresh, now)
        self._cluster.remember_refusal(decision, fresh)
        return decision

    def given(self, situation: Situation, now: datetime) -> Decision:
        """Decide by this situation."""
        return self._decided(self._question(now), self._cluster.looked, known=situation)[0]

    def forbidden(self, now: datetime) -> Refused | None:
        """Why what was decided would not be decided now: that decision may be old, and so may what it knew of the
        fleet. None where it would."""
        decision, _ = self._decided(self._question(now), self._cluster.just_read)
        if decision.steps:
            return None
        return Refused(kind=decision.refusal or Refusal.NOT_NEEDED, words=decision.reason)

    def by_order(self, case: Remediation | None, now: datetime) -> Decision:
        """Decide as if the mode were repair, about a node that no remediation holds, or this one does."""
        rules = replace(self._parts.rules(), mode=Mode.REPAIR)
        asked = self._question(now, rules, is_held=case is not None, by_order=True)
        return self._decided(asked, self._cluster.looked)[0]

    def about_held(self, case: Remediation, seen: KnownFaults) -> Decision:
        """Decide about the node that this remediation holds. Counted from when it was taken out: waiting for an
        operator repairs no lemon."""
        decision, _ = self._decided(self._question(case.opened, is_held=True), self._cluster.others)
        return decision if is_untried(case, decision, seen.open) else left_of(decision, case)

    def considered(
        self, diagnoses: Sequence[Diagnosis], acknowledged: frozenset[Diagnosis], rules: Rules, unknown: str
    ) -> tuple[Considered, ...]:
        """Decide about each of these by itself. ``unknown``: why nothing may be begun, or ""; else the
        cluster is read. A cluster that does not answer leaves the repairs that the store knows."""
        now, readings = self._parts.clock(), Readings()
        situation = unsearched(unknown) if unknown else None
        while isinstance(answer := decide_each(diagnoses, acknowledged, rules, now, readings), Needs):
            if answer.situation:
                readings = replace(readings, situation=situation or self._cluster.lately())
            elif answer.repairs:
                readings = replace(readings, repairs=self._repairs_known())
            else:
                readings = self._tried(readings, answer.remedies)
        return answer

    def acknowledged(self, diagnoses: Iterable[Diagnosis]) -> frozenset[Diagnosis]:
        """Those which an operator has seen, who wants the node in service all the same."""
        return frozenset(each for each in diagnoses if self._judgement.is_acknowledged(each))

    # -----------------------------------------------------------------------------------------------------------------

    def _question(
        self, now: datetime, rules: Rules | None = None, *, is_held: bool = False, by_order: bool = False
    ) -> Decision | Question:
        diagnoses = self._judgement.diagnoses()
        seen, rules = self.acknowledged(diagnoses), rules or self._parts.rules()
        return question(diagnoses, seen, rules, now, is_held=is_held, by_order=by_order)

    def _decided(
        self, asked: Decision | Question, read: Callable[[], Situation], known: Situation | None = None
    ) -> tuple[Decision, Situation | None]:
        """The decision, and the situation where it is ``known`` or was ``read``. Raises StoreError, BackendError."""
        readings = Readings(situation=known)
        while isinstance(asked, Question):
            answer = decide(asked, readings)
            if isinstance(answer, Decision):
                return answer, readings.situation
            if answer.situation:
                readings = replace(readings, situation=read())
            elif answer.repairs:
                readings = replace(readings, repairs=self._repairs())
            else:
                readings = self._tried(readings, answer.remedies)
        return asked, None

    def _tried(self, readings: Readings, remedies: Iterable[Remedy]) -> Readings:
        """With whether these remedies can be carried out."""
        cannot = {remedy: self._parts.why_not(remedy) for remedy in remedies}
        return replace(readings, cannot={**readings.cannot, **cannot})

    def _repairs(self) -> tuple[Repair, ...]:
        """The repairs of this node by the store and by the record. Raises StoreError, BackendError."""
        return on_record(self._parts.ledger(), self._parts.cases.open_case(), self._cluster.record())

    def _repairs_known(self) -> tuple[Repair, ...]:
        """The same for a question: of a cluster that does not answer, by the store alone."""
        try:
            return self._repairs()
        except BackendError:
            return tuple(self._parts.ledger())


def unsearched(unknown: str) -> Situation:
    """Where a slot, a drain or a command of an earlier daemon's may stand unseen, nothing is begun."""
    return Situation(view=None, level=None, problem=unknown)
