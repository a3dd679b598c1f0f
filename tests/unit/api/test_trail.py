"""The timeline of a node: the trail's lines in their order, and its cases among them."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.api.grammar import EVENT_KINDS, parse
from healthd.api.timeline import (
    Trail,
    asked_of,
    read_trail,
    shared_data,
    trail_data,
    trail_of,
    trail_text,
    wanted,
)
from healthd.core.errors import StoreError, UsageError
from healthd.core.json_documents import json_document
from healthd.core.model import Event, gpu_component
from healthd.job.blame import JOB_EVENT
from healthd.judge.devices import DeviceNames
from healthd.judge.history import History
from healthd.remediation.decide.remediation import End, Remediation
from healthd.state.store import EventFilter, Store
from tests.support.judgement import START, a_remediation, at
from tests.support.limits import limit_s
from tests.support.running import HEEDS_SIGINT, ROOT

FAULT = Event(
    at=at(1),
    kind="fault",
    text="gpu.xid.79 on gpu:GPU-0 opened: it fell off the bus",
    data={"code": "gpu.xid.79", "component": "gpu:GPU-0", "opened": True,
          "evidence": {"line": "NVRM: Xid", "sequence": 812, "boot_id": "b", "pid": 7}},
)  # fmt: skip
ENDED = Event(at=at(90), kind="fault", text="gpu.xid.79 on gpu:GPU-0 ended: rebooted", data={**FAULT.data, "opened": 0})
STEP = Event(at=at(3), kind="step", text="intends to drain")
RUN = Event(at=at(2), kind="check", text="gpu.ecc is unknown: no answer")
OF_ITS_OWN = Event(at=at(70), kind="step", text="[c1] rebooted", data={"remediation_id": "c1"})
EVERY = EventFilter()
REMEDIATION = a_remediation(opened=at(2), since=at(60), index=6, end=End.RELEASED)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / "healthd.db", now=START)
    yield one
    one.close()


def test_the_timeline_reads_from_old_to_new_with_evidence() -> None:
    """A fault with what was seen, the remediation where it was opened, and what ended it; evidence is not repeated
    then."""
    assert trail_text(trail_data(Trail(events=(FAULT, STEP, ENDED), remediations=(REMEDIATION,)))).splitlines() == [
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
    assert trail_text(trail_data(Trail(events=(FAULT,), remediations=(remediation,)))).splitlines()[-1].endswith(words)


EIGHT = [
    Event(at=at(1 + n / 100), kind="fault", text=f"gpu.xid.79 on gpu:GPU-51a1-{n} opened: XID 79 on GPU 0000:{n}6:00",
          data={"opened": True, "severity": "critical", "evidence": {"line": f"NVRM: Xid (PCI:0000:{n}6:00)"}})
    for n in range(8)
]  # fmt: skip
NAMED = DeviceNames({f"gpu:{name}": f"GPU {n}" for n in range(8) for name in (f"GPU-51a1-{n}", f"0000:{n}6:00")})


def test_the_text_names_devices_as_operators_do_and_each_cause_once() -> None:
    """What eight GPUs have in one second is one line, with the evidence of the first; another second is another line.
    ``-v`` has each by itself under its own name, and so has the JSON."""
    decided = Event(at=at(1.5), kind="decision", text="repair for gpu.xid.79 on gpu:GPU-51a1-7")
    out = a_remediation(opened=at(2), since=at(60), index=6, end=End.RELEASED, component="gpu:GPU-51a1-7")
    data = trail_data(Trail(events=(*EIGHT, decided), remediations=(out,), names=NAMED))
    assert trail_text(data).splitlines()[:3] == [
        "2026-01-01 00:00:01  fault        gpu.xid.79 on 8 GPUs (0-7) opened: XID 79 on 8 GPUs (0-7)",
        "                               line: NVRM: Xid (PCI:0000:06:00)",
        "2026-01-01 00:00:01  decision     repair for gpu.xid.79 on GPU 7",
    ]
    assert "gpu.xid.79 on GPU 7, reboot_node" in trail_text(data).splitlines()[3]
    later = replace(EIGHT[7], at=at(3))
    apart = trail_text(trail_data(Trail(events=(*EIGHT[:7], later), names=NAMED)))
    assert [line[:19] for line in apart.splitlines() if "fault" in line] == [
        "2026-01-01 00:00:01",
        "2026-01-01 00:00:03",
    ]
    assert "sequence: 812" not in trail_text(trail_data(Trail(events=(FAULT,))))
    assert "sequence: 812" in trail_text(trail_data(Trail(events=(FAULT,))), verbose=True)
    long = trail_text(data, verbose=True)
    assert all(long.count(f"gpu:GPU-51a1-{n} opened") == 1 for n in range(8))
    assert [each["text"] for each in json.loads(json_document(data))["events"]] == [
        each.text for each in (*EIGHT, decided)
    ]


def test_a_daemon_of_an_earlier_version_sends_no_names() -> None:
    """Its lines are shown with the names that they have."""
    data = {key: value for key, value in trail_data(Trail(events=(FAULT,))).items() if key != "names"}
    assert "gpu.xid.79 on gpu:GPU-0 opened" in trail_text(data)


def test_a_database_names_the_gpus_as_its_daemon_does(store: Store) -> None:
    """From what the daemon knew of them, without asking the machine."""
    gpu = gpu_component(uuid="GPU-0", pci="0000:06:00", index=3)
    after = replace(History(), names={"gpu:GPU-0": gpu, "gpu:0000:06:00": gpu})
    store.save_history(History(), after, events=(FAULT,), cursor=None)
    assert "gpu.xid.79 on GPU 3 opened" in trail_text(trail_data(read_trail(store.path, EVERY, last=10)))


def test_a_quiet_node_says_so() -> None:
    """An empty trail is no empty answer."""
    assert trail_text(trail_data(Trail(events=()))) == "the audit trail is empty\n"


def test_a_terminal_is_not_written_to_by_a_log_line() -> None:
    """A kernel line or a mount may hold an escape sequence; it is shown as a question mark."""
    odd = replace(FAULT, text="\x1b[2Jgone", data={"opened": True, "evidence": {"line": "a\nb"}})
    assert trail_text(trail_data(Trail(events=(odd,)))).splitlines()[0].endswith("?[2Jgone")
    assert trail_text(trail_data(Trail(events=(odd,)))).splitlines()[1].strip() == "line: a?b"


def test_json_has_all_of_it() -> None:
    """Events with their data, cases with their text and end."""
    data = json.loads(json_document(trail_data(Trail(events=(FAULT,), remediations=(REMEDIATION,)))))
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
    assert [remediation.id for remediation in trail_of(store, EVERY, last=2).remediations] == ["waits"]
    assert trail_of(store, EVERY, last=2).events == (STEP, replace(ENDED))
    assert [remediation.id for remediation in trail_of(store, EVERY, last=3).remediations] == ["waits"]
    assert [remediation.id for remediation in trail_of(store, EVERY, last=4).remediations] == ["old", "waits"]


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("", [FAULT.text, STEP.text, OF_ITS_OWN.text, ENDED.text]),
        ("-v", [FAULT.text, RUN.text, STEP.text, OF_ITS_OWN.text, ENDED.text]),
        ("--last 1", [ENDED.text]),
        ("--kind check", [RUN.text]),
        ("--kind step --kind check", [RUN.text, STEP.text, OF_ITS_OWN.text]),
        ("--since 1m", [OF_ITS_OWN.text, ENDED.text]),
        ("--since 1m --kind fault", [ENDED.text]),
        ("--case c1", [OF_ITS_OWN.text]),
        ("--after 4 -v", [ENDED.text]),
    ],
)
def test_an_operator_chooses_the_lines(store: Store, line: str, texts: list[str]) -> None:
    """Without an option all but the runs of checks; the number of lines counts those that are chosen."""
    store.save_remediation(REMEDIATION, FAULT)
    store.append(RUN, STEP, OF_ITS_OWN, ENDED)
    options = parse(["history", *line.split()])
    trail = asked_of(store, wanted(options, at(120)), last=options.last)
    assert [event.text for event in trail.events] == texts
    assert trail.newest == 5
    has_lines = not options.kind and not options.after and options.last > 1
    assert [each.id for each in trail.remediations] == (["c1"] if has_lines and "--since" not in line else [])


def test_a_remediation_that_never_was_is_an_error_with_the_nearest(store: Store) -> None:
    """A mistyped id is not answered with an empty history."""
    store.save_remediation(replace(REMEDIATION, id="b7da3274"), STEP)
    options = parse(["history", "--case", "b7da3247"])
    with pytest.raises(UsageError, match="no remediation has the id 'b7da3247'; did you mean b7da3274?"):
        asked_of(store, wanted(options, at(120)), last=options.last)
    with pytest.raises(UsageError, match=r"no remediation has the id '\?'"):  # no UTF-8, and no fault of the disk
        asked_of(store, wanted(parse(["history", "--case", "\udcff"]), at(120)), last=options.last)


def test_lines_that_are_not_there_are_no_empty_trail(store: Store) -> None:
    """Nothing of what was asked for, in a trail that has other lines."""
    store.append(RUN)
    assert trail_text(trail_data(trail_of(store, EventFilter(kinds=("command",)), last=5))) == (
        "no line of the audit trail is so\n"
    )


def test_a_line_has_the_colour_of_what_it_tells() -> None:
    """A fault that opens has that of its severity, one that ends is green; the end of a remediation likewise."""
    critical = replace(FAULT, data={**FAULT.data, "severity": "critical", "evidence": {}})
    fine, failed = replace(RUN, text="gpu.ecc is ok"), replace(REMEDIATION, end=End.FAILED)
    damaged = replace(RUN, kind="damaged")
    for trail, colours in (
        (Trail(events=(critical, FAULT, ENDED, STEP)), ["1;31", "33", "32"]),
        (Trail(events=(RUN, fine, damaged)), ["35", "32", "1;31"]),
        (Trail(events=(), remediations=(REMEDIATION, failed)), ["32", "1;31"]),
        (Trail(events=(), cut="the newest"), ["33"]),
    ):
        assert re.findall(r"\x1b\[([0-9;]+)m20|\x1b\[(33)m!", trail_text(trail_data(trail), colour=True)) == [
            ("", each) if trail.cut else (each, "") for each in colours
        ]


def test_each_kind_that_is_written_can_be_asked_for() -> None:
    """The grammar's list of kinds is that of the code: a kind that it lacks could not be asked for."""
    written = {JOB_EVENT}
    for path in [*ROOT.glob("healthd/**/*.py"), *ROOT.glob("remediation/**/*.py")]:
        written.update(re.findall(r"\bEvent\(.{0,80}?\bkind=\"([a-z]+)\"", path.read_text(encoding="utf-8"), re.DOTALL))
    assert written - {"damaged"} == set(EVENT_KINDS)


@pytest.mark.process
def test_following_prints_each_new_line_once(store: Store, tmp_path: Path) -> None:
    """Of a database without a daemon too; Ctrl-C ends it with exit code 0, and what is left out stays so."""
    store.append(STEP, RUN)
    config = tmp_path / "config.toml"
    config.write_text(f'[daemon]\nstate_dir = "{tmp_path}"\n[orchestrator]\nkind = "local"\n', encoding="utf-8")
    argv = [*HEEDS_SIGINT, sys.executable, "-m", "healthd", "history", "--follow", "--config", str(config)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("intends to drain\n")
        store.append(RUN, OF_ITS_OWN)
        assert process.stdout.readline().endswith("[c1] rebooted\n")
        store.append(ENDED)
        assert process.stdout.readline().endswith("ended: rebooted\n")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=limit_s(20.0))
    assert (process.returncode, rest) == (0, "")


def test_a_database_is_read_without_its_daemon_and_not_touched(store: Store) -> None:
    """Also while the daemon has it open; and the trail is the same."""
    store.save_remediation(REMEDIATION, FAULT)
    assert read_trail(store.path, EVERY, last=10) == trail_of(store, EVERY, last=10)
    store.close()
    before = store.path.read_bytes()
    assert read_trail(store.path, EVERY, last=10).events == (FAULT,)
    assert store.path.read_bytes() == before


def test_where_there_is_no_database_none_is_made(tmp_path: Path) -> None:
    """Neither it nor its folder."""
    with pytest.raises(StoreError, match="no state database; healthd has not run here"):
        read_trail(tmp_path / "state" / "healthd.db", EVERY, last=10)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_stays_where_it_is(tmp_path: Path) -> None:
    """It is not set aside: that is for the daemon to do, which says it loudly."""
    path = tmp_path / "healthd.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match="cannot open the state database: file is not a database"):
        read_trail(path, EVERY, last=10)
    assert [each.name for each in tmp_path.iterdir()] == ["healthd.db"]


def test_a_later_versions_database_is_refused(tmp_path: Path) -> None:
    """Its rows may mean something else."""
    path = tmp_path / "healthd.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(StoreError, match="version is 9; this healthd reads 3: read it with the healthd that wrote it"):
        read_trail(path, EVERY, last=10)


def test_a_folder_that_may_not_be_entered_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    """A name too long for the file system stands in for what root is never refused."""
    with pytest.raises(StoreError, match="be root, or start the daemon"):
        read_trail(tmp_path / ("x" * 300) / "healthd.db", EVERY, last=10)


def test_other_machines_read_faults_and_steps_and_no_user(store: Store) -> None:
    """No evidence, no note, no command, no acknowledgement: each may name a user or a job."""
    order = Event(at=at(4), kind="command", text="drained by uid 1000")
    acknowledged = Event(at=at(5), kind="fault", text="acknowledged gpu.xid.79 on GPU 0: alice knows")
    store.append(FAULT, STEP, RUN, order, acknowledged, ENDED)
    store.save_remediation(replace(REMEDIATION, note="waits for 8812 of alice", why="of alice", text="by alice"), STEP)
    data = shared_data(store, "gpu-1", DeviceNames({"gpu:GPU-0": "GPU 0"}))
    assert (data["schema"], data["node"]) == ("healthd.history/v1", "gpu-1")
    assert [each["text"] for each in data["events"]] == [FAULT.text, ENDED.text]
    assert {key for each in data["events"] for key in each["data"]} == {"code", "component", "opened"}
    assert [each["steps"] for each in data["remediations"]] == [list(REMEDIATION.steps)]
    assert "alice" not in json_document(data)
    assert trail_text(data).count("\n") == 3
    assert "GPU-0" not in trail_text(data)
