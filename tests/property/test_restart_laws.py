"""A law of the daemon's life: a restart, at whatever moment, changes nothing of what is judged afterwards.

The days hold findings of every kind, some of which must repeat, counters, boots, other machines, GPUs that were
exchanged, a clock that was set, and the operator's acknowledgements. Rates, standstills and holds of seconds begin
again with the daemon, and are no part of this.
"""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.check import Accelerating, Check, FindingCode, Learned, Limit, NoSettings, judged, ok
from healthd.core.model import Finding, Outcome, Remedy, Repeats, Result, Severity, gpu_component
from healthd.core.node import Node
from healthd.judge.history import History
from healthd.state.monitor import Monitor
from healthd.state.store import IN_MEMORY, Store
from tests.support.judgement import CHECKS, PCI, answered, at, clearances, counter, findings, readings
from tests.support.sampling import examples

HOUR = timedelta(hours=1)
GROWN = FindingCode(code="gpu.grown", severity=Severity.CRITICAL, remedy=Remedy.RESET_GPU, meaning="It grew")
LIMITS = (
    Limit(reading="errors_total", max_increase=2, code=GROWN, source="this test"),
    Learned(reading="errors_total", code=replace(GROWN, code="gpu.fewer"), source="this test"),
    Accelerating(reading="errors_total", code=replace(GROWN, code="gpu.faster"), source="this test"),
)


def never_run(_node: Node, _settings: object) -> Result:
    raise AssertionError("the monitor runs no check")


KNOWN = {
    name: Check(
        name=name, run=never_run, title="", doc="", interval_s=60, timeout_s=1, settings=NoSettings, limits=LIMITS
    )
    for name in CHECKS
}


class Step(Struct, frozen=True, kw_only=True):
    """What happens so many seconds after the step before: an event, and then the outcome of a check run."""

    after_s: int
    event: str
    check: str
    result: Result


repeating = st.builds(
    lambda each, number: replace(each, code=f"again.{number}", repeats=Repeats(times=2 + number, window_s=4000.0)),
    findings,
    st.integers(0, 2),
)
steps = st.builds(
    Step,
    after_s=st.integers(1, 4000),
    event=st.sampled_from(["", "restart", "boot", "machine", "other GPUs", "acknowledged", "clock on", "clock back"]),
    check=st.sampled_from(CHECKS),
    result=st.builds(
        lambda found, read, over, gaps: judged(found, read, clearances=over, undecided=gaps),
        st.lists(findings | repeating, max_size=3),
        st.lists(readings, max_size=2),
        st.lists(clearances, max_size=2),
        st.lists(st.just("gpu:GPU-1 did not answer"), max_size=1),
    ),
)


class Days:
    """The days of one node, whose daemon restarts where the steps say so, or never."""

    def __init__(self, *, restarts: bool) -> None:
        self.store, self.restarts = Store(IN_MEMORY, now=at(0)), restarts
        self.now, self.boots, self.machines = at(100_000), 1, 1
        self.monitor = self.started()

    def started(self) -> Monitor:
        monitor = Monitor(KNOWN, self.store)
        monitor.retire(self.now, {})
        monitor.begin_instance(f"i-{self.machines}", self.now)
        monitor.begin_boot(f"boot-{self.boots}", self.now)
        return monitor

    def go_on(self, step: Step) -> None:
        self.now += timedelta(seconds=step.after_s)
        match step.event:
            case "restart" if self.restarts:
                self.monitor = self.started()
            case "boot":
                self.booted()
            case "machine":
                self.machines += 1
                self.monitor.begin_instance(f"i-{self.machines}", self.now)
            case "other GPUs":
                self.booted()
                parts = [gpu_component(uuid=f"GPU-{self.boots}-{pci}", pci=pci) for pci in PCI]
                named = answered(ok([counter(0, part, name="not_judged") for part in parts]), check="gpu.look")
                self.monitor.absorb(replace(named, at=self.now))
            case "acknowledged":
                self.monitor.acknowledge(by=self.now, now=self.now, why="known")
            case "clock on" | "clock back":
                by = HOUR if step.event == "clock on" else -HOUR
                self.now += by
                self.monitor.clock_was_set(by, self.now, "the clock was set")
        self.monitor.absorb(self.seen(step))

    def booted(self) -> None:
        self.boots += 1
        self.monitor.begin_boot(f"boot-{self.boots}", self.now)

    def seen(self, step: Step) -> Outcome:
        """The outcome, in which nothing is of later than now: no record is."""
        result = replace(
            step.result,
            findings=tuple(dated(each, self.now) for each in step.result.findings),
            clearances=tuple(
                replace(each, time=each.time and min(each.time, self.now)) for each in step.result.clearances
            ),
        )
        return Outcome(check=step.check, result=result, at=self.now, duration_s=0.1)


def dated(each: Finding, now: datetime) -> Finding:
    return replace(each, time=each.time and min(each.time, now))


def history_after(some: list[Step], *, restarts: bool) -> History:
    days = Days(restarts=restarts)
    with closing(days.store):
        for step in some:
            days.go_on(step)
    return days.monitor.history


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(steps, max_size=14))
def test_a_restart_changes_nothing_of_what_is_judged(some: list[Step]) -> None:
    """Every fault, its times, counts and acknowledgement, every baseline and every name are the same."""
    assert history_after(some, restarts=True) == history_after(some, restarts=False)
