"""The fleet as a page of the controller: one file, the document of ``healthd fleet --json``, and the news of an hour.

Every controller serves it, leading or waiting, to users of its own machine. Nothing here can act.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from healthd.api.html_page import HEADERS
from healthd.api.http import HttpResponse, Route, Routes, page_route
from healthd.config.schema.config import Config
from healthd.controller.fleet_reader import SHOWN_EVERY_S, FleetReadings, SharedReading
from healthd.core.errors import StoreError
from healthd.fleet.events import WINDOW, FleetEvent, recent_events
from healthd.fleet.incident_memory import kept_memory, rules_of
from healthd.fleet.incident_text import cause_text
from healthd.fleet.incidents import Incident, IncidentMemory, observed
from healthd.fleet.nodes import FleetPicture
from healthd.fleet.text import fleet_data
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import LedgerEntry

SCHEMA = "healthd.fleet-news/v1"
_WAIT_S, _WAITERS = 5.0, 4  # the kubelet and scrapers need a connection as well
_MOST_HOSTS = 200  # characters
_PACKED = 1  # zlib's level: 10,000 nodes are 4 MB, and 0.2 MB packed in 10 ms


class ShownFleet(Struct, frozen=True, kw_only=True, dict=True):
    """One reading as it is sent. Each part is made when it is first asked for."""

    picture: FleetPicture
    config: Config

    @cached_property
    def text(self) -> str:
        """The document of ``healthd fleet --json``, on one line."""
        return msgspec.json.encode(fleet_data(self.picture, self.picture.nodes)).decode() + "\n"

    @cached_property
    def packed(self) -> bytes:
        """The same, packed by gzip."""
        return gzip.compress(self.text.encode(), _PACKED)

    @cached_property
    def news(self) -> Mapping[str, Any]:
        """The incidents, the events of the last hour, and the parts of them that could not be read."""
        folder, now = Path(self.config.controller.state_dir), self.picture.at
        memory = kept_memory(folder) or IncidentMemory()
        incidents = observed(memory, self.picture.nodes, now, rules_of(self.config.policy)).incidents
        entries, problem = _ledger_entries(folder / LEDGER, now)
        events = recent_events(self.picture.nodes, now, entries=entries, incidents=incidents)
        return {
            "incidents": [_incident_data(each) for each in incidents if each.is_open],
            "events": [_event_data(each) for each in events],
            "problems": [problem] if problem else [],
        }


class FleetPage:
    """The paths of the page. ``leads``, ``leader`` and ``host``: of the controller that serves it."""

    def __init__(
        self,
        reading: SharedReading,
        config: Config,
        log: Any,
        *,
        leads: Callable[[], bool],
        leader: Callable[[], str],
        host: str,
    ) -> None:
        self._reading, self._config, self._log = reading, config, log
        self._leads, self._leader, self._host = leads, leader, host
        self._lock, self._waiters = threading.Lock(), threading.Semaphore(_WAITERS)
        self._shown: ShownFleet | None = None

    def routes(self) -> Routes:
        """The page, its document, and its news: for this machine's users."""
        return {
            "/": page_route("healthd.controller", "fleet.html"),
            "/fleet": Route(answer=self._document, local=True),
            "/fleet/news": Route(answer=self._news, local=True),
        }

    def _document(self) -> HttpResponse:
        """The fleet, read again where the last reading is too old. If that takes long or fails, the last one."""
        waits = self._waiters.acquire(blocking=False)
        try:
            last = self._reading.latest(self._log, wait_s=_WAIT_S if waits else 0.0)
        finally:
            if waits:
                self._waiters.release()
        if last.picture is None:
            text = last.problem or "the fleet is being read; ask again in some seconds"
            return HttpResponse(code=503, text=f"{text}\n", headers={**HEADERS, "Retry-After": "5"})
        with self._lock:
            shown = self._of(last.picture)
            return HttpResponse(kind="application/json", text=shown.text, packed=shown.packed, headers=HEADERS)

    def _news(self) -> HttpResponse:
        last = self._reading.latest(self._log)
        news: Mapping[str, Any] = {"incidents": [], "events": [], "problems": []}
        if last.picture is not None:
            with self._lock:
                news = self._of(last.picture).news
        return HttpResponse(
            kind="application/json", text=json.dumps({**self._head(last), **news}) + "\n", headers=HEADERS
        )

    def _head(self, last: FleetReadings) -> dict[str, Any]:
        """The controller that answers, and the age of its reading."""
        return {
            "schema": SCHEMA,
            "now": datetime.now(UTC).isoformat(),
            "read_at": last.picture.at.isoformat() if last.picture is not None else None,
            "every_s": SHOWN_EVERY_S,
            "reading": last.under_way,
            "error": {"at": last.failed.isoformat(), "message": last.problem} if last.failed is not None else None,
            "controller": {"host": self._host, "leads": self._leads(), "leader": self._leader()},
            "node_url": self._config.controller.node_url,
        }

    def _of(self, picture: FleetPicture) -> ShownFleet:
        if self._shown is None or self._shown.picture is not picture:
            self._shown = ShownFleet(picture=picture, config=self._config)
        return self._shown


def _ledger_entries(path: Path, now: datetime) -> tuple[tuple[LedgerEntry, ...], str]:
    """The ledger's entries of the last hour, and why they cannot be read, or ""."""
    if not path.exists():
        return (), ""
    try:
        ledger = Ledger(path, now=now, reads_only=True)
        try:
            return ledger.entries_since(now - WINDOW), ""
        finally:
            ledger.close()
    except StoreError as error:
        return (), str(error)


def _event_data(event: FleetEvent) -> dict[str, Any]:
    return {
        "at": event.at.isoformat(),
        "kind": event.kind.value,
        "state": event.state,
        "text": event.text,
        "count": len(event.nodes),
        "hosts": _clipped(event.hosts),
    }


def _incident_data(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "began": incident.began.isoformat(),
        "code": incident.codes[0] if incident.codes else incident.root,
        "cause": cause_text(incident),
        "first": incident.first,
        "count": len(incident.active),
        "hosts": _clipped(incident.hosts),
        "critical": incident.grave,
    }


def _clipped(hosts: str) -> str:
    """So much of a host list as a line shows: it may have 10,000 names."""
    return hosts if len(hosts) <= _MOST_HOSTS else f"{hosts[:_MOST_HOSTS]}…"
