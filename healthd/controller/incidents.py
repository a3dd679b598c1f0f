"""The controller that leads keeps the incidents of its fleet: it observes each reading of all nodes, and remembers.

One incident is one topic of the messages, under its id. An incident that the receivers have accepted stands as a notice
in the cluster, so that its nodes hold their own messages; one of a broken NVLink domain fences it. A fleet that cannot
be read ends no incident and stops no sync.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from healthd.api.controller_stats import ControllerStats, FenceStatus, IncidentStatus
from healthd.controller.notifications import incident_key
from healthd.core.errors import BackendError, ConfigError, StoreError
from healthd.fleet.fences import NO_FENCES, FencePlan, FenceRules, fence_words, planned, with_failures, with_fences
from healthd.fleet.incident_memory import keep_memory, kept_memory
from healthd.fleet.incident_text import sentence
from healthd.fleet.incidents import Incident, IncidentMemory, IncidentRules, observed, tells_the_same
from healthd.fleet.nodes import FleetPicture
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice

KEEP_S = 600.0
"""How often the memory is written where nothing is new but that nodes still have it, in seconds."""
RENEW_S = LASTS.total_seconds() / 3
"""How often the notices are renewed, in seconds."""


class IncidentBackend(Protocol):
    """Where the controller leaves its notices with the cluster. The call raises BackendError."""

    def show_incidents(self, notices: Sequence[IncidentNotice], now: datetime) -> None:
        """Have exactly these notices stand there, for ``LASTS`` from now on."""


class FenceBackend(Protocol):
    """The fences of NVLink domains in the cluster. Each call raises BackendError."""

    def fence_domain(self, fence: DomainFence) -> None:
        """Keep new jobs off all nodes of a domain."""

    def lift_fence(self, fence: DomainFence) -> None:
        """End a fence."""


class IncidentKeeper:
    """The incidents of one fleet. ``read`` reads all nodes; it raises BackendError, ConfigError. ``stats``: where open
    incidents are shown to messages and metrics. ``folder``: where they are remembered. ``cluster``: leaves the notices
    there; None: nodes hold no message. ``fencer``: fences NVLink domains, by ``fence_rules``, which are asked at each
    reading; None: none is fenced."""

    def __init__(
        self,
        read: Callable[[], FleetPicture],
        *,
        folder: Path,
        rules: IncidentRules,
        stats: ControllerStats,
        cluster: IncidentBackend | None = None,
        fencer: FenceBackend | None = None,
        shows_notices: bool = True,
        fence_rules: Callable[[datetime], FenceRules] = lambda _: NO_FENCES,
        monotonic_s: Callable[[], float] = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._read, self._folder, self._rules, self._stats = read, folder, rules, stats
        self._monotonic_s, self._kept_s = monotonic_s, float("-inf")
        self._before = self._memory = kept_memory(folder) or IncidentMemory()
        self._kept: IncidentMemory | None = None
        self._observed_at: datetime | None = None
        self._failures = FencePlan()
        self._cluster, self._fencer, self._fence_rules = cluster, fencer, fence_rules
        self._shows_notices = shows_notices
        self._show(self._memory, (), FencePlan())
        self._clock = clock
        self._shown: tuple[IncidentNotice, ...] = ()
        self._shown_s = float("-inf")

    def __call__(self) -> str:
        """Observe the reading, remember, and leave the notices. Returns why that is not possible now, or ""."""
        return "; ".join(filter(None, [self._observe(), self._leave_notices()]))

    def _observe(self) -> str:
        try:
            fleet = self._read()
        except (BackendError, ConfigError) as error:
            return f"incidents are as they were: the fleet could not be read: {error}"
        self._stats.fleet_read = True
        is_new = fleet.at != self._observed_at
        if is_new:  # two readings have to agree before a domain is fenced
            self._before, self._observed_at = self._memory, fleet.at
        self._memory = with_fences(observed(self._memory, fleet.nodes, fleet.at, self._rules), fleet.fences)
        plan = planned(self._memory, self._before, fleet.nodes, fleet.fences, self._fence_rules(fleet.at))
        problem = ""
        try:
            self._keep()
        except StoreError as error:
            problem = f"incidents are not remembered, and no NVLink domain is fenced or put back: {error}"
        if is_new and not problem:  # an older one does not show what was done by it
            self._failures = self._carry_out(plan)
        self._show(self._memory, fleet.fences, with_failures(plan, self._failures))
        return problem or "; ".join((*self._failures.waits.values(), *self._failures.held.values()))

    def _carry_out(self, plan: FencePlan) -> FencePlan:
        """Create and lift the fences, each by itself. Returns why that fails, as ``held`` and ``waits``; the next
        reading shows what became of it."""
        if self._fencer is None:
            return FencePlan()
        waits = {each.domain: why for each in plan.lift if (why := _failure(self._fencer.lift_fence, each))}
        held = {each.incident: why for each in plan.create if (why := _failure(self._fencer.fence_domain, each))}
        return FencePlan(held=held, waits=waits)

    def _leave_notices(self) -> str:
        """Have the cluster show the incidents that every receiver has accepted. Returns why it does not, or ""."""
        notifier = self._stats.notifier  # another thread takes it away with the lead
        accepted = notifier.accepted if notifier is not None else None
        if self._cluster is None or not self._shows_notices or accepted is None:  # nodes send their own messages
            return ""
        if not (self._stats.fleet_read or self._memory.open):  # those of the controller before this one stand
            return ""
        wanted = tuple(_notices(self._memory.open, accepted))
        if wanted == self._shown and self._monotonic_s() - self._shown_s < RENEW_S:
            return ""
        try:
            self._cluster.show_incidents(wanted, self._clock())
        except BackendError as error:
            return f"nodes may send the messages of an incident as well: its notice is not left: {error}"
        self._shown, self._shown_s = wanted, self._monotonic_s()
        return ""

    def _keep(self) -> None:
        """Write the memory where something is new in it. Raises StoreError."""
        now_s, memory = self._monotonic_s(), self._memory
        if self._kept is None or not tells_the_same(memory, self._kept) or now_s - self._kept_s >= KEEP_S:
            keep_memory(self._folder, memory)
            self._kept, self._kept_s = memory, now_s

    def _show(self, memory: IncidentMemory, fences: Sequence[DomainFence], plan: FencePlan) -> None:
        self._stats.incidents = tuple(_status(each, fence_words(each, fences, plan)) for each in memory.open)
        self._stats.fences = tuple(
            FenceStatus(
                domain=each.domain, incident=each.incident, nodes=len(each.nodes), waits=plan.waits.get(each.domain, "")
            )
            for each in fences
            if each.stands
        )


def _failure(act: Callable[[DomainFence], None], fence: DomainFence) -> str:
    """Why an act on a fence fails, or ""."""
    try:
        act(fence)
    except BackendError as error:
        return f"the fence of NVLink domain {fence.domain} is not as it should be; trying again: {error}"
    return ""


def _notices(incidents: Sequence[Incident], accepted: frozenset[str]) -> Iterator[IncidentNotice]:
    """Not of a story of days: a node that joins it is news of its own."""
    for each in incidents:
        is_paged = incident_key(each.id, critical=True) in accepted
        if not each.slow and (is_paged or incident_key(each.id, critical=False) in accepted):
            nodes = frozenset(each.nodes)
            yield IncidentNotice(id=each.id, root=each.root, began=each.began, nodes=nodes, critical=is_paged)


def _status(incident: Incident, about_fence: str) -> IncidentStatus:
    return IncidentStatus(
        id=incident.id,
        message="; ".join(filter(None, [sentence(incident), about_fence])),
        title=f"incident {incident.id}, {incident.codes[0] if incident.codes else incident.root}",
        cause=incident.cause.text,
        nodes=len(incident.active),
        ever=len(incident.nodes),
        critical=incident.grave,
    )
