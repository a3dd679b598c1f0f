"""One job: id, user, nodes, start, end, exit, restarts, from the environment of a Slurm hook. Pure.

Sources: slurm.conf(5) and prolog_epilog.html (variables of Prolog and Epilog). 22.05 has no times in its Epilog; 26.05
has. A field that is not known is empty or None.

The Epilog of a run that slurmctld ended, to preempt, requeue or cancel the job or at its time limit, has exit code 0:0,
and that of a requeued one the number of its next run (22.05.8, 24.11.5, 26.05.5): ``stopped`` is for what slurmctld
says of it. The exit of its steps, SLURM_JOB_DERIVED_EC, is a wait status: 768 for exit code 3, 9 for SIGKILL (22.05.8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

_EXIT = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")
_EPOCH = re.compile(r"[1-9][0-9]{0,10}")
_NUMBER = re.compile(r"[0-9]{1,9}")


class Stop(StrEnum):
    """How slurmctld ended a run. REQUEUED: by a command, healthd's too, or for a node that was set down. ENDED: at its
    time limit or deadline, or by scancel."""

    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    ENDED = "ended by Slurm"


class Job(Struct, frozen=True, kw_only=True):
    """One run of a job, as one of its nodes knows it.

    ``nodes``: a host list as Slurm writes it, ``gpu-[001-032]``. ``exit_code`` and ``signal``: how it ended, None where
    that is not known. ``gpus``: the indices of its GPUs on this node, empty where the whole node is its own or nothing
    is known. ``restarts``: how often it ran before. ``is_derived``: its exit code is that of a step; the batch script
    has none, or a good one. ``stop``: None where it ended by itself, or that is not known.
    """

    id: str
    user: str = ""
    nodes: str = ""
    start: datetime | None = None
    end: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    gpus: frozenset[str] = frozenset()
    is_derived: bool = False
    stop: Stop | None = None

    @property
    def completed(self) -> bool:
        """Whether it is known to have ended without an error."""
        return self.exit_code == 0 and self.signal == 0 and self.stop is None

    @property
    def seems_good(self) -> bool:
        """Whether its batch script ended without an error, or slurmctld ended it."""
        return self.completed or self.is_derived

    @property
    def ending(self) -> str:
        """Its end in words: ``exit code 3``, ``signal 9``, ``preempted``."""
        return self.stop or ending(self.exit_code, self.signal) or "completed"


def ending(exit_code: int | None, signal: int | None) -> str:
    """The end of a job in words; "" for one without an error."""
    if exit_code is None or signal is None:
        return "end not known"
    if signal:
        return f"signal {signal}"
    return f"exit code {exit_code}" if exit_code else ""


def job_of(environ: Mapping[str, str], *, start: datetime | None = None, end: datetime | None = None) -> Job:
    """The job of a hook, by its environment. ``start``, ``end``: where Slurm's own times are not there."""
    ended = _EXIT.fullmatch(environ.get("SLURM_JOB_EXIT_CODE2", ""))
    exit_code, signal = (int(ended[1]), int(ended[2])) if ended else (None, None)
    derived = _number(environ.get("SLURM_JOB_DERIVED_EC", "")) if (exit_code, signal) == (0, 0) else 0
    if derived:  # a wait status: a step failed, and the batch script did not pass it on
        exit_code, signal = derived >> 8 & 0xFF, derived & 0x7F
    return Job(
        id=environ.get("SLURM_JOB_ID") or "unknown",
        user=environ.get("SLURM_JOB_USER", ""),
        nodes=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""),
        start=_time(environ.get("SLURM_JOB_START_TIME", "")) or start,
        end=_time(environ.get("SLURM_JOB_END_TIME", "")) or end,
        exit_code=exit_code,
        signal=signal,
        restarts=_number(environ.get("SLURM_JOB_RESTART_COUNT", "")),
        gpus=frozenset(filter(None, environ.get("SLURM_JOB_GPUS", "").split(","))),
        is_derived=bool(derived),
    )


def stopped(job: Job, *, preempted: bool, requeued: bool, restarts: int, ended: bool = False) -> Job:
    """The run as slurmctld shows it while it ends: ``requeued`` before its processes have ended, and ``restarts`` with
    its next run; ``ended``: by slurmctld. A batch script that failed by itself has an exit code, and is neither."""
    if not preempted and not (job.seems_good and (requeued or ended)):
        return job
    run = max(restarts - 1, 0) if requeued else job.restarts
    return replace(job, restarts=run, stop=Stop.PREEMPTED if preempted else Stop.REQUEUED if requeued else Stop.ENDED)


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


def _time(text: str) -> datetime | None:
    return datetime.fromtimestamp(int(text), UTC) if _EPOCH.fullmatch(text) else None
