"""Who is answered now, and who waits: no user can keep another from a seat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.api.client_queue import EACH, KEPT, SEATS, WAITING, WAITING_EACH, ClientLane, ClientQueue, ClientUser

ROOT = ClientUser(uid=0, may_act=True)


def user(uid: int) -> ClientUser:
    return ClientUser(uid=uid, may_act=False)


def crowded(*users: ClientUser, each: int) -> ClientQueue[str]:
    """A queue that so many clients of each of these users have asked for."""
    seats: ClientQueue[str] = ClientQueue()
    for who in users:
        for number in range(each):
            seats.take(who, f"{who.uid}/{number}")
    return seats


def test_a_user_has_a_few_seats_and_then_waits() -> None:
    """However many ask; another user is seated at once."""
    seats: ClientQueue[str] = ClientQueue()
    assert [seats.take(user(1000), "") for _ in range(EACH + 1)] == [ClientLane.SEAT] * EACH + [ClientLane.LINE]
    assert seats.take(user(1001), "") is ClientLane.SEAT


def test_seats_are_kept_for_those_that_may_act() -> None:
    """Every other one is taken, by as many users as it takes, and a whole line waits: root sits down all the same."""
    users = [user(uid) for uid in range(1000, 1010)]
    seats = crowded(*users, each=WAITING_EACH)
    assert [seats.take(ROOT, "hook") for _ in range(KEPT)] == [ClientLane.SEAT] * KEPT
    assert seats.take(ROOT, "hook") is ClientLane.LINE
    assert seats.take(user(2000), "") is ClientLane.NOWHERE


def test_the_line_of_a_user_ends() -> None:
    """What waits holds a descriptor: there are no more of one user's, and no more of all."""
    seats = crowded(user(1000), each=EACH + WAITING_EACH)
    assert seats.take(user(1000), "") is ClientLane.NOWHERE
    assert seats.take(user(1001), "") is ClientLane.SEAT
    assert WAITING_EACH < WAITING


def test_who_leaves_makes_room_for_the_first_that_may_sit() -> None:
    """Of one's own user, where that has its few; who may act goes before all the others."""
    seats = crowded(user(1000), each=EACH + 2)
    assert seats.leave(user(1000)) == f"1000/{EACH}"
    full = crowded(user(1), user(2), user(3), user(4), ROOT, each=KEPT)
    assert full.take(ROOT, "hook") is ClientLane.LINE
    assert full.leave(user(1)) == "hook"
    assert full.leave(ROOT) == "4/0"
    assert ClientQueue[str]().leave(ROOT) is None


@pytest.mark.parametrize("who", [ROOT, user(1000)])
def test_a_seat_that_was_left_is_free(who: ClientUser) -> None:
    """However often somebody comes and goes."""
    seats: ClientQueue[str] = ClientQueue()
    for _ in range(3 * SEATS):
        assert seats.take(who, "") is ClientLane.SEAT
        assert seats.leave(who) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=300))
def test_whatever_comes_and_goes_nobody_waits_who_might_sit(comings: list[tuple[int, bool]]) -> None:
    """The limits hold after every step, and once all have left everybody who waited has been seated."""
    seats: ClientQueue[ClientUser] = ClientQueue()
    sitting: list[ClientUser] = []
    waiting = 0
    for uid, goes in comings:
        who = ClientUser(uid=uid, may_act=uid == 0)
        if goes and sitting:
            if (follows := seats.leave(sitting.pop(0))) is not None:
                sitting.append(follows)
                waiting -= 1
        elif seats.take(who, who) is ClientLane.SEAT:
            sitting.append(who)
        else:
            waiting += 1
        others = [each for each in sitting if not each.may_act]
        assert len(sitting) <= SEATS
        assert len(others) <= SEATS - KEPT
        assert all(others.count(each) <= EACH for each in others)
    while sitting:
        if (follows := seats.leave(sitting.pop(0))) is not None:
            sitting.append(follows)
            waiting -= 1
    assert waiting == 0
