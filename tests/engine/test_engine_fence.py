"""No state of Lease, claim, taint and remediation leaves a good node fenced: the engine on Kubernetes, over all of
them.

The engine, its store, the keeper of slots and the back end are the real ones; the API server is a Node and three Leases
in memory, with the server's compare-and-swap.
"""

from __future__ import annotations

import copy
import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from healthd.core.model import Refusal
from healthd.remediation.orchestrators.kubernetes.api import Conflict, KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.from_config import poll_fence
from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE, counts, key_of
from healthd.remediation.orchestrators.kubernetes.objects.node import CLAIMED, HOLD, UNHEALTHY, node_of
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from tests.live.kubernetes.kubelet_socket import KubeletSocket
from tests.support.engine_rig import NODE, XID_95, World

TEXT = "healthd: disk.slow node [k3v9]"
STEPS = 30  # of five seconds: five looks at the fence
HEALTH = "the NodeHealth"  # of the node, under whose name stands the Node
UNTIL_NAMED = 34  # as many more after a start, until what an earlier daemon left is sure
PER_LOOK = 6
LOOKS_FOR_A_DRAIN = 360  # half an hour after a remediation
LEASES = ("gone", "empty", "claimed", "shown", "odd")
HOLDS = ("none", "whole", "cordoned", "uncordoned", "annotation", "a person's")
REMEDIATIONS = ("none", "waiting", "out")


class Server(KubeApi):
    """One Node, its NodeHealth and the Leases."""

    def __init__(self) -> None:
        notes = counts(limit=2, total=40, out=(), at=None)
        ready = {"type": "Ready", "status": "True"}
        self.version = 1
        self.objects: dict[str, dict[str, Any]] = {
            NODE: {"metadata": {"name": NODE, "uid": "u1"}, "spec": {}, "status": {"conditions": [ready]}},
            LEASE: {"metadata": {"name": LEASE, "annotations": notes}},
        }

    def pages(self, kind: ResourceKind, decode: Any, *, namespace: str | None = None, **params: str) -> Iterator[Any]:
        assert kind is ResourceKind.NODE_HEALTH
        there = [self.objects[HEALTH]] if HEALTH in self.objects else []
        yield decode(json.dumps({"items": there}).encode())

    def create(self, kind: ResourceKind, body: Mapping[str, Any], *, namespace: str | None = None) -> dict[str, Any]:
        assert kind is ResourceKind.NODE_HEALTH
        self.objects[HEALTH] = copy.deepcopy(dict(body))
        return self.get(kind, NODE)

    def delete(
        self, kind: ResourceKind, name: str, *, uid: str = "", version: str = "", namespace: str | None = None
    ) -> None:
        assert kind is ResourceKind.NODE_HEALTH
        del self.objects[HEALTH]

    def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        name = HEALTH if kind is ResourceKind.NODE_HEALTH else name
        if name not in self.objects:
            raise Missing(f"get {name}: 404")
        there = copy.deepcopy(self.objects[name])
        there["metadata"].setdefault("resourceVersion", "1")
        return there

    def patch(self, kind: ResourceKind, name: str, body: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        there = self.get(kind, name)
        name = HEALTH if kind is ResourceKind.NODE_HEALTH else name
        if (
            body.get("metadata", {}).get("resourceVersion", there["metadata"]["resourceVersion"])
            != there["metadata"]["resourceVersion"]
        ):
            raise Conflict(f"patch {name}: 409")
        self.version += 1
        self.objects[name] = merged(there, body)
        self.objects[name]["metadata"]["resourceVersion"] = str(self.version)
        return self.get(kind, name)

    def set(self, name: str, body: Mapping[str, Any]) -> None:
        """As a person does it."""
        self.patch(ResourceKind.NODE, name, {"metadata": {}, **body})


def merged(there: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    base = there if isinstance(there, Mapping) else {}
    kept = {key: value for key, value in base.items() if key not in patch}
    return kept | {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}


@pytest.fixture(scope="module")
def kubelet() -> Iterator[KubeletSocket]:
    """It has no pods."""
    with tempfile.TemporaryDirectory(prefix="fence-") as folder, KubeletSocket(Path(folder) / "s") as serving:
        yield serving


def world_of(folder: Path, server: Server, kubelet: KubeletSocket) -> World:
    """One node of Kubernetes, whose budget lets two of forty out."""
    return World(
        folder,
        local=lambda world: KubernetesOrchestrator(
            server,
            node=NODE,
            namespace="healthd",
            pod_resources=str(kubelet.path),
            lately_s=0.0,
            clock=world.clock.now,
            sleep=lambda _: None,
        ),
    )


def run(world: World, steps: int) -> None:
    """As the daemon does: turns of the engine, and the reporter's look at the fence every half minute."""
    assert isinstance(world.orchestrator, KubernetesOrchestrator)
    for number in range(steps):
        if number % PER_LOOK == 0:
            poll_fence(world.orchestrator, world.engine.fenced)
        world.step()


def put(server: Server, *, lease: str, is_fenced: bool, hold: str) -> None:
    """Have Lease and Node stand like this, whoever did it."""
    held = {"text": TEXT, "by": "healthd-agent", "stamp": 1, "cordoned": hold in ("cordoned", "uncordoned")}
    is_tainted = hold in ("whole", "cordoned", "uncordoned", "a person's")
    keys = [UNHEALTHY] * is_tainted + [CLAIMED] * is_fenced
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    is_annotated = hold not in ("none", "a person's")
    notes = {HOLD: json.dumps(held) if is_annotated else None}
    spec = {"taints": taints, "unschedulable": hold == "cordoned" or None}
    server.set(NODE, {"metadata": {"annotations": notes}, "spec": spec})
    claim = {"node": NODE, "index": 0, "at": "2026-01-01T00:00:00Z"}
    values = {
        "claimed": json.dumps(claim),
        "shown": json.dumps({**claim, "text": TEXT, "stamp": 1}),
        "odd": "garbage",
    }
    if lease == "gone":
        del server.objects[LEASE]
    else:
        server.set(LEASE, {"metadata": {"annotations": {key_of(NODE): values.get(lease)}}})


def stood(
    world: World, server: Server, *, remediation: str, lease: str, is_fenced: bool, hold: str, restarts: bool
) -> None:
    """A node with this remediation whose Lease and Node come to stand like that, and which then has nothing wrong any
    more."""
    run(world, 2)
    if remediation != "none":
        world.log_line(XID_95)
        run(world, 1 if remediation == "waiting" else 8)
        assert world.engine.remediation is not None
        assert (world.engine.remediation.hold is not None) == (remediation == "out")
    put(server, lease=lease, is_fenced=is_fenced, hold=hold)
    if restarts:
        world.restart_daemon()
    world.reset_gpu()
    run(world, 4)
    if lease == "gone":  # the controller makes it anew
        server.objects[LEASE] = {"metadata": {"annotations": counts(limit=2, total=40, out=(), at=None)}}
    run(world, STEPS)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("restarts", [False, True], ids=["lives", "restarts"])
@pytest.mark.parametrize("remediation", REMEDIATIONS)
@pytest.mark.parametrize("lease", LEASES)
def test_a_good_node_is_let_in(
    tmp_path: Path, kubelet: KubeletSocket, *, remediation: str, lease: str, restarts: bool
) -> None:
    """Whatever stands in Lease and Node, and whatever remediation is open: some minutes later a node with nothing wrong
    has no fence. An administrator's taint can keep it out then, or a drain of ours without a claim, which is named with
    its way out. A claim that neither fences the node nor belongs to a remediation is found at the next start."""
    for number, (is_fenced, hold) in enumerate(itertools.product((False, True), HOLDS)):
        server = Server()
        world = world_of(tmp_path / str(number), server, kubelet)
        stood(world, server, remediation=remediation, lease=lease, is_fenced=is_fenced, hold=hold, restarts=restarts)
        node, view, about = node_of(server.get(ResourceKind.NODE, NODE)), world.orchestrator.view(), (is_fenced, hold)
        assert node.taint(CLAIMED) is None, (about, world.transcript()[-3:])
        if is_fenced or remediation != "none" or restarts:
            assert key_of(NODE) not in server.objects[LEASE]["metadata"]["annotations"], (
                about,
                world.transcript()[-3:],
            )
        if hold == "a person's":
            assert node.taint(UNHEALTHY) is not None, about
        elif not view.in_service:
            assert hold in ("whole", "cordoned"), (about, view, world.transcript()[-3:])
            if remediation == "none":
                is_named = restarts  # of one that lives, nobody has had a drain
                run(world, UNTIL_NAMED if is_named else 0)
            else:
                is_named = (lease, *about) == ("empty", False, "whole")  # one of them, for the half hour
                run(world, LOOKS_FOR_A_DRAIN if is_named else 0)
            if is_named:
                decision = world.engine.decision
                assert decision.refusal is Refusal.ORPHAN, (about, decision, world.transcript()[-3:])
                assert "`healthd release` undoes it" in decision.reason, about
        world.close()
