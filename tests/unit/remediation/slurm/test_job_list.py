"""What is made of squeue's list of all jobs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from healthd.core.errors import BackendUnknown
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.slurm.job_list import ListedJob, SlurmJobList, parse_listed_jobs
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.sources.command import TRUNCATED

# squeue -h -a -t … -O … of 22.05.8, with SLURM_TIME_FORMAT=%s.
ANSWER = """1|FAILED|0|2|1795000000|1795000060|NonZeroExitCode|
3|PENDING|1|1|1795000120|NONE|job requeued in held state|
4|PENDING|0|8|NONE|NONE|(ReqNodeNotAvail, UnavailableNodes:n0001)|
2|RUNNING|1|2|1795000010|NONE|None|
2|RUNNING|1|2|1795000010|NONE|None|
5|REQUEUE_HOLD|5|1|1795000120|NONE|launch failure limit exceeded requeued held|
6|PENDING|1|1|1795000120|NONE|launch failed requeued held|
7|REQUEUE_HOLD|5|1|1795000120|NONE|BeginTime|
"""


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(1795000000 + seconds, UTC)


def test_jobs_are_read_from_the_list() -> None:
    """One that failed, one that is held after its end, of which there are no times, one that runs, once, and two that
    are held because they could not start; the last is released."""
    assert list(parse_listed_jobs(ANSWER)) == [
        ListedJob(id="1", run=0, nodes=2, began=at(0), ended=at(60)),
        ListedJob(id="3", run=0, held=True, nodes=1),
        ListedJob(id="2", run=1, runs=True, nodes=2, began=at(10)),
        ListedJob(id="5", run=4, held=True, not_started=True, nodes=1),
        ListedJob(id="6", run=0, held=True, not_started=True, nodes=1),
    ]


@pytest.mark.parametrize("line", ["slurm_load_jobs error", "x|FAILED|0|2|1|2|None|"])
def test_another_answer_is_no_list(line: str) -> None:
    """It is refused with its text."""
    with pytest.raises(BackendUnknown, match="is no job"):
        list(parse_listed_jobs(f"{line}\n\n"))


def test_a_running_job_is_read_with_its_gpus() -> None:
    """Those of the one job, by the id that slurmctld acts on."""
    places = "JobId=8\n   NodeList=n1\n   Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)\n"

    def client(argv: list[str], **_: object) -> CommandResult:
        match argv[1:]:
            case [*_, "JobArrayID:|,exit_code:|,admin_comment:|"]:
                out = "7_3|0|(null)|\n"
            case ["-h", *_]:
                out = "7_3|8|RUNNING|alice|n1|0|1|1|N/A|1795000010|NONE|1|N/A|None|\n"
            case words:
                assert words == ["show", "job", "-d", "7_3"]
                out = places
        return CommandResult(argv=tuple(argv), code=0, stdout=out, stderr="", duration_s=0.0)

    job, gpus = SlurmJobList(SlurmOrchestrator(node="head", run=client)).running("8")
    assert (job.nodes, gpus) == ("n1", {"n1": frozenset({0, 1})})


def test_a_long_queue_hides_no_end_of_a_job() -> None:
    """Fifty thousand jobs wait, and Slurm names the drained nodes beside each of them."""
    waits = "".join(
        f"{job}|PENDING|0|8|NONE|NONE|(ReqNodeNotAvail, UnavailableNodes:gpu-[003,017,101,254,377])|\n"
        for job in range(100_000, 150_000)
    )

    def client(argv: list[str], *, limit_bytes: int = 0, **_: object) -> CommandResult:
        out = f"{waits}{ANSWER}"
        kept = out if len(out) <= limit_bytes else f"{out[:limit_bytes]}\n{TRUNCATED} of the rest]"
        return CommandResult(argv=tuple(argv), code=0, stdout=kept, stderr="", duration_s=0.0)

    jobs = SlurmJobList(SlurmOrchestrator(node="head", run=client)).jobs()
    assert [job.id for job in jobs] == ["1", "3", "2", "5", "6"]


def test_a_cluster_that_does_not_answer_is_unknown() -> None:
    """squeue's own error is in the message."""

    def failing(argv: list[str], **_: object) -> CommandResult:
        return CommandResult(argv=tuple(argv), code=1, stdout="", stderr="slurm_load_jobs error", duration_s=0.0)

    with pytest.raises(BackendUnknown, match="slurm_load_jobs error"):
        SlurmJobList(SlurmOrchestrator(node="head", run=failing)).jobs()
