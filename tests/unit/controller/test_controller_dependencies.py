"""What the controller is made of: who delegates to it, which platform it acts on, who leads, what it tells."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.cli.main import run
from healthd.config.schema.config import Config, NodeSection, SourcesSection
from healthd.config.schema.controller import ControllerSection
from healthd.config.schema.provisioner import Ec2Section, HyperpodSection, ProvisionerSection
from healthd.controller.slurm import take_lead
from healthd.controller.status import FILE, KEEP_S, StatusFile, StatusNote, fitted, status_of
from healthd.core.errors import ConfigError, StoreError
from healthd.core.model import Mode, Remedy
from healthd.core.node import KernelLogState
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.from_config import (
    delegates,
    found_by_controller,
    open_elsewhere,
    open_provisioner,
)
from healthd.remediation.provisioners.slurm_node import read_node
from healthd.sim.cluster import FakeCluster, FakeOrchestrator
from healthd.sources.machine import open_machine
from tests.support.scontrol import ScriptedScontrol

ASKING = ProvisionerSection(act_from="controller", hyperpod=HyperpodSection(how="api"))


def nothing(path: str) -> str | None:
    return None


def node(root: Path, section: ProvisionerSection, instance_type: str = "p5.48xlarge") -> Config:
    dmi = root / "sys/devices/virtual/dmi/id"
    dmi.mkdir(parents=True, exist_ok=True)
    for name, text in (("sys_vendor", "Amazon EC2"), ("product_name", instance_type), ("board_asset_tag", "i-1")):
        (dmi / name).write_text(text)
    return Config(node=NodeSection(name="n1"), sources=SourcesSection(sys_root=str(root / "sys")), provisioner=section)


def test_who_acts_by_an_api_delegates() -> None:
    """What is done through Slurm needs no right, and is done on the node either way."""
    assert {each for each in Platform if delegates(ASKING, each)} == {
        Platform.HYPERPOD,
        Platform.AUTOSCALING,
        Platform.EC2,
    }
    by_slurm = replace(ASKING, hyperpod=HyperpodSection(how="scontrol"))
    assert not delegates(by_slurm, Platform.HYPERPOD)
    assert not any(delegates(replace(ASKING, act_from="node"), each) for each in Platform)


@pytest.mark.parametrize("kind", ["hyperpod", "autoscaling", "ec2"])
def test_a_node_that_delegates_can_what_the_controller_can(kind: str, tmp_path: Path) -> None:
    """Its drain stays its own, and a move to another host is possible from elsewhere; an UltraServer's part is not."""
    section = replace(
        ASKING,
        kind=kind,  # one of the words
        hyperpod=HyperpodSection(how="api", cluster="demo"),
        ec2=Ec2Section(stop_and_start="always"),
    )
    for instance_type, can in (("p5.48xlarge", True), ("p6e-gb200.36xlarge", False)):
        config = node(tmp_path, section, instance_type)
        machine = open_machine(config, lambda: KernelLogState(source="none", alive=True))
        records = FakeOrchestrator(FakeCluster("n1", clock=lambda: 0.0), "n1")
        provisioner = open_provisioner(config, machine, ScriptedScontrol("n1"), root=str(tmp_path), records=records)
        assert (provisioner.kind, provisioner.delegates, provisioner.state_owner) == (kind, True, StateOwner.ENGINE)
        assert not provisioner.reason_against(Remedy.REBOOT_NODE)
        assert (not provisioner.reason_against(Remedy.REPLACE_NODE)) is can


def test_without_slurm_there_is_nowhere_to_ask(tmp_path: Path) -> None:
    """Said at the start, with what to set."""
    config = node(tmp_path, replace(ASKING, kind="ec2"))
    machine = open_machine(config, lambda: KernelLogState(source="none", alive=True))
    with pytest.raises(ConfigError, match="act_from = controller needs a cluster"):
        open_provisioner(config, machine, None, root=str(tmp_path))


def test_a_head_node_says_nothing_of_its_nodes(tmp_path: Path) -> None:
    """Its files name HyperPod or ParallelCluster, where it may be a head node itself; else the kind must be named."""
    auto = ProvisionerSection(kind="auto")
    with pytest.raises(ConfigError, match="name the platform of the nodes"):
        found_by_controller(auto, nothing, root=str(tmp_path))
    with pytest.raises(
        ConfigError, match='kind = none: the controller needs the platform of the nodes; name it, such as "ec2"'
    ):
        found_by_controller(ProvisionerSection(), nothing, root=str(tmp_path))
    dna = tmp_path / "etc/chef/dna.json"
    (tmp_path / "etc/parallelcluster").mkdir(parents=True)
    dna.parent.mkdir()
    dna.write_text(json.dumps({"cluster": {"node_type": "HeadNode", "cluster_name": "demo", "region": "us-west-2"}}))
    found = found_by_controller(auto, nothing, root=str(tmp_path))
    assert (found.platform, found.fixed) == (Platform.PARALLELCLUSTER, "")
    config = Config(provisioner=auto)
    there = open_elsewhere(config, "n1", "i-1", nothing, ScriptedScontrol("n1"), root=str(tmp_path))
    assert not there.reason_against(Remedy.REPLACE_NODE)
    assert not there.delegates


def test_one_leads_and_its_end_frees_the_lead(tmp_path: Path) -> None:
    """However it ends: the lock is of the process. Who leads can be read."""
    folder = tmp_path / "shared"
    first = take_lead(folder)
    assert first is not None
    assert take_lead(folder) is None
    assert f"process {os.getpid()}" in (folder / "lock").read_text()
    os.close(first)
    again = take_lead(folder)
    assert again is not None
    os.close(again)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="check .controller. state_dir"):
        take_lead(tmp_path / "file")


def status(config: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    code = run(["controller", "--config", str(config), "--status", *more])
    told = capsys.readouterr()
    return code, told.out, told.err


def write_status(folder: Path, *standings: NodeStatus, notices: tuple[str, ...] = ()) -> None:
    """As a controller that leads shows it."""
    now = datetime.now(UTC)
    StatusFile(folder).show(status_of(Mode.REPAIR, standings, leader="head-1 process 7", now=now, notices=notices))


def test_the_status_tells_who_needs_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, 1 where a person is needed, 2 where nobody leads, or led a while ago."""
    config = tmp_path / "config.toml"
    config.write_text(f'[controller]\nstate_dir = "{tmp_path}"\n')
    assert status(config, capsys)[0] == 2
    write_status(tmp_path)
    code, out, _ = status(config, capsys)
    assert (code, out.splitlines()[1]) == (0, "no node has a request")
    refused = NodeStatus(node="n1", message="refused: it is not drained", page=True)
    write_status(tmp_path, refused)
    code, out, _ = status(config, capsys)
    assert (code, out.splitlines()[1]) == (1, "PAGE n1  refused: it is not drained")
    code, out, _ = status(config, capsys, "--json")
    assert json.loads(out)["nodes"][0]["node"] == "n1"
    write_status(tmp_path, NodeStatus(node="n1", message="by a record of the node: \x1b[2J\nleader  me"))
    assert status(config, capsys)[1].splitlines()[1:] == ["n1  by a record of the node: ?[2J?leader  me"]
    silent = "notify: deliveries to slack fail since 2026-01-01 00:00:00 UTC; 1 wait: 500"
    write_status(tmp_path, notices=(silent,))
    code, out, _ = status(config, capsys)
    assert (code, out.splitlines()[1:]) == (0, [f"! {silent}", "no node has a request"])
    body = StatusFile(tmp_path).shown()
    assert body is not None
    body["at"] = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    (tmp_path / FILE).write_text(json.dumps(body))
    code, out, err = status(config, capsys)
    assert code == 2
    assert "no controller leads now" in err


class Note:
    """A text that is kept in memory, and how often it was written."""

    def __init__(self) -> None:
        self.text, self.written = "", 0

    def kept(self) -> str:
        return self.text

    def keep(self, text: str) -> None:
        self.text, self.written = text, self.written + 1


def test_a_status_in_the_cluster_is_written_when_it_says_something_new_or_grows_old() -> None:
    """A quiet controller writes it three times a minute, whatever its interval; how old it is is still told."""
    note, now_s = Note(), 0.0
    board = StatusNote(note, monotonic_s=lambda: now_s)
    assert board.shown() is None
    for second in range(60):
        now_s = float(second)
        at = datetime(2026, 1, 1, 12, 0, second, tzinfo=UTC)
        board.show(status_of(Mode.REPAIR, (), leader="one", now=at))
    assert note.written == 60 / KEEP_S
    board.show(status_of(Mode.REPAIR, (NodeStatus(node="n1", message="s"),), leader="one", now=datetime.now(UTC)))
    assert note.written == 1 + 60 / KEEP_S
    shown = board.shown()
    assert shown is not None
    assert [each["node"] for each in shown["nodes"]] == ["n1"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 1}'])
def test_what_is_no_status_says_nothing(text: str, tmp_path: Path) -> None:
    """Whoever wrote it."""
    note = Note()
    note.text = text
    (tmp_path / FILE).write_text(text)
    assert (StatusNote(note).shown(), StatusFile(tmp_path).shown()) == (None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": 7},
        {"at": "yesterday"},
        {"at": "2026-01-01T00:00:00"},
        {"leader": None},
        {"notices": "none"},
        {"nodes": {"n1": "silent"}},
        {"nodes": ["n1"]},
        {"nodes": [{"node": "n1", "message": "silent"}]},
        {"nodes": [{"node": "n1", "message": "silent", "page": "no"}]},
        {"left_out": "many"},
    ],
    ids=str,
)
def test_a_status_of_other_types_is_none(
    wrong: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged file is no status: exit 2, none leads, until the leader writes it again. It was a traceback, with exit
    1."""
    config = tmp_path / "config.toml"
    config.write_text(f'[controller]\nstate_dir = "{tmp_path}"\n')
    write_status(tmp_path)
    whole = json.loads((tmp_path / FILE).read_text())
    assert status(config, capsys)[0] == 0
    (tmp_path / FILE).write_text(json.dumps(whole | wrong))
    for more in ((), ("--json",)):
        code, out, err = status(config, capsys, *more)
        assert (code, out) == (2, "")
        assert "no controller has written a status" in err


@pytest.mark.parametrize("raw", [b"\xff{}", b"[" * 100_000], ids=["bytes", "brackets"])
def test_what_is_no_text_is_no_status(raw: bytes, tmp_path: Path) -> None:
    """Neither bytes that are no UTF-8, nor JSON without a bottom."""
    (tmp_path / FILE).write_bytes(raw)
    assert StatusFile(tmp_path).shown() is None


def test_a_status_of_a_later_version_is_shown_whole(tmp_path: Path) -> None:
    """Replicas of two versions run beside each other during an upgrade: no key or word of the other one is lost."""
    write_status(tmp_path, NodeStatus(node="n1", message="waits"))
    whole = json.loads((tmp_path / FILE).read_text())
    later = {**whole, "more": 1, "nodes": [{**whole["nodes"][0], "state": "of a later version"}]}
    (tmp_path / FILE).write_text(json.dumps(later))
    assert StatusFile(tmp_path).shown() == later


def test_a_status_that_may_not_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    """A user without the right hears that, and not that no controller leads."""
    (tmp_path / FILE).mkdir()
    with pytest.raises(StoreError, match=r"status\.json: not read: .*; run it as root"):
        StatusFile(tmp_path).shown()


@given(st.lists(st.tuples(st.text(max_size=80), st.booleans()), max_size=60), st.integers(300, 4000))
def test_a_status_fits_and_leaves_out_pages_last(message: list[tuple[str, bool]], most_bytes: int) -> None:
    """However much there is to say, and in whatever script: it fits, is counted, and keeps its order."""
    standings = [
        NodeStatus(node=f"n{number:02}", message=text, page=page) for number, (text, page) in enumerate(message)
    ]
    text = fitted(status_of(Mode.REPAIR, standings, leader="one", now=datetime.now(UTC)), most_bytes)
    shown = json.loads(text)
    assert len(text.encode()) <= most_bytes
    assert shown["left_out"] + len(shown["nodes"]) == len(message)
    names = [each["node"] for each in shown["nodes"]]
    assert names == sorted(names)
    if any(not each["page"] for each in shown["nodes"]):
        assert sum(each["page"] for each in shown["nodes"]) == sum(page for _, page in message)


def test_what_is_not_configured_is_said_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No platform: it cannot start here (70). --json without --status: usage (64)."""
    config = tmp_path / "config.toml"
    config.write_text(f'[controller]\nstate_dir = "{tmp_path}"\n')
    assert run(["controller", "--config", str(config)]) == 70
    assert "provisioner.kind = none" in capsys.readouterr().err
    assert run(["controller", "--config", str(config), "--json"]) == 64
    assert ControllerSection().state_dir == "/var/lib/healthd-controller"


@pytest.mark.parametrize(("shown", "booted"), [("1795226977", True), ("None", False), ("2026-11-21T10:00:00", False)])
def test_a_boot_is_what_slurmctld_heard_of(shown: str, booted: bool) -> None:
    """In seconds since the epoch, as our clients print it; a time that means something else on each machine is none."""
    record = (
        "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=n1 State=DOWN*+DRAIN Weight=1"
        f" BootTime={shown} SlurmdStartTime=1795226999 Reason=healthd: gpu.xid.79 gpu:0 [k3] [root@1795227000]\n"
    )
    read = read_node(lambda *args: record, "n1")
    assert read.booted == (datetime.fromtimestamp(1795226977, UTC) if booted else None)
