"""The stats of one ``healthd controller``: the results of its syncs, for its metrics page and its messages.

The controller's thread writes them, others read them. They decide nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from healthd.core.model import Mode
from healthd.ledger.report import FleetReport
from healthd.notify.notifier import Notifier
from healthd.remediation.controller.node_status import NodeStatus, RepairStats
from healthd.remediation.decide.fleet import Scope
from healthd.remediation.provisioners.ultraservers import UltraServer
from healthd.remediation.request_stats import RequestStats

SYNC_RESULTS = ("ok", "cluster", "store")
"""The results of a sync: success, the cluster did not answer, the state could not be written."""


class IncidentStatus(Struct, frozen=True, kw_only=True):
    """An open incident, for messages and metrics. ``title``: its name, for the message of its end. ``cause``: the
    likely one. ``nodes``: how many nodes have it now; ``ever``: how many had it. ``critical``: more than a warning."""

    id: str
    message: str
    title: str
    cause: str
    nodes: int
    ever: int
    critical: bool


class FenceStatus(Struct, frozen=True, kw_only=True):
    """The fence of an NVLink domain. ``waits``: why it stays although its incident is over; "" while that is open."""

    domain: str
    incident: str
    nodes: int
    waits: str


class ControllerStats(Struct, kw_only=True):
    """The stats of one controller since its process started. ``began`` is in Unix time; ``succeeded_s`` and ``led_s``
    are monotonic.

    ``scopes``: the budget as the last sync read it; ``limits``: whether it knows how many may be out. ``problem``: why
    the last sync failed, or "". ``slow``: the activity that takes too long, or "". ``job_findings``: the codes of what
    running jobs have now. ``ultraservers``: those that SageMaker describes, none where it was not asked or did not
    answer. ``fleet_read``: the fleet was read for incidents since the lead was taken. ``fleet_problem``: why incidents
    are not kept now, or "". ``ledger``: the ledger's report of the last thirty days; None where this controller keeps
    none, or has none yet.
    """

    orchestrator: str
    provisioner: str
    mode: Mode
    calls: RequestStats = field(default_factory=RequestStats)
    began: float = field(default_factory=time.time)
    leads: Callable[[], bool] = lambda: False
    slow: Callable[[], str] = str
    taken: int = 0
    led_s: float | None = None
    succeeded_s: float | None = None
    syncs: Counter[str] = field(default_factory=Counter)
    syncs_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SYNC_RESULTS, 0.0))
    statuses: Sequence[NodeStatus] = ()
    repair_stats: RepairStats = field(default_factory=RepairStats)
    incidents: Sequence[IncidentStatus] = ()
    job_findings: Sequence[str] = ()
    fences: Sequence[FenceStatus] = ()
    ultraservers: Sequence[UltraServer] = ()
    scopes: Sequence[Scope] = ()
    limits: bool = False
    problem: str = ""
    store_failing: bool = False
    notifier: Notifier | None = None
    fleet_read: bool = False
    fleet_problem: str = ""
    ledger: FleetReport | None = None
    ledger_failing: bool = False

    def ended(self, result: str, took_s: float, message: str) -> None:
        """Note the end of a sync: its result, one of ``SYNC_RESULTS``, its duration in seconds, and its error, or
        ""."""
        self.syncs[result] += 1
        self.syncs_s[result] += took_s
        self.problem, self.store_failing = message, result == "store"
        if result == SYNC_RESULTS[0]:
            self.succeeded_s = time.monotonic()

    def took_lead(self) -> None:
        """Note that this controller leads from now on. The times and readings of an earlier lead no longer count."""
        self.taken, self.led_s, self.succeeded_s, self.fleet_read = self.taken + 1, time.monotonic(), None, False

    def left_lead(self) -> None:
        """Note that another controller may lead now: that one reports the status of the nodes, sends the messages that
        wait, and keeps state and ledger."""
        self.statuses, self.scopes, self.incidents, self.fences, self.problem = (), (), (), (), ""
        self.job_findings, self.notifier = (), None
        self.store_failing = self.ledger_failing = False

    def behind_s(self) -> float:
        """Seconds since a sync succeeded, or since the lead was taken where none has; 0 while another leads."""
        if not self.leads() or self.led_s is None:
            return 0.0
        return max(0.0, time.monotonic() - max(self.led_s, self.succeeded_s or self.led_s))
