"""All nodes of a replay, on one clock: lines in the order of time, and between them the events that are due.

A node without a finding costs nothing. The engine of a node that waits reconciles only when an event is due, never
every few seconds for a year.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from heapq import heappop, heappush

from msgspec.structs import replace

from healthd.agent.agent import enabled_checks
from healthd.agent.node_rules import rules_of
from healthd.agent.wiring import Cluster, timeouts_of
from healthd.config.schema.config import Config
from healthd.core.model import CLUSTER, Mode, Outcome
from healthd.remediation.decide.rules import Policy
from healthd.replay.host import PastHost
from healthd.replay.machine import LET_GO_S
from healthd.replay.node import wanted_by
from healthd.replay.story import Story
from healthd.replay.world import PastClock, World
from healthd.sim.cluster import FakeCluster, FakeClusterNode
from healthd.sources.pastlines import LogLine

_NO_BUDGET = 1_000
_SPARE = "a node of no log "
_RUNS_ON = timedelta(days=7)
"""How long after the last line open remediations are followed to their end."""


class PastFleet:
    """Every node that the logs name. ``nodes``: how many the fleet has; 0: the budget is not applied."""

    def __init__(self, config: Config, policy: Policy, *, mode: Mode, nodes: int, instance_type: str | None) -> None:
        self._instance_type = instance_type
        self._clock = PastClock()
        self.world = _world(config, policy, self._clock, mode=mode, nodes=nodes)
        self._trusts = config.sources.trust_user_kmsg
        self._wants = wanted_by(self.world.kernel_checks, config.checks)
        self._hosts: dict[str, PastHost] = {}
        self._batches: deque[PastHost] = deque()
        self._due: list[tuple[datetime, str]] = []

    def take(self, line: LogLine) -> None:
        """File a line under its host. Batches of any host that are over by its time are judged first.

        A line that no check wants only shows that its host exists: most lines that hold a needle are harmless.
        """
        if not line.trusted and not self._trusts:
            return
        if not self._wants(line.text):
            if line.host not in self._hosts:
                self._new(line.host)
            return
        self._judge_until(line.time)
        host = self._hosts.get(line.host) or self._new(line.host)
        if host.batch.is_over(line):
            self._judge(host)
        if not host.batch.records:
            self._batches.append(host)
        host.batch.add(line)

    def absorb(self, name: str, outcome: Outcome) -> None:
        """Fold in the outcome of a check run from an event store, after the lines before it."""
        self._judge_until(outcome.at)
        host = self._hosts.get(name) or self._new(name)
        self._judge(host)
        self._run_until(outcome.at)
        host.absorb(outcome)
        self._plan(host)

    def stories(self, ends: datetime | None) -> tuple[Story, ...]:
        """The story of each node, by name. ``ends``: the time of the last line, if it is known.

        Remediations that are open then are followed to their end.
        """
        for host in tuple(self._hosts.values()):
            self._judge(host)
        if not self._hosts:
            return ()
        self._run_until(ends or self._clock.now())
        at = self._clock.come_to(ends or self._clock.now())
        for host in self._hosts.values():
            host.log_ends(at)
        self._run_until(at + _RUNS_ON, settling=True)
        return tuple(host.story(self._clock.now()) for _, host in sorted(self._hosts.items()))

    # -----------------------------------------------------------------------------------------------------------------

    def _judge_until(self, at: datetime) -> None:
        """Judge the batches that are over by then."""
        while self._batches and self._batches[0].batch.until < at:
            self._judge(self._batches.popleft())

    def _judge(self, host: PastHost) -> None:
        if records := host.batch.taken():
            self._run_until(records[0].time)
            host.judge(records)
            self._plan(host)

    def _plan(self, host: PastHost) -> None:
        if host.due is not None:
            heappush(self._due, (host.due, host.name))

    def _run_until(self, at: datetime, *, settling: bool = False) -> None:
        """Play all events that are due by then. ``settling``: only those of nodes with an open remediation."""
        due = self._due
        while due and due[0][0] <= at:
            when, name = heappop(due)
            host = self._hosts[name]
            if host.due == when and not (settling and host.is_settled):
                host.go_on(self._clock.come_to(when))
                self._plan(host)

    def _new(self, name: str) -> PastHost:
        nodes = self.world.cluster.nodes
        if spare := next((each for each in nodes if each.startswith(_SPARE)), ""):
            del nodes[spare]
        self._hosts[name] = host = PastHost(name, self.world, instance_type=self._instance_type)
        return host


def _world(config: Config, policy: Policy, clock: PastClock, *, mode: Mode, nodes: int) -> World:
    """The world of a replay, without this machine's own mode and opt-out."""
    tried = replace(config.remediation, mode=mode, opt_out_file="", opt_out_label="", opt_out_feature="")
    budget = config.budget if nodes else replace(config.budget, max_out=_NO_BUDGET)
    config = replace(config, remediation=tried, budget=budget)
    cluster = Cluster(settle_s=budget.settle_s, quotas=lambda: {CLUSTER: budget.max_out}, opt_out=("", ""))
    checks = enabled_checks(config)
    simulated = FakeCluster(clock=clock.seconds)
    simulated.nodes.update((f"{_SPARE}{number}", FakeClusterNode()) for number in range(nodes))
    return World(
        config=config,
        rules=replace(rules_of(config, policy, cluster.opt_out), freezes=()),
        timeouts=replace(timeouts_of(config, cluster), let_go_s=config.replay.reset_s + LET_GO_S),
        checks=checks,
        kernel_checks={name: check for name, check in checks.items() if check.on == "kernel"},
        cluster=simulated,
        clock=clock,
    )
