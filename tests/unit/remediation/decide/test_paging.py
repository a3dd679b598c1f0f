"""What the engine wants an operator for: plain calls, and that no page outlives its cause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Decision, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.paging import (
    HEALTHY_FOR_S,
    OUT_BY_COMMAND_S,
    STUCK_AFTER_S,
    Limits,
    RemediationStatus,
    due,
    out_since,
    wanted,
)
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.decide.rules import QUARANTINE, REBOOT, REPLACE, kept_out
from healthd.remediation.ports import Hold
from tests.support.judgement import a_remediation

T0 = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits()
STAMP = int(T0.timestamp())
HOLD = Hold(text="t", user="healthd", stamp=1)
REPAIR = Decision(action=Action.REPAIR, reason="repair for gpu.xid.79")
REMEDIATION = replace(
    a_remediation(steps=REBOOT, index=1, hold=HOLD, note="drained"), opened=T0, since=T0, remedy=Remedy.REBOOT_NODE
)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def stands(
    remediation: Remediation, seconds: float = 0, *, decided: Decision = REPAIR, problem: str = "", page: bool = False
) -> str:
    """What is wanted so many seconds after the remediation was opened, as ``action refusal``."""
    refusal = Refusal.BUDGET if page else None
    turn = RemediationStatus(remediation=remediation, page=page, refusal=refusal)
    decision = wanted(decided, turn, problem, at(seconds), LIMITS)
    return f"{decision.action} {decision.refusal or ''}".strip()


def test_what_was_decided_stands_while_its_case_goes_on() -> None:
    """Nobody is asked for; without a remediation what was decided stands as it is."""
    assert stands(REMEDIATION) == "repair"
    assert wanted(REPAIR, None, "", T0, LIMITS) is REPAIR


def test_a_page_ends_with_its_cause() -> None:
    """A turn that pages does so while it does; a page from before the remediation is none of the remediation."""
    full = Decision(action=Action.PAGE, reason="at the limit", refusal=Refusal.BUDGET)
    assert stands(REMEDIATION, page=True) == "page budget"
    assert stands(REMEDIATION, decided=full) == "repair"
    assert stands(replace(REMEDIATION, steps=QUARANTINE), decided=full) == "quarantine"


def test_a_case_that_was_given_up_pages_for_as_long_as_it_is_open() -> None:
    """Also when it kept its slot, and whatever was wanted before."""
    decision = wanted(
        REPAIR, RemediationStatus(remediation=replace(REMEDIATION, end=End.FAILED, note="given up")), "", T0, LIMITS
    )
    assert (decision.action, decision.reason) == (Action.PAGE, "given up")


def test_a_case_that_was_opened_to_wait_for_an_operator_asks_for_as_long_as_it_does() -> None:
    """After a restart too, when nothing has been decided; not once an operator has given an order."""
    asks = Refused(kind=Refusal.PERSON, reason="only an operator can repair it")
    remediation, decided = (
        replace(REMEDIATION, asks=asks),
        Decision(action=Action.PAGE, reason=asks.reason, refusal=asks.kind),
    )
    assert stands(remediation) == "page person"
    assert wanted(decided, RemediationStatus(remediation=remediation), "", T0, LIMITS) is decided
    assert stands(replace(remediation, release_command="uid 0")) == "repair"


def test_how_a_case_ended_is_said_as_it_is() -> None:
    """Lost to another owner and acknowledged are states of their own; released is neither."""
    assert stands(replace(REMEDIATION, end=End.LOST)) == "hold foreign_hold"
    assert stands(replace(REMEDIATION, end=End.ACKNOWLEDGED)) == "hold acknowledged"
    assert stands(replace(REMEDIATION, end=End.RELEASED)) == "hold"


def test_turns_that_fail_page_unless_somebody_is_asked_for_already() -> None:
    """With a remediation and without one."""
    assert wanted(REPAIR, None, "no answer", T0, LIMITS).refusal is Refusal.STUCK
    assert stands(REMEDIATION, problem="no answer") == "page stuck"
    assert stands(REMEDIATION, page=True, problem="no answer") == "page budget"


ORDERED = kept_out(QUARANTINE)
IDLE, PARTS, VERIFY = Step.WAIT_IDLE, REBOOT.index(Step.WAIT_IDLE), REPLACE.index(Step.VERIFY)

AWAITED = replace(
    REMEDIATION,
    steps=REPLACE,
    index=REPLACE.index(Step.REPLACE),
    phase=Phase.INTENDED,
    since=at(9_000),
    attempts=1,
)


@pytest.mark.parametrize(
    ("remediation", "seconds"),
    [
        (REMEDIATION, LIMITS.overdue_s),
        (replace(REMEDIATION, hold=None, index=0), LIMITS.overdue_s),
        (replace(REMEDIATION, index=PARTS, since=at(100)), 100 + LIMITS.wait_idle_timeout_s),
        (replace(REMEDIATION, index=PARTS, since=at(14_000)), LIMITS.overdue_s),
        (replace(REMEDIATION, index=PARTS, remedy=Remedy.RESET_GPU), LIMITS.overdue_s),
        (AWAITED, 9_000 + LIMITS.replace_timeout_s),
        (replace(AWAITED, attempts=2, since=at(14_500)), LIMITS.overdue_s),
        (replace(REMEDIATION, steps=REPLACE, index=REPLACE.index(Step.REPLACE)), LIMITS.overdue_s),
        (replace(REMEDIATION, steps=REPLACE, index=VERIFY, since=at(9_000)), LIMITS.overdue_s),
        (replace(REMEDIATION, steps=REPLACE, index=VERIFY, since=at(20_000)), 20_000 + STUCK_AFTER_S),
        (replace(REMEDIATION, steps=ORDERED, index=ORDERED.index(Step.STAY), since=at(9_000)), OUT_BY_COMMAND_S),
        (replace(REMEDIATION, steps=ORDERED, index=0, since=at(9_000)), 9_000 + LIMITS.overdue_s),
        (replace(REMEDIATION, steps=ORDERED, index=0, since=at(80_000)), OUT_BY_COMMAND_S),
        (replace(REMEDIATION, end=End.RELEASED, fenced=True), LIMITS.overdue_s),
    ],
    ids=[
        "out",
        "not out yet",
        "job",
        "job, late",
        "job that goes on",
        "replaced",
        "replaced again",
        "not replaced",
        "another machine",
        "another machine, late",
        "command",
        "order, made again",
        "order, made again late",
        "slot left",
    ],
)
def test_what_lasts_longer_than_its_bound_pages(remediation: Remediation, seconds: float) -> None:
    """Out, or not moved; with what it waits for and what the operator can do. Not a second sooner."""
    assert (due(remediation, LIMITS), stands(remediation, seconds)) == (at(seconds), "page overdue")
    assert not stands(remediation, seconds - 1).startswith("page")


def test_a_fault_that_comes_and_goes_is_one_page() -> None:
    """What is overdue is so until it has been well for an hour, or is back; what is not overdue settles in peace."""
    overdue = Decision(action=Action.PAGE, reason="out of service", refusal=Refusal.OVERDUE)
    settles = replace(REMEDIATION, good_since=at(LIMITS.overdue_s))

    def after(seconds: float, was: Decision, remediation: Remediation = settles) -> Refusal | None:
        return wanted(
            REPAIR, RemediationStatus(remediation=remediation), "", at(LIMITS.overdue_s + seconds), LIMITS, was=was
        ).refusal

    assert after(HEALTHY_FOR_S - 1, overdue) is Refusal.OVERDUE
    assert (after(HEALTHY_FOR_S, overdue), after(1, REPAIR)) == (None, None)
    assert after(1, overdue, replace(settles, end=End.RELEASED, fenced=False)) is None
    assert wanted(REPAIR, None, "", T0, LIMITS, was=overdue) is REPAIR


def test_a_drain_that_was_found_counts_from_when_it_was_made() -> None:
    """A lost disk gives no node four hours more of silence; what was found has ten minutes to verify. A text of the
    cluster's own, or a drain of its own that was adopted, says nothing of when healthd began."""
    found = replace(
        REMEDIATION, opened=at(10_000), since=at(10_000), hold=replace(HOLD, text=REMEDIATION.text, stamp=STAMP)
    )
    assert due(found, LIMITS) == at(LIMITS.overdue_s)
    assert due(replace(found, opened=at(80_000)), LIMITS) == at(80_000 + STUCK_AFTER_S)
    words = wanted(REPAIR, RemediationStatus(remediation=found), "", at(LIMITS.overdue_s), LIMITS).reason
    assert words.startswith("out of service since 2026-01-01 00:00 UTC")
    ordered = replace(found, steps=ORDERED, index=ORDERED.index(Step.STAY))
    assert due(ordered, LIMITS) == at(OUT_BY_COMMAND_S)
    assert out_since(replace(found, opened=at(-9))) == at(-9)
    for other in (
        replace(found, hold=HOLD),
        replace(found, adopted=True),
        replace(found, hold=replace(HOLD, text=REMEDIATION.text, stamp=0)),
        replace(found, hold=None),
    ):
        assert out_since(other) == at(10_000)


def test_an_overdue_case_says_what_it_waits_for() -> None:
    """Since when, for what, and what keeps it now: the error where no turn succeeds, else its own note."""
    late = at(LIMITS.overdue_s)
    waiting = RemediationStatus(remediation=replace(REMEDIATION, index=PARTS, note="waiting for 12 to end"))
    words = wanted(REPAIR, waiting, "", late, LIMITS).reason
    assert words.startswith(
        f"out of service since 2026-01-01 00:00 UTC for {REMEDIATION.code} on {REMEDIATION.component}"
        f" [{REMEDIATION.id}]"
    )
    assert words.endswith(
        ": waiting for 12 to end. The repair waits for these jobs: cancel them, or have their owner do so"
    )
    again = replace(waiting.remediation, attempts=1, note="attempt 1 failed, trying again: no other machine came")
    words = wanted(REPAIR, RemediationStatus(remediation=again), "", late, LIMITS).reason
    assert words.endswith(
        ": no other machine came. `healthd status` says what it waits for; `healthd release` puts the node back"
    )
    assert ": no answer. " in wanted(REPAIR, waiting, "no answer", late, LIMITS).reason
    held_up = RemediationStatus(remediation=replace(REMEDIATION, hold=None, index=0))
    assert wanted(REPAIR, held_up, "", late, LIMITS).reason.startswith("not moved since")
