"""Slurm's power saving, as a simulated fleet lives with it, and machines that break for good.

A share of the names are cloud nodes: Slurm powers them down once they are idle for long, whatever keeps jobs off them,
and starts them for a job. The seed says whether a name wakes with another machine and an empty disk or with its own,
whether a drain outlives the sleep, and whether this Slurm can be told to leave a node alone (SuspendExcNodes, 23.02).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from random import Random

from healthd.remediation.records.handoff import parse
from tests.simulation.daemon import Ground
from tests.simulation.node import Node

HOUR, DAY = 3600.0, 86_400.0
LOOKS_S = 60.0
CHECKS_S = 300.0
SUSPEND_TAKES_S, RESUME_TAKES_S = 90.0, (60.0, 300.0)
_REMEMBERS_S = 900.0


class PowerSaving:
    """The power saving of one cluster; in most seeds there is none. It has a random generator of its own, so that the
    other seeds live as they would without it."""

    def __init__(self, ground: Ground, nodes: Mapping[str, Node], random: Random, *, breaks_days: float) -> None:
        self._slurm, self._timeline, self._nodes, self._random = ground.slurm, ground.timeline, nodes, random
        self._breaks_days, self.sleeps = breaks_days, 0
        self.powers_down: Callable[[str], None] = lambda _: None
        """Told of each name right before its machine is taken away."""
        self.cloud: frozenset[str] = frozenset()
        self._idle_since: dict[str, float] = {}
        self._machines: deque[tuple[float, int]] = deque()
        self._starts, self.steady_since_s = 1, 0.0

    def begin(self) -> None:
        """Have it at work, if the seed says so."""
        random, names = self._random, sorted(self._nodes)
        if random.random() >= 0.4:
            return
        self._suspend_s = random.choice((600.0, 1800.0))
        self._another, self._drains_last = random.random() < 0.7, random.random() < 0.8
        self._slurm.power_saving = random.choice(("22.05", "23.02"))
        self.cloud = frozenset(random.sample(names, int(random.choice((0.2, 0.5)) * len(names))))
        self._timeline.after(CHECKS_S, self._checks)
        self.breaks_machines()

    def breaks_machines(self) -> None:
        """From now on a machine breaks for good at times."""
        if self._breaks_days:
            self._timeline.after(self._random.expovariate(1 / (self._breaks_days * DAY)), self._breaks)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def gap_s(self) -> float:
        """How long a cloud node waits for its next job: minutes, and at times for most of a day."""
        return self._random.expovariate(1 / (12 * HOUR) if self._random.random() < 0.1 else 1 / CHECKS_S)

    def resumes(self, name: str) -> float:
        """A job wants the node: its machine is started, unless it is on its way down. In how many seconds to ask
        again."""
        slurm = self._slurm
        if name in slurm.asleep and not slurm.hung:
            slurm.asleep.discard(name)
            slurm.powering[name] = "POWERING_UP"
            self._timeline.after(self._random.uniform(*RESUME_TAKES_S), lambda: self._resumed(name))
        return RESUME_TAKES_S[1]

    def _resumed(self, name: str) -> None:
        del self._slurm.powering[name]
        self._idle_since.pop(name, None)
        self._nodes[name].powered_up(another=self._another)

    # -- sleep --------------------------------------------------------------------------------------------------------

    def _checks(self) -> None:
        """slurmctld looks for nodes that are idle for long."""
        self._timeline.after(CHECKS_S, self._checks)
        slurm, s = self._slurm, self._timeline.s
        if slurm.hung or slurm.starts != self._starts:
            self._starts, self.steady_since_s = slurm.starts, s
        if slurm.hung:
            return
        for name in sorted(self.cloud - slurm.asleep - slurm.powering.keys()):
            if slurm.nodes[name].jobs or name in slurm.awake:
                self._idle_since.pop(name, None)
            elif s - self._idle_since.setdefault(name, s) >= self._suspend_s:
                self._suspends(name)

    def _suspends(self, name: str) -> None:
        del self._idle_since[name]
        self.sleeps += 1
        self.powers_down(name)
        self._slurm.powering[name] = "POWERING_DOWN"
        self._nodes[name].powered_down()
        self._timeline.after(SUSPEND_TAKES_S, lambda: self._is_down(name))

    def _is_down(self, name: str) -> None:
        slurm, node = self._slurm, self._slurm.nodes[name]
        del slurm.powering[name]
        slurm.asleep.add(name)
        if not self._drains_last:
            node.flags.clear()
            node.hold = None
        slurm.touched(name)

    # -- machines that break for good ---------------------------------------------------------------------------------

    def _breaks(self) -> None:
        self._timeline.after(self._random.expovariate(1 / (self._breaks_days * DAY)), self._breaks)
        holders = sorted(self._slurm.holders() & set(self._nodes))
        name = self._random.choice(holders or sorted(self._nodes))
        self._nodes[name].dies()
        self._timeline.after(self._random.uniform(2 * DAY, 4 * DAY), self._nodes[name].brought_back)

    def seen_to(self, name: str) -> None:
        """A person looks at a name without a machine."""
        if self._nodes[name].asleep and self._slurm.is_ours(name):
            self._slurm.people(name, "resume")
        self._nodes[name].brought_back()

    # -- what is asked ------------------------------------------------------------------------------------------------

    def machines(self) -> int:
        """How many machines the cluster has: the most of what a reading of late may have shown."""
        s, count = self._timeline.s, len(self._nodes) - len(self._slurm.asleep) - len(self._slurm.powering)
        while self._machines and (self._machines[0][0] < s - _REMEMBERS_S):
            self._machines.popleft()
        self._machines.append((s, count))
        return max(count for _, count in self._machines)

    def leftovers(self) -> bool:
        """Whether healthd has left something under a name whose machine is off, or whose daemon is away."""
        slurm, holders = self._slurm, self._slurm.holders()
        return any(
            not node.is_watched
            and (name in holders or ((node.asleep or node.up) and (slurm.is_ours(name) or self._is_given_up(name))))
            for name, node in self._nodes.items()
        )

    def _is_given_up(self, name: str) -> bool:
        """Whether the node is drained, and its record says that healthd gave it up."""
        node = self._slurm.nodes[name]
        record = parse(node.record) if node.hold is not None else None
        return record is not None and bool(record.given_up)

    def in_service(self) -> list[str]:
        """The nodes whose agents are there and speak for the fleet, the first one first."""
        slurm, nodes = self._slurm, self._nodes
        return [
            name
            for name in sorted(nodes)
            if not slurm.nodes[name].flags and (daemon := nodes[name].daemon) is not None and daemon.alive
        ]
