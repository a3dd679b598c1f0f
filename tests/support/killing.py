"""kill -9 at every boundary of a life: what is the same wherever the life is lived.

A life is played by processes of one program, one after the other, of which one dies on order. This side starts them,
sees how each ended, plays whoever else has a part, and counts from outside what was asked for. Lives are played side by
side, one in each place, and compared with one that nobody disturbed.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from healthd.state.store import Store
from tests.live.aws.moto_server import dummy_env
from tests.live.platforms.killed_agent import Order, Rest
from tests.support.forked_healthd import ForkedHealthd
from tests.support.limits import limit_s
from tests.support.running import ROOT

MACHINE_TYPE = "p5.48xlarge"
ENDS_OF_A_SUCCESSOR = ((), ("released",), ("abandoned",))
_LONGER_THAN_ANY_TIMEOUT_S = 20_000.0
_PROCESSES = 14  # of one life; more than that is a loop
_ORPHAN_ENDS_WITHIN_S = 20.0
STDERR = 2

Ending = TypeVar("Ending")
Place = TypeVar("Place")


class Nursery:
    """Where the processes of all lives come from: forks of one that has loaded what they need, which takes longer than
    most lives do. ``program``: its module."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._environ = {**dummy_env(), "PYTHONPATH": str(ROOT)}

    def live(self, order: Order) -> int:
        """Start one, and return how it ended: its exit code, or minus the signal. Threads may ask side by side."""
        with open(os.devnull, "r+b") as nothing:
            streams = [nothing.fileno(), nothing.fileno(), STDERR]
            process = ForkedHealthd([json.dumps(asdict(order))], self._environ, streams, program=self._program)
        return process.wait()


class Kill(Struct, frozen=True, kw_only=True):
    """Where a life is cut: at which boundary of this name in it, counted from 1; and what it finds when it goes on."""

    boundary: str
    occurrence: int
    empty_store: bool = False

    def __str__(self) -> str:
        return f"{self.boundary} ({self.occurrence}){', empty store' if self.empty_store else ''}"


class Played(Struct, Generic[Ending], frozen=True, kw_only=True):
    """One life: how it ended, what it passed, where it was cut, and what was said."""

    ending: Ending
    passed: tuple[str, ...]
    killed_at: tuple[str, int] | None
    told: str

    def kills(self) -> list[Kill]:
        """One at each boundary of this life."""
        seen: Counter[str] = Counter()
        kills = []
        for label in self.passed:
            seen[label] += 1
            kills.append(Kill(boundary=label, occurrence=seen[label]))
        return kills


class Life(ABC, Generic[Ending]):
    """One life of a remediation on one node. ``folder`` holds ``passed`` (every boundary), ``message``, ``time``,
    ``rest`` and the machines m1, m2, …: each an agent's with its own trees, configuration and store, or a controller's.

    ``own_children``: as ``Order``. ``killed_at``: the boundary's name, and which of that name it was.
    """

    own_children = False

    def __init__(self, node: str, folder: Path, nursery: Nursery | None) -> None:
        self.node, self.folder, self._nursery = node, folder, nursery
        self.machines = 0
        self.killed_at: tuple[str, int] | None = None
        folder.mkdir(parents=True)
        (folder / "time").write_text(str(float(int(time.time()))))

    @property
    def machine(self) -> Path:
        """The folder of the machine, or of the controller, that is there now."""
        return self.folder / f"m{self.machines}"

    def play(self, kill: Kill | None) -> Played[Ending]:
        """To the end; with ``empty_store`` another machine, or another controller, goes on after the kill."""
        for _ in range(_PROCESSES):
            rest = self._live(kill if self.killed_at is None else None)
            if rest is None:
                if kill is not None and kill.empty_store:
                    self.is_followed()
            elif not self.goes_on(rest):
                break
        return Played(ending=self.ending(), passed=tuple(self._passed()), killed_at=self.killed_at, told=self._told())

    @abstractmethod
    def is_followed(self) -> None:
        """Another machine, or another controller, with nothing on its disk."""

    @abstractmethod
    def goes_on(self, rest: Rest) -> bool:
        """The others play their parts; False at the end of the life."""

    @abstractmethod
    def ending(self) -> Ending:
        """Where it ended."""

    @abstractmethod
    def close(self) -> None:
        """Nothing of it is left for the next."""

    @abstractmethod
    def configuration(self) -> str:
        """The text of what configures the agent or the controller that is there now."""

    # -- parts of a node's life ---------------------------------------------------------------------------------------

    def new_machine(self, instance: str) -> None:
        """A healthy machine with an empty disk."""
        self.machines += 1
        dmi = self.machine / "sys/devices/virtual/dmi/id"
        for folder in (dmi, self.machine / "proc/sys/kernel/random", self.machine / "dev", self.machine / "bin"):
            folder.mkdir(parents=True)
        for name, text in (("sys_vendor", "Amazon EC2"), ("product_name", MACHINE_TYPE), ("board_asset_tag", instance)):
            (dmi / name).write_text(f"{text}\n")
        self.boots()
        (self.machine / "config.toml").write_text(self.configuration())

    def boots(self) -> None:
        """The machine comes up, now, with another boot id."""
        (self.machine / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.machine / "proc/stat").write_text(f"btime {float((self.folder / 'time').read_text()):.0f}\n")

    def breaks(self, code: str, remedy: str) -> None:
        """From now on its check finds this."""
        (self.machine / "fault").write_text(f"{code} {remedy}\n")

    def is_repaired(self) -> None:
        """Its check finds nothing any more."""
        (self.machine / "fault").unlink(missing_ok=True)

    def commands(self, verb: str, remedy: str = "") -> None:
        """An operator gives a command, and gives it again for as long as there is no answer."""
        (self.folder / "command").write_text(json.dumps({"verb": verb, "remedy": remedy}))

    def answers(self, verb: str) -> list[tuple[bool, str]]:
        """The answers to the commands of this verb so far: whether it was done, and else the refusal."""
        path = self.folder / "answers"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(line["done"], line["refusal"]) for line in lines if line["verb"] == verb]

    def waits_in_vain(self) -> None:
        """Nothing was asked for, so nothing comes: time passes until the engine gives up waiting."""
        now = float((self.folder / "time").read_text())
        (self.folder / "time").write_text(str(now + _LONGER_THAN_ANY_TIMEOUT_S))

    def in_store(self) -> tuple[tuple[str, ...], bool]:
        """How the remediations ended that the machine which is there now knows of, and whether one is still open."""
        store = Store(self.machine / "state/healthd.db", now=datetime.now(UTC))
        try:
            return tuple(
                str(remediation.end) for remediation in store.remediations()
            ), store.open_remediation() is not None
        finally:
            store.close()

    def sections(self, *, reset_services: Sequence[str] = ()) -> str:
        """The sections that an agent has everywhere: it repairs, at once, and its budget keeps nobody in."""
        return f"""
[node]
name = "{self.node}"
[daemon]
state_dir = "{self.machine}/state"
[sources]
sys_root = "{self.machine}/sys"
proc_root = "{self.machine}/proc"
dev_root = "{self.machine}/dev"
[budget]
max_out = "100%"
settle_s = 0.01
replacements_per_hour = 100_000
replacements_per_day = 100_000
[policy]
same_fault_nodes = 100_000
storm_nodes = 100
storm_share = "100%"
repairs_in_vain = 100
repairs_judged = 0
canary_repairs = 0
replacements_in_vain = 100
[remediation]
mode = "repair"
opt_out_file = ""
settle_s = 5.0
verify_timeout_s = 10_000.0
reboot_timeout_s = 10_000.0
replace_timeout_s = 10_000.0
reset_services = {list(reset_services)}
"""

    # -- processes ----------------------------------------------------------------------------------------------------

    def _live(self, kill: Kill | None) -> Rest | None:
        """One process: what it came to, or None where it was killed."""
        order = Order(
            story=str(self.folder),
            machine=str(self.machine),
            die_at=kill.boundary if kill is not None else "",
            occurrence=kill.occurrence if kill is not None else 1,
            own_children=self.own_children,
        )
        assert self._nursery is not None, "this life is played without kills"
        ended = self._nursery.live(order)
        if ended > 0:
            raise AssertionError(f"the process broke:\n{(self.folder / 'broke').read_text()}\n{self._told()}")
        if ended < 0:
            last = self._passed()[-1]
            self.killed_at = (last, self._passed().count(last))
            if last.startswith("during "):
                self._wait_for_the_orphan()
            return None
        return Rest(**json.loads((self.folder / "rest").read_text()))

    def _wait_for_the_orphan(self) -> None:
        """What the process had begun when it died is carried out all the same."""
        until_s = time.monotonic() + limit_s(_ORPHAN_ENDS_WITHIN_S)
        while not (self.folder / "orphan-ended").exists():
            assert time.monotonic() < until_s, f"{self.killed_at}: the orphan has not ended"
            time.sleep(0.05)

    def _passed(self) -> list[str]:
        path = self.folder / "passed"
        return path.read_text().splitlines() if path.exists() else []

    def _told(self) -> str:
        """What was said, for whoever reads a failure."""
        lines = (self.folder / "said").read_text().splitlines() if (self.folder / "said").exists() else []
        return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line != before)


class Theatre(Generic[Place, Ending]):
    """Where lives are played side by side. ``begin`` begins the life of this name in a place; its last argument says
    whether nobody will disturb it."""

    def __init__(self, places: Sequence[Place], begin: Callable[[str, Place, bool], Life[Ending]]) -> None:
        self._places, self._begin = SimpleQueue[Place](), begin
        for place in places:
            self._places.put(place)
        self._pool = ThreadPoolExecutor(len(places))

    def close(self) -> None:
        """No life is played any more."""
        self._pool.shutdown()

    def undisturbed(self, names: Iterable[str]) -> dict[str, Played[Ending]]:
        """The life of each name, to its end."""
        names = tuple(names)
        return dict(zip(names, self._pool.map(self._play, names), strict=True))

    def all_end_well(
        self,
        name: str,
        kills: Sequence[Kill],
        *,
        fits: Callable[[Kill, Ending], bool],
        may_be_missing: Callable[[Kill], bool],
    ) -> None:
        """Play one life for each kill, and look where it was killed and how it ended. ``may_be_missing``: whether
        another life may not come past this boundary."""
        wrong = []
        for kill, life in zip(kills, self._pool.map(lambda kill: self._play(name, kill), kills), strict=True):
            missed = life.killed_at is None and may_be_missing(kill)
            if not (missed or life.killed_at == (kill.boundary, kill.occurrence)) or not fits(kill, life.ending):
                wrong.append(f"{kill}: killed at {life.killed_at}: {life.ending}\n{life.told}")
        assert not wrong, f"{len(wrong)} of {len(kills)}:\n" + "\n".join(wrong)

    def _play(self, name: str, kill: Kill | None = None) -> Played[Ending]:
        place = self._places.get()
        try:
            life = self._begin(name, place, kill is None)
            try:
                return life.play(kill)
            finally:
                life.close()
        finally:
            self._places.put(place)
