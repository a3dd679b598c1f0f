"""What the records of a fleet have against one more repair: plain calls and laws."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.model import Remedy
from healthd.remediation.decide.ledger import (
    Bounds,
    FleetRecords,
    held_back,
    many_returns,
    records_of,
    returns_of,
    settle_s,
)
from healthd.remediation.ports import FleetSnapshot, HeldNode, NodeRecord
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult
from tests.support.judgement import START

CODE = "gpu.driver.odd"
BOUNDS = Bounds()
RESET, REBOOT, REPLACE = Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE
NOW = START


def past(act: PastAct, hours_ago: float, outcome: RepairResult = RepairResult.HELPED, code: str = CODE) -> PastRepair:
    return PastRepair(act=act, at=NOW - timedelta(hours=hours_ago), code=code, outcome=outcome)


def records(shown: dict[str, HandoffRecord], *, total: int = 100, held: dict[str, float] | None = None) -> FleetRecords:
    """``held``: for how many hours each of these is drained for the code."""
    drains = {node: (CODE, NOW - timedelta(hours=hours)) for node, hours in (held or {}).items()}
    return FleetRecords(records=shown, held=drains, total=total)


def against(remedy: Remedy, fleet: FleetRecords, *, code: str = CODE, me: str = "n0", bounds: Bounds = BOUNDS) -> str:
    return held_back(remedy, code, me, fleet, now=NOW, bounds=bounds)


def test_what_is_none_of_healthds_is_no_record() -> None:
    """Other comments, and other people's drains; and what is said of a time that is ahead."""
    ahead = NOW + timedelta(days=400)
    odd = HandoffRecord(code=CODE, since=ahead, replaced=ahead, history=(replace(past(PastAct.REBOOT, 0), at=ahead),))
    snapshot = FleetSnapshot(
        out=frozenset(),
        total=7,
        records=(
            NodeRecord(node="a", text=HandoffRecord(code=CODE).text),
            NodeRecord(node="b", text="ticket 7"),
            NodeRecord(node="e", text=odd.text),
        ),
        held=(
            HeldNode(node="c", text=f"healthd: {CODE} gpu:0 [1]", stamp=1),
            HeldNode(node="d", text="healthd: what?", stamp=1),
            HeldNode(node="f", text=f"healthd: {CODE} gpu:0 [1]", stamp=int(ahead.timestamp())),
        ),
    )
    assert records_of(snapshot, NOW) == FleetRecords(
        records={"a": HandoffRecord(code=CODE), "e": HandoffRecord()},
        held={"c": (CODE, datetime.fromtimestamp(1, UTC))},
        total=7,
    )


# -- a slow storm -----------------------------------------------------------------------------------------------------


def stormed(count: int, **words: str) -> dict[str, HandoffRecord]:
    """So many other nodes that were repaired for the code today, and are back."""
    record = replace(HandoffRecord(history=(past(PastAct.RESET, 5),)), **words)
    return {f"n{number}": record for number in range(1, count + 1)}


@pytest.mark.parametrize(
    ("others", "total", "is_storm"), [(6, 100, False), (7, 100, True), (7, 500, False), (9, 500, True)]
)
def test_the_same_code_on_many_nodes_within_a_day_is_no_nodes_own(others: int, total: int, is_storm: bool) -> None:
    """Eight nodes or two per cent, whichever is more, this one among them; a reset harms nothing and is made."""
    fleet = records(stormed(others), total=total)
    assert bool(against(REBOOT, fleet)) is bool(against(REPLACE, fleet)) is is_storm
    assert against(RESET, fleet) == ""
    assert against(REBOOT, fleet, code="gpu.xid.79") == ""


def test_a_node_counts_by_when_it_got_the_code() -> None:
    """By its drain, or what it shows; nodes that came one by one over weeks, and wait for spare parts, are no storm."""
    shown = {f"n{number}": HandoffRecord(code=CODE, since=NOW - timedelta(hours=number)) for number in range(1, 4)}
    held = dict.fromkeys(("n3", "n4", "n5", "n6"), 23.0)
    old = {f"o{number}": HandoffRecord(history=(past(PastAct.RETURN, 50),)) for number in range(9)}
    for_weeks = {f"p{number}": 30.0 * number for number in range(1, 20)}
    assert against(REBOOT, records({**shown, **old}, held=held)) == ""
    assert against(REBOOT, records({}, held=for_weeks)) == ""
    words = against(REBOOT, records({**shown, **old}, held={**held, "n7": 1.0, "p": 25.0}))
    assert words.startswith(f"{CODE} on 8 nodes within 24 h (n0, n1, n2, n3, n4, n5, n6, n7): a shared cause")


@pytest.mark.parametrize(("out", "is_storm"), [(7, True), (1, True), (0, False)])
def test_a_storm_that_no_person_looked_at_is_not_over_by_the_clock(out: int, is_storm: bool) -> None:
    """Eight got it on one day, five days ago: it holds while one of them is still out for it, the last that got it."""
    back = {f"n{number}": HandoffRecord(history=(past(PastAct.RESET, 130 - number),)) for number in range(8 - out)}
    held = {f"m{number}": 121.0 - number for number in range(out)}
    assert bool(against(REBOOT, records(back, held=held), me="x")) is (is_storm and len(back) + len(held) == 8)


@given(st.lists(st.tuples(st.integers(0, 11), st.floats(0, 100), st.booleans()), max_size=24))
def test_a_storm_has_its_nodes_within_its_window(seen: list[tuple[int, float, bool]]) -> None:
    """Whatever nodes went out and came back when: so many are named only where so many got it within one window."""
    held = {f"n{number}": hours for number, hours, is_out in seen if is_out}
    shown = {
        f"n{number}": HandoffRecord(history=(past(PastAct.RESET, hours),))
        for number, hours, is_out in seen
        if not is_out
    }
    words = against(REBOOT, records(shown, held=held), me="n0")
    ats = {
        ("n0", 0.0),
        *held.items(),
        *((name, -(m.history[0].at - NOW) / timedelta(hours=1)) for name, m in shown.items()),
    }
    most = max(len({name for name, hours in ats if end <= hours < end + 24}) for _, end in ats)
    assert not words or most >= 8
    assert words or len({name for name, hours in ats if hours < 24}) < 8


def test_the_words_are_the_same_on_every_node() -> None:
    """One story for the fleet: whoever tells it tells the same."""
    fleet = records({"n0": HandoffRecord(code=CODE), **stormed(9)}, held={"n0": 1.0})
    assert len({against(REBOOT, fleet, me=f"n{number}") for number in range(10)}) == 1


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        ({"driver": "580"}, {"driver": "570"}, "n8); all 8 have driver 580, of the others 3 have 570:"),
        ({"driver": "580"}, {}, "n8); all 8 have driver 580:"),
        ({"driver": "580", "kernel": "6.8"}, {"kernel": "6.8"}, "n8); all 8 have driver 580:"),
        ({}, {"image": "ami-1"}, "n8):"),
    ],
)
def test_what_the_nodes_have_in_common_is_said(here: dict[str, str], there: dict[str, str], message: str) -> None:
    """As far as records tell it, and only what the others have not as well."""
    others = {f"o{number}": HandoffRecord(history=(past(PastAct.RESET, 99),), **there) for number in range(3)}  # type: ignore[arg-type]
    assert message in against(REBOOT, records({**stormed(8, **here), **others}), me="n8")
    words = against(REBOOT, records({**stormed(8, driver="580"), **others}), me="n9")
    assert "all 8 that tell it have driver 580" in words


def test_nodes_of_two_versions_have_none_in_common() -> None:
    """Then nothing is said of it."""
    fleet = records({**stormed(4, driver="570"), **{f"m{n}": each for n, each in stormed(4, driver="580").items()}})
    assert "have driver" not in against(REBOOT, fleet)
    assert "have driver 570" in against(
        REBOOT, records({**stormed(8, driver="570"), "n0": HandoffRecord(driver="570")})
    )


# -- in vain ----------------------------------------------------------------------------------------------------------


def repaired(*outcomes: RepairResult) -> dict[str, HandoffRecord]:
    """A node for each outcome of a repair, the newest last."""
    return {
        f"n{number}": HandoffRecord(history=(past(PastAct.RESET, 20 - number, outcome),))
        for number, outcome in enumerate(outcomes, 1)
    }


H, F, U = RepairResult.HELPED, RepairResult.FAILED, RepairResult.NOT_KNOWN


@pytest.mark.parametrize(
    ("outcomes", "is_held"),
    [
        ((F,) * 4, False),
        ((F,) * 5, True),
        ((H, F, F, F, F, F), True),
        ((F, F, F, H, F, F), False),
        ((F, F, F, F, U), False),
    ],
)
def test_after_five_repairs_in_vain_no_sixth_is_made(outcomes: tuple[RepairResult, ...], is_held: bool) -> None:
    """Of whatever kind; what is under way is none yet, and one that helped begins the count anew."""
    fleet = records(repaired(*outcomes))
    assert [bool(against(remedy, fleet)) for remedy in (RESET, REBOOT, REPLACE)] == [is_held] * 3


def test_a_repair_after_which_it_came_back_was_in_vain() -> None:
    """A later act for the same code, or the finding that the node shows now; what failed and was followed by the next
    act is one repair with it."""
    relapsed = {
        f"n{number}": HandoffRecord(
            history=(past(PastAct.RESET, 9, F), past(PastAct.REBOOT, 8, H)), code=CODE, since=NOW - timedelta(hours=1)
        )
        for number in range(5)
    }
    assert against(RESET, records(relapsed)).startswith(
        f"the last 5 repairs of {CODE}, on whichever node, did not end it"
    )
    assert against(RESET, records(dict(list(relapsed.items())[:4]))) == ""


def replaced(outcome: RepairResult, *later: PastRepair) -> HandoffRecord:
    return HandoffRecord(history=(past(PastAct.REPLACE, 9, outcome), *later))


@pytest.mark.parametrize(
    ("shown", "is_held"),
    [
        ((replaced(F),), False),
        ((replaced(F), replaced(F)), True),
        ((replaced(F), replaced(H, past(PastAct.RETURN, 2))), True),
        ((replaced(F), replaced(H), replaced(U)), False),
        ((replaced(F), HandoffRecord(history=(past(PastAct.REPLACE, 200, F),))), False),
    ],
)
def test_from_the_second_machine_in_vain_none_is_given_away(shown: tuple[HandoffRecord, ...], is_held: bool) -> None:
    """On two nodes the new machine had the same: the machine was not the cause. Reboots go on."""
    fleet = records({f"n{number}": record for number, record in enumerate(shown, 1)})
    assert bool(against(REPLACE, fleet)) is is_held
    assert against(REBOOT, fleet) == ""


def mixed(helped: int, failed: int, *, hours_ago: float = 1, unknown: int = 0) -> FleetRecords:
    """A fleet whose nodes were each repaired once, all of faults of their own."""
    ends = [H] * helped + [F] * failed + [U] * unknown
    shown = {
        f"n{number}": HandoffRecord(history=(past(PastAct.REBOOT, hours_ago + number / 60, end, f"code.{number}"),))
        for number, end in enumerate(ends)
    }
    return records(shown)


@pytest.mark.parametrize(
    ("fleet", "is_held"),
    [
        (mixed(9, 11), True),
        (mixed(10, 10), False),
        (mixed(9, 10), False),
        (mixed(9, 10, unknown=9), False),
        (mixed(20, 40), False),  # the newest 20 worked
        (mixed(9, 11, hours_ago=200), False),
    ],
)
def test_where_few_repairs_worked_the_fleet_falls_back_to_quarantine(fleet: FleetRecords, is_held: bool) -> None:
    """Fewer than half of the last 20, within a week, of whatever codes; what is under way is none yet."""
    for remedy in (RESET, REBOOT, REPLACE):
        message = against(remedy, fleet)
        assert message.startswith("only 9 of the last 20 repairs of the fleet worked") if is_held else not message
        assert against(remedy, fleet, bounds=replace(BOUNDS, repairs_judged=0)) == ""


outcomes = st.sampled_from(list(RepairResult))
entries = st.builds(past, st.sampled_from(list(PastAct)), st.floats(0, 200), outcomes, st.sampled_from([CODE, "other"]))
fleets = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(12)]),
    st.lists(entries, max_size=8).map(lambda each: HandoffRecord(history=tuple(sorted(each, key=lambda e: e.at)))),
)


@settings(deadline=None)
@given(fleets, st.sampled_from([RESET, REBOOT, REPLACE]), entries)
def test_what_another_code_did_holds_nothing(
    fleet: dict[str, HandoffRecord], remedy: Remedy, entry: PastRepair
) -> None:
    """A brake is about one code, but for the last 20 repairs of the fleet; and a larger remedy is never free where a
    smaller one is held."""
    others = {
        node: HandoffRecord(history=tuple(each for each in record.history if each.code != CODE))
        for node, record in fleet.items()
    }
    assert against(remedy, records(others), bounds=replace(BOUNDS, repairs_judged=0)) == ""
    if against(RESET, records(fleet)):
        assert against(REBOOT, records(fleet))
    if against(REBOOT, records(fleet)):
        assert against(REPLACE, records(fleet))


# -- returns ----------------------------------------------------------------------------------------------------------


def test_returns_of_a_day_are_counted_by_code() -> None:
    """By itself, or after a repair that helped. Acts that did not help, other codes and other days are none."""
    history = [
        past(PastAct.RETURN, 25),
        past(PastAct.RETURN, 23),
        past(PastAct.RETURN, 2, code="other"),
        past(PastAct.REBOOT, 4, outcome=RepairResult.NOT_KNOWN),
        past(PastAct.REBOOT, 3, outcome=RepairResult.FAILED),
        past(PastAct.REBOOT, 2, outcome=RepairResult.HELPED),
        past(PastAct.RETURN, 1),
    ]
    assert returns_of(history, CODE, NOW) == 3
    late = replace(past(PastAct.REBOOT, 30, outcome=RepairResult.HELPED), back=NOW - timedelta(hours=20))
    assert returns_of([late, *history], CODE, NOW) == 4, "it counts from when the node was let in"
    assert returns_of([replace(late, back=None), *history], CODE, NOW) == 3


@settings(deadline=None)
@given(st.integers(0, 50), st.floats(1, 3600))
@example(0, 300.0)
@example(BOUNDS.returns_per_day, 300.0)
def test_each_return_doubles_the_settle_time_up_to_a_day(returns: int, plain_s: float) -> None:
    """It never shrinks, and from the bound on a day must be healthy and a person hears of it."""
    now_s, next_s = (settle_s(each, plain_s, BOUNDS, is_repaired=False) for each in (returns, returns + 1))
    assert plain_s <= now_s <= next_s <= 86_400.0
    is_many = returns >= BOUNDS.returns_per_day
    assert (now_s == 86_400.0) is is_many or plain_s * 2**returns >= 86_400.0
    assert settle_s(returns, plain_s, BOUNDS, is_repaired=True) == (86_400.0 if is_many else plain_s)
    assert bool(many_returns(returns, CODE, BOUNDS)) is is_many
