"""Why the engine needs an operator, as one Decision: recomputed after each call, so that no page outlives its
cause.

Pure. A page has four sources, in this order: a remediation that was given up or waits for what only an operator
settles, one that was opened to wait for an operator, one that is overdue, and turns that fail one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import REPAIRS, Action, Decision, Refusal, Remedy, Step
from healthd.remediation.decide.remediation import End, Phase, Remediation

STUCK_AFTER_S = 600.0
"""How long every call must have failed before that pages, in seconds: slurmctld and API servers restart in minutes."""
OUT_BY_COMMAND_S = 86_400.0
"""How long a node is out by an operator's command before the first reminder, in seconds. The operator knows of it."""
HEALTHY_FOR_S = 3_600.0
"""How long a node that is overdue must be healthy before that page is over, in seconds, where it is not back before."""
FATAL = frozenset({Remedy.REBOOT_NODE, Remedy.REPLACE_NODE})
"""The remedies of faults under which a job makes no progress: it holds its other nodes for nothing."""
_HINTS: Mapping[Step, str] = {
    Step.WAIT_IDLE: "The repair waits for these jobs: cancel them, or have their owner do so",
    Step.VERIFY: "`healthd status` names what is not healthy; `healthd repair` repairs it again, and"
    " `healthd release --force` puts it back all the same",
    Step.RELEASE: "`healthd status` says what the release waits for",
    Step.STAY: "`healthd release` puts the node back",
}
_HELP = "`healthd status` says what it waits for; `healthd release` puts the node back"
_ENDS: Mapping[End | None, Refusal] = {End.LOST: Refusal.FOREIGN_HOLD, End.ACKNOWLEDGED: Refusal.ACKNOWLEDGED}


class Limits(Struct, frozen=True, kw_only=True):
    """How long a node may be out before that pages, in seconds. ``overdue_s``: for whatever cause;
    ``wait_idle_timeout_s``: while jobs run on under a fatal fault; ``replace_timeout_s``: while another machine is
    awaited."""

    overdue_s: float = 14_400.0
    wait_idle_timeout_s: float = 3_600.0
    replace_timeout_s: float = 14_400.0


class RemediationStatus(Struct, frozen=True, kw_only=True):
    """Where a remediation stands after its last turn. ``page``: that asks for an operator; ``refusal``: what it waits
    for."""

    remediation: Remediation
    page: bool = False
    refusal: Refusal | None = None


def wanted(
    decided: Decision,
    stands: RemediationStatus | None,
    problem: str,
    now: datetime,
    limits: Limits,
    *,
    was: Decision | None = None,
) -> Decision:
    """The decision after a call of the engine: the one that was ``decided``, unless the remediation or a ``problem``
    says otherwise.

    ``stands``: of the remediation that is open, or that ended in this turn; None without a remediation. ``problem``:
    why no turn has succeeded for ``STUCK_AFTER_S``, or "". ``was``: what it stood at before.
    """
    if stands is not None and was is not None and was.refusal is Refusal.OVERDUE:
        stands = replace(stands, remediation=_not_healthy_yet(stands.remediation, now))
    decision = decided if stands is None else _of_remediation(decided, stands, problem, now, limits)
    if problem and decision.action is not Action.PAGE:
        return Decision(action=Action.PAGE, reason=problem, refusal=Refusal.STUCK)
    return decision


def due(remediation: Remediation, limits: Limits) -> datetime:
    """From when on a remediation is overdue. A wait that is expected has its own bound: the first request for another
    machine as long as that may take, a command a day, a job under a fatal fault ``wait_idle_timeout_s``. One that
    settles counts from then on; a page that stands is over ``HEALTHY_FOR_S`` after that.

    A node that an operator took out counts from that command, whatever became of its drain since; each step towards it,
    and back, from its own beginning. A drain that was found counts from when it was made, and is verified first, as
    another machine is.
    """
    if Step.STAY in remediation.steps:
        by_command = out_since(remediation) + timedelta(seconds=OUT_BY_COMMAND_S)
        return (
            by_command
            if remediation.step is Step.STAY
            else min(by_command, remediation.since + timedelta(seconds=limits.overdue_s))
        )
    if remediation.step is Step.REPLACE and remediation.phase is Phase.INTENDED and remediation.attempts <= 1:
        return remediation.since + timedelta(seconds=max(limits.overdue_s, limits.replace_timeout_s))
    began = max(out_since(remediation), remediation.good_since or out_since(remediation))
    is_another = remediation.step is Step.VERIFY and Step.REPLACE in remediation.steps
    found = remediation.since if is_another else remediation.opened
    overdue = max(began + timedelta(seconds=limits.overdue_s), found + timedelta(seconds=STUCK_AFTER_S))
    if remediation.step is Step.WAIT_IDLE and remediation.remedy in FATAL:
        return min(overdue, remediation.since + timedelta(seconds=limits.wait_idle_timeout_s))
    return overdue


def out_since(remediation: Remediation) -> datetime:
    """Since when the node is out: as its own drain says that a daemon before this one made, else since the remediation
    was opened. The cluster's own drains are older than what healthd keeps out by them."""
    hold = remediation.hold
    if hold is None or hold.stamp <= 0 or hold.text != remediation.text or remediation.adopted:
        return remediation.opened
    return min(remediation.opened, hold.at)


def _not_healthy_yet(remediation: Remediation, now: datetime) -> Remediation:
    """A remediation that is overdue, as it counts: a fault that comes and goes is one page, and not one each time."""
    is_healthy = remediation.good_since is not None and now - remediation.good_since >= timedelta(seconds=HEALTHY_FOR_S)
    return remediation if is_healthy else replace(remediation, good_since=None)


def _of_remediation(
    decided: Decision, stands: RemediationStatus, problem: str, now: datetime, limits: Limits
) -> Decision:
    remediation = stands.remediation
    if remediation.end is End.FAILED or stands.page:
        return Decision(action=Action.PAGE, reason=remediation.note, refusal=stands.refusal)
    if remediation.asks is not None and not (remediation.by_command or remediation.has_ended):
        asked = Decision(action=Action.PAGE, reason=remediation.asks.reason, refusal=remediation.asks.kind)
        return decided if decided.reason == asked.reason else asked
    if remediation.is_open and now >= due(remediation, limits):
        return Decision(action=Action.PAGE, reason=_overdue(remediation, problem), refusal=Refusal.OVERDUE)
    if remediation.has_ended:
        return Decision(action=Action.HOLD, reason=remediation.note, refusal=_ENDS.get(remediation.end))
    return decided if decided.action is not Action.PAGE else _goes_on(remediation)


def _overdue(remediation: Remediation, problem: str) -> str:
    """``out of service since 2026-01-01 03:00 UTC for gpu.xid.79 on gpu:3 [id]: waits for 12.`` and what to do."""
    what = "not moved" if remediation.hold is None and Step.DRAIN in remediation.steps else "out of service"
    finding = f"{remediation.code} on {remediation.component}"
    about = f"{what} since {out_since(remediation):%Y-%m-%d %H:%M} UTC for {finding} [{remediation.id}]"
    is_again = remediation.step is Step.WAIT_IDLE and remediation.attempts > 0  # no job is waited for after an act
    return f"{about}: {problem or remediation.note}. {_HELP if is_again else _HINTS.get(remediation.step, _HELP)}"


def _goes_on(remediation: Remediation) -> Decision:
    action = Action.REPAIR if REPAIRS.intersection(remediation.steps) else Action.QUARANTINE
    return Decision(
        action=action, reason=f"{action} for {remediation.code} on {remediation.component} goes on [{remediation.id}]"
    )
