"""HyperPod: each request, each answer it can get, and the evidence of a replacement, against its service model."""

from __future__ import annotations

import pytest

from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.hyperpod import HyperPodProvisioner
from healthd.remediation.provisioners.slurm_node import Scontrol
from healthd.remediation.provisioners.target_node import TargetNode
from tests.live.aws.aws_endpoint import DENIED_JSON, AwsEndpoint, Fault
from tests.live.aws.fake_hyperpod import CLUSTER, NO_CAPACITY
from tests.support.scontrol import ScriptedScontrol

HOST = "ip-10-0-0-7"


def here(aws: Aws, instance: str, scontrol: Scontrol | None = None, *, by_api: bool = True) -> HyperPodProvisioner:
    """On the node itself."""
    subject = TargetNode(node=HOST, instance_id=instance, instance_type="p5.48xlarge")
    return HyperPodProvisioner(subject=subject, aws=aws, cluster=CLUSTER, scontrol=scontrol, by_api=by_api)


def elsewhere(aws: Aws) -> HyperPodProvisioner:
    """In the controller."""
    return HyperPodProvisioner(subject=TargetNode(node=HOST, here=False), aws=aws, cluster=CLUSTER)


@pytest.fixture
def instance(endpoint: AwsEndpoint) -> str:
    """The instance behind HOST, with neighbours before and after it."""
    endpoint.hyperpod.add("ip-10-0-0-6")
    ours = endpoint.hyperpod.add(HOST)
    endpoint.hyperpod.add("ip-10-0-0-77")
    return ours


def test_a_replacement_is_one_request_and_ends_in_another_instance(
    aws: Aws, endpoint: AwsEndpoint, instance: str
) -> None:
    """From elsewhere: asked once for this instance alone, then another id is behind the same name."""
    endpoint.hyperpod.became = lambda host, new: came.append((host, new))
    came: list[tuple[str, str]] = []
    provisioner = elsewhere(aws)
    assert provisioner.machine() == instance
    provisioner.replace()
    assert endpoint.requests_for("BatchReplaceClusterNodes") == [{"ClusterName": CLUSTER, "NodeIds": [instance]}]
    seen = {provisioner.machine() for _ in range(3)}
    assert came == [(HOST, provisioner.machine())]
    assert instance not in seen
    assert provisioner.progress() == f"HyperPod: {came[0][1]} Running"
    assert endpoint.count("BatchReplaceClusterNodes") == 1


def test_a_drain_is_ours_to_undo_unless_the_request_took_its_place(aws: Aws) -> None:
    """The API says nothing of Slurm's state, so that our drain stands there; ``Action:…`` is written over it."""
    scontrol = ScriptedScontrol(HOST)
    assert here(aws, "i-1", scontrol).state_owner is StateOwner.ENGINE
    assert here(aws, "i-1", scontrol, by_api=False).state_owner is StateOwner.AFTER_ASKING


def test_without_capacity_it_waits_and_says_so(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """No capacity is not for good: the sentence has HyperPod's own words, and capacity ends it."""
    endpoint.hyperpod.capacity = False
    provisioner = here(aws, instance)
    provisioner.replace()
    provisioner.progress()
    assert NO_CAPACITY in provisioner.progress()
    endpoint.hyperpod.capacity = True
    provisioner.progress()
    assert provisioner.progress().endswith("Running")


def test_a_replacement_that_fails_for_another_cause_is_over(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """A lifecycle script that fails would fail again: that is a refusal, with its words."""
    endpoint.hyperpod.fails_with = "Lifecycle scripts did not run successfully"
    provisioner = here(aws, instance)
    provisioner.replace()
    with pytest.raises(BackendRefused, match="Failure: Lifecycle scripts did not run"):
        provisioner.progress()


def test_between_two_instances_there_is_none_behind_the_name(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """An instance that shuts down is no evidence of anything: unknown, never the old id, never the neighbour's."""
    endpoint.hyperpod.delay_s = 3600.0
    provisioner = elsewhere(aws)
    provisioner.replace()
    with pytest.raises(BackendUnknown, match=f"no instance behind {HOST} now"):
        provisioner.machine()
    assert provisioner.progress() == f"HyperPod: {instance} ShuttingDown"
    assert provisioner.stands_down().startswith("unknown whether HyperPod acts")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("InstanceIdInUse", BackendBusy),
        ("InvalidInstanceStatus", BackendBusy),
        ("InternalServerError", BackendUnknown),
        ("InstanceIdNotFound", BackendRefused),
    ],
)
def test_a_failure_of_the_node_inside_http_200_is_read(
    aws: Aws, endpoint: AwsEndpoint, instance: str, code: str, error: type[Exception]
) -> None:
    """In use by another operation, or another status, is for later, and nothing was applied; an inner error may have
    been; not found is no."""
    endpoint.hyperpod.node_failures[instance] = code
    with pytest.raises(error, match=code):
        here(aws, instance).reboot()
    assert endpoint.count("BatchRebootClusterNodes") == 1


def test_asking_twice_replaces_once(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """What is asked for while another operation runs is not applied, whoever began that one: one replacement."""
    endpoint.hyperpod.delay_s = 3600.0
    here(aws, instance).replace()
    with pytest.raises(BackendBusy, match="InstanceIdInUse"):
        here(aws, instance).replace()
    assert [node.status for node in endpoint.hyperpod.nodes if node.host == HOST] == ["ShuttingDown"]


def test_on_the_node_itself_no_right_to_look_is_no_obstacle(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """The way by scontrol needs no IAM right: the node is who it is."""
    endpoint.fail("DescribeClusterNode", DENIED_JSON, DENIED_JSON)
    endpoint.fail("ListClusterNodes", DENIED_JSON)
    provisioner = here(aws, instance, ScriptedScontrol(HOST), by_api=False)
    assert provisioner.machine() == instance
    assert provisioner.stands_down() == ""
    assert provisioner.progress() == ""


def test_a_stale_id_of_our_own_is_not_believed(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """Where the cluster does not know our id any more, the name decides."""
    assert here(aws, "i-00000000000000bad").machine() == instance


@pytest.mark.parametrize("status", ["ShuttingDown", "SystemUpdating", "DeepHealthCheckInProgress", "Pending"])
def test_it_stands_down_where_hyperpod_is_at_work(aws: Aws, endpoint: AwsEndpoint, status: str) -> None:
    """What HyperPod began by itself is left to it."""
    instance = endpoint.hyperpod.add(HOST, status=status)
    assert here(aws, instance).stands_down() == f"HyperPod acts on {instance} already: {instance} {status}"


@pytest.mark.parametrize(
    ("label", "recovery", "acts"),
    [
        ("", "Automatic", False),
        ("Schedulable", "Automatic", False),
        ("UnschedulablePendingReboot", "Automatic", True),
        ("Unschedulable", "Automatic", True),
        ("UnschedulablePendingReplacement", "None", False),
    ],
)
def test_on_eks_it_stands_down_by_the_label_of_hyperpods_agent(
    aws: Aws, endpoint: AwsEndpoint, label: str, recovery: str, acts: bool
) -> None:
    """Its status follows minutes later. Where HyperPod is told to repair nothing, the label is a word and no deed."""
    endpoint.hyperpod.node_recovery, instance = recovery, endpoint.hyperpod.add(HOST)
    subject = TargetNode(node=HOST, here=False, instance_id=instance)
    provisioner = HyperPodProvisioner(subject=subject, aws=aws, cluster=CLUSTER, label=lambda: label)
    message = f"HyperPod acts on {HOST} already: its label is {label}"
    assert provisioner.stands_down() == (message if acts else "")
    assert (endpoint.count("DescribeCluster") > 0) == (label not in ("", "Schedulable"))


def test_whether_hyperpod_acts_by_a_label_must_be_known(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """Denied, or no Node to read: no answer is no leave to act."""

    def unread() -> str:
        raise BackendUnknown("the API server did not answer")

    subject = TargetNode(node=HOST, here=False, instance_id=instance)
    denied = HyperPodProvisioner(subject=subject, aws=aws, cluster=CLUSTER, label=lambda: "Unschedulable")
    endpoint.fail("DescribeCluster", DENIED_JSON)
    assert "unknown whether HyperPod acts" in denied.stands_down()
    silent = HyperPodProvisioner(subject=subject, aws=aws, cluster=CLUSTER, label=unread)
    assert "unknown whether HyperPod acts" in silent.stands_down()


def test_on_eks_the_instance_itself_is_looked_at(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """A Node there has no host name of HyperPod's, so that a list would show nothing of it."""
    subject = TargetNode(node=f"hyperpod-{instance}", here=False, instance_id=instance)
    provisioner = HyperPodProvisioner(subject=subject, aws=aws, cluster=CLUSTER, label=str)
    assert provisioner.progress() == f"HyperPod: {instance} Running"
    endpoint.hyperpod.delay_s = 3600.0
    provisioner.replace()
    assert provisioner.progress() == f"HyperPod: {instance} ShuttingDown"
    endpoint.hyperpod.nodes.clear()
    assert provisioner.progress().startswith(f"HyperPod no longer has {instance} (")
    assert endpoint.count("ListClusterNodes") == 0


def test_it_stands_down_where_it_cannot_be_told(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """No answer is no leave to act."""
    endpoint.fail("DescribeClusterNode", *[Fault(code="InternalFailure", status=500)] * 3)
    assert "unknown whether HyperPod acts on this node already" in here(aws, instance).stands_down()


def test_slurms_way_writes_the_exact_reason_once(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """``Action:Replace`` to the letter and nothing behind it; a node in progress is not updated again."""
    scontrol = ScriptedScontrol(HOST)
    provisioner = here(aws, instance, scontrol, by_api=False)
    provisioner.reboot()
    provisioner.reboot()
    provisioner.replace()
    provisioner.replace()
    with pytest.raises(BackendRefused, match="HyperPod is already replacing it"):
        provisioner.reboot()
    assert scontrol.updates == [
        ("update", f"nodename={HOST}", "state=fail", "reason=Action:Reboot"),
        ("update", f"nodename={HOST}", "state=fail", "reason=Action:Replace"),
    ]
    assert endpoint.requests == []


def test_another_ones_action_is_left_alone_and_our_own_is_not(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """``Action:Replace`` of HyperPod's agent stands us down; ours, or what whoever keeps remediations calls ours, does
    not."""
    agents = ScriptedScontrol(HOST, state="IDLE+FAIL", reason="Action:Replace")
    assert "its reason is Action:Replace" in here(aws, instance, agents, by_api=False).stands_down()
    ours = HyperPodProvisioner(
        subject=TargetNode(node=HOST, instance_id=instance),
        aws=aws,
        cluster=CLUSTER,
        scontrol=agents,
        by_api=False,
        made_by_us=lambda reason: reason == "Action:Replace",
    )
    assert ours.stands_down() == ""
    checking = ScriptedScontrol(HOST, features="SageMakerDeepHealthCheck:InProgress")
    assert here(aws, instance, checking).stands_down() == "HyperPod runs a deep health check here"


def test_a_node_of_an_ultraserver_is_not_replaced(aws: Aws, endpoint: AwsEndpoint) -> None:
    """One of its nodes alone cannot be: a person is told why. A reboot can be asked for."""
    subject = TargetNode(node=HOST, instance_id="i-1", instance_type="p6e-gb200.36xlarge")
    provisioner = HyperPodProvisioner(subject=subject, aws=aws, cluster=CLUSTER)
    assert "is a part of an UltraServer" in provisioner.reason_against(Remedy.REPLACE_NODE)
    assert not provisioner.reason_against(Remedy.REBOOT_NODE)


def test_a_dry_run_says_what_would_be_asked_and_asks_nothing(aws: Aws, endpoint: AwsEndpoint, instance: str) -> None:
    """HyperPod has no dry run of its own, which is said as well."""
    message = here(aws, instance).dry_run(Remedy.REPLACE_NODE)
    assert message == f"sagemaker:BatchReplaceClusterNodes {CLUSTER} {instance}; HyperPod has no dry run"
    by_slurm = here(aws, instance, ScriptedScontrol(HOST), by_api=False).dry_run(Remedy.REBOOT_NODE)
    assert by_slurm.startswith(f"scontrol update nodename={HOST} state=fail reason=Action:Reboot;")
    assert endpoint.count("BatchReplaceClusterNodes") == 0
