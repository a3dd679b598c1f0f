"""Who has a GPU open, told by /proc alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from healthd.sources.gpu_holders import gpu_holders
from tests.support.limits import limit_s


def test_a_process_with_a_gpu_open_is_a_job(trees: tuple[Path, Path]) -> None:
    """Only the numbered nodes count: control nodes are held open by monitoring."""
    proc, dev = trees
    assert [(holder.pid, holder.name) for holder in gpu_holders(proc, dev)] == [(9, "job9"), (100, "job100")]


def test_a_process_in_uninterruptible_sleep_is_told(trees: tuple[Path, Path]) -> None:
    """The state is the letter behind the name, which may itself hold blanks and brackets."""
    proc, dev = trees
    (proc / "9" / "stat").write_text("9 (nvidia) R) D 1 9 9 0")
    assert [holder.state for holder in gpu_holders(proc, dev)] == ["D", "?"]


@pytest.mark.process
def test_a_killed_process_with_a_thread_in_the_driver_is_found(tmp_path: Path) -> None:
    """Its first thread has ended, and its own folder shows no descriptor any more: the GPU is open all the same."""
    proc, node = tmp_path / "proc", tmp_path / "nvidia3"
    proc.mkdir()
    node.touch()
    ends_one_thread = {"x86_64": 60, "aarch64": 93}[os.uname().machine]  # exit(2), by syscall(2)
    script = f"""
import ctypes, threading
threading.Thread(target=input, daemon=True).start()
node = open({str(node)!r})
print("open", flush=True)
ctypes.CDLL(None).syscall({ends_one_thread}, 0)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"open\n"
            process = Path(f"/proc/{child.pid}")
            (proc / str(child.pid)).symlink_to(process)
            until = time.monotonic() + limit_s(10)
            while os.listdir(process / "fd") and time.monotonic() < until:
                time.sleep(0.01)
            assert os.listdir(process / "fd") == []
            assert [holder.pid for holder in gpu_holders(proc, tmp_path)] == [child.pid]
        finally:
            child.kill()


def test_a_killed_process_sleeps_where_its_last_thread_does(trees: tuple[Path, Path]) -> None:
    """A zombie ends once its threads have: one that sleeps uninterruptibly keeps the GPU until a reboot. A thread of a
    process that lives may wait for a disk."""
    proc, dev = trees
    for process in ("9", "100"):
        for thread, state in ((process, "Z"), ("1001", "D")):
            (proc / process / "task" / thread).mkdir(parents=True)
            (proc / process / "task" / thread / "stat").write_text(f"{thread} (job) {state} 1 9 9 0")
    (proc / "9" / "stat").write_text("9 (job) Z 1 9 9 0")
    (proc / "100" / "stat").write_text("100 (job) S 1 9 9 0")
    (proc / "9" / "fd").rename(proc / "9" / "task" / "1001" / "fd")
    (proc / "9" / "fd").mkdir()
    assert [(holder.pid, holder.state) for holder in gpu_holders(proc, dev)] == [(9, "D"), (100, "S")]


def test_a_name_that_is_no_text_hides_nothing(trees: tuple[Path, Path]) -> None:
    """Any user may name a process, and a control group of their own, with any bytes: the engine reads them all."""
    proc, dev = trees
    (proc / "9" / "comm").write_bytes(b"job\xff\n")
    (proc / "9" / "stat").write_bytes(b"9 (job\xff) D 1 9 9 0")
    (proc / "9" / "cgroup").write_bytes(b"0::/user.slice/\xff.service\n")
    holder, other = gpu_holders(proc, dev)
    assert (holder.name, holder.state, holder.unit, other.name) == ("job\ufffd", "D", "\ufffd.service", "job100")


def test_a_real_process_with_a_real_descriptor_is_found(tmp_path: Path) -> None:
    """Against this very process in the true /proc: it has a file of that name open, until it closes it."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    with open(tmp_path / "nvidia3", "w"):
        (holder,) = gpu_holders(proc, tmp_path)
        assert holder.pid == os.getpid()
    assert gpu_holders(proc, tmp_path) == ()


def test_a_process_that_ends_while_it_is_looked_at_is_no_job(trees: tuple[Path, Path]) -> None:
    """A process without its fd folder has ended; a descriptor without a target was closed."""
    proc, dev = trees
    (proc / "500").mkdir()
    (proc / "9" / "comm").unlink()
    assert [holder.name for holder in gpu_holders(proc, dev)] == ["?", "job100"]


@pytest.mark.process
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not look")
def test_a_process_that_may_not_be_looked_into_is_unknown(tmp_path: Path) -> None:
    """To a user without the right, the jobs of others are unknown, not none."""
    (tmp_path / "nvidia0").touch()
    tmp_path.chmod(0o755)
    root = Path(__file__).parents[3]
    script = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(root)!r})
from healthd.core.errors import BackendUnknown
from healthd.sources.gpu_holders import gpu_holders
os.chdir({str(tmp_path)!r})
os.setuid(65534)
try:
    gpu_holders(Path("/proc"), Path("."))
except BackendUnknown as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=limit_s(20), check=True
    )
    assert "the jobs on the GPUs are unknown; run as root" in done.stdout


def test_without_a_gpu_node_there_are_no_jobs(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """Nobody can have open what is not there: no process needs to be looked into."""
    assert gpu_holders(trees[0], tmp_path) == ()
