"""Whose fault the end of a job was, by what its nodes wrote of themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from healthd.job.blame import Blame
from healthd.remediation.records.job_summaries import SummarizedEnd, run_word, summarized_end
from healthd.remediation.records.summary import NodeState, NodeSummary

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
BEGAN = NOW - timedelta(hours=2)
RUN = run_word("4711", 0)
OLD_S = 1800.0


def fine(code: str = "", since: datetime | None = None, at: datetime = NOW, job: str = "") -> NodeSummary:
    return NodeSummary(
        state=NodeState.WARNING if code else NodeState.OK, at=at, code=code, component="GPU 3", since=since, job=job
    )


def judged(
    *nodes: NodeSummary | None, undecided: str = "", began: datetime | None = BEGAN, dead: tuple[str, ...] = ()
) -> SummarizedEnd:
    named = {f"n{number}": each for number, each in enumerate(nodes, 1)}
    return summarized_end(
        RUN, list(named), named, began=began, ended=NOW, silent_after_s=OLD_S, undecided=undecided, dead=dead
    )


def test_a_node_that_names_the_run_is_to_blame() -> None:
    """With its fault, as far as that is still open; another run of the same job is none of this one."""
    out = NodeSummary(state=NodeState.HELD, at=NOW, code="gpu.xid.79", component="GPU 3", job=RUN)
    assert judged(fine(), out) == SummarizedEnd(
        blame=Blame.NODE, sentence="node n2 GPU 3 XID 79; drained", code="gpu.xid.79", node="n2"
    )
    over = NodeSummary(state=NodeState.OK, at=NOW, job=RUN)
    assert judged(over).sentence == "node n1; not drained"
    assert judged(fine(job="4711:1")).blame is Blame.JOB


def test_all_nodes_fine_speaks_for_the_job() -> None:
    """No node fault on any of them."""
    assert judged(fine(), fine()) == SummarizedEnd(blame=Blame.JOB, sentence="no node fault seen on 2 nodes")


@pytest.mark.parametrize(
    "summary",
    [
        None,  # no agent, or no node of that name
        NodeSummary(state=NodeState.OK),  # no time
        NodeSummary(state=NodeState.UNKNOWN, at=NOW),
        fine(at=NOW - timedelta(minutes=31)),
        fine("gpu.nvlink.errors", since=NOW - timedelta(hours=1)),  # since the job began: it may have ended it
        fine("gpu.nvlink.errors"),
    ],
)
def test_a_node_that_does_not_tell_leaves_it_unknown(summary: NodeSummary | None) -> None:
    """Silence is neither the node's fault nor the job's."""
    assert judged(fine(), summary) == SummarizedEnd(
        blame=Blame.UNKNOWN, sentence="not known whose fault: n2 of 2 nodes could not tell"
    )


def test_a_node_that_died_does_not_tell_by_what_it_wrote_before() -> None:
    """Its last summary is minutes old and good: the machine is gone. One that named the run before is to blame."""
    assert judged(fine(), fine(), dead=("n2",)) == SummarizedEnd(
        blame=Blame.UNKNOWN, sentence="not known whose fault: n2 of 2 nodes could not tell"
    )
    assert judged(fine(), fine(job=RUN), dead=("n2",)).blame is Blame.NODE


def test_a_warning_of_before_or_of_the_job_tells() -> None:
    """A fault that was open when the job began did not end it; an error of the job's own speaks for the job."""
    assert judged(fine("gpu.nvlink.errors", since=NOW - timedelta(hours=3))).blame is Blame.JOB
    assert judged(fine("gpu.xid.43", since=NOW)).blame is Blame.JOB
    assert judged(fine("gpu.nvlink.errors", since=NOW - timedelta(hours=3)), began=None).blame is Blame.UNKNOWN


def test_a_fault_without_a_word_about_the_job_is_no_blame() -> None:
    """It may have come after the job's end: it is told, and the verdict is unknown."""
    critical = NodeSummary(state=NodeState.CRITICAL, at=NOW, code="gpu.xid.79")
    assert judged(fine(), critical) == SummarizedEnd(
        blame=Blame.UNKNOWN, sentence="not known whose fault: n2 now has a fault"
    )


def test_a_node_that_could_not_tell_stands_among_the_silent() -> None:
    """Whatever its summary says now, and once."""
    assert judged(fine(), fine(), undecided="n2").sentence == "not known whose fault: n2 of 2 nodes could not tell"
    assert judged(None, fine(), undecided="n1").sentence == "not known whose fault: n1 of 2 nodes could not tell"
