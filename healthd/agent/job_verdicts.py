"""The verdicts on jobs that end on this node: judged at the Epilog, kept in the audit trail, reported to slurmctld.

A verdict and its sentence for slurmctld are on disk together before the Epilog gets its answer, so that a kill -9 loses
neither. An Epilog that was killed, or whose daemon was, asks again: one run of a job is judged once, and its sentence
written once, however often that is tried. A thread of its own reports to slurmctld: no hook waits for it.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from healthd.config.schema.config import SlurmSection
from healthd.core.check import Check
from healthd.core.encodable import NOT_JSON, json_text
from healthd.core.errors import BackendError, StoreError
from healthd.core.hostlist import unfolded
from healthd.core.json_documents import json_fields
from healthd.core.model import NODE, Component, Event, Mode, Outcome
from healthd.job.blame import JOB_EVENT, Blame, JobVerdict, blame
from healthd.job.held import release_words
from healthd.job.job import Job, Stop, job_of, stopped
from healthd.job.speakers import blame_table
from healthd.job.text import (
    about_run,
    at_drain,
    found,
    held_sentence,
    in_trail,
    node_sentence,
    nodes_sentence,
    of_run,
    part_of,
)
from healthd.judge.history import Fault
from healthd.remediation.decide.blame_limit import drained_before
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import BY_REMEDY, OpenCodes, Policy
from healthd.remediation.orchestrators.slurm.job_comments import (
    SlurmJob,
    append_comment,
    expedites,
    read_job,
    read_texts,
    tell_owners,
)
from healthd.remediation.orchestrators.slurm.jobs import find_job
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, parse_nodes
from healthd.remediation.records.job_summaries import run_word, summarized_end
from healthd.remediation.records.summary import SILENT_AFTER, parse_summary
from healthd.state.monitor import Monitor
from healthd.state.store import Store

NOTES = "job_notes"
"""The store's key of the notes that are still to be written."""
BLAMED = "job_blamed"
"""The store's key of the last run of a job that this node is to blame for."""
BLAMED_FOR = timedelta(hours=1)
"""How long the summary names it: the controller reads it within a minute, or once it is back."""
REQUEUED_WITHIN = timedelta(seconds=3)
"""Slurm 26.05 runs a job again 0.2 to 0.6 s after an Epilog that blames its node."""
WAITED_FOR = timedelta(minutes=30)
"""PyTorch's default timeout of a process group: 10 minutes with NCCL, 30 with other back ends
(torch.distributed.init_process_group). A job that goes on for longer has survived the fault."""
_REQUEUED_AFTER = timedelta(seconds=3)
"""By then slurmctld has heard of a prolog that failed."""
SUMMARIES_AFTER = timedelta(seconds=15)
"""By then each node of the job has written a new summary, if its state changed with the job."""
GIVEN_UP_AFTER = timedelta(minutes=10)
"""slurmctld forgets a job after MinJobAge, 300 s by default."""
ASKED_AGAIN_WITHIN = timedelta(seconds=30)
"""epilog.sh ends 26 s after its start at the latest."""
_POLL_S, _AGAIN_S, _IDLE_S = 0.2, 2.0, 60.0
_GROWTH = 0.25
"""Of the time since the end of the job: the pause before the next request, up to _IDLE_S. A job stays COMPLETING for as
long as an Epilog of it runs or hangs, or a node of it is down."""
_REMEMBERED = 1_000
_MOST_NOTES = 200


class JobNote(Struct, frozen=True, kw_only=True):
    """A sentence that is still to be written to a job. ``sentence`` "": that for all ``nodes`` of the job, made of what
    each wrote. ``blamed``: the Epilog blamed this node, so that the job may run again; ``requeued``: it does, as Slurm
    had requeued it before. ``undecided``: this node could not tell. ``refused``: the prolog did not let it start here,
    and nothing is written unless Slurm holds it for that."""

    job: str
    restarts: int
    ended: datetime
    due: datetime
    sentence: str = ""
    nodes: str = ""
    blamed: bool = False
    requeued: bool = False
    undecided: bool = False
    refused: bool = False
    began: datetime | None = None


class BlamedRun(Struct, frozen=True, kw_only=True):
    """A run of a job that this node is to blame for, and when that was judged."""

    run: str
    at: datetime


_BLAMED = msgspec.json.Decoder(BlamedRun)
_NOTES = msgspec.json.Decoder(list[JobNote])  # made once: threads that make one at the same moment have crashed msgspec


class JobVerdicts:
    """``slurm``: reports to slurmctld; None where the cluster is another. ``holds``: the remediation whose drain
    stands, as the engine saw it last."""

    def __init__(
        self,
        *,
        node: str,
        monitor: Monitor,
        store: Store,
        checks: Mapping[str, Check],
        mode: Mode,
        section: SlurmSection,
        slurm: SlurmOrchestrator | None,
        holds: Callable[[], Remediation | None],
        clock: Callable[[], datetime],
        policy: Policy = BY_REMEDY,
    ) -> None:
        self._policy = policy
        self._node, self._monitor, self._store, self._holds, self._clock = node, monitor, store, holds, clock
        self._slurm, self._reads = (slurm if mode is not Mode.OBSERVE else None), slurm
        self._section = section
        table = blame_table()
        self._telling = frozenset(
            name for name, check in checks.items() if any(table.may_blame(code.code) for code in check.codes)
        )
        self._lock = threading.Lock()
        self._notes: tuple[JobNote, ...] = _kept(store) if self._slurm is not None else ()
        self._blamed = _last_blamed(store)
        self._began: OrderedDict[str, datetime] = OrderedDict()
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._starting: set[str] = set()
        """The jobs whose prolog has no answer yet: what drains the node now refuses them."""
        self._told_drain = ""
        self._untold: datetime | None = None
        """Since when slurmctld has not answered about the notices of that drain."""
        self.wake = threading.Event()
        self.counted: Counter[str] = Counter()
        """Jobs that ended here, by verdict."""

    def begins(self, job: str, now: datetime) -> None:
        """A job is about to start here: Slurm before 25.11 does not tell an Epilog when that was."""
        self._began[job] = now
        self._starting.add(job)
        self._refused.pop(job, None)  # another run of it
        while len(self._began) > _REMEMBERED:
            self._starting.discard(self._began.popitem(last=False)[0])

    def prolog_ended(self, job: str, *, refused: bool) -> None:
        """The job has the answer of its prolog."""
        if refused:
            self.refuses(job)
        self._starting.discard(job)

    def refuses(self, job: str) -> None:
        """A job is refused by the prolog: it does not run here, and its Epilog, which comes all the same, judges
        nothing. Slurm may hold it from now on."""
        self._refused[job] = None
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        if self._slurm is not None:
            now = self._clock()
            note = JobNote(job=job, restarts=0, ended=now, due=now + _REQUEUED_AFTER, refused=True)
            with self._lock:
                self._replace((*self._notes, note)[-_MOST_NOTES:])
            self.wake.set()

    def was_refused(self, job: str) -> bool:
        """Whether this Epilog is of a run that was refused here."""
        return job in self._refused

    def judge(self, environ: Mapping[str, str], outcomes: Iterable[Outcome], now: datetime) -> tuple[Job, JobVerdict]:
        """The blame for a job that ended ``now``. A fault that was over by then counts where the job may have met it,
        and not half an hour has passed since: its other ranks wait that long for one that is gone.

        slurmctld is asked about a job that ended badly, and about one that ended well by its exit code on a node with a
        fault: it may have ended that job itself.
        """
        job = job_of(environ, start=self._began.get(environ.get("SLURM_JOB_ID", "")), end=now)
        faults = self._met_by(job, now)
        blind = [
            f"{each.check} is unknown: {each.result.reason or ', '.join(each.result.undecided)}"
            for each in outcomes
            if each.check in self._telling and each.counts_as_unknown
        ]
        verdict = blame(job, faults, blame_table(), blind)
        if verdict.blame is Blame.NONE:
            failed = replace(job, exit_code=None, signal=None)
            if blame(failed, faults, blame_table(), blind).blame is not Blame.NODE:
                return job, verdict
        job = self._as_slurm_ends(job)
        return job, blame(job, self._met_by(job, now), blame_table(), blind)

    def _met_by(self, job: Job, now: datetime) -> Sequence[Fault]:
        return self._monitor.open_since(now if job.start is None else max(job.start, now - WAITED_FOR))

    def _as_slurm_ends(self, job: Job) -> Job:
        """The job with what slurmctld says of its end, and of its start where a daemon before this one saw that; as it
        is where that is not known."""
        try:
            found = find_job(self._reads, job.id) if self._reads is not None else None
            if self._reads is None or found is None:
                return job
            end = read_texts(self._reads, found.id) if job.seems_good else None
        except BackendError:
            return job
        ended = end is not None and (end.exit_code, end.signal) != (0, 0)
        if job.start is None and not found.is_requeued:  # the start of one that is requeued moves with the clock
            job = replace(job, start=found.began)
        return stopped(job, preempted=found.preempted, requeued=found.is_requeued, restarts=found.restarts, ended=ended)

    def keep(self, job: Job, verdict: JobVerdict, *, blamed: bool, now: datetime) -> None:
        """Write a verdict down, and the note for slurmctld, unless an Epilog of this run came to the same just before.

        Where the disk refuses, memory keeps them until it takes them. Raises StoreError then for a verdict that was to
        blame the node: slurmctld does not get it.
        """
        event = Event(at=now, kind=JOB_EVENT, text=in_trail(job, verdict), data=_data(job, verdict, blamed))
        if verdict.blame is Blame.NONE:
            self.counted[verdict.blame] += 1
            return
        if self._is_kept(event, job.id):
            return
        self.counted[verdict.blame] += 1
        facts: dict[str, str] = {}
        if verdict.blame is Blame.NODE:
            self._blamed = BlamedRun(run=run_word(job.id, job.restarts), at=now)
            facts[BLAMED] = json_text(self._blamed)
        with self._lock:
            if self._slurm is not None and (note := self._note(job, verdict, blamed, now)) is not None:
                self._notes = (*self._notes, note)[-_MOST_NOTES:]
                facts[NOTES] = json_text(list(self._notes))
                self.wake.set()
            try:
                self._store.keep_all(facts, event)
            except StoreError:  # the monitor reports a disk that refuses; the notes are told from memory
                self._monitor.record(replace(event, data={**event.data, "blamed": False}))
                if blamed:
                    raise

    def _is_kept(self, event: Event, job: str) -> bool:
        """Whether the last verdict on this job is the same one, of the same run, and of just before."""
        try:
            kept = self._store.events_of_job(job)
        except StoreError:
            return False
        if not kept or abs(event.at - kept[-1].at) > ASKED_AGAIN_WITHIN:
            return False
        before, new = kept[-1].data, event.data
        starts = {each["start"] for each in (before, new)} - {None}
        return len(starts) < 2 and all(before[key] == new[key] for key in ("restarts", "verdict", "blamed"))

    def blamed_run(self) -> str:
        """The last run of a job that this node is to blame for, for its summary; "" after an hour."""
        last = self._blamed
        return last.run if last is not None and abs(self._clock() - last.at) < BLAMED_FOR else ""

    def sees(self, remediation: Remediation | None) -> None:
        """The engine has taken a step: where that drained the node, the owners of its jobs get a notice."""
        is_drained = remediation is not None and remediation.hold is not None
        if self._slurm is not None and remediation is not None and is_drained and remediation.id != self._told_drain:
            self.wake.set()

    def reason_against_blame(self) -> str:
        """Why the Epilog does not blame this node to slurmctld, whatever the fault, or ""."""
        if self._slurm is None:
            return "observe mode blames no node" if self._reads is not None else "the cluster is not Slurm"
        if not self._section.blame_in_epilog:
            return "[orchestrator.slurm] blame_in_epilog is off"
        try:
            asks = expedites(self._slurm)
        except BackendError as error:
            return f"whether Slurm asks its Epilogs is not known: {error}"
        return "" if asks else "SlurmctldParameters has no enable_expedited_requeue"

    def over_limit(self) -> str:
        """Why this node is one too many within the hour, or ""."""
        assert self._slurm is not None  # noqa: S101 - else there was a reason against
        limit = self._section.max_blamed_per_hour
        try:
            earlier = drained_before(self._slurm.snapshot(), self._node, self._clock())
        except BackendError as error:
            return f"how many nodes were blamed within the hour is not known: {error}"
        if earlier < limit:
            return ""
        return f"healthd drained {earlier} other nodes within the hour; max_blamed_per_hour is {limit}"

    # -- telling ------------------------------------------------------------------------------------------------------

    def tell(self, stopping: Callable[[], bool] = lambda: False) -> tuple[float, tuple[str, ...]]:
        """Tell slurmctld what is due. Returns in how many seconds there is more, and what went wrong. Once ``stopping``
        is true nothing more is begun; the next daemon goes on."""
        problems = [*self._tell_owners(stopping)]
        for note in self._notes:
            if stopping():
                break
            if note.due <= self._clock():
                problems += self._write(note)
        waits_s = [max(_POLL_S, (note.due - self._clock()).total_seconds()) for note in self._notes]
        return min(waits_s, default=_IDLE_S), tuple(problems)

    def _note(self, job: Job, verdict: JobVerdict, blamed: bool, now: datetime) -> JobNote | None:
        """The sentence of this node, or of all nodes by the first of them; None where another node has to say it."""
        note = JobNote(
            job=job.id,
            restarts=job.restarts,
            ended=now,
            due=now,
            nodes=job.nodes,
            blamed=blamed,
            requeued=job.stop is Stop.REQUEUED,
            undecided=verdict.blame is Blame.UNKNOWN,
            began=job.start,
        )
        if verdict.blame is Blame.NODE and verdict.root is not None:
            fault = found(verdict.root, self._names())
            return replace(note, sentence=node_sentence(self._node, fault, drained=self._holds() is not None))
        if next(unfolded(job.nodes), self._node) != self._node:
            return None
        if sum(1 for _ in unfolded(job.nodes)) <= 1:
            return replace(note, sentence=nodes_sentence(1, (self._node,) if note.undecided else (), ()))
        return replace(note, due=now + SUMMARIES_AFTER)

    def _write(self, note: JobNote) -> Iterable[str]:
        assert self._slurm is not None  # noqa: S101 - without it there is no note
        now = self._clock()
        may_wait = now - note.ended < GIVEN_UP_AFTER
        try:
            job = read_job(self._slurm, note.job)
            if job.has_finished:
                self._done(note)  # slurmctld takes no comment of a finished job: the audit trail has the verdict
                return ()
            is_under_way = note.blamed and job.restarts == note.restarts and now - note.ended < REQUEUED_WITHIN
            if "COMPLETING" in job.state or is_under_way:
                if may_wait:
                    return self._later(note, _POLL_S)
                problem = f"it is still {job.state}"
            else:
                text = self._text(note, job)
                problem = append_comment(self._slurm, note.job, text) if text else ""
        except BackendError as error:
            if may_wait:
                return self._later(note, _AGAIN_S)
            problem = str(error)
        self._done(note)
        return [f"job {note.job}: AdminComment not written: {problem}"] if problem else []

    def _text(self, note: JobNote, job: SlurmJob) -> str:
        """The sentence of a note; "" for none."""
        if note.refused:
            return held_sentence(job.reason, release_words(job.acts_by or job.id, job.reason)) if job.held else ""
        text = note.sentence or self._of_all(note, job)
        runs_again = (note.blamed or note.requeued) and job.restarts > note.restarts
        ends = "; held" if job.held else "; requeued" if runs_again else ""
        return f"{of_run(text, note.restarts)}{ends}" if text else ""

    def _of_all(self, note: JobNote, job: SlurmJob) -> str:
        """The sentence for all nodes of a job; "" where one of them has said that it is to blame for this run."""
        assert self._slurm is not None  # noqa: S101 - as above
        names = tuple(unfolded(note.nodes))
        if any(each.startswith(f"node {name} ") for each in about_run(job.said, note.restarts) for name in names):
            return ""
        listed = {each.name: each for each in parse_nodes(self._slurm.all_nodes())}
        summaries = {name: parse_summary(listed[name].summary) for name in names if name in listed}
        undecided = self._node if note.undecided else ""
        run = run_word(note.job, note.restarts)
        dead = {name for name in summaries if listed[name].dead}
        end = summarized_end(
            run,
            names,
            summaries,
            began=note.began,
            ended=note.ended,
            silent_after_s=SILENT_AFTER * self._section.heartbeat_s,
            undecided=undecided,
            dead=dead,
        )
        return "" if end.blame is Blame.NODE else end.sentence  # that node says so itself

    def _tell_owners(self, stopping: Callable[[], bool]) -> Iterable[str]:
        """Notify the jobs on this node of a new drain of ours, each drain once. Where slurmctld did not answer it is
        tried again a minute later: a job with the notice gets no other."""
        remediation, now = self._holds() if self._slurm is not None else None, self._clock()
        is_due = self._untold is not None and now - self._untold >= timedelta(seconds=_IDLE_S)
        if self._slurm is None or remediation is None or (remediation.id == self._told_drain and not is_due):
            return
        self._told_drain, self._untold = remediation.id, None
        if remediation.by_command or not self._tells_of(remediation):
            return
        sentence = at_drain(self._node, remediation.code, part_of(remediation.component, self._names()))
        try:
            yield from tell_owners(self._slurm, sentence, stopping, runs=self._runs)
        except BackendError as error:
            self._untold = now
            yield f"owners of jobs got no notice of the drain yet: {error}"

    def _runs(self, job: str) -> bool:
        """Whether a job of this node goes on behind a drain: one that its prolog refuses gets the words of that."""
        return job not in self._starting and job not in self._refused

    def _tells_of(self, remediation: Remediation) -> bool:
        diagnoses = self._monitor.diagnoses()
        known = next((each for each in diagnoses if remediation.component in each.component.all_names()), None)
        component = known.component if known is not None else NODE
        beside = OpenCodes((each.component, each.codes) for each in diagnoses).beside(component)
        return self._policy.notifies_owner(remediation.code, component, beside)

    def _names(self) -> Collection[Component]:
        return self._monitor.history.names.values()

    def _later(self, note: JobNote, least_s: float) -> Sequence[str]:
        now = self._clock()
        pause_s = min(_IDLE_S, max(least_s, _GROWTH * (now - note.ended).total_seconds()))
        with self._lock:
            due = replace(note, due=now + timedelta(seconds=pause_s))
            self._notes = tuple(due if each is note else each for each in self._notes)
        return ()

    def _done(self, note: JobNote) -> None:
        with self._lock:
            self._replace(tuple(each for each in self._notes if each is not note))

    def _replace(self, notes: tuple[JobNote, ...]) -> None:
        """Keep these notes, in memory where the disk refuses. Called with the lock."""
        self._notes = notes
        try:
            self._store.keep(NOTES, json_text(list(notes)))
        except StoreError:
            return  # the monitor reports a disk that refuses; the notes are told from memory


def _kept(store: Store) -> tuple[JobNote, ...]:
    """The notes of the daemon before this one. Notes of another form are dropped: each costs one sentence."""
    try:
        return tuple(_NOTES.decode(store.fact(NOTES) or "[]"))
    except NOT_JSON:
        return ()


def _last_blamed(store: Store) -> BlamedRun | None:
    try:
        return _BLAMED.decode(store.fact(BLAMED) or "{}")
    except NOT_JSON:
        return None  # none yet, or of another form


def _data(job: Job, verdict: JobVerdict, blamed: bool) -> Mapping[str, object]:
    """The verdict as the audit trail and ``healthd job --json`` have it."""
    return {
        "job": job.id,
        **json_fields(job, "user", "nodes", "start", "end", "ending", "restarts"),
        "verdict": verdict.blame.value,
        "why": verdict.why,
        "blamed": blamed,
        "evidence": [
            {
                **json_fields(each, "speaks_for", "code", "component", "at", "message"),
                "critical": each.is_critical,
                "before": each.before,
            }
            for each in verdict.evidence
        ],
    }
