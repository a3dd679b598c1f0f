"""What is left of a Node's when healthd is removed."""

from __future__ import annotations

from typing import Any

from healthd.remediation.orchestrators.kubernetes.objects.node import (
    OwnershipAnnotation,
    fence_patch,
    node_of,
    quarantine_patch,
)
from healthd.remediation.orchestrators.kubernetes.objects.uninstall_patches import (
    claims_to_drop,
    kept_off_by,
    leaving_patch,
    leaving_status_patch,
)
from tests.support.merge_patch import patched

OPT_OUT = "healthd.io/opt-out"


def data(**more: Any) -> dict[str, Any]:
    node: dict[str, Any] = {"metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {}, "status": {}}
    for name, part in more.items():
        node["spec" if name in ("taints", "unschedulable") else "metadata"][name] = part
    return node


def test_a_node_that_was_taken_out_is_as_it_was_before() -> None:
    """Fence, drain, cordon and what keeps autoscalers off go in one patch, whatever else is on the Node stays."""
    theirs = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    before = data(taints=[theirs], annotations={"a": "b"}, labels={"pool": "gpu"})
    fenced = patched(before, fence_patch(node_of(before)))
    held = OwnershipAnnotation(text="healthd: gpu.xid.79 GPU 3", by="healthd", stamp=1)
    out = patched(fenced, quarantine_patch(node_of(fenced), held, effect="NoSchedule", cordon=True))
    assert out["spec"]["unschedulable"] is True
    assert kept_off_by(node_of(out)) == ("healthd.io/unhealthy", "healthd.io/claimed")
    after = patched(out, leaving_patch(node_of(out), opt_out=OPT_OUT))
    assert node_of(after) == node_of({**before, "spec": {"taints": [theirs]}})
    assert leaving_patch(node_of(after), opt_out=OPT_OUT) is None


def test_what_a_person_set_stays() -> None:
    """A cordon, an opt-out as label or annotation, what keeps autoscalers off without a hold that says so."""
    theirs = data(
        unschedulable=True,
        labels={OPT_OUT: "true"},
        annotations={OPT_OUT: "true", "karpenter.sh/do-not-disrupt": "true"},
    )
    assert leaving_patch(node_of(theirs), opt_out=OPT_OUT) is None
    half = data(unschedulable=True, taints=[{"key": "healthd.io/unhealthy", "effect": "NoSchedule"}])
    after = patched(half, leaving_patch(node_of(half), opt_out=OPT_OUT))
    assert after["spec"] == {"unschedulable": True, "taints": []}, "of a cordon nothing says that it is healthd's"


def test_labels_and_annotations_go_without_a_taint() -> None:
    """Its state for `kubectl get`, a question to HyperPod, and a start-up taint that nobody would take off any more."""
    node = data(
        labels={"healthd.io/state": "ok", "pool": "gpu"},
        annotations={"healthd.io/asked": "UnschedulablePendingReboot"},
        taints=[{"key": "healthd.io/unverified", "effect": "NoSchedule"}],
    )
    after = patched(node, leaving_patch(node_of(node), opt_out=OPT_OUT, labels={"resumed": "true"}))
    assert after["metadata"]["labels"] == {"pool": "gpu", "resumed": "true"}
    assert (after["metadata"]["annotations"], after["spec"]["taints"]) == ({}, [])


def test_conditions_go_by_name_and_others_are_not_touched() -> None:
    """Its four, and what it asked of EKS, which would replace the machine; EKS's own condition and Ready stay."""
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "HealthdGPU", "status": "False"},
        {"type": "AcceleratedHardwareReady", "status": "False", "message": "healthd: gpu.xid.79"},
    ]
    patch = leaving_status_patch(node_of({**data(), "status": {"conditions": conditions}}))
    assert patch == {
        "status": {
            "conditions": [
                {"$patch": "delete", "type": "HealthdGPU"},
                {"$patch": "delete", "type": "AcceleratedHardwareReady"},
            ]
        }
    }
    own = [{"type": "AcceleratedHardwareReady", "status": "False", "message": "XID 79"}]
    assert leaving_status_patch(node_of({**data(), "status": {"conditions": own}})) is None


def test_a_node_that_could_not_be_let_in_keeps_its_claim() -> None:
    """Everybody else's claim goes; limit and counts are no claims."""
    notes = ["claim.healthd.io/n1", "claim.healthd.io/n2", "healthd.io/limit", "mark.healthd.io/n1"]
    assert claims_to_drop(notes, "claim.healthd.io/", {"n2"}) == {"claim.healthd.io/n1": None}
