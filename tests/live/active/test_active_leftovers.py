"""Nothing of an active test is left: after its end, its deadline, kill -9 of healthd or of the guard, a request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from healthd.core.errors import SourceBusy, SourceTimeout, SourceUnreadable
from healthd.probe import guard
from healthd.probe.child import module_path
from tests.support.limits import limit_s

MIB = 1 << 20
_HEALTHD = """
import sys
from healthd.sources.active import ActiveTestsSource
from healthd.testing import FakeTree
source = ActiveTestsSource(gpus=lambda: ["", ""], sys_tree=FakeTree(), all_reduce_perf=sys.argv[1])
source.all_reduce("nvlink", size_bytes=1048576, timeout_s=60.0)
"""


def gone(pids: list[int], within_s: float = 5.0) -> bool:
    """Whether all of these have ended in time."""
    end_s = time.monotonic() + limit_s(within_s)
    while time.monotonic() < end_s:
        if not any(map(runs, pids)):
            return True
        time.sleep(0.02)
    return False


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_normal_end_leaves_nothing(rig: Any) -> None:
    """A child and a grandchild in a session of its own, both still sleeping, are gone when the answer is there."""
    rig.add_perf()
    rig.source(ACTIVE_SIM_NOTE=str(rig.note)).all_reduce("nvlink", size_bytes=MIB, timeout_s=limit_s(30.0))
    assert not any(map(runs, rig.noted()["pids"]))


def test_the_deadline_leaves_nothing(rig: Any) -> None:
    """So are they when the test is ended at its deadline."""
    rig.add_perf()
    source = rig.source(fault="perf_hang", ACTIVE_SIM_NOTE=str(rig.note))
    with pytest.raises(SourceTimeout):
        source.all_reduce("nvlink", size_bytes=MIB, timeout_s=2.0)
    assert not any(map(runs, rig.noted()["pids"]))


@pytest.mark.nvml
def test_a_deadline_in_nccl_leaves_nothing(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of nccl4py's way that hangs in a library is ended like any other, with what it started."""
    rig.add_cuda()
    rig.add_nccl4py(monkeypatch)
    source = rig.source(fault="nccl_hang", ACTIVE_SIM_NOTE=str(rig.note))
    with pytest.raises(SourceTimeout, match=r"all_reduce.py: no end within 3 s"):
        source.all_reduce("nvlink", size_bytes=MIB, timeout_s=3.0)
    assert not any(map(runs, rig.noted()["pids"]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killing_healthd_leaves_nothing(rig: Any, number: signal.Signals) -> None:
    """kill -9 of the process that asked ends the guard, the test, and whatever that started."""
    tool = rig.add_perf()
    environ = {**os.environ, "PYTHONPATH": module_path(), "ACTIVE_SIM_FAULT": "perf_hang"}
    healthd = subprocess.Popen(
        [sys.executable, "-c", _HEALTHD, str(tool)], env={**environ, "ACTIVE_SIM_NOTE": str(rig.note)}
    )
    try:
        noted = rig.noted()
        pids = [*noted["pids"], noted["guard"]]
        assert all(map(runs, pids))
    finally:
        healthd.send_signal(number)
        healthd.wait(timeout=limit_s(5))
    assert gone(pids)


def test_killing_the_guard_ends_the_test(rig: Any) -> None:
    """Should the guard itself be killed, the kernel kills the test, and its group is killed too: no answer."""
    rig.add_perf()
    source = rig.source(fault="perf_hang", ACTIVE_SIM_NOTE=str(rig.note))
    killer = threading.Thread(target=lambda: os.kill(rig.noted()["guard"], signal.SIGKILL))
    killer.start()
    try:
        with pytest.raises(SourceUnreadable, match="ended with -9"):
            source.all_reduce("nvlink", size_bytes=MIB, timeout_s=limit_s(30.0))
    finally:
        killer.join()
    test, child, orphan = rig.noted()["pids"]
    assert gone([test, child])
    os.kill(orphan, signal.SIGKILL)  # the one thing that is lost: nobody was left to find another session


def test_the_kernel_ends_a_test_without_a_guard(tmp_path: Path) -> None:
    """Even where nobody kills the group, the test dies with the guard."""
    note = tmp_path / "pid"
    script = f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 60"
    argv = [sys.executable, "-S", "-P", guard.__file__, str(os.getpid()), "60", "sh", "-c", script]
    guarding = subprocess.Popen(argv, start_new_session=True)
    try:
        end_s = time.monotonic() + limit_s(10)
        while not note.exists() and time.monotonic() < end_s:
            time.sleep(0.02)
    finally:
        guarding.kill()
        guarding.wait(timeout=limit_s(5))
    pid = int(note.read_text())
    ended = gone([pid])
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended


def test_a_test_is_ended_on_request(rig: Any) -> None:
    """From another thread the test under way is ended at once; the next one within a moment is refused, later runs."""
    rig.add_perf()
    source = rig.source(fault="perf_hang", ACTIVE_SIM_NOTE=str(rig.note))
    stopper = threading.Thread(target=lambda: (rig.noted(), source.interrupt()))
    stopper.start()
    started_s = time.monotonic()
    try:
        with pytest.raises(SourceBusy, match="all_reduce_perf: ended on request"):
            source.all_reduce("nvlink", size_bytes=MIB, timeout_s=60.0)
    finally:
        stopper.join()
    assert time.monotonic() - started_s < limit_s(3.0)
    assert not any(map(runs, rig.noted()["pids"]))
    source.interrupt()
    with pytest.raises(SourceBusy):
        source.all_reduce("nvlink", size_bytes=MIB, timeout_s=60.0)
    time.sleep(1.1)
    with pytest.raises(SourceTimeout):
        source.all_reduce("nvlink", size_bytes=MIB, timeout_s=1.0)


def test_a_guard_whose_parent_is_gone_starts_nothing(tmp_path: Path) -> None:
    """The parent died before the guard could ask to be told: it ends without running the command."""
    note = tmp_path / "ran"
    script = [sys.executable, "-S", "-P", guard.__file__, "1" if os.getpid() != 1 else "2", "5", "touch", str(note)]
    done = subprocess.run(script, check=False, timeout=limit_s(20))
    assert done.returncode == guard.TIMED_OUT
    assert not note.exists()


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139)])
def test_the_guard_passes_on_how_it_ended(script: str, status: int) -> None:
    """Output and exit status are the test's own; a signal is 128 and its number, as in a shell."""
    argv = [sys.executable, "-S", "-P", guard.__file__, str(os.getpid()), "10", "sh", "-c", f"echo out; {script}"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(20))
    assert (done.returncode, done.stdout) == (status, "out\n")
