"""The bundle of a remediation: every part that can be had, every other one named, within the deadline, and the oldest
gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from healthd.core.errors import SourceUnreadable, StoreError
from healthd.observe.evidence import save_bundle
from tests.support.limits import limit_s

pytestmark = pytest.mark.process


def test_everything_is_saved_and_the_folder_is_roots_alone(tmp_path: Path) -> None:
    """Parts and what commands print are files; a command may write into the folder itself."""
    folder = tmp_path / "bundles" / "c1"
    commands = [("sh", "-c", "echo all is lost; echo why >&2; touch {bundle}/more")]
    message = save_bundle(folder, {"verdict.json": lambda: "{}"}, commands, timeout_s=10, keep=5)
    assert message == str(folder)
    assert {each.name: each.read_text() for each in folder.iterdir()} == {
        "verdict.json": "{}",
        "sh.txt": "all is lost\nwhy\n",
        "more": "",
    }
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root is particular about who else may write")
def test_root_runs_no_command_that_others_may_write(tmp_path: Path) -> None:
    """Nor a script that it names: what is left out is told with the reason."""
    script = tmp_path / "collect.sh"
    script.write_text("echo all is lost\n")
    script.chmod(0o777)
    message = save_bundle(tmp_path / "c1", {}, [("sh", str(script))], timeout_s=10, keep=5)
    assert f"; without sh: not run, since {script} may be written by every user" in message
    assert list((tmp_path / "c1").iterdir()) == []


def test_two_commands_of_one_tool_have_a_file_each(tmp_path: Path) -> None:
    """Neither overwrites the other or one of our own parts, and each is named where it fails."""
    commands = [
        ("sh", "-c", "echo first"),
        ("/bin/sh", "-c", "echo second; exit 3"),
        ("sh", "-c", "echo third; exit 4"),
        ("echo", "ours"),
    ]
    message = save_bundle(tmp_path / "c1", {"echo.txt": lambda: "a part"}, commands, timeout_s=10, keep=5)
    assert {each.name: each.read_text() for each in (tmp_path / "c1").iterdir()} == {
        "echo.txt": "a part",
        "sh.txt": "first\n",
        "sh-2.txt": "second\n",
        "sh-3.txt": "third\n",
        "echo-2.txt": "ours\n",
    }
    assert message.endswith("without sh-2: exit status 3: second; sh-3: exit status 4: third")


def test_what_cannot_be_had_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    """A part that fails, a tool that is not there, one that fails and one that hangs: none stops another."""

    def broken() -> str:
        raise SourceUnreadable("/dev/kmsg: permission denied")

    commands = [
        ("no-such-tool",),
        ("false",),
        ("sleep", "60"),
        ("echo", "here"),
    ]
    began = time.monotonic()
    message = save_bundle(tmp_path / "c1", {"kernel.txt": broken, "a": lambda: "a"}, commands, timeout_s=0.5, keep=5)
    assert time.monotonic() - began < limit_s(3.0)
    assert "kernel.txt: /dev/kmsg: permission denied" in message
    assert "no-such-tool: not installed" in message
    assert "false: exit status 1" in message
    assert "sleep: sleep 60: no end within 0.5 s: killed" in message
    assert (tmp_path / "c1" / "echo.txt").read_text() == "here\n"
    assert (tmp_path / "c1" / "a").read_text() == "a"


def test_the_oldest_bundles_go_first(tmp_path: Path) -> None:
    """As many stay as are asked for, the new one among them; a remediation that collects again keeps its own folder."""
    for number in range(4):
        (tmp_path / f"old{number}").mkdir()
        os.utime(tmp_path / f"old{number}", (number, number))
    for _ in range(2):
        save_bundle(tmp_path / "new", {}, (), timeout_s=1, keep=3)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["new", "old2", "old3"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """The error names the folder and the setting; the engine says it and goes on."""
    (tmp_path / "bundles").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"bundles/c1: .*state_dir"):
        save_bundle(tmp_path / "bundles" / "c1", {}, (), timeout_s=1, keep=3)
