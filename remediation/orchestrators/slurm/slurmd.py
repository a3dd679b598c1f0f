"""The slurmd that runs on this machine, by /proc: whether it has its configuration from slurmctld, and where it is
installed.

Root's processes alone: any user may name a process slurmd, and so choose the controller that this node asks, or the
programs that healthd runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_NAME = "slurmd"


def configless_slurmd(proc: Path) -> str:
    """Evidence of a slurmd that runs with ``--conf-server``, or ""."""
    for process in _of_root(proc):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # ended between the listing and the reading
            continue
        if Path(words[0]).name == _NAME and any(word.startswith("--conf-server") for word in words):
            return f"slurmd runs with --conf-server as process {process.name}"
    return ""


def clients_of_slurmd(proc: Path) -> str:
    """Where the clients are that were installed with the slurmd that runs, or "". AWS PCS has a folder for each version
    of Slurm, in no PATH: ``/opt/aws/pcs/scheduler/slurm-25.11/bin`` (AWS PCS User Guide, 2026). That folder is not
    read here: it may be on a file system that hangs."""
    for process in _of_root(proc):
        try:
            program = Path(os.readlink(process / "exe"))
        except OSError:  # a thread of the kernel, or one that has ended
            continue
        if program.name.removesuffix(" (deleted)") == _NAME:
            return str(program.parent.parent / "bin")
    return ""


def _of_root(proc: Path) -> Iterator[Path]:
    for process in proc.glob("[0-9]*"):
        try:
            if process.stat().st_uid == 0:  # the effective uid of the process: proc(5)
                yield process
        except OSError:  # it has ended
            continue
