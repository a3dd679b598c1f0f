"""kill -9 at every boundary of an approval, an undo, a canary and a freeze on a real API server: the same end.

As test_kill_everywhere_kubernetes.py, whose lives these are, with an operator in them: nothing is asked of the
controller without an approval or in a freeze, nothing twice, and no command is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing

import pytest
from msgspec.structs import replace

from tests.live.kubernetes.agent_rig import add_leases
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fault_proxy import FaultProxy
from tests.live.kubernetes.killed_kube_hands import KUBE_HANDS, ApprovedKubeLife, FrozenKubeLife
from tests.live.kubernetes.killed_kube_lives import Ending, Stage
from tests.live.kubernetes.kubelet_socket import KubeletSocket
from tests.live.kubernetes.test_kill_everywhere_kubernetes import AGENT, PROGRAM, kills_of, may_be_missing
from tests.live.platforms.test_kill_everywhere import boundary_of
from tests.live.platforms.test_kill_hands import from_the_operator_on, of_one_stage
from tests.support.killing import Kill, Nursery, Played, Theatre
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

SIDE_BY_SIDE = 8
KILLS_OF_EACH = 4
ENDINGS = {
    "approve": AGENT,
    "undo": replace(AGENT, counted=(("answered", 0), *AGENT.counted[1:])),
    "undo-of-what-was-begun": AGENT,
    "canary": replace(AGENT, counted=(("answered", 2), ("taint", 2), ("release", 2)), ends=("released", "released")),
    "freeze": AGENT,
}
Plays = Callable[[int, Mapping[str, type[ApprovedKubeLife]]], Theatre[Stage, Ending]]


@pytest.fixture(scope="module")
def opens(shared_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plays]:
    """Opens a theatre of so many stages on one control plane."""
    plane, folder = shared_control_plane, tmp_path_factory.mktemp("hands")
    plane.reset()
    add_leases(plane, limit=1000, total=1000)
    with ExitStack() as stack:
        kubelet, stages = stack.enter_context(KubeletSocket(folder / "kubelet.sock")), 0
        nursery = Nursery(PROGRAM)

        def opened(many: int, lives: Mapping[str, type[ApprovedKubeLife]]) -> Theatre[Stage, Ending]:
            nonlocal stages
            made = []
            for _ in range(many):
                stages += 1
                proxy = stack.enter_context(FaultProxy(plane.url, plane.root / "certs").serving())
                here = folder / str(stages)
                made.append(Stage(plane=plane, proxy=proxy, nursery=nursery, folder=here, kubelet=kubelet.path))
            return stack.enter_context(closing(Theatre(made, lambda name, stage, _: lives[name](stage, name))))

        yield opened


@pytest.fixture(scope="module")
def theatre(opens: Plays) -> Theatre[Stage, Ending]:
    return opens(SIDE_BY_SIDE, KUBE_HANDS)


@pytest.fixture(scope="module")
def plain(theatre: Theatre[Stage, Ending]) -> dict[str, Played[Ending]]:
    return theatre.undisturbed(KUBE_HANDS)


@pytest.fixture(scope="module")
def kills(plain: dict[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """Where each life is cut, to go on with the same disk."""
    return sampled(plain)


def sampled(plain: Mapping[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """All, or of those from the wait for the operator on: before it is the life of the others."""
    everywhere = {name: kills_of(life) for name, life in plain.items()}
    if of_this_run().seed is not None:
        everywhere = {name: from_the_operator_on(kills) for name, kills in everywhere.items()}
    kind = boundary_of if len(plain) > 1 else of_one_stage
    return of_this_run().of(everywhere, kind=kind, least=KILLS_OF_EACH)


@pytest.mark.parametrize("name", KUBE_HANDS)
def test_undisturbed_it_ends_as_the_operator_wants(plain: dict[str, Played[Ending]], name: str) -> None:
    """The node is in service and nothing of ours is left; what was approved, or goes by itself, was asked for once."""
    assert plain[name].ending == ENDINGS[name], plain[name].told
    assert {"before command approve", "before command undo"}.intersection(plain[name].passed)


@pytest.mark.parametrize("name", KUBE_HANDS)
def test_killed_at_any_boundary_it_ends_in_the_same_place(
    theatre: Theatre[Stage, Ending], kills: dict[str, list[Kill]], name: str
) -> None:
    """Started again on the same disk, with the command given again where it got no answer."""

    def fits(_: Kill, ending: Ending) -> bool:
        return ending == ENDINGS[name]

    theatre.all_end_well(name, kills[name], fits=fits, may_be_missing=may_be_missing)


def test_a_freeze_is_never_violated_wherever_the_daemon_dies(opens: Plays) -> None:
    """Begun while the act waits for its approval, which comes in it; ended, the reboot is asked for once."""
    stage = opens(1, {"freeze": FrozenKubeLife})
    plain = stage.undisturbed(["freeze"])
    assert plain["freeze"].ending == ENDINGS["freeze"], plain["freeze"].told

    def fits(_: Kill, ending: Ending) -> bool:
        return ending == ENDINGS["freeze"]

    stage.all_end_well("freeze", sampled(plain)["freeze"], fits=fits, may_be_missing=may_be_missing)
