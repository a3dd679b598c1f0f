"""What the page of the fleet is fed with: the document of ``healthd fleet --json``, and the news of an hour."""

from __future__ import annotations

import gzip
import http.client
import json
import urllib.error
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from msgspec.structs import replace

from healthd.controller.fleet_reader import SHOWN_EVERY_S
from healthd.core.errors import BackendUnknown
from healthd.core.json_documents import json_document
from healthd.fleet.nodes import FleetPicture
from healthd.fleet.text import fleet_data
from healthd.ledger.changes import NodeChanges, NodeMemory
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import EntryKind, LedgerEntry
from tests.support.fleet_server import FleetServer
from tests.support.large_fleet import large_fleet
from tests.support.limits import limit_s

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def read(now: datetime) -> FleetPicture:
    return large_fleet(64, NOW)


def get(url: str, **headers: str) -> Any:
    with urlopen(Request(url, headers=headers), timeout=limit_s(20)) as answer:  # noqa: S310 - http, on loopback
        body = answer.read()
        packed = answer.headers["Content-Encoding"] == "gzip"
        return json.loads(gzip.decompress(body) if packed else body), packed


def news(server: FleetServer) -> Any:
    get_document(server)  # which waits for the reading
    return get(f"{server.url}fleet/news")[0]


def get_document(server: FleetServer) -> Any:
    return get(f"{server.url}fleet")[0]


def test_the_document_is_that_of_the_command(tmp_path: Path) -> None:
    """Value by value, packed where the browser accepts that."""
    fleet = read(NOW)
    expected = json.loads(json_document(fleet_data(fleet, fleet.nodes)))
    with FleetServer(read, tmp_path) as server:
        assert get(f"{server.url}fleet") == (expected, False)
        assert get(f"{server.url}fleet", **{"Accept-Encoding": "gzip, br"}) == (expected, True)


def test_the_news_say_who_answers_and_how_old_the_reading_is(tmp_path: Path) -> None:
    """At once, also before anything was read."""
    with FleetServer(read, tmp_path, node_url="https://site.example/{node}") as server:
        first = get(f"{server.url}fleet/news")[0]
        assert (first["schema"], first["every_s"]) == ("healthd.fleet-news/v1", SHOWN_EVERY_S)
        assert first["reading"] or first["read_at"]
        found = news(server)
        assert found["read_at"] == NOW.isoformat()
        assert found["controller"].items() >= {"leads": True, "leader": "head-1 process 7"}.items()
        assert found["node_url"] == "https://site.example/{node}"
        assert found["error"] is None
        (incident,) = found["incidents"]
        assert (incident["code"], incident["count"], incident["cause"]) == (
            "lustre.missing",
            18,
            "shared cause file system /fsx",
        )
        assert any(
            each["text"] == "critical: lustre.missing mount:/fsx" and each["count"] == 18 for each in found["events"]
        )


def test_the_ledger_adds_what_is_over_again(tmp_path: Path) -> None:
    """Its file is read beside the controller that writes it; one that cannot be read is named."""
    ledger = Ledger(tmp_path / LEDGER, now=NOW)
    gone = LedgerEntry(
        kind=EntryKind.FAULT,
        node="gpu-00003",
        at=NOW - timedelta(minutes=30),
        until=NOW - timedelta(minutes=9),
        code="net.link.down",
    )
    long_ago = replace(gone, at=NOW - timedelta(hours=9), until=NOW - timedelta(hours=8))
    changes = NodeChanges(after=NodeMemory(), entries=(gone, long_ago))
    ledger.write({"gpu-00003": changes}, NOW, gap=timedelta(minutes=3))
    with FleetServer(read, tmp_path) as server:
        texts = [each["text"] for each in news(server)["events"]]
        assert texts.count("over: net.link.down, lasted 21 min") == texts.count("fault: net.link.down") == 1
    ledger.close()
    (tmp_path / LEDGER).write_bytes(b"no database" * 500)
    with FleetServer(read, tmp_path) as server:
        (problem,) = news(server)["problems"]
        assert LEDGER in problem


def test_a_fleet_that_cannot_be_read_keeps_its_last_reading(tmp_path: Path) -> None:
    """The document stays, with its own time; the news say why there is no later one, and when that failed."""
    wrong: list[BackendUnknown] = []

    def failing(now: datetime) -> FleetPicture:
        if wrong:
            raise wrong[0]
        return read(now)

    with FleetServer(failing, tmp_path) as server:
        before = get_document(server)
        wrong.append(BackendUnknown("slurmctld does not answer"))
        server.elapsed_s += SHOWN_EVERY_S
        assert get_document(server) == before
        failed = news(server)["error"]
        assert failed["message"] == "slurmctld does not answer"
        assert datetime.fromisoformat(failed["at"]) > NOW - timedelta(days=3650)


def test_without_any_reading_the_document_is_unavailable(tmp_path: Path) -> None:
    """503 with the reason, and no empty fleet."""

    def never(now: datetime) -> FleetPicture:
        raise BackendUnknown("slurmctld does not answer")

    with FleetServer(never, tmp_path) as server, pytest.raises(urllib.error.HTTPError, match="503") as caught:
        get_document(server)
    assert caught.value.read().decode() == "slurmctld does not answer\n"
    assert caught.value.headers["Retry-After"] == "5"


@pytest.mark.parametrize("path", ["/", "/fleet", "/fleet/news"])
def test_the_page_is_for_this_machine_alone(path: str, tmp_path: Path) -> None:
    """A request under another name is another machine's, or that of a web site; nothing is read for it."""
    reads: list[datetime] = []

    def counted(now: datetime) -> FleetPicture:
        reads.append(now)
        return read(now)

    with FleetServer(counted, tmp_path) as server:
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(server.url.rstrip("/").rpartition(":")[2]), timeout=limit_s(10)
        )
        connection.request("GET", path, headers={"Host": "rebound.example"})
        answer = connection.getresponse()
        assert (answer.status, "for this machine only" in answer.read().decode()) == (403, True)
        connection.close()
    assert reads == []
