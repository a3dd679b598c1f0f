"""kill -9 at every boundary of a repair, on every platform: the same end, and nothing asked for twice.

Real slurmctld and slurmd, real boto3 against the endpoints, the real engine and store in a process that really dies.
Each platform's life is played once undisturbed; then once for each of its boundaries, killed there and started again on
the same disk; then once for each boundary behind which the cluster or the platform has changed, and started again on
another machine of the same name, with nothing on its disk. What was asked for is counted where it arrives.

`make test-exhaustive` plays all of these lives, `make test` a sample of them (tests/support/sampling.py): some of the
platforms, and kills at some boundaries of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from tests.live.platforms import killed_owners as owners
from tests.live.platforms.killed_lives import (
    SERVICES,
    Ending,
    Life,
    Scenario,
    cluster,
    install_counting_scontrol,
)
from tests.live.platforms.killed_owners import Site
from tests.live.platforms.platform_lab import Account
from tests.support.killing import ENDS_OF_A_SUCCESSOR, Kill, Nursery, Played, Theatre
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SIDE_BY_SIDE = 6
PROGRAM = "tests.live.platforms.killed_agent"
OFF_THE_BUS, WORN_OUT, UNCONTAINED = (
    ("gpu.xid.79", "reboot_node"),
    ("gpu.remap.failure", "replace_node"),
    ("gpu.xid.95", "reset_gpu"),
)
ITS_SERVICES_FIRST = ("hyperpod-by-api-reboot", "autoscaling-replace", "ec2-reboot")
SCENARIOS = {
    name: Scenario(owner=owner, code=fault[0], remedy=fault[1], own_children=name in ITS_SERVICES_FIRST)
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
PLAYED = of_this_run().of({"lives": tuple(SCENARIOS)}, kind=lambda name: SCENARIOS[name].remedy, least=4)["lives"]
"""`make test` plays four of them, each kind of repair among them: others in each run."""
DRAINS_ARE_REPLACEMENTS = ("parallelcluster-reboot", "pcs-reboot")
ACTS = ("before ", "after ")
SIDES = ("before ", "during ", "after ")
KILLS_OF_EACH = 1
"""At least so many kills of each life, in a sample."""
FOREIGN = ("state=drain", "reason=psu is being changed")
Stage = Theatre[str, Ending]
"""A place is the name of a node."""


def may_be_missing(kill: Kill) -> bool:
    """A wait is written as often as what is said of it changes, and of a place that another life took first the next
    one is asked for. Whether a new machine is resumed or undrained lies with how it registered."""
    is_another = kill.boundary.startswith("write ") or "create reservation" in kill.boundary
    return (kill.occurrence > 1 and is_another) or "state=resume" in kill.boundary


@pytest.fixture(scope="module")
def site(platforms_moto: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster of this module, whose last node is a person's: nobody may touch it."""
    tools = tmp_path_factory.mktemp("killed") / "tools"
    install_counting_scontrol(tools)
    with cluster(SIDE_BY_SIDE + 1) as lab, closing(Account(platforms_moto)) as account:
        lab.update(lab.nodes[-1], *FOREIGN)
        lab.update(lab.nodes[-1], "comment=rack 7")
        yield Site(lab=lab, tools=tools, moto=platforms_moto, account=account)


@pytest.fixture(scope="module")
def theatre(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A node for each life."""
    folder, numbers, nursery = tmp_path_factory.mktemp("lives"), itertools.count(1), Nursery(PROGRAM)

    def begin(name: str, node: str, undisturbed: bool) -> Life:
        here = folder / f"{next(numbers)}-{name}"
        return Life(
            scenario=SCENARIOS[name], node=node, folder=here, site=site, nursery=nursery, undisturbed=undisturbed
        )

    with closing(Theatre(site.lab.nodes[:SIDE_BY_SIDE], begin)) as stage:
        yield stage


@pytest.fixture(scope="module")
def plain(theatre: Stage) -> dict[str, Played[Ending]]:
    return theatre.undisturbed(PLAYED)


def boundary_of(kill: Kill) -> str:
    """Its kind, for a sample: the act, whichever side of it and whichever of that name it is; or a write, or the rest.
    So a sample kills around every act and at some of the writes, which tests/engine/test_engine_replay.py interrupts
    one by one."""
    side = next((side for side in SIDES if kill.boundary.startswith(side)), "")
    return kill.boundary.removeprefix(side) if side else kill.boundary.partition(" ")[0]


@pytest.fixture(scope="module")
def kills(plain: dict[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """Where each life is cut, to go on with the same disk."""
    everywhere = {name: life.kills() for name, life in plain.items()}
    return of_this_run().of(everywhere, kind=boundary_of, least=KILLS_OF_EACH)


@pytest.fixture(scope="module")
def kills_of_machines(plain: dict[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """Where each life is cut, to go on with an empty disk: that alone is left to it, so before and after each act is
    everywhere."""
    at_acts = {
        name: [replace(kill, empty_store=True) for kill in life.kills() if kill.boundary.startswith(ACTS)]
        for name, life in plain.items()
    }
    return of_this_run().of(at_acts, kind=boundary_of, least=KILLS_OF_EACH)


@pytest.fixture(params=PLAYED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_undisturbed_a_life_ends_well(plain: dict[str, Played[Ending]], name: str) -> None:
    """The node is back and nothing of ours is left on it; one request, one drain at most, one remediation, and it is
    over."""
    ending = plain[name].ending
    assert ending == Ending(
        state="IDLE",
        reason="",
        slots=(),
        ends=("released",),
        open_remediation=False,
        asked=1,
        drains=int(name not in DRAINS_ARE_REPLACEMENTS),
        services=tuple(sorted(SERVICES)),
    ), plain[name].told
    assert len(plain[name].passed) > 25


def test_killed_at_any_boundary_it_ends_in_the_same_place(
    theatre: Stage,
    plain: dict[str, Played[Ending]],
    kills: dict[str, list[Kill]],
    name: str,
) -> None:
    """Started again on the same disk: what was done is adopted, what was not is done, and asked for it is once: of a
    GPU reset whose success was not written down too, because the check behind the fault shows that it is over."""
    expected = plain[name].ending

    def fits(_: Kill, ending: Ending) -> bool:
        return ending == expected

    theatre.all_end_well(name, kills[name], fits=fits, may_be_missing=may_be_missing)


def test_killed_and_followed_by_another_machine_it_ends_in_the_same_place(
    theatre: Stage,
    plain: dict[str, Played[Ending]],
    kills_of_machines: dict[str, list[Kill]],
    name: str,
) -> None:
    """With an empty store, the cluster alone tells what there was: the node is back, and nothing is asked for anew."""

    def fits(_: Kill, ending: Ending) -> bool:
        expected = replace(plain[name].ending, asked=ending.asked, drains=ending.drains, ends=ending.ends)
        return ending == expected and ending.asked <= 1 and ending.drains <= 1 and ending.ends in ENDS_OF_A_SUCCESSOR

    theatre.all_end_well(name, kills_of_machines[name], fits=fits, may_be_missing=may_be_missing)


def test_what_is_a_persons_is_as_it_was(site: Site, plain: dict[str, Played[Ending]]) -> None:
    """A person's drain, its text and its comment have outlived all of it."""
    assert plain
    foreign = site.lab.nodes[-1]
    assert site.record(foreign).reason == FOREIGN[1].partition("=")[2]
    assert "DRAIN" in site.record(foreign).state
    assert " Comment=rack 7" in site.line(foreign)
