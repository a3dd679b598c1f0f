"""kill -9 at every boundary of a repair, on every platform: the same end, and nothing asked for twice.

Real slurmctld and slurmd, real boto3 against the endpoints, the real engine and store in a process that really dies.
Each platform's life is played once undisturbed; then once for each of its boundaries, killed there and started again on
the same disk; then once for each boundary behind which the cluster or the platform has changed, and started again on
another machine of the same name, with nothing on its disk. What was asked for is counted where it arrives.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.integration.platforms import killed_owners as owners
from tests.integration.platforms.killed_lives import (
    SERVICES,
    Ending,
    Life,
    Nursery,
    Scenario,
    cluster,
    install_counting_scontrol,
)
from tests.integration.platforms.killed_owners import Site
from tests.integration.platforms.platform_lab import Account

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SIDE_BY_SIDE = 6
OFF_THE_BUS, WORN_OUT, UNCONTAINED = (
    ("gpu.xid.79", "reboot_node"),
    ("gpu.remap.failure", "replace_node"),
    ("gpu.xid.95", "reset_gpu"),
)
SCENARIOS = {
    name: Scenario(name=name, owner=owner, code=fault[0], remedy=fault[1])
    for name, owner, fault in (
        ("gpu-reset", owners.Nobody, UNCONTAINED),
        ("hyperpod-by-reason-reboot", owners.HyperPod, OFF_THE_BUS),
        ("hyperpod-by-reason-replace", owners.HyperPodReplaces, WORN_OUT),
        ("hyperpod-by-api-reboot", owners.HyperPodByApi, OFF_THE_BUS),
        ("hyperpod-by-api-replace", owners.HyperPodReplacesByApi, WORN_OUT),
        ("parallelcluster-reboot", owners.ParallelCluster, OFF_THE_BUS),
        ("parallelcluster-replace", owners.ParallelClusterReplaces, WORN_OUT),
        ("pcs-reboot", owners.Pcs, OFF_THE_BUS),
        ("pcs-replace", owners.PcsReplaces, WORN_OUT),
        ("autoscaling-replace", owners.AutoScalingReplaces, WORN_OUT),
        ("ec2-reboot", owners.Ec2, OFF_THE_BUS),
    )
}
DRAINS_ARE_REPLACEMENTS = ("parallelcluster-reboot", "pcs-reboot")
ACTS = ("before ", "after ")
ENDS_OF_A_SUCCESSOR = ((), ("released",), ("abandoned",))
FOREIGN = ("state=drain", "reason=psu is being changed")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Where a life is cut: at which boundary of this name in it, counted from 1; and what it finds when it goes on."""

    boundary: str
    occurrence: int
    empty_store: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """The boundary, as a life tells where it was cut."""
        return self.boundary, self.occurrence

    @property
    def is_repeat(self) -> bool:
        """Whether it may be missing in another life: a wait is written as often as what is said of it changes, and of a
        place that another life took first the next one is asked for. Whether a new machine is resumed or undrained
        lies with how it registered."""
        is_another = self.boundary.startswith("write ") or "create reservation" in self.boundary
        return (self.occurrence > 1 and is_another) or "state=resume" in self.boundary

    def __str__(self) -> str:
        return f"{self.boundary} ({self.occurrence}){', empty store' if self.empty_store else ''}"


@dataclass(frozen=True, kw_only=True)
class Played:
    """One life: how it ended, what it passed, and what the engine said."""

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


@dataclass
class Theatre:
    """The nodes on which lives are played side by side, and a node that is a person's, which nobody may touch."""

    site: Site
    folder: Path
    foreign: str
    places: SimpleQueue[tuple[str, Nursery]] = field(default_factory=SimpleQueue)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(SIDE_BY_SIDE))
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def play(self, name: str, kill: Kill | None = None) -> Played:
        """One life on the next free node."""
        node, nursery = self.places.get()
        life = Life(
            scenario=SCENARIOS[name],
            node=node,
            folder=self.folder / f"{next(self._numbers)}-{name}",
            site=self.site,
            nursery=nursery,
            undisturbed=kill is None,
        )
        try:
            if kill is None:
                ending = life.play()
            else:
                ending = life.play(die_at=kill.boundary, occurrence=kill.occurrence, empty_store=kill.empty_store)
            return Played(ending=ending, passed=tuple(life.passed()), killed_at=life.killed_at, told=life.told())
        finally:
            life.close()
            self.site.sweep(node)
            self.places.put((node, nursery))

    def play_all(self, name: str, kills: list[Kill]) -> Iterator[tuple[Kill, Played]]:
        """One life for each, side by side."""
        lives = [self.pool.submit(self.play, name, kill) for kill in kills]
        for kill, life in zip(kills, lives, strict=True):
            yield kill, life.result()


@pytest.fixture(scope="module")
def theatre(platforms_moto: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """The cluster of this module."""
    folder = tmp_path_factory.mktemp("killed")
    install_counting_scontrol(folder / "tools")
    with ExitStack() as stack:
        lab = stack.enter_context(cluster(SIDE_BY_SIDE + 1))
        account = Account(platforms_moto)
        stack.callback(account.close)
        site = Site(lab=lab, tools=folder / "tools", moto=platforms_moto, account=account)
        *nodes, foreign = lab.nodes
        theatre = Theatre(site=site, folder=folder, foreign=foreign)
        stack.callback(theatre.pool.shutdown)
        for node in nodes:
            nursery = Nursery()
            stack.callback(nursery.close)
            theatre.places.put((node, nursery))
        lab.update(foreign, *FOREIGN)
        lab.update(foreign, "comment=rack 7")
        yield theatre


@pytest.fixture(scope="module")
def plain(theatre: Theatre) -> dict[str, Played]:
    """Every life undisturbed."""
    return dict(zip(SCENARIOS, theatre.pool.map(theatre.play, SCENARIOS), strict=True))


@pytest.fixture(params=SCENARIOS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_undisturbed_a_life_ends_well(plain: dict[str, Played], name: str) -> None:
    """The node is back and nothing of ours is left on it; one request, one drain at most, one case, and it is over."""
    ending = plain[name].ending
    assert ending == Ending(
        state="IDLE",
        reason="",
        slots=(),
        ends=("released",),
        open_case=False,
        asked=1,
        drains=int(name not in DRAINS_ARE_REPLACEMENTS),
        services=tuple(sorted(SERVICES)),
    ), plain[name].told
    assert len(plain[name].passed) > 25


def test_killed_at_any_boundary_it_ends_in_the_same_place(
    theatre: Theatre, plain: dict[str, Played], name: str
) -> None:
    """Started again on the same disk: what was done is adopted, what was not is done, and asked for it is once."""
    kills = plain[name].kills()
    wrong = []
    for kill, life in theatre.play_all(name, kills):
        expected = plain[name].ending
        if name == "gpu-reset" and kill in resets_unrecorded(kills):
            expected = replace(expected, asked=2)
        if (life.killed_at, life.ending) != (kill.place, expected) and not (
            kill.is_repeat and (life.killed_at, life.ending) == (None, expected)
        ):
            wrong.append(f"{kill}: killed at {life.killed_at}: {life.ending}\n{life.told}")
    assert not wrong, "\n".join(wrong)


def resets_unrecorded(kills: list[Kill]) -> list[Kill]:
    """The one exception: a GPU reset whose success was not written down is made again. On an idle node it harms
    nothing, while one that was cut off must not be taken for made (``remediation.repairs``)."""
    names = [kill.boundary for kill in kills]
    begun = names.index("during nvidia-smi --gpu-reset")
    return kills[begun : names.index("write case verify planned") + 1]


def test_killed_and_followed_by_another_machine_it_ends_in_the_same_place(
    theatre: Theatre, plain: dict[str, Played], name: str
) -> None:
    """With an empty store, the cluster alone tells what there was: the node is back, and nothing is asked for anew.

    Nothing else is left to it, so a kill before and after each act is a kill everywhere.
    """
    kills = [replace(kill, empty_store=True) for kill in plain[name].kills() if kill.boundary.startswith(ACTS)]
    wrong = []
    for kill, life in theatre.play_all(name, kills):
        ending = life.ending
        expected = replace(plain[name].ending, asked=ending.asked, drains=ending.drains, ends=ending.ends)
        fits = ending == expected and ending.asked <= 1 and ending.drains <= 1 and ending.ends in ENDS_OF_A_SUCCESSOR
        was_there = life.killed_at == kill.place or (kill.is_repeat and life.killed_at is None)
        if not was_there or not fits:
            wrong.append(f"{kill}: killed at {life.killed_at}: {ending}\n{life.told}")
    assert not wrong, "\n".join(wrong)


def test_what_is_a_persons_is_as_it_was(theatre: Theatre, plain: dict[str, Played]) -> None:
    """A person's drain, its text and its comment have outlived all of it."""
    assert plain
    line = theatre.site.line(theatre.foreign)
    assert theatre.site.record(theatre.foreign).reason == FOREIGN[1].partition("=")[2]
    assert "DRAIN" in theatre.site.record(theatre.foreign).state
    assert " Comment=rack 7" in line
