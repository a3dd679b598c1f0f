"""From a kernel line to the node drained in a real slurmctld: the whole spine, over 200 faults.

Eight real slurmd and eight real daemons share this machine. A fault is one line appended to a node's kernel log; its
end is the millisecond in slurmctld's own log at which the node's state was set. Aim: p50 <= 100 ms, p99 <= 500 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from measure import percentile, write_down

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.integration.slurm.slurm_lab import SlurmLab, why_not
from tests.running import RECOVERED, UNCONTAINED, RunningNode

AIM_P50_MS, AIM_P99_MS = 100.0, 500.0
PCI = "0000:05:00"
SECTIONS = """
[orchestrator]
kind = "slurm"
[remediation]
mode = "quarantine"
settle_s = 0.2
[budget]
max_out = 8
"""


def main() -> int:
    """Measure and write down. Exit 1 where an aim is missed, 2 where there is no Slurm."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=200, help="faults")
    faults = options.parse_args().n
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="healthd-bench-") as folder, contextlib.ExitStack() as stack:
        lab = stack.enter_context(SlurmLab(conf={"LogTimeFormat": "iso8601_ms"}))
        nodes = []
        for number in range(1, 9):
            name = f"n{number:04d}"
            node = RunningNode(Path(folder) / name, name, sections=SECTIONS, environ=lab.env())
            stack.callback(node.stop)
            node.start()
            nodes.append(node)
        time.sleep(5.0)
        latencies = [one_fault(lab, nodes[number % len(nodes)]) for number in range(faults)]
    figures = {
        "faults": faults,
        "p50_ms": round(percentile(latencies, 0.50), 1),
        "p90_ms": round(percentile(latencies, 0.90), 1),
        "p99_ms": round(percentile(latencies, 0.99), 1),
        "max_ms": round(max(latencies), 1),
        "aim_p50_ms": AIM_P50_MS,
        "aim_p99_ms": AIM_P99_MS,
    }
    write_down("drain_latency", figures)
    return 0 if figures["p50_ms"] <= AIM_P50_MS and figures["p99_ms"] <= AIM_P99_MS else 1


def one_fault(lab: SlurmLab, node: RunningNode) -> float:
    """One fault, from its line to its drain, in milliseconds; then its end, and the node's return."""
    mark = slurmctld_log(lab).stat().st_size
    at = node.kernel_says(UNCONTAINED.format(pci=PCI))
    drained: list[float] = []
    node.wait(lambda: drained or drained.extend(drained_at(lab, node.name, mark)), 15.0, "drained")
    node.kernel_says(RECOVERED.format(pci=PCI))
    lab.wait_state(node.name, "IDLE", within_s=30.0)
    return (drained[0] - at) * 1000


def drained_at(lab: SlurmLab, name: str, mark: int) -> list[float]:
    """When slurmctld set the state, by its own log after byte ``mark``; empty while it has not."""
    with slurmctld_log(lab).open() as log:
        log.seek(mark)
        found = re.findall(rf"\[([^\]]+)\] update_node: node {name} state set to DRAIN", log.read())
    return [datetime.fromisoformat(stamp).timestamp() for stamp in found]


def slurmctld_log(lab: SlurmLab) -> Path:
    """Where the lab's slurmctld writes what it does."""
    return lab.root / "log" / "slurmctld.log"


if __name__ == "__main__":
    sys.exit(main())
