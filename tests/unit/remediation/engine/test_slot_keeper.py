"""What carries the plan out, over a cluster in memory: how often it asks, what it remembers, what it gives back."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from healthd.core.errors import BackendUnknown, SlotTaken
from healthd.remediation.decide.fleet import LEARNING_S, HoldsSlots, MayTakeSlot, Settle, WaitForSlot, learning_s
from healthd.remediation.engine.slots import FIRST_LEARNING_S, SlotKeeper
from healthd.remediation.ports import FleetSnapshot, Slot
from healthd.sim.cluster import FakeOrchestrator
from healthd.testing import FakeClock
from tests.support.troubled_cluster import TroubledCluster

NODES = tuple(f"n{number}" for number in range(10))


class Counting(FakeOrchestrator):
    """Counts what is asked; can find a slot taken that it saw free."""

    def __init__(self, cluster: TroubledCluster, node: str, clock: FakeClock) -> None:
        super().__init__(cluster, node)
        self._clock = clock
        self.asked: Counter[str] = Counter()
        self.beaten = 0
        self.takes_s = 0.0
        self.unfenced = 0

    def snapshot(self) -> FleetSnapshot:
        self.asked["snapshot"] += 1
        return super().snapshot()

    def slots(self) -> tuple[Slot, ...]:
        self.asked["slots"] += 1
        self._clock.advance(self.takes_s)
        return super().slots()

    def claim(self, scope: str, index: int) -> None:
        self.asked["claim"] += 1
        if self.beaten:
            self.beaten -= 1
            raise SlotTaken("somebody was first")
        super().claim(scope, index)
        if self.unfenced:
            self.fence()

    def fence(self) -> None:
        self.asked["fence"] += 1
        if self.unfenced:
            self.unfenced -= 1
            raise BackendUnknown("the fence: no answer within 5 s")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster(clock: FakeClock) -> TroubledCluster:
    return TroubledCluster(*NODES, clock=clock)


def keeper_of(cluster: TroubledCluster, clock: FakeClock, node: str = "n0") -> tuple[SlotKeeper, Counting]:
    orchestrator = Counting(cluster, node, clock)
    keeper = SlotKeeper(
        orchestrator=orchestrator, node=node, quotas=lambda: {"cluster": "20%"}, monotonic_s=clock, random=lambda: 0.5
    )
    return keeper, orchestrator


def settled(keeper: SlotKeeper, clock: FakeClock) -> HoldsSlots:
    assert isinstance(keeper.take(), Settle)
    clock.advance(10.0)
    answer = keeper.take()
    assert isinstance(answer, HoldsSlots)
    return answer


def test_the_way_out_and_back(cluster: TroubledCluster, clock: FakeClock) -> None:
    """Claim, settle without asking again, go, and nothing left when it is given back."""
    keeper, orchestrator = keeper_of(cluster, clock)
    first = keeper.take()
    assert first == Settle(until_s=10.0)
    before = orchestrator.asked.copy()
    clock.advance(9.0)
    assert keeper.take() == first
    assert orchestrator.asked == before
    clock.advance(1.0)
    assert keeper.take() == HoldsSlots(slots=(Slot(scope="cluster", index=1, node="n0"),))
    assert keeper.give_back() == (Slot(scope="cluster", index=1, node="n0"),)
    assert cluster.slots == {}
    assert keeper.give_back() == ()


def test_of_each_scope_one_slot_is_claimed_though_the_lists_are_old(clock: FakeClock) -> None:
    """A list that shows neither of two claims that were acknowledged: the first is remembered while the second is
    made. Forgotten, it would be claimed twice, or kept where both are to be given back."""
    cluster = TroubledCluster(*NODES, clock=clock, partitions={"gpu": NODES})
    cluster.stale_s = 5.0
    orchestrator, limits = Counting(cluster, "n0", clock), {"cluster": 3, "gpu": 1}
    keeper = SlotKeeper(
        orchestrator=orchestrator, node="n0", quotas=lambda: limits, monotonic_s=clock, random=lambda: 0.5
    )
    assert isinstance(keeper.take(), Settle)
    assert sorted(scope for scope, _ in cluster.slots) == ["cluster", "gpu"]


def test_a_fence_that_failed_after_its_claim_is_made_on_a_later_turn(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """On Kubernetes it is a write of its own: until it stands, pods start on a node that is to go out."""
    keeper, orchestrator = keeper_of(cluster, clock)
    orchestrator.unfenced = 3
    for _ in range(3):
        with pytest.raises(BackendUnknown, match="the fence"):
            keeper.take()
        assert cluster.slots == {("cluster", 1): "n0"}, "its claim is held all the same, and made once"
        assert keeper.due_in_s() == 0, "the next turn looks at the node, and asks again"
    settling = keeper.take()
    assert isinstance(settling, Settle)
    assert keeper.take() == settling
    clock.advance(keeper.due_in_s())
    assert isinstance(keeper.take(), HoldsSlots)
    assert (orchestrator.asked["claim"], orchestrator.asked["fence"]) == (1, 4), "and no more once it stands"


def test_a_place_that_was_found_is_fenced_unless_the_node_is_out(cluster: TroubledCluster, clock: FakeClock) -> None:
    """A daemon before this one may have been killed between the two; a drain needs no fence beside it."""
    cluster.claim("cluster", 0, "n0")
    keeper, orchestrator = keeper_of(cluster, clock)
    assert isinstance(keeper.take(committed=True), HoldsSlots)
    assert orchestrator.asked["fence"] == 0
    other, orchestrator = keeper_of(cluster, clock)
    assert isinstance(other.take(), Settle)
    assert orchestrator.asked["fence"] == 1
    other.give_back()
    assert isinstance(other.take(), Settle), "another place, which its own claim fences"
    assert orchestrator.asked["fence"] == 1


def test_a_hold_is_repeated_without_asking_and_looked_at_again_ever_later(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """5 s, then twice as long each time up to a minute, half to one and a half of it at random."""
    for index in (0, 1):
        cluster.claim("cluster", index, f"n{index + 1}")
    keeper, orchestrator = keeper_of(cluster, clock)
    looks = []
    for _ in range(200):
        before = orchestrator.asked["slots"]
        assert isinstance(keeper.take(), WaitForSlot)
        if orchestrator.asked["slots"] > before:
            looks.append(clock())
        clock.advance(1.0)
    assert [after - before for before, after in pairwise(looks)] == [5, 10, 20, 40, 60, 60]


def test_a_full_fleet_whose_size_is_known_is_told_by_its_slots_alone(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """The nodes are not read: what is remembered is a reason to wait."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    for index in (0, 1):
        cluster.claim("cluster", index, f"n{index + 1}")
    assert keeper.take() == WaitForSlot(reason="at the fleet limit: all 2 slots are taken")
    assert orchestrator.asked == {"snapshot": 1, "slots": 1}


def test_a_full_fleet_is_told_as_rarely_as_it_is_asked_for_a_slot(cluster: TroubledCluster, clock: FakeClock) -> None:
    """One question, no more until it is due, and none of who holds a slot or remembers no fleet."""
    keeper, orchestrator = keeper_of(cluster, clock)
    cluster.claim("cluster", 0, "n1")
    assert not keeper.full()
    keeper.learn()
    assert not keeper.full()
    cluster.claim("cluster", 1, "n2")
    clock.advance(6.0)
    assert keeper.full() == WaitForSlot(reason="at the fleet limit: all 2 slots are taken")
    before = orchestrator.asked["slots"]
    assert keeper.full() == WaitForSlot(reason="at the fleet limit: all 2 slots are taken")
    assert orchestrator.asked["slots"] == before
    clock.advance(keeper.due_in_s())
    cluster.give_back("cluster", 1)
    assert not keeper.full()
    assert isinstance(keeper.take(), Settle)
    assert not keeper.full(), "its own place is no reason to wait"


def test_what_was_read_before_the_settle_time_was_over_settles_nothing(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """However late its answer comes: the nodes were listed right after the claim, and the places 12 s later."""
    keeper, orchestrator = keeper_of(cluster, clock)
    orchestrator.takes_s = 12.0
    assert isinstance(keeper.take(), Settle)
    cluster.update("n8", "drain", "admin")
    cluster.update("n9", "drain", "admin")
    assert isinstance(keeper.take(), WaitForSlot)
    assert not cluster.slots


def test_who_is_answered_slowly_asks_in_its_turn_and_not_for_ever(clock: FakeClock) -> None:
    """Three quarters of 1,000 nodes at 150 a second is 5 s. The nodes are not read meanwhile; three times at most."""
    fleet = TroubledCluster(*(f"n{number}" for number in range(1_000)), clock=clock)
    keeper, orchestrator = keeper_of(fleet, clock)
    keeper.learn()
    orchestrator.takes_s = 0.6
    hold = keeper.full()
    reason = "the cluster is slow, listing the slots took 0.6 s; asks again in 5 s"
    assert hold == WaitForSlot(reason=reason, passing=True)
    assert keeper.due_in_s() == pytest.approx(5.0)
    assert keeper.full() is hold
    for _ in range(2):
        clock.advance(keeper.due_in_s())
        assert keeper.full() == hold
    assert orchestrator.asked == {"snapshot": 1, "slots": 3}
    clock.advance(keeper.due_in_s())
    assert keeper.full() is None
    assert isinstance(keeper.take(), Settle)


def test_who_is_answered_in_time_waits_for_no_turn(cluster: TroubledCluster, clock: FakeClock) -> None:
    """Half a second is in time."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    orchestrator.takes_s = 0.5
    assert keeper.full() is None


def test_who_holds_a_place_lets_nobody_go_first(cluster: TroubledCluster, clock: FakeClock) -> None:
    """However slow the answer: it has what the others ask for."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    cluster.claim("cluster", 0, "n0")
    orchestrator.takes_s = 0.6
    assert keeper.full() is None


def test_places_that_were_listed_in_this_turn_are_not_listed_again_before_a_claim(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """The claim itself tells who was faster, and its holder reads the places again."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    assert not keeper.full()
    assert isinstance(keeper.take(), Settle)
    assert orchestrator.asked["slots"] == 2, "before the claim, and after it"


def test_places_that_were_listed_a_while_ago_are_listed_again(cluster: TroubledCluster, clock: FakeClock) -> None:
    """A turn that hung between the two has an old list."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    assert not keeper.full()
    clock.advance(6.0)
    assert isinstance(keeper.take(), Settle)
    assert orchestrator.asked["slots"] == 3


def test_a_large_fleet_that_waits_looks_twenty_times_a_second_at_most(clock: FakeClock) -> None:
    """The pause before the second look grows with the fleet; a small one looks after five seconds."""
    pauses = []
    for count in (10, 1_000):
        fleet = TroubledCluster(*(f"n{number}" for number in range(count)), clock=clock)
        keeper, _ = keeper_of(fleet, clock)
        keeper.learn()
        for index in range(count // 5):
            fleet.claim("cluster", index, f"n{index + 1}")
        assert isinstance(keeper.take(), WaitForSlot)
        pauses.append(keeper.due_in_s())
    assert pauses == pytest.approx([5.0, 50.0])


def test_a_remembered_reading_lets_ask_but_not_keep(cluster: TroubledCluster, clock: FakeClock) -> None:
    """Two nodes went out since it was read: the claim is made, and given back in the same call."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    cluster.update("n8", "drain", "admin")
    cluster.update("n9", "drain", "admin")
    answer = keeper.take()
    assert isinstance(answer, WaitForSlot)
    assert "3 of 10 nodes are out, 2 may be; gave back cluster-1" in answer.reason
    assert cluster.slots == {}
    assert orchestrator.asked["claim"] == 1


def test_what_was_remembered_too_long_ago_is_read_again(cluster: TroubledCluster, clock: FakeClock) -> None:
    """Then nothing is claimed that the nodes do not leave room for; nor where the memory itself says full."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    cluster.update("n8", "drain", "admin")
    cluster.update("n9", "drain", "admin")
    clock.advance(2 * learning_s(len(NODES)) + 1)
    assert isinstance(keeper.take(), WaitForSlot)
    assert orchestrator.asked["claim"] == 0
    cluster.update("n8", "resume")
    clock.advance(60.0)
    assert isinstance(keeper.take(), Settle)


def test_a_slot_that_somebody_else_got_is_not_asked_for_for_ever(cluster: TroubledCluster, clock: FakeClock) -> None:
    """Another is chosen; after sixteen in a row it waits."""
    keeper, orchestrator = keeper_of(cluster, clock)
    orchestrator.beaten = 3
    assert isinstance(keeper.take(), Settle)
    assert orchestrator.asked["claim"] == 4
    other, beaten = keeper_of(cluster, clock, "n5")
    beaten.beaten = 99
    assert other.take() == WaitForSlot(reason="16 slots in a row were taken by others first")


def test_a_claim_without_an_answer_is_found_later(cluster: TroubledCluster, clock: FakeClock) -> None:
    """It is applied when the controller wakes up: one slot, adopted, and settled from then on."""
    keeper, orchestrator = keeper_of(cluster, clock)
    cluster.hung = True
    with pytest.raises(BackendUnknown):
        orchestrator.claim("cluster", 0)
    with pytest.raises(BackendUnknown):
        keeper.take()
    cluster.wake()
    clock.advance(100.0)
    assert keeper.take() == Settle(until_s=110.0)
    assert list(cluster.slots) == [("cluster", 0)]


def test_a_settled_slot_that_the_controller_lost_is_earned_anew(cluster: TroubledCluster, clock: FakeClock) -> None:
    """Asked again after a Go it reads back; a slot that is gone means claim and settle, or hold."""
    cluster.save()
    keeper, _ = keeper_of(cluster, clock)
    settled(keeper, clock)
    assert isinstance(keeper.take(), HoldsSlots)
    cluster.kill()
    assert isinstance(keeper.take(), Settle)


def test_a_new_daemon_adopts_and_one_that_is_committed_goes_at_once(cluster: TroubledCluster, clock: FakeClock) -> None:
    """With an empty store it settles anew; where the cluster shows our drain, the slot is ours already."""
    settled(keeper_of(cluster, clock)[0], clock)
    clock.advance(1000.0)
    again, _ = keeper_of(cluster, clock)
    assert again.take() == Settle(until_s=clock() + 10.0)
    assert isinstance(again.take(committed=True), HoldsSlots)
    assert len(cluster.slots) == 1


# ---------------------------------------------------------------------------------------------------------------------
# what is remembered of the fleet


def test_the_fleet_is_read_in_quiet_soon_after_the_start_and_then_every_few_minutes(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """Half a minute on average after a start, for not all start alone; then as often as a fleet of this size bears."""
    keeper, _ = keeper_of(cluster, clock)
    reads = []
    for _ in range(1000):
        if keeper.wants_to_learn():
            reads.append(clock())
            keeper.learn()
        clock.advance(1.0)
    assert reads == [FIRST_LEARNING_S / 2 + LEARNING_S * number for number in range(4)]


def test_a_controller_that_does_not_answer_is_not_asked_again_at_once(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """It may just be starting, and a thousand nodes ask."""
    keeper, _ = keeper_of(cluster, clock)
    clock.advance(FIRST_LEARNING_S)
    cluster.hung = True
    with pytest.raises(BackendUnknown):
        keeper.learn()
    clock.advance(LEARNING_S - 1)
    assert not keeper.wants_to_learn()
    clock.advance(1.0)
    assert keeper.wants_to_learn()


def test_a_daemon_that_starts_anew_knows_what_the_one_before_it_read(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """It waits by the slots alone, and reads the fleet when the one before it would have."""
    fleet = FakeOrchestrator(cluster, "n0").snapshot()
    for index in (0, 1):
        cluster.claim("cluster", index, f"n{index + 1}")
    orchestrator = Counting(cluster, "n0", clock)
    keeper = SlotKeeper(
        orchestrator=orchestrator,
        node="n0",
        quotas=lambda: {"cluster": "20%"},
        monotonic_s=clock,
        random=lambda: 0.5,
        known=fleet,
        known_age_s=200.0,
    )
    assert keeper.take() == WaitForSlot(reason="at the fleet limit: all 2 slots are taken")
    assert orchestrator.asked == {"slots": 1}
    clock.advance(99.0)
    assert not keeper.wants_to_learn()
    clock.advance(1.0)
    assert keeper.wants_to_learn()
    assert keeper.recalled() == fleet
    assert keeper.recalled(max_age_s=299.0) is None
    clock.advance(301.0)
    assert keeper.recalled() is None


def test_a_size_that_was_read_too_long_ago_makes_nobody_wait(cluster: TroubledCluster, clock: FakeClock) -> None:
    """The fleet may have grown tenfold meanwhile."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    for index in (0, 1):
        cluster.claim("cluster", index, f"n{index + 1}")
    clock.advance(2 * learning_s(len(NODES)) + 1)
    keeper.take()
    assert orchestrator.asked["snapshot"] == 2


def test_an_objection_is_asked_for_with_the_fleet_just_read_and_only_without_a_slot(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """Nothing is claimed against it; a holder is not asked, because it looks for itself after the settle time."""
    keeper, orchestrator = keeper_of(cluster, clock)
    keeper.learn()
    clock.advance(100.0)
    assert isinstance(keeper.take_unless_new(), MayTakeSlot)
    assert keeper.recalled(max_age_s=0.0) is not None
    assert keeper.wait("many have it") == WaitForSlot(reason="many have it")
    assert (orchestrator.asked["claim"], cluster.slots) == (0, {})
    assert 2.5 < keeper.due_in_s() <= 7.5
    assert keeper.take_unless_new() == WaitForSlot(reason="many have it")
    clock.advance(10.0)
    may = keeper.take_unless_new()
    assert isinstance(may, MayTakeSlot)
    assert isinstance(keeper.claim(may), Settle)
    clock.advance(10.0)
    assert isinstance(keeper.take_unless_new(), HoldsSlots)


def test_a_full_fleet_is_not_read_for_an_objection(cluster: TroubledCluster, clock: FakeClock) -> None:
    """The slots alone say that nobody can go out, so that nothing is to be objected to."""
    keeper, _ = keeper_of(cluster, clock)
    keeper.learn()
    for index in (0, 1, 2):
        cluster.claim("cluster", index, f"n{index + 1}")
    clock.advance(100.0)
    assert isinstance(keeper.take_unless_new(), WaitForSlot)


def test_who_stands_back_gives_its_slots_back_and_waits(cluster: TroubledCluster, clock: FakeClock) -> None:
    """As at the limit: it looks again after a while, and not at once."""
    keeper, orchestrator = keeper_of(cluster, clock)
    settled(keeper, clock)
    assert keeper.stand_back("many have it") == WaitForSlot(reason="many have it")
    assert cluster.slots == {}
    before = orchestrator.asked.copy()
    assert keeper.take() == WaitForSlot(reason="many have it")
    assert orchestrator.asked == before
    clock.advance(7.5)
    assert keeper.due_in_s() == 0.0


def test_asking_for_room_claims_nothing(cluster: TroubledCluster, clock: FakeClock) -> None:
    """It says what the plan would: by who is out, and by the places that are taken; a node that has one has room."""
    keeper, orchestrator = keeper_of(cluster, clock)
    assert keeper.no_room() == ""
    cluster.update("n1", "down", "no fan")
    cluster.claim("cluster", 0, "n2")
    assert keeper.no_room() == "at the fleet limit: 2 of 10 nodes are out, 2 may be"
    assert orchestrator.asked["claim"] == 0
    cluster.update("n1", "resume")
    cluster.claim("cluster", 1, "n0")
    assert keeper.no_room() == ""


def test_a_second_slot_of_the_same_scope_is_given_back_also_once_it_has_settled(
    cluster: TroubledCluster, clock: FakeClock
) -> None:
    """It appears where a list that was old did not show the first; kept, it would keep somebody else in for nothing."""
    keeper, orchestrator = keeper_of(cluster, clock)
    assert isinstance(keeper.take(), Settle)
    clock.advance(keeper.due_in_s())
    assert isinstance(keeper.take(), HoldsSlots)
    (own,) = keeper.held()
    cluster.claim("cluster", 1 - own.index, "n0")
    assert len(keeper.held()) == 2
    assert isinstance(keeper.take(), WaitForSlot)
    assert len(keeper.held()) == 1
    for _ in range(4):
        clock.advance(keeper.due_in_s() or 0.0)
        keeper.take()
    assert isinstance(keeper.take(), HoldsSlots)
    assert len(orchestrator.slots()) == 1
