"""``healthd job JOBID --compare`` over real daemons on simulated machines, of which one GPU is slow.

The nodes are addresses of loopback, so that each has the same port, and a stand-in for scontrol names them as the nodes
of a job: no slurmctld has four nodes on this machine under names that resolve.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.core.check import discover
from healthd.sim.machine import SimulatedMachine
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state
from tests.support.ports import free_ports
from tests.support.running import RunningNode, command_line

pytestmark = [pytest.mark.process]

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
SLOW, SLOW_GPU = "127.0.0.3", 5
READS = ("gpu.power", "gpu.throttle", "gpu.nvlink")
SCONTROL = """#!/bin/sh
cat <<'END'
JobId=42 JobName=train
   Nodes=127.0.0.[2-4] CPU_IDs=0-191 Mem=0 GRES=gpu:h100:8(IDX:0-7)
END
"""
SQUEUE = """#!/bin/sh
case "$*" in
*admin_comment*) echo '42|0|(null)|' ;;
*) echo '42|42|RUNNING|alice|127.0.0.[2-4]|0|1|1|0|{start}|0|1|N/A|None|' ;;
esac
"""


def at_work(slow: int | None) -> dict[str, str]:
    """The NVML of a machine whose GPUs all work; one is slowed down."""
    state = healthy_state("p5.48xlarge")
    for gpu in range(8):
        is_slow = gpu == slow
        state |= {
            f"gpu{gpu}.nvmlDeviceGetUtilizationRates": "100 40",
            f"gpu{gpu}.nvmlDeviceGetPowerUsage": "330000" if is_slow else f"{610 + gpu}000",
            f"gpu{gpu}.nvmlDeviceGetClockInfo": "990" if is_slow else f"{1700 + 5 * gpu}",
            f"gpu{gpu}.nvmlDeviceGetCurrentClocksEventReasons": "64" if is_slow else "0",
        }
    return state


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningNode]]:
    """Three daemons that read once a second."""
    (port,) = free_ports(1)
    made = []
    for host in HOSTS:
        folder = tmp_path_factory.mktemp(host.replace(".", "-"))
        machine = SimulatedMachine(folder / "machine")
        write_state(machine.nvml, at_work(SLOW_GPU if host == SLOW else None))
        often = "".join(f'[checks."{name}"]\ninterval_s = 1\n' for name in READS)
        sections = machine.sections(off=[name for name in discover() if name not in READS]) + often
        sections += '[orchestrator]\nkind = "local"\n'
        made.append(
            RunningNode(folder / "node", host, sections=sections, kmsg=str(machine.kmsg), http=f"{host}:{port}")
        )
    try:
        for node in made:
            node.start()
        yield made
    finally:
        for node in made:
            node.stop()


@pytest.fixture
def head(tmp_path: Path, nodes: list[RunningNode]) -> Path:
    """The configuration of a head node."""
    clients = tmp_path / "bin"
    clients.mkdir()
    start = int((datetime.now(UTC) - timedelta(hours=3)).timestamp())
    for name, script in {"scontrol": SCONTROL, "squeue": SQUEUE.format(start=start)}.items():
        (clients / name).write_text(script)
        (clients / name).chmod(0o755)
    port = nodes[0].config.read_text().partition('http = "127.0.0.2:')[2].partition('"')[0]
    config = tmp_path / "head.toml"
    config.write_text(
        f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\nbin_dir = "{clients}"\n'
        f'nccl_log = "{tmp_path}/logs/%j/nccl.*"\n[ledger]\ninventory_url = "http://{{node}}:{port}/inventory"\n'
    )
    return config


def comparison(head: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true"}
    return command_line(["job", "42", "--compare", "--config", str(head), *options], environ, 60.0)


def as_data(head: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(comparison(head, "--json").stdout)
    return data


def has_samples(head: Path) -> bool:
    data = as_data(head)
    return (
        not data["remarks"]
        and {"SM clock", "power draw"} & {each["reading"] for each in data["ranked_devices"]} != set()
    )


def test_the_slow_gpu_is_the_first_of_its_job(nodes: list[RunningNode], head: Path) -> None:
    """By what three daemons read of 24 GPUs; a few seconds are no straggler yet. NCCL's words beside it come from the
    job's log, and a node that does not answer is named."""
    logs = head.parent / "logs" / "42"
    logs.mkdir(parents=True)
    told = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1)"
    (logs / "nccl.0").write_text("".join(f"[rank{rank}]:[E] [Rank {rank}] {told}\n" for rank in range(23)))
    nodes[0].wait(lambda: has_samples(head), 60.0, "all GPUs have six samples")
    data = as_data(head)
    first = data["ranked_devices"][0]
    assert (first["node"], first["label"]) == (SLOW, f"GPU {SLOW_GPU}")
    assert first["peers"] == 23
    assert first["score"] < -6
    assert data["findings"] == []
    assert data["nccl"] == [
        "23 ranks timed out in ALLREDUCE number 7",
        "no timeout of rank 23: not in that collective",
    ]
    shown = comparison(head)
    assert shown.returncode == 0
    assert f"devices   {SLOW} GPU {SLOW_GPU}  " in shown.stdout
    nodes[2].stop()
    gone = comparison(head)
    assert f"! {HOSTS[2]} is not compared: " in gone.stdout
    nodes[2].start()
