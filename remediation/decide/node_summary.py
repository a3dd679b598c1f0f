"""The summary of a node by what its daemon knows now: its verdict, or what healthd does about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from healthd.core.model import (
    REPAIRS,
    SEVERITY_RANK,
    Action,
    Component,
    Decision,
    Diagnosis,
    Mode,
    Refusal,
    Step,
    Verdict,
)
from healthd.job.text import part_of
from healthd.judge.diagnose import roots_of
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.records.summary import NodeState, NodeSummary

_ON_THE_WAY = frozenset({Step.SLOT, Step.DRAIN, Step.WAIT_IDLE})
_AT_WORK = REPAIRS | {Step.COLLECT}
_PROVES = frozenset({Step.VERIFY, Step.RELEASE})


def summary_of(
    verdict: Verdict,
    diagnoses: Sequence[Diagnosis],
    *,
    mode: Mode,
    unknown: tuple[str, str] = ("", ""),
    remediation: Remediation | None = None,
    decision: Decision | None = None,
    names: Mapping[str, Component] | None = None,
    instance_type: str = "",
    job: str = "",
    domain: str = "",
    driver: str = "",
) -> NodeSummary:
    """The summary of what is known now, without its time.

    ``unknown``: the first check that could not tell, and its reason. ``remediation``: the open one. ``decision``: the
    engine's last; None where no engine runs. ``names``: other names of components, as in ``History``. ``job``: the
    last run of a job that the node is to blame for.
    """
    worst = max(diagnoses, key=lambda each: SEVERITY_RANK[each.severity], default=None)
    state = acting_state(remediation, decision) or NodeState(verdict.value)
    more = max(sum(len(roots_of(each)) for each in diagnoses) - 1, 0)
    summary = NodeSummary(
        state=state, mode=mode, instance_type=instance_type, job=job, domain=domain, driver=driver, more=more
    )
    if decision is not None and decision.action is Action.PAGE:
        summary = replace(summary, note=decision.reason)
    if remediation is not None:
        summary = replace(
            summary,
            code=remediation.code,
            component=remediation.component,
            since=remediation.since,
            step=remediation.step.value,
            note=summary.note or remediation.note,
        )
    elif worst is not None:
        summary = replace(summary, code=worst.code, component=str(worst.component), since=worst.since)
    elif state is NodeState.UNKNOWN:
        summary = replace(summary, code=unknown[0], note=unknown[1])
    return replace(summary, component=part_of(summary.component, (names or {}).values()))


def acting_state(remediation: Remediation | None, decision: Decision | None) -> NodeState | None:
    """The state of a node that healthd holds, or pages for; None where it does neither."""
    if decision is not None and decision.action is Action.PAGE:
        return NodeState.NEEDS_OPERATOR
    if remediation is not None:
        return _of_remediation(remediation)
    if decision is not None and decision.refusal is Refusal.ORPHAN:
        return NodeState.HELD
    return None


def _of_remediation(remediation: Remediation) -> NodeState:
    if remediation.step in _ON_THE_WAY:
        return NodeState.DRAINING
    proves_a_repair = remediation.step in _PROVES and bool(REPAIRS.intersection(remediation.steps))
    return NodeState.REPAIRING if remediation.step in _AT_WORK or proves_a_repair else NodeState.HELD
