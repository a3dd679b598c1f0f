"""The drills of a daemon: one at a time, refused on a busy node, labelled wherever they show, gone when they end.

Nothing of a drill enters the node's own history, so no verdict, hook, remediation, message or baseline knows of it; it
is only in memory, and ends with the daemon. ``rehearsal`` plays one drill.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from healthd.core.errors import SourceError
from healthd.core.model import Event
from healthd.core.node import KernelRecord
from healthd.drill.chain import TITLE, DrillReport, DrillRequest, Ended, banner
from healthd.drill.injection import prepare
from healthd.drill.rehearsal import DrillEvent, Rehearsal, Stage
from healthd.observe.checkup import Checkup
from healthd.observe.idle import not_idle
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.engine import Engine
from healthd.remediation.ports import Orchestrator

Tick = Callable[[str], None]

_CLOSE_S = 3.0


class Drills:
    """The drills of one node. ``inject``, ``wake``, ``open_remediation``: see ``rehearsal.Stage``. ``say``: to the
    log."""

    def __init__(
        self,
        *,
        checkup: Checkup,
        engine: Engine,
        orchestrator: Orchestrator | None,
        open_remediation: Callable[[], Remediation | None],
        inject: Callable[[str], None],
        wake: Callable[[], None],
        say: Callable[..., None],
    ) -> None:
        self._checkup, self._orchestrator, self._say = checkup, orchestrator, say
        self._stage = Stage(checkup=checkup, engine=engine, open_remediation=open_remediation, inject=inject, wake=wake)
        self._one = threading.Lock()
        self._current: Rehearsal | None = None
        self._closed = ""
        self.ran: Counter[tuple[str, Ended]] = Counter()
        """Drills that ended, by kind and end."""

    # -- events from the daemon; none of these waits ------------------------------------------------------------------

    @property
    def running(self) -> str:
        """The kind of the running drill, or ""."""
        current = self._current
        return current.request.kind.name if current is not None else ""

    def saw(self, records: tuple[KernelRecord, ...]) -> None:
        """Injected records came through the reader of the kernel log."""
        if records:
            self._tell(DrillEvent(what="records", at=time.monotonic(), records=records))

    def due(self, check: str) -> None:
        """This check is due."""
        self._tell(DrillEvent(what="due", at=time.monotonic(), text=check))

    def came_round(self) -> None:
        """The engine has reconciled."""
        self._tell(DrillEvent(what="round", at=time.monotonic()))

    def close(self, why: str) -> None:
        """End the running drill, and refuse new ones."""
        self._closed = why
        self._tell(DrillEvent(what="end", at=time.monotonic(), text=why))
        if (current := self._current) is not None:
            current.injection.close()  # a worker that never answers is not waited for
        if self._one.acquire(timeout=_CLOSE_S):
            self._one.release()

    def _tell(self, heard: DrillEvent) -> None:
        current = self._current
        if current is not None:
            current.queue.put(heard)

    # -- a drill ------------------------------------------------------------------------------------------------------

    def run(self, request: DrillRequest, tick: Tick) -> DrillReport:
        """Play the fault and follow it to its end or its limit. ``tick`` gets the progress; if it raises, because the
        client is gone, the drill ends.

        Raises UsageError for a component that this node does not have.
        """
        drill_id, began = os.urandom(2).hex(), datetime.now(UTC)
        if not self._one.acquire(blocking=False):
            return self._refused(
                request,
                drill_id,
                began,
                f"a drill ({self.running or 'another'}) is running on this node; wait for its end",
            )
        try:
            if why := self._closed or self._reason_against(request):
                return self._refused(request, drill_id, began, why)
            injection = prepare(request, self._checkup.machine, self._checkup.settings_of(request.kind.check))
            try:
                drill = Rehearsal(self._stage, request, injection, drill_id=drill_id, began=began, tick=tick)
                return self._follow(drill)
            finally:
                injection.close()
        except SourceError as error:
            return self._refused(request, drill_id, began, f"the parts of this node cannot be read: {error}")
        finally:
            self._one.release()

    def _note(self, drill_id: str, message: str, **data: Any) -> None:
        """Write to the log and to the audit trail, labelled as a drill."""
        text = f"{TITLE} {drill_id}: {message}"
        self._say("drill", drill=drill_id, message=text)
        self._checkup.monitor.record(Event(at=datetime.now(UTC), kind="drill", text=text, data={"drill": True, **data}))

    def _reason_against(self, request: DrillRequest) -> str:
        """Why the node cannot be drilled now, or "". Unknown is not idle."""
        if request.forced:
            return ""
        busy = not_idle(self._checkup.machine, self._orchestrator)
        return f"{busy.why}; add --force to drill a node that may be busy" if busy else ""

    def _follow(self, drill: Rehearsal) -> DrillReport:
        request, what, notices = drill.request, drill.injection.what, self._checkup.notices
        forced = " by --force" if request.forced else ""
        self._note(
            drill.id,
            f"begins{forced}: {what}, started by {request.who}; healthd does nothing about it",
            kind=request.kind.name,
        )
        self._checkup.notices, self._current = (banner(drill.id, what, drill.began, request.who), *notices), drill
        if self._closed:
            drill.queue.put(DrillEvent(what="end", at=time.monotonic(), text=self._closed))
        report: DrillReport | None = None
        try:
            report = drill.follow()
        finally:
            self._current, self._checkup.notices = None, notices
            self._has_ended(drill, report)
        return report

    def _has_ended(self, drill: Rehearsal, report: DrillReport | None) -> None:
        """Count the drill and log its end; no report means that the client is gone."""
        if report is None:
            became, message = Ended.INTERRUPTED, "its client is gone"
        else:
            became = report.ended
            reached = ", ".join(f"{mark.link} at {mark.at_s:.3f} s" for mark in report.marks)
            message = f"{reached}; no {report.missing}: {report.why}" if report.missing else reached
        self.ran[drill.request.kind.name, became] += 1
        self._note(drill.id, f"ends, {became}: {message}", result=became)

    def _refused(self, request: DrillRequest, drill_id: str, began: datetime, why: str) -> DrillReport:
        self.ran[request.kind.name, Ended.REFUSED] += 1
        self._note(drill_id, f"refused: {request.kind.name}, started by {request.who}: {why}", result=Ended.REFUSED)
        return DrillReport(
            id=drill_id,
            node=self._checkup.machine.name,
            kind=request.kind.name,
            what=request.kind.title,
            who=request.who,
            began=began,
            limit_s=0.0,
            ended=Ended.REFUSED,
            why=why,
        )
