"""The sentences about a job: for its AdminComment, its owner, and ``healthd job``. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from healthd.core.model import Component
from healthd.core.name_lists import listed, number_of
from healthd.job.blame import Blame, BlameEvidence, JobVerdict
from healthd.job.job import Job

_NODE, _NO_NODE, _UNKNOWN = "node ", "no node fault seen on ", "not known "
"""How the sentences of the three verdicts begin: ``verdict_of`` reads them."""
_REFUSED = " is not fit for job "
_RUN = re.compile(r"; run ([1-9][0-9]{0,8})")


def part_of(component: str, names: Collection[Component]) -> str:
    """``GPU 3`` where the component's index is known, else its own name; "" for the whole node."""
    known = next((each for each in names if component in each.all_names()), None)
    if known is not None and known.gpu_index is not None:
        return f"GPU {known.gpu_index}"
    return "" if component == "node" else component


def what_of(code: str) -> str:
    """``XID 79`` for ``gpu.xid.79``; else the code."""
    number = code.removeprefix("gpu.xid.")
    return f"XID {number}" if number != code and number.isdigit() else code


def fault_words(part: str, code: str) -> str:
    """``GPU 3 XID 79``; "" where neither is known."""
    return " ".join(filter(None, (part, what_of(code))))


def found(evidence: BlameEvidence, names: Collection[Component]) -> str:
    """``GPU 3 XID 79 12:03:07``, in UTC."""
    return f"{fault_words(part_of(evidence.component, names), evidence.code)} {evidence.at:%H:%M:%S}"


def node_sentence(node: str, fault: str, *, drained: bool) -> str:
    """``node gpu-213 GPU 3 XID 79 12:03:07; drained``: the sentence of the node that is to blame. ``fault``: of its
    summary without a time, and "" once it is over."""
    return f"{_NODE}{' '.join(filter(None, (node, fault)))}; {'drained' if drained else 'not drained'}"


def nodes_sentence(size: int, not_known: Sequence[str], faulty: Sequence[str]) -> str:
    """``no node fault seen on 32 nodes``, or of which nodes it is not known: the sentence for all nodes of a job."""
    nodes = number_of(size, "node")
    if faulty:
        return f"{_UNKNOWN}whose fault: {listed(faulty, 4)} now {'have' if len(faulty) > 1 else 'has'} a fault"
    if not_known:
        return f"{_UNKNOWN}whose fault: {listed(not_known, 4)} of {nodes} could not tell"
    return f"{_NO_NODE}{nodes}"


def of_run(sentence: str, run: int) -> str:
    """The sentence with the number of the run that it is about; the first run of a job needs none."""
    return f"{sentence}; run {run}" if run else sentence


def about_run(said: Sequence[str], run: int) -> tuple[str, ...]:
    """The sentences of one AdminComment that are about this run of the job."""
    return tuple(each for each in said if int(named[1] if (named := _RUN.search(each)) else 0) == run)


def verdict_of(said: Sequence[str]) -> Blame | None:
    """The blame in the sentences of one AdminComment: that of the last; None where none is a verdict."""
    for sentence in reversed(said):
        for begin, verdict in ((_NODE, Blame.NODE), (_NO_NODE, Blame.JOB), (_UNKNOWN, Blame.UNKNOWN)):
            if sentence.startswith(begin):
                return verdict
    return None


def refusal(node: str, job: str, reason: str) -> str:
    """The sentence of a node whose prolog refuses a job."""
    return f"{_NODE}{node}{_REFUSED}{job}: {reason}"


def is_refusal(sentence: str) -> bool:
    """Whether it is that of a node whose prolog refused a job."""
    return _REFUSED in sentence


def held_sentence(reason: str, release: str) -> str:
    """That Slurm holds a job which did not start: no verdict on an end."""
    return f"held ({reason}): {release}"


def advice(blame: Blame | None, *, requeued: bool, release: str = "", state: str = "", goes_on: bool = False) -> str:
    """The owner's next step. ``release``: that of a job that Slurm holds. ``state``: Slurm's; ``goes_on``: it runs, or
    waits for its next run."""
    if release:
        read = "read the job's own output, then " if blame in (Blame.JOB, Blame.UNKNOWN) else ""
        return f"{read}{release}: Slurm holds it"
    match blame:
        case Blame.NODE if requeued:
            return "nothing: Slurm runs the job again"
        case Blame.NODE:
            return "submit the job again, from its last checkpoint: the fault was the node's"
        case Blame.JOB:
            return "read the job's own output: no node of it had a fault"
        case Blame.NONE if state == "PREEMPTED":
            return "submit the job again: Slurm preempted it, and does not run it again"
        case Blame.NONE if state == "CANCELLED":
            return "nothing: the job was cancelled; `sacct -X -o jobid,state%32` says by whom, where slurmdbd runs"
        case Blame.NONE:
            return "nothing: the job completed"
        case None if goes_on:
            return "nothing: the job has not ended"
        case None:
            return "read the job's own output; ask an administrator for `healthd job JOBID` on the head node"
        case _:
            return "read the job's own output; ask an administrator about the nodes that could not tell"


def at_drain(node: str, code: str, part: str) -> str:
    """The sentence for the owner of a job on a node that is being drained."""
    return (
        f"fault on node {node} of your job ({fault_words(part, code)}): the node takes no new jobs, "
        "and your job goes on for as long as it can, so save a checkpoint if it is able to"
    )


def at_end(job: str, ending: str, blame: Blame, sentence: str, *, requeued: bool, release: str = "") -> str:
    """The sentence for the owner of a job that has ended. ``ending``: such as ``exit code 3``; ``sentence``: the
    verdict as the AdminComment has it. ``release``: the step for a job that Slurm holds."""
    if blame is Blame.NODE:
        what = sentence.removeprefix(_NODE).partition(";")[0]
        node, _, fault = what.partition(" ")
        about = f" ({fault})" if fault else ""
        then = "Slurm runs it again" if requeued else "submit it again, from its last checkpoint"
        return f"your job {job} was ended by a fault of node {node}{about}, not by your program: {release or then}"
    waits = f", and {release}: Slurm holds it" if release else ""
    if blame is Blame.JOB:
        seen = sentence.removeprefix(_NO_NODE).partition(";")[0]
        return (
            f"your job {job} ended with {ending}, and healthd saw no fault on its {seen}: read the job's output{waits}"
        )
    return (
        f"your job {job} ended with {ending}, and healthd cannot tell whether a node was at fault "
        f"({sentence.removeprefix(_UNKNOWN).partition(';')[0]}): read the job's output, and ask an administrator{waits}"
    )


def at_hold(job: str, reason: str, sentence: str, release: str) -> str:
    """The sentence for the owner of a job that Slurm holds because it could not start. ``sentence``: of the node that
    refused it."""
    return f"your job {job} did not start ({sentence}), and Slurm holds it ({reason}): {release}"


def in_trail(job: Job, verdict: JobVerdict) -> str:
    """The line of the audit trail."""
    user = f" of {job.user}" if job.user else ""
    return f"job {job.id}{user} ended ({job.ending}): {verdict.blame}: {verdict.why}"
