"""Trouble between agents and the API server, at every write of a remediation: nothing by mistake, and all goes on after
it.

Real ``healthd run`` processes with their pods' tokens, the real API server with the agent's rights and policies, and
before each agent a proxy that breaks what passes it; the server itself is killed and stopped as well. In every trouble
the process lives, its liveness is green, its requests are few, and no write of a remediation is carried out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
from msgspec import Struct

from tests.live.kubernetes import fault_proxy as faults
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fault_proxy import Fault
from tests.live.kubernetes.fleet_controller import Fleet, FleetController
from tests.live.kubernetes.trouble_lab import REMEDIATION, Node, TroubleLab
from tests.support.compiled import CLOCK_SIM, compiled
from tests.support.wall_clock import WallClock

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

OUTAGE_S = 4.0
MOST_REQUESTS = 12
"""In one outage, of both connections of an agent together; four were the most that was seen."""

LANES = 10
HOURS_S = 3 * 3600

# A fence that did not follow its claim at once is not made later: nothing is lost by that but that pods may come for as
# long as the place has to settle (docs/decisions/kubernetes-taint-claim-lease.md).
UNFENCED = tuple(act for act in REMEDIATION if "fence" not in act)


class Trouble(Struct, frozen=True, kw_only=True):
    """``first``: what the write meets at which it begins; ``then``: everything that comes after it."""

    first: Fault
    then: Fault


def _all(fault: Fault) -> Trouble:
    return Trouble(first=fault, then=fault)


TROUBLES = {
    "hangs": _all(faults.HANGS),
    "lost-then-hangs": Trouble(first=faults.LOST, then=faults.HANGS),
    "lost-then-unavailable": Trouble(first=faults.LOST, then=faults.UNAVAILABLE),
    "cut-short": _all(Fault(cut_after_bytes=100)),
    "overloaded": _all(faults.OVERLOADED),
    "broken": _all(faults.BROKEN),
    "unavailable": _all(faults.UNAVAILABLE),
    "unauthorized": _all(faults.UNAUTHORIZED),
}


# ---------------------------------------------------------------------------------------------------------------------
# the stories, played side by side


def out_in(trouble: Trouble, name: str, lab: TroubleLab) -> None:
    """The agent starts in the trouble, meets it at each write by which the node is taken out, and while a pod that
    holds GPUs still runs there."""
    with lab.node(name, trouble=trouble.then) as node:
        assert _endured(node) > 0
        assert node.acts() == ()
        node.proxy.heal()
        node.wait(node.has_looked, "the first conditions")
        _meets(node, trouble, "claim", node.breaks)
        if node.acts() == ():  # one that is there already gets no fence
            _meets(node, trouble, "fence")
        for act in ("reason", "taint"):
            _meets(node, trouble, act)
        node.proxy.heal()
        node.wait(lambda: "waiting for default/train-0 to end" in node.daemon.log_text(), "the pod to be waited for")
        node.proxy.fail(trouble.then, times=None)
        assert _endured(node) > 0
        assert (node.acts()[-1], node.is_tainted) == ("taint", True)
        node.proxy.heal()
        node.is_repaired()
        _came_through(node)


def back_in(trouble: Trouble, name: str, lab: TroubleLab) -> None:
    """The agent meets the trouble while the node proves that it is well, and at each write by which it is let in."""
    with lab.node(name) as node:
        _taken_out(node)
        node.proxy.fail(trouble.then, times=None)
        node.is_repaired()
        assert _endured(node) > 0
        assert (node.acts()[-1], node.is_tainted) == ("taint", True)
        for act in REMEDIATION[4:]:
            if act != "unfence" or "fence" in node.acts():
                _meets(node, trouble, act)
        node.proxy.heal()
        _came_through(node)


def rotated_in(state: str, name: str, lab: TroubleLab) -> None:
    """The agent's pod is another one: the token is good for nothing, and the new one comes late. ``state``: in which
    the agent meets that, well or out."""
    with lab.node(name) as node:
        if state == "out":
            _taken_out(node)
        fresh = node.new_pod()
        if state == "well":
            node.breaks()
        else:
            node.is_repaired()
        # The server remembers a token that it found good for 10 s.
        done = node.acts()
        node.wait(lambda: any(seen.status == 401 for seen in node.proxy.seen), "the token to be refused")
        _endured(node)
        refused = node.acts()
        node.token.write_text(fresh)
        if state == "well":
            node.is_taken_out()
            node.is_repaired()
        node.wait(lambda: node.is_clean, "the end of the remediation")
        assert REMEDIATION[: len(done)] == done
        assert REMEDIATION[: len(refused)] == refused
        _came_through(node)


def skewed_in(seconds: int, state: str, name: str, lab: TroubleLab) -> None:
    """The node's clock is set ahead or back by hours, and right again later. Counts of a time that cannot be are no
    reason to take a node out; one that is out stays out, and is let in when its checks have looked."""
    clock = WallClock(lab.clock_sim, lab.folder / f"{name}-clock")
    with lab.node(name, clock=clock) as node:
        if state == "well":
            clock.is_off_by(seconds)  # and is broken before anybody notices
            node.breaks()
            node.wait(lambda: "the nodes that are out were counted at" in node.daemon.log_text(), "the refusal")
            node.endures(OUTAGE_S)
            assert node.acts() == ()
            node.has_its_clock_set(0)
            node.is_taken_out()
            node.is_repaired()
        else:
            _taken_out(node)
            node.has_its_clock_set(seconds)
            node.endures(OUTAGE_S)
            assert (node.acts()[-1], node.is_tainted) == ("taint", True)
            node.is_repaired()
            node.endures(OUTAGE_S)
            clock.is_off_by(0)
        node.wait(lambda: node.is_clean, "the end of the remediation")
        _came_through(node)


def healthy_beside(name: str, lab: TroubleLab) -> None:
    """A node that nothing happens to, in every kind of trouble: it is as it was."""
    with lab.node(name) as node:
        before = node.read()["spec"]
        for trouble in TROUBLES.values():
            node.proxy.fail(trouble.then, times=None)
            _endured(node)
            node.proxy.heal()
        assert (node.acts(), node.read()["spec"], node.is_clean) == ((), before, True)


def _taken_out(node: Node) -> None:
    node.breaks()
    node.wait(lambda: "waiting for default/train-0 to end" in node.daemon.log_text(), "the pod to be waited for")


def _meets(node: Node, trouble: Trouble, act: str, begin: Callable[[], None] | None = None) -> None:
    """All is well up to this write; from there on it is not."""
    node.arm(act, trouble.first, trouble.then)
    if begin is not None:
        begin()
    node.meets_it(act)
    _endured(node)
    done = node.acts()
    assert done == (REMEDIATION if "fence" in done else UNFENCED)[: len(done)]
    assert set(done) <= set(REMEDIATION[: REMEDIATION.index(act) + 1])


def _endured(node: Node) -> int:
    requests = node.endures(OUTAGE_S)
    assert requests <= MOST_REQUESTS, f"{node.name}: {requests} requests in {OUTAGE_S:g} s of an outage"
    return requests


def _came_through(node: Node) -> None:
    node.wait(lambda: node.is_clean, "the end of the remediation")
    node.is_alive()
    assert node.acts() in (REMEDIATION, UNFENCED)
    assert node.nobody_rebooted()


STORIES: dict[str, Callable[[str, TroubleLab], None]] = {
    **{f"{name}-out": partial(out_in, trouble) for name, trouble in TROUBLES.items()},
    **{f"{name}-back": partial(back_in, trouble) for name, trouble in TROUBLES.items()},
    **{f"token-rotated-{state}": partial(rotated_in, state) for state in ("well", "out")},
    **{f"clock-ahead-{state}": partial(skewed_in, HOURS_S, state) for state in ("well", "out")},
    **{f"clock-back-{state}": partial(skewed_in, -HOURS_S, state) for state in ("well", "out")},
    "healthy": healthy_beside,
}


# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(shared_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TroubleLab]:
    """All nodes of this module on one control plane, and the controller that counts them; any number may be out."""
    plane, folder = shared_control_plane, tmp_path_factory.mktemp("trouble")
    plane.reset()
    plane.add_node("idle-1")  # a fleet of nobody may have nobody out
    controller = FleetController(plane, folder / "controller", "[budget]\nmax_out = 100\n", interval_s=5).start()
    try:
        fleet = Fleet(plane)
        plane.wait(lambda: fleet.numbers()[0] == "100", 30, "the counts")
        yield TroubleLab(plane, folder, clock_sim=compiled(CLOCK_SIM, folder / "clock_sim.so"), controller=controller)
    finally:
        controller.stop()


@pytest.fixture(scope="module")
def stories(lab: TroubleLab, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """Those that this run has collected, side by side: a story is mostly waiting. A few start at a time."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    names = [str(each["name"]) for each in params if "name" in each]
    with ThreadPoolExecutor(LANES) as pool:
        yield {name: pool.submit(STORIES[name], name, lab) for name in names}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", STORIES)
def test_nothing_by_mistake_and_all_goes_on(stories: dict[str, Future[None]], name: str) -> None:
    """Each write of the remediation is carried out once, in order, and the node is as before; what happens in between
    is at the story's function."""
    stories[name].result(1800)


# ---------------------------------------------------------------------------------------------------------------------
# the server itself


def _killed(plane: ControlPlane, nodes: Sequence[Node]) -> None:
    plane.kill_api_server()
    for node in nodes:
        node.proxy.heal()
    for node in nodes:
        _endured(node)
    plane.start_api_server()


def _stopped(plane: ControlPlane, nodes: Sequence[Node]) -> None:
    plane.hang_api_server()
    for node in nodes:
        node.proxy.heal()
    for node in nodes:
        _endured(node)
    plane.resume_api_server()


@pytest.mark.parametrize(
    ("trouble", "first"), [(_killed, faults.HANGS), (_stopped, faults.LOST)], ids=["killed", "stopped"]
)
def test_a_server_that_is_killed_or_stands_still_while_nodes_are_at_every_step(
    lab: TroubleLab,
    trouble: Callable[[ControlPlane, Sequence[Node]], None],
    first: Fault,
    request: pytest.FixtureRequest,
) -> None:
    """One node at each write of a remediation, one at rest: each goes on to its own end with the data that etcd kept;
    agents and controller are the same processes all the time."""
    names = {act: f"{request.node.callspec.id}-{act.replace(' ', '-')}" for act in (*REMEDIATION, "at rest")}
    with ExitStack() as stack:
        with ThreadPoolExecutor(4) as pool:
            entered = pool.map(lambda name: stack.enter_context(lab.node(name)), names.values())
            nodes = dict(zip(names, entered, strict=True))
        for act in REMEDIATION[4:]:
            nodes[act].breaks()
        for act in REMEDIATION[4:]:
            nodes[act].is_taken_out()
        for act in REMEDIATION:
            nodes[act].arm(act, first, faults.HANGS)
            (nodes[act].breaks if act in REMEDIATION[:4] else nodes[act].is_repaired)()
        for act in REMEDIATION:
            nodes[act].meets_it(act)
        before = {act: node.acts() for act, node in nodes.items()}
        trouble(lab.plane, list(nodes.values()))
        lab.counts_again()
        for act, node in nodes.items():
            assert node.acts()[: len(before[act])] == before[act]
        for act in REMEDIATION[:4]:
            nodes[act].is_taken_out()
            nodes[act].is_repaired()
        for act in REMEDIATION:
            _came_through(nodes[act])
        assert nodes["at rest"].acts() == ()
        assert nodes["at rest"].is_clean
