"""``healthd controller``, as it is configured: ``[controller]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

AbsolutePath = Annotated[str, Meta(pattern=r"^/[^\0]*\Z", description="an absolute path, such as /shared/healthd")]
Interval = Annotated[float, Meta(ge=0.2, le=3_600, description="seconds, from 0.2 to 3600")]
Seconds = Annotated[float, Meta(gt=0, le=86_400, description="seconds, more than 0 and at most 86400")]


@dataclass(frozen=True, kw_only=True)
class ControllerSection:
    """``healthd controller``, which acts for nodes with ``[provisioner] act_from = "controller"``, and for those that
    do not come back from a reboot. Nothing else reads it; the mode, the rate of replacements and how AWS is reached are
    in the sections that nodes have as well."""

    interval_s: Interval = 10.0
    """How often, in seconds, it reads the marks of all nodes: one request to slurmctld. Ten seconds are nothing beside
    a reboot, and 10,000 nodes cost slurmctld a tenth of a second each time."""

    state_dir: AbsolutePath = "/var/lib/healthd-controller"
    """The folder of its store and of the lock that only one controller holds. Two head nodes must have the same folder,
    shared: the second waits for the lock and goes on from what the first wrote down."""

    silent_s: Seconds = 300.0
    """How long, in seconds, a node that did not come back from its reboot must have been DOWN and not responding, at
    every look, before its machine is replaced: long after slurmctld's own SlurmdTimeout, so that neither a restart of
    slurmctld nor a slow boot gives a machine away."""
