"""What EKS and HyperPod read as an order, and when it is not healthd's to give."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from healthd.errors import BackendRefused
from healthd.model import Remedy
from healthd.remediation.orchestrators.kube_node import KubeNode, node_of
from healthd.remediation.orchestrators.kube_signals import (
    EKS_CONDITION,
    HYPERPOD_LABEL,
    eks_patch,
    eks_reason,
    eks_taken_back,
    hyperpod_patch,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EARLIER = "2026-11-21T11:00:00Z"


def node(*conditions: dict[str, Any], labels: dict[str, str] | None = None) -> KubeNode:
    metadata = {"name": "n1", "resourceVersion": "7", "labels": labels or {}}
    return node_of({"metadata": metadata, "status": {"conditions": list(conditions)}})


def condition(status: str, message: str = "healthd: x", kind: str = EKS_CONDITION) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": EARLIER}


@pytest.mark.parametrize(
    ("code", "remedy", "reason"),
    [
        ("gpu.xid.79", Remedy.REPLACE_NODE, "NvidiaXID79Error"),
        ("gpu.xid.79", Remedy.REBOOT_NODE, ""),
        ("gpu.xid.95", Remedy.REBOOT_NODE, "NvidiaXID95Error"),
        ("gpu.xid.31", Remedy.REPLACE_NODE, ""),
        ("gpu.xid.79", Remedy.RESET_GPU, ""),
        ("efa.missing", Remedy.REPLACE_NODE, ""),
    ],
)
def test_auto_repair_acts_on_its_own_reasons_only(code: str, remedy: Remedy, reason: str) -> None:
    """A reason that means another remedy is worse than none."""
    assert eks_reason(code, remedy) == reason


def test_the_condition_is_one_patch_with_the_version_that_was_read() -> None:
    """And its transition time moves with its status only."""
    patch = eks_patch(node(), "gpu.xid.79", Remedy.REPLACE_NODE, NOW)
    (made,) = patch["status"]["conditions"]
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert (made["type"], made["status"], made["reason"]) == (EKS_CONDITION, "False", "NvidiaXID79Error")
    assert (made["lastTransitionTime"], made["lastHeartbeatTime"]) == ("2026-11-21T12:00:00Z",) * 2
    (again,) = eks_patch(node(condition("False")), "gpu.xid.79", Remedy.REPLACE_NODE, NOW)["status"]["conditions"]
    assert again["lastTransitionTime"] == EARLIER


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (condition("True", "Monitoring for the AcceleratedHardware system is active"), "somebody who wrote"),
        (condition("True", kind="KernelReady"), "eks-node-monitoring-agent, which writes KernelReady"),
    ],
)
def test_a_condition_of_somebody_elses_is_left_alone(there: dict[str, Any], words: str) -> None:
    """Two that repair one node undo each other."""
    with pytest.raises(BackendRefused, match=words):
        eks_patch(node(there), "gpu.xid.79", Remedy.REPLACE_NODE, NOW)
    assert eks_taken_back(node(there), NOW) is None


def test_a_finding_without_a_reason_is_refused() -> None:
    """The sentence names both."""
    with pytest.raises(BackendRefused, match=r"no reason by which it does replace_node for gpu\.ecc"):
        eks_patch(node(), "gpu.ecc", Remedy.REPLACE_NODE, NOW)


def test_what_was_asked_for_is_taken_back_once() -> None:
    """By a True of ours; one that is True, or was never written, stays as it is."""
    patch = eks_taken_back(node(condition("False")), NOW)
    assert patch is not None
    assert patch["status"]["conditions"][0]["status"] == "True"
    assert eks_taken_back(node(condition("True")), NOW) is None
    assert eks_taken_back(node(condition("False", "NodeMonitoringAgent says so")), NOW) is None
    assert eks_taken_back(node(), NOW) is None


@pytest.mark.parametrize(
    ("remedy", "value"),
    [
        (Remedy.REBOOT_NODE, "UnschedulablePendingReboot"),
        (Remedy.REPLACE_NODE, "UnschedulablePendingReplacement"),
    ],
)
def test_hyperpods_label_is_an_order(remedy: Remedy, value: str) -> None:
    """On a node of HyperPod's that it is not acting on."""
    labels = hyperpod_patch(node(labels={HYPERPOD_LABEL: "Schedulable"}), remedy)["metadata"]["labels"]
    assert labels == {HYPERPOD_LABEL: value}


@pytest.mark.parametrize(
    ("labels", "remedy", "words"),
    [
        ({}, Remedy.REBOOT_NODE, "none of HyperPod's"),
        ({HYPERPOD_LABEL: "UnschedulablePendingReboot"}, Remedy.REPLACE_NODE, "acts on the node already"),
        ({HYPERPOD_LABEL: "Unschedulable"}, Remedy.REPLACE_NODE, "acts on the node already"),
        ({HYPERPOD_LABEL: "Schedulable"}, Remedy.RESET_GPU, "no label for reset_gpu"),
    ],
)
def test_hyperpod_is_not_asked_twice_nor_for_what_it_has_not(
    labels: dict[str, str], remedy: Remedy, words: str
) -> None:
    """Each refusal says what is there."""
    with pytest.raises(BackendRefused, match=words):
        hyperpod_patch(node(labels=labels), remedy)
