"""A freeze of the fleet on a real slurmctld: one reservation without nodes, which survives what slurmctld survives."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.slurm.slots import parse_freezes
from tests.live.slurm.reboot_asked import repairing
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

NAME = "n0001"
PCI = "0000:05:00"


def listed(slurm: SlurmLab) -> list[str]:
    return list(parse_freezes(slurm.client("scontrol", "-o", "show", "reservation").stdout))


def test_a_freeze_holds_repairs_through_restarts_and_its_end_lets_them_go(slurm: SlurmLab, tmp_path: Path) -> None:
    """Begun from the head node; slurmctld is reconfigured, killed and started again, the daemon too: jobs run on every
    node, the faulty node is drained and not rebooted. Ended, it is rebooted once."""
    asked = tmp_path / "asked"
    node = RunningNode(tmp_path / "node", NAME, sections=repairing(asked, mode="repair"), environ=slurm.env())
    verb = ("--config", str(node.config))
    assert "no freeze is on" in node.healthd("freeze", *verb).stdout
    dry = node.healthd("freeze", "--for", "2h", "--reason", "driver rollout", "--dry-run", *verb)
    assert (dry.returncode, listed(slurm)) == (0, []), dry.stderr
    assert node.healthd("freeze", "--for", "2h", *verb).returncode == 64, "it needs a reason"
    begun = node.healthd("freeze", "--for", "2h", "--reason", "driver rollout", *verb)
    assert begun.returncode == 0, begun.stderr
    assert re.search(r"on: freeze until .* UTC: driver rollout \(root\)", begun.stdout), begun.stdout
    shown = json.loads(node.healthd("freeze", "--json", *verb).stdout)
    (row,) = shown["freezes"]
    assert (shown["schema"], row["reason"], row["by"]) == ("healthd.freeze/v1", "driver rollout", "root")
    assert (row["state"], row["allow"], row["until"][-6:]) == ("on", ["drain"], "+00:00")
    again = node.healthd("freeze", "--for", "1h", "--reason", "x", *verb)
    assert (again.returncode, "there is one already" in again.stderr) == (1, True), again.stderr
    assert all(state.startswith("IDLE") for state in slurm.states().values()), "it keeps no job off"
    slurm.wait_job(slurm.submit(NAME, "true"), "COMPLETED")
    assert slurm.scontrol("reconfigure").returncode == 0
    time.sleep(1.0)
    slurm.ctld_stop()
    slurm.ctld_start()
    assert listed(slurm) == ["healthd-freeze:driver_rollout:root"]
    slurm.wait_state(NAME, "IDLE", within_s=limit_s(30.0))
    node.start()
    try:
        node.kernel_says(OFF_THE_BUS.format(pci=PCI))
        slurm.wait(lambda: "DRAIN" in slurm.state(NAME), limit_s(15.0), "drained all the same")
        socket = ("--socket", str(node.socket))
        words = "driver rollout (root); no reset, reboot or replacement before its end"
        node.wait(lambda: words in node.healthd("status", *socket).stdout, limit_s(30.0), "it waits")
        node.kill()
        node.start()
        node.wait(lambda: words in node.healthd("status", *socket).stdout, limit_s(30.0), "it still waits")
        fleet = node.healthd("fleet", *verb)
        assert "driver rollout (root)" in fleet.stdout, fleet.stderr
        assert not asked.exists()
        ended = node.healthd("freeze", "--end", *verb)
        assert (ended.returncode, listed(slurm)) == (0, []), ended.stderr
        node.wait(lambda: asked.exists() and asked.read_text() != "", limit_s(60.0), "the reboot is asked for")
        assert len(asked.read_text().splitlines()) == 1
    finally:
        node.stop()
        slurm.scontrol("delete", "reservationname=healthd-freeze:driver_rollout:root")
