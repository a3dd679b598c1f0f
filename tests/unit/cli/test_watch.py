"""``--watch`` says where it does not work; tests/daemon/test_status_page.py shows it on a terminal."""

from __future__ import annotations

import pytest

from healthd.cli.main import run

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
