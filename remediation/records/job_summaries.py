"""The end of a job by what each of its nodes wrote of itself: the node to blame, and the sentence for all. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from healthd.core.model import Severity
from healthd.job.blame import Blame
from healthd.job.speakers import SpeaksFor, blame_table
from healthd.job.text import fault_words, node_sentence, nodes_sentence
from healthd.remediation.records.summary import NodeState, NodeSummary

_FAULTY = frozenset({NodeState.CRITICAL, NodeState.HELD, NodeState.DRAINING, NodeState.REPAIRING})
_OUT = frozenset({NodeState.HELD, NodeState.DRAINING, NodeState.REPAIRING})
_FINE = frozenset({NodeState.OK, NodeState.WARNING})


class SummarizedEnd(Struct, frozen=True, kw_only=True):
    """Whose fault the end of a job was by the summaries of its nodes. ``code``: of the fault of ``node``, "" for
    none."""

    blame: Blame
    sentence: str
    code: str = ""
    node: str = ""


def run_word(job: str, restarts: int) -> str:
    """The word by which a node's summary names the run of a job: ``4711:0`` is the first."""
    return f"{job}:{restarts}"


def summarized_end(
    run: str,
    names: Sequence[str],
    summaries: Mapping[str, NodeSummary | None],
    *,
    began: datetime | None,
    ended: datetime,
    silent_after_s: float,
    undecided: str = "",
    dead: Collection[str] = (),
) -> SummarizedEnd:
    """The verdict for all nodes of a job. ``run``: the word of this run. ``silent_after_s``: a summary that was older
    than this at the end says nothing of it. ``undecided``: a node that could not tell,
    whatever its summary says. ``dead``: nodes that do not answer the cluster: their summary is of before."""
    for name in names:
        summary = summaries.get(name)
        if summary is not None and summary.job == run:
            fault = fault_words(summary.component, summary.code)
            sentence = node_sentence(name, fault, drained=summary.state in _OUT)
            return SummarizedEnd(blame=Blame.NODE, sentence=sentence, code=summary.code, node=name)
    faulty = [name for name in names if (each := summaries.get(name)) is not None and each.state in _FAULTY]
    oldest = ended - timedelta(seconds=silent_after_s)
    tell = {name for name in names if name not in dead and _tells(summaries.get(name), began=began, oldest=oldest)}
    silent = [name for name in names if name not in (*faulty, *tell)]
    if undecided and undecided not in (*faulty, *silent):
        silent = [undecided, *silent]
    sentence = nodes_sentence(len(names), silent, faulty)
    return SummarizedEnd(blame=Blame.UNKNOWN if faulty or silent else Blame.JOB, sentence=sentence)


def _tells(summary: NodeSummary | None, *, began: datetime | None, oldest: datetime) -> bool:
    """Whether a node says that it is fine, and shows nothing since the job began that may have ended it."""
    if summary is None or summary.at is None or summary.state not in _FINE or summary.at < oldest:
        return False
    if not summary.code or (began is not None and summary.since is not None and summary.since < began):
        return True
    return blame_table().speaks_for(summary.code, Severity.WARNING) in (SpeaksFor.JOB, SpeaksFor.NEITHER)
