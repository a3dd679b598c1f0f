"""The summary of a node: what it says, how it is written, and that it is read as it was written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.model import (
    NODE,
    Action,
    Component,
    Decision,
    Diagnosis,
    Mode,
    Refusal,
    Remedy,
    Root,
    Severity,
    Step,
    Verdict,
)
from healthd.remediation.decide.node_summary import acting_state, summary_of
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import QUARANTINE, REBOOT
from healthd.remediation.records.summary import (
    MOST_BYTES,
    NodeState,
    NodeSummary,
    parse_summary,
)

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
GPU = Component(kind="gpu", id="GPU-51a1", aliases=("0000:05:00", "3"))
TIMES = st.integers(0, 99_999_999_999).map(lambda epoch: datetime.fromtimestamp(epoch, UTC))
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=80)


def diagnosis(code: str, component: Component = GPU, severity: Severity = Severity.CRITICAL) -> Diagnosis:
    return Diagnosis(
        code=code, component=component, severity=severity, remedy=Remedy.REBOOT_NODE, reasons=("r",), since=NOW
    )


def remediation(step: Step, steps: tuple[Step, ...] = REBOOT, note: str = "") -> Remediation:
    return Remediation(
        id="b7da",
        opened=NOW,
        since=NOW,
        mode=Mode.REPAIR,
        code="gpu.xid.79",
        component=str(GPU),
        remedy=Remedy.REBOOT_NODE,
        why="w",
        text="t",
        steps=steps,
        index=steps.index(step),
        note=note,
    )


@given(
    st.builds(
        NodeSummary,
        state=st.sampled_from(NodeState),
        at=st.none() | TIMES,
        stopped=st.booleans(),
        code=WORDS,
        component=WORDS,
        more=st.integers(0, 99_999),
        mode=st.none() | st.sampled_from(Mode),
        since=st.none() | TIMES,
        instance_type=WORDS,
        step=st.sampled_from(("", *(each.value for each in Step))),
        note=st.text(max_size=400),
    )
)
def test_whatever_a_summary_holds_it_fits_and_its_state_is_read_again(summary: NodeSummary) -> None:
    """It never breaks the line, the quotes around it, or its limit; the state survives whatever else is in it."""
    text = summary.text
    assert len(text.encode()) <= MOST_BYTES
    assert json.loads(f'{{"healthd":"{text}"}}') == {"healthd": text}
    assert not set(text) & set("|\n")
    read = parse_summary(text)
    assert read is not None
    assert (read.state, read.at, read.stopped) == (summary.state, summary.at, summary.stopped)
    assert read.since == summary.since


def test_an_ordinary_summary_is_read_as_it_was_written() -> None:
    """Every field of it."""
    summary = NodeSummary(
        state=NodeState.DRAINING,
        at=NOW,
        code="gpu.xid.79",
        component="GPU 3",
        more=2,
        mode=Mode.REPAIR,
        since=NOW - timedelta(minutes=4),
        instance_type="p5.48xlarge",
        step="wait_idle",
        job="8811:0",
        domain="9f86d081",
        note="waits for 8812 of a",
    )
    assert parse_summary(summary.text) == summary
    last = replace(summary, stopped=True, note="waits")
    assert parse_summary(last.text) == last


@pytest.mark.parametrize(
    "text", ["", "psu swap", "healthd", "healthd state=odd", "healthdstate=ok", "HEALTHD state=ok"]
)
def test_a_text_that_is_no_summary_is_none(text: str) -> None:
    """An operator's text, or a state of a later version: nothing is guessed."""
    assert parse_summary(text) is None


@pytest.mark.parametrize(
    "component", ["GPU 3", "mount:/fsx_shared", "driver:nvidia_uvm", f"nvlink:GPU-{'51a1' * 9}/17", ""]
)
def test_a_device_keeps_its_own_name(component: str) -> None:
    """The fleet, its incidents and its ledger know a mount point, and the link of a GPU, by this name alone."""
    summary = NodeSummary(state=NodeState.CRITICAL, at=NOW, code="c", component=component)
    assert parse_summary(summary.text) == summary


def test_odd_words_hide_no_state() -> None:
    """A number that is none, a mode of a later version and words without a value are left out."""
    read = parse_summary("healthd more=² at=never mode=later lonely state=ok more=7 since=123456789012")
    assert read == NodeSummary(state=NodeState.OK)


@pytest.mark.parametrize(
    ("step", "steps", "state"),
    [
        (Step.SLOT, REBOOT, NodeState.DRAINING),
        (Step.WAIT_IDLE, REBOOT, NodeState.DRAINING),
        (Step.COLLECT, REBOOT, NodeState.REPAIRING),
        (Step.REBOOT, REBOOT, NodeState.REPAIRING),
        (Step.VERIFY, REBOOT, NodeState.REPAIRING),
        (Step.VERIFY, QUARANTINE, NodeState.HELD),
    ],
)
def test_a_remediation_is_shown_by_its_step(step: Step, steps: tuple[Step, ...], state: NodeState) -> None:
    """Verifying proves a repair where there was one, else it waits for the fault to end."""
    summary = summary_of(
        Verdict.CRITICAL,
        (diagnosis("gpu.xid.79"), diagnosis("gpu.count", NODE)),
        mode=Mode.REPAIR,
        remediation=remediation(step, steps, note="waits for 8812"),
        names={str(GPU): GPU},
    )
    assert (summary.state, summary.step, summary.note) == (state, step.value, "waits for 8812")
    assert (summary.code, summary.component, summary.more) == ("gpu.xid.79", "GPU 3", 1)


def test_a_page_and_an_orphan_are_the_nodes_own_states() -> None:
    """Whatever else is open: an operator is needed, or a drain of ours stands alone."""
    page = Decision(action=Action.PAGE, reason="every remedy was tried")
    summary = summary_of(
        Verdict.CRITICAL, (), mode=Mode.REPAIR, decision=page, remediation=remediation(Step.VERIFY, note="n")
    )
    assert (summary.state, summary.note) == (NodeState.NEEDS_OPERATOR, "every remedy was tried")
    orphan = Decision(action=Action.HOLD, reason="r", refusal=Refusal.ORPHAN)
    assert acting_state(None, orphan) is NodeState.HELD
    assert acting_state(None, Decision(action=Action.HOLD, reason="r")) is None


def test_without_a_remediation_the_worst_fault_is_shown() -> None:
    """The most severe one with its device; the node itself is no device; other names of a device lead to its index."""
    warning = diagnosis("efa.counters.retrans", Component(kind="efa", id="rdmap0"), Severity.WARNING)
    of_gpu = summary_of(Verdict.CRITICAL, (warning, diagnosis("gpu.xid.95")), mode=Mode.OBSERVE, names={"gpu:3": GPU})
    assert (of_gpu.state, of_gpu.code, of_gpu.component, of_gpu.more) == (NodeState.CRITICAL, "gpu.xid.95", "GPU 3", 1)
    oom = Root(code="host.oom", severity=Severity.WARNING, remedy=Remedy.NONE, since=NOW)
    both = replace(diagnosis("host.swap", NODE), roots=(replace(oom, code="host.swap"), oom))
    assert summary_of(Verdict.WARNING, (both,), mode=Mode.OBSERVE).more == 1
    of_node = summary_of(Verdict.WARNING, (diagnosis("host.oom", NODE, Severity.WARNING),), mode=Mode.OBSERVE)
    assert (of_node.state, of_node.component, of_node.since) == (NodeState.WARNING, "", NOW)
    unnamed = summary_of(Verdict.WARNING, (warning,), mode=Mode.OBSERVE)
    assert unnamed.component == "efa:rdmap0"


def test_an_unknown_names_the_check_that_could_not_tell() -> None:
    """Unknown is a state of its own, with its reason."""
    summary = summary_of(Verdict.UNKNOWN, (), mode=Mode.REPAIR, unknown=("gpu.count", "NVML does not answer"))
    assert (summary.state, summary.code, summary.note) == (NodeState.UNKNOWN, "gpu.count", "NVML does not answer")
    assert summary_of(Verdict.OK, (), mode=Mode.REPAIR).state is NodeState.OK


def test_only_the_time_and_the_note_are_not_news() -> None:
    """A note that counts minutes would be written each minute."""
    summary = NodeSummary(state=NodeState.OK, at=NOW, note="a")
    assert summary.tells_the_same(replace(summary, at=None, note="b", more=3))
    assert not summary.tells_the_same(replace(summary, state=NodeState.WARNING))
    assert not summary.tells_the_same(None)
