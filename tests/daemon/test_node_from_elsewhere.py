"""One node from a head node, without ssh: a real daemon on a simulated machine, asked over HTTP by its name.

The node is an address of loopback, and a stand-in for scontrol lists it: no slurmctld has nodes on this machine under
names that resolve.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.core.check import discover
from healthd.sim.machine import SimulatedMachine
from tests.support.ports import free_ports
from tests.support.running import OFF_THE_BUS, QUARANTINES, RunningNode, command_line

pytestmark = [pytest.mark.process]

NODE = "127.0.0.2"
READS = ("kernel.xid", "gpu.count", "kmsg.reader")
SCONTROL = f"""#!/bin/sh
case "$*" in
*nodes*) echo 'NodeName={NODE} Arch=x86_64 State=IDLE ThreadsPerCore=1 Partitions=main' ;;
*config*) echo 'ClusterName = train-a' ;;
esac
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    (port,) = free_ports(1)
    machine = SimulatedMachine(tmp_path / "machine")
    sections = machine.sections(off=[name for name in discover() if name not in READS]) + QUARANTINES
    one = RunningNode(tmp_path / "node", NODE, sections=sections, kmsg=str(machine.kmsg), http=f"{NODE}:{port}")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(SCONTROL)
    (tools / "scontrol").chmod(0o755)
    head = f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\nbin_dir = "{tools}"\n'
    head += (
        f'[ledger]\ninventory_url = "http://{{node}}:{port}/inventory"\n[controller]\nstate_dir = "{tmp_path}/none"\n'
    )
    (tmp_path / "head.toml").write_text(head)
    try:
        one.start()
        yield one
    finally:
        one.stop()


def from_head(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true"}
    return command_line([*arguments, "--config", str(folder / "head.toml")], environ, 60.0)


def test_a_head_node_reads_history_remediation_and_case_of_a_node(node: RunningNode, tmp_path: Path) -> None:
    """Faults and steps without the lines of the log; the case has serial numbers, though no ledger is here."""
    node.wait(lambda: "ok        3 checks" in from_head(tmp_path, "fleet", NODE).stdout, 60.0, "its GPUs are known")
    quiet = from_head(tmp_path, "case", NODE)
    assert (quiet.returncode, f"neither the ledger nor {NODE} has anything" in quiet.stderr) == (1, True)
    node.kernel_says(OFF_THE_BUS.format(pci="0000:53:00"))
    node.wait(lambda: "remediation  [" in from_head(tmp_path, "fleet", NODE).stdout, 60.0, "it is being taken out")
    shown = from_head(tmp_path, "fleet", NODE)
    assert (shown.returncode, shown.stderr) == (1, "")
    history = shown.stdout.partition("/history\n")[2]
    assert "  fault        gpu.xid.79 on " in history
    assert "opened: " in history
    assert "slot, drain" in history
    assert "NVRM" not in history
    timeline = json.loads(from_head(tmp_path, "fleet", NODE, "--json").stdout)["timeline"]
    assert [each["code"] for each in timeline["remediations"]] == ["gpu.xid.79"]
    case = from_head(tmp_path, "case", NODE)
    assert (case.returncode, "no ledger here" in case.stderr) == (0, True)
    assert f"this is what {NODE} itself remembers" in case.stderr
    assert "gpu.xid.79  gpu:GPU-" in case.stdout
    assert " serial " in case.stdout
    node.stop()
    gone = from_head(tmp_path, "case", NODE)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "no ledger here" in gone.stderr
    assert "refuses connections" in gone.stderr
