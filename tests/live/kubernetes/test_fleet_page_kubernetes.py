"""The controller's page of the fleet on a real API server, with the rights that the chart gives it."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fleet_controller import FleetController
from tests.live.kubernetes.test_fleet_view_kubernetes import Head
from tests.support.limits import limit_s

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]


def test_the_page_shows_what_the_command_shows(
    control_plane: ControlPlane, shown_agents: Agents, tmp_path: Path
) -> None:
    """The same nodes in the same states, and the controller that leads; it is packed, and read-only."""
    controller = FleetController(control_plane, tmp_path / "controller").start()

    def asked(path: str, method: str = "GET") -> tuple[int, bytes]:
        with closing(HTTPConnection("127.0.0.1", controller.port, timeout=limit_s(10))) as connection:
            connection.request(method, path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            body = answer.read()
            is_packed = answer.headers["Content-Encoding"] == "gzip"
            return answer.status, gzip.decompress(body) if is_packed else body

    def is_read() -> bool:
        try:
            return asked("/fleet")[0] == 200
        except OSError:  # it starts
            return False

    def news() -> Any:
        return json.loads(asked("/fleet/news")[1])

    try:
        control_plane.wait(is_read, limit_s(60), "the controller's first reading of the fleet")
        page = {each["name"]: each["state"] for each in json.loads(asked("/fleet")[1])["nodes"]}
        command = Head(control_plane, tmp_path).nodes()
        assert page == {name: each["state"] for name, each in command.items()}
        assert page == {"n1": "needs-operator", "n2": "ok", "n3": "silent", "cpu-1": "no-agent"}
        control_plane.wait(lambda: news()["controller"]["leads"], limit_s(60), "the controller leads")
        assert b"<!doctype html>" in asked("/")[1].lower()
        assert asked("/fleet", "POST")[0] in (405, 501)
    finally:
        controller.stop()
