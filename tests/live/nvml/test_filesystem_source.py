"""statvfs through real workers: the same numbers as os.statvfs, one worker for all that answers, none when idle."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from healthd.core.errors import SourceBusy, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.sources.filesystem import FilesystemSource
from tests.live.nvml.conftest import live_workers
from tests.support.limits import limit_s

PATIENT_S = 60.0
"""The deadline of a question that is answered, however busy the machine is."""


@pytest.fixture
def source() -> Iterator[FilesystemSource]:
    found = FilesystemSource(deadline_s=PATIENT_S)
    yield found
    found.close()


def test_the_worker_reads_what_the_kernel_says(source: FilesystemSource, tmp_path: Path) -> None:
    """Totals in bytes and inodes equal os.statvfs; what is available may move a little in between."""
    space, kernel = source.space(str(tmp_path), "ext4"), os.statvfs(tmp_path)
    assert space.total_bytes == kernel.f_blocks * kernel.f_frsize
    assert space.total_inodes == kernel.f_files
    assert space.available_bytes == pytest.approx(kernel.f_bavail * kernel.f_frsize, rel=0.1)
    assert space.kept_bytes == pytest.approx((kernel.f_bfree - kernel.f_bavail) * kernel.f_frsize, rel=0.1)
    assert space.read_only == bool(kernel.f_flag & os.ST_RDONLY)


def test_the_worker_counts_the_owners_of_files(source: FilesystemSource, tmp_path: Path) -> None:
    """The bytes of each uid come through the worker as they were counted."""
    (tmp_path / "x").write_bytes(bytes(1 << 20))
    held = source.holders(str(tmp_path), "ext4")
    assert (held.files, held.whole) == (1, True)
    assert held.bytes_of[os.getuid()] >= 1 << 20


def test_a_read_only_file_system_says_so(source: FilesystemSource) -> None:
    """/proc/sys or /sys is mounted read-only in many containers; whatever it is here, the flag is the kernel's."""
    for point in ("/", "/proc", "/sys", "/dev"):
        assert source.space(point, "ext4").read_only == bool(os.statvfs(point).f_flag & os.ST_RDONLY)


def test_what_answers_shares_a_worker(
    source: FilesystemSource, tmp_path: Path, workers: Callable[[], list[int]]
) -> None:
    """One process asks about local file systems, network ones and those of unknown kind, one after the other."""
    for name, fstype in (("fsx", "lustre"), ("home", "nfs4"), ("odd", ""), ("data", "xfs")):
        (tmp_path / name).mkdir()
        source.space(str(tmp_path / name), fstype)
    assert len(workers()) == 1
    assert set(source.states()) == {"local", *(str(tmp_path / name) for name in ("fsx", "home", "odd"))}


def test_a_worker_that_began_serves_any_file_system(
    source: FilesystemSource, tmp_path: Path, workers: Callable[[], list[int]]
) -> None:
    """Started ahead of the first request, it answers for whichever mount comes first."""
    source.begin()
    (began,) = workers()
    source.space(str(tmp_path), "lustre")
    source.space("/", "ext4")
    assert workers() == [began]


def end(source: FilesystemSource) -> None:
    """Close it, and wait for the ends of its workers: on a busy machine a killed process takes its time to die."""
    source.close()
    until(lambda: source.states() is not None and not live_workers() and not zombies())


@contextmanager
def two_workers(folder: Path, workers: Callable[[], list[int]], *, idle_s: float) -> Iterator[FilesystemSource]:
    """A source with two idle workers: a mount took its time, and another was asked meanwhile."""
    (folder / "home").mkdir()
    os.mkfifo(folder / "fsx")
    source = FilesystemSource(deadline_s=PATIENT_S, module="fifo_family", idle_s=idle_s)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(source.space, str(folder / "fsx"), "lustre")
        until(lambda: len(workers()) == 1)
        assert source.space(str(folder / "home"), "nfs4").total_bytes > 0
        assert not waiting.done()
        (folder / "fsx").write_text("it answers now")
        assert waiting.result(limit_s(PATIENT_S)).total_bytes > 0
    yield source
    end(source)


@pytest.fixture
def fifo_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.usefixtures("fifo_family")
def test_questions_at_one_time_have_a_worker_each(tmp_path: Path, workers: Callable[[], list[int]]) -> None:
    """A mount that takes its time delays no other: while its worker waits, another one answers, and both serve on."""
    with two_workers(tmp_path, workers, idle_s=PATIENT_S) as source:
        both = workers()
        source.space(str(tmp_path / "home"), "nfs4")
        assert workers() == both
        assert len(both) == 2
    assert workers() == []


def test_idle_workers_leave(tmp_path: Path, workers: Callable[[], list[int]], has_ended: Callable[..., bool]) -> None:
    """A worker that nobody asked for idle_s is gone, and the next question is answered all the same."""
    source = FilesystemSource(deadline_s=PATIENT_S, idle_s=0.1)
    source.space(str(tmp_path), "lustre")
    assert all(has_ended(pid, within_s=2.0) for pid in workers())
    assert source.space(str(tmp_path), "lustre").total_bytes > 0
    source.close()


def zombies() -> list[str]:
    """The children of this process that have ended and are not reaped."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):  # it was somebody else's, and has ended
            continue
        if state == "Z" and int(parent) == os.getpid():
            found.append(entry.parent.name)
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s(within_s)
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def seconds_to_start_a_worker(folder: Path) -> float:
    """On this machine, as busy as it is now."""
    source, began_s = FilesystemSource(deadline_s=PATIENT_S), time.monotonic()
    source.space(str(folder), "nfs4")
    took_s = time.monotonic() - began_s
    end(source)
    return took_s


def test_a_mount_that_came_and_went_leaves_nothing(tmp_path: Path) -> None:
    """Homes that are mounted for a job come by the thousand: without further questions the process and the pipes of the
    worker are given back, then the names. Those that are still asked for stay."""
    idle_s = 1.0 + 30.0 * seconds_to_start_a_worker(tmp_path)
    source, before = FilesystemSource(deadline_s=PATIENT_S, idle_s=idle_s), (len(zombies()), descriptors())
    points = [tmp_path / f"home{number}" for number in range(5)]
    for point in points:
        point.mkdir()
        source.space(str(point), "nfs4")
    assert descriptors() == before[1] + 3
    until(lambda: source.states() and (len(zombies()), descriptors()) == before, within_s=10.0 + 3 * idle_s)

    def only_the_first_is_known() -> bool:
        source.space(str(points[0]), "nfs4")
        return [*source.states()] == [str(points[0])]

    until(only_the_first_is_known, within_s=10.0 + 3 * idle_s)
    source.close()


@pytest.mark.usefixtures("fifo_family")
def test_nobody_has_to_look_at_the_states(tmp_path: Path, workers: Callable[[], list[int]]) -> None:
    """Without a scraper the questions about one mount give back what others left: a worker too many, and its pipes."""
    before = descriptors()
    with two_workers(tmp_path, workers, idle_s=0.2 + 5.0 * seconds_to_start_a_worker(tmp_path)) as source:

        def one_is_gone() -> bool:
            source.space(str(tmp_path), "ext4")
            return len(workers()) == 1 and not zombies() and descriptors() == before + 3

        until(one_is_gone, within_s=60.0)


def made_to_stall(source: FilesystemSource, point: Path) -> None:
    """Ask until the worker has not answered in time. A busy machine may take half of a short deadline before the
    question, which is then not asked; a worker may be quicker (poll(2) waits for a whole millisecond)."""

    def stalls() -> bool:
        try:
            source.space(str(point), "lustre")
        except SourceBusy:
            return False
        except SourceTimeout as error:
            return f"statvfs {point}" in str(error)
        return False

    until(stalls)


def test_a_mount_that_hung_is_remembered(tmp_path: Path) -> None:
    """How long it does not answer counts from the first question, however seldom it is asked."""
    source = FilesystemSource(deadline_s=0.0001, idle_s=0.05)
    made_to_stall(source, tmp_path)
    time.sleep(0.3)
    assert source.states()[str(tmp_path)].stalled_s > 0.3
    source.close()


def test_a_point_that_is_not_there_is_missing(source: FilesystemSource, tmp_path: Path) -> None:
    """ENOENT is SourceMissing with the path; any other error is SourceUnreadable with the kernel's word for it."""
    with pytest.raises(SourceMissing, match=f"statvfs {tmp_path}/gone: no such file or folder"):
        source.space(f"{tmp_path}/gone", "lustre")
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceUnreadable, match="ENOTDIR"):
        source.space(f"{tmp_path}/file/below", "lustre")


def test_a_deadline_that_passes_is_a_stall_of_that_mount_only(tmp_path: Path) -> None:
    """With a deadline that hardly any process can meet, the mount's own probe stalls, and the local one knows nothing
    of it."""
    source = FilesystemSource(deadline_s=0.0001)
    made_to_stall(source, tmp_path)
    assert source.state(str(tmp_path)).stalled_s > 0
    assert source.state("local").stalled_s == 0
    source.close()
