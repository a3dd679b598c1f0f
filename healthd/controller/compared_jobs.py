"""The controller that leads compares the nodes of running jobs now and then, as ``healthd job --compare`` does.

Stragglers and hangs are findings in shadow, in the log, the metrics and the ledger: no node is drained and no job
touched for one.

It asks the daemons of the nodes over HTTP. A job of which no node answers is asked for hourly, and the
log says it once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError
from healthd.fleet.job_sources import JobSources
from healthd.judge.job_patterns import WARM_UP_S, JobFinding
from healthd.judge.peers import WINDOW_S
from healthd.ledger.entries import EntryKind, LedgerEntry
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob
from healthd.remediation.orchestrators.slurm.job_list import ListedJob

UNREACHED_S = 3_600.0
"""After how many seconds the nodes of a job are asked again where none answered."""
MOST_NODES = 256
"""So many nodes are asked in one pass, or one job: a pass ends, and the next one goes on with the other jobs."""


Running = Callable[[str], tuple[SlurmJob, Mapping[str, frozenset[int]]]]
"""Reads a running job, and the indices of its GPUs by node. Raises BackendError."""


class _OpenJobFinding(Struct, frozen=True, kw_only=True):
    """A finding that a job has. ``since``: when it was first seen."""

    found: JobFinding
    since: datetime


class JobComparer:
    """Compares each running job of two nodes or more every ``every_s`` seconds; 0: none. A finding is over once its
    node is compared without it: a node that does not answer says nothing."""

    def __init__(
        self,
        running: Running,
        stats: ControllerStats,
        log: Any,
        *,
        every_s: float,
        sources: JobSources,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running, self._stats, self._log, self._every_s = running, stats, log, every_s
        self._sources, self._monotonic_s = sources, monotonic_s
        self._compared_s: dict[str, float] = {}
        self._seen: dict[str, dict[tuple[str, str, str], _OpenJobFinding]] = {}
        self._told: dict[str, tuple[str, ...]] = {}
        self._is_unreached = False

    @classmethod
    def of(cls, config: Config, running: Running, stats: ControllerStats, log: Any) -> JobComparer:
        """As the configuration says."""
        return cls(running, stats, log, every_s=config.controller.compare_jobs_s, sources=JobSources.of(config))

    def __call__(self, listed: Sequence[ListedJob], now: datetime) -> tuple[LedgerEntry, ...]:
        """Compare the jobs that are due. Returns the findings that are new, for the ledger."""
        if not self._every_s:
            return ()
        running = {each.id: each for each in listed if each.runs and each.nodes >= 2 and _is_warm(each, now)}
        for job in self._compared_s.keys() - running.keys():
            del self._compared_s[job]
            self._told.pop(job, None)
            self._end(job)
        new = [entry for each in self._due(running) for entry in self._compare(each, now)]
        self._stats.job_findings = tuple(one.found.finding.code for of in self._seen.values() for one in of.values())
        return tuple(new)

    def _due(self, running: Mapping[str, ListedJob]) -> Iterator[ListedJob]:
        """The jobs whose turn it is, as far as this pass has room for their nodes."""
        now_s, asked = self._monotonic_s(), 0
        for job in sorted(running, key=lambda job: self._compared_s.get(job, float("-inf"))):
            if now_s - self._compared_s.get(job, float("-inf")) < self._every_s:
                return
            if asked and asked + running[job].nodes > MOST_NODES:
                return
            asked += running[job].nodes
            self._compared_s[job] = now_s
            yield running[job]

    def _compare(self, listed: ListedJob, now: datetime) -> Iterator[LedgerEntry]:
        try:
            job, gpus = self._running(listed.id)
        except BackendError:
            return  # it has just ended, or the next pass finds it
        if job.state != "RUNNING":
            return  # it ends, or waits for its next run: its nodes are not one job's any more
        result = self._sources.compared(job, gpus, now)
        if result.nccl_lines and result.nccl_lines != self._told.get(listed.id):
            self._log.warning("job.nccl", job=listed.id, user=job.user, message="; ".join(result.nccl_lines))
        self._told[listed.id] = result.nccl_lines
        if not result.devices:
            self._unreached(listed.id, result.remarks[0])
        found = {(each.finding.code, each.node, str(each.finding.component)): each for each in result.findings}
        for key in found.keys() - self._seen.get(listed.id, {}).keys():
            each = found[key]
            message = f"{each.node} {each.label}: {each.finding.message}"
            self._log.warning(each.finding.code, job=listed.id, user=job.user, node=each.node, message=message)
            yield LedgerEntry(
                kind=EntryKind.JOB,
                node=each.node,
                at=now,
                code=each.finding.code,
                component=each.label,
                act=f"job {listed.id} {each.label}",
                outcome=each.finding.message,
            )
        compared = {each.node for each in result.ranking.devices}
        kept = {
            key: one for key, one in self._seen.get(listed.id, {}).items() if key in found or key[1] not in compared
        }
        self._end(listed.id, kept)
        self._seen[listed.id] = {key: _OpenJobFinding(found=each, since=now) for key, each in found.items()} | kept

    def _end(self, job: str, kept: Collection[tuple[str, str, str]] = ()) -> None:
        """Log the findings of a job that are over; of one that has ended all are."""
        for key, seen in self._seen.pop(job, {}).items():
            if key not in kept:
                since = f"{seen.since:%H:%M:%S} UTC"
                self._log.info("job.finding.over", job=job, node=seen.found.node, code=key[0], since=since)

    def _unreached(self, job: str, why: str) -> None:
        """No node of it has answered: a job like any other here, as a rule. The log has the first reason."""
        self._compared_s[job] += max(UNREACHED_S - self._every_s, 0.0)
        if not self._is_unreached:
            self._log.info("job.uncompared", job=job, message=f"{why}; see docs/how-to/compare-a-job.md")
        self._is_unreached = True


def _is_warm(job: ListedJob, now: datetime) -> bool:
    """Whether it has run for so long that its readings say something."""
    return job.began is None or (now - job.began).total_seconds() >= WARM_UP_S + WINDOW_S
