"""The log of a service, by the real loggers: JSON for a collector, sentences for a terminal."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from healthd.daemon.logging import SENTENCES, service_logger

DAEMON = Path(__file__).parents[3] / "healthd" / "daemon"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def written(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO) -> str:
    """What the logger writes of one event with a sentence, and one without."""
    monkeypatch.setattr(sys, "stderr", stderr)
    log = service_logger("info").bind(node="n1")
    log.info("daemon.started", version="1", mode="observe", boot_id="b")
    log.warning("engine", message="nothing to do")
    log.debug("kernel.records", count=3)
    return stderr.getvalue()


def test_a_collector_gets_events_with_fields_and_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object a line; the sentence is made from the fields."""
    lines = [json.loads(line) for line in written(monkeypatch, io.StringIO()).splitlines()]
    assert [(line["event"], line["level"], line["message"]) for line in lines] == [
        ("daemon.started", "info", "healthd 1 started: node n1, mode observe"),
        ("engine", "warning", "nothing to do"),
    ]
    assert (lines[0]["node"], lines[0]["boot_id"]) == ("n1", "b")


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_a_terminal_shows_the_sentence(monkeypatch: pytest.MonkeyPatch, no_color: str, is_coloured: bool) -> None:
    """Before the fields, in colour unless NO_COLOR is set; the name of the event stays."""
    monkeypatch.setenv("NO_COLOR", no_color)
    text = written(monkeypatch, Terminal())
    assert ("\x1b[" in text) is is_coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"\[info +\] healthd 1 started: node n1, mode observe +", plain)
    assert "name=daemon.started" in plain
    assert "nothing to do" in plain


def test_a_terminal_gets_no_control_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may name a process that the engine waits for."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    service_logger("info").info("engine", message="waiting for 7 \x1b]0;owned\x07\nto end", step="\x1b[2J")
    assert "waiting for 7 ?]0;owned?; to end" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_a_traceback_on_a_terminal_has_no_control_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of an exception is below its line, and what it quotes may be a user's."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    try:
        raise ValueError("no number: \x1b]0;owned\x07\nsecond line \x1b[2J")
    except ValueError:
        service_logger("info").critical("duty.failed", duty="notify", exc_info=True)
    text = terminal.getvalue()
    assert "Traceback (most recent call last):\n" in text
    assert text.rstrip().endswith("ValueError: no number: ?]0;owned?\nsecond line ?[2J")
    assert "\x1b" not in text


class Full(io.StringIO):
    """A stderr on a disk that a user has filled."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_a_line_that_cannot_be_written_stops_nothing_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine logs what it does: its thread must not end by that."""
    stderr = Full()
    assert written(monkeypatch, stderr) == ""
    stderr.is_full = False
    lines = [json.loads(line) for line in written(monkeypatch, stderr).splitlines()]
    assert [line["event"] for line in lines] == ["daemon.started", "engine"]  # a logger of its own
    stderr.is_full = True
    structlog.get_logger().info("engine")
    stderr.is_full = False
    structlog.get_logger().info("engine")
    lines = [json.loads(line) for line in stderr.getvalue().splitlines()]
    assert [(line["event"], line.get("lines")) for line in lines[2:]] == [("log.lost", 1), ("engine", None)]
    assert lines[2]["error"] == "[Errno 28] No space left on device"
    stderr.close()
    structlog.get_logger().info("engine")


def test_every_sentence_is_of_an_event_that_is_logged() -> None:
    """And no event of two words is logged without one, or a message of its own."""
    source = "".join(path.read_text() for path in DAEMON.glob("*.py") if path.name != "logging.py")
    logged = set(re.findall(r'log\.\w+\(\s*"(\w+\.\w+)"(?!, message|, count)', source))
    assert logged == set(SENTENCES)


def test_a_sentence_has_fields_of_the_line() -> None:
    """A template that names a field which its line lacks would fail when it is logged."""
    source = "".join(path.read_text() for path in DAEMON.glob("*.py") if path.name != "logging.py")
    for event, sentence in SENTENCES.items():
        (call,) = re.findall(rf'log\.\w+\(\s*"{event}"(.*)\)$', source, re.MULTILINE)
        fields = {name for _, name, _, _ in string.Formatter().parse(sentence) if name} - {"node"}
        assert all(re.search(rf"\b{name}=", call) or "**about" in call for name in fields), (event, call)
