"""host.processes: stuck, left over, and near the limits. Inputs are constructed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from healthd.checks.host_processes import STUCK, HostProcessesSettings, host_processes
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Component, Result, Severity, Status
from healthd.testing import Entry, FakeNode
from healthd.testing import codes as codes_of


def run(
    *, processes: tuple[str, ...] = ("1 (systemd) S 0",), proc: Mapping[str, Entry] | None = None, **settings: Any
) -> Result:
    tree: dict[str, Entry] = {
        "sys/kernel/pid_max": "1000",
        "sys/kernel/threads-max": "2000",
        "loadavg": "0.20 0.18 0.12 1/700 11206",
        "sys/fs/file-nr": "1000\t0\t100000",
        **{f"{line.split()[0]}/stat": line for line in processes},
        **(proc or {}),
    }
    return host_processes(FakeNode(proc=tree), HostProcessesSettings(**settings))


codes = partial(codes_of, family="host.processes.")


def test_far_from_all_limits() -> None:
    """Nothing stuck and everything far from its limit: ok, and the levels are readings."""
    result = run()
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "threads_used_ratio": 0.7,
        "open_files_used_ratio": 0.01,
        "zombies_count": 0,
    }


IN_DRIVER = """[<0>] os_acquire_mutex+0x3a/0x50 [nvidia]
[<0>] nvidia_unlocked_ioctl+0x21/0x30 [nvidia]
[<0>] __x64_sys_ioctl+0x94/0xd0
[<0>] do_syscall_64+0x5b/0x80
"""
IN_VFORK = """[<0>] wait_for_vfork_done+0x5a/0xb0
[<0>] kernel_clone+0x1e5/0x390
[<0>] __x64_sys_vfork+0x2a/0x30
"""


def test_a_process_that_is_stuck_in_the_driver() -> None:
    """Whatever its name: where its kernel stack stands is a finding of its pid, once it lasts. S there is not."""
    stacks = {"7/stack": IN_DRIVER, "8/stack": IN_DRIVER, "9/stack": "[<0>] io_schedule+0x46/0x80\n"}
    result = run(processes=("7 (python3) D 1", "8 (nvidia-modeset/) S 2", "9 (nvidia-smi) D 1"), proc=stacks)
    assert [(finding.code, str(finding.component)) for finding in result.findings] == [
        ("host.processes.nvidia_stuck", "process:7")
    ]
    assert result.findings[0].severity is Severity.WARNING
    assert result.findings[0].message == "python3 (pid 7) hangs in the kernel module nvidia (uninterruptible sleep)"
    assert STUCK.lasting_s > 0


def test_a_killed_process_hangs_where_its_thread_does() -> None:
    """It is a zombie, and its GPU is not free, until the last thread has ended. Other zombies have no thread left."""
    threads: dict[str, Entry] = {
        "7/task/7/stat": "7 (python3) Z 1",
        "7/task/71/stat": "71 (cuda-EvtHandlr) D 1",
        "7/task/71/stack": IN_DRIVER,
        "8/task/8/stat": "8 (sh) Z 1",
        "9/task/9/stat": "9 (python3) Z 1",
        "9/task/91/stat": "91 (loader) D 1",
        "9/task/91/stack": "[<0>] io_schedule+0x46/0x80\n",
    }
    result = run(processes=("7 (python3) Z 1", "8 (sh) Z 1", "9 (python3) Z 1", "10 (sh) Z 1"), proc=threads)
    (stuck,) = result.findings
    assert (stuck.code, str(stuck.component)) == (STUCK.code, "process:7")
    assert stuck.message == "python3 (pid 7) hangs in the kernel module nvidia (uninterruptible sleep)"
    assert result.not_reported == ()
    threads |= {"7/task/72/stat": "72 (other) D 1", "7/task/71/stack": SourceUnreadable("not root")}
    assert run(processes=("7 (python3) Z 1",), proc=threads).not_reported == ((stuck.component, STUCK.code),)


def test_a_name_makes_nobody_stuck_in_the_driver() -> None:
    """A user's process that calls itself nvidia-smi and waits for its vforked child is in no module of the driver."""
    assert run(processes=("7 (nvidia-smi) D 1",), proc={"7/stack": IN_VFORK}).status is Status.OK
    named = "[<0>] x [nvidia] y\n[<0>] [nvidia]\n"
    assert run(processes=("7 (nvidia-smi) D 1",), proc={"7/stack": named}).status is Status.OK


@pytest.mark.parametrize("stack", [SourceUnreadable("not permitted"), "", None])
def test_a_stack_that_is_not_told_is_no_evidence_either_way(stack: Entry | None) -> None:
    """Nothing is found, and what was found there before is not over."""
    proc = {} if stack is None else {"7/stack": stack}
    result = run(processes=("7 (nvidia-smi) D 1",), proc=proc)
    assert (result.status, result.not_reported) == (Status.OK, ((Component(kind="process", id="7"), STUCK.code),))


def test_zombies() -> None:
    """Twenty may wait; one more is many."""
    assert codes(run(processes=tuple(f"{pid} (a) b) Z 1" for pid in range(1, 21)))) == []
    assert codes(run(processes=tuple(f"{pid} (a) b) Z 1" for pid in range(1, 22)))) == ["zombies"]


@pytest.mark.parametrize(
    ("proc", "words"),
    [
        ({"loadavg": "0 0 0 1/701 9"}, "threads 70%"),
        ({"sys/kernel/threads-max": "900"}, "threads 78%"),
        ({"sys/fs/file-nr": "90000 0 100000"}, "open files 90%"),
    ],
)
def test_near_a_limit(proc: dict[str, Entry], words: str) -> None:
    """Past 70 % of whichever limit comes first, one finding says which."""
    result = run(proc=proc)
    assert codes(result) == ["near_limit"]
    assert words in result.findings[0].message
    assert codes(run(proc=proc, near_ratio=0.95)) == []


def test_a_process_that_ended_meanwhile_is_gone() -> None:
    """A process without a stat file has ended; one that cannot be read makes it unknown."""
    assert run(proc={"44/comm": "x"}).status is Status.OK
    with pytest.raises(SourceUnreadable):
        run(proc={"44/stat": "garbage"})


@pytest.mark.parametrize("error", [SourceMissing("x"), SourceTimeout("x"), SourceUnreadable("x")])
def test_what_cannot_be_read_is_unknown(error: SourceError) -> None:
    """A limit that cannot be read, or a /proc that lists no process, says nothing."""
    with pytest.raises(type(error)):
        run(proc={"loadavg": error})
    with pytest.raises(SourceUnreadable, match="lists no process"):
        run(processes=())


@pytest.mark.parametrize("proc", [{"loadavg": "0 0"}, {"sys/fs/file-nr": "1"}, {"sys/kernel/pid_max": "many"}])
def test_another_form_is_unknown(proc: dict[str, Entry]) -> None:
    """A file of another form is unknown."""
    with pytest.raises(SourceUnreadable, match="expected"):
        run(proc=proc)
