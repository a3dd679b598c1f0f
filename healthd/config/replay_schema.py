"""How long things take, for ``healthd replay``: ``[replay]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from healthd.config.kinds import Seconds


@dataclass(frozen=True, kw_only=True)
class ReplaySection:
    """What ``healthd replay FILES`` assumes of what no log tells. Nothing else reads it."""

    drain_s: Seconds = 7_200.0
    """How long a job runs on after its node was drained, in seconds. Two hours: a kernel log does not say when jobs
    end; take your own median. The node works meanwhile, so this part is told by itself."""

    reset_s: Seconds = 600.0
    """From idle to released with a GPU reset, in seconds: evidence, reset, checks, settling."""

    reboot_s: Seconds = 1_200.0
    """The same with a reboot: a large GPU instance takes ten minutes through its firmware alone."""

    replace_s: Seconds = 3_600.0
    """The same with another machine, where capacity is there."""

    person_s: Seconds = 28_800.0
    """How long a node stays out that only a person can let in, in seconds. Eight hours: a night."""
