"""The whole way on a real API server: XID 79 on one of eight nodes, and another machine in its place.

The agents and the controller are real processes with the rights that the chart gives them. The platform's hand is the
test's, which looks at what the platform would look at and at nothing else: HyperPod's label, EKS's condition, or an
Auto Scaling endpoint (moto). What comes is a Node of another name and another providerID.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from msgspec import Struct, field

from healthd.core.errors import BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.provisioners.own_node import OwnNodeProvisioner
from healthd.remediation.provisioners.target_node import TargetNode
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.live.aws.moto_server import dummy_env, moto_serving
from tests.live.kubernetes.agent_node import AgentNode
from tests.live.kubernetes.agent_rig import Agents, add_leases
from tests.live.kubernetes.control_plane import ControlPlane, ControlPlaneError
from tests.live.kubernetes.fleet_controller import Fleet, FleetController
from tests.live.kubernetes.kubelet_socket import pod
from tests.support.imds import Imds
from tests.support.running import OFF_THE_BUS

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

PCI = "0000:05:00"
NAMES = tuple(f"n{number}" for number in range(1, 9))
LABEL, CONDITION = "sagemaker.amazonaws.com/node-health-status", "AcceleratedHardwareReady"
UNVERIFIED = {"key": "healthd.io/unverified", "effect": "NoSchedule"}
GPUS = [{"name": "main", "image": "registry.invalid/none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
CONTROLLER = """
[budget]
max_out = 2
[[controller.drain]]
name = "train"
mode = "evict"
namespaces = ["default"]
unmanaged = true
"""
BY_LABEL = """
[policy]
use = "replace-first"
canary_repairs = 0
[provisioner]
kind = "hyperpod"
[provisioner.hyperpod]
how = "label"
"""
BY_CONDITION = """
[policy]
use = "replace-first"
canary_repairs = 0
[provisioner]
kind = "eks"
"""
REBOOT_FIRST = BY_CONDITION.replace("replace-first", "nvidia")
BY_GROUP = """
[policy]
use = "replace-first"
canary_repairs = 0
[provisioner]
kind = "autoscaling"
act_from = "controller"
[provisioner.aws]
region = "{region}"
endpoint_url = "{url}"
timeout_s = 10
"""


class Witness(Struct):
    """What a watch of n1 saw happen, each once and in its order; ``asked`` counts how often somebody was asked."""

    seen: list[str] = field(default_factory=list)
    asked: int = 0
    _before: str = ""

    def look(self, event: dict[str, Any]) -> None:
        node = event["object"]
        taints = {taint["key"] for taint in node["spec"].get("taints", [])}
        order = _order_in(node)
        self.asked += bool(order) and order != self._before
        self._before = order
        for what, there in (
            ("fenced", "healthd.io/claimed" in taints),
            ("tainted", "healthd.io/unhealthy" in taints),
            ("asked", bool(order)),
            ("deleted", event["type"] == "DELETED"),
        ):
            if there and what not in self.seen:
                self.seen.append(what)


def _order_in(node: dict[str, Any]) -> str:
    """What its platform takes for an order in this Node, or ""."""
    label = node["metadata"]["labels"].get(LABEL, "Schedulable")
    if label != "Schedulable":
        return str(label)
    conditions = [each for each in node["status"]["conditions"] if each["type"] == CONDITION]
    return "".join(str(each["reason"]) for each in conditions if each["status"] == "False")


class Cluster:
    """Eight nodes, a training job on the first with a PodDisruptionBudget, and a controller."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        machines: Callable[[str], str] | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        self.plane, self.folder, self.fleet, self.witness = plane, folder, Fleet(plane), Witness()
        for name in NAMES:
            plane.add_node(name, labels={LABEL: "Schedulable"} | (labels or {}))
            if machines is not None:
                self.is_machine(name, machines(name))
        plane.add_pod("train-0", "n1", containers=GPUS)
        self.fleet.protect("train")
        self.controller: FleetController | None = None
        self.agents: list[AgentNode] = []
        self._watch = threading.Thread(target=self._watching)
        self._watch.start()

    def _watching(self) -> None:
        client = self.plane.client(self.plane.admin_token, timeout_s=200.0)
        with contextlib.suppress(OSError):
            for event in client.watch("/api/v1/nodes?watch=1&fieldSelector=metadata.name=n1&timeoutSeconds=180"):
                self.witness.look(event)
                if event["type"] == "DELETED":
                    return

    def is_machine(self, name: str, instance: str, **changes: Any) -> None:
        """A Node of this machine in the place of the one of this name: a providerID never changes."""
        made = self.plane.admin.get(f"/api/v1/nodes/{name}").must()
        self.plane.admin.delete(f"/api/v1/nodes/{name}").must()
        spec = {"providerID": f"aws:///{REGION}a/{instance}"}
        meta = {"name": name, "labels": made["metadata"]["labels"]}
        self.plane.admin.post("/api/v1/nodes", {"metadata": meta, "spec": spec, "status": made["status"]}).must()
        taints: dict[str, Any] = {"spec": {"taints": [], **changes}}
        self.plane.admin.patch(f"/api/v1/nodes/{name}", taints, kind="merge").must()

    def start(self, provisioner: str) -> FleetController:
        folder = self.folder / "controller"
        folder.mkdir()
        more = CONTROLLER + provisioner
        self.controller = FleetController(
            self.plane, folder, more, environ=dummy_env(str(self.folder / "none"))
        ).start()
        self.wait(lambda: self.fleet.numbers()[:2] == ("2", "8"), "eight nodes to be counted")
        return self.controller

    def agent(self, name: str, provisioner: str, *, imds: str = "") -> AgentNode:
        """A daemon with an empty store on this node."""
        kmsg = self.folder / name / "kmsg"
        sources = f'[sources]\nkmsg = "{kmsg}"\nimds_endpoint = "{imds}"\n' if imds else ""
        environ = {"AWS_EC2_METADATA_DISABLED": "false"} if imds else {}
        agent = AgentNode(self.plane, name, self.folder, mode="repair", more=provisioner + sources, **environ)
        agent.kubelet.__enter__()
        self.agents.append(agent)
        agent.daemon.start()
        return agent

    def wait(self, what: Callable[[], object], words: str, within_s: float = 60.0) -> None:
        try:
            self.plane.wait(what, within_s, words)
        except ControlPlaneError as error:
            error.add_note(f"saw: {self.witness}")
            error.add_note(self.controller.log[-3000:] if self.controller else "")
            for agent in self.agents:
                error.add_note(f"{agent.name}: {agent.daemon.log_text()[-3000:]}")
            raise

    # -- the three parts that are the same, whoever replaces the machine ---------------------------------------------

    def breaks(self, agent: AgentNode, asked: Callable[[], int]) -> None:
        """XID 79: taint, condition, event. The job's budget is respected for as long as it says no; nobody is asked for
        a machine meanwhile. Once another pod of it runs, the job leaves, and only then is one asked for, once."""
        agent.kubelet.pods = [pod("train-0", devices={"nvidia.com/gpu": 8})]
        agent.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
        self.wait(lambda: "healthd.io/unhealthy" in agent.taints(), "n1 to be tainted")
        assert self.plane.claims() == {"n1"}
        self.wait(lambda: agent.condition("HealthdGPU") == "False GpuXid79", "the condition")
        assert ("n1", "GpuXid79") in self.events()
        assert self.controller is not None
        log = self.controller
        self.wait(lambda: "its PodDisruptionBudget allows no disruption now" in log.log, "the budget to say no")
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:  # several rounds of the controller, and turns of the agent
            assert (self.fleet.pods() & {"train-0"}, asked(), self.witness.asked) == ({"train-0"}, 0, 0)
            time.sleep(0.2)
        self.wait(lambda: "waiting for default/train-0 to end" in agent.daemon.log_text(), "the agent to say so")
        self.plane.add_pod("train-1", "n2", containers=GPUS)
        self.wait(lambda: "train-0" not in self.there("pods"), "train-0 to be evicted, and gone")
        assert (asked(), self.witness.asked) == (0, 0)  # its kubelet has the GPUs in use still
        agent.kubelet.pods = []

    def machine_ends(self, agent: AgentNode) -> None:
        """With its daemon, without a word; then its Node is deleted, as each of the three platforms does."""
        agent.daemon.kill()
        self.plane.admin.delete("/api/v1/nodes/n1").must()

    def another_comes(self, provisioner: str, *, instance: str = "", imds: str = "") -> None:
        """A Node of another name that registers with the start-up taint; a new daemon finds it well and lets pods in,
        and the claim of the one that is gone is released. It takes nothing out and asks for nothing."""
        self.plane.add_node("n9", labels={LABEL: "Schedulable"}, taints=[UNVERIFIED])
        if instance:
            self.is_machine("n9", instance, taints=[UNVERIFIED])
        self.wait(lambda: not self.plane.claims(), "the claim of n1 to be released")
        assert {taint["key"] for taint in self.node("n9")["spec"]["taints"]} == {UNVERIFIED["key"]}
        new = self.agent("n9", provisioner, imds=imds)
        self.wait(lambda: not new.taints(), "n9 to be verified")
        self.wait(lambda: new.condition("HealthdGPU").startswith("True"), "n9 to say so")
        assert "intends" not in new.daemon.log_text()
        self.wait(lambda: self.fleet.numbers() == ("2", "8", ""), "eight nodes, none of them out")
        assert (self.plane.claims(), self.fleet.tainted()) == (set(), set())
        assert [name for name in (*NAMES[1:], "n9") if self.node(name)["spec"].get("taints")] == []
        assert self.there("pods") == {"train-1"}

    # -- the cluster --------------------------------------------------------------------------------------------------

    def node(self, name: str) -> dict[str, Any]:
        return self.plane.admin.get(f"/api/v1/nodes/{name}").must()

    def there(self, kind: str) -> set[str]:
        items = self.plane.admin.get(f"/api/v1/namespaces/default/{kind}").must()["items"]
        return {each["metadata"]["name"] for each in items}

    def orders(self) -> dict[str, str]:
        """What a platform finds that looks at every Node."""
        items = self.plane.admin.get("/api/v1/nodes").must()["items"]
        return {each["metadata"]["name"]: order for each in items if (order := _order_in(each))}

    def events(self) -> set[tuple[str, str]]:
        items = self.plane.admin.get("/apis/events.k8s.io/v1/namespaces/default/events").must()["items"]
        return {(each["regarding"]["name"], each["reason"]) for each in items}

    def close(self) -> None:
        for agent in self.agents:
            agent.daemon.stop()
            agent.kubelet.__exit__()
        if self.controller is not None:
            self.controller.stop()
        if self._watch.is_alive():
            self.plane.admin.delete("/api/v1/nodes/n1")
        self._watch.join()


@pytest.fixture
def opened(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes the cluster, with a kubelet's hand that ends what is evicted."""
    made: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        made.append(Cluster(control_plane, tmp_path, **settings))
        return made[-1]

    with control_plane.reaping():
        yield make
        for each in made:
            each.close()


@pytest.mark.parametrize(
    ("provisioner", "order", "platform", "labels"),
    [
        (BY_LABEL, "UnschedulablePendingReplacement", "hyperpod", {}),
        (BY_CONDITION, "NvidiaXID79Error", "eks", {}),
        (REBOOT_FIRST, "NvidiaXID79Error", "eks", {"karpenter.sh/nodepool": "gpu"}),
    ],
    ids=["label", "condition", "condition, Karpenter"],
)
def test_a_node_asks_its_platform_by_its_own_node_and_is_replaced(
    opened: Callable[..., Cluster], provisioner: str, order: str, platform: str, labels: dict[str, str]
) -> None:
    """Fenced, tainted, drained, and asked for once, by the node's own agent; the others are not touched. On a Node that
    Karpenter made no reboot comes first, whatever the policy says."""
    cluster = opened(labels=labels)
    controller = cluster.start(provisioner)
    agent = cluster.agent("n1", provisioner)
    cluster.breaks(agent, lambda: len(cluster.orders()))
    cluster.wait(lambda: cluster.orders() == {"n1": order}, f"{platform} to be asked")
    message = agent.daemon.log_text()
    steps = ["intends to take a slot and to drain", "drained: ", "idle: ", "evidence collected", "intends to replace"]
    assert [message.count(words) for words in steps] == [1] * len(steps), message
    assert [message.index(words) for words in steps] == sorted(message.index(words) for words in steps)
    agent.daemon.wait(lambda: "the node shows" in agent.daemon.log_text(), 20, "the request read back")
    time.sleep(2.0)
    assert cluster.plane.claims() == {"n1"}
    cluster.machine_ends(agent)
    cluster.another_comes(provisioner)
    assert cluster.witness.seen == ["fenced", "tainted", "asked", "deleted"]
    assert cluster.witness.asked == 1
    assert cluster.orders() == {}
    assert "replaced" in cluster.plane.record("n1")  # counted for an hour
    assert f"nodes ask {platform} through their own Node object" in controller.log


def test_the_controller_has_an_auto_scaling_group_launch_another(
    opened: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same, where the machine is replaced by a call to AWS: one, for the instance of the providerID."""
    for name, value in dummy_env(str(tmp_path / "none")).items():
        monkeypatch.setenv(name, value)
    with moto_serving() as moto, AwsEndpoint(moto=moto).serving() as aws, contextlib.ExitStack() as held:
        members = node_group(aws, size=8)
        before = members()
        machines = dict(zip(NAMES, before, strict=True))
        cluster = opened(machines=machines.__getitem__)
        provisioner = BY_GROUP.format(region=REGION, url=aws.url)
        cluster.start(provisioner)
        aws.node_repair["train/p5"] = False
        agent = cluster.agent("n1", provisioner, imds=held.enter_context(metadata(machines["n1"])))
        cluster.breaks(agent, lambda: aws.count("TerminateInstanceInAutoScalingGroup"))
        cluster.wait(lambda: aws.count("TerminateInstanceInAutoScalingGroup") == 1, "the call")
        (message,) = aws.requests_for("TerminateInstanceInAutoScalingGroup")
        assert (message["InstanceId"], message["ShouldDecrementDesiredCapacity"]) == (machines["n1"], "false")
        cluster.wait(lambda: machines["n1"] not in members() and len(members()) == 8, "the group to be whole")
        (new,) = set(members()) - set(before)
        cluster.machine_ends(agent)
        cluster.another_comes(provisioner, instance=new, imds=held.enter_context(metadata(new)))
        assert cluster.witness.seen == ["fenced", "tainted", "deleted"]
        assert [name for name, _ in aws.applied if name.startswith(("Terminate", "Set", "Reboot"))] == [
            "TerminateInstanceInAutoScalingGroup"
        ]
        cluster.wait(lambda: "remediationID" not in cluster.plane.record("n1"), "the request to go")


def test_a_group_that_eks_repairs_itself_is_refused_and_the_condition_is_named(
    opened: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The controller reads it from EKS and calls nothing; the node's record says what to set."""
    for name, value in dummy_env(str(tmp_path / "none")).items():
        monkeypatch.setenv(name, value)
    with moto_serving() as moto, AwsEndpoint(moto=moto).serving() as aws, contextlib.ExitStack() as held:
        machines = dict(zip(NAMES, node_group(aws, size=8)(), strict=True))
        cluster = opened(machines=machines.__getitem__)
        cluster.plane.admin.delete("/api/v1/namespaces/default/pods/train-0", {"gracePeriodSeconds": 0}).must()
        aws.node_repair["train/p5"] = True
        provisioner = BY_GROUP.format(region=REGION, url=aws.url)
        cluster.start(provisioner)
        agent = cluster.agent("n1", provisioner, imds=held.enter_context(metadata(machines["n1"])))
        agent.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
        cluster.wait(lambda: "EKS node auto-repair is on for node group p5" in agent.daemon.log_text(), "the refusal")
        assert aws.count("TerminateInstanceInAutoScalingGroup") == 0
        assert "set [provisioner] kind : 'eks'" in agent.daemon.log_text()  # as a record can hold it


@pytest.mark.parametrize(
    ("provisioner", "status", "labels", "words"),
    [
        (
            BY_CONDITION,
            {"type": "KernelReady", "status": "True"},
            {},
            "eks-node-monitoring-agent, which writes KernelReady",
        ),
        (
            BY_CONDITION,
            {"type": CONDITION, "status": "True", "reason": "Ready", "message": "Monitoring is active"},
            {},
            f"another writer, which set {CONDITION}=True",
        ),
        (BY_LABEL, {}, {LABEL: "UnschedulablePendingReboot"}, "HyperPod acts on the node already"),
        (BY_LABEL, {}, {LABEL: None}, "it is not a node of HyperPod"),
    ],
    ids=["monitoring agent", "its condition", "HyperPod at it", "not of HyperPod"],
)
def test_who_speaks_for_the_node_already_is_left_alone(
    opened: Callable[..., Cluster], provisioner: str, status: dict[str, str], labels: dict[str, str | None], words: str
) -> None:
    """The node is taken out, waits, and says for whom; nothing of theirs is written over."""
    cluster = opened()
    path, admin = "/api/v1/nodes/n1", cluster.plane.admin
    admin.delete("/api/v1/namespaces/default/pods/train-0", {"gracePeriodSeconds": 0}).must()
    if status:
        admin.patch(f"{path}/status", {"status": {"conditions": [status]}}).must()
    admin.patch(path, {"metadata": {"labels": labels}}, kind="merge").must()
    cluster.start(provisioner)
    before = shown(cluster.node("n1"))
    agent = cluster.agent("n1", provisioner)
    agent.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
    cluster.wait(lambda: words in agent.daemon.log_text(), "the refusal")
    time.sleep(2.0)
    assert shown(cluster.node("n1")) == before
    assert "healthd.io/unhealthy" in agent.taints()
    assert "intends to replace" not in agent.daemon.log_text()


@pytest.mark.parametrize("code", ["gpu.xid.95", "gpu.ecc.row_remap_failed", "operator.repair"])
def test_of_karpenter_another_machine_is_asked_whatever_was_found(
    control_plane: ControlPlane, tmp_path: Path, code: str
) -> None:
    """By the agent's own token and the policies; of a node that Karpenter did not make, the policies refuse it."""
    control_plane.add_node("n1", labels={"karpenter.sh/nodepool": "gpu"})
    add_leases(control_plane)
    agents = Agents(control_plane, tmp_path)
    agent = agents("n1")
    try:
        asking = by_own_node(agent, "eks")
        agent.claim("cluster", 0)
        agent.quarantine(f"healthd: {code} gpu:GPU-1 [k3v9]")
        assert "replaces it on any request" in asking.reason_against(Remedy.REBOOT_NODE)
        asking.replace()
        assert _order_in(control_plane.admin.get("/api/v1/nodes/n1").must()) != ""
        assert asking.take_back(carried_out=False)
        gone = {"metadata": {"labels": {"karpenter.sh/nodepool": None}}}
        control_plane.admin.patch("/api/v1/nodes/n1", gone, kind="merge").must()
        asked = {"type": CONDITION, "status": "False", "reason": "OperatorRepair", "message": "healthd: x"}
        with pytest.raises(BackendRefused, match="may ask EKS by a condition of its own"):
            agent.change_own(lambda _: {"status": {"conditions": [asked]}}, status=True)
    finally:
        agents.close()


@pytest.mark.parametrize("ends", ["release", "give back"])
@pytest.mark.parametrize("kind", ["hyperpod", "eks"])
def test_what_was_asked_for_goes_with_the_drain_or_the_last_place(
    control_plane: ControlPlane, tmp_path: Path, kind: str, ends: str
) -> None:
    """By the agent's own token and the policies: asked for once, recalled where that is in time, and nothing is left
    over a node that is let in, or whose remediation ended in another way."""
    control_plane.add_node("n1", labels={LABEL: "Schedulable"})
    add_leases(control_plane)
    agents = Agents(control_plane, tmp_path)
    agent, path = agents("n1"), "/api/v1/nodes/n1"

    def node() -> dict[str, Any]:
        return control_plane.admin.get(path).must()

    try:
        asking = by_own_node(agent, kind)
        agent.claim("cluster", 0)
        agent.quarantine("healthd: gpu.xid.79 gpu:GPU-1 [k3v9]")
        asking.replace()
        before = node()
        assert _order_in(before) == {"hyperpod": "UnschedulablePendingReplacement", "eks": "NvidiaXID79Error"}[kind]
        asking.replace()
        assert node()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        assert asking.take_back(carried_out=False) is (kind == "eks")
        assert (_order_in(node()) == "") is (kind == "eks")
        if ends == "release":
            agent.release(resume=False)
        else:
            (place,) = agent.slots()
            agent.give_back(place)
        after = node()
        assert _order_in(after) == ""
        assert after["metadata"]["labels"][LABEL] == "Schedulable"
        assert "healthd.io/asked" not in after["metadata"].get("annotations", {})
        found = {each["type"]: each["status"] for each in after["status"]["conditions"]}
        assert found.get(CONDITION) == (None if kind == "hyperpod" else "True")
        assert found["Ready"] == "True"
    finally:
        agents.close()


def by_own_node(agent: KubernetesOrchestrator, kind: str) -> OwnNodeProvisioner:
    """The provisioner of this node, which asks its platform by its own Node."""
    subject = TargetNode(node="n1", here=False)
    return OwnNodeProvisioner(kind=kind, subject=subject, node=agent, read=agent.read_record, hint="")


def shown(node: dict[str, Any]) -> tuple[str | None, list[dict[str, Any]]]:
    """HyperPod's label, and the conditions that are neither the kubelet's nor healthd's."""
    conditions = [each for each in node["status"]["conditions"] if not each["type"].startswith(("Healthd", "Ready"))]
    return node["metadata"]["labels"].get(LABEL), conditions


@contextlib.contextmanager
def metadata(instance: str) -> Iterator[str]:
    """The instance metadata service of one machine; gives its address."""
    imds = Imds({"instance-id": instance, "instance-type": "m5.large", "placement/region": REGION})  # no GPU here
    thread = threading.Thread(target=imds.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield imds.endpoint
    finally:
        imds.shutdown()
        thread.join()
        imds.server_close()


def node_group(aws: AwsEndpoint, *, size: int) -> Callable[[], list[str]]:
    """A managed node group's Auto Scaling group, tagged as EKS tags its own; gives who is in it, oldest first."""
    ec2, scaling = (boto3.client(name, region_name=REGION, endpoint_url=aws.url) for name in ("ec2", "autoscaling"))
    image = ec2.describe_images()["Images"][0]["ImageId"]
    scaling.create_launch_configuration(
        LaunchConfigurationName="p5", ImageId=image, InstanceType="p5.48xlarge", KeyName="none"
    )
    tags = {"eks:cluster-name": "train", "eks:nodegroup-name": "p5"}
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="eks-p5",
        LaunchConfigurationName="p5",
        MinSize=size,
        MaxSize=size,
        DesiredCapacity=size,
        AvailabilityZones=[f"{REGION}a"],
        Tags=[
            {"Key": key, "Value": value, "ResourceId": "eks-p5", "PropagateAtLaunch": True}
            for key, value in tags.items()
        ],
    )

    def members() -> list[str]:
        (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["eks-p5"])["AutoScalingGroups"]
        return [each["InstanceId"] for each in group["Instances"]]

    return members
