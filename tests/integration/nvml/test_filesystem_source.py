"""statvfs through real workers: the same numbers as os.statvfs, one worker per network mount, none when idle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from healthd.errors import SourceMissing, SourceTimeout, SourceUnreadable
from healthd.sources.filesystem import FilesystemSource


@pytest.fixture
def source() -> Iterator[FilesystemSource]:
    found = FilesystemSource()
    yield found
    found.close()


def test_the_worker_reads_what_the_kernel_says(source: FilesystemSource, tmp_path: Path) -> None:
    """Totals in bytes and inodes equal os.statvfs; what is available may move a little in between."""
    space, kernel = source.space(str(tmp_path), "ext4"), os.statvfs(tmp_path)
    assert space.total_bytes == kernel.f_blocks * kernel.f_frsize
    assert space.total_inodes == kernel.f_files
    assert space.available_bytes == pytest.approx(kernel.f_bavail * kernel.f_frsize, rel=0.1)
    assert space.read_only == bool(kernel.f_flag & os.ST_RDONLY)


def test_a_read_only_file_system_says_so(source: FilesystemSource) -> None:
    """/proc/sys or /sys is mounted read-only in many containers; whatever it is here, the flag is the kernel's."""
    for point in ("/", "/proc", "/sys", "/dev"):
        assert source.space(point, "ext4").read_only == bool(os.statvfs(point).f_flag & os.ST_RDONLY)


def test_local_file_systems_share_a_worker_and_network_ones_do_not(
    source: FilesystemSource, tmp_path: Path, workers: Callable[[], list[int]]
) -> None:
    """Two local points cost one process; each network point, and one of unknown kind, has its own."""
    source.space("/", "ext4")
    source.space(str(tmp_path), "xfs")
    assert len(workers()) == 1
    for name, fstype in (("fsx", "lustre"), ("home", "nfs4"), ("odd", "")):
        (tmp_path / name).mkdir()
        source.space(str(tmp_path / name), fstype)
    assert len(workers()) == 4
    assert set(source.states()) == {"local", *(str(tmp_path / name) for name in ("fsx", "home", "odd"))}


def test_idle_workers_leave(tmp_path: Path, workers: Callable[[], list[int]], has_ended: Callable[..., bool]) -> None:
    """A worker that nobody asked for idle_s is gone, and the next question is answered all the same."""
    source = FilesystemSource(idle_s=0.1)
    source.space(str(tmp_path), "lustre")
    assert all(has_ended(pid, within_s=2.0) for pid in workers())
    assert source.space(str(tmp_path), "lustre").total_bytes > 0
    source.close()


def test_a_point_that_is_not_there_is_missing(source: FilesystemSource, tmp_path: Path) -> None:
    """ENOENT is SourceMissing with the path; any other error is SourceUnreadable with the kernel's word for it."""
    with pytest.raises(SourceMissing, match=f"statvfs {tmp_path}/gone: it is not there"):
        source.space(f"{tmp_path}/gone", "lustre")
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceUnreadable, match="ENOTDIR"):
        source.space(f"{tmp_path}/file/below", "lustre")


def test_a_deadline_that_passes_is_a_stall_of_that_mount_only(tmp_path: Path) -> None:
    """With a deadline no process can meet, the mount's own probe stalls, and the local one knows nothing of it."""
    source = FilesystemSource(deadline_s=0.0001)
    with pytest.raises(SourceTimeout, match=f"statvfs {tmp_path}"):
        source.space(str(tmp_path), "lustre")
    assert source.state(str(tmp_path)).stalled_s > 0
    assert source.state("local").stalled_s == 0
    source.close()
