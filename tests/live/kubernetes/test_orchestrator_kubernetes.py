"""KubernetesOrchestrator against a real API server, with the agent's own token and rights, and the policies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.core.errors import BackendDenied, BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.decide.fleet import HoldsSlots, WaitForSlot
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.kubernetes.api import Conflict, ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects.budget import COUNTED, LIMIT, counts
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.ports import HeldNode, NodeRecord, Slot
from tests.live.kubernetes.agent_rig import Agents, add_leases, note
from tests.live.kubernetes.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes
REASON = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"


def node_of(plane: ControlPlane, name: str) -> dict[str, Any]:
    return plane.admin.get(f"/api/v1/nodes/{name}").must()


def taints_of(plane: ControlPlane, name: str) -> dict[str, str]:
    return {taint["key"]: taint["effect"] for taint in node_of(plane, name)["spec"].get("taints", [])}


def kubectl(plane: ControlPlane, name: str, patch: dict[str, Any]) -> None:
    """What a person at a terminal does to a node."""
    plane.admin.patch(f"/api/v1/nodes/{name}", patch, kind="merge").must()


@pytest.fixture
def agents(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Agents]:
    """Agents of nodes of this cluster."""
    made = Agents(control_plane, tmp_path)
    yield made
    made.close()


@pytest.fixture
def one(control_plane: ControlPlane, agents: Agents) -> KubernetesOrchestrator:
    """The agent of n1, one of four, of which one may be out."""
    for number in range(1, 5):
        control_plane.add_node(f"n{number}")
    add_leases(control_plane)
    return agents("n1")


def test_the_way_out_and_back_leaves_nothing(control_plane: ControlPlane, one: KubernetesOrchestrator) -> None:
    """Claim, taint, release, give back: each shows as it should, and in the end the Node is as it was."""
    before = node_of(control_plane, "n1")
    one.claim("cluster", 0)
    view = one.view()
    assert (view.in_service, view.fenced, view.undrained, view.hold) == (False, True, True, None)
    one.quarantine(REASON)
    view, snapshot = one.view(), one.snapshot()
    assert view.hold is not None
    assert (view.hold.text, view.hold.user, view.undrained) == (REASON, "healthd-agent", False)
    assert snapshot.out == {"n1"}
    assert snapshot.total == 4
    assert snapshot.held == (HeldNode(node="n1", text=REASON, stamp=view.hold.stamp),)
    taint = next(
        each for each in node_of(control_plane, "n1")["spec"]["taints"] if each["key"] == "healthd.io/unhealthy"
    )
    assert (taint["value"], taint["effect"]) == ("gpu.xid.79", "NoSchedule")
    one.release(resume=False)
    assert one.view().undrained
    one.give_back(Slot(scope="cluster", index=0, node="n1"))
    after = node_of(control_plane, "n1")
    assert (after["spec"], after["metadata"].get("annotations", {})) == (
        before["spec"],
        before["metadata"].get("annotations", {}),
    )
    assert one.slots() == ()


def test_without_a_claim_the_server_itself_refuses_the_taint(
    control_plane: ControlPlane, one: KubernetesOrchestrator
) -> None:
    """A taint before its claim is denied in the policy's own words, and nothing is on the node."""
    with pytest.raises(BackendRefused, match="has no claim on the budget: claim first"):
        one.quarantine(REASON)
    assert taints_of(control_plane, "n1") == {}


def test_the_taints_and_conditions_of_others_survive(control_plane: ControlPlane, one: KubernetesOrchestrator) -> None:
    """Twelve others add and remove their own taints all the while; none of theirs and none of ours is lost."""
    one.claim("cluster", 0)
    others = [f"example.com/t{number}" for number in range(12)]

    def add(key: str) -> None:
        client = control_plane.client(control_plane.admin_token)
        while True:
            node = client.get("/api/v1/nodes/n1").must()
            taints = [*node["spec"].get("taints", []), {"key": key, "effect": "PreferNoSchedule"}]
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}
            answer = client.patch("/api/v1/nodes/n1", body, kind="merge")
            if answer.status != 409:
                answer.must()
                client.close()
                return

    threads = [threading.Thread(target=add, args=(key,)) for key in others]
    for thread in threads:
        thread.start()
    one.quarantine(REASON)
    for thread in threads:
        thread.join()
    assert set(taints_of(control_plane, "n1")) == {*others, "healthd.io/claimed", "healthd.io/unhealthy"}
    one.release(resume=False)
    assert set(taints_of(control_plane, "n1")) == {*others, "healthd.io/claimed"}
    assert node_of(control_plane, "n1")["status"]["conditions"][-1]["type"] == "Ready"


def test_a_cordon_that_was_there_is_never_lifted(control_plane: ControlPlane, agents: Agents) -> None:
    """It is recorded as somebody's; release takes our taint and leaves it."""
    control_plane.add_node("n1")
    add_leases(control_plane)
    one = agents("n1", cordon=True)
    one.claim("cluster", 0)
    kubectl(control_plane, "n1", {"spec": {"unschedulable": True}})
    one.quarantine(REASON)
    one.release(resume=True)
    assert node_of(control_plane, "n1")["spec"]["unschedulable"] is True
    assert "healthd.io/unhealthy" not in taints_of(control_plane, "n1")


def test_a_cordon_of_ours_goes_with_the_taint(control_plane: ControlPlane, agents: Agents) -> None:
    """Set and lifted in the same patches as the taint."""
    control_plane.add_node("n1")
    add_leases(control_plane)
    one = agents("n1", cordon=True)
    one.claim("cluster", 0)
    one.quarantine(REASON)
    assert one.view().flags == {"CORDONED", "DRAINED", "TAINTED:healthd.io/unhealthy"}
    one.release(resume=False)
    assert "unschedulable" not in node_of(control_plane, "n1")["spec"]


KARPENTER, AUTOSCALER = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/scale-down-disabled"


def kept_from(plane: ControlPlane) -> dict[str, str]:
    notes = node_of(plane, "n1")["metadata"].get("annotations", {})
    return {key: notes[key] for key in (AUTOSCALER, KARPENTER) if key in notes}


def test_a_node_that_is_out_is_kept_from_autoscalers(control_plane: ControlPlane, one: KubernetesOrchestrator) -> None:
    """It is idle, and its evidence would go with its machine. Both annotations come and go with the taint."""
    one.claim("cluster", 0)
    assert kept_from(control_plane) == {}
    one.quarantine(REASON)
    assert kept_from(control_plane) == {AUTOSCALER: "true", KARPENTER: "true"}
    one.release(resume=False)
    assert kept_from(control_plane) == {}


@pytest.mark.parametrize("theirs", ["true", "false"])
def test_what_an_administrator_said_to_autoscalers_stays(
    control_plane: ControlPlane, one: KubernetesOrchestrator, theirs: str
) -> None:
    """Before the drain, or while it stands; the other annotation is healthd's all the same."""
    kubectl(control_plane, "n1", {"metadata": {"annotations": {KARPENTER: theirs}}})
    one.claim("cluster", 0)
    one.quarantine(REASON)
    assert kept_from(control_plane) == {AUTOSCALER: "true", KARPENTER: theirs}
    kubectl(control_plane, "n1", {"metadata": {"annotations": {AUTOSCALER: "false"}}})
    one.release(resume=False)
    assert kept_from(control_plane) == {AUTOSCALER: "false", KARPENTER: theirs}


def test_who_takes_the_taint_away_has_undone_the_drain(
    control_plane: ControlPlane, one: KubernetesOrchestrator
) -> None:
    """Without the taint the annotation proves nothing: no hold, and the node stands."""
    one.claim("cluster", 0)
    one.quarantine(REASON)
    taints = [each for each in node_of(control_plane, "n1")["spec"]["taints"] if each["key"] != "healthd.io/unhealthy"]
    kubectl(control_plane, "n1", {"spec": {"taints": taints}})
    view = one.view()
    assert (view.hold, view.undrained) == (None, True)
    one.give_back(Slot(scope="cluster", index=0, node="n1"))
    assert (taints_of(control_plane, "n1"), kept_from(control_plane)) == ({}, {})


def test_who_uncordons_has_undone_the_drain_and_the_taint_goes_with_the_place(
    control_plane: ControlPlane, agents: Agents
) -> None:
    """`kubectl uncordon` of a node that we cordoned is the whole order; our taint is taken away when the place is."""
    control_plane.add_node("n1")
    add_leases(control_plane)
    one = agents("n1", cordon=True)
    one.claim("cluster", 0)
    one.quarantine(REASON)
    kubectl(control_plane, "n1", {"spec": {"unschedulable": None}})
    view = one.view()
    assert (view.hold, view.undrained, view.in_service) == (None, True, False)
    one.give_back(Slot(scope="cluster", index=0, node="n1"))
    assert taints_of(control_plane, "n1") == {}
    assert one.view().in_service


def test_a_taint_of_our_key_by_hand_is_somebody_elses(control_plane: ControlPlane, one: KubernetesOrchestrator) -> None:
    """No annotation, no hold; it is neither adopted nor written over nor released."""
    one.claim("cluster", 0)
    kubectl(control_plane, "n1", {"spec": {"taints": [{"key": "healthd.io/unhealthy", "effect": "NoSchedule"}]}})
    view = one.view()
    assert (view.hold, view.undrained) == (None, False)
    with pytest.raises(BackendRefused, match="that this agent did not set"):
        one.quarantine(REASON)
    one.release(resume=False)
    assert "healthd.io/unhealthy" in taints_of(control_plane, "n1")


@pytest.mark.parametrize(
    ("taint", "tolerated", "in_service"),
    [
        ("nvidia.com/gpu", (), True),
        ("dedicated", (), False),
        ("dedicated", ("dedi*",), True),
        ("karpenter.sh/disrupted", ("dedi*",), False),
    ],
)
def test_a_taint_that_nobody_explained_means_out(
    control_plane: ControlPlane, agents: Agents, taint: str, tolerated: tuple[str, ...], in_service: bool
) -> None:
    """What a node has is no reason to leave it alone; what is not known is."""
    control_plane.add_node("n1", taints=[{"key": taint, "effect": "NoSchedule"}])
    one = agents("n1", tolerated=tolerated)
    assert one.view().in_service is in_service


def test_the_start_up_taint_goes_once(control_plane: ControlPlane, agents: Agents) -> None:
    """It is no hold, it goes without a claim, and a node without it is left alone."""
    control_plane.add_node("n1", taints=[{"key": "healthd.io/unverified", "effect": "NoSchedule"}])
    one = agents("n1")
    assert one.view().flags == {"UNVERIFIED"}
    assert one.verified()
    assert not one.verified()
    assert taints_of(control_plane, "n1") == {}


def test_labels_are_features_and_the_opt_out_is_one_of_them(control_plane: ControlPlane, agents: Agents) -> None:
    """Any value does but false."""
    control_plane.add_node("n1", labels={"healthd.io/opt-out": "", "healthd.io/other": "false"})
    features = agents("n1").view().features
    assert "healthd.io/opt-out" in features
    assert "healthd.io/other" not in features


# -- places -----------------------------------------------------------------------------------------------------------


def test_of_twelve_that_claim_at_once_as_many_win_as_may(control_plane: ControlPlane, agents: Agents) -> None:
    """Five of twelve, each with a place of its own; the others are told that it is taken or full."""
    names = [f"n{number}" for number in range(12)]
    for name in names:
        control_plane.add_node(name)
    add_leases(control_plane, limit=5, total=12)
    fleet = [agents(name) for name in names]
    won: list[int] = []

    def claim(number: int) -> None:
        for index in range(5):
            try:
                fleet[number].claim("cluster", index)
            except SlotTaken:
                continue
            won.append(number)
            return

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slots = fleet[0].slots()
    assert len(won) == 5
    assert sorted(slot.index for slot in slots) == [0, 1, 2, 3, 4]
    assert {slot.node for slot in slots} == {names[number] for number in won}


def test_nodes_that_others_took_out_use_up_the_room(control_plane: ControlPlane, one: KubernetesOrchestrator) -> None:
    """As the controller counted them, at the moment of the claim."""
    note(control_plane, counts(limit=1, total=4, out=["n3"], at=datetime.now(UTC)))
    with pytest.raises(SlotTaken, match="the budget is full"):
        one.claim("cluster", 0)
    assert one.slots() == ()
    assert one.snapshot().out == {"n3"}


def test_the_keeper_of_slots_drives_it(control_plane: ControlPlane, one: KubernetesOrchestrator) -> None:
    """The limit is the Lease's own; at the limit it holds, with room it goes, and what it held is given back."""
    note(control_plane, counts(limit=1, total=4, out=["n3"], at=None))
    clock_s = 0.0
    keeper = SlotKeeper(
        orchestrator=one,
        node="n1",
        quotas=one.quotas,
        monotonic_s=lambda: clock_s,
        random=lambda: 0.5,
        settle_s=0.0,
    )
    assert isinstance(keeper.take(), WaitForSlot)
    note(control_plane, counts(limit=1, total=4, out=[], at=None))
    clock_s = 100.0
    assert isinstance(keeper.take(), HoldsSlots)
    assert keeper.give_back() == (Slot(scope="cluster", index=0, node="n1"),)
    assert taints_of(control_plane, "n1") == {}


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({LIMIT: None}, "has no healthd.io/limit"),
        ({LIMIT: "5%"}, "expected a whole number"),
        ({COUNTED: "2020-01-01T00:00:00Z"}, "healthd controller"),
        ({COUNTED: (datetime.now(UTC) + timedelta(days=1)).isoformat()}, "the clocks"),
        ({COUNTED: "yesterday"}, "expected RFC 3339"),
    ],
)
def test_a_budget_that_cannot_be_read_is_unknown(
    control_plane: ControlPlane, one: KubernetesOrchestrator, notes: dict[str, str | None], words: str
) -> None:
    """Missing, no number, too old, from tomorrow: no level is made up."""
    note(control_plane, notes)
    with pytest.raises(BackendUnknown, match=words):
        one.snapshot()


def test_no_lease_is_unknown_and_says_who_makes_it(control_plane: ControlPlane, agents: Agents) -> None:
    """For the level as for the slots."""
    control_plane.add_node("n1")
    one = agents("n1")
    for reading in (one.snapshot, one.slots):
        with pytest.raises(BackendUnknown, match="the Helm chart"):
            reading()


def test_a_claim_by_hand_that_makes_no_sense_is_a_place_all_the_same(
    control_plane: ControlPlane, one: KubernetesOrchestrator
) -> None:
    """Whoever wrote it, a node may be out for it."""
    note(control_plane, {"claim.healthd.io/n9": "mine"})
    (slot,) = one.slots()
    assert (slot.node, slot.index) == ("n9", -1)
    with pytest.raises(SlotTaken):
        one.claim("cluster", 0)


def test_records_are_of_the_node_and_for_all_to_see(control_plane: ControlPlane, agents: Agents) -> None:
    """Each agent writes its own, without asking what the others did."""
    for name in ("n1", "n2"):
        control_plane.add_node(name)
    first, second = agents("n1"), agents("n2")
    add_leases(control_plane)
    for one in (first, second):
        one.write_record("healthd case=1")
    assert first.snapshot().records == (
        NodeRecord(node="n1", text="healthd case=1"),
        NodeRecord(node="n2", text="healthd case=1"),
    )
    first.write_record("")
    assert (first.read_record(), second.read_record()) == ("", "healthd case=1")


# -- the door ---------------------------------------------------------------------------------------------------------


def test_another_node_is_denied_in_the_servers_words(control_plane: ControlPlane, agents: Agents) -> None:
    """The agent's token on n1 may not write n2: what the error says is what a person can act on."""
    control_plane.add_node("n1")
    control_plane.add_node("n2")
    api = agents.api("n1")
    with pytest.raises(BackendRefused, match="may not write node n2"):
        api.patch(ResourceKind.NODE, "n2", {"metadata": {"labels": {"healthd.io/x": "1"}}})
    with pytest.raises(BackendUnknown, match="forbidden"):
        api.get(ResourceKind.POD, "healthd-agent-n1", namespace="healthd")
    with pytest.raises(BackendDenied, match="forbidden"):
        api.create(ResourceKind.POD, {"metadata": {"name": "p"}}, namespace="healthd")


def test_a_patch_of_an_old_version_is_a_conflict(control_plane: ControlPlane, agents: Agents) -> None:
    """And a claim of ours on the object is not made."""
    control_plane.add_node("n1")
    api = agents.api("n1")
    version = api.get(ResourceKind.NODE, "n1")["metadata"]["resourceVersion"]
    note = {"metadata": {"resourceVersion": version, "annotations": {"healthd.io/x": "1"}}}
    api.patch(ResourceKind.NODE, "n1", note)
    with pytest.raises(Conflict):
        api.patch(
            ResourceKind.NODE, "n1", {"metadata": {"resourceVersion": version, "annotations": {"healthd.io/x": "2"}}}
        )


def test_a_token_that_is_rotated_is_read_again(control_plane: ControlPlane, agents: Agents, tmp_path: Path) -> None:
    """A refused token is one failure; what the file holds by then is used next."""
    control_plane.add_node("n1")
    api = agents.api("n1", token="expired")  # noqa: S106 - it is none
    with pytest.raises(BackendUnknown, match="401"):
        api.get(ResourceKind.NODE, "n1")
    control_plane.account_folder(tmp_path / "n1", control_plane.agent_token("n1"))
    assert api.get(ResourceKind.NODE, "n1")["metadata"]["name"] == "n1"


def test_a_server_that_hangs_or_is_gone_is_unknown_and_comes_back(control_plane: ControlPlane, agents: Agents) -> None:
    """Within the deadline, for readings and for writes; nothing was applied that is not seen later."""
    control_plane.add_node("n1")
    add_leases(control_plane)
    one = agents("n1", timeout_s=1.0)
    one.claim("cluster", 0)
    control_plane.hang_api_server()
    started = datetime.now(UTC)
    with pytest.raises(BackendUnknown):
        one.view()
    with pytest.raises(BackendUnknown):
        one.quarantine(REASON)
    assert datetime.now(UTC) - started < timedelta(seconds=4)
    control_plane.resume_api_server()
    control_plane.kill_api_server()
    with pytest.raises(BackendUnknown):
        one.slots()
    control_plane.start_api_server()
    one.quarantine(REASON)
    assert one.view().hold is not None
