"""squeue's words about a job, and what scontrol and scancel refuse."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.slurm.jobs import SlurmJobs, parse_node_jobs, taken_name
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import NodeJob

RUNS = "12|12|RUNNING|alice|n[1-4]|0|1|1|N/A|1795541456|NONE|1|N/A|None| \n"
WAITS = "12|12|PENDING|alice||1|1|1|N/A|1795541582|NONE|1|N/A|None| \n"
ALLOCATED = "3|3|COMPLETING|root|n1|0|0|1|N/A|1795541476|1795541480|1|N/A|None| \n"
ARRAY = (
    "12_[4-9%2]|12|PENDING|alice||0|1|1|N/A|N/A|NONE|1|N/A|None|\n"
    "12_3|12|RUNNING|alice|n1|0|1|1|N/A|1795541456|NONE|1|N/A|None|\n"
    "12_2|14|RUNNING|alice|n2|0|1|1|N/A|1795541456|NONE|1|N/A|None|\n"
    "12_1|13|RUNNING|alice|n3|0|1|1|N/A|1795541456|NONE|1|N/A|None|\n"
)
TAKEN = (
    "ReservationName=healthd-job:12:0 StartTime=1795541456 EndTime=1795627856 Duration=1-00:00:00 Nodes=(null) "
    "NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) Users=root Groups=(null) "
    "Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=1 Watts=n/a MaxStartDelay=(null)\n"
)


class Clients:
    """Slurm's clients, which answer by their tool and take note of what was asked."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers, self.asked = answers, list[list[str]]()

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = 0
    ) -> CommandResult:
        self.asked.append(argv)
        code, out, err = self.answers.get(argv[0], (0, "", ""))
        return CommandResult(argv=tuple(argv), code=code, stdout=out, stderr=err, duration_s=0.0)

    def jobs(self) -> SlurmJobs:
        return SlurmJobs(SlurmOrchestrator(node="n1", run=self))


def test_a_job_is_read_with_all_of_its_nodes() -> None:
    """As 22.05, 24.11 and 26.05 print it: NONE, N/A and empty cells for what a job does not have."""
    runs = NodeJob(
        id="12",
        number="12",
        state="RUNNING",
        user="alice",
        nodes="n[1-4]",
        is_batch=True,
        may_requeue=True,
        is_here=True,
        began=datetime.fromtimestamp(1795541456, UTC),
    )
    assert parse_node_jobs(RUNS + RUNS, "n1") == (runs,), "one of two partitions is one job"
    assert not parse_node_jobs(RUNS, "n5")[0].is_here
    waits = parse_node_jobs(WAITS, "n1")[0]
    assert (waits.state, waits.nodes, waits.restarts, waits.is_here) == ("PENDING", "", 1, False)
    allocated = parse_node_jobs(ALLOCATED, "n1")[0]
    assert (allocated.is_batch, allocated.ended) == (False, datetime.fromtimestamp(1795541480, UTC))
    part = parse_node_jobs("13+1|14|RUNNING|a|n1|0|1|0|13|1|NONE|1|N/A|None| ", "n1")[0]
    assert (part.id, part.number, part.is_part) == ("13+1", "14", True)
    assert parse_node_jobs("\n", "n1") == ()


@pytest.mark.parametrize(
    ("state", "priority", "reason", "found"),
    [
        ("PENDING", "0", "JobHeldUser", ("JobHeldUser", True)),
        ("PENDING", "0", "launch failed requeued held", ("launch failed requeued held", True)),
        ("REQUEUE_HOLD", "0", "launch failure limit exceeded", ("launch failure limit exceeded", True)),
        ("SPECIAL_EXIT", "0", "job requeued in held state", ("job requeued in held state", True)),
        ("PENDING", "1", "Resources", ("Resources", False)),
        ("PENDING", "1", "None", ("", False)),
        ("REQUEUE_HOLD", "1", "BeginTime", ("BeginTime", False)),  # released
        ("RUNNING", "0", "JobHeldUser", ("", False)),
        ("COMPLETED", "0", "None", ("", False)),
    ],
)
def test_a_job_is_held_where_it_waits_without_a_priority(
    state: str, priority: str, reason: str, found: tuple[str, bool]
) -> None:
    """And not while it runs, though a hold has taken its priority already. Texts: 22.05.8, 24.11.5 and 26.05.5."""
    (job,) = parse_node_jobs(f"12|12|{state}|alice||1|1|1|N/A|N/A|NONE|{priority}|N/A|{reason}|\n", "n1")
    assert (job.reason, job.held) == found


def test_a_job_that_slurm_preempts_shows_since_when() -> None:
    """In its grace, while its processes end, and after that where it is not requeued. One that is requeued has no end,
    and is counted as its next run. Texts: 22.05.8, 24.11.5 and 26.05.5."""
    grace, requeued, over = (
        parse_node_jobs(f"12|12|{state}|alice|n1|{restarts}|1|1|N/A|1795541456|{end}|1|1795541480|None|\n", "n1")[0]
        for state, restarts, end in (
            ("RUNNING", 0, "NONE"),
            ("COMPLETING", 1, "NONE"),
            ("PREEMPTED", 0, "1795541480"),
        )
    )
    assert [(job.preempted, job.is_requeued) for job in (grace, requeued, over)] == [
        (True, False),
        (True, True),
        (True, False),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        "12|12|RUNNING",
        "12|x|RUNNING|a|n1|0|1|1|N/A|1|NONE|1|N/A|None|",
        "12_x|12|RUNNING|a|n1|0|1|1|N/A|1|NONE|1|N/A|None|",
        "slurm_load_jobs error",
    ],
)
def test_what_is_no_job_is_unknown(answer: str) -> None:
    """Silence about a job is no answer either."""
    with pytest.raises(BackendUnknown, match="squeue's answer is no job"):
        parse_node_jobs(answer, "n1")


def test_a_job_has_the_gpus_that_slurm_gave_it_on_this_node() -> None:
    """Two of n1's and one of n2's; a job of whole nodes has none by number (22.05.8)."""
    text = "JobId=12 JobName=train\n   JobState=RUNNING\n     Nodes={} CPU_IDs=3 Mem=0 GRES={}\n"
    shared = text.format("n1", "gpu:h100:2(IDX:0-1)") + "     Nodes=n2 CPU_IDs=3 Mem=0 GRES=gpu:h100:1(IDX:5)\n"
    clients = Clients(scontrol=(0, shared, ""))
    assert clients.jobs().gpus("12") == {0, 1}
    assert clients.asked == [["scontrol", "show", "job", "-d", "12"]]
    assert Clients(scontrol=(0, text.format("n1", ""), "")).jobs().gpus("12") == frozenset()


def test_a_task_of_an_array_is_acted_on_alone() -> None:
    """The last task has the array's own number, by which every client takes it for the whole array: squeue prints them
    all, and scontrol requeues them all."""
    clients = Clients(squeue=(0, ARRAY, ""))
    jobs = clients.jobs()
    assert [(job.id, job.number) for job in jobs.jobs()] == [("12_3", "12"), ("12_2", "14"), ("12_1", "13")]
    found = {name: jobs.job(name) for name in ("12", "14", "12_1", "1")}
    assert {name: job and (job.id, job.nodes) for name, job in found.items()} == {
        "12": ("12_3", "n1"),
        "14": ("12_2", "n2"),
        "12_1": ("12_1", "n3"),
        "1": None,
    }
    jobs.requeue_job("12_3")
    jobs.signal_job("12_3", "USR1")
    assert clients.asked[-2:] == [["scontrol", "requeue", "12_3"], ["scancel", "--signal=USR1", "12_3"]]
    assert taken_name("12_3", 0) == "healthd-job:12_3:0"


def test_a_forgotten_job_is_none_and_a_silent_controller_unknown() -> None:
    """MinJobAge after its end slurmctld knows it no more."""
    gone = Clients(squeue=(1, "", "slurm_load_jobs error: Invalid job id specified"))
    assert gone.jobs().job("12") is None
    assert gone.jobs().jobs() == ()
    with pytest.raises(BackendUnknown, match="Socket timed out"):
        Clients(squeue=(1, "", "slurm_load_jobs error: Socket timed out")).jobs().job("12")


def test_a_job_is_taken_by_a_reservation_without_nodes() -> None:
    """Its name is the test-and-set, and is no slot's; it ends by itself."""
    clients = Clients()
    clients.jobs().take_job("12", 0, by="c1", for_s=int(timedelta(days=1, seconds=1).total_seconds()))
    asked = clients.asked[-1]
    assert asked[:4] == ["scontrol", "create", "reservation", "reservationname=healthd-job:12:0"]
    assert "duration=1441" in asked
    assert not any(word.startswith("nodes=") for word in asked)
    with pytest.raises(SlotTaken):
        Clients(scontrol=(1, "", "Error creating the reservation: Duplicate reservation name")).jobs().take_job(
            "12", 0, by="c1", for_s=60
        )
    with pytest.raises(BackendRefused, match="lacks the right"):
        Clients(scontrol=(1, "", "Error creating the reservation: Invalid user id")).jobs().take_job(
            "12", 0, by="c1", for_s=60
        )


def test_whether_this_node_took_a_job_is_read_back() -> None:
    """This very run of it, and by this node: both may have asked while slurmctld gave no answer."""
    clients = Clients()
    clients.jobs().take_job("12", 0, by="c1", for_s=60)
    (units,) = (word.removeprefix("burstbuffer=") for word in clients.asked[-1] if word.startswith("burstbuffer="))
    ours = TAKEN.replace("BurstBuffer=1 ", f"BurstBuffer={units} ")
    jobs = Clients(scontrol=(0, ours, "")).jobs()
    assert [
        jobs.has_taken(job, run, by=by)
        for job, run, by in (("12", 0, "c1"), ("12", 0, "c2"), ("12", 1, "c1"), ("1", 0, "c1"))
    ] == [
        True,
        False,
        False,
        False,
    ]
    assert not Clients(scontrol=(0, TAKEN, "")).jobs().has_taken("12", 0, by="c1")
    neighbour = SlurmJobs(SlurmOrchestrator(node="n2", run=Clients(scontrol=(0, ours, ""))))
    assert not neighbour.has_taken("12", 0, by="c1")
    assert taken_name("12", 3) == "healthd-job:12:3"


def test_a_signal_goes_to_the_steps_or_to_the_batch_script() -> None:
    """As sbatch --signal has it."""
    clients = Clients()
    clients.jobs().signal_job("12", "USR1")
    clients.jobs().signal_job("12", "B:TERM")
    assert clients.asked == [["scancel", "--signal=USR1", "12"], ["scancel", "--batch", "--signal=TERM", "12"]]
    with pytest.raises(BackendRefused, match="does not know the job"):
        Clients(scancel=(1, "", "Kill job error on job id 12: Invalid job id specified")).jobs().signal_job(
            "12", "USR1"
        )


@pytest.mark.parametrize(
    "text",
    [
        "Requested operation is presently disabled for job 12",
        "Only batch jobs are accepted or processed for job 12",
        "Job is pending execution for job 12",
        "Job/step already completing or completed for job 12",
    ],
)
def test_a_requeue_that_slurm_refuses_is_refused(text: str) -> None:
    """Nothing was applied. Any other failure may have been."""
    with pytest.raises(BackendRefused, match="requeue of job 12"):
        Clients(scontrol=(1, "", text)).jobs().requeue_job("12")
    with pytest.raises(BackendUnknown, match="may have applied it"):
        Clients(scontrol=(1, "", "Unable to contact slurm controller")).jobs().requeue_job("12")


def test_the_next_run_starts_now() -> None:
    """In the place of slurmctld's delay of two minutes."""
    clients = Clients()
    clients.jobs().start_job("12")
    clients.jobs().requeue_job("12")
    assert clients.asked == [["scontrol", "update", "jobid=12", "starttime=now"], ["scontrol", "requeue", "12"]]
