"""The parent side of a probe: when a worker may be asked, and what happens to one that does not answer.

The rules: one question in flight; at its deadline the worker is killed; one that does not die is abandoned, counted and
never waited on, and no new worker starts while it lives; a lost worker is replaced after a back-off of 1, 2, 4 … 60 s
that the next answer resets; questions can be paused. Nothing here judges a stall: ``state()`` reports how long it has
lasted. Silence alone is a stall: a worker that crashes, one that still starts within its grace, and paused time are
none. The start after a worker that had answered does not prolong a stall either, unless it outlasts its grace.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from healthd.core.backoff import pause_s
from healthd.core.errors import SourceBusy, SourceTimeout, SourceUnreadable
from healthd.core.node import ProbeState
from healthd.probe import wire
from healthd.probe.child import Child, ChildTrouble, kill_group

MAX_BACKOFF_S = 60.0
_CLOSE_S = 1.0
_IDLE_EXIT = 0
_LEFT_ALONE = "HEALTHD_WORKERS_LEFT_ALONE"
_MOST_PASSED_ON = 20  # the kernel takes no variable of more than 128 KiB, and a mount point may have 4 KiB


class IdleWorkers:
    """Workers that have answered, or began ahead of a question, kept for the next one of whichever probe shares them.
    Safe to use from many threads. The last one in is the first one out, so that those too many become idle and end."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._children: list[Child] = []
        self._killed: list[Child] = []

    def take(self) -> Child | None:
        """One that lives, or None."""
        self.reap()
        with self._changing:
            return self._children.pop() if self._children else None

    def give(self, child: Child) -> None:
        """Keep a worker that has answered."""
        with self._changing:
            self._children.append(child)

    def reap(self) -> None:
        """Free the process table entry and the pipes of those that have ended by themselves. Never blocks."""
        with self._changing:
            ended = [child for child in self._children if child.gone()]
            self._children = [child for child in self._children if child not in ended]
            self._killed = [child for child in self._killed if not child.gone()]
        for child in ended:
            child.destroy()

    def close(self) -> None:
        """End all. A later :meth:`reap` frees those that were killed and have not died yet."""
        while child := self.take():
            if not child.destroy():
                with self._changing:
                    self._killed.append(child)


class Probe:
    """Questions to one family of workers, at most one of which lives at a time. Safe to use from many threads.

    ``name``: its name in messages. ``module`` has the worker's ``family``; ``arguments`` go to it. ``idle``: where a
    worker goes after its answer, and where the next one is taken from; probes that share it have the same module and
    arguments, and a worker that does not answer is never in it. None: it is this probe's alone. ``idle_s``: a worker
    without a question for so long ends by itself; 0 keeps it. ``start_grace_s``: a worker that is still starting at a
    deadline may finish for so long (nvmlInit takes seconds where no persistence daemon runs, and killing it each time
    would never let it finish); 0 kills it. ``clock`` returns monotonic seconds and drives back-off, pause and stall;
    deadlines are always real time. ``kill`` ends the process group with the given leader.
    """

    def __init__(
        self,
        name: str,
        *,
        module: str,
        arguments: Sequence[str] = (),
        idle: IdleWorkers | None = None,
        idle_s: float = 0.0,
        start_grace_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        kill: Callable[[int], None] = kill_group,
    ) -> None:
        self._name, self._key = name, f"{module} {name}"
        self._module, self._arguments = module, tuple(arguments)
        self._idle, self._idle_s, self._start_grace_s = idle, idle_s, start_grace_s
        self._clock, self._kill = clock, kill
        self._asking = threading.Lock()
        self._child: Child | None = None
        self._abandoned: list[Child | _Inherited] = [each for whose, each in _left_alone if whose == self._key]
        self._closing = self._ended = False
        self._started_at = 0.0
        self._starts = 0
        self._questions = 0
        self._losses = 0
        self._stalls = 0
        self._retry_at = 0.0
        self._stalled_since: float | None = None
        self._may_start_slowly = False
        self._paused_until = 0.0
        self._pause_reason = ""
        self._trouble = "no answer before healthd started again" if self._abandoned else ""

    def request(self, op: str, args: Mapping[str, Any], *, deadline_s: float) -> Any:
        """The worker's answer to ``op`` within ``deadline_s``, including the wait for an earlier question.

        Raises SourceBusy (not asked), SourceTimeout (the worker was killed), SourceUnreadable (the worker crashed, or
        its answer is garbage), or the error that the worker itself raised.
        """
        began = time.monotonic()
        self._refuse_if_paused()
        if not self._asking.acquire(timeout=deadline_s):
            raise SourceBusy(f"{self._name} probe: an earlier question has no answer after {deadline_s:g} s; not asked")
        try:
            waited_s = time.monotonic() - began
            if waited_s > deadline_s / 2:  # too little time left to distinguish a hang from a late start
                raise SourceBusy(
                    f"{self._name} probe: an earlier question took {waited_s:.1f} s; this one was not asked"
                )
            self._refuse_if_paused()
            return self._ask(op, args, until=began + deadline_s, deadline_s=deadline_s)
        finally:
            self._asking.release()

    def begin(self) -> None:
        """Start the worker ahead of a question that is about to come, so that it waits for less. Where none may start
        or can, the question raises why. Never blocks."""
        if not self._asking.acquire(blocking=False):
            return  # a question is out, and has a worker
        try:
            self._refuse_if_paused()
            child = self._running_child()
            if self._idle:
                self._child = None
                self._idle.give(child)
        except (SourceBusy, SourceUnreadable):
            return
        finally:
            self._asking.release()

    def pause(self, seconds: float, reason: str) -> None:
        """Refuse questions for ``seconds`` from now; a longer pause in force stays. This resets a stall."""
        self._stalled_since = None
        until = self._clock() + seconds
        if until > self._paused_until:
            self._paused_until, self._pause_reason = until, reason

    def resume(self, reason: str) -> None:
        """End the pause with this reason. A longer one with another reason stays."""
        if self._pause_reason == reason:
            self._paused_until, self._stalled_since = 0.0, None

    def state(self) -> ProbeState:
        """The state of the worker; never blocks. ``abandoned`` counts workers that were killed and still live."""
        self.reap()
        now = self._clock()
        stalled_since, paused_s = self._stalled_since, max(0.0, self._paused_until - now)
        silent_until = self._started_at if self._may_start_slowly and self._starts_in_its_grace() else now
        return ProbeState(
            stalled_s=0.0 if stalled_since is None else max(0.0, silent_until - stalled_since),
            paused_s=paused_s,
            reason=self._pause_reason if paused_s else self._trouble,
            abandoned=sum(not child.gone() for child in tuple(self._abandoned)),
            restarts=max(0, self._starts - 1),
            stalls=self._stalls,
        )

    def reap(self) -> None:
        """Free the process table entry and the pipes of a worker that has ended by itself. Never blocks: while a
        question is out, the thread that asked it does that."""
        if self._asking.acquire(blocking=False):
            try:
                if self._child and self._child.gone():
                    self._dispose()
                self._abandoned = [child for child in self._abandoned if not child.gone()]
            finally:
                self._asking.release()

    def close(self) -> None:
        """End the worker; a question in flight gets SourceBusy, and the next one starts a new worker."""
        self._closing, self._stalled_since = True, None
        try:
            if child := self._child:
                child.interrupt()
            if self._asking.acquire(timeout=_CLOSE_S):
                try:
                    self._dispose()
                finally:
                    self._asking.release()
        finally:
            self._closing = False

    def end(self) -> None:
        """As :meth:`close`, for good: a check that is still under way starts no worker, which nothing would end."""
        self._ended = True
        self.close()

    def worker_pid(self) -> int | None:
        """The process id of the worker for the next question, or None while there is none of its own."""
        child = self._child
        return None if child is None or child.gone() else child.pid

    # -- one question -------------------------------------------------------------------------------------------------

    def _ask(self, op: str, args: Mapping[str, Any], *, until: float, deadline_s: float) -> Any:
        asked_at = self._clock()
        self._questions += 1
        question = {"id": self._questions, "op": op, "args": dict(args)}
        child, answer = self._exchange(question, until)
        if answer is ChildTrouble.ENDED and not child.ending and child.exit_code() == _IDLE_EXIT:  # it left as we asked
            child, answer = self._exchange(question, until)
        if isinstance(answer, ChildTrouble):
            raise self._failure(child, answer, asked_at, op, deadline_s)
        if answer.get("id") != self._questions:
            raise self._failure(child, ChildTrouble.GARBLED, asked_at, op, deadline_s)
        self._answered(ends=bool(answer.get("end")))
        if error := wire.error_of(answer):
            raise error
        return answer.get("value")

    def _exchange(self, question: Mapping[str, Any], until: float) -> tuple[Child, dict[str, Any] | ChildTrouble]:
        child = self._running_child()
        if not child.ready:
            first = child.receive(until)
            if isinstance(first, ChildTrouble):
                return child, first
            if not first.get("ready"):
                return child, ChildTrouble.GARBLED
            child.ready = True
        return child, child.receive(until) if child.send(question) else ChildTrouble.ENDED

    def _answered(self, *, ends: bool) -> None:
        self._stalled_since, self._losses, self._trouble = None, 0, ""
        if ends or self._closing or self._ended:
            self._dispose()
        elif self._child:
            self._child.forget_output()
            if self._idle:
                child, self._child = self._child, None
                self._idle.give(child)

    def _failure(
        self, child: Child, trouble: ChildTrouble, asked_at: float, op: str, deadline_s: float
    ) -> SourceBusy | SourceTimeout | SourceUnreadable:
        """Handle a worker that did not answer, and return the error to raise."""
        if child.ending:
            self._dispose()
            return SourceBusy(f"{self._name} probe: healthd ended the worker on purpose during {op!r}; ask again")
        self._stalls += trouble is ChildTrouble.SILENT
        if trouble is ChildTrouble.SILENT and self._starts_in_its_grace():
            self._trouble = f"the worker is still starting after {self._clock() - self._started_at:.1f} s"
            return SourceTimeout(f"{self._name} probe: {self._trouble}; it may take up to {self._start_grace_s:g} s")
        if trouble is not ChildTrouble.SILENT:
            self._stalled_since = None
        elif self._stalled_since is None and self._paused_until <= self._clock():
            # At most the deadline ago: it is longer only where this process stood still.
            self._stalled_since = max(asked_at, self._clock() - deadline_s)
        self._trouble = self._describe(child, trouble, op, deadline_s)
        self._may_start_slowly = child.ready  # one that did not come to be ready has used that up
        gone = self._dispose()
        self._losses += 1
        self._retry_at = self._clock() + pause_s(self._losses, first_s=1.0, longest_s=MAX_BACKOFF_S)
        if trouble is not ChildTrouble.SILENT:
            return SourceUnreadable(f"{self._name} probe: {self._trouble}")
        fate = "killed" if gone else "killed and has not died (uninterruptible sleep?): it is left alone"
        return SourceTimeout(f"{self._name} probe: {self._trouble}; worker {child.pid} was {fate}")

    def _describe(self, child: Child, trouble: ChildTrouble, op: str, deadline_s: float) -> str:
        match trouble:
            case ChildTrouble.SILENT:
                return f"no answer to {op!r} within {deadline_s:g} s"
            case ChildTrouble.GARBLED:
                return f"worker {child.pid} answered {op!r} with something that is not an answer"
            case ChildTrouble.ENDED:
                message = child.last_output()
                end = f"worker {child.pid} {_end(child.exit_code())} before it answered {op!r}"
                return f"{end}: {message}" if message else end

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _starts_in_its_grace(self) -> bool:
        child = self._child
        return child is not None and not child.ready and self._clock() - self._started_at < self._start_grace_s

    def _running_child(self) -> Child:
        if self._child and self._child.gone():
            self._dispose()
        if self._child is None:
            self._refuse_to_start()
            self._child = self._idle.take() if self._idle else None
        if self._child is None:
            try:
                self._child = Child(self._module, self._arguments, idle_s=self._idle_s, kill=self._kill)
            except OSError as error:
                raise SourceUnreadable(f"{self._name} probe: cannot start a worker: {error}") from error
            self._started_at = self._clock()
            self._starts += 1
            if self._closing or self._ended:  # since it was allowed to start: close() did not see it
                self._child.interrupt()
        return self._child

    def _refuse_to_start(self) -> None:
        self._abandoned = [child for child in self._abandoned if not child.gone()]
        if self._closing or self._ended:
            raise SourceBusy(f"{self._name} probe: healthd is closing it; not asked")
        if self._abandoned:
            if self._stalled_since is None:  # a pause has reset the stall, which goes on
                self._stalled_since = self._clock()
            pids = ", ".join(str(child.pid) for child in self._abandoned)
            raise SourceBusy(
                f"{self._name} probe: worker {pids} was killed and still lives (uninterruptible sleep?); "
                f"healthd starts no second one before it is gone; last: {self._trouble}"
            )
        wait_s = self._retry_at - self._clock()
        if self._losses and wait_s > 0:
            raise SourceBusy(f"{self._name} probe: restarting in {wait_s:.0f} s; last: {self._trouble}")

    def _dispose(self) -> bool:
        """End the worker, if there is one. False when it did not die and was abandoned."""
        child, self._child = self._child, None
        if child is None or child.destroy():
            return True
        self._abandoned.append(child)
        with _leaving:
            _left_alone[:] = [*_still_alive(), (self._key, child)]
        return False

    def _refuse_if_paused(self) -> None:
        left_s = self._paused_until - self._clock()
        if left_s > 0:
            raise SourceBusy(f"{self._name} probe: {self._pause_reason}; not asked")  # the same message until it ends


def passed_on() -> dict[str, str]:
    """The environment of the next start in this process: it names the workers that were left alone and still live, for
    :func:`inherit`."""
    left = [(whose, child.pid) for whose, child in _still_alive()]
    return {_LEFT_ALONE: json.dumps(left[:_MOST_PASSED_ON])} if left else {}


def inherit() -> None:
    """Know the workers that the program before left alone in this process, whose children they are: no probe starts a
    second one beside them. To be called before the first probe is made."""
    named = json.loads(os.environ.pop(_LEFT_ALONE, "[]"))
    _left_alone.extend((whose, _Inherited(pid=pid)) for whose, pid in named)


class _Inherited(Struct, frozen=True, kw_only=True):
    """A worker that an earlier program of this process started. `healthd.sources.command` reaps it."""

    pid: int

    def gone(self) -> bool:
        """Whether it has ended; never blocks."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True


# By module and name of their probe, in whichever Probe object: it is the resource that no second worker may ask.
_left_alone: list[tuple[str, Child | _Inherited]] = []
_leaving = threading.Lock()


def _still_alive() -> list[tuple[str, Child | _Inherited]]:
    return [(whose, child) for whose, child in _left_alone if not child.gone()]


def _end(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    return f"died of signal {-code}" if code < 0 else f"exited with {code}"
