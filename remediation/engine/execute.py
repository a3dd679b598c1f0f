"""Begins what a person ordered, or refuses it for all to see. The turns that follow do what is left.

An order is written down before anything is done, as a case like any other, so that a kill -9 does not lose it. Whoever
calls holds the engine's lock.
"""

from __future__ import annotations

from datetime import datetime

from healthd.core.errors import BackendError
from healthd.core.model import Event, Refusal, Refused
from healthd.remediation.decide.commands import Command, CommandOutcome, heading_back
from healthd.remediation.decide.remediation import End, Remediation
from healthd.remediation.engine.command_checks import CommandChecks
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.journal import StepJournal
from healthd.remediation.engine.stats import EngineStats
from healthd.remediation.engine.steps import Steps


class CommandExecution:
    """The orders of one node."""

    def __init__(
        self, parts: Dependencies, *, checks: CommandChecks, steps: Steps, journal: StepJournal, stats: EngineStats
    ) -> None:
        self._checks, self._steps, self._journal, self._stats = checks, steps, journal, stats
        self._judgement, self._new_id, self._clock = parts.judgement, parts.new_id, parts.clock

    def begin(self, order: Command, case: Remediation | None, now: datetime) -> Remediation | CommandOutcome:
        """Write the command down as the remediation to go on with; else what came of it without one. ``case``: the open
        one. Raises StoreError: then nothing was done.
        """
        try:
            wanted = self._checks.wanted(order, case, now, self._new_id())
        except BackendError as error:
            words = f"the cluster did not answer, so nothing was done: {error}"
            return self.refuse(order, Refused(kind=Refusal.UNREADABLE, words=words))
        if isinstance(wanted, Refused):
            return self.refuse(order, wanted)
        if isinstance(wanted, str):
            self._judgement.record(Event(at=self._clock(), kind="order", text=f"{order.title}: {wanted}"))
            return CommandOutcome(done=True, said=wanted)
        self._journal.write(wanted, order.title)
        return wanted

    def first_step(self, wanted: Remediation, now: datetime) -> CommandOutcome:
        """Take the first step of what was written down. Raises StoreError."""
        try:
            turn = self._steps.take(wanted, now)
        except BackendError as error:
            said = f"case {wanted.id} is open; the cluster did not answer yet, and it goes on: {error}"
            return CommandOutcome(done=True, said=said, refusal=Refusal.UNREADABLE)
        self._stats.wait(turn)
        is_lost = turn.case.end is End.LOST
        return CommandOutcome(done=not is_lost, said=f"case {wanted.id}: {turn.said}", refusal=turn.refusal)

    def refuse(self, order: Command, refused: Refused) -> CommandOutcome:
        """Not done: counted, and in the trail with who asked and why not."""
        self._stats.refuse(refused.kind)
        text = f"refused: {order.verb} by order, {order.words}: {refused.words}"
        data = {"verb": order.verb, "refusal": refused.kind}
        self._judgement.record(Event(at=self._clock(), kind="order", text=text, data=data))
        return CommandOutcome(done=False, said=refused.words, refusal=refused.kind)

    def rehearse(self, order: Command, case: Remediation | None, now: datetime) -> CommandOutcome:
        """What beginning it would come to, step by step. Nothing is done, noted or counted."""
        try:
            wanted = self._checks.wanted(order, case, now, "…")
            if isinstance(wanted, Refused):
                return CommandOutcome(done=False, said=wanted.words, refusal=wanted.kind)
            if isinstance(wanted, str):
                return CommandOutcome(done=True, said=wanted)
            steps = tuple(self._checks.rehearsed(heading_back(wanted, now)))
        except BackendError as error:
            words = f"the cluster did not answer: {error}"
            return CommandOutcome(done=False, said=words, refusal=Refusal.UNREADABLE)
        against = next((refusal for _, refusal in steps if refusal is not None), None)
        said = f"{wanted.code} on {wanted.component}, {order.words}"
        return CommandOutcome(
            done=against is None, said=said, lines=tuple(words for words, _ in steps), refusal=against
        )
