"""One job: id, user, nodes, start, end, exit, restarts, from the environment of a Slurm hook. Pure.

Sources: slurm.conf(5) and prolog_epilog.html (variables of Prolog and Epilog). 22.05 has neither the times nor the
number of restarts in its Epilog; 26.05 has both. A field that is not known is empty or None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

_EXIT = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")
_EPOCH = re.compile(r"[1-9][0-9]{0,10}")
_NUMBER = re.compile(r"[0-9]{1,9}")


class Job(Struct, frozen=True, kw_only=True):
    """One run of a job, as one of its nodes knows it.

    ``nodes``: a host list as Slurm writes it, ``gpu-[001-032]``. ``exit_code`` and ``signal``: how it ended, None where
    that is not known. ``gpus``: the indices of its GPUs on this node, empty where the whole node is its own or nothing
    is known. ``restarts``: how often it ran before.
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

    @property
    def completed(self) -> bool:
        """Whether it is known to have ended without an error."""
        return self.exit_code == 0 and self.signal == 0

    @property
    def ending(self) -> str:
        """Its end in words: ``exit code 3``, ``signal 9``."""
        return ending(self.exit_code, self.signal) or "completed"


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
    derived = environ.get("SLURM_JOB_DERIVED_EC", "")
    if (exit_code, signal) == (0, 0) and _NUMBER.fullmatch(derived) and int(derived):
        exit_code = int(derived)  # a step failed, and the batch script did not pass it on
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
    )


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


def _time(text: str) -> datetime | None:
    return datetime.fromtimestamp(int(text), UTC) if _EPOCH.fullmatch(text) else None
