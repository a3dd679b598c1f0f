"""Which platform of AWS a node is of, from files and metadata that a test lays out; and the provisioner made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from healthd.config.schema.config import Config, NodeSection, SourcesSection
from healthd.config.schema.provisioner import (
    AutoscalingSection,
    Ec2Section,
    HyperpodSection,
    LocalProvisionerSection,
    ProvisionerSection,
)
from healthd.core.errors import BackendUnknown, ConfigError, SourceTimeout
from healthd.core.model import Remedy
from healthd.core.node import KernelLogState
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.detect import DetectedPlatform, detect
from healthd.remediation.provisioners.from_config import found_on, open_for, open_provisioner
from healthd.remediation.provisioners.hyperpod import HyperPodProvisioner
from healthd.remediation.provisioners.registry import KINDS, PLATFORMS
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.sources.machine import Machine, open_machine
from tests.support.scontrol import ScriptedScontrol

ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl"
HERE = TargetNode(node="n1", instance_id="i-00000000000000001", instance_type="p5.48xlarge")


def metadata(**items: str) -> Callable[[str], str | None]:
    """A metadata service with these items; ``_`` stands for what no name may have."""
    return lambda path: {name: items[name] for name in items}.get(
        path.rpartition("/")[2].replace(":", "_").replace("-", "_")
    )


def lay(root: Path, name: str, data: object) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(data))


def found(root: Path, *, on_ec2: bool = True, group: str = "", **items: str) -> DetectedPlatform:
    return detect(root=str(root), metadata=metadata(**items), on_ec2=on_ec2, group_of=lambda: group)


def test_hyperpod_by_its_file(tmp_path: Path) -> None:
    """The ARN names the cluster and the region; ``Instances`` may be null, and is not looked at."""
    config = {"ClusterConfig": {"ClusterName": "demo", "ClusterArn": ARN}, "InstanceGroups": [{"Instances": None}]}
    lay(tmp_path, "opt/ml/config/resource_config.json", config)
    (tmp_path / "etc/parallelcluster").mkdir(parents=True)
    shown = found(tmp_path)
    assert (shown.platform, shown.cluster, shown.region) == (Platform.HYPERPOD, ARN, "us-west-2")


def test_a_file_that_is_broken_still_says_where_this_is(tmp_path: Path) -> None:
    """Its place says the platform; what it does not tell must be configured."""
    lay(tmp_path, "opt/ml/config/resource_config.json", ["?"])
    assert found(tmp_path).platform is Platform.HYPERPOD
    provisioner = open_for(ProvisionerSection(), HERE, found(tmp_path), None)
    assert provisioner.reason_against(Remedy.REBOOT_NODE)


def test_parallelcluster_by_its_folder_and_its_dna(tmp_path: Path) -> None:
    """A compute node is replaced, a head node by nobody."""
    (tmp_path / "etc/parallelcluster").mkdir(parents=True)
    dna = {"cluster": {"node_type": "ComputeFleet", "cluster_name": "hpc", "region": "eu-west-1"}}
    lay(tmp_path, "etc/chef/dna.json", dna)
    shown = found(tmp_path)
    assert (shown.platform, shown.cluster, shown.region, shown.fixed) == (
        Platform.PARALLELCLUSTER,
        "hpc",
        "eu-west-1",
        "",
    )
    lay(tmp_path, "etc/chef/dna.json", {"cluster": {"node_type": "HeadNode", "stack_name": "parallelcluster-hpc"}})
    assert found(tmp_path).cluster == "hpc"
    assert "HeadNode" in found(tmp_path).fixed


def test_pcs_by_its_tag_or_its_logs(tmp_path: Path) -> None:
    """The tag where the instance may see its tags, else the agent's folder."""
    assert found(tmp_path, aws_pcs_cluster_id="pcs_1").cluster == "pcs_1"
    (tmp_path / "var/log/amazon/pcs").mkdir(parents=True)
    assert found(tmp_path).platform is Platform.PCS


def test_a_group_by_its_tag_its_state_or_by_asking(tmp_path: Path) -> None:
    """The first that says so; with none of them it is an instance by itself."""
    assert found(tmp_path, aws_autoscaling_groupName="workers").group == "workers"
    assert found(tmp_path, target_lifecycle_state="InService").platform is Platform.AUTOSCALING
    assert found(tmp_path, group="workers").group == "workers"
    assert found(tmp_path).platform is Platform.EC2


def test_no_answer_is_no_evidence(tmp_path: Path) -> None:
    """Metadata that hangs and a question that fails: EC2, which is said to be a guess; and not EC2 is none of AWS's."""

    def hangs(path: str) -> str | None:
        raise SourceTimeout(path)

    def fails() -> str:
        raise BackendUnknown("throttled")

    shown = detect(root=str(tmp_path), metadata=hangs, on_ec2=True, group_of=fails)
    assert shown.platform is Platform.EC2
    assert "unknown whether it is in an Auto Scaling group: throttled" in shown.why
    assert found(tmp_path, on_ec2=False).platform is None


# ---------------------------------------------------------------------------------------------------------------------
# the provisioner made of it


def test_the_configured_kind_wins_and_still_reads_its_own_file(tmp_path: Path) -> None:
    """Configured for HyperPod on what looks like ParallelCluster: HyperPod it is, with what its file tells."""
    (tmp_path / "etc/parallelcluster").mkdir(parents=True)
    section = ProvisionerSection(kind="hyperpod")
    assert found_on(section, metadata(), HERE, root=str(tmp_path)).cluster == ""
    lay(tmp_path, "opt/ml/config/resource_config.json", {"ClusterConfig": {"ClusterArn": ARN}})
    assert found_on(section, metadata(), HERE, root=str(tmp_path)).cluster == ARN
    assert found_on(ProvisionerSection(kind="ec2"), metadata(region="us-east-1"), HERE).region == "us-east-1"


@pytest.mark.parametrize("platform", Platform)
def test_each_platform_has_its_provisioner(platform: Platform) -> None:
    """By its own name, able to reboot a node; from elsewhere as well."""
    shown = DetectedPlatform(platform=platform, why="as the test has it", cluster="demo")
    for subject in (HERE, TargetNode(node="n1", here=False)):
        provisioner = open_for(ProvisionerSection(), subject, shown, ScriptedScontrol("n1"))
        assert provisioner.kind == platform
        assert not provisioner.reason_against(Remedy.REBOOT_NODE)
        assert provisioner.reason_against(Remedy.RESET_GPU)
        assert (not provisioner.reason_against(Remedy.REPLACE_NODE)) is (platform is not Platform.EC2)


def test_hyperpod_is_asked_by_slurm_on_the_node_and_by_the_api_elsewhere() -> None:
    """The default needs no right on the node; the controller has no other way than the API."""
    shown = DetectedPlatform(platform=Platform.HYPERPOD, why="", cluster="demo")
    scontrol = ScriptedScontrol("n1")
    here = open_for(ProvisionerSection(), HERE, shown, scontrol)
    api = ProvisionerSection(hyperpod=HyperpodSection(how="api", cluster="other"))
    assert isinstance(here, HyperPodProvisioner)
    assert here.dry_run(Remedy.REBOOT_NODE).startswith("scontrol update")
    by_api = open_for(api, HERE, shown, scontrol)
    assert isinstance(by_api, HyperPodProvisioner)
    assert "BatchRebootClusterNodes other i-" in by_api.dry_run(Remedy.REBOOT_NODE)


def test_what_needs_slurm_is_refused_without_it() -> None:
    """ParallelCluster and PCS are asked by scontrol alone; a machine of nobody's has no provisioner."""
    with pytest.raises(ConfigError, match="provisioner.kind = pcs needs Slurm"):
        open_for(ProvisionerSection(), HERE, DetectedPlatform(platform=Platform.PCS, why=""), None)
    with pytest.raises(ConfigError, match="no EC2 instance"):
        open_for(ProvisionerSection(), HERE, DetectedPlatform(platform=None, why="no EC2 instance"), None)


def test_a_node_without_an_instance_id_is_not_acted_upon() -> None:
    """Nobody can be asked for another machine than one that has a name."""
    nameless = TargetNode(node="n1")
    section = ProvisionerSection(autoscaling=AutoscalingSection(replace="unhealthy"), ec2=Ec2Section())
    provisioner = open_for(section, nameless, DetectedPlatform(platform=Platform.AUTOSCALING, why=""), None)
    assert all(provisioner.reason_against(remedy) for remedy in Remedy)


def machine_of(config: Config) -> Machine:
    return open_machine(config, lambda: KernelLogState(source="none", alive=True))


def configured(root: Path, section: ProvisionerSection, *, vendor: str = "Amazon EC2") -> Config:
    """A node whose firmware says that it is a p5.48xlarge of EC2."""
    dmi = root / "sys/devices/virtual/dmi/id"
    dmi.mkdir(parents=True, exist_ok=True)
    for name, text in (("sys_vendor", vendor), ("product_name", "p5.48xlarge"), ("board_asset_tag", HERE.instance_id)):
        (dmi / name).write_text(text)
    sources = SourcesSection(sys_root=str(root / "sys"))
    return Config(node=NodeSection(name="n1"), sources=sources, provisioner=section)


def test_a_nodes_own_provisioner_is_what_its_configuration_says(tmp_path: Path) -> None:
    """None by default; the local command; and with ``auto`` what the node turns out to be, under its own id."""
    lay(tmp_path, "opt/ml/config/resource_config.json", {"ClusterConfig": {"ClusterArn": ARN}})
    remedies, can = (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE), []
    for section in (
        ProvisionerSection(),
        ProvisionerSection(kind="local", local=LocalProvisionerSection(reboot_command=("true",))),
        ProvisionerSection(kind="auto"),
    ):
        config = configured(tmp_path, section)
        provisioner = open_provisioner(config, machine_of(config), ScriptedScontrol("n1"), root=str(tmp_path))
        can.append((provisioner.kind, *(not provisioner.reason_against(remedy) for remedy in remedies)))
    assert can == [("local", False, False), ("local", True, False), ("hyperpod", True, True)]


def test_a_machine_of_nobodys_says_so(tmp_path: Path) -> None:
    """``auto`` where nothing shows a platform is a mistake in the configuration, with what to do."""
    config = configured(tmp_path, ProvisionerSection(kind="auto"), vendor="QEMU")
    with pytest.raises(
        ConfigError, match="no sign that this machine is an EC2 instance.*name the platform, or set none or local"
    ):
        open_provisioner(config, machine_of(config), None, root=str(tmp_path))


def test_where_a_drain_is_a_replacement_nothing_is_drained(tmp_path: Path) -> None:
    """ParallelCluster replaces what is drained even where healthd was told of no provisioner: it fences instead."""
    config = configured(tmp_path, ProvisionerSection(kind="none"))
    owner = open_provisioner(config, machine_of(config), None, root=str(tmp_path)).state_owner
    (tmp_path / "etc/parallelcluster").mkdir(parents=True)
    there = open_provisioner(config, machine_of(config), None, root=str(tmp_path)).state_owner
    assert (owner, there) == (StateOwner.ENGINE, StateOwner.PLATFORM)


def test_every_kind_that_can_be_configured_has_its_row() -> None:
    """But ``auto``, which finds one; and a platform of AWS has what builds its provisioner."""
    named = get_args(get_type_hints(ProvisionerSection)["kind"])
    assert {*named} - {"auto"} == KINDS.keys()
    assert all(kind.build is not None for kind in PLATFORMS.values())
