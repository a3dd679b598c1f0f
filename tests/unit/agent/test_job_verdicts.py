"""The verdicts of one node's jobs: each run is judged once, however often its Epilog asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from healthd.agent.job_verdicts import ASKED_AGAIN_WITHIN, BLAMED, NOTES, JobVerdicts
from healthd.config.schema.config import SlurmSection
from healthd.core.errors import StoreError
from healthd.core.model import NODE, Clearance, ClearsBy, Event, Mode, Remedy, Severity, gpu_component
from healthd.job.blame import Blame, BlameEvidence, JobVerdict
from healthd.job.job import Job, Stop
from healthd.job.speakers import SpeaksFor
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import Hold
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.support.judgement import START, a_remediation, at, finding, looked
from tests.unit.remediation.slurm.test_job_comments import SharedNode, Slurmctld

JOB = Job(id="4711", user="alice", nodes="n[1-2]", start=START - timedelta(hours=1), end=START, exit_code=3, signal=0)
AT_FAULT = JobVerdict(blame=Blame.NODE, why="XID 79")
BY_ITSELF = JobVerdict(blame=Blame.JOB, why="no node fault seen")


class Full(Store):
    """A disk that may be full."""

    is_full = False

    def keep_all(self, facts: Mapping[str, str], *events: Event) -> None:
        if self.is_full:
            raise StoreError("no space left on device")
        super().keep_all(facts, *events)


class World(Struct, kw_only=True):
    store: Full
    verdicts: JobVerdicts

    def events(self) -> list[tuple[str, bool]]:
        found = self.store.events_of_job(JOB.id)
        return [(event.data["verdict"], event.data["blamed"]) for event in found]


def daemon(
    store: Full,
    slurm: SlurmOrchestrator | None = None,
    now: datetime = START,
    mode: Mode = Mode.QUARANTINE,
    clock: Callable[[], datetime] | None = None,
    *,
    monitor: Monitor | None = None,
    holds: Callable[[], Remediation | None] = lambda: None,
) -> JobVerdicts:
    """The judge of a daemon that starts; nothing is to be told where the cluster is not Slurm."""
    return JobVerdicts(
        node="n1",
        monitor=monitor or Monitor({}, store),
        store=store,
        checks={},
        mode=mode,
        section=SlurmSection(),
        slurm=slurm,
        holds=holds,
        clock=clock or (lambda: now),
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = Full(tmp_path / "healthd.db", now=START)
    yield World(store=store, verdicts=daemon(store))
    store.close()


def test_an_epilog_that_asks_again_gets_the_verdict_that_is_written_down(world: World) -> None:
    """The hook was killed, or its daemon: the next one finds the verdict, and neither writes nor counts it again."""
    world.verdicts.keep(JOB, AT_FAULT, blamed=True, now=START)
    world.verdicts.keep(JOB, AT_FAULT, blamed=True, now=START + timedelta(seconds=1))
    after = daemon(world.store)
    after.keep(JOB, AT_FAULT, blamed=True, now=START + ASKED_AGAIN_WITHIN)
    assert world.events() == [("node", True)]
    assert (world.verdicts.counted[Blame.NODE], after.counted[Blame.NODE]) == (1, 0)
    assert after.blamed_run() == "4711:0"


def test_what_has_changed_meanwhile_is_written_down(world: World) -> None:
    """The drain is gone when the Epilog asks again, so that no node is blamed; or the evidence is another."""
    world.verdicts.keep(JOB, AT_FAULT, blamed=True, now=START)
    world.verdicts.keep(JOB, AT_FAULT, blamed=False, now=START)
    world.verdicts.keep(JOB, BY_ITSELF, blamed=False, now=START)
    assert world.events() == [("node", True), ("node", False), ("job", False)]


@pytest.mark.parametrize(
    ("another", "later"),
    [
        ({"restarts": 1}, timedelta(0)),
        ({"start": START}, timedelta(seconds=5)),  # Slurm 22.05 does not count restarts
        ({}, ASKED_AGAIN_WITHIN + timedelta(seconds=1)),
    ],
)
def test_another_run_of_the_job_is_judged_by_itself(world: World, another: dict[str, object], later: timedelta) -> None:
    """A restart, another start, or an end much later."""
    world.verdicts.keep(JOB, BY_ITSELF, blamed=False, now=START)
    world.verdicts.keep(replace(JOB, **another), BY_ITSELF, blamed=False, now=START + later)
    assert len(world.events()) == 2
    assert world.verdicts.counted[Blame.JOB] == 2


def test_a_start_that_is_not_known_is_no_other_run(world: World) -> None:
    """The hook without a daemon does not know when the job began, where Slurm does not say."""
    world.verdicts.keep(JOB, BY_ITSELF, blamed=False, now=START)
    world.verdicts.keep(replace(JOB, start=None), BY_ITSELF, blamed=False, now=START)
    assert len(world.events()) == 1


def test_a_disk_that_refuses_keeps_the_verdict_and_blames_no_node(world: World) -> None:
    """It is in the audit trail, as one that slurmctld did not get."""
    world.store.is_full = True
    with pytest.raises(StoreError):
        world.verdicts.keep(JOB, AT_FAULT, blamed=True, now=START)
    assert world.events() == [("node", False)]
    assert world.store.fact(BLAMED) == ""


def test_a_refused_run_is_not_judged_and_the_next_one_is(world: World) -> None:
    """However often the Epilog of a run asks that its prolog refused."""
    world.verdicts.begins("4711", START)
    world.verdicts.refuses("4711")
    assert world.verdicts.was_refused("4711")
    assert world.verdicts.was_refused("4711")
    world.verdicts.begins("4711", START)
    assert not world.verdicts.was_refused("4711")


AT_END = {"SLURM_JOB_ID": "4711", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_RESTART_COUNT": "1"}
FAILED = {"SLURM_JOB_ID": "4711", "SLURM_JOB_EXIT_CODE2": "1:0"}
LOST = finding("gpu.xid.79", NODE, remedy=Remedy.REBOOT_NODE, message="XID 79", clears_by=ClearsBy.REBOOT)
DOWN = finding("host.network.link_down", NODE, severity=Severity.WARNING, message="a link is down")


@pytest.mark.parametrize(
    ("ends", "code", "is_lost", "found"),
    [
        ("COMPLETING|alice|n1|1|1|1|N/A|1795000000|NONE|1|N/A|None", "0", True, (Blame.NODE, 0)),
        ("COMPLETING|alice|n1|1|1|1|N/A|1795000000|NONE|1|1795000060|None", "15", True, (Blame.NONE, 0)),
        ("COMPLETING|alice|n1|1|1|1|N/A|1795000000|1795000060|1|N/A|None", "0", True, (Blame.NONE, 1)),
        ("COMPLETING|alice|n1|1|1|1|N/A|1795000000|1795000060|1|N/A|TimeLimit", "15", True, (Blame.NODE, 1)),
        ("COMPLETING|alice|n1|1|1|1|N/A|1795000000|1795000060|1|N/A|None", "0:15", True, (Blame.NODE, 1)),
        ("no job", "15", True, (Blame.NONE, 1)),
        ("no job", "15", False, (Blame.NONE, 1)),
    ],
)
def test_slurmctld_says_whether_it_ended_a_job_that_seems_to_have_completed(
    world: World, ends: str, code: str, found: tuple[Blame, int], *, is_lost: bool
) -> None:
    """Requeued, preempted, completed, ended at its time limit or cancelled, as 22.05 and 26.05 print it; and where it
    does not tell, the exit code stands. A node without a fault does not ask."""
    ctld = Slurmctld(jobs=f"4711|4711|{ends}|\n")
    ctld.exit_code = code
    monitor = Monitor({}, world.store)
    if is_lost:
        monitor.absorb(looked(LOST, check="kernel.xid"))
    verdicts = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld), monitor=monitor)
    verdicts.begins("4711", START - timedelta(hours=1))
    job, verdict = verdicts.judge(AT_END, (), START)
    assert (verdict.blame, job.restarts) == found
    assert bool(ctld.commands) is is_lost


def test_a_job_whose_prolog_another_daemon_saw_began_when_slurmctld_says(world: World) -> None:
    """healthd was upgraded while it ran, and Slurm before 25.11 tells an Epilog no start: a GPU that was lost an hour
    before it is not taken for one that was lost in it."""
    began = START - timedelta(hours=1)
    monitor = Monitor({}, world.store)
    monitor.absorb(looked(LOST, seconds=-7200, check="kernel.xid"))
    times = f"{began.timestamp():.0f}|{START.timestamp():.0f}"
    ctld = Slurmctld(jobs=f"4711|4711|COMPLETING|alice|n1|0|1|1|N/A|{times}|1|N/A|None|\n")
    job, verdict = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld), monitor=monitor).judge(FAILED, (), START)
    assert (job.start, verdict.blame, verdict.evidence[0].before) == (began, Blame.UNKNOWN, True)


@pytest.mark.parametrize(
    ("opened_s", "over_s", "blamed", "evidence"),
    [
        (-600, -590, Blame.UNKNOWN, "host.network.link_down"),  # NCCL gave up ten minutes later
        (-7200, -3500, Blame.JOB, ""),  # the job went on for an hour after it
        (-9000, -7300, Blame.JOB, ""),  # over before the job began
        (-9000, -600, Blame.JOB, ""),  # the job began with that warning, and ran
        (-600, None, Blame.UNKNOWN, "host.network.link_down"),
    ],
)
def test_a_fault_that_is_over_when_the_job_ends_counts_while_the_job_may_wait_for_it(
    world: World, opened_s: float, over_s: float | None, blamed: Blame, evidence: str
) -> None:
    """The link of a node was down for ten seconds, and its job ended by the timeout of NCCL: that is not the job's
    own error."""
    monitor = Monitor({}, world.store)
    monitor.absorb(looked(DOWN, seconds=opened_s))
    if over_s is not None:
        monitor.absorb(looked(seconds=over_s))
        assert not monitor.history.faults
    verdicts = daemon(world.store, monitor=monitor)
    verdicts.begins("4711", START - timedelta(hours=2))
    verdict = verdicts.judge(FAILED, (), START)[1]
    assert (verdict.blame, verdict.root.code if verdict.root else "") == (blamed, evidence)


def test_a_fault_that_was_over_before_the_daemon_began_counts_as_well(world: World) -> None:
    """A restart in the half hour in which the other ranks of the job wait: its node's audit trail knows the end."""
    gpu = gpu_component(uuid="GPU-7", pci="0000:05:00", index=3)
    lost = finding("gpu.sick", gpu, time=at(-700), clears_by=ClearsBy.GPU_RESET)
    before = Monitor({}, world.store)
    before.absorb(looked(DOWN, seconds=-600))
    before.absorb(looked(seconds=-590))
    before.absorb(looked(lost, check="kernel.xid", seconds=-700))
    before.clear(Clearance(by=ClearsBy.GPU_RESET, component=gpu), START - timedelta(seconds=650))
    monitor = Monitor({}, world.store)
    assert not monitor.history.faults
    since = START - timedelta(seconds=660)
    ended = [(each.code, each.first, each.clears_by, each.component.aliases) for each in monitor.open_since(since)]
    assert ended == [
        (each.code, each.first, each.clears_by, each.component.aliases) for each in before.open_since(since)
    ]
    verdicts = daemon(world.store, monitor=monitor)
    verdicts.begins("4711", START - timedelta(minutes=10, seconds=30))
    verdict = verdicts.judge(FAILED, (), START)[1]
    assert (verdict.blame, verdict.root and verdict.root.code) == (Blame.UNKNOWN, "host.network.link_down")


@pytest.mark.parametrize(("set_by_s", "blamed"), [(0, Blame.UNKNOWN), (7200, Blame.UNKNOWN), (-7200, Blame.UNKNOWN)])
def test_a_clock_that_is_set_moves_the_faults_that_are_over(world: World, set_by_s: float, blamed: Blame) -> None:
    """They ended as long ago as before."""
    monitor, by = Monitor({}, world.store), timedelta(seconds=set_by_s)
    monitor.absorb(looked(DOWN, seconds=-600))
    monitor.absorb(looked(seconds=-540))
    monitor.clock_was_set(by, START + by, "the clock was set")
    verdicts = daemon(world.store, monitor=monitor)
    verdicts.begins("4711", START - timedelta(hours=2) + by)
    assert verdicts.judge(FAILED, (), START + by)[1].blame is blamed


def test_when_a_job_began_that_is_not_known_no_earlier_fault_is_its_own(world: World) -> None:
    """A daemon that started during the job, on a Slurm that does not tell its Epilog: only what the end of the job
    itself has ended."""
    monitor = Monitor({}, world.store)
    monitor.absorb(looked(DOWN, seconds=-600))
    monitor.absorb(looked(seconds=-540))
    xid = finding("gpu.xid.31", NODE, severity=Severity.WARNING, message="XID 31", clears_by=ClearsBy.JOB_END)
    monitor.absorb(looked(xid, check="kernel.xid", seconds=-480))
    monitor.clear(Clearance(by=ClearsBy.JOB_END), START + timedelta(seconds=1))
    verdict = daemon(world.store, monitor=monitor).judge(FAILED, (), START)[1]
    assert [each.code for each in verdict.evidence] == ["gpu.xid.31"]


def test_owners_get_the_notice_of_a_drain_once_slurmctld_answers(world: World) -> None:
    """It was restarted just as the node was drained: asked again a minute later, and no job gets the notice twice."""
    node, times = SharedNode(silent="10"), iter([0, 0, 30, 60])
    verdicts = daemon(
        world.store,
        SlurmOrchestrator(node="n1", run=node),
        clock=lambda: START + timedelta(seconds=next(times)),
        holds=lambda: a_remediation(hold=Hold(text="healthd: x [c1]", user="root", stamp=1)),
    )
    silent = verdicts.tell()[1]
    assert any("owners of jobs got no notice of the drain yet: " in each for each in silent)
    assert node.notified == ["8"]
    node.silent = ""
    assert verdicts.tell()[1] == ()
    verdicts.tell()
    verdicts.tell()
    assert node.notified == ["8", "10"]


def test_a_job_that_its_prolog_refuses_is_not_said_to_go_on(world: World) -> None:
    """Neither before the hook has its answer nor after it: the daemon drains the node, and tells of that, before the
    prolog can refuse. One that passes goes on."""
    node = SharedNode()
    verdicts = daemon(
        world.store,
        SlurmOrchestrator(node="n1", run=node),
        holds=lambda: a_remediation(hold=Hold(text="healthd: x [c1]", user="root", stamp=1)),
    )
    for job in ("8", "10"):
        verdicts.begins(job, START)
    verdicts.prolog_ended("10", refused=False)
    verdicts.tell()
    assert node.notified == ["10"]
    assert "goes on" in node.comments["10"]
    verdicts.prolog_ended("8", refused=True)
    verdicts.tell()
    assert node.comments["8"] == "(null)"


@pytest.mark.parametrize(("priority", "comment"), [("0", "healthd: held (launch failed requeued held): "), ("1", "")])
def test_a_refused_job_that_slurm_holds_has_its_release_in_the_comment(
    world: World, priority: str, comment: str
) -> None:
    """Three seconds later slurmctld has heard of the refusal; one that waits for another node gets no words."""
    ctld = Slurmctld(
        "", jobs=f"4711|4711|PENDING|alice||1|1|1|N/A|N/A|NONE|{priority}|N/A|launch failed requeued held|\n"
    )
    daemon(world.store, SlurmOrchestrator(node="n1", run=ctld)).refuses("4711")
    for seconds, told in ((2, ""), (3, comment)):
        after = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld), START + timedelta(seconds=seconds))
        after.tell()
        assert ctld.comment.startswith(told)
        assert bool(ctld.comment) is bool(told)
    assert ("`scontrol release 4711`" in ctld.comment) is bool(comment)
    assert "release" not in world.store.fact(NOTES)


def test_a_note_that_is_due_in_observe_mode_waits_for_a_mode_that_writes(world: World) -> None:
    """An operator turns the mode down between the refusal and its note: the daemon writes nothing and goes on. Turned
    up again, it writes the note."""
    ctld = Slurmctld("", jobs="4711|4711|PENDING|alice||1|1|1|N/A|N/A|NONE|0|N/A|launch failed requeued held|\n")
    slurm, later = SlurmOrchestrator(node="n1", run=ctld), START + timedelta(seconds=30)
    daemon(world.store, slurm).refuses("4711")
    assert daemon(world.store, slurm, later, Mode.OBSERVE).tell() == (60.0, ())
    assert ctld.commands == []
    assert daemon(world.store, slurm, later).tell() == (60.0, ())
    assert ctld.comment.startswith("healthd: held")


def test_a_job_that_stays_completing_is_asked_for_more_and_more_rarely_and_given_up(world: World) -> None:
    """An Epilog of it hangs, or a node of it is down: at once at first, and a few dozen requests in ten minutes."""
    ctld, now = Slurmctld(jobs="4711|4711|COMPLETING|alice|n[1-64]|0|1|1|N/A|N/A|NONE|1|N/A|None|\n"), [START]
    verdicts = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld), clock=lambda: now[0])
    verdicts.keep(replace(JOB, nodes="n1"), BY_ITSELF, blamed=False, now=START)
    waits, told = [], list[str]()
    while now[0] - START < timedelta(hours=1):
        wait_s, problems = verdicts.tell()
        waits.append(wait_s)
        told += problems
        now[0] += timedelta(seconds=wait_s)
    assert waits[:4] == [0.2] * 4
    assert len([words for words in ctld.commands if words[0] == "-h"]) < 100
    assert told == ["job 4711: AdminComment not written: it is still COMPLETING"]
    assert world.store.fact(NOTES) == "[]"


def test_a_daemon_that_stops_begins_no_further_note(world: World) -> None:
    """slurmctld may be slow, and two hundred notes wait: the next daemon writes them."""
    ctld = Slurmctld("", jobs="4711|4711|PENDING|alice||1|1|1|N/A|N/A|NONE|1|N/A|None|\n")
    verdicts = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld))
    for restarts in range(3):
        verdicts.keep(replace(JOB, nodes="n1", restarts=restarts), BY_ITSELF, blamed=False, now=START)
    verdicts.tell(lambda: bool(ctld.comment))
    assert world.store.fact(NOTES).count('"job":"4711"') == 2
    verdicts.tell()
    assert world.store.fact(NOTES) == "[]"


@pytest.mark.parametrize(
    ("waits", "done"), [("1|N/A|BeginTime", "drained; requeued"), ("0|N/A|job requeued in held state", "drained; held")]
)
@pytest.mark.parametrize("stop", [None, Stop.REQUEUED])
def test_the_sentence_of_a_blamed_node_tells_whether_slurm_runs_the_job_again(
    world: World, waits: str, done: str, stop: Stop | None
) -> None:
    """Whose Epilog blamed it, or from which on_job had requeued the job. slurmctld may hold it all the same: its owner
    had held it while it ran, or its next start failed."""
    ctld = Slurmctld(jobs=f"4711|4711|PENDING|alice||1|1|1|N/A|N/A|NONE|{waits}|\n")
    verdicts = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld))
    evidence = BlameEvidence(
        speaks_for=SpeaksFor.NODE, code="gpu.xid.79", component="node", at=START, message="", is_critical=True
    )
    job = replace(JOB, stop=stop, exit_code=0 if stop else 3)
    verdicts.keep(job, replace(AT_FAULT, evidence=(evidence,)), blamed=stop is None, now=START)
    verdicts.tell()
    assert ctld.comment.endswith(f"XID 79 {START:%H:%M:%S}; not {done}")


def test_each_run_of_a_job_has_a_sentence_of_its_own(world: World) -> None:
    """The second run fails as the first did: its sentence names it, so it is written, and no reader takes it for the
    first one's."""
    ctld = Slurmctld(jobs="4711|4711|PENDING|alice||1|1|1|N/A|N/A|NONE|0|N/A|job requeued in held state|\n")
    verdicts = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld))
    for run in (0, 1):
        verdicts.keep(replace(JOB, nodes="n1", restarts=run), BY_ITSELF, blamed=False, now=START)
        verdicts.tell()
    assert ctld.comment.endswith(
        "no node fault seen on 1 node; held; healthd: no node fault seen on 1 node; run 1; held"
    )


@pytest.mark.parametrize(("waits", "done"), [("0|N/A|job requeued in held state", "; held"), ("1|N/A|BeginTime", "")])
def test_the_sentence_of_a_job_that_slurm_ended_tells_whether_slurm_holds_it(
    world: World, waits: str, done: str
) -> None:
    """Slurm 26.05 holds one with --requeue=expedite that reached its time limit. That it runs again is not healthd's
    word there: an operator had it run."""
    ctld = Slurmctld(jobs=f"4711|4711|PENDING|alice||1|1|1|N/A|N/A|NONE|{waits}|\n")
    verdicts = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld))
    evidence = BlameEvidence(
        speaks_for=SpeaksFor.NODE, code="gpu.xid.79", component="node", at=START, message="", is_critical=True
    )
    job = replace(JOB, stop=Stop.ENDED, exit_code=0)
    verdicts.keep(job, replace(AT_FAULT, evidence=(evidence,)), blamed=False, now=START)
    verdicts.tell()
    assert ctld.comment.endswith(f"XID 79 {START:%H:%M:%S}; not drained{done}")
