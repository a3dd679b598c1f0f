"""The ledger beside a controller: nodes that answer, a fleet that cannot be read, a file that cannot be used."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.config.schema.controller import ControllerSection
from healthd.controller.ledger import LedgerFile, LedgerKeeper, ledger_path
from healthd.core.errors import BackendUnknown, StoreError
from healthd.core.model import Mode
from healthd.fleet.inventories import completed_readings
from healthd.fleet.nodes import FleetNode, FleetPicture
from healthd.ledger.changes import NodeReading, SeenFault
from healthd.ledger.database import Ledger
from healthd.ledger.entries import EntryKind, LedgerEntry, LedgerGpu, MachineIdentity, SpanState, WatchInterval
from healthd.ledger.feed import LedgerFeed
from healthd.ledger.report import fleet_report
from healthd.ledger.text import selected
from healthd.remediation.records.handoff import PastAct, PastRepair
from tests.support.fleet_readings import reading

T0 = datetime(2026, 1, 1, tzinfo=UTC)
INVENTORY = {
    "schema": "healthd.inventory/v1",
    "node": "127.0.0.1",
    "instance": "i-1",
    "gpus": [{"uuid": "GPU-a", "serial": "16a", "index": "0"}],
    "faults": [{"code": "gpu.xid.79", "component": "gpu:GPU-a", "severity": "critical", "since": T0.isoformat()}],
}


@pytest.fixture
def port() -> Iterator[int]:
    """An agent's HTTP server."""

    answers = {
        "/inventory": json.dumps(INVENTORY).encode(),
        "/gpus": json.dumps({**INVENTORY, "gpus": [{"uuid": f"GPU-{number}"} for number in range(65)]}).encode(),
        "/name": json.dumps({**INVENTORY, "gpus": [{"uuid": "GPU-" + "a" * 300}]}).encode(),
    }

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path, b"no JSON")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.process  # getent looks "localhost" up
def test_a_node_tells_its_machine_and_its_faults(port: int) -> None:
    """And a node that is not there, answers otherwise, or under another name, tells nothing."""
    here = NodeReading(node="127.0.0.1", state=SpanState.SERVING)
    found = completed_readings(f"http://{{node}}:{port}/inventory", [here])["127.0.0.1"]
    assert (found.machine.instance, found.machine.gpus[0].serial, found.faults[0].component) == (
        "i-1",
        "16a",
        "gpu:GPU-a",
    )
    assert completed_readings(f"http://{{node}}:{port}/other", [here]) == {}
    assert completed_readings("http://{node}:1/inventory", [here]) == {}
    other = NodeReading(node="localhost", state=SpanState.SERVING)
    assert completed_readings(f"http://{{node}}:{port}/inventory", [other]) == {}
    assert completed_readings("", [here]) == {}


@pytest.mark.parametrize("path", ["gpus", "name"])
def test_an_inventory_of_more_than_a_node_has_is_none(port: int, path: str) -> None:
    """While a daemon is down any user of its node may answer in its place, and each GPU is a row for years."""
    here = NodeReading(node="127.0.0.1", state=SpanState.SERVING)
    assert completed_readings(f"http://{{node}}:{port}/{path}", [here]) == {}


def test_a_fleet_that_cannot_be_read_is_a_gap_and_ends_nothing(tmp_path: Path) -> None:
    """The metric and the log say so, and nothing was watched."""

    def read() -> FleetPicture:
        if not nodes:
            raise BackendUnknown("slurmctld does not answer")
        return FleetPicture(cluster="a", at=nodes[0].now, nodes=tuple(nodes), limit=None, taken=0)

    nodes: list[FleetNode] = []
    stats = ControllerStats(orchestrator="slurm", provisioner="none", mode=Mode.OBSERVE)
    config = Config(controller=ControllerSection(state_dir=str(tmp_path)))
    lines = structlog.testing.CapturingLogger()
    log = structlog.wrap_logger(lines, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0))
    file = LedgerFile(ledger_path(config), log)
    keeper = LedgerKeeper(config, file, read, stats, log)
    keeper()
    assert [stats.ledger_failing] == [True]
    assert "slurmctld does not answer" in str(lines.calls)
    ledger = Ledger(ledger_path(config), now=T0)
    assert ledger.watched_until(T0) is None
    for after_s in (0.0, 59.0, 60.0):  # the second one is before its time
        nodes[:] = [reading("n1", now=T0 + timedelta(seconds=after_s))]
        keeper()
        assert ledger.watched_until(T0 + timedelta(hours=1)) == T0 + timedelta(seconds=after_s // 60 * 60)
    shown = [(stats.ledger_failing, stats.ledger is not None)]
    keeper.close()
    assert [*shown, (stats.ledger_failing, stats.ledger is not None)] == [(False, True), (False, False)]
    file.close()
    ledger.close()


def test_a_report_of_a_month_is_made_of_a_month(tmp_path: Path) -> None:
    """However long the fleet has been watched: its controller makes one every ten minutes. It is the same as of all
    rows, with what began before and lasts."""
    ledger = Ledger(tmp_path / "ledger.db", now=T0)
    faults = {number: (SeenFault(code="gpu.xid.79", since=T0 + timedelta(days=number)),) for number in range(0, 400, 3)}

    def seen(name: str, day: int) -> NodeReading:
        gpus = (LedgerGpu(uuid=f"GPU-{name}-{day // 50}", serial=f"{name}-{day // 50}"),)
        state = SpanState.OUT if day in faults else SpanState.SERVING
        return NodeReading(node=name, state=state, faults=faults.get(day, ()), machine=MachineIdentity(gpus=gpus))

    feed = LedgerFeed(ledger, lambda nodes: {each.node: each for each in nodes}, interval_s=86_400.0, keep_days=730.0)
    for day in range(400):
        lasts = NodeReading(node="n2", state=SpanState.OUT, faults=faults[0])
        feed.read({"n1": seen("n1", day), "n2": lasts, "n3": seen("n3", day)}, T0 + timedelta(days=day))
    now = T0 + timedelta(days=399)
    since = now - timedelta(days=30)
    of_all, of_month = ledger.contents(), ledger.contents(since)
    assert fleet_report(of_month, since, now) == fleet_report(of_all, since, now)
    assert len(of_all.spans) > 500
    assert ledger.entries_of("n1") == selected(of_all, node="n1")
    assert (len(of_month.entries), len(of_month.spans), len(of_month.gpus)) == (22, 45, 2)
    ledger.close()


def test_what_is_too_old_is_forgotten(tmp_path: Path) -> None:
    """Spans and watched time before the retention; what goes on stays. After a long gap a day later."""
    ledger = Ledger(tmp_path / "ledger.db", now=T0)
    states = {0: SpanState.SERVING, 1: SpanState.OUT, 40: SpanState.SERVING, 41: SpanState.SERVING}
    feed = LedgerFeed(ledger, interval_s=86_400.0, keep_days=30.0)
    for day, state in states.items():
        feed.read({"n1": NodeReading(node="n1", state=state)}, T0 + timedelta(days=day))
    contents = ledger.contents()
    assert [each.state for each in contents.spans] == [SpanState.SERVING]
    assert [each.start for each in contents.watched] == [T0 + timedelta(days=40)]
    ledger.close()


def test_a_clock_that_was_ahead_ends_no_watch_and_forgets_nothing(tmp_path: Path) -> None:
    """Two readings at a start are two years ahead. Those after them go on where the clock was right, ask each node
    again, and are in the report."""
    ledger, asked = Ledger(tmp_path / "ledger.db", now=T0), list[datetime]()
    at, here = T0, {"n1": NodeReading(node="n1", state=SpanState.SERVING)}
    ahead, minute = timedelta(days=730), timedelta(minutes=1)

    def completed(nodes: Sequence[NodeReading]) -> dict[str, NodeReading]:
        asked.extend(at for _ in nodes)
        return {}

    def begun() -> LedgerFeed:
        return LedgerFeed(ledger, completed, interval_s=60.0, keep_days=400.0, again_s=3600.0)

    feed = begun()
    for at in (T0 + number * minute for number in range(60)):
        feed.read(here, at)
    feed = begun()
    for at in (T0 + ahead, T0 + ahead + minute):
        feed.read(here, at)
    for at in (T0 + number * minute for number in range(60, 180)):
        feed.read(here, at)
    contents = ledger.contents()
    assert contents.watched[0] == WatchInterval(start=T0, until=T0 + timedelta(minutes=179))
    assert ledger.watched_until(at) == at
    assert fleet_report(contents, T0, at).watched_h == pytest.approx(179 / 60)
    assert [each for each in asked if T0 + timedelta(hours=1) <= each <= at] != []
    for days in (500, 502):
        feed.read(here, T0 + timedelta(days=days))
    assert ledger.contents().watched[0].start == T0 + timedelta(days=500), "what is too old is forgotten again"
    ledger.close()


def test_a_state_that_began_by_a_clock_that_was_ahead_is_over_when_the_clock_is_right(tmp_path: Path) -> None:
    """Else it lasts for ever beside the present one, and each report counts its hours."""
    ledger, minute = Ledger(tmp_path / "ledger.db", now=T0), timedelta(minutes=1)
    feed = LedgerFeed(ledger, interval_s=60.0, keep_days=400.0)
    feed.read({"n1": NodeReading(node="n1", state=SpanState.OUT)}, T0 + 60 * minute)
    for number in range(181):
        feed.read({"n1": NodeReading(node="n1", state=SpanState.SERVING)}, T0 + number * minute)
    report = fleet_report(ledger.contents(), T0, T0 + 180 * minute)
    assert report.hours[SpanState.SERVING] == pytest.approx(3.0, abs=0.05)
    assert report.hours[SpanState.OUT] == 0.0
    assert [each.state for each in ledger.contents().spans if each.until is None] == [SpanState.SERVING]
    ledger.close()


def test_the_report_is_made_again_after_a_clock_that_was_ahead(tmp_path: Path) -> None:
    """And not only once the real time has come there."""
    stats = ControllerStats(orchestrator="slurm", provisioner="none", mode=Mode.OBSERVE)
    config = Config(controller=ControllerSection(state_dir=str(tmp_path)))
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    file, reports = LedgerFile(ledger_path(config), log), []
    now = T0

    def read() -> FleetPicture:
        return FleetPicture(cluster="a", at=now, nodes=(reading("n1", now=now),), limit=None, taken=0)

    keeper = LedgerKeeper(config, file, read, stats, log)
    for minutes in (730 * 1440, 0, 1, 11):
        now = T0 + timedelta(minutes=minutes)
        keeper()
        reports.append(stats.ledger)
    assert [each is reports[0] for each in reports] == [True, False, False, False]
    assert reports[1] is reports[2] is not reports[3]
    keeper.close()
    file.close()


def test_a_damaged_ledger_is_set_aside_by_its_writer_alone(tmp_path: Path) -> None:
    """A reader says what is wrong and who sets it aside, and moves nothing: so after an upgrade, too."""
    path = tmp_path / "ledger.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 1")
    aside = "`healthd controller` sets it aside at its start"
    with pytest.raises(StoreError, match=rf"its schema version is 1; this healthd reads \d+; {aside}"):
        Ledger(path, now=T0, reads_only=True)
    path.write_bytes(b"no database at all, in more than a hundred bytes of text" * 4)
    with pytest.raises(StoreError, match=f"cannot open the ledger: file is not a database; {aside}"):
        Ledger(path, now=T0, reads_only=True)
    ledger = Ledger(path, now=T0)
    assert "starts a fresh ledger" in ledger.set_aside
    assert len(list(tmp_path.glob("ledger.db.set-aside-*"))) == 1
    ledger.close()


def test_the_keepers_of_a_controller_have_one_ledger(tmp_path: Path) -> None:
    """A damaged file is set aside by the first that opens it, and logged once; threads that write and read at the same
    time lose nothing."""
    (tmp_path / "ledger.db").write_bytes(b"no database at all, in more than a hundred bytes of text" * 4)
    lines = structlog.testing.CapturingLogger()
    log = structlog.wrap_logger(lines, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0))
    file = LedgerFile(tmp_path / "ledger.db", log)

    def write(thread: int) -> Ledger:
        for number in range(30):
            entry = LedgerEntry(kind=EntryKind.JOB, node=f"n{thread}", at=T0 + timedelta(seconds=number))
            file.opened().put_entries([entry])
            file.opened().contents()
        return file.opened()

    with ThreadPoolExecutor(4) as pool:
        ledgers = list(pool.map(write, range(4)))
    assert len({id(each) for each in ledgers}) == 1
    assert len(ledgers[0].contents().entries) == 120
    assert [each.kwargs["event"] for each in lines.calls] == ["ledger set aside"]
    file.close()


def test_the_address_of_evidence_stays_with_its_replacement(tmp_path: Path) -> None:
    """Also where a later replacement of the node has another one, or none."""
    first = PastRepair(act=PastAct.REPLACE, at=T0)
    second = PastRepair(act=PastAct.REPLACE, at=T0 + timedelta(days=1))
    ledger = Ledger(tmp_path / "ledger.db", now=T0)
    feed = LedgerFeed(ledger, interval_s=86_400.0, keep_days=30.0)
    given = NodeReading(node="n1", state=SpanState.SERVING, history=(first,), evidence="s3://site/n1/k1.tar.gz")
    feed.read({"n1": given}, T0)
    feed.read({"n1": replace(given, history=(first, second), evidence="")}, T0 + timedelta(days=1))
    assert [each.evidence for each in ledger.contents().entries] == ["s3://site/n1/k1.tar.gz", ""]
    ledger.close()
