"""Reads what a comparison of a running job needs: the readings of its nodes, by their daemons, and NCCL's words in its
logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from healthd.config.schema.config import Config
from healthd.core.hostlist import unfolded
from healthd.fleet.asking import NodeAnswer, ask_nodes, url_of
from healthd.fleet.job_comparison import JobComparison, compared
from healthd.fleet.job_logs import JobLogs
from healthd.job.nccl_words import NcclWords
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob


class JobSources(Struct, frozen=True):
    """``ask``: of these nodes their readings. ``words``: NCCL's, in the logs of a job."""

    ask: Callable[[Sequence[str]], Mapping[str, NodeAnswer]]
    words: Callable[[str], NcclWords]

    @classmethod
    def of(cls, config: Config) -> JobSources:
        """As the configuration says."""
        return cls(
            ask=partial(ask_nodes, url_of(config, "/readings")), words=JobLogs(config.orchestrator.slurm.nccl_log)
        )

    def compared(self, job: SlurmJob, gpus: Mapping[str, frozenset[int]], now: datetime) -> JobComparison:
        """Ask, and compare. ``gpus``: the indices of its GPUs by node."""
        return compared(
            job.acts_by,
            job.nodes,
            self.ask(list(unfolded(job.nodes))),
            age_s=(now - job.start).total_seconds() if job.start is not None else None,
            gpus=gpus,
            words=self.words(job.id).sentences(sum(map(len, gpus.values()))),
        )
