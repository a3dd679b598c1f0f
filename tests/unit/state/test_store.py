"""The state on disk: all or nothing, append-only, and a database that cannot be used is kept and replaced."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.encodable import json_text
from healthd.core.errors import StoreError
from healthd.core.model import Component, Event, Mode, Remedy, Repeats, Step
from healthd.job.blame import JOB_EVENT
from healthd.judge.findings import Sightings
from healthd.judge.history import History
from healthd.judge.trends import Days, Highest
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.decide.rules import QUARANTINE, REBOOT
from healthd.remediation.ports import Hold
from healthd.state.monitor import Monitor
from healthd.state.store import EVENTS_KEPT, REMEDIATIONS_KEPT, SCHEMA_VERSION, EventFilter, Owner, Store
from tests.support.judgement import (
    GPU,
    START,
    a_remediation,
    any_component,
    anyhow,
    at,
    baselines,
    components,
    evidences,
    fault,
    faults,
    finding,
    history,
    looked,
    times,
)
from tests.support.limits import limit_s
from tests.support.sampling import examples

ROOT = Path(__file__).parents[3]
EVENT = Event(at=START, kind="fault", text="gpu.sick on gpu:GPU-0 opened: it is sick", data={"code": "gpu.sick"})
REMEDIATION = a_remediation()


def opened(folder: Path) -> Store:
    return Store(folder / "healthd.db", now=START)


def saved(
    store: Store, after: History, *, before: History | None = None, cursor: tuple[str, int] | None = None
) -> None:
    store.save_history(before or History(), after, events=(), cursor=cursor)


# ---------------------------------------------------------------------------------------------------------------------
# what is saved is what is loaded

keys = st.tuples(anyhow, anyhow)
numbers = st.floats(allow_nan=False, allow_infinity=False)
days = st.builds(
    Days,
    epoch=anyhow,
    opened=times,
    base=numbers,
    carried=numbers,
    closed=st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
    growing=st.booleans(),
    last=numbers,
)
sightings = st.builds(
    Sightings,
    check=anyhow,
    rule=st.builds(Repeats, times=st.integers(1, 9), window_s=numbers, distinct=anyhow),
    seen=st.lists(st.tuples(numbers, anyhow), max_size=3).map(tuple),
)
histories = st.builds(
    lambda some, boot_id, instance_id, **memory: history(*some, boot_id=boot_id, instance_id=instance_id, **memory),
    st.lists(faults(components=any_component, evidences=evidences), max_size=3),
    anyhow,
    anyhow,
    baselines=st.dictionaries(keys, baselines, max_size=2),
    learned=st.dictionaries(keys, st.builds(Highest, value=numbers, since=times), max_size=2),
    days=st.dictionaries(keys, days, max_size=2),
    sightings=st.dictionaries(keys, sightings, max_size=2),
    names=st.dictionaries(anyhow, any_component, max_size=2),
)
remediations = st.builds(
    Remediation,
    id=st.sampled_from(["0a1b", "2c3d"]),
    opened=times,
    since=times,
    mode=st.sampled_from(Mode),
    code=anyhow,
    component=components.map(str),
    remedy=st.sampled_from(Remedy),
    why=anyhow,
    text=anyhow,
    steps=st.sampled_from([QUARANTINE, REBOOT]),
    index=st.integers(0, 2),
    phase=st.sampled_from(Phase),
    hold=st.none() | st.builds(Hold, text=anyhow, user=anyhow, stamp=st.integers(0, 2**40)),
    controller=anyhow,
    drain_boot_id=anyhow,
    overwritten_boot_id=anyhow,
    boot_id=anyhow,
    attempts=st.integers(0, 5),
    good_since=st.none() | times,
    unanswered=st.none() | times,
    drain_unanswered=st.none() | times,
    end=st.none() | st.sampled_from(End),
    note=anyhow,
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(histories, min_size=1, max_size=3))
def test_every_history_comes_back(steps: list[History]) -> None:
    """Saved step by step as differences and opened again, a history is equal, aliases and their order included."""
    with tempfile.TemporaryDirectory() as folder:
        store, before = opened(Path(folder)), History()
        for after in steps:
            saved(store, after, before=before)
            before = after
        assert store.history() == steps[-1]
        store.close()
        again = opened(Path(folder))
        known = again.history()
        again.close()
    assert known == steps[-1]
    assert [each.component.aliases for _, each in sorted(known.faults.items())] == [
        each.component.aliases for _, each in sorted(steps[-1].faults.items())
    ]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(remediations, min_size=1, max_size=4))
def test_every_case_comes_back(moves: list[Remediation]) -> None:
    """The last word on each remediation is what is loaded, and the newest that still has to be looked after is open."""
    with tempfile.TemporaryDirectory() as folder:
        store = opened(Path(folder))
        for remediation in moves:
            store.save_remediation(remediation, EVENT)
        store.close()
        again = opened(Path(folder))
        known, open_remediation, trail = again.remediations(), again.open_remediation(), again.events()
        again.close()
    last = {remediation.id: remediation for remediation in moves}
    assert {remediation.id: remediation for remediation in known} == last
    assert [remediation.id for remediation in known] == list(dict.fromkeys(remediation.id for remediation in moves))
    still_open = [remediation for remediation in known if remediation.is_open]
    assert open_remediation == (still_open[-1] if still_open else None)
    assert len(trail) == len(moves)


def test_a_fresh_store_is_empty(tmp_path: Path) -> None:
    """No history, no cursor, no remediation, no event, nothing set aside; folders are made."""
    store = opened(tmp_path / "a" / "b")
    assert (store.history(), store.cursor(), store.open_remediation()) == (History(), None, None)
    assert (store.remediations(), store.events(), store.set_aside) == ((), (), "")
    store.close()


@pytest.mark.parametrize(
    ("node", "instance", "is_kept"),
    [
        ("n1", "i-1", True),
        ("n1", "i-2", True),  # its disk was kept: what is under way is this node's
        ("n2", "i-1", True),  # renamed
        ("n2", "", True),  # evidence of nothing
        ("n2", "i-2", False),
    ],
)
def test_what_came_in_an_image_of_another_node_is_set_aside(
    tmp_path: Path, node: str, instance: str, is_kept: bool
) -> None:
    """Its remediation has a drain and a slot there, and not here. Nothing of it is lost."""
    of_n1(tmp_path).close()
    store = owned(tmp_path, node, instance)
    assert (store.open_remediation() is not None, store.set_aside == "") == (is_kept, is_kept)
    store.close()
    if is_kept:
        return
    assert "came in a machine image: it is of node n1 on i-1, and this is n2 on i-2" in store.set_aside
    (aside,) = tmp_path.glob("healthd.db.set-aside-*[0-9]")
    for path, known in ((tmp_path / "healthd.db", None), (aside, REMEDIATION)):
        store = Store(path, now=START)
        assert (store.open_remediation(), store.set_aside) == (known, "")
        store.close()


def test_it_is_set_aside_as_soon_as_the_instance_is_known(tmp_path: Path) -> None:
    """A start that its metadata service did not answer makes it no other node's."""
    of_n1(tmp_path).close()
    for instance in ("", "i-2"):
        store = owned(tmp_path, "n2", instance)
        assert bool(store.set_aside) == bool(instance)
        store.close()


def owned(folder: Path, node: str, instance: str) -> Store:
    return Store(folder / "healthd.db", now=START, owner=Owner(node=node, instance=instance))


def of_n1(folder: Path) -> Store:
    """A remediation is open."""
    store = owned(folder, "n1", "i-1")
    saved(store, History(instance_id="i-1"))
    store.save_remediation(REMEDIATION, EVENT)
    return store


def test_events_come_back_in_order_and_the_newest_first_in(tmp_path: Path) -> None:
    """The trail is told from old to new; a limit keeps its end."""
    store = opened(tmp_path)
    trail = [Event(at=at(second), kind="step", text=f"step {second}", data={"n": second}) for second in range(5)]
    store.append(*trail)
    assert store.events() == tuple(trail)
    assert store.events(last=2) == tuple(trail[-2:])
    store.close()


@pytest.mark.parametrize(
    ("evidence", "kept"),
    [
        ({"line": "half a pair \udce4"}, {"line": "half a pair ?"}),
        ({"path": Path("/dev/kmsg")}, {"path": "/dev/kmsg"}),
        ({"many": frozenset({1})}, {"many": [1]}),
        ({"not a number": float("nan")}, {"not a number": None}),
        ({"huge": 2**70}, {"huge": 2**70}),
        ({"deep": {"odd": ["\ud800"]}}, {"deep": {"odd": ["?"]}}),
    ],
)
def test_odd_evidence_keeps_nothing_unwritten(tmp_path: Path, evidence: Mapping[str, Any], kept: object) -> None:
    """What JSON or UTF-8 has no form for is written as near as can be: one odd value poisons no later save."""
    store = opened(tmp_path)
    odd = fault(component=Component(kind="mount", id="/odd\udcff"), evidence=evidence, message="\udcff")
    event = Event(at=START, kind="fault", text="on mount:/odd\udcff", data=evidence)
    store.save_history(History(), history(odd), events=[event], cursor=None)
    (known,) = store.history().faults.values()
    assert (known.evidence, known.message) == (kept, "?")
    assert [(each.text, each.data) for each in store.events()] == [("on mount:/odd?", kept)]
    store.save_history(history(odd), History(), events=(), cursor=None)
    assert store.history().faults == {}
    store.close()


# ---------------------------------------------------------------------------------------------------------------------
# all or nothing


def test_findings_and_cursor_are_one(tmp_path: Path) -> None:
    """Where a save ends in the middle, after the faults and the cursor and before the last event, nothing is there."""
    store = opened(tmp_path)
    saved(store, history(fault("first")), cursor=("boot-1", 1))

    def torn() -> Iterator[Event]:
        yield EVENT
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save_history(history(fault("first")), history(fault("second")), events=torn(), cursor=("boot-1", 2))
    assert ([code for _, code in store.history().faults], store.cursor(), store.events()) == (
        ["first"],
        ("boot-1", 1),
        (),
    )
    saved(store, history(fault("second")), before=history(fault("first")), cursor=("boot-1", 2))
    assert ([code for _, code in store.history().faults], store.cursor()) == (["second"], ("boot-1", 2))
    store.close()


def test_a_case_and_its_event_are_one(tmp_path: Path) -> None:
    """A remediation whose event cannot be written has not moved."""
    store = opened(tmp_path)
    store.save_remediation(REMEDIATION, EVENT)
    impossible = replace(EVENT, kind=None)
    with pytest.raises(StoreError, match="NOT NULL constraint failed"):
        store.save_remediation(replace(REMEDIATION, index=3), impossible)
    assert (store.open_remediation(), len(store.events())) == (REMEDIATION, 1)
    store.close()


_WRITER = """
import sys
from pathlib import Path
from healthd.judge.history import History
from healthd.core.model import Event
from healthd.state.store import Store
from tests.support.judgement import START, fault, history
store, before = Store(Path(sys.argv[1]), now=START), History()
for number in range(1, 100000):
    after = history(fault(f"code.{number}"), *list(before.faults.values())[-5:])
    event = Event(at=START, kind="fault", text=str(number))
    store.save_history(before, after, events=[event], cursor=("boot-1", number))
    before = after
    print(number, flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("lines", [1, 7])
def test_kill_9_leaves_findings_and_cursor_together(tmp_path: Path, lines: int) -> None:
    """A daemon killed anywhere in a save: the cursor, the newest fault and the last line of the trail are of one save,
    and no save that was confirmed is missing."""
    path = tmp_path / "healthd.db"
    argv = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, text=True) as writer:
        assert writer.stdout is not None
        confirmed = [int(writer.stdout.readline()) for _ in range(lines)][-1]
        writer.send_signal(signal.SIGKILL)
    store = Store(path, now=START)
    cursor = store.cursor()
    assert store.set_aside == ""
    assert cursor is not None
    assert cursor[1] >= confirmed
    assert max(int(code.partition(".")[2]) for _, code in store.history().faults) == cursor[1]
    assert store.events()[-1].text == str(cursor[1])
    store.close()


def test_threads_share_a_store(tmp_path: Path) -> None:
    """Four threads that write at once lose no event and see no error."""
    store = opened(tmp_path)
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for number in range(10):
                store.append(Event(at=START, kind="step", text=f"{name}{number}"))
                store.history()
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {event.text for event in store.events()} == {f"{name}{number}" for name in "abcd" for number in range(10)}
    store.close()


def test_a_closed_store_is_a_store_error(tmp_path: Path) -> None:
    """A thread that comes late gets the error that it knows."""
    store = opened(tmp_path)
    store.close()
    for act in (store.history, store.cursor, lambda: store.append(EVENT)):
        with pytest.raises(StoreError, match="closed database"):
            act()


# ---------------------------------------------------------------------------------------------------------------------
# the audit


def test_the_trail_has_an_end(tmp_path: Path) -> None:
    """The newest hundred thousand lines are kept, and cannot be taken out; older ones go with the next line."""
    store = opened(tmp_path)
    for _ in range(EVENTS_KEPT // 10_000):
        store.append(*(EVENT for _ in range(10_000)))
    store.append(replace(EVENT, text="one more"), replace(EVENT, text="and one"))
    assert store.events(last=1)[0].text == "and one"
    store.close()
    other = sqlite3.connect(store.path)
    assert other.execute("SELECT COUNT(*), MIN(id) FROM event").fetchone() == (EVENTS_KEPT, 3)
    with pytest.raises(sqlite3.IntegrityError, match="the audit is append-only"):
        other.execute("DELETE FROM event WHERE id = 3")
    other.close()


def test_remediations_that_are_over_have_an_end(tmp_path: Path) -> None:
    """The newest four thousand are kept, and one that is open however old it is: each start reads them all."""
    store = opened(tmp_path)
    store.save_remediation(replace(REMEDIATION, id="open"), EVENT)
    other = sqlite3.connect(store.path)
    over = (
        (f"old{number}", json_text(replace(REMEDIATION, id=f"old{number}", end=End.RELEASED)))
        for number in range(4_100)
    )
    other.executemany("INSERT INTO remediation (id, open, body) VALUES (?, 0, ?)", over)
    other.commit()
    other.close()
    store.save_remediation(replace(REMEDIATION, id="new", end=End.RELEASED), EVENT)
    kept = [each.id for each in store.remediations()]
    assert (kept[:2], kept[-1], len(kept)) == (["open", "old101"], "new", REMEDIATIONS_KEPT + 1)
    assert not store.knows("old0")
    store.close()


def test_a_database_that_kept_every_line_is_told_anew(tmp_path: Path) -> None:
    """One of an earlier build goes on, and lets go of its oldest lines from then on."""
    opened(tmp_path).close()
    path = tmp_path / "healthd.db"
    other = sqlite3.connect(path)
    other.executescript(
        "DROP TRIGGER event_stays; CREATE TRIGGER event_stays BEFORE DELETE ON event"
        " BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;"
    )
    other.execute("INSERT INTO event (id, at, kind, text, data) VALUES (7, '', '', '', '{}')")
    other.commit()
    other.close()
    store = opened(tmp_path)
    assert store.set_aside == ""
    other = sqlite3.connect(path)
    other.execute("INSERT INTO event (id, at, kind, text, data) VALUES (?, '', '', '', '{}')", (EVENTS_KEPT + 7,))
    other.commit()
    other.close()
    store.append(EVENT)
    assert len(store.events(last=5)) == 2
    store.close()


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask, and also where an earlier build was less careful; so is a folder that is made for it."""
    before = os.umask(0)
    try:
        store = Store(tmp_path / "state" / "healthd.db", now=START)
        store.append(EVENT)
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "state").iterdir()} == {0o600}
    store.close()
    store.path.chmod(0o644)
    Store(store.path, now=START).close()
    assert store.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event SET text = 'nothing happened'",
        "UPDATE OR REPLACE event SET id = 2 WHERE id = 1",
        "DELETE FROM event",
        "DELETE FROM event WHERE id = 1",
        "INSERT OR REPLACE INTO event (id, at, kind, text, data) VALUES (1, '', '', 'nothing happened', '{}')",
        "REPLACE INTO event (id, at, kind, text, data) VALUES (2, '', '', 'nothing happened', '{}')",
    ],
)
def test_the_audit_cannot_be_rewritten(tmp_path: Path, statement: str) -> None:
    """The database itself refuses to change, remove or replace a line, whoever asks."""
    store = opened(tmp_path)
    store.append(EVENT, replace(EVENT, text="and then"))
    store.close()
    other = sqlite3.connect(store.path)
    with pytest.raises(sqlite3.IntegrityError, match="the audit is append-only"):
        other.execute(statement)
    other.close()
    again = opened(tmp_path)
    assert [event.text for event in again.events()] == [EVENT.text, "and then"]
    again.close()


@pytest.mark.parametrize(
    ("column", "value"), [("data", "{torn"), ("at", "yesterday"), ("text", b"\xff\xfe"), ("kind", 7), ("data", b"\x80")]
)
def test_a_damaged_line_hides_no_other(tmp_path: Path, column: str, value: object) -> None:
    """A line whose bytes went bad is shown as it is, among the others."""
    store = opened(tmp_path)
    row = {"at": START.isoformat(), "kind": "step", "text": "drained", "data": "{}", column: value}
    store.append(EVENT)
    store._db.execute("INSERT INTO event (at, kind, text, data) VALUES (:at, :kind, :text, :data)", row)
    store.append(EVENT)
    first, odd, last = store.events()
    assert (first, last) == (EVENT, EVENT)
    assert "drained" in odd.text or "\N{REPLACEMENT CHARACTER}" in odd.text
    store.close()


def test_a_read_of_the_trail_keeps_no_fault_waiting(tmp_path: Path) -> None:
    """While SQLite is in the middle of a user's question, a fault is written, and the drain that is open is read."""
    store = opened(tmp_path)
    store.append(EVENT)
    reading, written = threading.Event(), threading.Event()

    def in_the_middle() -> int:
        reading.set()
        return 0 if written.wait(limit_s(10)) else 1  # what is not 0 interrupts the question

    store._reads.set_progress_handler(in_the_middle, 1)
    reader = threading.Thread(target=store.events)
    reader.start()
    assert reading.wait(limit_s(10))
    saved(store, history(fault("first")))
    assert store.open_remediation() is None
    assert reader.is_alive()
    written.set()
    reader.join()
    store.close()


@pytest.mark.parametrize("is_older", [False, True], ids=["fresh", "of an earlier build"])
def test_what_any_user_may_ask_reads_few_lines_of_a_long_trail(tmp_path: Path, *, is_older: bool) -> None:
    """The verdicts on a job, and the lines of a kind of which there are few, are found by an index."""
    store = opened(tmp_path)
    if is_older:
        store._db.executescript("DROP INDEX event_of_kind; DROP INDEX event_of_job;")
    store.append(*(Event(at=START, kind=JOB_EVENT, text="ended", data={"job": str(job)}) for job in range(10_000)))
    store.append(EVENT)
    if is_older:
        store.close()
        store = opened(tmp_path)
    thousands: list[int] = []
    store._reads.set_progress_handler(lambda: thousands.append(1), 1000)  # instructions of SQLite's machine
    assert [event.data for event in store.events_of_job("7")] == [{"job": "7"}]
    assert store.events_of_job("none") == ()
    assert store.events_of(EventFilter(kinds=("fault",)), last=200)[0] == (EVENT,)
    assert store.events_of(EventFilter(kinds=("fault", "step")), last=200)[0] == (EVENT,)
    assert len(thousands) < 5
    store.close()


# ---------------------------------------------------------------------------------------------------------------------
# a database that cannot be used


class Bytes(bytes):
    """Bytes that a failing example does not print."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good database with a row of every kind."""
    store = opened(tmp_path_factory.mktemp("whole"))
    full = history(
        *(fault(f"gpu.xid.{number}", evidence={"line": "NVRM: Xid " * 9}) for number in range(20)),
        names={"gpu:0000:10:1c": GPU[0]},
    )
    store.save_history(History(), full, events=[EVENT] * 20, cursor=("boot-1", 7))
    store.save_remediation(REMEDIATION, EVENT)
    store.close()
    return Bytes(store.path.read_bytes())


def use(store: Store) -> None:
    """Everything that the daemon does with a store."""
    before = store.history()
    store.cursor()
    store.cursor_at()
    store.journal_cursor()
    store.remediations()
    store.open_remediation()
    store.events()
    store.save_history(before, history(fault("new")), events=[EVENT], cursor=("boot-2", 1))
    store.save_remediation(replace(REMEDIATION, id="new"), EVENT)
    assert list(store.history().faults) == [("gpu:GPU-0", "new")]
    assert store.cursor() == ("boot-2", 1)


def kept_whole(folder: Path, damaged: bytes) -> bool:
    """Whether what was set aside is what was there; SQLite may have touched the header, its first 100 bytes."""
    aside = [
        path for path in folder.iterdir() if ".set-aside-" in path.name and not path.name.endswith(("-wal", "-shm"))
    ]
    return [path.read_bytes()[100:] for path in aside] == [damaged[100:]]


def survives(damaged: bytes) -> bool:
    """Open a database with these bytes and use it. Whether it was set aside; then its bytes are proven to be kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "healthd.db").write_bytes(damaged)
        store = opened(folder)
        use(store)
        store.close()
        if store.set_aside:
            assert kept_whole(folder, damaged), store.set_aside
            assert "starts a fresh database" in store.set_aside
        return bool(store.set_aside)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), hits=st.sampled_from([1, 3, 30, 1000]))
def test_random_damage_is_survived(whole: bytes, seed: int, hits: int) -> None:
    """Random bytes at random places: opening never raises, what was opened can be used, what was set aside is kept."""
    dice, damaged = random.Random(seed), bytearray(whole)  # noqa: S311 - damage, not a secret
    for _ in range(hits):
        damaged[dice.randrange(len(damaged))] = dice.randrange(256)
    survives(bytes(damaged))


@settings(max_examples=examples(40), deadline=None)
@given(place=st.integers(0, 99), value=st.integers(0, 255))
def test_a_damaged_header_is_survived(whole: bytes, place: int, value: int) -> None:
    """The first hundred bytes say what kind of file it is: none of their values stops the daemon."""
    survives(whole[:place] + bytes([value]) + whole[place + 1 :])


@settings(max_examples=examples(20), deadline=None)
@given(share=st.floats(0.001, 0.999))
def test_a_truncated_database_is_set_aside(whole: bytes, share: float) -> None:
    """Wherever it was cut."""
    assert survives(whole[: 1 + int(len(whole) * share)])


@pytest.mark.parametrize("junk", [b"xy", b"not a database\n" * 900, bytes(8192), b"SQLite format 3\0" + b"\xff" * 4096])
def test_what_is_no_database_is_set_aside(junk: bytes) -> None:
    """Text, zeros, half a header."""
    assert survives(junk)


def test_an_empty_file_is_a_fresh_database(tmp_path: Path) -> None:
    """SQLite leaves one behind where the first start was cut short: there is nothing to keep."""
    (tmp_path / "healthd.db").touch()
    store = opened(tmp_path)
    use(store)
    store.close()
    assert store.set_aside == ""


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            f"PRAGMA user_version = {SCHEMA_VERSION + 1}",
            f"its schema version is {SCHEMA_VERSION + 1}; this healthd reads {SCHEMA_VERSION}",
        ),
        ("PRAGMA user_version = 0", f"its schema version is 0; this healthd reads {SCHEMA_VERSION}"),
        ("PRAGMA user_version = -7", "its schema version is -7"),
        ("UPDATE fault SET body = '{torn'", "JSON"),
        ("UPDATE fault SET body = '[]'", "Expected `object`"),
        ("UPDATE fault SET body = replace(body, 'critical', 'purple')", "Invalid enum value 'purple'"),
        ("UPDATE fault SET body = CAST(x'ff' AS TEXT)", "UTF-8"),
        ("UPDATE name SET body = '{}'", "missing required field `kind`"),
        ("INSERT INTO baseline VALUES ('gpu:GPU-0', 'x', '{\"epoch\": \"a\", \"value\": null}')", "Expected `float`"),
        (
            "UPDATE fault SET body = replace(body, '\"line\":', '\"line\":' || replace(hex(zeroblob(9999)), '0', '['))",
            "recurs",
        ),
        ("UPDATE remediation SET body = ''", "truncated"),
        ("UPDATE remediation SET id = '9'", "the row of remediation 9 holds another remediation"),
        ("UPDATE fault SET code = 'x' WHERE code = 'gpu.xid.7'", "the row of x on gpu:GPU-0 holds another fault"),
        ("UPDATE fact SET value = 'boot-1 seven' WHERE key = 'cursor'", "invalid literal"),
        ("INSERT INTO learned VALUES ('gpu:GPU-0', 'x', '{\"value\": 1.0}')", "missing required field `since`"),
        ("INSERT INTO days VALUES ('gpu:GPU-0', 'x', '{torn')", "JSON"),
        ("INSERT INTO days VALUES ('gpu:GPU-0', CAST(x'ff' AS TEXT), '{}')", "UTF-8"),
        ("INSERT INTO sightings VALUES ('gpu:GPU-0', 'x', '7')", "Expected `object`"),
        ("INSERT INTO fact VALUES ('cursor_at', 'yesterday')", "Invalid isoformat string: 'yesterday'"),
        ("INSERT INTO fact VALUES ('cursor_at', '2026-01-01T00:00:00')", "expected a time with its zone"),
        ("INSERT INTO fact VALUES ('told', CAST(x'ff' AS TEXT))", "UTF-8"),
        ("DROP TABLE fact", "no such table: fact"),
        ("DROP TABLE event", "no such table: main.event"),
        ("ALTER TABLE event RENAME COLUMN text TO words", "no column named text"),
        ("CREATE TRIGGER spite BEFORE INSERT ON fact BEGIN SELECT RAISE(ABORT, 'no'); END", "no"),
    ],
)
def test_an_unusable_database_is_set_aside_and_says_why(
    tmp_path: Path, whole: bytes, statement: str, words: str
) -> None:
    """A later version, a row that makes no sense, a table that is gone: kept whole, said with the cause, replaced."""
    path = tmp_path / "healthd.db"
    path.write_bytes(whole)
    other = sqlite3.connect(path)
    other.execute(statement)
    other.commit()
    other.close()
    damaged = path.read_bytes()
    store = opened(tmp_path)
    use(store)
    store.close()
    assert words in store.set_aside
    assert f"healthd keeps it as {path}.set-aside-20260101T000000" in store.set_aside
    assert kept_whole(tmp_path, damaged)


def test_what_was_set_aside_is_never_overwritten(tmp_path: Path) -> None:
    """Two in one second get two names."""
    for content in (b"the first", b"the second"):
        path = tmp_path / "healthd.db"
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(content)
        opened(tmp_path).close()
    kept = sorted(tmp_path.glob("*.set-aside-*"))
    assert [path.read_bytes() for path in kept] == [b"the first", b"the second"]
    assert [path.name.rpartition("-")[2] for path in kept] == ["20260101T000000", "20260101T000000.2"]


def test_a_write_ahead_log_goes_with_its_database(tmp_path: Path, whole: bytes) -> None:
    """What was committed and not yet copied into the file is set aside with it."""
    store = opened(tmp_path)
    store.append(EVENT)
    store._db.execute("PRAGMA user_version = 9")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("healthd.db", "healthd.db-wal"):
        shutil.copy(tmp_path / name, copy / name)
    store.close()
    fresh = opened(copy)
    fresh.close()
    assert "its schema version is 9" in fresh.set_aside
    (old,) = (
        path for path in copy.glob("*.set-aside-*") if path.suffix != ".db" and not path.name.endswith(("wal", "shm"))
    )
    kept = sqlite3.connect(old)
    assert kept.execute("SELECT text FROM event").fetchall() == [(EVENT.text,)]
    kept.close()


@pytest.mark.parametrize("place", ["a folder", "below a file"])
def test_a_place_that_cannot_hold_a_database_is_a_store_error(tmp_path: Path, place: str) -> None:
    """Nothing is set aside where another file would fare no better; the message names the setting."""
    path = tmp_path / "healthd.db"
    if place == "a folder":
        path.mkdir()
    else:
        path.touch()
        path = path / "healthd.db"
    with pytest.raises(StoreError, match=r"cannot open the state database: .*; check \[daemon\] state_dir"):
        Store(path, now=START)
    assert [each.name for each in tmp_path.iterdir()] == ["healthd.db"]


def test_a_database_that_another_holds_is_not_set_aside(tmp_path: Path, whole: bytes) -> None:
    """A lock is no damage: the write waits and is then refused, and the file stays in its place."""
    store = opened(tmp_path)
    store._db.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="database is locked"):
        store.append(EVENT)
    other.execute("ROLLBACK")
    other.close()
    store.append(EVENT)
    assert store.events() == (EVENT,)
    store.close()


# ---------------------------------------------------------------------------------------------------------------------
# a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tmp_path / "disk"
    folder.mkdir()
    if libc.mount(b"healthd-test", os.fsencode(folder), b"tmpfs", 0, b"size=512k") != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        assert libc.umount2(os.fsencode(folder), 2) == 0  # MNT_DETACH


def fill(folder: Path) -> Path:
    """Leave no byte."""
    path = folder / "filler"
    with path.open("ab", buffering=0) as filler:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))
    return path


BIG = {"line": "x" * 20_000}


@pytest.mark.root
def test_a_full_disk_is_a_store_error_and_loses_nothing(small_disk: Path) -> None:
    """What was written stays readable and whole; what could not be written is not there in part."""
    store = opened(small_disk)
    saved(store, history(fault("first")), cursor=("boot-1", 1))
    filler = fill(small_disk)
    bigger = history(fault("second", evidence=BIG))
    with pytest.raises(StoreError, match=r"the state was not written: .*full; healthd does not act until it can be"):
        store.save_history(history(fault("first")), bigger, events=[EVENT], cursor=("boot-1", 2))
    with pytest.raises(StoreError, match="full"):
        store.save_remediation(replace(REMEDIATION, why="x" * 20_000), EVENT)
    assert ([code for _, code in store.history().faults], store.cursor(), store.events()) == (
        ["first"],
        ("boot-1", 1),
        (),
    )
    assert store.open_remediation() is None
    filler.unlink()
    store.save_history(history(fault("first")), bigger, events=[EVENT], cursor=("boot-1", 2))
    store.close()
    again = opened(small_disk)
    assert ([code for _, code in again.history().faults], again.cursor(), again.events()) == (
        ["second"], ("boot-1", 2), (EVENT,),
    )  # fmt: skip
    again.close()


@pytest.mark.root
def test_a_start_on_a_full_disk_sets_nothing_aside(small_disk: Path) -> None:
    """A full disk is not damage: the start is refused, and with room again the old state is there."""
    store = opened(small_disk)
    saved(store, history(fault("first")), cursor=("boot-1", 1))
    store.close()
    filler = fill(small_disk)
    with contextlib.suppress(StoreError):  # whether it needs room depends on what SQLite left behind
        opened(small_disk).close()
    assert list(small_disk.glob("*.set-aside-*")) == []
    filler.unlink()
    again = opened(small_disk)
    assert ([code for _, code in again.history().faults], again.cursor()) == (["first"], ("boot-1", 1))
    again.close()


@pytest.mark.root
def test_the_monitor_keeps_what_a_full_disk_refuses(small_disk: Path) -> None:
    """While the disk is full faults are judged, shown and said to be unwritten; with room again faults, cursor and
    trail are written, together."""
    store = opened(small_disk)
    monitor = Monitor({}, store)
    monitor.begin_boot("boot-1", START)
    filler = fill(small_disk)
    monitor.absorb_batch([looked(finding(evidence=BIG))], cursor=("boot-1", 7))
    assert "full" in monitor.store_problem
    assert [each.code for each in monitor.diagnoses()] == ["gpu.sick"]
    assert (store.history().faults, store.cursor()) == ({}, None)
    monitor.record(EVENT)
    filler.unlink()
    monitor.flush(at(60))
    assert monitor.store_problem == ""
    store.close()
    again = opened(small_disk)
    assert again.history() == monitor.history
    assert again.cursor() == ("boot-1", 7)
    assert [event.text for event in again.events()][-2:] == [
        "gpu.sick on gpu:GPU-0 opened: gpu.sick on gpu:GPU-0",
        EVENT.text,
    ]
    again.close()


def test_steps_are_words_on_disk(tmp_path: Path, whole: bytes) -> None:
    """A remediation is kept as JSON with the vocabulary's own words: another version, or a person, can read it."""
    (tmp_path / "healthd.db").write_bytes(whole)
    db = sqlite3.connect(tmp_path / "healthd.db")
    body = msgspec.json.decode(db.execute("SELECT body FROM remediation").fetchone()[0])
    db.close()
    assert body["steps"] == [str(step) for step in REBOOT]
    assert body["steps"][0] == Step.SLOT


def test_a_disk_that_refuses_writing_can_still_be_read(tmp_path: Path, whole: bytes) -> None:
    """A file system that turned read-only under the daemon: what is known stays known, and no drain is forgotten."""
    (tmp_path / "healthd.db").write_bytes(whole)
    store = opened(tmp_path)
    store._db.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreError, match="the state was not written: attempt to write a readonly database"):
        store.save_remediation(REMEDIATION, EVENT)
    assert store.open_remediation() == REMEDIATION
    assert (len(store.history().faults), store.cursor(), len(store.events()), store.remediations()) == (
        20, ("boot-1", 7), 21, (REMEDIATION,),
    )  # fmt: skip
    store.close()


_OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
from healthd.core.encodable import json_text
from healthd.core.errors import StoreError
from healthd.core.model import Event
from healthd.state.store import Store
from tests.support.judgement import START
store = Store(Path(sys.argv[1]), now=START)
large, small = (Event(at=START, kind="step", text="x" * size) for size in (64 << 20, 10))
store.append(small)
now = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize:")) << 10
resource.setrlimit(resource.RLIMIT_AS, (now + (8 << 20), -1))
try:
    store.append(large)
except StoreError as error:
    print(error)
store.append(small)
print(len(store.events()))
"""


@pytest.mark.process
def test_a_write_without_memory_is_one_that_was_not_made(tmp_path: Path) -> None:
    """Python's word for SQLITE_NOMEM is MemoryError, which is no error of SQLite's: nothing was written, and the next
    write is made."""
    argv = [sys.executable, "-c", _OUT_OF_MEMORY, str(tmp_path / "healthd.db")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s(60), check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    messages, count = done.stdout.splitlines()
    assert "the state was not written: " in messages
    assert count == "2"


@pytest.mark.process
def test_a_copy_is_read_where_nothing_can_be_made_beside_it() -> None:
    """A backup on a read-only disk, or of another user: the one that a daemon closed in order is whole by itself."""
    with tempfile.TemporaryDirectory() as name:  # others may enter it, unlike pytest's own folders
        path = Path(name, "healthd.db")
        store = Store(path, now=START)
        store.append(Event(at=START, kind="step", text="intends to drain"))
        store.close()
        path.chmod(0o644)
        path.parent.chmod(0o555)
        script = """
import os, sys
from pathlib import Path
from healthd.state.store import connect_to_read
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(*connect_to_read(Path(sys.argv[1])).execute("SELECT text FROM event"))
"""
        argv = [sys.executable, "-B", "-c", script, str(path)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=limit_s(20), check=False)
        path.parent.chmod(0o755)
    assert (done.stdout, done.stderr) == ("('intends to drain',)\n", "")
