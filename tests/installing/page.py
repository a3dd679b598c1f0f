"""What docs/how-to/install.md tells people to do, and commands that must succeed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.pages import blocks
from tests.support.running import ROOT


def shown(title: str) -> list[str]:
    """The commands of a block of docs/how-to/install.md."""
    (block,) = (each for each in blocks() if (each.page, each.title) == ("docs/how-to/install.md", title))
    return block.text.splitlines()


def run(*argv: str | Path, **environ: str) -> str:
    """Run a command that must succeed; the last line that it printed."""
    given = {**os.environ, **environ}
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=3600, env=given, cwd=ROOT)
    assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout.strip().rpartition("\n")[2]
