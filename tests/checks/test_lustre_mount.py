"""lustre.mount: the mount table alone decides, and no machine is repaired for a server."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.lustre_mount import LustreMountSettings, lustre_mount
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import REMEDY_RANK, Remedy, Result, Severity, Status
from healthd.core.node import Mount
from healthd.testing import FakeNode
from tests.support.over_time import open_codes

ROOT = Mount(point="/", fstype="ext4", source="/dev/nvme0n1p1", options=frozenset({"rw"}), device="259:1")


def lustre(point: str = "/fsx", *options: str) -> Mount:
    return Mount(point=point, fstype="lustre", source="10.0.0.1@tcp:/abc", options=frozenset(options or ("rw",)))


def other(fstype: str, point: str = "/fsx") -> Mount:
    return Mount(point=point, fstype=fstype, source="x", options=frozenset({"rw"}))


def run(*table: Mount, up_s: float = 86_400.0, **settings: Any) -> Result:
    node = FakeNode(mount_table=[ROOT, *table], proc={"uptime": f"{up_s} 1.0"})
    return lustre_mount(node, LustreMountSettings(**settings))


def test_mounted() -> None:
    """A Lustre file system at an expected point, writable, is ok and counted."""
    result = run(lustre(), mounts=("/fsx",))
    assert result.status is Status.OK
    assert [str(reading.component) for reading in result.readings] == ["mount:/fsx"]


def test_missing() -> None:
    """A point with nothing on it keeps jobs off and asks a person."""
    (finding,) = run(mounts=("/fsx",)).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "lustre.missing",
        Severity.CRITICAL,
        Remedy.ASK_HUMAN,
    )
    assert str(finding.component) == "mount:/fsx"


def test_a_mount_that_may_still_come_after_a_boot_is_unknown() -> None:
    """healthd starts with the network, as the mounts do: no node is drained for that at each boot. A mount of two that
    is read-only is none that comes."""
    result = run(lustre("/data", "ro"), mounts=("/data", "/fsx"), up_s=20.0)
    assert [finding.code for finding in result.findings] == ["lustre.read_only"]
    assert result.undecided == (
        "nothing is mounted on /fsx; expected a Lustre file system; booted 20 s ago, so it may still come",
    )
    assert run(mounts=("/fsx",), up_s=20.0).status is Status.UNKNOWN
    for result in (run(mounts=("/fsx",), up_s=121.0), run(mounts=("/fsx",), up_s=20.0, startup_grace_s=0.0)):
        assert [finding.code for finding in result.findings] == ["lustre.missing"]


def test_a_point_that_is_no_longer_configured() -> None:
    """Its fault ends, though no Lustre file system is left to judge."""
    assert open_codes("lustre.mount", [run(mounts=("/fsx",)), run()]) == [{"lustre.missing"}, set()]


def test_each_point_is_judged_by_itself() -> None:
    """One mounted and one missing is one finding, on the missing one."""
    result = run(lustre("/fsx"), mounts=("/fsx", "/scratch"))
    assert [str(finding.component) for finding in result.findings] == ["mount:/scratch"]


@pytest.mark.parametrize("fstype", ["nfs4", "ext4", "fuse.lustre", "lustre_lite"])
def test_something_else_in_its_place(fstype: str) -> None:
    """Any other type at the point is a missing Lustre, and the type is said."""
    (finding,) = run(other(fstype), mounts=("/fsx",)).findings
    assert finding.code == "lustre.missing"
    assert fstype in finding.message


def test_something_mounted_over_it() -> None:
    """A file system mounted over Lustre hides it from jobs."""
    assert [f.code for f in run(lustre(), other("tmpfs"), mounts=("/fsx",)).findings] == ["lustre.missing"]


def test_an_automount_that_waits() -> None:
    """An automount that nothing has used yet is news, not a fault."""
    (finding,) = run(other("autofs"), mounts=("/fsx",)).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "lustre.automount_waiting",
        Severity.INFO,
        Remedy.NONE,
    )


def test_an_automount_that_has_mounted() -> None:
    """Lustre on top of its automount is mounted."""
    assert run(other("autofs"), lustre(), mounts=("/fsx",)).status is Status.OK


def test_read_only() -> None:
    """A read-only mount where jobs write is critical, unless it is meant to be so."""
    (finding,) = run(lustre("/fsx", "ro"), mounts=("/fsx",)).findings
    assert (finding.code, finding.severity) == ("lustre.read_only", Severity.CRITICAL)
    assert run(lustre("/fsx", "ro"), mounts=("/fsx",), read_only=("/fsx",)).status is Status.OK


def test_without_expectation_nothing_is_missing() -> None:
    """Mounts that nobody asked for are counted, read-only ones too; no mount at all is not applicable."""
    result = run(lustre("/data", "ro"))
    assert result.status is Status.OK
    assert [reading.value for reading in result.readings] == [1]
    assert run().status is Status.NOT_APPLICABLE
    assert run(other("autofs")).status is Status.NOT_APPLICABLE


def test_no_finding_takes_a_machine_out() -> None:
    """No finding calls for more than a person: the fault is likely the server's, and every node's at once."""
    for result in (run(mounts=("/fsx",)), run(lustre("/fsx", "ro"), mounts=("/fsx",))):
        for finding in result.findings:
            assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]


@pytest.mark.parametrize("error", [SourceMissing("/proc: ENOENT"), SourceUnreadable("mountinfo line 3: …")])
@pytest.mark.parametrize("mounts", [(), ("/fsx",)])
def test_an_unreadable_table_is_unknown(error: SourceError, mounts: tuple[str, ...]) -> None:
    """A mount table that cannot be read is unknown, with or without expectation."""
    with pytest.raises(type(error)):
        lustre_mount(FakeNode(mount_table=error), LustreMountSettings(mounts=mounts))
