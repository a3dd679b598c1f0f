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
    """How long a GPU reset takes, in seconds: stop what holds the GPUs, reset, start it again. The place in the budget
    before a drain, and the settle time before a release, come on top; they are the daemon's own settings."""

    reboot_s: Seconds = 1_200.0
    """How long a reboot takes, in seconds, from asked for to another boot: a large GPU instance takes ten minutes
    through its firmware alone."""

    replace_s: Seconds = 3_600.0
    """How long it takes, in seconds, until another machine stands behind the name, where capacity is there."""

    person_s: Seconds = 28_800.0
    """After how many seconds a person comes who was asked for, or for a node that only a person can let in; and
    leaves the node in order. Eight hours: a night."""
