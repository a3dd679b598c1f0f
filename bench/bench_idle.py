"""What a daemon costs that has nothing to do: memory and CPU of it and all its workers, at default intervals.

A real `healthd run`, installed from a wheel, on a simulated p5.48xlarge with 8 GPUs and 32 EFA devices, where every
background check has something to ask. Its kernel log is a FIFO, on which it waits as on /dev/kmsg. After a minute in
which it settles it is looked at every ten seconds. Memory is PSS as the kernel adds it up (smaps_rollup), the highest
of all looks; CPU is what the daemon, its workers and the commands that they started used between the first look and the
last; a wake-up is a voluntary context switch of one of its threads. Aims: at most 45 MB, 0.1 % of a core and 2
wake-ups a second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.bench_check_cold import install_wheel
from bench.measure import children, cpu_ms, memory_kib, write_down
from bench.whole_machine import whole_machine
from healthd.sim.machine import SimulatedMachine

AIMS = {"pss_mb": 45.0, "cpu_percent": 0.1, "wakeups_a_second": 2.0}
SETTLE_S, BETWEEN_S = 60.0, 10.0
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Look(Struct, frozen=True, kw_only=True):
    """One look at the daemon and what it started. PSS by process, the daemon first; switches are of the daemon."""

    at_s: float
    pss_mb: tuple[float, ...]
    private_mb: float
    daemon_ms: float
    workers_ms: dict[int, float]
    ended_ms: float
    wakeups: int


def main() -> int:
    """Measure and write down. Exit 1 where an aim is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=60, help="looks, ten seconds apart")
    looks = options.parse_args().n
    with contextlib.ExitStack() as stack:
        venv = install_wheel(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="healthd-bench-"))))
        pid = stack.enter_context(daemon(venv, stack.enter_context(whole_machine())))
        seen = [look(pid)]
        for _ in range(looks):
            time.sleep(BETWEEN_S)
            seen.append(look(pid))
    figures = judged(seen)
    write_down("idle", figures)
    return 0 if all(figures[name] <= aim for name, aim in AIMS.items()) else 1


@contextlib.contextmanager
def daemon(venv: Path, machine: SimulatedMachine) -> Iterator[int]:
    """A running daemon, and its end."""
    machine.kmsg.unlink()
    os.mkfifo(machine.kmsg)
    writer = os.open(machine.kmsg, os.O_RDWR)
    argv = [str(venv / "bin/python"), "-m", "healthd", "run", "--config", str(machine.config)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    sent = machine.folder / "said"
    with sent.open("wb") as log:
        process = subprocess.Popen(argv, stderr=log, cwd="/", env=environ)
    try:
        time.sleep(SETTLE_S)
        yield process.pid
    finally:
        if process.poll() is not None:
            sys.stderr.write(f"the daemon ended with {process.returncode}: {sent.read_text()[-2000:]}\n")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        os.close(writer)


def look(pid: int) -> Look:
    """What it has used until now."""
    workers = children(pid)
    memory = [memory_kib(each) for each in (pid, *workers)]
    return Look(
        at_s=time.monotonic(),
        pss_mb=tuple(each["Pss"] / 1024 for each in memory if each),
        private_mb=sum(each["Private_Clean"] + each["Private_Dirty"] for each in memory if each) / 1024,
        daemon_ms=cpu_ms(pid),
        workers_ms={worker: cpu_ms(worker) for worker in workers},
        ended_ms=ended_ms(pid),
        wakeups=sum(switches(task) for task in Path(f"/proc/{pid}/task").iterdir()),
    )


def ended_ms(pid: int) -> float:
    """CPU time of the children that a process has waited for, in ticks of 10 ms (proc_pid_stat(5), cutime, cstime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) * 1000 / _TICKS_A_SECOND


def switches(task: Path) -> int:
    """How often a thread has waited."""
    try:
        lines = (task / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def judged(seen: list[Look]) -> dict[str, float]:
    """The figures. A worker that ended in between is among the children that ended."""
    first, last = seen[0], seen[-1]
    seconds = last.at_s - first.at_s
    gone = sum(used for worker, used in first.workers_ms.items() if worker not in last.workers_ms)
    workers_ms = sum(last.workers_ms.values()) - sum(first.workers_ms.values())
    daemon_ms, ended = last.daemon_ms - first.daemon_ms, last.ended_ms - first.ended_ms
    largest = max(seen, key=lambda each: sum(each.pss_mb))
    return {
        "seconds": round(seconds),
        "pss_mb": round(sum(largest.pss_mb), 1),
        "aim_pss_mb": AIMS["pss_mb"],
        "daemon_pss_mb": round(largest.pss_mb[0], 1),
        "workers": len(largest.pss_mb) - 1,
        "private_mb": round(largest.private_mb, 1),
        "cpu_percent": round((daemon_ms + workers_ms + ended) / seconds / 10, 3),
        "aim_cpu_percent": AIMS["cpu_percent"],
        "daemon_cpu_percent": round(daemon_ms / seconds / 10, 3),
        "workers_cpu_percent": round((workers_ms + gone) / seconds / 10, 3),
        "ended_children_cpu_percent": round((ended - gone) / seconds / 10, 3),
        "wakeups_a_second": round((last.wakeups - first.wakeups) / seconds, 2),
        "aim_wakeups_a_second": AIMS["wakeups_a_second"],
    }


if __name__ == "__main__":
    sys.exit(main())
