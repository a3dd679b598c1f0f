"""The ledger of a controller on a real API server, with the rights that the chart gives it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.fleet.incident_memory import kept_memory
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import LedgerContents
from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fleet_controller import FleetController
from tests.support.limits import limit_s

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]


def read(state: Path) -> LedgerContents:
    if not (state / LEDGER).exists():
        return LedgerContents()
    ledger = Ledger(state / LEDGER, now=datetime.now(UTC), reads_only=True)
    try:
        return ledger.contents()
    finally:
        ledger.close()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_ledger_has_what_the_fleet_shows(
    control_plane: ControlPlane, shown_agents: Agents, tmp_path: Path, wanted: bool
) -> None:
    """Each node with its state, and the fault of the one that is held. Where it is off, nothing is read and the log
    says so."""
    controller = FleetController(control_plane, tmp_path, ledger=wanted).start()
    state, log = tmp_path / "state", tmp_path / "log"
    try:
        end = time.monotonic() + limit_s(60)
        while not (read(state).spans if wanted else "[ledger] enabled is false" in log.read_text()):
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)
        contents = read(state)
    finally:
        controller.stop()
    if not wanted:
        assert not (state / LEDGER).exists()
        return
    assert {each.node: (each.state, each.cause) for each in contents.spans} == {
        "n1": ("out", "gpu.xid.79"),
        "n2": ("serving", ""),
        "n3": ("silent", "no report"),
    }  # no healthd runs on cpu-1
    assert [(each.node, each.code) for each in contents.entries if each.kind == "fault"] == [("n1", "gpu.xid.79")]
    assert kept_memory(state) is not None
