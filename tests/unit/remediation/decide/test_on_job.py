"""A job that cannot go on: which one, what is done next, and what never is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Component, Diagnosis, Mode, Remedy, Root, Severity
from healthd.remediation.decide.drive import ending_job
from healthd.remediation.decide.on_job import (
    WAIT,
    JobAct,
    JobMove,
    JobRestart,
    JobStage,
    OnJob,
    begun,
    next_move,
    on_its_gpu,
    parse,
)
from healthd.remediation.decide.rules import OWN_REMEDY, Policy, Rule
from healthd.remediation.ports import NodeJob
from healthd.testing import FakeClock

NOW = FakeClock().now()
GPU = Component(kind="gpu", id="GPU-5e1f")
REQUEUE = OnJob(after_s=300)
SIGNAL = OnJob(after_s=60, signal="USR1")
UNANSWERED = timedelta(seconds=300)
JOB = NodeJob(
    id="12",
    state="RUNNING",
    user="alice",
    nodes="n[1-4]",
    is_batch=True,
    may_requeue=True,
    is_here=True,
    began=NOW - timedelta(seconds=600),
)
REQUEUED = replace(JOB, state="COMPLETING", restarts=1, began=NOW + timedelta(seconds=60))
"""By others than healthd; slurmctld moves its start on until its processes have ended."""
HELD = replace(JOB, state="PENDING", nodes="", reason="JobHeldUser", held=True)


def _restart(stage: JobStage, age_s: float = 0.0) -> JobRestart:
    return JobRestart(job="12", run=0, title=JOB.title, stage=stage, at=NOW - timedelta(seconds=age_s))


def _next(restart: JobRestart, job: NodeJob | None, plan: OnJob = REQUEUE) -> JobMove:
    return next_move(restart, plan, job, now=NOW, unanswered=UNANSWERED)


# ---------------------------------------------------------------------------------------------------------------------
# what a rule says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("wait", WAIT),
        ("requeue after 5m", REQUEUE),
        ("requeue after 0s", OnJob(after_s=0)),
        ("requeue after 2h", OnJob(after_s=7200)),
        ("signal:USR1 then requeue after 60s", SIGNAL),
        ("signal:B:TERM then requeue after 1m", OnJob(after_s=60, signal="B:TERM")),
    ],
)
def test_a_rule_says_wait_requeue_or_signal_then_requeue(text: str, says: OnJob) -> None:
    """The three forms, with seconds, minutes and hours; and what it shows reads back as the same."""
    assert parse(text) == says
    assert parse(str(says)) == says


def _answer(code: str, severity: Severity, policy: Policy, *beside: str) -> OnJob | None:
    root = Root(code=code, severity=severity, remedy=Remedy.REBOOT_NODE, since=NOW)
    diagnosis = Diagnosis(
        code=code,
        component=GPU,
        severity=severity,
        remedy=Remedy.REBOOT_NODE,
        reasons=("seen",),
        since=NOW,
        codes=(code, *beside),
        roots=(root,),
    )
    found = ending_job(policy.answers([diagnosis]))
    return None if found is None else found.on_job


@pytest.mark.parametrize("xid", [79, 95, 119, 120, 48, 171, 172])
def test_a_job_is_acted_on_after_codes_whose_row_says_that_the_process_is_dead(xid: int) -> None:
    """By the policy's on_job, where no rule has one."""
    assert _answer(f"gpu.xid.{xid}", Severity.CRITICAL, Policy(on_job=REQUEUE)) == REQUEUE


@pytest.mark.parametrize("code", ["gpu.xid.46", "gpu.xid.74", "gpu.xid.13", "gpu.lost", "gpu.xid.63", "gpu.xid.4711"])
def test_no_other_code_acts_on_a_job(code: str) -> None:
    """Whatever the policy says."""
    assert _answer(code, Severity.CRITICAL, Policy(on_job=REQUEUE)) is None


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.INFO])
def test_a_warning_never_acts_on_a_job(severity: Severity) -> None:
    """Also of a code whose row says that the process is dead."""
    assert _answer("gpu.xid.79", severity, Policy(on_job=REQUEUE)) is None


def test_a_contained_memory_error_leaves_the_job_alone() -> None:
    """XID 94 beside 48: the program that had the memory ends, and its job with it, by itself."""
    policy = Policy(on_job=REQUEUE)
    assert _answer("gpu.xid.48", Severity.CRITICAL, policy, "gpu.xid.94") is None
    assert _answer("gpu.xid.95", Severity.CRITICAL, policy, "gpu.xid.94") == REQUEUE


def test_a_rule_goes_before_the_policy() -> None:
    """Its own on_job, also wait; and without one the policy's. The default is to wait."""
    rule = Rule(name="lost", codes=("gpu.xid.79",), reason="r", source="s", on_job=SIGNAL)
    waits = replace(rule, on_job=WAIT)
    assert _answer("gpu.xid.79", Severity.CRITICAL, Policy(rules=(rule, OWN_REMEDY), on_job=REQUEUE)) == SIGNAL
    assert _answer("gpu.xid.79", Severity.CRITICAL, Policy(rules=(waits, OWN_REMEDY), on_job=REQUEUE)) is None
    assert _answer("gpu.xid.79", Severity.CRITICAL, Policy()) is None
    assert (
        _answer("gpu.xid.79", Severity.CRITICAL, Policy(rules=(replace(rule, mode=Mode.OBSERVE), OWN_REMEDY))) == SIGNAL
    )


# ---------------------------------------------------------------------------------------------------------------------
# which job


def test_the_job_that_ran_when_the_fault_began_is_the_one() -> None:
    """It is named with its user and all of its nodes. One that ended before, or began after, is not."""
    before = replace(JOB, id="11", state="FAILED", ended=NOW - timedelta(seconds=60))
    after = replace(JOB, id="13", began=NOW + timedelta(seconds=60))
    just_before = replace(JOB, id="15", state="FAILED", ended=NOW - timedelta(seconds=1))
    in_order = replace(JOB, id="16", state="COMPLETED", ended=NOW + timedelta(seconds=1))
    waits = replace(JOB, id="14", state="PENDING", began=None)
    found = begun([before, just_before, after, in_order, waits, JOB], NOW, NOW)
    assert (found.job, found.run, found.stage) == ("12", 0, JobStage.CLAIMING)
    assert found.title == "12 of alice on n[1-4]"


def test_a_job_that_the_fault_ended_before_it_was_read_is_the_one() -> None:
    """It failed a moment after the fault."""
    assert begun([replace(JOB, state="FAILED", ended=NOW + timedelta(seconds=1))], NOW, NOW).stage is JobStage.CLAIMING


@pytest.mark.parametrize(
    ("index", "gpus", "goes_on"),
    [
        (3, {0, 1}, True),
        (3, {2, 3}, False),
        (3, set(), False),  # it may have all of them
        (None, {0, 1}, False),  # which of them it is, is not known
    ],
)
def test_a_job_without_the_gpu_that_failed_goes_on(index: int | None, gpus: set[int], goes_on: bool) -> None:
    """On a shared node the GPU is another job's, or no job's."""
    restart = on_its_gpu(begun([JOB], NOW, NOW), index, gpus, NOW)
    assert restart.is_over is goes_on
    if goes_on:
        words = "job 12 of alice on n[1-4] is left alone: GPU 3 is none of its GPUs here, which are 0, 1"
        assert restart.note == words


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([], "no job ran here"),
        ([JOB, replace(JOB, id="13")], "which of them the fault ended is not known"),
        ([replace(JOB, may_requeue=False)], "it forbids requeue"),
        ([replace(JOB, is_batch=False)], "no batch job"),
        ([replace(JOB, is_part=True)], "heterogeneous"),
        ([replace(JOB, state="COMPLETED", ended=NOW)], "it completed (COMPLETED)"),
        ([replace(JOB, state="PREEMPTED", ended=NOW, preempted=True)], "Slurm preempted it (PREEMPTED)"),
        ([replace(JOB, preempted=True)], "Slurm preempts it (RUNNING)"),
        ([replace(REQUEUED, preempted=True)], "Slurm preempts it (COMPLETING)"),
        ([REQUEUED], "Slurm requeues it already"),
        ([HELD], "Slurm holds it (JobHeldUser): release it by `scontrol release 12`"),
    ],
)
def test_a_job_that_may_not_be_restarted_is_left_and_said(jobs: list[NodeJob], words: str) -> None:
    """Each with its reason, once."""
    found = begun(jobs, NOW, NOW)
    assert found.is_over
    assert words in found.note


# ---------------------------------------------------------------------------------------------------------------------
# what is next


def test_the_signal_comes_first_then_the_grace_then_the_requeue() -> None:
    """And the signal once."""
    assert _next(_restart(JobStage.CLAIMED), JOB, SIGNAL).act is JobAct.SIGNAL
    waits = _next(_restart(JobStage.SIGNALLED, 59), JOB, SIGNAL)
    assert (waits.act, "requeued at" in waits.reason) == (JobAct.WAIT, True)
    assert _next(_restart(JobStage.SIGNALLED, 60), JOB, SIGNAL).act is JobAct.REQUEUE


def test_without_a_signal_the_time_counts_from_when_the_job_was_taken() -> None:
    """Five minutes, and at once for none."""
    assert _next(_restart(JobStage.CLAIMED, 299), JOB).act is JobAct.WAIT
    assert _next(_restart(JobStage.CLAIMED, 300), JOB).act is JobAct.REQUEUE
    assert _next(_restart(JobStage.CLAIMED), JOB, OnJob(after_s=0)).act is JobAct.REQUEUE


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL"])
@pytest.mark.parametrize("stage", [JobStage.CLAIMED, JobStage.SIGNALLED])
def test_a_job_that_failed_meanwhile_is_requeued_at_once(state: str, stage: JobStage) -> None:
    """The fault, or a signal that it does not handle, has ended it."""
    move = _next(_restart(stage), replace(JOB, state=state), SIGNAL)
    assert (move.act, f"failed ({state})" in move.reason) == (JobAct.REQUEUE, True)


@pytest.mark.parametrize("plan", [SIGNAL, OnJob(after_s=0)])
def test_a_suspended_job_is_left_until_it_runs_again(plan: OnJob) -> None:
    """slurmctld refuses a signal to it, and a requeue would run what an operator has stopped."""
    move = _next(_restart(JobStage.CLAIMED, 900), replace(JOB, state="SUSPENDED"), plan)
    assert (move.act, "it is suspended" in move.reason) == (JobAct.WAIT, True)


@pytest.mark.parametrize("stage", [JobStage.CLAIMED, JobStage.REQUEUED])
def test_a_failed_job_of_the_same_number_on_other_nodes_is_another(stage: JobStage) -> None:
    """slurmctld gives numbers again after it has lost its state."""
    move = _next(_restart(stage, 900), replace(JOB, state="FAILED", nodes="n[8-9]", is_here=False))
    assert (move.act, "not run on this node" in move.reason) == (JobAct.END, True)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("COMPLETED", "it completed"),
        ("CANCELLED", "it was cancelled"),
        ("PREEMPTED", "Slurm preempted it"),
        ("TIMEOUT", "it ran into its time limit"),
        ("DEADLINE", "it ran into its deadline"),
        ("OUT_OF_MEMORY", "it ran out of its own memory"),
        ("BOOT_FAIL", "a node of it did not boot"),
        ("REVOKED", "another cluster of its federation runs it"),
    ],
)
def test_a_job_that_is_over_is_not_requeued(state: str, words: str) -> None:
    """A checkpoint that ends the job in order is an end; a user's cancel is an order; an OOM is the job's own."""
    move = _next(_restart(JobStage.SIGNALLED), replace(JOB, state=state), SIGNAL)
    assert move == JobMove(act=JobAct.END, reason=f"job 12 of alice on n[1-4]: {words} ({state}); not requeued")


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "FAILED"])
def test_a_job_that_slurm_preempts_is_left_to_slurm(state: str) -> None:
    """In its grace, while it ends, and where it failed in its grace (22.05): Slurm cancels or requeues it, by the mode
    of its partition. After healthd's own requeue nothing changes."""
    job = replace(JOB, state=state, preempted=True)
    for stage in (JobStage.CLAIMED, JobStage.SIGNALLED):
        move = _next(_restart(stage, 900), job, SIGNAL)
        assert move == JobMove(
            act=JobAct.END, reason=f"job 12 of alice on n[1-4]: Slurm preempts it ({state}); not requeued"
        )
    ends = _next(_restart(JobStage.REQUEUED), replace(REQUEUED, preempted=True))
    assert (ends.act, ends.reason.endswith("its processes end")) == (JobAct.WAIT, True)


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT"])
def test_a_released_job_waits_as_any_other(state: str) -> None:
    """Its state is as before its release, until it runs."""
    released = replace(JOB, state=state, nodes="", restarts=1, is_here=False)
    assert _next(_restart(JobStage.ENDED, 9), released).act is JobAct.START
    assert "not requeued again" in _next(_restart(JobStage.SIGNALLED), released, SIGNAL).reason


@pytest.mark.parametrize("stage", [JobStage.SIGNALLED, JobStage.REQUEUED, JobStage.ENDED])
def test_a_job_that_is_held_waits_for_its_release(stage: JobStage) -> None:
    """Also one that was held while it ran, and is held since our requeue: free nodes alone do not start it."""
    move = _next(_restart(stage, 900), replace(HELD, restarts=1), SIGNAL)
    assert move.act is JobAct.END
    assert "Slurm holds it (JobHeldUser): release it by `scontrol release 12`" in move.reason
    assert ("not requeued" in move.reason) is (stage is JobStage.SIGNALLED)


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, state="PENDING", nodes="", restarts=1),
        replace(JOB, restarts=1, is_here=False),
    ],
)
def test_a_job_that_requeued_itself_is_not_requeued_again(job: NodeJob) -> None:
    """Whether it waits for its next run, or runs already."""
    move = _next(_restart(JobStage.SIGNALLED, 600), job, SIGNAL)
    assert (move.act, "not requeued again" in move.reason) == (JobAct.END, True)


def test_processes_that_end_are_waited_for() -> None:
    """A node that is completing has not said yet how the job ended."""
    for stage in (JobStage.CLAIMED, JobStage.REQUEUED):
        assert _next(_restart(stage, 900), replace(JOB, state="COMPLETING")).act is JobAct.WAIT


def test_our_requeue_ends_the_delay_of_slurm_and_then_nothing_more() -> None:
    """slurmctld puts two minutes before the next run, and counts that from the moment of the requeue on. Three seconds
    from when it was seen to have ended are left of it: a slurmd refuses a run that it takes for the last one."""
    waits = replace(JOB, state="PENDING", nodes="", restarts=1, is_here=False)
    assert _next(_restart(JobStage.REQUEUED), replace(JOB, state="COMPLETING", restarts=1)).act is JobAct.WAIT
    assert _next(_restart(JobStage.REQUEUED, 900), waits).act is JobAct.NOTE_END
    assert _next(_restart(JobStage.ENDED, 2.9), waits).act is JobAct.WAIT
    assert _next(_restart(JobStage.ENDED, 3), waits).act is JobAct.START
    assert _next(_restart(JobStage.ENDED, 9), replace(waits, state="FAILED")).reason.endswith("ended again (FAILED)")
    runs = _next(_restart(JobStage.REQUEUED), replace(JOB, restarts=1, nodes="n[2-5]", is_here=False))
    assert runs == JobMove(act=JobAct.END, reason="job 12 of alice on n[1-4]: requeued, runs on n[2-5]")
    assert _next(_restart(JobStage.REQUEUED), replace(JOB, state="CANCELLED")).reason.endswith("(CANCELLED)")


@pytest.mark.parametrize("job", [JOB, replace(JOB, state="FAILED")])
def test_a_requeue_without_effect_is_sent_again_once_it_is_void(job: NodeJob) -> None:
    """Only where the same run stands here still, after every request without an answer is void."""
    assert _next(_restart(JobStage.REQUEUED, 299), job).act is JobAct.WAIT
    assert _next(_restart(JobStage.REQUEUED, 300), job).act is JobAct.REQUEUE


@pytest.mark.parametrize(
    ("job", "plan", "words"),
    [
        (None, REQUEUE, "does not know it any more"),
        (JOB, WAIT, "no open fault has a rule"),
        (replace(JOB, state="FAILED"), WAIT, "no open fault has a rule"),
        (replace(JOB, is_here=False), REQUEUE, "does not run on this node any more"),
    ],
)
def test_nothing_is_done_where_the_ground_is_gone(job: NodeJob | None, plan: OnJob, words: str) -> None:
    """The job is forgotten, the fault is over, or the job has left the node."""
    move = _next(_restart(JobStage.CLAIMED, 900), job, plan)
    assert (move.act, words in move.reason) == (JobAct.END, True)


def test_a_clock_that_was_set_moves_the_grace() -> None:
    """An hour forward uses up no grace."""
    hour = timedelta(hours=1)
    restart = _restart(JobStage.SIGNALLED, 10).shifted(hour, NOW + hour)
    assert restart.at == NOW + hour - timedelta(seconds=10)
