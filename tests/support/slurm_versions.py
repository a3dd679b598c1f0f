"""The differences between the versions of Slurm that healthd is tested with.

Each row was seen on Debian's packages of the three versions; tests/live/slurm/test_live_versions.py tries each
one on the Slurm that runs. Nothing in healthd asks for a version: it tries, and reads what Slurm answers.
"""

from __future__ import annotations

import re

from msgspec import Struct

TESTED = ("22.05", "24.11", "26.05")
"""The versions that `make test-slurm` runs, of Debian 12, 13 and testing (forky)."""


class Difference(Struct, frozen=True, kw_only=True):
    """One behaviour. ``since``: the first tested version that has it. ``until``: the first that has it no more, ""
    where all later ones have it. ``before``: the behaviour of the others. ``source``: where it was seen."""

    name: str
    since: str
    what: str
    before: str
    source: str
    until: str = ""


DIFFERENCES = (
    Difference(
        name="appends to a reason",
        since="24.11",
        what="a drained node that stops answering keeps its reason, with ` : Not responding` behind it, and another "
        "user and time",
        before="the reason stays as it was written",
        source="slurmctld, set_node_reason; drained node, slurmd ended",
    ),
    Difference(
        name="reason of a node that is back",
        since="24.11",
        until="26.05",
        what="undrain, resume and idle leave the reason on the node; a later drain of Slurm's own replaces it; it "
        "stays on a node that goes down, with ` : Not responding` behind it where that does not answer",
        before="they remove the reason",
        source="scontrol update, scontrol show node; Epilog error, Low RealMemory, a reboot, slurmd ended",
    ),
    Difference(
        name="drain over a reboot with ASAP",
        since="24.11",
        what="`scontrol reboot ASAP` of a drained node leaves it drained, with ` : reboot issued` behind its reason",
        before="the node is back in service after the boot",
        source="scontrol reboot ASAP without nextstate, slurmd -b",
    ),
    Difference(
        name="job in Kill task failed",
        since="26.05",
        what="`Kill task failed (JobId=7 StepId=batch)`",
        before="`Kill task failed`",
        source="slurmstepd, a process in state D",
    ),
    Difference(
        name="undrains unregistered nodes",
        since="26.05",
        what="`state=undrain` just after a restart of slurmctld exits with 0",
        before="it exits with 1, `Invalid node state specified`, and is applied all the same",
        source="slurmctld restarted, node not registered yet",
    ),
    Difference(
        name="refuses the user `nobody` in a reservation",
        since="26.05",
        what="`users=nobody` in a reservation: `Unspecified error`",
        before="accepted",
        source="scontrol create reservation",
    ),
    Difference(
        name="comment of a reservation",
        since="24.11",
        what="`scontrol create reservation … comment=`",
        before="`Unknown parameter`",
        source="scontrol create reservation",
    ),
    Difference(
        name="extra of a node",
        since="22.05",
        what="`scontrol update nodename=… extra=`, shown behind the comment",
        before="",
        source="scontrol update, scontrol show node",
    ),
    Difference(
        name="SuspendExcNodes at run time",
        since="24.11",
        what="`scontrol update SuspendExcNodes+=NODE`",
        before="`No valid entity in update command`",
        source="scontrol update",
    ),
    Difference(
        name="JSON of scontrol",
        since="24.11",
        what="`scontrol show node NODE --json`",
        before="`unrecognized option`; `sinfo --json` alone",
        source="scontrol show node --json",
    ),
    Difference(
        name="JSON of sinfo by group",
        since="24.11",
        what="`sinfo --json` has one entry per partition and state, under `sinfo`",
        before="one entry per node, under `nodes`",
        source="sinfo --json",
    ),
    Difference(
        name="HealthCheckNodeState=START_ONLY",
        since="26.05",
        what="a HealthCheckProgram that runs at the start of slurmd alone",
        before="slurm.conf is refused",
        source="slurmctld -D with such a slurm.conf",
    ),
    Difference(
        name="expedited requeue",
        since="26.05",
        what="`sbatch --requeue=expedite`: with `enable_expedited_requeue` an Epilog that fails has the job run again",
        before="sbatch refuses the option (25.11 has it: not tested)",
        source="sbatch; slurmctld, SlurmctldParameters",
    ),
    Difference(
        name="HealthCheckTimeout",
        since="26.05",
        what="how long a HealthCheckProgram may run",
        before="always 60 s; slurm.conf is refused",
        source="slurmctld -D with such a slurm.conf",
    ),
)


def version_in(text: str) -> str:
    """``slurm-wlm 22.05.8`` as ``22.05``; "" where there is no version."""
    found = re.search(r"\b(\d\d\.\d\d)\.\d", text)
    return found[1] if found else ""


def has(version: str, name: str) -> bool:
    """Whether a version (``24.11``) has the behaviour of this name. Raises KeyError for a name of no row."""
    row = {row.name: row for row in DIFFERENCES}[name]
    return row.since <= version and not (row.until and version >= row.until)
