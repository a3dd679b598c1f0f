"""The budget as Leases hold it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.orchestrators.kubernetes.objects import budget as leases
from healthd.remediation.orchestrators.kubernetes.objects.budget import (
    Budget,
    budget_of,
    check_counted,
    claimed,
    counts,
    drained,
    given_back,
    key_of,
    lease_name,
)
from healthd.remediation.ports import Slot

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def lease(notes: dict[str, str | None] | None) -> dict[str, Any]:
    kept = {key: value for key, value in (notes or {}).items() if value is not None}
    return {"metadata": {"resourceVersion": "7", **({"annotations": kept} if notes is not None else {})}}


def budget(more: Mapping[str, str | None] | None = None, *, limit: int = 2, out: tuple[str, ...] = ()) -> Budget:
    return budget_of("cluster", lease({**counts(limit=limit, total=10, out=out, at=NOW), **(more or {})}))


def test_a_claim_is_read_back_as_it_was_made() -> None:
    """Place, node, and after the drain its reason; then nothing is left of it."""
    notes: dict[str, str | None] = {**counts(limit=2, total=10, out=(), at=NOW)}
    notes |= claimed(budget_of("cluster", lease(notes)), "n1", 1, NOW)
    there = budget_of("cluster", lease(notes))
    assert there.slots == (Slot(scope="cluster", index=1, node="n1"),)
    notes |= drained(there, "n1", "healthd: x y [z]", 99)
    shown = budget_of("cluster", lease(notes)).of("n1")
    assert shown is not None
    assert (shown.index, shown.text, shown.stamp, shown.at) == (1, "healthd: x y [z]", 99, "2026-11-21T12:00:00Z")
    assert drained(budget_of("cluster", lease(notes)), "n1", "healthd: x y [z]", 100) == {}
    notes |= given_back(budget_of("cluster", lease(notes)), "n1", 1)
    assert budget_of("cluster", lease(notes)).claims == {}
    assert drained(budget_of("cluster", lease(notes)), "n1", "healthd: x y [z]", 1) == {}


@pytest.mark.parametrize(
    ("claims", "out", "index", "words"),
    [
        ({"n1": 0}, (), 1, "already holds slot 0"),
        ({"n2": 0}, (), 0, "is held by n2"),
        ({"n2": 0, "n3": 1}, (), 2, "the budget is full: 2 claims and 0 other nodes out, limit 2"),
        ({"n2": 0}, ("n3",), 1, "the budget is full"),
        ({}, ("n3", "n4", "n5"), 0, "the budget is full"),
    ],
)
def test_no_place_is_taken_twice_or_over_the_limit(
    claims: dict[str, int], out: tuple[str, ...], index: int, words: str
) -> None:
    """By itself, by another, by all of them together with the nodes that are out without a claim."""
    notes = {key_of(node): f'{{"node": "{node}", "index": {at}}}' for node, at in claims.items()}
    with pytest.raises(SlotTaken, match=words):
        claimed(budget(notes, out=out), "n1", index, NOW)


def test_a_node_that_is_out_already_may_claim_its_own_place_again() -> None:
    """Its claim was taken away while it was drained: counted among those that are out, it kept itself from claiming,
    and its repair waited for ever."""
    assert claimed(budget(limit=1, out=("n1",)), "n1", 0, NOW).keys() == {key_of("n1")}
    with pytest.raises(SlotTaken, match="the budget is full"):
        claimed(budget(limit=1, out=("n1", "n2")), "n1", 0, NOW)


def test_a_node_that_is_out_and_holds_a_claim_counts_once() -> None:
    """The controller may have counted before the claim was made."""
    assert budget({key_of("n2"): '{"node": "n2", "index": 0}'}, out=("n2",)).room() == 1


@pytest.mark.parametrize("text", ["mine", "{}", '{"node": "n3", "index": 0}', '{"node": "n2", "index": "0"}'])
def test_a_claim_that_makes_no_sense_takes_a_place(text: str) -> None:
    """It is of the node that its key names, whatever it says, odd, and that node alone gives it back."""
    there = budget({key_of("n2"): text}, limit=1)
    assert there.room() == 0
    assert there.slots == (Slot(scope="cluster", index=-1, node="n2"),)
    assert there.odd == {"n2"}
    with pytest.raises(BackendRefused, match="n2 holds it, not n3"):
        given_back(there, "n3", -1)
    assert given_back(there, "n2", -1) == {key_of("n2"): None}


@pytest.mark.parametrize("stamp", [-1, 10**11, 10**18])
def test_a_claim_of_no_time_is_none_of_healthds(stamp: int) -> None:
    """One agent writes it and all read it: as a time it would end each of them, and the controller with them."""
    text = f'{{"node": "n2", "index": 0, "text": "healthd: gpu.xid.79 gpu:0 [a]", "stamp": {stamp}}}'
    (claim,) = budget({key_of("n2"): text}).claims.values()
    assert (claim.node, claim.index, claim.text, claim.stamp) == ("n2", -1, "", 0)


def test_only_its_own_place_is_given_back() -> None:
    """Another's is refused, nobody's is fine."""
    there = budget({key_of("n2"): '{"node": "n2", "index": 0}'})
    with pytest.raises(BackendRefused, match="n2 holds it, not n1"):
        given_back(there, "n1", 0)
    assert given_back(there, "n1", 1) == {}


@pytest.mark.parametrize("age_s", [-900, 0, 900])
def test_counts_of_this_quarter_of_an_hour_are_believed(age_s: int) -> None:
    """A clock that is a little off does no harm."""
    check_counted(budget(), NOW + timedelta(seconds=age_s), max_age_s=900)


@pytest.mark.parametrize("age_s", [-901, 901])
def test_older_counts_are_not_and_neither_are_those_from_tomorrow(age_s: int) -> None:
    """Either the controller is away or a clock is wrong."""
    with pytest.raises(BackendUnknown, match="healthd controller"):
        check_counted(budget(), NOW + timedelta(seconds=age_s), max_age_s=900)


def test_counts_that_nobody_keeps_do_not_age() -> None:
    """Helm wrote them once; a time without a zone is UTC."""
    once = budget({leases.COUNTED: None})
    check_counted(once, NOW + timedelta(days=365), max_age_s=900)
    assert budget({leases.COUNTED: "2026-11-21T12:00:00"}).counted == NOW


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({leases.LIMIT: None}, "has no healthd.io/limit"),
        ({leases.NODES: "-1"}, "healthd.io/nodes = '-1'"),
        ({leases.LIMIT: "5%"}, "expected a whole number"),
        ({leases.COUNTED: "soon"}, "expected RFC 3339"),
        ({leases.FIXED_LIMIT: "5%", leases.FIXED_NODES: "40"}, "fixed-limit = '5%'"),
        ({leases.FIXED_LIMIT: "5"}, "has no healthd.io/fixed-nodes"),
    ],
)
def test_a_lease_that_says_too_little_is_unknown(notes: dict[str, str | None], words: str) -> None:
    """Which annotation, and who writes it."""
    with pytest.raises(BackendUnknown, match=words):
        budget(notes)


def test_helms_numbers_take_the_place_of_what_a_controller_counted() -> None:
    """Switched off, a controller leaves its counts behind: they neither age nor hold anybody any more."""
    fixed = budget({leases.FIXED_LIMIT: "5", leases.FIXED_NODES: "100"})
    assert (fixed.limit, fixed.total, fixed.out, fixed.counted) == (5, 100, frozenset(), None)
    check_counted(fixed, NOW + timedelta(days=365), max_age_s=900)
    assert fixed.claims == budget().claims
    assert budget({leases.FIXED_LIMIT: "", leases.FIXED_NODES: ""}) == budget()


ODD_NOTES = ({"metadata": {"resourceVersion": "1", "annotations": notes}} for notes in (True, {"a": 1}))


@pytest.mark.parametrize("data", [{}, {"metadata": None}, {"metadata": {"annotations": {}}}, *ODD_NOTES])
def test_what_is_no_lease_is_unknown(data: dict[str, Any]) -> None:
    """Never an empty budget."""
    with pytest.raises(BackendUnknown, match="no Lease"):
        budget_of("cluster", data)


def test_a_lease_without_annotations_has_no_limit() -> None:
    """The API leaves an empty map out."""
    with pytest.raises(BackendUnknown, match="has no healthd.io/limit"):
        budget_of("cluster", lease(None))


def test_as_many_are_named_as_matter() -> None:
    """One over the limit: then nobody may claim, and 10,000 names do not fill the object."""
    out = [f"n{number:05}" for number in range(10_000)]
    there = budget_of("cluster", lease(dict(counts(limit=50, total=10_000, out=out, at=None))))
    assert len(there.out) == 51
    assert there.room() < 0


@pytest.mark.parametrize("scope", ["GPU", "a_b", "-a", "a-", "", "x" * 250])
def test_a_scope_that_names_no_lease_is_refused(scope: str) -> None:
    """With what it may be made of."""
    with pytest.raises(BackendRefused, match="cannot name a Lease"):
        lease_name(scope)


def test_each_scope_has_a_lease() -> None:
    """The cluster's has the plain name."""
    assert [lease_name(scope) for scope in ("cluster", "p5.train-a")] == [
        "healthd-budget",
        "healthd-budget-p5.train-a",
    ]


def test_a_name_that_is_no_annotation_is_refused() -> None:
    """No kubelet registers one of 64 characters."""
    assert key_of("n" * 63) == f"claim.healthd.io/{'n' * 63}"
    with pytest.raises(BackendRefused, match="64 characters"):
        key_of("n" * 64)


@pytest.mark.parametrize(
    ("age_s", "changes", "is_reported"),
    [
        (0, {}, True),
        (59, {}, True),
        (-59, {}, True),
        (60, {}, False),
        (-60, {}, False),
        (1, {"healthd.io/limit": "3"}, False),
        (1, {"healthd.io/out": "n9"}, False),
        (1, {"healthd.io/nodes": None}, False),
        (1, {"healthd.io/counted": None}, False),
        (1, {"healthd.io/counted": "lately"}, False),
        (1, {"claim.healthd.io/n3": "somebody's"}, True),
    ],
)
def test_numbers_are_noted_anew_where_they_changed_or_are_old(
    age_s: int, changes: dict[str, str | None], is_reported: bool
) -> None:
    """What the Lease says already is left alone for a minute, by a clock that was set back too."""
    noted = counts(limit=2, total=40, out=["n7"], at=NOW)
    there = {**counts(limit=2, total=40, out=["n7"], at=NOW - timedelta(seconds=age_s)), **changes}
    lease = {"metadata": {"resourceVersion": "7", "annotations": {k: v for k, v in there.items() if v is not None}}}
    assert leases.says(lease, noted, max_age_s=60.0) is is_reported
