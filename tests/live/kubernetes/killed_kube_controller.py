"""Lives of ``healthd controller``, for ``killed_kube_lives``: a node asks, its pod is evicted, its machine is repaired.

Each has a namespace of its own, with its Leases, two nodes and two pods; the second of each is nobody's to touch.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any, ClassVar

import boto3

from healthd.core.model import Remedy
from healthd.remediation.decide.fleet import that_counts
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, parse
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.live.aws.fake_hyperpod import CLUSTER, FakeHyperPod, FakeNode
from tests.live.kubernetes.agent_rig import write_kubeconfig
from tests.live.kubernetes.killed_kube_lives import Ending, KubeLife, with_rights
from tests.live.platforms.killed_agent import Rest

REASON = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"


class ControllerLife(KubeLife):
    """A node asks, in a namespace of its own; the controller evicts its pod and has its machine replaced."""

    kind: ClassVar[str] = "hyperpod"
    remedy: ClassVar[Remedy] = Remedy.REPLACE_NODE
    call: ClassVar[str] = "BatchReplaceClusterNodes"
    attempt = 1
    carried_out = 0

    def begins(self) -> None:
        plane, self.endpoint = self.stage.plane, self.platform()
        self._serving = self.endpoint.serving()
        self._serving.__enter__()
        self.instance, self.other_instance = self.instances()
        plane.add_namespace(self.node)
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.node}/leases"
        self._add_node(self.node, self.instance)
        self._add_node(f"{self.node}-other", self.other_instance)
        self.other = self._pod("other-0", f"{self.node}-other")
        budget = {"limit": "1", "nodes": "2", "out": ""}
        for lease, notes in (("healthd-budget", budget), ("healthd-controller", {})):
            meta = {"name": lease, "annotations": {f"healthd.io/{key}": value for key, value in notes.items()}}
            plane.admin.post(self._leases, {"metadata": meta}).must()
        self.agent = with_rights(plane, self.node, self.node)
        self.agent.claim("cluster", 0)
        self.agent.quarantine(REASON)
        self._asks()
        self.train = self._pod("train-0", self.node)
        self.prepares()
        self.is_followed()

    def platform(self) -> AwsEndpoint:
        """Who stands for AWS."""
        return AwsEndpoint(moto=self.stage.moto, hyperpod=FakeHyperPod(delay_s=3600))

    def instances(self) -> tuple[str, str]:
        """The two machines: of this life and nobody else's, because NodeClaims are of the whole cluster."""
        mine, other = (f"i-{uuid.uuid4().hex[:17]}" for _ in range(2))
        self.endpoint.hyperpod.nodes.append(FakeNode(id=mine, host="ip-10-1-2-3", launched=1_700_000_000.0))
        return mine, other

    def prepares(self) -> None:
        """What else this platform has."""

    def is_followed(self) -> None:
        self.machines += 1
        (self.machine / "controller").mkdir(parents=True)
        (self.machine / "config.toml").write_text(self.configuration())

    def goes_on(self, rest: Rest) -> bool:
        """The kubelet ends what was evicted and the pod's owner makes it anew elsewhere, under its name; the platform
        does what it was asked for; a node whose request came to nothing asks once more."""
        if self.others_play():
            return True
        if self.carried_out:
            return False
        if self.answer() is RequestAnswer.TAKEN:
            self.asks_again()
        return True

    def others_play(self) -> bool:
        """Whether kubelet, owner or platform had something to do."""
        if self._is_terminating("train-0"):
            options = {"gracePeriodSeconds": 0}
            self.stage.plane.admin.delete(f"/api/v1/namespaces/{self.node}/pods/train-0", options).must()
            self.again = self._pod("train-0", f"{self.node}-other")
        elif self.asked() > self.carried_out:
            self.carried_out += 1
            self.carries_out()
        else:
            return False
        return True

    def answer(self) -> RequestAnswer | None:
        """What the node's record says of its request."""
        record = parse(self.agent.read_record())
        return record.answer if record is not None else None

    def asks_again(self) -> None:
        """As a node whose request came to nothing."""
        self.attempt += 1
        self._asks()

    def asked(self) -> int:
        """How often the platform was asked for what was wanted."""
        return sum(1 for name, _ in self.endpoint.applied if name == self.call)

    def carries_out(self) -> None:
        """The machine ends, and its Node with it."""
        self.stage.plane.admin.delete(f"/api/v1/nodes/{self.node}").must()

    def _asks_still(self) -> bool:
        """Whether more is left of the handoff record than what bounds the fleet for a day."""
        text = self.stage.plane.records().get(self.node, "")
        return that_counts(text, datetime.now(UTC)) != text

    def ending(self) -> Ending:
        plane, leases = self.stage.plane, self._leases
        notes = plane.notes(leases=leases)
        uids = [self._uid("other-0") == self.other, self._uid("train-0") == self.again]
        return Ending(
            left=(
                *sorted(key for key in notes if key.endswith(f"/{self.node}")),
                *(["request"] if self._asks_still() else []),
                *([] if all(uids) else [f"pods are others: {uids}"]),
                *self.left(),
            ),
            counted=(
                ("asked", self.asked()),
                ("evicted", self.stage.writes(self.since, '"Eviction"', path=f"/{self.node}/pods/")),
                ("patched nodes", self.stage.writes(self.since, "", path="^/api/v1/nodes/")),
            ),
        )

    def left(self) -> tuple[str, ...]:
        """What else should not be there."""
        return ()

    def close(self) -> None:
        self._serving.__exit__(None, None, None)
        self.agent.close()
        plane, at_once = self.stage.plane, {"gracePeriodSeconds": 0}
        for name in ("other-0", "train-0"):
            plane.admin.delete(f"/api/v1/namespaces/{self.node}/pods/{name}", at_once)
        for name in (self.node, f"{self.node}-other"):
            plane.admin.delete(f"/api/v1/nodes/{name}")

    # -- parts --------------------------------------------------------------------------------------------------------

    def _asks(self) -> None:
        now = datetime.now(UTC)
        self.agent.write_record(
            HandoffRecord(
                remediation_id="k3v9",
                machine=self.instance,
                remedy=self.remedy,
                asks=True,
                attempt=self.attempt,
                asked=now,
            ).text
        )

    def _add_node(self, name: str, instance: str) -> None:
        """A Node of this machine, that counts in this life alone."""
        plane = self.stage.plane
        made = plane.add_node(name)
        plane.admin.delete(f"/api/v1/nodes/{name}").must()
        spec = {"providerID": f"aws:///usw2-az1/sagemaker/cluster/hyperpod-abc-{instance}"}
        labels = {**made["metadata"]["labels"], "life": self.node}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": made["status"]}
        plane.admin.post("/api/v1/nodes", body).must()
        untainted: dict[str, Any] = {"spec": {"taints": []}}
        plane.admin.patch(f"/api/v1/nodes/{name}", untainted, kind="merge").must()

    def _pod(self, name: str, node: str) -> str:
        """A pod that holds GPUs; returns its UID."""
        gpus = [{"name": "main", "image": "x.invalid/none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
        made = self.stage.plane.add_pod(name, node, namespace=self.node, containers=gpus)
        return str(made["metadata"]["uid"])

    def _uid(self, name: str) -> str:
        answer = self.stage.plane.admin.get(f"/api/v1/namespaces/{self.node}/pods/{name}")
        alive = answer.ok and "deletionTimestamp" not in answer.body["metadata"]
        return str(answer.body["metadata"]["uid"]) if alive else ""

    def _is_terminating(self, name: str) -> bool:
        answer = self.stage.plane.admin.get(f"/api/v1/namespaces/{self.node}/pods/{name}")
        return answer.ok and "deletionTimestamp" in answer.body["metadata"]

    def configuration(self) -> str:
        plane, account = self.stage.plane, self.machine / "account"
        ca_file, url = self.stage.proxy.certs / "apiserver.crt", self.stage.proxy.url
        kubeconfig = write_kubeconfig(plane, "", account, token=plane.admin_token, url=url, ca_file=ca_file)
        return f"""
[orchestrator]
kind = "kubernetes"
[orchestrator.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "{self.node}"
[remediation]
mode = "repair"
[budget]
max_out = 1
replacements_per_hour = 100_000
replacements_per_day = 100_000
[controller]
interval_s = 0.2
state_dir = "{self.machine}/controller"
selector = "life={self.node}"
[[controller.drain]]
name = "all"
mode = "evict"
unmanaged = true
[provisioner]
kind = "{self.kind}"
[provisioner.aws]
region = "{REGION}"
endpoint_url = "{self.endpoint.url}"
[provisioner.hyperpod]
cluster = "{CLUSTER}"
"""


class RebootingLife(ControllerLife):
    """HyperPod reboots the machine; the node comes back and lets itself in."""

    remedy: ClassVar[Remedy] = Remedy.REBOOT_NODE
    call: ClassVar[str] = "BatchRebootClusterNodes"

    def prepares(self) -> None:
        self._boots()

    def carries_out(self) -> None:
        self._boots()
        self.agent.release(resume=False)
        for slot in self.agent.slots():
            self.agent.give_back(slot)
        self.agent.write_record("")

    def left(self) -> tuple[str, ...]:
        node = self.stage.plane.admin.get(f"/api/v1/nodes/{self.node}").must()
        return tuple(taint["key"] for taint in node["spec"].get("taints", ()))

    def _boots(self) -> None:
        names = (
            "machineID systemUUID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion"
            " operatingSystem architecture"
        )
        info = {**dict.fromkeys(names.split(), "x"), "bootID": str(uuid.uuid4())}
        path = f"/api/v1/nodes/{self.node}/status"
        self.stage.plane.admin.patch(path, {"status": {"nodeInfo": info}}).must()


class AutoScalingLife(ControllerLife):
    """A managed node group: the instance is terminated, and the group launches another. Needs the stage's ``moto``."""

    kind: ClassVar[str] = "autoscaling"
    call: ClassVar[str] = "TerminateInstanceInAutoScalingGroup"

    def instances(self) -> tuple[str, str]:
        account = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        clients = (
            boto3.client(name, region_name=REGION, endpoint_url=self.endpoint.url, **account)
            for name in ("ec2", "autoscaling")
        )
        ec2, scaling = clients
        image = ec2.describe_images()["Images"][0]["ImageId"]
        scaling.create_launch_configuration(
            LaunchConfigurationName=self.node, ImageId=image, InstanceType="p5.48xlarge", KeyName="none"
        )
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=self.node,
            LaunchConfigurationName=self.node,
            MinSize=2,
            MaxSize=2,
            DesiredCapacity=2,
            AvailabilityZones=[f"{REGION}a"],
        )
        (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.node])["AutoScalingGroups"]
        mine, other = (each["InstanceId"] for each in group["Instances"])
        return mine, other


class KarpenterLife(ControllerLife):
    """The NodeClaim of the machine is deleted; Karpenter ends the machine, and the NodeClaim goes last."""

    kind: ClassVar[str] = "karpenter"

    def prepares(self) -> None:
        path = "/apis/karpenter.sh/v1/nodeclaims"
        for name, instance in ((self.node, self.instance), (f"{self.node}-other", self.other_instance)):
            meta = {"name": name, "finalizers": ["karpenter.sh/termination"]}
            body = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": meta}
            self.stage.plane.admin.post(path, body).must()
            status = {"status": {"providerID": f"aws:///{REGION}a/{instance}", "nodeName": name}}
            self.stage.plane.admin.patch(f"{path}/{name}/status", status, kind="merge").must()

    def asked(self) -> int:
        return self.stage.writes(self.since, "", path=f"/nodeclaims/{self.node}$")

    def carries_out(self) -> None:
        super().carries_out()
        self._finish(self.node)

    def left(self) -> tuple[str, ...]:
        other = self.stage.plane.admin.get(f"/apis/karpenter.sh/v1/nodeclaims/{self.node}-other")
        there = other.ok and "deletionTimestamp" not in other.body["metadata"]
        return () if there else ("the other NodeClaim is gone",)

    def close(self) -> None:
        super().close()
        for name in (self.node, f"{self.node}-other"):
            self._finish(name)
            self.stage.plane.admin.delete(f"/apis/karpenter.sh/v1/nodeclaims/{name}")

    def _finish(self, name: str) -> None:
        path = f"/apis/karpenter.sh/v1/nodeclaims/{name}"
        self.stage.plane.admin.patch(path, {"metadata": {"finalizers": None}}, kind="merge")
