"""What must last, or repeat, before it counts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.check import Check, FindingCode, NoSettings
from healthd.core.model import Clearance, ClearsBy, Outcome, Remedy, Repeats, Result, Severity, Status, Verdict
from healthd.core.node import Node
from healthd.judge.diagnose import diagnose
from healthd.judge.findings import seen_once
from healthd.judge.history import History, counted, observe
from healthd.state.monitor import Monitor
from tests.support.judgement import BY_PCI, GPU, at, could_not_tell, counter, finding, fold, looked

DOWN = FindingCode(
    code="lustre.disconnected",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="An import is not FULL",
    lasting_s=120,
)
FLAPS = FindingCode(
    code="lustre.flapping",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The connection comes and goes",
    repeats=Repeats(times=3, window_s=600),
)
ACROSS_JOBS = replace(
    FLAPS,
    code="gpu.xid.13.repeated",
    clears_by=ClearsBy.GPU_RESET,
    repeats=Repeats(times=3, window_s=600, distinct="pids"),
)


def down(seconds: float, **result: Any) -> Outcome:
    return looked(DOWN.at(GPU[0], "DISCONN"), seconds=seconds, **result)


def flap(seconds: float, code: FindingCode = FLAPS, **evidence: Any) -> Outcome:
    return looked(code.at(GPU[0], "lost", time=at(seconds), **evidence), seconds=seconds)


def raised(*outcomes: Outcome) -> list[bool]:
    """After which of these looks a fault was open."""
    known, hits = History(), []
    for outcome in outcomes:
        known, _ = observe(known, outcome, (), outcome.at)
        hits.append(bool(known.faults))
    return hits


# ---------------------------------------------------------------------------------------------------------------------
# lasting


def test_a_fault_that_must_last_counts_when_it_has() -> None:
    """Reported at every look for two minutes, it opens; before, it is in no diagnosis."""
    assert raised(down(0), down(60), down(119), down(120), down(180), looked(seconds=240)) == [
        False, False, False, True, True, False,
    ]  # fmt: skip
    assert diagnose(fold(History(), [down(0), down(60)])) == ()


def test_a_look_without_it_begins_anew() -> None:
    """Two minutes with a good look between are not two minutes; of another check's look nothing is meant."""
    assert raised(down(0), down(60), looked(seconds=90), down(120), down(180), down(240))[-3:] == [False, False, True]
    assert raised(down(0), looked(check="other.look", seconds=60), down(120)) == [False, False, True]


def test_a_look_that_could_not_tell_is_no_look() -> None:
    """Unknown, or a gap, neither ends the wait nor makes it longer."""
    blind = looked(undecided=("mount:/fsx did not answer",), seconds=60)
    assert raised(down(0), could_not_tell(seconds=30), blind, down(120)) == [False, False, False, True]


def test_an_open_fault_need_not_last_again() -> None:
    """A restart forgets since when: what is open stays open while it is reported."""
    known = fold(History(), [down(0), down(120)])
    assert len(fold(replace(known, lasting={}), [down(180)]).faults) == 1


def test_a_clock_that_goes_back_makes_nothing_last() -> None:
    """An hour back is no hour of lasting."""
    assert raised(down(0), down(-3600), down(60)) == [False, False, False]


def test_the_wait_follows_a_better_name() -> None:
    """Seen under a PCI address first, then under the UUID: one wait."""
    first = looked(DOWN.at(BY_PCI[0], "DISCONN"))
    assert raised(first, down(120)) == [False, True]


# ---------------------------------------------------------------------------------------------------------------------
# repeating


def test_a_level_that_must_repeat_lives_as_long_as_its_window() -> None:
    """The third within ten minutes opens it; clean looks end it once the window holds fewer."""
    looks = [flap(0), flap(100), flap(200), looked(seconds=300), looked(seconds=600), looked(seconds=601)]
    assert raised(*looks) == [False, False, True, True, True, False]


def test_a_level_and_a_line_of_one_code_may_come_at_once() -> None:
    """The line has repeated often enough and is open; the level of the same run begins to be counted."""
    line = finding(FLAPS.code, clears_by=ClearsBy.REBOOT, repeats=Repeats(times=1, window_s=600))
    known = fold(History(), [looked(line, FLAPS.at(GPU[0], "lost"))])
    assert [each.clears_by for each in known.faults.values()] == [ClearsBy.REBOOT]


def test_slow_repeats_do_not_count() -> None:
    """Three in three windows are three times nothing."""
    assert not any(raised(flap(0), flap(500), flap(1000), flap(1500)))


def test_another_check_does_not_end_it() -> None:
    """Only its own check's looks do, and only when they saw everything."""
    known = fold(History(), [flap(0), flap(100), flap(200)])
    later = [looked(check="other.look", seconds=9000), could_not_tell(seconds=9001)]
    assert len(fold(known, later).faults) == 1
    assert fold(known, [looked(seconds=9000)]).faults == {}


def test_a_folded_burst_counts_as_often_as_it_says() -> None:
    """Lines that a check folded into one finding are as many sightings; a count of no sense is one."""
    assert raised(flap(0, count=3)) == [True]
    assert raised(flap(0, count=2), flap(1, count=0), flap(2, count="many")) == [False, True, True]


def test_the_log_may_be_read_late() -> None:
    """Lines are placed by their own time: three old ones are over as a level, and held as a fault of the log."""
    late = looked(*(FLAPS.at(GPU[0], "lost", time=at(second)) for second in (0, 1, 2)), seconds=9000)
    assert raised(late) == [False]
    jobs = (ACROSS_JOBS.at(GPU[0], "lost", time=at(second), pids=[second]) for second in (2, 0, 1))
    assert raised(looked(*jobs, seconds=9000)) == [True]


def test_distinct_values_count_once_each() -> None:
    """The same XID in one job a hundred times is one job; in three jobs it is the GPU."""
    same = [flap(second, ACROSS_JOBS, pids=[7]) for second in range(5)]
    assert not any(raised(*same))
    assert raised(*same, flap(10, ACROSS_JOBS, pids=[8, 9]))[-1]
    assert not any(raised(*(flap(second, ACROSS_JOBS) for second in range(5))))
    assert not any(raised(*(flap(second, ACROSS_JOBS, pids=[]) for second in range(5))))
    single = replace(ACROSS_JOBS, repeats=Repeats(times=2, window_s=600, distinct="pid"))
    assert raised(flap(0, single, pid=1), flap(1, single, pid=1), flap(2, single, pid=2)) == [False, False, True]


def test_a_fault_of_the_log_ends_by_evidence_and_must_then_repeat_as_often_again() -> None:
    """Clean looks do not end it; while it is open each line adds to it; after a reset one more line is one."""
    known = fold(History(), [flap(second, ACROSS_JOBS, pids=[second]) for second in (0, 1, 2)])
    known = fold(known, [looked(seconds=10**6), flap(10**6 + 1, ACROSS_JOBS, pids=[9], count=4)])
    assert [(each.count, each.last) for each in known.faults.values()] == [(5, at(10**6 + 1))]
    reset = Clearance(by=ClearsBy.GPU_RESET, component=GPU[0], time=at(10**6 + 2))
    known = fold(known, [looked(clearances=(reset,), seconds=10**6 + 2)])
    assert (known.faults, known.sightings) == ({}, {})
    assert fold(known, [flap(10**6 + 3, ACROSS_JOBS, pids=[10])]).faults == {}


def test_sightings_are_kept_and_bounded_and_forgotten() -> None:
    """As many as the rule needs, for as long as its window: what is stored does not grow with the log."""
    known = fold(History(), [flap(second) for second in range(100)])
    assert len(known.sightings["gpu:GPU-0", "lustre.flapping"].seen) == 3
    assert fold(known, [looked(check="other.look", seconds=701)]).sightings == {}


# ---------------------------------------------------------------------------------------------------------------------
# as people see it


def test_what_waits_is_named_and_is_no_finding() -> None:
    """The outcome is ok, or unknown where it has gaps, and its reason says what does not count yet."""
    words = "lustre.disconnected on gpu:GPU-0 does not count yet"
    for outcome, status, reason in (
        (down(0), Status.OK, words),
        (down(0, undecided=("no answer",)), Status.UNKNOWN, f"no answer; {words}"),
        (looked(DOWN.at(GPU[0], "DISCONN"), finding(component=GPU[1])), Status.FINDINGS, words),
    ):
        known, _ = observe(History(), outcome, (), outcome.at)
        result = counted(known, outcome).result
        assert (result.status, result.reason) == (status, reason)
        assert [str(each.component) for each in result.findings] == ["gpu:GPU-1"] * len(known.faults)


def test_what_counts_is_shown_as_it_is() -> None:
    """Open faults, and outcomes with nothing that waits, are not touched."""
    known = fold(History(), [down(0), down(120)])
    for outcome in (down(180), looked(), looked(finding())):
        assert counted(known, outcome) == outcome


@pytest.mark.parametrize(
    ("severity", "remedy", "shown"),
    [
        (Severity.CRITICAL, Remedy.REBOOT_NODE, (Severity.WARNING, Remedy.WATCH)),
        (Severity.WARNING, Remedy.WATCH, (Severity.WARNING, Remedy.WATCH)),
        (Severity.INFO, Remedy.NONE, (Severity.INFO, Remedy.NONE)),
    ],
)
def test_who_looks_once_sees_a_warning_at_most(
    severity: Severity, remedy: Remedy, shown: tuple[Severity, Remedy]
) -> None:
    """It cannot be told whether it lasts: shown, with how long it would have to, and never refusing a job."""
    found = seen_once(replace(DOWN, severity=severity, remedy=remedy).at(GPU[0], "DISCONN"))
    assert ((found.severity, found.remedy), found.lasting_s) == (shown, 0)
    assert found.message == "DISCONN (seen once; it counts after 120 s)"


def test_what_need_not_last_is_the_same_once_and_ever() -> None:
    """Only a code that must last is softened."""
    found = FLAPS.at(GPU[0], "lost")
    assert seen_once(found) is found


def never_run(_node: Node, _settings: object) -> Result:
    raise AssertionError("the monitor runs no check")


def test_a_run_without_a_daemon_warns() -> None:
    """``healthd check --no-daemon`` says what it saw, and passes the node."""
    check = Check(
        name="gpu.look",
        run=never_run,
        title="",
        doc="",
        interval_s=60,
        timeout_s=10,
        settings=NoSettings,
        codes=(DOWN,),
    )
    monitor = Monitor({"gpu.look": check}, None)
    monitor.absorb(down(0))
    assert [(each.code, each.severity, each.remedy) for each in monitor.diagnoses()] == [
        ("lustre.disconnected", Severity.WARNING, Remedy.WATCH)
    ]
    assert monitor.verdict(monitor.outcomes().values()) is Verdict.WARNING


def test_nothing_else_waits() -> None:
    """A finding without either counts at once, beside one that waits."""
    known = fold(History(), [looked(finding(), DOWN.at(GPU[0], "DISCONN"), readings=[counter(1)])])
    assert set(known.faults) == {("gpu:GPU-0", "gpu.sick")}
