"""The engine's ports, wrapped from outside: every boundary is numbered, and at each something may be made to happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from healthd.core.errors import BackendRefused, BackendUnknown, StoreError
from healthd.core.model import Event, Remedy, Step
from healthd.remediation.decide.on_job import JobStage
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.dependencies import Resetter
from healthd.remediation.ports import (
    FleetSnapshot,
    JobControl,
    NodeJob,
    NodeView,
    Orchestrator,
    Provisioner,
    Slot,
    StateOwner,
)
from healthd.state.store import Store

T = TypeVar("T")


class Killed(BaseException):
    """kill -9: nothing of ours may catch it."""


def kill() -> None:
    """The daemon dies where it stands."""
    raise Killed


def no_answer() -> None:
    """An answer is lost; behind a call, after it was applied."""
    raise BackendUnknown("no answer within 5 s")


def refused() -> None:
    """The answer is no."""
    raise BackendRefused("Invalid user id")


def disk_is_full() -> None:
    """A write fails."""
    raise StoreError("the state was not written: database or disk is full")


class Wire:
    """Every boundary that the engine passes, in order, and what is to happen at some of them."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.at: dict[int, Callable[[], None]] = {}

    def boundary(self, name: str) -> None:
        number = len(self.passed)
        self.passed.append(name)
        if number in self.at:
            self.at.pop(number)()

    def around(self, name: str, call: Callable[[], T]) -> T:
        self.boundary(f"before {name}")
        result = call()
        self.boundary(f"after {name}")
        return result

    def numbers(self, *names: str) -> list[int]:
        return [number for number, name in enumerate(self.passed) if name in names]


class WiredOrchestrator(Struct):
    inner: Orchestrator
    wire: Wire
    intended: Callable[[Step], None]
    fencing: Callable[[], None]
    kind: str = "wired"

    def view(self, *, jobs: bool = False) -> NodeView:
        return self.wire.around("view", lambda: self.inner.view(jobs=jobs))

    def snapshot(self) -> FleetSnapshot:
        return self.wire.around("snapshot", self.inner.snapshot)

    def quarantine(self, text: str) -> None:
        self.intended(Step.DRAIN)
        self.wire.around("quarantine", lambda: self.inner.quarantine(text))

    def release(self, *, resume: bool) -> None:
        self.intended(Step.RELEASE)
        self.wire.around("release", lambda: self.inner.release(resume=resume))

    def slots(self) -> tuple[Slot, ...]:
        return self.wire.around("slots", self.inner.slots)

    def claim(self, scope: str, index: int) -> None:
        self.fencing()
        self.wire.around("claim", lambda: self.inner.claim(scope, index))

    def keep_awake(self, *, on: bool) -> None:
        self.wire.around("keep_awake", lambda: self.inner.keep_awake(on=on))

    def fence(self) -> None:
        self.inner.fence()

    def give_back(self, slot: Slot) -> None:
        self.wire.around("give_back", lambda: self.inner.give_back(slot))

    def write_record(self, text: str) -> None:
        self.wire.around("write_record", lambda: self.inner.write_record(text))

    def read_record(self) -> str:
        return self.wire.around("read_record", self.inner.read_record)


class WiredProvisioner(Struct):
    inner: Provisioner
    wire: Wire
    intended: Callable[[Step], None]
    kind: str = "wired"

    @property
    def state_owner(self) -> StateOwner:
        return self.inner.state_owner

    @property
    def delegates(self) -> bool:
        return self.inner.delegates

    @property
    def acts_late(self) -> bool:
        return self.inner.acts_late

    def reason_against(self, remedy: Remedy) -> str:
        return self.inner.reason_against(remedy)

    def dry_run(self, remedy: Remedy) -> str:
        return self.inner.dry_run(remedy)

    def stands_down(self) -> str:
        return self.inner.stands_down()

    def machine(self) -> str:
        return self.wire.around("machine", self.inner.machine)

    def reboot(self) -> None:
        self.intended(Step.REBOOT)
        self.wire.around("reboot", self.inner.reboot)

    def replace(self) -> None:
        self.intended(Step.REPLACE)
        self.wire.around("replace", self.inner.replace)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        return self.inner.repeats_after_s(remedy)

    def take_back(self, *, carried_out: bool) -> bool:
        return self.wire.around("take_back", lambda: self.inner.take_back(carried_out=carried_out))

    def progress(self) -> str:
        return self.inner.progress()


class WiredResetter(Struct):
    inner: Resetter
    wire: Wire
    intended: Callable[[Step], None]

    def reason_against(self) -> str:
        return self.inner.reason_against()

    def holders(self) -> tuple[str, ...]:
        return self.inner.holders()

    def reset(self, stop: tuple[str, ...]) -> str:
        self.intended(Step.RESET)
        return self.wire.around("reset", lambda: self.inner.reset(stop))

    def start(self, services: tuple[str, ...]) -> str:
        return self.wire.around("start", lambda: self.inner.start(services))


class WiredJobs(Struct):
    """``intended``: asserts that the stage of an act is written before it."""

    inner: JobControl
    wire: Wire
    intended: Callable[[JobStage], None]

    def jobs(self) -> tuple[NodeJob, ...]:
        return self.wire.around("jobs", self.inner.jobs)

    def job(self, job: str) -> NodeJob | None:
        return self.wire.around("job", lambda: self.inner.job(job))

    def gpus(self, job: str) -> frozenset[int]:
        return self.wire.around("gpus", lambda: self.inner.gpus(job))

    def take_job(self, job: str, run: int, *, by: str, for_s: int) -> None:
        self.intended(JobStage.CLAIMING)
        self.wire.around("take_job", lambda: self.inner.take_job(job, run, by=by, for_s=for_s))

    def has_taken(self, job: str, run: int, *, by: str) -> bool:
        return self.wire.around("has_taken", lambda: self.inner.has_taken(job, run, by=by))

    def signal_job(self, job: str, signal: str) -> None:
        self.intended(JobStage.SIGNALLED)
        self.wire.around("signal_job", lambda: self.inner.signal_job(job, signal))

    def requeue_job(self, job: str) -> None:
        self.intended(JobStage.REQUEUED)
        self.wire.around("requeue_job", lambda: self.inner.requeue_job(job))

    def start_job(self, job: str) -> None:
        self.intended(JobStage.ENDED)
        self.wire.around("start_job", lambda: self.inner.start_job(job))


class WiredRemediations(Struct):
    inner: Store
    wire: Wire

    def open_remediation(self) -> Remediation | None:
        return self.inner.open_remediation()

    def knows(self, remediation_id: str) -> bool:
        return self.inner.knows(remediation_id)

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        self.wire.around("save", lambda: self.inner.save_remediation(remediation, event))


class Fleetwide(Protocol):
    """What the controller reads of the whole fleet."""

    def snapshot(self) -> FleetSnapshot: ...

    def slots(self) -> tuple[Slot, ...]: ...


class WiredFleet:
    """``seen``: what becomes of the fleet on its way to the controller."""

    def __init__(
        self, door: Fleetwide, wire: Wire, seen: Callable[[FleetSnapshot], FleetSnapshot] = lambda it: it
    ) -> None:
        self._door, self._wire, self._seen = door, wire, seen

    def fleet(self) -> FleetSnapshot:
        return self._seen(self._wire.around("fleet", self._door.snapshot))

    def slots(self) -> tuple[Slot, ...]:
        return self._wire.around("slots", self._door.slots)


class WiredKept:
    """The controller's cases on their way to its store."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self._store, self._wire = store, wire

    def remediations(self) -> tuple[Remediation, ...]:
        return self._store.remediations()

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        self._wire.around("save", lambda: self._store.save_remediation(remediation, event))
