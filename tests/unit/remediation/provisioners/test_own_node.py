"""A node that asks its platform by its own Node: what it writes, what it reads back, what it will not ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.config.schema.config import Config
from healthd.config.schema.provisioner import HyperpodSection, ProvisionerSection
from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown, ConfigError
from healthd.core.model import Remedy
from healthd.core.node import KernelLogState
from healthd.remediation.orchestrators.kubernetes.objects.node import HOLD, UNHEALTHY, KubeNode, node_of
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import ASKED, EKS_CONDITION, HYPERPOD_LABEL
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.from_config import channel_of, found_by_controller, open_provisioner
from healthd.remediation.provisioners.own_node import UNHEARD_S, OwnNodeProvisioner
from healthd.remediation.provisioners.registry import RepairChannel
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.remediation.records.handoff import HandoffRecord
from healthd.sim.cluster import FakeCluster, FakeOrchestrator
from healthd.sources.machine import open_machine

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MACHINE = "i-0aaaaaaaaaaaaaaa1"
REPLACE = "UnschedulablePendingReplacement"


class OneNode:
    """A Node that is drained for XID 79, and merges patches as the API server does. ``lost``: what comes of a write."""

    def __init__(self, **labels: str) -> None:
        hold = json.dumps({"text": "healthd: gpu.xid.79 gpu:GPU-1 [k3v9]", "by": "healthd-agent", "stamp": 1})
        self.data: dict[str, Any] = {
            "metadata": {"name": "n1", "resourceVersion": "1", "labels": labels, "annotations": {HOLD: hold}},
            "spec": {
                "providerID": f"aws:///us-east-1a/{MACHINE}",
                "taints": [{"key": UNHEALTHY, "effect": "NoSchedule"}],
            },
            "status": {"conditions": []},
        }
        self.writes: list[tuple[bool, dict[str, Any]]] = []
        self.is_gone, self.forgets = False, False

    def own(self, *, fresh: bool = False) -> KubeNode:
        if self.is_gone:
            raise BackendUnknown("the node n1 is no longer in the cluster")
        return node_of(self.data)

    def change_own(self, patch: Callable[[KubeNode], dict[str, Any] | None], *, status: bool) -> None:
        if (body := patch(self.own())) is None:
            return
        self.writes.append((status, body))
        if self.forgets:
            return
        for part in ("labels", "annotations"):
            changes = body["metadata"].get(part) or {}
            merged = {**self.data["metadata"][part], **changes}
            self.data["metadata"][part] = {key: value for key, value in merged.items() if value is not None}
        for made in body.get("status", {}).get("conditions", []):
            others = [each for each in self.data["status"]["conditions"] if each["type"] != made["type"]]
            self.data["status"]["conditions"] = [*others, made]


def of(
    node: OneNode, kind: str, *, record: str = "", now: datetime = NOW, instance_type: str = ""
) -> OwnNodeProvisioner:
    subject = TargetNode(node="n1", here=False, instance_type=instance_type)
    return OwnNodeProvisioner(
        kind=kind, subject=subject, node=node, read=lambda: record, hint="look there", clock=lambda: now
    )


def hyperpod_node() -> OneNode:
    return OneNode(**{HYPERPOD_LABEL: "Schedulable"})


def test_hyperpod_is_asked_by_one_write_of_the_node() -> None:
    """Which is its own already when it is asked for again, and so is not written twice."""
    node = hyperpod_node()
    provisioner = of(node, "hyperpod")
    assert (provisioner.stands_down(), provisioner.machine(), provisioner.state_owner) == (
        "",
        MACHINE,
        StateOwner.ENGINE,
    )
    provisioner.replace()
    provisioner.replace()
    assert [status for status, _ in node.writes] == [False]
    assert node.own().labels == {HYPERPOD_LABEL: REPLACE}
    assert node.own().annotations[ASKED] == REPLACE
    assert provisioner.stands_down() == ""


def test_eks_is_asked_by_a_patch_of_the_status() -> None:
    """With the reason of the finding in the node's own hold; a reboot it has no reason for is refused."""
    node = OneNode()
    provisioner = of(node, "eks")
    with pytest.raises(BackendRefused, match=r"no reason that means reboot_node for gpu\.xid\.79"):
        provisioner.reboot()
    assert node.writes == []
    provisioner.replace()
    ((status, _),) = node.writes
    condition = node.own().condition(EKS_CONDITION)
    assert condition is not None
    assert (status, condition.status, condition.reason) == (True, "False", "NvidiaXID79Error")


def test_on_karpenters_node_a_reboot_is_none_of_the_remedies() -> None:
    """So that the ladder's next one is asked for. A Node that cannot be read says nothing, and is asked for nothing."""
    node = OneNode(**{"karpenter.sh/nodepool": "gpu"})
    provisioner = of(node, "eks")
    assert (
        provisioner.reason_against(Remedy.REBOOT_NODE)
        == "Karpenter made n1, and replaces it on any request: no reboot_node"
    )
    assert provisioner.reason_against(Remedy.REPLACE_NODE) == ""
    with pytest.raises(BackendRefused, match="Karpenter made n1"):
        provisioner.dry_run(Remedy.REBOOT_NODE)
    node.is_gone = True
    assert provisioner.reason_against(Remedy.REBOOT_NODE) == ""
    with pytest.raises(BackendUnknown, match="n1 is no longer in the cluster"):
        provisioner.reboot()
    assert node.writes == []


def test_what_cannot_be_read_back_is_unknown() -> None:
    """A write that was acknowledged and is not there is no request."""
    node = hyperpod_node()
    node.forgets = True
    with pytest.raises(BackendUnknown, match=f"not visible on the Node: it shows {HYPERPOD_LABEL}=Schedulable"):
        of(node, "hyperpod").replace()


def test_who_speaks_for_the_node_is_named_and_not_talked_over() -> None:
    """And a Node that cannot be read stands down as well."""
    node = OneNode(**{HYPERPOD_LABEL: "UnschedulablePendingReboot"})
    provisioner = of(node, "hyperpod")
    assert provisioner.stands_down().startswith("healthd does not ask HyperPod: HyperPod acts on the node already")
    with pytest.raises(BackendRefused, match="acts on the node already"):
        provisioner.replace()
    with pytest.raises(BackendRefused, match="acts on the node already"):
        provisioner.dry_run(Remedy.REPLACE_NODE)
    node.is_gone = True
    assert "unknown whether another agent asks HyperPod for this node" in provisioner.stands_down()


def test_what_no_platform_does_is_not_asked() -> None:
    """No GPU reset, and no single node of an UltraServer."""
    provisioner = of(hyperpod_node(), "hyperpod", instance_type="p6e-gb200.36xlarge")
    assert not provisioner.reason_against(Remedy.REBOOT_NODE)
    assert provisioner.reason_against(Remedy.RESET_GPU)
    assert "is a part of an UltraServer" in provisioner.reason_against(Remedy.REPLACE_NODE)
    with pytest.raises(BackendRefused, match="UltraServer"):
        provisioner.dry_run(Remedy.REPLACE_NODE)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("hyperpod", f"would set {HYPERPOD_LABEL}={REPLACE} on Node n1"),
        ("eks", f"would set {EKS_CONDITION}=False (NvidiaXID79Error) on Node n1"),
    ],
)
def test_a_dry_run_says_what_the_node_would_show(kind: str, words: str) -> None:
    """And writes nothing."""
    node = hyperpod_node()
    assert of(node, kind).dry_run(Remedy.REPLACE_NODE) == words
    assert node.writes == []


def test_a_request_of_which_nothing_comes_is_a_persons_business() -> None:
    """After three quarters of an hour by the record, with what to look at; before, it says what the node shows."""
    node = hyperpod_node()
    of(node, "hyperpod").replace()
    record = HandoffRecord(
        remediation_id="k3v9", machine=MACHINE, remedy=Remedy.REPLACE_NODE, attempt=1, asked=NOW
    ).text
    shown = f"the node shows {HYPERPOD_LABEL}={REPLACE}"
    assert of(node, "hyperpod", record=record).progress() == shown
    assert of(node, "hyperpod").progress() == shown
    late = NOW + timedelta(seconds=UNHEARD_S + 1)
    with pytest.raises(BackendBusy, match="no result for 45 minutes: look there"):
        of(node, "hyperpod", record=record, now=late).progress()
    node.data["metadata"]["labels"][HYPERPOD_LABEL] = "Schedulable"
    assert (
        "not healthd's request: HyperPod or an operator has changed it"
        in of(node, "hyperpod", record=record).progress()
    )


def test_a_node_that_is_gone_is_unknown_and_no_failure() -> None:
    """Its machine is on its way out: that is what was asked for."""
    node = hyperpod_node()
    node.is_gone = True
    provisioner = of(node, "hyperpod")
    for ask in (provisioner.machine, provisioner.progress):
        with pytest.raises(BackendUnknown, match="n1 is no longer in the cluster"):
            ask()


def test_a_node_without_an_instance_has_no_machine() -> None:
    """No evidence could ever show that it was replaced."""
    node = hyperpod_node()
    node.data["spec"]["providerID"] = "kind://docker/kind/n1"
    with pytest.raises(BackendUnknown, match="names no instance: 'kind://docker/kind/n1'"):
        of(node, "hyperpod").machine()


@pytest.mark.parametrize(
    ("kind", "minutes", "carried_out", "taken", "status"),
    [
        ("eks", 1, False, True, "Unknown"),
        ("eks", 6, False, False, "False"),
        ("eks", 6, True, True, "Unknown"),
        ("hyperpod", 1, False, False, ""),
        ("hyperpod", 1, True, True, ""),
    ],
)
def test_a_request_is_taken_back_only_in_time(
    kind: str, minutes: int, carried_out: bool, taken: bool, status: str
) -> None:
    """Before EKS can have begun, or once it was carried out; HyperPod's label is HyperPod's to set back."""
    node = hyperpod_node()
    of(node, kind).replace()
    later = of(node, kind, now=NOW + timedelta(minutes=minutes))
    assert later.take_back(carried_out=carried_out) is taken
    condition = node.own().condition(EKS_CONDITION)
    assert (condition.status if condition is not None else "") == status
    assert (node.own().labels[HYPERPOD_LABEL] == REPLACE) is (kind == "hyperpod")


# ---------------------------------------------------------------------------------------------------------------------
# as it is configured


@pytest.mark.parametrize(
    ("section", "channel"),
    [
        (ProvisionerSection(kind="eks"), RepairChannel.OWN_NODE),
        (ProvisionerSection(kind="eks", act_from="controller"), RepairChannel.OWN_NODE),
        (ProvisionerSection(kind="hyperpod", hyperpod=HyperpodSection(how="label")), RepairChannel.OWN_NODE),
        (ProvisionerSection(kind="hyperpod", hyperpod=HyperpodSection(how="api")), RepairChannel.API),
        (ProvisionerSection(kind="autoscaling", hyperpod=HyperpodSection(how="label")), RepairChannel.API),
    ],
)
def test_who_asks_by_its_own_node(section: ProvisionerSection, channel: RepairChannel) -> None:
    """Whoever else calls AWS: the node's own label and condition are the node's."""
    assert channel_of(section) is channel


def test_on_any_other_cluster_it_is_a_mistake(tmp_path: Path) -> None:
    """There is no Node to write; the controller of Slurm is told the same."""
    machine = open_machine(Config(), lambda: KernelLogState(source="none", alive=True))
    records = FakeOrchestrator(FakeCluster("n1", clock=lambda: 0.0), "n1")
    node = hyperpod_node()
    for section, words in (
        (ProvisionerSection(kind="eks"), "provisioner.kind = eks writes to the node's own Node"),
        (ProvisionerSection(kind="hyperpod", hyperpod=HyperpodSection(how="label")), 'how = "label" writes'),
    ):
        config = Config(provisioner=section)
        with pytest.raises(ConfigError, match=words):
            open_provisioner(config, machine, None, records=records)
        made = open_provisioner(config, machine, None, records=records, own_node=node)
        assert (made.kind, made.delegates, made.machine()) == (section.kind, False, MACHINE)
    with pytest.raises(ConfigError, match="eks needs Kubernetes"):
        found_by_controller(ProvisionerSection(kind="eks"), lambda _: None, root=str(tmp_path))


def test_a_node_that_turns_out_to_be_hyperpods_asks_by_its_label_where_that_is_set(tmp_path: Path) -> None:
    """``kind = "auto"`` and the platform's own file."""
    (tmp_path / "opt/ml/config").mkdir(parents=True)
    (tmp_path / "opt/ml/config/resource_config.json").write_text('{"ClusterConfig": {"ClusterName": "c"}}')
    machine = open_machine(Config(), lambda: KernelLogState(source="none", alive=True))
    records = FakeOrchestrator(FakeCluster("n1", clock=lambda: 0.0), "n1")
    config = Config(provisioner=ProvisionerSection(kind="auto", hyperpod=HyperpodSection(how="label")))
    node = hyperpod_node()
    made = open_provisioner(config, machine, None, records=records, own_node=node, root=str(tmp_path))
    assert isinstance(made, OwnNodeProvisioner)


def test_on_kubernetes_a_node_does_not_call_hyperpods_api_by_itself() -> None:
    """It would act beside HyperPod's agent, whose label it does not see, and could not tell another machine."""
    machine = open_machine(Config(), lambda: KernelLogState(source="none", alive=True))
    records = FakeOrchestrator(FakeCluster("n1", clock=lambda: 0.0), "n1")
    node = hyperpod_node()

    section = ProvisionerSection(kind="hyperpod", hyperpod=HyperpodSection(cluster="c"))
    alone = open_provisioner(Config(provisioner=section), machine, None, records=records, own_node=node)
    for remedy in (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE):
        assert "act_from = controller" in alone.reason_against(remedy)
    asking = ProvisionerSection(kind="hyperpod", act_from="controller", hyperpod=HyperpodSection(cluster="c"))
    there = open_provisioner(Config(provisioner=asking), machine, None, records=records, own_node=node)
    assert there.delegates
    assert "act_from" not in there.reason_against(Remedy.REBOOT_NODE)
