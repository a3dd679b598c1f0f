"""The decision: diagnoses, the node as the cluster shows it, the fleet's level and the mode in; one Decision out.

Purely computational. The ladder below is the whole policy; each rung returns the sentence that a person will read in
the log, the audit trail and ``healthd status``. A refusal is a decision like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from healthd.model import Action, Decision, Diagnosis, Mode, Remedy, Step
from healthd.remediation.budget import out_limit
from healthd.remediation.playbook import steps_for, takes_node_out
from healthd.remediation.ports import FleetLevel, NodeView


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What an operator allows. ``max_out``: a share of the fleet ("5%") or a number of nodes, never below one node."""

    mode: Mode
    max_out: str | int = "5%"
    opted_out: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is known about the node's place in the cluster. None with a ``problem`` means that it could not be read."""

    view: NodeView | None
    level: FleetLevel | None
    problem: str = ""


def decide(
    diagnoses: Sequence[Diagnosis],
    acknowledged: Callable[[Diagnosis], bool],
    situation: Callable[[], Situation],
    rules: Rules,
    can: Callable[[Remedy], bool],
) -> Decision:
    """Decide about a node that no case of ours holds. ``situation`` is asked only when the answer depends on it."""
    calling = [diagnosis for diagnosis in diagnoses if takes_node_out(diagnosis)]
    if not calling:
        return _nothing_calls(diagnoses)
    worst = next((diagnosis for diagnosis in calling if not acknowledged(diagnosis)), None)
    if worst is None:
        return _hold(
            calling[0], "acknowledged: a person put the node back, and the fault has not gone and come back since"
        )
    if rules.opted_out:
        return _hold(worst, f"opted out: {rules.opted_out}")
    if rules.mode is Mode.OBSERVE:
        return _hold(worst, f"observe mode: would take the node out for {_what(worst)}")
    return _in_place(worst, situation(), rules, steps_for(worst, rules.mode, can))


def _in_place(worst: Diagnosis, situation: Situation, rules: Rules, steps: tuple[Step, ...]) -> Decision:
    view, level = situation.view, situation.level
    if view is None:
        return _page(
            worst, f"the node's state in the cluster could not be read, so nothing is taken out: {situation.problem}"
        )
    if not view.in_service:
        held = f'{view.hold.user} with "{view.hold.text}"' if view.hold else "/".join(sorted(view.flags))
        return _hold(worst, f"already out of service, held by {held}: left alone")
    if level is None or level.total < 1:
        return _page(worst, f"the fleet's level could not be read, so nothing is taken out: {situation.problem}")
    limit = out_limit(rules.max_out, level.total)
    if len(level.out - {view.name}) >= limit:
        return _page(worst, f"at the fleet limit: {len(level.out)} of {level.total} nodes are out, {limit} may be")
    action = Action.REPAIR if Step.REBOOT in steps else Action.QUARANTINE
    return Decision(action=action, reason=f"{action} for {_what(worst)}", diagnosis=worst, steps=steps)


def _nothing_calls(diagnoses: Sequence[Diagnosis]) -> Decision:
    asking = next((diagnosis for diagnosis in diagnoses if diagnosis.remedy is Remedy.ASK_HUMAN), None)
    if asking is not None:
        return _page(asking, f"a person has to look at {_what(asking)}")
    return Decision(action=Action.HOLD, reason="nothing calls for taking the node out")


def _what(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.code} on {diagnosis.component} ({diagnosis.remedy})"


def _hold(diagnosis: Diagnosis, reason: str) -> Decision:
    return Decision(action=Action.HOLD, reason=reason, diagnosis=diagnosis)


def _page(diagnosis: Diagnosis, reason: str) -> Decision:
    return Decision(action=Action.PAGE, reason=reason, diagnosis=diagnosis)
