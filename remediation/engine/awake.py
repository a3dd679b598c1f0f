"""Keeps the cluster's power saving away from a node that a case holds: a held node is idle, and would be powered down.

It is said in the handoff record first, so that a successor takes back what was told, and nothing that an operator told.
A restart or reconfiguration of the controller forgets it: each reading of the node shows whether it must be told again.
A cluster that cannot be told so is asked once for each run of its controller.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import datetime

from healthd.core.errors import BackendError, BackendRefused
from healthd.core.model import Event
from healthd.remediation.decide.handoff import HandoffRecord, parse, said_of
from healthd.remediation.engine.dependencies import Judgement
from healthd.remediation.ports import NodeView, Orchestrator


class Awake:
    """Whether one node is kept awake. Calls never overlap."""

    def __init__(self, orchestrator: Orchestrator, judgement: Judgement) -> None:
        self._orchestrator, self._judgement = orchestrator, judgement
        self._refused_by: str | None = None
        self._said = ""

    def keep(self, view: NodeView, now: datetime) -> None:
        """Tell the cluster, where this reading shows that it may power the node down. What fails is recorded once, and
        stops nothing."""
        if not view.may_sleep or view.controller == self._refused_by:
            return
        try:
            self._tell(now)
            said = "kept awake: the cluster's power saving leaves it alone while it is held"
        except BackendRefused as error:
            self._refused_by, said = view.controller, f"the cluster may power it down while it is held: {error}"
        except BackendError as error:
            said = f"the cluster may power it down while it is held, and is told again: {error}"
        if said != self._said:
            self._judgement.record(Event(at=now, kind="step", text=said))
        self._said = said

    def let_sleep(self) -> None:
        """Take back what this case, or a daemon before this one, has told. Raises BackendUnknown."""
        released(self._orchestrator)
        self._refused_by, self._said = None, ""

    def _tell(self, now: datetime) -> None:
        before = self._orchestrator.marked()
        mark = parse(before) or HandoffRecord()
        if mark.awake is None:
            self._orchestrator.mark(replace(mark, awake=now).text)
        try:
            self._orchestrator.keep_awake(on=True)
        except BackendRefused:
            if mark.awake is None:
                self._orchestrator.mark(before)
            raise


def released(orchestrator: Orchestrator) -> None:
    """Let the cluster power this node down again, if the record says that healthd kept it awake. Raises BackendUnknown.

    Where the cluster cannot be told any more, or the record is somebody else's by now, nothing of ours is left.
    """
    with contextlib.suppress(BackendRefused):
        mark = parse(orchestrator.marked())
        if mark is None or mark.awake is None:
            return
        with contextlib.suppress(BackendRefused):
            orchestrator.keep_awake(on=False)
        orchestrator.mark(said_of(replace(mark, awake=None)))
