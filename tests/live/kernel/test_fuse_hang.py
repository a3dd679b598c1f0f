"""lustre.io on a real mount that hangs: a FUSE file system whose server does not answer, as a lost server would not.

Slow, hung and error are three things; a hang blocks nothing else, and no second probe starts while the first lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.checks.lustre_io import LustreIoSettings, lustre_io
from healthd.config.schema.config import Config
from healthd.core.errors import SourceMissing, SourceTimeout
from healthd.core.model import Result, Status
from healthd.core.node import KernelLogState
from healthd.fleet.job_logs import JobLogs
from healthd.observe.evidence import save_bundle
from healthd.sources.command import abandoned
from healthd.sources.filesystem import FilesystemSource
from healthd.sources.machine import Machine, open_machine
from healthd.sources.trees import FileTree
from tests.support.kernel_objects import FuseDisk, NotHere, command, fuse_disk, others, tmpfs
from tests.support.limits import limit_s

# Of what hangs; and of what answers in the end, however busy the machine is.
DEADLINE_S, ANSWERS_IN_S = 1.0, 60.0

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs /dev/fuse"),
]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], FuseDisk]]:
    """Mounts by name."""
    with ExitStack() as cleanup:

        def mount(name: str) -> FuseDisk:
            try:
                return cleanup.enter_context(fuse_disk(tmp_path, name))
            except NotHere as missing:
                pytest.skip(str(missing))

        yield mount


@contextmanager
def opened(deadline_s: float) -> Iterator[Machine]:
    """The machine that this runs on, which waits so long for a file system."""
    log = KernelLogState(source="/dev/kmsg", alive=True)
    made = replace(open_machine(Config(), lambda: log), file_systems=FilesystemSource(deadline_s=deadline_s))
    yield made
    made.close()
    # The mounts are gone by now: each process that hung on them ends, and is reaped when it is asked for.
    end_at = time.monotonic() + limit_s(5)
    while abandoned() or any(state.abandoned for state in made.file_systems.states().values()):
        assert time.monotonic() < end_at, "a worker outlived its mount"
        time.sleep(0.02)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with opened(ANSWERS_IN_S) as made:
        yield made


@pytest.fixture
def hurried() -> Iterator[Machine]:
    with opened(DEADLINE_S) as made:
        yield made


def look(machine: Machine, *disks: FuseDisk, slow_after_s: float = ANSWERS_IN_S, hung_after_s: float = 60.0) -> Result:
    """lustre.io on these mounts alone."""
    ignored = others(machine.mounts(), *(disk.point for disk in disks))
    return lustre_io(
        machine,
        LustreIoSettings(
            fstypes=("fuse.healthd",), ignore=ignored, slow_after_s=slow_after_s, hung_after_s=hung_after_s
        ),
    )


def found(result: Result) -> list[tuple[str, str]]:
    return [(finding.code.removeprefix("lustre.io."), finding.component.id) for finding in result.findings]


def until_ok(machine: Machine, disk: FuseDisk, within_s: float) -> Result:
    """The first look that is ok: a lost worker is replaced after a back-off of seconds."""
    end_at = time.monotonic() + limit_s(within_s)
    while (result := look(machine, disk)).status is not Status.OK and time.monotonic() < end_at:
        time.sleep(0.1)
    return result


def children() -> set[int]:
    """The probe workers of this process that still live, in whatever state."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"probe/worker.py" in (entry / "cmdline").read_bytes():
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                found |= {int(entry.name)} if int(parent) == os.getpid() and state != "Z" else set()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_mount_that_answers(machine: Machine, mounted: Callable[[str], FuseDisk]) -> None:
    """The file is written, read back and gone, and its latency is measured."""
    disk = mounted("fsx")
    result = look(machine, disk)
    assert result.status is Status.OK, result
    assert {reading.name for reading in result.readings} >= {"file_write_s", "file_read_bytes_per_s"}
    disk.becomes("fail:create:EEXIST")  # the file of the last probe is gone, so a lookup finds nothing to remove
    assert "EEXIST" in look(machine, disk).findings[0].message


@pytest.mark.parametrize("op", ["write", "read", "unlink", "fsync"])
def test_slow_is_not_hung(machine: Machine, mounted: Callable[[str], FuseDisk], op: str) -> None:
    """An answer within the deadline but past the limit is slow."""
    disk = mounted("fsx")
    disk.becomes(f"slow:{op}:{0.15 if op in ('write', 'read') else 0.3}")  # 256 KiB are several requests
    assert found(look(machine, disk, slow_after_s=0.2)) == [("slow", str(disk.point))]


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("fail:statfs:EIO", "error"),
        ("fail:statfs:ESTALE", "error"),
        ("fail:create:EIO", "error"),
        ("fail:write:ENOTCONN", "error"),
        ("fail:fsync:EIO", "error"),
        ("fail:read:EIO", "error"),
        ("fail:unlink:EIO", "error"),
        ("fail:write:ENOSPC", "full"),
        ("corrupt:read", "corrupt"),
    ],
)
def test_an_error_is_neither_slow_nor_hung(
    machine: Machine, mounted: Callable[[str], FuseDisk], word: str, code: str
) -> None:
    """Each error of the file system is told at once, and is over with the next good answer."""
    disk = mounted("fsx")
    disk.becomes(word)
    assert found(look(machine, disk)) == [(code, str(disk.point))]
    disk.becomes()
    assert look(machine, disk).status is Status.OK


def test_a_refusal_is_no_fault(machine: Machine, mounted: Callable[[str], FuseDisk]) -> None:
    """Root squash answers EACCES: the mount is alive."""
    disk = mounted("fsx")
    disk.becomes("fail:create:EACCES")
    assert look(machine, disk).status is Status.OK


@pytest.mark.parametrize("op", ["statfs", "create", "write", "fsync", "read", "unlink"])
def test_a_hang_is_unknown_then_hung_then_over(hurried: Machine, mounted: Callable[[str], FuseDisk], op: str) -> None:
    """A mount that hangs in any act is unknown, then hung, with one worker left alone; when it answers it is ok."""
    disk = mounted("fsx")
    disk.becomes(f"hang:{op}")
    began = time.monotonic()
    result = look(hurried, disk)
    assert time.monotonic() - began < limit_s(DEADLINE_S + 1.5)
    assert (result.status, result.findings) == (Status.UNKNOWN, ())
    stuck = children()
    assert len(stuck) <= 1
    assert found(look(hurried, disk, hung_after_s=0.1)) == [("hung", str(disk.point))]
    assert children() <= stuck, "no second worker starts while the first lives"
    disk.becomes()
    assert until_ok(hurried, disk, within_s=10).status is Status.OK


def test_no_second_probe_while_one_cannot_die(hurried: Machine, mounted: Callable[[str], FuseDisk]) -> None:
    """A worker that SIGKILL does not end is counted, never replaced, and questions meanwhile cost no time."""
    disk = mounted("fsx")
    disk.becomes("hang:write")
    look(hurried, disk)
    if hurried.mount_state(str(disk.point)).abandoned != 1:
        pytest.skip("this kernel lets a killed process leave a FUSE request")
    stuck, began = children(), time.monotonic()
    for _ in range(20):
        assert found(look(hurried, disk, hung_after_s=0.0)) == [("hung", str(disk.point))]
    assert time.monotonic() - began < limit_s(DEADLINE_S)
    assert children() == stuck


def test_a_hang_of_one_mount_hides_no_other(hurried: Machine, mounted: Callable[[str], FuseDisk]) -> None:
    """Beside a mount that hangs, another is asked, judged, and its error found."""
    hung, sick = mounted("fsx"), mounted("home")
    hung.becomes("hang:all")
    sick.becomes("fail:write:EIO")
    result = look(hurried, hung, sick)
    assert found(result) == [("error", str(sick.point))]
    assert [str(hung.point) in gap for gap in result.undecided] == [True]
    assert hurried.space("/").total_bytes > 0


def test_the_owners_on_a_disk_are_counted_past_a_mount_that_hangs(
    hurried: Machine, mounted: Callable[[str], FuseDisk], tmp_path: Path
) -> None:
    """A hung mount below a full disk holds no worker: the local file systems are asked as before, and the owners of the
    disk's files are known."""
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    disk = mounted("my data")
    disk.becomes("hang:getattr")
    held = hurried.file_systems.holders(str(tmp_path), "ext4")
    assert (held.whole, held.bytes_of[os.geteuid()] >= 1 << 16) == (True, True)
    assert hurried.file_systems.state("local").abandoned == 0
    disk.becomes()


def test_a_local_mount_below_one_that_hangs_holds_up_no_other(
    hurried: Machine, mounted: Callable[[str], FuseDisk], tmp_path: Path
) -> None:
    """The way to a scratch disk on /fsx/scratch leads over the server of /fsx: a worker of its own asks it."""
    disk = mounted("fsx")
    point = disk.point / "scratch"
    try:
        with tmpfs(tmp_path) as local, ExitStack() as cleanup:
            for file in (local / "scratch", point):
                file.touch()
            command("mount", "--bind", str(local / "scratch"), str(point))
            cleanup.callback(command, "umount", str(point))
            cleanup.callback(disk.becomes)
            assert hurried.space(str(point)).total_bytes == 64 * 1024
            disk.becomes("hang:all")
            with pytest.raises(SourceTimeout):
                hurried.space(str(point))
            assert hurried.space("/").total_bytes > 0
            assert hurried.file_systems.state("local").abandoned == 0
    except NotHere as missing:
        pytest.skip(str(missing))


def test_a_server_that_ended_is_an_error(machine: Machine, mounted: Callable[[str], FuseDisk]) -> None:
    """A mount whose connection was aborted answers ENOTCONN, which is an error and no hang."""
    disk = mounted("fsx")
    disk.server.kill()
    disk.server.wait(limit_s(10))
    (finding,) = look(machine, disk).findings
    assert (finding.code, finding.evidence["error"]) == ("lustre.io.error", "ENOTCONN")


def test_a_full_tmpfs(machine: Machine, tmp_path: Path) -> None:
    """A real file system without room for the file says so, and nothing of the probe stays behind."""
    try:
        with tmpfs(tmp_path) as point:
            result = lustre_io(machine, LustreIoSettings(fstypes=("tmpfs",), ignore=others(machine.mounts(), point)))
            assert found(result) == [("full", str(point))]
            assert os.listdir(point) == []
    except NotHere as missing:
        pytest.skip(str(missing))


def test_a_file_of_what_the_kernel_does_not_keep_is_missing(mounted: Callable[[str], FuseDisk]) -> None:
    """/proc/pressure of RHEL 8 can be opened, and its read is not supported: such a file says nothing, and is no file
    that cannot be read."""
    disk = mounted("proc")
    (disk.point / "memory").write_text("some")
    disk.becomes("fail:read:EOPNOTSUPP")
    with pytest.raises(SourceMissing, match="Operation not supported"):
        FileTree(disk.point).read("memory")


def test_logs_of_a_job_on_a_mount_that_hangs(mounted: Callable[[str], FuseDisk]) -> None:
    """The controller's thread of jobs waits for no user's file: the comparison goes on, and says what it lacks. Each
    further job costs no time and no worker while one hangs."""
    disk = mounted("fsx")
    (disk.point / "nccl.7").write_text(
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=X"
    )
    logs = JobLogs(f"{disk.point}/nccl.%j", deadline_s=DEADLINE_S)
    try:
        disk.becomes("hang:all")
        began = time.monotonic()
        first = logs("7")
        stuck = children()
        assert [logs("7").timeouts for _ in range(5)] == [{}] * 5
        assert time.monotonic() - began < limit_s(DEADLINE_S + 3.0)
        assert first.unread.startswith("the logs of the job were not read: job logs probe: no answer to 'words'")
        assert children() <= stuck
    finally:
        disk.becomes()
        logs.close()
        end_at = time.monotonic() + limit_s(5)
        while logs._probe.state().abandoned and time.monotonic() < end_at:
            time.sleep(0.02)


def test_a_command_of_the_site_on_a_mount_that_hangs(
    machine: Machine, mounted: Callable[[str], FuseDisk], tmp_path: Path
) -> None:
    """Whether others may write it cannot be read; the caller learns that in time: a plug-in, an evidence command."""
    disk = mounted("tools")
    (disk.point / "gpu.sh").write_text("echo here\n")
    argv = ("sh", str(disk.point / "gpu.sh"))
    disk.becomes("hang:all")
    began = time.monotonic()
    with pytest.raises(SourceTimeout, match=f"sh {argv[1]}: not run: its files do not answer within 1 s"):
        replace(machine, plugins=frozenset({argv})).command(*argv, timeout_s=1.0)
    message = save_bundle(tmp_path / "bundles/c1", {}, [argv, ("echo", "here")], timeout_s=1.0, keep=5)
    assert time.monotonic() - began < limit_s(10.0)
    assert f"without sh: sh {argv[1]}: not run: its files do not answer" in message
    assert (tmp_path / "bundles/c1/echo.txt").read_text() == "here\n"
