"""What the benchmarks share: run a command to its end and say what the kernel counted; medians and percentiles."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

SKIPPED = 77
"""Exit code of a benchmark that cannot run here: Automake's, because argparse ends with 2 for a wrong option."""


class Run(Struct, frozen=True, kw_only=True):
    """One finished process: wall-clock seconds and exit code."""

    seconds: float
    code: int


def run(argv: Sequence[str]) -> Run:
    """Run a command with its output thrown away.

    Its peak memory is not taken from rusage: after a spawn that holds the peak of whoever spawned it.
    """
    null = os.open(os.devnull, os.O_RDWR)
    begun = time.perf_counter()
    pid = os.posix_spawn(
        argv[0], list(argv), os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    )
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - begun
    os.close(null)
    return Run(seconds=seconds, code=os.waitstatus_to_exitcode(status))


def peak_mb(pid: int | str) -> float:
    """The most memory that a living process ever had resident (VmHWM), in MB of 1024 * 1024 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/status has no VmHWM line")


def memory_kib(pid: int | str) -> dict[str, int]:
    """What a process has in memory, by the kernel's names (proc_pid_smaps(5)); empty for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {line.partition(":")[0]: int(line.split()[1]) for line in lines}


def pss_mb(pid: int | str) -> float:
    """What a process has in memory, its share of what it has in common with others, in MB of 1024 * 1024 bytes."""
    return memory_kib(pid).get("Pss", 0) / 1024


def cpu_ms(pid: int) -> float:
    """CPU time of a process, its ended threads included, in milliseconds; 0 for one that has ended.

    By its CPU clock, clock_getcpuclockid(3), which counts nanoseconds; /proc/PID/stat counts in ticks of 10 ms.
    """
    try:
        return time.clock_gettime_ns(~pid << 3 | 2) / 1e6
    except OSError:
        return 0.0


def children(pid: int | str) -> list[int]:
    """The processes whose parent is this one."""
    parents = {int(name): parent for name in os.listdir("/proc") if name.isdecimal() and (parent := _parent(name))}
    return [child for child, parent in parents.items() if parent == int(pid)]


def _parent(pid: str) -> int:
    """The parent of a process; 0 where it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, by nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, round(share * len(ranked) + 0.5) - 1))]


def skipped(why: str) -> int:
    """Say why nothing is measured here; returns the exit code."""
    print(f"skipped: {why}", file=sys.stderr)
    return SKIPPED


def write_down(name: str, figures: Mapping[str, object]) -> None:
    """Print the figures and keep them beside the benchmark as ``results/<name>.json``."""
    machine = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    record = {"benchmark": name, **figures, **machine}
    text = json.dumps(record, indent=2) + "\n"
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(text)
    print(text, end="")
