"""The news in a reading of a node: faults, spans, repairs, machines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from msgspec.structs import replace

from healthd.ledger.changes import NodeMemory, NodeReading, SeenFault, gone_changes, node_changes, with_inventory
from healthd.ledger.entries import EntryKind, LedgerGpu, MachineIdentity, SpanState
from healthd.remediation.records.handoff import PastAct, PastRepair, RepairResult

T0 = datetime(2026, 1, 1, tzinfo=UTC)
GPUS = (LedgerGpu(uuid="GPU-a", serial="16a", index="0"), LedgerGpu(uuid="GPU-b", serial="16b", index="3"))
MACHINE = MachineIdentity(instance="i-1", instance_type="p5", rack="r1", image="ami-1", driver="570", gpus=GPUS)
XID = SeenFault(code="gpu.xid.79", component="GPU 3", since=T0)
SERVING = NodeReading(node="n1", state=SpanState.SERVING)
BROKEN = NodeReading(node="n1", state=SpanState.OUT, cause="gpu.xid.79", faults=(XID,))


def later(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def test_a_fault_ends_when_a_whole_reading_lacks_it() -> None:
    """It is one entry from its own since to that reading; a repair's steps, which move since, make no second one."""
    first = node_changes(NodeMemory(), BROKEN, later(1))
    (fault,) = first.entries
    assert (fault.at, fault.until, fault.gpu) == (T0, None, "")
    stepped = replace(BROKEN, faults=(replace(XID, since=later(2)),))
    assert stepped.tells_the_same(BROKEN)
    assert node_changes(first.after, stepped, later(2)).entries == ()
    over = node_changes(first.after, SERVING, later(3))
    assert [(each.key, each.until) for each in over.entries] == [(fault.key, later(3))]
    assert over.after.faults == ()


def test_a_fault_of_no_possible_time_began_with_its_reading() -> None:
    """Any user of a node may answer for it while its daemon is down: what is written has to be readable again."""
    for since in (
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14))),
        later(2),
    ):
        (fault,) = node_changes(NodeMemory(), replace(BROKEN, faults=(replace(XID, since=since),)), later(1)).entries
        assert fault.at == later(1)


def test_silence_ends_no_fault() -> None:
    """Nor does a check that cannot tell, nor a reading that names one of several."""
    after = node_changes(NodeMemory(), BROKEN, later(1)).after
    for state in (SpanState.SILENT, SpanState.UNKNOWN):
        assert node_changes(after, NodeReading(node="n1", state=state), later(2)).after.faults == after.faults
    partial = replace(SERVING, is_whole=False)
    assert node_changes(after, partial, later(2)).after.faults == after.faults


def test_an_inventory_names_the_gpu_of_a_fault_that_is_known() -> None:
    """The entry keeps its key, and gets UUID and serial number."""
    first = node_changes(NodeMemory(), BROKEN, later(1))
    exact = SeenFault(code="gpu.xid.79", component="gpu:GPU-b", since=T0)
    told = node_changes(first.after, with_inventory(BROKEN, MACHINE, (exact,)), later(2))
    (fault,) = told.entries
    assert (fault.key, fault.gpu, fault.serial) == (first.entries[0].key, "GPU-b", "16b")
    assert [each.gpu for each in told.gpus] == ["GPU-a", "GPU-b"]


def test_an_index_is_no_gpu_without_this_readings_inventory() -> None:
    """The GPUs that are remembered may be those of the machine before."""
    memory = node_changes(NodeMemory(), with_inventory(SERVING, MACHINE, ()), later(1)).after
    (fault,) = node_changes(memory, BROKEN, later(2)).entries
    assert (fault.gpu, fault.instance) == ("", "i-1")
    (fresh,) = node_changes(memory, replace(BROKEN, machine=MACHINE), later(2)).entries
    assert fresh.serial == "16b"


def test_another_instance_is_another_machine() -> None:
    """Of the one before, type and rack stay, and neither GPUs nor versions."""
    other = MachineIdentity(instance="i-2").completed_by(MACHINE)
    assert other == MachineIdentity(instance="i-2", instance_type="p5", rack="r1")
    assert MachineIdentity().completed_by(MACHINE) == MACHINE


def test_a_part_of_a_gpu_is_that_gpu() -> None:
    """``nvlink:GPU-b/3``; a component that is no GPU, and a UUID without an inventory, have no serial number."""
    assert MACHINE.gpu_of("nvlink:GPU-b/3") == GPUS[1]
    assert MACHINE.gpu_of("efa:rdmap0") is None
    alone = replace(BROKEN, faults=(replace(XID, component="gpu:GPU-z", since=later(9)),))
    (fault,) = node_changes(NodeMemory(), alone, later(1)).entries
    assert (fault.gpu, fault.serial, fault.at) == ("GPU-z", "", later(1))


def test_two_gpus_with_one_code_are_two_faults() -> None:
    """One of them ends alone."""
    pair = tuple(SeenFault(code="gpu.xid.95", component=f"gpu:GPU-{name}", since=T0) for name in "ab")
    after = node_changes(NodeMemory(), replace(BROKEN, faults=pair), later(1)).after
    assert len(after.faults) == 2
    left = node_changes(after, replace(BROKEN, faults=pair[1:]), later(2))
    assert [(each.gpu, each.until) for each in left.entries] == [("GPU-a", later(2))]
    assert [each.gpu for each in left.after.faults] == ["GPU-b"]


def test_of_two_gpus_with_one_code_each_gets_its_own_serial_number() -> None:
    """The cluster had named one of them by its index: a support case about another board would be of no use."""
    first = node_changes(NodeMemory(), BROKEN, later(1)).after
    pair = tuple(SeenFault(code="gpu.xid.79", component=f"gpu:GPU-{name}", since=T0) for name in "ab")
    both = node_changes(first, with_inventory(BROKEN, MACHINE, pair), later(2)).after
    assert {(each.component, each.serial) for each in both.faults} == {("GPU 3", "16b"), ("gpu:GPU-a", "16a")}
    one_left = node_changes(both, with_inventory(BROKEN, MACHINE, pair[1:]), later(3))
    assert [(each.gpu, each.until) for each in one_left.entries] == [("GPU-a", later(3))]
    other_left = node_changes(both, with_inventory(SERVING, MACHINE, pair[:1]), later(3))
    assert [(each.gpu, each.until) for each in other_left.entries] == [("GPU-b", later(3))]


def test_the_acts_of_a_handoff_record_are_entries() -> None:
    """A reset is a repair, a replacement and a return are kinds of their own, each with its outcome."""
    history = (
        PastRepair(act=PastAct.RESET, at=T0, code="c", outcome=RepairResult.FAILED),
        PastRepair(act=PastAct.REPLACE, at=later(1), code="c", outcome=RepairResult.HELPED, back=later(2)),
        PastRepair(act=PastAct.RETURN, at=later(3), code="c"),
    )
    found = node_changes(NodeMemory(), replace(SERVING, history=history), later(4)).entries
    assert [each.kind for each in found] == [EntryKind.REPAIR, EntryKind.REPLACEMENT, EntryKind.RETURN]
    assert [(each.outcome, each.until) for each in found][:2] == [("failed", None), ("helped", later(2))]


def test_an_act_is_of_the_machine_that_it_was_done_to() -> None:
    """Not of the one that came by it: while no controller watched the node was reset, then replaced, and reset again. A
    ledger that never saw the machine before does not know it."""
    history = tuple(
        PastRepair(act=act, at=later(hours), code="c", outcome=RepairResult.HELPED)
        for act, hours in ((PastAct.RESET, 1), (PastAct.REPLACE, 2), (PastAct.RESET, 3))
    )
    new = replace(MACHINE, instance="i-2", gpus=())
    back = replace(SERVING, history=history, machine=new)
    before = node_changes(NodeMemory(), replace(SERVING, machine=MACHINE), later(0)).after
    assert [each.instance for each in node_changes(before, back, later(4)).entries] == ["i-1", "i-1", "i-2"]
    fresh = node_changes(NodeMemory(), back, later(4)).entries
    assert [(each.instance, each.instance_type, each.rack) for each in fresh] == [
        ("", "p5", "r1"),
        ("", "p5", "r1"),
        ("i-2", "p5", "r1"),
    ]
    begun = replace(back, history=(replace(history[1], outcome=RepairResult.NOT_KNOWN),), machine=MACHINE)
    assert [each.instance for each in node_changes(before, begun, later(2)).entries] == ["i-1"]
    assert [each.instance for each in node_changes(NodeMemory(), begun, later(2)).entries] == ["i-1"]


def test_a_change_in_a_gap_ended_with_the_watch() -> None:
    """What happened while nothing was read is counted to the last reading before, and not beyond."""
    before = node_changes(NodeMemory(), SERVING, later(0)).after
    ended, began = node_changes(before, BROKEN, later(5), known_until=later(1)).spans
    assert (ended.until, began.start, began.state) == (later(1), later(5), SpanState.OUT)
    (only,) = node_changes(before, BROKEN, later(0)).spans
    assert only.state is SpanState.OUT


def test_a_node_that_is_gone_ends() -> None:
    """Its span and its faults; one that was never read has neither."""
    memory = node_changes(NodeMemory(), BROKEN, later(1)).after
    gone = gone_changes(memory, later(2))
    assert [each.until for each in gone.spans] == [each.until for each in gone.entries] == [later(2)]
    assert gone_changes(NodeMemory(), later(2)).spans == ()


def test_an_inventory_without_the_listed_fault_keeps_it() -> None:
    """The cluster shows it while the node has its repair behind it."""
    both = with_inventory(BROKEN, MACHINE, (SeenFault(code="efa.down", since=T0),))
    assert [each.code for each in both.faults] == ["efa.down", "gpu.xid.79"]


def test_a_warning_that_took_its_node_out_counts_whether_or_not_the_node_answers() -> None:
    """The hours that a reset for rows to be remapped costs are in the report, and so is its fault."""
    seen = replace(BROKEN, faults=(SeenFault(code="gpu.remap.pending", component="GPU 3", since=T0),))
    own = tuple(
        SeenFault(code=code, component="gpu:GPU-b", since=T0, critical=False)
        for code in ("gpu.remap.pending", "gpu.power.limited")
    )
    found = [
        (each.code, each.component, each.critical)
        for each in node_changes(NodeMemory(), with_inventory(seen, MACHINE, own), later(1)).entries
    ]
    assert found == [("gpu.remap.pending", "gpu:GPU-b", True), ("gpu.power.limited", "gpu:GPU-b", False)]
    (alone,) = node_changes(NodeMemory(), seen, later(1)).entries
    assert alone.critical


def test_a_reason_that_counts_is_one_reason() -> None:
    """A script writes its number into the reason of its drain each minute: one span, and no news to ask the node about.
    Another text, another owner and another code are others."""
    after = node_changes(NodeMemory(), _drained("bob: load is 310.5 since 12:01"), later(0)).after
    for minute in range(1, 60):
        reading = _drained(f"bob: load is {310 + minute}.25 since 12:{minute:02}")
        assert reading.tells_the_same(_drained("bob: load is 310.5 since 12:01"))
        assert node_changes(after, reading, later(minute / 60)).spans == ()
    for cause in ("bob: memtest 12:01", "eve: load is 310.5 since 12:01", "gpu.xid.79"):
        assert len(node_changes(after, _drained(cause), later(2)).spans) == 2
    held = node_changes(NodeMemory(), _drained("gpu.xid.79"), later(0)).after
    assert len(node_changes(held, _drained("gpu.xid.95"), later(2)).spans) == 2


def _drained(cause: str) -> NodeReading:
    return NodeReading(node="n1", state=SpanState.OUT, cause=cause)
