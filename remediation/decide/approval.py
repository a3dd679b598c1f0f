"""An operator's approval of an act in the mode ``approve``: whether it is needed, was given, or comes by default. Pure.

The node is taken out and everything is prepared without it: slot, drain, the end of its jobs, evidence. A reset, a
reboot or a replacement then waits. An approval names its act: the remedy, and the fault that it is for. Another remedy,
also the next one of the same remediation, or another fault, needs another approval. It holds for all attempts at that
remedy within one remediation. A command needs none: it is the approval. In every mode the first repairs of a canary ask
as well: ``canary`` is the reason, or "".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Diagnosis, Mode, Refusal, Refused, Remedy
from healthd.remediation.decide.commands import REMEDIES
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import ACTS, Approval, Phase, Remediation


class ApprovalGate(Struct, frozen=True, kw_only=True):
    """The result of asking: the remediation as it is now, what the act waits for, and what is news about it."""

    remediation: Remediation
    waits: Refused | None = None
    news: str = ""


def next_act(remediation: Remediation) -> Remedy | None:
    """The remedy whose act is before it and is not begun; None where it has none."""
    left = remediation.steps[remediation.index :]
    act = next((ACTS[step] for step in left if step in ACTS), None)
    is_begun = remediation.step in ACTS and remediation.phase is Phase.INTENDED
    return None if is_begun or remediation.end or remediation.release_command else act


def needs_approval(
    remediation: Remediation, remedy: Remedy, rules: Rules, diagnoses: Sequence[Diagnosis], canary: str = ""
) -> bool:
    """Whether this remedy waits for an operator, by the mode, the rule of the fault and the remedy's own setting; or
    for the ``canary``, whose reason this is."""
    if remediation.by_command or rules.approvals.get(remedy) == timedelta():
        return False
    if canary and remedy not in rules.uncounted:
        return True
    answers = [
        each for each in rules.policy.answers(diagnoses) if _is_about(remediation, each.root.code, each.diagnosis)
    ]
    modes = [answer.mode(rules.mode) for answer in answers] or [rules.mode]
    return Mode.APPROVE in modes


def ask(
    remediation: Remediation, rules: Rules, diagnoses: Sequence[Diagnosis], now: datetime, canary: str = ""
) -> ApprovalGate:
    """Before an act: whether it may be begun; else the remediation with the approval that it asks for.

    ``remediation``: stands at the act, which is not begun.
    """
    remedy = ACTS[remediation.step]
    if not needs_approval(remediation, remedy, rules, diagnoses, canary):
        return ApprovalGate(remediation=remediation)
    approval, news = remediation.approval, ""
    if approval is None or not approval.is_of(remediation, remedy):
        why = "" if needs_approval(remediation, remedy, rules, diagnoses) else canary
        approval = Approval(remedy=remedy, code=remediation.code, component=remediation.component, asked=now, why=why)
        news = f"asks for approval of {remedy}"
    if approval.given is None and (goes := _goes_at(approval, rules)) is not None and now >= goes:
        approval = replace(approval, given=now, by="by default, without an answer")
        news = f"approved by default: {remedy}"
    asking = replace(remediation, approval=approval)
    waits = None if approval.given else Refused(kind=Refusal.APPROVAL, reason=waiting_words(asking, rules))
    return ApprovalGate(remediation=asking, waits=waits, news=news)


def objection(
    remediation: Remediation, rules: Rules, diagnoses: Sequence[Diagnosis], canary: str = ""
) -> Refused | None:
    """The objection to an act by the last reading before it: an approval that is needed by now and was not given."""
    remedy = ACTS[remediation.step]
    if _is_given(remediation, remedy) or not needs_approval(remediation, remedy, rules, diagnoses, canary):
        return None
    return Refused(kind=Refusal.APPROVAL, reason=f"{remedy} needs an operator's approval")


def approve(
    remediation: Remediation,
    remedy: Remedy | None,
    by: str,
    *,
    rules: Rules,
    diagnoses: Sequence[Diagnosis],
    now: datetime,
    canary: str = "",
) -> Remediation | Refused | str:
    """The remediation with the approval of its next act; why it is refused; or in words that it is so already.

    ``remedy``: the act that the operator saw, None for none named. ``by``: the operator's reason and name.
    """
    act = next_act(remediation)
    if remedy is not None and _is_given(remediation, remedy) and act in (None, remedy) and remediation.end is None:
        return f"approved already: {remediation.approval.by if remediation.approval else ''}"
    if act is None:
        message = f"remediation {remediation.id} has no act before it, it is at {remediation.step}: {remediation.note}"
        return Refused(kind=Refusal.NOT_NEEDED, reason=message)
    if remedy is not act:
        named = "name the act" if remedy is None else f"its next act is {act}, not {remedy}"
        return Refused(kind=Refusal.APPROVAL, reason=f"{named}: {approve_command(remediation.id, act)}")
    if not needs_approval(remediation, act, rules, diagnoses, canary):
        return Refused(kind=Refusal.NOT_NEEDED, reason=f"{act} needs no approval here: mode {rules.mode}")
    asked = Approval(remedy=act, code=remediation.code, component=remediation.component, asked=now)
    if remediation.approval is not None and _is_asked(remediation, act):
        asked = remediation.approval
    return replace(remediation, approval=replace(asked, given=now, by=by))


def awaited(remediation: Remediation | None) -> Approval | None:
    """The approval that the act of a remediation waits for now; None where it waits for none."""
    if remediation is None or remediation.approval is None or next_act(remediation) is None:
        return None
    is_waiting = remediation.step in ACTS and _is_asked(remediation, ACTS[remediation.step])
    return remediation.approval if is_waiting and remediation.approval.given is None else None


def approve_command(remediation_id: str, remedy: Remedy) -> str:
    """The command that approves an act."""
    step = next(word for word, each in REMEDIES.items() if each is remedy)
    return f"`healthd approve {remediation_id} --step {step}`"


def waiting_words(remediation: Remediation, rules: Rules) -> str:
    """``approval asked for at 2026-01-01 03:00 UTC: …``. It does not change by time alone."""
    approval = remediation.approval
    assert approval is not None  # noqa: S101 - it was asked for
    ways = f"{approve_command(remediation.id, approval.remedy)}, or `healthd undo {remediation.id} --reason TEXT`"
    goes = _goes_at(approval, rules)
    otherwise = f"it goes ahead at {goes:%Y-%m-%d %H:%M} UTC" if goes is not None else "the node stays out as it is"
    asked = f"approval asked for at {approval.asked:%Y-%m-%d %H:%M} UTC"
    return "; ".join(filter(None, (asked, approval.why, ways, f"without an answer {otherwise}")))


def _is_about(remediation: Remediation, code: str, diagnosis: Diagnosis) -> bool:
    return code == remediation.code and remediation.component in diagnosis.component.all_names()


def _is_asked(remediation: Remediation, remedy: Remedy) -> bool:
    return remediation.approval is not None and remediation.approval.is_of(remediation, remedy)


def _is_given(remediation: Remediation, remedy: Remedy) -> bool:
    approval = remediation.approval
    return approval is not None and approval.given is not None and approval.is_of(remediation, remedy)


def _goes_at(approval: Approval, rules: Rules) -> datetime | None:
    after = rules.approvals.get(approval.remedy)
    return None if after is None else approval.asked + after


def undo_objection(remediation: Remediation, *, request_untaken: bool) -> str:
    """Why a remediation cannot be undone, or "". ``request_untaken``: what it asks of the controller is not begun."""
    pending = remediation.step in ACTS and remediation.phase is Phase.INTENDED
    if pending and not request_untaken:
        since = f"{remediation.since:%Y-%m-%d %H:%M} UTC"
        return f"{ACTS[remediation.step]} was begun at {since} and cannot be taken back; {_AFTER}"
    acts = remediation.acts[:-1] if pending else remediation.acts
    if acts := (*(each.remedy for each in remediation.earlier), *acts):
        return f"{', '.join(acts)} was made and cannot be taken back; {_AFTER}"
    if remediation.stopped:
        return f"the services {', '.join(remediation.stopped)} are stopped for a reset; {_AFTER}"
    return ""


_AFTER = "`healthd release` verifies the node and puts it back"
