"""The jobs of one node of a TroubledCluster, with slurmctld's laws: a requeue ends every process and waits, a second
one of the same run is refused, and what gets no answer may be applied when the controller wakes up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.ports import NodeJob
from tests.support.troubled_cluster import TroubledCluster


class FakeJobs(Struct):
    """``handles``: what a job does on a signal; nothing by itself. ``sent`` and ``requeued``: what was applied.
    ``has_gpus``: the indices of the GPUs of a job that does not have all of the node's.

    ``name``: of the node that takes them.
    """

    cluster: TroubledCluster
    node: str
    seconds: Callable[[], float]
    name: str = "here"
    known: dict[str, NodeJob] = field(default_factory=dict)
    taken: dict[tuple[str, int], str] = field(default_factory=dict)
    sent: list[tuple[str, str]] = field(default_factory=list)
    requeued: list[tuple[str, int]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    has_gpus: dict[str, frozenset[int]] = field(default_factory=dict)
    handles: Callable[[str], object] = lambda _: None
    _waiting: list[Callable[[], object]] = field(default_factory=list)
    _ended_s: dict[str, float] = field(default_factory=dict)

    def run(self, job: str = "12", nodes: str = "n[1-2]", **more: object) -> None:
        """A job runs from now on, here too unless ``nodes`` says otherwise."""
        self.known[job] = replace(
            NodeJob(
                id=job,
                state="RUNNING",
                user="alice",
                nodes=nodes,
                is_batch=True,
                may_requeue=True,
                is_here=True,
                began=self._second(),
            ),
            **more,  # the fields of a job
        )
        self.cluster.nodes[self.node].jobs.append(job)

    def end(self, state: str, job: str = "12") -> None:
        """It ends by itself."""
        self.known[job] = replace(self.known[job], state=state, ended=self._second())
        self._leave(job)

    def runs_again(self, nodes: str = "n[2-3]", job: str = "12") -> None:
        """slurmctld starts its next run, on other nodes."""
        self.known[job] = replace(self.known[job], state="RUNNING", nodes=nodes, is_here=False)

    def wake(self) -> None:
        """What got no answer is applied, as the cluster's own updates are."""
        self.cluster.wake()
        waiting, self._waiting = self._waiting, []
        for apply in waiting:
            apply()

    # -- the port -----------------------------------------------------------------------------------------------------

    def jobs(self) -> tuple[NodeJob, ...]:
        self.cluster.ask()
        return tuple(job for job in self.known.values() if job.is_here)

    def job(self, job: str) -> NodeJob | None:
        self.cluster.ask()
        return self.known.get(job)

    def gpus(self, job: str) -> frozenset[int]:
        self.cluster.ask()
        return self.has_gpus.get(job, frozenset())

    def take_job(self, job: str, run: int, *, by: str, for_s: int) -> None:
        self._or_later(partial(self.taken.setdefault, (job, run), f"{self.name} {by}"))
        if (job, run) in self.taken:
            raise SlotTaken("Duplicate reservation name")
        self.taken[job, run] = f"{self.name} {by}"

    def has_taken(self, job: str, run: int, *, by: str) -> bool:
        self.cluster.ask()
        return self.taken.get((job, run)) == f"{self.name} {by}"

    def signal_job(self, job: str, signal: str) -> None:
        self._or_later(partial(self._signal, job, signal))
        self._signal(job, signal)

    def requeue_job(self, job: str) -> None:
        self._or_later(partial(self._requeue, job))
        if self.known[job].state == "PENDING":
            raise BackendRefused("Job is pending execution")
        self._requeue(job)

    def start_job(self, job: str) -> None:
        """It begins at once where nodes are free. A slurmd whose clock is a second ahead refuses one that it takes for
        the run that it has just ended: slurmctld then lets the job fail."""
        self.cluster.ask()
        self.started.append(job)
        if self.seconds() < self._ended_s[job] + 2.0:
            self.known[job] = replace(self.known[job], state="FAILED")

    def _signal(self, job: str, signal: str) -> None:
        self.sent.append((job, signal))
        self.handles(job)

    def _requeue(self, job: str) -> None:
        there = self.known[job]
        if there.state == "PENDING":
            return
        self.requeued.append((job, there.restarts))
        self._ended_s[job] = self.seconds()
        self.known[job] = replace(there, state="PENDING", nodes="", restarts=there.restarts + 1, is_here=False)
        self._leave(job)

    def _second(self) -> datetime:
        return datetime.fromtimestamp(int(self.seconds()), UTC)

    def _leave(self, job: str) -> None:
        if job in self.cluster.nodes[self.node].jobs:
            self.cluster.nodes[self.node].jobs.remove(job)

    def _or_later(self, apply: Callable[[], object]) -> None:
        if self.cluster.hung:
            self._waiting.append(apply)
            raise BackendUnknown("Socket timed out on send/recv operation")
