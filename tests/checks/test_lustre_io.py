"""lustre.io: slow, hung and error are three things, and silence is unknown before it is anything else."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from healthd.checks.lustre_io import LustreIoSettings, lustre_io
from healthd.core.errors import SourceBusy, SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import REMEDY_RANK, Remedy, Result, Severity, Status
from healthd.core.node import FileProbe, Mount, ProbeState, Space
from healthd.testing import FakeNode
from healthd.testing import codes as codes_of
from tests.support.over_time import open_codes

ROOM = Space(total_bytes=100, available_bytes=50, total_inodes=100, available_inodes=50, read_only=False)
QUICK = FileProbe(size_bytes=262_144, write_s=0.004, read_s=0.002, unlink_s=0.001)
SILENCE = SourceTimeout("statvfs /fsx probe: no answer to 'statvfs' within 5 s; worker 7 was killed")


def mount(point: str = "/fsx", fstype: str = "lustre", *options: str) -> Mount:
    return Mount(point=point, fstype=fstype, source="10.0.0.1@tcp:/abc", options=frozenset(options or ("rw",)))


def run(
    *table: Mount,
    space: Space | SourceError = ROOM,
    probe: FileProbe | SourceError = QUICK,
    stalled_s: float = 0.0,
    **settings: Any,
) -> Result:
    node = FakeNode(
        mount_table=table or (mount(),),
        spaces={"/fsx": space, "/home": ROOM},
        file_probes={"/fsx": probe, "/home": QUICK, "/fsx/probes": QUICK},
        mount_states={"/fsx": ProbeState(stalled_s=stalled_s, abandoned=1)},
    )
    return lustre_io(node, LustreIoSettings(**settings))


codes = partial(codes_of, family="lustre.io.")


def test_a_quick_answer_is_ok() -> None:
    """A mount that answers in milliseconds is ok; its latency and throughput are readings."""
    result = run()
    assert result.status is Status.OK
    readings = {reading.name: reading.value for reading in result.readings}
    assert readings["file_write_s"] == 0.004
    assert readings["file_write_bytes_per_s"] == pytest.approx(65_536_000)


def test_nothing_to_ask() -> None:
    """A node without network file systems has nothing here, and its own disks are not asked."""
    assert run(mount("/", "ext4"), space=SILENCE).status is Status.NOT_APPLICABLE


def test_a_mount_that_is_gone_is_over() -> None:
    """The operator unmounts the only network file system, which hung: that it must be there is for lustre.mount."""
    looks = [run(probe=SILENCE, stalled_s=70.0), run(mount("/", "ext4"))]
    assert open_codes("lustre.io", looks) == [{"lustre.io.hung"}, set()]


@pytest.mark.parametrize("error", [SILENCE, SourceBusy("an earlier question is still out")])
def test_silence_is_unknown_at_first(error: SourceError) -> None:
    """No answer for less than hung_after_s is unknown: no finding, and not ok."""
    result = run(space=error, stalled_s=59.0)
    assert (result.status, codes(result)) == (Status.UNKNOWN, [])
    assert run(probe=error, stalled_s=59.0).status is Status.UNKNOWN


@pytest.mark.parametrize("error", [SILENCE, SourceBusy("an earlier question is still out")])
def test_silence_that_lasts_is_hung(error: SourceError) -> None:
    """No answer for hung_after_s is hung, and is known: it is no gap any more."""
    result = run(probe=error, stalled_s=60.0)
    assert (result.status, codes(result), result.undecided) == (Status.FINDINGS, ["hung"], ())
    assert result.findings[0].evidence["abandoned_workers"] == 1


@pytest.mark.parametrize("word", ["EIO", "ESTALE", "ENOTCONN", "ESHUTDOWN"])
def test_an_error_is_an_error(word: str) -> None:
    """An error that the file system gives is a finding with its name, however long ago it last answered well."""
    result = run(probe=SourceUnreadable(f"file /fsx/x: … ({word})"), stalled_s=600.0)
    assert codes(result) == ["error"]
    assert word in result.findings[0].message


@pytest.mark.parametrize(
    "error",
    [
        SourceMissing("statvfs /fsx: it is not there"),
        SourceUnreadable("statvfs /fsx probe: worker 7 died of signal 11"),
    ],
)
def test_what_the_file_system_did_not_answer_is_unknown(error: SourceError) -> None:
    """A path that is not to be seen from here, or a worker that crashed, says nothing about the file system."""
    result = run(space=error)
    assert (result.status, codes(result)) == (Status.UNKNOWN, [])


@pytest.mark.parametrize("word", ["ENOSPC", "EDQUOT"])
def test_full(word: str) -> None:
    """No room for a small file is told apart from an error of the server."""
    assert codes(run(probe=SourceUnreadable(f"file /fsx/x: no ({word})"))) == ["full"]


def test_other_bytes_than_were_written() -> None:
    """What is read back must be what was written."""
    assert codes(run(probe=FileProbe(size_bytes=9, write_s=0.1, read_s=0.1, unlink_s=0.1, same=False))) == ["corrupt"]


@pytest.mark.parametrize(
    ("write_s", "read_s", "unlink_s", "found"),
    [(2.0, 2.0, 2.0, []), (2.1, 0.1, 0.1, ["slow"]), (0.1, 2.1, 0.1, ["slow"]), (2.1, 2.1, 9.0, ["slow"])],
)
def test_slow(write_s: float, read_s: float, unlink_s: float, found: list[str]) -> None:
    """Any act past the limit makes one finding that names what was slow."""
    result = run(probe=FileProbe(size_bytes=9, write_s=write_s, read_s=read_s, unlink_s=unlink_s))
    assert codes(result) == found


def test_a_refusal_is_an_answer() -> None:
    """A server that answers that root may not write here is alive; the reading says that nothing was written."""
    result = run(probe=FileProbe(size_bytes=0, write_s=0.001, refused="EACCES"))
    assert result.status is Status.OK
    assert [(reading.name, reading.value) for reading in result.readings] == [("file_probe_refused_bool", True)]


def test_a_refusal_that_takes_long_is_slow() -> None:
    """A late no is as late as a late yes."""
    assert codes(run(probe=FileProbe(size_bytes=0, write_s=3.0, refused="EROFS"))) == ["slow"]


@pytest.mark.parametrize(("table", "settings"), [(mount("/fsx", "lustre", "ro"), {}), (mount(), {"write": False})])
def test_where_nothing_may_be_written_statfs_alone_is_asked(table: Mount, settings: dict[str, Any]) -> None:
    """A read-only mount, or write off: no file is tried, and silence of statfs is still seen."""
    error = SourceUnreadable("this must not be asked (EIO)")
    assert run(table, probe=error, **settings).status is Status.OK
    assert codes(run(table, space=SILENCE, stalled_s=90.0, **settings)) == ["hung"]


def test_the_folder_is_a_setting() -> None:
    """The file is written where the operator says."""
    result = run(probe=SourceUnreadable("not here (EIO)"), folders={"/fsx": "/fsx/probes"})
    assert result.status is Status.OK


def test_one_hung_mount_hides_no_other() -> None:
    """NFS is asked too, and a silent mount beside it is its own gap."""
    result = run(mount(), mount("/home", "nfs4"), space=SILENCE)
    assert {str(reading.component) for reading in result.readings} == {"mount:/home"}
    assert [gap.partition(":")[0] for gap in result.undecided] == ["/fsx"]


def test_covered_and_foreign_mounts_are_left_alone() -> None:
    """An untriggered automount, a mount below another on its point and a pod's volume are not touched."""
    assert run(mount("/fsx", "autofs"), space=SILENCE).status is Status.NOT_APPLICABLE
    assert run(mount("/fsx"), mount("/fsx", "tmpfs"), space=SILENCE).status is Status.NOT_APPLICABLE
    assert run(mount("/var/lib/kubelet/pods/1/v", "nfs4")).status is Status.NOT_APPLICABLE


def test_a_server_in_trouble_takes_no_node_out() -> None:
    """No finding here is critical or calls for a repair: every node would have it at once."""
    results = [
        run(space=SILENCE, stalled_s=999.0),
        run(probe=SourceUnreadable("x (EIO)")),
        run(probe=FileProbe(size_bytes=9, write_s=9.0, same=False)),
    ]
    for finding in (finding for result in results for finding in result.findings):
        assert finding.severity is Severity.WARNING
        assert REMEDY_RANK[finding.remedy] <= REMEDY_RANK[Remedy.ASK_HUMAN]


def test_a_mount_table_that_cannot_be_read_is_unknown() -> None:
    """Without a mount table nothing is known."""
    with pytest.raises(SourceUnreadable):
        lustre_io(FakeNode(mount_table=SourceUnreadable("mountinfo line 3")), LustreIoSettings())
