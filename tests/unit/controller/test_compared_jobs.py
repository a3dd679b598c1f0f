"""The controller compares running jobs now and then, and names what differs in shadow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import structlog
from structlog.testing import capture_logs

from healthd.api.controller_stats import ControllerStats
from healthd.controller.compared_jobs import MOST_NODES, UNREACHED_S, JobComparer
from healthd.core.errors import BackendUnknown
from healthd.core.model import Mode
from healthd.fleet.asking import NodeAnswer
from healthd.fleet.job_sources import JobSources
from healthd.job.nccl_words import NcclWords
from healthd.ledger.entries import EntryKind, LedgerEntry
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob
from healthd.remediation.orchestrators.slurm.job_list import ListedJob
from tests.support.fleet_readings import NOW
from tests.unit.fleet.test_job_comparison import answer

SLOW = {3: {"gpu_sm_clock_mhz": 900.0}}
BEGAN = NOW - timedelta(days=1)


class Cluster:
    """Running jobs of three nodes each, whose daemons answer."""

    def __init__(self) -> None:
        self.stats = ControllerStats(orchestrator="slurm", provisioner="", mode=Mode.OBSERVE)
        self.slow, self.answers, self.now_s, self.words = True, True, 0.0, NcclWords(timeouts={})
        self.asked: list[Sequence[str]] = []
        self.gone: set[str] = set()
        self.state, self.nodes = "RUNNING", "n[1-3]"
        self.comparer = self.make(600.0)

    def make(self, every_s: float) -> JobComparer:
        return JobComparer(
            self.running,
            self.stats,
            structlog.wrap_logger(structlog.testing.CapturingLogger()),
            every_s=every_s,
            sources=JobSources(ask=self._ask, words=lambda _: self.words),
            monotonic_s=lambda: self.now_s,
        )

    def running(self, job: str) -> tuple[SlurmJob, Mapping[str, frozenset[int]]]:
        if job in self.gone:
            raise BackendUnknown("Invalid job id specified")
        return SlurmJob(id=job, acts_by=job, state=self.state, user="alice", nodes=self.nodes, start=BEGAN), {}

    def _ask(self, nodes: Sequence[str]) -> Mapping[str, NodeAnswer]:
        self.asked.append(nodes)
        if not self.answers:
            return {each: NodeAnswer(node=each, asked="", problem=f"{each} refuses connections") for each in nodes}
        return {each: answer(each, SLOW if self.slow and each == "n2" else None) for each in nodes}

    def turn(self, *jobs: ListedJob, after_s: float = 0.0) -> Sequence[LedgerEntry]:
        self.now_s += after_s
        return self.comparer(jobs, NOW + timedelta(seconds=self.now_s))


def running(job: str = "42", *, nodes: int = 3, began: datetime = BEGAN) -> ListedJob:
    return ListedJob(id=job, run=0, runs=True, nodes=nodes, began=began)


def test_a_straggler_is_a_finding_in_shadow_once() -> None:
    """With its numbers in the log and for the ledger, counted while it lasts, and its end is said."""
    cluster = Cluster()
    with capture_logs() as logs:
        (entry,) = cluster.turn(running())
        assert cluster.turn(running(), after_s=600.0) == ()
        assert cluster.stats.job_findings == ("job.straggler",)
        cluster.slow = False
        assert cluster.turn(running(), after_s=600.0) == ()
    words = "SM clock 900 MHz, its peers' median is 1,700 MHz"
    assert (entry.kind, entry.node, entry.code, entry.act) == (EntryKind.JOB, "n2", "job.straggler", "job 42 GPU 3")
    assert words in entry.outcome
    assert [each["event"] for each in logs] == ["job.straggler", "job.finding.over"]
    assert words in logs[0]["message"]
    assert not cluster.stats.job_findings


def test_a_node_that_does_not_answer_ends_no_finding() -> None:
    """It says nothing about its GPUs: the finding is over once the node is compared without it."""
    cluster = Cluster()
    cluster.turn(running())
    with capture_logs() as logs:
        cluster.answers = False
        cluster.turn(running(), after_s=600.0)
        assert cluster.stats.job_findings == ("job.straggler",)
        cluster.answers = True
        assert cluster.turn(running(), after_s=UNREACHED_S) == ()
        cluster.slow = False
        cluster.turn(running(), after_s=600.0)
    assert [each["event"] for each in logs] == ["job.uncompared", "job.finding.over"]


def test_a_job_that_ends_takes_its_findings_with_it() -> None:
    """And another run of it begins again."""
    cluster = Cluster()
    cluster.turn(running())
    cluster.turn()
    assert cluster.stats.job_findings == ()
    assert len(cluster.turn(running())) == 1


def test_a_job_that_is_requeued_as_it_is_read_is_not_compared() -> None:
    """It has no nodes, which is no reason why nodes do not answer: the log keeps its one line for a true one."""
    cluster = Cluster()
    cluster.state, cluster.nodes = "PENDING", ""
    with capture_logs() as logs:
        assert cluster.turn(running()) == ()
    assert (logs, cluster.asked) == ([], [])


def test_jobs_have_their_turn() -> None:
    """Not before the time is over; a young one, one of a single node, and one that does not run are not compared."""
    cluster = Cluster()
    cluster.turn(running())
    cluster.turn(running(), after_s=599.0)
    assert len(cluster.asked) == 1
    young = running("43", began=NOW)
    cluster.turn(running(), young, running("44", nodes=1), ListedJob(id="45", run=0, ended=NOW, nodes=3), after_s=1.0)
    assert len(cluster.asked) == 2


def test_one_pass_asks_so_many_nodes() -> None:
    """Those that were compared longest ago come first; a job of more nodes than that is compared by itself."""
    cluster = Cluster()
    jobs = [running(str(number), nodes=MOST_NODES) for number in range(3)]
    for count in (1, 2, 3, 3):
        cluster.turn(*jobs)
        assert len(cluster.asked) == count


def test_a_job_without_an_answer_is_asked_hourly() -> None:
    """The log says it once; one that slurmctld has forgotten meanwhile is passed over."""
    cluster = Cluster()
    cluster.answers, cluster.gone = False, {"43"}
    with capture_logs() as logs:
        for after_s in (0.0, 600.0, UNREACHED_S - 601.0, 1.0):
            cluster.turn(running(), running("43"), after_s=after_s)
    assert [each["event"] for each in logs] == ["job.uncompared"]
    assert "n1 refuses connections" in logs[0]["message"]
    assert len(cluster.asked) == 2


def test_nccls_words_are_in_the_log_once() -> None:
    """A watchdog timeout in the log of the job, where the site names it."""
    cluster = Cluster()
    cluster.slow, cluster.words = False, NcclWords(timeouts={3: ("ALLREDUCE", 7)})
    with capture_logs() as logs:
        cluster.turn(running())
        cluster.turn(running(), after_s=600.0)
    assert [(each["event"], each["message"]) for each in logs] == [
        ("job.nccl", "1 rank timed out in ALLREDUCE number 7")
    ]


def test_it_can_be_turned_off() -> None:
    """0: no node is asked."""
    cluster = Cluster()
    cluster.comparer = cluster.make(0.0)
    assert cluster.turn(running()) == ()
    assert cluster.asked == []
