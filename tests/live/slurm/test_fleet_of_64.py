"""``healthd fleet`` on 64 real nodes, 16 with a real daemon, in every state: each column is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.core.model import Mode
from healthd.fleet.nodes import FleetState
from healthd.remediation.records.summary import NodeState, NodeSummary
from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_fleet_view import OBSERVE, Head
from tests.live.slurm.test_spine import PCI, Nodes, quarantine
from tests.support.running import OFF_THE_BUS, UNCONTAINED

pytestmark = [pytest.mark.slurm, pytest.mark.process, pytest.mark.slow]

CORRECTED = f"NVRM: Xid (PCI:{PCI}): 92, pid=1, High single-bit ECC error rate"
UNREADABLE = '[sources]\nkmsg = "{folder}/no-kernel-log"\n'
PROVISIONER = """
[provisioner]
kind = "local"
[provisioner.local]
reboot_command = ["/bin/true"]
"""
STATES = {
    **dict.fromkeys(("n0001", "n0002", "n0003", "n0016"), FleetState.OK),
    **dict.fromkeys(("n0004", "n0005"), FleetState.WARNING),
    **dict.fromkeys(("n0006", "n0007"), FleetState.CRITICAL),
    "n0008": FleetState.UNKNOWN,
    **dict.fromkeys(("n0009", "n0010"), FleetState.HELD),
    "n0011": FleetState.DRAINING,
    "n0012": FleetState.REPAIRING,
    "n0013": FleetState.NEEDS_OPERATOR,
    "n0014": FleetState.DRAINED,
    "n0015": FleetState.DOWN,
}
"""The nodes with a daemon."""
SHOWN = (
    ("OK", 4, "n[0001-0003,0016]", ""),
    ("WARNING", 2, "n[0004-0005]", "gpu.xid.92"),
    ("CRITICAL", 2, "n[0006-0007]", "observe mode: nothing is done"),
    ("UNKNOWN", 1, "n0008", "kmsg.reader"),
    ("HELD", 2, "n[0009-0010]", "gpu.xid.95"),
    ("DRAINING", 1, "n0011", "gpu.xid.79"),
    ("REPAIRING", 1, "n0012", "reboot asked for"),
    ("NEEDS OPERATOR", 1, "n0013", "at the fleet limit"),
    ("DRAINED", 1, "n0014", 'by root: "fan swap"'),
    ("DOWN", 1, "n0015", 'by root: "no power"'),
    ("SILENT", 47, "n[0017-0063]", "no report yet"),
    ("SILENT", 1, "n0064", "no heartbeat"),
)
"""State, number of nodes, host list and cause of each line."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=64) as started:
        yield started


@pytest.fixture
def nodes(lab: SlurmLab, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(lab, tmp_path)
    yield made
    for node in made.running:
        node.stop()


def test_every_state_is_shown_in_its_column(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """16 nodes with a daemon in eleven states, and 48 without one, which are silent."""
    head = Head(lab, tmp_path)
    sections = {
        **dict.fromkeys(STATES, quarantine()),
        "n0006": OBSERVE,
        "n0007": OBSERVE,
        "n0008": quarantine(more=UNREADABLE.format(folder=tmp_path)),
        **dict.fromkeys(("n0011", "n0012"), quarantine().replace('"quarantine"', '"repair"') + PROVISIONER),
        "n0013": quarantine(max_out=1),
    }
    running = {name: nodes.add(name, text, start=False) for name, text in sections.items()}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda node: node.start(within_s=90), running.values()))
    job = lab.run_job("n0011")
    for name in ("n0004", "n0005"):
        running[name].kernel_says(CORRECTED)
    for name in ("n0006", "n0007", "n0011", "n0012"):
        running[name].kernel_says(OFF_THE_BUS.format(pci=PCI))
    for name in ("n0009", "n0010"):
        running[name].kernel_says(UNCONTAINED.format(pci=PCI))
    lab.wait(lambda: list(map(states(head).get, ("n0009", "n0010"))) == ["held"] * 2, 60, "two are held")
    running["n0013"].kernel_says(OFF_THE_BUS.format(pci=PCI))
    lab.update("n0014", "state=drain", "reason=fan swap")
    lab.update("n0015", "state=down", "reason=no power")
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    stale = NodeSummary(state=NodeState.OK, at=long_ago, since=long_ago, mode=Mode.REPAIR, instance_type="p5.48xlarge")
    lab.update("n0064", f'extra={{"healthd":"{stale.text}"}}')

    wanted = {**dict.fromkeys(lab.nodes, "silent"), **{name: state.value for name, state in STATES.items()}}
    lab.wait(lambda: states(head) == wanted, 120, "every node is in its state")
    found = head.nodes()
    assert {name: found[name]["code"] for name in ("n0004", "n0006", "n0009", "n0011", "n0012", "n0013")} == {
        "n0004": "gpu.xid.92",
        "n0006": "gpu.xid.79",
        "n0009": "gpu.xid.95",
        "n0011": "gpu.xid.79",
        "n0012": "gpu.xid.79",
        "n0013": "gpu.xid.79",
    }
    assert found["n0014"]["hold"] == {"by": "root", "reason": "fan swap", "automatic": False}
    assert {name for name, each in found.items() if each["slot"]} == {"n0009", "n0010", "n0011", "n0012"}

    # a state is in a summary before the words of its step are
    lab.wait(lambda: not lines_missing(head), 60, "every line is as it should be")
    why = head.fleet("--why").stdout
    assert job in next(line for line in why.splitlines() if line.startswith("n0011"))


def states(head: Head) -> dict[str, str]:
    return {name: each["state"] for name, each in head.nodes().items()}


def lines_missing(head: Head) -> list[str]:
    """The rows of SHOWN that the command does not print now. It ends with 1: nodes are out."""
    shown = head.fleet()
    assert shown.returncode == 1, shown.stderr
    return [
        hosts
        for state, count, hosts, cause in SHOWN
        if not any(
            re.match(rf"{state} +{count} ", line) and hosts in line and cause in line
            for line in shown.stdout.splitlines()
        )
    ]
