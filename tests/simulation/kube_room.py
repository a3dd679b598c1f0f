"""The machines of a simulated Kubernetes fleet as its platform has them, and the laws of what healthd asks of it.

A machine is rebooted or replaced only where healthd holds its Node by a claim, for a fault that calls for it, under no
pod, once, and within the bounds of the fleet; a node that stays out pages; and the claim of a Node that is gone goes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.config.schema.config import Config
from healthd.core.model import Mode, Remedy
from healthd.remediation.decide.fleet import NAME_PER_DAY, NAME_PER_HOUR
from healthd.remediation.orchestrators.kubernetes.objects.eviction import GangMode
from healthd.remediation.orchestrators.kubernetes.objects.node import hold_of, node_of
from tests.simulation.kube_platform import EKS_LATEST_S, HOUR, CloudPlatform, Instance, Kind

if TYPE_CHECKING:
    from tests.simulation.kube_fleet import KubeSimulation, Machine

BEGINS, AGAIN, TORN_S = 5.0 / 60.0, 5.0 / 30.0, 2400.0
"""How likely a job of several Nodes starts in a turn, and starts again after an eviction, and how long it may be torn
by one, in seconds: a PodDisruptionBudget may have no room for the rest of it."""
OVERDUE_S, REPLACES_S, PER_HOUR, PER_DAY = 5400.0, 5400.0, 3, 10
GOOD_S, AGAIN_S, GONE_S, PAGES_S, SENT_S = 900.0, 600.0, 900.0, 3600.0, 1200.0
"""In seconds. A machine that is healthy for so long is left alone; a reboot is asked for again no sooner; the claim of
a Node that is gone goes by then; a node that is overdue pages by then, with the answers that get lost; and an act is
applied so long at most after it was intended, from which its hour and its day count."""
CLAIM_LOOKED_FOR_S = 600.0
"""By when a node whose request stands has taken its claim again, in seconds."""


class Member(Struct, frozen=True):
    """A pod of a job: its Node, and when it started."""

    node: str
    began_s: float


class PodGang(Struct, kw_only=True):
    """A job: ``pods`` are all that it ever had. ``evicted_s``: the first eviction of those that run, 0.0 for none;
    ``torn_s``: since when some are evicted and others run on, 0.0 for not. ``drains``: by the drain of a Node, when it
    first evicted a pod. ``is_guarded``: by a PodDisruptionBudget of its own, with room for one."""

    size: int
    is_guarded: bool
    pods: dict[str, Member]
    evicted: int = 0
    evicted_s: float = 0.0
    torn_s: float = 0.0
    drains: dict[tuple[str, float], float] = field(default_factory=dict)
    is_over: bool = False


class PodGangs:
    """Jobs of two or three Nodes, and what an eviction may do to them by the rule of the fleet. Their owners make pods
    again for those that were evicted, some of them for all."""

    def __init__(self, fleet: KubeSimulation, random: Random) -> None:
        self._fleet, self._random, self._gangs = fleet, random, dict[str, PodGang]()
        self._starts_whole = random.random() < 0.5

    def may_begin(self) -> None:
        """A job starts where enough Nodes are free, and again where pods of it were evicted."""
        fleet = self._fleet
        if fleet.calm:
            return
        for name, gang in self._gangs.items():
            if gang.evicted and not gang.is_over and self._random.random() < AGAIN:
                self._begin_again(name, gang)
        if self._random.random() >= BEGINS:
            return
        if len(free := self._free()) >= 2:
            name, size = f"js-{len(self._gangs)}", min(len(free), self._random.choice((2, 3)))
            self._gangs[name] = PodGang(size=size, pods={}, is_guarded=self._random.random() < 0.5)
            self._start(name, self._random.sample(free, size))

    def end(self, pod: str) -> None:
        """The job of this pod ends, with all others of it."""
        gang = next((gang for gang in self._gangs.values() if pod in gang.pods), None)
        if gang is not None:
            gang.is_over = True
        self._fleet.drop_pods((pod,) if gang is None else gang.pods)

    def end_all(self) -> None:
        """Every such job has ended."""
        for gang in self._gangs.values():
            gang.is_over = True
            self._fleet.drop_pods(gang.pods)

    def is_guarded(self, name: str) -> bool:
        """Whether its own PodDisruptionBudget has no room now: one pod is missing already."""
        gang = self._gangs[name]
        return gang.is_guarded and len(self._running(gang)) < gang.size

    def drains_are_forgotten(self) -> None:
        """The record of when they began is gone."""
        for gang in self._gangs.values():
            gang.drains.clear()

    def evicted(self, name: str, pod: str) -> None:
        """Judge the eviction of one member: the others run still, or were evicted before it. A pod that its owner made
        after that is evicted by no drain that evicted one before."""
        fleet, gang, s = self._fleet, self._gangs[name], self._fleet.timeline.s
        gang.evicted, gang.evicted_s = gang.evicted + 1, gang.evicted_s or s
        here, others = gang.pods[pod], [each.node for other, each in gang.pods.items() if other != pod]
        drains = {drain for each in gang.pods.values() if (drain := self._drain(each.node))}
        own = self._drain(here.node)
        why = ""
        if own is None and (fleet.gang is not GangMode.WHOLE or not drains):
            why = "from a node that healthd does not hold"
        elif fleet.gang is GangMode.WAIT and self._running(gang):
            why = f"while its gang runs on {others}, and is to be left alone"
        elif own is None and all(gang.drains.get(each, s) < here.began_s for each in drains):
            why = f"which came after its gang was evicted: {sorted(drains)}"
        if why:
            raise fleet.violation(f"{pod} of {name} is evicted {why}")
        if (drain := own or (next(iter(drains)) if len(drains) == 1 else None)) is not None:
            gang.drains.setdefault(drain, s)

    def sweep(self, steady_s: float) -> None:
        """A gang is evicted whole, or not at all."""
        fleet, s = self._fleet, self._fleet.timeline.s
        for name, gang in self._gangs.items():
            left = {pod for pod, each in self._running(gang).items() if each.began_s <= gang.evicted_s}
            if not left:
                gang.evicted_s = 0.0
            is_held = any(self._drain(each.node) for each in gang.pods.values())
            is_torn = fleet.gang is GangMode.WHOLE and bool(left) and is_held and not self.is_guarded(name)
            gang.torn_s = (gang.torn_s or s) if is_torn else 0.0
            if gang.torn_s and s - max(gang.torn_s, steady_s) > TORN_S:
                raise fleet.violation(f"{name}: {gang.evicted} members are evicted, and {sorted(left)} run on")

    def _begin_again(self, name: str, gang: PodGang) -> None:
        running = self._running(gang)
        if self._starts_whole and len(running) < gang.size:
            self._fleet.drop_pods(running)
            running = {}
        missing, free = gang.size - len(running), self._free()
        if 0 < missing <= len(free):
            self._start(name, self._random.sample(free, missing))

    def _start(self, name: str, nodes: Iterable[str]) -> None:
        fleet = self._fleet
        self._gangs[name].pods |= {fleet.begins(node, name): Member(node, fleet.timeline.s) for node in nodes}

    def _free(self) -> list[str]:
        return [name for name in sorted(self._fleet.machines) if self._fleet.takes_pods(name)]

    def _running(self, gang: PodGang) -> dict[str, Member]:
        return {pod: each for pod, each in gang.pods.items() if pod in self._fleet.pods(each.node)}

    def _drain(self, node: str) -> tuple[str, float] | None:
        """That of healthd's on this Node, by its time, or None."""
        held = hold_of(node_of(self._fleet.node(node))) if self._fleet.has(node) else None
        return (node, held.stamp) if held is not None else None


class MachineRoom:
    """``fleet``: whose machines these are. ``seed`` decides what the platform does."""

    def __init__(self, kind: Kind, fleet: KubeSimulation, seed: int) -> None:
        self._fleet, self._random = fleet, Random(f"platform {seed}")  # noqa: S311 - a fleet, no secret
        self.platform = CloudPlatform(
            kind, self, server=fleet.server, timeline=fleet.timeline, wall=fleet.wall, random=self._random
        )
        self.gang, self.gangs = self._random.choice(tuple(GangMode)), PodGangs(fleet, self._random)
        self.scopes = {"a": 1} if self._random.random() < 0.5 else {}
        self._replaced, self._rebooted = deque[tuple[float, str]](), dict[tuple[str, int], float]()
        self._out_s, self._gone_s, self.steady_s = dict[str, float](), dict[str, float](), 0.0

    @property
    def codes(self) -> tuple[str, ...]:
        """The faults of machines whose platform has an answer to few; () for any. To the last one EKS has none."""
        known = ("gpu.xid.79", "gpu.xid.95", "gpu.xid.64")
        return (*known, *known, "gpu.nvlink.down") if self.platform.kind == "eks" else ()

    def config(self) -> Config:
        """The configuration of agents and controllers."""
        config = Config()
        return replace(
            config,
            provisioner=self.platform.section,
            remediation=replace(
                config.remediation, mode=Mode.REPAIR, replace_timeout_s=REPLACES_S, overdue_s=OVERDUE_S, opt_out_file=""
            ),
            budget=replace(config.budget, replacements_per_hour=PER_HOUR, replacements_per_day=PER_DAY),
        )

    # -- Room ---------------------------------------------------------------------------------------------------------

    def act_begins(self, remedy: Remedy, instance: Instance) -> None:
        """Judge it, and count it."""
        fleet, s, machine = self._fleet, self._fleet.timeline.s, self._machine(instance)
        fleet.note(f"{instance.node}: {instance.id} is asked for {remedy}")
        if machine is None:
            raise fleet.violation(f"{instance.id} is asked for {remedy}, and its Node {instance.node} is gone")
        if why := self._against(remedy, instance, machine):
            raise fleet.violation(f"{instance.node} ({instance.id}) is asked for {remedy}: {why}")
        self._out_s[instance.node] = s  # what is awaited now is overdue from now on
        if remedy is Remedy.REBOOT_NODE:
            self._rebooted[instance.id, machine.boot] = s
            machine.reboots += 1
        else:
            self._replaced.append((s, instance.node))

    def reboots(self, instance: Instance) -> None:
        """By the platform: whatever runs there."""
        if (machine := self._machine(instance)) is not None and instance.state == "running":
            machine.power_cycles()

    def goes_down(self, instance: Instance) -> None:
        """The machine is off."""
        if (machine := self._machine(instance)) is not None:
            machine.loses_power()
            self._fleet.note(f"{instance.node}: {instance.id} goes down")

    def comes_up(self, instance: Instance) -> None:
        """On other hardware, with its disk."""
        if (machine := self._machine(instance)) is not None:
            machine.needs.clear()
            machine.comes_up(heals=True)
            self._fleet.note(f"{instance.node}: {instance.id} runs on other hardware")

    def leaves(self, instance: Instance) -> None:
        """Its Node is deleted."""
        if self._machine(instance) is not None:
            self._fleet.remove(instance.node)

    def joins(self, instance: Instance) -> None:
        """Its kubelet registers."""
        self._fleet.note(f"{instance.node}: {instance.id} joins")
        self._fleet.add(instance.node, instance)

    def stands_still(self) -> None:
        """The leader, in its call."""
        self._fleet.stands_still()

    def has_node(self, name: str) -> bool:
        """Whether the fleet has it."""
        return name in self._fleet.machines

    # -- what befalls it ----------------------------------------------------------------------------------------------

    def befalls(self, name: str) -> None:
        """The platform does not answer for a while, or ends a machine by itself."""
        if self._random.random() < 0.3:
            self.platform.outage_until_s = self._fleet.timeline.s + self._random.uniform(60.0, 1200.0)
            self._fleet.note("the platform does not answer")
        elif self._random.random() < 0.4:
            self._fleet.note(f"{name}: someone else ends its machine")
            self.platform.someone_else_ends(name)

    # -- laws ---------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """What must be true of every Node and claim at any time."""
        fleet, s = self._fleet, self._fleet.timeline.s
        if s < fleet.outage_until_s or s < self.platform.outage_until_s:
            self.steady_s = s
        held = {name for name in fleet.machines if hold_of(node_of(fleet.node(name))) is not None}
        gone = fleet.claims() - set(fleet.machines)
        self._out_s = {name: self._out_s.get(name, s) for name in held}
        self._gone_s = {name: self._gone_s.get(name, s) for name in gone}
        self.gangs.sweep(self.steady_s)
        for name, since_s in self._gone_s.items():
            if s - max(since_s, self.steady_s) > GONE_S:
                raise fleet.violation(f"{name} is gone since {s - since_s:g} s, and still holds a claim")
        for name, since_s in self._out_s.items():
            machine, late_s = fleet.machines[name], s - max(since_s + OVERDUE_S, self.steady_s)
            is_good_again = not machine.faults and s - machine.good_since_s < GOOD_S
            is_on_its_way = is_good_again or fleet.is_asked_for(machine, within_s=self._acts_late_s)
            if late_s > PAGES_S + self._acts_late_s and not is_on_its_way and not fleet.pager.is_paged(name):
                why = fleet.why(machine)
                raise fleet.violation(f"{name} is out since {s - since_s:g} s, and does not page: {why}")

    def _against(self, remedy: Remedy, instance: Instance, machine: Machine) -> str:
        """The law that forbids this act now, or ""."""
        fleet, s = self._fleet, self._fleet.timeline.s
        is_worn = (
            Remedy.REPLACE_NODE in machine.needs
            or instance.id in self.platform.tried
            or self.platform.kind in ("karpenter", "eks")  # no reboot there, or none for XID 79
        )
        hour = self._replaced_since(s - HOUR + SENT_S + self._acts_late_s, instance.node, NAME_PER_HOUR)
        day = self._replaced_since(s - 24 * HOUR + SENT_S + self._acts_late_s, instance.node, NAME_PER_DAY)
        again_s = s - self._rebooted.get((instance.id, machine.boot), -AGAIN_S)
        good_s = s - max(machine.good_since_s, machine.started_s, self.steady_s) - self._acts_late_s
        unclaimed_s = s - fleet.unclaimed_s.get(instance.node, float("-inf"))
        looked_s = CLAIM_LOOKED_FOR_S if self._acts_late_s else 0.0
        for is_so, why in (
            (bool(fleet.pods(instance.node)), f"{fleet.pods(instance.node)} run there"),
            (hold_of(node_of(fleet.node(instance.node))) is None, "healthd does not hold it"),
            (instance.node not in fleet.claims() and unclaimed_s > looked_s, "it holds no claim"),
            ("opt-out" in fleet.by_admin[instance.node], "it opted out"),
            (not machine.needs, "nothing was ever wrong with this machine"),
            (machine.engine is not None and not machine.faults and good_s > GOOD_S, "it is healthy"),
            (remedy is Remedy.REPLACE_NODE and remedy in instance.asked, "that was asked for before"),
            (remedy is Remedy.REBOOT_NODE and again_s < AGAIN_S, f"that was asked for {again_s:g} s ago"),
            (remedy is Remedy.REPLACE_NODE and not is_worn, "no fault of it calls for that"),
            (remedy is Remedy.REPLACE_NODE and hour >= PER_HOUR, f"{hour} were replaced within an hour"),
            (remedy is Remedy.REPLACE_NODE and day >= PER_DAY, f"{day} were replaced within a day"),
        ):
            if is_so:
                return why
        return ""

    @property
    def _acts_late_s(self) -> float:
        """The most seconds from a request to the act, where the platform leaves one alone at first."""
        return EKS_LATEST_S if self.platform.kind == "eks" else 0.0

    def _replaced_since(self, since_s: float, name: str, most: int) -> int:
        """How many machines were given away, those of each other name ``most`` times."""
        names = Counter(each for at_s, each in self._replaced if at_s > since_s)
        return sum(times if each == name else min(times, most) for each, times in names.items())

    def _machine(self, instance: Instance) -> Machine | None:
        machine = self._fleet.machines.get(instance.node)
        return machine if machine is not None and machine.instance == instance.id else None
