"""What several unit tests are laid out on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A /dev with two GPUs, and a /proc of four processes of which two have a GPU open."""
    dev, proc = tmp_path / "dev", tmp_path / "proc"
    dev.mkdir()
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (dev / name).touch()
    open_files = {
        "9": ["nvidia0", "nvidiactl"],
        "40": ["nvidiactl", "nvidia-uvm"],
        "100": ["null", "nvidia12"],
        "7": [],
    }
    for pid, names in open_files.items():
        (proc / pid / "fd").mkdir(parents=True)
        (proc / pid / "comm").write_text(f"job{pid}\n")
        for number, name in enumerate(names):
            (proc / pid / "fd" / str(number)).symlink_to(dev / name)
    (proc / "self").symlink_to("9")
    return proc, dev
