"""The commands of the how-to pages for Kubernetes, by kubectl on a real API server; and a fence that a person left.

Those of Helm run in test_helm_majors, by both majors.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.kubernetes.agent_node import AgentNode
from tests.live.kubernetes.agent_rig import add_leases
from tests.live.kubernetes.control_plane import LEASES, NAMESPACE, ControlPlane
from tests.live.kubernetes.howto_blocks import BLOCKS, NOT_RUN, commands, has_helm, lines_of
from tests.support.limits import limit_s
from tests.support.pages import Block
from tests.support.running import UNCONTAINED

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

PCI = "0000:05:00"
PLUGIN = Path(__file__).resolve().parents[3] / "packaging" / "kubernetes"
"""Where kubectl finds its plugin."""
FENCE, DRAIN = "healthd.io/claimed", "healthd.io/unhealthy"


class Person:
    """Somebody with kubectl and every right."""

    def __init__(self, plane: ControlPlane, kubectl: Path) -> None:
        self._plane, self._kubectl = plane, kubectl

    def types(self, line: str) -> str:
        """One command of a page, for the node n1; it has to end well."""
        path = f"{self._kubectl.parent}:{PLUGIN}:/usr/bin:/bin"
        env = {"KUBECONFIG": str(self._plane.kubeconfig), "HOME": str(self._plane.root), "PATH": path}
        script = line.replace("NODE", "n1")
        done = subprocess.run(
            ["sh", "-c", script], env=env, check=False, capture_output=True, text=True, timeout=limit_s(60)
        )
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout


@pytest.fixture
def person(control_plane: ControlPlane, kubectl: Path) -> Person:
    return Person(control_plane, kubectl)


def test_the_pages_have_blocks_for_kubernetes() -> None:
    """Those that are run are found, and every other line names why it is not: each reason is of use."""
    assert len({each.page for each in BLOCKS}) >= 3
    assert sum(len(lines_of(each)) for each in BLOCKS if not has_helm(each)) >= 10
    assert sum(has_helm(each) for each in BLOCKS) >= 3
    left = [line for each in BLOCKS for line in commands(each) if line not in lines_of(each)]
    assert {word for line in left for word in NOT_RUN if word in line} == {" exec ", " logs ", " rollout status "}


@pytest.mark.parametrize("block", [each for each in BLOCKS if not has_helm(each)], ids=str)
def test_every_command_of_a_page_ends_well(control_plane: ControlPlane, person: Person, block: Block) -> None:
    """On a cluster with a node that is out by healthd, as the pages have it: each kubectl line as it stands there."""
    taints = [{"key": key, "effect": "NoSchedule"} for key in (DRAIN, FENCE)]
    labels = {"healthd.io/opt-out": "true", "sagemaker.amazonaws.com/node-health-status": "Unschedulable"}
    control_plane.add_node("n1", labels=labels, taints=taints)
    add_leases(control_plane)
    claim = {"claim.healthd.io/n1": json.dumps({"node": "n1", "index": 0})}
    control_plane.admin.patch(f"{LEASES}/healthd-budget", {"metadata": {"annotations": claim}}, kind="merge").must()
    control_plane.add_lease("healthd-controller", {})
    selector = {"app": "healthd"}
    pod = {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "c", "image": "x.invalid/none"}]}}
    deployment = {"replicas": 2, "selector": {"matchLabels": selector}, "template": pod}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    made = control_plane.admin.post(path, {"metadata": {"name": "healthd-controller"}, "spec": deployment})
    assert made.status in (201, 409), made
    for line in lines_of(block):
        person.types(line)


@pytest.fixture
def node(control_plane: ControlPlane, tmp_path: Path) -> Iterator[AgentNode]:
    """n1, out for a fault by its own agent, which then is killed."""
    control_plane.add_node("n1")
    add_leases(control_plane)
    made = AgentNode(control_plane, "n1", tmp_path)
    with made.kubelet:
        made.daemon.start(within_s=60)
        made.daemon.well(90)
        made.daemon.kernel_says(UNCONTAINED.format(pci=PCI))
        made.daemon.wait(lambda: "out until it is healthy" in made.daemon.log.read_text(), 90, "its drain is read back")
        assert made.taints() == {DRAIN, FENCE}
        made.daemon.kill()
        yield made
        made.daemon.stop()


def test_let_in_by_hand_without_a_daemon_leaves_nothing(
    control_plane: ControlPlane, node: AgentNode, person: Person
) -> None:
    """The two commands of the page: neither taint, and no claim. The agent that comes back takes it for an order."""
    (block,) = (each for each in BLOCKS if each.title == "let-in-by-hand-kubernetes")
    for line in lines_of(block):
        person.types(line)
    assert (node.taints(), control_plane.claims()) == (set(), set())
    node.daemon.start(within_s=60)
    node.daemon.wait(lambda: (node.daemon.status() or {"remediation": 1})["remediation"] is None, 60, "the order")
    assert (node.taints(), control_plane.claims()) == (set(), set())


def test_a_fence_that_a_person_left_is_taken_away(control_plane: ControlPlane, node: AgentNode, person: Person) -> None:
    """The drain's taint and the claim were taken away, and the fence forgotten: with its agent the node is back."""
    person.types("kubectl -n healthd annotate lease healthd-budget claim.healthd.io/NODE-")
    person.types(f"kubectl taint node NODE {DRAIN}-")
    assert node.taints() == {FENCE}
    node.daemon.start(within_s=60)
    control_plane.wait(lambda: not node.taints(), 120, "the fence to be taken away")
    time.sleep(3)  # nothing comes back
    assert (node.taints(), control_plane.claims()) == (set(), set())


@pytest.mark.parametrize("stands", [True, False], ids=["claimed", "unclaimed"])
def test_a_fence_without_a_case_is_taken_away(control_plane: ControlPlane, tmp_path: Path, *, stands: bool) -> None:
    """The fence of an agent whose disk was lost, with its claim or without: a good node is in service again."""
    control_plane.add_node("n1", taints=[{"key": FENCE, "effect": "NoSchedule"}])
    add_leases(control_plane)
    claim = {"claim.healthd.io/n1": json.dumps({"node": "n1", "index": 0}) if stands else None}
    control_plane.admin.patch(f"{LEASES}/healthd-budget", {"metadata": {"annotations": claim}}, kind="merge").must()
    fresh = AgentNode(control_plane, "n1", tmp_path)
    with fresh.kubelet:
        fresh.daemon.start(within_s=60)
        try:
            control_plane.wait(lambda: not fresh.taints() and not control_plane.claims(), 120, "the node to be in")
        finally:
            fresh.daemon.stop()
