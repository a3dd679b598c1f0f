"""One node of the past: what was found on it, what would have been decided, and how it would have been out and back.

The judgement is the daemon's own: its checks, its history, its policy. Between a drain and the release that is assumed
for it, lines are counted and nothing is decided, as in the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from healthd.check import Check
from healthd.config.replay_schema import ReplaySection
from healthd.config.schema import Config
from healthd.history import Change, Fault
from healthd.model import NODE, Action, Clearance, ClearsBy, Decision, Outcome, Remedy, Status
from healthd.monitor import Monitor
from healthd.node import KernelRecord
from healthd.past.node import BOOTED, Batch, PastNode, outcomes_of
from healthd.remediation.ledger import Repair
from healthd.remediation.policy import Rules, Situation, decide


@dataclass(frozen=True, kw_only=True, slots=True)
class Happening:
    """One entry of a node's story. ``kind``: found, ended, decided, done, or back."""

    at: datetime
    kind: str
    text: str
    code: str = ""
    component: str = ""
    severity: str = ""
    remedy: str = ""
    rule: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A time that a node would have been out: why, by which step, and how much of it is waiting for its job to end."""

    began: datetime
    ended: datetime
    action: Action
    remedy: Remedy | None
    waiting_s: float

    @property
    def out_s(self) -> float:
        """From the drain to the release."""
        return (self.ended - self.began).total_seconds()


@dataclass(frozen=True, kw_only=True)
class Story:
    """What came of one node."""

    host: str
    happenings: tuple[Happening, ...]
    outages: tuple[Outage, ...]
    decision: Decision
    faults: tuple[Fault, ...]

    @property
    def open_faults(self) -> tuple[str, ...]:
        """What was open at the end, in words."""
        return tuple(f"{fault.code} on {fault.component}" for fault in self.faults)


class Fleet(Protocol):
    """What a node is told of the others."""

    config: Config
    rules: Rules

    @property
    def checks(self) -> Mapping[str, Check]:
        """The kernel checks."""

    def situation(self, host: PastHost, now: datetime) -> Situation:
        """Its place in the cluster at this moment."""


@dataclass(kw_only=True)
class PastHost:
    """One node: its judgement, and how it would have been out and come back."""

    name: str
    fleet: Fleet
    node: PastNode
    monitor: Monitor
    batch: Batch = field(default_factory=Batch)
    happenings: list[Happening] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    ledger: list[Repair] = field(default_factory=list)
    until: datetime | None = None
    decision: Decision = field(default_factory=lambda: Decision(action=Action.HOLD, reason="nothing was found"))
    _boot: str = ""
    _boots: int = 0
    _machines: int = 0
    _noted: str = ""

    def judge(self) -> None:
        """Judge the batch, and decide on what it changed."""
        records = self.batch.taken()
        if not records:
            return
        self.end_if_over(records[0].time)
        self._enter_boot(records[0])
        outcomes = tuple(outcomes_of(self.fleet.checks, self.fleet.config.checks, self.node, records))
        for outcome in [each for each in outcomes if _says(each)] or outcomes[:1]:
            self.absorb(outcome)
        self.go_on(records[-1].time)

    def absorb(self, outcome: Outcome) -> None:
        """Fold an outcome in, and tell what opened and ended."""
        self.end_if_over(outcome.at)
        self._tell(self.monitor.absorb(outcome), outcome.at)

    def go_on(self, now: datetime) -> None:
        """Decide, as the daemon does whenever something changed; a node that is out is not decided about."""
        if self.until is not None:
            self._come_back_early(now)
            return
        decision = decide(
            self.monitor.diagnoses(),
            self.monitor.is_acknowledged,
            lambda: self.fleet.situation(self, now),
            self.fleet.rules,
            lambda _: "",
            ledger=lambda: self.ledger,
            now=now,
        )
        self.decision = decision
        if decision.diagnosis is None:
            self._noted = ""
        elif decision.reason != self._noted:
            self._noted = decision.reason
            words = decision.reason
            said = words if words.startswith(decision.action) else f"{decision.action}: {words}"
            self._note(now, "decided", said, decision)
        if decision.steps:
            self._take_out(decision, now)

    def story(self) -> Story:
        """What came of it."""
        return Story(
            host=self.name,
            happenings=tuple(self.happenings),
            outages=tuple(self.outages),
            decision=self.decision,
            faults=tuple(self.monitor.history.faults.values()),
        )

    # -- boots --------------------------------------------------------------------------------------------------------

    def _enter_boot(self, first: KernelRecord) -> None:
        """A line of another boot, or the kernel's own first line, is evidence of a reboot."""
        if first.boot_id not in ("", self._boot) or first.text.startswith(BOOTED) or not self._boots:
            self._reboot(first.time, first.boot_id)

    def _reboot(self, now: datetime, boot_id: str = "") -> None:
        self._boots += 1
        self._boot = boot_id or self._boot
        name = f"boot {self._boots} of {self.name}"
        self._seen(lambda: self.monitor.begin_boot(name, now), now, "rebooted")

    def _seen(self, act: Callable[[], None], now: datetime, why: str) -> None:
        """Do something to the monitor that ends faults, and tell which."""
        before = dict(self.monitor.history.faults)
        act()
        ended = [fault for key, fault in before.items() if key not in self.monitor.history.faults]
        self._tell(tuple(Change(fault=fault, opened=False, why=why) for fault in ended), now)

    # -- out and back -------------------------------------------------------------------------------------------------

    def _take_out(self, decision: Decision, now: datetime) -> None:
        assumed = self.fleet.config.replay
        remedy = decision.ladder[0] if decision.action is Action.REPAIR else None
        waiting_s = assumed.drain_s if remedy else 0.0
        self.until = now + timedelta(seconds=waiting_s + _takes_s(remedy, assumed))
        self.outages.append(
            Outage(began=now, ended=self.until, action=decision.action, remedy=remedy, waiting_s=waiting_s)
        )
        steps = ", ".join(decision.steps)
        self._note(now, "done", f"would have been taken out: {steps}; assumed back {self.until:%F %H:%M:%S}", decision)

    def end_if_over(self, now: datetime) -> None:
        """Let a repair that would be done by now come to its end."""
        if self.until is not None and now >= self.until:
            self.end_outage()

    def end_outage(self) -> None:
        """The repair came to its end, and is assumed to have worked until a later line says otherwise."""
        if self.until is None:
            return
        now, last, self.until = self.until, self.outages[-1], None
        diagnosis = self.decision.diagnosis
        if last.remedy is not None and diagnosis is not None:
            self._repaired(last.remedy, now)
            self.ledger.append(
                Repair(
                    code=diagnosis.code,
                    component=str(diagnosis.component),
                    remedy=last.remedy,
                    began=last.began,
                    ended=now,
                    outcome="assumed",
                )
            )
        else:
            self._seen(lambda: self._person(now), now, "a person is assumed to have seen to it")
        self._noted = ""
        done = f"after {last.remedy}" if last.remedy else "after a person saw to it"
        self._note(now, "back", f"assumed back {done}, {last.out_s / 3600:.1f} h after the drain")

    def _repaired(self, remedy: Remedy, now: datetime) -> None:
        if remedy is Remedy.RESET_GPU:
            over = Clearance(by=ClearsBy.GPU_RESET, component=NODE)
            self._seen(lambda: self.monitor.clear(over, now), now, "the reset is assumed to have worked")
        elif remedy is Remedy.REBOOT_NODE:
            self._reboot(now)
        else:
            self._seen(lambda: self._person(now), now, "another machine is assumed to be well")

    def _person(self, now: datetime) -> None:
        """Another machine, or one that a person has seen to: nothing that was open before is."""
        self.monitor.clear(Clearance(by=ClearsBy.REPLACE, component=NODE), now)

    def _come_back_early(self, now: datetime) -> None:
        """What the log itself shows to be over before a repair is not repaired."""
        last, policy = self.outages[-1], self.fleet.rules.policy
        waits = last.remedy is None or now < last.began + timedelta(seconds=last.waiting_s)
        if waits and not policy.calling(self.monitor.diagnoses()):
            self.until = None
            self.outages[-1] = replace(last, ended=now, waiting_s=0.0 if last.remedy is None else last.out_s)
            self._noted = ""
            self._note(now, "back", "back without a repair: the log shows that it is over")

    # -- telling ------------------------------------------------------------------------------------------------------

    def _tell(self, changes: Iterable[Change], now: datetime) -> None:
        for change in changes:
            fault = change.fault
            self.happenings.append(
                Happening(
                    at=fault.first if change.opened else now,
                    kind="found" if change.opened else "ended",
                    text=fault.message if change.opened else change.why,
                    code=fault.code,
                    component=str(fault.component),
                    severity=fault.severity,
                    remedy=fault.remedy,
                )
            )

    def _note(self, now: datetime, kind: str, text: str, decision: Decision | None = None) -> None:
        diagnosis = decision.diagnosis if decision else None
        self.happenings.append(
            Happening(
                at=now,
                kind=kind,
                text=text,
                code=diagnosis.code if diagnosis else "",
                component=str(diagnosis.component) if diagnosis else "",
                rule=decision.rule if decision else "",
            )
        )


def _says(outcome: Outcome) -> bool:
    """Whether folding this in changes anything. Log faults do not end by a check that no longer sees them."""
    result = outcome.result
    return bool(result.findings or result.clearances or result.readings) or result.status is not Status.OK


def _takes_s(remedy: Remedy | None, assumed: ReplaySection) -> float:
    """How long a repair takes from idle to released, or a person who is called."""
    took = {
        Remedy.RESET_GPU: assumed.reset_s,
        Remedy.REBOOT_NODE: assumed.reboot_s,
        Remedy.REPLACE_NODE: assumed.replace_s,
    }
    return assumed.person_s if remedy is None else took[remedy]
