"""EC2 alone and in an Auto Scaling group, against moto's server: requests, refusals, and what proves the effect."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from msgspec import Struct

from healthd.core.errors import BackendBusy, BackendDenied, BackendHalfDone, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.ec2 import Ec2Provisioner
from healthd.remediation.provisioners.instances import at_address
from healthd.remediation.provisioners.target_node import TargetNode
from tests.live.aws.aws_endpoint import DENIED, REGION, THROTTLED, AwsEndpoint, Fault


class Account(Struct):
    """The test's own hand in the account: it goes to moto directly, so that the endpoint counts healthd alone."""

    ec2: Any
    autoscaling: Any

    def launch(self, **more: Any) -> str:
        """One instance; returns its id."""
        answer = self.ec2.run_instances(ImageId=self.image(), MinCount=1, MaxCount=1, InstanceType="m5.large", **more)
        return str(answer["Instances"][0]["InstanceId"])

    def image(self) -> str:
        return "ami-12c6146b"  # one of those that moto knows

    def shown(self, instance: str) -> dict[str, Any]:
        answer = self.ec2.describe_instances(InstanceIds=[instance])
        return dict(answer["Reservations"][0]["Instances"][0])

    def group(self, size: int, **tags: str) -> list[str]:
        """An Auto Scaling group ``workers`` with these tags of EKS's; returns its instances."""
        subnet = self.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        self.autoscaling.create_launch_configuration(
            LaunchConfigurationName="workers", ImageId=self.image(), InstanceType="m5.large"
        )
        self.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName="workers",
            LaunchConfigurationName="workers",
            MinSize=1,
            MaxSize=size,
            DesiredCapacity=size,
            VPCZoneIdentifier=subnet,
            Tags=[
                {"Key": f"eks:{key}-name", "Value": value, "ResourceId": "workers", "PropagateAtLaunch": True}
                for key, value in tags.items()
            ],
        )
        return self.members()

    def members(self) -> list[str]:
        answer = self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=["workers"])
        return [each["InstanceId"] for each in answer["AutoScalingGroups"][0]["Instances"]]


@pytest.fixture
def account(moto: tuple[str, int], endpoint: AwsEndpoint) -> Iterator[Account]:
    url = f"http://{moto[0]}:{moto[1]}"
    ec2, scaling = (boto3.client(name, region_name=REGION, endpoint_url=url) for name in ("ec2", "autoscaling"))
    yield Account(ec2=ec2, autoscaling=scaling)
    ec2.close()
    scaling.close()


def alone(aws: Aws, instance: str) -> Ec2Provisioner:
    return Ec2Provisioner(subject=TargetNode(node="n1", instance_id=instance), aws=aws)


def moving(aws: Aws, account: Account, instance: str, how: Any = "always") -> Ec2Provisioner:
    """In the controller, with stop and start allowed."""
    address = account.shown(instance)["PrivateIpAddress"]
    subject = TargetNode(node="n1", here=False)
    return Ec2Provisioner(subject=subject, aws=aws, stop_and_start=how, address=lambda: address)


def grouped(aws: Aws, instance: str, **more: Any) -> AutoScalingProvisioner:
    return AutoScalingProvisioner(subject=TargetNode(node="n1", instance_id=instance), aws=aws, **more)


# ---------------------------------------------------------------------------------------------------------------------
# alone


def test_a_reboot_is_one_request(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """RebootInstances for this instance, and the id stays what it is."""
    instance = account.launch()
    provisioner = alone(aws, instance)
    provisioner.reboot()
    assert [each["InstanceId.1"] for each in endpoint.requests_for("RebootInstances")] == [instance]
    assert provisioner.machine() == instance
    assert provisioner.progress().startswith(f"EC2: {instance} running, system check ok")


def test_a_dry_run_asks_ec2_whether_it_would(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """EC2's DryRun says yes, or which right is missing; nothing is rebooted."""
    provisioner = alone(aws, account.launch())
    assert provisioner.dry_run(Remedy.REBOOT_NODE).endswith("AWS would carry it out (DryRun)")
    endpoint.fail("RebootInstances", DENIED)
    with pytest.raises(BackendDenied, match="needs the IAM action ec2:RebootInstances"):
        provisioner.dry_run(Remedy.REBOOT_NODE)
    assert {each["DryRun"] for each in endpoint.requests_for("RebootInstances")} == {"true"}


def test_it_does_not_stop_itself(aws: Aws, endpoint: AwsEndpoint) -> None:
    """A stopped node cannot start itself, and by default nothing is stopped at all."""
    here = Ec2Provisioner(subject=TargetNode(node="n1", instance_id="i-1"), aws=aws, stop_and_start="always")
    assert "a stopped node cannot start itself" in here.reason_against(Remedy.REPLACE_NODE)
    with pytest.raises(BackendRefused, match="no move to another host"):
        here.replace()
    assert "see \\[provisioner.ec2\\]" not in here.reason_against(Remedy.REBOOT_NODE)
    assert "loses the instance store" in alone(aws, "i-1").reason_against(Remedy.REPLACE_NODE)
    assert endpoint.requests == []


def test_a_move_is_one_stop_and_one_start_and_shows_as_another_machine(
    aws: Aws, endpoint: AwsEndpoint, account: Account
) -> None:
    """The id stays, the time of the launch changes: that is the evidence, and a reboot does not make it."""
    provisioner = moving(aws, account, account.launch())
    before = provisioner.machine()
    provisioner.replace()
    assert provisioner.machine() == before
    provisioner.replace()
    assert "start requested" in provisioner.progress()
    after = provisioner.machine()
    assert after != before
    assert after.partition("@")[0] == before.partition("@")[0]
    assert "running" in provisioner.progress()
    starts = [each for each in endpoint.requests_for("StartInstances") if each.get("DryRun") != "true"]
    assert (endpoint.count("StopInstances"), len(starts)) == (1, 1)


def test_what_may_not_be_started_is_not_stopped(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """EC2 is asked first, by its dry run; denied, or not told, nothing is stopped."""
    provisioner = moving(aws, account, account.launch())
    endpoint.fail("StartInstances", DENIED)
    with pytest.raises(BackendDenied, match="needs the IAM action ec2:StartInstances"):
        provisioner.replace()
    endpoint.fail("StartInstances", Fault(lost=True))
    with pytest.raises(BackendBusy, match="no request was sent yet"):
        provisioner.replace()
    assert endpoint.count("StopInstances") == 0


def test_a_right_that_was_lost_meanwhile_leaves_no_stopped_machine_in_silence(
    aws: Aws, endpoint: AwsEndpoint, account: Account
) -> None:
    """A person is needed: the engine waits, and pages."""
    provisioner = moving(aws, account, account.launch())
    provisioner.replace()
    endpoint.fail("StartInstances", DENIED)
    with pytest.raises(BackendHalfDone, match=r"is stopped, and healthd may not start it: .*ec2:StartInstances"):
        provisioner.progress()
    assert "start requested" in provisioner.progress()


def test_the_instance_that_was_asked_about_is_acted_upon_wherever_it_is(
    aws: Aws, endpoint: AwsEndpoint, account: Account
) -> None:
    """By its id, though the node's name tells no address; one that was ended is seen, and is not waited for."""
    instance = account.launch()
    subject = TargetNode(node=f"{instance}.eu-north-1.compute.internal", here=False, instance_id=instance)
    provisioner = Ec2Provisioner(subject=subject, aws=aws, stop_and_start="always")
    assert provisioner.stands_down() == ""
    assert provisioner.machine().startswith(f"{instance}@")
    account.ec2.terminate_instances(InstanceIds=[instance])
    with pytest.raises(BackendRefused, match=f"{instance} is terminated: it will not come back"):
        provisioner.progress()


def test_a_start_that_does_not_succeed_is_tried_again(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """No capacity, or no quota, is not for good: it says so each time, until there is some. healthd alone starts the
    machine."""
    provisioner = moving(aws, account, account.launch())
    before = provisioner.machine()
    provisioner.replace()
    endpoint.fail("StartInstances", Fault(code="InsufficientInstanceCapacity", status=500))
    with pytest.raises(BackendHalfDone, match="could not be started yet, healthd tries again"):
        provisioner.progress()
    endpoint.fail("StartInstances", Fault(code="VcpuLimitExceeded", status=400))
    with pytest.raises(BackendHalfDone, match="EC2 refuses to start it, healthd tries again.*VcpuLimitExceeded"):
        provisioner.progress()
    assert provisioner.machine() == before
    assert "start requested" in provisioner.progress()
    assert provisioner.machine() != before


def test_a_start_that_ec2_accepts_and_gives_up_is_no_silent_wait(
    aws: Aws, endpoint: AwsEndpoint, account: Account
) -> None:
    """Without the right to the key of its volumes an instance is stopped again, and each start is accepted."""
    provisioner = moving(aws, account, account.launch())
    provisioner.replace()
    endpoint.failed_launch = "Client.InternalError"
    with pytest.raises(BackendHalfDone, match="its last start failed, healthd tries again.*Client.InternalError"):
        provisioner.progress()


def test_a_place_that_nobody_keeps_is_not_given_up(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """With ``reserved``, an instance without a reservation stays where it is."""
    with pytest.raises(BackendRefused, match="no capacity reservation, and its capacity could be lost"):
        moving(aws, account, account.launch(), "reserved").replace()
    assert endpoint.count("StopInstances") == 0


def test_an_instance_that_is_gone_will_not_come_back(aws: Aws, account: Account, endpoint: AwsEndpoint) -> None:
    """Terminated is the end of it, not a thing to wait for."""
    instance = account.launch()
    account.ec2.terminate_instances(InstanceIds=[instance])
    with pytest.raises(BackendRefused, match="it will not come back"):
        alone(aws, instance).progress()
    assert alone(aws, instance).stands_down() == f"{instance} is terminated already"


def test_an_answer_that_was_lost_stops_nothing_twice(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """Unknown after the stop; asked again, it sees what was done and sends no second one."""
    provisioner = moving(aws, account, account.launch())
    endpoint.fail("StopInstances", Fault(lost=True))
    with pytest.raises(BackendUnknown, match="AWS may have applied it"):
        provisioner.replace()
    provisioner.replace()
    assert endpoint.count("StopInstances") == 1


def test_on_the_node_no_right_to_look_leaves_our_own_id(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """Who we are needs no right; whether another manages us does, and then nothing is done."""
    provisioner = alone(aws, account.launch())
    endpoint.fail("DescribeInstances", DENIED, DENIED)
    assert provisioner.machine().startswith("i-")
    assert "unknown whether an AWS service manages this instance" in provisioner.stands_down()


def test_an_address_that_two_networks_have_is_not_guessed(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """Two instances with one address: our own, or unknown."""
    instances, subnets = [], []
    for _ in range(2):
        vpc = account.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        subnets.append(account.ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24")["Subnet"]["SubnetId"])
        instances.append(account.launch(SubnetId=subnets[-1], PrivateIpAddress="10.9.0.5"))
    assert at_address(aws, "ip-10-9-0-5", own=instances[1])["InstanceId"] == instances[1]
    with pytest.raises(BackendUnknown, match="no single instance has the address 10.9.0.5"):
        at_address(aws, "10.9.0.5")
    account.ec2.create_tags(Resources=[instances[0]], Tags=[{"Key": "aws:pcs:cluster-id", "Value": "pcs_1"}])
    found = at_address(aws, "10.9.0.5", tag=("aws:pcs:cluster-id", "pcs_1"))
    assert found["InstanceId"] == instances[0]


# ---------------------------------------------------------------------------------------------------------------------
# in a group


def test_a_group_replaces_what_is_taken_from_it(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """One request, the group's size untouched, and from elsewhere the substitute shows as the machine."""
    members = account.group(3)
    instance = members[0]
    address = account.shown(instance)["PrivateIpAddress"]
    subject = TargetNode(node="n1", here=False)
    provisioner = AutoScalingProvisioner(subject=subject, aws=aws, address=lambda: address)
    assert provisioner.machine() == instance
    assert provisioner.stands_down() == ""
    time.sleep(1.1)  # EC2 gives the time of a launch in whole seconds, and the newest instance is the substitute
    provisioner.replace()
    asked = endpoint.requests_for("TerminateInstanceInAutoScalingGroup")
    assert [(each["InstanceId"], each["ShouldDecrementDesiredCapacity"]) for each in asked] == [(instance, "false")]
    new = set(account.members()) - set(members)
    assert {provisioner.machine()} == new
    assert provisioner.progress() == "Auto Scaling group workers: 3 of 3 in service"


@pytest.mark.parametrize("fault", [Fault(lost=True), THROTTLED])
def test_a_reading_without_an_answer_is_no_other_machine(
    fault: Fault, aws: Aws, endpoint: AwsEndpoint, account: Account
) -> None:
    """The group is full, and its newest instance is another: a throttled reading must not name that."""
    instance = account.group(3)[0]
    address = account.shown(instance)["PrivateIpAddress"]
    subject = TargetNode(node="n1", here=False)
    provisioner = AutoScalingProvisioner(subject=subject, aws=aws, group="workers", address=lambda: address)
    endpoint.always["DescribeInstances"] = fault
    with pytest.raises((BackendUnknown, BackendBusy)):
        provisioner.machine()
    endpoint.always.clear()
    assert provisioner.machine() == instance


@pytest.mark.parametrize("how", ["terminate", "unhealthy"])
def test_a_second_leader_ends_no_second_instance(aws: Aws, endpoint: AwsEndpoint, account: Account, how: Any) -> None:
    """It knows nothing of the first one's call: the group says that it is at it, or that this instance is not its own
    any more; asked all the same, no other instance ends."""
    members = account.group(3)
    instance = members[0]
    grouped(aws, instance, how=how).replace()
    second = grouped(aws, instance, how=how)
    assert second.repeats_after_s(Remedy.REPLACE_NODE) == 0.0
    assert "already" in second.stands_down() or "is in no Auto Scaling group" in second.stands_down()
    with contextlib.suppress(BackendRefused):
        second.replace()
    assert set(members[1:]) <= set(account.members())
    assert len(account.members()) == 3


def test_the_soft_way_calls_it_unhealthy_at_once(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """The grace period does not swallow it, and afterwards the group is at it."""
    instance = account.group(1)[0]
    provisioner = grouped(aws, instance, how="unhealthy")
    provisioner.replace()
    asked = endpoint.requests_for("SetInstanceHealth")[0]
    assert (asked["HealthStatus"], asked["ShouldRespectGracePeriod"]) == ("Unhealthy", "false")
    assert f"acts on {instance} already: InService, Unhealthy" in provisioner.stands_down()


def test_a_group_that_could_launch_nothing_is_not_asked(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """With Launch suspended a termination would cost the node for good."""
    instance = account.group(1)[0]
    account.autoscaling.suspend_processes(AutoScalingGroupName="workers", ScalingProcesses=["Launch"])
    assert "would launch no substitute: Launch is suspended" in grouped(aws, instance).stands_down()


def test_a_node_group_that_eks_repairs_itself_is_left_to_eks(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """Where auto-repair is on, the sentence says what to set; off, the group is asked as any other."""
    instance = account.group(1, cluster="train", nodegroup="p5")[0]
    endpoint.node_repair["train/p5"] = True
    provisioner = grouped(aws, instance)
    message = "EKS node auto-repair is on for node group p5 of train"
    assert message in provisioner.stands_down()
    assert message in provisioner.repaired_by()
    endpoint.node_repair["train/p5"] = False
    assert (provisioner.stands_down(), provisioner.repaired_by()) == ("", "")


def test_whether_eks_repairs_them_must_be_known(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """Denied, or a group that is gone: no answer is no permission."""
    instance = account.group(1, cluster="train", nodegroup="p5")[0]
    assert "unknown whether the Auto Scaling group acts" in grouped(aws, instance).stands_down()
    endpoint.node_repair["train/p5"] = False
    endpoint.fail("DescribeNodegroup", Fault(code="AccessDeniedException", status=403))
    with pytest.raises(BackendDenied, match="eks:DescribeNodegroup"):
        grouped(aws, instance).repaired_by()


def test_a_group_that_is_not_of_eks_costs_no_question(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """EKS is asked by nobody's node but its own."""
    instance = account.group(1)[0]
    assert grouped(aws, instance).stands_down() == ""
    assert endpoint.count("DescribeNodegroup") == 0


def test_an_instance_of_no_group_is_not_taken_for_one(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """A wrong kind in the configuration is said, and nothing is terminated."""
    instance = account.launch()
    assert "is in no Auto Scaling group" in grouped(aws, instance).stands_down()
    with pytest.raises(BackendRefused, match="check \\[provisioner\\] kind"):
        grouped(aws, instance).replace()


def test_a_throttled_termination_happens_once(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """Throttled, then done: one instance is gone, one has come."""
    before = account.group(2)
    endpoint.fail("TerminateInstanceInAutoScalingGroup", Fault(code="Throttling", status=400))
    grouped(aws, before[0]).replace()
    assert len(set(account.members()) & set(before)) == 1
    assert len(account.members()) == 2


def test_scaling_activities_in_progress_are_for_later(aws: Aws, endpoint: AwsEndpoint, account: Account) -> None:
    """Nothing was applied: it can be asked for again."""
    instance = account.group(1)[0]
    endpoint.fail("TerminateInstanceInAutoScalingGroup", Fault(code="ScalingActivityInProgress", status=400))
    with pytest.raises(BackendBusy, match="healthd tries again"):
        grouped(aws, instance).replace()
    endpoint.fail("DescribeAutoScalingInstances", *[THROTTLED] * 3)
    assert "unknown whether the Auto Scaling group acts" in grouped(aws, instance).stands_down()
