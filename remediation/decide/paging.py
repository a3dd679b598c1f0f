"""Why the engine needs an operator, as one Decision: recomputed after each call, so that no page outlives its
cause.

Pure. A page has four sources, in this order: a case that was given up or waits for what only an operator settles, one
that was opened to wait for an operator, one that is overdue, and turns that fail one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from healthd.core.model import Action, Decision, Refusal, Remedy, Step
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.decide.rules import REPAIRS

STUCK_AFTER_S = 600.0
"""How long every call must have failed before that pages, in seconds: slurmctld and API servers restart in minutes."""
ORDERED_FOR_S = 86_400.0
"""How long a node is out by an operator's command before the first reminder, in seconds. The operator knows of it."""
WELL_FOR_S = 3_600.0
"""How long a node that is overdue must be healthy before that page is over, in seconds, where it is not back before."""
FATAL = frozenset({Remedy.REBOOT_NODE, Remedy.REPLACE_NODE})
"""The remedies of faults under which a job makes no progress: it holds its other nodes for nothing."""
_HINTS: Mapping[Step, str] = {
    Step.WAIT_IDLE: "The repair waits for these jobs: cancel them, or have their owner do so",
    Step.VERIFY: "`healthd status` names what is not healthy; `healthd release --force` puts it back all the same",
    Step.RELEASE: "`healthd status` says what the release waits for",
    Step.STAY: "`healthd release` puts the node back",
}
_HELP = "`healthd status` says what it waits for; `healthd release` puts the node back"
_ENDS: Mapping[End | None, Refusal] = {End.LOST: Refusal.FOREIGN_HOLD, End.ACKNOWLEDGED: Refusal.ACKNOWLEDGED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How long a node may be out before that pages, in seconds. ``overdue_s``: for whatever cause;
    ``wait_idle_timeout_s``: while jobs run on under a fatal fault; ``replace_timeout_s``: while another machine is
    awaited."""

    overdue_s: float = 14_400.0
    wait_idle_timeout_s: float = 3_600.0
    replace_timeout_s: float = 14_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stands:
    """Where a case stands after its last turn. ``page``: that asks for an operator; ``refusal``: what it waits for."""

    case: Remediation
    page: bool = False
    refusal: Refusal | None = None


def wanted(
    decided: Decision,
    stands: Stands | None,
    problem: str,
    now: datetime,
    limits: Limits,
    *,
    was: Decision | None = None,
) -> Decision:
    """The decision after a call of the engine: the one that was ``decided``, unless the remediation or a ``problem``
    says otherwise.

    ``stands``: of the case that is open, or that ended in this turn; None without a case. ``problem``: why no turn has
    succeeded for ``STUCK_AFTER_S``, or "". ``was``: what it stood at before.
    """
    if stands is not None and was is not None and was.refusal is Refusal.OVERDUE:
        stands = replace(stands, case=_not_well_yet(stands.case, now))
    decision = decided if stands is None else _of_case(decided, stands, problem, now, limits)
    if problem and decision.action is not Action.PAGE:
        return Decision(action=Action.PAGE, reason=problem, refusal=Refusal.STUCK)
    return decision


def due(case: Remediation, limits: Limits) -> datetime:
    """From when on a remediation is overdue. A wait that is expected has its own bound: a replacement as long as it may
    take, a command a day, a job under a fatal fault ``wait_idle_timeout_s``. One that settles counts from then on; a
    page that stands is over ``WELL_FOR_S`` after that.

    What an operator ordered out counts from that order, whatever became of its drain since; each step towards it, and
    back, from its own beginning. A drain that was found counts from when it was made, and is verified first.
    """
    if Step.STAY in case.steps:
        ordered = out_since(case) + timedelta(seconds=ORDERED_FOR_S)
        return ordered if case.step is Step.STAY else min(ordered, case.since + timedelta(seconds=limits.overdue_s))
    if case.step is Step.REPLACE and case.phase is Phase.INTENDED:
        return case.since + timedelta(seconds=max(limits.overdue_s, limits.replace_timeout_s))
    began = max(out_since(case), case.good_since or out_since(case))
    overdue = max(began + timedelta(seconds=limits.overdue_s), case.opened + timedelta(seconds=STUCK_AFTER_S))
    if case.step is Step.WAIT_IDLE and case.remedy in FATAL:
        return min(overdue, case.since + timedelta(seconds=limits.wait_idle_timeout_s))
    return overdue


def out_since(case: Remediation) -> datetime:
    """Since when the node is out: as its own drain says that a daemon before this one made, else since the remediation
    was opened. The cluster's own drains are older than what healthd keeps out by them."""
    hold = case.hold
    if hold is None or hold.stamp <= 0 or hold.text != case.text or case.adopted:
        return case.opened
    return min(case.opened, datetime.fromtimestamp(hold.stamp, UTC))


def _not_well_yet(case: Remediation, now: datetime) -> Remediation:
    """A case that is overdue, as it counts: a fault that comes and goes is one page, and not one each time."""
    is_well = case.good_since is not None and now - case.good_since >= timedelta(seconds=WELL_FOR_S)
    return case if is_well else replace(case, good_since=None)


def _of_case(decided: Decision, stands: Stands, problem: str, now: datetime, limits: Limits) -> Decision:
    case = stands.case
    if case.end is End.FAILED or stands.page:
        return Decision(action=Action.PAGE, reason=case.note, refusal=stands.refusal)
    if case.asks is not None and not (case.by_order or case.has_ended):
        asked = Decision(action=Action.PAGE, reason=case.asks.words, refusal=case.asks.kind)
        return decided if decided.reason == asked.reason else asked
    if case.is_open and now >= due(case, limits):
        return Decision(action=Action.PAGE, reason=_overdue(case, problem), refusal=Refusal.OVERDUE)
    if case.has_ended:
        return Decision(action=Action.HOLD, reason=case.note, refusal=_ENDS.get(case.end))
    return decided if decided.action is not Action.PAGE else _goes_on(case)


def _overdue(case: Remediation, problem: str) -> str:
    """``out of service since 2026-01-01 03:00 UTC for gpu.xid.79 on gpu:3 [id]: waits for 12.`` and what to do."""
    what = "not moved" if case.hold is None and Step.DRAIN in case.steps else "out of service"
    about = f"{what} since {out_since(case):%Y-%m-%d %H:%M} UTC for {case.code} on {case.component} [{case.id}]"
    return f"{about}: {problem or case.note}. {_HINTS.get(case.step, _HELP)}"


def _goes_on(case: Remediation) -> Decision:
    action = Action.REPAIR if REPAIRS.intersection(case.steps) else Action.QUARANTINE
    return Decision(action=action, reason=f"{action} for {case.code} on {case.component} goes on [{case.id}]")
