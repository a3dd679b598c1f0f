"""``healthd job`` on an operator's terminal."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthd.cli.job import job_data, job_text
from healthd.fleet.nodes import fleet_nodes
from healthd.judge.devices import DeviceNames
from healthd.ledger.entries import LedgerJob
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob
from healthd.remediation.ports import ListedNode
from healthd.remediation.records.summary import NodeState, NodeSummary
from tests.support.fleet_readings import NOW

REQUEUED = SlurmJob(
    id="7", acts_by="7_1", state="PENDING", user="alice", restarts=1, comment="healthd: node n1; drained; requeued"
)


def shown(job: SlurmJob) -> list[str]:
    """The lines about a job of which slurmctld alone knows."""
    return job_text(job_data("7", job, (), (), problem=""), DeviceNames()).splitlines()


def ended_by_node(run: int) -> dict[str, Any]:
    """The verdict of this node's daemon on a run."""
    ended = {"restarts": run, "end": None, "ending": "exit code 3"}
    return {**ended, "verdict": "node", "why": "XID 79", "evidence": []}


def test_a_job_that_slurm_holds_waits_for_its_release() -> None:
    """Its sentence says requeued, and it does not run again by itself."""
    lines = shown(replace(REQUEUED, reason="launch failed requeued held", held=True))
    assert lines[0] == "job       7 of alice: PENDING, held (launch failed requeued held)"
    assert lines[-1] == "next      release it by `scontrol release 7_1`: Slurm holds it"


def test_a_job_that_waits_shows_the_reason_of_slurm() -> None:
    """Which may be another than free nodes."""
    lines = shown(replace(REQUEUED, reason="QOSMaxJobsPerUserLimit"))
    assert lines[0] == "job       7 of alice: PENDING (QOSMaxJobsPerUserLimit)"
    assert lines[-1] == "next      nothing: Slurm runs the job again"
    assert shown(REQUEUED)[0] == "job       7 of alice: PENDING"


@pytest.mark.parametrize(
    ("state", "verdict", "advice"),
    [
        ("PREEMPTED", "none", "submit the job again: Slurm preempted it, and does not run it again"),
        ("CANCELLED", "none", "nothing: the job was cancelled; "),
        ("COMPLETED", "none", "nothing: the job completed"),
        ("PENDING", "unknown", "nothing: the job has not ended"),
        ("RUNNING", "unknown", "nothing: the job has not ended"),
        ("FAILED", "unknown", "read the job's own output"),
    ],
)
def test_a_job_of_which_no_node_wrote_anything_shows_what_slurm_says(state: str, verdict: str, advice: str) -> None:
    """A preempted or cancelled job is no failure; one that goes on has no verdict yet."""
    lines = shown(SlurmJob(id="7", state=state, user="alice"))
    assert f"verdict   {verdict}" in lines
    assert lines[-1].startswith(f"next      {advice}")
    assert "could not tell" not in lines[-1], "none was asked"


@pytest.mark.parametrize(
    ("state", "verdict", "advice"),
    [
        ("COMPLETED", "none", "nothing: the job completed"),
        ("CANCELLED", "none", "nothing: the job was cancelled; "),
        ("FAILED", "unknown", "read the job's own output"),
    ],
)
def test_the_end_of_its_first_run_is_not_that_of_the_job(state: str, verdict: str, advice: str) -> None:
    """A fault of its node ended the first run, and Slurm ran it again: that run has ended by now, and neither this
    node, nor the ledger, nor slurmctld has a word on it. All that they have is shown."""
    job = replace(REQUEUED, state=state)
    end = LedgerJob(
        job="7",
        run=0,
        at=NOW,
        state="PENDING",
        ending="an error",
        verdict="node",
        sentence="node n1; drained; requeued",
    )
    everything = job_data("7", job, [ended_by_node(0)], (), problem="", ends=[end])
    for data in (job_data("7", job, (), (), problem=""), everything):
        lines = job_text(data, DeviceNames()).splitlines()
        assert f"verdict   {verdict}" in lines
        assert lines[-1].startswith(f"next      {advice}")
        assert "said      node n1; drained; requeued" in lines
    assert (len(everything["here"]), len(everything["ledger"]), everything["ending"]) == (1, 1, "")


def test_a_second_run_that_its_node_ended_is_the_nodes() -> None:
    """By the verdict of this node on that run."""
    data = job_data("7", replace(REQUEUED, state="FAILED"), [ended_by_node(1)], (), problem="")
    assert (data["verdict"], data["advice"]) == (
        "node",
        "submit the job again, from its last checkpoint: the fault was the node's",
    )


def test_a_node_without_a_fault_does_not_speak_for_the_others() -> None:
    """A plain FAILED job, of which slurmctld takes no sentence: this node saw nothing, and another may have. It says so
    itself, where it does."""
    own = {**ended_by_node(0), "verdict": "job", "why": "no node fault seen", "nodes": "n[1-2]"}
    failed = SlurmJob(id="7", state="FAILED", user="alice", nodes="n[1-2]", exit_code=3)
    summary = NodeSummary(state=NodeState.HELD, at=NOW, code="gpu.xid.79", job="7:0")
    (named,) = fleet_nodes([ListedNode(name="n2", state="IDLE", summary=summary.text)], (), {}, NOW, silent_after_s=900)
    verdicts = [
        job_data("7", failed, [own], (), problem="")["verdict"],
        job_data("7", failed, [{**own, "nodes": "n1"}], (), problem="")["verdict"],
        job_data("7", failed, [own], [named], problem="")["verdict"],
        job_data("7", failed, (), [named], problem="")["verdict"],
        job_data("7", replace(failed, restarts=1), (), [named], problem="")["verdict"],
        job_data("7", replace(failed, restarts=1, state="RUNNING"), (), [named], problem="")["verdict"],
    ]
    assert verdicts == ["unknown", "job", "node", "node", "unknown", "node"]
    again = replace(failed, restarts=1, state="RUNNING")
    assert job_data("7", again, (), [named], problem="")["advice"] == "nothing: Slurm runs the job again"


def test_a_job_of_which_nothing_is_known_here_leads_to_where_it_is_known() -> None:
    """No node is said to be unable to tell: none was asked."""
    lines = job_text(job_data("47", None, (), (), problem="no Slurm is found here"), DeviceNames()).splitlines()
    assert lines == [
        "job       47: not known here",
        "verdict   unknown",
        "next      read the job's own output; where slurmdbd runs, `sacct -j 47` has how it ended",
    ]


def test_a_job_that_failed_in_its_grace_was_preempted() -> None:
    """As 22.05 shows it."""
    lines = shown(SlurmJob(id="7", state="FAILED", user="alice", exit_code=143, preempted=True))
    assert lines[-2:] == [
        "verdict   none",
        "next      submit the job again: Slurm preempted it, and does not run it again",
    ]


def test_a_text_that_a_user_chose_writes_nothing_else_on_the_terminal() -> None:
    """A finding may name a process of the job, and a process may have any name."""
    here = {
        "user": "alice",
        "nodes": "n1",
        "restarts": 0,
        "end": "2026-01-01T00:00:00+00:00",
        "ending": "signal 9",
        "verdict": "job",
        "why": "out of memory: \x1b]0;all is well\x07 was killed\nverdict   node",
        "evidence": [{"at": "2026-01-01T00:00:00+00:00", "code": "gpu.xid.31", "component": "gpu:GPU-51a1"}],
    }
    text = job_text(job_data("7", None, [here], (), problem=""), DeviceNames({"gpu:GPU-51a1": "GPU 3"}))
    assert "gpu.xid.31 GPU 3\n" in text
    assert "out of memory: ?]0;all is well? was killed?verdict   node" in text
    assert [line for line in text.splitlines() if line.startswith("verdict")] == ["verdict   job"]
