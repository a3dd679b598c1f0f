"""The timeline of a node: the trail's lines in their order, and its cases among them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from healthd.api.timeline import Trail, read_trail, trail_json, trail_of, trail_text
from healthd.core.errors import StoreError
from healthd.core.model import Event
from healthd.remediation.decide.remediation import End, Remediation
from healthd.state.store import Store
from tests.support.judgement import START, a_remediation, at

FAULT = Event(
    at=at(1),
    kind="fault",
    text="gpu.xid.79 on gpu:GPU-0 opened: it fell off the bus",
    data={"code": "gpu.xid.79", "component": "gpu:GPU-0", "opened": True, "evidence": {"line": "NVRM: Xid", "pid": 7}},
)
ENDED = Event(at=at(90), kind="fault", text="gpu.xid.79 on gpu:GPU-0 ended: rebooted", data={**FAULT.data, "opened": 0})
STEP = Event(at=at(3), kind="step", text="intends to drain")
REMEDIATION = a_remediation(opened=at(2), since=at(60), index=6, end=End.RELEASED)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / "healthd.db", now=START)
    yield one
    one.close()


def test_the_timeline_reads_from_old_to_new_with_evidence() -> None:
    """A fault with what was seen, the remediation where it was opened, and what ended it; evidence is not repeated
    then."""
    assert trail_text(Trail(events=(FAULT, STEP, ENDED), remediations=(REMEDIATION,))).splitlines() == [
        "2026-01-01 00:00:01  fault        gpu.xid.79 on gpu:GPU-0 opened: it fell off the bus",
        "                               line: NVRM: Xid",
        "                               pid: 7",
        (
            "2026-01-01 00:00:02  remediation  [c1] gpu.xid.79 on gpu:GPU-0, reboot_node: "
            "slot, drain, wait_idle, collect, reboot, verify, release; released at 2026-01-01 00:01:00"
        ),
        "2026-01-01 00:00:03  step         intends to drain",
        "2026-01-01 00:01:30  fault        gpu.xid.79 on gpu:GPU-0 ended: rebooted",
    ]


@pytest.mark.parametrize(
    ("remediation", "words"),
    [
        (replace(REMEDIATION, end=None, index=2), "; open, at wait_idle since 2026-01-01 00:01:00"),
        (replace(REMEDIATION, end=End.FAILED, note="no boot"), "; failed at 2026-01-01 00:01:00: no boot"),
    ],
)
def test_how_a_case_stands_is_said(remediation: Remediation, words: str) -> None:
    """Open ones with their step, others with their end and why; a remediation newer than every event comes last."""
    assert trail_text(Trail(events=(FAULT,), remediations=(remediation,))).splitlines()[-1].endswith(words)


def test_a_quiet_node_says_so() -> None:
    """An empty trail is no empty answer."""
    assert trail_text(Trail(events=())) == "the audit trail is empty\n"


def test_a_terminal_is_not_written_to_by_a_log_line() -> None:
    """A kernel line or a mount may hold an escape sequence; it is shown as a question mark."""
    odd = replace(FAULT, text="\x1b[2Jgone", data={"opened": True, "evidence": {"line": "a\nb"}})
    assert trail_text(Trail(events=(odd,))).splitlines()[0].endswith("?[2Jgone")
    assert trail_text(Trail(events=(odd,))).splitlines()[1].strip() == "line: a?b"


def test_json_has_all_of_it() -> None:
    """Events with their data, cases with their text and end."""
    data = json.loads(trail_json(Trail(events=(FAULT,), remediations=(REMEDIATION,))))
    assert data["schema"] == "healthd.history/v1"
    assert data["events"] == [
        {"at": "2026-01-01T00:00:01+00:00", "kind": "fault", "text": FAULT.text, "data": dict(FAULT.data)}
    ]
    assert [(remediation["id"], remediation["end"], remediation["text"]) for remediation in data["remediations"]] == [
        ("c1", "released", REMEDIATION.text)
    ]


def test_the_newest_lines_bring_their_cases(store: Store) -> None:
    """A remediation that was over before the oldest line shown is left out; one that is open never is."""
    store.save_remediation(replace(REMEDIATION, id="old", opened=at(-50)), FAULT)
    store.save_remediation(replace(REMEDIATION, id="waits", opened=at(-40), end=None), STEP)
    store.append(ENDED)
    assert [remediation.id for remediation in trail_of(store, last=2).remediations] == ["waits"]
    assert trail_of(store, last=2).events == (STEP, replace(ENDED))
    assert [remediation.id for remediation in trail_of(store, last=3).remediations] == ["waits"]
    assert [remediation.id for remediation in trail_of(store, last=4).remediations] == ["old", "waits"]


def test_a_database_is_read_without_its_daemon_and_not_touched(store: Store) -> None:
    """Also while the daemon has it open; and the trail is the same."""
    store.save_remediation(REMEDIATION, FAULT)
    assert read_trail(store.path, last=10) == trail_of(store, last=10)
    store.close()
    before = store.path.read_bytes()
    assert read_trail(store.path, last=10).events == (FAULT,)
    assert store.path.read_bytes() == before


def test_where_there_is_no_database_none_is_made(tmp_path: Path) -> None:
    """Neither it nor its folder."""
    with pytest.raises(StoreError, match="no state database; healthd has not run here"):
        read_trail(tmp_path / "state" / "healthd.db", last=10)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_stays_where_it_is(tmp_path: Path) -> None:
    """It is not set aside: that is for the daemon to do, which says it loudly."""
    path = tmp_path / "healthd.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match="cannot open the state database: file is not a database"):
        read_trail(path, last=10)
    assert [each.name for each in tmp_path.iterdir()] == ["healthd.db"]


def test_a_later_versions_database_is_refused(tmp_path: Path) -> None:
    """Its rows may mean something else."""
    path = tmp_path / "healthd.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(StoreError, match="its schema version is 9, this healthd knows 2"):
        read_trail(path, last=10)


def test_a_folder_that_may_not_be_entered_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    """A name too long for the file system stands in for what root is never refused."""
    with pytest.raises(StoreError, match="be root, or start the daemon"):
        read_trail(tmp_path / ("x" * 300) / "healthd.db", last=10)
