"""The next step for a job that Slurm holds. Pure, and light: ``healthd fleet`` loads it without what judges jobs."""

from __future__ import annotations

_BY_ADMINISTRATOR = "JobHeldAdmin"
"""To a release of such a job by its owner slurmctld answers "Access/permission denied" (26.05.5)."""


def release_words(job: str, reason: str) -> str:
    """The step that lets a job run that Slurm holds for ``reason``."""
    who = "ask an administrator to release it" if reason == _BY_ADMINISTRATOR else "release it"
    return f"{who} by `scontrol release {job}`"
