"""What would have been found, decided and done on past logs."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
from argparse import Namespace
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.api.grammar import parse
from healthd.api.timeline import names_in
from healthd.cli import policy as policy_verb
from healthd.cli import replay as replay_verb
from healthd.cli.output import progress_line
from healthd.config.schema.config import (
    CheckConfig,
    Config,
    FreezeWindow,
    PolicySection,
    RemediationSection,
    SourcesSection,
)
from healthd.config.schema.replay import ReplaySection
from healthd.core.check import discover
from healthd.core.errors import SourceMissing, SourceUnreadable, UsageError
from healthd.core.model import Action, Mode, Remedy, gpu_component
from healthd.judge.devices import DeviceNames
from healthd.remediation.decide.rules import STANDING
from healthd.replay.node import PastNode
from healthd.replay.replay import Replayed, Trial, findings_in, replay
from healthd.replay.story import Story
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.support.judgement import at as after
from tests.support.judgement import finding, looked
from tests.support.limits import limit_s
from tests.support.running import ROOT

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
FELL_OFF = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
GSP = "NVRM: Xid (PCI:0000:05:00): 119, pid=7, name=python, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
CONTAINED = (
    "NVRM: Xid (PCI:0000:05:00): 94, pid=7194, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No"
)
REMAP = "NVRM: Xid (PCI:0000:05:00): 63, pid=7, name=python, Row Remapper: New row marked for remapping"
JOBS = "NVRM: Xid (PCI:0000:05:00): 31, pid=9, name=python, Ch 00000008, MMU Fault"
NO_ACTION = "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
BOOT = "Linux version 6.8.0-1021-aws (buildd@lcy02) (gcc 13.2.0) #23-Ubuntu SMP"
END = datetime(2027, 1, 1, tzinfo=UTC)
SLOT_S = 10.0  # a place in the budget settles before the drain
PROOF_S = 30.0  # healthy for so long before the release
HOUR = 3600.0
DAY = 24 * HOUR


def config(**changes: Any) -> Config:
    checks = {name: CheckConfig(settings=check.settings()) for name, check in discover().items()}
    return Config(checks=checks, **changes)


def syslog(folder: Path, *lines: tuple[float, str, str], name: str = "syslog") -> Path:
    """A syslog with ISO times of (seconds, host, words)."""
    path = folder / name
    rows = (f"{(BEGIN + timedelta(seconds=s)).isoformat()} {host} kernel: {words}\n" for s, host, words in lines)
    path.write_text("".join(rows))
    return path


def tried(path: Path, *more: Path, settings: Config | None = None, **trial: Any) -> Replayed:
    return replay([path, *more], settings or config(), Trial(**trial))


def only(done: Replayed) -> Story:
    (story,) = done.stories
    return story


def told(story: Story, kind: str) -> list[str]:
    return [each.text for each in story.happenings if each.kind == kind]


@pytest.mark.parametrize(
    ("start", "ends", "rebooted_s"),
    [(datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1), 2 * HOUR), (BEGIN, None, 5 * HOUR)],
    ids=["today", "then"],
)
def test_a_freeze_holds_at_the_time_of_the_lines(
    tmp_path: Path, start: datetime, ends: datetime | None, rebooted_s: float
) -> None:
    """One of today holds back no repair of the past; one of that time does, until its end."""
    ends = ends or BEGIN + timedelta(hours=5)
    window = FreezeWindow(reason="a rollout", start=start.isoformat(), end=ends.isoformat())
    settings = config(remediation=RemediationSection(freeze=(window,)))
    (outage,) = only(tried(syslog(tmp_path, (0, "n1", FELL_OFF)), settings=settings)).outages
    assert outage.remedy is Remedy.REBOOT_NODE
    assert outage.out_s >= rebooted_s
    assert outage.out_s < rebooted_s + HOUR


def test_a_fault_is_found_decided_and_done(tmp_path: Path) -> None:
    """One line becomes a finding, a decision with its reason, an outage and its cost, at the line's own time."""
    story = only(tried(syslog(tmp_path, (10, "n1", FELL_OFF), (20, "n1", JOBS))))
    assert told(story, "decided") == ["repair for gpu.xid.79 on gpu:0000:05:00 (reboot_node)"]
    (outage,) = story.outages
    assert (outage.began, outage.remedy, outage.action) == (
        BEGIN + timedelta(seconds=10 + SLOT_S),
        Remedy.REBOOT_NODE,
        Action.REPAIR,
    )
    assert (outage.out_s, outage.waiting_s) == (2 * HOUR + 1200 + PROOF_S, 2 * HOUR)
    assert [(each.kind, each.code) for each in story.happenings if each.kind == "found"] == [
        ("found", "gpu.xid.79"),
        ("found", "gpu.xid.31"),
    ]
    decided = (
        "repair for gpu.xid.79 on gpu:0000:05:00 (reboot_node) [remediation r1 at wait_idle: drained; waiting for a job"
    )
    opened = "gpu.xid.79 on gpu:0000:05:00, gpu.xid.31 on gpu:0000:05:00"
    assert told(story, "log ends") == [f"open: {opened}; decision: {decided} to end]"]
    assert told(story, "back") == ["released: back in service"]


def test_what_comes_back_climbs_the_ladder(tmp_path: Path) -> None:
    """The same fault on the next days: reset, reboot, and then the node is kept out for a person."""
    lines = [(day * DAY, "n1", GSP) for day in range(3)]
    story = only(tried(syslog(tmp_path, *lines)))
    assert [outage.remedy for outage in story.outages] == [Remedy.RESET_GPU, Remedy.REBOOT_NODE, None]
    assert told(story, "decided")[-1] == (
        "page: gpu.xid.119 on gpu:0000:05:00 came back after reset_gpu, reboot_node: an operator is needed"
    )
    assert story.outages[-1].out_s == 8 * HOUR + PROOF_S - SLOT_S  # the person was called when it was decided


def test_lines_of_a_node_that_is_out_are_counted_and_not_decided_about(tmp_path: Path) -> None:
    """Ten thousand lines of one burst are one fault and one repair."""
    lines = [(number * 0.1, "n1", GSP) for number in range(10_000)]
    story = only(tried(syslog(tmp_path, *lines)))
    assert (len(story.outages), len(told(story, "found")), len(told(story, "decided"))) == (1, 1, 1)


def test_a_jobs_own_error_costs_nothing(tmp_path: Path) -> None:
    """XID 31 is found, and nothing is decided."""
    story = only(tried(syslog(tmp_path, (0, "n1", JOBS))))
    assert (len(told(story, "found")), told(story, "decided"), story.outages) == (1, [], ())


def test_another_policy_decides_otherwise(tmp_path: Path) -> None:
    """94 alone restarts the application under one policy, and replaces the machine under the other."""
    path = syslog(tmp_path, (0, "n1", CONTAINED))
    assert only(tried(path)).outages == ()
    assert only(tried(path, policy="replace-first")).outages[0].remedy is Remedy.REPLACE_NODE


def test_codes_beside_each_other_count(tmp_path: Path) -> None:
    """94 with a remap on the same GPU is reset after the job."""
    story = only(tried(syslog(tmp_path, (0, "n1", CONTAINED), (0.5, "n1", REMAP))))
    assert [outage.remedy for outage in story.outages] == [Remedy.RESET_GPU]


def test_a_lower_mode_does_less(tmp_path: Path) -> None:
    """Observe says what it would do; quarantine keeps the node out until a person comes."""
    path = syslog(tmp_path, (0, "n1", FELL_OFF))
    observed, quarantined = (only(tried(path, mode=mode)) for mode in (Mode.OBSERVE, Mode.QUARANTINE))
    assert observed.outages == ()
    assert told(observed, "decided")[0].startswith("hold: observe mode: would take the node out")
    assert [(outage.action, outage.remedy) for outage in quarantined.outages] == [(Action.QUARANTINE, None)]


def test_a_reboot_in_the_log_is_evidence(tmp_path: Path) -> None:
    """A node that somebody rebooted before the repair would have begun comes back without one."""
    path = syslog(tmp_path, (0, "n1", JOBS), (60, "n1", FELL_OFF), (600, "n1", BOOT), (900, "n1", JOBS))
    story = only(tried(path))
    assert (story.outages[0].remedy, story.outages[0].out_s) == (None, 540 - SLOT_S + PROOF_S)


def test_the_drivers_word_ends_a_fault(tmp_path: Path) -> None:
    """XID 154 back to none clears what a reset clears: when the job ends, the node comes back without one."""
    story = only(tried(syslog(tmp_path, (0, "n1", GSP), (60, "n1", NO_ACTION))))
    assert (story.outages[0].remedies, story.outages[0].out_s) == ((), 2 * HOUR + PROOF_S)


def test_hosts_are_judged_apart(tmp_path: Path) -> None:
    """Each host of a central syslog has its own faults, its own ledger and its own story."""
    path = syslog(tmp_path, (0, "n1", GSP), (DAY, "n2", GSP), (2 * DAY, "n1", GSP))
    by_host = {story.host: story for story in tried(path).stories}
    assert [outage.remedy for outage in by_host["n1"].outages] == [Remedy.RESET_GPU, Remedy.REBOOT_NODE]
    assert [outage.remedy for outage in by_host["n2"].outages] == [Remedy.RESET_GPU]


def test_many_at_once_are_held(tmp_path: Path) -> None:
    """The fourth node with the same fault within minutes is not taken out while the others are, and that is told."""
    path = syslog(tmp_path, *((number * 60, f"n{number}", GSP) for number in range(1, 6)))
    by_host = {story.host: story for story in tried(path).stories}
    assert "4 nodes within 10 min (n1, n2, n3, n4)" in told(by_host["n4"], "decided")[0]
    back = min(outage.ended or END for number in (1, 2, 3) for outage in by_host[f"n{number}"].outages)
    for held in ("n4", "n5"):
        assert all(outage.began > back for outage in by_host[held].outages)
        assert by_host[held].quality.held_codes == ("gpu.xid.119",)


def test_the_budget_is_applied_where_the_fleet_is_known(tmp_path: Path) -> None:
    """With --nodes the level counts who is out at that moment; without it no log tells how many nodes there are."""
    path = syslog(tmp_path, (0, "n1", GSP), (60, "n2", FELL_OFF), (DAY, "n2", FELL_OFF))
    unlimited, limited = tried(path), tried(path, nodes=10)
    first = [story.outages[0] for done in (unlimited, limited) for story in done.stories]
    assert (first[1].began < (first[0].ended or END), first[3].began > (first[2].ended or END)) == (True, True)
    assert told(limited.stories[1], "decided")[0] == "page: at the fleet limit: 1 of 10 nodes are out, 1 may be"


def test_files_are_one_story_in_order_of_time(tmp_path: Path) -> None:
    """Rotated files are given in any order; a file that names no host is a host by its own name."""
    newer = syslog(tmp_path, (DAY, "n1", GSP), name="syslog")
    older = syslog(tmp_path, (0, "n1", GSP), name="syslog.1")
    lonely = tmp_path / "node-9.dmesg"
    lonely.write_text(f"[   12.000000] {GSP}\n")
    done = tried(newer, older, lonely)
    assert {story.host: [outage.remedy for outage in story.outages] for story in done.stories} == {
        "n1": [Remedy.RESET_GPU, Remedy.REBOOT_NODE],
        "node-9": [Remedy.RESET_GPU],
    }


def test_the_assumptions_are_settings(tmp_path: Path) -> None:
    """What no log tells is taken from [replay]."""
    settings = config(replay=ReplaySection(drain_s=60, reset_s=30))
    story = only(tried(syslog(tmp_path, (0, "n1", GSP)), settings=settings))
    assert (story.outages[0].out_s, story.outages[0].waiting_s) == (90 + PROOF_S, 60)


def test_users_lines_count_only_where_they_are_trusted(tmp_path: Path) -> None:
    """As in the daemon: a record with another facility than the kernel's is nothing, unless it is let in."""
    path = tmp_path / "kmsg"
    path.write_text(f"11,1,1000000,-;{GSP}\n")
    assert tried(path).stories == ()
    trusting = config(sources=SourcesSection(trust_user_kmsg=True))
    assert len(only(tried(path, settings=trusting)).outages) == 1


def test_nothing_of_this_machine_is_asked() -> None:
    """A process id of then is not looked up among the processes of now: whatever a check may ask is missing."""
    node = PastNode(name="n1")
    questions = (
        lambda: node.proc.read("1/cgroup"),
        lambda: node.sys.names("bus"),
        lambda: node.dev.exists("null"),
        lambda: node.dev.target("x"),
        lambda: node.nvml.ask("x"),
        node.nvml.system,
        lambda: node.active.all_reduce("nvlink", size_bytes=1, timeout_s=1),
        lambda: node.active.gdr_copies(size_bytes=1, timeout_s=1),
        node.mounts,
        lambda: node.space("/"),
        lambda: node.file_probe("/"),
        node.clock,
        lambda: node.metadata("instance-id"),
        lambda: node.command("true"),
    )
    for question in questions:
        with pytest.raises(SourceMissing, match="only the kernel lines"):
            question()
    assert (node.nvml.state().stalled_s, node.mount_state("/").stalled_s, node.kernel_log.alive) == (0, 0, True)


# ---------------------------------------------------------------------------------------------------------------------
# event stores


def stored(folder: Path, *outcomes: Any) -> Path:
    """What a daemon keeps of these outcomes."""
    store = Store(folder / "n7" / "healthd.db", now=after(0))
    monitor = Monitor(discover(), store)
    for outcome in outcomes:
        monitor.absorb(outcome)
    store.close()
    return folder / "n7" / "healthd.db"


def test_an_event_store_is_replayed(tmp_path: Path) -> None:
    """Levels and log faults of the trail open and end as they did then, and the policy of now decides about them."""
    failure = finding("gpu.remap.failure", remedy=Remedy.REPLACE_NODE, time=after(0))
    path = stored(
        tmp_path,
        looked(failure, check="gpu.remap", seconds=0),
        looked(check="gpu.remap", seconds=60),
    )
    done = tried(path)
    story = only(done)
    assert (story.host, done.sources[0].form, done.sources[0].unread) == ("n7", "event store of healthd", 0)
    assert [outage.remedies for outage in story.outages] == [()]  # it was over before its job ended
    assert [each.kind for each in story.happenings] == ["found", "decided", "done", "ended", "done", "back"]


def test_an_event_stores_kernel_lines_are_judged_anew(tmp_path: Path) -> None:
    """The line in a fault's evidence decides, not what an older version made of it; its end is its end."""
    line = {"line": FELL_OFF, "xid": 79}
    found = finding("gpu.xid.79", remedy=Remedy.WATCH, evidence=line, time=after(0))
    path = stored(tmp_path, looked(found, check="kernel.xid", seconds=0))
    (outage,) = only(tried(path)).outages
    assert outage.remedies == (Remedy.REBOOT_NODE,), "the first reboot has worked, though the store names no boot"
    assert [each.code for each in findings_in(path, config())] == ["gpu.xid.79"]


def test_a_boot_before_the_fault_does_not_end_it(tmp_path: Path) -> None:
    """The lines of a log that stand before an event of the node's store are judged before it, whatever comes later."""
    found = finding("gpu.xid.79", evidence={"line": FELL_OFF}, time=after(0))
    store = stored(tmp_path, looked(found, check="kernel.xid", seconds=0))
    log = tmp_path / "syslog"
    rows = ((-600, BOOT), (300, JOBS))
    log.write_text("".join(f"{(after(s)).isoformat()} n7 kernel: {words}\n" for s, words in rows))
    story = only(tried(log, store))
    (outage,) = story.outages
    assert outage.remedies == (Remedy.REBOOT_NODE,)
    (ended,) = (each.at for each in story.happenings if (each.kind, each.text) == ("ended", "rebooted"))
    assert ended > after(HOUR)


def test_events_of_no_check_are_counted(tmp_path: Path) -> None:
    """A code that no check finds any more is told as unread, and the rest is replayed."""
    path = stored(tmp_path, looked(finding("gpu.gone.for_good", time=after(0)), check="gpu.remap"))
    done = tried(path)
    assert (done.sources[0].unread, done.stories) == (1, ())


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00", "2026-11-01", "soon"])
def test_an_event_with_a_time_of_no_daemon_is_counted(tmp_path: Path, at: str) -> None:
    """A damaged store: one of year 1, or 9999, or without a zone, ends no replay of the others."""
    failure = finding("gpu.remap.failure", remedy=Remedy.REPLACE_NODE, time=after(0))
    path = stored(tmp_path, looked(failure, check="gpu.remap"), looked(check="gpu.remap", seconds=60))
    with closing(sqlite3.connect(path)) as db, db:
        copied = "SELECT ?, kind, text, data FROM event WHERE kind = 'fault' LIMIT 1"
        db.execute(f"INSERT INTO event (at, kind, text, data) {copied}", (at,))
    log = syslog(tmp_path, (0, "n1", FELL_OFF))
    done = tried(path, log)
    assert [each.unread for each in done.sources if each.form.startswith("event store")] == [1]
    assert {story.host for story in done.stories} == {"n1", "n7"}


def test_another_database_is_no_event_store(tmp_path: Path) -> None:
    """A SQLite file of another program is an error with its name, and is not written to."""
    path = tmp_path / "other.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(100))
    before = path.read_bytes()
    with pytest.raises(Exception, match=r"other.db: not an event store of healthd"):
        tried(path)
    assert path.read_bytes() == before


# ---------------------------------------------------------------------------------------------------------------------
# the verbs


@pytest.fixture
def empty(tmp_path: Path) -> str:
    path = tmp_path / "empty.toml"
    path.write_text("")
    return str(path)


def options(*words: str) -> Namespace:
    return parse(words)


def test_the_verb_tells_the_story(tmp_path: Path, empty: str) -> None:
    """Files with what they were taken for, nodes with what happened, the sum, and what was assumed."""
    path = syslog(tmp_path, (0, "n1", FELL_OFF), (5, "n2", NO_ACTION))
    os.utime(path, (0, 0))
    answer = replay_verb.answer(options("replay", str(path), "--config", empty))
    assert answer.code == 0
    assert f"{path}: syslog or journalctl with ISO times, 2 lines, 2 kernel lines to judge" in answer.out
    assert "n1: 1 found, 1 time out, 2.34 node-hours out, 2 of them while the job runs on (1 reboot_node)" in answer.out
    assert "policy nvidia, mode repair: 2.34 node-hours out" in answer.out
    assert "longest silence while a node was out or critical: 1.01 h (n1)" in answer.out
    assert "a job runs on for 2 h after the drain" in answer.out


@pytest.mark.parametrize("verb", [("replay",), ("policy", "test")])
def test_empty_logs_alone_are_refused(tmp_path: Path, empty: str, verb: tuple[str, ...]) -> None:
    """A copy that failed does not look like a log without faults; among others it is named as empty."""
    log = tmp_path / "n1.log"
    log.write_text("")
    verbs = {"replay": replay_verb, "policy": policy_verb}
    with pytest.raises(SourceUnreadable, match=r"n1\.log: empty; expected a kernel log"):
        verbs[verb[0]].answer(options(*verb, str(log), "--config", empty))
    other = syslog(tmp_path, (0, "n2", FELL_OFF))
    out = replay_verb.answer(options("replay", str(log), str(other), "--config", empty)).out
    assert f"{log}: empty, 0 lines" in out
    assert "n2: 1 found" in out


@pytest.mark.process
def test_the_verb_reads_more_files_than_a_process_has_open_by_default(tmp_path: Path, empty: str) -> None:
    """A fleet has a log for each node, and all of them are merged by time."""
    days = [(day * DAY, "n1", FELL_OFF) for day in range(3)]
    logs = [syslog(tmp_path, *days, name=f"{number}.log") for number in range(100)]
    few = "import resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (40, r.getrlimit(r.RLIMIT_NOFILE)[1]))"
    argv = [sys.executable, "-c", f"{few}; from healthd.__main__ import main; sys.exit(main())", "replay"]
    argv += ["--config", empty, *map(str, logs)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=limit_s(60), check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_verb_passes_no_control_character_on(tmp_path: Path, empty: str) -> None:
    """A syslog has the name of a process as its user wrote it: on a terminal it could draw over the rest."""
    line = "EXT4-fs error (device nvme1n1): ext4_lookup:1855: inode #2: comm e\x1b[2Jvil: deleted inode referenced"
    told = replay_verb.answer(options("replay", str(syslog(tmp_path, (0, "n1", line))), "--config", empty)).out
    assert "comm e?[2Jvil: deleted inode" in told
    assert "\x1b" not in told


def test_the_verb_names_the_gpus_of_an_event_store(tmp_path: Path, empty: str) -> None:
    """As its daemon did; a store that cannot tell leaves the UUID."""
    gpu = gpu_component(uuid="GPU-51a1", pci="0000:86:00", index=3)
    path = stored(tmp_path, looked(finding("gpu.remap.failure", gpu, time=after(0)), check="gpu.remap", seconds=0))
    told = replay_verb.answer(options("replay", str(path), "--config", empty)).out
    assert "gpu.remap.failure on GPU 3: " in told
    assert "GPU-51a1" not in told
    assert names_in(tmp_path / "none.db") == DeviceNames()


def test_the_verb_has_json(tmp_path: Path, empty: str) -> None:
    """The same for programs."""
    path = syslog(tmp_path, (0, "n1", FELL_OFF))
    answer = replay_verb.answer(options("replay", str(path), "--config", empty, "--json", "--policy", "replace-first"))
    data = json.loads(answer.out)
    assert (data["schema"], data["policy"], data["mode"]) == ("healthd.replay/v1", "replace-first", "repair")
    assert data["hosts"][0]["outages"][0]["remedy"] == "replace_node"
    assert data["total"] == {
        "times_out": 1,
        "by_remedy": {"replace_node": 1},
        "out_hours": 3.01,
        "of_that_draining_hours": 2.0,
        "longest_silence_hours": data["hosts"][0]["longest_silence_hours"],
        "longest_silence_host": "n1",
        "messages": data["hosts"][0]["messages"],
        "replacements_in_an_hour": 1,
        "replacements_in_a_day": 1,
        "flaps": 0,
        "held_nodes": 0,
        "held_codes": [],
        "raised": 0,
    }


def test_a_fleet_has_no_negative_size(empty: str) -> None:
    """A number of nodes below zero is a mistake of the command line."""
    with pytest.raises(UsageError, match="--nodes -1; expected the number of nodes"):
        replay_verb.answer(options("replay", "x", "--nodes", "-1", "--config", empty))


def test_policy_show_prints_every_rule(tmp_path: Path) -> None:
    """The site's own first, then the shipped ones, then what stands behind all; each with reason and source."""
    path = tmp_path / "config.toml"
    path.write_text(
        '[[policy.rule]]\nname = "ours"\ncodes = ["gpu.xid.79"]\nladder = []\nmode = "quarantine"\n'
        'reason = "we know these"\nsource = "ticket 7"\ninstance_types = ["p5.*"]\n'
    )
    out = policy_verb.answer(options("policy", "show", "--config", str(path))).out
    assert out.startswith(
        "policy nvidia: the first rule that matches decides\n\n1. ours (site)\n    gpu.xid.79 of p5.*\n"
    )
    assert "-> never taken out; at most quarantine\n    we know these\n    Source: ticket 7" in out
    data = json.loads(policy_verb.answer(options("policy", "show", "--json", "--config", str(path))).out)
    shipped = len(data["rules"]) - 1 - len(STANDING)
    assert [rule["of"] for rule in data["rules"]] == ["site", *["shipped"] * shipped, *["healthd"] * len(STANDING)]
    with pytest.raises(UsageError, match="did you mean `healthd policy test`"):
        policy_verb.answer(options("policy", "show", "79", "--config", str(path)))
    with pytest.raises(UsageError, match="expected a file, or a code that a check reports"):
        policy_verb.answer(options("policy", "test", "x" * 300, "--config", str(path)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("79",), "gpu.xid.79 (critical, calls for reboot_node)\n    The GPU does not answer on PCIe"),
        (("79",), "-> reboot_node, then replace_node, then the operator"),
        (("79", "--policy", "replace-first"), "-> replace_node, then the operator [rule replace-first]"),
        (("94",), "-> stays in service\n    with gpu.remap.pending or gpu.xid.63:\n    -> reset_gpu, then reboot_node"),
        (("gpu.xid.154",), "gpu.xid.154, to:5 (critical, calls for ask_human)"),
        (("gpu.xid.154",), "-> kept out until the fault is over; healthd repairs nothing"),
        (("145",), "gpu.xid.145, registers"),
        (("gpu.ecc.accelerating",), "-> kept out for the operator [rule accelerating-corrected-errors]"),
        (("nvswitch.sxid.12028",), "nvswitch.sxid.12028, Fatal (critical, calls for reboot_node)"),
        (("site.hung",), "site.hung (warning, calls for watch)"),
        (("79", "--instance-type", "p5.48xlarge"), "policy nvidia, instance p5.48xlarge"),
    ],
)
def test_policy_test_says_what_is_done(empty: str, words: tuple[str, ...], message: str) -> None:
    """A code, in each of its forms, with the rule that decides."""
    assert message in policy_verb.answer(options("policy", "test", *words, "--config", empty)).out


def test_policy_test_reads_a_log(tmp_path: Path, empty: str) -> None:
    """A file is judged line by line, and each code in it is told once."""
    path = syslog(tmp_path, (0, "n1", FELL_OFF), (5, "n1", JOBS), (9, "n2", JOBS))
    out = policy_verb.answer(options("policy", "test", str(path), "--config", empty)).out
    assert out.count("gpu.xid.31 (") == 1
    assert f"{path}: gpu.xid.79 (critical, calls for reboot_node)" in out
    quiet = syslog(tmp_path, (0, "n1", "usb 1-1: new device"), name="quiet")
    assert (
        "no finding in these logs" in policy_verb.answer(options("policy", "test", str(quiet), "--config", empty)).out
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name codes"),
        (("gpu.remap.pendin",), "did you mean gpu.remap.pending"),
        (("gpu.xid.x",), "a code that a check reports, got 'gpu.xid.x'"),
        (("gpu.xid.*",), "a code that a check reports"),
        (("zzz",), "see `healthd checks`"),
    ],
)
def test_policy_test_refuses_what_is_not_there(empty: str, words: tuple[str, ...], message: str) -> None:
    """A misspelt code is told with the nearest one."""
    with pytest.raises(UsageError, match=message):
        policy_verb.answer(options("policy", "test", *words, "--config", empty))


def test_the_configured_policy_is_the_default(tmp_path: Path) -> None:
    """Without --policy it is that of the configuration."""
    path = syslog(tmp_path, (0, "n1", FELL_OFF))
    settings = config(policy=PolicySection(use="replace-first"))
    assert tried(path, settings=settings).policy == "replace-first"


def test_long_work_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of a file is counted while it is read; a terminal shows the count over the one before it."""
    path = tmp_path / "node.log"
    path.write_text("".join(f"6,{number},{number},-;usb 1-1: new\n" for number in range(100_000)))
    counted: list[int] = []
    replay([path], config(), Trial(), counted.append)
    assert len(counted) > 1
    assert sum(counted) == 100_000
    mine, theirs = os.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        progress_line("1,000 lines read")
        assert os.read(mine, 100) == b"\r\x1b[K1,000 lines read"
        progress_line("")
        assert os.read(mine, 100) == b"\r\x1b[K"
    os.close(mine)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    progress_line("nobody watches")
    assert isinstance(sys.stderr, io.StringIO)
    assert not sys.stderr.getvalue()
