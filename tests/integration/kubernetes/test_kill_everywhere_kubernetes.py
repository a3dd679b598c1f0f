"""kill -9 at every boundary of an agent's and of the controller's life on Kubernetes: the same end, nothing done twice.

A real API server with the agent's rights and policies, real boto3 against HyperPod's endpoint, the real engine,
controller and stores in processes that really die. Each life is played once undisturbed; then once for each of its
boundaries, killed there and started again on the same disk; then once before and once in the course of each act, with
an empty disk: another machine behind the name, or another controller that takes the lead. Evictions, calls and writes
are counted where they arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import pytest

from tests.integration.kubernetes.agent_rig import add_leases
from tests.integration.kubernetes.control_plane import ControlPlane
from tests.integration.kubernetes.fault_proxy import FaultProxy
from tests.integration.kubernetes.killed_kube_controller import ControllerLife, KarpenterLife, RebootingLife
from tests.integration.kubernetes.killed_kube_lives import AgentLife, Ending, Life, QuarantineLife, ReplaceLife, Stage
from tests.integration.kubernetes.kubelet_socket import KubeletSocket
from tests.integration.kubernetes.test_controller_repairs_kubernetes import NODE_CLAIMS
from tests.integration.platforms.killed_lives import Nursery

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

SIDE_BY_SIDE = 8
PROGRAM = "tests.integration.kubernetes.killed_process"
ACTS = ("before ", "during ")
OF_EVERY_ROUND = ("lead", "count", "history")
LIVES: dict[str, type[Life]] = {
    "quarantine": QuarantineLife,
    "reboot": AgentLife,
    "replace": ReplaceLife,
    "c-hyperpod-replace": ControllerLife,
    "c-hyperpod-reboot": RebootingLife,
    "c-karpenter": KarpenterLife,
}
AGENT = Ending(left=(), counted=(("answered", 1), ("taint", 1), ("release", 1)), ends=("released",), open_case=False)
CONTROLLER = Ending(left=(), counted=(("asked", 1), ("evicted", 1), ("patched nodes", 0)))
UNDISTURBED = {
    "quarantine": replace(AGENT, counted=(("answered", 0), *AGENT.counted[1:])),
    "reboot": AGENT,
    "replace": AGENT,
    "c-hyperpod-replace": CONTROLLER,
    "c-hyperpod-reboot": CONTROLLER,
    "c-karpenter": CONTROLLER,
}
ENDS_OF_A_SUCCESSOR = ((), ("released",), ("abandoned",))


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Where a life is cut: at which boundary of this name in it, counted from 1; and what it finds when it goes on."""

    boundary: str
    occurrence: int
    empty_store: bool = False

    @property
    def is_repeat(self) -> bool:
        """Whether it may be missing in another life: a patch that somebody was faster than, or that the admission
        policy did not let through at once, is made again; a wait is written as often as what is said of it changes."""
        return self.occurrence > 1

    def __str__(self) -> str:
        return f"{self.boundary} ({self.occurrence}){', empty store' if self.empty_store else ''}"


@dataclass(frozen=True, kw_only=True)
class Played:
    """One life: how it ended, what it passed, and what was said."""

    ending: Ending
    passed: tuple[str, ...]
    killed_at: tuple[str, int] | None
    told: str

    def kills(self) -> list[Kill]:
        """One at each boundary of this life; of what comes in every round, the first. After an act and in its course
        are one moment: it is done by an orphan, and nobody knows."""
        seen: Counter[str] = Counter()
        kills = []
        for label in self.passed:
            seen[label] += 1
            if not label.startswith("after ") and (seen[label] == 1 or not label.endswith(OF_EVERY_ROUND)):
                kills.append(Kill(boundary=label, occurrence=seen[label]))
        return kills


@dataclass
class Theatre:
    """The stages on which lives are played side by side."""

    stages: SimpleQueue[Stage] = field(default_factory=SimpleQueue)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(SIDE_BY_SIDE))

    def play(self, name: str, kill: Kill | None = None) -> Played:
        """One life on the next free stage."""
        stage = self.stages.get()
        try:
            life = LIVES[name](stage=stage, name=name)
            try:
                if kill is None:
                    ending = life.play()
                else:
                    ending = life.play(die_at=kill.boundary, occurrence=kill.occurrence, empty_store=kill.empty_store)
                return Played(ending=ending, passed=tuple(life.passed()), killed_at=life.killed_at, told=life.told())
            finally:
                life.close()
        finally:
            self.stages.put(stage)

    def play_all(self, name: str, kills: list[Kill]) -> Iterator[tuple[Kill, Played]]:
        """One life for each, side by side."""
        lives = [self.pool.submit(self.play, name, kill) for kill in kills]
        for kill, life in zip(kills, lives, strict=True):
            yield kill, life.result()


@pytest.fixture(scope="module")
def theatre(shared_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """The stages of this module on one control plane."""
    plane, folder = shared_control_plane, tmp_path_factory.mktemp("killed")
    plane.reset()
    add_leases(plane, limit=1000, total=1000)
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert plane.admin.post(crd, NODE_CLAIMS).status in (201, 409)
    plane.wait(lambda: plane.admin.get("/apis/karpenter.sh/v1/nodeclaims").ok, 30, "the kind NodeClaim")
    with ExitStack() as stack:
        kubelet = stack.enter_context(KubeletSocket(folder / "kubelet.sock"))
        theatre = Theatre()
        for number in range(SIDE_BY_SIDE):
            proxy = stack.enter_context(FaultProxy(plane.url, plane.root / "certs").serving())
            nursery = Nursery(PROGRAM)
            stack.callback(nursery.close)
            here = folder / str(number)
            here.mkdir()
            theatre.stages.put(Stage(plane=plane, proxy=proxy, nursery=nursery, folder=here, kubelet=kubelet.path))
        stack.callback(theatre.pool.shutdown)
        yield theatre


@pytest.fixture(scope="module")
def plain(theatre: Theatre) -> dict[str, Played]:
    """Every life undisturbed."""
    return dict(zip(LIVES, theatre.pool.map(theatre.play, LIVES), strict=True))


@pytest.fixture(params=LIVES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_undisturbed_a_life_ends_well(plain: dict[str, Played], name: str) -> None:
    """Nothing of ours is left, and what must not be done twice was done once."""
    assert plain[name].ending == UNDISTURBED[name], plain[name].told
    assert len(plain[name].kills()) > 15


def test_killed_at_any_boundary_it_ends_in_the_same_place(
    theatre: Theatre, plain: dict[str, Played], name: str
) -> None:
    """Started again on the same disk: what was done is adopted, what was not is done, and nothing is done twice."""
    kills = plain[name].kills()
    _all_end_well(theatre.play_all(name, kills), name)


def test_killed_and_followed_by_one_with_an_empty_disk_it_ends_in_the_same_place(
    theatre: Theatre, plain: dict[str, Played], name: str
) -> None:
    """The cluster alone tells what there was: a successor believes it, and does nothing anew."""
    kills = [replace(kill, empty_store=True) for kill in plain[name].kills() if kill.boundary.startswith(ACTS)]
    _all_end_well(theatre.play_all(name, kills), name)


def _all_end_well(lives: Iterator[tuple[Kill, Played]], name: str) -> None:
    wrong, killed = [], 0
    for kill, life in lives:
        killed += life.killed_at is not None
        expected = UNDISTURBED[name]
        if kill.empty_store and not name.startswith("c-"):
            fits = _fits_a_successor(life.ending, expected)
        else:
            fits = life.ending == expected
        there = life.killed_at == (kill.boundary, kill.occurrence) or (kill.is_repeat and life.killed_at is None)
        if not (fits and there):
            wrong.append(f"{kill}: killed at {life.killed_at}: {life.ending}\n{life.told}")
    assert not wrong, f"{len(wrong)} of {killed}:\n" + "\n".join(wrong)


def _fits_a_successor(ending: Ending, expected: Ending) -> bool:
    """Another machine comes behind the name, whatever the first had asked for: nothing is left of ours, and nothing
    was done twice."""
    most = dict(expected.counted)
    return (
        ending.left == expected.left
        and not ending.open_case
        and ending.ends in ENDS_OF_A_SUCCESSOR
        and all(number <= most[what] for what, number in ending.counted)
    )
