"""The cluster and the provider of a machine, as the engine needs them: two Protocols and the plain values they
exchange.

No I/O here. ``remediation/orchestrators`` and ``remediation/provisioners`` implement these against real systems,
``healthd.testing`` by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from healthd.core.model import Remedy


class Hold(Struct, frozen=True, kw_only=True):
    """The hold that keeps a node out, as the cluster shows it: the ownership of a drain is text, user and stamp
    together.

    ``stamp`` is the cluster's own time of the text, in whole seconds since the epoch. ``remark``: what the cluster's
    controller itself appended to ``text``, " : Not responding" for one; user and stamp may then be the controller's.
    ``automatic``: the controller wrote the whole text by itself, whatever its user, and no operator did.
    """

    text: str
    user: str
    stamp: int
    remark: str = ""
    automatic: bool = False

    @property
    def at(self) -> datetime:
        """The stamp as a time."""
        return datetime.fromtimestamp(self.stamp, UTC)

    @property
    def shown(self) -> str:
        """The text with its remark, as the cluster shows it."""
        return self.text + self.remark

    def is_still(self, before: Hold) -> bool:
        """Whether this is the hold that was read ``before``: same text, user and stamp. Beside a remark the text alone
        decides, because the controller puts its own user and stamp there; so it does behind one, which a controller
        that lost its state has forgotten."""
        is_written_alike = (self.user, self.stamp) == (before.user, before.stamp)
        return self.text == before.text and (is_written_alike or bool(self.remark or before.remark))


class NodeView(Struct, frozen=True, kw_only=True):
    """One reading of the node's own state in the cluster.

    ``in_service``: nothing keeps new jobs off. ``flags``: the cluster's own words, upper case (DRAIN, DOWN, FAIL,
    COMPLETING, NOT_RESPONDING, …). ``fenced``: a maintenance reservation, ours or another, and nothing else keeps new
    jobs off. ``allocated_cpus`` and ``jobs`` together say whether work is there; ``work``: the jobs in an operator's
    words, where the cluster says more than their ids.
    ``controller``: changes with what may lose a drain: when the cluster's controller restarts (Slurm's BOOT_TIME), or
    the Node is registered again (its UID); "" where it was not asked.
    ``maintenance``: the name of a maintenance window that another has on the node now; "" where there is none, or
    jobs were not asked for. ``freeze``: the freeze of the whole fleet that is on, in words; "" likewise.
    ``may_sleep``: the cluster powers idle nodes down and does not except this one; False where jobs were not asked for.
    ``features``: the cluster's own labels of the node, read together with its state.
    """

    name: str
    in_service: bool
    flags: frozenset[str]
    hold: Hold | None
    fenced: bool = False
    allocated_cpus: int = 0
    jobs: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    controller: str = ""
    maintenance: str = ""
    freeze: str = ""
    may_sleep: bool = False
    features: frozenset[str] = frozenset()

    @property
    def asleep(self) -> bool:
        """Whether the cluster has powered the node down and does not start it now: no machine is behind the name."""
        return "POWERED_DOWN" in self.flags and not self._is_woken

    @property
    def powered_down(self) -> bool:
        """Whether no machine is behind the name, or the cluster is taking it away now."""
        return bool(self.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}) and not self._is_woken

    @property
    def _is_woken(self) -> bool:
        return bool(self.flags & {"POWERING_UP", "POWER_UP"})

    @property
    def undrained(self) -> bool:
        """Neither drained nor down nor failing: a reservation at most keeps new jobs off."""
        return self.in_service or self.fenced

    @property
    def drained_by_itself(self) -> bool:
        """Whether the cluster's controller drained the node with a text of its own, and no operator did."""
        return self.hold is not None and self.hold.automatic and "DRAIN" in self.flags

    @property
    def idle(self) -> bool:
        """Truly idle: no allocated CPU, no job of any state listed, nothing still completing."""
        return not self.jobs and not self.allocated_cpus and "COMPLETING" not in self.flags


class ScopeSnapshot(Struct, frozen=True, kw_only=True):
    """The same as FleetSnapshot for one partition or instance group that this node is in."""

    scope: str
    out: frozenset[str]
    total: int


class NodeRecord(Struct, frozen=True, kw_only=True):
    """The handoff record that healthd has left with a node of the cluster, by the node's name: it outlives the disk,
    and is evidence."""

    node: str
    text: str


class HeldNode(Struct, frozen=True, kw_only=True):
    """A node that a healthd holds, as the cluster shows it: its reason, and when that was set, in epoch seconds."""

    node: str
    text: str
    stamp: int

    @property
    def at(self) -> datetime:
        """The stamp as a time."""
        return datetime.fromtimestamp(self.stamp, UTC)


class FleetSnapshot(Struct, frozen=True, kw_only=True):
    """How many nodes are out of service now, for any cause, and how many there are. Read from the cluster itself.

    A held slot alone does not count here. ``scopes``: the partitions or groups of this node. ``records``: the records
    that all nodes show. ``held``: the nodes whose reason is a healthd's. ``asleep``: the names that the cluster has
    powered down, which have no machine and are neither out nor in the total. ``drained``: those of them that the
    cluster's controller drained by itself. ``down``: the machines that are DOWN and do not answer: a node that rebooted
    behind a drain is DOWN as well, and answers. ``speakers``: the first two names of machines in service, of those
    whose daemon takes nodes out if any says so: the agent of the first speaks for the fleet, that of the other much
    later. ``limit``: how many may be out, where the cluster itself holds every node to a number; None where each node's
    configuration says it.
    """

    out: frozenset[str]
    total: int
    scopes: tuple[ScopeSnapshot, ...] = ()
    records: tuple[NodeRecord, ...] = ()
    held: tuple[HeldNode, ...] = ()
    asleep: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()
    speakers: tuple[str, ...] = ()
    limit: int | None = None


class ListedNode(Struct, frozen=True, kw_only=True):
    """One node as a list of the fleet shows it, for a reader: no decision is made by it.

    ``state``: the cluster's own words for it, ``flags`` the same apart, upper case. ``out``: it gets no new jobs.
    ``asleep``: a name that has no machine now. ``dead``: its machine does not answer. ``hold``: what it is out by; None
    where it is in service. ``record``: its handoff record, ``summary``: the summary that its agent wrote; "" for none.
    ``group``: the rack or leaf switch that the cluster knows it in. ``orchestrator``: the name of the cluster's
    software. ``agentless``: healthd has never run there, and the cluster does not say that it should.
    """

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    out: bool = False
    asleep: bool = False
    dead: bool = False
    hold: Hold | None = None
    partitions: tuple[str, ...] = ()
    record: str = ""
    summary: str = ""
    group: str = ""
    instance_type: str = ""
    orchestrator: str = "Slurm"
    agentless: bool = False


class Slot(Struct, frozen=True, kw_only=True):
    """One of the L places for nodes that are out, handed out atomically by the cluster's controller.

    ``scope``: ``cluster``, or the partition or instance group that it is a place of. ``index``: below zero for one
    that no healthd made. ``node``: who holds it; for a slot that another took by hand it may be any text, and it
    is taken all the same.
    """

    scope: str
    index: int
    node: str


def is_drain(flags: Iterable[str]) -> bool:
    """Whether a node's flags say that it is drained. A reason alone does not: it may be of a drain that is over."""
    return any(flag.startswith("DRAIN") for flag in flags)


class Orchestrator(Protocol):
    """Takes one node, this one, out of service and puts it back.

    Every call has its own deadline. ``BackendRefused``: answered no, nothing applied. ``BackendUnknown``: no answer,
    may have been applied. Reading calls raise BackendUnknown when the state could not be read.
    """

    kind: str

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read this node's state; constant cost. ``jobs`` adds what is asked before an act: its jobs, a maintenance
        window, and the controller's start."""

    def snapshot(self) -> FleetSnapshot:
        """Read how many nodes are out, over the whole cluster."""

    def quarantine(self, text: str) -> None:
        """Keep new jobs off, with ``text`` as the visible reason. Never called on a node that is held already."""

    def release(self, *, resume: bool) -> None:
        """Put the node back in service. ``resume`` also clears a DOWN that the drain went through. The caller owns the
        drain."""

    def slots(self) -> tuple[Slot, ...]:
        """List every slot of the fleet that is taken, by healthd or by hand."""

    def claim(self, scope: str, index: int) -> None:
        """Take this slot for this node; it also keeps new jobs off. Raises SlotTaken when it is taken."""

    def fence(self) -> None:
        """Keep new jobs off while a slot is held, where ``claim`` may have come to its slot alone: it failed half-way,
        or a daemon before this one was killed in it. Nothing is done where it is so."""

    def keep_awake(self, *, on: bool) -> None:
        """Have the cluster's power saving leave this node alone, or no longer. Refused where it has no such setting."""

    def give_back(self, slot: Slot) -> None:
        """Give a slot of this node back. One that is gone already is fine; one that is another's is refused."""

    def write_record(self, text: str) -> None:
        """Leave a handoff record with the node, "" to take ours away. Refused where another text is in its place."""

    def read_record(self) -> str:
        """Read this node's handoff record; "" where it has none of ours. Constant cost."""


class NodeJob(Struct, frozen=True, kw_only=True):
    """One run of a batch system's job, as its cluster shows it.

    ``id``: by which its cluster acts on this job alone. ``number``: the one that the job itself knows; "" for the same.
    ``state``: the cluster's word, upper case. ``nodes``: all of them, as a host list; "" while it waits. ``restarts``:
    how often it was requeued before. ``is_batch`` and ``may_requeue``: whether it can be requeued, and allows it.
    ``is_part``: one part of a job of several. ``is_here``: this node is one of its nodes. ``ended``: of a job that runs
    a planned end, or None. ``reason``: why it waits, in the cluster's words. ``held``: it waits for a command that
    releases it. ``preempted``: the cluster preempts it, at once or after its grace, or has ended it so.
    """

    id: str
    state: str
    number: str = ""
    user: str = ""
    nodes: str = ""
    restarts: int = 0
    is_batch: bool = False
    may_requeue: bool = False
    is_part: bool = False
    is_here: bool = False
    began: datetime | None = None
    ended: datetime | None = None
    reason: str = ""
    held: bool = False
    preempted: bool = False

    @property
    def title(self) -> str:
        """``12 of alice on n[1-4]``: all nodes are named."""
        return f"{self.id}{f' of {self.user}' if self.user else ''}{f' on {self.nodes}' if self.nodes else ''}"

    @property
    def is_requeued(self) -> bool:
        """Whether its processes end, and its next run is counted already: one that is over has an end by then."""
        return self.state == "COMPLETING" and self.ended is None


class JobControl(Protocol):
    """Restarts the jobs of one node. Every call has its own deadline, and raises as of an Orchestrator."""

    def jobs(self) -> tuple[NodeJob, ...]:
        """The jobs that run on this node, and those that ended here and are not forgotten yet."""

    def job(self, job: str) -> NodeJob | None:
        """One job, wherever it is; None where the cluster does not know it any more."""

    def gpus(self, job: str) -> frozenset[int]:
        """The indices of the GPUs of this node that a running job has; none where it may have all of them."""

    def take_job(self, job: str, run: int, *, by: str, for_s: int) -> None:
        """Take this run of a job, so that no other node acts on it for so many seconds. ``by``: the id of the
        remediation. Raises SlotTaken where another has taken it, or this one before."""

    def has_taken(self, job: str, run: int, *, by: str) -> bool:
        """Whether it was this remediation of this node that took this run of a job."""

    def signal_job(self, job: str, signal: str) -> None:
        """Send a signal to all steps of a job; ``B:USR1`` to its batch script."""

    def requeue_job(self, job: str) -> None:
        """Requeue a job, on all of its nodes."""

    def start_job(self, job: str) -> None:
        """Let a requeued job start now, where its nodes are free."""


class StateOwner(StrEnum):
    """The owner of the node's state in the cluster while it is repaired.

    ENGINE: our drain stays as we made it. AFTER_ASKING: what was asked for takes the drain's place, and the platform
    puts the node back by itself. PLATFORM: a drain would be a replacement, so there is none; our slot alone keeps jobs
    off, all the way.
    """

    ENGINE = "engine"
    AFTER_ASKING = "after_asking"
    PLATFORM = "platform"


class Provisioner(Protocol):
    """Restarts or replaces the machine behind the node."""

    kind: str

    @property
    def state_owner(self) -> StateOwner:
        """The owner of the node's state while it is repaired."""

    @property
    def delegates(self) -> bool:
        """Whether this only asks: ``healthd controller`` acts, by the handoff record, and answers there."""

    @property
    def acts_late(self) -> bool:
        """Whether a request stands for many minutes before the platform acts on it, and can be withdrawn until then."""

    def reason_against(self, remedy: Remedy) -> str:
        """Why this provider, as configured and on this platform, cannot carry out ``remedy``, or ""."""

    def dry_run(self, remedy: Remedy) -> str:
        """The request that would be made, and where there is a dry run, its answer. Raises what the act would raise at
        once."""

    def stands_down(self) -> str:
        """Why another (HyperPod's agent, clustermgtd) is acting on this machine already, or ""."""

    def machine(self) -> str:
        """The instance id behind this node's name now. Raises BackendUnknown where it is not known."""

    def reboot(self) -> None:
        """Ask for a reboot. Evidence that it happened is a changed boot id, never this call's return."""

    def replace(self) -> None:
        """Ask for another machine behind the same name. Evidence that it happened is a changed instance id."""

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """After how many seconds a request whose fate is not known may be made again; None: never. Reads nothing.

        0: asked twice it comes to what it does asked once, because it names this very machine, and what is under way
        shows in ``stands_down`` or ``machine``. More: by then a first request would have shown.
        """

    def take_back(self, *, carried_out: bool) -> bool:
        """Take back what was asked for, where a request stands until it is: once its evidence is there
        (``carried_out``), so that nothing more comes of it, else only while nothing has. Returns whether it was: where
        that shows only later, False until then, and it is asked again.

        What was done at once by being asked for cannot be: False, and nothing is done. Raises BackendError.
        """

    def progress(self) -> str:
        """The platform's word on the reboot or replacement that was asked for; "" where it says nothing.

        Raises BackendRefused when it has failed for good, BackendBusy where it waits for what an operator must see to
        (BackendHalfDone: for as long as it takes),
        BackendUnknown where it is not known.
        """
