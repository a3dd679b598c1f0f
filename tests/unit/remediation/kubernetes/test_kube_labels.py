"""The two labels of a Node, and when they are written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from healthd.core.model import Action, Component, Decision, Diagnosis, Mode, Refusal, Remedy, Severity, Step
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import QUARANTINE, REBOOT, kept_out
from healthd.remediation.orchestrators.kubernetes.objects.conditions import NOT_LOOKED, ConditionState
from healthd.remediation.orchestrators.kubernetes.objects.labels import (
    CODE,
    GAP_S,
    STATE,
    STOPPED,
    Labelling,
    Labels,
    labels_of,
    labels_on,
    with_labels,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import node_of
from healthd.remediation.records.summary import NodeState

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WELL = ConditionState(status="True", reason="Healthy", message="m")
SICK = ConditionState(status="False", reason="GpuXid79", message="m")
UNSURE = ConditionState(status="Unknown", reason="CouldNotTell", message="m")
HOLD = Decision(action=Action.HOLD, reason="nothing is wrong")


def diagnosis(code: str = "gpu.xid.79", severity: Severity = Severity.CRITICAL) -> Diagnosis:
    gpu = Component(kind="gpu", id="0")
    return Diagnosis(code=code, component=gpu, severity=severity, remedy=Remedy.REBOOT_NODE, since=NOW, reasons=("r",))


def remediation(step: Step, steps: tuple[Step, ...] = REBOOT, code: str = "gpu.xid.79") -> Remediation:
    return Remediation(
        id="k3v9",
        opened=NOW,
        since=NOW,
        mode=Mode.REPAIR,
        code=code,
        component="gpu:0",
        remedy=Remedy.REBOOT_NODE,
        why="w",
        text="healthd: gpu.xid.79 gpu:0 [k3v9]",
        steps=steps,
        index=steps.index(step),
    )


@pytest.mark.parametrize(
    ("conditions", "state"),
    [((WELL, WELL), "ok"), ((WELL, SICK), ""), ((WELL, UNSURE), ""), ((NOT_LOOKED, NOT_LOOKED), "")],
)
def test_only_a_node_of_which_all_is_known_to_be_well_is_ok(conditions: tuple[ConditionState, ...], state: str) -> None:
    """What is critical, and what could not be told, has no state while the node is in service."""
    assert labels_of(conditions, (), None, HOLD).state == state
    assert labels_of(conditions, (), None, None).state == state


@pytest.mark.parametrize(
    ("step", "steps", "state"),
    [
        (Step.SLOT, REBOOT, NodeState.DRAINING),
        (Step.DRAIN, QUARANTINE, NodeState.DRAINING),
        (Step.WAIT_IDLE, REBOOT, NodeState.DRAINING),
        (Step.COLLECT, REBOOT, NodeState.REPAIRING),
        (Step.REBOOT, REBOOT, NodeState.REPAIRING),
        (Step.VERIFY, REBOOT, NodeState.REPAIRING),
        (Step.VERIFY, QUARANTINE, NodeState.HELD),
        (Step.RELEASE, QUARANTINE, NodeState.HELD),
        (Step.STAY, kept_out(REBOOT), NodeState.HELD),
    ],
)
def test_a_case_is_shown_by_its_step(step: Step, steps: tuple[Step, ...], state: NodeState) -> None:
    """Out, on its way out, or at work; its code is what it was opened for, whatever the conditions say by now."""
    assert labels_of([WELL], (), remediation(step, steps), HOLD) == Labels(state=state, code="gpu.xid.79")


def test_a_page_is_shown_before_anything_else() -> None:
    """Of a remediation, of a decision about a fault, or of turns that fail."""
    page = Decision(action=Action.PAGE, reason="p", diagnosis=diagnosis("gpu.xid.95"))
    shown = labels_of([SICK], [diagnosis()], None, page)
    assert shown == Labels(state="needs-operator", code="gpu.xid.95")
    assert labels_of([SICK], [], remediation(Step.REBOOT), page) == Labels(state="needs-operator", code="gpu.xid.79")
    stuck = Decision(action=Action.PAGE, reason="p", refusal=Refusal.STUCK)
    assert labels_of([WELL], [], None, stuck) == Labels(state="needs-operator")


def test_a_drain_without_a_case_is_held() -> None:
    """Never ok: nobody can start a pod there."""
    orphan = Decision(action=Action.HOLD, reason="o", refusal=Refusal.ORPHAN)
    assert labels_of([WELL], [], None, orphan).state == NodeState.HELD


def test_the_code_is_the_critical_fault_that_the_conditions_show() -> None:
    """No warning, always the same of several, and none before a condition is False: a blip is never written."""
    found = [diagnosis("gpu.xid.95"), diagnosis("gpu.xid.79"), diagnosis("ena.x", Severity.WARNING)]
    assert labels_of([SICK], found, None, HOLD) == Labels(code="gpu.xid.79")
    assert labels_of([SICK], found[::-1], None, HOLD) == Labels(code="gpu.xid.79")
    assert labels_of([WELL], found, None, HOLD) == Labels(state="ok")
    assert labels_of([SICK], found[2:], None, HOLD) == Labels()


def test_labels_are_read_back_and_taken_away() -> None:
    """A label that is not there is null in the patch, which removes it."""
    labels = Labels(state="held", code="gpu.xid.79")
    written = with_labels({"status": {"conditions": []}}, labels)
    shown = {"labels": {STATE: "held", CODE: "gpu.xid.79"}, "annotations": {STOPPED: None}}
    assert written == {"status": {"conditions": []}, "metadata": shown}
    assert labels_on(node_of({"metadata": {"name": "n1", "labels": written["metadata"]["labels"]}})) == labels
    assert labels_on(node_of({"metadata": {"name": "n1"}})) == Labels()
    assert Labels().metadata == {STATE: None, CODE: None}


def test_a_change_is_written_at_once_and_the_next_one_after_a_while() -> None:
    """What flaps is written every ten seconds at most; what did not change never is."""
    ok, held = Labels(state="ok"), Labels(state="held")
    labelling = Labelling(ok)
    assert not labelling.is_due(ok, 1.0)
    assert labelling.is_due(held, 1.0)
    labelling.written(held, 1.0)
    assert not labelling.is_due(ok, GAP_S)
    labelling.written(held, GAP_S)  # a heartbeat
    assert labelling.is_due(ok, 1.0 + GAP_S)
