"""A probe and its real worker process: deadlines, deaths, back-off, pause, and what never happens twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from healthd.core.errors import SourceBusy, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.probe.child import kill_group
from healthd.probe.supervise import IdleWorkers, Probe
from tests.support.limits import limit_s
from tests.support.running import ROOT


class Clock(Protocol):
    now: float

    def __call__(self) -> float: ...

    def advance(self, seconds: float) -> None: ...


@pytest.fixture
def make(odd_family: str, clock: Clock) -> Iterator[Callable[..., Probe]]:
    probes: list[Probe] = []

    def build(*arguments: str, **settings: Any) -> Probe:
        probes.append(Probe("odd", module=odd_family, arguments=arguments, **{"clock": clock, **settings}))
        return probes[-1]

    yield build
    for probe in probes:
        probe.close()


def ask(probe: Probe, op: str, deadline_s: float = limit_s(5.0), **args: Any) -> Any:
    return probe.request(op, args, deadline_s=deadline_s)


class Waiting:
    """A question that is out, once this is entered, and stays so until it ``may_end``."""

    def __init__(self, probe: Probe, folder: Path, deadline_s: float = limit_s(60.0)) -> None:
        self.caught: list[Exception] = []
        self._probe, self._deadline_s = probe, deadline_s
        self._begun, self._until = folder / "begun", folder / "until"
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Waiting:
        self._thread.start()
        while not self._begun.exists():
            assert self._thread.is_alive(), self.caught
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.may_end()
        self._thread.join()

    def may_end(self) -> None:
        self._until.touch()

    def ends(self) -> Exception:
        """By itself, with this."""
        self._thread.join(limit_s(5))
        (why,) = self.caught
        return why

    def _ask(self) -> None:
        try:
            ask(self._probe, "wait", deadline_s=self._deadline_s, begun=str(self._begun), until=str(self._until))
        except (SourceBusy, SourceTimeout) as error:
            self.caught.append(error)


def freeze(pid: int) -> None:
    """What a kill comes to in uninterruptible sleep: the process neither runs nor ends."""
    os.kill(pid, signal.SIGSTOP)


def test_an_answer_comes_back_as_it_was_given(make: Callable[..., Probe]) -> None:
    """Values cross both pipes unchanged, and the same worker answers again."""
    probe = make()
    assert ask(probe, "echo", text="ü\n", numbers=[1, 2.5, None]) == {"text": "ü\n", "numbers": [1, 2.5, None]}
    assert ask(probe, "pid") == ask(probe, "pid") == probe.worker_pid()
    assert probe.state().restarts == 0


@pytest.mark.parametrize("error", [SourceMissing, SourceUnreadable, SourceBusy, SourceTimeout])
def test_a_source_error_crosses_in_its_own_class(make: Callable[..., Probe], error: type[Exception]) -> None:
    """What an op raises arrives with the same class and the same text, and counts as an answer."""
    probe = make()
    with pytest.raises(error, match=r"^/fsx: it is not there$"):
        ask(probe, "raise", error=error.__name__, text="/fsx: it is not there")
    assert probe.state().stalled_s == 0.0
    assert probe.worker_pid() is not None


def test_silence_ends_at_the_deadline_and_with_the_worker(
    make: Callable[..., Probe], workers: Callable[[], list[int]]
) -> None:
    """A question without an answer raises SourceTimeout at its deadline, and its worker is dead when it does."""
    probe = make()
    ask(probe, "echo")
    began = time.monotonic()
    with pytest.raises(SourceTimeout, match=r"no answer to 'sleep' within 0.3 s; worker \d+ was killed"):
        ask(probe, "sleep", deadline_s=0.3, seconds=60)
    assert 0.3 <= time.monotonic() - began < limit_s(3.0)
    assert workers() == []


def test_a_stall_lasts_until_the_next_answer(make: Callable[..., Probe], clock: Clock) -> None:
    """stalled_s counts from the first unanswered question over refusals and restarts, and the next answer ends it."""
    probe = make()
    with pytest.raises(SourceTimeout):
        ask(probe, "sleep", deadline_s=0.5, seconds=60)
    clock.advance(0.5)
    with pytest.raises(SourceBusy, match="restarting in"):
        ask(probe, "echo")
    clock.advance(19.5)
    assert probe.state().stalled_s == 20.0
    with pytest.raises(SourceTimeout):
        ask(probe, "sleep", deadline_s=0.5, seconds=60)
    clock.advance(10)
    assert probe.state().stalled_s == 30.0
    assert "no answer to 'sleep'" in probe.state().reason
    assert ask(probe, "echo") == {}
    assert (probe.state().stalled_s, probe.state().reason, probe.state().restarts) == (0.0, "", 2)


def test_a_machine_that_stood_still_is_no_silent_library(make: Callable[..., Probe], clock: Clock) -> None:
    """A question that was out while the whole machine stood still counts as silence for its deadline: the library did
    not keep silent for longer."""
    probe = make()

    def stand_still() -> None:
        while probe.worker_pid() is None:
            time.sleep(0.001)
        clock.advance(25)

    standstill = threading.Thread(target=stand_still)
    standstill.start()
    with pytest.raises(SourceTimeout):
        ask(probe, "sleep", deadline_s=1.0, seconds=60)
    standstill.join()
    assert clock.now == 1025.0
    assert probe.state().stalled_s == 1.0


def test_a_crash_is_unreadable_and_the_next_worker_answers(make: Callable[..., Probe], clock: Clock) -> None:
    """SIGSEGV in the library ends the worker only; after the back-off another one answers."""
    probe = make()
    with pytest.raises(SourceUnreadable, match=r"died of signal 11 before it answered 'segfault'"):
        ask(probe, "segfault")
    clock.advance(1)
    assert ask(probe, "echo", a=1) == {"a": 1}


def test_a_worker_that_crashes_is_not_silent(make: Callable[..., Probe], clock: Clock) -> None:
    """Crash after crash, with the refusals of the back-off between them, never adds up to a stall; nor does what was
    silence before it."""
    probe = make()
    with pytest.raises(SourceTimeout):
        ask(probe, "sleep", deadline_s=0.3, seconds=60)
    for _ in range(8):
        clock.advance(60)
        with pytest.raises(SourceUnreadable):
            ask(probe, "segfault")
        with pytest.raises(SourceBusy, match="restarting in"):
            ask(probe, "echo")
        assert probe.state().stalled_s == 0.0


def test_the_back_off_doubles_up_to_a_minute_and_an_answer_resets_it(make: Callable[..., Probe], clock: Clock) -> None:
    """After each loss in a row the next start waits 1, 2, 4 … 60 s; one answer starts over at 1 s."""
    probe = make()
    for wait_s in (1, 2, 4, 8, 16, 32, 60, 60):
        with pytest.raises(SourceUnreadable):
            ask(probe, "segfault")
        clock.advance(wait_s - 0.5)
        with pytest.raises(SourceBusy, match=r"restarting in .* died of signal 11"):
            ask(probe, "echo")
        clock.advance(0.5)
    assert ask(probe, "echo") == {}
    with pytest.raises(SourceUnreadable):
        ask(probe, "segfault")
    clock.advance(1)
    assert ask(probe, "echo") == {}


def test_a_worker_that_is_lost_for_days_is_still_said_to_be(make: Callable[..., Probe], clock: Clock) -> None:
    """The two thousandth loss in a row is told as the first was, and the next start waits for a minute."""
    probe = make()
    probe._losses = 1999  # a driver that hangs over a weekend
    with pytest.raises(SourceTimeout, match="no answer to 'sleep'"):
        ask(probe, "sleep", deadline_s=0.3, seconds=60)
    clock.advance(59.5)
    with pytest.raises(SourceBusy, match="restarting in"):
        ask(probe, "echo")
    assert probe.state().stalled_s == 59.5
    clock.advance(0.5)
    assert ask(probe, "echo") == {}


def test_garbage_on_the_pipe_is_unreadable(make: Callable[..., Probe], workers: Callable[[], list[int]]) -> None:
    """A line that is not an answer ends the worker: nothing it says after that can be trusted."""
    probe = make()
    with pytest.raises(SourceUnreadable, match="something that is not an answer"):
        ask(probe, "garbage")
    assert workers() == []


def test_what_a_library_prints_is_not_an_answer(make: Callable[..., Probe]) -> None:
    """Standard output of the worker is not the pipe of the answers."""
    assert ask(make(), "print") == "printed"


def test_a_defect_in_the_worker_is_reported_with_its_last_words(make: Callable[..., Probe]) -> None:
    """An exception that is no SourceError ends the worker, and its text reaches the caller."""
    with pytest.raises(SourceUnreadable, match=r"exited with 1 .*RuntimeError: the odd library lost its mind"):
        ask(make(), "defect")


def test_a_worker_that_cannot_begin_says_why(make: Callable[..., Probe]) -> None:
    """A failure before the first question is an unreadable source with the reason, not a time-out."""
    with pytest.raises(SourceUnreadable, match=r"libodd\.so: cannot open shared object file"):
        ask(make("broken"), "echo")


def test_a_worker_that_does_not_die_is_abandoned(
    make: Callable[..., Probe], clock: Clock, workers: Callable[[], list[int]]
) -> None:
    """A worker that SIGKILL does not end is counted and not waited on, and no second one starts before it is gone."""
    probe = make(kill=freeze)
    pid = ask(probe, "pid")
    began = time.monotonic()
    with pytest.raises(SourceTimeout, match="has not died"):
        ask(probe, "sleep", deadline_s=0.2, seconds=60)
    assert time.monotonic() - began < limit_s(3.0)
    try:
        for _ in range(3):
            clock.advance(100)
            with pytest.raises(SourceBusy, match=rf"worker {pid} was killed and still lives"):
                ask(probe, "echo")
            assert workers() == [pid]
        assert probe.state().abandoned == 1
    finally:
        kill_group(pid)
    while probe.state().abandoned:
        time.sleep(0.01)
    second = ask(probe, "pid")
    assert second != pid
    kill_group(second)


_RELOADED = """
import os, signal, sys
from healthd.core.errors import SourceBusy, SourceTimeout
from healthd.daemon.service_manager import Signals
from healthd.probe.supervise import Probe
from healthd.sources.command import abandoned, adopt_children

def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    os.environ["STOPPED"] = str(pid)

adopt_children()
probe, other = (Probe(name, module=sys.argv[1], kill=stop) for name in ("odd", "other"))
try:
    probe.request("sleep", {"seconds": 60}, deadline_s=2.0)
except (SourceBusy, SourceTimeout) as error:
    print(type(error).__name__, f"worker {os.environ['STOPPED']} was killed and" in str(error), flush=True)
print(other.request("echo", {}, deadline_s=60.0), flush=True)
if "busy" not in os.environ.get("SEEN", ""):
    os.environ["SEEN"] = "busy" if "SEEN" in os.environ else "first"
    signals = Signals("", None, dict)
    signals.reloads = True
    signals.start_again()
os.kill(int(os.environ["STOPPED"]), signal.SIGKILL)
while probe.state().abandoned:
    abandoned()
print(probe.request("echo", {}, deadline_s=60.0))
"""


def test_a_worker_that_does_not_die_is_known_after_each_reload(odd_family: str, tmp_path: Path) -> None:
    """What starts again in the daemon's process starts no second worker beside it for as long as it lives. Another
    probe has its own."""
    script = tmp_path / "reloaded.py"
    script.write_text(_RELOADED)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))}
    argv = [sys.executable, str(script), odd_family]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit_s(90), check=False)
    busy = ["SourceBusy True", "{}"]
    assert done.stdout.splitlines() == ["SourceTimeout True", "{}", *busy, *busy, "{}"], done.stderr


def test_one_question_at_a_time(make: Callable[..., Probe], tmp_path: Path) -> None:
    """A second caller waits for the first one's answer up to its own deadline, then hears that it was not asked."""
    probe = make()
    with Waiting(probe, tmp_path) as first:
        with pytest.raises(SourceBusy, match=r"an earlier question has no answer after 0\.1 s; not asked"):
            ask(probe, "echo", deadline_s=0.1)
        first.may_end()
        assert ask(probe, "echo") == {}


def test_a_late_turn_is_not_taken_for_a_hang(make: Callable[..., Probe], tmp_path: Path) -> None:
    """A caller whose turn comes with less than half its time left is not asked, and the worker is not killed for it."""
    probe = make()
    pid = ask(probe, "pid")
    with Waiting(probe, tmp_path) as first:
        threading.Timer(1.4, first.may_end).start()
        with pytest.raises(SourceBusy, match="this one was not asked"):
            ask(probe, "echo", deadline_s=2.0)
    assert ask(probe, "pid") == pid
    assert probe.state().stalled_s == 0.0


def test_many_callers_never_have_two_workers(make: Callable[..., Probe], workers: Callable[[], list[int]]) -> None:
    """With time-outs and crashes from several threads at once, /proc never shows two live workers."""
    probe = make(clock=time.monotonic)
    assert ask(probe, "pid") in workers()
    seen = [len(workers())]
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append(len(workers()))
            time.sleep(0.01)

    def use(op: str) -> None:
        for _ in range(4):
            try:
                ask(probe, op, deadline_s=0.25, seconds=60)
            except (SourceBusy, SourceTimeout, SourceUnreadable):
                time.sleep(0.02)

    threads = [threading.Thread(target=use, args=(op,)) for op in ("sleep", "echo", "segfault", "echo")]
    watcher = threading.Thread(target=watch)
    watcher.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    watcher.join()
    assert max(seen) == 1


def test_a_pause_refuses_and_ends_by_itself(make: Callable[..., Probe], clock: Clock) -> None:
    """While paused nothing is asked and the reason is told; a shorter pause does not end a longer one."""
    probe = make()
    probe.pause(60, "XID 119 on 0000:53:00")
    probe.pause(1, "a shorter one")
    clock.advance(20)
    with pytest.raises(SourceBusy, match="probe: XID 119 on 0000:53:00; not asked"):
        ask(probe, "echo")
    assert (probe.state().paused_s, probe.state().reason) == (40.0, "XID 119 on 0000:53:00")
    assert probe.worker_pid() is None
    clock.advance(40)
    assert ask(probe, "echo") == {}
    assert probe.state().paused_s == 0.0


def test_a_pause_ends_when_what_it_was_for_is_over(make: Callable[..., Probe], clock: Clock) -> None:
    """By its reason: a longer one of somebody else's stays."""
    probe = make()
    probe.pause(330, "the GPUs are being reset")
    probe.resume("XID 119")
    assert probe.state().paused_s == 330.0
    probe.resume("the GPUs are being reset")
    assert probe.state().paused_s == 0.0


def begin(probe: Probe) -> None:
    probe.pause(300, "XID 119")


def end(probe: Probe) -> None:
    probe.resume("XID 119")


@pytest.mark.parametrize("acts", [(begin,), (begin, end), (Probe.close,)])
def test_what_was_silence_before_a_pause_is_none_after_it(
    make: Callable[..., Probe], clock: Clock, acts: tuple[Callable[[Probe], None], ...]
) -> None:
    """A pause, its end, and an end of the worker on purpose start the count anew: nothing was asked meanwhile."""
    probe = make()
    with pytest.raises(SourceTimeout):
        ask(probe, "sleep", deadline_s=0.3, seconds=60)
    clock.advance(10)
    assert probe.state().stalled_s == 10.0
    for act in acts:
        act(probe)
    clock.advance(300)
    assert probe.state().stalled_s == 0.0
    with pytest.raises(SourceTimeout):
        ask(probe, "sleep", deadline_s=0.3, seconds=60)
    clock.advance(5)
    assert probe.state().stalled_s == 5.0


def test_a_resume_for_another_reason_forgets_no_silence(make: Callable[..., Probe], clock: Clock) -> None:
    """Only what was paused can be resumed."""
    probe = make()
    with pytest.raises(SourceTimeout):
        ask(probe, "sleep", deadline_s=0.3, seconds=60)
    clock.advance(10)
    probe.resume("the GPUs are being reset")
    assert probe.state().stalled_s == 10.0


def test_a_question_that_was_out_when_the_pause_began_is_no_stall_after_it(
    make: Callable[..., Probe], clock: Clock, tmp_path: Path
) -> None:
    """Its deadline passes in the pause, which is there because NVML was likely to hang."""
    probe = make()
    ask(probe, "echo")
    with Waiting(probe, tmp_path, deadline_s=1.0) as question:
        begin(probe)
        assert isinstance(question.ends(), SourceTimeout)
    clock.advance(301)
    assert probe.state().stalled_s == 0.0


def test_a_worker_that_outlives_the_pause_is_a_stall_again(make: Callable[..., Probe], clock: Clock) -> None:
    """What SIGKILL does not end still hangs: its silence is counted from the first refusal after the pause."""
    probe = make(kill=freeze)
    pid = ask(probe, "pid")
    try:
        with pytest.raises(SourceTimeout, match="has not died"):
            ask(probe, "sleep", deadline_s=0.2, seconds=60)
        begin(probe)
        clock.advance(301)
        with pytest.raises(SourceBusy, match="still lives"):
            ask(probe, "echo")
        clock.advance(25)
        assert probe.state().stalled_s == 25.0
    finally:
        kill_group(pid)
    while probe.state().abandoned:
        time.sleep(0.01)


def test_closing_ends_the_worker_and_the_next_question_starts_another(
    make: Callable[..., Probe], has_ended: Callable[..., bool]
) -> None:
    """Before a GPU reset nothing of ours may hold the driver; afterwards it works without a back-off."""
    probe = make()
    pid = ask(probe, "pid")
    probe.close()
    assert has_ended(pid, within_s=0.0) or not Path(f"/proc/{pid}").exists()
    assert ask(probe, "pid") != pid


@pytest.mark.parametrize("idle", [None, IdleWorkers()])
def test_after_its_end_no_question_starts_a_worker(
    idle: IdleWorkers | None, make: Callable[..., Probe], workers: Callable[[], list[int]]
) -> None:
    """A check that is still under way at the end of healthd asks on: a worker that it started would be ended by none,
    and hold the driver."""
    probe = make(idle=idle)
    ask(probe, "pid")
    asked: list[Exception] = []

    def use() -> None:
        while not asked:
            try:
                ask(probe, "echo")
            except SourceBusy as error:
                asked.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    time.sleep(0.1)
    probe.end()
    if idle is not None:
        idle.close()
    thread.join(limit_s(10))
    assert "healthd is closing it; not asked" in str(asked[0]) or "ended the worker on purpose" in str(asked[0])
    probe.begin()
    with pytest.raises(SourceBusy, match="healthd is closing it; not asked"):
        ask(probe, "echo")
    assert workers() == []


def test_closing_under_a_question_is_no_crash(make: Callable[..., Probe], tmp_path: Path) -> None:
    """A question that is out when the worker is closed is told so: no stall, no back-off."""
    probe = make()
    with Waiting(probe, tmp_path) as question:
        began = time.monotonic()
        probe.close()
        assert "ended the worker on purpose" in str(question.ends())
        assert time.monotonic() - began < limit_s(3.0)
    assert probe.state().stalled_s == 0.0
    assert ask(probe, "echo") == {}


def test_a_worker_that_starts_while_its_probe_is_closed_ends(odd_family: str, workers: Callable[[], list[int]]) -> None:
    """The question may have passed every refusal before the close, and its worker begin after it."""
    closing: list[threading.Thread] = []

    def clock() -> float:
        """Close the probe once the question is under way, at its last look at the clock before a worker starts."""
        if probe._questions and not closing:
            closing.append(threading.Thread(target=probe.close))
            closing[0].start()
            time.sleep(0.2)  # it finds no worker, and waits for the question
        return time.monotonic()

    probe = Probe("odd", module=odd_family, arguments=("slow_start", "3"), start_grace_s=60, clock=clock)
    with pytest.raises(SourceBusy, match="ended the worker on purpose"):
        ask(probe, "echo", deadline_s=2)
    closing[0].join(limit_s(3))
    assert workers() == []


def test_a_slow_start_is_left_to_finish_within_its_grace(make: Callable[..., Probe]) -> None:
    """A worker that is not ready at the deadline is not killed while its grace lasts, and answers once it is."""
    probe = make("slow_start", "0.6", start_grace_s=30)
    with pytest.raises(SourceTimeout, match="still starting"):
        ask(probe, "echo", deadline_s=0.3)
    assert probe.state().stalled_s == 0.0
    pid = probe.worker_pid()
    assert ask(probe, "pid", deadline_s=5) == pid


def test_a_start_that_outlasts_its_grace_is_killed(make: Callable[..., Probe], clock: Clock) -> None:
    """A worker that hangs while it initialises is lost like any other once its grace is over."""
    probe = make("slow_start", "60", start_grace_s=30)
    with pytest.raises(SourceTimeout, match="still starting"):
        ask(probe, "echo", deadline_s=0.2)
    clock.advance(29)
    assert probe.state().stalled_s == 0.0
    clock.advance(2)
    with pytest.raises(SourceTimeout, match="was killed"):
        ask(probe, "echo", deadline_s=0.2)
    assert probe.worker_pid() is None
    clock.advance(15)
    with pytest.raises(SourceTimeout, match="still starting"):
        ask(probe, "echo", deadline_s=0.2)
    assert probe.state().stalled_s == 15.0, "the next one that starts late is no answer"


def test_the_start_after_one_that_had_answered_is_no_silence(
    make: Callable[..., Probe], clock: Clock, tmp_path: Path
) -> None:
    """One answer that took too long, and a driver that takes half a minute to begin, are no minute of silence; a start
    that outlasts its grace is, from the first question on."""
    probe = make("slow_restart", "60", str(tmp_path / "began"), start_grace_s=30)
    ask(probe, "echo")
    with pytest.raises(SourceTimeout, match="was killed"):
        ask(probe, "sleep", deadline_s=0.2, seconds=60)
    clock.advance(1)
    with pytest.raises(SourceTimeout, match="still starting"):
        ask(probe, "echo", deadline_s=0.2)
    clock.advance(29)
    assert probe.state().stalled_s == 1.0
    clock.advance(1)
    with pytest.raises(SourceTimeout, match="was killed"):
        ask(probe, "echo", deadline_s=0.2)
    assert probe.state().stalled_s == 31.0


def test_a_worn_worker_is_replaced_without_a_back_off(make: Callable[..., Probe]) -> None:
    """A worker that says it must not be used again ends after its answer; the next question goes to a fresh one."""
    probe = make()
    worn = ask(probe, "wear_out")
    assert probe.worker_pid() is None
    assert ask(probe, "pid") != worn


def test_a_worker_that_began_answers_the_first_question(make: Callable[..., Probe]) -> None:
    """Started ahead of the question, once, and the one that answers it."""
    probe = make()
    probe.begin()
    began = probe.worker_pid()
    probe.begin()
    assert began is not None
    assert ask(probe, "pid") == began
    assert probe.state().restarts == 0


def test_a_paused_probe_begins_no_worker(make: Callable[..., Probe], workers: Callable[[], list[int]]) -> None:
    """A GPU that is being reset is held by no worker, also by none that nothing has been asked."""
    probe = make()
    probe.pause(60, "GPUs are being reset")
    probe.begin()
    assert workers() == []
    with pytest.raises(SourceBusy, match="GPUs are being reset"):
        ask(probe, "pid")


def test_an_idle_worker_leaves_and_nobody_notices(make: Callable[..., Probe], has_ended: Callable[..., bool]) -> None:
    """A worker that nobody asked for idle_s ends by itself; the next question starts another, without a back-off."""
    probe = make(idle_s=0.1)
    pid = ask(probe, "pid")
    assert has_ended(pid, within_s=2.0)
    assert ask(probe, "pid") != pid
    assert probe.state().stalled_s == 0.0


def test_an_idle_worker_that_dies_late_leaves_no_zombie(odd_family: str, has_ended: Callable[..., bool]) -> None:
    """At the close it is not dead within its time, as on a busy machine; the next call that frees frees it."""
    idle = IdleWorkers()
    pid = Probe("odd", module=odd_family, idle=idle, kill=lambda _: None).request("pid", {}, deadline_s=limit_s(5.0))
    idle.close()
    assert has_ended(pid, within_s=5.0)  # its pipe is closed
    idle.reap()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_a_worker_that_leaves_at_every_question_is_a_failure(make: Callable[..., Probe]) -> None:
    """An exit with 0 under a question is retried once, in case it was idling out, and is then a failure."""
    probe = make()
    with pytest.raises(SourceUnreadable, match="exited with 0 before it answered"):
        ask(probe, "exit_zero")
    assert probe.state().restarts == 1


@pytest.mark.parametrize("op", ["echo", "sleep"])
def test_the_workers_end_with_their_parent(op: str, odd_family: str, has_ended: Callable[..., bool]) -> None:
    """When the daemon is killed with -9 its worker ends at once, idle or in the middle of a hang."""
    program = (
        "import sys, threading, time\n"
        "from healthd.probe.supervise import Probe\n"
        "probe = Probe('odd', module='odd_family')\n"
        "print(probe.request('pid', {}, deadline_s=10), flush=True)\n"
        f"threading.Thread(target=probe.request, args=({op!r}, {{'seconds': 60}}),"
        " kwargs={'deadline_s': 60}).start()\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
    finally:
        parent.kill()
        parent.communicate()
    assert has_ended(pid, within_s=2.0)


def test_a_worker_that_cannot_be_started_is_unreadable(
    make: Callable[..., Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process to be had (no interpreter, no memory, no pids) is an answerless source, with the system's words."""
    probe = make()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    probe.begin()
    with pytest.raises(SourceUnreadable, match=r"cannot start a worker: .*No such file"):
        ask(probe, "echo")
