"""``--watch`` says where it does not work; tests/daemon/test_status_page.py shows it on a terminal."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from healthd.api.wire import Reply
from healthd.cli.main import run
from healthd.cli.watch import watched
from healthd.core.errors import ConfigError, HealthdError, NoDaemon, UsageError
from tests.support.limits import limit_s
from tests.support.running import HEEDS_SIGINT

WATCHED = [("plan",), ("doctor",), ("fleet",), ("controller", "--status")]


@pytest.mark.parametrize("verb", WATCHED)
def test_it_needs_a_terminal_and_no_json(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb with its own name in the message, and what to do instead."""
    argv = [*verb, "--watch"]
    assert run(argv) == 64
    assert f"healthd {' '.join(verb)} --watch needs a terminal" in capsys.readouterr().err
    assert run([*argv, "--json"]) == 64
    assert f"run `healthd {' '.join(verb)} --json` as often as you like" in capsys.readouterr().err


def test_only_the_status_of_a_controller_is_watched(capsys: pytest.CaptureFixture[str]) -> None:
    """The controller itself runs until a signal ends it."""
    assert run(["controller", "--watch"]) == 64
    assert "--json and --watch work only with --status" in capsys.readouterr().err


@pytest.mark.process
def test_the_status_without_a_terminal_tells_a_missing_daemon_as_without_watch(tmp_path: Path) -> None:
    """One sentence, with what starts a daemon; the watch goes on."""
    argv = [sys.executable, "-m", "healthd", "status", "--socket", str(tmp_path / "none.sock")]
    once = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s(60.0))
    assert once.returncode == 69
    watch = [*HEEDS_SIGINT, *argv, "--watch"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=limit_s(60.0)) == 0
    assert line.partition("NO ANSWER: ")[2].strip() == once.stderr.partition("healthd: ")[2].strip()
    assert "start it with `systemctl start healthd`" in line


@pytest.mark.process
def test_a_watch_that_is_ended_gives_the_terminal_back(tmp_path: Path) -> None:
    """By SIGTERM, as `timeout` sends it: the shell after it is on its own screen, with its cursor."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "healthd", "status", "--watch", "--socket", str(tmp_path / "none.sock")]
    environ = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        shown = b""
        while b"NO ANSWER" not in shown:
            shown += os.read(ours, 65536)
        process.terminate()
        assert process.wait(timeout=limit_s(60.0)) == 128 + signal.SIGTERM
    assert os.read(ours, 65536).endswith(b"\x1b[?25h\x1b[?1049l")
    os.close(ours)


class Terminal(io.StringIO):
    """It says that it is one."""

    def isatty(self) -> bool:
        return True


def answers(*of: Reply | BaseException) -> Callable[[], Reply]:
    """One after the other; then Ctrl-C."""
    coming = iter(of)

    def answer() -> Reply:
        found = next(coming, KeyboardInterrupt())
        if isinstance(found, BaseException):
            raise found
        return found

    return answer


OPTIONS = Namespace(verb="plan", json=False, watch=True, every=0.0)


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Set in the test itself: pytest has a standard output for each phase."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


@pytest.mark.parametrize(
    "error", [UsageError("the answer was cut off"), NoDaemon("none listens"), ConfigError(("mode is wrong",))]
)
def test_what_fails_later_is_shown_above_the_last_answer(monkeypatch: pytest.MonkeyPatch, error: HealthdError) -> None:
    """A daemon that restarts in the middle of an answer does not end the watch."""
    terminal = terminal_of(monkeypatch)
    assert watched(OPTIONS, answers(Reply(code=0, out="all is well\n"), error)).code == 0
    frames = terminal.getvalue().split("\x1b[H")
    assert [("all is well" in frame, str(error) in frame) for frame in frames[1:]] == [(True, False), (True, True)]


@pytest.mark.parametrize(("error", "ends"), [(UsageError("no such word"), True), (NoDaemon("none listens"), False)])
def test_what_is_wrong_from_the_first_ends_it_and_a_daemon_that_is_not_there_yet_does_not(
    monkeypatch: pytest.MonkeyPatch, error: HealthdError, ends: bool
) -> None:
    """And the terminal is given back."""
    terminal = terminal_of(monkeypatch)
    if ends:
        with pytest.raises(UsageError, match="no such word"):
            watched(OPTIONS, answers(error))
    else:
        assert watched(OPTIONS, answers(error)).code == 0
        assert "NO ANSWER" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[?1049l")
