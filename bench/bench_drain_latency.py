"""From a kernel line to the node kept off jobs, and drained, in a real slurmctld: the whole spine, over 200 faults.

Eight real slurmd and eight real daemons share this machine. A fault is one line appended to a node's kernel log. Its
ends are two milliseconds in slurmctld's own log: that of the reservation, which keeps new jobs off, and that of the
drain, which follows after the settle time (here 0.2 s instead of 10, and taken off the figure). Aim for the first:
p50 <= 100 ms, p99 <= 500 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import percentile, skipped, write_down
from bench.slurm_faults import DRAINED, MANY_FAULTS, PCI, logged_at, slurmctld_log
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason
from tests.support.running import RECOVERED, UNCONTAINED, RunningNode

AIM_P50_MS, AIM_P99_MS = 100.0, 500.0
FENCED = r"sched: Created reservation=healthd-\S+ users=\S+ nodes={} "
SECTIONS = """
[orchestrator]
kind = "slurm"
[remediation]
mode = "quarantine"
settle_s = 0.2
[budget]
max_out = 8
settle_s = 0.2
[policy]
"""
SETTLE_MS = 200.0


def main() -> int:
    """Measure and write down. Exit 1 where an aim is missed, 77 where there is no Slurm."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=200, help="faults")
    faults = options.parse_args().n
    if reason := skip_reason():
        return skipped(reason)
    with tempfile.TemporaryDirectory(prefix="healthd-bench-") as folder, contextlib.ExitStack() as stack:
        lab = stack.enter_context(SlurmLab(conf={"LogTimeFormat": "iso8601_ms"}))
        nodes = []
        for number in range(1, 9):
            name = f"n{number:04d}"
            node = RunningNode(Path(folder) / name, name, sections=SECTIONS + MANY_FAULTS, environ=lab.env())
            node.as_program = True
            stack.callback(node.stop)
            node.start()
            nodes.append(node)
        time.sleep(5.0)
        both = [one_fault(lab, nodes[number % len(nodes)]) for number in range(faults)]
    fenced, drained = ([each[end] for each in both] for end in (0, 1))
    figures = {
        "faults": faults,
        "p50_ms": round(percentile(fenced, 0.50), 1),
        "p90_ms": round(percentile(fenced, 0.90), 1),
        "p99_ms": round(percentile(fenced, 0.99), 1),
        "max_ms": round(max(fenced), 1),
        "drained_p50_ms": round(percentile(drained, 0.50) - SETTLE_MS, 1),
        "drained_p99_ms": round(percentile(drained, 0.99) - SETTLE_MS, 1),
        "aim_p50_ms": AIM_P50_MS,
        "aim_p99_ms": AIM_P99_MS,
    }
    write_down("drain_latency", figures)
    return 0 if figures["p50_ms"] <= AIM_P50_MS and figures["p99_ms"] <= AIM_P99_MS else 1


def one_fault(lab: SlurmLab, node: RunningNode) -> tuple[float, float]:
    """One fault, from its line to its fence and to its drain, in milliseconds; then its end, and the node's return."""
    record = slurmctld_log(lab).stat().st_size
    at = node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: logged_at(lab, DRAINED.format(node.name), record), 15.0, "drained")
    drained = logged_at(lab, DRAINED.format(node.name), record)
    fenced = logged_at(lab, FENCED.format(node.name), record)
    node.kernel_says(RECOVERED.format(pci=PCI))
    lab.wait_state(node.name, "IDLE", within_s=30.0)
    wait_no_slot(lab, node.name)
    lab.forget(node.name)
    return (fenced[0] - at) * 1000, (drained[0] - at) * 1000


def wait_no_slot(lab: SlurmLab, name: str) -> None:
    """Until the place is given back, which comes last."""
    until = time.monotonic() + 10.0
    while f"Nodes={name} " in lab.scontrol("-o", "show", "reservation").stdout and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
