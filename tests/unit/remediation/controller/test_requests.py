"""What the controller makes of a record: only what our place, our drain and our record all stand for is done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.model import Refusal, Remedy
from healthd.remediation.controller.requests import (
    WantedAct,
    is_away,
    is_moot,
    is_silent,
    needs_person,
    refusal,
    wanted,
    withdrawn,
)
from healthd.remediation.ports import Hold, NodeView
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, withdrawing

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
REBOOT, REPLACE = Remedy.REBOOT_NODE, Remedy.REPLACE_NODE
RECORD = HandoffRecord(
    remediation_id="k3", machine="i-1", remedy=REPLACE, asks=True, attempt=1, asked=NOW - timedelta(seconds=5)
)
LATE = replace(RECORD, remedy=REBOOT, asked=NOW - timedelta(seconds=601), following=(REPLACE,))


def want(record: HandoffRecord) -> WantedAct | None:
    return wanted("n1", record, NOW, reboot_timeout_s=600)


def view(text: str = "healthd: gpu.xid.79 gpu:0 [k3]", *flags: str) -> NodeView:
    hold = Hold(text=text, user="root", stamp=1) if text else None
    return NodeView(name="n1", in_service=False, flags=frozenset(flags or ("DRAIN",)), hold=hold)


def test_a_request_is_wanted_once_by_its_attempt_and_its_time() -> None:
    """The id has everything that makes it another request: node, remediation, remedy, attempt, and when it was made."""
    epoch = int(NOW.timestamp()) - 5
    records = (RECORD, replace(RECORD, attempt=2), replace(RECORD, asked=NOW))
    ids = [found.id for record in records if (found := want(record)) is not None and not found.unanswered]
    assert ids == [
        f"n1/k3/replace_node-1@{epoch}",
        f"n1/k3/replace_node-2@{epoch}",
        f"n1/k3/replace_node-1@{epoch + 5}",
    ]


@pytest.mark.parametrize("answer", RequestAnswer)
def test_an_answer_does_not_make_it_another_request(answer: RequestAnswer) -> None:
    """What the controller itself writes into the record never changes under which id the request is known."""
    found, answered = (
        want(RECORD),
        want(replace(RECORD, answer=answer, answered=NOW, message="x", replaced=NOW, boot="b")),
    )
    assert found is not None
    assert answered is None if answer.is_final else (answered is not None and answered.id == found.id)


def test_what_is_taken_for_a_silent_node_keeps_its_id() -> None:
    """The controller's own replacement has the time of the reboot, before its record says so and after."""
    before = want(replace(LATE, asks=False))
    after = want(replace(LATE, remedy=REPLACE, attempt=0, answer=RequestAnswer.TAKEN, answered=NOW))
    assert before is not None
    assert after is not None
    assert before.id == after.id


@pytest.mark.parametrize(
    "change",
    [
        {"asks": False},
        {"remedy": None, "asks": False},
        {"asked": None},
        {"remediation_id": ""},
        {"answer": RequestAnswer.REFUSED, "answered": NOW},
        {"answer": RequestAnswer.DENIED, "answered": NOW},
        {"asks": False, "remedy": REBOOT},
    ],
)
def test_what_asks_nothing_gets_nothing(change: dict[str, Any]) -> None:
    """What a node does itself, what was refused, and what is no whole request."""
    assert want(replace(RECORD, **change)) is None


@pytest.mark.parametrize("change", [{"asks": False}, {"answer": RequestAnswer.TAKEN, "answered": NOW}])
def test_a_reboot_that_is_overdue_is_looked_after(change: dict[str, Any]) -> None:
    """Whoever carried it out: what is next is another machine, and nobody asked for it."""
    found = want(replace(LATE, **change))
    assert found is not None
    assert (found.remedy, found.attempt, found.unanswered) == (REPLACE, 0, True)


def test_a_reboot_that_nobody_made_is_no_reason_to_replace() -> None:
    """An old request that was never taken is judged as a request, and is too old by then."""
    found = want(LATE)
    assert found is not None
    assert (found.remedy, found.unanswered) == (REBOOT, False)
    assert "too long ago" in why(found, LATE)


def why(
    found: WantedAct | None, record: HandoffRecord = RECORD, seen: NodeView | None = None, *, has_slot: bool = True
) -> str:
    assert found is not None
    refused = refusal(
        found,
        record,
        seen or view(),
        has_slot=has_slot,
        platform_texts=frozenset({"Action:Reboot"}),
        now=NOW,
        timeout_s=600,
    )
    return f"{refused.kind}: {refused.reason}" if refused is not None else ""


def test_a_request_that_all_stands_for_is_not_refused() -> None:
    """Place, drain with this remediation's id, machine, and not long ago."""
    assert why(want(RECORD)) == ""


@pytest.mark.parametrize(
    ("record", "seen", "has_slot", "words"),
    [
        (RECORD, view(), False, f"{Refusal.NOT_PERMITTED}: no budget slot is held"),
        (RECORD, view(""), True, f"{Refusal.FOREIGN_HOLD}: it is not drained"),
        (RECORD, view("admin: psu"), True, f"{Refusal.FOREIGN_HOLD}: it is held by root with 'admin: psu'"),
        (RECORD, view("healthd: gpu.xid.79 gpu:0 [k4]"), True, "held by root"),
        (RECORD, view("Action:Reboot"), True, "held by root with 'Action:Reboot'"),
        (replace(RECORD, machine=""), view(), True, f"{Refusal.UNREADABLE}: its handoff record does not name"),
        (replace(RECORD, asked=NOW - timedelta(seconds=601)), view(), True, f"{Refusal.LATE}: it was asked for at"),
    ],
)
def test_what_one_of_them_does_not_stand_for_is_refused(
    record: HandoffRecord, seen: NodeView, has_slot: bool, words: str
) -> None:
    """Anybody who may write a comment can forge a record: it is never enough."""
    assert words in why(want(record), record, seen, has_slot=has_slot)


def test_a_silent_node_may_have_its_platforms_text() -> None:
    """Where the reboot itself took our drain's place, that is what stands; it is old by then, and must be."""
    record = replace(LATE, asks=False)
    assert why(want(record), record, view("Action:Reboot", "DOWN", "NOT_RESPONDING")) == ""


@pytest.mark.parametrize(("flags", "words"), [(("IDLE", "DRAIN"), ""), (("DOWN",), "held by root")])
def test_what_the_cluster_wrote_over_our_drain_by_itself_keeps_its_request(flags: tuple[str, ...], words: str) -> None:
    """The place and the record stand, and no person ordered that text; a node that is DOWN alone has no drain at
    all."""
    seen = view("Kill task failed", *flags)
    assert seen.hold is not None
    assert words in why(want(RECORD), RECORD, replace(seen, hold=replace(seen.hold, automatic=True)))
    assert "held by root" in why(want(RECORD), RECORD, seen)


def test_silent_is_what_slurmctld_has_given_up() -> None:
    """DOWN alone may answer, and not responding alone is every undrain."""
    assert is_silent(view("x", "DOWN", "NOT_RESPONDING", "DRAIN"))
    assert not is_silent(view("x", "DOWN"))
    assert not is_silent(view("x", "DRAIN", "NOT_RESPONDING"))


@pytest.mark.parametrize(
    ("flag", "away"), [("DOWN", True), ("NOT_RESPONDING", True), ("NOTREADY", True), ("DRAIN", False)]
)
def test_a_node_that_does_not_answer_may_be_in_its_reboot(flag: str, away: bool) -> None:
    """By Slurm's words, and by those for a Node."""
    assert is_away(view("x", "DRAIN", flag)) is away


def test_a_replacement_for_silence_is_never_too_late() -> None:
    """Nobody waits for it: its time is that of the reboot. A node's own request has its attempt."""
    record = replace(LATE, remedy=REPLACE, attempt=0, answer=RequestAnswer.TAKEN, answered=NOW)
    found = want(record)
    assert found is not None
    assert (found.after_silence, found.unanswered, why(found, record)) == (True, False, "")
    asked = want(RECORD)
    assert asked is not None
    assert not asked.after_silence


def test_when_a_silent_node_needs_a_person() -> None:
    """Where its ladder has no replacement next, and where it was back in between."""
    assert needs_person(LATE, None) == needs_person(LATE, NOW - timedelta(hours=1)) == ""
    assert "not what its policy has next" in needs_person(replace(LATE, following=()), None)
    assert "fell silent again" in needs_person(LATE, NOW)
    assert needs_person(replace(LATE, asked=None), NOW) == ""


@pytest.mark.parametrize(
    ("remedy", "after_s", "moot"),
    [(REBOOT, None, False), (REBOOT, -60, False), (REBOOT, 30, False), (REBOOT, 61, True), (REPLACE, 61, False)],
)
def test_a_reboot_is_moot_once_the_node_has_booted(remedy: Remedy, after_s: float | None, moot: bool) -> None:
    """By more than two clocks differ. Whether another machine is needed, a boot does not tell."""
    found = want(replace(RECORD, remedy=remedy, asked=NOW))
    assert found is not None
    assert is_moot(found, None if after_s is None else NOW + timedelta(seconds=after_s)) is moot


def test_what_is_withdrawn_is_not_wanted_and_is_the_same_request() -> None:
    """Nothing is begun for it; what was begun before is found by its id."""
    left = withdrawing(RECORD)
    assert want(left) is None
    assert withdrawn("n1", left) == want(RECORD)
    for other in (
        RECORD,
        replace(left, asked=None),
        replace(left, remediation_id=""),
        replace(RECORD, withdrawn=REPLACE),
    ):
        assert withdrawn("n1", other) is None
