"""What befalls a simulated fleet: the failure law of its machines, people and Slurm, and what breaks of healthd.

Each happening comes by itself, at random, with a mean time between two of its kind. The seed decides all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random

from msgspec import Struct

from healthd.core.errors import HealthdError
from healthd.core.model import Refusal, Remedy
from healthd.notify.message import Message
from healthd.remediation.decide.commands import Command, Verb
from tests.simulation.ailments import (
    BAD_DRIVER,
    FILE_SERVER,
    ONE_NODE,
    POWER,
    WORN_DRIVER,
    Act,
    Ailment,
    Kind,
)
from tests.simulation.daemon import Ground
from tests.simulation.head import Head
from tests.simulation.invariants import Invariants, asks_for_a_person, node_of
from tests.simulation.node import Node
from tests.simulation.power import PowerSaving
from tests.simulation.slurm import KILL_FAILED
from tests.simulation.timeline import WallClock
from tests.support.engine_wire import Killed, disk_is_full, kill, no_answer

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
YEAR = 365 * DAY
_ASKED = (
    "after view",
    "after snapshot",
    "after slots",
    "after quarantine",
    "after release",
    "after claim",
    "after give_back",
    "after mark",
    "after reboot",
    "after replace",
)


class Rates(Struct, frozen=True, kw_only=True):
    """Mean days between two happenings of a kind in the whole fleet, 0 for never; ``faults``: so many for each node in
    a year, of these ``kinds``, each so often beside the others. ``person_s``: the median until somebody sees to a page;
    ``ordered_share``: of those who do, so many order a repair."""

    faults: float = 12.0
    driver: float = 45.0
    worn_driver: float = 90.0
    file_server: float = 20.0
    rack: float = 40.0
    admin_drain: float = 10.0
    bulk_resume: float = 25.0
    undo: float = 20.0
    window: float = 5.0
    kill_failed: float = 15.0
    kill_failed_share: float = 0.1
    hang: float = 5.0
    restart: float = 10.0
    no_answer: float = 2.0
    killed: float = 1.0
    away: float = 0.0
    """Daemons of nodes with something going on that stay away for hours or days. 0: none, so that the seeds that are
    held live as before."""
    slurmctld_killed: float = 0.0
    """kill -9 of slurmctld, which loses what it acknowledged since it last saved its state. 0: none, as of ``away``."""
    slurmctld_clock: float = 0.0
    """Steps of the clock of slurmctld's machine. 0: none, likewise."""
    ignored: float = 0.0
    """Acts that a platform acknowledges and never carries out. 0: none, likewise."""
    head_killed: float = 5.0
    disk_lost: float = 20.0
    disk_full: float = 15.0
    clock: float = 10.0
    blind: float = 10.0
    busy: float = 15.0
    order: float = 20.0
    appends: bool = False
    """Whether Slurm appends to the reason of a node that rebooted, as from 24.11 on."""
    people_come: bool = True
    """Whether somebody sees to what a page asks for."""
    breaks: float = 20.0
    """Machines that break for good, where Slurm saves power."""
    person_s: float = math.exp(8.6)
    ordered_share: float = 0.2
    kinds: tuple[tuple[Kind, int], ...] = ONE_NODE


class Law:
    """``begin`` starts it; ``heard`` is told of every message to people, who see to what asks for them."""

    def __init__(
        self,
        ground: Ground,
        nodes: Mapping[str, Node],
        head: Head | None,
        watch: Invariants,
        power: PowerSaving,
        *,
        random: Random,
        rates: Rates,
    ) -> None:
        self._ground, self._nodes, self._head, self._watch = ground, nodes, head, watch
        self._random, self._rates, self._power = random, rates, power
        self._timeline, self._slurm = ground.timeline, ground.slurm
        self._called: set[str] = set()
        self._kinds = [kind for kind, weight in rates.kinds for _ in range(weight)]
        self.kills = 0

    def begin(self) -> None:
        rates = self._rates
        self._slurm.appends = rates.appends
        self._every(YEAR / (rates.faults * len(self._nodes)) if rates.faults else 0.0, self._fault)
        for days, happening in (
            (rates.driver, lambda: self._roll_out(BAD_DRIVER)),
            (rates.worn_driver, lambda: self._roll_out(WORN_DRIVER)),
            (rates.file_server, self._file_server),
            (rates.rack, self._rack),
            (rates.admin_drain, self._admin_drains),
            (rates.bulk_resume, self._bulk_resume),
            (rates.undo, self._undo),
            (rates.window, self._window),
            (rates.kill_failed, lambda: self._kill_failed(self._any().name)),
            (rates.hang, self._hang),
            (rates.restart, self._restart),
            (rates.no_answer, lambda: self._arm(no_answer, _ASKED)),
            (rates.killed, self._kill),
            (rates.away, self._stays_away),
            (rates.slurmctld_killed, self._kill_slurmctld),
            (rates.slurmctld_clock, lambda: self._step(self._slurm.wall)),
            (rates.ignored, self._ignore),
            (rates.head_killed, self._kill_head),
            (rates.disk_lost, self._lose_disk),
            (rates.disk_full, lambda: self._arm(disk_is_full, ("before save",))),
            (rates.clock, self._set_clock),
            (rates.blind, self._blind),
            (rates.busy, self._busy),
            (rates.order, self._order_out),
        ):
            self._every(days * DAY, happening)
        self._timeline.after(DAY, self._tidy_up)
        for node in self._nodes.values() if self._ground.gangs is None else ():
            self._timeline.after(self._random.expovariate(1 / HOUR), lambda n=node: self._job_starts(n))  # type: ignore[misc]

    # -- machines -----------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        node, kind = self._any(), self._random.choice(self._kinds)
        ailment = node.falls_ill(kind)
        if ailment is not None and kind.flaps:
            self._flap(node, ailment, self._random.uniform(4 * MINUTE, 40 * MINUTE))
        if self._random.random() < 0.1:  # rarely alone: what is beside it must not drive its repair
            self._timeline.after(
                self._random.uniform(0, 1800), lambda: node.falls_ill(self._random.choice(self._kinds))
            )

    def _flap(self, node: Node, ailment: Ailment, period_s: float) -> None:
        """It shows for a quarter of the time, until it is cured."""
        if ailment.cured:
            return
        if ailment.shows:
            node.hide(ailment)
            self._timeline.after(0.75 * period_s, lambda: self._flap(node, ailment, period_s))
        else:
            node.show(ailment)
            self._timeline.after(0.25 * period_s, lambda: self._flap(node, ailment, period_s))

    def _roll_out(self, kind: Kind) -> None:
        names = self._some(0.3)
        gap_s = self._random.uniform(5 * MINUTE, 30 * MINUTE)
        for number, name in enumerate(names):
            self._timeline.after(number * gap_s, lambda n=name: self._nodes[n].falls_ill(kind))  # type: ignore[misc]
        self._timeline.after(self._random.uniform(6 * HOUR, 30 * HOUR), lambda: self._put_right(kind, names))

    def _file_server(self) -> None:
        names = self._some(self._random.choice((0.4, 1.0)))
        for name in names:
            self._timeline.after(self._random.uniform(0, 90), lambda n=name: self._nodes[n].falls_ill(FILE_SERVER))  # type: ignore[misc]
        self._timeline.after(self._random.uniform(20 * MINUTE, 6 * HOUR), lambda: self._put_right(FILE_SERVER, names))

    def _put_right(self, kind: Kind, names: list[str]) -> None:
        for name in names:
            self._nodes[name].undergoes(Act.OUTSIDE, kind)

    def _rack(self) -> None:
        rack = self._any().rack
        names = [name for name, node in self._nodes.items() if node.rack == rack]
        for name in names:
            self._nodes[name].power_cycle(self._random.uniform(60, 900))
            self._nodes[name].falls_ill(POWER)
        self._timeline.after(self._random.uniform(20 * MINUTE, 3 * HOUR), lambda: self._put_right(POWER, names))

    def _job_starts(self, node: Node) -> None:
        slurm = self._slurm.nodes[node.name]
        free = not slurm.flags and node.name not in self._slurm.holders() | self._slurm.maintenance
        if not (free and node.up):
            in_s = self._power.resumes(node.name) if free else 20 * MINUTE
            self._timeline.after(in_s, lambda: self._job_starts(node))
            return
        slurm.jobs.append("job")
        hangs = self._random.random() < 0.005
        lasts_s = self._random.uniform(1, 5) * DAY if hangs else min(2 * DAY, self._random.lognormvariate(9.0, 1.0))
        self._timeline.after(lasts_s, lambda: self._job_ends(node))

    def _job_ends(self, node: Node) -> None:
        slurm = self._slurm.nodes[node.name]
        slurm.jobs.clear()
        if slurm.flags or node.name in self._slurm.holders():
            if self._slurm.is_ours(node.name) and self._random.random() < self._rates.kill_failed_share:
                self._kill_failed(node.name)
            self._slurm.touched(node.name)
        gap_s = self._power.gap_s() if node.name in self._power.cloud else self._random.expovariate(1 / HOUR)
        self._timeline.after(gap_s, lambda: self._job_starts(node))

    # -- people and Slurm ---------------------------------------------------------------------------------------------

    def heard(self, name: str, message: Message) -> None:
        """Somebody reads it, and sees to what asks for a person, in hours."""
        if not self._rates.people_come:
            return
        for piece in message.data["news"]:
            about = node_of(name, piece["key"], piece["message"])
            if asks_for_a_person(piece["key"]) and not piece["over"] and about in self._nodes:
                self._call(about)

    def _call(self, name: str) -> None:
        if name not in self._called:
            self._called.add(name)
            after_s = self._random.lognormvariate(math.log(self._rates.person_s), 1.2)
            self._timeline.after(min(2 * DAY, after_s), lambda: self._see_to(name))

    def _see_to(self, name: str) -> None:
        """A person looks at the node, puts right what they find, most of the time, and lets it in by one way or
        another."""
        self._called.discard(name)
        node, chance = self._nodes[name], self._random.random()
        if any(asks_for_a_person(key) for key in self._watch.told[name].standing):
            self._timeline.after(DAY, lambda: self._call_again(name))
        if not node.has_machine:
            self._watch.note(name, "a person sees to the name")
            self._power.seen_to(name)
        if not node.up or not (node.ailments or self._slurm.is_out(name)):
            return
        self._watch.note(name, "a person sees to it")
        self._watch.released[name].clear()
        if chance < 0.8:
            node.undergoes(Act.HAND)
            node.undergoes(Act.OUTSIDE)
        if chance < 0.5:
            node.power_cycle(300.0, Act.HAND)
        if chance < self._rates.ordered_share:
            remedy = self._random.choice((Remedy.REBOOT_NODE, Remedy.REPLACE_NODE))
            self._order(name, Command(verb=Verb.REPAIR, who="uid 0", remedy=remedy))
        elif chance < 0.65:
            self._timeline.after(30 * MINUTE, lambda: self._order(name, Command(verb=Verb.RELEASE, who="uid 0")))
        elif chance < 0.8:
            order = Command(verb=Verb.RELEASE, who="uid 0", why="looked at", forced=True)
            self._timeline.after(20 * MINUTE, lambda: self._order(name, order))
        elif chance < 0.9 and self._slurm.nodes[name].flags:
            self._slurm.people(name, "resume")

    def _tidy_up(self) -> None:
        """What somebody let in with an open fault is seen to in the days after."""
        for node in self._nodes.values():
            daemon = node.daemon
            is_left = daemon is not None and daemon.monitor.diagnoses() and not self._slurm.is_out(node.name)
            if is_left and self._random.random() < 0.5 and not self._slurm.nodes[node.name].jobs:
                self._watch.note(node.name, "a person puts right what was let in with a fault")
                node.undergoes(Act.HAND)
                node.power_cycle(300.0, Act.HAND)
        self._timeline.after(DAY, self._tidy_up)

    def _call_again(self, name: str) -> None:
        if any(asks_for_a_person(key) for key in self._watch.told[name].standing):
            self._call(name)

    def _order(self, name: str, order: Command) -> None:
        """A command of an operator; one that has to wait, or whose daemon is away, is given again."""
        node = self._nodes[name]
        daemon = node.daemon
        if node.asleep and order.verb is Verb.RELEASE:
            self._power.seen_to(name)
        if node.asleep:
            return
        if daemon is None or not daemon.alive:
            self._timeline.after(10 * MINUTE, lambda: self._order(name, order))
            return
        try:
            outcome = daemon.engine.execute(order, node.wall.now())
        except Killed:
            self._watch.ordered[name] = self._timeline.s  # it may be on disk
            node.kill_daemon()
            return
        except HealthdError as error:
            self._watch.note(name, f"ordered {order.verb}: {error}")
            self._watch.ordered[name] = self._timeline.s  # what did not answer, or was not written, may be applied
            return
        self._watch.note(name, f"ordered {order.verb}: {outcome.message}")
        if outcome.done:
            self._watch.ordered[name] = self._timeline.s
        elif outcome.refusal is Refusal.UNREADABLE:
            self._timeline.after(10 * MINUTE, lambda: self._order(name, order))
        daemon.wake()

    def _order_out(self) -> None:
        name = self._any().name
        self._order(name, Command(verb=Verb.QUARANTINE, who="uid 0", why="psu looks odd"))
        back = Command(verb=Verb.RELEASE, who="uid 0", why="psu was changed")
        self._timeline.after(self._random.uniform(HOUR, 20 * HOUR), lambda: self._order(name, back))

    def _admin_drains(self) -> None:
        name = self._any().name
        if self._slurm.nodes[name].hold is None:
            self._slurm.people(name, "drain", "memtest, bob", user="bob")
            self._timeline.after(self._random.uniform(HOUR, 2 * DAY), lambda: self._admin_lets_in(name))

    def _admin_lets_in(self, name: str) -> None:
        hold = self._slurm.nodes[name].hold
        if hold is not None and hold.user == "bob":
            self._slurm.people(name, "resume", user="bob")

    def _bulk_resume(self) -> None:
        """``scontrol update nodename=ALL state=resume``, after an incident of somebody else's."""
        for name, node in self._slurm.nodes.items():
            if node.flags:
                self._slurm.people(name, "resume", user="root")

    def _undo(self) -> None:
        ours = [name for name in self._nodes if self._slurm.is_ours(name)]
        if ours:
            self._slurm.people(self._random.choice(ours), "resume")

    def _window(self) -> None:
        names = [*self._some(0.1), self._busy_one().name]
        self._slurm.maintenance.update(names)
        self._timeline.after(
            self._random.uniform(HOUR, 8 * HOUR), lambda: self._slurm.maintenance.difference_update(names)
        )

    def _kill_failed(self, name: str) -> None:
        """slurmd could not end a step: slurmctld drains the node, over whatever text there is."""
        self._slurm.people(name, "drain", KILL_FAILED, user="root")
        self._timeline.after(self._random.uniform(HOUR, DAY), lambda: self._clean_up(name))

    def _clean_up(self, name: str) -> None:
        """Where nobody of ours does, an administrator lets such a node in again."""
        hold = self._slurm.nodes[name].hold
        if hold is not None and hold.text == KILL_FAILED and name not in self._slurm.holders():
            self._slurm.people(name, "resume", user="bob")

    # -- what breaks of healthd and under it --------------------------------------------------------------------------

    def _hang(self) -> None:
        if not self._slurm.hung:
            self._slurm.hung = True
            self._timeline.after(min(HOUR, self._random.lognormvariate(4.5, 1.5)), self._slurm.wake)

    def _restart(self) -> None:
        drained = [name for name, node in self._slurm.nodes.items() if node.flags]
        losing = drained if self._random.random() < 0.3 else []
        self._slurm.restart(losing=losing)
        for name in losing:
            self._slurm.touched(name)

    def _kill(self) -> None:
        self.kills += 1
        if self._random.random() < 0.7:
            self._arm(kill)
        else:
            self._any().kill_daemon(back_in_s=self._random.choice((10.0, 10.0, 600.0, 4 * HOUR)))

    def _stays_away(self) -> None:
        """A daemon crashes and is not started again, until an operator is called or somebody happens to see it."""
        self._busy_one().kill_daemon(back_in_s=self._random.uniform(6 * HOUR, 3 * DAY))

    def _kill_slurmctld(self) -> None:
        """Drains, releases, slots and records of some minutes are as they were before."""

        def kill_it() -> None:
            self._slurm.kill()
            for name in self._slurm.nodes:
                self._slurm.touched(name)

        self._slurm.save()
        self._timeline.after(self._random.uniform(5.0, 5 * MINUTE), kill_it)

    def _ignore(self) -> None:
        self._busy_one().ignores_next = True

    def _kill_head(self) -> None:
        if self._head is not None and self._random.random() < 0.5:
            self._head.fuse.arm(self._random.randint(1, 80), kill)
        elif self._head is not None:
            self._head.stop(self._random.choice((30.0, 600.0, 3 * HOUR)))

    def _arm(self, happening: Callable[[], None], names: tuple[str, ...] = ()) -> None:
        node = self._busy_one()
        node.fuse.arm(self._random.randint(1, 12 if names else 60), happening, names)

    def _lose_disk(self) -> None:
        self._busy_one().lose_disk(ring_rolled=self._random.random() < 0.5)

    def _set_clock(self) -> None:
        self._step(
            self._random.choice(
                [node.wall for node in self._nodes.values()] + ([self._head.wall] if self._head else [])
            )
        )

    def _step(self, wall: WallClock) -> None:
        """chronyd steps the clock of a machine, and some time later back."""
        by_s = self._random.choice((-HOUR, -90.0, 30.0, HOUR))
        wall.set_by_s += by_s

        def back() -> None:
            wall.set_by_s -= by_s

        self._timeline.after(self._random.uniform(MINUTE, 5 * HOUR), back)

    def _blind(self) -> None:
        node = self._busy_one()
        node.goes_blind("NVML does not answer within 10 s")
        self._timeline.after(self._random.uniform(MINUTE, 2 * HOUR), lambda: node.goes_blind(""))

    def _busy(self) -> None:
        for node in self._nodes.values():
            node.platform.busy = "throttled: asked to come again"
        self._timeline.after(self._random.uniform(10 * MINUTE, 3 * HOUR), self._free)

    def _free(self) -> None:
        for node in self._nodes.values():
            node.platform.busy = ""

    # -- parts --------------------------------------------------------------------------------------------------------

    def _every(self, mean_s: float, happening: Callable[[], object]) -> None:
        def happens() -> None:
            happening()
            self._timeline.after(self._random.expovariate(1 / mean_s), happens)

        if mean_s > 0:
            self._timeline.after(self._random.expovariate(1 / mean_s), happens)

    def _any(self) -> Node:
        return self._random.choice(list(self._nodes.values()))

    def _busy_one(self) -> Node:
        """A node with something going on, most of the time: there it matters."""
        holders = sorted(self._slurm.holders() & set(self._nodes))
        return self._nodes[self._random.choice(holders)] if holders and self._random.random() < 0.8 else self._any()

    def _some(self, share: float) -> list[str]:
        names = list(self._nodes)
        self._random.shuffle(names)
        return names[: max(1, int(share * len(names)))]
