"""The Slurm orchestrator against a real slurmctld with eight real slurmd."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from healthd.agent.node_facts import ThisNode
from healthd.config.load import load
from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, client_environment, parse_boot_time
from healthd.remediation.ports import FleetSnapshot, Hold
from healthd.sources.command import abandoned, run_command
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s

pytestmark = pytest.mark.slurm

NODE, OTHER = "n0001", "n0002"
REASON = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"
DEADLINE_S = 0.7
SLACK_S = limit_s(1.5)  # a killed child's 0.3 s, and what a busy machine may add


def _of(lab: SlurmLab, node: str = NODE, *, timeout_s: float = 5.0, bin_dir: str = "") -> SlurmOrchestrator:
    return SlurmOrchestrator(node=node, conf=str(lab.conf), timeout_s=timeout_s, bin_dir=bin_dir)


def _counts(snapshot: FleetSnapshot) -> tuple[frozenset[str], int]:
    return snapshot.out, snapshot.total


def _raises_in_time(act: Callable[[], object]) -> str:
    """``act`` must raise BackendUnknown within our own deadline; returns the message."""
    started_s = time.monotonic()
    with pytest.raises(BackendUnknown) as caught:
        act()
    assert time.monotonic() - started_s < DEADLINE_S + SLACK_S
    while abandoned():  # it was killed, and ends as soon as the machine has time for it
        assert time.monotonic() - started_s < DEADLINE_S + SLACK_S
        time.sleep(0.02)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# partitions


def test_the_partitions_of_a_node(slurm: SlurmLab) -> None:
    """As slurmctld has them now; of a node that it does not have, refused; without an answer, unknown."""
    assert _of(slurm).partitions() == ("main",)
    assert slurm.scontrol("create", "PartitionName=gpu", f"Nodes={NODE}").returncode == 0
    try:
        assert set(_of(slurm).partitions()) == {"main", "gpu"}
        assert _of(slurm, OTHER).partitions() == ("main",)
        slurm.update(NODE, "comment=not in Partitions=secret at all")
        assert set(_of(slurm).partitions()) == {"main", "gpu"}
    finally:
        slurm.scontrol("delete", "PartitionName=gpu")
        slurm.update(NODE, "comment=")
    with pytest.raises(BackendUnknown, match="n9999"):
        _of(slurm, "n9999").partitions()
    slurm.ctld_pause()
    try:
        _raises_in_time(lambda: _of(slurm, timeout_s=DEADLINE_S).partitions())
    finally:
        slurm.ctld_resume()


def test_a_configuration_matches_by_partition(slurm: SlurmLab, tmp_path: Path) -> None:
    """The node that is in the partition gets the section, the other does not."""
    path = tmp_path / "config.toml"
    path.write_text('[[match]]\npartition = ["gp*"]\n[match.budget]\nmax_out = 3\n')
    assert slurm.scontrol("create", "PartitionName=gpu", f"Nodes={NODE}").returncode == 0
    try:
        found = {}
        for name in (NODE, OTHER):
            environ = {"HEALTHD_NODE_NAME": name, "HEALTHD_ORCHESTRATOR_SLURM_CONF": str(slurm.conf)}
            config = load(path, checks={}, environ=environ, who=lambda config: ThisNode(config, {})).config
            found[name] = config.budget.max_out
    finally:
        slurm.scontrol("delete", "PartitionName=gpu")
    assert found == {NODE: 3, OTHER: "5%"}


# ---------------------------------------------------------------------------------------------------------------------
# drain and release


def test_a_drain_reads_back_with_text_user_and_time(slurm: SlurmLab) -> None:
    """After quarantine the view shows our text, set by root at that moment, and the node out of service."""
    orchestrator = _of(slurm)
    before = orchestrator.view()
    assert (before.in_service, before.hold, before.flags) == (True, None, frozenset({"IDLE"}))
    began = int(time.time())
    orchestrator.quarantine(REASON)
    ended, after = time.time(), orchestrator.view()
    assert after.hold is not None
    assert (after.in_service, after.hold.text, after.hold.user) == (False, REASON, "root")
    assert began <= after.hold.stamp <= ended
    assert after.flags == {"IDLE", "DRAIN"}
    assert slurm.state(OTHER) == "IDLE"


@pytest.mark.parametrize(
    "text",
    [
        "quotes \"in\" the 'middle' of",
        "brackets [root@2026-11-21T00:01:52] and = signs state=idle nodename=n0002",
        r"$(touch /tmp/x) `id` \n \\ %s; rm -rf * & # ~",
        "ends in a mark|"[:-1] + "*",
        "ein Gerät fiel aus 🙂",
        "none",
        "r" * 5000,
    ],
)
def test_a_reason_reads_back_as_it_was_written(slurm: SlurmLab, text: str) -> None:
    """Whatever one line of text holds, no shell, no Slurm syntax and no limit changes it, and one node is drained."""
    orchestrator = _of(slurm)
    orchestrator.quarantine(text)
    hold = orchestrator.view().hold
    assert hold is not None
    assert hold.text == text
    assert orchestrator.snapshot().out == {NODE}


@pytest.mark.parametrize(
    "text", ["", " ", "two\nlines", "a|b", '"quoted"', 'ends in "', "tab\there", " leading", "\x1b[31m"]
)
def test_a_reason_that_would_not_read_back_is_refused_before_asking(slurm: SlurmLab, text: str) -> None:
    """A text that Slurm would change, or that a reader could take for more than one record, never reaches it."""
    orchestrator = _of(slurm)
    with pytest.raises(BackendRefused, match="not asked for"):
        orchestrator.quarantine(text)
    assert orchestrator.view().in_service


def test_scontrol_takes_double_quotes_off_both_ends(slurm: SlurmLab) -> None:
    """The fact behind that refusal: a reason given with quotes around it is stored without them."""
    slurm.update(NODE, "state=drain", 'reason="quoted"')
    assert _hold_of(slurm).text == "quoted"


@pytest.mark.parametrize("resume", [False, True])
def test_release_puts_a_drained_node_back(slurm: SlurmLab, resume: bool) -> None:
    """Undrain and resume both end in service without a hold; NOT_RESPONDING in between is in service."""
    orchestrator = _of(slurm)
    orchestrator.quarantine(REASON)
    orchestrator.release(resume=resume)
    view = orchestrator.view()
    assert (view.in_service, view.hold) == (True, None)
    assert _counts(orchestrator.snapshot()) == (frozenset(), 8)
    slurm.wait_state(NODE, "IDLE")


def test_only_resume_clears_a_down_that_the_drain_went_through(slurm: SlurmLab) -> None:
    """DOWN and DRAIN show as both flags; undrain leaves DOWN and its reason, resume clears it."""
    orchestrator = _of(slurm)
    slurm.update(NODE, "state=down", "reason=dead psu")
    orchestrator.quarantine(REASON)
    assert orchestrator.view().flags == {"DOWN", "DRAIN"}
    orchestrator.release(resume=False)
    view = orchestrator.view()
    assert not view.in_service
    assert "DOWN" in view.flags
    assert "DRAIN" not in view.flags
    orchestrator.release(resume=True)
    assert orchestrator.view().in_service


def test_release_just_after_a_controller_restart_is_never_refused(slurm: SlurmLab) -> None:
    """slurmctld says "Invalid node state", status 1, and drops the drain all the same; a newer one says nothing."""
    orchestrator = _of(slurm)
    orchestrator.quarantine(REASON)
    slurm.slurmd_stop(NODE)  # it would register within seconds
    slurm.ctld_stop()
    slurm.ctld_start()
    assert "UNKNOWN" in orchestrator.view().flags
    if slurm.has("undrains unregistered nodes"):
        orchestrator.release(resume=False)
    else:
        with pytest.raises(BackendUnknown, match="Invalid node state specified"):
            orchestrator.release(resume=False)
    assert orchestrator.view().hold is None


def test_a_node_that_registers_too_little_keeps_its_drain(slurm_lab_factory: Callable[..., SlurmLab]) -> None:
    """As one whose slurmd started before its GPU driver: the refusal says what an operator does."""
    lab = slurm_lab_factory(nodes=1, cpus=1, conf={"SlurmdParameters": ""})
    orchestrator = _of(lab)
    orchestrator.quarantine(REASON)
    fits = lab.conf.read_text()
    lab.conf.write_text(fits.replace("RealMemory=1000", "RealMemory=900000000"))
    assert lab.scontrol("reconfigure").returncode == 0
    lab.wait(lambda: "INVALID_REG" in orchestrator.view().flags, 15, "slurmctld to find too little memory")
    with pytest.raises(BackendRefused, match="restart slurmd there"):
        orchestrator.release(resume=False)
    assert "DRAIN" in orchestrator.view().flags
    lab.conf.write_text(fits)
    assert lab.scontrol("reconfigure").returncode == 0
    lab.wait_state(NODE, "IDLE+DRAIN")  # 24.11 knows nothing of a node between a reconfigure and its registration
    orchestrator.release(resume=False)
    assert orchestrator.view().in_service


# ---------------------------------------------------------------------------------------------------------------------
# other people's orders


def _hold_of(lab: SlurmLab, node: str = NODE) -> Hold:
    hold = _of(lab, node).view().hold
    assert hold is not None
    return hold


def test_an_admins_drain_is_a_hold_with_its_own_text_and_user(slurm: SlurmLab) -> None:
    """A drain set by somebody else is told from ours by its triple, whoever wrote it last."""
    orchestrator = _of(slurm)
    orchestrator.quarantine(REASON)
    ours = _hold_of(slurm)
    slurm.update(NODE, "state=drain", "reason=ticket 4711, Anna")
    theirs = _hold_of(slurm)
    assert theirs != ours
    assert theirs.text == "ticket 4711, Anna"


@pytest.mark.parametrize(
    "reason", ["a|b|c", "one\ntwo", f"x|\n{NODE}|idle|0/4/0/4|Unknown|Unknown|(null)|(null)|none|", "none"]
)
def test_a_strangers_reason_cannot_forge_the_reading(slurm: SlurmLab, reason: str) -> None:
    """Delimiters, newlines and a whole false record in a reason leave the node out of service and the text foreign."""
    slurm.update(NODE, "state=drain", f"reason={reason}")
    view = _of(slurm).view()
    assert not view.in_service
    assert view.hold is not None
    assert view.hold.text == reason
    assert _counts(_of(slurm).snapshot()) == (frozenset({NODE}), 8)


def test_slurms_own_reason_is_a_hold(slurm: SlurmLab) -> None:
    """A node that rebooted unexpectedly is held by the user slurmctld runs as, with Slurm's own words."""
    node = "n0007"  # no other test here drains it: 24.11 keeps the reason of a node that is back, and appends to it
    slurm.reboot(node)
    slurm.wait(lambda: "DOWN" in slurm.state(node), 10, "the reboot to be noticed")
    view = _of(slurm, node).view()
    assert not view.in_service
    assert view.hold is not None
    assert view.hold.text == "Node unexpectedly rebooted"
    assert view.hold.automatic
    assert not view.drained_by_itself


def test_a_maintenance_reservation_is_out_of_service_without_a_hold(slurm: SlurmLab) -> None:
    """MAINT keeps jobs off but is nobody's drain, and alone it does not count in the level."""
    flags = "flags=MAINT,IGNORE_JOBS,STATIC_ALLOC"
    options = (f"nodes={NODE}", "starttime=now", "duration=UNLIMITED", "users=root", flags)
    assert slurm.scontrol("create", "reservation", "reservationname=window", *options).returncode == 0
    orchestrator = _of(slurm)
    slurm.wait(lambda: "MAINTENANCE" in orchestrator.view().flags, 15, "the flag MAINTENANCE")
    view = orchestrator.view()
    assert (view.in_service, view.hold) == (False, None)
    assert _counts(orchestrator.snapshot()) == (frozenset(), 8)


def test_what_a_killed_slurmctld_left_of_a_reservation_is_none(slurm_lab_factory: Callable[..., SlurmLab]) -> None:
    """Killed, and the reservation deleted before slurmctld looked at it: MAINTENANCE stays for good, and jobs run."""
    lab = slurm_lab_factory(nodes=1)
    options = (f"nodes={NODE}", "starttime=now", "duration=UNLIMITED", "users=root", "flags=MAINT,IGNORE_JOBS")
    assert lab.scontrol("create", "reservation", "reservationname=window", *options).returncode == 0
    lab.wait(lambda: "MAINTENANCE" in lab.state(NODE), 15, "the flag MAINTENANCE")
    lab.update(NODE, "state=fail", "reason=psu")
    saved = lab.root / "state/node_state"
    lab.wait(lambda: saved.exists() and b"psu" in saved.read_bytes(), 20, "slurmctld to save the node's state")
    lab.ctld_stop(kill=True)
    lab.ctld_start()
    assert lab.scontrol("delete", "reservation", "window").returncode == 0
    lab.scontrol("update", f"nodename={NODE}", "state=resume")  # refused in words until the node has registered
    lab.wait_state(NODE, "IDLE+MAINTENANCE")
    assert lab.wait_job(lab.submit(NODE, "true"), "COMPLETED")["BatchHost"] == NODE
    view = _of(lab).view()
    assert view.flags == {"IDLE", "MAINTENANCE"}
    assert (view.in_service, view.fenced) == (True, False)


# ---------------------------------------------------------------------------------------------------------------------
# work on the node


def test_a_running_job_is_seen_and_survives_the_drain(slurm: SlurmLab) -> None:
    """While the job runs the node is not idle, drained or not; once it has ended and completed, it is."""
    orchestrator = _of(slurm)
    job = slurm.run_job(NODE)
    orchestrator.quarantine(REASON)
    view = orchestrator.view(jobs=True)
    assert view.jobs == (job,)
    assert re.fullmatch(rf"{job} of \S+ on {view.name}", view.work[0])
    assert not view.idle
    assert slurm.job(job)["JobState"] == "RUNNING"
    slurm.cancel(job)
    slurm.wait(lambda: orchestrator.view(jobs=True).idle, 10, "the node to be idle")
    assert _hold_of(slurm).text == REASON


def test_a_task_of_an_array_is_the_job_that_its_own_processes_name(slurm: SlurmLab, tmp_path: Path) -> None:
    """By SLURM_JOB_ID: `healthd check --active` in the task took the task itself for another's work."""
    said = tmp_path / "said"
    tasks = slurm.submit(NODE, f"echo $SLURM_JOB_ID >>{said}; exec sleep 600", "--array=1-2")
    slurm.wait(lambda: said.exists() and len(said.read_text().split()) == 2, 20, "both tasks to run")
    view = _of(slurm).view(jobs=True)
    assert sorted(view.jobs) == sorted(said.read_text().split())
    assert {text.partition(" ")[0] for text in view.work} == {f"{tasks}_1", f"{tasks}_2"}


def test_the_state_alone_shows_work_before_the_cpu_count_does(slurm: SlurmLab) -> None:
    """slurmctld's CPU count lags behind a job's start by seconds; the view without jobs is not idle from the first."""
    job = slurm.submit(NODE)
    slurm.wait(lambda: slurm.job(job)["JobState"] == "RUNNING", 20, "the job to run")
    assert not _of(slurm).view().idle


def test_completing_is_not_idle(slurm_lab_factory: Callable[..., SlurmLab], tmp_path: Path) -> None:
    """While the epilog runs no CPU is allocated any more, and the node is still not idle."""
    gate = tmp_path / "gate"
    epilog = tmp_path / "epilog"
    epilog.write_text(f"#!/bin/sh\nwhile [ -e {gate} ]; do /bin/sleep 0.05; done\n")
    epilog.chmod(0o755)
    gate.touch()
    lab = slurm_lab_factory(nodes=1, conf={"Epilog": str(epilog)})
    orchestrator = _of(lab)
    job = lab.run_job(NODE)
    orchestrator.quarantine(REASON)
    lab.cancel(job)
    lab.wait(lambda: "COMPLETING" in orchestrator.view().flags, 10, "COMPLETING")
    view = orchestrator.view(jobs=True)
    assert view.jobs == (job,)
    assert not view.idle
    gate.unlink()
    lab.wait(lambda: orchestrator.view(jobs=True).idle, 10, "the node to be idle")


def test_the_controllers_start_is_seen_and_changes(slurm: SlurmLab) -> None:
    """``controller`` is slurmctld's start, asked for only together with the jobs, and another after a restart."""
    orchestrator = _of(slurm)
    assert orchestrator.view().controller == ""
    first = orchestrator.view(jobs=True).controller
    assert abs(int(first) - time.time()) < 3600
    slurm.wait(lambda: time.time() >= int(first) + 1, 3, "the next whole second: the start has no finer resolution")
    slurm.ctld_stop(kill=True)
    slurm.ctld_start()
    assert orchestrator.view(jobs=True).controller != first


def test_a_job_that_outlives_a_controller_restart_keeps_the_node_busy(slurm: SlurmLab) -> None:
    """At no reading after a restart of slurmctld is a node with a running job called idle."""
    orchestrator = _of(slurm)
    job = slurm.run_job(NODE)
    orchestrator.quarantine(REASON)
    slurm.ctld_stop()
    slurm.ctld_start()
    for _ in range(20):
        view = orchestrator.view(jobs=True)
        assert not view.idle, view
        assert view.jobs == (job,)
        time.sleep(0.05)


# ---------------------------------------------------------------------------------------------------------------------
# the level


def test_the_level_counts_each_node_that_is_out_once(slurm: SlurmLab) -> None:
    """Drained, down, both, and failed nodes are out; a node with a job, one just undrained and idle ones are not."""
    slurm.run_job("n0005")
    for node, settings in {
        "n0001": ["state=drain", "reason=d"],
        "n0002": ["state=down", "reason=d"],
        "n0004": ["state=fail", "reason=f"],
        "n0005": ["state=drain", "reason=with a job"],
        "n0006": ["state=undrain"],
    }.items():
        slurm.update(node, *settings)
    slurm.update("n0003", "state=down", "reason=d")
    slurm.update("n0003", "state=drain", "reason=d")
    snapshot = _of(slurm, "n0008").snapshot()
    assert _counts(snapshot) == (frozenset({"n0001", "n0002", "n0003", "n0004", "n0005"}), 8)


def test_a_node_that_waits_for_a_reboot_takes_jobs_and_is_not_out(slurm_lab_factory: Callable[..., SlurmLab]) -> None:
    """REBOOT_REQUESTED without ASAP keeps no job off until the node is idle. A drain of ours is ours after the boot,
    beside our slot too."""
    lab = slurm_lab_factory(nodes=1, conf={"RebootProgram": "/bin/true"})
    orchestrator = _of(lab)
    lab.run_job(NODE)
    assert lab.scontrol("reboot", NODE).returncode == 0
    lab.wait(lambda: "REBOOT_REQUESTED" in orchestrator.view().flags, 5, "REBOOT_REQUESTED")
    lab.run_job(NODE)
    assert orchestrator.view().in_service
    assert orchestrator.snapshot().out == set()
    orchestrator.claim("cluster", 0)
    orchestrator.quarantine(REASON)
    ours = _hold_of(lab)
    assert orchestrator.snapshot().out == {NODE}
    lab.cancel()
    lab.wait(lambda: "REBOOT_ISSUED" in orchestrator.view().flags, 30, "the reboot to be issued")
    lab.reboot(NODE)
    lab.wait(lambda: "DOWN" not in orchestrator.view().flags, 15, "the node to be back")
    assert _hold_of(lab).remark == " : reboot issued"
    assert _hold_of(lab).is_still(ours)
    orchestrator.release(resume=False)
    assert orchestrator.view().undrained


@pytest.fixture(scope="module")
def mixed_fleet(slurm_lab_factory: Callable[..., SlurmLab]) -> SlurmLab:
    """Two real nodes in two partitions, one of them hidden; sleeping cloud nodes; nodes of the future; one dead."""
    return slurm_lab_factory(
        nodes=2,
        conf={"SuspendTime": "-1", "PrivateData": "cloud", "SuspendProgram": "/bin/true", "ResumeProgram": "/bin/true"},
        lines=[
            "NodeName=cloud[1-3] NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=CLOUD",
            "NodeName=future[1-5] NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=FUTURE",
            "NodeName=dead1 NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=DOWN Reason=scrapped",
            "PartitionName=gpu Nodes=n0001,cloud[1-3] State=UP",
            "PartitionName=secret Nodes=n0001,n0002,dead1 State=UP Hidden=YES",
        ],
    )


def test_names_without_a_machine_do_not_count(mixed_fleet: SlurmLab) -> None:
    """Total: real and dead nodes. Out: the dead one. Cloud nodes that sleep, drained too, and future ones are none."""
    orchestrator = _of(mixed_fleet)
    assert _counts(orchestrator.snapshot()) == (frozenset({"dead1"}), 3)
    mixed_fleet.update("cloud2", "state=drain", "reason=x")
    snapshot = orchestrator.snapshot()
    assert _counts(snapshot) == (frozenset({"dead1"}), 3)
    assert snapshot.asleep == {"cloud1", "cloud2", "cloud3"}


def test_a_node_of_several_partitions_is_read_once(mixed_fleet: SlurmLab) -> None:
    """sinfo prints one record per partition, hidden ones included; the view has the reason once."""
    orchestrator = _of(mixed_fleet)
    orchestrator.quarantine(REASON)
    view = orchestrator.view()
    assert view.hold is not None
    assert view.hold.text == REASON
    orchestrator.release(resume=False)


def test_a_node_of_a_hidden_partition_alone_is_readable(mixed_fleet: SlurmLab) -> None:
    """A node that default output leaves out is known, and a reason from slurm.conf is a hold."""
    view = _of(mixed_fleet, "dead1").view()
    assert not view.in_service
    assert view.hold is not None
    assert view.hold.text == "scrapped"


# ---------------------------------------------------------------------------------------------------------------------
# when Slurm does not answer, or says no


def test_a_hung_controller_is_unknown_and_the_update_was_applied(slurm: SlurmLab) -> None:
    """With slurmctld stopped every call ends at our deadline; the drain it missed is there when it goes on."""
    orchestrator = _of(slurm, timeout_s=DEADLINE_S)
    slurm.ctld_pause()
    try:
        _raises_in_time(orchestrator.view)
        _raises_in_time(orchestrator.snapshot)
        message = _raises_in_time(lambda: orchestrator.quarantine(REASON))
    finally:
        slurm.ctld_resume()
    assert "no end within 0.7 s" in message
    slurm.wait(lambda: not _of(slurm).view().in_service, 5, "the late drain")
    assert _hold_of(slurm).text == REASON


def test_a_controller_that_is_gone_is_unknown_within_our_deadline(slurm: SlurmLab) -> None:
    """The clients themselves would retry for 9 s; reads and updates end at ours, and say that Slurm did not answer."""
    orchestrator = _of(slurm, timeout_s=DEADLINE_S)
    slurm.ctld_stop()
    for act in (
        orchestrator.view,
        orchestrator.snapshot,
        lambda: orchestrator.view(jobs=True),
        lambda: orchestrator.quarantine(REASON),
    ):
        assert "Slurm did not answer" in _raises_in_time(act)
    slurm.ctld_start()
    assert orchestrator.view().hold is None


def test_the_clients_own_failures_are_unknown(slurm: SlurmLab, tmp_path: Path) -> None:
    """Where the clients give up before our deadline does, their message is passed on, and is no refusal."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"{slurm.conf.read_text()}MessageTimeout=1\n")
    orchestrator = SlurmOrchestrator(node=NODE, conf=str(conf), timeout_s=15.0)
    slurm.ctld_pause()
    try:
        with pytest.raises(
            BackendUnknown, match=r"Socket timed out on send/recv operation; slurmctld may have applied it"
        ):
            orchestrator.quarantine(REASON)
    finally:
        slurm.ctld_resume()
    slurm.ctld_stop()
    with pytest.raises(
        BackendUnknown, match=r"Unable to contact slurm controller \(connect failure\); slurmctld may have"
    ):
        orchestrator.release(resume=True)


def test_a_hung_munged_is_unknown_at_the_deadline(slurm: SlurmLab) -> None:
    """The clients wait for munged without any limit; ours holds, for reads and for updates."""
    orchestrator = _of(slurm, timeout_s=DEADLINE_S)
    slurm.munged_pause()
    try:
        _raises_in_time(orchestrator.view)
        _raises_in_time(lambda: orchestrator.quarantine(REASON))
    finally:
        slurm.munged_resume()


def test_a_munged_that_is_gone_is_unknown_and_named(slurm: SlurmLab) -> None:
    """The client's authentication error is passed on and is no refusal."""
    slurm.munged_stop()
    try:
        with pytest.raises(BackendUnknown, match="Protocol authentication error"):
            _of(slurm).quarantine(REASON)
    finally:
        slurm.munged_start()
    assert _of(slurm).view().in_service


def test_a_missing_scontrol_is_unknown_not_a_refusal(slurm: SlurmLab, tmp_path: Path) -> None:
    """Without Slurm's clients nothing is known: the message names the tool and the place."""
    orchestrator = _of(slurm, bin_dir=str(tmp_path))
    for act in (
        orchestrator.view,
        orchestrator.snapshot,
        lambda: orchestrator.quarantine(REASON),
        lambda: orchestrator.release(resume=True),
    ):
        with pytest.raises(
            BackendUnknown, match=f"Slurm's client could not be run: {tmp_path}/(sinfo|scontrol): not found"
        ):
            act()


def test_a_missing_configuration_is_unknown_within_our_deadline(slurm: SlurmLab, tmp_path: Path) -> None:
    """Without slurm.conf the clients retry for 59 s; ours ends earlier and quotes what they are waiting for."""
    orchestrator = SlurmOrchestrator(node=NODE, conf=str(tmp_path / "slurm.conf"), timeout_s=DEADLINE_S)
    assert "cannot stat file" in _raises_in_time(orchestrator.view)


def test_a_node_that_slurm_does_not_know_is_refused(slurm: SlurmLab) -> None:
    """Reading, draining and releasing an unknown node say to check [node] name; the level is unknown, never 0."""
    orchestrator = _of(slurm, "ip-10-0-0-1")
    for act in (orchestrator.view, lambda: orchestrator.quarantine(REASON), lambda: orchestrator.release(resume=False)):
        with pytest.raises(BackendRefused, match=r"check \[node\] name"):
            act()
    with pytest.raises(BackendUnknown, match=r"lists 8 nodes, but not .*ip-10-0-0-1"):
        orchestrator.snapshot()


def test_a_user_without_the_right_is_refused_and_may_still_read(slurm: SlurmLab) -> None:
    """As nobody: reads work, a drain is refused with the advice to check as whom healthd runs."""

    def as_nobody(argv: list[str], **more: object) -> object:
        return run_command(["setpriv", "--reuid=65534", "--clear-groups", *argv], **more)  # type: ignore[arg-type]

    orchestrator = SlurmOrchestrator(node=NODE, conf=str(slurm.conf), run=as_nobody)  # type: ignore[arg-type]
    assert orchestrator.view().in_service
    with pytest.raises(BackendRefused, match="Invalid user id; healthd.s user lacks the right"):
        orchestrator.quarantine(REASON)
    assert orchestrator.view().in_service


def test_settings_of_the_clients_in_the_environment_change_nothing(
    slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login shell's SINFO_FORMAT, SQUEUE_FORMAT or time format does not reach our clients."""
    job = slurm.run_job(NODE)
    for name in ("SINFO_FORMAT", "SQUEUE_FORMAT", "SQUEUE_STATES", "SINFO_PARTITION", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "PENDING")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    view = _of(slurm).view(jobs=True)
    assert view.jobs == (job,)
    assert view.controller.isdecimal()


def test_it_works_in_the_bare_environment_of_a_hook(slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With neither PATH nor HOME nor SLURM_CONF, but ``conf`` set, as for HealthCheckProgram."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    orchestrator = _of(slurm)
    orchestrator.quarantine(REASON)
    assert orchestrator.view(jobs=True).hold is not None


def test_the_ordinary_view_is_one_cheap_request(slurm: SlurmLab) -> None:
    """A view without jobs runs sinfo once, for this node alone, and nothing else."""
    seen: list[list[str]] = []

    def counting(argv: list[str], **more: object) -> object:
        seen.append(argv)
        return run_command(argv, **more)  # type: ignore[arg-type]

    SlurmOrchestrator(node=NODE, conf=str(slurm.conf), run=counting).view()  # type: ignore[arg-type]
    assert [argv[:6] for argv in seen] == [["sinfo", "-h", "-a", "-N", "-n", NODE]]


def test_the_boot_time_is_in_the_configuration_as_a_number(slurm: SlurmLab) -> None:
    """SLURM_TIME_FORMAT=%s reaches BOOT_TIME too, so that the client's time zone takes no part."""
    argv, env = ["scontrol", "show", "config"], client_environment({}, str(slurm.conf))
    assert parse_boot_time(run_command(argv, timeout_s=5.0, env=env).stdout).isdecimal()
