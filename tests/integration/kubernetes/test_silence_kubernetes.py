"""What would be silent: a round that does not end, and nodes, agents and policies that nobody hears of any more.

A real controller process with the chart's own rights on a real API server.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from healthd.api.wire import EXIT_FAILED
from tests.integration.kubernetes import fault_proxy as faults
from tests.integration.kubernetes.control_plane import LEASES, ControlPlane
from tests.integration.kubernetes.fault_proxy import FaultProxy
from tests.integration.kubernetes.fleet_controller import Fleet, FleetController, Start

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]


def health(controller: FleetController) -> int:
    """What a probe gets; 0 for no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{controller.port}/healthz", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_round_that_hangs_gives_up_the_lead_and_ends_loudly(
    control_plane: ControlPlane, fleet: Fleet, start: Start, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The API server lets this one controller's list run into its deadline, and renewals pass: it would lead for ever.
    The probe sees it, the other one takes over at once, and the process ends with an error."""
    fleet.add(["n1"])
    (tmp_path / "stuck").mkdir()
    stuck = FleetController(
        control_plane, tmp_path / "stuck", "round_patience_s = 6\n[budget]\nmax_out = 1\n", url=proxy.url
    )
    try:
        stuck.start()
        control_plane.wait(lambda: stuck.leads and fleet.numbers()[0] == "1", 60, "the first to lead")
        other = start("[budget]\nmax_out = 1\n", name="other")
        control_plane.wait(lambda: "another controller leads" in other.log, 60, "the second to wait")
        assert (health(stuck), health(other)) == (200, 200), "one that waits is ready"
        proxy.fail(faults.HANGS, times=None, path="/api/v1/nodes[?]")
        control_plane.wait(lambda: health(stuck) == 503, 20, "the probe to see it")
        control_plane.wait(lambda: other.leads, 30, "the second to take over")
        assert stuck.process is not None
        assert stuck.process.wait(timeout=30) == EXIT_FAILED
        last = [line for line in stuck.log.splitlines() if "gives up the lead and ends" in line]
        assert len(last) == 1
        assert "a round has been under way for over 6 s" in last[0]
        assert '"level": "critical"' in last[0]
        holder = control_plane.admin.get(f"{LEASES}/healthd-controller").must()["spec"]["holderIdentity"]
        time.sleep(2.0)
        assert control_plane.admin.get(f"{LEASES}/healthd-controller").must()["spec"]["holderIdentity"] == holder
        assert other.leads
    finally:
        stuck.stop()
