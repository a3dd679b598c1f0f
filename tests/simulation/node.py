"""One name of the simulated cluster: its machine, what is wrong with that, the platform behind it, and its daemon."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Protocol

from healthd.core.errors import BackendBusy, BackendRefused
from healthd.core.model import Finding, Remedy
from healthd.notify.message import Message
from healthd.remediation.ports import Provisioner
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS
from healthd.remediation.records.handoff import parse
from healthd.state.store import IN_MEMORY, Store
from tests.simulation.ailments import Act, Ailment, Kind, component_of
from tests.simulation.daemon import BootAlone, Daemon, Disk, Fuse, Ground
from tests.simulation.slurm import Door
from tests.simulation.timeline import WallClock
from tests.support.fake_repairs import FakeProvisioner, FakeResetter

DAEMON_STARTS_S = (5.0, 40.0)
SLURMD_TIMEOUT_S = 300.0
_ACTS = {Remedy.RESET_GPU: Act.RESET, Remedy.REBOOT_NODE: Act.REBOOT, Remedy.REPLACE_NODE: Act.REPLACE}


class Platform(FakeProvisioner):
    """Who reboots and replaces the machine of one name. ``busy``: why it has no time now.

    ``broken``: why it gave up what it was asked for last.
    """

    kind = "simulated"

    def __init__(self, reboots: Callable[[], None], replaces: Callable[[], None]) -> None:
        super().__init__(reboots, replaces)
        self.busy = self.broken = ""

    def reboot(self) -> None:
        self._heard()
        super().reboot()

    def replace(self) -> None:
        self._heard()
        super().replace()

    def progress(self) -> str:
        if self.broken:
            raise BackendRefused(self.broken)
        return ""

    def _heard(self) -> None:
        if self.busy:
            raise BackendBusy(self.busy)


class Managed(Protocol):
    """Makes the provisioner of a name that a node manager looks after."""

    def __call__(self, name: str, instance: str, made_by_us: Callable[[str], bool]) -> Provisioner:
        """For this machine; ``made_by_us``: see HyperPodProvisioner."""


class Node:
    """``asks`` is told of each request to the controller, ``acts`` of each act before it is made.

    ``tells`` is told of each message, ``forgets`` of each disk that is lost, ``dies`` of each daemon that is killed,
    and whether it asks its platform by itself; ``notes`` of what happens to the node. ``managed``: a node manager
    looks after the name, and no other platform does.
    """

    def __init__(
        self,
        name: str,
        rack: int,
        ground: Ground,
        random: Random,
        *,
        delegates: bool,
        asks: Callable[[str, Remedy], None],
        acts: Callable[[str, Remedy], None],
        tells: Callable[[str, Message], None],
        forgets: Callable[[str], None],
        dies: Callable[[str, bool], None],
        notes: Callable[[str, str], None],
        managed: Managed | None = None,
    ) -> None:
        self._managed = managed
        self.name, self.rack, self._ground, self._random, self._delegates = name, rack, ground, random, delegates
        self._asked, self._acts, self._tells, self._notes = asks, acts, tells, notes
        self._forgets, self._dies = forgets, dies
        self.wall = WallClock(ground.timeline)
        self.machine, self.boot, self.up, self.blind = 1, 1, True, ""
        self.asleep = self.dead = False
        self.ailments: list[Ailment] = []
        self.ring: list[Finding] = []
        self.disk = self._new_disk()
        self.fuse = Fuse()
        self.platform = Platform(self._asked_to_reboot, self._asked_to_replace)
        self.platform.instance = self.instance
        self._power, self._replacing, self.has_instance = 0, False, True
        self.ignores_next = False
        self.daemon: Daemon | None = None
        self.changed_s = self._boots_s = 0.0
        self.start_daemon()

    @property
    def instance(self) -> str:
        return f"i-{self.name}m{self.machine}"

    @property
    def address(self) -> str:
        """Of the machine: another one has another."""
        number = int(self.name.removeprefix("n"))
        return f"10.{self.machine % 250}.{number // 250}.{number % 250 + 1}"

    @property
    def boots(self) -> tuple[int, int]:
        """Which boot of which machine it is."""
        return self.machine, self.boot

    @property
    def has_machine(self) -> bool:
        """Whether one is there, or on its way up: not powered down, and not broken for good."""
        return not (self.asleep or self.dead)

    @property
    def is_watched(self) -> bool:
        """Whether its machine is up, and its daemon runs."""
        return self.up and self.daemon is not None and self.daemon.alive

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with the machine, as nature has it."""
        return self.up and not self.ailments and not self.blind

    def uuid(self, gpu: int) -> str:
        return f"GPU-{self.name}-{self.machine}-{gpu}"

    # -- the daemon ---------------------------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        if not self.up or (self.daemon is not None and self.daemon.alive):
            return
        self.daemon = Daemon(
            self.name,
            self._ground,
            self.disk,
            wall=self.wall,
            instance=self.instance,
            boot=f"{self.machine}-{self.boot}-{self.name}",
            provisioner=self._provisioner(),
            resetter=FakeResetter(self._asked_to_reset),
            hindsight=BootAlone(booted_at=self._booted_at),
            fuse=self.fuse,
            levels=self._levels,
            ring=self.ring,
            blind=lambda: self.blind,
            deliver=lambda message: self._tells(self.name, message),
            died=self._daemon_died,
        )

    def kill_daemon(self, *, back_in_s: float | None = None) -> None:
        """kill -9; the service manager starts it again."""
        if self.daemon is not None and self.daemon.alive:
            self.daemon.alive = False
            self._daemon_died(back_in_s)

    def _daemon_died(self, back_in_s: float | None = None) -> None:
        self.note("the daemon was killed")
        self._dies(self.name, not self._delegates)
        power = self._power
        wait_s = self._random.uniform(*DAEMON_STARTS_S) if back_in_s is None else back_in_s
        self._ground.timeline.after(wait_s, lambda: self.start_daemon() if power == self._power else None)

    def lose_disk(self, *, ring_rolled: bool) -> None:
        """The state directory is empty after this; ``ring_rolled``: and the kernel log begins later than the faults."""
        self.note(f"the disk was lost{', and the kernel log rolled over' if ring_rolled else ''}")
        if self.daemon is not None:
            self.daemon.alive = False
        if ring_rolled:
            self.ring.clear()
        self.disk = self._new_disk()
        self._daemon_died()

    def _booted_at(self) -> datetime:
        return self.wall.now() - timedelta(seconds=self._ground.timeline.s - self._boots_s)

    def _new_disk(self) -> Disk:
        self._forgets(self.name)
        return Disk(store=Store(IN_MEMORY, now=self.wall.now()))

    def _provisioner(self) -> Provisioner:
        if self._managed is not None:
            store = self.disk.store
            return self._managed(
                self.name, self.instance, lambda reason: reason in OUR_TEXTS and store.open_remediation() is not None
            )
        if not self._delegates:
            return self.platform
        door = Door(self._ground.slurm, self.name)
        return DelegatedProvisioner(
            inner=self.platform,
            instance_id=self.instance,
            read=door.read_record,
            write=lambda text: self._asks(door, text),
            clock=self.wall.now,
            monotonic_s=self._ground.timeline,
        )

    def _asks(self, door: Door, text: str) -> None:
        """Leave a request with the controller."""
        record = parse(text)
        if record is not None and record.asks and record.remedy is not None:
            self._asked(self.name, record.remedy)
        door.write_record(text)

    # -- what is wrong with it ----------------------------------------------------------------------------------------

    def falls_ill(self, kind: Kind) -> Ailment | None:
        """It begins; None where it has it already, or nothing is there that could break."""
        if (self.asleep and not kind.of_the_name) or any(each.kind is kind for each in self.ailments):
            return None
        ailment = Ailment(kind=kind, component=component_of(kind, self.uuid(self._random.randrange(8))))
        self.ailments.append(ailment)
        self._show(ailment)
        return ailment

    def undergoes(self, act: Act, only: Kind | None = None) -> None:
        """What an act makes of what is wrong."""
        self.changed_s = self._ground.timeline.s
        for ailment in [each for each in self.ailments if only is None or each.kind is only]:
            kind = ailment.kind
            stays = kind.of_the_name and act is not Act.OUTSIDE
            if act in kind.cured_by or (act is Act.REPLACE and not stays):
                ailment.cured = True
                self.ailments.remove(ailment)
                self.note(f"{kind.name}: cured by {act}")
            elif act in kind.hidden_by:
                ailment.shows = False
                self._ground.timeline.after(self._random.uniform(*kind.returns_s), lambda a=ailment: self._show(a))  # type: ignore[misc]
        self._look()

    def hide(self, ailment: Ailment) -> None:
        """A level goes away by itself, for now."""
        ailment.shows = False
        self._look()

    def show(self, ailment: Ailment) -> None:
        self._show(ailment)

    def _show(self, ailment: Ailment) -> None:
        if ailment.cured or ailment.shows or not self.up:
            if not self.up and not ailment.cured:
                self._ground.timeline.after(60.0 if self.has_machine else 1800.0, lambda: self._show(ailment))
            return
        self.changed_s = self._ground.timeline.s
        if ailment.kind.on == "gpu":
            ailment.component = component_of(ailment.kind, self.uuid(self._random.randrange(8)))
        ailment.shows = True
        self.note(f"{ailment.kind.name}: {ailment.kind.code} on {ailment.component}")
        if ailment.kind.clears_by is None:
            self._look()
            return
        self.ring.append(ailment.finding())
        if self.daemon is not None and self.daemon.alive:
            self.daemon.read_log()

    def _levels(self) -> list[Finding]:
        return [each.finding() for each in self.ailments if each.shows and each.kind.clears_by is None]

    def _look(self) -> None:
        if self.daemon is not None and self.daemon.alive:
            self.daemon.look_soon(self._random.uniform(1.0, 60.0))

    def goes_blind(self, why: str) -> None:
        self.blind = why
        self.changed_s = self._ground.timeline.s
        self._look()

    # -- what is done to it -------------------------------------------------------------------------------------------

    def _asked_to_reset(self) -> None:
        self._acts(self.name, Remedy.RESET_GPU)
        self.undergoes(Act.RESET)

    def _is_ignored(self) -> bool:
        """Whether the platform acknowledges this act, and never carries it out."""
        is_ignored, self.ignores_next = self.ignores_next, False
        if is_ignored:
            self.note("the platform does not do what it acknowledged")
        return is_ignored

    def _asked_to_reboot(self) -> None:
        self._acts(self.name, Remedy.REBOOT_NODE)
        if self._is_ignored():
            return
        takes_s = self._boot_takes_s()
        self._ground.timeline.after(3.0, lambda: self.power_cycle(takes_s))

    def _boot_takes_s(self) -> float:
        return self._random.uniform(60.0, 400.0) if self._random.random() < 0.95 else self._random.uniform(900, 7200)

    def _asked_to_replace(self) -> None:
        self._acts(self.name, Remedy.REPLACE_NODE)
        if self._is_ignored():
            return
        self.platform.broken, chance = "", self._random.random()
        if chance < 0.03:
            self.platform.broken = "no such capacity, failed for good"
            return
        takes_s = self._random.uniform(120.0, 1800.0) if chance < 0.9 else self._random.uniform(3600.0, 12_000.0)
        if not self._replacing:
            self._replacing = True
            self._ground.timeline.after(takes_s, self._replaced)

    def power_cycle(self, takes_s: float, act: Act = Act.REBOOT) -> None:
        """The machine goes down, and is back after that."""
        if not self.up:
            return
        self._goes_down()
        power = self._power
        self._ground.timeline.after(takes_s, lambda: self._booted(act) if power == self._power else None)

    def _replaced(self) -> None:
        self._replacing = False
        if self.asleep:
            self.note("nothing is replaced: Slurm has powered the machine down")
            return
        if self.up:
            self._goes_down()
        self._another_machine()
        self._booted(Act.REPLACE)

    def _another_machine(self) -> None:
        self.machine, self.boot, self.dead = self.machine + 1, 0, False
        self.platform.instance = self.instance
        self.disk = self._new_disk()
        self.note(f"another machine: {self.instance}")

    # -- what a node manager does -------------------------------------------------------------------------------------

    def asked(self, remedy: Remedy) -> None:
        """healthd asks its manager for this."""
        self._acts(self.name, remedy)

    def reboots(self) -> None:
        if not self._is_ignored():
            self.power_cycle(self._boot_takes_s())

    def loses_instance(self) -> None:
        """Its instance is ended."""
        self._goes_off("its machine is ended by its manager")
        self.dead = self.has_instance = False

    def another_comes(self) -> None:
        """Another instance has the name."""
        self.has_instance = True
        self._another_machine()
        self._booted(Act.REPLACE, announced=True)

    # -- Slurm's power saving -----------------------------------------------------------------------------------------

    def powered_down(self) -> None:
        """Slurm's power saving takes the machine away."""
        self._goes_off("is powered down")
        self.asleep, self.dead = True, False

    def powered_up(self, *, another: bool) -> None:
        """And gives one back: ``another``, with an empty disk, or the same one."""
        self.asleep = False
        if another:
            self._another_machine()
        self._booted(Act.REPLACE if another else Act.REBOOT, announced=True)

    def dies(self) -> None:
        """The machine goes down, and does not come back by itself."""
        if self.up:
            self._goes_down()
            self.dead = True

    def brought_back(self) -> None:
        """A person has it put right."""
        if self.dead:
            self.dead = False
            self._booted(Act.HAND)

    def _goes_down(self) -> None:
        power = self._goes_off("goes down")
        self._ground.timeline.after(SLURMD_TIMEOUT_S, lambda: self._is_missed(power))

    def _goes_off(self, message: str) -> int:
        self.note(message)
        self.up = False
        self._power += 1
        self.changed_s = self._ground.timeline.s
        if self.daemon is not None:
            self.daemon.alive = False
        self._ground.slurm.nodes[self.name].jobs.clear()
        return self._power

    def _is_missed(self, power: int) -> None:
        """slurmctld gives up a node that does not answer: again, where it was resumed, or slurmctld has lost that."""
        if power != self._power or self.up:
            return
        flags, missed = self._ground.slurm.nodes[self.name].flags, {"DOWN", "NOT_RESPONDING"}
        if "REBOOT_ISSUED" not in flags and not missed <= flags:
            flags |= missed
            self._ground.slurm.touched(self.name)
        self._ground.timeline.after(SLURMD_TIMEOUT_S, lambda: self._is_missed(power))

    def _booted(self, act: Act, *, announced: bool = False) -> None:
        """``announced``: slurmctld has started the machine itself, and takes its boot for no surprise."""
        self.up, self.boot, self._power = True, self.boot + 1, self._power + 1
        self._boots_s = self._ground.timeline.s
        self.ring.clear()
        slurm = self._ground.slurm
        slurm.nodes[self.name].flags.discard("NOT_RESPONDING")
        if not (announced or "REBOOT_ISSUED" in slurm.nodes[self.name].flags):
            slurm.rebooted(self.name)
        slurm.booted(self.name)
        self.note(f"is back, boot {self.boot} of {self.instance}")
        self.undergoes(act)
        for ailment in self.ailments:
            if ailment.shows and ailment.kind.clears_by is not None:  # what no boot hides says so once more
                ailment.shows = False
                self._show(ailment)
        self._ground.timeline.after(self._random.uniform(*DAEMON_STARTS_S), self.start_daemon)

    def note(self, text: str) -> None:
        self._notes(self.name, text)
