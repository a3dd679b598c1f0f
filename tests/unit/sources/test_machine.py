"""The real machine: what it refuses to run."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.sources.machine import Machine, open_machine
from tests.support.limits import limit_s

pytestmark = pytest.mark.process


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A plug-in of the site's."""
    found = tmp_path / "site" / "plugin.sh"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\necho fine\n")
    found.chmod(0o755)
    return found


@pytest.fixture
def machine(tmp_path: Path, program: Path) -> Machine:
    """A machine whose configuration names it."""
    config = tmp_path / "config.toml"
    config.write_text(
        '[node]\nname = "n1"\ninstance_type = "p5.48xlarge"\n[sources]\nimds_endpoint = ""\n'
        f'[[checks."plugin.run".plugins]]\nname = "site"\ncommand = ["{program}"]\n'
    )
    checks = {name: check.settings for name, check in discover().items()}
    return open_machine(load(config, checks=checks, environ={}).config)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root is particular about who else may write")
def test_root_runs_no_plug_in_that_others_may_write(machine: Machine, program: Path) -> None:
    """Neither one that everybody may change, nor one in a folder where everybody may put another in its place."""
    assert machine.command(str(program)).stdout == "fine\n"
    program.chmod(0o777)
    with pytest.raises(SourceUnreadable, match=f"{program} may be written by every user"):
        machine.command(str(program))
    program.chmod(0o755)
    program.parent.chmod(0o777)
    with pytest.raises(SourceUnreadable, match=f"{program.parent} may be written by every user"):
        machine.command(str(program))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root is particular about who else may write")
def test_root_runs_no_script_that_others_may_write(machine: Machine, program: Path) -> None:
    """The plug-in is what the interpreter is given."""
    command = ("sh", str(program), "--strict")
    machine.plugins = frozenset({command})
    assert machine.command(*command).stdout == "fine\n"
    program.chmod(0o777)
    with pytest.raises(SourceUnreadable, match=f"{program} may be written by every user"):
        machine.command(*command)


def test_a_plug_in_that_is_not_there_is_missing(machine: Machine, program: Path) -> None:
    """As any other tool."""
    program.unlink()
    with pytest.raises(SourceMissing):
        machine.command(str(program))


def test_the_commands_of_checks_end_with_the_machine(machine: Machine) -> None:
    """After its close nothing keeps their deadlines; a check that goes on starts no other that lasts."""
    ended: list[int] = []

    def run() -> None:
        ended.append(machine.command("sleep", "600", timeout_s=limit_s(30)).code)

    thread = threading.Thread(target=run)
    thread.start()
    while not machine.commands._pids:
        time.sleep(0.01)
    machine.close()
    thread.join(limit_s(10))
    assert ended == [-signal.SIGKILL]
    assert machine.command("sleep", "600", timeout_s=limit_s(10)).code == -signal.SIGKILL
    assert machine.commands._pids == set()
