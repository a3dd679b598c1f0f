"""The tutorial of a first node, typed as its page has it; tests/live/slurm/test_tutorial_slurm.py types the next."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import limit_s
from tests.support.pages import ROOT, Block, blocks
from tests.support.typed import typed

pytestmark = pytest.mark.process

PAGE = "docs/tutorial/first-node.md"
DRILL = "/tmp/drill"
BLOCKS = [each for each in blocks() if each.page == PAGE]
AT_ONCE = ("healthd check --no-daemon", "healthd checks", "healthd explain ")
"""The commands that need nothing on the machine."""


def block_with(words: str) -> Block:
    (block,) = (each for each in BLOCKS if words in each.text)
    return block


@pytest.mark.parametrize("page", [PAGE, "docs/how-to/write-a-check.md"])
def test_a_checkout_names_its_folder_of_commands_first(page: str) -> None:
    """`make demo` installs `healthd` in .venv alone: a page puts that folder on the PATH before its first command."""
    text = (ROOT / page).read_text()
    first = next(line for line in text.splitlines() if line.startswith("healthd "))
    assert 'export PATH="$PWD/.venv/bin:$PATH"' in text[: text.index(f"\n{first}")]


def test_what_needs_no_daemon_answers() -> None:
    """Each command of a look at this machine, at a code that the page names."""
    lines = [line for block in BLOCKS for line in block.text.splitlines() if line.startswith(AT_ONCE)]
    assert len(lines) == 4
    for line in lines:
        argv = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60), cwd=ROOT)
        assert done.returncode in ((0, 1, 2) if "check --no-daemon" in line else (0,)), done.stderr
        assert done.stdout


def test_a_fault_is_shown_to_a_second_daemon(tmp_path: Path) -> None:
    """The configuration, the daemon, the line of XID 79, and both answers, as the page quotes them."""
    here = str(tmp_path / "drill")
    (tmp_path / "drill.toml").write_text(block_with("# drill.toml").text.replace(DRILL, here))
    makes, runs, waits, writes, reads, checks, shows = block_with("mkdir -p").text.replace(DRILL, here).splitlines()
    assert typed(makes, tmp_path, os.environ).returncode == 0
    assert runs.endswith(" &")
    daemon = typed(f"{runs[:-2]} >/dev/null 2>&1 & echo $!", tmp_path, os.environ)
    try:
        assert typed(waits, tmp_path, os.environ).returncode == 0
        answer = typed(checks, tmp_path, os.environ)
        assert answer.returncode in (0, 1, 2), "the daemon answers, and the next line of the page works as it stands"
        assert " · observe · " in answer.stdout.splitlines()[0]
        assert typed(writes, tmp_path, os.environ).returncode == 0
        assert typed(reads, tmp_path, os.environ).returncode == 0
        assert typed(checks, tmp_path, os.environ).returncode == 1, "at once: the line before waits for the reader"
        quoted = "observe mode: would take the node out for gpu.xid.79 on GPU 0000:05:00 (reboot_node)"
        assert f"`{quoted}`" in (ROOT / PAGE).read_text(encoding="utf-8")
        assert quoted in typed(shows, tmp_path, os.environ).stdout
    finally:
        assert typed(f"kill {daemon.stdout}", tmp_path, os.environ).returncode == 0
