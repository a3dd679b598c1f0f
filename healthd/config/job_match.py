"""``[[match]]`` by the job that is on the node now: the mode that follows from it. Pure.

A match holds while one job on the node meets all of its conditions; a later match goes over an earlier one. A job, or
something of a job, that is not known decides no match: then the lowest of the modes that are possible applies, because
a lower mode begins nothing that a higher one would not. At worst a faulty node is not taken out or not repaired, which
is reported; the other way round a job that you wanted to protect would lose its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from healthd.config.match import Match, holds
from healthd.core.model import MODE_RANK, Mode, RunningJob


class ModeByJob(Struct, frozen=True, kw_only=True):
    """The mode, and in words by which job and match; "" where no job has a part in it."""

    mode: Mode
    why: str = ""


def mode_by_job(matches: Iterable[Match], base: Mode, jobs: Sequence[RunningJob] | str) -> ModeByJob:
    """The mode while these jobs are on the node. ``base``: without a job; ``jobs``: why they are not known, as text."""
    possible, doubt = {base: ""}, ""
    for match in matches:
        mode = Mode(match.settings[-1].value)
        job, unknown = (None, jobs) if isinstance(jobs, str) else _first(match, jobs)
        if job is not None:
            possible, doubt = {mode: f"{job}: {match.place} holds, so that the mode is {mode}"}, ""
        elif unknown:
            doubt = doubt or unknown
            possible.setdefault(mode, f"{unknown}: {match.place} may hold, so that the mode is {mode} for now")
    lowest = min(possible, key=MODE_RANK.__getitem__)
    stays = f"{doubt}: the mode stays {lowest}, the lowest that is possible" if doubt else ""
    return ModeByJob(mode=lowest, why=possible[lowest] or stays)


def _first(match: Match, jobs: Sequence[RunningJob]) -> tuple[RunningJob | None, str]:
    """The first job that meets the match; else what of which job is not known, or ""."""
    unknown = ""
    for job in jobs:
        missing = _missing(match, job)
        if missing is None:
            continue
        if not missing:
            return job, ""
        unknown = unknown or f"the {missing} of job {job.id} is not known"
    return None, unknown


def _missing(match: Match, job: RunningJob) -> str | None:
    """None where a job does not meet a match; else what is not known of it, "" for nothing."""
    when, missing = match.when, ""
    wanted = {"partition": when.job_partition, "qos": when.job_qos, "account": when.job_account}
    for name, patterns in wanted.items():
        if not patterns:
            continue
        value = getattr(job, name)
        if not value:
            missing = missing or name
        elif not any(holds(name, pattern, value) for pattern in patterns):
            return None
    if when.job_nodes and not job.nodes:
        missing = missing or "size"
    elif job.nodes < when.job_nodes:
        return None
    return missing
