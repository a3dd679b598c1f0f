"""Agents, two controllers and the API server die at random moments, while faults come and go: the fleet stays whole.

Real processes, ended by SIGKILL. Every look is one consistent list of all Nodes. HEALTHD_TEST_KILLS_S says for how many
seconds this goes on, a minute without it; HEALTHD_TEST_KILLS_SEED chooses another course.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.live.kubernetes.agent_node import AgentNode
from tests.live.kubernetes.control_plane import ControlPlane, repeating
from tests.live.kubernetes.fleet_controller import FleetController
from tests.support.limits import limit_s
from tests.support.running import RECOVERED, UNCONTAINED

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

# As tests/conftest.py hands them on.
FOR_S = float(os.environ.get("TEST_KILLS_S", "60"))
SEED = int(os.environ.get("TEST_KILLS_SEED", "7"))
LIMIT = 2
NAMES = tuple(f"n{number}" for number in range(1, 6))
CORDONED = "n6"
"""A node that a person cordoned. It counts against the limit, so that one of the others may be out."""
PCI = "0000:05:00"
BACK_WITHIN_S = 240.0
UNHEALTHY = "healthd.io/unhealthy"


class Looks:
    """What every list of all Nodes showed, over time."""

    def __init__(self, plane: ControlPlane) -> None:
        self._client = plane.client(plane.admin_token)  # of the looking thread alone
        self.count, self.most_out, self.wrong = 0, 0, list[str]()
        self.taken_out: set[str] = set()

    def look(self) -> None:
        """One list. An API server that is dead shows nothing."""
        try:
            answer = self._client.get("/api/v1/nodes")
        except OSError:
            return
        if answer.ok:
            self._judge(answer.body["items"])

    def _judge(self, nodes: list[dict[str, Any]]) -> None:
        tainted = {each["metadata"]["name"] for each in nodes if UNHEALTHY in _taints(each)}
        cordoned = {each["metadata"]["name"] for each in nodes if each["spec"].get("unschedulable")}
        self.count += 1
        self.taken_out |= tainted
        self.most_out = max(self.most_out, len(tainted | cordoned))
        if len(tainted | cordoned) > LIMIT:
            self.wrong.append(f"out at once: {sorted(tainted)} tainted, {sorted(cordoned)} cordoned")
        if cordoned != {CORDONED}:
            self.wrong.append(f"cordoned: {sorted(cordoned)}, where a person cordoned {CORDONED} alone")
        if CORDONED in tainted:
            self.wrong.append(f"{CORDONED}, which is somebody else's, was taken out")


class Course:
    """What happens next, by chance: somebody dies, or a fault comes or goes."""

    def __init__(self, plane: ControlPlane, agents: dict[str, AgentNode], controllers: list[FleetController]) -> None:
        self.plane, self.agents, self.controllers = plane, agents, controllers
        self.done: Counter[str] = Counter()
        self._chance = random.Random(SEED)  # noqa: S311 - a course that can be played again, no secret
        self._broken: set[str] = set()

    def step(self) -> None:
        kind = self._chance.choices(("fault", "agent", "controller", "api server"), weights=(8, 5, 4, 2))[0]
        {"fault": self._fault, "agent": self._agent, "controller": self._controller, "api server": self._server}[kind]()
        self.done[kind] += 1
        time.sleep(self._chance.uniform(0.5, 4.0))

    def ends(self) -> None:
        """Every fault is over."""
        for name in sorted(self._broken):
            self._says(name, RECOVERED)

    def releases(self) -> int:
        """An operator releases the nodes whose fault came back too often within a day: they are out until then, and
        page. Returns how many there were."""
        held = self._held_by_returns()
        for name in sorted(held):
            done = self.agents[name].daemon.healthd("release", "--socket", str(self.agents[name].daemon.socket))
            assert done.returncode == 0, done.stdout + done.stderr
            self.done["release"] += 1
        return len(held)

    def _held_by_returns(self) -> set[str]:
        statuses = {name: agent.daemon.status() or {} for name, agent in self.agents.items()}
        return {name for name, status in statuses.items() if "came and went" in str(status.get("decision"))}

    def _fault(self) -> None:
        name = self._chance.choice(NAMES)
        self._says(name, RECOVERED if name in self._broken else UNCONTAINED)
        self._broken ^= {name}

    def _says(self, name: str, line: str) -> None:
        self.agents[name].daemon.kernel_says(line.format(pci=PCI))

    def _agent(self) -> None:
        daemon = self.agents[self._chance.choice(NAMES)].daemon
        daemon.kill()
        time.sleep(self._chance.uniform(0.0, 3.0))
        daemon.start(within_s=120)

    def _controller(self) -> None:
        controller = self._chance.choice(self.controllers)
        assert controller.process is not None
        controller.process.kill()
        controller.process.wait(timeout=limit_s(30))
        time.sleep(self._chance.uniform(0.0, 3.0))
        controller.start()

    def _server(self) -> None:
        self.plane.kill_api_server()
        time.sleep(self._chance.uniform(0.0, 8.0))
        self.plane.start_api_server()


@pytest.fixture
def course(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Course]:
    """Agents on all nodes, and two controllers, one of which leads."""
    plane = control_plane
    with ExitStack() as stack:
        controllers = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            made = FleetController(plane, tmp_path / name, f"[budget]\nmax_out = {LIMIT}\n", interval_s=1)
            controllers.append(made)
        for name in (*NAMES, CORDONED):
            plane.add_node(name)
        plane.admin.patch(f"/api/v1/nodes/{CORDONED}", {"spec": {"unschedulable": True}}, kind="merge").must()
        for each in controllers:
            stack.callback(each.stop)
            each.start()
        plane.wait(lambda: plane.notes().get("healthd.io/limit") == str(LIMIT), 60, "the first count")
        agents = {}
        for name in NAMES:
            agents[name] = AgentNode(plane, name, tmp_path)
            stack.enter_context(agents[name].kubelet)
            stack.callback(agents[name].daemon.stop)
            agents[name].daemon.start(within_s=120)
        for agent in agents.values():
            agent.daemon.well(120)
        yield Course(plane, agents, controllers)


def test_whoever_dies_the_fleet_stays_within_its_limit_and_every_good_node_comes_back(course: Course) -> None:
    """Never more nodes out than the limit, nobody's cordon touched, and at the end nothing of healthd's is left. A node
    whose fault came back more often than a day allows waits for its operator."""
    plane, looks, started = course.plane, Looks(course.plane), time.monotonic()
    with repeating(looks.look, "looks"):
        while time.monotonic() - started < FOR_S:
            course.step()
        course.ends()
        plane.wait(lambda: not course.releases() and not _left(plane), BACK_WITHIN_S, "every node to be back")
    counts = f"{dict(course.done)}, {looks.count} looks, {looks.most_out} out at most"
    sys.stderr.write(f"{time.monotonic() - started:.0f} s, {counts}\n")
    assert looks.wrong == []
    assert looks.count > FOR_S / 2
    assert looks.taken_out, "nothing was taken out, so nothing was tried"


def _taints(node: dict[str, Any]) -> set[str]:
    return {each["key"] for each in node["spec"].get("taints", [])}


def _left(plane: ControlPlane) -> list[str]:
    """What of healthd's is not gone yet: taints, holds and claims."""
    found = []
    for node in plane.admin.get("/api/v1/nodes").must()["items"]:
        name, notes = node["metadata"]["name"], node["metadata"].get("annotations", {})
        found += [f"{name}: {key}" for key in sorted(_taints(node)) if key.startswith("healthd.io/")]
        found += [f"{name}: hold"] * ("healthd.io/hold" in notes)
    return [*found, *(key for key in plane.notes() if key.startswith("claim.healthd.io/"))]
