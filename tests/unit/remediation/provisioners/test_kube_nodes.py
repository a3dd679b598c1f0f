"""Machines of Kubernetes nodes: whose word counts for which machine it is, and what Karpenter will not do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from healthd.config.schema.config import Config
from healthd.config.schema.controller import ControllerSection, DrainRule
from healthd.config.schema.provisioner import Ec2Section, HyperpodSection, ProvisionerSection
from healthd.controller.kubernetes import drain_rules
from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown, ConfigError
from healthd.core.model import Remedy
from healthd.core.node import CommandResult, KernelLogState
from healthd.remediation.controller.node_status import NodeStatus, merged
from healthd.remediation.orchestrators.kubernetes.objects.eviction import EvictMode
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.aws_errors import CallTrouble
from healthd.remediation.provisioners.from_config import (
    delegates,
    found_by_controller,
    open_for_kubernetes,
    open_provisioner,
)
from healthd.remediation.provisioners.kube_nodes import ByProviderId, KarpenterProvisioner, NodeClaim, launched
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.sim.cluster import FakeCluster, FakeOrchestrator
from healthd.sources.machine import open_machine
from healthd.testing import FakeClock
from tests.support.fake_repairs import FakeProvisioner

MACHINE = "i-0aaaaaaaaaaaaaaa1"


class OneClaim(Struct):
    """One of Karpenter's NodeClaims."""

    name: str = "p5-a"
    deleting: bool = False


class Claims(Struct):
    """The NodeClaims, of which this machine's is one."""

    one: OneClaim | None = field(default_factory=OneClaim)
    deleted: list[str] = field(default_factory=list)
    denied: bool = False
    silent: bool = False

    def of(self, instance_id: str) -> OneClaim | None:
        if self.denied:
            raise BackendRefused("forbidden")
        if self.silent:
            raise BackendUnknown("no answer")
        return self.one if instance_id == MACHINE else None

    def delete(self, claim: NodeClaim) -> None:
        self.deleted.append(claim.name)


def karpenter(claims: Claims | None, *, machine: str = MACHINE, instance_type: str = "") -> KarpenterProvisioner:
    subject = TargetNode(node="n1", here=False, instance_id=machine, instance_type=instance_type)
    return KarpenterProvisioner(subject=subject, machine=lambda: MACHINE, claims=claims)


def test_karpenter_replaces_and_does_not_reboot() -> None:
    """Nor replaces what is a part of an UltraServer."""
    assert not karpenter(Claims()).reason_against(Remedy.REPLACE_NODE)
    assert "cannot reboot a node" in karpenter(Claims()).reason_against(Remedy.REBOOT_NODE)
    assert "UltraServer" in karpenter(Claims(), instance_type="p6e-gb200.36xlarge").reason_against(Remedy.REPLACE_NODE)
    with pytest.raises(BackendRefused, match="cannot reboot a node"):
        karpenter(Claims()).reboot()


def test_where_no_node_claim_could_be_read_nothing_was_asked_for() -> None:
    """Else it would be waited for, and called lost."""
    claims = Claims(silent=True)
    with pytest.raises(BackendBusy, match="no request was sent yet"):
        karpenter(claims).replace()
    assert claims.deleted == []


def test_the_node_claim_of_this_machine_is_deleted_and_no_other() -> None:
    """A machine without one is not Karpenter's, and a node itself may delete none."""
    claims = Claims()
    assert karpenter(claims).dry_run(Remedy.REPLACE_NODE) == f"would delete NodeClaim p5-a of {MACHINE}"
    karpenter(claims).replace()
    assert claims.deleted == ["p5-a"]
    with pytest.raises(BackendRefused, match="has no NodeClaim of i-9: check"):
        karpenter(claims, machine="i-9").replace()
    with pytest.raises(BackendRefused, match="may not delete"):
        karpenter(None).replace()
    with pytest.raises(BackendRefused, match="cannot reboot a node"):
        karpenter(claims).dry_run(Remedy.REBOOT_NODE)
    assert claims.deleted == ["p5-a"]


def test_what_is_on_its_way_out_is_left_to_karpenter() -> None:
    """It stands down, and says how far that is."""
    going = karpenter(Claims(one=OneClaim(deleting=True)))
    assert going.stands_down() == "Karpenter ends NodeClaim p5-a already"
    assert going.progress() == "Karpenter ends NodeClaim p5-a"
    assert karpenter(Claims()).stands_down() == ""
    assert karpenter(Claims()).progress() == "NodeClaim p5-a is there"
    assert "is gone" in karpenter(Claims(one=None)).progress()


def test_a_request_that_nobody_got_is_found_out() -> None:
    """A NodeClaim that stands longer than the API server works on any request was never deleted: told, so that it is
    asked for again. Less than that, or on its way out, it is waited for; another request begins anew."""
    clock, claims = FakeClock(), Claims()
    subject = TargetNode(node="n1", here=False, instance_id=MACHINE)
    asked = KarpenterProvisioner(subject=subject, machine=lambda: MACHINE, claims=claims, monotonic_s=clock)
    for _ in range(3):
        assert asked.progress() == "NodeClaim p5-a is there"
        clock.advance(40.0)
    with pytest.raises(BackendRefused, match="NodeClaim p5-a was never deleted"):
        asked.progress()
    asked.replace()
    assert asked.progress() == "NodeClaim p5-a is there"
    claims.one = OneClaim(deleting=True)
    clock.advance(1000.0)
    assert asked.progress() == "Karpenter ends NodeClaim p5-a"


def test_a_machine_without_a_node_claim_is_refused_and_one_that_cannot_be_read_waits() -> None:
    """The first is said before anything is asked for; the second for as long as it lasts."""
    assert "has no NodeClaim of i-9" in karpenter(Claims(), machine="i-9").reason_against(Remedy.REPLACE_NODE)
    assert "unknown whether Karpenter" in karpenter(Claims(), machine="i-9").stands_down()
    denied = karpenter(Claims(denied=True))
    assert "unknown whether Karpenter ends this machine already: forbidden" in denied.stands_down()
    with pytest.raises(BackendRefused, match="forbidden"):
        denied.reason_against(Remedy.REPLACE_NODE)
    assert not karpenter(None).reason_against(Remedy.REPLACE_NODE)


def test_a_machine_that_keeps_its_id_is_told_by_its_launch() -> None:
    """As the platform has it, while the Node names that instance; else what the Node says."""
    assert launched(lambda: "i-7", lambda: "i-7@2026-11-22T01:00")() == "i-7@2026-11-22T01:00"
    assert launched(lambda: "i-8", lambda: "i-7@2026-11-22T01:00")() == "i-8"


def test_the_node_says_which_machine_it_is_and_the_platform_acts() -> None:
    """Its state is the engine's."""
    inner = FakeProvisioner(lambda: None, lambda: None)
    led = ByProviderId(inner, machine=lambda: "i-7")
    assert (led.machine(), led.state_owner) == ("i-7", StateOwner.ENGINE)
    assert (led.reason_against(Remedy.REPLACE_NODE), led.stands_down(), led.progress()) == (
        inner.reason_against(Remedy.REPLACE_NODE),
        inner.stands_down(),
        inner.progress(),
    )
    led.replace()
    led.reboot()
    assert (inner.replacements, inner.requests) == (1, 1)


def test_an_instance_that_its_group_has_ended_is_no_replacement_that_failed() -> None:
    """Auto Scaling forgets it before its Node is deleted. A leader that comes then does not know the group."""

    def knows_none(argv: Sequence[str], **more: Any) -> CommandResult:
        assert json.loads(more["input"])["operation"] == "DescribeAutoScalingInstances"
        reply = json.dumps({"answer": {"AutoScalingInstances": []}})
        return CommandResult(argv=tuple(argv), code=0, stdout=reply, stderr="", duration_s=0.1)

    subject = TargetNode(node="n1", here=False, instance_id=MACHINE)
    provisioner = AutoScalingProvisioner(subject=subject, aws=Aws(run=knows_none))
    assert provisioner.progress() == f"no Auto Scaling group has {MACHINE} any more"
    assert "is in no Auto Scaling group: check [provisioner] kind" in provisioner.stands_down()


class LosesItsLead(Struct):
    """AWS behind a controller whose lead ends while a call reads; ``sent``: the calls, in their order."""

    sent: list[str] = field(default_factory=list)
    leads: bool = True

    def run(self, argv: Sequence[str], **more: Any) -> CommandResult:
        asked = json.loads(more["input"])
        self.sent.append(asked["operation"])
        self.leads = False
        running = {"InstanceId": MACHINE, "State": {"Name": "running"}, "LaunchTime": "2026-11-01T00:00:00+00:00"}
        reply: dict[str, Any] = {"answer": {"Reservations": [{"Instances": [running]}]}}
        if "DryRun" in asked["parameters"]:
            reply = {"trouble": CallTrouble.WOULD_DO}
        return CommandResult(argv=tuple(argv), code=0, stdout=json.dumps(reply), stderr="", duration_s=0.1)

    def check(self) -> None:
        if not self.leads:
            raise BackendBusy("this controller is no longer the leader")


def test_a_lead_that_ends_while_the_platform_is_read_ends_before_the_act() -> None:
    """The next leader may have had the same machine moved by then: a late stop would meet the machine that came."""
    aws = LosesItsLead()
    section = ProvisionerSection(kind="ec2", act_from="controller", ec2=Ec2Section(stop_and_start="always"))
    opened = open_for_kubernetes(
        Config(provisioner=section),
        "n1",
        MACHINE,
        lambda _: None,
        machine=lambda: MACHINE,
        claims=Claims(),
        leads=aws.check,
        run=aws.run,
    )
    with pytest.raises(BackendBusy, match="no longer the leader"):
        opened.replace()
    assert aws.sent == ["DescribeInstances", "StartInstances"]  # the second one a dry run


def test_what_slurm_does_on_slurm_is_the_apis_on_kubernetes() -> None:
    """HyperPod by scontrol is done on the node where there is Slurm, and asked of the controller where not."""
    section = ProvisionerSection(kind="hyperpod", act_from="controller", hyperpod=HyperpodSection(how="scontrol"))
    assert not delegates(section, Platform.HYPERPOD)
    assert delegates(section, Platform.HYPERPOD, by_slurm=False)
    assert not delegates(ProvisionerSection(kind="hyperpod"), Platform.HYPERPOD, by_slurm=False)


def test_karpenter_is_kubernetess_and_the_controllers(tmp_path: Path) -> None:
    """On Slurm it is a mistake, and so it is from a node itself; a node that asks the controller may ask for a
    replacement."""
    own = ProvisionerSection(kind="karpenter")
    with pytest.raises(ConfigError, match="karpenter needs Kubernetes"):
        found_by_controller(own, lambda _: None, root=str(tmp_path))
    machine = open_machine(Config(), lambda: KernelLogState(source="none", alive=True))
    records = FakeOrchestrator(FakeCluster("n1", clock=lambda: 0.0), "n1")
    with pytest.raises(ConfigError, match="a node may not delete NodeClaims"):
        open_provisioner(Config(provisioner=own), machine, None, records=records)
    asking = Config(provisioner=ProvisionerSection(kind="karpenter", act_from="controller"))
    assert open_provisioner(asking, machine, None, records=records).delegates


def test_one_line_for_a_node() -> None:
    """What is asked of its machine first; a person is called if any of it needs one."""
    drains = NodeStatus(node="n1", message="evicted")
    repairs = NodeStatus(node="n1", message="asked for", remedy=Remedy.REPLACE_NODE, machine="i-1")
    odd = NodeStatus(node="n0", message="odd", page=True)
    one, two = merged([drains, repairs, odd, NodeStatus(node="n0", message="gone")])
    assert (one.node, one.message, one.page) == ("n0", "odd; gone", True)
    assert (two.message, two.remedy, two.machine, two.page) == ("asked for; evicted", Remedy.REPLACE_NODE, "i-1", False)


@pytest.mark.parametrize(
    ("mode", "after_s", "wrong"),
    [("evict_after", 0.0, "no after_s"), ("evict", 5.0, "takes no after_s"), ("never", 5.0, "takes no after_s")],
)
def test_a_time_that_would_not_be_kept_is_refused(mode: str, after_s: float, wrong: str) -> None:
    """With the name of the rule."""
    with pytest.raises(ValueError, match=wrong):
        DrainRule(name="a", mode=mode, after_s=after_s)  # type: ignore[arg-type] # as a file has it


def test_the_rules_of_the_configuration_are_those_of_the_drain() -> None:
    """In their order; a name that is given twice is refused."""
    rule = DrainRule(name="a", mode="complete", labels=("app=train*", "x=a=b"), after_s=5.0, grace_s=3)
    with pytest.raises(ValueError, match="two have the name 'a'"):
        ControllerSection(drain=(rule, rule))
    (made,) = drain_rules(Config(controller=ControllerSection(drain=(rule,))))
    assert (made.mode, made.labels, made.after_s, made.grace_s) == (
        EvictMode.COMPLETE,
        {"app": "train*", "x": "a=b"},
        5.0,
        3,
    )
