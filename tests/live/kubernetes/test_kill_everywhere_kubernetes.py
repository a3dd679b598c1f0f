"""kill -9 at every boundary of an agent's and of the controller's life on Kubernetes: the same end, nothing done twice.

A real API server with the agent's rights and policies, real boto3 against HyperPod's endpoint, the real engine,
controller and stores in processes that really die. Each life is played once undisturbed; then once for each of its
boundaries, killed there and started again on the same disk; then once before and once in the course of each act, with
an empty disk: another machine behind the name, or another controller that takes the lead. Evictions, calls and writes
are counted where they arrive.

`make test-kubernetes` plays a sample of these lives (tests/support/sampling.py), all of them with
HEALTHD_TEST_EXHAUSTIVE=1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from msgspec.structs import replace

from tests.live.kubernetes.agent_rig import add_leases
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fault_proxy import FaultProxy
from tests.live.kubernetes.killed_kube_controller import ControllerLife, KarpenterLife, RebootingLife
from tests.live.kubernetes.killed_kube_lives import (
    AgentLife,
    Ending,
    KubeLife,
    QuarantineLife,
    ReplaceLife,
    Stage,
)
from tests.live.kubernetes.kubelet_socket import KubeletSocket
from tests.live.kubernetes.test_controller_repairs_kubernetes import NODE_CLAIMS
from tests.support.killing import ENDS_OF_A_SUCCESSOR, Kill, Nursery, Played, Theatre
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

SIDE_BY_SIDE = 16
PROGRAM = "tests.live.kubernetes.killed_process"
ACTS = ("before ", "during ")
KILLS_OF_EACH = 4
"""At least so many kills of each life, in a sample."""
OF_EVERY_ROUND = ("lead", "count", "history")
LIVES: dict[str, type[KubeLife]] = {
    "quarantine": QuarantineLife,
    "reboot": AgentLife,
    "replace": ReplaceLife,
    "c-hyperpod-replace": ControllerLife,
    "c-hyperpod-reboot": RebootingLife,
    "c-karpenter": KarpenterLife,
}
AGENT = Ending(
    left=(), counted=(("answered", 1), ("taint", 1), ("release", 1)), ends=("released",), open_remediation=False
)
CONTROLLER = Ending(left=(), counted=(("asked", 1), ("evicted", 1), ("patched nodes", 0)))
UNDISTURBED = {
    "quarantine": replace(AGENT, counted=(("answered", 0), *AGENT.counted[1:])),
    "reboot": AGENT,
    "replace": AGENT,
    "c-hyperpod-replace": CONTROLLER,
    "c-hyperpod-reboot": CONTROLLER,
    "c-karpenter": CONTROLLER,
}


def may_be_missing(kill: Kill) -> bool:
    """A patch that somebody was faster than, or that the admission policy did not let through at once, is made again; a
    wait is written as often as what is said of it changes."""
    return kill.occurrence > 1


def kills_of(life: Played[Ending]) -> list[Kill]:
    """One at each boundary of this life; of what comes in every round, the first. After an act and in its course are
    one moment: it is done by an orphan, and nobody knows."""
    kills = [kill for kill in life.kills() if not kill.boundary.startswith("after ")]
    return [kill for kill in kills if kill.occurrence == 1 or not kill.boundary.endswith(OF_EVERY_ROUND)]


@pytest.fixture(scope="module")
def theatre(
    shared_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Theatre[Stage, Ending]]:
    """The stages of this module on one control plane."""
    plane, folder = shared_control_plane, tmp_path_factory.mktemp("killed")
    plane.reset()
    add_leases(plane, limit=1000, total=1000)
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert plane.admin.post(crd, NODE_CLAIMS).status in (201, 409)
    plane.wait(lambda: plane.admin.get("/apis/karpenter.sh/v1/nodeclaims").ok, 30, "the kind NodeClaim")
    with ExitStack() as stack:
        kubelet, stages = stack.enter_context(KubeletSocket(folder / "kubelet.sock")), []
        nursery = Nursery(PROGRAM)
        for number in range(SIDE_BY_SIDE):
            proxy = stack.enter_context(FaultProxy(plane.url, plane.root / "certs").serving())
            here = folder / str(number)
            stages.append(Stage(plane=plane, proxy=proxy, nursery=nursery, folder=here, kubelet=kubelet.path))
        yield stack.enter_context(closing(Theatre(stages, lambda name, stage, _: LIVES[name](stage, name))))


@pytest.fixture(scope="module")
def plain(theatre: Theatre[Stage, Ending]) -> dict[str, Played[Ending]]:
    return theatre.undisturbed(LIVES)


def sampled(kills: dict[str, list[Kill]]) -> dict[str, list[Kill]]:
    """Of an agent and of a controller each boundary is passed by its name at least once, in one of their lives."""
    taken: dict[str, list[Kill]] = {}
    for controllers in (False, True):
        these = {name: of_life for name, of_life in kills.items() if name.startswith("c-") is controllers}
        taken |= of_this_run().of(these, kind=lambda kill: kill.boundary, least=KILLS_OF_EACH)
    return taken


@pytest.fixture(scope="module")
def kills(plain: dict[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """Where each life is cut, to go on with the same disk."""
    return sampled({name: kills_of(life) for name, life in plain.items()})


@pytest.fixture(scope="module")
def kills_of_disks(plain: dict[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """Where each life is cut, to go on with an empty disk."""
    everywhere = {
        name: [kill for kill in kills_of(life) if kill.boundary.startswith(ACTS)] for name, life in plain.items()
    }
    return sampled(
        {name: [replace(kill, empty_store=True) for kill in of_life] for name, of_life in everywhere.items()}
    )


@pytest.fixture(params=LIVES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_undisturbed_a_life_ends_well(plain: dict[str, Played[Ending]], name: str) -> None:
    """Nothing of ours is left, and what must not be done twice was done once."""
    assert plain[name].ending == UNDISTURBED[name], plain[name].told
    assert len(kills_of(plain[name])) > 15


def test_killed_at_any_boundary_it_ends_in_the_same_place(
    theatre: Theatre[Stage, Ending], kills: dict[str, list[Kill]], name: str
) -> None:
    """Started again on the same disk: what was done is adopted, what was not is done, and nothing is done twice."""

    def fits(_: Kill, ending: Ending) -> bool:
        return ending == UNDISTURBED[name]

    theatre.all_end_well(name, kills[name], fits=fits, may_be_missing=may_be_missing)


def test_killed_and_followed_by_one_with_an_empty_disk_it_ends_in_the_same_place(
    theatre: Theatre[Stage, Ending], kills_of_disks: dict[str, list[Kill]], name: str
) -> None:
    """The cluster alone tells what there was: a successor believes it, and does nothing anew. Another machine comes
    behind the name, whatever the first had asked for."""
    expected = UNDISTURBED[name]
    most, is_agent = dict(expected.counted), not name.startswith("c-")

    def fits(_: Kill, ending: Ending) -> bool:
        if not is_agent:
            return ending == expected
        at_most_once = all(number <= most[what] for what, number in ending.counted)
        nothing_left = ending.left == expected.left and not ending.open_remediation
        return nothing_left and at_most_once and ending.ends in ENDS_OF_A_SUCCESSOR

    theatre.all_end_well(name, kills_of_disks[name], fits=fits, may_be_missing=may_be_missing)
