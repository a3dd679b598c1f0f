"""Trouble at each act of ``healthd controller``: what it did is done once, and what it did not do it does later.

A real controller process goes to the API server by a proxy that breaks what passes it, and to AWS by an endpoint that
does: an eviction, the record that says it took a request, the deletion of a NodeClaim, the claim of a node that is
gone, a call. The others' parts (kubelet, owner of the pod, Karpenter, AWS, the node) are those of the kill suite's
lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct

from healthd.remediation.records.handoff import RequestAnswer
from tests.live.aws import aws_endpoint
from tests.live.aws.moto_server import dummy_env, moto_serving
from tests.live.kubernetes import fault_proxy as faults
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fault_proxy import Fault, FaultProxy
from tests.live.kubernetes.killed_kube_controller import AutoScalingLife, ControllerLife, KarpenterLife
from tests.live.kubernetes.killed_kube_lives import Ending, Stage
from tests.live.kubernetes.test_controller_repairs_kubernetes import NODE_CLAIMS
from tests.support.running import ROOT, Running

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

OUTAGE_S, LOSES_THE_LEAD_S = 4.0, 13.0
LANES = 6
ONCE = Ending(left=(), counted=(("asked", 1), ("evicted", 1), ("patched nodes", 0)))


class Trouble(Struct, frozen=True, kw_only=True):
    """``first``: what the act meets at which it begins; ``then``: everything after it, for so many seconds."""

    first: Fault
    then: Fault
    for_s: float = OUTAGE_S


TROUBLES = {
    "hangs": Trouble(first=faults.HANGS, then=faults.HANGS, for_s=LOSES_THE_LEAD_S),
    "lost-then-hangs": Trouble(first=faults.LOST, then=faults.HANGS),
    "lost-then-unavailable": Trouble(first=faults.LOST, then=faults.UNAVAILABLE, for_s=LOSES_THE_LEAD_S),
    "overloaded": Trouble(first=faults.OVERLOADED, then=faults.OVERLOADED),
    "broken": Trouble(first=faults.BROKEN, then=faults.BROKEN),
}


class Act(Struct, frozen=True, kw_only=True):
    """One write of the controller's, as it passes the proxy."""

    method: str
    path: str
    body: str = ""


ACTS = {
    "evict": Act(method="POST", path="/pods/train-0/eviction"),
    "take the request": Act(method="PATCH", path="/nodehealths/", body=r'"answer": ?"taken"'),
    "delete the NodeClaim": Act(method="DELETE", path="/nodeclaims/"),
    "take the claim away": Act(method="PATCH", path="/leases/healthd-budget", body=r'claim\.healthd\.io/[^"]+": ?null'),
}


class Played:
    """A life whose controller is one process from beginning to end."""

    def __init__(self, life: ControllerLife, folder: Path) -> None:
        self.life, self.proxy, self._log = life, life.stage.proxy, folder / "log"
        self._running = Running()

    @contextmanager
    def running(self) -> Iterator[Played]:
        environ = {**dummy_env(), "PYTHONPATH": str(ROOT)}
        self._running.begin("controller", self.life.machine / "config.toml", self._log, environ)
        try:
            yield self
        finally:
            self._running.stop()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def is_alive(self) -> None:
        """The same process."""
        process = self._running.process
        assert process is not None
        assert process.poll() is None, f"it ended with {process.returncode}: {self.log[-2000:]}"

    def until(self, condition: Callable[[], object], what: str, within_s: float = 60.0) -> None:
        """The others play their parts until it is so. A node that is refused asks once more, as its engine does."""
        until_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < until_s, f"not within {within_s:g} s: {what}\n{self.log[-3000:]}"
            self.is_alive()
            if not self.life.others_play() and self.life.answer() is RequestAnswer.REFUSED:
                self.life.asks_again()
            time.sleep(0.2)

    def meets(self, act: str, trouble: Trouble) -> None:
        """What was wrong is over, and all is well up to this act; for some seconds from there on it is not, and nothing
        more is done. It lasts until somebody heals it: nothing slips through between two acts."""
        where = ACTS[act]
        self.proxy.break_at(trouble.first, trouble.then, method=where.method, path=where.path, body=where.body)
        self.until(lambda: self.proxy.is_broken, f"to {act}", 240.0)  # a request that got lost is found out after 90 s
        until_s = time.monotonic() + trouble.for_s
        while time.monotonic() < until_s:
            self.is_alive()
            time.sleep(0.2)
        assert len(self.proxy.applied_in_outage()) <= trouble.first.lost, "something was done in an outage"

    def has_ended(self) -> bool:
        """Nothing of the node is left."""
        return bool(self.life.carried_out) and not self.life.ending().left


# ---------------------------------------------------------------------------------------------------------------------
# the stories


def at_every_act(trouble: Trouble, played: Played) -> None:
    """The trouble comes at each act in turn; what the controller wrote to the cluster it wrote once. A NodeClaim whose
    deletion never came to the API server is found standing, the node is told, and asks once more."""
    for act in ACTS:
        played.meets(act, trouble)
    played.proxy.heal()
    played.until(played.has_ended, "the end", 240.0)
    assert played.life.ending() == ONCE
    assert played.life.attempt <= 2


def at_the_call(fault: aws_endpoint.Fault, times: int, played: Played) -> None:
    """AWS is asked until it takes the call, and carries it out once. One that it failed on (5xx) may have been applied:
    it is made again, because it names this very machine, unless the machine shows that the first one was."""
    life = played.life
    life.endpoint.fail(life.call, *[fault] * times)
    played.until(played.has_ended, "the end", 120.0)
    assert life.ending() == ONCE
    assert life.endpoint.count(life.call) == (times + 1 if fault.code else 1)


Story = Callable[[Played], None]
CALLS: dict[str, Story] = {
    "throttled": partial(at_the_call, aws_endpoint.THROTTLED_JSON, 1),
    "lost": partial(at_the_call, aws_endpoint.Fault(lost=True), 1),
    "hangs": partial(at_the_call, aws_endpoint.Fault(hangs=True), 1),
    "broken": partial(at_the_call, aws_endpoint.BROKEN, 1),
}
PLATFORMS: dict[str, type[ControllerLife]] = {"hyperpod": ControllerLife, "autoscaling": AutoScalingLife}
STORIES: dict[str, tuple[type[ControllerLife], Story]] = {
    **{name: (KarpenterLife, partial(at_every_act, trouble)) for name, trouble in TROUBLES.items()},
    **{f"{platform}-{name}": (life, story) for platform, life in PLATFORMS.items() for name, story in CALLS.items()},
}


def play(name: str, plane: ControlPlane, moto: tuple[str, int], folder: Path) -> None:
    """One story on a node, a proxy and a controller of its own."""
    kind, story = STORIES[name]
    folder = folder / name
    folder.mkdir()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(plane.url, plane.root / "certs").serving())
        life = kind(Stage(plane=plane, proxy=proxy, folder=folder, moto=moto), f"t-{name}")
        stack.callback(life.close)
        story(stack.enter_context(Played(life, folder).running()))


@pytest.fixture(scope="module")
def stories(
    shared_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[None]]]:
    """Those that this run has collected, side by side: a story is mostly waiting."""
    plane, folder = shared_control_plane, tmp_path_factory.mktemp("controllers")
    plane.reset()
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert plane.admin.post(crd, NODE_CLAIMS).status in (201, 409)
    plane.wait(lambda: plane.admin.get("/apis/karpenter.sh/v1/nodeclaims").ok, 30, "the kind NodeClaim")
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    names = [str(item.callspec.params["name"]) for item in items]
    with moto_serving() as moto, ThreadPoolExecutor(LANES) as pool:
        yield {name: pool.submit(play, name, plane, moto, folder) for name in names}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", STORIES)
def test_each_act_is_done_once_whatever_becomes_of_its_answer(stories: dict[str, Future[None]], name: str) -> None:
    """What happens in between is at the story's function."""
    stories[name].result(1800)
