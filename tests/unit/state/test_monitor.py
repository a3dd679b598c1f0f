"""What the daemon knows: outcomes folded, kept, and written when the disk allows."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.check import (
    Accelerating,
    Check,
    FindingCode,
    Learned,
    Limit,
    NoSettings,
    Rate,
    Stall,
    not_applicable,
    ok,
)
from healthd.core.model import (
    NODE,
    Clearance,
    ClearsBy,
    Event,
    Finding,
    Outcome,
    Remedy,
    Repeats,
    Result,
    Severity,
    Verdict,
)
from healthd.core.node import Node
from healthd.judge.findings import named_pids
from healthd.notify.news import PAGED
from healthd.notify.node import wrong_with
from healthd.state import monitor as module
from healthd.state.monitor import Monitor, gone_jobs, has_live_job
from healthd.state.store import Store
from tests.support.judgement import (
    BY_PCI,
    GPU,
    START,
    answered,
    at,
    could_not_tell,
    counter,
    fault,
    finding,
    history,
    looked,
)

GROWN = FindingCode(code="gpu.grown", severity=Severity.CRITICAL, remedy=Remedy.RESET_GPU, meaning="Errors grew")
LIMIT = Limit(reading="errors_total", max_increase=0, code=GROWN, source="this test")
LEVEL = FindingCode(code="gpu.less", severity=Severity.WARNING, remedy=Remedy.WATCH, meaning="It is less")
RATE = Rate(reading="errors_total", max_increase=99, window_s=600, code=LEVEL, source="this test")
STALL = Stall(reading="errors_total", for_s=600, code=LEVEL, source="this test")
LEARNED = Learned(reading="errors_total", code=LEVEL, source="this test")
GROWING = Accelerating(reading="errors_total", code=LEVEL, source="this test")
NOTE = Event(at=START, kind="daemon", text="healthd started")


def waiting() -> Finding:
    """A level that counts after a minute."""
    return finding(lasting_s=60)


def never_run(_node: Node, _settings: object) -> Result:
    raise AssertionError("the monitor runs no check")


def a_check(name: str, **changes: object) -> Check:
    plain = Check(name=name, run=never_run, title="", doc="", interval_s=60, timeout_s=10, settings=NoSettings)
    return replace(plain, **changes)


CHECKS = {
    "gpu.look": a_check("gpu.look", limits=(LIMIT,)),
    "host.look": a_check("host.look"),
    "kernel.xid": a_check("kernel.xid", on="kernel"),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / "healthd.db", now=START)
    yield one
    one.close()


def forget_how_to_write(store: Store) -> Callable[[], None]:
    """Make the disk refuse, as SQLite says it; what is returned makes it obey again."""

    def execute() -> None:
        store._db.execute("PRAGMA query_only = 0")

    store._db.execute("PRAGMA query_only = 1")
    return execute


def trail(store: Store) -> list[str]:
    return [event.text for event in store.events()]


# ---------------------------------------------------------------------------------------------------------------------
# folding


def test_an_outcome_becomes_a_diagnosis_a_verdict_and_a_line(store: Store) -> None:
    """One look at a sick GPU: the change is returned, whoever waits is told, and all of it is on disk at once."""
    told: list[str] = []
    monitor = Monitor(CHECKS, store, changed=lambda: told.append("changed"))
    (change,) = monitor.absorb(looked(finding()))
    assert (change.opened, change.fault.code) == (True, "gpu.sick")
    assert [each.code for each in monitor.diagnoses()] == ["gpu.sick"]
    assert monitor.verdict(monitor.outcomes().values()) is Verdict.CRITICAL
    assert [each.code for each in monitor.faults_of("gpu.look")] == ["gpu.sick"]
    assert told == ["changed"]
    assert store.history() == monitor.history
    assert trail(store) == ["gpu.look is findings", "gpu.sick on gpu:GPU-0 opened: gpu.sick on gpu:GPU-0"]


def test_a_check_is_not_ok_while_a_fault_from_the_log_is_open(store: Store) -> None:
    """Batch after batch of the log has nothing new: the trail says that the check is ok once its fault is over."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(looked(finding(clears_by=ClearsBy.REBOOT), check="kernel.xid"))
    for seconds in (10, 20):
        monitor.absorb(looked(check="kernel.xid", seconds=seconds))
    assert not any("is ok" in line for line in trail(store))
    monitor.clear(Clearance(by=ClearsBy.REBOOT, note="rebooted"), at(30))
    monitor.absorb(looked(check="kernel.xid", seconds=40))
    assert trail(store)[-1] == "kernel.xid is ok"


def test_news_keeps_no_check_from_being_ok(store: Store) -> None:
    """News is listed for a day, and was never a state."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(looked(finding(clears_by=ClearsBy.NOTHING), check="kernel.xid"))
    monitor.absorb(looked(check="kernel.xid", seconds=10))
    assert trail(store)[-1] == "kernel.xid is ok"


def test_what_was_read_before_a_pause_is_kept(store: Store) -> None:
    """While healthd does not ask a source, its checks keep what they read last and from when, and are unknown all the
    same; the trail, and what history judges, hear nothing of it."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(answered(ok([counter(1), counter(7, name="other_total")])))
    before = (monitor.history, trail(store))
    for seconds in (60, 120):
        monitor.absorb(could_not_tell(seconds=seconds, reason="paused for 300 s"), paused=True)
    kept = monitor.outcomes()["gpu.look"]
    assert ([each.value for each in kept.result.readings], kept.read_at, kept.at) == ([1, 7], at(0), at(120))
    assert kept.counts_as_unknown
    assert (monitor.history, trail(store)) == before
    monitor.clock_was_set(timedelta(hours=1), at(3720), "the clock was set")
    assert monitor.outcomes()["gpu.look"].read_at == at(3600)
    monitor.absorb(answered(ok([counter(1)]), seconds=3780))
    assert (monitor.outcomes()["gpu.look"].read_at, trail(store)[-1]) == (None, "the clock was set")


def test_what_is_read_in_a_pause_takes_the_place_of_the_old(store: Store) -> None:
    """A check that asks other sources too keeps only what it could not read again; one that saw everything, nothing."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(answered(ok([counter(1), counter(7, name="other_total")])))
    part = looked(readings=[counter(2)], undecided=["NVML is paused"], seconds=60)
    monitor.absorb(part, paused=True)
    assert [each.value for each in monitor.outcomes()["gpu.look"].result.readings] == [2, 7]
    whole = looked(readings=[counter(4), counter(5, name="other_total")], undecided=["NVML is paused"], seconds=80)
    monitor.absorb(whole, paused=True)
    kept = monitor.outcomes()["gpu.look"]
    assert ([each.value for each in kept.result.readings], kept.read_at) == ([4, 5], None)
    monitor.absorb(answered(ok([counter(3)]), seconds=90), paused=True)
    assert [each.value for each in monitor.outcomes()["gpu.look"].result.readings] == [3]


def test_without_a_pause_nothing_is_kept(store: Store) -> None:
    """A source that fails by itself has no values: old ones would look like an answer."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(answered(ok([counter(1)])))
    monitor.absorb(could_not_tell(seconds=60))
    assert monitor.outcomes()["gpu.look"].result.readings == ()
    assert trail(store)[-1] == "gpu.look is unknown: NVML is silent"


def test_the_limits_of_the_check_are_judged(store: Store) -> None:
    """A counter that grows past its check's limit is a fault; the same reading of another check is not."""
    monitor = Monitor(CHECKS, store)
    for value in (0, 1):
        monitor.absorb(answered(ok([counter(value)]), check="host.look"))
        monitor.absorb(answered(ok([counter(value)]), check="no.such.check"))
    assert monitor.diagnoses() == ()
    for value in (5, 6):
        monitor.absorb(answered(ok([counter(value)])))
    assert [each.code for each in monitor.diagnoses()] == ["gpu.grown"]


def test_a_restart_goes_on_where_it_was(store: Store) -> None:
    """Faults, names, baselines, boot and cursor are what they were; outcomes are looked for anew."""
    before = Monitor(CHECKS, store)
    before.begin_boot("boot-1", START)
    fallen = looked(finding("gpu.xid.79", BY_PCI[0], clears_by=ClearsBy.REBOOT), check="kernel.xid")
    before.absorb_batch([fallen], cursor=("b", 7), read_until=START)
    before.absorb(answered(ok([counter(5)])))
    after = Monitor(CHECKS, store)
    assert (after.history, after.boot_id, after.cursor) == (before.history, "boot-1", ("b", 7))
    assert after.cursor_at == START
    assert after.diagnoses() == before.diagnoses()
    assert after.outcomes() == {}


def test_a_new_boot_is_evidence(store: Store) -> None:
    """What a reboot ends is ended, and the trail says by which boots."""
    monitor = Monitor(CHECKS, store)
    monitor.begin_boot("boot-1", START)
    monitor.absorb(looked(finding("gpu.xid.79", clears_by=ClearsBy.REBOOT), check="kernel.xid"))
    monitor.begin_boot("boot-2", at(60))
    assert monitor.diagnoses() == ()
    assert trail(store)[-1] == "gpu.xid.79 on gpu:GPU-0 ended: rebooted: boot id boot-1 became boot-2"


def test_evidence_from_elsewhere_is_applied(store: Store) -> None:
    """The end of a job ends the faults of jobs, and no other."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(looked(finding("gpu.xid.13", clears_by=ClearsBy.JOB_END), finding("level")))
    monitor.clear(Clearance(by=ClearsBy.JOB_END, note="job 7 has ended"), at(60))
    assert [each.code for each in monitor.diagnoses()] == ["level"]
    assert trail(store)[-1] == "gpu.xid.13 on gpu:GPU-0 ended: job 7 has ended"


def test_the_trail_tells_turns_not_runs(store: Store) -> None:
    """A check that says the same again adds no line; one that turns does, with its reason."""
    monitor = Monitor(CHECKS, store)
    for seconds, outcome in enumerate(
        (looked(), looked(), could_not_tell(), could_not_tell(), looked(), answered(not_applicable("no GPU")))
    ):
        monitor.absorb(replace(outcome, at=at(seconds)))
    assert trail(store) == [
        "gpu.look is ok",
        "gpu.look is unknown: NVML is silent",
        "gpu.look is ok",
        "gpu.look is not_applicable: no GPU",
    ]


def test_without_a_store_it_judges_all_the_same() -> None:
    """``healthd check`` without a daemon keeps nothing and knows as much."""
    monitor = Monitor(CHECKS, None)
    monitor.begin_boot("boot-1", START)
    monitor.absorb_batch([looked(finding())], cursor=("boot-1", 3))
    monitor.record(NOTE)
    monitor.flush(at(600))
    assert ([each.code for each in monitor.diagnoses()], monitor.cursor, monitor.store_problem) == (
        ["gpu.sick"], ("boot-1", 3), "",
    )  # fmt: skip


def test_a_verdict_of_some_checks_is_of_their_faults() -> None:
    """Asked about a part, it judges that part: another check's fault or silence does not count, its own does."""
    monitor = Monitor(CHECKS, None)
    for outcome in (looked(finding()), could_not_tell(check="host.look"), answered(ok(), check="kernel.xid")):
        monitor.absorb(outcome)
    known = monitor.outcomes()
    assert {name: monitor.verdict([known[name]]) for name in known} == {
        "gpu.look": Verdict.CRITICAL,
        "host.look": Verdict.UNKNOWN,
        "kernel.xid": Verdict.OK,
    }


def test_threads_that_look_at_once_lose_nothing(store: Store) -> None:
    """Eight threads fold at the same time: every fault is known, and is on disk."""
    monitor = Monitor(CHECKS, store)

    def look(number: int) -> None:
        monitor.absorb(looked(finding(f"code.{number}"), check=f"check.{number}"))

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {fault.code for fault in store.history().faults.values()} == {f"code.{number}" for number in range(8)}


# ---------------------------------------------------------------------------------------------------------------------
# acknowledging and trusting


def test_an_acknowledgement_is_a_persons_order(store: Store) -> None:
    """All that is open on the node is marked, and said; it outlives a restart, and the next fault is not covered."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(looked(finding(), finding("other.part", GPU[1]), readings=[counter(0, GPU[0], name="x")]))
    monitor.acknowledge(by=at(9), now=at(9), why="our drain was undone")
    assert [monitor.is_acknowledged(each) for each in monitor.diagnoses()] == [True, True]
    assert "acknowledged gpu.sick on gpu:GPU-0: our drain was undone" in trail(store)
    again = Monitor(CHECKS, store)
    again.absorb(looked(finding(), finding("other.part", GPU[1]), finding("third.part", GPU[1]), seconds=20))
    assert [again.is_acknowledged(each) for each in again.diagnoses()].count(False) == 1


def test_an_acknowledgement_that_a_further_loss_ends_is_in_the_trail(store: Store) -> None:
    """The engine decides at once, and the operator who acknowledged seven GPUs of eight reads why the node is out."""
    woken = list[int]()
    monitor = Monitor(CHECKS, store, changed=lambda: woken.append(1))
    monitor.absorb(looked(finding(message="7 of 8 GPUs", evidence={"found": 7})))
    monitor.acknowledge_until([("gpu:GPU-0", "gpu.sick")], at(600), at(9), "known (uid 0)")
    woken.clear()
    monitor.absorb(looked(finding(message="7 of 8 GPUs", evidence={"found": 7}), seconds=20))
    assert (woken, [monitor.is_acknowledged(each) for each in monitor.diagnoses()]) == ([], [True])
    monitor.absorb(looked(finding(message="6 of 8 GPUs", evidence={"found": 6}), seconds=40))
    assert (woken, [monitor.is_acknowledged(each) for each in monitor.diagnoses()]) == ([1], [False])
    assert trail(store)[-1] == "no longer acknowledged: gpu.sick on gpu:GPU-0, worse than it was: 6 of 8 GPUs"


def test_a_further_loss_behind_an_acknowledged_cause_is_decided_about(store: Store) -> None:
    """The XID that explains seven GPUs of eight was acknowledged: six keep the node out, and the trail says why."""
    xid = finding("gpu.xid.79", clears_by=ClearsBy.REBOOT)
    lost = finding("gpu.count.off_bus", NODE, symptom_of=("gpu.xid.79",), message="7 of 8", evidence={"found": 7})
    monitor = Monitor(CHECKS, store)
    monitor.absorb(looked(xid, lost))
    monitor.acknowledge(by=at(9), now=at(9), why="known")
    assert monitor.still_open() == ""
    monitor.absorb(looked(xid, replace(lost, message="6 of 8", evidence={"found": 6}), seconds=20))
    assert monitor.still_open() == "gpu.xid.79 on gpu:GPU-0 is still open"
    assert "no longer acknowledged: gpu.count.off_bus on node, worse than it was: 6 of 8" in trail(store)


def test_a_word_with_an_end_outlives_a_restart_and_ends(store: Store) -> None:
    """It holds in the next daemon, ends at its time whether or not a check looks, and both are in the trail."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb(looked(finding(), finding("other.part", GPU[1])))
    monitor.acknowledge_until([("gpu:GPU-0", "gpu.sick"), ("gpu:GPU-9", "no.such")], at(600), at(9), "known (uid 0)")
    again, woken = Monitor(CHECKS, store, changed=lambda: woken.append(1)), list[int]()
    again.flush(at(599))
    assert [again.is_acknowledged(each) for each in again.diagnoses()].count(True) == 1
    assert woken == []
    again.flush(at(600))
    assert [again.is_acknowledged(each) for each in again.diagnoses()] == [False, False]
    assert woken == [1]
    told = [event.text for event in store.events() if "acknowledged" in event.text]
    assert told == [
        "acknowledged gpu.sick on gpu:GPU-0 until 2026-01-01 00:10:00 UTC: known (uid 0)",
        "no longer acknowledged: gpu.sick on gpu:GPU-0, until 2026-01-01 00:10:00 UTC",
    ]
    assert not any(fault.acknowledged for fault in store.history().faults.values())


def test_an_acknowledgement_is_ended_by_command(store: Store) -> None:
    """Also one that was to last until the fault ends; the trail says who ended it, and the engine is woken."""
    monitor, woken = Monitor(CHECKS, store, changed=lambda: woken.append(1)), list[int]()
    monitor.absorb(looked(finding()))
    monitor.acknowledge(by=at(1), now=at(1), why="released by force")
    woken.clear()
    monitor.acknowledge_until([("gpu:GPU-0", "gpu.sick")], at(9), at(9), "the wrong node (uid 0)")
    assert [monitor.is_acknowledged(each) for each in monitor.diagnoses()] == [False]
    assert woken
    assert [event.text for event in store.events()][-2:] == [
        "gpu.sick on gpu:GPU-0 counts again: the wrong node (uid 0)",
        "no longer acknowledged: gpu.sick on gpu:GPU-0, until 2026-01-01 00:00:09 UTC",
    ]


def test_a_release_by_force_says_more_than_a_word_with_an_end() -> None:
    """An operator who forces the node back is outcome until the fault ends, and not for a time alone."""
    monitor = Monitor(CHECKS, None)
    monitor.absorb(looked(finding()))
    monitor.acknowledge_until([("gpu:GPU-0", "gpu.sick")], at(600), at(9), "known")
    monitor.acknowledge(by=at(10), now=at(10), why="released by force")
    monitor.flush(at(9999))
    assert [monitor.is_acknowledged(each) for each in monitor.diagnoses()] == [True]


def test_undoing_our_drain_acknowledges_what_was_known_then_and_a_critical_fault_for_a_time(store: Store) -> None:
    """The fault in the reason, whenever it was seen, and what was open by then; not what opened while the node was out.
    A word that holds for longer stands."""
    monitor = Monitor(CHECKS, store)
    warm = finding("gpu.warm", GPU[1], severity=Severity.WARNING)
    known, longer = finding("gpu.known", GPU[1]), finding("gpu.vendor", GPU[1])
    monitor.absorb(looked(warm, known, longer, seconds=1))
    monitor.acknowledge_until([("gpu:GPU-1", "gpu.vendor")], at(99_999), at(2), "ticket 12")
    monitor.absorb(looked(warm, known, longer, finding(), finding("gpu.later"), seconds=5))
    until = at(600)
    monitor.acknowledge_shown("gpu.sick", "gpu:GPU-0", by=at(3), until=until, now=at(9), why="our drain was undone")
    faults = {fault.code: fault for fault in monitor.history.faults.values()}
    assert {code: fault.acknowledged for code, fault in faults.items()} == {
        "gpu.warm": True,
        "gpu.known": True,
        "gpu.vendor": True,
        "gpu.sick": True,
        "gpu.later": False,
    }
    ends = {code: fault.acknowledged_until for code, fault in faults.items() if fault.acknowledged}
    assert ends == {"gpu.warm": None, "gpu.known": until, "gpu.sick": until, "gpu.vendor": at(99_999)}
    told = [event.text for event in store.events() if "was undone" in event.text]
    assert "acknowledged gpu.known on gpu:GPU-1 until 2026-01-01 00:10:00 UTC: our drain was undone" in told
    assert "acknowledged gpu.warm on gpu:GPU-1: our drain was undone" in told
    assert len(told) == 3


def test_noise_after_an_order_does_not_undo_it() -> None:
    """A job's XID on a GPU that a person put back calls for nothing; a new fault of the GPU does."""
    monitor = Monitor({}, None)
    monitor.absorb(looked(finding("gpu.xid.79", clears_by=ClearsBy.REBOOT), check="kernel.xid"))
    monitor.acknowledge(by=at(1), now=at(1), why="resumed by an admin")
    job = ClearsBy.JOB_END
    noise = finding("gpu.xid.13", severity=Severity.WARNING, remedy=Remedy.RESTART_APP, clears_by=job)
    monitor.absorb(looked(noise, check="kernel.xid"))
    assert [monitor.is_acknowledged(each) for each in monitor.diagnoses()] == [True]
    assert monitor.trouble(at(2)) == ""
    monitor.absorb(looked(finding("gpu.xid.95", clears_by=ClearsBy.GPU_RESET), check="kernel.xid"))
    assert [monitor.is_acknowledged(each) for each in monitor.diagnoses()] == [False]


def all_looked(monitor: Monitor, seconds: float) -> None:
    for name in CHECKS:
        monitor.absorb(answered(ok(), check=name, seconds=seconds))


def test_a_node_is_trusted_when_every_check_has_looked_since() -> None:
    """Interval checks must have run after the moment that counts; a kernel check speaks only when there is a record."""
    monitor = Monitor(CHECKS, None)
    assert monitor.trouble(START) == "gpu.look has not run since 00:00:00"
    all_looked(monitor, 10)
    assert monitor.trouble(at(5)) == ""
    assert monitor.trouble(at(61)) == "gpu.look has not run since 00:01:01"
    monitor.absorb(looked(seconds=70))
    assert monitor.trouble(at(61)) == "host.look has not run since 00:01:01"
    monitor.absorb(looked(check="host.look", seconds=70))
    assert monitor.trouble(at(61)) == ""


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (could_not_tell(seconds=20), "gpu.look is unknown: NVML is silent"),
        (looked(undecided=("gpu:GPU-1 did not answer",), seconds=20), "gpu.look is unknown: gpu:GPU-1 did not answer"),
        (looked(finding(), seconds=20), "gpu.sick on gpu:GPU-0 is still open"),
        (looked(finding(remedy=Remedy.ASK_HUMAN), seconds=20), "gpu.sick on gpu:GPU-0 is still open"),
        (looked(finding(remedy=Remedy.ASK_HUMAN, severity=Severity.WARNING), seconds=20), ""),
        (replace(could_not_tell(seconds=20), optional=True), ""),
        (answered(not_applicable("no GPU"), seconds=20), ""),
    ],
)
def test_what_keeps_a_node_from_being_trusted(outcome: Outcome, words: str) -> None:
    """What takes a node out keeps it out, and so does what could not be told, unless it is optional."""
    monitor = Monitor(CHECKS, None)
    all_looked(monitor, 10)
    monitor.absorb(outcome)
    assert monitor.trouble(START) == words


# ---------------------------------------------------------------------------------------------------------------------
# keeping


def test_a_disk_that_refuses_is_said_and_caught_up_with(store: Store) -> None:
    """Faults, cursor and lines of the trail wait in memory, in order, and are written together when it can be."""
    monitor = Monitor(CHECKS, store)
    execute = forget_how_to_write(store)
    monitor.absorb_batch(
        [looked(finding("gpu.xid.79", clears_by=ClearsBy.REBOOT), check="kernel.xid")], cursor=("boot-1", 7)
    )
    monitor.record(NOTE)
    assert "the state was not written: attempt to write a readonly database" in monitor.store_problem
    assert [each.code for each in monitor.diagnoses()] == ["gpu.xid.79"]
    assert (trail(store), store.history().faults, store.cursor()) == ([], {}, None)
    execute()
    monitor.flush(at(1))
    assert monitor.store_problem == ""
    assert store.history() == monitor.history
    assert store.cursor() == ("boot-1", 7)
    assert trail(store) == [
        "kernel.xid is findings",
        "gpu.xid.79 on gpu:GPU-0 opened: gpu.xid.79 on gpu:GPU-0",
        "healthd started",
    ]


def test_a_store_that_does_not_last_is_a_problem_however_well_it_writes(store: Store) -> None:
    """It is in memory while the state directory refuses: an operator is paged for that, as for one that fails."""
    monitor = Monitor({}, store, unkept="the state directory is read-only")
    monitor.record(NOTE)
    monitor.flush(START)
    assert monitor.store_problem == "the state directory is read-only"
    (page,) = [topic for topic in wrong_with(monitor, None, Severity.CRITICAL) if topic.key.startswith(PAGED)]
    assert page.message.endswith("the state directory is read-only")


def test_a_fault_that_came_and_went_while_the_disk_refused_leaves_its_lines(store: Store) -> None:
    """Nothing is open in the end, and the trail still tells both."""
    monitor = Monitor(CHECKS, store)
    execute = forget_how_to_write(store)
    monitor.absorb(looked(finding()))
    monitor.absorb(looked(seconds=60))
    execute()
    monitor.flush(at(61))
    assert store.history().faults == {}
    assert [text.split(":")[0] for text in trail(store)] == [
        "gpu.look is findings", "gpu.sick on gpu", "gpu.look is ok", "gpu.sick on gpu",
    ]  # fmt: skip


def test_memory_is_bounded_and_the_trail_says_what_it_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest lines are kept, and the number of those that had to go is written first."""
    monkeypatch.setattr(module, "_PENDING_EVENTS", 3)
    monitor = Monitor(CHECKS, store)
    execute = forget_how_to_write(store)
    for number in range(5):
        monitor.record(replace(NOTE, text=f"line {number}"))
    execute()
    monitor.flush(at(1))
    monitor.record(NOTE)
    assert trail(store) == [
        "2 older lines of this audit trail are lost: memory was full while the disk refused them",
        "line 2",
        "line 3",
        "line 4",
        "healthd started",
    ]


def statements(store: Store) -> list[str]:
    """Every statement that the database runs from now on."""
    seen: list[str] = []
    store._db.set_trace_callback(seen.append)
    return seen


def test_a_look_that_tells_nothing_new_writes_nothing(store: Store) -> None:
    """An idle node's disk is left alone: no transaction for a clean look, and none for an empty batch of the log."""
    monitor = Monitor(CHECKS, store)
    all_looked(monitor, 0)
    monitor.absorb(answered(ok([counter(1)])))
    seen = statements(store)
    for seconds in (1, 2, 3):
        monitor.absorb(answered(ok([counter(1)]), seconds=seconds))
        monitor.absorb_batch([answered(ok(), check="kernel.xid", seconds=seconds)], cursor=("boot-1", seconds))
        monitor.flush(at(seconds))
    assert seen == []
    assert monitor.cursor == ("boot-1", 3)


def test_what_lives_in_memory_only_writes_nothing(store: Store) -> None:
    """Windows, days under way and faults that wait to last are followed at every look without a write."""
    monitor = Monitor({"gpu.look": a_check("gpu.look", limits=(RATE, STALL, GROWING))}, store)
    monitor.absorb(looked(waiting(), readings=[counter(1)]))
    seen = statements(store)
    for second in range(1, 60):
        monitor.absorb(looked(waiting(), readings=[counter(1 + second)], seconds=second))
        monitor.flush(at(second))
    assert seen == []
    assert monitor.history.rates["gpu:GPU-0", "errors_total"].marks[-1][1] == 60


def test_what_was_learned_and_counted_by_day_outlives_a_restart(store: Store) -> None:
    """The highest value, the days and what repeats are on disk; what waits to last begins anew."""
    checks = {"gpu.look": a_check("gpu.look", limits=(LEARNED, GROWING))}
    monitor = Monitor(checks, store)
    monitor.begin_instance("i-1", START)
    once = replace(waiting(), code="x", lasting_s=0, repeats=Repeats(times=2, window_s=60))
    for day in range(3):
        monitor.absorb(looked(waiting(), once, readings=[counter(5 * day)], seconds=86_400 * day))
    again = Monitor(checks, store)
    assert again.history == monitor.history
    assert [count for _, count in again.history.days["gpu:GPU-0", "errors_total"].closed] == [5, 5]
    assert (again.history.learned["gpu:GPU-0", "errors_total"].value, len(again.history.sightings)) == (10, 1)
    assert again.diagnoses() == monitor.diagnoses()


def test_another_instance_learns_anew(store: Store) -> None:
    """A disk that moved to another machine brings neither heights nor faults of the log along."""
    monitor = Monitor({"gpu.look": a_check("gpu.look", limits=(LEARNED,))}, store)
    monitor.begin_instance("i-1", START)
    monitor.absorb(looked(finding("gpu.xid.79", clears_by=ClearsBy.REPLACE), readings=[counter(32)]))
    monitor.begin_instance("", at(1))
    assert len(monitor.diagnoses()) == 1
    monitor.begin_instance("i-2", at(2))
    monitor.absorb(answered(ok([counter(8)]), seconds=3))
    assert (monitor.diagnoses(), store.history().instance_id) == ((), "i-2")
    assert trail(store)[-2].endswith("ended: instance i-1 became i-2")


def test_a_person_makes_it_learn_anew(store: Store) -> None:
    """What the next look sees is right, the trail says who said so, and the fault ends by that look."""
    monitor = Monitor({"gpu.look": a_check("gpu.look", limits=(LEARNED,))}, store)
    for seconds, value in ((0, 32), (1, 31)):
        monitor.absorb(answered(ok([counter(value)]), seconds=seconds))
    assert [each.code for each in monitor.diagnoses()] == ["gpu.less"]
    assert list(monitor.learned(["gpu.look"])) == [("gpu:GPU-0", "errors_total")]
    assert [best.value for best in monitor.relearn(["gpu.look"], at(2), "a device went").values()] == [32]
    assert trail(store)[-1] == "healthd relearn: a device went; forgotten: errors_total 32 of gpu:GPU-0"
    assert store.history().learned == {}
    monitor.absorb(answered(ok([counter(31)]), seconds=3))
    assert monitor.diagnoses() == ()
    assert monitor.relearn([], at(4), "again") == {}
    assert monitor.history.learned != {}
    assert trail(store)[-1] == "healthd relearn: again; forgotten: nothing"


def test_what_waits_is_no_finding_and_its_reason_says_so(store: Store) -> None:
    """Neither a verdict nor a diagnosis knows of it before it has lasted; the trail tells the turn."""
    monitor = Monitor(CHECKS, store)
    for seconds, verdict in ((0, Verdict.OK), (59, Verdict.OK), (60, Verdict.CRITICAL)):
        monitor.absorb(looked(waiting(), seconds=seconds))
        assert monitor.verdict(monitor.outcomes().values()) is verdict
    assert trail(store) == [
        "gpu.look is ok: gpu.sick on gpu:GPU-0 does not count yet",
        "gpu.look is findings",
        "gpu.sick on gpu:GPU-0 opened: gpu.sick on gpu:GPU-0",
    ]


def test_the_cursor_is_written_once_a_minute(store: Store) -> None:
    """A log without findings moves the cursor on disk from time to time, by a look or by the clock."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb_batch([answered(ok(), check="kernel.xid")], cursor=("boot-1", 1))
    monitor.absorb_batch([answered(ok(), check="kernel.xid", seconds=59)], cursor=("boot-1", 2))
    assert store.cursor() == ("boot-1", 1)
    monitor.flush(at(60))
    assert store.cursor() == ("boot-1", 1)
    monitor.flush(at(61))
    assert store.cursor() == ("boot-1", 2)


def test_the_time_until_which_the_log_was_judged(store: Store) -> None:
    """It stays where a batch was no whole look, and moves with the clock: later lines are judged after a crash."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb_batch([answered(ok(), check="kernel.xid")], cursor=("boot-1", 1))
    assert monitor.cursor_at is None
    monitor.absorb_batch([answered(ok(), check="kernel.xid")], cursor=("boot-1", 2), read_until=at(5))
    monitor.absorb_batch([answered(ok(), check="kernel.xid", seconds=30)], cursor=("boot-1", 3))
    assert monitor.cursor_at == at(5)
    monitor.clock_was_set(timedelta(hours=1), at(3700), "the clock was set")
    assert {monitor.cursor_at, store.cursor_at()} == {at(3605)}


def test_a_cursor_never_gets_ahead_of_its_findings(store: Store) -> None:
    """Where the save of a finding fails the cursor stays behind it, so a restart reads the line again."""
    monitor = Monitor(CHECKS, store)
    monitor.absorb_batch([answered(ok(), check="kernel.xid")], cursor=("boot-1", 1))
    with sqlite3.connect(store.path) as other:
        other.execute("CREATE TRIGGER spite BEFORE INSERT ON fault BEGIN SELECT RAISE(ABORT, 'no faults today'); END")
    other.close()
    monitor.absorb_batch([looked(finding(), check="kernel.xid", seconds=90)], cursor=("boot-1", 2))
    monitor.flush(at(200))
    assert "no faults today" in monitor.store_problem
    assert (store.cursor(), store.history().faults) == (("boot-1", 1), {})


# ---------------------------------------------------------------------------------------------------------------------
# jobs that ended


def of_job(code: str, where: object = GPU[0], **evidence: object) -> object:
    return fault(code, where, clears_by=ClearsBy.JOB_END, evidence=evidence)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("faults", "alive", "cleared"),
    [
        ([of_job("a", pid=1)], set(), [("gpu:GPU-0", "process 1 has ended")]),
        ([of_job("a", pid=1)], {1}, []),
        ([of_job("a", pid=1, pids=[1, 2])], {2}, []),
        ([of_job("a", pid=1, pids=[2, 1])], set(), [("gpu:GPU-0", "process 1, 2 has ended")]),
        ([of_job("a", pid=1), of_job("b", pid=2)], {2}, []),
        ([of_job("a", pid=1), of_job("b", GPU[1], pid=2)], {2}, [("gpu:GPU-0", "process 1 has ended")]),
        ([of_job("a", pid=1), of_job("b")], set(), []),
        ([of_job("a", pid="<unknown>")], set(), []),
        ([of_job("a", NODE, pid=1), of_job("b", pid=2)], {2}, []),
        (
            [of_job("a", NODE, pid=1), of_job("b", pid=2)],
            set(),
            [("node", "process 1, 2 has ended"), ("gpu:GPU-0", "process 2 has ended")],
        ),
        ([fault("level", evidence={"pid": 1}), fault("x", clears_by=ClearsBy.REBOOT, evidence={"pid": 1})], set(), []),
        ([], set(), []),
    ],
)
def test_a_jobs_faults_are_over_when_all_its_processes_are(faults: list, alive: set, cleared: list) -> None:  # type: ignore[type-arg]
    """One that lives, or that no line named, keeps the faults of its part; another part's do not wait for it."""
    known = history(*faults)
    given = gone_jobs(known, alive.__contains__)
    assert [(str(each.component), each.note) for each in given] == cleared
    assert all(each.by is ClearsBy.JOB_END for each in given)
    assert has_live_job(known, alive.__contains__) == any(
        pid in alive for each in faults if each.clears_by is ClearsBy.JOB_END for pid in named_pids(each.evidence)
    )


def test_a_check_that_was_turned_off_takes_its_faults_along(store: Store) -> None:
    """A false alarm that an operator disabled keeps no node out: its fault ends, with the reason in the trail."""
    Monitor(CHECKS, store).absorb(looked(finding(), check="gpu.look"))
    left = {name: check for name, check in CHECKS.items() if name != "gpu.look"}
    monitor = Monitor(left, store)
    assert monitor.diagnoses()
    monitor.retire(at(60))
    assert monitor.diagnoses() == ()
    assert trail(store)[-1] == "gpu.sick on gpu:GPU-0 ended: its check is no longer enabled"
    assert Monitor(CHECKS, store).diagnoses() == ()


def test_a_rule_that_was_taken_away_takes_its_faults_along(store: Store) -> None:
    """A fault from the log would stay until a reboot, although the operator saw that its rule was wrong. A fault of a
    rule that is still there stays, and so does one of a check whose codes no setting gives."""
    rules = {"gpu.look": a_check("gpu.look"), "kernel.rules": a_check("kernel.rules")}
    monitor = Monitor(rules, store)
    for code in ("site.wrong", "site.right"):
        monitor.absorb(looked(finding(code, clears_by=ClearsBy.REBOOT), check="kernel.rules"))
    monitor.absorb(looked(finding(), check="gpu.look"))
    monitor.retire(at(60), {"kernel.rules": {"site.right"}})
    assert {code for _, code in monitor.history.faults} == {"site.right", "gpu.sick"}
    assert trail(store)[-1] == "site.wrong on gpu:GPU-0 ended: the configuration no longer has its rule or plug-in"


# ---------------------------------------------------------------------------------------------------------------------
# the clock


def test_after_the_clock_was_set_nothing_is_younger_or_older_than_it_is(store: Store) -> None:
    """Outcomes, counts and faults move with it, the trail says why and keeps its times, and a restart knows it all."""
    monitor = Monitor({"gpu.look": a_check("gpu.look")}, store)
    monitor.begin_boot("boot-1", at(0))
    monitor.absorb(looked(finding(clears_by=ClearsBy.GPU_RESET), seconds=7200))
    monitor.clock_was_set(timedelta(hours=-1), at(3630), "the clock was set back by 3600 s")
    assert monitor.outcomes()["gpu.look"].at == at(3600)
    assert monitor.stats.runs["gpu.look"].told == at(3600)
    assert trail(store)[-1] == "the clock was set back by 3600 s"
    (kept,) = Monitor({"gpu.look": a_check("gpu.look")}, store).history.faults.values()
    assert (kept.first, kept.last) == (at(3600), at(3600))


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_clock_that_was_set_back_while_no_daemon_ran_leaves_no_time_to_come(store: Store, boot: str) -> None:
    """The last daemon saw a wrong clock, a day ahead. Evidence of today ends its faults, and lines of today repeat."""
    ahead = 86_400
    over = finding("gpu.over", clears_by=ClearsBy.REPLACE)
    again = finding("gpu.again", clears_by=ClearsBy.REPLACE, repeats=Repeats(times=2, window_s=600))
    monitor = Monitor(CHECKS, store)
    monitor.begin_boot("boot-1", at(ahead))
    monitor.absorb(looked(over, again, check="kernel.xid", seconds=ahead))
    after = Monitor(CHECKS, store)
    after.begin_boot(boot, at(60))
    evidence = Clearance(by=ClearsBy.REPLACE, component=GPU[0], time=at(70), code="gpu.over")
    after.absorb(looked(again, clearances=[evidence], check="kernel.xid", seconds=70))
    assert {code for _, code in after.history.faults} == {"gpu.again"}


def test_news_of_a_clock_that_was_ahead_is_listed_for_a_day(store: Store) -> None:
    """A day from now on, not until that clock's tomorrow."""
    monitor = Monitor(CHECKS, store)
    monitor.begin_boot("boot-1", at(9e6))
    monitor.absorb(looked(finding(clears_by=ClearsBy.NOTHING), check="kernel.xid", seconds=9e6))
    after = Monitor(CHECKS, store)
    after.begin_boot("boot-1", at(60))
    after.absorb(looked(seconds=86_461))
    assert after.history.faults == {}
