"""The fleet's budget as slots: every answer of the plan, as plain calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.model import Remedy
from healthd.remediation.decide.fleet import (
    GiveBack,
    HoldsSlots,
    Plan,
    Scope,
    Settle,
    TakeSlot,
    WaitForSlot,
    day_limit,
    learning_s,
    plan,
    quick_check,
    rate_held,
    replacements,
    requested,
    scopes_of,
    that_counts,
)
from healthd.remediation.ports import FleetSnapshot, NodeRecord, ScopeSnapshot, Slot
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RequestAnswer, parse

ME = "me"


def scope(*out: str, name: str = "cluster", limit: int = 3, total: int = 60) -> Scope:
    return Scope(name=name, out=frozenset(out), total=total, limit=limit)


def slots(*holders: str, name: str = "cluster") -> list[Slot]:
    """Taken slots, ``index:node`` each."""
    return [Slot(scope=name, index=int(text.partition(":")[0]), node=text.partition(":")[2]) for text in holders]


def planned(
    *scopes: Scope, taken: list[Slot], since_s: float | None = None, now_s: float = 100.0, committed: bool = False
) -> Plan:
    return plan(
        node=ME,
        scopes=scopes,
        slots=taken,
        since_s=since_s,
        now_s=now_s,
        settle_s=10.0,
        committed=committed,
    )


def claimable(state: Scope, taken: list[Slot]) -> list[int]:
    """Every index that some choice claims."""
    found = []
    for number in range(state.limit):
        move = plan(
            node=ME,
            scopes=[state],
            slots=taken,
            since_s=None,
            now_s=0.0,
            chance=(number + 0.5) / state.limit,
        )
        found += [move.index] if isinstance(move, TakeSlot) else []
    return sorted(set(found))


# ---------------------------------------------------------------------------------------------------------------------
# claiming


@pytest.mark.parametrize(
    ("out", "taken", "free"),
    [
        ([], [], [0, 1, 2]),
        (["a"], [], [0, 1]),
        (["a"], ["0:b"], [1]),
        (["a", "b"], ["0:a"], [1]),  # a holds a slot and is counted by it, not twice
        ([], ["1:a", "2:b"], [0]),
        (["a", "b"], ["2:c"], []),
        (["a"], ["2:c"], [0]),  # room for one: the highest free place stays empty for the slot above the bound
        ([], ["0:a", "1:b", "2:c"], []),
        (["a", "b", "c"], [], []),
        (["a", "b", "c", "d"], [], []),
        ([], ["7:x"], [0, 1]),  # a slot that only a larger limit knew counts
        (["me"], [], [0, 1, 2]),  # a node that is out itself takes nobody's room by holding a slot
    ],
)
def test_as_many_of_the_lowest_free_slots_as_there_is_room_may_be_claimed(
    out: list[str], taken: list[str], free: list[int]
) -> None:
    """Slots i < L - o, less what the nodes that are out and the holders leave of the limit."""
    assert claimable(scope(*out), slots(*taken)) == free


def test_the_choice_is_the_callers() -> None:
    """``chance`` chooses among the free ones."""
    move = plan(node=ME, scopes=[scope()], slots=slots("0:a"), since_s=None, now_s=0.0, chance=0.999)
    assert move == TakeSlot(scope="cluster", index=2)


def test_full_is_a_hold_without_a_claim() -> None:
    """At the limit nothing is asked of the controller, and the sentence says the figures."""
    assert planned(scope("a", "b"), taken=slots("0:c")) == WaitForSlot(
        reason="at the fleet limit: 3 of 60 nodes are out, 3 may be"
    )


def test_nothing_is_taken_out_without_a_budget() -> None:
    """No scope with a quota: hold."""
    assert isinstance(planned(taken=[]), WaitForSlot)


# ---------------------------------------------------------------------------------------------------------------------
# settling


def test_a_claimed_slot_settles_before_it_counts() -> None:
    """Until the settle time after the last claim is over nothing else is done."""
    assert planned(scope(), taken=slots("0:me"), since_s=95.0) == Settle(until_s=105.0)


def test_a_slot_that_is_found_settles_anew() -> None:
    """An adopted slot has no time of claim: it is one of now."""
    assert planned(scope(), taken=slots("0:me")) == Settle(until_s=110.0)


def test_within_the_limit_it_is_ours() -> None:
    """After the settle time, with holders and others together at the limit, it goes."""
    taken = slots("0:me", "1:b")
    assert planned(scope("a"), taken=taken, since_s=90.0) == HoldsSlots(slots=(taken[0],))


def test_above_the_bound_but_within_the_limit_it_stays() -> None:
    """One more node out does not put a holder back while all of them together fit."""
    taken = slots("2:me")
    assert planned(scope("a", "b"), taken=taken, since_s=90.0) == HoldsSlots(slots=(taken[0],))


def test_over_the_limit_the_slots_above_the_bound_are_given_back() -> None:
    """i >= L - o and over the limit: given back at the first look."""
    taken = slots("0:a", "1:b", "2:me")
    assert planned(scope("x"), taken=taken, since_s=90.0) == GiveBack(
        slots=(taken[2],), reason="at the fleet limit: 4 of 60 nodes are out, 3 may be"
    )


def test_over_the_limit_the_slots_below_wait_once_for_those_above() -> None:
    """i < L - o: one settle time more; if nobody has made room by then, it is given back as well."""
    taken = slots("0:a", "1:me", "2:b")
    move = planned(scope("x"), taken=taken, since_s=90.0)
    assert isinstance(move, Settle)
    assert (move.until_s, move.has_room) == (110.0, False)
    assert isinstance(planned(scope("x"), taken=taken, since_s=80.0), GiveBack)


def test_two_slots_in_a_scope_are_one_too_many() -> None:
    """A claim whose answer was lost may have been applied as well: the higher one is given back, whatever the room."""
    taken = slots("2:me", "0:me", "1:a")
    for committed in (False, True):
        move = planned(scope(), taken=taken, since_s=90.0, committed=committed)
        assert isinstance(move, GiveBack)
        assert move.slots == (taken[0],)


def test_a_slot_of_a_scope_without_a_quota_is_given_back() -> None:
    """A node that left a partition, or a quota that was taken away."""
    taken = [*slots("0:me"), *slots("0:me", name="gpu")]
    move = planned(scope(), taken=taken, since_s=90.0)
    assert isinstance(move, GiveBack)
    assert move.slots == (taken[1],)


# ---------------------------------------------------------------------------------------------------------------------
# a node that is out already by our own act


def test_what_is_committed_neither_settles_nor_gives_back() -> None:
    """A node that we drained before a restart keeps its slots, also over the limit."""
    taken = slots("0:a", "1:b", "2:me")
    assert planned(scope("x", "y"), taken=taken, committed=True) == HoldsSlots(slots=(taken[2],))


def test_a_committed_node_that_lost_its_slot_claims_another_or_waits() -> None:
    """The controller may have lost it: taken again where there is room, else a hold that keeps what is left."""
    gpu = slots("0:me", name="gpu")
    assert planned(scope("me"), taken=[], committed=True) == TakeSlot(scope="cluster", index=0)
    move = planned(scope("a", "b", "c"), scope(name="gpu"), taken=gpu, committed=True)
    assert isinstance(move, WaitForSlot)


# ---------------------------------------------------------------------------------------------------------------------
# several scopes


def test_scopes_are_taken_in_order_and_only_if_all_have_room() -> None:
    """The cluster first; a partition that is full holds before anything is claimed."""
    both = (scope(), scope(name="gpu", limit=1))
    assert planned(*both, taken=[]) == TakeSlot(scope="cluster", index=0)
    assert planned(*both, taken=slots("0:me")) == TakeSlot(scope="gpu", index=0)
    full = planned(*both, taken=slots("0:a", name="gpu"))
    assert full == WaitForSlot(reason="at the gpu limit: 1 of 60 nodes are out, 1 may be")


def test_all_or_none() -> None:
    """A scope that filled up meanwhile gives the slots of the others back; so does one that is over its limit."""
    both = (scope(), scope(name="gpu", limit=1))
    mine = slots("1:me")
    move = planned(*both, taken=[*mine, *slots("0:a", name="gpu")])
    assert isinstance(move, GiveBack)
    assert move.slots == tuple(mine)
    taken = [*mine, *slots("0:me", name="gpu")]
    move = planned(scope(), scope("x", name="gpu", limit=1), taken=taken, since_s=90.0)
    assert isinstance(move, GiveBack)
    assert move.slots == (taken[1], taken[0])


def test_quotas_become_limits_per_scope() -> None:
    """A share is of the scope's own nodes, the floor is one, the cluster comes first, no quota means no scope."""
    snapshot = FleetSnapshot(
        out=frozenset({"a", "b"}),
        total=100,
        scopes=(
            ScopeSnapshot(scope="cluster", out=frozenset(), total=1),  # a partition of that name: the fleet's stands
            ScopeSnapshot(scope="all", out=frozenset({"a"}), total=10),
            ScopeSnapshot(scope="gpu", out=frozenset(), total=30),
        ),
    )
    found = scopes_of(snapshot, {"gpu": "10%", "cluster": "5%", "all": "5%", "elsewhere": 3})
    assert [(one.name, sorted(one.out), one.total, one.limit) for one in found] == [
        ("cluster", ["a", "b"], 100, 5),
        ("all", ["a"], 10, 1),
        ("gpu", [], 30, 3),
    ]
    assert [one.name for one in scopes_of(snapshot, {"gpu": 2})] == ["gpu"]


# ---------------------------------------------------------------------------------------------------------------------
# the glance, and the rate


def test_full_slots_hold_without_a_reading_of_the_nodes() -> None:
    """As many slots as the last known limit: hold. Fewer, or one of our own: the nodes have to be read."""
    limits = {"cluster": 2, "gpu": 1}
    assert quick_check(ME, slots("0:a"), limits) is None
    assert quick_check(ME, slots("0:a", "1:me"), limits) is None
    assert quick_check(ME, slots("0:a", "1:b"), {}) is None
    assert quick_check(ME, slots("0:a", "5:b"), limits) == WaitForSlot(
        reason="at the fleet limit: all 2 slots are taken"
    )
    assert quick_check(ME, (), {"cluster": 0}) == WaitForSlot(
        reason="the fleet limit is 0: nothing is taken out until an operator allows it"
    )
    assert quick_check(ME, slots("0:a", name="gpu"), limits) == WaitForSlot(
        reason="at the gpu limit: all 1 slots are taken"
    )


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def past(act: PastAct, minutes_ago: float, code: str = "gpu.xid.79") -> PastRepair:
    return PastRepair(act=act, at=NOW - timedelta(minutes=minutes_ago), code=code)


def record(node: str, *minutes_ago: float, replaced: float | None = None) -> NodeRecord:
    old = None if replaced is None else NOW - timedelta(minutes=replaced)
    return NodeRecord(
        node=node,
        text=HandoffRecord(
            remediation_id="x", replaced=old, history=tuple(past(PastAct.REPLACE, each) for each in minutes_ago)
        ).text,
    )


HOUR = timedelta(hours=1)


def test_every_machine_that_was_given_away_counts() -> None:
    """Two under one name are two. A record of before there were histories tells of one, and of none twice; records of
    other things, other acts, and times that no clock can have shown yet, count for nothing."""
    records = [
        record("a", 10, 20),
        record("b", 59, 61),
        record("c", 61),
        record("old", replaced=10),
        record("new", 10, replaced=10),
        record("ahead", -6, replaced=-600_000),
        record("just", -4),
        NodeRecord(node="d", text="healthd case=y"),
        NodeRecord(node="e", text="mine, replaced=1795226977"),
        NodeRecord(node="f", text=HandoffRecord(history=(past(PastAct.REBOOT, 10),)).text),
    ]
    assert replacements(records, HOUR, NOW) == {"a": 2, "b": 1, "old": 1, "new": 1, "just": 1}


def test_a_request_counts_from_the_moment_at_which_it_is_left() -> None:
    """Also before the controller is asked, and while it waits there. Not twice once it was begun, not after a no, not
    another remedy, not our own, and none that is too old to be begun or of a clock that is ahead."""
    ask = HandoffRecord(
        remediation_id="k1", machine="i-1", remedy=Remedy.REPLACE_NODE, asks=True, asked=NOW - timedelta(hours=2)
    )
    records = {
        "asks": ask,
        "about to": replace(ask, asks=False),
        "waits": replace(ask, answer=RequestAnswer.WAITS, answered=NOW),
        "begun": replace(ask, answer=RequestAnswer.TAKEN, answered=NOW, history=(past(PastAct.REPLACE, 119),)),
        "refused": replace(ask, answer=RequestAnswer.REFUSED, answered=NOW),
        "denied": replace(ask, answer=RequestAnswer.DENIED, answered=NOW),
        "reboot": replace(ask, remedy=Remedy.REBOOT_NODE),
        "old": replace(ask, asked=NOW - timedelta(hours=5)),
        "ahead": replace(ask, asked=NOW + timedelta(hours=2)),
        ME: ask,
    }
    shown = [NodeRecord(node=node, text=each.text) for node, each in records.items()]
    shown.append(NodeRecord(node="nothing", text=""))
    assert requested(shown, ME, NOW, timedelta(hours=4)) == {"asks": 1, "about to": 1, "waits": 1}


def test_replacements_are_bounded_over_the_fleet() -> None:
    """By the hour and by the day; at a bound a sentence for a person. What a person orders passes that of the day."""
    hour, day = {"a": 2, "b": 1}, {"a": 3, "b": 2}
    assert rate_held(ME, hour, day, per_hour=4, per_day=6) == ""
    words = rate_held("a", hour, day, per_hour=3, per_day=None)
    assert words.startswith("3 machines were replaced, 2 of them under the name a within an hour, 3 may be")
    words = rate_held(ME, hour, day, per_hour=4, per_day=4)
    assert words.startswith("4 machines were replaced or requested within a day, 4 may be before an operator has to")
    assert rate_held(ME, hour, day, per_hour=4, per_day=None) == ""


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(3, 9))
def test_one_name_does_not_use_up_the_fleets_rate(times: int, per_hour: int, per_day: int) -> None:
    """However often its machine was replaced, or its record says so: others still may; it is held by its own count."""
    counts = {"a": times}
    assert rate_held(ME, counts, counts, per_hour=per_hour, per_day=per_day) == ""
    assert bool(rate_held("a", counts, counts, per_hour=per_hour, per_day=per_day)) is (times >= min(per_hour, per_day))


@pytest.mark.parametrize(
    ("setting", "total", "limit"), [("1%", 500, 5), ("1%", 300, 4), ("1%", 4, 4), ("10%", 500, 50), (2, 500, 2)]
)
def test_the_bound_of_a_day_is_a_share_and_at_least_four(setting: str | int, total: int, limit: int) -> None:
    """A number is as somebody wrote it."""
    assert day_limit(setting, total) == limit


@settings(deadline=None)
@given(st.lists(st.floats(0, 3000), max_size=8), st.floats(0, 3000))
def test_the_bounds_outlive_a_node_that_is_gone(minutes: list[float], now_in: float) -> None:
    """Its successor has another name: what the record counts within the day stays, and no request does."""
    gone = HandoffRecord(
        remediation_id="k3",
        machine="i-1",
        remedy=Remedy.REPLACE_NODE,
        asks=True,
        asked=NOW,
        code="gpu.xid.79",
        history=tuple(past(PastAct.REPLACE, each) for each in sorted(minutes, reverse=True)),
    ).text
    now = NOW + timedelta(minutes=now_in)
    day = timedelta(days=1)
    kept = that_counts(gone, now)
    assert replacements([NodeRecord(node="n", text=kept)], day, now) == replacements(
        [NodeRecord(node="n", text=gone)], day, now
    )
    assert that_counts(kept, now) == kept
    left = parse(kept)
    assert left is None or not (left.asks or left.remediation_id or left.code)


@pytest.mark.parametrize("text", ["", "of somebody else", "healthd does=reboot_node", "healthd replaced=1"])
def test_of_other_nodes_that_are_gone_nothing_stays(text: str) -> None:
    """Nothing was given away, or long ago."""
    assert that_counts(text, NOW) == ""


# ---------------------------------------------------------------------------------------------------------------------
# reading in quiet


@pytest.mark.parametrize(("total", "seconds"), [(1, 300), (500, 300), (1000, 1100), (2000, 4400), (20_000, 21_600)])
def test_the_pause_between_readings_grows_with_the_square_of_the_fleet(total: int, seconds: float) -> None:
    """Every node reads every node: so all of them together cost the controller the same share, up to six hours."""
    assert learning_s(total) == pytest.approx(seconds)
