"""The controller that leads keeps the ends of jobs: it judges each that ended badly, by what its nodes wrote, and tells
its owner once.

slurmctld takes no comment of a job that has finished, and forgets it after MinJobAge (300 s); without slurmdbd the
ledger is what is left of it. A row is written before the notice to its owner is sent, and has the notice until that has
worked. Nothing here acts on a job or on a node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from msgspec.structs import replace

from healthd.config.schema.config import PolicySection
from healthd.core.errors import BackendError, ConfigError, StoreError
from healthd.core.hostlist import unfolded
from healthd.core.json_documents import json_fields
from healthd.core.model import NODE, Component
from healthd.fleet.nodes import FleetNode, FleetPicture
from healthd.job.blame import Blame
from healthd.job.held import release_words
from healthd.job.job import ending
from healthd.job.text import about_run, at_end, at_hold, held_sentence, is_refusal, verdict_of
from healthd.ledger.database import Ledger
from healthd.ledger.entries import LedgerEntry, LedgerJob
from healthd.notify.delivery import NotDeliveredError, RefusedError
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob
from healthd.remediation.orchestrators.slurm.job_list import ListedJob
from healthd.remediation.policy_files import policy_of
from healthd.remediation.records.job_summaries import SummarizedEnd, run_word, summarized_end

SCHEMA = "healthd.owner_notice/v1"
EVERY_S = 20.0
"""How often the jobs are listed, in seconds: slurmctld remembers one that ended for MinJobAge, 300 s by default."""
SETTLES = timedelta(seconds=20)
"""By then each node of a job has written a new summary, if its state changed with the job, and the first of them the
AdminComment of a job that is held."""
TOLD_FOR = timedelta(hours=6)
"""For so long a notice is sent again where the command fails."""
_SAME = timedelta(days=1)
"""Within it the run that a node names is the same end, where slurmctld keeps no time of it."""
_HELD = "REQUEUE_HOLD"
"""The state in the ledger of a job that slurmctld holds after its end."""
_BY_A_NODE = frozenset({"NODE_FAIL", "BOOT_FAIL"})
"""The states of a job whose node went down, did not answer, or did not boot."""
_ENDS = {
    "TIMEOUT": "its time limit",
    "OUT_OF_MEMORY": "its memory limit",  # exit code 0:125
    "NODE_FAIL": "the loss of a node",
    "BOOT_FAIL": "a node that did not boot",
}
_MOST = 100
"""Jobs that are read in one pass: a pass ends, and the next one goes on."""
_TELLS = timedelta(seconds=EVERY_S)
"""How long a pass sends notices: the next one must not find that slurmctld has forgotten an end."""


Compare = Callable[[Sequence[ListedJob], datetime], Sequence[LedgerEntry]]


class JobList(Protocol):
    """The jobs of the cluster. Each call raises BackendError."""

    def jobs(self) -> tuple[ListedJob, ...]:
        """Those that run, that ended badly, or that are held after their end."""

    def job(self, job: str) -> SlurmJob:
        """One job with all that the cluster has of it."""

    def running(self, job: str) -> tuple[SlurmJob, Mapping[str, frozenset[int]]]:
        """A running job, and the indices of its GPUs by node."""


class JobWatch:
    """Keeps the jobs of a fleet for as long as this controller leads, from a thread of its own: no sync, and no reading
    of the fleet, waits for it. ``reading``: the fleet as it was read last; raises BackendError, ConfigError.
    ``compare``: compares those that run."""

    def __init__(
        self,
        jobs: JobList,
        reading: Callable[[], FleetPicture],
        keeper: JobKeeper,
        log: Any,
        *,
        compare: Compare = lambda *_: (),
        every_s: float = EVERY_S,
    ) -> None:
        self._jobs, self._reading, self._keeper, self._log, self._every_s = jobs, reading, keeper, log, every_s
        self._problem, self._compare = "", compare

    def keep(self, stop: threading.Event) -> None:
        """List the jobs again and again until ``stop``."""
        while not stop.is_set():
            self._pass()
            stop.wait(self._every_s)

    def _pass(self) -> None:
        problem = ""
        try:
            listed, fleet = self._jobs.jobs(), self._reading()
            self._keeper(listed, fleet)
            self._keeper.put(self._compare(listed, fleet.at))
        except (BackendError, ConfigError, StoreError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            self._log.error("ends of jobs are not kept now", message=problem)
        self._problem = problem


class JobKeeper:
    """The ends of the jobs of one fleet. ``ledger``: the ledger, open; raises StoreError. ``tell``: has the owner get a
    message; None: owners are not told."""

    def __init__(
        self,
        jobs: JobList,
        ledger: Callable[[], Ledger],
        policy: PolicySection,
        log: Any,
        *,
        tell: Callable[[Mapping[str, Any]], None] | None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._jobs, self._ledger, self._policy, self._log, self._tell = jobs, ledger, policy, log, tell
        self._clock = clock
        self._problem = ""
        self._held: dict[tuple[str, int], datetime] = {}
        """When the end of a job that is held was listed first: slurmctld keeps no time of it."""
        self._refused: dict[tuple[str, int], datetime] = {}
        """When a notice was refused last: these come behind the others."""

    def __call__(self, listed: Sequence[ListedJob], fleet: FleetPicture) -> None:
        """Judge what has ended by this list of jobs, and tell the owners. Raises StoreError."""
        ledger = self._ledger()
        nodes = {each.name: each for each in fleet.nodes}
        named = _named(fleet)
        known = {(each.job, each.run): each for each in ledger.job_ends_since(fleet.at - _SAME)}
        for (name, run), at in named.items():
            if (name, run) not in known:  # a node that is dead by now names it for as long as it is listed
                same = (each for each in ledger.job_ends(name) if each.run == run and each.at > at - _SAME)
                known.update(((name, run), each) for each in same)
        for each in listed:
            if not each.runs and (each.id, each.run) not in known:  # the cluster may list an end for days
                known.update(((each.id, each.run), end) for end in ledger.job_ends(each.id) if _may_be(each, end))
        self._held = {
            key: self._held.get(key, fleet.at) for key in ((each.id, each.run) for each in listed if each.held)
        }
        judged = []
        for each in list(_due(listed, named, known, fleet.at, self._held))[:_MOST]:
            try:
                job = self._jobs.job(each.id)
            except BackendError:
                continue  # slurmctld has forgotten it meanwhile, or the next pass finds it
            is_again = job.restarts > each.run
            is_failure = job.has_finished and not job.preempted  # whatever Slurm calls the end of a preempted one
            if is_again or is_failure:  # else it is ending, and may run again
                judged.append(self._judged(each, job, nodes, self._held.get((each.id, each.run), fleet.at)))
        ledger.put_jobs(judged)
        for end in judged:
            self._log.info("job.judged", job=end.job, verdict=end.verdict, message=end.sentence)
        self._tell_owners(ledger, [*known.values(), *judged], fleet.cluster)

    def put(self, entries: Sequence[LedgerEntry]) -> None:
        """Keep findings about running jobs. Raises StoreError."""
        if entries:
            self._ledger().put_entries(entries)

    def _judged(self, listed: ListedJob, job: SlurmJob, nodes: Mapping[str, FleetNode], now: datetime) -> LedgerJob:
        end = _end_of(listed, job, nodes, now)
        held = listed.held or job.held
        is_again = job.restarts > listed.run and not held
        how = _ending(job) if job.has_finished else job.reason if listed.not_started else "an error"
        release = release_words(job.acts_by or job.id, job.reason) if held else ""
        owner = at_end(job.id, how, end.blame, end.sentence, requeued=is_again, release=release)
        sentence = f"{end.sentence}; requeued" if is_again and end.blame is Blame.NODE else end.sentence
        if listed.not_started:
            owner = at_hold(job.id, job.reason, end.sentence, release)
            sentence = f"{end.sentence}; {held_sentence(job.reason, release)}"
        return LedgerJob(
            job=job.id,
            run=listed.run,
            at=listed.ended or (job.end if job.has_finished and job.end is not None else now),
            user=job.user,
            nodes=job.nodes,
            state=_HELD if held else job.state,
            ending=how,
            verdict=end.blame.value,
            sentence=sentence,
            code=end.code,
            notice=owner if self._tell is not None and self._tells(end, nodes) else "",
        )

    def _tells(self, end: SummarizedEnd, nodes: Mapping[str, FleetNode]) -> bool:
        """Whether the rule of the fault has the owner told, as it holds on the node that has it."""
        if not end.code:
            return self._policy.notify_owner
        summary = nodes[end.node].summary
        assert summary is not None  # noqa: S101 - it has named the code
        kind = summary.component.partition(" ")[0].partition(":")[0].lower()
        policy = policy_of(self._policy, summary.instance_type or None)
        return policy.notifies_owner(end.code, Component(kind=kind) if kind else NODE)

    def _tell_owners(self, ledger: Ledger, jobs: Iterable[LedgerJob], cluster: str) -> None:
        began, problem = self._clock(), ""
        waiting = {(each.job, each.run): each for each in jobs if each.notice and each.at >= began - TOLD_FOR}
        self._refused = {key: at for key, at in self._refused.items() if key in waiting}
        order = sorted(waiting, key=lambda key: self._refused.get(key, began - TOLD_FOR))
        for job in (waiting[key] for key in order) if self._tell is not None else ():
            if self._clock() >= began + _TELLS:
                break
            assert self._tell is not None  # noqa: S101 - else none waits
            try:
                self._tell(_notice(job, cluster))
            except NotDeliveredError as error:
                problem = f"owners of jobs are not told; trying again: {error}"
                if isinstance(error, RefusedError):
                    self._refused[job.job, job.run] = self._clock()
                    continue
                break
            ledger.put_jobs([replace(job, notice="")])
        self._news(problem)

    def _news(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._log.error("notice to the owner of a job", message=problem)
        self._problem = problem


def _named(fleet: FleetPicture) -> dict[tuple[str, int], datetime]:
    """The runs that nodes name as ended by their own fault, each with when that was written."""
    found = {}
    for each in fleet.nodes:
        job, _, run = each.summary.job.partition(":") if each.summary is not None else ("", "", "")
        if each.summary is not None and job.isdecimal() and run.isdecimal():
            found[job, int(run)] = each.summary.at or fleet.at
    return found


def _may_be(listed: ListedJob, end: LedgerJob) -> bool:
    """Whether this row may be of the end that is listed: one that is held has no time, and stays for as long as its
    owner lets it wait."""
    return end.run == listed.run and (not listed.held or end.state == _HELD)


def _due(
    listed: Sequence[ListedJob],
    named: Iterable[tuple[str, int]],
    known: Mapping[tuple[str, int], LedgerJob],
    now: datetime,
    held: Mapping[tuple[str, int], datetime],
) -> Iterator[ListedJob]:
    """The ends that are not known yet and whose nodes had the time to write. Runs that a node names as ended by its own
    fault come first: such a job may run again by now. ``held``: when those that are held were listed first."""
    found = {(job, run): ListedJob(id=job, run=run) for job, run in sorted(named)}
    for each in listed:
        ended = each.ended or held.get((each.id, each.run))
        if not each.runs and ended is not None and now - ended >= SETTLES:
            found[each.id, each.run] = each
    for key, each in found.items():
        before = known.get(key)
        if before is None or (each.ended is not None and before.at < each.ended - SETTLES):
            yield each


def _end_of(listed: ListedJob, job: SlurmJob, nodes: Mapping[str, FleetNode], now: datetime) -> SummarizedEnd:
    """The verdict: by the AdminComment of a job that goes on or is held, else by the summaries of its nodes."""
    if listed.not_started:
        refusals = [each for each in job.said if is_refusal(each)]
        if refusals:
            return SummarizedEnd(blame=Blame.NODE, sentence=refusals[-1])
        return SummarizedEnd(blame=Blame.UNKNOWN, sentence="not known whose fault: its launch failed")
    run = run_word(listed.id, listed.run)
    named = [name for name, each in nodes.items() if each.summary is not None and each.summary.job == run]
    said = about_run(job.said, listed.run)
    if not named and listed.held and (verdict := verdict_of(said)) is not None:
        last = next(each for each in reversed(said) if verdict_of((each,)) is verdict)
        return SummarizedEnd(blame=verdict, sentence=last)
    names = named or list(unfolded(job.nodes))
    summaries = {name: nodes[name].summary for name in names if name in nodes}
    dead = {name for name in summaries if nodes[name].listed.dead}
    silent_after_s = min((each.silent_after_s for each in nodes.values()), default=0.0)  # the same for all
    ended = listed.ended or now
    end = summarized_end(
        run, names, summaries, began=listed.began, ended=ended, silent_after_s=silent_after_s, dead=dead
    )
    if end.blame is Blame.JOB and job.state in _BY_A_NODE:  # it may answer again by now, and know nothing of it
        return SummarizedEnd(blame=Blame.UNKNOWN, sentence=f"not known whose fault: Slurm ended it with {job.state}")
    return end


def _ending(job: SlurmJob) -> str:
    return _ENDS.get(job.state) or ending(job.exit_code, job.signal) or job.state.lower().replace("_", " ")


def _notice(job: LedgerJob, cluster: str) -> Mapping[str, Any]:
    return {
        "schema": SCHEMA,
        "cluster": cluster,
        **json_fields(job, "job", "user", "nodes", "state"),
        "ended": job.at.isoformat(),
        **json_fields(job, "ending", "verdict"),
        "text": job.notice,
    }
