"""A node of Kubernetes asks by its record, and the controller has its machine replaced: HyperPod, EC2, Karpenter.

The agent's side is its own orchestrator with its own token; AWS is an endpoint on loopback, Karpenter a NodeClaim of
its own kind at the real API server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest

from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.objects.eviction import LOST_S
from healthd.remediation.orchestrators.kubernetes.objects.node_health import record_of
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, parse
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.live.aws.fake_hyperpod import CLUSTER, FakeHyperPod
from tests.live.aws.moto_server import dummy_env, moto_serving
from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import HEALTHS, ControlPlane, ControlPlaneError
from tests.live.kubernetes.fleet_controller import Fleet, FleetController

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]
REASON = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"
NOBODY = ("127.0.0.1", 9)
SECTIONS = """
[budget]
max_out = 2
[provisioner]
kind = "{kind}"
[provisioner.aws]
region = "{region}"
endpoint_url = "{url}"
timeout_s = 10
[provisioner.hyperpod]
cluster = "{cluster}"
"""
NODE_CLAIMS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodeclaims.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"plural": "nodeclaims", "singular": "nodeclaim", "kind": "NodeClaim", "listKind": "NodeClaimList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


class Site:
    """One cluster with the controller on it, and what its nodes ask."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder, self.fleet, self.agents = plane, folder, Fleet(plane), Agents(plane, folder)
        self.controller: FleetController | None = None

    def start(self, kind: str, url: str = "http://127.0.0.1:9") -> FleetController:
        more = SECTIONS.format(kind=kind, region=REGION, url=url, cluster=CLUSTER)
        folder = self.folder / "controller"
        folder.mkdir()
        environ = dummy_env(str(self.folder / "none"))
        self.controller = FleetController(self.plane, folder, more, environ=environ).start()
        self.plane.wait(lambda: self.fleet.numbers()[0] == "2", 20, "the counts")
        return self.controller

    def node(self, name: str, provider_id: str) -> None:
        """A Node of this machine, in the place of whatever the control plane would make up."""
        made = self.plane.add_node(name)
        self.plane.admin.delete(f"/api/v1/nodes/{name}").must()
        keep = {key: made[key] for key in ("spec", "status")}
        keep["spec"]["providerID"] = provider_id
        meta = {"name": name, "labels": made["metadata"]["labels"]}
        self.plane.admin.post("/api/v1/nodes", {"metadata": meta, **keep}).must()
        untainted: dict[str, Any] = {"spec": {"taints": []}}
        self.plane.admin.patch(f"/api/v1/nodes/{name}", untainted, kind="merge").must()

    def asks(self, name: str, machine: str, remedy: Remedy = Remedy.REPLACE_NODE) -> None:
        """Claim, taint, record: as the node's own engine leaves them."""
        agent = self.agents(name)
        agent.claim("cluster", 0)
        agent.quarantine(REASON)
        agent.write_record(
            HandoffRecord(
                remediation_id="k3v9", machine=machine, remedy=remedy, asks=True, attempt=1, asked=datetime.now(UTC)
            ).text
        )

    def write_record(self, name: str) -> HandoffRecord:
        return parse(self.agents(name).read_record()) or HandoffRecord()

    def is_gone(self, name: str) -> None:
        """The machine has ended: whoever manages the Nodes takes its Node away."""
        self.plane.admin.delete(f"/api/v1/nodes/{name}").must()

    def wait(self, what: Callable[[], object], words: str, within_s: float = 20.0) -> None:
        try:
            self.plane.wait(what, within_s, words)
        except ControlPlaneError as error:
            error.add_note(self.controller.log[-2000:] if self.controller else "")
            raise

    def close(self) -> None:
        self.agents.close()
        if self.controller is not None:
            self.controller.stop()


@pytest.fixture
def site(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Site]:
    made = Site(control_plane, tmp_path)
    yield made
    made.close()


@pytest.fixture
def hyperpod() -> Iterator[AwsEndpoint]:
    with AwsEndpoint(moto=NOBODY, hyperpod=FakeHyperPod()).serving() as serving:
        yield serving


def test_hyperpod_replaces_the_machine_of_an_idle_node_once_and_the_new_node_owes_nothing(
    site: Site, hyperpod: AwsEndpoint
) -> None:
    """A pod that holds GPUs is waited for, and the record says so. Then one call; the old Node goes, its claim and
    request with it; the new Node has another name and no claim."""
    old = hyperpod.hyperpod.add("ip-10-1-2-3")
    site.node("n1", f"aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-{old}")
    site.node("n2", "aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-i-0fffffffffffffff0")
    gpus = [{"name": "main", "image": "x.invalid/none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    site.plane.add_pod("train-0", "n1", containers=gpus)
    site.start("hyperpod", hyperpod.url)
    site.asks("n1", old)
    site.wait(lambda: site.write_record("n1").answer is RequestAnswer.WAITS, "the request to wait for the pod")
    assert "not idle" in site.write_record("n1").message
    assert hyperpod.count("BatchReplaceClusterNodes") == 0
    site.plane.admin.delete("/api/v1/namespaces/default/pods/train-0", {"gracePeriodSeconds": 0}).must()
    site.wait(lambda: hyperpod.count("BatchReplaceClusterNodes") == 1, "the call")
    site.wait(lambda: site.write_record("n1").answer is RequestAnswer.TAKEN, "the answer")
    assert hyperpod.requests_for("BatchReplaceClusterNodes")[0]["NodeIds"] == [old]
    site.is_gone("n1")
    site.node("n3", "aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-i-0000000000000beef")
    site.wait(lambda: not site.plane.claims() and not site.write_record("n1").remediation_id, "claim and request to go")
    assert site.plane.record("n1").keys() == {"replaced", "history"}, "what bounds the fleet for a day"
    time.sleep(1.5)
    assert hyperpod.count("BatchReplaceClusterNodes") == 1
    assert site.fleet.numbers()[1:] == ("2", "")


def test_a_pod_that_cannot_end_on_a_dead_machine_is_not_waited_for(site: Site, hyperpod: AwsEndpoint) -> None:
    """It holds GPUs and is Terminating for ever, because no kubelet tells of its end. While the Node is Ready it is
    work, and past its grace too; once the Node is not, the machine is replaced."""
    old = hyperpod.hyperpod.add("ip-10-1-2-3")
    site.node("n1", f"aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-{old}")
    site.node("n2", "aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-i-0fffffffffffffff0")
    gpus = [{"name": "main", "image": "x.invalid/none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    site.plane.add_pod("train-0", "n1", containers=gpus)
    site.plane.admin.delete("/api/v1/namespaces/default/pods/train-0").must()
    ended_s = time.monotonic() + 1.0  # its grace
    site.start("hyperpod", hyperpod.url)
    site.asks("n1", old)
    site.wait(lambda: site.write_record("n1").answer is RequestAnswer.WAITS, "the request to wait for the pod")
    time.sleep(max(0.0, ended_s + LOST_S + 3.0 - time.monotonic()))
    assert hyperpod.count("BatchReplaceClusterNodes") == 0, "its kubelet may still tell of its end"
    down = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    site.plane.admin.patch("/api/v1/nodes/n1/status", down).must()
    site.wait(lambda: hyperpod.count("BatchReplaceClusterNodes") == 1, "the call")
    assert hyperpod.requests_for("BatchReplaceClusterNodes")[0]["NodeIds"] == [old]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("machine", "is behind the name now, and i-0123456789abcdef0 was meant"), ("claim", "no budget slot is held")],
)
def test_what_does_not_all_stand_for_the_act_is_refused(
    site: Site, hyperpod: AwsEndpoint, wrong: str, message: str
) -> None:
    """A record of another machine, or of a node without a claim: refused in the record, and nothing is called."""
    machine = hyperpod.hyperpod.add("ip-10-1-2-3")
    site.node("n1", f"aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-{machine}")
    site.start("hyperpod", hyperpod.url)
    if wrong == "machine":
        site.asks("n1", "i-0123456789abcdef0")
    else:
        asked = HandoffRecord(
            remediation_id="k3v9",
            machine=machine,
            remedy=Remedy.REPLACE_NODE,
            asks=True,
            attempt=1,
            asked=datetime.now(UTC),
        )
        site.agents("n1").write_record(asked.text)
    site.wait(lambda: site.write_record("n1").answer is RequestAnswer.REFUSED, "the refusal")
    assert message in site.write_record("n1").message
    assert hyperpod.count("BatchReplaceClusterNodes") == 0


def rounds_of(controller: FleetController) -> int:
    """How many rounds came to their end."""
    found = re.search(
        r'^healthd_controller_sync_seconds_count\{result="ok"\} ([0-9.]+)$', controller.page(), re.MULTILINE
    )
    return int(float(found[1])) if found is not None else 0


def test_the_agent_of_one_node_cannot_have_the_machine_of_another_replaced(site: Site, hyperpod: AwsEndpoint) -> None:
    """n1 is out for a repair that wants no other machine. A record of n1's is refused to n9's agent by the policy. In
    n9's own record a request for n1's machine is refused by the controller: nothing is called, and n1 has no record
    still."""
    machine = hyperpod.hyperpod.add("ip-10-1-2-3")
    site.node("n1", f"aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-{machine}")
    site.plane.add_node("n9")
    controller = site.start("hyperpod", hyperpod.url)
    victim = site.agents("n1")
    victim.claim("cluster", 0)
    victim.quarantine(REASON)
    asked = HandoffRecord(
        remediation_id="k3v9",
        machine=machine,
        remedy=Remedy.REPLACE_NODE,
        asks=True,
        attempt=1,
        asked=datetime.now(UTC),
    )
    head = {"apiVersion": "healthd.io/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "n1"}}
    hostile = site.plane.client(site.plane.agent_token("n9"))
    answer = hostile.post(f"{HEALTHS}?fieldManager=healthd-agent", {**head, "record": record_of(asked)})
    assert (answer.status, "the NodeHealth of its own node" in answer.message) == (422, True), answer
    site.agents("n9").write_record(asked.text)
    site.wait(lambda: site.write_record("n9").answer is RequestAnswer.REFUSED, "the refusal to n9")
    rounds = rounds_of(controller)
    site.wait(lambda: rounds_of(controller) >= rounds + 3, "three more rounds")
    assert hyperpod.count("BatchReplaceClusterNodes") == 0
    assert site.write_record("n1") == HandoffRecord()


def test_a_reboot_shows_as_another_boot_id_of_the_kubelet(site: Site, hyperpod: AwsEndpoint) -> None:
    """Asked of HyperPod once; done when the kubelet reports another boot."""
    machine = hyperpod.hyperpod.add("ip-10-1-2-3")
    site.node("n1", f"aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-{machine}")

    def booted(boot: str) -> None:
        """As the kubelet reports it; the other fields are required by the API."""
        names = (
            "machineID systemUUID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion"
            " operatingSystem architecture"
        )
        info = {**dict.fromkeys(names.split(), "x"), "bootID": boot}
        site.plane.admin.patch("/api/v1/nodes/n1/status", {"status": {"nodeInfo": info}}).must()

    booted("b-1")
    controller = site.start("hyperpod", hyperpod.url)
    site.asks("n1", machine, Remedy.REBOOT_NODE)
    site.wait(lambda: hyperpod.count("BatchRebootClusterNodes") == 1, "the call")
    time.sleep(2.5)
    assert "rebooted" not in controller.log
    booted("b-2")
    site.wait(lambda: "rebooted: boot id b-1 became b-2" in controller.log, "the evidence")
    assert hyperpod.count("BatchRebootClusterNodes") == 1


def test_an_auto_scaling_group_launches_a_substitute(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """EKS's managed node group: the instance of the providerID is terminated, the group keeps its size."""
    for name, value in dummy_env(str(tmp_path / "none")).items():
        monkeypatch.setenv(name, value)
    with moto_serving() as moto, AwsEndpoint(moto=moto).serving() as aws:
        ec2, scaling = (boto3.client(name, region_name=REGION, endpoint_url=aws.url) for name in ("ec2", "autoscaling"))
        image = ec2.describe_images()["Images"][0]["ImageId"]
        scaling.create_launch_configuration(
            LaunchConfigurationName="p5", ImageId=image, InstanceType="p5.48xlarge", KeyName="none"
        )
        scaling.create_auto_scaling_group(
            AutoScalingGroupName="eks-p5",
            LaunchConfigurationName="p5",
            MinSize=2,
            MaxSize=2,
            DesiredCapacity=2,
            AvailabilityZones=[f"{REGION}a"],
        )

        def serving() -> list[str]:
            (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["eks-p5"])["AutoScalingGroups"]
            assert group["DesiredCapacity"] == 2
            return [each["InstanceId"] for each in group["Instances"]]

        old, other = serving()
        site.node("n1", f"aws:///{REGION}a/{old}")
        site.node("n2", f"aws:///{REGION}a/{other}")
        site.start("autoscaling", aws.url)
        site.asks("n1", old)
        site.wait(lambda: aws.count("TerminateInstanceInAutoScalingGroup") == 1, "the call")
        site.wait(lambda: site.write_record("n1").answer is RequestAnswer.TAKEN, "the answer")
        assert old not in serving()
        assert len(serving()) == 2
        site.is_gone("n1")
        site.wait(lambda: not site.plane.claims(), "the claim to go")
        assert aws.count("TerminateInstanceInAutoScalingGroup") == 1


def node_claim(site: Site, name: str, instance: str) -> None:
    """As Karpenter leaves it, with its finalizer."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert site.plane.admin.post(crd, NODE_CLAIMS).status in (201, 409)
    path = "/apis/karpenter.sh/v1/nodeclaims"
    body: dict[str, Any] = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "finalizers": ["karpenter.sh/termination"]},
    }
    site.plane.wait(lambda: site.plane.admin.post(path, body).status in (201, 409), 15, "the kind NodeClaim")
    status = {"status": {"providerID": f"aws:///{REGION}a/{instance}", "nodeName": "n1"}}
    site.plane.admin.patch(f"{path}/{name}/status", status, kind="merge").must()


def deleting(site: Site, name: str) -> bool:
    found = site.plane.admin.get(f"/apis/karpenter.sh/v1/nodeclaims/{name}").must()
    return "deletionTimestamp" in found["metadata"]


@pytest.fixture
def claims(site: Site) -> Iterator[None]:
    """Two NodeClaims, which go with the test; their kind stays for the session."""
    node_claim(site, "p5-a", "i-0aaaaaaaaaaaaaaa1")
    node_claim(site, "p5-b", "i-0bbbbbbbbbbbbbbb2")
    yield
    for name in ("p5-a", "p5-b"):
        path = f"/apis/karpenter.sh/v1/nodeclaims/{name}"
        site.plane.admin.patch(path, {"metadata": {"finalizers": None}}, kind="merge").must()
        site.plane.admin.delete(path)


@pytest.mark.usefixtures("claims")
@pytest.mark.parametrize("by_repair", [False, True])
def test_karpenter_ends_the_node_claim_of_this_machine_and_no_other(site: Site, by_repair: bool) -> None:
    """The NodeClaim whose providerID is the Node's is deleted, once, also where Karpenter's own repair was first."""
    site.node("n1", f"aws:///{REGION}a/i-0aaaaaaaaaaaaaaa1")
    site.node("n2", f"aws:///{REGION}a/i-0bbbbbbbbbbbbbbb2")
    if by_repair:
        site.plane.admin.delete("/apis/karpenter.sh/v1/nodeclaims/p5-a").must()
    site.start("karpenter")
    site.asks("n1", "i-0aaaaaaaaaaaaaaa1")
    wanted = RequestAnswer.WAITS if by_repair else RequestAnswer.TAKEN
    site.wait(lambda: site.write_record("n1").answer is wanted, "the answer")
    time.sleep(1.0)
    assert (deleting(site, "p5-a"), deleting(site, "p5-b")) == (True, False)
    assert ("Karpenter ends NodeClaim p5-a already" in site.write_record("n1").message) is by_repair


@pytest.mark.usefixtures("claims")
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_node_that_opted_out_is_asked_in_vain_until_it_opts_in(site: Site, where: str) -> None:
    """A label or an annotation of the Node: its request is neither carried out nor answered; without it, it is."""

    def opt_out(value: str | None) -> None:
        body = {"metadata": {where: {"healthd.io/opt-out": value}}}
        site.plane.admin.patch("/api/v1/nodes/n1", body, kind="merge").must()

    site.node("n1", f"aws:///{REGION}a/i-0aaaaaaaaaaaaaaa1")
    controller = site.start("karpenter")
    opt_out("yes")
    site.asks("n1", "i-0aaaaaaaaaaaaaaa1")
    before = site.agents("n1").read_record()
    words = "opted out: the node has the label or annotation healthd.io/opt-out"
    site.wait(lambda: words in controller.log, "the refusal")
    time.sleep(1.5)
    assert (deleting(site, "p5-a"), site.agents("n1").read_record()) == (False, before)
    opt_out("false" if where == "labels" else None)
    site.wait(lambda: deleting(site, "p5-a"), "the NodeClaim to be deleted once the node opted in")
