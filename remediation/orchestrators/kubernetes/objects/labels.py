"""A node's two labels, by which ``kubectl get nodes -L healthd.io/state,healthd.io/code`` shows a fleet. Pure.

    healthd.io/state   ok              all four conditions are True, and healthd has taken nothing out
                       held            out, without a repair: until the fault is over, or by an operator's command
                       draining        on its way out: waits for a slot, for the drain, or for its jobs
                       repairing       evidence, reset, reboot or replacement, and the checks after it
                       needs-operator  healthd pages for this node
                       no label        none of these: a fault is critical or a check unknown; the node is in service
    healthd.io/code    the finding that the state is about; no label where no critical fault is open

Beside them the annotation healthd.io/stopped has the time at which an agent ended on purpose. A later heartbeat voids
it, and the next write of labels removes it.

Absent is never ``ok``: a node that was never checked has no label. The patch that writes the conditions writes the
labels too, so that a quiet node costs no further request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from healthd.core.model import Action, Decision, Diagnosis, Severity
from healthd.remediation.decide.node_summary import acting_state
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.orchestrators.kubernetes.objects.conditions import ConditionState
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, label_value, rfc3339
from healthd.remediation.records.summary import NodeState

STATE, CODE = "healthd.io/state", "healthd.io/code"
STOPPED = "healthd.io/stopped"
SHOWN = (NodeState.OK, NodeState.HELD, NodeState.DRAINING, NodeState.REPAIRING, NodeState.NEEDS_OPERATOR)
"""The states that the label may have; a verdict other than ok is in the conditions."""
GAP_S = 10.0
"""How long, in seconds, labels are shown at least before a change of them is a write of its own."""


class Labels(Struct, frozen=True, kw_only=True):
    """The labels of one Node; "" is a label that is not there."""

    state: str = ""
    code: str = ""

    @property
    def metadata(self) -> dict[str, str | None]:
        """As a patch has them."""
        return {STATE: self.state or None, CODE: self.code or None}


def labels_of(
    conditions: Collection[ConditionState],
    diagnoses: Iterable[Diagnosis],
    remediation: Remediation | None,
    decision: Decision | None,
) -> Labels:
    """The labels of what is known now. ``conditions``: as they are shown. ``remediation``: the open remediation.
    ``decision``: the engine's last; None where no engine runs."""
    statuses = {each.status for each in conditions}
    about = remediation.code if remediation is not None else _code(diagnoses if "False" in statuses else (), decision)
    state = acting_state(remediation, decision) or (NodeState.OK if statuses == {"True"} else "")
    return Labels(state=state, code=label_value(about))


def labels_on(node: KubeNode) -> Labels:
    """The labels that a Node shows."""
    return Labels(state=node.labels.get(STATE, ""), code=node.labels.get(CODE, ""))


def with_labels(patch: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    """A patch of a Node that writes its labels too, of an agent that runs."""
    return {**patch, "metadata": {"labels": labels.metadata, "annotations": {STOPPED: None}}}


def stopped_patch(now: datetime) -> dict[str, Any]:
    """The merge patch of a Node whose agent ends on purpose."""
    return {"metadata": {"annotations": {STOPPED: rfc3339(now)}}}


def _code(diagnoses: Iterable[Diagnosis], decision: Decision | None) -> str:
    """The code that a page is about, else that of the critical fault in the conditions: always the same one of
    several."""
    if decision is not None and decision.action is Action.PAGE and decision.diagnosis is not None:
        return decision.diagnosis.code
    return min((each.code for each in diagnoses if each.severity is Severity.CRITICAL), default="")


class Labelling:
    """The labels of one node over time: what is shown, and when a change is written. No clock and no I/O."""

    def __init__(self, shown: Labels) -> None:
        self.shown = shown
        self._written_s = float("-inf")

    def is_due(self, labels: Labels, now_s: float) -> bool:
        """Whether these labels are worth a write of their own. ``now_s``: monotonic."""
        return labels != self.shown and now_s - self._written_s >= GAP_S

    def written(self, labels: Labels, now_s: float) -> None:
        """The API server acknowledged these labels."""
        if labels != self.shown:
            self.shown, self._written_s = labels, now_s
