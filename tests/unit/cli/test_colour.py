"""Colours of a text: a terminal's, unless its user says otherwise, and never the only place where a state is told."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from healthd.cli.output import clipped
from healthd.observe.cause_text import SIGNS
from healthd.observe.text_lines import COLOURS, TextLine, joined
from healthd.setup.doctor import DoctorResult, DoctorStatus, as_text
from tests.support.limits import limit_s

ROOT = Path(__file__).resolve().parents[3]
ASKED = (
    "import sys; sys.path.insert(0, sys.argv[1]); from healthd.__main__ import _wants_colour; print(_wants_colour())"
)
LINES = (
    TextLine("n1  CRITICAL", "critical"),
    TextLine("  ! code", "warning"),
    TextLine("    a detail"),
    TextLine("  ? \x1b[2Jname", "unknown"),
    TextLine("  i news", "info"),
    TextLine("  ok 3 checks", "ok"),
)


def test_a_line_has_the_colour_of_its_level_and_a_detail_none() -> None:
    """What a mount's name may hold reaches no terminal, in colours or without."""
    assert joined(LINES, colour=True).split("\n") == [
        "\x1b[1;31mn1  CRITICAL\x1b[0m",
        "\x1b[33m  ! code\x1b[0m",
        "    a detail",
        "\x1b[35m  ? ?[2Jname\x1b[0m",
        "\x1b[36m  i news\x1b[0m",
        "\x1b[32m  ok 3 checks\x1b[0m",
        "",
    ]
    assert re.sub(r"\x1b\[[0-9;]*m", "", joined(LINES, colour=True)) == joined(LINES)


def test_no_state_is_told_by_colour_alone() -> None:
    """Each level with a colour has a sign of its own as well."""
    assert COLOURS.keys() == SIGNS.keys()
    assert len(set(SIGNS.values())) == len(set(COLOURS.values())) == len(SIGNS)


def test_the_doctor_has_a_colour_for_each_result() -> None:
    """Red where something must be there, cyan where healthd does without it."""
    lines = [
        DoctorResult(about="a", status=DoctorStatus.OK, why="there"),
        DoctorResult(about="b", status=DoctorStatus.MISSING, why="gone", fix="install it"),
        DoctorResult(about="c", status=DoctorStatus.MISSING, why="gone", optional=True),
        DoctorResult(about="d", status=DoctorStatus.NOT_REPORTED, why="no answer"),
    ]
    shown = as_text(lines, colour=True).splitlines()
    assert [re.findall(r"\x1b\[([0-9;]*)m", line) for line in shown] == [
        ["32", "0"], ["1;31", "0"], [], ["36", "0"], ["35", "0"], ["1;31", "0"],
    ]  # fmt: skip
    assert as_text(lines[:1], colour=True).endswith("\x1b[32mnothing is missing\x1b[0m\n")


@pytest.mark.parametrize(
    ("line", "width", "cut"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("\x1b[33mabc\x1b[0m", 3, "\x1b[33mabc\x1b[0m"),
        ("\x1b[1;31mabcd\x1b[0m", 3, "\x1b[1;31mab…\x1b[0m"),
        ("", 0, ""),
    ],
)
def test_a_screen_cuts_a_line_and_not_its_colour(line: str, width: int, cut: str) -> None:
    """A colour takes no column, and the next line does not begin in it."""
    assert clipped(line, width) == cut


@pytest.mark.process
@pytest.mark.parametrize(
    ("terminal", "environ", "wanted"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": "", "TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": ""}, False),
    ],
)
def test_who_gets_colours(terminal: bool, environ: Mapping[str, str], wanted: bool) -> None:
    """A terminal, unless NO_COLOR; a pipe, only with FORCE_COLOR; an empty variable says nothing."""
    argv = [sys.executable, "-S", "-c", ASKED, str(ROOT)]
    ours, theirs = pty.openpty() if terminal else os.pipe()
    given = {"TERM": "xterm", **environ}
    subprocess.run(argv, stdout=theirs, env=given, check=True, timeout=limit_s(30.0))
    os.close(theirs)
    answer = os.read(ours, 100).decode()
    os.close(ours)
    assert answer.split() == [str(wanted)]
