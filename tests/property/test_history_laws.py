"""Laws of the fold: what must hold for every history and everything that can be seen."""

from __future__ import annotations

import copy
from datetime import timedelta

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.check import FindingCode, Limit, judged, ok
from healthd.core.model import (
    REMEDY_RANK,
    SEVERITY_RANK,
    Clearance,
    ClearsBy,
    Finding,
    Outcome,
    Remedy,
    Result,
    Severity,
    Status,
    Verdict,
)
from healthd.judge.diagnose import diagnose, judge
from healthd.judge.history import (
    NEWS_IS_LISTED_FOR,
    UNKNOWN_BOOT,
    Change,
    Fault,
    FaultKey,
    History,
    acknowledge,
    acknowledged_text,
    begin_boot,
    canonical,
    clear,
    expire,
    observe,
)
from tests.support.judgement import (
    BY_PCI,
    CHECKS,
    FROM_THE_LOG,
    GPU,
    answered,
    at,
    clearances,
    components,
    counter,
    faults,
    finding,
    findings,
    histories,
    history,
    looked,
    outcomes,
)
from tests.support.sampling import examples

GROWN = FindingCode(code="gpu.grown", severity=Severity.CRITICAL, remedy=Remedy.RESET_GPU, meaning="It grew")
LIMIT = Limit(reading="errors_total", max_increase=2, code=GROWN, source="this test")
LONG = timedelta(days=3650)
LAW = settings(max_examples=examples(50))


def ledger(open_before: set[FaultKey], changes: tuple[Change, ...], after: History) -> set[FaultKey]:
    """What is open when a trail of changes is read from the start; names as they are known at its end."""
    keys = {(str(after.names.get(where, where)), code) for where, code in open_before}
    for change in changes:
        key = (str(canonical(after, change.fault.component)), change.fault.code)
        keys = keys | {key} if change.opened else keys - {key}
    return keys


@LAW
@given(histories(), st.lists(outcomes, max_size=5))
def test_folding_is_deterministic_and_touches_nothing(start: History, seen: list[Outcome]) -> None:
    """The same history and outcomes come to the same history and changes, and what went in is as it was."""
    kept = copy.deepcopy(start)
    once = twice = start
    for outcome in seen:
        once, changes = observe(once, outcome, (LIMIT,), outcome.at)
        twice, same = observe(twice, outcome, (LIMIT,), outcome.at)
        assert changes == same
    assert once == twice
    assert start == kept


@LAW
@given(histories(), st.lists(outcomes, max_size=5))
def test_changes_are_a_full_account(start: History, seen: list[Outcome]) -> None:
    """Reading the trail of changes alone tells which faults are open: none opens or ends without a line."""
    for outcome in seen:
        after, changes = observe(start, outcome, (LIMIT,), outcome.at)
        assert ledger(set(start.faults), changes, after) == set(after.faults)
        start = after


@LAW
@given(histories(), st.lists(outcomes, max_size=5))
def test_a_fault_is_kept_under_its_own_name(start: History, seen: list[Outcome]) -> None:
    """After any fold every fault lies under its key, under the best known name of its component, and began before it
    was last seen."""
    for outcome in seen:
        start, _ = observe(start, outcome, (), outcome.at)
    assert all(
        key == fault.key and canonical(start, fault.component) == fault.component for key, fault in start.faults.items()
    )
    assert all(fault.first <= fault.last for fault in start.faults.values())


@LAW
@given(histories(*FROM_THE_LOG), st.sampled_from(CHECKS), st.sampled_from(Status))
def test_age_alone_never_ends_a_fault_from_the_log(start: History, check: str, status: Status) -> None:
    """Ten years of looks that find nothing end no fault that a log line opened."""
    outcome = answered(Result(status=status), check=check)
    after, changes = observe(start, outcome, (), outcome.at + LONG)
    assert (after.faults, changes) == (start.faults, ())


@LAW
@given(faults(*FROM_THE_LOG), findings)
def test_a_later_line_never_weakens_a_fault_from_the_log(first: Fault, line_again: Finding) -> None:
    """Another line of the same code on the same part adds to the fault; what it calls for and what ends it stay."""
    again = replace(line_again, code=first.code, component=first.component)
    outcome = replace(looked(again, check=first.check), at=first.last + LONG)
    start = history(first)
    after, _ = observe(start, outcome, (), outcome.at + LONG)
    known = after.faults[first.key]
    assert REMEDY_RANK[known.remedy] >= REMEDY_RANK[first.remedy]
    assert SEVERITY_RANK[known.severity] >= SEVERITY_RANK[first.severity]
    assert known.clears_by in FROM_THE_LOG
    assert (known.first, known.count > first.count) == (min(first.first, again.time or outcome.at), True)


@LAW
@given(faults(*ClearsBy, None), findings)
def test_an_acknowledgement_does_not_stretch_to_something_worse(first: Fault, more: Finding) -> None:
    """Whoever put the node back has seen what there was: a code that comes to call for more is open again."""
    worse = replace(more, code=first.code, component=first.component)
    assume(
        REMEDY_RANK[worse.remedy] > REMEDY_RANK[first.remedy]
        or SEVERITY_RANK[worse.severity] > SEVERITY_RANK[first.severity]
    )
    start = history(replace(first, acknowledged=True))
    outcome = replace(looked(worse, check=first.check), at=first.last)
    after, _ = observe(start, outcome, (), outcome.at)
    assert not after.faults[first.key].acknowledged


@LAW
@given(histories(None), st.sampled_from(CHECKS), st.sampled_from([Status.UNKNOWN, Status.FINDINGS, Status.OK]))
def test_what_could_not_be_seen_ends_no_level(start: History, check: str, status: Status) -> None:
    """An unknown, or any outcome with a gap, leaves every level open, however much later."""
    undecided = () if status is Status.UNKNOWN else ("gpu:GPU-1 did not answer",)
    outcome = answered(Result(status=status, undecided=undecided), check=check)
    after, changes = observe(start, outcome, (), outcome.at + LONG)
    assert (after.faults, changes) == (start.faults, ())


@LAW
@given(histories(None), st.sampled_from(CHECKS), st.data())
def test_a_look_ends_no_level_that_it_was_not_told_about(start: History, check: str, data: st.DataObject) -> None:
    """Whatever a clear look names as untold stays, and the rest of what its check had open ends."""
    faults = sorted(start.faults.values(), key=lambda fault: fault.key)
    left = data.draw(st.lists(st.sampled_from(faults), unique_by=lambda fault: fault.key)) if faults else []
    looks = judged([], not_reported=[(fault.component, fault.code) for fault in left])
    after, _ = observe(start, answered(looks, check=check), (), at(0))
    stays = {fault.key for fault in left}
    assert set(after.faults) == {key for key, fault in start.faults.items() if fault.check != check or key in stays}


@LAW
@given(histories(None), st.sampled_from(CHECKS))
def test_a_clear_look_ends_exactly_the_levels_of_its_check(start: History, check: str) -> None:
    """A check that saw everything and reports nothing ends its own levels and nobody else's."""
    after, changes = observe(start, answered(ok(), check=check), (), at(0))
    assert set(after.faults) == {key for key, fault in start.faults.items() if fault.check != check}
    assert {change.fault.key for change in changes} == set(start.faults) - set(after.faults)


@LAW
@given(histories(ClearsBy.NOTHING), st.integers(0, 200_000))
def test_news_is_listed_for_a_day(start: History, seconds: int) -> None:
    """News goes a day after it was last heard, and not before."""
    outcome = answered(ok(), check="someone", seconds=seconds)
    after, _ = observe(start, outcome, (), outcome.at)
    young = {key for key, fault in start.faults.items() if outcome.at - fault.last <= NEWS_IS_LISTED_FOR}
    assert set(after.faults) == young


@LAW
@given(histories(), clearances)
def test_evidence_ends_only_what_it_can_prove(start: History, clearance: Clearance) -> None:
    """A clearance ends faults at its place, no newer than itself, that name it or something weaker; levels never."""
    after, changes = clear(start, clearance)
    for change in changes:
        over = change.fault
        assert not change.opened
        assert over.clears_by is not None
        assert clearance.component.kind == "node" or clearance.component == over.component
        assert clearance.time is None or clearance.time >= over.last
        assert not (over.clears_by is ClearsBy.REBOOT and clearance.by in (ClearsBy.JOB_END, ClearsBy.GPU_RESET))
        assert not (over.clears_by is ClearsBy.REPLACE and clearance.by is not ClearsBy.REPLACE)
    assert ledger(set(start.faults), changes, after) == set(after.faults)


@LAW
@given(faults(*FROM_THE_LOG), st.integers(1, 100))
def test_a_fault_after_the_evidence_stays_open(known: Fault, seconds: int) -> None:
    """In one batch, a line that comes after the reset it follows is a new fault: not acknowledged, counted anew."""
    reset = Clearance(by=ClearsBy.REPLACE, time=known.last)
    later = known.last + timedelta(seconds=seconds)
    line = finding(known.code, known.component, clears_by=known.clears_by, time=later)
    outcome = replace(looked(line, check=known.check, clearances=(reset,)), at=later)
    after, changes = observe(history(known), outcome, (), later)
    reborn = after.faults[known.key]
    assert (reborn.first, reborn.count, reborn.acknowledged) == (later, 1, False)
    assert [change.opened for change in changes] == [False, True]


@LAW
@given(faults(*FROM_THE_LOG), st.integers(1, 100))
def test_a_fault_before_the_evidence_is_over(known: Fault, seconds: int) -> None:
    """The same two in the other order leave nothing open."""
    reset = Clearance(by=ClearsBy.REPLACE, time=known.last + timedelta(seconds=seconds))
    line = finding(known.code, known.component, clears_by=known.clears_by, time=known.last)
    outcome = replace(looked(line, check=known.check, clearances=(reset,)), at=known.last + LONG)
    after, _ = observe(history(known), outcome, (), outcome.at)
    assert after.faults == {}


# ---------------------------------------------------------------------------------------------------------------------
# counters

values = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=12)


def raised(series: list[tuple[str, int]]) -> list[bool]:
    """For each value of a counter, whether reading it raised a finding."""
    known, hits = History(), []
    for epoch, value in series:
        outcome = answered(ok([counter(value, epoch=epoch)]))
        known, _ = observe(known, outcome, (LIMIT,), outcome.at)
        hits.append(bool(known.faults))
    return hits


@LAW
@given(values)
def test_a_new_epoch_or_a_reset_never_raises(series: list[tuple[str, int]]) -> None:
    """The first value, the first of an epoch, and one that went backwards are baselines and no findings."""
    for (before, now), hit in zip(zip([("", 0), *series], series, strict=False), raised(series), strict=True):
        assert not hit or (before[0] == now[0] and now[1] > before[1])


@LAW
@given(st.lists(st.integers(0, 9), min_size=2, max_size=12).map(sorted))
def test_growth_beyond_the_limit_is_always_seen(series: list[int]) -> None:
    """Within an epoch no slicing of a growth hides it: more than the limit in all raises at least once."""
    assert any(raised([("a", value) for value in series])) == (series[-1] - series[0] > LIMIT.max_increase)


@LAW
@given(st.sampled_from([float("nan"), float("inf"), -float("inf")]), st.integers(0, 9))
def test_a_value_that_is_no_number_is_no_evidence(odd: float, value: int) -> None:
    """NaN and infinity neither raise a finding nor become a baseline that the store could not keep."""
    start, _ = observe(History(), answered(ok([counter(value)])), (LIMIT,), at(0))
    after, changes = observe(start, answered(ok([counter(odd)])), (LIMIT,), at(1))
    assert (after.baselines, changes) == (start.baselines, ())
    assert observe(History(), answered(ok([counter(odd)])), (LIMIT,), at(0))[0].baselines == {}


# ---------------------------------------------------------------------------------------------------------------------
# names


@LAW
@given(faults(components=st.sampled_from([GPU[0], BY_PCI[0]])), faults(components=st.sampled_from([GPU[0], BY_PCI[0]])))
def test_a_better_name_keeps_exactly_one_fault(one: Fault, other: Fault) -> None:
    """When the UUID behind a PCI address is learned, what was recorded under either name is one fault, and nothing is
    said to have opened or ended."""
    other = replace(other, code=one.code)
    start = history(one, other)
    outcome = answered(ok([counter(0, GPU[0], name="not_judged")]), check="someone")
    after, changes = observe(start, outcome, (), at(0))
    assert changes == ()
    assert set(after.faults) == {(str(GPU[0]), one.code)}
    known = after.faults[str(GPU[0]), one.code]
    assert known.first == min(fault.first for fault in start.faults.values())
    assert known.count == sum(fault.count for fault in start.faults.values())
    assert known.remedy is max((fault.remedy for fault in start.faults.values()), key=REMEDY_RANK.__getitem__)


@LAW
@given(st.lists(st.sampled_from([GPU[0], BY_PCI[0]]), min_size=1, max_size=5), st.integers(0, 4))
def test_a_part_with_two_names_is_one_part(names: list[object], learned: int) -> None:
    """However often a line names the GPU by its address or its UUID, there is one fault and it counts every line."""
    known = History()
    for second, component in enumerate(names):
        line = finding(component=component, clears_by=ClearsBy.REBOOT, time=at(second))  # type: ignore[arg-type]
        identity = (counter(0, GPU[0], name="not_judged"),) if second == learned else ()
        known, _ = observe(known, looked(line, readings=identity, seconds=second), (), at(second))
    known, _ = observe(known, looked(readings=(counter(0, GPU[0], name="not_judged"),)), (), at(9))
    assert [(str(fault.component), fault.count) for fault in known.faults.values()] == [(str(GPU[0]), len(names))]


# ---------------------------------------------------------------------------------------------------------------------
# boots and acknowledgements


@LAW
@given(histories())
def test_a_boot_ends_what_a_boot_ends(start: History) -> None:
    """A new boot id ends all that a reboot proves over; levels, and what only a replacement ends, stay."""
    after, changes = begin_boot(start, "boot-2")
    assert after.boot_id == "boot-2"
    assert all(fault.clears_by in (None, ClearsBy.REPLACE) for fault in after.faults.values())
    assert ledger(set(start.faults), changes, after) == set(after.faults)
    assert {key for key, fault in start.faults.items() if fault.clears_by in (None, ClearsBy.REPLACE)} == set(
        after.faults
    )


@LAW
@given(histories(), st.sampled_from(["boot-1", "", UNKNOWN_BOOT]))
def test_no_new_boot_id_is_no_reboot(start: History, boot_id: str) -> None:
    """The same boot id, or one that could not be read, changes nothing at all, not even for the next good one."""
    assert begin_boot(start, boot_id) == (start, ())


def unmarked(fault: Fault) -> Fault:
    return replace(fault, acknowledged=False, acknowledged_until=None)


@LAW
@given(histories(), st.lists(st.tuples(components.map(str), st.sampled_from(["gpu.ecc", "gpu.xid.79"])), max_size=3))
def test_acknowledging_marks_and_does_nothing_else(start: History, keys: list[FaultKey]) -> None:
    """The named faults are marked, the others are as they were, and what is not open stays not open."""
    after = acknowledge(start, keys)
    assert {key: unmarked(fault) for key, fault in after.faults.items()} == {
        key: unmarked(fault) for key, fault in start.faults.items()
    }
    assert all(
        fault.acknowledged == (start.faults[key].acknowledged or key in keys) for key, fault in after.faults.items()
    )


@LAW
@given(histories(), st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_word_with_an_end_is_over_then_and_only_then(start: History, first: int, second: int) -> None:
    """What has no end, or a later one, stays; looking early or twice changes nothing; only the mark is touched."""
    now = at(max(first, second))
    early, _ = expire(start, at(min(first, second)))
    after, over = expire(start, now)
    assert expire(early, now)[0] == after
    assert expire(after, now) == (after, ())
    for key, fault in start.faults.items():
        ends = fault.acknowledged and fault.acknowledged_until is not None and fault.acknowledged_until <= now
        assert after.faults[key] == (unmarked(fault) if ends else fault)
        assert (fault in over) == ends
        assert bool(acknowledged_text(fault)) == fault.acknowledged


# ---------------------------------------------------------------------------------------------------------------------
# diagnosis


@LAW
@given(histories())
def test_no_fault_is_lost_in_diagnosis(start: History) -> None:
    """Whatever explains whatever, in circles too: each fault is in exactly one diagnosis, once, by its words."""
    found = diagnose(start)
    reasons = [reason for each in found for reason in each.reasons]
    assert sorted(reasons) == sorted(fault.message for fault in start.faults.values())
    assert all(fault.code in {code for each in found for code in each.codes} for fault in start.faults.values())
    assert len({str(each.component) for each in found}) == len(found)


@LAW
@given(histories())
def test_a_diagnosis_calls_for_what_one_of_its_faults_calls_for(start: History) -> None:
    """The remedy is that of its primary fault on its component, and the most far-reaching comes first."""
    found = diagnose(start)
    for each in found:
        primary = start.faults[str(each.component), each.code]
        assert (primary.remedy, primary.message) == (each.remedy, each.reasons[0])
        assert SEVERITY_RANK[each.severity] >= SEVERITY_RANK[primary.severity]
    ranks = [REMEDY_RANK[each.remedy] for each in found]
    assert ranks == sorted(ranks, reverse=True)


@LAW
@given(histories())
def test_what_nothing_explains_is_never_played_down(start: History) -> None:
    """A fault that names no cause counts in full: its component's diagnosis reaches its remedy and severity."""
    found = {str(each.component): each for each in diagnose(start)}
    for fault in start.faults.values():
        if not fault.symptom_of:
            each = found[str(fault.component)]
            assert REMEDY_RANK[each.remedy] >= REMEDY_RANK[fault.remedy]
            assert SEVERITY_RANK[each.severity] >= SEVERITY_RANK[fault.severity]


@LAW
@given(histories(), st.lists(outcomes, max_size=3))
def test_an_unknown_is_never_healthy(start: History, seen: list[Outcome]) -> None:
    """With an unknown or a gap that counts, the verdict is critical or unknown; with neither, never unknown."""
    verdict = judge(diagnose(start), seen)
    blind = any(outcome.result.undecided or outcome.result.status is Status.UNKNOWN for outcome in seen)
    assert (verdict in (Verdict.CRITICAL, Verdict.UNKNOWN)) if blind else (verdict is not Verdict.UNKNOWN)
