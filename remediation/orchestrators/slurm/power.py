"""Power saving in Slurm: the names without a machine, and the nodes that may lose theirs. Text only.

With SuspendTime (ParallelCluster's dynamic nodes, PCS, any cluster that bursts into a cloud) slurmctld powers idle
nodes down and starts them for a job. A name that sleeps keeps its state, drain and reservations.
"""

from __future__ import annotations

import re
from functools import lru_cache

from healthd.core.hostlist import unfolded

# scontrol(1), sinfo(1) "NODE STATE CODES": ~ powered down, # powering up or configured, % powering down, ! to be
# powered down. scontrol and sinfo -O StateComplete print words (22.05.8, 26.05.5), the short forms of sinfo marks.
_WORDS = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"})
_MARKS = re.compile(r"[a-z_]+[~#%!]")


@lru_cache(maxsize=256)
def is_asleep(state: str) -> bool:
    """Whether a complete state (``IDLE+CLOUD+POWERED_DOWN``, ``idle~``) is that of a name without a machine, or of one
    that Slurm is about to start or end."""
    words = state.split("+")
    return any(word.upper() in _WORDS or _MARKS.fullmatch(word.lower()) for word in words)


def may_sleep(config: str, node: str) -> bool:
    """Whether slurmctld powers this node down once it is idle for long: ``scontrol show config`` names a SuspendProgram
    and does not except the node. SuspendTime says nothing here: a partition may have one of its own.

    ``n[1-9]:4`` in SuspendExcNodes keeps any four of them awake, and so none for certain (slurm.conf(5)).
    """
    program = re.search(r"^SuspendProgram\s*=\s*(\S+)", config, re.MULTILINE)
    excepted = re.search(r"^SuspendExcNodes\s*=\s*(\S+)", config, re.MULTILINE)
    is_on = program is not None and program[1] not in ("(null)", "N/A")
    return is_on and not (excepted and node in unfolded(excepted[1]))
