"""The controller judges the ends of jobs, keeps them in the ledger, and tells each owner once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from healthd.config.schema.config import PolicySection
from healthd.config.schema.rule import PolicyRule
from healthd.controller.jobs import SETTLES, JobKeeper, JobWatch
from healthd.controller.ledger import LedgerFile
from healthd.core.errors import BackendUnknown
from healthd.core.model import Mode
from healthd.fleet.nodes import FleetNode, FleetPicture, fleet_nodes
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import EntryKind, LedgerEntry, LedgerJob
from healthd.notify.delivery import NotDeliveredError, RefusedError
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob
from healthd.remediation.orchestrators.slurm.job_list import ListedJob
from healthd.remediation.ports import ListedNode
from healthd.remediation.records.summary import NodeState, NodeSummary
from tests.support.fleet_readings import NOW

ENDED = NOW - 2 * SETTLES
BEGAN = NOW - timedelta(hours=1)
FAILED = ListedJob(id="4711", run=0, nodes=2, began=BEGAN, ended=ENDED)


def node(name: str, state: NodeState = NodeState.OK, *, code: str = "", job: str = "") -> FleetNode:
    summary = NodeSummary(
        state=state, at=NOW, code=code, component="GPU 3" if code else "", since=NOW, mode=Mode.REPAIR, job=job
    )
    listed = ListedNode(name=name, state="IDLE", partitions=("train",), summary=summary.text)
    return fleet_nodes([listed], (), {}, NOW, silent_after_s=1500)[0]


BLAMED = node("n2", NodeState.HELD, code="gpu.xid.79", job="4711:0")


class Cluster:
    """The jobs that slurmctld has, by hand."""

    def __init__(self) -> None:
        self.listed: list[ListedJob] = []
        self.shown: dict[str, SlurmJob] = {}
        self.asked: list[str] = []

    def jobs(self) -> tuple[ListedJob, ...]:
        return tuple(self.listed)

    def job(self, job: str) -> SlurmJob:
        self.asked.append(job)
        if job not in self.shown:
            raise BackendUnknown("Invalid job id specified")
        return self.shown[job]

    def running(self, job: str) -> tuple[SlurmJob, Mapping[str, frozenset[int]]]:
        return self.shown[job], {}

    def fails(self, *, state: str = "FAILED", code: int = 3) -> None:
        self.listed = [FAILED]
        self.shown["4711"] = SlurmJob(
            id="4711", state=state, user="alice", nodes="n[1-2]", exit_code=code, signal=0, start=BEGAN, end=ENDED
        )


class Head:
    """A keeper over one cluster, and its ledger."""

    def __init__(self, folder: Path) -> None:
        self.path, self.cluster, self.policy = folder / LEDGER, Cluster(), PolicySection()
        self.messages: list[Mapping[str, Any]] = []
        self.refuses, self.refused_user, self.now = False, "", NOW
        self.tried: list[str] = []
        self.takes = timedelta()
        log = structlog.wrap_logger(structlog.testing.CapturingLogger())
        self.file = LedgerFile(self.path, log)
        self.keeper = self.start()

    def start(self) -> JobKeeper:
        self.keeper = JobKeeper(
            self.cluster,
            self.file.opened,
            self.policy,
            structlog.wrap_logger(structlog.testing.CapturingLogger()),
            tell=self._tell,
            clock=lambda: self.now,
        )
        return self.keeper

    def _tell(self, message: Mapping[str, Any]) -> None:
        self.tried.append(message["job"])
        self.now += self.takes
        if self.refuses:
            raise NotDeliveredError("mail is down")
        if message["user"] == self.refused_user:
            raise RefusedError("no such user")
        self.messages.append(message)

    def sees(self, *nodes: FleetNode, at: datetime = NOW) -> None:
        fleet = FleetPicture(cluster="train", at=at, nodes=nodes, limit=1, taken=0)
        self.keeper(self.cluster.jobs(), fleet)

    def sees_held(self, *nodes: FleetNode) -> None:
        """Twice: the nodes of a job that is held have the time to write."""
        self.sees(*nodes)
        self.sees(*nodes, at=NOW + SETTLES)

    @property
    def ends(self) -> tuple[LedgerJob, ...]:
        ledger = Ledger(self.path, now=NOW, reads_only=True)
        try:
            return ledger.job_ends("4711")
        finally:
            ledger.close()

    @property
    def told(self) -> list[str]:
        return [each["text"] for each in self.messages]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    made = Head(tmp_path)
    yield made
    made.file.close()


def test_a_job_that_failed_by_itself_is_kept_and_told_once(head: Head) -> None:
    """Its row has who, where, how and why; a second pass, and the next leader, judge and tell nothing."""
    head.cluster.fails()
    head.sees(node("n1"), node("n2"))
    sentence = "no node fault seen on 2 nodes"
    assert head.ends == (
        LedgerJob(
            job="4711",
            run=0,
            at=ENDED,
            user="alice",
            nodes="n[1-2]",
            state="FAILED",
            ending="exit code 3",
            verdict="job",
            sentence=sentence,
        ),
    )
    text = "your job 4711 ended with exit code 3, and healthd saw no fault on its 2 nodes: read the job's output"
    assert head.told == [text]
    data = head.messages[0]
    assert (data["schema"], data["user"], data["verdict"], data["text"]) == (
        "healthd.owner_notice/v1",
        "alice",
        "job",
        text,
    )
    head.sees(node("n1"), node("n2"))
    head.file.close()
    head.start()
    head.sees(node("n1"), node("n2"))
    assert (len(head.ends), len(head.told), head.cluster.asked) == (1, 1, ["4711"])


def test_the_node_that_names_the_job_is_to_blame(head: Head) -> None:
    """A plain FAILED job, whose AdminComment slurmctld refuses: the summary of the node says it."""
    head.cluster.fails()
    head.sees(node("n1"), BLAMED)
    assert [(each.verdict, each.sentence, each.code) for each in head.ends] == [
        ("node", "node n2 GPU 3 XID 79; drained", "gpu.xid.79")
    ]
    (told,) = head.told
    assert told.startswith("your job 4711 was ended by a fault of node n2 (GPU 3 XID 79), not by your program: ")
    assert told.endswith("submit it again, from its last checkpoint")


def test_a_job_that_runs_again_is_kept_by_the_run_that_ended(head: Head) -> None:
    """Slurm has requeued it, so that its list shows no end: the node's word does. While it ends nothing is said."""
    head.cluster.shown["4711"] = SlurmJob(id="4711", state="COMPLETING", user="alice", nodes="n[1-2]")
    head.sees(node("n1"), BLAMED)
    assert not head.ends
    head.cluster.shown["4711"] = SlurmJob(id="4711", state="RUNNING", user="alice", nodes="n[1,3]", restarts=1)
    head.cluster.listed = [ListedJob(id="4711", run=1, runs=True, nodes=2, began=NOW)]
    head.sees(node("n1"), BLAMED)
    assert [(each.run, each.state, each.sentence) for each in head.ends] == [
        (0, "RUNNING", "node n2 GPU 3 XID 79; drained; requeued")
    ]
    assert head.told[0].endswith("not by your program: Slurm runs it again")


def test_a_run_that_a_dead_node_names_for_days_is_one_end(head: Head) -> None:
    """Its last summary stands for as long as Slurm lists it. A controller that was away reads it once."""
    head.cluster.listed = [ListedJob(id="4711", run=1, runs=True, nodes=2, began=NOW)]
    head.cluster.shown["4711"] = SlurmJob(
        id="4711", state="RUNNING", user="alice", nodes="n[1,3]", exit_code=0, signal=0, start=NOW, end=None, restarts=1
    )
    for hours in range(5, 100, 5):
        head.now = NOW + timedelta(hours=hours)
        head.sees(node("n1"), BLAMED, node("n3"), at=head.now)
    assert [(each.run, each.at) for each in head.ends] == [(0, NOW + timedelta(hours=5))]
    assert len(head.told) == 1


def test_a_held_job_has_the_verdict_of_its_comment(head: Head) -> None:
    """Its nodes have written it there; the owner reads how to go on."""
    said = "healthd: node n9 XID 48; drained; requeued; healthd: no node fault seen on 2 nodes; run 1; held"
    head.cluster.listed = [ListedJob(id="4711", run=1, held=True, nodes=2)]
    head.cluster.shown["4711"] = SlurmJob(id="4711", state="PENDING", user="alice", restarts=2, comment=said)
    head.sees_held(node("n1"), node("n2"))
    assert [(each.run, each.at, each.state, each.verdict) for each in head.ends] == [(1, NOW, "REQUEUE_HOLD", "job")]
    words = "on its 2 nodes: read the job's output, and release it by `scontrol release 4711`: Slurm holds it"
    assert head.told[0].endswith(words)


def test_a_held_job_is_not_judged_by_what_was_written_of_an_earlier_run(head: Head) -> None:
    """Its first run was ended by a node; the second one failed by itself, and its nodes write that within 15 s. Its
    owner must not read that the node ended this one too."""
    first = "healthd: node n9 GPU 3 XID 48 12:00:00; drained; requeued"
    head.cluster.listed = [ListedJob(id="4711", run=1, held=True, nodes=2)]
    shown = SlurmJob(id="4711", state="PENDING", user="alice", nodes="n[1-2]", restarts=2, comment=first)
    head.cluster.shown["4711"] = shown
    head.sees(node("n1"), node("n2"))
    assert not head.ends
    comment = f"{first}; healthd: not known whose fault: n1 of 2 nodes could not tell; run 1; held"
    head.cluster.shown["4711"] = replace(shown, comment=comment)
    head.sees(node("n1"), node("n2"), at=NOW + SETTLES)
    assert [(each.run, each.verdict) for each in head.ends] == [(1, "unknown")]
    assert "(whose fault: n1 of 2 nodes could not tell)" in head.told[0]


def test_a_job_that_is_held_for_days_is_one_end(head: Head) -> None:
    """Its owner is away. Its node is repaired meanwhile, which changes no verdict; each next leader knows it too."""
    head.cluster.listed = [ListedJob(id="4711", run=0, held=True, nodes=2)]
    head.cluster.shown["4711"] = SlurmJob(id="4711", state="PENDING", user="alice", nodes="n[1-2]", restarts=1)
    head.sees(node("n1"), BLAMED)
    for hours in range(5, 100, 5):
        head.now = NOW + timedelta(hours=hours)
        head.sees(node("n1"), node("n2"), at=head.now)
        head.file.close()
        head.start()
    assert [(each.run, each.at, each.verdict) for each in head.ends] == [(0, NOW, "node")]
    assert (len(head.told), head.cluster.asked) == (1, ["4711"])


def test_an_end_that_slurmctld_lists_for_days_is_judged_once(head: Head) -> None:
    """MinJobAge may be days: the nodes of then say nothing of that end any more."""
    head.cluster.fails()
    head.sees(node("n1"), BLAMED)
    for hours in range(5, 100, 5):
        head.now = NOW + timedelta(hours=hours)
        head.sees(node("n1"), node("n2"), at=head.now)
    assert [(each.run, each.at, each.verdict) for each in head.ends] == [(0, ENDED, "node")]
    assert (len(head.told), head.cluster.asked) == (1, ["4711"])


REFUSED = "node n9 is not fit for job 4711: healthd: gpu.xid.79 gpu:0000:05:00 [0a1b2c3d]"
TOO_OFTEN = "launch failure limit exceeded requeued held"


@pytest.mark.parametrize(
    ("said", "verdict", "sentence"),
    [
        (f"healthd: {REFUSED}; healthd: held (another word)", "node", REFUSED),
        ("", "unknown", "not known whose fault: its launch failed"),
        ("healthd: node n9 XID 48; drained; requeued", "unknown", "not known whose fault: its launch failed"),
    ],
)
def test_a_job_that_could_not_start_is_told_with_its_release(
    head: Head, said: str, verdict: str, sentence: str
) -> None:
    """By the words of the prolog that refused it, or without; it has no end, and no exit code."""
    head.cluster.listed = [ListedJob(id="4711", run=0, held=True, not_started=True, nodes=1)]
    head.cluster.shown["4711"] = SlurmJob(
        id="4711", state="REQUEUE_HOLD", user="alice", restarts=1, reason=TOO_OFTEN, held=True, comment=said
    )
    head.sees_held(node("n1"))
    release = "release it by `scontrol release 4711`"
    assert [(each.state, each.ending, each.verdict, each.sentence) for each in head.ends] == [
        ("REQUEUE_HOLD", TOO_OFTEN, verdict, f"{sentence}; held ({TOO_OFTEN}): {release}")
    ]
    assert head.told == [f"your job 4711 did not start ({sentence}), and Slurm holds it ({TOO_OFTEN}): {release}"]


def test_a_job_that_failed_in_the_grace_of_its_preemption_is_no_failure(head: Head) -> None:
    """Slurm 22.05 calls it FAILED."""
    head.cluster.fails(code=143)
    head.cluster.shown["4711"] = replace(head.cluster.shown["4711"], preempted=True)
    head.sees(node("n1"), node("n2"))
    assert (head.ends, head.told) == ((), [])


def test_a_job_that_is_held_after_its_node_ended_it_does_not_run_again(head: Head) -> None:
    """An administrator held it while it ran, or its next start failed: Slurm's list shows no end of it."""
    head.cluster.shown["4711"] = SlurmJob(
        id="4711", acts_by="4711", state="PENDING", user="alice", restarts=1, reason="JobHeldAdmin", held=True
    )
    head.sees(node("n1"), BLAMED)
    assert [(each.run, each.state, each.sentence) for each in head.ends] == [
        (0, "REQUEUE_HOLD", "node n2 GPU 3 XID 79; drained")
    ]
    assert head.told[0].endswith("not by your program: ask an administrator to release it by `scontrol release 4711`")


def test_a_job_whose_nodes_cannot_tell_is_unknown(head: Head) -> None:
    """And so is one whose node is silent."""
    head.cluster.fails(state="TIMEOUT", code=0)
    head.sees(node("n1", NodeState.UNKNOWN), node("n2"))
    assert [(each.verdict, each.ending) for each in head.ends] == [("unknown", "its time limit")]
    assert "healthd cannot tell whether a node was at fault (whose fault: n1 of 2 nodes could not tell)" in head.told[0]


def test_a_fleet_of_ten_thousand_reports_once_an_hour_and_tells(head: Head) -> None:
    """With the heartbeat of such a fleet a summary of 50 minutes is the last of a healthy node; with the default one it
    says nothing."""
    head.cluster.fails()
    summary = NodeSummary(state=NodeState.OK, at=ENDED - timedelta(minutes=50), mode=Mode.REPAIR)
    listed = [ListedNode(name=name, state="IDLE", summary=summary.text) for name in ("n1", "n2")]
    for silent_after_s, verdict in ((2.5 * 600, "unknown"), (2.5 * 3300, "job")):
        head.cluster.listed = [replace(FAILED, run=int(silent_after_s))]
        head.sees(*fleet_nodes(listed, (), {}, NOW, silent_after_s=silent_after_s))
        assert head.ends[-1].verdict == verdict


@pytest.mark.parametrize("state", ["NODE_FAIL", "BOOT_FAIL"])
def test_a_job_that_slurm_ended_for_a_node_is_not_the_jobs(head: Head, state: str) -> None:
    """The node panicked and is back, and its agent reports that all is well."""
    head.cluster.fails(state=state, code=0)
    head.sees(node("n1"), node("n2"))
    assert [(each.verdict, each.sentence) for each in head.ends] == [
        ("unknown", f"not known whose fault: Slurm ended it with {state}")
    ]
    assert "healthd cannot tell whether a node was at fault" in head.told[0]


def test_a_node_that_does_not_answer_slurm_does_not_speak_for_the_job(head: Head) -> None:
    """Its ranks are gone, so that the others fail; its last summary of before says that all is well."""
    dead = node("n2")
    head.cluster.fails()
    head.sees(node("n1"), fleet_nodes([replace(dead.listed, dead=True)], (), {}, NOW, silent_after_s=1500)[0])
    assert [(each.verdict, each.sentence) for each in head.ends] == [
        ("unknown", "not known whose fault: n2 of 2 nodes could not tell")
    ]


@pytest.mark.parametrize(
    ("signal", "state", "words"),
    [(9, "FAILED", "signal 9"), (15, "NODE_FAIL", "the loss of a node"), (125, "OUT_OF_MEMORY", "its memory limit")],
)
def test_the_end_has_words(head: Head, signal: int, state: str, words: str) -> None:
    """The signal, or what Slurm calls it where there is no code."""
    head.cluster.fails()
    head.cluster.shown["4711"] = replace(head.cluster.shown["4711"], signal=signal, state=state, exit_code=0)
    head.sees(node("n1"), node("n2"))
    assert head.ends[0].ending == words


def test_an_end_waits_until_its_nodes_have_written(head: Head) -> None:
    """And one that slurmctld has forgotten meanwhile is skipped."""
    head.cluster.fails()
    head.cluster.listed = [replace(FAILED, ended=NOW - SETTLES / 2), ListedJob(id="9", run=0, ended=ENDED)]
    head.sees(node("n1"), node("n2"))
    assert (head.ends, head.cluster.asked) == ((), ["9"])


def test_a_job_number_that_is_used_again_is_another_job(head: Head) -> None:
    """slurmctld that begins again counts from 1: another end of the same number is an end of its own."""
    head.cluster.fails()
    head.sees(node("n1"), node("n2"))
    head.cluster.listed = [replace(FAILED, ended=ENDED + timedelta(hours=2))]
    head.sees(node("n1"), node("n2"), at=NOW + timedelta(hours=2))
    assert len(head.ends) == 2


def test_an_owner_is_told_later_where_the_command_fails(head: Head) -> None:
    """The row stays marked, also for the next leader; after hours it is no news any more."""
    head.refuses = True
    head.cluster.fails()
    head.sees(node("n1"), node("n2"))
    head.file.close()
    assert (head.told, head.ends[0].notice != "") == ([], True)
    head.refuses = False
    head.start()
    head.now = NOW + timedelta(hours=7)
    head.sees(node("n1"), node("n2"), at=head.now)
    assert head.told == []
    head.now = NOW
    head.sees(node("n1"), node("n2"))
    assert (len(head.told), head.ends[0].notice) == (1, "")


def test_a_notice_that_the_command_refuses_delays_no_other(head: Head) -> None:
    """Such as for a user without an address: the next owner gets the notice in the same pass."""
    head.refused_user = "alice"
    head.cluster.fails()
    head.cluster.listed.append(ListedJob(id="4712", run=0, nodes=1, began=BEGAN, ended=ENDED))
    head.cluster.shown["4712"] = replace(head.cluster.shown["4711"], id="4712", user="bob", nodes="n2")
    head.sees(node("n1"), node("n2"))
    assert [each["user"] for each in head.messages] == ["bob"]
    assert head.ends[0].notice


def test_notices_that_are_refused_slowly_delay_no_pass(head: Head) -> None:
    """slurmctld forgets an end after five minutes: a pass tells for 20 s, and the next one begins with the others."""
    head.cluster.fails()
    for number in range(4712, 4720):
        job = str(number)
        head.cluster.listed.append(ListedJob(id=job, run=0, nodes=1, began=BEGAN, ended=ENDED))
        head.cluster.shown[job] = replace(head.cluster.shown["4711"], id=job, user="alice", nodes="n2")
    head.refused_user, head.takes = "alice", timedelta(seconds=8)
    head.sees(node("n1"), node("n2"))
    assert (head.tried, head.now - NOW) == (["4711", "4712", "4713"], timedelta(seconds=24))
    head.sees(node("n1"), node("n2"))
    head.sees(node("n1"), node("n2"))
    head.sees(node("n1"), node("n2"))
    assert head.tried[3:] == ["4714", "4715", "4716", "4717", "4718", "4719", "4711", "4712", "4713"]


RULE = PolicyRule(name="quiet", codes=("gpu.xid.79",), reason="r", source="s", notify_owner=False)


@pytest.mark.parametrize(
    ("policy", "is_told"),
    [
        (PolicySection(rule=(RULE,)), False),
        (PolicySection(rule=(replace(RULE, notify_owner=True),), notify_owner=False), True),
        (PolicySection(notify_owner=False), False),
        (PolicySection(rule=(replace(RULE, components=("efa",)),)), True),
    ],
)
def test_the_rule_of_the_fault_says_whether_the_owner_is_told(
    head: Head, policy: PolicySection, *, is_told: bool
) -> None:
    """It goes before that of the policy; the verdict is kept all the same."""
    head.policy = policy
    head.start()
    head.cluster.fails()
    head.sees(node("n1"), BLAMED)
    assert (bool(head.told), len(head.ends)) == (is_told, 1)


def test_without_a_command_nothing_waits_for_one(head: Head) -> None:
    """A command that is set later tells of what ends from then on."""
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    keeper = JobKeeper(head.cluster, head.file.opened, head.policy, log, tell=None, clock=lambda: NOW)
    head.cluster.fails()
    keeper([FAILED], FleetPicture(cluster="", at=NOW, nodes=(node("n1"), node("n2")), limit=1, taken=0))
    assert head.ends[0].notice == ""


def test_a_watch_goes_on_when_the_cluster_does_not_answer(head: Head) -> None:
    """One pass without a fleet keeps nothing, and the next one does."""
    head.cluster.fails()
    stop, passes = threading.Event(), 0

    def reading() -> FleetPicture:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise BackendUnknown("slurmctld does not answer")
        stop.set()
        return FleetPicture(cluster="", at=NOW, nodes=(node("n1"), node("n2")), limit=1, taken=0)

    finding = LedgerEntry(kind=EntryKind.JOB, node="n1", at=NOW, code="job.straggler", act="job 4711 GPU 3")
    watch = JobWatch(
        head.cluster,
        reading,
        head.keeper,
        structlog.wrap_logger(structlog.testing.CapturingLogger()),
        compare=lambda *_: (finding,),
        every_s=0.01,
    )
    watch.keep(stop)
    assert (passes, len(head.ends)) == (2, 1)
    ledger = Ledger(head.path, now=NOW, reads_only=True)
    assert ledger.contents().entries == (finding,)
    ledger.close()
