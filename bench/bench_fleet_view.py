"""``healthd fleet`` on one real slurmctld that knows thousands of nodes, and what their summaries cost it.

Nobody runs the nodes; each has a summary in its Extra, as a daemon leaves it. Measured: the verb as a cold process
beside `sinfo -N`, slurmctld's CPU for the heartbeats of all nodes (each a read and an update by the daemon's own code)
at the interval that the reference names for a fleet of that size, and a storm in which a thousand nodes change at once.

Aims, for 10,000 nodes: the verb within 2 s, at most 1 % of a core of slurmctld for all heartbeats, at most 12 requests
an agent and hour.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from statistics import median
from typing import Any

from bench.measure import cpu_ms, skipped, write_down
from healthd.config.schema.config import SlurmSection
from healthd.core.model import Mode
from healthd.remediation.decide.summary import NodeState, NodeSummary
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason

AIM_COMMAND_S, AIM_SHARE_PERCENT, AIM_REQUESTS = 2.0, 1.0, 12.0
REQUESTS_A_HEARTBEAT = 2  # sinfo, then scontrol update
LARGE, LARGE_HEARTBEAT_S = 6000, 1200.0  # see heartbeat_s in docs/reference/config.md
STORM = 1000
PACED_S = 60.0  # at the rate of the whole fleet
CLIENTS = 16  # side by side; a real fleet has a machine for each
STATES = (
    (0.90, NodeState.OK, "", ""),
    (0.95, NodeState.WARNING, "efa.counters.retrans", "efa:rdmap0s6"),
    (0.98, NodeState.UNKNOWN, "gpu.count", ""),
    (1.00, NodeState.CRITICAL, "gpu.xid.79", "GPU 3"),
)


def main() -> int:
    """Measure and write down. Exit 1 where an aim is missed, 77 where there is no Slurm."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=9, help="runs of each command")
    options.add_argument("--nodes", type=int, default=10_000)
    chosen = options.parse_args()
    if reason := skip_reason():
        return skipped(reason)
    with cluster(chosen.nodes) as lab:
        figures = measured(lab, chosen.nodes, chosen.n)
    write_down("fleet_view" if chosen.nodes == 10_000 else f"fleet_view_{chosen.nodes}", figures)
    kept = figures["command_median_s"] <= AIM_COMMAND_S and figures["heartbeats_percent_of_a_core"] <= AIM_SHARE_PERCENT
    return 0 if kept and figures["requests_an_agent_and_hour"] <= AIM_REQUESTS else 1


def cluster(count: int) -> SlurmLab:
    """One real node, and others that slurmctld knows and nobody runs."""
    others = f"f[00001-{count - 1:05d}]"
    return SlurmLab(
        nodes=1,
        conf={"MaxNodeCount": str(count + 16), "SlurmdTimeout": "0"},
        lines=[
            f"NodeName={others} NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=DOWN",
            f"PartitionName=fleet Nodes=n0001,{others} State=UP",
        ],
    )


def measured(lab: SlurmLab, count: int, runs: int) -> dict[str, Any]:
    """All figures of one cluster."""
    os.environ.update(lab.env())
    begin = 1
    for share, state, code, component in STATES:
        until = max(begin, round(share * (count - 1)))
        text = summary(state, code, component)
        lab.update(f"f[{begin:05d}-{until:05d}]", f'extra={{"healthd":"{text.text}"}}')
        begin = until + 1
    config = lab.root / "head.toml"
    config.write_text(f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\nconf = "{lab.conf}"\ntimeout_s = 30\n')
    fleet = [sys.executable, "-m", "healthd", "fleet", "--config", str(config)]
    pid = lab.pid("slurmctld")
    heartbeat_s = LARGE_HEARTBEAT_S if count > LARGE else SlurmSection().heartbeat_s
    at_rest = spent_ms(pid, lambda: time.sleep(10)) / 10
    command_s, command_ms = timed(fleet, runs, pid)
    sinfo_s, sinfo_ms = timed(["/usr/bin/sinfo", "-N"], runs, pid)
    beats_ms = heartbeats(pid, count, round(PACED_S * count / heartbeat_s), PACED_S, at_rest)
    began = time.monotonic()
    storm_ms = heartbeats(pid, count, STORM, 0.0, at_rest)
    return {
        "nodes": count,
        "command_median_s": round(command_s, 2),
        "aim_command_median_s": AIM_COMMAND_S,
        "sinfo_median_s": round(sinfo_s, 2),
        "command_ctld_ms": round(command_ms, 1),
        "sinfo_ctld_ms": round(sinfo_ms, 1),
        "heartbeat_s": heartbeat_s,
        "heartbeats_percent_of_a_core": round(beats_ms / PACED_S / 10, 2),
        "aim_heartbeats_percent_of_a_core": AIM_SHARE_PERCENT,
        "requests_an_agent_and_hour": REQUESTS_A_HEARTBEAT * 3600 / heartbeat_s,
        "aim_requests_an_agent_and_hour": AIM_REQUESTS,
        "storm_nodes": STORM,
        "storm_s": round(time.monotonic() - began, 1),
        "storm_ctld_s": round(storm_ms / 1000, 2),
    }


def summary(state: NodeState, code: str = "", component: str = "") -> NodeSummary:
    """What a daemon of a p5.48xlarge leaves."""
    now = datetime.now(UTC)
    return NodeSummary(
        state=state,
        at=now,
        since=now,
        mode=Mode.REPAIR,
        instance_type="p5.48xlarge",
        code=code,
        component=component,
    )


def timed(argv: list[str], runs: int, pid: int) -> tuple[float, float]:
    """The median of the seconds of a command, and slurmctld's milliseconds for one."""
    times = []

    def run_them() -> None:
        for _ in range(runs):
            began = time.monotonic()
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            times.append(time.monotonic() - began)
            if not done.stdout:
                raise RuntimeError(f"{argv}: exit status {done.returncode}: {done.stderr}")

    ms = spent_ms(pid, run_them)
    return median(times), ms / runs


def heartbeats(pid: int, count: int, number: int, over_s: float, at_rest: float) -> float:
    """Slurmctld's milliseconds of CPU for the heartbeats of random nodes, evenly spread over a time, less what it uses
    at rest. It writes its state to disk some seconds after a change: one write for all of these."""
    names = [f"f{random.randrange(1, count):05d}" for _ in range(number)]  # noqa: S311  no secret
    began = time.monotonic()

    def beat(turn: int) -> None:
        time.sleep(max(0.0, began + over_s * turn / number - time.monotonic()))
        SlurmOrchestrator(node=names[turn], timeout_s=30.0).summarize(summary(NodeState.OK))

    def beat_all() -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(beat, range(number)))

    ms = spent_ms(pid, beat_all)
    return max(ms - at_rest * (time.monotonic() - began), 0.0)


def spent_ms(pid: int, work: Callable[[], object]) -> float:
    """A process's CPU time, in milliseconds, while this is done."""
    before = cpu_ms(pid)
    work()
    return cpu_ms(pid) - before


if __name__ == "__main__":
    sys.exit(main())
