"""Keeps the plan for each fault, so that a request for the status never waits for the cluster.

The policy may need the fleet snapshot to decide about a fault. A thread fetches it, at most every few seconds and only
while a fault is open; the status gets the last plan, and its age.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from healthd.agent.agent import Agent
from healthd.core.errors import BackendUnknown, HealthdError
from healthd.core.model import Diagnosis
from healthd.remediation.decide.policy import Considered

REFRESH_S = 10.0
TIMEOUT_S = 1.0


class PlanCache:
    """The last plan of one agent. ``consider`` makes a new one, and may take as long as the cluster does. ``do`` runs
    it with the rights to ask the cluster, which the thread of a request lacks."""

    def __init__(
        self,
        consider: Callable[[], Sequence[Considered]],
        *,
        do: Callable[[Callable[[], None]], None] = lambda work: work(),
        wait_s: float = TIMEOUT_S,
    ) -> None:
        self._consider, self._do, self._wait_s = consider, do, wait_s
        self._lock = threading.Lock()
        self._future: Future[tuple[Considered, ...]] | None = None
        self._of: tuple[Diagnosis, ...] = ()
        self._began = 0.0
        self._last: tuple[Considered, ...] = ()

    @classmethod
    def of(cls, agent: Agent) -> PlanCache:
        """The plan of this agent; an agent without an engine has none."""
        return cls(agent.engine.considered if agent.engine is not None else tuple, do=agent.checkup.do)

    def plans(self, diagnoses: Sequence[Diagnosis]) -> tuple[tuple[Considered, ...], str]:
        """(the plan for each of these faults that has one; why it is incomplete or stale, or ""). Without a fault, the
        cluster is not asked."""
        if not diagnoses:
            return (), ""
        future = self._asked(tuple(diagnoses))
        wait((future,), timeout=self._wait_s)
        problem = ""
        if not future.done():
            problem = f"no plan yet: waiting for the cluster for {time.monotonic() - self._began:.0f} s"
        elif (error := future.exception()) is None:
            self._last = future.result()
        elif isinstance(error, HealthdError):
            problem = f"no plan: {error}"
        else:
            raise error
        parts = {each.component for each in diagnoses}
        return tuple(each for each in self._last if each.diagnosis.component in parts), problem

    def _asked(self, diagnoses: tuple[Diagnosis, ...]) -> Future[tuple[Considered, ...]]:
        """The request under way, or one with a fresh answer; else a new request."""
        with self._lock:
            is_old = time.monotonic() - self._began > REFRESH_S or diagnoses != self._of
            if self._future is None or (self._future.done() and is_old):
                self._future, self._of, self._began = Future(), diagnoses, time.monotonic()
                self._begin(self._future)
            return self._future

    def _begin(self, future: Future[tuple[Considered, ...]]) -> None:
        try:
            self._do(threading.Thread(target=self._answer, args=(future,), name="plan", daemon=True).start)
        except (RuntimeError, HealthdError) as error:  # no more threads: the next try comes as after any answer
            future.set_exception(BackendUnknown(f"cannot start a thread to ask the cluster: {error}"))

    def _answer(self, future: Future[tuple[Considered, ...]]) -> None:
        try:
            future.set_result(tuple(self._consider()))
        except BaseException as error:  # noqa: BLE001 - the caller of plans() gets it
            future.set_exception(error)
