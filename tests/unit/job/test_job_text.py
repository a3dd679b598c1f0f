"""The sentences about a job."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from healthd.core.model import NODE, gpu_component
from healthd.job.blame import Blame, BlameEvidence, JobVerdict
from healthd.job.held import release_words
from healthd.job.job import Job
from healthd.job.speakers import SpeaksFor
from healthd.job.text import (
    advice,
    at_drain,
    at_end,
    fault_words,
    found,
    held_sentence,
    in_trail,
    is_refusal,
    node_sentence,
    nodes_sentence,
    part_of,
    refusal,
    verdict_of,
    what_of,
)

GPU = gpu_component(uuid="GPU-1", pci="0000:05:00", index=3)
ROOT = BlameEvidence(
    speaks_for=SpeaksFor.NODE,
    code="gpu.xid.79",
    component="gpu:0000:05:00",
    at=datetime(2026, 11, 24, 12, 3, 7, tzinfo=UTC),
    message="XID 79",
)
RELEASE = "release it by `scontrol release 7`"


def test_the_sentence_of_the_node_that_is_to_blame() -> None:
    """Node, GPU by its index, XID, time, and what was done."""
    told = node_sentence("gpu-213", found(ROOT, [GPU]), drained=True)
    assert told == "node gpu-213 GPU 3 XID 79 12:03:07; drained"
    assert node_sentence("n1", found(ROOT, []), drained=False) == "node n1 gpu:0000:05:00 XID 79 12:03:07; not drained"


def test_parts_and_codes_have_the_names_that_people_use() -> None:
    """The whole node has none, and a code that is no XID stays."""
    assert [part_of(name, [GPU]) for name in ("gpu:GPU-1", "gpu:0000:05:00", "node", "efa:a")] == [
        "GPU 3",
        "GPU 3",
        "",
        "efa:a",
    ]
    assert part_of("node", [NODE]) == ""
    assert [what_of(code) for code in ("gpu.xid.79", "gpu.xid.repeated_across_jobs.13", "efa.missing")] == [
        "XID 79",
        "gpu.xid.repeated_across_jobs.13",
        "efa.missing",
    ]
    assert found(ROOT, [GPU]) == "GPU 3 XID 79 12:03:07"


def test_the_sentence_for_all_nodes() -> None:
    """Fine, or of which nodes it is not known; a long list is cut."""
    assert nodes_sentence(32, (), ()) == "no node fault seen on 32 nodes"
    assert nodes_sentence(1, (), ()) == "no node fault seen on 1 node"
    assert nodes_sentence(8, ("n1", "n2"), ()) == "not known whose fault: n1, n2 of 8 nodes could not tell"
    many = [f"n{number}" for number in range(1, 7)]
    assert nodes_sentence(8, (), many) == "not known whose fault: n1, n2, n3, n4 and 2 more now have a fault"
    assert nodes_sentence(8, ("n9",), ("n1",)) == "not known whose fault: n1 now has a fault"


def test_the_last_verdict_of_a_comment_counts() -> None:
    """Other sentences are none."""
    node, fine, unclear = "node n1 XID 79; drained", "no node fault seen on 2 nodes", "not known whose fault: n1"
    assert [verdict_of(said) for said in ((node,), (node, fine), (fine, unclear), ("fault on node n1",), ())] == [
        Blame.NODE,
        Blame.JOB,
        Blame.UNKNOWN,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("blame", "requeued", "words"),
    [
        (Blame.NODE, True, "Slurm runs the job again"),
        (Blame.NODE, False, "submit the job again"),
        (Blame.JOB, False, "no node of it had a fault"),
        (Blame.NONE, False, "the job completed"),
        (Blame.UNKNOWN, False, "ask an administrator"),
        (None, False, "ask an administrator"),
    ],
)
def test_the_owner_is_told_what_to_do_next(blame: Blame | None, requeued: bool, words: str) -> None:
    """One sentence for each verdict."""
    assert words in advice(blame, requeued=requeued)
    held = advice(blame, requeued=requeued, release=RELEASE)
    assert held.endswith("release it by `scontrol release 7`: Slurm holds it"), "whatever else the owner does"
    assert held.startswith("read the job's own output") is (blame in (Blame.JOB, Blame.UNKNOWN))


@pytest.mark.parametrize(
    ("blame", "state", "words"),
    [
        (Blame.NONE, "PREEMPTED", "submit the job again: Slurm preempted it"),
        (Blame.NONE, "CANCELLED", "nothing: the job was cancelled; `sacct -X -o jobid,state%32` says by whom"),
        (Blame.NONE, "COMPLETED", "nothing: the job completed"),
        (None, "RUNNING", "nothing: the job has not ended"),
        (Blame.NODE, "PREEMPTED", "submit the job again, from its last checkpoint"),
    ],
)
def test_the_owner_of_a_job_that_did_not_fail_is_told_what_happened(
    blame: Blame | None, state: str, words: str
) -> None:
    """By Slurm's own state of it; what a node wrote goes before that."""
    assert advice(blame, requeued=False, state=state, goes_on=blame is None).startswith(words)


def test_a_hold_is_no_verdict() -> None:
    """It stands behind the sentence of the node that refused the start."""
    told = held_sentence("launch failed requeued held", RELEASE)
    assert told == "held (launch failed requeued held): release it by `scontrol release 7`"
    refused = refusal("n1", "7", "GPU 3 is gone")
    assert refused == "node n1 is not fit for job 7: GPU 3 is gone"
    assert (is_refusal(refused), is_refusal(told)) == (True, False)
    assert verdict_of((refused, told)) is Blame.NODE


def test_a_job_that_an_administrator_holds_is_the_administrators_to_release() -> None:
    """slurmctld refuses that to its owner."""
    assert release_words("7_1", "JobHeldAdmin") == "ask an administrator to release it by `scontrol release 7_1`"
    assert release_words("7", "JobHeldUser") == RELEASE


def test_the_sentence_at_the_drain_is_no_verdict() -> None:
    """It names node and fault, and no reader takes it for the blame."""
    told = at_drain("n1", "gpu.xid.79", "GPU 3")
    assert "fault on node n1 of your job (GPU 3 XID 79)" in told
    assert verdict_of((told,)) is None


@pytest.mark.parametrize(
    ("blame", "sentence", "words"),
    [
        (
            Blame.NODE,
            "node n1 GPU 3 XID 79 12:03:07; drained",
            "a fault of node n1 (GPU 3 XID 79 12:03:07), not by your",
        ),
        (Blame.NODE, "node n1; drained", "a fault of node n1, not by your program: submit it again"),
        (Blame.JOB, "no node fault seen on 2 nodes", "exit code 3, and healthd saw no fault on its 2 nodes: read"),
        (
            Blame.UNKNOWN,
            "not known whose fault: n1",
            "exit code 3, and healthd cannot tell whether a node was at fault",
        ),
    ],
)
def test_the_sentence_at_the_end_tells_the_owner_whose_fault_it_was(blame: Blame, sentence: str, words: str) -> None:
    """One for each verdict."""
    assert words in at_end("7", "exit code 3", blame, sentence, requeued=False)


def test_the_sentence_at_the_end_tells_how_the_job_goes_on() -> None:
    """Slurm runs it again, or holds it until its owner releases it."""
    node = "node n1; drained"
    assert at_end("7", "", Blame.NODE, node, requeued=True).endswith(": Slurm runs it again")
    for blame in (Blame.NODE, Blame.JOB, Blame.UNKNOWN):
        assert RELEASE in at_end("7", "", blame, node, requeued=False, release=RELEASE)


def test_a_node_is_to_blame_by_its_summary_as_well() -> None:
    """Without the time of the fault, which a summary does not have."""
    told = node_sentence("n1", fault_words("GPU 3", "gpu.xid.79"), drained=True)
    assert told == "node n1 GPU 3 XID 79; drained"
    assert verdict_of((f"{told}; requeued",)) is Blame.NODE


def test_the_line_of_the_trail() -> None:
    """Job, user, end, verdict, why."""
    verdict = JobVerdict(blame=Blame.NODE, why="XID 79")
    assert in_trail(Job(id="7", user="alice", exit_code=3, signal=0), verdict) == (
        "job 7 of alice ended (exit code 3): node: XID 79"
    )
    assert in_trail(Job(id="7"), verdict) == "job 7 ended (end not known): node: XID 79"
