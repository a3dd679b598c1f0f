"""The engine's ports, wrapped from outside: every boundary is numbered, and at each something may be made to happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from healthd.errors import BackendRefused, BackendUnknown, StoreError
from healthd.model import Remedy, Step
from healthd.remediation.case import Case
from healthd.remediation.ports import FleetLevel, NodeView, Orchestrator, Provisioner
from healthd.store import Event, Store

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


@dataclass
class WiredOrchestrator:
    inner: Orchestrator
    wire: Wire
    intended: Callable[[Step], None]
    kind: str = "wired"

    def view(self, *, jobs: bool = False) -> NodeView:
        return self.wire.around("view", lambda: self.inner.view(jobs=jobs))

    def level(self) -> FleetLevel:
        return self.wire.around("level", self.inner.level)

    def quarantine(self, text: str) -> None:
        self.intended(Step.DRAIN)
        self.wire.around("quarantine", lambda: self.inner.quarantine(text))

    def release(self, *, resume: bool) -> None:
        self.intended(Step.RELEASE)
        self.wire.around("release", lambda: self.inner.release(resume=resume))


@dataclass
class WiredProvisioner:
    inner: Provisioner
    wire: Wire
    intended: Callable[[Step], None]
    kind: str = "wired"

    def can(self, remedy: Remedy) -> bool:
        return self.inner.can(remedy)

    def reboot(self) -> None:
        self.intended(Step.REBOOT)
        self.wire.around("reboot", self.inner.reboot)


@dataclass
class WiredCases:
    inner: Store
    wire: Wire

    def open_case(self) -> Case | None:
        return self.inner.open_case()

    def save_case(self, case: Case, event: Event) -> None:
        self.wire.around("save", lambda: self.inner.save_case(case, event))
