"""``healthd job JOBID --compare``: the GPUs and NICs of a running job beside each other, by what their nodes read."""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from datetime import UTC, datetime

from healthd.agent.node_facts import runs_slurm
from healthd.api.wire import Reply
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, UsageError
from healthd.core.json_documents import json_document
from healthd.fleet.job_sources import JobSources
from healthd.remediation.orchestrators.slurm.job_list import SlurmJobList
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator


def answer(options: Namespace, config: Config) -> Reply:
    """Exit as ``JobComparison.exit_code``; 2 also where the job could not be read, or does not run."""
    if not runs_slurm(config, os.environ):
        raise UsageError("healthd job --compare reads the job's nodes from Slurm; set [orchestrator.slurm] conf")
    try:
        slurm = SlurmOrchestrator.of(config, socket.gethostname().partition(".")[0])
        job, gpus = SlurmJobList(slurm).running(options.job)
    except BackendError as error:
        return Reply(code=2, err=f"healthd: job {options.job} could not be read: {error}\n")
    if not job.nodes or job.state != "RUNNING":
        return Reply(code=2, err=f"healthd: job {options.job} is {job.state}; only a running job can be compared\n")
    result = JobSources.of(config).compared(job, gpus, datetime.now(UTC))
    out = json_document(result.data) if options.json else result.text
    return Reply(code=result.exit_code, out=out)
