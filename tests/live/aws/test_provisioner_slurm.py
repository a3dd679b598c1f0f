"""ParallelCluster, PCS and HyperPod's way by Slurm, with a real slurmctld: what scontrol does with what they ask."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.hyperpod import HyperPodProvisioner
from healthd.remediation.provisioners.slurm_managed import SlurmManagedProvisioner
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS, Scontrol, read_node
from healthd.remediation.provisioners.target_node import TargetNode
from tests.live.aws.aws_endpoint import DENIED, REGION, AwsEndpoint
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason
from tests.support.scontrol import ScriptedScontrol

pytestmark = pytest.mark.slurm

NODE = "n0001"
INSTANCE = "i-00000000000000001"
SLOT = (
    "create",
    "reservation",
    "reservationname=healthd-cluster-0",
    f"nodes={NODE}",
    "starttime=now",
    "duration=UNLIMITED",
    "users=root",
    "flags=MAINT,IGNORE_JOBS,STATIC_ALLOC",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmLab]:
    """Two nodes that can be rebooted; the program does nothing, ``lab.reboot`` plays the boot."""
    if reason := skip_reason():
        pytest.skip(reason)
    with SlurmLab(nodes=2, conf={"RebootProgram": "/bin/true"}) as lab:
        yield lab


@pytest.fixture
def lab(cluster: SlurmLab) -> Iterator[SlurmLab]:
    """The cluster, clean before and after."""
    cluster.reset()
    yield cluster
    cluster.reset()


@pytest.fixture
def scontrol(lab: SlurmLab) -> Scontrol:
    """The real one; what it refuses is a refusal."""

    def run(*args: str) -> str:
        done = lab.scontrol(*args)
        if done.returncode:
            raise BackendRefused(f"scontrol {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    return run


def pcluster(aws: Aws, scontrol: Scontrol, *, node: str = NODE, instance: str = INSTANCE) -> SlurmManagedProvisioner:
    return SlurmManagedProvisioner(
        kind="parallelcluster",
        manager="clustermgtd",
        subject=TargetNode(node=node, here=bool(instance), instance_id=instance),
        aws=aws,
        scontrol=scontrol,
    )


@pytest.fixture
def no_aws() -> Aws:
    """An endpoint that nobody serves: what these tests ask of Slurm needs none."""
    return Aws(region=REGION, endpoint_url="http://127.0.0.1:9")


def test_a_reboot_is_spared_by_the_manager_and_comes_back_fenced(
    lab: SlurmLab, no_aws: Aws, scontrol: Scontrol
) -> None:
    """REBOOT_REQUESTED or REBOOT_ISSUED until the boot, never DOWN or drained after it, and no job starts on it."""
    lab.scontrol(*SLOT)
    provisioner = pcluster(no_aws, scontrol)
    provisioner.reboot()
    lab.wait(lambda: "REBOOT_ISSUED" in lab.state(NODE), 15, "the reboot to be issued")
    provisioner.reboot()
    lab.reboot(NODE)
    lab.wait(lambda: "REBOOT" not in lab.state(NODE), 20, "the node to be back")
    assert not read_node(scontrol, NODE).flags & {"DOWN", "DRAIN"}
    job = lab.submit(NODE, "true")
    lab.wait(lambda: "reserved" in lab.job(job).get("Reason", "").lower() or bool(lab.job(job)), 10, "the job to wait")
    assert lab.job(job)["JobState"] == "PENDING"
    lab.cancel()


def test_without_our_reservation_nothing_is_rebooted(lab: SlurmLab, no_aws: Aws, scontrol: Scontrol) -> None:
    """A node that comes back unfenced would take jobs unverified."""
    with pytest.raises(BackendRefused, match="no reservation of healthd fences it"):
        pcluster(no_aws, scontrol).reboot()
    assert lab.state(NODE) == "IDLE"


def test_under_another_ones_reservation_nothing_is_replaced(lab: SlurmLab, no_aws: Aws, scontrol: Scontrol) -> None:
    """An administrator's maintenance fences the node as well, and is no place in the budget."""
    maintenance = [word.replace("healthd-cluster-0", "firmware") for word in SLOT]
    assert lab.scontrol(*maintenance).returncode == 0
    with pytest.raises(BackendRefused, match="it would be replaced without a slot in the budget"):
        pcluster(no_aws, scontrol).replace()
    assert "DRAIN" not in lab.state(NODE)


def test_a_drain_of_another_one_is_neither_rebooted_nor_rewritten(
    lab: SlurmLab, no_aws: Aws, scontrol: Scontrol
) -> None:
    """``scontrol reboot ASAP`` would wipe it, and a second drain its text."""
    lab.scontrol(*SLOT)
    lab.update(NODE, "state=drain", "reason=disk swap")
    provisioner = pcluster(no_aws, scontrol)
    with pytest.raises(BackendRefused, match="would wipe a state that healthd did not set"):
        provisioner.reboot()
    with pytest.raises(BackendRefused, match="a drain that is not healthd's is in place"):
        provisioner.replace()
    assert lab.shows(NODE, "Reason").startswith("disk swap [")


def test_a_replacement_is_one_drain(lab: SlurmLab, no_aws: Aws, scontrol: Scontrol) -> None:
    """The manager replaces what is drained; asked again, nothing is written again; the text is one of ours."""
    lab.scontrol(*SLOT)
    provisioner = pcluster(no_aws, scontrol)
    provisioner.replace()
    first = lab.shows(NODE, "Reason")
    provisioner.replace()
    assert lab.shows(NODE, "Reason") == first
    assert "DRAIN" in lab.state(NODE)
    assert first.partition(" [")[0] in OUR_TEXTS
    progress = provisioner.progress()
    assert progress.startswith("Slurm shows DRAIN/IDLE")  # and MAINTENANCE/RESERVED, once the reservation is looked at
    assert progress.endswith(' "healthd: to be replaced"')
    with pytest.raises(BackendRefused, match="it is being replaced"):
        provisioner.reboot()


def test_hyperpods_reason_reads_back_to_the_letter(lab: SlurmLab, no_aws: Aws, scontrol: Scontrol) -> None:
    """State FAIL and ``Action:Replace``: a node in progress is recognised and not written again."""
    subject = TargetNode(node=NODE, instance_id=INSTANCE)
    provisioner = HyperPodProvisioner(subject=subject, aws=no_aws, cluster="demo", scontrol=scontrol, by_api=False)
    provisioner.replace()
    first = lab.shows(NODE, "Reason")
    provisioner.replace()
    node = read_node(scontrol, NODE)
    assert (node.reason, lab.shows(NODE, "Reason")) == ("Action:Replace", first)
    assert "FAIL" in node.flags
    with pytest.raises(BackendRefused, match="HyperPod is already replacing it"):
        provisioner.reboot()
    lab.update(NODE, "state=resume")


def test_the_address_in_slurm_leads_to_the_instance(
    lab: SlurmLab, endpoint: AwsEndpoint, moto: tuple[str, int], aws: Aws, scontrol: Scontrol
) -> None:
    """From elsewhere: the name's NodeAddr, then the one instance with that address. A new one is another machine."""
    ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=f"http://{moto[0]}:{moto[1]}")
    launched = []
    for _ in range(2):
        answer = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, InstanceType="m5.large")
        launched.append(answer["Instances"][0])
    ec2.close()
    provisioner = pcluster(aws, scontrol, instance="")
    for each in launched:
        lab.update(NODE, f"nodeaddr={each['PrivateIpAddress']}")
        assert provisioner.machine() == each["InstanceId"]
    lab.update(NODE, "nodeaddr=127.0.0.1")


def test_the_manager_at_work_is_left_to_it(aws: Aws) -> None:
    """Powering down or up, or failing EC2's checks in clustermgtd's own words: it acts on the node already."""
    for state, reason in (("IDLE+CLOUD+POWERING_DOWN", ""), ("IDLE+DRAIN", "Node failing ec2_health_check")):
        scontrol = ScriptedScontrol(NODE, state=state, reason=reason)
        assert "clustermgtd acts on n0001 already" in pcluster(aws, scontrol).stands_down()
    silent = ScriptedScontrol(NODE)
    assert pcluster(aws, silent).stands_down() == ""
    silent.silent = True
    assert "unknown whether clustermgtd acts" in pcluster(aws, silent).stands_down()


@pytest.mark.parametrize("act", ["reboot", "replace"])
def test_where_slurm_could_not_be_looked_at_nothing_was_asked_for(aws: Aws, act: str) -> None:
    """Else what was never asked for would be waited for, half an hour or four."""
    scontrol = ScriptedScontrol(NODE, fenced=True)
    scontrol.silent = True
    with pytest.raises(BackendBusy, match="no request was sent yet"):
        getattr(pcluster(aws, scontrol), act)()


def test_no_capacity_is_said(aws: Aws) -> None:
    """clustermgtd writes EC2's code into the reason."""
    reason = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes"
    message = pcluster(aws, ScriptedScontrol(NODE, state="DOWN+CLOUD+POWERED_DOWN", reason=reason)).progress()
    assert message == f"clustermgtd has no capacity yet: {reason}"


def test_on_the_node_no_right_to_look_leaves_our_own_id(aws: Aws, endpoint: AwsEndpoint) -> None:
    """A compute node of ParallelCluster need not be allowed to describe instances; from elsewhere it must."""
    endpoint.fail("DescribeInstances", DENIED, DENIED)
    scontrol = ScriptedScontrol(NODE)
    assert pcluster(aws, scontrol).machine() == INSTANCE
    with pytest.raises(BackendRefused, match="needs the IAM action ec2:DescribeInstances"):
        pcluster(aws, scontrol, instance="").machine()
    scontrol.address = "dy-node-1"
    with pytest.raises(BackendUnknown, match="neither an address nor a name made of one"):
        pcluster(aws, scontrol, instance="").machine()


def test_a_head_node_is_nobodys_to_replace(no_aws: Aws) -> None:
    """Neither rebooted nor replaced, with the reason."""
    provisioner = SlurmManagedProvisioner(
        kind="parallelcluster",
        manager="clustermgtd",
        subject=TargetNode(node=NODE, instance_id=INSTANCE),
        aws=no_aws,
        scontrol=ScriptedScontrol(NODE),
        fixed="this is the HeadNode of its ParallelCluster, which nothing replaces",
    )
    assert all(provisioner.reason_against(remedy) for remedy in Remedy)
    assert "HeadNode" in provisioner.reason_against(Remedy.REBOOT_NODE)


@pytest.mark.parametrize(
    ("kind", "node", "can"),
    [
        ("parallelcluster", "queue-1-dy-p5-48xlarge-7", False),
        ("parallelcluster", "queue-1-st-p5-48xlarge-7", True),
        ("pcs", "queue-1-dy-p5-48xlarge-7", True),  # a name means nothing there
    ],
)
def test_a_node_that_only_a_job_brings_back_is_not_replaced(no_aws: Aws, kind: str, node: str, can: bool) -> None:
    """Its place in the budget would keep away the very job that another machine would come for."""
    provisioner = SlurmManagedProvisioner(
        kind=kind,
        manager="its manager",
        subject=TargetNode(node=node, instance_id=INSTANCE, instance_type="p5.48xlarge"),
        aws=no_aws,
        scontrol=ScriptedScontrol(node),
    )
    assert (not provisioner.reason_against(Remedy.REPLACE_NODE)) is can
    assert not provisioner.reason_against(Remedy.REBOOT_NODE)
