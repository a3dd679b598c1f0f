"""What one node's engine works with: put together once, and handed to each part of the engine as it is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from healthd.core.model import Remedy
from healthd.remediation.decide.fleet import DAY_WINDOW, RATE_WINDOW, day_limit, rate_held, replacements
from healthd.remediation.decide.handoff import Versions
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Remediation, Repair
from healthd.remediation.engine.heartbeat import Beat
from healthd.remediation.engine.repairs import Resetter
from healthd.remediation.engine.step_result import Hindsight, Judgement, NoHindsight, RemediationStore, Slots, Timeouts
from healthd.remediation.ports import Orchestrator, Provisioner


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The parts of one node's engine.

    ``rules`` is asked before every step and once more right before every act: an operator may have spoken meanwhile.
    ``collect`` saves the evidence of a case and returns where. ``look_again`` has every check run that has not looked
    since then, and waits for none. ``platform_texts``: reasons that a provisioner leaves on a node which we hold.
    ``ledger``: the repairs that were made on this node, as the store knows them. ``versions``: what the
    node runs, for its record. ``hindsight``: what can be known of a
    fault that only a drain tells of. ``new_id``: of a case that is opened. ``clock`` stamps the
    audit trail: a turn takes as long as the cluster does; ``monotonic_s`` tells where it was set. ``beat`` is told of
    each turn and each step.
    """

    orchestrator: Orchestrator
    provisioner: Provisioner
    resetter: Resetter
    slots: Slots
    judgement: Judgement
    cases: RemediationStore
    rules: Callable[[], Rules]
    collect: Callable[[Remediation], str]
    look_again: Callable[[datetime], None]
    patience: Timeouts
    platform_texts: Collection[str] = ()
    ledger: Callable[[], Sequence[Repair]] = tuple
    versions: Callable[[], Versions] = Versions
    hindsight: Hindsight = field(default_factory=NoHindsight)
    new_id: Callable[[], str] = lambda: secrets.token_hex(4)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    beat: Beat = field(default_factory=Beat)

    def why_not(self, remedy: Remedy) -> str:
        """Why this remedy cannot be carried out here, or ""."""
        return self.resetter.why_not() if remedy is Remedy.RESET_GPU else self.provisioner.why_not(remedy)

    def too_many(self, *, by_order: bool = False) -> str:
        """Why no machine of the fleet may be replaced now, or "". What a person orders passes the bound of a day.

        Raises BackendUnknown.
        """
        level, rules, now = self.orchestrator.level(), self.rules(), self.clock()
        return rate_held(
            self.orchestrator.view().name,
            replacements(level.marks, RATE_WINDOW, now),
            replacements(level.marks, DAY_WINDOW, now),
            per_hour=rules.replacements_per_hour,
            per_day=None if by_order else day_limit(rules.replacements_per_day, level.total),
        )
