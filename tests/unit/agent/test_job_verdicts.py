"""The verdicts of one node's jobs: each run is judged once, however often its Epilog asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from healthd.agent.job_verdicts import ASKED_AGAIN_WITHIN, BLAMED, JobVerdicts
from healthd.config.schema.config import SlurmSection
from healthd.core.errors import StoreError
from healthd.core.model import Event, Mode
from healthd.job.blame import JOB_EVENT, Blame, BlameEvidence, JobVerdict
from healthd.job.job import Job
from healthd.job.speakers import SpeaksFor
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.support.judgement import START
from tests.unit.remediation.slurm.test_job_comments import Slurmctld

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
        found = self.store.events_about(JOB_EVENT, "job", JOB.id)
        return [(event.data["verdict"], event.data["blamed"]) for event in found]


def daemon(store: Full, slurm: SlurmOrchestrator | None = None) -> JobVerdicts:
    """The judge of a daemon that starts; nothing is to be told where the cluster is not Slurm."""
    return JobVerdicts(
        node="n1",
        monitor=Monitor({}, store),
        store=store,
        checks={},
        mode=Mode.QUARANTINE,
        section=SlurmSection(),
        slurm=slurm,
        holds=lambda: None,
        clock=lambda: START,
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


@pytest.mark.parametrize(
    ("waits", "done"), [("1|N/A|BeginTime", "drained; requeued"), ("0|N/A|job requeued in held state", "drained; held")]
)
def test_the_sentence_of_a_blamed_node_tells_whether_slurm_runs_the_job_again(
    world: World, waits: str, done: str
) -> None:
    """slurmctld may hold a job all the same: its owner had held it while it ran, or its next start failed."""
    ctld = Slurmctld(jobs=f"4711|4711|PENDING|alice||1|1|1|N/A|N/A|NONE|{waits}|\n")
    verdicts = daemon(world.store, SlurmOrchestrator(node="n1", run=ctld))
    evidence = BlameEvidence(
        speaks_for=SpeaksFor.NODE, code="gpu.xid.79", component="node", at=START, message="", is_critical=True
    )
    verdicts.keep(JOB, replace(AT_FAULT, evidence=(evidence,)), blamed=True, now=START)
    verdicts.tell()
    assert ctld.comment.endswith(f"XID 79 {START:%H:%M:%S}; not {done}")
