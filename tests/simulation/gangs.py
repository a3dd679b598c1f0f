"""The jobs of a simulated fleet, each of several nodes, as slurmctld runs them: one that is requeued, or loses a node,
ends on all of its nodes and waits for others.

A request that the controller does not answer may be applied when it wakes, as its other updates are. What must be true
of each requeue of ours is looked at here, and told to ``fail`` of the fleet's invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import BackendRefused, SlotTaken
from healthd.core.hostlist import folded, unfolded
from healthd.remediation.ports import NodeJob
from tests.simulation.slurm import Slurm
from tests.simulation.timeline import Timeline, WallClock

SWEEP_S = 5.0
REQUEUE_DELAY_S = 120.0
"""slurmctld's own, of a job that was requeued by a request."""


class Requeue(Struct, frozen=True, kw_only=True):
    """One requeue of ours: when, by which node, of which run."""

    s: float
    node: str
    job: str
    run: int


class Gangs:
    """``up``: whether the machine of a name runs. ``fail``: called with an invariant, the node, what is wrong."""

    def __init__(self, slurm: Slurm, timeline: Timeline, *, up: Callable[[str], bool]) -> None:
        self._slurm, self._timeline, self._clock, self._up = slurm, timeline, WallClock(timeline), up
        self.fail: Callable[[str, str, str], None] = lambda *_: None
        self.known: dict[str, NodeJob] = {}
        self._sizes: dict[str, int] = {}
        self._waits_until_s: dict[str, float] = {}
        self.taken: dict[tuple[str, int], str] = {}
        self.requeues: list[Requeue] = []

    def submit(self, job: str, size: int) -> None:
        """A batch job of so many nodes, which runs for as long as it is let."""
        self._sizes[job], self._waits_until_s[job] = size, 0.0
        self.known[job] = NodeJob(id=job, state="PENDING", user="alice", is_batch=True, may_requeue=True)

    def begin(self) -> None:
        """Schedule, and end what lost a node, every few seconds from now on."""
        for job in self.known.values():
            if job.state == "RUNNING" and not all(self._up(name) for name in unfolded(job.nodes)):
                self._ends(job, waits_s=0.0)
        free = [name for name in self._slurm.nodes if self._is_free(name)]
        for job in list(self.known.values()):
            size = self._sizes[job.id]
            due = job.state == "PENDING" and self._timeline.s >= self._waits_until_s[job.id]
            if due and len(free) >= size and not self._slurm.hung:
                names, free = free[:size], free[size:]
                self.known[job.id] = replace(job, state="RUNNING", nodes=folded(names), began=self._second())
                for name in names:
                    self._slurm.nodes[name].jobs.append(job.id)
        self._timeline.after(SWEEP_S, self.begin)

    def _is_free(self, name: str) -> bool:
        node, closed = self._slurm.nodes[name], self._slurm.holders() | self._slurm.maintenance
        return self._up(name) and not (node.flags or node.jobs or name in closed)

    def of(self, node: str) -> GangControl:
        """The door of one node's daemon to them."""
        return GangControl(self, node)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def seen_from(self, node: str, job: str) -> NodeJob | None:
        self._slurm.ask()
        found = self.known.get(job)
        return replace(found, is_here=node in unfolded(found.nodes)) if found is not None else None

    def take(self, job: str, run: int, by: str) -> None:
        self._slurm.or_later(partial(self.taken.setdefault, (job, run), by))
        if (job, run) in self.taken:
            raise SlotTaken("Error creating the reservation: Duplicate reservation name")
        self.taken[job, run] = by

    def requeue(self, job: str, node: str) -> None:
        self._slurm.or_later(partial(self._requeued, job, node, late=True))
        if self.known[job].state == "PENDING":
            raise BackendRefused("Job is pending execution")
        self._requeued(job, node, late=False)

    def start(self, job: str) -> None:
        self._slurm.or_later(partial(self._waits_until_s.__setitem__, job, 0.0))
        self._waits_until_s[job] = 0.0

    def has_taken(self, job: str, run: int, by: str) -> bool:
        self._slurm.ask()
        return self.taken.get((job, run)) == by

    # -----------------------------------------------------------------------------------------------------------------

    def _requeued(self, job: str, node: str, *, late: bool) -> None:
        there = self.known[job]
        if there.state != "RUNNING":
            return
        self._look_at(there, node, late=late)
        self.requeues.append(Requeue(s=self._timeline.s, node=node, job=job, run=there.restarts))
        self._ends(there, waits_s=REQUEUE_DELAY_S)

    def _look_at(self, job: NodeJob, node: str, *, late: bool) -> None:
        if any((each.job, each.run) == (job.id, job.restarts) for each in self.requeues):
            self.fail("a_run_is_requeued_once", node, f"run {job.restarts} of job {job.id} is requeued again")
        if late:
            return  # asked before the controller hung: others may have undone the drain meanwhile
        if node not in unfolded(job.nodes):
            self.fail("a_job_is_requeued_by_its_node", node, f"job {job.id} runs on {job.nodes}")
        if not (self._slurm.is_ours(node) and node in self._slurm.holders()):
            self.fail("a_requeue_is_behind_a_slot", node, f"job {job.id} is requeued without a drain and a slot")

    def _ends(self, job: NodeJob, *, waits_s: float) -> None:
        for name in unfolded(job.nodes):
            if job.id in self._slurm.nodes[name].jobs:
                self._slurm.nodes[name].jobs.remove(job.id)
                self._slurm.touched(name)
        self._waits_until_s[job.id] = self._timeline.s + waits_s
        self.known[job.id] = replace(job, state="PENDING", nodes="", restarts=job.restarts + 1, began=None)

    def _second(self) -> datetime:
        return datetime.fromtimestamp(int(self._clock.seconds()), UTC)


class GangControl(Struct, frozen=True):
    """See ``JobControl``; no job of these hears a signal."""

    gangs: Gangs
    node: str

    def jobs(self) -> tuple[NodeJob, ...]:
        found = (self.gangs.seen_from(self.node, job) for job in self.gangs.known)
        return tuple(job for job in found if job is not None and job.is_here)

    def job(self, job: str) -> NodeJob | None:
        return self.gangs.seen_from(self.node, job)

    def gpus(self, job: str) -> frozenset[int]:
        return frozenset()

    def take_job(self, job: str, run: int, *, by: str, for_s: int) -> None:
        self.gangs.take(job, run, f"{self.node} {by}")

    def has_taken(self, job: str, run: int, *, by: str) -> bool:
        return self.gangs.has_taken(job, run, f"{self.node} {by}")

    def signal_job(self, job: str, signal: str) -> None:
        raise BackendRefused("no step of this job hears a signal")

    def requeue_job(self, job: str) -> None:
        self.gangs.requeue(job, self.node)

    def start_job(self, job: str) -> None:
        self.gangs.start(job)
