"""``healthd job JOBID --compare``: the GPUs and NICs of a running job beside each other, by what their nodes read."""

from __future__ import annotations

import glob
import os
import socket
import stat
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime

from healthd.agent.node_facts import runs_slurm
from healthd.api.wire import Reply
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, UsageError
from healthd.core.hostlist import unfolded
from healthd.fleet.asking import ask_nodes, url_of
from healthd.fleet.job_comparison import compared
from healthd.fleet.text import fleet_json
from healthd.job.nccl_words import NcclWords, parse_words
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob, read_job
from healthd.remediation.orchestrators.slurm.job_gpus import parse_job_gpus
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

_MOST_FILES, _MOST_BYTES = 4096, 1 << 20
"""Of the job's logs: the last MiB of each, which holds the words that end a job."""


def answer(options: Namespace, config: Config) -> Reply:
    """Exit 0: no device stands out; 1: a straggler or a hang; 2: the job, or all of its nodes, could not be read."""
    if not runs_slurm(config, os.environ):
        raise UsageError("healthd job --compare reads the job's nodes from Slurm; set [orchestrator.slurm] conf")
    try:
        job, shown = _read(config, options.job)
    except BackendError as error:
        return Reply(code=2, err=f"healthd: job {options.job} could not be read: {error}\n")
    if not job.nodes or job.state != "RUNNING":
        return Reply(code=2, err=f"healthd: job {options.job} is {job.state}; only a running job can be compared\n")
    answers = ask_nodes(url_of(config, "/readings"), list(unfolded(job.nodes)))
    gpus = parse_job_gpus(shown)
    words = _words(config.orchestrator.slurm.nccl_log, options.job)
    result = compared(
        options.job,
        job.nodes,
        answers,
        age_s=(datetime.now(UTC) - job.start).total_seconds() if job.start is not None else None,
        gpus=gpus,
        words=words.sentences(sum(map(len, gpus.values()))),
    )
    out = fleet_json(result.data) if options.json else result.text
    return Reply(code=1 if result.findings else 0 if result.gpus else 2, out=out)


def _read(config: Config, job: str) -> tuple[SlurmJob, str]:
    slurm = SlurmOrchestrator.of(config, socket.gethostname().partition(".")[0])
    found = read_job(slurm, job)
    return found, slurm.scontrol("show", "job", "-d", found.acts_by)


def _words(pattern: str, job: str) -> NcclWords:
    """NCCL's words in the job's logs; none where the site names no path."""
    paths = sorted(glob.glob(pattern.replace("%j", job)))[:_MOST_FILES] if pattern else []
    return parse_words(text for path in paths for text in _ends(path))


def _ends(path: str) -> Iterator[str]:
    """The end of a plain file. A user of the cluster owns it: a link, a pipe or a file that may not be read is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # as if the job had not written it: the comparison rests on the readings
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode):
            file.seek(max(about.st_size - _MOST_BYTES, 0))
            yield file.read(_MOST_BYTES).decode(errors="replace")
