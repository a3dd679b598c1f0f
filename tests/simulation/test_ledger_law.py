"""A ledger beside a fleet that fails by a known law: rates, lemons, GPUs that come back, gaps, and kill -9."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.ledger.database import Ledger
from healthd.ledger.entries import EntryKind, LedgerContents, SpanState
from healthd.ledger.feed import LedgerFeed
from healthd.ledger.report import FleetReport, fleet_report
from healthd.remediation.records.handoff import PastAct
from tests.simulation.lawful import HOUR, START, FailureLaw, LawfulFleet
from tests.support.sampling import of_this_run

INTERVAL_S = 600.0
DAYS = 60
GAPS_H = ((300.0, 303.0), (700.0, 709.0), (1100.0, 1100.9))
"""Hours in which no controller ran."""


def fed(fleet: LawfulFleet, path: Path, hours: float, *, gaps: tuple[tuple[float, float], ...] = ()) -> LedgerContents:
    """Feed a ledger for so many hours; after a gap another controller goes on with the file."""
    ledger, feed = opened(fleet, path)
    gone = False
    for number in range(int(hours * HOUR / INTERVAL_S) + 1):
        at_s = number * INTERVAL_S
        fleet.advance(at_s)
        if any(start <= at_s / HOUR < end for start, end in gaps):
            gone = True
            continue
        if gone:
            ledger.close()
            ledger, feed = opened(fleet, path)
            gone = False
        feed.read(fleet.listed(fleet.now), fleet.now)
    contents = ledger.contents()
    ledger.close()
    return contents


def opened(fleet: LawfulFleet, path: Path) -> tuple[Ledger, LedgerFeed]:
    ledger = Ledger(path, now=fleet.now)
    return ledger, LedgerFeed(ledger, fleet.completed, interval_s=INTERVAL_S, keep_days=1000.0, asks=1000, again_s=1e9)


class Lived:
    """Sixty days of 160 nodes."""

    def __init__(self, folder: Path, law: FailureLaw, seed: int) -> None:
        self.fleet = LawfulFleet(seed, 160, law)
        self.contents = fed(self.fleet, folder / "ledger.db", DAYS * 24.0, gaps=GAPS_H)
        self.report: FleetReport = fleet_report(self.contents, START, self.fleet.now)

    def entries(self, *kinds: EntryKind) -> Iterator[tuple[str, str, float]]:
        yield from (
            (each.node, each.act or each.code, each.at.timestamp())
            for each in self.contents.entries
            if each.kind in kinds
        )


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """A fleet without lemons: its law is one rate for each type."""
    return Lived(tmp_path_factory.mktemp("alike"), FailureLaw(lemons=0), 11)


@pytest.fixture(scope="module")
def with_lemons(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """One with three lemons, which wander through the provider's pool."""
    return Lived(tmp_path_factory.mktemp("lemons"), FailureLaw(reboot_helps=0.3), 12)


def test_the_mean_time_between_failures_lies_in_its_interval(alike: Lived) -> None:
    """By instance type, by rack and by code, for the law that the fleet was made with; racks have both types."""
    law = alike.fleet.law.mtbf_h
    assert {each.key for each in alike.report.by_type} == set(law)
    for each in alike.report.by_type:
        assert each.high_h is not None
        assert each.low_h <= law[each.key] <= each.high_h, each
    in_rack = 2.0 / sum(1.0 / each for each in law.values())
    inside = [each.low_h <= in_rack <= (each.high_h or 1e9) for each in alike.report.by_rack]
    assert len(inside) == 10
    assert sum(inside) >= 9  # of ten intervals at 95 %, one may miss
    for each in alike.report.by_code:
        assert each.high_h is not None
        assert each.low_h <= 3 * in_rack <= each.high_h, each


def test_time_without_a_reading_is_no_exposure(alike: Lived) -> None:
    """Neither while no controller ran, nor while an agent was silent: the ledger's exposure is what nature had in that
    time, within one percent, and its watched hours lack the gaps."""
    gaps_h = sum(end - start for start, end in GAPS_H)
    assert alike.report.watched_h == pytest.approx(DAYS * 24.0 - gaps_h, abs=3.0)
    nature_h = alike.fleet.serving_h + sum(
        (alike.fleet.now_s - since) / HOUR for since in alike.fleet._served_since.values()
    )
    assert alike.report.hours[SpanState.SILENT] > 100.0
    lost_h = gaps_h * 160 + alike.report.hours[SpanState.SILENT]
    assert alike.report.total.exposure_h == pytest.approx(nature_h - lost_h, rel=0.01)
    assert alike.report.unseen > 0


def test_no_fault_is_lost_or_double(alike: Lived) -> None:
    """Each of nature's faults is one entry, with its own second; one that is missing was over before a controller ran
    again. Every repair is there, also those of the gaps: the handoff record has them."""
    found = Counter(alike.entries(EntryKind.FAULT))
    nature = Counter((each.node, each.code, each.at.timestamp()) for each in alike.fleet.faults)
    assert not found - nature
    missing = nature - found
    in_gap = [(START + timedelta(hours=start), START + timedelta(hours=end)) for start, end in GAPS_H]
    assert all(
        any(start.timestamp() - INTERVAL_S <= at <= end.timestamp() for start, end in in_gap) for _, _, at in missing
    )
    repairs = Counter(alike.entries(EntryKind.REPAIR, EntryKind.REPLACEMENT))
    assert repairs == Counter((node, act.value, at.timestamp()) for node, act, at in alike.fleet.repairs)


def test_a_gpu_is_recognised_in_another_node(with_lemons: Lived) -> None:
    """Across more than 200 replacements, every GPU by its serial number, in each node where nature had it."""
    replaced = [act for _, act, _ in with_lemons.fleet.repairs if act is PastAct.REPLACE]
    assert len(replaced) >= 200
    found: dict[str, set[str]] = {}
    for each in with_lemons.contents.gpus:
        found.setdefault(each.serial, set()).add(each.node)
    assert max(map(len, found.values())) > 3
    nature = {serial: nodes for serial, nodes in with_lemons.fleet.places.items() if serial in found}
    differing = {serial for serial in found if found[serial] != nature[serial]}
    assert not differing
    blamed = Counter((each.node, each.at, each.serial) for each in with_lemons.contents.entries if each.serial)
    true = Counter((each.node, each.at, each.serial) for each in with_lemons.fleet.faults)
    assert not blamed - true  # no fault is another GPU's
    assert sum(blamed.values()) > 0.9 * sum(true.values())


def test_the_lemons_are_found_and_no_other(with_lemons: Lived, alike: Lived) -> None:
    """By serial number, wherever they were; and a fleet whose GPUs fail alike has none."""
    found = {each.name for each in with_lemons.report.offenders if each.kind == "gpu" and each.is_lemon}
    assert found == with_lemons.fleet.lemons
    wandered = [each for each in with_lemons.report.offenders if each.name in found and len(each.nodes) > 1]
    assert wandered
    assert not [each for each in alike.report.offenders if each.is_lemon]


def test_replacements_have_their_cost(with_lemons: Lived) -> None:
    """Three and a half hours out by the law, within the interval of the readings."""
    costs = [
        each.lost_h for each in with_lemons.report.replaced if each.lost_h is not None and each.outcome == "helped"
    ]
    assert len(costs) > 200
    usual = sorted(costs)[len(costs) // 2]
    assert usual == pytest.approx(3.5, abs=0.4)


# ---------------------------------------------------------------------------------------------------------------------
# kill -9

WRITES_IN_A_SAMPLE = 20
_LIFE_H = 9.0
_BUSY = FailureLaw(mtbf_h={"p5.48xlarge": 3.0}, lemons=1, lemon_times=4.0, silence_every_h=20.0, silence_h=2.0)


def _small() -> LawfulFleet:
    return LawfulFleet(5, 3, _BUSY, spare=2)


def _writes(sql: str) -> bool:
    return sql.lstrip().split(" ", 1)[0].upper() in ("INSERT", "UPDATE", "DELETE", "COMMIT")


def _kind(sql: str) -> str:
    """What a write is about: ``INSERT INTO spans``."""
    return " ".join(sql.split()[:3])


def _killed_life(folder: Path, at: int | None) -> tuple[list[str], LedgerContents]:
    """(the kinds of the writes until then, what the ledger holds at the end) of a life whose controller dies before its
    write number ``at``. The process that dies is a real one, by SIGKILL; another goes on at the next reading."""
    path, place = folder / "ledger.db", folder / "place"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fleet = _small()
            ledger, feed = opened(fleet, path)
            passed: list[str] = []

            def wrote(sql: str) -> None:
                if _writes(sql):
                    if len(passed) == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    passed.append(_kind(sql))

            ledger._db.set_trace_callback(wrote)
            for number in range(int(_LIFE_H * HOUR / INTERVAL_S)):
                place.write_text("\n".join([str(number), *passed]))
                fleet.advance(number * INTERVAL_S)
                feed.read(fleet.listed(fleet.now), fleet.now)
            place.write_text("\n".join([str(number + 1), *passed]))
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == (0 if at is None else -signal.SIGKILL)
    reached, *kinds = place.read_text().splitlines()
    fleet = _small()
    for number in range(int(reached) + 1):  # nature goes on as it would have
        fleet.advance(number * INTERVAL_S)
        fleet.listed(fleet.now)
    ledger, feed = opened(fleet, path)
    for number in range(int(reached) + 1, int(_LIFE_H * HOUR / INTERVAL_S) + 1):
        fleet.advance(number * INTERVAL_S)
        feed.read(fleet.listed(fleet.now), fleet.now)
    contents = ledger.contents()
    ledger.close()
    return kinds, contents


@pytest.mark.process
@pytest.mark.slow
def test_killed_at_any_write_nothing_is_double_and_nothing_lost_but_the_last(tmp_path: Path) -> None:
    """Entries and spans are those of an undisturbed life, but that what the lost reading saw first begins one reading
    later; the watched time has no gap, because the next controller came in time. `make test` takes a sample of the
    writes, with each kind after each other kind in it."""
    (tmp_path / "whole").mkdir()
    writes, whole = _killed_life(tmp_path / "whole", None)
    assert len(writes) > 100
    assert sum(each.kind is EntryKind.FAULT for each in whole.entries) > 2
    after = ["the start", *writes]
    taken = of_this_run().of(
        {"life": range(len(writes))}, kind=lambda at: f"{after[at]}, {writes[at]}", least=WRITES_IN_A_SAMPLE
    )
    for at in taken["life"]:
        folder = tmp_path / str(at)
        folder.mkdir()
        _, contents = _killed_life(folder, at)
        assert [each.key for each in contents.entries] == [each.key for each in whole.entries], at
        assert [replace(each, until=None) for each in contents.entries] == [
            replace(each, until=None) for each in whole.entries
        ], at
        spans, expected = (
            sorted((each.node, each.start, each.state, each.cause, each.until) for each in those.spans)
            for those in (contents, whole)
        )
        assert [(node, state, cause) for node, _, state, cause, _ in spans] == [
            (node, state, cause) for node, _, state, cause, _ in expected
        ], at
        late = [one[1] - other[1] for one, other in zip(spans, expected, strict=True)]
        assert all(timedelta() <= each <= timedelta(seconds=INTERVAL_S) for each in late), at
        assert len(contents.watched) == 1, at
