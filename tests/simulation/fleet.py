"""A simulated fleet: N nodes with their daemons, one cluster, one controller, one clock, one seed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.config.schema.config import Config
from healthd.core.model import Mode
from healthd.notify.message import Message
from healthd.remediation.policy_files import policy_of
from healthd.remediation.records.handoff import RequestAnswer, parse
from tests.simulation.changes import Change
from tests.simulation.daemon import Ground
from tests.simulation.gangs import Gangs
from tests.simulation.head import Head
from tests.simulation.invariants import Invariants, Violation
from tests.simulation.law import Law, Rates
from tests.simulation.managers import Kind, NodeManager
from tests.simulation.node import Node
from tests.simulation.power import LOOKS_S, PowerSaving
from tests.simulation.slurm import Slurm
from tests.simulation.timeline import Timeline, WallClock

YEAR_S = 365 * 86_400.0
SWEEP_S = 600.0
RACK = 8


class Report(Struct, kw_only=True):
    """What one seed came to. ``cpu_s``: of this process."""

    seed: int
    nodes: int
    node_years: float
    cpu_s: float = 0.0
    acts: Counter[str] = field(default_factory=Counter)
    drains: int = 0
    pages: int = 0
    messages: int = 0
    turns: int = 0
    kills: int = 0
    sleeps: int = 0
    violations: list[Violation] = field(default_factory=list)


class Fleet:
    """``seed`` decides everything. ``nodes`` None: the seed says how many; ``max_out`` None: and how many may be out.

    ``goes_on``: each violation is reported, and none ends the run. ``change``: what a test puts in the place of
    production's parts. ``on_job``: the policy's; with it the jobs of the fleet are gangs, whose sizes ``gangs`` has.
    ``manager``: the node manager that repairs its machines; its nodes ask it by themselves, also beside a
    controller, and none is powered down.
    """

    def __init__(
        self,
        seed: int,
        *,
        nodes: int | None = None,
        change: Change | None = None,
        rates: Rates | None = None,
        max_out: str | int | None = None,
        delegates: bool | None = None,
        goes_on: bool = False,
        on_job: str = "wait",
        gangs: Sequence[int] = (),
        manager: Kind | None = None,
    ) -> None:
        self.seed, self.random, self.timeline = seed, Random(seed), Timeline()  # noqa: S311 - a fleet, no secret
        random = self.random
        count = nodes or random.choice((20, 40, 50, 60, 80))
        names = [f"n{number}" for number in range(1, count + 1)]
        self.slurm = Slurm(names, self.timeline, WallClock(self.timeline))
        self.slurm.returns_nodes = random.random() < 0.7
        self.slurm.stale_s = random.choice((0.0, 0.0, 3.0, 8.0))
        self._ids, self._paged_for_others = 0, False
        config = _config(random, max_out)
        config = replace(config, policy=replace(config.policy, on_job=on_job))
        self.nodes: dict[str, Node] = {}
        self.gangs = Gangs(self.slurm, self.timeline, up=lambda name: self.nodes[name].up)
        for number, size in enumerate(gangs):
            self.gangs.submit(str(number + 1), size)
        self.ground = Ground(
            timeline=self.timeline,
            slurm=self.slurm,
            config=config,
            policy=policy_of(config.policy, None),
            change=change or Change(),
            random=Random(random.random()).random,  # noqa: S311
            new_id=self._new_id,
            gangs=self.gangs if gangs else None,
        )
        self.power = PowerSaving(
            self.ground,
            self.nodes,
            Random(f"power {seed}"),  # noqa: S311
            breaks_days=(rates or Rates()).breaks,
        )
        self.manager = (
            NodeManager(manager, self.slurm, self.timeline, self.nodes, Random(f"{manager} {seed}"))  # noqa: S311
            if manager is not None
            else None
        )
        drain_replaces = self.manager is not None and self.manager.drain_replaces
        self.watch = Invariants(self.ground, self.nodes, self.power, goes_on=goes_on, drain_replaces=drain_replaces)
        self.slurm.heard, self.slurm.touched = self.watch.heard, self._touched
        self.slurm.lets_go, self.gangs.fail = self.watch.lets_go, self.watch.fail
        drawn = random.random() < 0.5
        has_head = drawn if delegates is None else delegates
        delegates = has_head and self.manager is None
        self.head: Head | None = None
        for number, name in enumerate(names):
            self.nodes[name] = Node(
                name,
                number // RACK,
                self.ground,
                random,
                delegates=delegates,
                asks=self.watch.asks,
                acts=self.watch.acts,
                tells=self._tells,
                forgets=self.watch.forgets,
                dies=self.watch.dies,
                notes=self.watch.note,
                managed=self.manager.provisioner if self.manager is not None else None,
            )
        if has_head:
            self.head = Head(
                self.ground,
                platform=lambda name: (
                    self.nodes[name].platform if self.manager is None else self.manager.elsewhere(name)
                ),
                asks=self._any_asks,
                deliver=lambda message: self._tells("controller", message),
                dies=self.watch.head_dies,
            )
        self.watch.head = self.head
        self.law = Law(
            self.ground, self.nodes, self.head, self.watch, self.power, random=random, rates=rates or Rates()
        )

    def run(self, hours: float) -> Report:
        """Let it live for so long, or to the first violation."""
        began_s = time.process_time()
        self._lives(hours)
        with suppress(Violation):
            for name in self.nodes:
                self.watch.what_counts_was_begun(name)
        return self._report(time.process_time() - began_s)

    def _lives(self, hours: float) -> None:
        self.law.begin()
        if self.ground.gangs is not None:
            self.gangs.begin()
        if self.manager is None:
            self.power.begin()
        else:
            self.manager.begin()
            self.power.breaks_machines()
        self.timeline.after(LOOKS_S, self._agents_look)
        self.timeline.after(SWEEP_S, self._sweep)
        with suppress(Violation):
            self.timeline.run(hours * 3600.0)

    def _report(self, cpu_s: float) -> Report:
        watch, daemons = self.watch, [node.daemon for node in self.nodes.values() if node.daemon]
        return Report(
            seed=self.seed,
            nodes=len(self.nodes),
            node_years=len(self.nodes) * self.timeline.s / YEAR_S,
            cpu_s=cpu_s,
            acts=Counter(watch.counted),
            drains=watch.drains,
            pages=watch.pages,
            messages=watch.messages,
            turns=sum(daemon.turns for daemon in daemons),
            kills=self.law.kills,
            sleeps=self.power.sleeps,
            violations=list(watch.found.values()),
        )

    def _sweep(self) -> None:
        self.watch.sweep()
        self.timeline.after(SWEEP_S, self._sweep)

    def _agents_look(self) -> None:
        """While something of ours is under a name without a machine or without a daemon, and until every page for that
        is over, the agents read the fleet in quiet."""
        is_left = self.power.leftovers()
        if is_left or self._paged_for_others:
            daemons = [node.daemon for node in self.nodes.values() if node.daemon is not None and node.daemon.alive]
            for daemon in daemons:
                daemon.learn()
            self._paged_for_others = is_left or any(daemon.absent.paged for daemon in daemons)
            if self.head is not None:
                self.head.wake(5.0)
        self.timeline.after(LOOKS_S, self._agents_look)

    def _new_id(self) -> str:
        self._ids += 1
        return f"c{self._ids}"

    def _touched(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None and node.daemon is not None:
            node.daemon.wake(5.0)
        if self.head is not None and self._asks(name):
            self.head.wake(self.random.uniform(1.0, 10.0))

    def _tells(self, name: str, message: Message) -> None:
        self.watch.tells(name, message)
        self.law.heard(name, message)

    def _any_asks(self) -> bool:
        return any(self._asks(name) for name in self.slurm.holders())

    def _asks(self, name: str) -> bool:
        node = self.slurm.nodes.get(name)
        record = parse(node.record) if node is not None and node.record else None
        if node is None or record is None or (record.remedy is None and not record.is_withdrawn):
            return False
        return (
            record.is_withdrawn
            or (record.asks and record.answer is not RequestAnswer.REFUSED)
            or "NOT_RESPONDING" in node.flags
        )


def _config(random: Random, max_out: str | int | None) -> Config:
    """A site's configuration: production's defaults, in repair mode."""
    config, of_seed = Config(), random.choice(("5%", "10%", 3, 5))
    return replace(
        config,
        remediation=replace(config.remediation, mode=Mode.REPAIR, opt_out_file=""),
        budget=replace(config.budget, max_out=of_seed if max_out is None else max_out),
        notify=replace(config.notify, per_hour=60),
    )
