"""The configuration of a node on Slurm whose reboot is a line in a file, and never comes."""

from __future__ import annotations

from pathlib import Path

_SECTIONS = """
[remediation]
mode = "{mode}"
settle_s = 0.5
opt_out_file = ""
{more}
[policy]
canary_repairs = {canary}
[budget]
max_out = 8
settle_s = 0.2
[provisioner]
kind = "local"
[provisioner.local]
reboot_command = ["/bin/sh", "-c", "date >> {asked}"]
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 5
unanswered_s = 10
"""


def repairing(asked: Path, *, mode: str, more: str = "", canary: int = 0) -> str:
    """``asked``: gets a line for each reboot. ``more``: further tables of the remediation. ``canary``: the repairs that
    ask."""
    return _SECTIONS.format(mode=mode, asked=asked, more=more, canary=canary)
