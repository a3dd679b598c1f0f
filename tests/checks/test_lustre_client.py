"""lustre.client: the client's own word, and connections of which idle ones are healthy. Inputs are constructed."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.lustre_client import DISCONNECTED, Settings, lustre_client
from healthd.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.model import Remedy, Result, Severity, Status
from healthd.node import Mount
from healthd.testing import Entry, FakeNode

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
    for number, state in enumerate(states or ("FULL",)):
        tree[f"kernel/debug/lustre/osc/abc-OST{number:04}-osc-ffff/import"] = IMPORT.format(state=state)
    return lustre_client(FakeNode(sys=tree if sys is None else sys, mount_table=mounts), Settings(**settings))


def test_healthy() -> None:
    """Healthy by its own word and connected: ok, and attempts to connect are counted."""
    result = run()
    assert result.status is Status.OK
    assert [(reading.name, reading.value) for reading in result.readings] == [("lustre_connection_attempts_total", 7)]


def test_idle_is_healthy() -> None:
    """A connection that the client closed because nobody used it is no trouble."""
    assert run("healthy", "FULL", "IDLE", "NEW").status is Status.OK


def test_no_client() -> None:
    """Without the client there is nothing here; with a Lustre mount and no word of the client it is unknown."""
    assert run(sys={"fs/": ""}, mounts=()).status is Status.NOT_APPLICABLE
    assert run(sys={"fs/": ""}).status is Status.UNKNOWN


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


@pytest.mark.parametrize("word", ["", "perhaps"])
def test_another_word_is_unknown(word: str) -> None:
    """A word that is not one of the three is not healthy."""
    assert run(word).status is Status.UNKNOWN


@pytest.mark.parametrize("text", ["import:\n  name: x", IMPORT.format(state="SLEEPING"), ""])
def test_an_import_of_another_form_is_a_gap(text: str) -> None:
    """A state that is missing or not known is unknown, and does not hide what the client says of itself."""
    tree: dict[str, Entry] = {"fs/lustre/health_check": "NOT HEALTHY", "kernel/debug/lustre/mdc/x/import": text}
    result = run(sys=tree)
    assert [finding.code for finding in result.findings] == ["lustre.not_healthy"]
    assert len(result.gaps) == 1


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
        lustre_client(FakeNode(sys={"fs/": ""}), Settings())
