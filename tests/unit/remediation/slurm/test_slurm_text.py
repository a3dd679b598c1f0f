"""What is made of the texts that Slurm's clients print: recorded from Slurm 22.05.8, and everything near them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from healthd.core.errors import BackendRefused, BackendUnknown, ConfigError, SourceMissing
from healthd.core.hostlist import unfolded
from healthd.core.model import RunningJob
from healthd.core.node import CommandResult
from healthd.remediation.decide.fleet import scopes_of
from healthd.remediation.orchestrators.slurm.orchestrator import (
    SlurmOrchestrator,
    client_environment,
    detect,
    parse_boot_time,
    parse_jobs,
    parse_partitions,
    parse_running,
    parse_slurm_user,
    parse_snapshot,
    parse_view,
    update_error,
)
from healthd.remediation.orchestrators.slurm.power import may_sleep
from healthd.remediation.orchestrators.slurm.reasons import is_automatic
from healthd.remediation.orchestrators.slurm.slots import parse_maintenance, parse_slots, slot_name
from healthd.remediation.ports import FleetSnapshot, Hold, NodeRecord, ScopeSnapshot, Slot
from tests.support.limits import limit_s

IDLE = "n0001|idle|0/4/0/4|Unknown|Unknown|(null)|(null)|none|\n"


def _record(
    state: str = "idle+drain", cpus: str = "0/0/4/4", reason: str = "x", features: str = "(null)|(null)"
) -> str:
    return f"n0001|{state}|{cpus}|root|1795226977|{features}|{reason}|\n"


# ---------------------------------------------------------------------------------------------------------------------
# sinfo


@pytest.mark.parametrize(
    ("state", "in_service"),
    [
        ("idle", True),
        ("idle+not_responding", True),
        ("unknown+not_responding", True),
        ("allocated", True),
        ("mixed+completing", True),
        ("idle+cloud+powered_down", True),
        ("idle+cloud+power_down", True),
        ("idle+cloud+powering_down+not_responding", True),
        ("idle+planned", True),
        ("idle+reserved", True),
        ("idle+drain", False),
        ("allocated+drain", False),
        ("unknown+drain", False),
        ("down+not_responding", False),
        ("down+drain+not_responding", False),
        ("idle+fail", False),
        ("idle+maintenance+reserved", False),
        ("idle+maintenance", True),
        ("mixed+reboot_requested", True),
        ("mixed+drain+reboot_requested", False),
        ("down+drain+reboot_issued", False),
        ("idle+invalid_reg", False),
        ("down*+drain", False),
        ("drained*", False),
        ("maint", False),
        ("reboot^", False),
    ],
)
def test_in_service_follows_every_flag(state: str, in_service: bool) -> None:
    """DRAIN, DOWN, FAIL, REBOOT_ISSUED, INVALID_REG and MAINT take out of service; silence, sleep and what a killed
    slurmctld left of a reservation do not."""
    view = parse_view("n0001", _record(state))
    assert view.in_service is in_service
    assert view.flags == {word.rstrip("*^").upper() for word in state.split("+")}


def test_a_node_without_a_reason_has_no_hold() -> None:
    """sinfo's ``none``, by Unknown at Unknown, is no reason; the same word written by a person is one."""
    assert parse_view("n0001", IDLE).hold is None
    assert parse_view("n0001", _record(reason="none")).hold == Hold(text="none", user="root", stamp=1795226977)


def test_a_reason_on_a_node_in_service_is_no_hold() -> None:
    """Only a reason that goes with DRAIN, DOWN or FAIL holds the node."""
    assert parse_view("n0001", _record("idle", reason="left over")).hold is None


def test_a_reason_without_a_time_is_a_hold_from_the_beginning_of_time() -> None:
    """A node that slurm.conf declares DOWN has a reason and may have no time."""
    view = parse_view("n0001", "n0001|down|0/0/4/4|Unknown|Unknown|(null)|(null)|scrapped|\n")
    assert view.hold == Hold(text="scrapped", user="Unknown", stamp=0)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=60), st.integers(1, 3))
@example("Epilog error", 1)
@example("ticket 7 : Not responding", 2)
def test_any_reason_reads_back_from_any_number_of_partitions(reason: str, partitions: int) -> None:
    """Whatever the reason holds, it comes back whole, once, and changes no other field. One of Slurm's own is told."""
    view = parse_view("n0001", _record(reason=reason) * partitions)
    assert view.hold is not None
    assert (view.hold.shown, view.hold.user, view.hold.stamp) == (reason, "root", 1795226977)
    assert view.hold.automatic is is_automatic(view.hold.text)
    assert view.flags == {"IDLE", "DRAIN"}


def test_work_shows_from_the_state_when_the_count_lags() -> None:
    """``allocated`` with no CPU counted yet, seen right after a job's start, is at least one CPU and not idle."""
    view = parse_view("n0001", "n0001|allocated|0/4/0/4|Unknown|Unknown|(null)|(null)|none|\n")
    assert (view.allocated_cpus, view.idle) == (1, False)
    assert parse_view("n0001", _record("mixed", "3/1/0/4")).allocated_cpus == 3


def test_completing_and_jobs_are_not_idle() -> None:
    """A node that completes, or has any job listed, is not idle though no CPU is allocated."""
    assert not parse_view("n0001", _record("idle+completing+drain")).idle
    assert not parse_view("n0001", _record(), jobs=("7",)).idle
    assert parse_view("n0001", _record()).idle


def test_a_job_is_named_with_its_user_and_its_nodes() -> None:
    """An operator who has to end it asks its owner. One whose nodes squeue does not list yet shows none."""
    answer = "12 12 alice n[0001-0004]\n15 13_2 bob n0001\n14 14 carol \n\n"
    assert parse_jobs(answer) == (
        ("12", "15", "14"),
        ("12 of alice on n[0001-0004]", "13_2 of bob on n0001", "14 of carol"),
    )
    assert parse_jobs("") == ((), ())


def test_a_job_has_its_partition_qos_account_and_size() -> None:
    """Without slurmdbd there is no account and no QOS: they are not known, and not named so."""
    answer = "12|train|urgent|ml|64\n13_2|debug|(null)|N/A|1\n\n"
    assert parse_running(answer) == (
        RunningJob(id="12", partition="train", qos="urgent", account="ml", nodes=64),
        RunningJob(id="13_2", partition="debug", nodes=1),
    )
    assert parse_running("") == ()
    for nodes in ("?", "", "9" * 5000, "\u0663"):
        assert parse_running(f"14|debug|normal|ml|{nodes}")[0].nodes == 0
    for wrong in ("slurm_load_jobs error", "|train|urgent|ml|64", "12|a|b|c|4|more"):
        with pytest.raises(BackendUnknown, match="squeue's answer is no job"):
            parse_running(wrong)


@pytest.mark.parametrize(
    ("features", "known"),
    [
        ("(null)|(null)", set()),
        ("efa,p5|p5", {"efa", "p5"}),
        ("a|(null)", {"a"}),
        ("(null)|healthd-opt-out", {"healthd-opt-out"}),
    ],
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_features_are_available_or_active_ones(features: str, known: set[str], partitions: int) -> None:
    """Both lists count, ``(null)`` is none, and a node in three partitions has them once."""
    assert parse_view("n0001", _record(features=features) * partitions).features == known


def test_silence_about_a_node_is_a_refusal_that_says_what_to_check() -> None:
    """sinfo exits with 0 and prints nothing for a node it does not know."""
    with pytest.raises(BackendRefused, match=r"slurmctld does not know n0001, .*check \[node\] name"):
        parse_view("n0001", "\n")


@pytest.mark.parametrize(
    "answer",
    ["garbage", "n0002|idle|0/4/0/4|Unknown|Unknown|a|a|none|\n", "n0001|idle|many|root|1|a|a|x|\n", "n0001|idle\n"],
)
def test_an_answer_of_another_form_is_unknown(answer: str) -> None:
    """Another node's record, a missing field or a count that is none is never taken for a healthy node."""
    with pytest.raises(BackendUnknown, match=r"expected name\|state\|cpus"):
        parse_view("n0001", answer)


# ---------------------------------------------------------------------------------------------------------------------
# scontrol show nodes, show config


def _line(name: str, state: str, rest: str = "") -> str:
    return f"NodeName={name} Arch=x86_64 OS=Linux 6.18 #1 SMP @0  RealMemory=1000 State={state} Weight=1 {rest}\n"


@pytest.mark.parametrize(
    ("state", "is_out"),
    [
        ("IDLE", False),
        ("IDLE+NOT_RESPONDING", False),
        ("UNKNOWN", False),
        ("IDLE+CLOUD", False),
        ("IDLE+MAINTENANCE+RESERVED", False),
        ("MIXED", False),
        ("MIXED+DRAIN", True),
        ("DOWN+NOT_RESPONDING", True),
        ("DOWN*+CLOUD", True),
        ("IDLE+FAIL", True),
        ("MIXED+REBOOT_REQUESTED", False),
        ("MIXED+DRAIN+REBOOT_REQUESTED", True),
        ("DOWN+DRAIN+REBOOT_ISSUED", True),
        ("IDLE+INVALID_REG", True),
        ("IDLE+DRAIN+MAINTENANCE+RESERVED", True),
    ],
)
def test_out_follows_every_flag(state: str, is_out: bool) -> None:
    """What counts against the fleet's limit: orders and faults, not silence, sleep or a bare reservation."""
    snapshot = parse_snapshot("me", _line("me", "IDLE") + _line("n1", state))
    assert (snapshot.out, snapshot.total) == (frozenset({"n1"} if is_out else ()), 2)
    is_dead = state in ("DOWN+NOT_RESPONDING", "DOWN*+CLOUD")
    assert snapshot.down == (frozenset({"n1"}) if is_dead else frozenset())


@pytest.mark.parametrize(
    "state",
    [
        "IDLE+CLOUD+POWERED_DOWN",
        "IDLE+CLOUD+POWERING_DOWN",
        "MIXED+NOT_RESPONDING+POWERING_UP",
        "IDLE+POWER_DOWN",
        "IDLE+CLOUD+DRAIN+POWERED_DOWN",
        "DOWN+CLOUD+POWERED_DOWN",
        "idle~",
        "drained~",
        "mix#",
        "down%",
        "alloc!",
    ],
)
def test_a_name_that_sleeps_is_no_machine(state: str) -> None:
    """Neither out nor in the total of fleet or partition, drained or down; what it shows of healthd remains."""
    sleeper = _line("s", state, "MCS_label=N/A Partitions=main BootTime=1 Comment=healthd case=x")
    snapshot = parse_snapshot("me", _line("me", "IDLE", "MCS_label=N/A Partitions=main BootTime=1") + sleeper)
    assert (snapshot.out, snapshot.total, snapshot.asleep) == (frozenset(), 1, frozenset({"s"}))
    assert snapshot.drained == frozenset()
    assert snapshot.scopes == (ScopeSnapshot(scope="main", out=frozenset(), total=1),)
    assert snapshot.records == (NodeRecord(node="s", text="healthd case=x"),)


@pytest.mark.parametrize(
    ("reason", "drained"),
    [
        ("Kill task failed", True),
        ("healthd: gpu.xid.79 node [k3v9] : Kill task failed", False),
        ("RMA 123 [with brackets]", False),
    ],
)
def test_a_name_that_sleeps_and_that_slurm_drained_by_itself_is_told_from_others(reason: str, drained: bool) -> None:
    """By the text that Slurm itself writes. What a person wrote is theirs."""
    free = f"MCS_label=N/A Partitions=main BootTime=1 Reason={reason} [root@1767690567]"
    snapshot = parse_snapshot("", _line("n1", "IDLE+CLOUD+DRAIN+POWERED_DOWN", free))
    assert snapshot.drained == frozenset({"n1"} if drained else ())


@pytest.mark.parametrize(("state", "held"), [("DOWN+CLOUD+POWERED_DOWN", True), ("DOWN+CLOUD", False)])
def test_our_reason_of_a_node_that_sleeps_and_is_down_holds_it(state: str, held: bool) -> None:
    """Its drain is lost, and no job wakes it. A machine that is DOWN has a daemon that sees to it."""
    reason = "Reason=healthd: gpu.xid.79 node [k3v9] [healthd@1767690567]"
    snapshot = parse_snapshot("", _line("n1", state, f"MCS_label=N/A Partitions=main BootTime=1 {reason}"))
    assert [each.node for each in snapshot.held] == ["n1"] * held


def test_our_own_node_has_a_machine_whatever_its_power_state() -> None:
    """slurmctld shows a node that it starts as POWERING_UP until slurmd registers; the daemon runs there already."""
    snapshot = parse_snapshot("me", _line("me", "DOWN+POWERING_UP"))
    assert (snapshot.out, snapshot.total, snapshot.asleep) == (frozenset({"me"}), 1, frozenset())


def test_a_fleet_that_sleeps_as_a_whole_is_a_level() -> None:
    """From the head node at night: no machine is out, and that is an answer."""
    snapshot = parse_snapshot("", _line("n1", "IDLE+CLOUD+POWERED_DOWN"))
    assert (snapshot.out, snapshot.total, snapshot.asleep) == (frozenset(), 0, frozenset({"n1"}))


@given(st.lists(st.sampled_from(["IDLE", "DOWN", "IDLE+POWERED_DOWN", "DOWN+POWERED_DOWN"]), max_size=60))
def test_sleeping_names_change_nothing(states: list[str]) -> None:
    """With any number of sleeping names among them, the fleet is what its machines are, and so is the limit."""
    machines = [state for state in states if "POWERED" not in state]
    every = parse_snapshot("me", _line("me", "IDLE") + "".join(_line(f"n{i}", state) for i, state in enumerate(states)))
    alone = parse_snapshot(
        "me", _line("me", "IDLE") + "".join(_line(f"n{i}", state) for i, state in enumerate(machines))
    )
    limits = [scopes_of(snapshot, {"cluster": "5%"})[0].limit for snapshot in (every, alone)]
    assert (every.total, len(every.out), limits[0]) == (alone.total, len(alone.out), limits[1])


def test_four_machines_and_480_sleeping_names_let_one_out() -> None:
    """5 % of the machines, never less than one."""
    sleepers = "".join(_line(f"c{number}", "IDLE+CLOUD+POWERED_DOWN") for number in range(480))
    snapshot = parse_snapshot("n1", sleepers + "".join(_line(f"n{number}", "IDLE") for number in range(1, 5)))
    assert [scope.limit for scope in scopes_of(snapshot, {"cluster": "5%"})] == [1]


def test_nodes_of_the_future_are_not_there() -> None:
    """FUTURE nodes count neither as out nor in the total, drained or not."""
    assert parse_snapshot("me", _line("me", "IDLE") + _line("f", "FUTURE+DRAIN")).total == 1


def test_a_reason_of_several_lines_adds_no_node() -> None:
    """The rest of a reason with newlines is not a record."""
    text = _line("me", "IDLE+DRAIN", "Reason=one [root@1]") + "two State=DOWN\n" + _line("n1", "IDLE")
    snapshot = parse_snapshot("me", text)
    assert (snapshot.out, snapshot.total, snapshot.speakers) == (frozenset({"me"}), 2, ("n1",))


def test_those_that_take_nodes_out_speak_for_the_fleet() -> None:
    """A roll-out begins with one partition: names of CPU nodes without a daemon, or of nodes in observe mode, may come
    first, and page for none of the others."""

    def says(summary: str) -> str:
        return f'Extra={{"healthd":"healthd {summary}"}}'

    lines = {
        "cpu-1": _line("cpu-1", "IDLE"),
        "gpu-1": _line("gpu-1", "IDLE", f"{says('state=ok at=1 mode=observe driver=580')}"),
        "gpu-2": _line("gpu-2", "IDLE", f"{says('state=ok at=1 stopped=1 mode=repair')}"),
        "gpu-3": _line("gpu-3", "MIXED+DRAIN", f"Reason=x [root@1] {says('state=held at=1 mode=repair')}"),
        "gpu-4": _line("gpu-4", "MIXED", f"Comment=healthd code=x {says('state=ok at=1 mode=repair')}"),
        "gpu-5": _line("gpu-5", "IDLE", f"{says('state=ok at=1 mode=quarantine type=p5')}"),
        "gpu-6": _line("gpu-6", "IDLE", f"{says('state=ok at=1 mode=repair')}"),
    }
    assert parse_snapshot("", "".join(lines.values())).speakers == ("gpu-4", "gpu-5")
    none = [lines[name] for name in ("cpu-1", "gpu-1", "gpu-2", "gpu-3")]
    assert parse_snapshot("", "".join(none)).speakers == ("cpu-1", "gpu-1"), "nothing says which daemon acts"


@pytest.mark.parametrize("answer", ["", "No nodes in the system\n", _line("n1", "IDLE"), "NodeName=me\n"])
def test_a_list_without_our_own_node_is_unknown(answer: str) -> None:
    """An empty or partial list is never a level of 0."""
    with pytest.raises(BackendUnknown, match="but not me, this node"):
        parse_snapshot("me", answer)


def test_from_elsewhere_no_node_is_our_own() -> None:
    """The head node need not be a node: every partition is another's, and no nodes at all is still no level."""
    snapshot = parse_snapshot("", _line("n1", "IDLE") + _line("n2", "DOWN*"))
    assert snapshot == FleetSnapshot(out=frozenset({"n2"}), total=2, down=frozenset({"n2"}), speakers=("n1",))
    with pytest.raises(BackendUnknown, match="scontrol lists no node"):
        parse_snapshot("", "No nodes in the system\n")


@given(
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from(["IDLE", "DOWN", "MIXED+DRAIN", "IDLE+FAIL"])), max_size=40)
)
def test_every_node_counts_once(records: list[tuple[int, str]]) -> None:
    """However often a node is listed, it is one of the total, and out if any record says so."""
    text = _line("me", "IDLE") + "".join(_line(f"n{number}", state) for number, state in records)
    snapshot = parse_snapshot("me", text)
    assert snapshot.total == 1 + len({number for number, _ in records})
    assert snapshot.out == {f"n{number}" for number, state in records if state != "IDLE"}


def test_the_boot_time_is_found_or_unknown() -> None:
    """BOOT_TIME stands on a line of its own; without it the controller's restart could not be told."""
    assert parse_boot_time("X = 1\nBOOT_TIME               = 1795226977\nY = 2\n") == "1795226977"
    with pytest.raises(BackendUnknown, match="no BOOT_TIME"):
        parse_boot_time("BatchStartTimeout = 10 sec\n")


@pytest.mark.parametrize(
    ("program", "excepted", "sleeps"),
    [
        ("(null)", "(null)", False),
        ("/opt/slurm/suspend.sh", "(null)", True),
        ("/opt/slurm/suspend.sh", "n[2-9]", True),
        ("/opt/slurm/suspend.sh", "m1,n[0-3]", False),
        ("/opt/slurm/suspend.sh", "n[0-3]:2", True),
        ("(null)", "n1", False),
    ],
)
def test_a_node_may_sleep_where_slurm_suspends_and_does_not_except_it(
    program: str, excepted: str, sleeps: bool
) -> None:
    """A count behind a list keeps some of it awake, and no node for certain."""
    config = f"SuspendExcNodes         = {excepted}\nSuspendExcParts = n1\nSuspendProgram          = {program}\n"
    assert may_sleep(config, "n1", {"IDLE"}, lambda: ["main"]) is sleeps
    assert not may_sleep("BOOT_TIME = 1\n", "n1", {"IDLE"}, lambda: ["main"])


@pytest.mark.parametrize(
    ("states", "parts", "sleeps"),
    [
        ("(null)", "(null)", True),
        ("DOWN,DRAIN", "(null)", False),
        ("DOWN,FAIL", "(null)", True),
        ("(null)", "debug,gpu", False),
        ("(null)", "debug", True),
        ("drain", "debug", False),
    ],
)
def test_a_node_stays_awake_by_its_state_or_its_partition(states: str, parts: str, sleeps: bool) -> None:
    """As long as it is drained, or for good. Its partitions are asked for only where some are excepted."""
    config = f"SuspendExcParts = {parts}\nSuspendExcStates = {states}\nSuspendProgram = /opt/slurm/suspend.sh\n"
    asked: list[str] = []

    def partitions() -> list[str]:
        asked.append("")
        return ["main", "gpu"]

    assert may_sleep(config, "n1", {"IDLE", "CLOUD", "DRAIN"}, partitions) is sleeps
    assert len(asked) == (parts != "(null)" and "DRAIN" not in states.upper())


def test_partitions_are_those_of_the_node_and_not_of_a_text() -> None:
    """A person's words in Reason or Comment name no partition; a node in none has no such field."""
    line = (
        "NodeName=n0001 Arch=x86_64 State=IDLE Owner=N/A MCS_label=N/A {} BootTime=1 Comment=see Partitions=x Reason=y"
    )
    assert parse_partitions(line.format("Partitions=main,gpu")) == ("main", "gpu")
    assert parse_partitions("NodeName=n0001 State=IDLE MCS_label=N/A BootTime=1 Comment=a Partitions=b\n") == ()
    with pytest.raises(BackendUnknown, match="printed no node"):
        parse_partitions("")


# ---------------------------------------------------------------------------------------------------------------------
# slots, partitions and records

RESERVATION = (
    "ReservationName={name} StartTime=1795238585 EndTime=1826774585 Duration=365-00:00:00 Nodes={nodes} NodeCnt=1 "
    "CoreCnt=8 Features=(null) PartitionName=(null) Flags={flags} TRES=cpu=8 Users={users} Groups=(null) "
    "Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)
OURS = {"name": "healthd-cluster-3", "nodes": "n1", "flags": "MAINT,IGNORE_JOBS,SPEC_NODES,STATIC", "users": "root"}


def _reservation(**other: str) -> str:
    return RESERVATION.format(**{**OURS, **other})


def test_a_reservation_of_ours_is_a_slot() -> None:
    """By name, node, flags and user; a cluster without reservations has none; the last number is the index."""
    assert parse_slots(_reservation() + "\n") == (Slot(scope="cluster", index=3, node="n1"),)
    assert parse_slots("No reservations in the system\n") == parse_slots("") == ()
    assert parse_slots(_reservation(name="healthd-gpu-7-12")) == (Slot(scope="gpu-7", index=12, node="n1"),)


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": "n[1-2]"},
        {"nodes": "n1,n2"},
        {"nodes": "(null)"},
        {"flags": "MAINT,IGNORE_JOBS"},
        {"flags": "MAINT,IGNORE_JOBS,DAILY,SPEC_NODES,STATIC"},
        {"flags": ""},
        {"users": "root,alice"},
        {"users": "(null)"},
    ],
)
def test_a_slot_that_somebody_made_otherwise_is_taken_by_no_node(other: dict[str, str]) -> None:
    """It counts, and no node takes it for its own."""
    (slot,) = parse_slots(_reservation(**other))
    assert (slot.scope, slot.index) == ("cluster", 3)
    assert slot.node.endswith("not made by healthd")


@pytest.mark.parametrize(
    "name",
    ["maintenance", "healthd-3", "healthd--3", "healthd-cluster-", "healthd-cluster-03", "old healthd-cluster-3"],
)
def test_other_reservations_are_no_slots(name: str) -> None:
    """Whatever they are called, names with blanks included."""
    assert parse_slots(_reservation(name=name)) == ()


@pytest.mark.parametrize(
    "answer",
    [
        "slurm_load_reservations error\n" + _reservation(),
        "x " + _reservation(),
        _reservation() + "\n" + _reservation(name="healthd-cluster-4")[:60],
        _reservation(name="course") + " Comment=x\n" + _reservation()[:200] + "\n" + _reservation(),
    ],
)
def test_a_list_that_may_hide_a_slot_is_unknown(answer: str) -> None:
    """A list that begins otherwise, or a broken record whose name begins as ours do, proves nothing."""
    with pytest.raises(BackendUnknown, match="scontrol show reservation"):
        parse_slots(answer)


# What may stand in somebody else's record: any words, over any number of lines, but for a line that begins as ours do.
_WORDS_OF_OTHERS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=40)
    | st.sampled_from(["Users=root State=ACTIVE", "ReservationName=x", _reservation(name="course"), "Flags=MAINT"]),
    max_size=4,
).map("\n".join)


@st.composite
def _foreign(draw: st.DrawFn) -> str:
    """One record that is not ours, whole or cut short."""
    name = draw(st.sampled_from(["course", "has space", "maint", "healthd", "ours-healthd-cluster-3", "healthd-3"]))
    whole = _reservation(name=name, nodes=draw(st.sampled_from(["(null)", "n[1-9]", "n1"])))
    cut = whole if name.startswith("healthd-") else whole[: draw(st.integers(len("ReservationName=x"), len(whole)))]
    return f"{cut} Comment={draw(_WORDS_OF_OTHERS)}"


@given(st.lists(_foreign() | st.integers(0, 40), max_size=8))
def test_foreign_records_neither_hide_nor_add_a_slot(records: list[str | int]) -> None:
    """Whatever others have written around them, the slots are those of healthd's own records."""
    ours = [each for each in records if isinstance(each, int)]
    lines = [_reservation(name=f"healthd-cluster-{each}") if isinstance(each, int) else each for each in records]
    assume_no_forgery = not any("\nReservationName=healthd-" in line for line in lines)
    assert assume_no_forgery
    assert [slot.index for slot in parse_slots("\n".join(lines) + "\n")] == ours


@pytest.mark.parametrize(
    ("other", "window"),
    [
        ({"name": "maint", "nodes": "n[1-9]", "flags": "MAINT,IGNORE_JOBS"}, "maint"),
        ({"name": "rack 7", "nodes": "m1,n[01-09,1]", "flags": "MAINT"}, "rack 7"),
        ({"nodes": "n[1-2]"}, "healthd-cluster-3"),
        ({"users": "ann"}, "healthd-cluster-3"),
        ({}, ""),
        ({"nodes": "n2"}, ""),
        ({"name": "maint", "nodes": "n[01-09]"}, ""),
        ({"name": "maint", "nodes": "(null)"}, ""),
        ({"name": "course", "nodes": "n1", "flags": "SPEC_NODES"}, ""),
    ],
)
def test_somebody_elses_maintenance_of_this_node_is_a_window(other: dict[str, str], window: str) -> None:
    """Our own slot is none, nor is a reservation without MAINT, nor one of other nodes; one of a slot's name that
    healthd would not have made is."""
    assert parse_maintenance(_reservation(**other), "n1") == window


def test_a_window_that_has_not_begun_is_none() -> None:
    """slurmctld says which reservations are active; windows that meet on a node are all named."""
    later = _reservation(name="next", flags="MAINT").replace("State=ACTIVE", "State=INACTIVE")
    now = [_reservation(name=name, flags="MAINT") + " Comment=a\nb" for name in ("a", "b")]
    assert parse_maintenance("\n".join([later, *now]) + "\n", "n1") == "a, b"
    assert parse_maintenance("No reservations in the system\n", "n1") == ""


@given(st.integers(0, 120), st.integers(0, 120), st.integers(0, 120), st.integers(1, 3))
def test_a_hostlist_names_what_slurm_would_expand(number: int, low: int, high: int, width: int) -> None:
    """Ranges with zeros in front, several ranges, several lists."""
    hosts = f"a[7],n[999,{low:0{width}d}-{high:0{width}d}]x,b"
    expanded = {"a7", "n999x", "b", *(f"n{each:0{width}d}x" for each in range(low, high + 1))}
    for name in (f"n{number}x", f"n{number:03d}x", "a7", "b", "n999x", "n"):
        assert (name in unfolded(hosts)) is (name in expanded)


@given(st.text(st.sampled_from("abz09-_. ,|"), max_size=8), st.integers(-5, 2_000_000))
def test_a_slot_name_reads_back_or_is_refused(scope: str, index: int) -> None:
    """No name is ever made that would be read as another slot."""
    try:
        name = slot_name(scope, index)
    except BackendRefused:
        return
    assert parse_slots(_reservation(name=name)) == (Slot(scope=scope, index=index, node="n1"),)


def test_the_snapshot_has_our_partitions_and_every_record() -> None:
    """Partitions of other nodes alone are left out; comments of others are no records; a reason cannot hide one."""
    node = "NodeName={} Arch=x86_64 State={} Owner=N/A MCS_label=N/A Partitions={}  BootTime=1 {}"
    text = "\n".join(
        [
            node.format("me", "IDLE", "gpu,all", "Comment=healthd replaced=1 id=x Extra=rack 7"),
            node.format("b", "IDLE+DRAIN", "gpu", "Reason=x Partitions=all Comment=forged [root@1] Comment=healthd y"),
            node.format("c", "DOWN", "cpu,all", "Comment=somebody's healthd"),
            node.format("d", "IDLE", "cpu,all", "Comment=healthd said=in two InstanceId=i-0abc InstanceType=p5"),
        ]
    )
    snapshot = parse_snapshot("me", text)
    assert snapshot.scopes == (
        ScopeSnapshot(scope="all", out=frozenset({"c"}), total=3),
        ScopeSnapshot(scope="gpu", out=frozenset({"b"}), total=2),
    )
    assert snapshot.records == (
        NodeRecord(node="me", text="healthd replaced=1 id=x"),
        NodeRecord(node="b", text="healthd y"),
        NodeRecord(node="d", text="healthd said=in two"),
    )


# ---------------------------------------------------------------------------------------------------------------------
# scontrol update


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("slurm_update error: Invalid node name specified", BackendRefused),
        ("slurm_update error: Invalid user id", BackendRefused),
        ("You must specify a reason when DOWNING or DRAINING a node. Request denied", BackendRefused),
        ("Invalid input: state=drian\nRequest aborted\nValid states are: NoResp DRAIN FAIL", BackendRefused),
        (
            "Error creating the reservation: Invalid account or account/partition combination specified",
            BackendRefused,
        ),
        ("slurm_update error: Invalid node state specified", BackendUnknown),
        ("slurm_update error: Unable to contact slurm controller (connect failure)", BackendUnknown),
        ("slurm_update error: Socket timed out on send/recv operation", BackendUnknown),
        ("scontrol: error: Munge encode failed\nslurm_update error: Protocol authentication error", BackendUnknown),
        ("scontrol: fatal: Could not establish a configuration source", BackendUnknown),
        ("a text of a version to come", BackendUnknown),
        ("", BackendUnknown),
    ],
)
def test_only_a_known_refusal_is_a_refusal(message: str, kind: type[Exception]) -> None:
    """What is not plainly refused may have been applied; the message keeps Slurm's own words."""
    error = update_error("scontrol update n0001 state=drain", message)
    assert type(error) is kind
    assert str(error).startswith("scontrol update n0001 state=drain: ")
    assert not message or any(line in str(error) for line in message.splitlines())


@pytest.mark.parametrize("words", ["Invalid node state specified", "Invalid node state transition"])
@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("idle+drain+invalid_reg", BackendRefused),
        ("unknown+drain", BackendUnknown),
        ("idle+not_responding+invalid_reg", BackendUnknown),
        ("idle+not_responding", BackendUnknown),
    ],
)
def test_a_release_of_a_node_that_registers_too_little_is_refused_and_says_what_to_do(
    words: str, state: str, kind: type[Exception]
) -> None:
    """slurmctld keeps the drain, by the same words as for a node that has not registered, whose drain it drops."""

    def run(argv: list[str], **_: object) -> CommandResult:
        is_update = argv[1] == "update"
        answers = ("", f"slurm_update error: {words}\n") if is_update else (_record(state), "")
        stdout, stderr = answers
        return CommandResult(argv=tuple(argv), code=int(is_update), stdout=stdout, stderr=stderr, duration_s=0.1)

    with pytest.raises(kind, match="restart slurmd there" if kind is BackendRefused else words) as caught:
        SlurmOrchestrator(node="n0001", run=run).release(resume=False)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("config", "users"),
    [
        ("X = 1\nSlurmUser               = slurm(64030)\nY = 2\n", {"slurm", "64030"}),
        ("SlurmUser = root\n", {"root"}),
        ("SlurmdUser              = root(0)\n", set()),
    ],
)
def test_slurm_user_is_known_by_name_and_number(config: str, users: set[str]) -> None:
    """As ``scontrol show config`` prints it; a number where the account has no name on this machine."""
    assert parse_slurm_user(config) == users


@pytest.mark.parametrize(
    ("user", "text", "is_slurms"),
    [
        ("root", "Kill task failed", True),
        ("slurm", "Kill task failed", True),
        ("64030", "Epilog error", True),
        ("anna", "Kill task failed", False),
        ("anna", "psu", False),
        ("slurm", "psu", False),
    ],
)
@pytest.mark.parametrize("jobs", [False, True])
def test_a_text_of_slurms_is_slurms_only_if_slurm_signed_it(user: str, text: str, is_slurms: bool, jobs: bool) -> None:
    """An operator who writes the same words has given an order."""
    record = _record(reason=text).replace("|root|", f"|{user}|")
    answers = {"sinfo": record, "config": "BOOT_TIME = 1\nSlurmUser = slurm(64030)\n"}

    def run(argv: list[str], **_: object) -> CommandResult:
        message = answers.get(argv[0], answers["config"] if argv[-1] == "config" else "")
        return CommandResult(argv=tuple(argv), code=0, stdout=message, stderr="", duration_s=0.1)

    view = SlurmOrchestrator(node="n0001", run=run).view(jobs=jobs)
    assert view.hold is not None
    assert (view.hold.text, view.hold.user, view.hold.automatic) == (text, user, is_slurms)
    assert view.drained_by_itself is is_slurms


# ---------------------------------------------------------------------------------------------------------------------
# settings


@pytest.mark.parametrize("name", ["", "ALL", "all", "n[1-8]", "n1,n2", "n1 n2", "-n1", "n1=x"])
def test_a_name_that_slurm_would_take_for_more_than_one_node_is_a_configuration_error(name: str) -> None:
    """``nodename=ALL`` drains the cluster: such a name never reaches a command line."""
    with pytest.raises(ConfigError, match=r"\[node\] name = "):
        SlurmOrchestrator(node=name)


def test_the_clients_environment_keeps_the_cluster_and_drops_the_formats() -> None:
    """SLURM_CONF, SLURM_JWT and PATH pass; formats and filters of a login shell do not; ours are set."""
    given_environment = {
        "PATH": "/bin", "SLURM_CONF": "/a", "SLURM_JWT": "t", "SINFO_FORMAT": "%N", "SQUEUE_USERS": "x",
        "SLURM_CLUSTERS": "b", "SLURM_TIME_FORMAT": "relative", "LC_ALL": "de_DE.UTF-8",
    }  # fmt: skip
    kept = {"PATH": "/bin", "SLURM_JWT": "t", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    assert client_environment(given_environment) == {**kept, "SLURM_CONF": "/a"}
    assert client_environment(given_environment, "/b") == {**kept, "SLURM_CONF": "/b"}


# ---------------------------------------------------------------------------------------------------------------------
# detection


@pytest.fixture
def tools(tmp_path: Path) -> str:
    """A folder with a scontrol in it."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "scontrol").write_text("#!/bin/sh\n")
    (folder / "scontrol").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("conf", ["etc/slurm/slurm.conf", "opt/slurm/etc/slurm.conf", "run/slurm/conf/slurm.conf"])
def test_a_configuration_file_means_slurm(tmp_path: Path, tools: str, conf: str) -> None:
    """Each place where a slurm.conf is kept is enough, and is named in the reason."""
    (tmp_path / conf).parent.mkdir(parents=True)
    (tmp_path / conf).touch()
    found, why = detect(environ={}, root=str(tmp_path), bin_dir=tools)
    assert found
    assert conf in why
    assert f"{tools}/scontrol" in why


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose processes alone are believed")
def test_the_environment_or_a_configless_slurmd_means_slurm(tmp_path: Path, tools: str) -> None:
    """SLURM_CONF is enough; so is a slurmd that slurmctld configures; one with a file of its own elsewhere is not."""
    assert detect(environ={"SLURM_CONF": "/x"}, root=str(tmp_path), bin_dir=tools)[0]
    processes = {"7": "bash", "9": "vi\0slurmd --conf-server", "11": "/usr/sbin/slurmd\0-D\0-f\0/x/slurm.conf\0"}
    for pid, cmdline in processes.items():
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "cmdline").write_text(cmdline)
    assert not detect(environ={}, root=str(tmp_path), bin_dir=tools)[0]
    (tmp_path / "proc" / "11" / "cmdline").write_text("/usr/sbin/slurmd\0-D\0--conf-server\0head:6817\0")
    found, why = detect(environ={}, root=str(tmp_path), bin_dir=tools)
    assert found
    assert "slurmd runs with --conf-server as process 11" in why
    os.chown(tmp_path / "proc" / "11", 65534, 65534)
    assert not detect(environ={}, root=str(tmp_path), bin_dir=tools)[0], "a user's process of that name is no slurmd"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose processes alone are believed")
def test_the_clients_beside_the_slurmd_that_runs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS PCS installs each version of Slurm in a folder of its own, in no PATH: with kind = "auto" its nodes had no
    Slurm. A user's process of that name has none, and a named folder is the only one."""
    folder = tmp_path / "opt/aws/pcs/scheduler/slurm-25.11"
    process = tmp_path / "proc/11"
    for made in (folder / "bin", process):
        made.mkdir(parents=True)
    (process / "cmdline").write_text(f"{folder}/sbin/slurmd\0--conf-server\0a:6817\0")
    (process / "exe").symlink_to(folder / "sbin/slurmd")
    (folder / "bin/scontrol").write_text("#!/bin/sh\n")
    (folder / "bin/scontrol").chmod(0o755)
    ran, all_fail = [], threading.Barrier(3)

    def run(argv: list[str], **_: object) -> CommandResult:
        ran.append(argv[0])
        if argv[0] == "scontrol":
            all_fail.wait(limit_s(10))
        if not argv[0].startswith(str(folder)):
            raise SourceMissing(f"{argv[0]}: not found")
        return CommandResult(argv=tuple(argv), code=0, stdout="", stderr="", duration_s=0.0)

    monkeypatch.setattr("healthd.sources.command.SEARCH_DIRS", ())
    found, why = detect(environ={"PATH": ""}, root=str(tmp_path))
    assert (found, f"{folder}/bin/scontrol" in why) == (True, True), why
    slurm = SlurmOrchestrator(node="n1", run=run, proc=tmp_path / "proc")
    with ThreadPoolExecutor(3) as pool:  # as the fleet is read
        assert list(pool.map(lambda _: slurm.reservations(), range(3))) == ["", "", ""]
    slurm.reservations()
    assert sorted(ran) == [*[f"{folder}/bin/scontrol"] * 4, *["scontrol"] * 3]

    with pytest.raises(BackendUnknown, match="/named/scontrol: not found"):
        SlurmOrchestrator(node="n1", run=run, proc=tmp_path / "proc", bin_dir="/named").reservations()
    os.chown(process, 65534, 65534)
    assert not detect(environ={"PATH": "", "SLURM_CONF": "/x"}, root=str(tmp_path))[0]


def test_nothing_means_no_slurm_and_says_what_was_looked_for(tmp_path: Path, tools: str) -> None:
    """Installed clients alone do not make a node of a cluster."""
    found, why = detect(environ={}, root=str(tmp_path), bin_dir=tools)
    assert not found
    assert "no SLURM_CONF" in why
    assert "etc/slurm/slurm.conf" in why
