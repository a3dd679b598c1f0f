"""What a freeze says, and what it forbids: plain calls."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from healthd.core.model import Mode, Refusal, Step
from healthd.remediation.decide.freeze import Freeze, frozen, in_words
from healthd.remediation.decide.policy import Question, Rules, question
from healthd.remediation.orchestrators.slurm.slots import freeze_creation, freeze_name, parse_freezes, parse_slots
from healthd.remediation.records.handoff import epoch_time
from tests.support.judgement import UNCONTAINED, at

UNTIL = datetime(2026, 1, 1, 4, tzinfo=UTC)
FREEZE = Freeze(reason="driver rollout", until=UNTIL, by="alice")
LISTED = (
    "ReservationName=healthd-freeze:driver_rollout:alice StartTime=1767225600 EndTime=1767240000 Duration=240 "
    "Nodes=(null) NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) Users=root "
    "Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=1 Watts=n/a MaxStartDelay=(null)\n"
)


def test_its_words_have_end_reason_and_user() -> None:
    """As far as they are known."""
    assert FREEZE.text == "freeze until 2026-01-01 04:00 UTC: driver rollout (alice)"
    assert Freeze(reason="").text == "freeze: no reason given"
    assert in_words((FREEZE, Freeze(reason="x"))) == f"{FREEZE.text}; freeze: x"
    assert in_words(()) == ""


def test_it_forbids_each_act_that_it_does_not_allow() -> None:
    """The drain is allowed where nothing else is said."""
    assert frozen((FREEZE,), Step.DRAIN) is None
    for step in (Step.RESET, Step.REBOOT, Step.REPLACE):
        why = frozen((FREEZE,), step)
        assert why is not None
        assert (why.kind, why.reason) == (Refusal.FROZEN, FREEZE.text)
    assert frozen((), Step.REBOOT) is None


def test_a_decision_is_held_where_the_drain_is_forbidden() -> None:
    """Not about a node that is out already, nor by an operator's command."""
    rules = Rules(mode=Mode.REPAIR, freezes=(replace(FREEZE, allow=frozenset()),))
    held = question((UNCONTAINED,), (), rules, at(10))
    assert not isinstance(held, Question)
    assert held.refusal is Refusal.FROZEN
    assert isinstance(question((UNCONTAINED,), (), rules, at(10), is_held=True), Question)
    assert isinstance(question((UNCONTAINED,), (), rules, at(10), by_command=True), Question)
    assert isinstance(question((UNCONTAINED,), (), replace(rules, freezes=(FREEZE,)), at(10)), Question)


def test_slurm_lists_it_as_a_reservation_without_nodes() -> None:
    """Its end is the reservation's, its reason and user are in the name; it is no slot."""
    assert parse_freezes(LISTED) == {
        "healthd-freeze:driver_rollout:alice": replace(FREEZE, until=epoch_time("1767240000"))
    }
    assert epoch_time("1767240000") == UNTIL
    assert parse_slots(LISTED) == ()
    assert parse_freezes(LISTED.replace("State=ACTIVE", "State=INACTIVE")) == {}
    assert parse_freezes("No reservations in the system\n") == {}
    assert parse_freezes(LISTED.replace("healthd-freeze:", "freeze:")) == {}


def test_a_time_that_cannot_be_read_is_no_end() -> None:
    """It is on for as long as it is listed."""
    (found,) = parse_freezes(LISTED.replace("EndTime=1767240000", "EndTime=2026-01-01T04:00:00")).values()
    assert found.until is None


def test_the_name_has_no_character_that_ends_an_argument() -> None:
    """Whatever the operator writes."""
    name = freeze_name('a, b=c "d" | e\n', "domain\\user")
    assert name == "healthd-freeze:a_b_c_d_e_:domain_user"
    assert f"reservationname={name}" in freeze_creation(name, 120)
    assert "duration=120" in freeze_creation(name, 120)
