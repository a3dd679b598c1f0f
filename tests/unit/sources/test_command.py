"""Commands with a deadline: against real processes, and a real file system that hangs."""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.core.errors import SourceMissing, SourceTimeout, SourceUnreadable
from healthd.probe.worker import be_expendable
from healthd.sources import command
from healthd.sources.command import TRUNCATED, abandoned, find_tool, run_command
from tests.support.limits import limit_s, longer_and_longer

pytestmark = pytest.mark.process

SLACK_S = limit_s(1.5)  # what a busy machine may add


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _until(condition: object, within_s: float = 3.0) -> bool:
    end_s = time.monotonic() + limit_s(within_s)
    while time.monotonic() < end_s:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


# ---------------------------------------------------------------------------------------------------------------------
# a command that ends


def test_both_streams_and_the_exit_status_come_back() -> None:
    """Standard output, standard error and the exit status are returned, and argv as it was given."""
    result = run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=limit_s(5))
    assert (result.code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")
    assert 0 < result.duration_s < 5


@pytest.mark.parametrize("argument", ["", "a b", "$(touch /tmp/x)", "'\"\\", "-n", "line\nline", "*", "é🙂"])
def test_arguments_arrive_as_they_are(argument: str) -> None:
    """No argument is seen by a shell, whatever is in it."""
    script = "import sys; sys.stdout.buffer.write(sys.argv[1].encode())"
    assert run_command([sys.executable, "-c", script, argument], timeout_s=limit_s(10)).stdout == argument


def test_standard_input_is_empty_unless_given() -> None:
    """A command that reads its input gets end of file at once, or the given text, even more than a pipe holds."""
    assert run_command(["cat"], timeout_s=limit_s(5)).stdout == ""
    text = "x" * 300_000
    assert run_command(["cat"], timeout_s=limit_s(5), input=text).stdout == text
    assert run_command(["true"], timeout_s=limit_s(5), input=text).code == 0


def test_a_signal_shows_as_a_negative_status() -> None:
    """A command that somebody else's signal ended has the negative signal number as its status."""
    assert run_command(["sh", "-c", "kill -TERM $$"], timeout_s=limit_s(5)).code == -15


def test_output_over_the_limit_is_cut_and_said() -> None:
    """Of ten megabytes the first bytes are kept; the note says how many were dropped; the command is not blocked."""
    result = run_command(
        ["sh", "-c", "head -c 10000000 /dev/zero | tr '\\0' a"], timeout_s=limit_s(20), limit_bytes=1000
    )
    assert result.code == 0
    assert result.stdout == "a" * 1000 + f"\n{TRUNCATED} {10_000_000 - 1000} bytes dropped]"


def test_output_that_is_not_text_does_not_raise() -> None:
    """Bytes that are not UTF-8 become replacement characters."""
    assert run_command(["printf", r"a\377b"], timeout_s=limit_s(5)).stdout == "a\ufffdb"


def test_the_command_runs_in_a_session_of_its_own() -> None:
    """The child leads its own session and group, so that killing it can never reach its parent."""
    result = run_command(["sh", "-c", "echo $$; cut -d' ' -f5,6 /proc/$$/stat"], timeout_s=limit_s(5))
    pid, ids = result.stdout.splitlines()
    assert ids == f"{pid} {pid}"


PROTECTIONS = [("-500", "0"), ("-1000", "0"), ("0", "0"), ("300", "300")]


@pytest.mark.parametrize(("ours", "its"), PROTECTIONS)
def test_a_command_is_not_kept_from_the_oom_killer(tmp_path: Path, ours: str, its: str) -> None:
    """What protects the daemon is not for what it starts; whatever is to be killed before others stays so."""
    file = tmp_path / "oom_score_adj"
    file.write_text(f"{ours}\n")
    become = command._BECOME.replace(command._OOM, str(file))
    assert become.count(str(file)) == 2
    done = subprocess.run(["sh", "-c", become, "sh", "true"], check=False, capture_output=True, timeout=limit_s(10))
    assert (done.returncode, done.stderr, file.read_text()) == (0, b"", f"{its}\n")


@pytest.mark.parametrize(("ours", "its"), PROTECTIONS)
def test_a_worker_is_not_kept_from_the_oom_killer(tmp_path: Path, ours: str, its: str) -> None:
    """Nor is a probe's worker, which holds the libraries that leak; without the file it works all the same."""
    file = tmp_path / "oom_score_adj"
    file.write_text(f"{ours}\n")
    be_expendable(str(file))
    assert file.read_text().strip() == its
    be_expendable(str(tmp_path / "absent"))


def test_a_command_of_a_protected_process_is_not_protected() -> None:
    """The same in the kernel's own eyes."""
    script = """
import sys
from pathlib import Path
from healthd.sources.command import run_command
try:
    Path("/proc/self/oom_score_adj").write_text("-500")
except PermissionError:
    sys.exit(77)
print(run_command(["cat", "/proc/self/oom_score_adj"], timeout_s=100.0).stdout.strip())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=limit_s(60)
    )
    if done.returncode == 77:
        pytest.skip("needs CAP_SYS_RESOURCE: nobody else may protect a process")
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.parametrize("kernel", ["5.3", "5.2"])
def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_caller(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has ended, what it left behind keeps the pipe open: the result comes at once, nothing is killed. An
    older kernel has no descriptor that tells of a child's end."""

    def unknown(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if kernel == "5.2":
        monkeypatch.setattr(os, "pidfd_open", unknown)
    started_s = time.monotonic()
    result = run_command(["sh", "-c", "sleep 30 & echo $!"], timeout_s=limit_s(20))
    pid = int(result.stdout)
    try:
        assert result.code == 0
        assert time.monotonic() - started_s < SLACK_S
        assert _alive(pid)
    finally:
        os.kill(pid, 9)


def test_what_is_left_of_the_group_is_killed_on_request() -> None:
    """With leave_nothing the background child of a command that ended well is gone, and the result is the same."""
    told: list[int] = []
    result = run_command(
        ["sh", "-c", "sleep 30 & echo $!"], timeout_s=limit_s(20), leave_nothing=True, on_start=told.append
    )
    assert result.code == 0
    assert _until(lambda: not _alive(int(result.stdout)))
    assert len(told) == 1


def test_the_pid_is_told_while_the_command_runs() -> None:
    """on_start is called with the pid of the command itself, which leads the group that would be killed."""
    groups: list[tuple[int, int]] = []
    result = run_command(
        ["sh", "-c", "echo $$"], timeout_s=limit_s(5), on_start=lambda pid: groups.append((pid, os.getpgid(pid)))
    )
    assert groups == [(int(result.stdout), int(result.stdout))]


# ---------------------------------------------------------------------------------------------------------------------
# a command that does not end


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 60",
        "trap '' TERM INT HUP; while :; do sleep 60; done",
        "exec >&- 2>&-; exec sleep 60",
        "yes; sleep 60",
    ],
    ids=["sleeps", "ignores SIGTERM", "closed its output", "never stops talking"],
)
def test_the_deadline_holds(script: str) -> None:
    """At the deadline the command is killed, and SourceTimeout names it and the limit."""
    started_s = time.monotonic()
    with pytest.raises(SourceTimeout, match=r"sh -c .*no end within 0\.2 s: killed"):
        run_command(["sh", "-c", script], timeout_s=0.2)
    assert time.monotonic() - started_s < 0.2 + SLACK_S
    assert abandoned() == ()


def test_the_deadline_of_a_configured_command_holds_for_the_judgement_of_its_files_too(tmp_path: Path) -> None:
    """As root, a child judges them first: the command gets the rest of the time."""
    began_s = time.monotonic()
    with pytest.raises(SourceTimeout, match="no end within 30 s: killed"):
        run_command(["sleep", "60"], timeout_s=30.0, since_s=began_s - 29.8)
    assert time.monotonic() - began_s < limit_s(10.0)


def test_the_whole_group_dies_at_the_deadline(tmp_path: Path) -> None:
    """No grandchild is left running into somebody's job after a time-out."""
    note, hangs = tmp_path / "pid", "sleep 60 & echo $! > {0}.new; mv {0}.new {0}; wait"
    for timeout_s in longer_and_longer(0.4):
        with pytest.raises(SourceTimeout):
            run_command(["sh", "-c", hangs.format(note)], timeout_s=timeout_s)
        if note.exists():
            break
    pid = int(note.read_text())
    assert _until(lambda: not _alive(pid))


def test_the_timeout_quotes_what_the_command_last_said() -> None:
    """The end of standard error is in the message: it often says why (a retry, a lock)."""
    message = ""
    for timeout_s in longer_and_longer(0.3):
        with pytest.raises(SourceTimeout) as error:
            run_command(["sh", "-c", "echo retrying in 1sec >&2; sleep 60"], timeout_s=timeout_s)
        if "its output" in (message := str(error.value)):
            break
    assert "its output: retrying in 1sec" in message


# A file system whose daemon takes the question for /tool and never answers it: the process that asks is in D state and
# SIGKILL does not end it. The daemon gives up by itself after 20 s, so that a broken test ends too. Structures and
# numbers from linux/fuse.h: opcodes LOOKUP 1, GETATTR 3, INIT 26.
_HANGING_FS = """
import ctypes, os, struct, sys, threading
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fd},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"hang", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
threading.Timer(20, os._exit, (1,)).start()
print("mounted", flush=True)
while True:
    request = os.read(fd, 1 << 20)
    _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
    if opcode == 26:
        body = struct.pack("<IIIIHHIIHH", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0) + bytes(28)
    elif opcode == 3:
        body = struct.pack("<QII", 0, 0, 0) + struct.pack("<QQQQQQIIIIIIIIII", 1, *[0] * 8, 0o40755, 2, *[0] * 5)
    elif opcode == 1:
        print("asked", flush=True)
        continue
    else:
        body = b""
    os.write(fd, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
"""


class HangingFs:
    """A mounted file system on which looking up any name never returns until ``release``."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self._server = subprocess.Popen(
            [sys.executable, "-c", _HANGING_FS, str(point)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self._server.stdout is None or self._server.stdout.readline() != "mounted\n":
            _, output = self._server.communicate(timeout=limit_s(5))
            pytest.skip(f"a FUSE file system could not be mounted ({output.strip()[-80:]}): needs root and /dev/fuse")

    def release(self) -> None:
        """End the daemon: the kernel aborts every question that is out, and whoever waits gets an error."""
        self._server.kill()
        self._server.communicate(timeout=limit_s(5))
        subprocess.run(["/bin/umount", "-l", str(self.point)], check=False, capture_output=True, timeout=limit_s(5))


@pytest.fixture
def hanging_fs(tmp_path: Path) -> Iterator[HangingFs]:
    """A file system that hangs; skipped where it cannot be mounted."""
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        pytest.skip("needs root and /dev/fuse for a file system that hangs")
    point = tmp_path / "hang"
    point.mkdir()
    fs = HangingFs(point)
    try:
        yield fs
    finally:
        fs.release()
        _until(lambda: not abandoned())


_STARTED_AGAIN = """
import os, subprocess, sys, time
from healthd.sources.command import adopt_children, run_command

if len(sys.argv) == 1:
    children = [subprocess.Popen(["sleep", seconds]) for seconds in ("600", "0", "0.3")]
    os.execv(sys.executable, [sys.executable, __file__, *(str(each.pid) for each in children)])
adopt_children()
lasting, *ending = sys.argv[1:]
while any(os.path.exists(f"/proc/{pid}") for pid in ending):
    run_command(["true"], timeout_s=50.0)
    time.sleep(0.05)
os.kill(int(lasting), 9)  # it was left alone
print("reaped")
"""


def test_children_of_the_program_before_are_reaped_once_they_have_ended(tmp_path: Path) -> None:
    """A reload starts healthd again in its own process, where nothing else reaps a child of before."""
    script = tmp_path / "started_again.py"
    script.write_text(_STARTED_AGAIN)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    argv = [sys.executable, str(script)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit_s(20), check=False)
    assert (done.returncode, done.stdout) == (0, "reaped\n"), done.stderr


def _left_alone(hanging_fs: HangingFs) -> int:
    """The pid of a command that hung on this file system at its deadline."""
    message = ""
    for timeout_s in longer_and_longer(0.4):
        started_s = time.monotonic()
        with pytest.raises(SourceTimeout) as error:
            run_command(["stat", f"{hanging_fs.point}/tool"], timeout_s=timeout_s)
        assert time.monotonic() - started_s < timeout_s + 0.3 + SLACK_S
        message = str(error.value)
        if found := re.search(r"process (\d+) does not die \(uninterruptible sleep\); left alone", message):
            return int(found[1])
    raise AssertionError(message)


@pytest.mark.kernel
def test_a_child_that_cannot_be_killed_is_abandoned_and_counted(hanging_fs: HangingFs) -> None:
    """A D-state child costs the deadline plus 0.3 s, is counted while it lives, and is reaped once it ends."""
    _left_alone(hanging_fs)
    (left,) = abandoned()
    assert f"'stat', '{hanging_fs.point}/tool'" in str(left.args)
    assert _alive(left.pid)
    hanging_fs.release()
    assert _until(lambda: abandoned() == ())


@pytest.mark.kernel
def test_a_child_that_was_left_alone_is_reaped_by_the_next_command(hanging_fs: HangingFs) -> None:
    """A daemon whose commands hung for a night keeps no zombie of each once they have died."""
    pid = _left_alone(hanging_fs)
    hanging_fs.release()
    assert _until(lambda: not _alive(pid))
    run_command(["true"], timeout_s=limit_s(5))
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.kernel
def test_a_tool_on_a_hung_file_system_does_not_freeze_the_other_threads(hanging_fs: HangingFs) -> None:
    """The tool itself lies on the file system that hangs: the deadline holds, and other threads go on meanwhile."""
    beats: list[float] = []
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.02):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(SourceTimeout):
            run_command([f"{hanging_fs.point}/tool"], timeout_s=0.6)
    finally:
        stop.set()
        thread.join()
    pauses = [later - earlier for earlier, later in itertools.pairwise(beats)]
    assert len(beats) > 10
    assert max(pauses) < 0.5


# ---------------------------------------------------------------------------------------------------------------------
# a command that is not there


def test_a_missing_tool_names_where_it_was_looked_for() -> None:
    """The message has the tool's name, the folders of PATH and the usual folders: it is not a broken node."""
    with pytest.raises(
        SourceMissing, match=r"no-such-tool: not found; searched in /nowhere, /usr/bin, .*/opt/slurm/bin"
    ):
        run_command(["no-such-tool"], timeout_s=limit_s(5), env={"PATH": "/nowhere"})


def test_a_missing_path_and_a_file_that_cannot_run_are_missing_tools(tmp_path: Path) -> None:
    """A path that is not there, a file without the execute bit and one whose interpreter is gone are all missing."""
    plain, orphan = tmp_path / "plain", tmp_path / "orphan"
    plain.write_text("x")
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    for path in (tmp_path / "absent", plain, orphan):
        with pytest.raises(SourceMissing, match=str(path)):
            run_command([str(path)], timeout_s=limit_s(5))


def test_a_tool_that_exits_127_itself_is_not_missing() -> None:
    """Only the lookup decides that a tool is missing, not a status that a tool may use too."""
    assert run_command(["sh", "-c", "echo sh: not found >&2; exit 127"], timeout_s=limit_s(5)).code == 127


def test_without_any_path_the_usual_folders_are_searched() -> None:
    """Slurm starts hooks with no PATH: tools are found all the same, and the command gets a PATH."""
    result = run_command(["sh", "-c", "echo $PATH"], timeout_s=limit_s(5), env={})
    assert result.stdout.strip() == ":".join(command.SEARCH_DIRS)


def test_the_environment_is_the_given_one_alone() -> None:
    """Nothing of the daemon's own environment leaks into a command that was given one."""
    lines = run_command(["env"], timeout_s=limit_s(5), env={"SLURM_CONF": "/x"}).stdout.splitlines()
    assert "SLURM_CONF=/x" in lines
    assert {line.split("=")[0] for line in lines} <= {"SLURM_CONF", "PATH", "PWD", "SHLVL", "_", "OLDPWD"}


def test_an_argument_that_cannot_be_passed_is_unreadable() -> None:
    """A NUL byte, or more than the kernel takes, is told as such and starts nothing."""
    for argument in ("a\0b", "x" * 10_000_000):
        with pytest.raises(SourceUnreadable, match=r"echo .*could not be started"):
            run_command(["echo", argument], timeout_s=limit_s(5))


def test_find_tool_prefers_the_folder_that_was_set(tmp_path: Path) -> None:
    """The extra folders come first, then PATH, then the usual ones; a file that cannot be run is passed over."""
    tool, plain = tmp_path / "ls", tmp_path / "cat"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    plain.write_text("")
    assert find_tool("ls", [str(tmp_path)]) == str(tool)
    assert find_tool("cat", [str(tmp_path)], env={}) != str(plain)
    assert find_tool("ls", env={}).startswith("/")


def test_find_tool_says_where_it_looked() -> None:
    """A tool that is nowhere raises SourceMissing with every folder."""
    with pytest.raises(SourceMissing, match=r"no-such-tool: not found; searched in /extra, .*/opt/slurm/bin"):
        find_tool("no-such-tool", ["/extra"], env={})


def test_no_descriptor_is_left_open() -> None:
    """A hundred commands, ended or killed, leave no file descriptor behind."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        run_command(["true"], timeout_s=limit_s(5), input="x")
    with pytest.raises(SourceTimeout):
        run_command(["sleep", "60"], timeout_s=0.05)
    assert len(os.listdir("/proc/self/fd")) == before
