"""Power saving in Slurm: the names without a machine, and the nodes that may lose theirs. Text only.

With SuspendTime (ParallelCluster's dynamic nodes, PCS, any cluster that bursts into a cloud) slurmctld powers idle
nodes down and starts them for a job. A name that sleeps keeps its state, drain and reservations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
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


def may_sleep(config: str, node: str, states: Collection[str], partitions: Callable[[], Collection[str]]) -> bool:
    """Whether slurmctld powers this node down once it is idle for long: ``scontrol show config`` names a SuspendProgram
    and does not except the node, one of its ``partitions``, or one of the ``states`` that it is in now (23.02 on).
    SuspendTime says nothing here: a partition may have one of its own. ``partitions`` is called only where some are
    excepted.

    ``n[1-9]:4`` in SuspendExcNodes keeps any four of them awake, and so none for certain (slurm.conf(5)).
    """
    if not _listed(config, "SuspendProgram") or node in unfolded(_listed(config, "SuspendExcNodes")):
        return False
    if not set(_listed(config, "SuspendExcStates").upper().split(",")).isdisjoint(states):
        return False
    excepted = _listed(config, "SuspendExcParts")
    return not excepted or set(excepted.split(",")).isdisjoint(partitions())


def _listed(config: str, key: str) -> str:
    """The value of a setting, "" for none."""
    found = re.search(rf"^{key}\s*=\s*(\S+)", config, re.MULTILINE)
    return found[1] if found is not None and found[1] not in ("(null)", "N/A") else ""
