"""Faults one after another on the nodes of a lab: when slurmctld did what, by its own log."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from tests.live.slurm.slurm_lab import SlurmLab

PCI = "0000:05:00"
MANY_FAULTS = """
same_fault_nodes = 1000
storm_nodes = 100
storm_share = "100%"
returns_per_day = 8
"""
"""Keys of ``[policy]``: that many nodes have a fault one after another, and come back from it, holds none up."""
DRAINED = r"update_node: node {} state set to DRAIN"


def slurmctld_log(lab: SlurmLab) -> Path:
    """Where the lab's slurmctld writes what it does."""
    return lab.root / "log" / "slurmctld.log"


def logged_at(lab: SlurmLab, line: str, size: int) -> list[float]:
    """When slurmctld did it, by its own log after byte ``size``; empty while it has not."""
    with slurmctld_log(lab).open() as log:
        log.seek(size)
        found = re.findall(rf"\[([^\]]+)\] {line}", log.read())
    return [datetime.fromisoformat(stamp).timestamp() for stamp in found]
