"""``healthd job 4711 --compare``: how often it names a device of a healthy job, and how many known culprits it names.

The jobs are simulated (bench/simulated_jobs.py); what is judged is healthd's own code. Healthy jobs are judged every
half hour, from the last ten samples of a minute each, and for a hang at the end of each time without traffic, the worst
moment of a long checkpoint. A culprit is asked for once: ten minutes after it began, of
a hang one minute after it was quiet for long enough. The default limits are in the tables without a false finding.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from bench.measure import write_down
from bench.simulated_jobs import GPUS, Culprit, Job, Jobs
from healthd.judge.job_patterns import QUIET_S, THRESHOLD, WARM_UP_S, JobFinding, hangs, stragglers
from healthd.judge.peers import WINDOW_S

THRESHOLDS = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0)
QUIETS_MIN = (3.0, 5.0, 8.0, 10.0, 12.0)
HISTORY_MIN, BEGINS = 40, 50
STEP_MIN = 30
WINDOW_MIN, WARM_UP_MIN = int(WINDOW_S / 60), int(WARM_UP_S / 60)


def main() -> int:
    """Measure and write down. Exit 1 where the default names a device of a healthy job."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=100, help="jobs with each culprit")
    options.add_argument("--hours", type=int, default=10_000, help="hours of healthy jobs")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    figures = measured(chosen.hours, chosen.n, chosen.seed)
    write_down("job_compare", figures)
    kept = figures["false_findings"] <= figures["aim_false_findings"]
    return 0 if kept else 1


def measured(hours: int, each: int, seed: int) -> dict[str, Any]:
    """All figures."""
    begun_s = time.process_time()
    jobs = Jobs(seed)
    seen = healthy(jobs, hours)
    asked = [asked_for(jobs, kind, each) for kind in Culprit]
    false = seen.stragglers[THRESHOLD] + seen.hangs[QUIET_S / 60]
    found, wrong = (sum(getattr(of, name)[of.default] for of in asked) for name in ("named", "wrong"))
    large = sum(of.large for of in asked)
    figures: dict[str, Any] = {
        "job_hours": seen.hours,
        "windows": seen.windows,
        "gpu_windows": seen.gpus,
        "threshold": THRESHOLD,
        "quiet_min": round(QUIET_S / 60),
        "false_findings": false,
        "aim_false_findings": 0,
        "culprits": each * len(Culprit),
        "recall_percent": share(found, each * len(Culprit)),
        "recall_of_4_nodes_and_more_percent": share(sum(of.named_large[of.default] for of in asked), large),
        "precision_percent": share(found, found + wrong + false),
    }
    for of in asked:
        figures[f"recall_{of.kind.name.lower()}_percent"] = share(of.named[of.default], each)
    for name, limits, false_by, hang in (
        ("threshold_{:g}", THRESHOLDS, seen.stragglers, False),
        ("quiet_{:g}_min", QUIETS_MIN, seen.hangs, True),
    ):
        kinds = [of for of in asked if of.kind.hangs is hang]
        for limit in limits:
            figures[f"{name.format(limit)}_false"] = false_by[limit]
            recalled = sum(of.named[limit] for of in kinds)
            figures[f"{name.format(limit)}_recall_percent"] = share(recalled, each * len(kinds))
    figures["cpu_s"] = round(time.process_time() - begun_s)
    return figures


def share(part: int, whole: int) -> float:
    """In percent."""
    return round(100 * part / max(whole, 1), 1)


class HealthyJobs(Struct, kw_only=True):
    """What was judged of jobs in which nothing is wrong, and the false findings by threshold, and by quiet minutes."""

    hours: int = 0
    windows: int = 0
    gpus: int = 0
    stragglers: Counter[float] = field(default_factory=Counter)
    hangs: Counter[float] = field(default_factory=Counter)


class AskedFor(Struct, kw_only=True):
    """Jobs with one kind of culprit: how many are named by each limit, in all and of four nodes or more (``large`` are
    there), and how many findings there name another device."""

    kind: Culprit
    large: int = 0
    named: Counter[float] = field(default_factory=Counter)
    named_large: Counter[float] = field(default_factory=Counter)
    wrong: Counter[float] = field(default_factory=Counter)

    @property
    def default(self) -> float:
        """The limit that healthd has."""
        return QUIET_S / 60 if self.kind.hangs else THRESHOLD


def healthy(jobs: Jobs, hours: int) -> HealthyJobs:
    """So many hours of jobs in which nothing is wrong."""
    seen = HealthyJobs()
    while seen.hours < hours:
        length = min(jobs.chance.choice((1, 2, 4, 8, 12)), hours - seen.hours)
        job = jobs.job(length * 60)
        seen.hours += length
        for end in range(WARM_UP_MIN + WINDOW_MIN, length * 60 + 1, STEP_MIN):
            seen.windows, seen.gpus = seen.windows + 1, seen.gpus + GPUS * job.nodes
            seen.stragglers.update({limit: len(found) for limit, found in _stragglers(job, end)})
        for end in _quiet_ends(job):
            seen.hangs.update({limit: len(found) for limit, found in _hangs(job, end)})
    return seen


def _quiet_ends(job: Job) -> Iterator[int]:
    """The last minute of each time without traffic that the shortest limit would notice."""
    begun = None
    for minute in range(job.minutes + 1):
        is_quiet = minute < job.minutes and not job.did[minute].traffic and not job.did[minute].warming
        if is_quiet:
            begun = minute if begun is None else begun
        elif begun is not None:
            if minute - begun >= min(QUIETS_MIN) - 1:
                yield minute
            begun = None


def _stragglers(job: Job, end: int) -> Iterator[tuple[float, Sequence[JobFinding]]]:
    """The stragglers at the end of a minute by each threshold. A higher one finds no more than a lower one."""
    devices = job.view(end, WINDOW_MIN)
    for limit in THRESHOLDS:
        found = stragglers(devices, threshold=limit)
        if not found:
            return
        yield limit, found


def _hangs(job: Job, end: int) -> Iterator[tuple[float, Sequence[JobFinding]]]:
    devices = job.view(end, HISTORY_MIN)
    for quiet in QUIETS_MIN:
        yield quiet, hangs(devices, oldest_s=end * 60.0 - WARM_UP_S, quiet_s=quiet * 60.0)


def asked_for(jobs: Jobs, kind: Culprit, count: int) -> AskedFor:
    """So many jobs with this culprit."""
    of = AskedFor(kind=kind)
    for _ in range(count):
        job = jobs.job(BEGINS + 25, kind, begins=BEGINS)
        of.large += job.nodes >= 4
        if kind.hangs:
            limits = [
                (quiet, found)
                for quiet in QUIETS_MIN
                for at, found in _hangs(job, BEGINS + int(quiet) + 1)
                if at == quiet
            ]
        else:
            limits = list(_stragglers(job, BEGINS + WINDOW_MIN))
        for limit, found in limits:
            right = [one for one in found if _is_right(job, one)]
            of.named[limit] += bool(right)
            of.named_large[limit] += bool(right) and job.nodes >= 4
            of.wrong[limit] += len(found) - len(right)
    return of


def _is_right(job: Job, found: JobFinding) -> bool:
    return job.fault is not None and job.fault.names(found.node, str(found.finding.component))


if __name__ == "__main__":
    raise SystemExit(main())
