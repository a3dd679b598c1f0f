"""The controller's own page of the fleet over a fleet that a test makes: the real reader, routes and HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import structlog
from msgspec.structs import replace

from healthd.api.http import HttpServer
from healthd.config.schema.config import Config
from healthd.config.schema.controller import ControllerSection
from healthd.controller.fleet_page import FleetPage
from healthd.controller.fleet_reader import SharedReading
from healthd.fleet.nodes import FleetPicture


class FleetServer:
    """Serves the fleet that ``read`` gives, with ``folder`` as the controller's state directory."""

    def __init__(self, read: Callable[[datetime], FleetPicture], folder: Path, *, node_url: str = "") -> None:
        section = ControllerSection(state_dir=str(folder), node_url=node_url)
        config = replace(Config(), controller=section)
        self.elapsed_s = 0.0
        self.reader = SharedReading(lambda: read(datetime.now(UTC)), monotonic_s=lambda: self.elapsed_s)
        log = structlog.get_logger()
        self.page = FleetPage(
            self.reader, config, log, leads=lambda: True, leader=lambda: "head-1 process 7", host="head-1"
        )
        self._server = HttpServer("127.0.0.1:0", self.page.routes(), log)
        self.url = f"http://127.0.0.1:{self._server.port}/"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
