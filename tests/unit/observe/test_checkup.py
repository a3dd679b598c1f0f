"""Batches of log lines and single check runs: what is judged, saved and shown, also where a check fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from healthd.agent.agent import reading_agent
from healthd.config.load import load
from healthd.core.check import discover, judged, ok, unknown
from healthd.core.model import ClearsBy, Outcome, Reading, Result, Status
from healthd.core.node import Node, ProbeState
from healthd.observe.checkup import Checkup
from healthd.sim.machine import SimulatedMachine
from healthd.sources.nvml import NvmlSource
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.support.judgement import GPU, START, counter, finding, kernel_says
from tests.support.limits import limit_s

LINES, CLOCK = "kernel.host", "host.clock"


class CountingStore(Store):
    """A store that counts what is saved together."""

    saves = 0

    def save_history(self, *args: Any, **kwargs: Any) -> None:
        """Save, and count."""
        self.saves += 1
        super().save_history(*args, **kwargs)


def of_lines(node: Node, _settings: Any) -> Result:
    """A finding for each line; a check with a defect, which "odd" meets."""
    for record in node.kernel_records:
        if "odd" in record.text:
            raise KeyError(record.text)
    return judged(finding(record.text, time=record.time, clears_by=ClearsBy.REBOOT) for record in node.kernel_records)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    made = CountingStore(tmp_path / "healthd.db", now=START)
    yield made
    made.close()


@pytest.fixture
def checkup(tmp_path: Path, store: CountingStore) -> Iterator[Checkup]:
    """Of every kernel check, one of which has a defect, and one other check."""
    checks = {name: check for name, check in discover().items() if check.on == "kernel" or name == CLOCK}
    checks[LINES] = structs.replace(checks[LINES], run=of_lines)
    settings = {name: check.settings for name, check in discover().items()}
    agent = reading_agent(load(SimulatedMachine(tmp_path / "machine").config, checks=settings, environ={}).config)
    monitor = Monitor(checks, store)
    made = Checkup(
        checks=checks, settings=agent.config.checks, machine=agent.machine, monitor=monitor, source="daemon", workers=1
    )
    yield made
    made.close()
    agent.close()


def runs(checkup: Checkup, result: Result) -> Outcome:
    """The outcome of the other check, where it returns this."""

    def run(_node: Node, _settings: Any) -> Result:
        return result

    checkup.checks = {**checkup.checks, CLOCK: structs.replace(checkup.checks[CLOCK], run=run)}
    return checkup.start(CLOCK).result(timeout=limit_s(30))


def open_codes(checkup: Checkup) -> set[str]:
    return {fault.code for fault in checkup.monitor.history.faults.values()}


def test_a_batch_is_saved_at_once(checkup: Checkup, store: CountingStore) -> None:
    """Its findings and its cursor are on disk together, whichever checks found them: no kill comes between."""
    before = store.saves
    lines = kernel_says("a.line", "NVRM: Xid (PCI:0000:05:00): 94, pid=1, name=python3, contained")
    checkup.judge_kernel(lines, ("boot", 2), until=START)
    assert store.saves == before + 1
    assert {code for _, code in store.history().faults} == open_codes(checkup) >= {"a.line", "gpu.xid.94"}
    assert (store.cursor(), store.cursor_at()) == (("boot", 2), START)


def test_a_line_that_a_check_fails_on_takes_no_other_with_it(checkup: Checkup) -> None:
    """The other lines are judged, by this check too; the trail and the outcome name the line."""
    checkup.judge_kernel(kernel_says("a.line", "an odd line", "another.line"), ("boot", 3))
    assert open_codes(checkup) == {"a.line", "another.line"}
    result = checkup.monitor.outcomes()[LINES].result
    assert result.status is Status.UNKNOWN
    assert result.reason.startswith("1 log lines were not judged, the last one 'an odd line': the check failed: KeyErr")
    assert checkup.monitor.outcomes()["kernel.xid"].result.status is Status.OK


def test_a_log_that_cannot_be_read_is_no_run_without_findings(checkup: Checkup) -> None:
    """The kernel checks are unknown then, in their counts too; what was read before that is judged."""
    unread = "/dev/kmsg: Input/output error"
    checkup.judge_kernel((), None, unread=unread)
    assert checkup.monitor.outcomes()["kernel.xid"].result == unknown(unread)
    counted = checkup.monitor.stats.runs["kernel.xid"]
    assert (counted.total, counted.unknown, counted.told) == (1, 1, None)
    checkup.judge_kernel(kernel_says("a.line"), ("boot", 1), unread=unread)
    assert open_codes(checkup) == {"a.line"}


def test_a_check_that_reads_none_of_the_lines_does_not_run_again(checkup: Checkup) -> None:
    """One that found nothing the last time: it counts as run, so that no alert takes it for silent."""
    seen, own, other = list[list[str]](), kernel_says("a.line"), kernel_says("NVRM: loading")

    def run(node: Node, settings: Any) -> Result:
        seen.append([record.text for record in node.kernel_records])
        return of_lines(node, settings) if own[0] in node.kernel_records else judged(())

    checkup.checks = {**checkup.checks, LINES: structs.replace(checkup.checks[LINES], run=run, needles=("^a.line",))}
    for records in ((), (), other):
        checkup.judge_kernel(records, None)
    assert seen == [[]]
    assert checkup.monitor.stats.runs[LINES].total == 3
    assert checkup.monitor.outcomes()[LINES].at > other[0].time
    for records in (own, other, other, [structs.replace(other[0], source="journal")], other * 9):
        checkup.judge_kernel(records, None)
    assert seen[1:] == [["a.line"], ["NVRM: loading"], ["NVRM: loading"], ["NVRM: loading"] * 9]
    checkup.checks = {**checkup.checks, LINES: structs.replace(checkup.checks[LINES], needles=())}
    checkup.judge_kernel((), None)
    checkup.judge_kernel([structs.replace(other[0], source="journal")], None)
    assert len(seen) == 6, "a line of the journal is of no kernel needle"
    assert open_codes(checkup) == {"a.line"}


def test_a_past_batch_says_nothing_about_the_checks(checkup: Checkup) -> None:
    """Its findings count; no check has run by it."""
    checkup.judge_kernel(kernel_says("a.line"), None, past=True)
    assert (open_codes(checkup), checkup.monitor.outcomes()) == ({"a.line"}, {})


def test_a_reading_that_is_no_number_makes_its_check_unknown(checkup: Checkup) -> None:
    """A plug-in's None; history is never asked to compare it."""
    odd: Any = None
    outcome = runs(checkup, ok([Reading(component=GPU[0], name="gpu_fans", value=odd)]))
    assert outcome.result.status is Status.UNKNOWN
    assert "gpu_fans of gpu:GPU-0 is None; expected a number; this is a defect of host.clock" in outcome.result.reason


def test_an_outcome_that_cannot_be_judged_is_unknown(checkup: Checkup) -> None:
    """A defect, here a limit of no known kind, is named where the operator looks for the check's state."""
    odd: Any = "no limit"
    check = checkup.checks[CLOCK]
    checkup.monitor = Monitor({**checkup.checks, CLOCK: structs.replace(check, limits=(odd,))}, None)
    outcome = runs(checkup, ok([counter(1)]))
    assert outcome.result.status is Status.UNKNOWN
    assert outcome.result.reason.startswith("the outcome could not be judged: AttributeError: 'str' object has no")


def test_a_pause_of_nvml_outlives_the_daemon(checkup: Checkup, store: CountingStore) -> None:
    """It is as long as it would have been. One that is over, and one of an earlier boot, does not come back."""
    lines = kernel_says("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    checkup.monitor.begin_boot("boot", START)
    checkup.judge_kernel(lines, ("boot", 1))
    asked = checkup.machine.nvml.state()

    def again(after_s: float, boot_id: str = "boot") -> ProbeState:
        checkup.monitor = Monitor(checkup.checks, store)
        checkup.machine = structs.replace(checkup.machine, nvml=NvmlSource())
        checkup.monitor.begin_boot(boot_id, START)
        checkup.pause_nvml_again(START + timedelta(seconds=after_s))
        return checkup.machine.nvml.state()

    assert asked.reason == again(100).reason == "paused for 300 s after gpu.xid.79"
    assert 190 < again(100).paused_s <= 200
    assert [each.paused_s for each in (again(301), again(-5), again(100, "next"))] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("reason", "events"), [("nvml probe: paused after a storm; not asked", 1), ("ntp is gone", 2)])
def test_only_what_the_pause_causes_is_kept_quiet(
    checkup: Checkup, store: CountingStore, reason: str, events: int
) -> None:
    """While NVML is paused, another check may be unknown for a reason of its own."""

    class Paused:
        def state(self) -> ProbeState:
            return ProbeState(paused_s=200.0, reason="paused after a storm")

        def close(self) -> None:
            """Nothing to close."""

    checkup.machine = structs.replace(checkup.machine, nvml=Paused())
    runs(checkup, ok())
    runs(checkup, unknown(reason))
    assert len([event for event in store.events() if event.text.startswith(CLOCK)]) == events


def test_a_pause_that_begins_while_a_check_waits_keeps_its_readings(checkup: Checkup) -> None:
    """NVML hangs before the line of the GPU's firmware comes: the checks that wait for it then get the pause."""
    states = [ProbeState(), ProbeState(), ProbeState(), ProbeState(paused_s=300.0, reason="paused after a storm")]

    class Hanging:
        def state(self) -> ProbeState:
            return states.pop(0)

        def close(self) -> None:
            """Nothing to close."""

    checkup.machine = structs.replace(checkup.machine, nvml=Hanging())
    runs(checkup, ok([counter(5)]))
    runs(checkup, unknown("nvml probe: paused after a storm; not asked"))
    assert [each.value for each in checkup.monitor.outcomes()[CLOCK].result.readings] == [5]
