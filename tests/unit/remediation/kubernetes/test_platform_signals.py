"""What EKS and HyperPod read as an order, and when it is not healthd's to give."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from healthd.core.errors import BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.objects.node import HOLD, UNHEALTHY, KubeNode, node_of
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import (
    ASKED,
    EKS_CONDITION,
    HYPERPOD_LABEL,
    SIGNALS,
    eks_reason,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EARLIER = "2026-11-21T11:00:00Z"
LOST = "healthd: gpu.xid.79 gpu:GPU-1 [k3v9]"


EKS, HYPERPOD = SIGNALS["eks"], SIGNALS["hyperpod"]
REBOOT, REPLACE = "UnschedulablePendingReboot", "UnschedulablePendingReplacement"


def node(
    *conditions: dict[str, Any], labels: dict[str, str] | None = None, asked: str = "", held: str = ""
) -> KubeNode:
    """``held``: the reason of healthd's own taint and annotation, or none."""
    hold = json.dumps({"text": held, "by": "healthd-agent", "stamp": 1})
    notes = ({ASKED: asked} if asked else {}) | ({HOLD: hold} if held else {})
    metadata = {"name": "n1", "resourceVersion": "7", "labels": labels or {}, "annotations": notes}
    spec = {"taints": [{"key": UNHEALTHY, "effect": "NoSchedule"}] if held else []}
    return node_of({"metadata": metadata, "spec": spec, "status": {"conditions": list(conditions)}})


def condition(
    status: str, message: str = "healthd: x", kind: str = EKS_CONDITION, reason: str = "R", since: str = EARLIER
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def ordered(value: str, asked: str = "") -> KubeNode:
    """A node with HyperPod's label, and what healthd says that it asked for."""
    return node(labels={HYPERPOD_LABEL: value}, asked=asked)


@pytest.mark.parametrize(
    ("code", "remedy", "reason"),
    [
        ("gpu.xid.79", Remedy.REPLACE_NODE, "NvidiaXID79Error"),
        ("gpu.xid.79", Remedy.REBOOT_NODE, ""),
        ("gpu.xid.95", Remedy.REBOOT_NODE, "NvidiaXID95Error"),
        ("gpu.xid.31", Remedy.REPLACE_NODE, ""),
        ("gpu.xid.79", Remedy.RESET_GPU, ""),
        ("gpu.lost", Remedy.REPLACE_NODE, "NvidiaXID79Error"),
        ("gpu.count.driver_lost", Remedy.REPLACE_NODE, "NvidiaXID79Error"),
        ("gpu.lost", Remedy.REBOOT_NODE, ""),
        ("efa.missing", Remedy.REPLACE_NODE, ""),
    ],
)
def test_auto_repair_acts_on_its_own_reasons_only(code: str, remedy: Remedy, reason: str) -> None:
    """A reason that means another remedy is worse than none."""
    assert eks_reason(code, remedy) == reason


KARPENTER_MADE = (
    {"karpenter.sh/nodepool": "gpu"},
    {"karpenter.sh/registered": "true"},
    {"eks.amazonaws.com/compute-type": "auto"},
)


@given(st.sampled_from(KARPENTER_MADE), st.from_regex(r"[a-z]{1,9}(\.[a-z0-9_]{1,9}){1,4}", fullmatch=True))
@example(KARPENTER_MADE[0], "gpu.xid.95")
@example(KARPENTER_MADE[0], "operator.repair")
def test_karpenter_is_asked_for_another_machine_whatever_was_found_and_never_for_a_reboot(
    labels: dict[str, str], code: str
) -> None:
    """Its answer to the condition is always a replacement. The reason is one that the API and the policy take."""
    held = node(labels=labels, held=f"healthd: {code} node [k3v9]")
    assert "replaces it on any request" in EKS.reason_against(held, Remedy.REBOOT_NODE)
    assert EKS.reason_against(held, Remedy.REPLACE_NODE) == ""
    with pytest.raises(BackendRefused, match="no reason that means reboot_node"):
        EKS.patch(held, Remedy.REBOOT_NODE, NOW)
    patch = EKS.patch(held, Remedy.REPLACE_NODE, NOW)
    (made,) = patch["status"]["conditions"]
    assert (made["status"], made["message"]) == ("False", f"healthd: {code} calls for replace_node")
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]{0,127}", made["reason"])
    asked = node(made, labels=labels, held=f"healthd: {code} node [k3v9]")
    assert EKS.stands(asked, Remedy.REPLACE_NODE)
    assert not EKS.stands(asked, Remedy.REBOOT_NODE)


@pytest.mark.parametrize("labels", [{}, {"eks.amazonaws.com/nodegroup": "p5"}, {"eks.amazonaws.com/compute-type": "x"}])
def test_any_other_node_may_be_rebooted(labels: dict[str, str]) -> None:
    """A managed node group's repair does both, by the reason."""
    assert EKS.reason_against(node(labels=labels), Remedy.REBOOT_NODE) == ""
    assert HYPERPOD.reason_against(node(labels=KARPENTER_MADE[0]), Remedy.REBOOT_NODE) == ""


def test_the_condition_is_one_patch_with_the_version_that_was_read() -> None:
    """And its transition time moves with its status only."""
    patch = EKS.patch(node(held=LOST), Remedy.REPLACE_NODE, NOW)
    (made,) = patch["status"]["conditions"]
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert (made["type"], made["status"], made["reason"]) == (EKS_CONDITION, "False", "NvidiaXID79Error")
    assert (made["lastTransitionTime"], made["lastHeartbeatTime"]) == ("2026-11-21T12:00:00Z",) * 2
    (again,) = EKS.patch(node(condition("False"), held=LOST), Remedy.REPLACE_NODE, NOW)["status"]["conditions"]
    assert again["lastTransitionTime"] == EARLIER


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (condition("True", "Monitoring for the AcceleratedHardware system is active"), "another writer"),
        (condition("True", kind="KernelReady"), "eks-node-monitoring-agent, which writes KernelReady"),
    ],
)
def test_a_condition_of_somebody_elses_is_left_alone(there: dict[str, Any], words: str) -> None:
    """Two that repair one node undo each other."""
    with pytest.raises(BackendRefused, match=words):
        EKS.patch(node(there, held=LOST), Remedy.REPLACE_NODE, NOW)
    assert EKS.ended(node(there), NOW) is None


def test_a_finding_without_a_reason_is_refused() -> None:
    """The sentence names both."""
    with pytest.raises(BackendRefused, match=r"no reason that means replace_node for gpu\.ecc"):
        EKS.patch(node(held="healthd: gpu.ecc gpu:GPU-1 [k3v9]"), Remedy.REPLACE_NODE, NOW)


def test_what_was_asked_for_is_taken_back_once() -> None:
    """By a True of ours; one that is True, or was never written, stays as it is."""
    patch = EKS.ended(node(condition("False")), NOW)
    assert patch is not None
    assert patch["status"]["conditions"][0]["status"] == "True"
    assert EKS.ended(node(condition("True")), NOW) is None
    assert EKS.ended(node(condition("False", "NodeMonitoringAgent says so")), NOW) is None
    assert EKS.ended(node(), NOW) is None


@pytest.mark.parametrize(
    ("remedy", "value"),
    [
        (Remedy.REBOOT_NODE, "UnschedulablePendingReboot"),
        (Remedy.REPLACE_NODE, "UnschedulablePendingReplacement"),
    ],
)
def test_hyperpods_label_is_an_order(remedy: Remedy, value: str) -> None:
    """On a node of HyperPod's that it is not acting on."""
    labels = HYPERPOD.patch(node(labels={HYPERPOD_LABEL: "Schedulable"}), remedy, NOW)["metadata"]["labels"]
    assert labels == {HYPERPOD_LABEL: value}


@pytest.mark.parametrize(
    ("labels", "remedy", "words"),
    [
        ({}, Remedy.REBOOT_NODE, "not a node of HyperPod"),
        ({HYPERPOD_LABEL: "UnschedulablePendingReboot"}, Remedy.REPLACE_NODE, "acts on the node already"),
        ({HYPERPOD_LABEL: "Unschedulable"}, Remedy.REPLACE_NODE, "acts on the node already"),
        ({HYPERPOD_LABEL: "Schedulable"}, Remedy.RESET_GPU, "reset_gpu not requested: HyperPod has no label"),
    ],
)
def test_hyperpod_is_not_asked_twice_nor_for_what_it_has_not(
    labels: dict[str, str], remedy: Remedy, words: str
) -> None:
    """Each refusal says what is there."""
    with pytest.raises(BackendRefused, match=words):
        HYPERPOD.patch(node(labels=labels), remedy, NOW)


# ---------------------------------------------------------------------------------------------------------------------
# as a provisioner uses them


def test_eks_is_asked_for_the_finding_that_the_nodes_own_hold_names() -> None:
    """Not for one that somebody hands in: whoever reads the Node sees why. Without a hold it is not asked."""
    held = node(held=LOST)
    (made,) = EKS.patch(held, Remedy.REPLACE_NODE, NOW)["status"]["conditions"]
    assert (made["reason"], made["message"]) == ("NvidiaXID79Error", "healthd: gpu.xid.79 calls for replace_node")
    with pytest.raises(BackendRefused, match="healthd does not hold the node"):
        EKS.patch(node(), Remedy.REPLACE_NODE, NOW)


@pytest.mark.parametrize(
    ("there", "held", "stands"),
    [
        ([], True, False),
        ([condition("False", reason="NvidiaXID79Error")], True, True),
        ([condition("False", reason="NvidiaXID79Error")], False, False),
        ([condition("False", reason="NvidiaXID95Error")], True, False),
        ([condition("True", reason="NvidiaXID79Error")], True, False),
        ([condition("False", "of somebody else", reason="NvidiaXID79Error")], True, False),
    ],
)
def test_eks_was_asked_only_by_our_own_false(there: list[dict[str, Any]], held: bool, stands: bool) -> None:
    """Anything else is no request of ours."""
    shown = node(*there, held=LOST if held else "")
    assert EKS.stands(shown, Remedy.REPLACE_NODE) is stands


@pytest.mark.parametrize(("minutes", "recallable"), [(0, True), (4, True), (5, False), (60, False), (-1, False)])
def test_eks_is_surely_not_at_it_for_half_of_its_ten_minutes(minutes: int, recallable: bool) -> None:
    """After that, or by a clock that was set back, it may be; a condition without a time proves nothing."""
    since = (NOW - timedelta(minutes=minutes)).isoformat()
    assert EKS.can_be_recalled(node(condition("False", since=since)), NOW) is recallable
    assert not EKS.can_be_recalled(node(condition("True", since=since)), NOW)
    assert not EKS.can_be_recalled(node(condition("False", since="soon")), NOW)
    assert not EKS.can_be_recalled(node(), NOW)


def test_a_node_that_is_still_out_says_unknown_and_one_that_is_let_in_says_true() -> None:
    """Neither is written over anybody else's, nor twice."""
    ours = node(condition("False"))
    for patch, status in ((EKS.recalled(ours, NOW), "Unknown"), (EKS.ended(ours, NOW), "True")):
        assert patch is not None
        assert patch["status"]["conditions"][0]["status"] == status
    unknown = EKS.ended(node(condition("Unknown")), NOW)
    assert unknown is not None
    assert EKS.recalled(node(condition("Unknown")), NOW) is None
    assert EKS.recalled(node(condition("False", "of somebody else")), NOW) is None
    assert EKS.recalled(node(), NOW) is None


def test_each_says_who_owns_it_and_what_is_shown() -> None:
    """For the sentence that a person reads."""
    assert EKS.owner(node()) == ""
    assert EKS.owner(node(condition("True", kind="StorageReady"))).startswith("eks-node-monitoring-agent")
    assert EKS.shown(node()) == f"no {EKS_CONDITION}"
    assert EKS.shown(node(condition("False"))) == f"{EKS_CONDITION}=False (R)"
    assert HYPERPOD.owner(ordered("Schedulable")) == ""
    assert HYPERPOD.shown(ordered(REPLACE)) == f"{HYPERPOD_LABEL}={REPLACE}"


def test_what_healthd_asked_of_hyperpod_is_told_from_what_others_did() -> None:
    """By the annotation that its own patch set: only that label may be changed again, or taken back."""
    asked = HYPERPOD.patch(ordered("Schedulable"), Remedy.REPLACE_NODE, NOW)["metadata"]
    assert (asked["labels"], asked["annotations"]) == ({HYPERPOD_LABEL: REPLACE}, {ASKED: REPLACE})
    assert asked["resourceVersion"] == "7"
    assert HYPERPOD.stands(ordered(REPLACE, REPLACE), Remedy.REPLACE_NODE)
    assert not HYPERPOD.stands(ordered(REPLACE, REPLACE), Remedy.REBOOT_NODE)
    assert not HYPERPOD.stands(ordered(REPLACE, REPLACE), Remedy.RESET_GPU)
    assert not HYPERPOD.stands(ordered(REPLACE), Remedy.REPLACE_NODE)
    assert HYPERPOD.owner(ordered(REBOOT, REBOOT)) == ""
    assert HYPERPOD.owner(ordered("Unschedulable", "Unschedulable")) != ""
    following = HYPERPOD.patch(ordered(REBOOT, REBOOT), Remedy.REPLACE_NODE, NOW)["metadata"]
    assert following["labels"] == {HYPERPOD_LABEL: REPLACE}


@pytest.mark.parametrize(
    ("value", "asked", "labels"),
    [
        (REPLACE, REPLACE, {HYPERPOD_LABEL: "Schedulable"}),
        ("Unschedulable", REPLACE, None),
        ("Schedulable", REBOOT, None),
        ("Unschedulable", "Unschedulable", None),
    ],
)
def test_of_hyperpods_label_only_our_own_value_is_taken_back(
    value: str, asked: str, labels: dict[str, str] | None
) -> None:
    """What HyperPod made of it meanwhile is HyperPod's; our annotation goes either way."""
    patch = HYPERPOD.ended(ordered(value, asked), NOW)
    assert patch is not None
    assert patch["metadata"]["annotations"] == {ASKED: None}
    assert patch["metadata"].get("labels") == labels


def test_hyperpod_is_left_to_it_once_asked() -> None:
    """It does not say when it has begun. Where nothing was asked, or the label is gone, none is made up."""
    assert not HYPERPOD.can_be_recalled(ordered(REPLACE, REPLACE), NOW)
    assert HYPERPOD.recalled(ordered(REPLACE, REPLACE), NOW) is None
    assert HYPERPOD.ended(ordered(REPLACE), NOW) is None
    patch = HYPERPOD.ended(node(asked="x"), NOW)
    assert patch is not None
    assert "labels" not in patch["metadata"]
