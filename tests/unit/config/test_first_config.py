"""A first configuration on every platform's constructed tree: it loads, it only looks, and it says what was found."""

from __future__ import annotations

import json
import os
import re
import threading
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest
from msgspec import structs

from healthd.cli.main import run
from healthd.config.load import load
from healthd.config.schema.config import Config, NodeSection, OrchestratorSection, SlurmSection, SourcesSection
from healthd.config.schema.provisioner import AwsSection, ProvisionerSection
from healthd.core.check import discover
from healthd.core.model import Mode
from healthd.core.node import Mount
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.setup.first_config import first_config
from healthd.setup.survey import Survey, survey
from healthd.sim import tree
from tests.support.imds import Imds

ROOT = Path(__file__).parents[3]
CHECKS = {name: check.settings for name, check in discover().items()}
SCHEMA = json.loads((ROOT / "docs/reference/config.schema.json").read_text(encoding="utf-8"))
NOW = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
CLOSED_PORT = "http://127.0.0.1:9"
ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl"


class Node:
    """A constructed machine below ``root``, to which a test adds what a platform leaves there."""

    def __init__(self, root: Path) -> None:
        self.root, self.imds = root, ""

    def built(self, instance_type: str = "p5.48xlarge") -> None:
        tree.build(self.root, instance_type)

    def has(self, name: str, text: str = "") -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def runs_slurm(self, conf: str) -> None:
        self.has(conf)
        self.has("bin/scontrol", "#!/bin/sh\n")
        (self.root / "bin/scontrol").chmod(0o755)

    def looked_at(self) -> Survey:
        config = Config(
            node=NodeSection(name="n1"),
            sources=SourcesSection(
                sys_root=f"{self.root}/sys",
                proc_root=f"{self.root}/proc",
                dev_root=f"{self.root}/dev",
                imds_endpoint=self.imds,
            ),
            orchestrator=OrchestratorSection(slurm=SlurmSection(bin_dir=f"{self.root}/bin")),
            provisioner=ProvisionerSection(aws=AwsSection(region="us-west-2", endpoint_url=CLOSED_PORT)),
        )
        return survey(config, {"PATH": str(self.root / "nowhere")}, root=str(self.root))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "machine")


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch, node: Node) -> Iterator[Imds]:
    """The node's metadata service on loopback, which is asked because it is configured."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    server = Imds({"instance-id": tree.INSTANCE_ID, "placement/region": "us-west-2"})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    node.imds = server.endpoint
    yield server
    server.shutdown()
    server.server_close()


# -- the platforms ----------------------------------------------------------------------------------------------------


def hyperpod(node: Node, imds: Imds) -> None:
    node.built()
    node.has("opt/ml/config/resource_config.json", json.dumps({"ClusterConfig": {"ClusterArn": ARN}}))
    node.runs_slurm("opt/slurm/etc/slurm.conf")


def hyperpod_eks(node: Node, imds: Imds) -> None:
    node.built("p5en.48xlarge")
    node.has("opt/ml/config/resource_config.json", json.dumps({"ClusterConfig": {"ClusterArn": ARN}}))
    node.has("var/lib/kubelet/pod-resources/kubelet.sock")


def parallelcluster(node: Node, imds: Imds) -> None:
    node.built("p4d.24xlarge")
    (node.root / "etc/parallelcluster").mkdir(parents=True)
    dna = {"cluster": {"node_type": "ComputeFleet", "cluster_name": "hpc", "region": "eu-west-1"}}
    node.has("etc/chef/dna.json", json.dumps(dna))
    node.runs_slurm("opt/slurm/etc/slurm.conf")


def head_node(node: Node, imds: Imds) -> None:
    parallelcluster(node, imds)
    node.has("etc/chef/dna.json", json.dumps({"cluster": {"node_type": "HeadNode"}}))


def pcs(node: Node, imds: Imds) -> None:
    node.built()
    (node.root / "var/log/amazon/pcs").mkdir(parents=True)
    node.has("proc/41/cmdline", "/opt/slurm/sbin/slurmd\0--conf-server\0a:6817\0")
    node.runs_slurm("unused")


def eks(node: Node, imds: Imds) -> None:
    node.built()
    imds.items["tags/instance/aws:autoscaling:groupName"] = "eks-workers"
    node.has("var/lib/kubelet/pod-resources/kubelet.sock")


def plain_ec2(node: Node, imds: Imds) -> None:
    node.built("g6.48xlarge")


def no_cloud(node: Node, imds: Imds) -> None:
    node.imds = ""
    for name in ("sys", "proc", "dev"):
        (node.root / name).mkdir(parents=True)
    node.has("proc/self/mountinfo", "")
    (node.root / "sys/bus/pci/devices").mkdir(parents=True)


PLATFORMS: list[tuple[Callable[[Node, Imds], None], Platform | None, str]] = [
    (hyperpod, Platform.HYPERPOD, "slurm"),
    (hyperpod_eks, Platform.HYPERPOD, "auto"),
    (parallelcluster, Platform.PARALLELCLUSTER, "slurm"),
    (head_node, Platform.PARALLELCLUSTER, "slurm"),
    (pcs, Platform.PCS, "slurm"),
    (eks, Platform.AUTOSCALING, "auto"),
    (plain_ec2, Platform.EC2, "auto"),
    (no_cloud, None, "auto"),
]


def written(found: Survey) -> str:
    return first_config(found, version="0.2.0", now=NOW)


def loaded(text: str, folder: Path) -> Config:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, checks=CHECKS, environ={}).config


def decided(text: str) -> str:
    """The file after a person has taken up everything that it proposes."""
    taken = re.sub(r'^kind = "none"\n((?:#.*\n)*?)# (kind = )', r"\1\2", text, flags=re.MULTILINE)
    keys = r"name|instance_type|labels|act_from|expected|how"
    return re.sub(rf"^# ((?:{keys}) = .*|\[(?:checks|provisioner).*\])$", r"\1", taken, flags=re.MULTILINE)


@pytest.mark.process  # one question to AWS, where nothing else explains an EC2 instance: the port is closed
@pytest.mark.parametrize("case", PLATFORMS, ids=[each[0].__name__ for each in PLATFORMS])
def test_it_loads_on_every_platform_and_only_looks(
    case: tuple[Callable[[Node, Imds], None], Platform | None, str],
    node: Node,
    imds: Imds,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As `healthd config validate` and the JSON Schema see it; nothing acts; and so it is with every proposal taken."""
    lay, platform, kind = case
    lay(node, imds)
    found = node.looked_at()
    assert found.platform is platform
    text = written(found)
    config = loaded(text, tmp_path)
    assert config.remediation.mode is Mode.OBSERVE
    assert (config.orchestrator.kind, config.provisioner.kind) == (kind, "none")
    for version in (text, decided(text)):
        (tmp_path / "config.toml").write_text(version, encoding="utf-8")
        assert run(["config", "validate", "--config", str(tmp_path / "config.toml")]) == 0, capsys.readouterr().err
        jsonschema.Draft4Validator(SCHEMA).validate(tomllib.loads(version))
    wanted = loaded(decided(text), tmp_path)
    assert wanted.provisioner.kind == (platform or "local")
    assert wanted.remediation.mode is Mode.OBSERVE
    assert wanted.provisioner.hyperpod.how == ("label" if lay is hyperpod_eks else "scontrol")
    assert max(len(line) for line in text.splitlines() if line.startswith("#") and "Found" not in line) < 400
    assert text.isascii()
    assert "\n\n\n" not in text


# -- what it says -----------------------------------------------------------------------------------------------------


def test_lustre_is_expected_where_it_is_mounted(node: Node, imds: Imds, tmp_path: Path) -> None:
    """Without a list no mount can be missing, so those that are there are written down; devices are learned."""
    hyperpod(node, imds)
    found = node.looked_at()
    config = loaded(written(found), tmp_path)
    assert config.checks["lustre.mount"].settings.mounts == ("/fsx",)
    assert (found.gpus, found.efa) == (8, 32)
    assert config.checks["gpu.count"].settings.expected is None
    assert loaded(decided(written(found)), tmp_path).checks["efa.devices"].settings.expected == 32
    assert f"platform: SageMaker HyperPod ({ARN})" in written(found)


def test_a_platform_that_replaces_what_is_drained_is_said_to(node: Node, imds: Imds) -> None:
    """Who reads the file before going beyond observe learns it there; a head node is nobody's to replace."""
    head_node(node, imds)
    text = written(node.looked_at())
    assert "On AWS ParallelCluster any drain is a replacement." in text
    assert "This machine cannot be replaced: this is the HeadNode of its ParallelCluster" in text


def test_mounts_of_other_kinds_and_automounts(tmp_path: Path) -> None:
    """A server's mounts are expected with their kind; one with a blank in its name cannot be listed, and is named."""
    mounts = [("/home", "nfs4"), ("/my data", "nfs"), ("/fsx", "lustre")]
    made = tuple(Mount(point=point, fstype=kind, source="s:/", options=frozenset()) for point, kind in mounts)
    text = written(Survey(node="n1", mounts=made, automounts=("/scratch",)))
    config = loaded(text, tmp_path)
    assert config.checks["host.expect"].settings.mounts == ("/home nfs4",)
    assert config.checks["lustre.mount"].settings.mounts == ("/fsx",)
    assert "Not listed, because of blanks: /my data" in text
    assert "Automounts not used yet: /scratch" in text


def test_a_node_with_many_mounts_gets_a_file_that_loads(tmp_path: Path) -> None:
    """healthd reads no line of more than 1,024 characters: mounts stand one on a line, and comments name the first."""
    points = tuple(f"/home/projects/team-{number:03}" for number in range(60))
    mounts = tuple(Mount(point=each, fstype="nfs4", source="s:/", options=frozenset()) for each in points)
    lustre = tuple(Mount(point=f"/fsx{each}", fstype="lustre", source="s", options=frozenset()) for each in points)
    found = Survey(node="n1", mounts=(*mounts, *lustre), automounts=points, problems=("x" * 2_000,))
    config = loaded(written(found), tmp_path)
    assert config.checks["host.expect"].settings.mounts == tuple(f"{each} nfs4" for each in points)
    assert config.checks["lustre.mount"].settings.mounts == tuple(f"/fsx{each}" for each in points)


@pytest.mark.parametrize("evil", ['a\nmode = "repair"', 'a"\n[remediation]\nmode="repair"', "a\x1b[2J", "ü\u2028x"])
def test_a_name_cannot_write_configuration(evil: str, tmp_path: Path) -> None:
    """A node, a tag, a file or a mount may be named by anybody: it stays a word in a comment, or a value."""
    made = (Mount(point=f"/{evil}", fstype="lustre", source="", options=frozenset()),)
    found = Survey(
        node=evil,
        instance_type=evil,
        platform=Platform.PCS,
        platform_why=evil,
        cluster=evil,
        fixed=evil,
        slurm=True,
        slurm_why=evil,
        mounts=made,
        automounts=(evil,),
        problems=(evil,),
    )
    text = written(found)
    config = loaded(text, tmp_path)
    assert config.remediation.mode is Mode.OBSERVE
    assert config.checks["lustre.mount"].settings.mounts == (f"/{evil}",)
    assert "\x1b" not in text


def test_a_pod_is_told(tmp_path: Path) -> None:
    """In a pod of Kubernetes that is the orchestrator."""
    found = Survey(node="n1", pod=True, platform=Platform.AUTOSCALING, platform_why="its group")
    assert loaded(written(found), tmp_path).orchestrator.kind == "kubernetes"


def test_what_could_not_be_told_is_said(node: Node) -> None:
    """A machine without a /sys: no number is made up, and the reason stands in the file."""
    node.root.mkdir()
    found = node.looked_at()
    assert (found.gpus, found.efa, found.instance_type) == (None, None, "")
    text = written(found)
    assert "an unknown number of NVIDIA GPUs" in text
    assert text.count("#   unknown:") == len(found.problems) == 3


def test_a_survey_comes_through_a_pipe() -> None:
    """Every field of it, as the fork that looks sends it."""
    import msgspec

    mount = Mount(point="/fsx", fstype="lustre", source="s", options=frozenset({"rw"}), device="0:5")
    full = Survey(node="n1", platform=Platform.EC2, gpus=8, mounts=(mount,), automounts=("/a",), problems=("p",))
    assert msgspec.json.decode(msgspec.json.encode(full), type=Survey) == full
    assert {each.name for each in structs.fields(Survey)} == set(msgspec.to_builtins(full))
    assert os.sep not in full.node
