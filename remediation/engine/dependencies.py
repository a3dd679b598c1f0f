"""The dependencies of one node's engine: how long it waits, what it asks of others, how it shows that it is alive.

Plain values and Protocols, put together once; each part of the engine is handed the same, and nothing here acts. The
engine may save evidence for minutes and reset GPUs for minutes more. That is no defect as long as each part of it keeps
to its own deadline, so each part says so to the ``Heartbeat``; the watchdog takes silence beyond that for a defect.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from msgspec import Struct, field

from healthd.core.model import Clearance, ClearsBy, Component, Diagnosis, Event, Remedy
from healthd.core.node import CommandResult
from healthd.remediation.decide.canary import canary
from healthd.remediation.decide.fleet import DAY_WINDOW, RATE_WINDOW, day_limit, rate_held, replacements, requested
from healthd.remediation.decide.ledger import records_of
from healthd.remediation.decide.paging import Limits
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Remediation, Repair
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.ports import JobControl, Orchestrator, Provisioner
from healthd.remediation.records.handoff import Versions

_CANARY_AGE_S = 30.0
"""How old a reading of the fleet may be by which the canary ends: what has ended well stays so."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long the engine waits, in seconds. ``settle_s``: good for so long before a release. ``unanswered_s``: a
    claim, a drain or an undrain without an answer may be applied for so long. ``let_go_s``: for what was asked to end
    to let the GPUs go, before a reset. ``calm_s``: how often a remediation is looked at that has stood still for twice
    as long; 0 for as often as any other. ``overdue_s``: a node may be out, or a remediation stand still, for so long
    before it pages; ``wait_idle_timeout_s``: the same of a job that does not end under a fault which only a reboot or a
    replacement ends. ``undrain_holds_s``: how long an operator's undrain of our drain acknowledges a critical fault.
    """

    settle_s: float = 30.0
    verify_timeout_s: float = 600.0
    reboot_timeout_s: float = 1800.0
    replace_timeout_s: float = 14_400.0
    unanswered_s: float = 300.0
    let_go_s: float = 180.0
    max_attempts: int = 2
    calm_s: float = 0.0
    overdue_s: float = 14_400.0
    wait_idle_timeout_s: float = 3_600.0
    undrain_holds_s: float = 86_400.0

    @property
    def limits(self) -> Limits:
        """How long a node may be out before that pages."""
        return Limits(
            overdue_s=self.overdue_s,
            wait_idle_timeout_s=self.wait_idle_timeout_s,
            replace_timeout_s=self.replace_timeout_s,
        )


class Judgement(Protocol):
    """The monitor, as the engine asks it."""

    @property
    def boot_id(self) -> str:
        """The current boot."""

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """The diagnoses, most far-reaching first."""

    def is_acknowledged(self, diagnosis: Diagnosis) -> bool:
        """Whether an operator has seen it and put the node back."""

    def acknowledge(self, *, by: datetime, now: datetime, why: str) -> None:
        """Mark every fault that was open ``by`` then as seen."""

    def acknowledge_shown(
        self, code: str, component: str, *, by: datetime, until: datetime, now: datetime, why: str
    ) -> None:
        """Mark what an operator knew of as seen: this fault, and those that were open ``by`` then; a critical one
        ``until`` then at most."""

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Take evidence that faults are over."""

    def trouble(self, since: datetime | None) -> str:
        """Why the node cannot be trusted yet, or "". None: by the check runs so far."""

    def still_open(self) -> str:
        """The first fault that keeps the node out, or ""."""

    def awaits_test(self) -> bool:
        """Whether active tests found all that keeps the node out: no check that runs by itself ends it."""

    def not_checked(self, since: datetime | None, *, unknowns: bool = True) -> str:
        """The check that cannot tell, or has not looked since then, or "". ``unknowns``: whether one that looked and
        cannot tell counts."""

    def not_seen_again(self, code: str, component: Component, since: datetime | None = None) -> str:
        """Why an open fault may be over, or "": no check run has found it since then, None: since this daemon
        started."""

    def record(self, event: Event) -> None:
        """Add to the audit trail."""


class Hindsight(Protocol):
    """The facts about a fault that a drain names and no check finds any more."""

    def ends_by(self, code: str) -> ClearsBy | None:
        """The one evidence that ends faults of this code; None for what a check would find again."""

    def booted_at(self) -> datetime | None:
        """When this boot began, by the machine's own clock; None where that is not known."""

    def reread_log(self, code: str, since: datetime) -> str:
        """Judge again what was logged since then about this code: what is found is open. Returns what was read, or why
        it could not be, in words."""


class NoHindsight:
    """Where the next check run finds every fault that is there."""

    def ends_by(self, code: str) -> ClearsBy | None:
        return None

    def booted_at(self) -> datetime | None:
        return None

    def reread_log(self, code: str, since: datetime) -> str:
        return "nothing was read"


class RemediationStore(Protocol):
    """Where remediations are kept. Raises StoreError; then nothing is done."""

    def open_remediation(self) -> Remediation | None:
        """The remediation that is not at its end."""

    def knows(self, remediation_id: str) -> bool:
        """Whether a remediation of this id was ever kept."""

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        """Write a remediation and why it moved."""


class Resetter(Protocol):
    """Resets all GPUs of this machine. Every call has its own deadline."""

    def reason_against(self) -> str:
        """Why a reset cannot help or cannot be made now, or "": no tool, a holder in uninterruptible sleep."""

    def holders(self) -> tuple[str, ...]:
        """The services that run now and hold the GPUs open: they are stopped for the reset and owed a start."""

    def reset(self, stop: tuple[str, ...]) -> str:
        """Stop these services and reset the GPUs; returns what was done. Raises BackendBusy while some of them are
        still ending, BackendRefused, BackendUnknown."""

    def start(self, services: tuple[str, ...]) -> str:
        """Start what was stopped; returns what could not be started, or ""."""


class Heartbeat:
    """Heard from one thread at a time: the one that takes the engine's turn. Asked by any.

    What others run meanwhile, to answer a question, is no sign that the engine is alive. ``clock`` is monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owner: int | None = None
        self._heard = (clock(), 0.0)

    def begin(self) -> None:
        """This thread reconciles, and is the one that is heard until ``end``."""
        self._owner = threading.get_ident()
        self()

    def end(self) -> None:
        """The turn is over."""
        self()
        self._owner = None

    def __call__(self, within_s: float = 0.0) -> None:
        """The next step begins. ``within_s``: it may take so long, in seconds, and be silent."""
        if threading.get_ident() == self._owner:
            self._heard = (self._clock(), within_s)

    def silent_s(self) -> float:
        """For how long nothing was heard, in seconds, beyond what was announced."""
        at, within_s = self._heard
        return max(0.0, self._clock() - at - within_s)

    def announcing(self, run: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
        """``run``, which says before each command how long that may take."""

        def announced(argv: Sequence[str], *, timeout_s: float, **more: Any) -> CommandResult:
            self(timeout_s)
            try:
                return run(argv, timeout_s=timeout_s, **more)
            finally:
                self()

        return announced


class TestsEndedEarly(Exception):
    """The active tests were ended: healthd stops, or an operator's command waits."""

    __test__ = False


class Dependencies(Struct, frozen=True, kw_only=True):
    """The parts of one node's engine.

    ``rules`` is asked before every step and once more right before every act: an operator may have spoken
    meanwhile. ``collect`` saves the evidence of a remediation and returns where; ``upload`` puts it where it
    outlives the machine and returns its address, or "" where there is no such place. ``recheck`` has every check run
    that has not looked since then, and waits for none. ``run_tests`` runs the active tests of the node and returns
    their findings, or ""; it calls what it is given every few seconds, and passes the exception of that on.
    ``platform_texts``: reasons that a provisioner leaves on a node which we hold. ``ledger``: the repairs that were
    made on this node, as the store knows them. ``versions``: what the node runs, for its record. ``hindsight``: what
    can be known of a fault that only a drain tells of. ``jobs``: restarts the jobs of this node; None where its cluster
    has no such jobs. ``new_id``: of a remediation that is opened. ``clock`` stamps the audit trail: reconciling takes
    as long as the cluster does; ``monotonic_s`` tells where it was set. ``beat`` hears of each call of the engine and
    each step.
    """

    orchestrator: Orchestrator
    provisioner: Provisioner
    resetter: Resetter
    slots: SlotKeeper
    judgement: Judgement
    remediations: RemediationStore
    rules: Callable[[], Rules]
    collect: Callable[[Remediation], str]
    recheck: Callable[[datetime], None]
    timeouts: Timeouts
    platform_texts: Collection[str] = ()
    upload: Callable[[Remediation], str] = lambda _: ""
    run_tests: Callable[[Callable[[], None]], str] = lambda _: ""
    ledger: Callable[[], Sequence[Repair]] = tuple
    versions: Callable[[], Versions] = Versions
    hindsight: Hindsight = field(default_factory=NoHindsight)
    jobs: JobControl | None = None
    new_id: Callable[[], str] = lambda: os.urandom(4).hex()
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    beat: Heartbeat = field(default_factory=Heartbeat)

    def reason_against(self, remedy: Remedy) -> str:
        """Why this remedy cannot be carried out here, or ""."""
        return self.resetter.reason_against() if remedy is Remedy.RESET_GPU else self.provisioner.reason_against(remedy)

    def canary(self, remediation: Remediation, *, max_age_s: float | None = _CANARY_AGE_S) -> str:
        """Why a repair of the revision that decides here asks an operator, or "", by the records of the fleet as they
        were read so many seconds ago; None for the last reading that is there: right before an act the node alone is
        read. A command is the approval. Raises BackendUnknown."""
        rules = self.rules()
        if remediation.by_command or not (rules.revision and rules.bounds.canary_repairs):
            return ""
        fleet = self.slots.recalled(max_age_s=max_age_s) or self.slots.learn()
        return canary(records_of(fleet, self.clock()), rules.revision, rules.bounds)

    def too_many(self, *, by_command: bool = False, is_counted: bool = False) -> str:
        """Why no machine of the fleet may be replaced now, or "". An operator's command passes the bound of a day.
        ``is_counted``: this machine's own replacement is written down already, and does not count against itself.

        Raises BackendUnknown.
        """
        snapshot, rules, now = self.orchestrator.snapshot(), self.rules(), self.clock()
        per_day = None if by_command else day_limit(rules.replacements_per_day, snapshot.total)
        node, within = self.orchestrator.view().name, timedelta(seconds=self.timeouts.replace_timeout_s)
        standing = requested(snapshot.records, node, now, within)
        return rate_held(
            node,
            replacements(snapshot.records, RATE_WINDOW, now),
            replacements(snapshot.records, DAY_WINDOW, now) + standing,
            per_hour=rules.replacements_per_hour + is_counted,
            per_day=None if per_day is None else per_day + is_counted,
        )
