"""What the benchmarks share: run a command to its end and say what the kernel counted; medians and percentiles."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One finished process: wall-clock seconds and exit code."""

    seconds: float
    code: int


def run(argv: Sequence[str]) -> Run:
    """Run a command with its output thrown away.

    Its peak memory is not taken from rusage: after a spawn that holds the peak of whoever spawned it.
    """
    null = os.open(os.devnull, os.O_RDWR)
    begun = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)])
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


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, by nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, round(share * len(ranked) + 0.5) - 1))]


def write_down(name: str, figures: dict[str, object]) -> None:
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
