"""The fold of outcomes over time, case by case: levels, log faults, news, counters, names, boots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.checklib.xids import XidCase, XidRow, xid_cases, xid_row
from healthd.core.check import Accelerating, FindingCode, Learned, Limit, judged, not_applicable, nothing_expected, ok
from healthd.core.model import (
    NODE,
    Clearance,
    ClearsBy,
    Component,
    Finding,
    Outcome,
    Reading,
    Remedy,
    Severity,
    gpu_component,
)
from healthd.judge.history import History, acknowledge, begin_boot, canonical, clear, observe
from healthd.judge.trends import Baseline
from tests.support.judgement import (
    BY_PCI,
    DRIVER,
    GPU,
    answered,
    at,
    could_not_tell,
    counter,
    fault,
    finding,
    fold,
    history,
    looked,
)

GROWN = FindingCode(code="gpu.grown", severity=Severity.CRITICAL, remedy=Remedy.RESET_GPU, meaning="Errors grew")
LIMIT = Limit(reading="errors_total", max_increase=2, code=GROWN, source="NVIDIA, page 7")
NAMED = counter(0, GPU[0], name="not_judged")


def line(code: str = "gpu.xid.79", seconds: float = 0, by: ClearsBy = ClearsBy.REBOOT, **changes: Any) -> Finding:
    return finding(code, time=at(seconds), clears_by=by, **changes)


def sentences(before: History, *outcomes: object, now: float = 0) -> list[str]:
    """What the audit trail says of the last outcome."""
    *first, last = outcomes
    _, changes = observe(fold(before, first), last, (LIMIT,), at(now))  # type: ignore[arg-type]
    return [f"{change.fault.code} {'opened' if change.opened else 'ended'}: {change.why}" for change in changes]


# ---------------------------------------------------------------------------------------------------------------------
# levels


def test_a_level_is_open_from_when_it_was_first_seen() -> None:
    """A level that is reported again is the same fault with later news; its count is what the check counts."""
    known = fold(
        History(boot_id="boot-1"),
        [looked(finding(evidence={"count": 3})), looked(finding(message="worse", evidence={"count": 4}), seconds=60)],
    )
    (now,) = known.faults.values()
    assert (now.first, now.last, now.message, now.count, now.boot_id) == (at(0), at(60), "worse", 4, "boot-1")


def test_a_clock_that_steps_back_makes_no_fault_end_before_it_began() -> None:
    """NTP may set the clock back between two looks."""
    (known,) = fold(History(), [looked(finding(), seconds=60), looked(finding(), seconds=30)]).faults.values()
    assert (known.first, known.last) == (at(30), at(30))


def test_a_level_ends_when_its_check_no_longer_sees_it() -> None:
    """And the trail says who did not see it any more."""
    assert sentences(History(), looked(finding()), looked(seconds=60)) == ["gpu.sick ended: gpu.look no longer sees it"]


def test_a_level_stays_where_the_check_could_not_look_or_has_nothing_to_look_at() -> None:
    """Unknown, a gap, another check's clean look and *not applicable* are no evidence."""
    start = fold(History(), [looked(finding())])
    for outcome in (
        could_not_tell(seconds=60),
        looked(undecided=("gpu:GPU-1 did not answer",), seconds=60),
        looked(finding("other.code"), undecided=("gpu:GPU-1 did not answer",), seconds=60),
        looked(check="other.check", seconds=60),
        answered(not_applicable("no GPU here"), seconds=60),
    ):
        assert set(start.faults) <= set(fold(start, [outcome]).faults)


def test_a_level_ends_once_nothing_asks_for_what_it_missed() -> None:
    """A mount that is no longer configured, a device that was detached on purpose and forgotten by relearn."""
    assert fold(History(), [looked(finding()), answered(nothing_expected("none is"), seconds=60)]).faults == {}


def test_a_level_stays_where_the_check_was_not_told_about_it() -> None:
    """A clean look that heard nothing about this code of this GPU ends everything else; by whichever of its names."""
    start = fold(History(), [looked(finding(), finding("gpu.worn"), finding(component=DRIVER))])
    for name in (GPU[0], BY_PCI[0]):
        after = fold(start, [looked(not_reported=[(name, "gpu.sick")], seconds=60)])
        assert list(after.faults) == [(str(GPU[0]), "gpu.sick")]
        assert fold(after, [looked(seconds=120)]).faults == {}


def test_what_belongs_to_a_component_that_told_nothing_stays() -> None:
    """The code "" is every code: of the component, by whichever of its names, of its parts, and of the node."""
    link, other = Component(kind="nvlink", id=f"{GPU[0].id}/3"), Component(kind="nvlink", id=f"{GPU[1].id}/3")
    start = fold(History(), [looked(*(finding(component=each) for each in (GPU[0], GPU[1], link, other, NODE)))])
    for name in (GPU[0], BY_PCI[0]):
        after = fold(start, [looked(not_reported=[(name, "")], seconds=60)])
        assert {where for where, _ in after.faults} == {str(GPU[0]), str(link), "node"}


def test_a_count_that_is_no_number_counts_as_one() -> None:
    """``count`` in an evidence may be words; the fold does not stumble over them."""
    known = fold(History(), [looked(finding(evidence={"count": "3 of 8"}))])
    assert [each.count for each in known.faults.values()] == [1]


# ---------------------------------------------------------------------------------------------------------------------
# from the log


def test_lines_of_one_code_on_one_gpu_are_one_fault() -> None:
    """A burst is one fault, open since its first line, and counts what its findings count."""
    known = fold(History(), [looked(line(evidence={"count": 800_000})), looked(line(seconds=5), seconds=5)])
    (burst,) = known.faults.values()
    assert (burst.count, burst.first, burst.last) == (800_001, at(0), at(5))


def test_a_restart_reads_the_log_in_any_order() -> None:
    """An older line that is read later changes neither the last news nor what the fault says."""
    known = fold(History(), [looked(line(seconds=9, message="new")), looked(line(seconds=3, message="old"))])
    (each,) = known.faults.values()
    assert (each.first, each.last, each.message, each.count) == (at(3), at(9), "new", 2)


def test_a_harmless_form_of_an_xid_does_not_hide_the_fatal_one() -> None:
    """XID 74 is fatal by its text: a later 74 without that word leaves the GPU to be reset."""
    fatal, plain = xid_cases()[74, "fatal"], xid_row(74)
    rows: tuple[XidRow | XidCase, ...] = (fatal, plain)
    forms = [
        line("gpu.xid.74", seconds, row.clears_by, severity=row.severity, remedy=row.remedy, message=row.meaning)
        for seconds, row in enumerate(rows)
    ]
    for order in (forms, forms[::-1]):
        (known,) = fold(History(), [looked(*order)]).faults.values()
        assert (known.remedy, known.severity, known.message) == (fatal.remedy, fatal.severity, fatal.meaning)


def test_an_all_clear_of_the_driver_is_no_reboot() -> None:
    """XID 154 "to None" after "to Node Reboot": it is evidence of a GPU reset, so what asks for a reboot stays, and
    stays a fault that age cannot end."""
    reboot, none = xid_cases()[154, "to:2"], xid_cases()[154, "to:0"]
    asked = line("gpu.xid.154", 0, reboot.clears_by, remedy=reboot.remedy, severity=reboot.severity)
    taken_back = line("gpu.xid.154", 5, none.clears_by, remedy=none.remedy, severity=none.severity)
    over = Clearance(by=ClearsBy.GPU_RESET, component=GPU[0], time=at(5))
    known = fold(History(), [looked(asked), looked(taken_back, clearances=(over,), seconds=5), looked(seconds=10**7)])
    assert [(each.remedy, each.clears_by) for each in known.faults.values()] == [(Remedy.REBOOT_NODE, ClearsBy.REBOOT)]


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        (ClearsBy.NOTHING, {}),
        (ClearsBy.LOG_LINE, {ClearsBy.LOG_LINE}),
        (ClearsBy.JOB_END, {ClearsBy.JOB_END}),
        (ClearsBy.GPU_RESET, {ClearsBy.JOB_END, ClearsBy.GPU_RESET}),
        (ClearsBy.DRIVER_RELOAD, {ClearsBy.JOB_END, ClearsBy.DRIVER_RELOAD}),
        (ClearsBy.REBOOT, set(ClearsBy) - {ClearsBy.NOTHING, ClearsBy.REPLACE}),
        (ClearsBy.REPLACE, set(ClearsBy) - {ClearsBy.NOTHING}),
    ],
)
def test_what_each_evidence_proves(seen: ClearsBy, ends: set[ClearsBy]) -> None:
    """A reboot resets every GPU; a GPU reset reloads no driver, and a reloaded driver activates no row remap. Any of
    them makes old news of news."""
    start = history(*(fault(f"by.{by}", clears_by=by) for by in ClearsBy), fault("level"))
    _, changes = clear(start, Clearance(by=seen, note="seen"))
    news = {ClearsBy.NOTHING} if seen is not ClearsBy.NOTHING else set()
    assert {change.fault.clears_by for change in changes} == set(ends) | news


def test_a_line_that_names_its_fault_ends_no_other() -> None:
    """Evidence for one code leaves the other faults of its component open, news included."""
    codes = {
        "nvswitch.sxid.10004": ClearsBy.LOG_LINE,
        "lustre.connection_lost": ClearsBy.LOG_LINE,
        "x": ClearsBy.NOTHING,
    }
    start = history(*(fault(code, clears_by=by) for code, by in codes.items()))
    after, changes = clear(start, Clearance(by=ClearsBy.LOG_LINE, code="nvswitch.sxid.10004", note="10005"))
    assert [change.fault.code for change in changes] == ["nvswitch.sxid.10004"]
    assert len(after.faults) == 2


def test_evidence_holds_for_its_own_gpu_only() -> None:
    """A reset of one GPU says nothing of another, and nothing of a line that named none."""
    start = history(*(fault("gpu.xid.95", where, clears_by=ClearsBy.GPU_RESET) for where in (*GPU, NODE)))
    after, _ = clear(start, Clearance(by=ClearsBy.GPU_RESET, component=BY_PCI[0]))
    assert len(after.faults) == 3
    named = fold(start, [looked(readings=(NAMED,), check="someone")])
    after, changes = clear(named, Clearance(by=ClearsBy.GPU_RESET, component=BY_PCI[0]))
    assert [str(each.component) for each in after.faults.values()] == [str(GPU[1]), str(NODE)]
    assert [change.why for change in changes] == ["gpu_reset"]


def test_the_trail_says_what_proved_it() -> None:
    """A fault that a line in the same batch proves over ends for that line's reason, not for the check's."""
    start = history(fault("gpu.xid.13", clears_by=ClearsBy.JOB_END, check="kernel.xid"))
    loaded = Clearance(by=ClearsBy.DRIVER_RELOAD, time=at(9), note="NVIDIA driver 580.95.05 was loaded")
    outcome = looked(clearances=(loaded,), check="kernel.xid", seconds=9)
    assert sentences(start, outcome) == ["gpu.xid.13 ended: NVIDIA driver 580.95.05 was loaded"]


def test_a_fault_that_ends_and_comes_back_in_one_batch_is_told_twice() -> None:
    """Ended, then opened: whoever acknowledged the first has not seen the second."""
    start = acknowledge(history(fault("gpu.xid.79", clears_by=ClearsBy.REBOOT)), [("gpu:GPU-0", "gpu.xid.79")])
    batch = looked(
        line(seconds=20, message="off the bus again"),
        clearances=(Clearance(by=ClearsBy.REBOOT, time=at(10), note="rebooted"),),
        seconds=30,
    )
    assert sentences(start, batch) == ["gpu.xid.79 ended: rebooted", "gpu.xid.79 opened: off the bus again"]
    assert not fold(start, [batch]).faults["gpu:GPU-0", "gpu.xid.79"].acknowledged


def test_news_goes_after_a_day_and_says_so() -> None:
    """It was never a state; the trail does not credit whichever check looked next."""
    start = history(fault("gpu.xid.43", clears_by=ClearsBy.NOTHING))
    day = 24 * 3600
    assert sentences(start, looked(check="host.filesystems", seconds=day), now=day) == []
    later = sentences(start, looked(check="host.filesystems", seconds=day + 1), now=day + 1)
    assert later == ["gpu.xid.43 ended: news, which is listed for a day"]


# ---------------------------------------------------------------------------------------------------------------------
# counters


def grown(*values: tuple[str, float], limits: tuple[Limit, ...] = (LIMIT,)) -> tuple[History, list[str]]:
    """Read a counter again and again; every message that it raised."""
    known, messages = History(), []
    for epoch, value in values:
        outcome = answered(ok([counter(value, epoch=epoch)]))
        known, changes = observe(known, outcome, limits, outcome.at)
        messages += [change.why for change in changes if change.opened]
    return known, messages


def test_growth_beyond_the_limit_is_a_finding_with_its_numbers() -> None:
    """The finding says from where to where, and carries the limit and the limit's source."""
    known, messages = grown(("a", 5), ("a", 8))
    assert messages == ["Errors grew: errors_total rose by 3, from 5 to 8"]
    (each,) = known.faults.values()
    assert each.evidence == {
        "reading": "errors_total",
        "baseline": 5,
        "value": 8,
        "epoch": "a",
        "limit": 2,
        "limit_source": "NVIDIA, page 7",
    }


def test_slow_growth_adds_up() -> None:
    """One error an hour passes the limit in the third hour: the baseline is the first value, not the last."""
    assert grown(("a", 0), ("a", 1), ("a", 2))[1] == []
    assert len(grown(("a", 0), ("a", 1), ("a", 2), ("a", 3))[1]) == 1


def test_what_was_raised_is_not_raised_again() -> None:
    """A finding moves the baseline: a counter that stands still afterwards is quiet, and its level ends."""
    known, messages = grown(("a", 0), ("a", 3), ("a", 3))
    assert (len(messages), known.faults) == (1, {})
    assert known.baselines == {("gpu:GPU-0", "errors_total"): Baseline(epoch="a", value=3)}


@pytest.mark.parametrize("then", [("b", 100.0), ("a", 4.0), ("b", 0.0)])
def test_a_reload_or_a_reset_is_a_new_baseline(then: tuple[str, float]) -> None:
    """A new epoch, however large its first value, and a counter that went backwards raise nothing."""
    known, messages = grown(("a", 5), then)
    assert messages == []
    assert known.baselines["gpu:GPU-0", "errors_total"] == Baseline(epoch=then[0], value=then[1])


def test_a_reading_without_a_limit_is_not_kept() -> None:
    """Only what is judged has a baseline."""
    assert grown(("a", 5), limits=())[0].baselines == {}


def test_a_look_that_tells_nothing_new_is_the_same_history() -> None:
    """Nothing changed, so there is nothing to write: the very same object comes back."""
    start = fold(History(), [looked(readings=(NAMED,))])
    start, _ = observe(start, answered(ok([counter(1)])), (LIMIT,), at(0))
    after, changes = observe(start, answered(ok([counter(2), NAMED])), (LIMIT,), at(60))
    assert after is start
    assert changes == ()


# ---------------------------------------------------------------------------------------------------------------------
# names


def test_a_uuid_takes_over_from_an_address() -> None:
    """The first reading that knows both renames the fault and the baseline; nothing opens, nothing ends."""
    start = fold(History(), [looked(line(component=BY_PCI[0]))])
    start, _ = observe(start, answered(ok([counter(5, BY_PCI[0])])), (LIMIT,), at(0))
    after, changes = observe(start, looked(readings=(NAMED,), check="someone"), (), at(1))
    assert changes == ()
    assert list(after.faults) == [("gpu:GPU-0", "gpu.xid.79")]
    assert after.baselines == {("gpu:GPU-0", "errors_total"): Baseline(epoch="boot-1", value=5)}
    assert canonical(after, BY_PCI[0]) == GPU[0]


def at_address(uuid: str, seconds: float = 0) -> Outcome:
    """The GPU that is found at one address."""
    part = gpu_component(uuid=uuid, pci="0000:53:00")
    return answered(ok([counter(0, part, name="gpu_index")]), "gpu.count", seconds)


def test_another_gpu_at_the_address_has_replaced_the_one_that_was_there() -> None:
    """EC2 moves an instance that is stopped and started to another host, and it keeps its id: what waits for another
    machine ends once another GPU answers at the address. The new one inherits nothing."""
    lost = line("gpu.xid.64", 1, ClearsBy.REPLACE, component=gpu_component(pci="0000:53:00"))
    before = fold(
        History(boot_id="boot-1", instance_id="i-1"), [at_address("GPU-old"), looked(lost, check="kernel.xid")]
    )
    assert list(before.faults) == [("gpu:GPU-old", "gpu.xid.64")]
    booted, _ = begin_boot(before, "boot-2")
    assert list(fold(booted, [at_address("GPU-old", 60)]).faults) == [("gpu:GPU-old", "gpu.xid.64")]
    after, (change,) = observe(booted, at_address("GPU-new", 60), (), at(60))
    assert (after.faults, change.opened, change.why) == ({}, False, "since a boot another GPU is at its address")


def test_a_machine_of_which_every_gpu_is_another_has_other_disks() -> None:
    """Stop and start moves an instance with a bad disk to another host, and it keeps its id: the disk's fault ends
    with the machine. Where one GPU of several was exchanged, or within a boot, it stays."""
    old, new = (
        [gpu_component(uuid=f"GPU-{name}{n}", pci=f"0000:{n + 0x53:x}:00") for n in range(3)] for name in ("old", "new")
    )
    disk = line("kernel.medium_error", 1, ClearsBy.REPLACE, component=Component(kind="disk", id="nvme1"))

    def listed(*parts: Component, seconds: float = 0) -> Outcome:
        return answered(ok([counter(0, part, name="gpu_index") for part in parts]), "gpu.count", seconds)

    before = fold(History(boot_id="boot-1"), [listed(*old), looked(disk, check="kernel.host")])
    booted, _ = begin_boot(before, "boot-2")
    after, (change,) = observe(booted, listed(*new, seconds=60), (), at(60))
    assert (after.faults, change.why) == ({}, "since a boot every GPU is another")
    for start, parts in ((booted, (new[0], *old[1:])), (before, new), (booted, new[:2])):
        assert len(fold(start, [listed(*parts, seconds=60)]).faults) == 1


def test_gpus_that_changed_their_addresses_are_still_there() -> None:
    """A bus that is enumerated in another order replaces no GPU."""
    parts = [gpu_component(uuid=uuid, pci=pci) for uuid, pci in (("GPU-a", "0000:53:00"), ("GPU-b", "0000:54:00"))]
    swapped = [gpu_component(uuid=uuid, pci=pci) for uuid, pci in (("GPU-b", "0000:53:00"), ("GPU-a", "0000:54:00"))]
    broken = line("gpu.xid.64", 1, ClearsBy.REPLACE, component=parts[0])
    seen = [answered(ok([counter(0, part, name="gpu_index") for part in some])) for some in (parts, swapped)]
    after = fold(History(boot_id="boot-1"), [seen[0], looked(broken, check="kernel.xid"), seen[1]])
    assert list(after.faults) == [("gpu:GPU-a", "gpu.xid.64")]


def test_a_gpu_that_is_missing_is_not_replaced_by_one_that_has_its_address() -> None:
    """After a boot without it the others are enumerated from its address on: its fault stays until it is replaced."""
    parts = [gpu_component(uuid=uuid, pci=pci) for uuid, pci in (("GPU-a", "0000:53:00"), ("GPU-b", "0000:54:00"))]
    broken = line("gpu.xid.64", 1, ClearsBy.REPLACE, component=parts[0])
    seen = answered(ok([counter(0, part, name="gpu_index") for part in parts]))
    before = fold(History(boot_id="boot-1"), [seen, looked(broken, check="kernel.xid")])
    booted, _ = begin_boot(before, "boot-2")
    after, changes = observe(booted, at_address("GPU-b", 60), (), at(60))
    assert (list(after.faults), changes) == ([("gpu:GPU-a", "gpu.xid.64")], ())
    assert list(fold(after, [at_address("GPU-b", 120)]).faults) == [("gpu:GPU-a", "gpu.xid.64")]


@pytest.mark.parametrize("first", [(0,), (1,), (0, 1, 2)], ids=["the broken one's place", "another's", "all"])
def test_gpus_that_are_replaced_may_be_named_one_after_the_other(first: tuple[int, ...]) -> None:
    """A line of the kernel's names one GPU of another machine, and a driver that is being loaded lists some: the faults
    of those that are gone end once as many answer as were known."""
    old, new = (
        [gpu_component(uuid=f"GPU-{name}{n}", pci=f"0000:{n + 0x53:x}:00") for n in range(3)] for name in ("old", "new")
    )

    def listed(parts: Iterable[Component], seconds: float = 0) -> Outcome:
        return answered(ok([counter(0, part, name="gpu_index") for part in parts]), "gpu.count", seconds)

    broken = [line("gpu.xid.64", 1, ClearsBy.REPLACE, component=old[0]), line("gpu.xid.79", 1, component=old[2])]
    before = fold(History(boot_id="boot-1"), [listed(old), looked(*broken, check="kernel.xid")])
    booted = replace(before, boot_id="boot-2")
    some = fold(booted, [listed([new[n]], 60 + n) for n in first])
    assert len(some.faults) == 2
    assert fold(some, [listed(new, 90)]).faults == {}


def test_gpus_that_are_gone_leave_no_memory() -> None:
    """An instance that is stopped every night, and starts with the GPUs of another host: what is kept of counters is of
    the GPUs that are there, and of their links. A boot in which one of them did not answer at first changes nothing of
    that; nor does a GPU that is lost for a boot lose its baseline."""
    known = History(boot_id="boot-0")

    def look(night: int, number: int) -> Iterator[Reading]:
        gpu = gpu_component(uuid=f"GPU-{night}-{number}", pci=f"0000:{number + 0x53:x}:00")
        link = Component(kind="nvlink", id=f"{gpu.id}/3")
        yield from (counter(7, part, name=name) for part in (gpu, link) for name in ("errors_total", "daily_total"))

    limits = (LIMIT, Accelerating(reading="daily_total", code=replace(GROWN, clears_by=None), source="this test"))
    for night in range(50):
        known, _ = begin_boot(known, f"boot-{night}")
        for there in ((0, 1, 2), (0, 1, 2, 3)):
            seen = answered(ok([each for number in there for each in look(night, number)]), seconds=86_400 * night)
            known, _ = observe(known, seen, limits, seen.at)
    assert {where for where, _ in (*known.baselines, *known.days)} == {
        f"{kind}:GPU-49-{number}{link}" for number in range(4) for kind, link in (("gpu", ""), ("nvlink", "/3"))
    }
    lost, _ = begin_boot(known, "boot-50")
    for there in ((0, 1, 2), (0, 1, 2, 3)):
        lost = fold(lost, [answered(ok([each for number in there for each in look(49, number)]))])
    assert lost.baselines == known.baselines


def test_an_index_names_nobody() -> None:
    """After a GPU is lost its index means another one: a fault of ``gpu:3`` is not given to whoever has it now."""
    third = Component(kind="gpu", id="GPU-9", aliases=("0000:90:1c", "3"))
    start = fold(History(), [looked(line(component=Component(kind="gpu", id="3")))])
    after = fold(start, [looked(readings=(counter(0, third, name="not_judged"),), check="someone")])
    assert list(after.faults) == [("gpu:3", "gpu.xid.79")]
    assert list(after.names) == ["gpu:0000:90:1c"]


def test_an_index_is_the_alias_of_the_gpu_that_has_it_now() -> None:
    """GPU 3 of 8 is gone after a reboot and NVML counts on: the next one is GPU 3, for its open faults too, by which a
    job that has GPU 3 is judged. The one that is gone has no index any more. A line that knows none changes none."""

    def gpus(*numbers: int) -> Outcome:
        parts = (gpu_component(uuid=f"GPU-{n}", pci=f"0000:5{n}:00", index=index) for index, n in enumerate(numbers))
        return answered(ok([counter(0, part, name="not_judged") for part in parts]))

    by_address = [gpu_component(pci=f"0000:5{number}:00") for number in range(8)]
    lines = [line(component=part, by=ClearsBy.REPLACE) for part in by_address[2:5]]
    before = fold(History(), [gpus(*range(8)), looked(*lines)])
    after = fold(before, [gpus(0, 1, 2, 4, 5, 6, 7)])
    after = fold(after, [looked(line(component=gpu_component(uuid="GPU-4", pci="0000:54:00"), by=ClearsBy.REPLACE))])
    index = [("2",), (), ("3",)]
    assert [canonical(after, part).aliases[1:] for part in by_address[2:5]] == index
    assert [fault.component.aliases[1:] for fault in after.faults.values()] == index
    assert [canonical(after, part).aliases[1] for part in by_address[5:]] == ["4", "5", "6"]


def test_an_index_that_was_unknown_is_learned() -> None:
    """A line of the kernel's named the only GPU by its address and its UUID, before NVML gave it a number."""
    first = fold(History(), [looked(line(component=gpu_component(uuid="GPU-0", pci="0000:10:1c")))])
    numbered = gpu_component(uuid="GPU-0", pci="0000:10:1c", index=0)
    after = fold(first, [answered(ok([counter(0, numbered, name="not_judged")]))])
    assert [part.aliases for part in after.names.values()] == [("0000:10:1c", "0")]


def test_a_new_gpu_in_an_old_place_inherits_nothing() -> None:
    """The address moves to the new UUID; what was open on the old GPU stays the old GPU's."""
    start = fold(History(), [looked(line(), readings=(NAMED,))])
    successor = replace(GPU[0], id="GPU-new")
    after = fold(start, [looked(readings=(counter(0, successor, name="not_judged"),), check="someone")])
    assert list(after.faults) == [("gpu:GPU-0", "gpu.xid.79")]
    assert canonical(after, BY_PCI[0]) == successor


def test_a_level_and_a_line_of_one_code_end_by_evidence() -> None:
    """Where a check's level meets a line of the same code, a clean look no longer ends it."""
    known = fold(History(), [looked(finding()), looked(line("gpu.sick", 5), check="kernel.xid", seconds=5), looked()])
    assert [each.clears_by for each in known.faults.values()] == [ClearsBy.REBOOT]


# ---------------------------------------------------------------------------------------------------------------------
# boots and acknowledgements


def test_the_first_boot_ever_seen_is_no_reboot() -> None:
    """An empty history enters its first boot without a claim."""
    start = history(fault(clears_by=ClearsBy.REBOOT), boot_id="")
    assert begin_boot(start, "boot-1") == (replace(start, boot_id="boot-1"), ())


def test_a_new_boot_says_what_it_ended() -> None:
    """The evidence is the change of the boot id, and both ids are named."""
    _, changes = begin_boot(history(fault(clears_by=ClearsBy.REBOOT), fault("level", DRIVER)), "boot-2")
    assert [(change.fault.code, change.why) for change in changes] == [
        ("gpu.sick", "rebooted: boot id boot-1 became boot-2")
    ]


def test_a_boot_id_that_could_not_be_read_proves_nothing() -> None:
    """A hidden /proc is no reboot, neither when it hides nor when it is back."""
    start = history(fault(clears_by=ClearsBy.REBOOT))
    hidden, first = begin_boot(start, "unknown")
    back, second = begin_boot(hidden, "boot-1")
    assert (back, first, second) == (start, (), ())
    assert begin_boot(History(), "unknown")[0].boot_id == "unknown"
    assert begin_boot(replace(start, boot_id="unknown"), "boot-1") == (start, ())


def test_an_acknowledged_level_stays_so_until_it_ends() -> None:
    """Seen again it is still acknowledged; gone and come back it is a new fault."""
    start = acknowledge(fold(History(), [looked(finding())]), [("gpu:GPU-0", "gpu.sick"), ("gpu:GPU-9", "no.such")])
    again = fold(start, [looked(finding(), seconds=60)])
    back = fold(again, [looked(seconds=120), looked(finding(), seconds=180)])
    assert [each.acknowledged for known in (again, back) for each in known.faults.values()] == [True, False]


@pytest.mark.parametrize(
    ("before", "now", "stands"),
    [(7, 6, False), (7, 7, True), (6, 7, True), (["a", "b"], ["a"], False), (["a"], ["b"], True), (None, 6, True)],
)
def test_an_acknowledgement_covers_no_further_loss(before: object, now: object, *, stands: bool) -> None:
    """Seven GPUs of eight were acknowledged, and then there are six: the operator has not seen that."""
    known = looked(finding(evidence={"found": before}))
    start = acknowledge(fold(History(), [known]), [("gpu:GPU-0", "gpu.sick")], at(500))
    (fault,) = fold(start, [looked(finding(evidence={"found": now}), seconds=60)]).faults.values()
    assert (fault.acknowledged, fault.acknowledged_until) == ((True, at(500)) if stands else (False, None))


def test_an_acknowledged_cause_covers_no_further_loss_behind_it() -> None:
    """A GPU that fell off the bus was acknowledged. A second one that is gone without an XID of its own is news, though
    the count is a symptom of the first."""
    xid = finding("gpu.xid.79", clears_by=ClearsBy.REBOOT)
    lost = finding("gpu.count.off_bus", NODE, symptom_of=("gpu.xid.79",), evidence={"found": 7})
    start = fold(History(), [looked(xid), looked(lost, check="gpu.count")])
    start = acknowledge(start, start.faults)
    for found, stands in ((7, True), (6, False)):
        seen = looked(replace(lost, evidence={"found": found}), check="gpu.count", seconds=60)
        faults = fold(start, [seen]).faults.values()
        assert [each.acknowledged for each in faults] == [stands, stands], found


def test_a_learned_count_that_falls_further_ends_its_acknowledgement() -> None:
    """Where no number is set, the highest count is what must be there. A bandwidth is noisy: less of it is no news."""
    code = FindingCode(code="efa.lost", severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE, meaning="EFA is lost")

    def is_acknowledged(within: float, *values: float) -> list[bool]:
        limit, known, seen = (
            Learned(reading="devices", code=code, source="here", within=within),
            History(),
            list[bool](),
        )
        for second, value in enumerate(values):
            reading = Reading(component=NODE, name="devices", value=value, epoch="p5")
            known, _ = observe(known, looked(readings=[reading], seconds=second), (limit,), at(second))
            seen += [fault.acknowledged for fault in known.faults.values()]
            known = acknowledge(known, known.faults)
        return seen

    assert is_acknowledged(1.0, 32, 31, 31, 30, 30, 31) == [False, True, False, True, True]
    assert is_acknowledged(0.5, 32, 15, 14) == [False, True]


def test_a_word_with_an_end_stays_with_the_fault() -> None:
    """A level that is seen again and a line that repeats keep the end; without an end is longer than any."""
    for clears_by in (None, ClearsBy.REBOOT):
        sick = finding(clears_by=clears_by)
        start = acknowledge(fold(History(), [looked(sick)]), [("gpu:GPU-0", "gpu.sick")], at(500))
        (again,) = fold(start, [looked(sick, seconds=60)]).faults.values()
        assert (again.acknowledged, again.acknowledged_until) == (True, at(500))


def test_one_fault_under_two_names_keeps_the_longer_word() -> None:
    """Two records become one when a GPU's name is learned: the later end holds, and none is the latest."""
    for ends, kept in (((at(5), at(9)), at(9)), ((at(5), None), None)):
        parts = [
            fault(component=where, clears_by=ClearsBy.REBOOT, acknowledged=True, acknowledged_until=end)
            for where, end in zip((BY_PCI[0], GPU[0]), ends, strict=True)
        ]
        named_now = Component(kind="gpu", id=GPU[0].id, aliases=(BY_PCI[0].id,))
        (merged,) = fold(history(*parts), [looked(readings=[counter(0, named_now)])]).faults.values()
        assert (merged.acknowledged, merged.acknowledged_until) == (True, kept)


def test_outcomes_without_a_reason_and_with_findings_keep_the_fold_total() -> None:
    """A result may carry findings, readings, gaps and clearances together, and each counts."""
    batch = judged(
        [finding(), line(seconds=1)],
        [counter(1)],
        undecided=["gpu:GPU-1 did not answer"],
        clearances=[Clearance(by=ClearsBy.REBOOT, time=at(2))],
    )
    known, changes = observe(History(), answered(batch), (LIMIT,), at(3))
    assert list(known.faults) == [("gpu:GPU-0", "gpu.sick")]
    assert list(known.baselines) == [("gpu:GPU-0", "errors_total")]
    assert [change.fault.code for change in changes] == ["gpu.sick"]
