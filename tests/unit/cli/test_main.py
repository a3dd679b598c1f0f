"""The end of a verb, whatever it raises."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from healthd.cli.main import run
from healthd.core.streams import FAILED


def test_a_defect_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Python exits with 1 by itself, and 1 says of a node that it is critical. No control character of what the error
    quotes reaches the terminal."""

    def answer(_: object) -> None:
        raise ZeroDivisionError("a mistake\x1b[2J\nof ours")

    broken = ModuleType("healthd.cli.check")
    broken.__dict__["answer"] = answer
    monkeypatch.setitem(sys.modules, "healthd.cli.check", broken)
    assert run(["check"]) == FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "ZeroDivisionError: a mistake?[2J\nof ours\nhealthd: this is a defect of healthd" in shown.err
