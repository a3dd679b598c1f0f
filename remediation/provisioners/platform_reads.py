"""Reads of a provisioner: the meaning of a failed read right before an act, and how often a node reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.ports import Provisioner


@contextmanager
def before_acting() -> Iterator[None]:
    """A failed read before any request was sent: nothing can have been applied. Raises BackendBusy."""
    try:
        yield
    except BackendUnknown as error:
        raise BackendBusy(f"{error}; no request was sent yet") from error


class Paced:
    """``inner``, whose platform is asked at most once in ``every_s`` seconds for its progress, whether it acts already,
    or again for an act for which it was busy.

    The engine polls every few seconds, and the calls of all nodes count against one limit of their account. An answer
    that forbids an act, and the progress of an act, are repeated for ``every_s``; an act is allowed by a new read only.
    """

    def __init__(
        self, inner: Provisioner, *, every_s: float, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.kind, self.state_owner = inner.kind, inner.state_owner
        self.delegates, self.acts_late = inner.delegates, inner.acts_late
        self._inner, self._every_s, self._monotonic_s = inner, every_s, monotonic_s
        self._answers: dict[str, tuple[float, str | BackendRefused | BackendUnknown]] = {}

    def reason_against(self, remedy: Remedy) -> str:
        return self._inner.reason_against(remedy)

    def stands_down(self) -> str:
        """Whether the platform acts already, or was busy when it was asked last; such an answer is repeated."""
        answer = self._lately("stands_down", self._inner.stands_down)
        if not answer:
            self._answers.pop("stands_down")
        return answer

    def machine(self) -> str:
        return self._lately("machine", self._inner.machine)

    def progress(self) -> str:
        return self._lately("progress", self._inner.progress)

    def reboot(self) -> None:
        self._ask(self._inner.reboot)

    def replace(self) -> None:
        self._ask(self._inner.replace)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        return self._inner.repeats_after_s(remedy)

    def take_back(self, *, carried_out: bool) -> bool:
        self._answers.clear()
        return self._inner.take_back(carried_out=carried_out)

    def dry_run(self, remedy: Remedy) -> str:
        return self._inner.dry_run(remedy)

    def _ask(self, act: Callable[[], None]) -> None:
        self._answers.clear()
        try:
            act()
        except BackendBusy as error:
            self._answers["stands_down"] = (self._monotonic_s(), str(error))
            raise

    def _lately(self, name: str, ask: Callable[[], str]) -> str:
        at_s, answer = self._answers.get(name, (float("-inf"), ""))
        if self._monotonic_s() - at_s >= self._every_s:
            at_s = self._monotonic_s()
            try:
                answer = ask()
            except (BackendRefused, BackendUnknown) as error:
                answer = error
            self._answers[name] = (at_s, answer)
        if isinstance(answer, str):
            return answer
        raise answer
