"""What a daemon without a memory goes on with, by what it finds with the cluster: plain calls."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode, Remedy, Step
from healthd.remediation.decide.adoption import found_remediation, has_booted, orphaned
from healthd.remediation.decide.remediation import QUARANTINE_CODE, REPAIR_CODE, End, Remediation
from healthd.remediation.ports import Hold, NodeView, Slot
from healthd.remediation.records.handoff import HandoffRecord
from tests.support.judgement import START

STAMP = int(START.timestamp()) - 600
OURS = Hold(text="healthd: gpu.xid.79 gpu:0 [c7]", user="healthd", stamp=STAMP)
PERSONS = Hold(text="ticket 7", user="ops", stamp=STAMP)
PLATFORMS = Hold(text="Auto Replacement", user="slurm", stamp=STAMP)
SLURMS = Hold(text="Kill task failed", user="root", stamp=STAMP, automatic=True)
TAKEN = HandoffRecord(code="gpu.xid.79", remediation_id="c7")
REBOOTED = replace(TAKEN, machine="i-1", remedy=Remedy.REBOOT_NODE)
GIVEN = replace(TAKEN, machine="i-1", remedy=Remedy.REPLACE_NODE)


def shown(hold: Hold | None, *flags: str) -> NodeView:
    return NodeView(name="n1", in_service=hold is None, flags=frozenset(flags or {"DRAIN"}), hold=hold)


def found(view: NodeView, record: HandoffRecord | None, *, own: bool = True) -> Remediation | None:
    return found_remediation(
        view,
        [Slot(scope="cluster", index=0, node="n1")] if own else [],
        record.text if record else "",
        platform_texts={PLATFORMS.text},
        mode=Mode.REPAIR,
        boot_id="boot-2",
        now=START,
    )


@pytest.mark.parametrize("hold", [None, OURS, PERSONS])
def test_without_a_place_of_ours_nothing_is_taken_up(hold: Hold | None) -> None:
    """Anybody can write a text, and a record lies with the name for ever."""
    assert found(shown(hold), GIVEN, own=False) is None


@pytest.mark.parametrize(
    ("hold", "record", "expected"),
    [
        # Our drain: the remediation it names, which verifies; what code and order it has, the record says where it
        # knows more.
        (OURS, None, ("c7", "gpu.xid.79", Step.VERIFY, None)),
        (OURS, TAKEN, ("c7", "gpu.xid.79", Step.VERIFY, None)),
        (OURS, replace(TAKEN, code="gpu.xid.95"), ("c7", "gpu.xid.95", Step.VERIFY, None)),
        (OURS, replace(TAKEN, code="gpu.xid.95", remediation_id="c1"), ("c7", "gpu.xid.79", Step.VERIFY, None)),
        (OURS, GIVEN, ("c7", "gpu.xid.79", Step.VERIFY, None)),
        (replace(OURS, text=f"healthd: {QUARANTINE_CODE} node [c7]"), None, ("c7", QUARANTINE_CODE, Step.STAY, None)),
        (replace(OURS, text=f"healthd: {REPAIR_CODE} node [c7]"), None, ("c7", REPAIR_CODE, Step.VERIFY, None)),
        # Slurm's own drain in the place of ours: the record names the remediation.
        (SLURMS, TAKEN, ("c7", "gpu.xid.79", Step.VERIFY, None)),
        (SLURMS, HandoffRecord(code="gpu.xid.79"), ("without-an-id", "gpu.xid.79", Step.VERIFY, None)),
        # No drain of ours: another machine than the one of the record proves itself, or an order's place is left.
        (None, GIVEN, ("c7", "gpu.xid.79", Step.VERIFY, None)),
        (PLATFORMS, GIVEN, ("c7", "gpu.xid.79", Step.VERIFY, None)),
        (None, REBOOTED, ("c7", "", Step.VERIFY, None)),
        (PLATFORMS, REBOOTED, ("c7", "", Step.VERIFY, None)),
        (None, replace(REBOOTED, machine=""), ("c7", "", Step.VERIFY, None)),
        (None, HandoffRecord(code=QUARANTINE_CODE), ("without-an-id", QUARANTINE_CODE, Step.STAY, None)),
        # Nothing of ours but the place, or somebody else's drain: the place alone is given back.
        (None, None, ("without-an-id", "", Step.SLOT, End.ABANDONED)),
        (None, TAKEN, ("without-an-id", "", Step.SLOT, End.ABANDONED)),
        (PERSONS, GIVEN, ("without-an-id", "", Step.SLOT, End.ABANDONED)),
        (PERSONS, REBOOTED, ("without-an-id", "", Step.SLOT, End.ABANDONED)),
        (SLURMS, None, ("without-an-id", "", Step.SLOT, End.ABANDONED)),
    ],
)
def test_what_is_found_says_where_the_case_goes_on(
    hold: Hold | None, record: HandoffRecord | None, expected: tuple[str, str, Step, End | None]
) -> None:
    """It never begins with an act: it verifies, stays out, or gives its place back."""
    remediation = found(shown(hold), record)
    assert remediation is not None
    assert (remediation.id, remediation.code, remediation.step, remediation.end) == expected
    assert remediation.fenced, "it holds the place that was found"


def test_a_command_whose_slot_alone_is_left_counts_from_when_it_was_given() -> None:
    """A lost disk gives its operator no second day without a reminder; a time ahead, of a clock that was set, none."""
    for since, opened in (
        (START - timedelta(hours=5), START - timedelta(hours=5)),
        (START + timedelta(hours=9), START),
        (None, START),
    ):
        remediation = found(shown(None), HandoffRecord(code=QUARANTINE_CODE, since=since))
        assert remediation is not None
        assert (remediation.opened, remediation.since) == (opened, START)


def test_only_a_case_that_asked_for_another_machine_counts_it_as_tried() -> None:
    """A remediation that follows a replaced machine has used one attempt."""
    after, plain = found(shown(OURS), GIVEN), found(shown(OURS), TAKEN)
    assert after is not None
    assert plain is not None
    assert [(each.attempts, each.machine) for each in (after, plain)] == [(1, "i-1"), (0, "")]


@pytest.mark.parametrize(("record", "expected"), [(TAKEN, "boot-2"), (REBOOTED, ""), (None, "boot-2")])
def test_a_node_that_was_to_be_rebooted_may_be_down_for_that(record: HandoffRecord | None, expected: str) -> None:
    """The boot of the drain is this one, unless the remediation had asked for a reboot."""
    remediation = found(shown(OURS), record)
    assert remediation is not None
    assert remediation.drain_boot_id == expected


@pytest.mark.parametrize(("record", "adopted"), [(HandoffRecord(code="gpu.xid.79"), True), (TAKEN, False)])
def test_a_drain_of_slurms_own_is_adopted_unless_a_case_had_taken_the_node_out(
    record: HandoffRecord, adopted: bool
) -> None:
    """Only a repair undoes what Slurm made by itself. What it wrote over a drain of ours is of this boot."""
    remediation = found(shown(SLURMS), record)
    assert remediation is not None
    assert (remediation.adopted, remediation.overwritten_boot_id) == (adopted, "boot-2")


def test_an_order_stays_an_order() -> None:
    """No mode is too low for it."""
    remediation = found(shown(replace(OURS, text=f"healthd: {REPAIR_CODE} node [c7]")), None)
    assert remediation is not None
    assert (remediation.by_command, remediation.component) == (True, "node")


def test_an_operator_undoes_a_drain_of_ours_that_no_case_is_open_for() -> None:
    """As it was found, after it was verified; under a new name where the remediation that it names has ended."""
    remediation = orphaned(shown(OURS), "", mode=Mode.REPAIR, boot_id="boot-2", now=START)
    assert remediation is not None
    assert (remediation.id, remediation.code, remediation.component, remediation.step) == (
        "c7",
        "gpu.xid.79",
        "gpu:0",
        Step.VERIFY,
    )
    assert (remediation.hold, remediation.text, remediation.drain_boot_id) == (OURS, OURS.text, "boot-2")
    named = orphaned(shown(OURS), "c9", mode=Mode.REPAIR, boot_id="boot-2", now=START)
    assert named is not None
    assert named.id == "c9"


@pytest.mark.parametrize("hold", [None, PERSONS, SLURMS])
def test_only_a_drain_of_ours_is_undone_so(hold: Hold | None) -> None:
    """Text decides: anybody else's is left."""
    assert orphaned(shown(hold), "", mode=Mode.REPAIR, boot_id="boot-2", now=START) is None


def test_a_boot_after_the_drain_is_told_by_the_drains_stamp() -> None:
    """Without either nothing is known."""
    remediation = found(shown(OURS), TAKEN)
    assert remediation is not None
    drained = START - timedelta(seconds=600)
    assert not has_booted(remediation, drained)
    assert has_booted(remediation, drained + timedelta(seconds=1))
    assert not has_booted(remediation, None)
    assert not has_booted(replace(remediation, hold=None), drained + timedelta(seconds=1))
