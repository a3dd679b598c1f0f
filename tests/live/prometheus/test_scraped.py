"""Three real daemons, a controller, a real Prometheus: alerts fire for a fault and clear; every query has data."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from healthd.sim.machine import NOT_SIMULATED, SimulatedMachine
from tests.live.prometheus.dashboards import DASHBOARDS, dashboard, panel_queries
from tests.live.prometheus.prometheus_server import Prometheus, promtool
from tests.live.slurm.controller_lab import RunningController
from tests.support.healthy_node import EBS_NONE, SMART
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import ROOT, RunningNode

pytestmark = [pytest.mark.process, pytest.mark.slow]

FAULTY = 1
SECTIONS = """
[orchestrator]
kind = "local"
[provisioner]
kind = "local"
[provisioner.local]
reboot_command = {reboot}
[remediation]
mode = "repair"
settle_s = 1
[policy]
canary_repairs = 0
[notify]
command = ["/bin/cat"]
"""


class Node(RunningNode):
    """A simulated p5.48xlarge with the tools of nccl-tests and nvme-cli, and /fsx in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self.machine, self.port = SimulatedMachine(folder / "machine"), free_ports(1)[0]
        tool(folder / "all_reduce_perf", (ROOT / "tests/support/active_sim/all_reduce_perf.py").read_text())
        tool(folder / "bin/nvme", f"print({json.dumps({**json.loads(SMART), **json.loads(EBS_NONE)})!r})")
        table, fsx = self.machine.root / "proc/self/mountinfo", folder / "fsx"
        fsx.mkdir()
        table.write_text(table.read_text().replace(" /fsx ", f" {fsx} "))
        off = [name for name in NOT_SIMULATED if name not in ("lustre.io", "storage.nvme")]
        sections = SECTIONS.format(
            reboot=json.dumps([sys.executable, "-m", "healthd.sim.machine", str(self.machine.folder)]),
        )
        environ = {
            "HEALTHD_DAEMON_HTTP": f"127.0.0.1:{self.port}",
            "ACTIVE_SIM_NOTE": str(folder / "note"),
            "PATH": f"{folder}/bin:/usr/bin:/bin",
        }
        sections += self.machine.sections(off=off, all_reduce_perf=folder / "all_reduce_perf")
        super().__init__(folder, name, sections=sections, kmsg=str(self.machine.kmsg), environ=environ)

    def power_cycle(self) -> None:
        """What the reboot that healthd asked for does."""
        self.kill()
        self.machine.reboot()
        self.start()


def tool(path: Path, text: str) -> None:
    """An executable in Python."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, ...]]:
    made = tuple(Node(tmp_path / f"p5-{number}", f"p5-{number}") for number in (1, 2, 3))
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(lambda node: node.start(within_s=60), made))
            yield made
        finally:
            list(pool.map(lambda node: node.stop(), made))


SCONTROL = """
import sys
if "nodes" in sys.argv:
    print("\\n".join(f"NodeName=p5-{number} Arch=x86_64 State=IDLE Partitions=p5 BootTime=1 " for number in (1, 2, 3)))
else:
    print("No reservations in the system")
"""
"""Three nodes of a Slurm that has nothing to do."""
CONTROLLER = """
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
bin_dir = "{folder}/bin"
[provisioner]
kind = "ec2"
[notify]
command = ["/bin/cat"]
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RunningController]:
    """A real controller, whose scontrol is a stand-in: with real ones it is in tests/live/slurm."""
    folder = tmp_path / "head"
    folder.mkdir()
    tool(folder / "bin/scontrol", SCONTROL)
    made = RunningController(
        folder / "controller",
        CONTROLLER.format(folder=folder),
        folder / "state",
        {**os.environ, "PYTHONPATH": str(ROOT)},
    )
    yield made.start()
    made.stop()


@pytest.fixture
def prometheus(tmp_path: Path, nodes: tuple[Node, ...], controller: RunningController) -> Iterator[Prometheus]:
    targets = {**{node.name: node.port for node in nodes}, "head-1": controller.port}
    server = Prometheus(tmp_path / "prometheus", targets, ROOT / "packaging/prometheus/rules.yaml")
    yield server
    server.stop()


def test_alerts_fire_and_clear_and_every_query_has_data(nodes: tuple[Node, ...], prometheus: Prometheus) -> None:
    """XID 79 on one of three nodes: its alert fires, and no other node's; every query of both dashboards has data, and
    promtool has nothing against any page, which is as long as the docs say; after the repair the alert is over."""
    faulty = nodes[FAULTY]
    active = nodes[0].healthd("check", "nccl.nvlink", "nccl.loopback", "--active", "--socket", str(nodes[0].socket))
    assert active.returncode == 0, active.stdout + active.stderr
    prometheus.wait(lambda: len(prometheus.query('healthd_verdict{verdict="ok"} == 1')) == 3, 40, "three nodes are ok")
    assert prometheus.firing() == set()

    faulty.machine.gpu_falls_off_the_bus(3)
    prometheus.wait(lambda: ("HealthdCriticalFault", "p5-2") in prometheus.firing(), 20, "the alert fires")
    assert {instance for _, instance in prometheus.firing()} == {"p5-2"}
    faulty.wait(lambda: faulty.machine.reboot_is_wanted, 30, "a reboot is asked for")
    prometheus.wait(lambda: not empty_queries(prometheus), 20, "every query has data")
    for node in nodes:
        page = promtool("check", "metrics", text=page_of(node))
        assert (page.returncode, page.stdout + page.stderr) == (0, "")
        assert 1_000 < len([line for line in page_of(node).splitlines() if not line.startswith("#")]) < 3_000

    faulty.power_cycle()
    prometheus.wait(lambda: not prometheus.firing(), 30, "the alert is over")
    prometheus.wait(lambda: len(prometheus.query('healthd_verdict{verdict="ok"} == 1')) == 3, 30, "all are ok again")


def page_of(node: Node) -> str:
    """The metrics page as it is scraped."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.port}/metrics", timeout=limit_s(10)) as answer:
        text: str = answer.read().decode()
        return text


def empty_queries(prometheus: Prometheus) -> list[str]:
    """The queries of the dashboards that return nothing now, the list of nodes among them."""
    return [query for query in dict.fromkeys(queries()) if not prometheus.query(query)]


def queries() -> Iterator[str]:
    """Every query of a panel, and the list of nodes, with the interval of these scrapes."""
    for name in DASHBOARDS:
        found = list(panel_queries(name, __rate_interval="10s"))
        assert len(found) > 20
        yield from (query.promql for query in found)
    yield "healthd_verdict"  # label_values() of the variables


def test_a_dashboard_needs_no_plugin_and_no_fixed_source() -> None:
    """Panels are Grafana's own, and each reads the source that is chosen: it works in Amazon Managed Grafana."""
    for name in DASHBOARDS:
        made = dashboard(name)
        panels = [panel for panel in made["panels"] if panel["type"] != "row"]
        assert {panel["type"] for panel in panels} <= {"timeseries", "stat", "table", "state-timeline"}
        assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
        asked = {target["datasource"]["uid"] for panel in panels for target in panel["targets"]}
        assert asked == {"${datasource}"}
        assert not re.search(r"__inputs|__requires", json.dumps(made))
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made["panels"]]
        assert len(places) == len(set(places))
