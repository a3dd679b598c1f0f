"""The standard streams of a command: full, closed, without a reader, and of another encoding."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from healthd.api.wire import Reply, write_answer
from tests.support.limits import limit_s
from tests.support.running import HEEDS_SIGINT, ROOT

pytestmark = pytest.mark.process
PROGRESS = """
import sys
from healthd.cli.output import progress
try:
    progress("one line")
except BaseException as error:
    sys.exit(" ".join([type(error).__name__, *map(str, error.args)]))
"""
HEALTHD = (sys.executable, "-m", "healthd")


@contextlib.contextmanager
def daemon(path: Path, reply: Reply | None, asked: threading.Event | None = None) -> Iterator[list[str]]:
    """A daemon that gives each client this reply, or none; the option that names its socket. ``asked``: is set once a
    client has asked."""
    with contextlib.ExitStack() as clients, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client = clients.enter_context(listener.accept()[0])
                    while client.recv(65536):
                        pass
                    if asked is not None:
                        asked.set()
                    if reply is not None:
                        client.sendall(write_answer(reply))
                        client.close()

        threading.Thread(target=serve, daemon=True).start()
        yield ["--socket", str(path)]
        listener.shutdown(socket.SHUT_RDWR)


def healthd(
    arguments: Sequence[str], *, stdout: Any = subprocess.PIPE, shell: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run it. ``shell``: redirections, as sh writes them."""
    argv = ["sh", "-c", f'exec "$@" {shell}', "sh", *HEALTHD, *arguments] if shell else [*HEALTHD, *arguments]
    return subprocess.run(
        argv,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=limit_s(60.0),
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    )


@pytest.mark.parametrize(("code", "ends"), [(0, 70), (1, 1), (2, 2)])
def test_a_full_disk_makes_no_verdict(tmp_path: Path, code: int, ends: int) -> None:
    """What could not be written is no success, and no critical node either; the message says what is full."""
    with daemon(tmp_path / "s", Reply(code=code, out="n1  OK\n")) as where, open("/dev/full", "w") as full:
        asked = healthd(["check", *where], stdout=full)
    with open("/dev/full", "w") as full:
        told = healthd(["explain", "79"], stdout=full)
    for done, wanted in ((asked, ends), (told, 70)):
        assert done.returncode == wanted
        assert done.stderr == (
            "healthd: the result cannot be written to standard output: No space left on device;"
            " free its disk, or name another file\n"
        )


@pytest.mark.parametrize("shell", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_exit_code(tmp_path: Path, shell: str) -> None:
    """Cron and daemons close streams. No socket gets the number of one, so that no answer is written into it."""
    for code in (0, 1, 2):
        path = tmp_path / str(code)
        with daemon(path, Reply(code=code, out="out\n", err="err\n")) as where:
            assert healthd(["check", *where], shell=shell).returncode == code
    assert healthd(["explain", "79"], shell=shell).returncode == 0
    assert healthd(["explain", "no.such"], shell=shell).returncode == 64


def test_a_reader_that_went_away_is_no_daemon_that_does_not_answer(tmp_path: Path) -> None:
    """As after ``healthd check | true``: the verdict is the exit code, and nothing is said."""
    with daemon(tmp_path / "s", Reply(code=1, out="n1  CRITICAL\n")) as where:
        reading, writing = os.pipe()
        os.close(reading)
        done = healthd(["check", *where], stdout=writing)
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_any_locale_can_be_printed_in(tmp_path: Path) -> None:
    """The texts are UTF-8, from the daemon and from this process: an old locale makes no node critical."""
    with daemon(tmp_path / "s", Reply(code=0, out="3 GPUs · …\n")) as where:
        asked = healthd(["check", *where], PYTHONIOENCODING="ascii")
    local = healthd(["check", "kmsg.reader", "--no-daemon"], PYTHONIOENCODING="ascii")
    assert (asked.returncode, asked.stdout) == (0, "3 GPUs · …\n")
    assert "·" in local.stdout
    assert local.stderr == ""


def test_ctrl_c_while_a_daemon_hangs_is_one_line(tmp_path: Path) -> None:
    """An operator who gives up gets no traceback."""
    asked = threading.Event()
    with daemon(tmp_path / "s", None, asked) as where:
        argv = [*HEEDS_SIGINT, *HEALTHD, "status", *where]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environ) as client:
            assert asked.wait(limit_s(30.0))
            client.send_signal(signal.SIGINT)
            _, told = client.communicate(timeout=limit_s(30.0))
    assert (client.returncode, told) == (130, "healthd: interrupted\n")


def test_a_line_of_long_work_without_a_reader_ends_the_command() -> None:
    """``healthd history --follow | head`` ends as by Ctrl-C; a full disk is an error with its name."""
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    argv = [sys.executable, "-c", PROGRESS]
    ends = [
        subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT).stderr
        for stdout in (writing, full)
    ]
    os.close(writing)
    os.close(full)
    assert ends[0] == "KeyboardInterrupt\n"
    assert ends[1].startswith("HealthdError the result cannot be written to standard output: No space left on device")
