"""The evidence that is saved before a repair changes a node: ``[evidence]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

Command = Annotated[tuple[str, ...], Meta(min_length=1, description='a command such as ["nvidia-smi", "-q"]')]
Kept = Annotated[int, Meta(ge=1, le=1_000, description="a whole number from 1 to 1000")]
Seconds = Annotated[float, Meta(gt=0, le=240, description="seconds, at most 240")]


@dataclass(frozen=True, kw_only=True)
class EvidenceSection:
    """The bundle of a remediation, below ``bundles/`` of the state directory: verdict, audit trail, kernel log, and the
    output of the commands. A replaced machine takes it away; if it must last, copy it elsewhere with a command of
    yours."""

    commands: tuple[Command, ...] = (
        ("nvidia-smi", "-q"),
        ("nvidia-bug-report.sh", "--safe-mode", "--output-file", "{bundle}/nvidia-bug-report.log"),
    )
    """Commands whose output is kept, each a list of arguments, run without a shell, all at once; ``{bundle}`` is the
    folder. NVIDIA's support asks for its report first; the report's safe mode skips queries that can hang. If a tool is
    not installed, the audit trail names it and the repair goes on."""

    timeout_s: Seconds = 120.0
    """The deadline of all commands together, in seconds; healthd then kills those that still run. The report takes
    about a minute on eight GPUs, and a job that waits for the node waits as long."""
    keep: Kept = 20
    """How many bundles stay on the disk. Twenty: months of remediations, at a few megabytes each."""
