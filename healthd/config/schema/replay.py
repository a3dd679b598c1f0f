"""How long things take, for ``healthd replay``: ``[replay]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from msgspec import Struct

from healthd.core.setting_types import Seconds


class ReplaySection(Struct, frozen=True, kw_only=True):
    """The durations that ``healthd replay FILES`` assumes, because no log has them. Nothing else reads them."""

    drain_s: Seconds = 7_200.0
    """How long a job runs on after its node was drained, in seconds. Two hours: a kernel log does not say when jobs
    end; take your own median. The node works meanwhile, so the report shows this part separately."""

    reset_s: Seconds = 600.0
    """How long a GPU reset takes, in seconds, with the stop of the services that hold the GPUs and their start. The
    wait for the budget slot and the settle time before the release come on top; they are the daemon's own settings."""

    reboot_s: Seconds = 1_200.0
    """How long a reboot takes, in seconds, from the request to the next boot: the firmware of a large GPU instance
    alone takes ten minutes."""

    replace_s: Seconds = 3_600.0
    """How long a replacement takes, in seconds, if capacity is available."""

    person_s: Seconds = 28_800.0
    """How long, in seconds, until an operator answers a page, repairs the node and releases it. Eight hours: a
    night."""
