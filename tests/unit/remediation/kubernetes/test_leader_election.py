"""Who may take the lead: judged by what changed and by our own clock, never by the times in the Lease."""

from __future__ import annotations

import time
from typing import Any

import pytest

from healthd.core.errors import BackendBusy, BackendUnknown
from healthd.remediation.orchestrators.kubernetes.api import Conflict, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.leader_election import (
    DURATION_S,
    NO_HOLDER,
    RENEW_S,
    Leadership,
    Record,
    Renewal,
    may_take,
    record_of,
)
from tests.support.limits import limit_s


class OneLease:
    """The API server as far as one Lease goes: compare-and-swap, and trouble when told to."""

    def __init__(self, spec: dict[str, Any] | None) -> None:
        self.spec, self.version, self.trouble = spec, 1, False

    def get(self, kind: ResourceKind, name: str, *, namespace: str) -> dict[str, Any]:
        self._may_fail()
        if self.spec is None:
            raise Missing(name)
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(self.spec)}

    def patch(self, kind: ResourceKind, name: str, body: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        self._may_fail()
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict(name)
        self.spec, self.version = {**(self.spec or {}), **body["spec"]}, self.version + 1
        return self.get(kind, name, namespace=namespace)

    def create(self, kind: ResourceKind, body: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        self._may_fail()
        self.spec = dict(body["spec"])
        return {}

    def _may_fail(self) -> None:
        if self.trouble:
            raise BackendUnknown("no answer")


class Seconds:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lead(lease: OneLease, clock: Seconds, who: str) -> Leadership:
    return Leadership(lease, namespace="healthd", identity=who, monotonic_s=clock)  # type: ignore[arg-type] # three calls


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


def test_a_lease_of_nobody_is_taken_and_kept(clock: Seconds) -> None:
    """At once; renewed, the transitions stay."""
    lease = OneLease({})
    one = lead(lease, clock, "a")
    assert not one.holds()
    assert one.attempt()
    assert lease.spec is not None
    assert (lease.spec["holderIdentity"], lease.spec["leaseTransitions"]) == ("a", 1)
    clock.now += 5
    assert one.attempt()
    assert lease.spec["leaseTransitions"] == 1
    one.check()


def test_another_waits_for_a_whole_duration_without_a_change(clock: Seconds) -> None:
    """By its own clock from when it first saw it, however old the times in it are; a renewal begins that anew."""
    lease = OneLease({})
    first, second = lead(lease, clock, "a"), lead(lease, clock, "b")
    first.attempt()
    assert lease.spec is not None
    lease.spec["renewTime"] = "1999-01-01T00:00:00.000000Z"
    assert not second.attempt()
    clock.now += DURATION_S - 1
    assert not second.attempt()
    first.attempt()
    clock.now += 2
    assert not second.attempt()
    clock.now += DURATION_S
    assert second.attempt()
    assert not first.holds()
    assert not first.attempt()
    assert first.leader == "b"


def test_a_leader_stops_before_another_may_begin(clock: Seconds) -> None:
    """An API server that does not answer: it acts no more after RENEW_S, which is less than DURATION_S."""
    lease = OneLease({})
    one = lead(lease, clock, "a")
    one.attempt()
    lease.trouble = True
    clock.now += RENEW_S - 0.1
    assert one.attempt(), "a hiccup does not cost the lead"
    clock.now += 0.1
    assert not one.attempt()
    with pytest.raises(BackendBusy, match="is no longer the leader: no answer"):
        one.check()
    assert RENEW_S < DURATION_S
    lease.trouble = False
    assert one.attempt(), "it was not taken meanwhile"


def test_of_two_at_once_one_wins(clock: Seconds) -> None:
    """The server compares; the loser says so."""
    lease = OneLease({})
    one = lead(lease, clock, "a")
    get = lease.get

    def overtaken(kind: ResourceKind, name: str, *, namespace: str) -> dict[str, Any]:
        found = get(kind, name, namespace=namespace)
        lease.spec, lease.version = {"holderIdentity": "b", "leaseDurationSeconds": 15}, 9
        return found

    lease.get = overtaken  # type: ignore[method-assign]
    assert not one.attempt()
    assert "wrote the lease at the same moment" in one.message


def test_a_lease_that_was_deleted_is_made_and_held_by_nobody_for_a_while(clock: Seconds) -> None:
    """Who led before may not know yet; the leader that sees it stops at once."""
    lease = OneLease({})
    one = lead(lease, clock, "a")
    one.attempt()
    lease.spec = None
    assert not one.attempt()
    assert not one.holds()
    made: object = lease.spec
    assert made == {"holderIdentity": NO_HOLDER, "leaseDurationSeconds": 15}
    assert not one.attempt()
    clock.now += DURATION_S
    assert one.attempt()
    lease.spec, lease.trouble = None, True
    clock.now += RENEW_S
    assert not one.attempt()


def test_who_ends_gives_it_to_the_next_without_a_wait(clock: Seconds) -> None:
    """Only its own, and only where it held it."""
    lease = OneLease({})
    first, second = lead(lease, clock, "a"), lead(lease, clock, "b")
    second.give_up()
    first.attempt()
    second.attempt()
    first.give_up()
    assert not first.holds()
    assert second.attempt()
    lease.trouble = True
    second.give_up()
    assert second.message == "no answer"


def test_a_round_that_does_not_end_does_not_keep_the_lead(clock: Seconds) -> None:
    """It is given up, not left to run out: the next one has it at once."""
    lease, why = OneLease({}), [""]
    first, second = lead(lease, clock, "a"), lead(lease, clock, "b")
    assert first.attempt()
    with Renewal(first, stuck=lambda: why[0], retry_s=0.01):
        time.sleep(0.1)
        assert first.holds()
        assert not second.attempt()
        why[0] = "a sync has not finished for over 600 s"
        until_s = time.monotonic() + limit_s(5.0)
        while first.holds() and time.monotonic() < until_s:
            time.sleep(0.01)
        assert not first.holds()
        while (lease.spec or {}).get("holderIdentity") and time.monotonic() < until_s:
            time.sleep(0.01)
        assert second.attempt()
    assert second.holds()


def test_a_lead_that_another_had_meanwhile_is_not_renewed(clock: Seconds) -> None:
    """The running sync knows nothing of what the other wrote, and would write over it: this controller begins again."""
    lease = OneLease({})
    first, second = lead(lease, clock, "a"), lead(lease, clock, "b")
    assert first.attempt()
    assert first.renew()
    second.attempt()
    clock.now += RENEW_S
    assert first.renew(), "late, and no other has led"
    second.attempt()
    clock.now += DURATION_S
    assert second.attempt()
    assert not first.renew()
    second.give_up()
    assert (first.renew(), first.holds(), first.message) == (False, False, "another controller has led meanwhile")
    assert first.attempt(), "the next lead begins with a reading of everything"


def test_what_makes_no_sense_is_nobodys() -> None:
    """An empty spec, or one that another client wrote by half."""
    assert record_of({}) == Record()
    assert record_of({"spec": {"holderIdentity": None, "leaseDurationSeconds": None}}) == Record()
    assert may_take(Record(holder="b", duration_s=15), "a", 15.0)
    assert not may_take(Record(holder="b", duration_s=15), "a", 14.9)
