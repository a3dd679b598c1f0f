"""The fleet's budget against a model of slurmctld: whatever happens in between, settled nodes keep to the limit.

The controller serialises updates, hands out old lists, hangs and applies late what it was asked, and forgets what it
acknowledged when it is killed. Agents are killed and suspended anywhere, between any two of their calls, and come back
with an empty store. Administrators drain, undrain, take slots by hand and delete ours. Clocks step. Some nodes are
drained in a hurry, before their slot has settled, as for a job that cannot go on.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import Struct

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.decide.fleet import SETTLE_S, HoldsSlots, Settle, WaitForSlot
from healthd.remediation.engine.slots import LONGEST_PAUSE_S, SlotKeeper
from healthd.remediation.ports import FleetSnapshot, Slot
from healthd.sim.cluster import FakeOrchestrator
from tests.support.sampling import examples
from tests.support.troubled_cluster import TroubledCluster

NODES = tuple(f"n{number}" for number in range(7))
GPU = NODES[:4]
TEXT = "healthd: gpu.xid.79 gpu:0 [1]"
STALE_S = 5.0  # how old a list may be: less than the settle time, which is what the protocol asks of a reading
SAVED_S = 5.0  # what was acknowledged this long ago survives a kill of slurmctld (facts: measured, about 5 s)
BY_HAND = "made by hand"


class Killed(BaseException):
    """kill -9 of an agent: nothing of ours may catch it."""


class Agent(Struct):
    """What would run on one node. Its memory is gone with it; the rest is the test's knowledge of it.

    ``hurries``: it is drained before its slot has settled; ``settling``: it was, and has not read it back yet.
    ``bereft_s``: when its slot was lost or deleted last.
    ``knows``: how many acts of others were in force at its last claim, or shown by its last reading, if that is more.
    """

    keeper: SlotKeeper | None = None
    suspended: bool = False
    acts: bool = False
    wants_out: bool = False
    hurries: bool = False
    settling: bool = False
    bereft_s: float = 0.0
    settled: bool = False
    knows: int = 0


class Figures(Struct):
    """How far beyond the limit unsettled claims went, how long, and what the runs were made of. Times count from the
    last act of somebody else: each may put the fleet over its limit once more. ``hurried_s``: of those with a node that
    was drained in a hurry and has not settled."""

    transient_max: int = 0
    transient_s: float = 0.0  # while every agent runs and the controller answers
    held_up_s: float = 0.0  # otherwise
    settled: int = 0
    hurried: int = 0
    hurried_s: float = 0.0  # as transient_s
    undone: int = 0
    given_back: int = 0
    claims: int = 0
    lost_slots: int = 0
    runs: int = 0


FIGURES = Figures()


class Boundaries(FakeOrchestrator):
    """An orchestrator that lets something happen around each of its calls about slots.

    A list may be old, but never older than what was acknowledged to this node before it asked: slurmctld answers one
    after the other. ``saw`` is told of each reading of the nodes (how old it is) and of each claim (that it is of now).
    """

    def __init__(
        self,
        cluster: TroubledCluster,
        node: str,
        *,
        boundary: Callable[[], None],
        saw: Callable[[float], None],
        monotonic_s: Callable[[], float],
    ) -> None:
        super().__init__(cluster, node)
        self._troubled = cluster
        self._boundary, self._saw, self._monotonic_s, self._acted_s = boundary, saw, monotonic_s, 0.0

    def snapshot(self) -> FleetSnapshot:
        self._boundary()
        with self._no_older_than_own_acts() as age_s:
            found = super().snapshot()
        self._saw(age_s)
        self._boundary()
        return found

    def slots(self) -> tuple[Slot, ...]:
        self._boundary()
        with self._no_older_than_own_acts():
            found = super().slots()
        self._boundary()
        return found

    @contextmanager
    def _no_older_than_own_acts(self) -> Iterator[float]:
        stale_s = self._troubled.stale_s
        self._troubled.stale_s = min(stale_s, self._monotonic_s() - self._acted_s)
        try:
            yield self._troubled.stale_s
        finally:
            self._troubled.stale_s = stale_s

    def claim(self, scope: str, index: int) -> None:
        self._boundary()
        super().claim(scope, index)
        self._acted_s = self._monotonic_s()
        self._saw(0.0)
        FIGURES.claims += 1
        self._boundary()

    def give_back(self, slot: Slot) -> None:
        self._boundary()
        super().give_back(slot)
        self._acted_s = self._monotonic_s()
        FIGURES.given_back += 1
        self._boundary()


class Event(Struct):
    """Something that happens between two calls of an agent."""

    kind: str
    node: str = NODES[0]
    seconds: float = 0.0


_HAPPENINGS = ["drain", "undrain", "turn", "fault", "fatal fault"]
events = st.one_of(
    st.builds(Event, kind=st.sampled_from(_HAPPENINGS), node=st.sampled_from(NODES)),
    st.builds(Event, kind=st.sampled_from(["kill", "save", "kill controller"])),
    st.builds(Event, kind=st.just("advance"), seconds=st.sampled_from([0.1, 3.0, 12.0])),
)
plans = st.dictionaries(st.integers(0, 12), events, max_size=3)
nodes = st.sampled_from(NODES)


class Fleet(RuleBasedStateMachine):
    """Every rule is one thing that may happen; the invariants are looked at after each."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.wall_s = 1000.0, 1.8e9
        self.cluster = TroubledCluster(
            *NODES, clock=lambda: self.wall_s, monotonic_s=lambda: self.now_s, partitions={"gpu": GPU}
        )
        self.agents = {node: Agent() for node in NODES}
        self.quotas: dict[str, str | int] = {"cluster": 2}
        self.random = random.Random(0)  # noqa: S311  no secret
        self.excused = {"cluster": 0, "gpu": 0}
        self.foreign_s: list[float] = []  # when somebody else took something out
        self.saved_s = self.now_s
        self.boundaries: list[tuple[int, dict[int, Event]]] = []
        self.over_since_s: float | None = None
        self.hurried_since_s: float | None = None
        self.over_with_dead = self.held_up = False
        FIGURES.runs += 1

    @initialize(
        limit=st.integers(1, 3),
        gpu=st.sampled_from([None, 1, "50%"]),
        stale_s=st.sampled_from([0.0, STALE_S]),
        seed=st.integers(0, 99),
    )
    def begin(self, limit: int, gpu: int | str | None, stale_s: float, seed: int) -> None:
        self.cluster.stale_s = stale_s
        self.quotas = {"cluster": limit, **({} if gpu is None else {"gpu": gpu})}
        self.random.seed(seed)
        self.cluster.save()
        for node in NODES:
            self.start(node)

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(node=nodes)
    def fault(self, node: str) -> None:
        self.agents[node].wants_out = True

    @rule(node=nodes)
    def fatal_fault(self, node: str) -> None:
        """A job of this node cannot go on."""
        self.agents[node].wants_out = self.agents[node].hurries = True

    @rule(fatal=st.booleans())
    def many_faults(self, fatal: bool) -> None:
        for agent in self.agents.values():
            agent.wants_out, agent.hurries = True, agent.hurries or fatal

    @rule(node=nodes)
    def heal(self, node: str) -> None:
        self.agents[node].wants_out = self.agents[node].hurries = False

    @rule(node=nodes, plan=plans)
    def reconcile(self, node: str, plan: dict[int, Event]) -> None:
        """One agent acts, and other things happen between its calls."""
        agent = self.agents[node]
        if agent.keeper is None or agent.suspended or agent.acts or len(self.boundaries) >= 2:
            return
        agent.acts = True  # calls of one keeper never overlap
        self.boundaries.append((0, dict(plan)))
        try:
            self.act(node, agent, agent.keeper)
        except (BackendUnknown, BackendRefused):
            pass  # said in the log of a real one, and tried again
        except Killed:
            self.kill_agent(node)
        finally:
            agent.acts = False
            self.boundaries.pop()

    @rule(node=nodes, number=st.integers(0, 9), victim=nodes, then=plans)
    def turn_that_an_admin_gets_into(self, node: str, number: int, victim: str, then: dict[int, Event]) -> None:
        """A drain between the readings and the claim is what the settle time is for."""
        self.agents[node].wants_out = True
        self.reconcile(node, {**then, number: Event(kind="drain", node=victim)})

    @rule(turns=st.lists(st.tuples(nodes, plans), min_size=2, max_size=5))
    def turns(self, turns: list[tuple[str, dict[int, Event]]]) -> None:
        for node, plan in turns:
            self.agents[node].wants_out = True
            self.reconcile(node, plan)

    @rule(seconds=st.sampled_from([1, 4, 11, 25, 70]))
    def time_passes(self, seconds: int, step_s: int = 1) -> None:
        """Every agent that runs takes a turn each second."""
        for _ in range(0, seconds, step_s):
            self.advance(step_s)
            for node in self.random.sample(NODES, len(NODES)):
                self.reconcile(node, {})
            self.transients_are_measured()

    @rule(node=nodes)
    def kill_agent(self, node: str) -> None:
        """A drain that has not settled stays, and counts as out from here: its memory knew that it may be undone."""
        agent = self.agents[node]
        if self.is_settling(node):
            self.excuse(len(self.foreign_s) - agent.knows, goes=node)
        agent.keeper, agent.settling = None, False

    @rule(node=nodes)
    def start(self, node: str) -> None:
        """An agent comes up with an empty store."""
        agent = self.agents[node]
        agent.suspended = False
        if agent.keeper is None:
            agent.keeper = SlotKeeper(
                orchestrator=Boundaries(
                    self.cluster,
                    node,
                    boundary=self.boundary,
                    saw=lambda age_s: self.saw(agent, age_s),
                    monotonic_s=lambda: self.now_s,
                ),
                node=node,
                quotas=lambda: self.quotas,
                monotonic_s=lambda: self.now_s,
                random=self.random.random,
            )

    @rule(node=nodes)
    def suspend(self, node: str) -> None:
        self.agents[node].suspended = True

    @rule(step_s=st.sampled_from([-86_400.0, -7.0, 3600.0]))
    def clock_steps(self, step_s: float) -> None:
        self.wall_s += step_s

    @rule()
    def save(self) -> None:
        self.cluster.save()

    @rule()
    def kill_controller(self) -> None:
        """What was undone since it last saved is back; what was claimed since is not."""
        slots, out = set(self.cluster.slots.items()), self.state_out("cluster")
        self.cluster.kill()
        lost = slots - set(self.cluster.slots.items())
        self.disturbed()
        FIGURES.lost_slots += len(lost)
        for _, node in lost - {(key, BY_HAND) for key, _ in lost}:
            self.agents[node].bereft_s = self.now_s
        for _ in self.state_out("cluster") - out:
            self.foreign()
        for _ in [node for node in self.cluster.slots.values() if node == BY_HAND]:
            self.foreign()

    @rule(seconds=st.sampled_from([0.0, 6.0, 30.0]))
    def controller_hangs(self, seconds: float) -> None:
        """It applies what it was asked meanwhile when it wakes up."""
        self.cluster.hung = self.held_up = True
        for node in self.random.sample(NODES, 3):
            self.reconcile(node, {})
        self.advance(seconds)
        self.cluster.wake()

    @rule(node=nodes)
    def admin_drains(self, node: str) -> None:
        self.cluster.update(node, "drain", "admin: hands off")
        self.foreign()

    @rule(node=nodes)
    def admin_undrains(self, node: str) -> None:
        """Of ours as well: that is an order."""
        if self.cluster.nodes[node].flags:
            self.cluster.update(node, "resume")
            self.agents[node].wants_out = self.agents[node].hurries = False

    @rule(index=st.integers(0, 4))
    def admin_takes_a_slot(self, index: int) -> None:
        try:
            self.cluster.claim("cluster", index, BY_HAND)
        except SlotTaken:
            return
        self.foreign()

    @rule(index=st.integers(0, 4))
    def admin_deletes_a_slot(self, index: int) -> None:
        if (node := self.cluster.slots.get(("cluster", index))) in self.agents:
            self.agents[node].bereft_s = self.now_s
        self.cluster.give_back("cluster", index)
        self.foreign()

    # -- what an agent does -------------------------------------------------------------------------------------------

    def act(self, node: str, agent: Agent, keeper: SlotKeeper) -> None:
        """What the engine makes of it: the drain comes after the slot, the slot is given back last. One in a hurry is
        drained as soon as it has the slot, and undone where that does not settle."""
        cluster, oldest_s = FakeOrchestrator(self.cluster, node), self.now_s - self.cluster.stale_s
        hold = cluster.view().hold
        is_ours = hold is not None and (hold.text, hold.user) == (TEXT, "healthd")
        agent.settling &= is_ours
        if hold is not None and not is_ours:
            agent.settled = False
            keeper.give_back()
        elif agent.wants_out:
            if agent.hurries and hold is None and keeper.due_in_s() and has_room(keeper.take()):
                keeper.reread()
            answer = keeper.take(committed=is_ours and not agent.settling)
            if agent.settling and isinstance(answer, WaitForSlot):
                cluster.release(resume=False)
                agent.settling, FIGURES.undone = False, FIGURES.undone + 1
            in_hurry = agent.hurries and has_room(answer) and cluster.view().hold is None
            self.answered(node, answer)
            if in_hurry:
                is_bereft = agent.bereft_s >= oldest_s  # since the oldest list that this turn may have seen
                assert is_bereft or node in self.holders("cluster"), "drained in a hurry without a slot"
                FIGURES.hurried += 1
            if (isinstance(answer, HoldsSlots) or in_hurry) and cluster.view().hold is None:
                agent.settling = in_hurry
                cluster.quarantine(TEXT)
        else:
            if is_ours:
                cluster.release(resume=False)
            agent.settled = False
            keeper.give_back()

    def answered(self, node: str, answer: object) -> None:
        """Who goes is not to blame for what others did since its last reading, or since its claim if that is later. It
        counts as out from here, also where its slot was deleted meanwhile."""
        agent = self.agents[node]
        newly = isinstance(answer, HoldsSlots) and not agent.settled
        agent.settled = isinstance(answer, HoldsSlots)
        if newly:
            FIGURES.settled += 1
            self.excuse(len(self.foreign_s) - agent.knows, goes=node)
        agent.settling &= not agent.settled

    def saw(self, agent: Agent, age_s: float) -> None:
        agent.knows = max(agent.knows, sum(at_s <= self.now_s - age_s for at_s in self.foreign_s))

    # -- the books ----------------------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Between two calls of an agent: whatever is planned for here happens."""
        if not self.boundaries:
            return
        number, plan = self.boundaries[-1]
        self.boundaries[-1] = (number + 1, plan)
        event = plan.get(number)
        match event.kind if event is not None else "":
            case "kill":
                raise Killed
            case "advance":
                self.held_up = True
                self.advance(event.seconds if event else 0.0)
            case "turn":
                self.reconcile(event.node if event else "", {})
            case "fault":
                self.fault(event.node if event else "")
            case "fatal fault":
                self.fatal_fault(event.node if event else "")
            case "drain":
                self.admin_drains(event.node if event else "")
            case "undrain":
                self.admin_undrains(event.node if event else "")
            case "save":
                self.save()
            case "kill controller":
                self.kill_controller()

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds
        if self.now_s - self.saved_s >= SAVED_S:
            self.saved_s = self.now_s
            self.cluster.save()

    def foreign(self) -> None:
        """Somebody else, or the loss of what was acknowledged, may have put the fleet over its limit: not our doing."""
        self.foreign_s.append(self.now_s)
        self.excuse(len(NODES))
        self.disturbed()

    def disturbed(self) -> None:
        """How long the fleet is over its limit counts from here."""
        self.over_since_s = self.over_since_s and self.now_s
        self.hurried_since_s = self.hurried_since_s and self.now_s

    def excuse(self, most: int, *, goes: str = "") -> None:
        for scope in self.scopes():
            going = {goes} if goes and (scope != "gpu" or goes in GPU) else set()
            over = len(self.settled_out(scope) | going) - self.limit(scope)
            self.excused[scope] = max(self.excused[scope], min(over, most))

    def scopes(self) -> list[str]:
        return [scope for scope in ("cluster", "gpu") if scope in self.quotas]

    def limit(self, scope: str) -> int:
        quota = self.quotas[scope]
        return quota if isinstance(quota, int) else len(GPU) // 2

    def holders(self, scope: str) -> set[str]:
        return {node for (name, _), node in self.cluster.slots.items() if name == scope}

    def state_out(self, scope: str) -> set[str]:
        members = GPU if scope == "gpu" else NODES
        return {node for node in members if self.cluster.nodes[node].flags}

    def settled_out(self, scope: str) -> set[str]:
        """Without those that are drained in a hurry, until they have read back that their slot stands, or are drained
        by somebody else as well."""
        settled = {node for node in self.holders(scope) if node == BY_HAND or self.agents[node].settled}
        return {node for node in self.state_out(scope) if not self.is_settling(node)} | settled

    def is_settling(self, node: str) -> bool:
        hold = self.cluster.nodes[node].hold
        return self.agents[node].settling and hold is not None and hold.user == "healthd"

    @invariant()
    def settled_nodes_keep_to_the_limit(self) -> None:
        for scope in self.scopes():
            out = self.settled_out(scope)
            assert len(out) <= self.limit(scope) + self.excused[scope], (scope, out, self.cluster.slots)
            self.excused[scope] = max(0, min(self.excused[scope], len(out) - self.limit(scope)))

    @invariant()
    def nobody_holds_what_is_not_there_to_be_held(self) -> None:
        for scope in self.scopes():
            assert all(index < self.limit(name) or node == BY_HAND for (name, index), node in self.slots_of(scope))

    def slots_of(self, scope: str) -> list[tuple[tuple[str, int], str]]:
        return [item for item in self.cluster.slots.items() if item[0][0] == scope]

    @invariant()
    def no_drain_of_somebody_else_was_touched(self) -> None:
        for update in self.cluster.updates:
            if update.user == "healthd" and update.before is not None:
                assert update.before.user == "healthd"

    @invariant()
    def transients_are_measured(self) -> None:
        over = max(
            len(self.state_out(s) | self.holders(s)) - max(self.limit(s), len(self.settled_out(s)))
            for s in self.scopes()
        )
        FIGURES.transient_max = max(FIGURES.transient_max, over)
        asleep = self.held_up or any(agent.keeper is None or agent.suspended for agent in self.agents.values())
        if over <= 0:
            self.over_since_s = self.hurried_since_s = None
            self.over_with_dead = self.held_up = False
            return
        self.over_since_s = self.over_since_s or self.now_s
        is_hurried = any(agent.settling for agent in self.agents.values())
        self.hurried_since_s = (self.hurried_since_s or self.now_s) if is_hurried else None
        self.over_with_dead |= asleep
        lasted_s, hurried_s = self.now_s - self.over_since_s, self.now_s - (self.hurried_since_s or self.now_s)
        if self.over_with_dead:
            FIGURES.held_up_s = max(FIGURES.held_up_s, lasted_s)
        else:
            FIGURES.transient_s = max(FIGURES.transient_s, lasted_s)
            FIGURES.hurried_s = max(FIGURES.hurried_s, hurried_s)

    # -- in the end ---------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once nobody interferes any more, everybody who waits has a turn, and nothing goes round in circles."""
        self.cluster.stale_s = 0.0
        for node in NODES:
            self.start(node)
            if (hold := self.cluster.nodes[node].hold) is not None and hold.user != "healthd":
                self.cluster.update(node, "resume")
        for key in [key for key, node in self.cluster.slots.items() if node == BY_HAND]:
            self.cluster.give_back(*key)
        waiting = {node for node, agent in self.agents.items() if agent.wants_out}
        for _ in range(len(NODES) + 1):
            claims = FIGURES.claims
            self.time_passes(int(2.5 * SETTLE_S + 1.5 * LONGEST_PAUSE_S), step_s=4)
            self.settled_nodes_keep_to_the_limit()
            assert FIGURES.claims - claims <= 4 * len(NODES), "claimed and given back in circles"
            out = {node for node in waiting if self.agents[node].settled}
            assert out or not waiting, "somebody waits, nobody is out"
            assert all(self.is_served(node) for node in waiting), (waiting, self.cluster.slots)
            for node in out:
                self.heal(node)
            waiting -= out
        assert not waiting, f"{waiting} starved"

    def is_served(self, node: str) -> bool:
        """Out, or held because a scope of the node is full."""
        mine = [scope for scope in self.scopes() if scope != "gpu" or node in GPU]
        full = any(len(self.state_out(scope) | self.holders(scope)) >= self.limit(scope) for scope in mine)
        return self.agents[node].settled or full


def has_room(answer: object) -> bool:
    """Whether a node in a hurry is drained at once: it holds its slots, and saw the fleet within its limits."""
    return isinstance(answer, Settle) and answer.has_room


@pytest.mark.slow
def test_settled_nodes_keep_to_the_limit_whatever_happens(record_property: Callable[[str, object], None]) -> None:
    """Settled nodes out never exceed the limit, nobody starves or goes in circles, no foreign drain is touched."""
    run_state_machine_as_test(
        Fleet,
        settings=settings(
            max_examples=examples(150),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    sys.stdout.write(f"{FIGURES}\n")
    record_property("transients", str(FIGURES))
    assert FIGURES.settled > FIGURES.runs / 2, "the runs have to have seen nodes go out"
    assert FIGURES.given_back > FIGURES.runs / 2
    assert FIGURES.hurried > FIGURES.runs / 5, "and some in a hurry"
    assert FIGURES.transient_s <= 4 * SETTLE_S, "two looks, and those of another who claims meanwhile"
    # A node in a hurry is drained only where its reading had room, and undrained after the second of two looks that
    # show none. If its slot was lost or deleted meanwhile, a look may find room for another, which has its own two.
    assert FIGURES.hurried_s <= 4 * SETTLE_S, "two looks, and those of its next slot"


def test_a_drain_in_a_hurry_is_undone_where_its_slot_does_not_settle() -> None:
    """An administrator drains another node just after it: both are out until the settle time is over."""
    fleet = Fleet()
    fleet.begin(limit=1, seed=1, gpu=None, stale_s=0.0)
    fleet.fatal_fault("n0")
    fleet.reconcile("n0", {})
    assert fleet.state_out("cluster") == {"n0"}
    fleet.admin_drains("n1")
    fleet.time_passes(int(SETTLE_S) - 2)
    assert fleet.state_out("cluster") == {"n0", "n1"}
    fleet.time_passes(4)
    assert (fleet.state_out("cluster"), fleet.cluster.slots) == ({"n1"}, {})


def test_a_slot_that_was_lost_while_it_settled_drains_nothing_in_a_hurry() -> None:
    """A fault that ends a job comes to a node that holds a slot for another one; slurmctld has lost that meanwhile."""
    fleet = Fleet()
    fleet.begin(limit=1, seed=1, gpu=None, stale_s=0.0)
    fleet.fault("n0")
    fleet.reconcile("n0", {})
    assert list(fleet.cluster.slots.values()) == ["n0"]
    fleet.kill_controller()
    fleet.admin_drains("n1")
    fleet.fatal_fault("n0")
    fleet.reconcile("n0", {})
    assert fleet.state_out("cluster") == {"n1"}


def test_a_drain_in_a_hurry_stays_where_its_agent_is_killed_before_it_settles() -> None:
    """The agent comes back with an empty store and takes it for settled: an administrator's drain that it did not know
    of is not its doing."""
    fleet = Fleet()
    fleet.begin(limit=1, seed=0, gpu=None, stale_s=0.0)
    fleet.fatal_fault("n2")
    fleet.reconcile("n2", {})
    fleet.admin_drains("n0")
    fleet.kill_agent("n2")
    fleet.settled_nodes_keep_to_the_limit()
    assert fleet.state_out("cluster") == {"n0", "n2"}
