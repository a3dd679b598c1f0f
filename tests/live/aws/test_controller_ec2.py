"""The controller over moto's EC2 and Auto Scaling: a cluster in memory, real calls by real boto3, each counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from healthd.core.model import Remedy
from healthd.remediation.ports import Provisioner
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.provisioners.ec2 import Ec2Provisioner
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer
from healthd.sim.cluster import FakeOrchestrator
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.support.controller_rig import NODE, AskedWorld

ADDRESS = "10.1.2.3"
IMAGE = "ami-12c6146b"


class Ec2World(AskedWorld):
    """The same, acted on by a real provisioner. ``act``: who acts on an instance of this id."""

    def __init__(self, folder: Path, instance: str, act: Callable[[TargetNode], Provisioner]) -> None:
        self._act, self._instance = act, instance
        super().__init__(folder)
        self.ask(HandoffRecord(remediation_id="k3", machine=instance, remedy=Remedy.REPLACE_NODE, asks=True, attempt=1))

    def acts_on(self, node: str, instance: str) -> Provisioner:
        assert (node, instance) == (NODE, self._instance)
        return self._act(TargetNode(node=node, here=False, instance_id=instance))

    def on_the_node(self) -> DelegatedProvisioner:
        """What the node's own daemon asks by."""
        door = FakeOrchestrator(self.cluster, NODE)
        inner = self._act(TargetNode(node=NODE, here=False, instance_id=self._instance))
        return DelegatedProvisioner(
            inner=inner,
            instance_id=self._instance,
            read=door.read_record,
            write=door.write_record,
            clock=self.clock.now,
        )


@pytest.fixture
def account(moto: tuple[str, int], endpoint: AwsEndpoint) -> dict[str, object]:
    """Clients that go to moto directly, so that the endpoint counts healthd alone."""
    url = f"http://{moto[0]}:{moto[1]}"
    return {name: boto3.client(name, region_name=REGION, endpoint_url=url) for name in ("ec2", "autoscaling")}


def test_a_machine_is_moved_by_a_stop_and_a_start(
    tmp_path: Path, aws: Aws, endpoint: AwsEndpoint, account: dict[str, object]
) -> None:
    """Which no node can do itself: one stop, one start, the same id; the node believes the controller's word for it."""
    launched = account["ec2"].run_instances(  # type: ignore[attr-defined]  # a client of boto3
        ImageId=IMAGE, MinCount=1, MaxCount=1, InstanceType="m5.large", PrivateIpAddress=ADDRESS
    )
    instance = launched["Instances"][0]["InstanceId"]
    world = Ec2World(
        tmp_path,
        instance,
        lambda subject: Ec2Provisioner(subject=subject, aws=aws, stop_and_start="always", address=lambda: ADDRESS),
    )
    node = world.on_the_node()
    before = node.machine()
    assert not node.reason_against(Remedy.REPLACE_NODE)
    world.run(8)
    starts = [each for each in endpoint.requests_for("StartInstances") if each.get("DryRun") != "true"]
    assert (endpoint.count("StopInstances"), len(starts)) == (1, 1)
    assert world.record.became.startswith(f"{instance}@")
    assert node.machine() != before == instance
    assert world.record.answer is RequestAnswer.TAKEN
    world.close()


def test_a_group_launches_a_substitute(
    tmp_path: Path, aws: Aws, endpoint: AwsEndpoint, account: dict[str, object]
) -> None:
    """One termination, without shrinking the group; another instance is the evidence. A request for an instance that
    is not the one at the node's address is refused, and nothing is ended."""
    ec2, scaling = account["ec2"], account["autoscaling"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]  # type: ignore[attr-defined]
    scaling.create_launch_configuration(  # type: ignore[attr-defined]
        LaunchConfigurationName="one", ImageId=IMAGE, InstanceType="m5.large"
    )
    scaling.create_auto_scaling_group(  # type: ignore[attr-defined]
        AutoScalingGroupName="one",
        LaunchConfigurationName="one",
        MinSize=1,
        MaxSize=1,
        DesiredCapacity=1,
        VPCZoneIdentifier=subnet,
    )

    def members() -> list[str]:
        groups = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["one"])  # type: ignore[attr-defined]
        return [each["InstanceId"] for each in groups["AutoScalingGroups"][0]["Instances"]]

    old = members()[0]
    shown = ec2.describe_instances(InstanceIds=[old])["Reservations"][0]["Instances"][0]  # type: ignore[attr-defined]
    address = shown["PrivateIpAddress"]

    def act(subject: TargetNode) -> AutoScalingProvisioner:
        return AutoScalingProvisioner(subject=subject, aws=aws, address=lambda: address)

    forged = Ec2World(tmp_path / "forged", "i-00000000000000009", act).run(2)
    assert forged.record.answer is RequestAnswer.REFUSED
    assert f"{old} is behind the name now" in forged.record.message
    assert endpoint.count("TerminateInstanceInAutoScalingGroup") == 0
    world = Ec2World(tmp_path / "asked", old, act).run(8)
    assert endpoint.count("TerminateInstanceInAutoScalingGroup") == 1
    assert endpoint.requests_for("TerminateInstanceInAutoScalingGroup")[0]["ShouldDecrementDesiredCapacity"] == "false"
    assert world.record.became == members()[0] != old
    assert world.record.answer is RequestAnswer.TAKEN
    forged.close()
    world.close()
