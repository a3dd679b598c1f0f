"""kill -9 at every boundary of an approval, an undo, a canary and a freeze on a real slurmctld: the same end each time.

As test_kill_everywhere.py, whose lives these are, with an operator in them: nothing is asked for without an approval or
in a freeze, nothing twice, and no command is lost. `make test-exhaustive` plays every life, `make test` a sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

import pytest
from msgspec.structs import replace

from tests.live.platforms import killed_owners as owners
from tests.live.platforms.killed_hands import HANDS, ApprovedLife, FrozenLife
from tests.live.platforms.killed_lives import SERVICES, Ending, Scenario, cluster, install_counting_scontrol
from tests.live.platforms.killed_owners import Site
from tests.live.platforms.platform_lab import Account
from tests.live.platforms.test_kill_everywhere import (
    OFF_THE_BUS,
    PROGRAM,
    Stage,
    boundary_of,
    may_be_missing,
)
from tests.support.killing import Kill, Nursery, Played, Theatre
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SIDE_BY_SIDE = 4
KILLS_OF_EACH = 1
REBOOT = Scenario(owner=owners.Ec2, code=OFF_THE_BUS[0], remedy=OFF_THE_BUS[1])
WELL = Ending(
    state="IDLE",
    reason="",
    slots=(),
    ends=("released",),
    open_remediation=False,
    asked=1,
    drains=1,
    services=tuple(sorted(SERVICES)),
)
ENDINGS = {
    "approve": WELL,
    "undo": replace(WELL, asked=0),
    "undo-too-late": WELL,
    "canary": replace(WELL, asked=2, drains=2, ends=("released", "released")),
    "freeze": WELL,
}


@pytest.fixture(scope="module")
def site(platforms_moto: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster of this module."""
    tools = tmp_path_factory.mktemp("hands") / "tools"
    install_counting_scontrol(tools)
    with cluster(SIDE_BY_SIDE) as lab, closing(Account(platforms_moto)) as account:
        yield Site(lab=lab, tools=tools, moto=platforms_moto, account=account)


Opens = Callable[[Sequence[str], Mapping[str, type[ApprovedLife]]], Stage]


@pytest.fixture(scope="module")
def opens(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opens]:
    """Opens a theatre of lives on some of the nodes."""
    folder, numbers, nursery = tmp_path_factory.mktemp("lives"), itertools.count(1), Nursery(PROGRAM)
    with ExitStack() as stack:

        def opened(nodes: Sequence[str], lives: Mapping[str, type[ApprovedLife]]) -> Stage:
            def begin(name: str, node: str, undisturbed: bool) -> ApprovedLife:
                here = folder / f"{next(numbers)}-{name}"
                return lives[name](
                    scenario=REBOOT, node=node, folder=here, site=site, nursery=nursery, undisturbed=undisturbed
                )

            return stack.enter_context(closing(Theatre(nodes, begin)))

        yield opened


@pytest.fixture(scope="module")
def theatre(site: Site, opens: Opens) -> Stage:
    return opens(site.lab.nodes, HANDS)


@pytest.fixture(scope="module")
def plain(theatre: Stage) -> dict[str, Played[Ending]]:
    return theatre.undisturbed(HANDS)


@pytest.fixture(scope="module")
def kills(plain: dict[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """Where each life is cut, to go on with the same disk."""
    return sampled(plain)


def sampled(plain: Mapping[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """All, or of those from the wait for the operator on: what comes before is in test_kill_everywhere.py as well."""
    everywhere = {name: life.kills() for name, life in plain.items()}
    if of_this_run().seed is not None:
        everywhere = {name: from_the_operator_on(kills) for name, kills in everywhere.items()}
    kind = of_an_operator if len(plain) > 1 else of_one_stage
    return of_this_run().of(everywhere, kind=kind, least=KILLS_OF_EACH)


def of_an_operator(kill: Kill) -> str:
    """A sample kills at every command, and at some of the rest, each of which is one of test_kill_everywhere.py."""
    return boundary_of(kill) if "command" in kill.boundary else "no command"


def of_one_stage(_: Kill) -> str:
    """The lives of a freeze are played one at a time: a sample has a few of them, of whichever boundary."""
    return "any"


def from_the_operator_on(kills: Sequence[Kill]) -> list[Kill]:
    """From the write of what is waited for, which comes before the rest in which the operator is heard of."""
    first = next(number for number, kill in enumerate(kills) if kill.boundary.startswith("before command"))
    return list(kills[max(0, first - 3) :])


@pytest.mark.parametrize("name", HANDS)
def test_undisturbed_it_ends_as_the_operator_wants(plain: dict[str, Played[Ending]], name: str) -> None:
    """The node is in service and nothing of ours is left; what was approved, or goes by itself, was asked for once."""
    assert plain[name].ending == ENDINGS[name], plain[name].told
    assert {"before command approve", "before command undo"}.intersection(plain[name].passed)


@pytest.mark.parametrize("name", HANDS)
def test_killed_at_any_boundary_it_ends_in_the_same_place(
    theatre: Stage, kills: dict[str, list[Kill]], name: str
) -> None:
    """Started again on the same disk, with the command given again where it got no answer."""

    def fits(_: Kill, ending: Ending) -> bool:
        return ending == ENDINGS[name]

    theatre.all_end_well(name, kills[name], fits=fits, may_be_missing=may_be_missing)


def test_a_freeze_is_never_violated_wherever_the_daemon_dies(site: Site, opens: Opens) -> None:
    """Begun while the act waits for its approval, which comes in it; ended, the reboot is asked for once."""
    stage = opens(site.lab.nodes[:1], {"freeze": FrozenLife})
    plain = stage.undisturbed(["freeze"])
    assert plain["freeze"].ending == ENDINGS["freeze"], plain["freeze"].told

    def fits(_: Kill, ending: Ending) -> bool:
        return ending == ENDINGS["freeze"]

    stage.all_end_well("freeze", sampled(plain)["freeze"], fits=fits, may_be_missing=may_be_missing)
