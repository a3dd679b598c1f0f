"""lustre.client: the client's own word, and connections of which idle ones are healthy. Inputs are constructed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.checks.kernel_lustre import KernelLustreSettings, kernel_lustre
from healthd.checks.lustre_client import DISCONNECTED, LustreClientSettings, lustre_client
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import ClearsBy, Remedy, Result, Severity, Status
from healthd.core.node import Mount
from healthd.judge.history import History
from healthd.sim.host import IMPORTS_IN
from healthd.sim.tree import build
from healthd.sources.trees import FileTree
from healthd.testing import Entry, FakeNode
from tests.support.judgement import LUSTRE_IS_LOADED, answered, fold, kernel_says
from tests.support.over_time import open_codes

FSX = Mount(point="/fsx", fstype="lustre", source="10.0.0.1@tcp:/abc", options=frozenset({"rw"}))
# Constructed after the form of lustre-release lprocfs_import_seq_show().
IMPORT = """import:
    name: abc-OST0000-osc-ffff8881
    target: abc-OST0000_UUID
    state: {state}
    connect_flags: [ write_grant, version ]
    connection:
       failover_nids: [ 10.0.0.2@tcp ]
       current_connection: 10.0.0.2@tcp
       connection_attempts: 7
    rpcs:
       inflight: 0
       timeouts: 0"""


def run(
    health: str | SourceError = "healthy",
    *states: str,
    mounts: tuple[Mount, ...] = (FSX,),
    sys: dict[str, Entry] | None = None,
    **settings: Any,
) -> Result:
    tree: dict[str, Entry] = {"fs/lustre/health_check": health}
    proc: dict[str, Entry] = {"fs/lustre/mdc/abc-MDT0000-mdc-ffff/import": IMPORT.format(state="FULL")}
    for number, state in enumerate(states or ("FULL",)):
        proc[f"fs/lustre/osc/abc-OST{number:04}-osc-ffff/import"] = IMPORT.format(state=state)
    node = FakeNode(sys=tree if sys is None else sys, proc=proc if sys is None else {}, mount_table=mounts)
    return lustre_client(node, LustreClientSettings(**settings))


def connected(*states: str) -> Result:
    """The result of a client with a connection to one target for each mount, in these states."""
    paths = (f"fs/lustre/osc/abc-OST0000-osc-ffff8881{mount:08}/import" for mount in range(len(states)))
    proc: dict[str, Entry] = {path: IMPORT.format(state=state) for path, state in zip(paths, states, strict=True)}
    node = FakeNode(sys={"fs/lustre/health_check": "healthy"}, proc=proc, mount_table=[])
    return lustre_client(node, LustreClientSettings())


def of_release(root: Path, release: str, *gone: str) -> FakeNode:
    """A constructed node whose client is of this release, without these paths."""
    build(root, lustre=release)
    for path in gone:
        shutil.rmtree(root / path)
    return FakeNode(sys=FileTree(root / "sys"), proc=FileTree(root / "proc"), mount_table=[FSX])


def says(root: Path, release: str, kind: str, state: str) -> None:
    """The state of the connection of one kind, where this release writes it."""
    (file,) = (root / IMPORTS_IN[release] / kind).glob("*/import")
    file.write_text(re.sub("state: [A-Z]+", f"state: {state}", file.read_text()))


def test_healthy() -> None:
    """Healthy by its own word and connected: ok, and attempts to connect are counted."""
    result = run()
    assert result.status is Status.OK
    assert {(reading.name, reading.value) for reading in result.readings} == {("lustre_connection_attempts_total", 7)}
    assert {reading.component.id for reading in result.readings} == {"abc-MDT0000-mdc-ffff", "abc-OST0000-osc-ffff"}


@pytest.mark.parametrize("release", IMPORTS_IN)
@pytest.mark.parametrize("kind", ["mdc", "osc"])
def test_each_release_tells_its_connections(tmp_path: Path, release: str, kind: str) -> None:
    """Wherever a release writes ``import``: a healthy client is ok with both connections, and a broken one is found."""
    node = of_release(tmp_path, release)
    result = lustre_client(node, LustreClientSettings())
    assert (result.status, len(result.readings)) == (Status.OK, 2)
    says(tmp_path, release, kind, "DISCONN")
    (finding,) = lustre_client(node, LustreClientSettings()).findings
    assert (finding.code, finding.component.id[-4:]) == ("lustre.disconnected", f"-{kind}")


@pytest.mark.parametrize("release", IMPORTS_IN)
def test_a_device_without_a_readable_file_is_a_gap(tmp_path: Path, release: str) -> None:
    """sysfs names the devices on every release: without their files nothing is ok, and each kind has one line."""
    result = lustre_client(of_release(tmp_path, release, IMPORTS_IN[release]), LustreClientSettings())
    assert result.status is Status.UNKNOWN
    assert [gap.split(" report ")[0] for gap in result.undecided] == [
        "1 of 1 mdc connections",
        "1 of 1 osc connections",
    ]


def test_a_mounted_client_that_shows_no_device_is_a_gap(tmp_path: Path) -> None:
    """A mount has connections of both kinds; without a mount no device is none."""
    node = of_release(tmp_path, "2.15", "sys/fs/lustre/osc", "sys/kernel/debug/lustre", "proc/fs/lustre/osc")
    assert ["no osc device" in gap for gap in lustre_client(node, LustreClientSettings()).undecided] == [True]
    node.mount_table = []
    assert lustre_client(node, LustreClientSettings()).status is Status.OK


def test_other_entries_are_no_devices_of_the_client() -> None:
    """A file of the kind itself, and what a metadata server has under the same name, are passed over."""
    own = "fs/lustre/osc/abc-OST0000-osc-ffff8881/import"
    proc: dict[str, Entry] = {"fs/lustre/osc/num_refs": "1", "fs/lustre/osc/abc-OST0000-osc-MDT0000/import": ""}
    sys: dict[str, Entry] = {"fs/lustre/health_check": "healthy"}
    node = FakeNode(sys=sys, proc={**proc, own: IMPORT.format(state="FULL")}, mount_table=[])
    result = lustre_client(node, LustreClientSettings())
    assert (result.status, len(result.readings)) == (Status.OK, 1)


def test_idle_is_healthy() -> None:
    """A connection that the client closed because nobody used it is no trouble."""
    assert run("healthy", "FULL", "IDLE", "NEW").status is Status.OK


def test_no_client() -> None:
    """Without the client there is nothing here; with a Lustre mount and no word of the client it is unknown."""
    assert run(sys={"fs/": ""}, mounts=()).status is Status.NOT_APPLICABLE
    assert run(sys={"fs/": ""}).status is Status.UNKNOWN


def test_a_client_that_is_not_loaded_has_no_fault() -> None:
    """After the reboot that an LBUG calls for, an automount that nothing uses loads no module: the fault is over, or a
    drained node, on which nothing uses the mount, would be out for ever. Where the kernel does not report its modules,
    it stays."""
    booted: dict[str, Entry] = {"fs/": "", "module/nvidia/version": "580.95.05"}
    automount = replace(FSX, fstype="autofs", source="systemd-1")
    assert open_codes("lustre.client", [run("LBUG"), run(sys=booted, mounts=(automount,))])[-1] == set()
    hidden = run(sys={"fs/": ""}, mounts=(automount,))
    assert open_codes("lustre.client", [run("LBUG"), hidden])[-1] == {"lustre.lbug"}


def test_a_file_system_that_is_gone_leaves_no_lost_connection() -> None:
    """The kernel logs no restored connection to a file system that was unmounted by force. While any device of the
    client is there, only its own connection ends."""
    lost = "Lustre: abc-OST0000-osc-ffff88810a5b8800: Connection to abc-OST0000 (at 10.0.0.2@tcp) was lost; in progress"
    node = FakeNode(
        sys=LUSTRE_IS_LOADED,
        kernel_records=kernel_says(f"{lost} operations using this service will wait for recovery to complete"),
        mount_table=[FSX],
    )
    known = fold(History(), [answered(kernel_lustre(node, KernelLustreSettings()), check="kernel.lustre")])
    healthy: dict[str, Entry] = {"fs/lustre/health_check": "healthy"}
    other: dict[str, Entry] = {"fs/lustre/osc/xyz-OST0000-osc-ffff88810000000/import": IMPORT.format(state="FULL")}

    def is_open(sys: dict[str, Entry], proc: dict[str, Entry], *mounts: Mount) -> bool:
        node = FakeNode(sys=sys, proc=proc, mount_table=mounts)
        look = answered(lustre_client(node, LustreClientSettings()), check="lustre.client", seconds=60)
        return bool(fold(known, [look]).faults)

    assert is_open(healthy, {}, FSX)
    assert is_open(healthy, other)
    assert not is_open(healthy, {})
    assert not is_open({"module/nvidia/version": "580.95.05"}, {})


def test_lbug_calls_for_a_reboot() -> None:
    """LBUG is critical and needs a reboot; it is not also called not healthy."""
    (finding,) = run("LBUG").findings
    assert (finding.code, finding.severity, finding.remedy) == ("lustre.lbug", Severity.CRITICAL, Remedy.REBOOT_NODE)


def test_not_healthy_asks_a_person() -> None:
    """NOT HEALTHY is a warning, and no repair."""
    (finding,) = run("NOT HEALTHY").findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "lustre.not_healthy",
        Severity.WARNING,
        Remedy.ASK_HUMAN,
    )


@pytest.mark.parametrize("state", ["DISCONN", "CONNECTING", "REPLAY", "REPLAY_WAIT", "RECOVER", "EVICTED", "CLOSED"])
def test_a_troubled_connection(state: str) -> None:
    """Every other state is a finding of its own connection, which has to last before it counts."""
    result = run("healthy", "FULL", state)
    assert [(finding.code, finding.component.id) for finding in result.findings] == [
        ("lustre.disconnected", "abc-OST0001-osc-ffff")
    ]
    assert result.findings[0].severity is Severity.WARNING
    assert DISCONNECTED.lasting_s == 300


def test_a_connection_that_is_there_ends_the_fault_of_its_loss() -> None:
    """Of many connections that are restored at once the kernel log names one: the client itself knows of the others. A
    file system that is mounted twice has two connections to a target, and both must be there."""
    result = run("healthy", "FULL", "IDLE", "DISCONN", "NEW")
    assert [(str(over.component), over.code, over.by) for over in result.clearances] == [
        (f"lustre:abc-{name}-ffff", "lustre.connection_lost", ClearsBy.LOG_LINE)
        for name in ("MDT0000-mdc", "OST0000-osc", "OST0001-osc")
    ]
    assert connected("FULL", "RECOVER").clearances == ()


def test_the_log_and_the_client_name_a_connection_alike() -> None:
    """A loss in the log whose restoration the log leaves out ends once the client says that it is connected."""
    lost = "Lustre: abc-OST0000-osc-ffff88810a5b8800: Connection to abc-OST0000 (at 10.0.0.2@tcp) was lost; in progress"
    node = FakeNode(
        kernel_records=kernel_says(f"{lost} operations using this service will wait for recovery to complete"),
        mount_table=[FSX],
        sys={"module/lnet/initstate": "live"},
    )
    before = fold(History(), [answered(kernel_lustre(node, KernelLustreSettings()), "kernel.lustre")])
    assert [code for _, code in before.faults] == ["lustre.connection_lost"]
    after = fold(before, [answered(connected("FULL"), "lustre.client", seconds=60)])
    assert after.faults == {}


@pytest.mark.parametrize("word", ["", "perhaps"])
def test_another_word_is_unknown(word: str) -> None:
    """A word that is not one of the three is not healthy."""
    assert run(word).status is Status.UNKNOWN


@pytest.mark.parametrize("text", ["import:\n  name: x", IMPORT.format(state="SLEEPING"), ""])
def test_an_import_of_another_form_is_a_gap(text: str) -> None:
    """A state that is missing or not known is unknown, and hides neither the client's own word nor a sibling."""
    osc = "kernel/debug/lustre/osc/abc-OST000"
    tree: dict[str, Entry] = {"fs/lustre/health_check": "NOT HEALTHY", f"{osc}0-osc-ffff/import": text}
    result = run(sys={**tree, f"{osc}1-osc-ffff/import": IMPORT.format(state="EVICTED")}, mounts=())
    assert [finding.code for finding in result.findings] == ["lustre.not_healthy", "lustre.disconnected"]
    assert len(result.undecided) == 1


def test_without_debugfs() -> None:
    """Connections that cannot be seen are unknown, unless they were switched off."""
    tree: dict[str, Entry] = {"fs/lustre/health_check": "healthy"}
    assert run(sys=tree).status is Status.UNKNOWN
    assert run(sys=tree, imports=False).status is Status.OK
    hidden: dict[str, Entry] = {**tree, "kernel/debug/lustre": SourceUnreadable("EACCES")}
    assert run(sys=hidden).status is Status.UNKNOWN


@pytest.mark.parametrize("error", [SourceTimeout("x"), SourceUnreadable("EIO")])
def test_an_unreadable_word_is_unknown(error: SourceError) -> None:
    """health_check that is there and cannot be read is unknown."""
    with pytest.raises(type(error)):
        run(error)


def test_no_mount_table_is_unknown() -> None:
    """Without a client and without a mount table, nothing is certain."""
    with pytest.raises(SourceMissing):
        lustre_client(FakeNode(sys={"fs/": ""}), LustreClientSettings())
