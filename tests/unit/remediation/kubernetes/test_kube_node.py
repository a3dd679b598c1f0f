"""A Node as it is read, and the patches that take it out and put it back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    HOLD,
    KubeNode,
    OwnershipAnnotation,
    features_of,
    fence_patch,
    hold_of,
    node_of,
    quarantine_patch,
    release_patch,
    taint_value,
    unfence_patch,
    view_of,
    was_undone,
    without_taint_patch,
)

TEXT = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"
HELD = OwnershipAnnotation(text=TEXT, by="healthd-agent", stamp=1_700_000_000)
READY = {"type": "Ready", "status": "True"}


def node(**spec: Any) -> dict[str, Any]:
    """A Node as the API server gives it; merge patches of ours can be applied to it."""
    return {
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7"},
        "spec": spec,
        "status": {"conditions": [READY]},
    }


def patched(data: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
    """RFC 7386, as far as ours need it."""
    assert patch is not None
    assert patch["metadata"].pop("resourceVersion") == data["metadata"]["resourceVersion"]
    made = {**data, "metadata": {**data["metadata"], "resourceVersion": "8"}, "spec": {**data["spec"]}}
    notes = {**made["metadata"].get("annotations", {}), **patch["metadata"].get("annotations", {})}
    made["metadata"]["annotations"] = {key: value for key, value in notes.items() if value is not None}
    for key, value in patch["spec"].items():
        made["spec"][key] = value
        if value is None:
            del made["spec"][key]
    return made


def taken_out(data: dict[str, Any], *, cordon: bool = False) -> dict[str, Any]:
    return patched(data, quarantine_patch(node_of(data), HELD, effect="NoSchedule", cordon=cordon))


def read(data: dict[str, Any]) -> KubeNode:
    return node_of(data)


@pytest.mark.parametrize("cordon", [False, True])
@pytest.mark.parametrize("was_cordoned", [False, True])
def test_release_leaves_the_node_as_it_was(cordon: bool, was_cordoned: bool) -> None:
    """Others' taints and a cordon that was there stay; what was added is gone."""
    spec: dict[str, Any] = {"taints": [{"key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]}
    before = node(**spec, **({"unschedulable": True} if was_cordoned else {}))
    out = taken_out(before, cordon=cordon)
    held = hold_of(read(out))
    assert held is not None
    assert (held.text, held.cordoned) == (TEXT, cordon and not was_cordoned)
    back = patched(out, release_patch(read(out)))
    assert back["spec"] == before["spec"]
    assert back["metadata"]["annotations"] == {}
    assert release_patch(read(back)) is None


def test_a_hold_is_taint_and_annotation_together() -> None:
    """Either alone, or an annotation that cannot be read, is none."""
    out = taken_out(node())
    assert view_of(read(out)).hold == HELD.as_hold
    no_taint = {**out, "spec": {}}
    assert (hold_of(read(no_taint)), view_of(read(no_taint)).in_service) == (None, True)
    for note in ({}, {HOLD: "not JSON"}, {HOLD: "{}"}):
        strange = {**out, "metadata": {**out["metadata"], "annotations": note}}
        assert hold_of(read(strange)) is None
        assert not view_of(read(strange)).undrained


def test_an_uncordon_undoes_what_we_cordoned_and_nothing_else() -> None:
    """With a cordon of ours it is the order to let the node in; without one there is nothing to undo."""
    out = taken_out(node(), cordon=True)
    uncordoned = {**out, "spec": {key: value for key, value in out["spec"].items() if key != "unschedulable"}}
    view = view_of(read(uncordoned))
    assert (view.hold, view.fenced, view.undrained, view.in_service) == (None, True, True, False)
    assert was_undone(read(uncordoned)) is not None
    assert was_undone(read(out)) is None
    assert was_undone(read(taken_out(node()))) is None
    assert was_undone(read(node())) is None


def test_a_cordon_left_without_its_taint_is_theirs_now() -> None:
    """The taint was taken away and our cordon kept: out, held by somebody, and our release does not lift it."""
    out = taken_out(node(), cordon=True)
    kept = {**out, "spec": {"unschedulable": True}}
    view = view_of(read(kept))
    assert (view.hold, view.undrained, view.flags) == (None, False, frozenset({"CORDONED"}))
    assert patched(kept, release_patch(read(kept)))["spec"] == {"unschedulable": True, "taints": []}


def test_what_keeps_pods_off_is_named() -> None:
    """Cordon, kubelet, deletion, and taints that no job is known to tolerate; a mere preference does not."""
    data = node(
        unschedulable=True,
        taints=[
            {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
            {"key": "example.com/x", "effect": "NoExecute"},
            {"key": "example.com/y", "effect": "PreferNoSchedule"},
        ],
    )
    data["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    data["status"] = {}
    assert view_of(read(data)).flags == {"CORDONED", "NOTREADY", "DELETING", "TAINTED:example.com/x"}
    assert not view_of(read(data), tolerated=["example.com/*"]).in_service


def test_a_fence_is_ours_and_passes() -> None:
    """It keeps pods off and the node stands; over a drain it does not show."""
    fenced = patched(node(), fence_patch(read(node())))
    view = view_of(read(fenced))
    assert (view.in_service, view.fenced, view.undrained, view.flags) == (False, True, True, frozenset({"FENCED"}))
    assert fence_patch(read(fenced)) is None
    assert not view_of(read(taken_out(fenced))).fenced
    bare = patched(fenced, without_taint_patch(read(fenced), "healthd.io/claimed"))
    assert bare["spec"] == {"taints": []}
    assert without_taint_patch(read(bare), "healthd.io/claimed") is None


def test_the_start_up_taint_is_no_hold() -> None:
    """A node that joins broken has to be taken out and repaired like any other."""
    view = view_of(read(node(taints=[{"key": "healthd.io/unverified", "effect": "NoSchedule"}])))
    assert (view.in_service, view.fenced, view.flags) == (True, False, frozenset({"UNVERIFIED"}))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (TEXT, "gpu.xid.79"),
        ("healthd: a:b/c d", "a-b-c"),
        (f"healthd: {'x' * 62}.y z", "x" * 62),
        ("healthd: ./. x", "held"),
        ("by hand", "held"),
    ],
)
def test_a_taints_value_is_a_label(text: str, value: str) -> None:
    """At most 63 characters, of which the first and the last are letters or digits."""
    assert taint_value(text) == value


@pytest.mark.parametrize("text", ["", "two\nlines", "x" * 1001])
def test_a_reason_that_is_not_one_line_is_refused(text: str) -> None:
    """Before anything is asked of the server."""
    held = OwnershipAnnotation(text=text, by="healthd-agent", stamp=1)
    with pytest.raises(BackendRefused, match="expected one line"):
        quarantine_patch(read(node()), held, effect="NoSchedule", cordon=False)


def test_our_whole_hold_is_a_drain() -> None:
    """By the word that the engine looks for where a drain of ours has no remediation; a part of one, or a fence, is
    none."""
    out = taken_out(node(), cordon=True)
    assert "DRAINED" in view_of(read(out)).flags
    for part in ({**out, "spec": {**out["spec"], "unschedulable": False}}, {**out, "spec": {}}, node()):
        assert "DRAINED" not in view_of(read(part)).flags


def test_what_a_person_left_of_our_hold_goes_with_the_fence() -> None:
    """The annotation alone would make whoever sets a taint of our key later look like this agent. A whole hold is a
    drain, and goes by a release: of it the fence alone goes."""
    fence, theirs = {"key": "healthd.io/claimed", "effect": "NoSchedule"}, {"key": "theirs", "effect": "NoSchedule"}
    out = taken_out(node(taints=[theirs, fence]), cordon=True)
    left = patched(out, unfence_patch(read(out)))
    assert (read(left).taint("healthd.io/claimed"), hold_of(read(left)) is None) == (None, False)
    assert unfence_patch(read(left)) is None
    assert unfence_patch(read(node())) is None
    untainted = {**out, "spec": {**out["spec"], "taints": [theirs, fence]}}
    left = patched(untainted, unfence_patch(read(untainted)))
    assert (left["metadata"]["annotations"], left["spec"]) == ({}, {"taints": [theirs], "unschedulable": True})
    uncordoned = {**out, "spec": {**out["spec"], "unschedulable": False}}
    left = patched(uncordoned, unfence_patch(read(uncordoned)))
    assert (left["metadata"]["annotations"], left["spec"]["taints"]) == ({}, [theirs])


def test_a_taint_of_our_key_is_not_written_over() -> None:
    """Whoever set it: key and effect are one name."""
    data = node(taints=[{"key": "healthd.io/unhealthy", "effect": "NoExecute"}])
    with pytest.raises(BackendRefused, match="that this agent did not set"):
        quarantine_patch(read(data), HELD, effect="NoSchedule", cordon=False)


@pytest.mark.parametrize("data", [{}, {"metadata": {}}, {"metadata": {"name": "n1"}, "spec": {"taints": "none"}}])
def test_what_is_no_node_is_unknown(data: dict[str, Any]) -> None:
    """Never an empty node, which would be in service."""
    with pytest.raises(BackendUnknown, match="no Node"):
        node_of(data)


def test_labels_and_annotations_are_features() -> None:
    """A label as key=value, and of both the key alone unless its value is ``false``."""
    meta = {"labels": {"pool": "p5", "a": "False"}, "annotations": {"b": "", "c": "false"}}
    made = node()
    assert features_of(read({**made, "metadata": {**made["metadata"], **meta}})) == {"pool=p5", "pool", "a=False", "b"}


_AT_ONCE = """
import sys, threading
from healthd.remediation.orchestrators.kubernetes.objects import node, node_health
sys.setswitchinterval(1e-6)
together = threading.Barrier(8)
def read():
    together.wait()
    for _ in range(50):
        node.node_of({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
        node_health.healths_in(b'{"items": [{"metadata": {"name": "n1"}, "status": {"state": "ok"}}]}')
        node_health.text_of({"remediationID": "k3v9", "history": [{"act": "reboot", "at": "2026-11-21T00:00:00Z"}]})
threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
"""


@pytest.mark.process
def test_threads_that_read_their_first_node_at_once_do_not_crash() -> None:
    """msgspec 0.22.0 crashes the process where two threads meet one of its types for the first time at once; an agent
    has two that read the same Node as it starts. Made at import, eight of eight runs come through; else none did."""
    root = Path(__file__).resolve().parents[4]
    for _ in range(8):
        ended = subprocess.run([sys.executable, "-c", _AT_ONCE], cwd=root, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr.decode()


@pytest.mark.parametrize("stamp", [-1, 10**11, 10**18])
def test_a_hold_of_no_time_proves_nothing(stamp: int) -> None:
    """The controller reads it of every Node, as the time of a drain: it would end there."""
    data = taken_out(node())
    data["metadata"]["annotations"][HOLD] = f'{{"text": "{TEXT}", "by": "healthd-agent", "stamp": {stamp}}}'
    assert hold_of(node_of(data)) is None
