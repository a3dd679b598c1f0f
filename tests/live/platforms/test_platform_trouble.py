"""Every branch in which a repair goes wrong, on every row of the table of platforms on which it is another thing.

``BRANCHES`` says for each branch on which rows it is played; where a row is left out, ``LEFT_OUT`` says why, and a test
compares the two. What each branch shows stands at its function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from healthd.remediation.decide.remediation import End
from tests.live.aws.aws_endpoint import DENIED, THROTTLED, THROTTLED_JSON, Fault
from tests.live.platforms.platform_lab import NodeMachine, Platform, PlatformLab
from tests.live.platforms.players import (
    AUTOSCALING,
    AUTOSCALING_SOFTLY,
    EC2,
    HYPERPOD_BY_API,
    HYPERPOD_BY_REASON,
    NO_CAPACITY,
    PARALLELCLUSTER,
    PLATFORMS,
    AutoScaling,
)
from tests.live.platforms.side_by_side import Results, Scenario
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.slurm, pytest.mark.process]

REPLACE_FIRST = {"policy.use": "replace-first"}
ADMIN = "admin: hands off"
QUIET_S = 3.0
"""How long it is watched that nothing more is done: some turns of the engine."""


# ---------------------------------------------------------------------------------------------------------------------
# the platform does not do what it was asked for


def no_capacity(lab: PlatformLab, platform: Platform) -> None:
    """The machine is taken away and none comes: the name stays fenced, nothing is asked again; when there is capacity
    the new machine lets itself in."""
    with lab.machine(platform, settings=REPLACE_FIRST) as node:
        node.player.capacity = False
        node.fault()
        node.wait(lambda: "terminate" in node.player.did, 90.0, "the machine is taken away")
        if platform is PARALLELCLUSTER:
            node.wait(lambda: node.reason() == NO_CAPACITY, 20.0, "clustermgtd says so where healthd looks")
        time.sleep(QUIET_S)
        assert len(node.fences()) == 1
        waiting = lab.slurm.submit(node.name, "true")
        assert lab.slurm.job(waiting)["JobState"] == "PENDING"
        node.player.capacity = True
        _back(node)
        assert node.asked() == [platform.replace]
        lab.slurm.wait_job(waiting, "COMPLETED", within_s=30.0)


def no_substitute(lab: PlatformLab, platform: Platform) -> None:
    """A group that may launch nothing is not asked to end an instance; status and history say so; then it is."""
    with lab.machine(platform, settings=REPLACE_FIRST) as node:
        assert isinstance(node.player, AutoScaling)
        bound = {"AutoScalingGroupName": node.player.group, "ScalingProcesses": ["Launch"]}
        lab.account.autoscaling.suspend_processes(**bound)
        node.fault()
        words = "would launch no substitute: Launch is suspended"
        node.wait(lambda: words in node.log_text(), 60.0, "the refusal is in the history")
        _says(node, words)
        assert node.asked() == []
        lab.account.autoscaling.resume_processes(**bound)
        _back(node)
        assert node.asked() == [platform.replace]


def reboot_ignored(lab: PlatformLab, platform: Platform) -> None:
    """The machine never goes down. At the time-out the next remedy is tried, once; where there is none it pages, and
    the node stays out."""
    settings = {"remediation.reboot_timeout_s": 3, "remediation.max_attempts": 1}
    with lab.machine(platform, settings=settings) as node:
        node.player.reboots = "ignored"
        node.fault()
        if platform.replace:
            _back(node)
            assert node.asked() == [platform.reboot, platform.replace]
            return
        node.wait(lambda: node.ends() == [End.FAILED], 90.0, "given up")
        _stays_out(node, "never showed as a new boot id")
        assert node.asked() == [platform.reboot]


def reboot_timed_out(lab: PlatformLab, platform: Platform) -> None:
    """slurmctld gives the reboot up before healthd does and sets the node DOWN, and who manages it replaces it for
    that. The name stays fenced until the new machine is seen to be well."""
    own = PlatformLab(lab.folder / "timed-out", lab.moto, lab.forks, nodes=1, conf={"ResumeTimeout": "5"})
    with own, own.machine(platform) as node:
        node.player.reboots = "ignored"
        node.fault()
        node.wait(lambda: "another machine" in node.player.did, 90.0, "the manager replaces the node")
        _back(node)
        assert node.asked() == [platform.reboot]
        assert "verified" in node.daemon.log_text()


def reboot_hangs(lab: PlatformLab, platform: Platform) -> None:
    """The machine goes down and stays down: the name stays fenced, nothing else is asked; when it is switched on again
    it goes on where it was."""
    with lab.machine(platform) as node:
        node.player.reboots = "hangs"
        node.fault()
        node.wait(lambda: "hung in a reboot" in node.player.did, 90.0, "it hangs")
        time.sleep(QUIET_S)
        assert len(node.fences()) == 1
        node.come_up()
        if platform is HYPERPOD_BY_REASON:
            node.wait(
                lambda: "the platform has not put the node back yet" in node.log_text(),
                60.0,
                "it says what it waits for",
            )
            lab.slurm.update(node.name, "state=resume")
        _back(node)
        assert node.asked() == [platform.reboot]


def same_fault_again(lab: PlatformLab, platform: Platform) -> None:
    """The new machine has the same fault: it pages and stays out, and no third machine is asked for."""
    with lab.machine(platform, settings={**REPLACE_FIRST, "remediation.verify_timeout_s": 4}) as node:
        node.player.brings_fault = True
        node.fault()
        node.wait(lambda: len(node.daemons) == 2 and node.ends() == [End.FAILED], 120.0, "given up")
        _stays_out(node, "another machine did not help, an operator is needed")
        assert node.asked() == [platform.replace]


def rate_of_replacements(lab: PlatformLab, platform: Platform) -> None:
    """A fleet that has given away as many machines in an hour as it may gives away no other: it pages, and waits."""
    with lab.machine(platform, settings=REPLACE_FIRST) as first:
        first.fault()
        _back(first)
    with lab.machine(platform, settings={**REPLACE_FIRST, "budget.replacements_per_hour": 1}) as node:
        node.fault()
        words = "machines were replaced within an hour"
        node.wait(lambda: words in node.log_text(), 60.0, "held")
        _stays_out(node, words)
        assert node.asked() == []


# ---------------------------------------------------------------------------------------------------------------------
# the job


def job_never_ends(lab: PlatformLab, platform: Platform) -> None:
    """Whatever time-out passes, a node with a job is neither rebooted nor replaced; status names the job. When it ends
    at last, the repair goes on."""
    hasty = dict.fromkeys(("reboot_timeout_s", "replace_timeout_s", "verify_timeout_s"), 1)
    with lab.machine(platform, settings={f"remediation.{name}": value for name, value in hasty.items()}) as node:
        job = lab.slurm.run_job(node.name)
        node.fault()
        node.wait(
            lambda: f"waiting for {job} of root on {node.name} to end" in node.log_text(), 60.0, "it waits for the job"
        )
        time.sleep(QUIET_S)
        _says(node, f"waiting for {job} of root on {node.name} to end")
        assert node.asked() == []
        assert lab.slurm.job(job)["JobState"] == "RUNNING"
        assert ("DRAIN" in node.flags(), len(node.fences())) == (platform.drains, 1)
        lab.slurm.cancel(job)
        node.wait(lambda: node.asked() == [platform.reboot], 60.0, "it goes on")


# ---------------------------------------------------------------------------------------------------------------------
# an admin takes over

Act = Callable[[NodeMachine], None]


def resumes(node: NodeMachine) -> None:
    node.lab.slurm.update(node.name, "state=resume")


def drains(node: NodeMachine) -> None:
    node.lab.slurm.update(node.name, "state=drain", f"reason={ADMIN}")


def changes_the_reason(node: NodeMachine) -> None:
    node.lab.slurm.update(node.name, f"reason={ADMIN}")


def deletes_the_reservation(node: NodeMachine) -> None:
    (name,) = node.fences()
    assert node.lab.slurm.scontrol("delete", "reservation", name).returncode == 0


def while_a_job_runs(act: Act, end: End) -> Callable[[PlatformLab, Platform], None]:
    """Before anything irreversible was done: the remediation ends as it must, and nothing is asked of the platform."""

    def play(lab: PlatformLab, platform: Platform) -> None:
        with lab.machine(platform) as node:
            job = lab.slurm.run_job(node.name)
            node.fault()
            node.wait(lambda: f"waiting for {job}" in node.log_text(), 60.0, "it waits for the job")
            act(node)
            node.wait(lambda: node.ends() == [end], 60.0, f"{act.__name__}: {end}")
            _is_the_admins(node, act)
            lab.slurm.cancel(job)
            if act is drains and not platform.drains:
                node.wait(lambda: len(node.daemons) == 2 and node.is_back(), 60.0, "an admin's drain is a replacement")
            time.sleep(QUIET_S)
            assert node.asked() == []
            ends = [] if len(node.daemons) == 2 else [end]
            assert node.ends() == ends, "no other remediation is opened for a fault that a person has seen"

    play.__name__ = f"{act.__name__} while a job runs"
    return play


def while_it_reboots(act: Act, end: End) -> Callable[[PlatformLab, Platform], None]:
    """What was asked for cannot be taken back; after the boot the node is the admin's all the same."""

    def play(lab: PlatformLab, platform: Platform) -> None:
        with lab.machine(platform) as node:
            node.player.delay_s = 2.0
            node.fault()
            node.wait(node.asked, 60.0, "the reboot is asked for")
            act(node)
            node.wait(lambda: node.player.did == ["reboot"] and node.ends() == [end], 90.0, f"{act.__name__}: {end}")
            _is_the_admins(node, act)
            assert node.asked() == [platform.reboot]

    play.__name__ = f"{act.__name__} while it reboots"
    return play


def while_it_is_verified(act: Act, end: End) -> Callable[[PlatformLab, Platform], None]:
    """The last look before the release: nothing is undone, nothing is given back but our own place."""

    def play(lab: PlatformLab, platform: Platform) -> None:
        with lab.machine(platform, settings={"remediation.settle_s": 15}) as node:
            node.fault()
            node.wait(lambda: "healthy again; settling" in node.log_text(), 90.0, "it settles")
            act(node)
            node.wait(lambda: node.ends() == [end], 60.0, f"{act.__name__}: {end}")
            _is_the_admins(node, act)
            assert node.asked() == [platform.reboot]

    play.__name__ = f"{act.__name__} while it is verified"
    return play


def goes_on_without_its_reservation(lab: PlatformLab, platform: Platform) -> None:
    """Where our drain holds the node, a reservation that somebody deleted changes nothing about whose node it is."""
    with lab.machine(platform) as node:
        job = lab.slurm.run_job(node.name)
        node.fault()
        node.wait(lambda: f"waiting for {job}" in node.log_text(), 60.0, "it waits for the job")
        deletes_the_reservation(node)
        lab.slurm.cancel(job)
        _back(node)
        assert node.asked() == [platform.reboot]


def _is_the_admins(node: NodeMachine, act: Act) -> None:
    """As the admin left it, and our place in the budget given back."""
    node.wait(lambda: not node.fences(), 20.0, "its place is given back")
    flags, reason = node.state()
    if act in (drains, changes_the_reason):
        assert reason == ADMIN
        assert "DRAIN" in flags
    else:
        assert not flags & {"DRAIN", "FAIL", "DOWN"}


# ---------------------------------------------------------------------------------------------------------------------
# AWS


def throttled(lab: PlatformLab, platform: Platform) -> None:
    """A request that AWS would not take is a wait, said as such, and no attempt; when it takes it, it is made once."""
    operation, settings = _request_of(platform)
    with lab.machine(platform, settings=settings) as node:
        node.endpoint.always[operation] = THROTTLED_JSON if operation.startswith("Batch") else THROTTLED
        node.fault()
        node.wait(lambda: "AWS applied nothing, healthd tries again" in node.log_text(), 90.0, "the refusal is said")
        _says(node, "AWS applied nothing, healthd tries again")
        assert node.asked() == []
        del node.endpoint.always[operation]
        _back(node)
        assert node.asked() == [operation]


def throttled_questions(lab: PlatformLab, platform: Platform) -> None:
    """Where AWS does not say whose machine this is, or who is at it, nothing is asked for."""
    question = QUESTIONS[platform]
    with lab.machine(platform, settings=REPLACE_FIRST if platform.replace else {}) as node:
        node.wait(lambda: node.daemon.status() is not None, 20.0, "it runs")
        node.endpoint.always[question] = THROTTLED_JSON if "Cluster" in question else THROTTLED
        node.fault()
        node.wait(lambda: f":{question}: " in node.log_text(), 90.0, "it says what it could not ask")
        time.sleep(QUIET_S)
        assert node.asked() == []
        assert len(node.fences()) == 1
        del node.endpoint.always[question]
        _back(node)
        assert node.asked() == [platform.replace or platform.reboot]


def answer_lost(lab: PlatformLab, platform: Platform) -> None:
    """A request that was carried out and not answered is never made again: its effect is looked for."""
    _without_an_answer(lab, platform, Fault(lost=True))


def answer_hangs(lab: PlatformLab, platform: Platform) -> None:
    """The same where the connection stays open and nothing comes."""
    _without_an_answer(lab, platform, Fault(hangs=True))


def _without_an_answer(lab: PlatformLab, platform: Platform, fault: Fault) -> None:
    operation, settings = _request_of(platform)
    with lab.machine(platform, settings={**settings, "provisioner.aws.timeout_s": 5}) as node:
        node.endpoint.fail(operation, fault)
        node.fault()
        _back(node)
        assert node.asked() == [operation]
        assert node.endpoint.count(operation) == 1


def denied(lab: PlatformLab, platform: Platform) -> None:
    """A right that is missing is no attempt's worth of waiting: it pages with the name of the right."""
    operation, settings = _request_of(platform)
    with lab.machine(platform, settings={**settings, "remediation.max_attempts": 1}) as node:
        node.endpoint.always[operation] = DENIED
        node.fault()
        node.wait(lambda: node.ends() == [End.FAILED], 90.0, "given up")
        _stays_out(node, f"the role needs the IAM action ec2:{operation}")
        assert node.asked() == []


QUESTIONS: Mapping[Platform, str] = {
    HYPERPOD_BY_API: "DescribeClusterNode",
    PARALLELCLUSTER: "DescribeInstances",
    AUTOSCALING: "DescribeAutoScalingInstances",
    EC2: "DescribeInstances",
}


def _request_of(platform: Platform) -> tuple[str, Mapping[str, object]]:
    """The request that is broken on this row: a replacement where a node can ask for one."""
    return (platform.replace, REPLACE_FIRST) if platform.replace else (platform.reboot, {})


# ---------------------------------------------------------------------------------------------------------------------
# slurmctld


def slurmctld_away(how: str) -> Callable[[PlatformLab, Platform], None]:
    """Four nodes at four places of a repair when slurmctld goes: each comes to its end, and each platform was asked
    once. ``stopped`` is for a whole minute."""

    def play(lab: PlatformLab, platform: Platform) -> None:
        with PlatformLab(lab.folder / f"away-{how}", lab.moto, lab.forks, nodes=4) as own:
            waits_for_job = own.machine(PARALLELCLUSTER)
            job = own.slurm.run_job(waits_for_job.name)
            verified = own.machine(EC2, settings={"remediation.settle_s": 20})
            replaced = own.machine(AUTOSCALING, settings=REPLACE_FIRST)
            handed_over = own.machine(HYPERPOD_BY_REASON, settings=REPLACE_FIRST)
            replaced.player.delay_s = handed_over.player.delay_s = 3.0
            # killed, slurmctld forgets what it has not saved: the machines are away until it is back
            replaced.player.capacity = handed_over.player.capacity = how != "killed"
            for node in own.machines:
                node.fault()
            waits_for_job.wait(lambda: f"waiting for {job}" in waits_for_job.log_text(), 90.0, "it waits for the job")
            for node in (replaced, handed_over):
                node.wait(node.asked, 90.0, "another machine is asked for")
            verified.wait(lambda: "healthy again; settling" in verified.log_text(), 90.0, "it is verified")
            _goes_and_comes_back(own, how)
            replaced.player.capacity = handed_over.player.capacity = True
            own.slurm.cancel(job)
            for node in own.machines:
                _back(node)
                assert node.asked() == [
                    node.platform.replace if node in (replaced, handed_over) else node.platform.reboot
                ]

    play.__name__ = f"slurmctld {how}"
    return play


def _goes_and_comes_back(lab: PlatformLab, how: str) -> None:
    match how:
        case "stopped":
            lab.slurm.ctld_stop()
            time.sleep(60.0)
            lab.slurm.ctld_start()
        case "hung":
            lab.slurm.ctld_pause()
            time.sleep(15.0)
            lab.slurm.ctld_resume()
        case _:
            time.sleep(6.0)  # slurmctld saves its state within 5 s of a change
            lab.slurm.ctld_stop(kill=True)
            lab.slurm.ctld_start()


# ---------------------------------------------------------------------------------------------------------------------


def _back(node: NodeMachine) -> None:
    node.wait(lambda: End.RELEASED in node.ends() and node.is_back(), 150.0, "back in service")


def _stays_out(node: NodeMachine, words: str) -> None:
    """Fenced, said in status and audit, and no more is done."""
    _says(node, words)
    asked = node.asked()
    time.sleep(QUIET_S)
    assert node.asked() == asked
    assert len(node.fences()) == 1
    assert not node.is_back()


def _says(node: NodeMachine, words: str) -> None:
    """In the history, and in what a person gets who asks for the status."""
    assert words in node.log_text()
    node.wait(lambda: words in str(node.daemon.status()), 30.0, f"status says {words!r}")


_REPLACE = tuple(platform for platform in PLATFORMS if platform.replace)
_BY_API = (HYPERPOD_BY_API, AUTOSCALING, AUTOSCALING_SOFTLY, EC2)
BRANCHES: Mapping[Callable[[PlatformLab, Platform], None], tuple[Platform, ...]] = {
    slurmctld_away("stopped"): (EC2,),
    slurmctld_away("hung"): (EC2,),
    slurmctld_away("killed"): (EC2,),
    no_capacity: _REPLACE,
    no_substitute: (AUTOSCALING,),
    reboot_ignored: (HYPERPOD_BY_REASON, HYPERPOD_BY_API, AUTOSCALING, EC2),
    reboot_timed_out: (PARALLELCLUSTER,),
    reboot_hangs: (HYPERPOD_BY_REASON, PARALLELCLUSTER, EC2),
    same_fault_again: (HYPERPOD_BY_REASON, HYPERPOD_BY_API, PARALLELCLUSTER, AUTOSCALING),
    rate_of_replacements: (HYPERPOD_BY_REASON,),
    job_never_ends: (PARALLELCLUSTER, AUTOSCALING),
    while_a_job_runs(resumes, End.ACKNOWLEDGED): (EC2,),
    while_a_job_runs(drains, End.LOST): (EC2, PARALLELCLUSTER),
    while_a_job_runs(changes_the_reason, End.LOST): (EC2,),
    while_a_job_runs(deletes_the_reservation, End.ACKNOWLEDGED): (PARALLELCLUSTER,),
    goes_on_without_its_reservation: (EC2,),
    while_it_reboots(drains, End.LOST): (EC2,),
    while_it_is_verified(resumes, End.ACKNOWLEDGED): (EC2,),
    while_it_is_verified(drains, End.LOST): (EC2, HYPERPOD_BY_REASON),
    while_it_is_verified(deletes_the_reservation, End.ACKNOWLEDGED): (PARALLELCLUSTER,),
    throttled: _BY_API,
    throttled_questions: tuple(QUESTIONS),
    answer_lost: _BY_API,
    answer_hangs: (HYPERPOD_BY_API, EC2),
    denied: (EC2,),
}
LEFT_OUT: Mapping[str, str] = {
    "slurmctld stopped": "four rows at once, each at another place of its repair: see slurmctld_away",
    "slurmctld hung": "as above",
    "slurmctld killed": "as above",
    "no_capacity": "ec2: a node cannot ask for another machine there",
    "no_substitute": "only an Auto Scaling group may have its hands bound while the node lives",
    "reboot_ignored": "parallelcluster, pcs: slurmctld times out first, see reboot_timed_out; softly: as autoscaling",
    "reboot_timed_out": "elsewhere slurmctld knows of no reboot; pcs: as parallelcluster",
    "reboot_hangs": "the same code waits on the other rows: a machine that is off has no daemon",
    "same_fault_again": "pcs: as parallelcluster; softly: as autoscaling; ec2: no replacement",
    "rate_of_replacements": "counted from the marks, which are the same on every row",
    "job_never_ends": "with a drain or with the reservation alone; which row it is makes no difference before the act",
    "resumes while a job runs": "on rows without a drain there is nothing to resume, and Slurm refuses it",
    "drains while a job runs": "the other rows drain as ec2 does",
    "changes_the_reason while a job runs": "on rows without a drain there is no reason to change",
    "deletes_the_reservation while a job runs": "where our drain holds the node: see goes_on_without_its_reservation",
    "goes_on_without_its_reservation": "the other rows drain as ec2 does",
    "drains while it reboots": "hyperpod: what its reason began is not looked at again; parallelcluster: a replacement",
    "resumes while it is verified": "on the other rows the platform has put the node back by then",
    "drains while it is verified": "parallelcluster, pcs: a drain is a replacement there; the rest as ec2",
    "deletes_the_reservation while it is verified": "where our drain holds the node it changes nothing",
    "throttled": "by reason, parallelcluster, pcs: nothing is asked of AWS for the act",
    "throttled_questions": "by reason: the node has no right to ask; pcs, softly: the same questions",
    "answer_lost": "by reason, parallelcluster, pcs: nothing is asked of AWS for the act",
    "answer_hangs": "as a lost answer for whoever waits; once where the daemon lives on, once where it ends",
    "denied": "judged in one place for every call (healthd.core.errors.BackendDenied)",
}
"""Why a branch is not played on every row."""

EVERY_SCENARIO = [Scenario(play=play, platform=platform) for play, rows in BRANCHES.items() for platform in rows]
OF_EACH_BRANCH = of_this_run().of({"trouble": EVERY_SCENARIO}, kind=lambda each: each.play.__name__, least=0)["trouble"]
SCENARIOS = of_this_run().some("branches", OF_EACH_BRANCH, 12)
"""`make test-exhaustive` plays all of them, `make test` half of the branches, each on one of its rows: others in each
run."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_what_goes_wrong_ends_as_it_must(results: Results, scenario: Scenario) -> None:
    """Back in service, or out with a person told; never asked twice, never somebody else's node."""
    results(scenario)


def test_every_branch_is_on_every_row_or_says_why_not() -> None:
    """No cell of the table is empty by accident."""
    partly = {play.__name__ for play, rows in BRANCHES.items() if set(rows) != set(PLATFORMS)}
    assert set(LEFT_OUT) == partly
