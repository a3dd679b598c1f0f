"""How one ``healthd controller`` does: what its rounds found and came to, for its metrics page and its messages.

Written by the controller's thread, read by others. It decides nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from healthd.core.model import Mode
from healthd.notify.notifier import Notifier
from healthd.remediation.controller.node_status import NodeStatus, RepairStats
from healthd.remediation.decide.fleet import Scope
from healthd.remediation.request_stats import RequestStats

ROUND_RESULTS = ("ok", "cluster", "store")
"""What a round can come to: done, the cluster did not answer, nothing could be written down."""


@dataclass(kw_only=True)
class ControllerStats:
    """How one controller has done since its process began: written by its thread, read by the page. ``began`` is in
    Unix time; ``succeeded_s`` and ``led_s`` are monotonic.

    ``scopes``: the budget as the last round read it; ``limits``: whether it knows how many may be out. ``problem``:
    why the last round did not succeed, or "". ``slow``: what this controller has been at for too long, or "".
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
    rounds: Counter[str] = field(default_factory=Counter)
    rounds_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROUND_RESULTS, 0.0))
    standings: Sequence[NodeStatus] = ()
    reckoning: RepairStats = field(default_factory=RepairStats)
    scopes: Sequence[Scope] = ()
    limits: bool = False
    problem: str = ""
    store_failing: bool = False
    notifier: Notifier | None = None

    def ended(self, result: str, took_s: float, said: str) -> None:
        """Note how a round ended: a word of ``ROUND_RESULTS``, its time in seconds, and what was wrong, or ""."""
        self.rounds[result] += 1
        self.rounds_s[result] += took_s
        self.problem, self.store_failing = said, result == "store"
        if result == ROUND_RESULTS[0]:
            self.succeeded_s = time.monotonic()

    def took_lead(self) -> None:
        """Note that this controller leads from now on; what an earlier lead of it found is no news."""
        self.taken, self.led_s, self.succeeded_s = self.taken + 1, time.monotonic(), None

    def left_lead(self) -> None:
        """Note that another may lead now: how it stands with the nodes is that one's to say."""
        self.standings, self.scopes, self.problem = (), (), ""

    def behind_s(self) -> float:
        """Seconds since a round succeeded, or since the lead was taken where none has; 0 while another leads."""
        if not self.leads() or self.led_s is None:
            return 0.0
        return max(0.0, time.monotonic() - max(self.led_s, self.succeeded_s or self.led_s))
