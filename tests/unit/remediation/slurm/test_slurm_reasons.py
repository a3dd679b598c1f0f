"""What Slurm writes into a reason by itself, told from what people and programs wrote."""

from __future__ import annotations

import pytest

from healthd.remediation.orchestrators.slurm.orchestrator import parse_snapshot
from healthd.remediation.orchestrators.slurm.reasons import (
    AUTOMATIC,
    REBOOTS,
    as_written,
    hold_of,
    is_automatic,
    without_remarks,
)
from healthd.remediation.ports import HeldNode, Hold, NodeView
from healthd.remediation.provisioners.slurm_node import read_node

OURS = "healthd: gpu.xid.79 gpu:0000:05:00 [7793f05b]"
EXAMPLES = {
    "%s count reported lower than configured (%lu < %lu)": "gres/gpu count reported lower than configured (7 < 8)",
    "Low RealMemory": "Low RealMemory (reported:515000 < 100.00% of configured:2063000)",
}
TEXTS = [EXAMPLES.get(row.printed, row.printed) for row in AUTOMATIC]
TEXTS += [", ".join(TEXTS[-4:]), "Kill task failed (JobId=7 StepId=batch)"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_slurms_own_is_nobodys_order(text: str) -> None:
    """Alone it is automatic, whoever signed it; behind our text it is a remark on our drain."""
    assert hold_of(text, "root", 5) == Hold(text=text, user="root", stamp=5, automatic=True)
    assert hold_of(f"{OURS} : {text}", "slurm", 5) == Hold(text=OURS, user="slurm", stamp=5, remark=f" : {text}")
    assert hold_of(f"{text} : Not responding", "root", 5).automatic


@pytest.mark.parametrize(
    "text",
    [
        "admin: psu",
        "Kill task failed, see ticket 4711",
        "Kill task failed (JobId=7 StepId=batch) again",
        "kill task failed",
        "gres/gpu count reported lower",
        "Not responding since Monday",
        f"{OURS} : please leave",
        f"{OURS} (Anna: looking at it)",
        f"{OURS}: Not responding",
        f"Anna: {OURS}",
        f"{OURS} : Not responding, Anna",
        "none",
        " : Not responding",
    ],
)
def test_any_other_text_is_as_it_was_written(text: str) -> None:
    """A person who keeps our id in a text of their own has written a text of their own."""
    assert hold_of(text, "root", 5) == Hold(text=text, user="root", stamp=5)
    assert text != OURS


def test_a_persons_text_stays_a_persons_behind_a_remark() -> None:
    """What Slurm appended to it is taken off, and what is left is in no row."""
    assert hold_of("admin: psu : Not responding : Not responding", "root", 5) == Hold(
        text="admin: psu", user="root", stamp=5, remark=" : Not responding : Not responding"
    )


@pytest.mark.parametrize("word", REBOOTS)
def test_a_reboot_that_somebody_asked_for_leaves_our_drain_ours(word: str) -> None:
    """But for one with nextstate=DOWN: the node is out for that operator. For the reader of a provisioner's text every
    one is taken off."""
    reason = f"{OURS} : Not responding : {word}"
    text = reason if word == "reboot complete" else OURS
    assert without_remarks(reason) == (text, reason.removeprefix(text))
    assert as_written(f"{reason} : Not responding") == OURS
    assert as_written("Action:Reboot") == "Action:Reboot"
    assert not is_automatic(word)


def test_a_provisioners_text_is_read_without_what_slurm_appended() -> None:
    """HyperPod acts on its words to the letter, and Slurm appends to them while the node is away."""
    record = (
        "NodeName=n1 Arch=x State=DOWN+DRAIN BootTime=5 Reason=Action:Reboot : reboot issued : Not responding [a@5]"
    )
    assert read_node(lambda *_: record, "n1").reason == "Action:Reboot"


def test_a_reason_that_stayed_behind_is_no_reason() -> None:
    """24.11 shows the last reason of a node that is back in service: neither a provisioner's word nor a node held."""
    record = "NodeName=n1 Arch=x State={} BootTime=5 MCS_label=N/A Partitions=main  Reason={} [root@5]"
    for state in ("IDLE", "MIXED+MAINTENANCE+RESERVED", "IDLE+NOT_RESPONDING"):
        stale = record.format(state, "Action:Replace")
        assert read_node(lambda *_, text=stale: text, "n1").reason == ""
        assert parse_snapshot("n1", record.format(state, OURS)).held == ()
    assert parse_snapshot("n1", record.format("IDLE+DRAIN", OURS)).held == (HeldNode(node="n1", text=OURS, stamp=5),)


def test_a_hold_is_still_ours_by_text_user_and_stamp() -> None:
    """Without a remark all three decide; beside or behind one the text, for user and stamp are Slurm's own there."""
    ours = Hold(text=OURS, user="root", stamp=5)
    remarked = hold_of(f"{OURS} : Not responding", "slurm", 9)
    assert ours.is_still(ours)
    assert remarked.is_still(ours)
    assert Hold(text=OURS, user="slurm", stamp=9).is_still(remarked), "the remark has gone, and left its stamp"
    assert ours.is_still(remarked), "a killed slurmctld has forgotten the remark"
    assert not Hold(text=OURS, user="root", stamp=9).is_still(ours), "drained again by somebody with our text"
    assert not Hold(text=OURS, user="anna", stamp=5).is_still(ours)
    assert not hold_of("admin: psu : Not responding", "root", 5).is_still(ours)
    assert remarked.shown == f"{OURS} : Not responding"


@pytest.mark.parametrize(
    ("text", "flags", "is_so"),
    [
        ("Kill task failed", {"IDLE", "DRAIN"}, True),
        ("Not responding", {"DOWN"}, False),
        ("admin: psu", {"IDLE", "DRAIN"}, False),
    ],
)
def test_a_node_is_drained_by_itself_with_slurms_text_and_a_drain(text: str, flags: set[str], is_so: bool) -> None:
    """A node that is DOWN alone was drained by nobody."""
    view = NodeView(name="n1", in_service=False, flags=frozenset(flags), hold=hold_of(text, "root", 5))
    assert view.drained_by_itself is is_so
