"""Commands with a deadline that holds, whatever the command does.

It runs other projects' tools: each in its own session, standard input empty, output bounded. At the deadline the whole
process group is killed; a child that does not die (D state) is left alone and counted, where
`subprocess.run(timeout=)` would wait for it for ever. It must not judge an exit status, and it must not wait for
anything without a limit.

Tools may lie on a file system that hangs (ParallelCluster shares /opt/slurm over NFS). CPython forks with the
interpreter lock held until the child's exec has returned, so an exec from there would freeze every thread of the
daemon. Therefore the child is always the local /bin/sh, which looks the tool up and becomes it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct, field

import healthd
from healthd.core import strict_modes
from healthd.core.errors import SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.node import CommandResult
from healthd.probe.child import REAP_S, kill_group
from healthd.probe.supervise import inherit

LIMIT_BYTES = 4 * 1024 * 1024
"""How much of each of stdout and stderr is kept, unless the caller says otherwise."""

TRUNCATED = "[healthd: output cut here,"
"""The beginning of the note at the end of an output that was longer than its limit."""

SEARCH_DIRS = (
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/opt/slurm/bin",  # AWS ParallelCluster and HyperPod
    "/opt/slurm/sbin",
    "/opt/amazon/efa/bin",  # the EFA installer: fi_info
)
"""Searched after PATH. Slurm starts its hooks with no PATH at all."""

_SHELL = "/bin/sh"
# The unit protects the daemon from the OOM killer; a job must not be killed instead of the daemon's child.
_OOM = "/proc/self/oom_score_adj"
_EXPENDABLE = f'{{ read -r adj <{_OOM} && [ "$adj" -lt 0 ] && echo 0 >{_OOM}; }} 2>/dev/null; '
_BECOME = _EXPENDABLE + 'command -v -- "$1" >/dev/null 2>&1 || { echo "$0: $1: not found" >&2; exit 127; }; exec "$@"'
_SHELL_SAYS = "healthd-exec"  # $0 of the shell, so that its own errors can be distinguished from the tool's
_TICK_S = 0.05  # how soon the end of a child is noticed while a grandchild holds its pipes open, before Linux 5.3


def run_command(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    input: str | None = None,  # noqa: A002  the name that subprocess has for it
    limit_bytes: int = LIMIT_BYTES,
    leave_nothing: bool = False,
    on_start: Callable[[int], None] | None = None,
    since_s: float | None = None,
) -> CommandResult:
    """Run ``argv`` and return how it ended; this call takes at most ``timeout_s`` plus 0.3 s, counted from ``since_s``
    (monotonic) where that is given.

    ``env`` replaces the whole environment; the tool is searched in its PATH and then in ``SEARCH_DIRS``. ``input``: the
    text that the command reads from stdin, else nothing. Of a longer output the first ``limit_bytes`` are kept, and a
    line that begins with ``TRUNCATED`` says how much is missing. Background processes of a command that ended are
    neither waited for nor killed, unless ``leave_nothing``: then the rest of its process group is killed. ``on_start``
    gets the pid as soon as there is one.

    Raises SourceMissing (no such tool), SourceTimeout (killed at the deadline), SourceUnreadable (could not start).
    """
    abandoned()  # what was left alone and has died since is reaped here
    argv, started_s = tuple(argv), time.monotonic()
    deadline_s = timeout_s + (started_s if since_s is None else since_s)
    environment = _environment(env)
    child = _start(argv, environment, input)
    stdout, stderr = _Capture(limit_bytes), _Capture(limit_bytes)
    ended = False
    try:
        if on_start is not None:
            on_start(child.pid)
        ended = _collect(child, stdout, stderr, deadline_s)
    finally:
        died = ended or kill_child(child)
        if ended and leave_nothing:
            kill_group(child.pid)  # the rest of its group
        for pipe in _pipes(child):
            pipe.close()
    if not ended:
        raise SourceTimeout(_timeout_text(argv, timeout_s, died, child.pid, stderr.text()))
    if child.returncode in (126, 127) and stderr.text().startswith(f"{_SHELL_SAYS}: "):
        raise SourceMissing(_missing_text(argv[0], environment["PATH"].split(":"), stderr.text()))
    return CommandResult(
        argv=argv,
        code=child.returncode,
        stdout=stdout.text(),
        stderr=stderr.text(),
        duration_s=time.monotonic() - started_s,
    )


def run_configured(
    argv: Sequence[str],
    *,
    timeout_s: float,
    input: str | None = None,  # noqa: A002  as above
    limit_bytes: int = LIMIT_BYTES,
    leave_nothing: bool = False,
    on_start: Callable[[int], None] | None = None,
) -> CommandResult:
    """Run a command of the site's configuration as ``run_command`` does. Root runs none that other users may write: a
    child judges that first, within the same deadline, as the files may lie on a file system that hangs.

    Raises what ``run_command`` raises, and SourceUnreadable for a command that is not run.
    """
    since_s = time.monotonic()
    if os.geteuid() == 0 and (why := _why_not_run(argv, timeout_s)):
        raise SourceUnreadable(why)
    return run_command(
        argv,
        timeout_s=timeout_s,
        input=input,
        limit_bytes=limit_bytes,
        leave_nothing=leave_nothing,
        on_start=on_start,
        since_s=since_s,
    )


def _why_not_run(argv: Sequence[str], timeout_s: float) -> str:
    try:
        judged = run_command((sys.executable, "-I", "-S", strict_modes.__file__, *argv), timeout_s=timeout_s)
    except SourceTimeout as error:
        text = f"not run: its files do not answer within {timeout_s:g} s, on a file system that hangs"
        raise SourceTimeout(f"{_shown(tuple(argv))}: {text}") from error
    if judged.code != 0:
        raise SourceUnreadable(f"not run, since its files cannot be judged: {judged.stderr.strip()[-200:]}")
    return judged.stdout


def find_tool(name: str, extra_dirs: Iterable[str] = (), *, env: Mapping[str, str] | None = None) -> str:
    """The full path of a tool: from ``extra_dirs``, then PATH, then ``SEARCH_DIRS``.

    This searches in the caller's own thread, which waits if a folder is on a file system that hangs; run_command
    searches in the child. Raises SourceMissing with every searched folder.
    """
    dirs = [*extra_dirs, *_environment(env)["PATH"].split(":")]
    for path in [name] if "/" in name else [os.path.join(folder, name) for folder in dirs if folder]:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise SourceMissing(_missing_text(name, dirs, f"{name}: not found"))


class CommandsUnderWay:
    """The commands of one machine's checks. They end with it: after that nothing keeps their deadlines. Safe to use
    from many threads."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._pids: set[int] = set()
        self._ended = False

    @contextlib.contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """The ``on_start`` of one command, which is under way until this block ends."""
        mine: list[int] = []

        def begun(pid: int) -> None:
            mine.append(pid)
            with self._changing:
                self._pids.add(pid)
                if self._ended:
                    kill_group(pid)

        try:
            yield begun
        finally:
            with self._changing:
                self._pids.difference_update(mine)

    def end(self) -> None:
        """Kill those under way, and each that a check still starts."""
        with self._changing:
            self._ended = True
            for pid in self._pids:
                kill_group(pid)


def adopt_children() -> None:
    """Know the children of the program that this process ran before, so that each is reaped once it has ended, and that
    a probe starts no second worker beside one that was left alone: a reload starts healthd again in its own process. To
    be called before this program starts any."""
    with contextlib.suppress(ChildProcessError):  # it has none, as at any other start
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        with _left_lock:
            _inherited.update(_children())
    inherit()


def import_path() -> str:
    """PYTHONPATH for a Python child that imports healthd, wherever that is installed."""
    path = (str(Path(healthd.__file__).parent.parent), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(filter(None, path))


def abandoned() -> tuple[subprocess.Popen[bytes], ...]:
    """The children that were killed and still live. Children that have ended since are reaped and forgotten."""
    with _left_lock:
        for pid in tuple(_inherited):
            if _has_ended(pid):
                _inherited.discard(pid)
        for pid in [pid for pid, child in _left.items() if child.poll() is not None]:
            del _left[pid]
        return tuple(_left.values())


def kill_child(child: subprocess.Popen[bytes]) -> bool:
    """Kill a child's process group; False if the child lives on: it is then remembered and left alone."""
    kill_group(child.pid)
    if _ends_within(child, REAP_S):
        return True
    with _left_lock:
        _left[child.pid] = child
    return False


# An unreaped child keeps its pid, so holding the Popen is what makes (pid) a safe name: it cannot be used again.
_left: dict[int, subprocess.Popen[bytes]] = {}
_inherited: set[int] = set()
_left_lock = threading.Lock()


class _Capture(Struct):
    """The first ``limit_bytes`` of a stream, and how many more there were."""

    limit_bytes: int
    kept: bytearray = field(default_factory=bytearray)
    dropped_bytes: int = 0

    def add(self, data: bytes) -> None:
        room = self.limit_bytes - len(self.kept)
        self.kept += data[:room]
        self.dropped_bytes += max(0, len(data) - room)

    def text(self) -> str:
        text = self.kept.decode("utf-8", "replace")
        return f"{text}\n{TRUNCATED} {self.dropped_bytes} bytes dropped]" if self.dropped_bytes else text


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    environment = dict(os.environ if env is None else env)
    path = [folder for folder in environment.get("PATH", "").split(":") if folder]
    environment["PATH"] = ":".join([*path, *(folder for folder in SEARCH_DIRS if folder not in path)])
    return environment


def _start(argv: tuple[str, ...], env: Mapping[str, str], text: str | None) -> subprocess.Popen[bytes]:
    try:
        with _stdin(text) as stdin:
            return subprocess.Popen(
                [_SHELL, "-c", _BECOME, _SHELL_SAYS, *argv],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd="/",
                start_new_session=True,
            )
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument
        raise SourceUnreadable(f"{_shown(argv)}: could not be started: {error}") from error


def _stdin(text: str | None) -> IO[bytes]:
    """A file to read from, not a pipe: no thread has to feed it, and a command that does not read it blocks none."""
    if text is None:
        return open(os.devnull, "rb")
    file = os.fdopen(os.memfd_create("healthd-stdin"), "w+b")
    file.write(text.encode())
    file.seek(0)
    return file


def _collect(child: subprocess.Popen[bytes], stdout: _Capture, stderr: _Capture, deadline_s: float) -> bool:
    """Read both streams until the child has ended (True) or the deadline has come (False)."""
    with selectors.DefaultSelector() as selector, _end_of(child) as end:
        for pipe, capture in zip(_pipes(child), (stdout, stderr), strict=True):
            selector.register(pipe, selectors.EVENT_READ, capture)
        if end is not None:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            ended = child.poll() is not None
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return ended
            ready = selector.select(0.0 if ended else left_s if end is not None else min(left_s, _TICK_S))
            if ended and not ready:
                return True  # its background processes hold the pipes open
            for key, _ in ready:
                if key.fd == end or not _read_on(key):
                    selector.unregister(key.fileobj)
    return _ends_within(child, deadline_s - time.monotonic())


def _read_on(key: selectors.SelectorKey) -> bool:
    """Read what is there; whether more may come."""
    data = os.read(key.fd, 65536)
    key.data.add(data)
    return bool(data)


@contextlib.contextmanager
def _end_of(child: subprocess.Popen[bytes]) -> Iterator[int | None]:
    """A descriptor that becomes readable when the child ends, even while a grandchild holds its pipes open:
    pidfd_open(2), from Linux 5.3 on. None before: then the child is polled."""
    try:
        end = os.pidfd_open(child.pid)
    except OSError:
        yield None
        return
    try:
        yield end
    finally:
        os.close(end)


def _pipes(child: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [pipe for pipe in (child.stdout, child.stderr) if pipe is not None]


def _children() -> Iterator[int]:
    """The children of this process, those that have ended with them (proc_pid_stat(5))."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
            if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                yield int(name)


def _has_ended(pid: int) -> bool:
    """Whether a child without a Popen has ended, and is reaped now."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _ends_within(child: subprocess.Popen[bytes], left_s: float) -> bool:
    try:
        child.wait(max(0.0, left_s))
    except subprocess.TimeoutExpired:
        return False
    return True


def _shown(argv: tuple[str, ...]) -> str:
    text = " ".join(argv)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _timeout_text(argv: tuple[str, ...], timeout_s: float, died: bool, pid: int, stderr: str) -> str:
    fate = "killed" if died else f"killed, but process {pid} does not die (uninterruptible sleep); left alone"
    message = f"; its output: {stderr.strip()[-200:]}" if stderr.strip() else ""
    return f"{_shown(argv)}: no end within {timeout_s:g} s: {fate}{message}"


def _missing_text(name: str, dirs: Sequence[str], message: str) -> str:
    message = message.strip().removeprefix(f"{_SHELL_SAYS}: ")
    where = "" if "/" in name else f"; searched in {', '.join(folder for folder in dirs if folder)}"
    return f"{message}{where}; install it, or set the folder it is in"
