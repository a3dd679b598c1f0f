"""The window that Slurm leaves open: from reading a node's state to its update, on a real slurmctld.

slurmctld has no compare-and-swap on a node's state, so what an admin does between our last read and our update is
overwritten. This is how long that is: one `view()` and one drain, or undrain, on a quiet eight-node cluster.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial

from bench.measure import percentile, skipped, write_down
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason


def main() -> int:
    """Measure and write down. Exit 77 where there is no Slurm."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=200, help="rounds")
    rounds = options.parse_args().n
    if reason := skip_reason():
        return skipped(reason)
    drains, undrains = [], []
    with SlurmLab() as lab:
        os.environ.update(lab.env())
        node = SlurmOrchestrator(node="n0001")
        for number in range(rounds):
            drains.append(timed(node, partial(node.quarantine, f"healthd: bench {number}")))
            undrains.append(timed(node, partial(node.release, resume=False)))
    write_down("window", {"rounds": rounds, **figures("drain", drains), **figures("undrain", undrains)})
    return 0


def timed(node: SlurmOrchestrator, update: Callable[[], object]) -> float:
    """Milliseconds from the start of the read to the acknowledgement of the update."""
    begun = time.perf_counter()
    node.view()
    update()
    return (time.perf_counter() - begun) * 1000


def figures(name: str, times_ms: list[float]) -> dict[str, float]:
    """The three figures of one kind of update."""
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {f"read_to_{name}_{word}_ms": round(percentile(times_ms, share), 1) for word, share in shares.items()}


if __name__ == "__main__":
    sys.exit(main())
