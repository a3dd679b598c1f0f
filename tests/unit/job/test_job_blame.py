"""The blame for the end of a job: a pure call over the faults of its time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healthd.core.check import discover
from healthd.core.model import NODE, ClearsBy, Component, Remedy, Severity, gpu_component
from healthd.job.blame import CASCADE, Blame, JobVerdict, blame
from healthd.job.job import Job, Stop, job_of, stopped
from healthd.job.speakers import BlameRow, BlameTable, SpeaksFor, blame_table
from healthd.judge.history import Fault
from healthd.remediation.records.job_summaries import summarized_end
from healthd.remediation.records.summary import NodeState, NodeSummary

START = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
END = START + timedelta(hours=1)
JOB = Job(id="4711", user="alice", nodes="n[0001-0002]", start=START, end=END, exit_code=3, signal=0)
GPU = gpu_component(pci="0000:05:00", index=3)


def fault(
    code: str,
    at: timedelta = timedelta(minutes=30),
    *,
    severity: Severity = Severity.CRITICAL,
    component: Component = GPU,
    last: timedelta | None = None,
    clears_by: ClearsBy | None = ClearsBy.REBOOT,
    evidence: Mapping[str, object] = {},
) -> Fault:
    return Fault(
        code=code,
        component=component,
        check="a.check",
        severity=severity,
        remedy=Remedy.NONE,
        message=f"{code} happened",
        first=START + at,
        last=START + (at if last is None else last),
        boot_id="b",
        clears_by=clears_by,
        evidence=evidence,
    )


def oom(at: timedelta, **more: object) -> Fault:
    return fault("kernel.oom_job", at, severity=Severity.INFO, component=NODE, clears_by=ClearsBy.NOTHING, **more)  # type: ignore[arg-type]


def judged(*faults: Fault, job: Job = JOB, blind: tuple[str, ...] = ()) -> JobVerdict:
    return blame(job, faults, blame_table(), blind)


def test_a_hardware_fault_while_the_job_ran_is_the_nodes() -> None:
    """XID 79 in the middle of a job that failed: node, critical, and the fault is the root."""
    verdict = judged(fault("gpu.xid.79"))
    assert verdict.blame is Blame.NODE
    assert verdict.is_critical
    assert verdict.root is not None
    assert (verdict.root.code, verdict.root.at) == ("gpu.xid.79", START + timedelta(minutes=30))


def test_an_end_without_a_finding_is_the_jobs() -> None:
    """A job that fails on a node where nothing was found failed by itself."""
    verdict = judged()
    assert (verdict.blame, verdict.why, verdict.root) == (Blame.JOB, "no node fault seen", None)
    assert not verdict.is_critical


@pytest.mark.parametrize("evidence", [{"expected": 8}, {"limit": 8.0, "found": 7.0}])
def test_a_count_of_gpus_does_not_say_whose_gpu_is_gone(evidence: Mapping[str, object]) -> None:
    """Two jobs share the node, and GPU 3 of one of them falls off the bus: the other may have failed by itself. A job
    with all GPUs has lost one of its own."""
    gone = fault("gpu.count.off_bus", component=NODE, clears_by=None, evidence=evidence)
    half, whole = frozenset("4567"), frozenset("01234567")
    assert judged(fault("gpu.xid.79"), gone, job=replace(JOB, gpus=half)).blame is Blame.UNKNOWN
    silent = fault("gpu.gsp.silent", severity=Severity.WARNING, component=NODE, evidence={"gpu": "3"})
    assert judged(silent, job=replace(JOB, gpus=half)).blame is Blame.UNKNOWN
    assert judged(silent, job=replace(JOB, gpus=whole)).blame is Blame.NODE
    for gpus in (whole, frozenset[str]()):
        assert judged(gone, job=replace(JOB, gpus=gpus)).blame is Blame.NODE
    assert judged(fault("gpu.xid.79"), gone, job=replace(JOB, gpus=frozenset("0123"))).blame is Blame.NODE


def test_the_third_job_that_meets_an_error_on_one_gpu_is_not_called_its_cause() -> None:
    """XID 31 is a program's error; that three programs met it on the same GPU makes that suspect. Another job that ends
    there, without it, has no part in that."""
    own = fault("gpu.xid.31", severity=Severity.WARNING, clears_by=ClearsBy.JOB_END, evidence={"job": "4711"})
    assert judged(own).blame is Blame.JOB
    suspect = fault(
        "gpu.xid.repeated_across_jobs.31",
        severity=Severity.WARNING,
        clears_by=ClearsBy.GPU_RESET,
        evidence={"jobs": ["job:4711"]},
    )
    verdict = judged(own, suspect)
    assert (verdict.blame, [each.code for each in verdict.evidence]) == (Blame.UNKNOWN, [suspect.code, own.code])
    assert judged(suspect, job=replace(JOB, id="4712")).why == "no node fault seen"


def test_a_job_that_completed_has_no_blame() -> None:
    """Exit 0, with a fault of the hardware or without: nobody asks whose fault it was."""
    assert judged(fault("gpu.xid.79"), job=replace(JOB, exit_code=0)).blame is Blame.NONE


def ended(code: str, derived: str = "0", restarts: str = "1") -> Job:
    """The job of an Epilog, as Slurm 22.05, 24.11 and 26.05 tell it of a run that slurmctld ended: the number is that
    of the next one."""
    words = {"SLURM_JOB_EXIT_CODE2": code, "SLURM_JOB_DERIVED_EC": derived, "SLURM_JOB_RESTART_COUNT": restarts}
    return job_of({"SLURM_JOB_ID": "4711", **words}, start=START, end=END)


def test_a_requeued_run_is_the_nodes_where_it_has_a_fault() -> None:
    """As after on_job: its exit code says that it completed. It is counted as the run that it was."""
    job = stopped(ended("0:0"), preempted=False, requeued=True, restarts=1)
    assert (job.restarts, job.completed, job.ending) == (0, False, "requeued")
    assert judged(fault("gpu.xid.79"), job=job).blame is Blame.NODE
    without = judged(job=job, blind=("kernel.xid is unknown",))
    assert (without.blame, without.why) == (Blame.NONE, "the job was requeued; no node fault seen")


@pytest.mark.parametrize(("code", "derived"), [("0:0", "0"), ("0:0", "15"), ("143:0", "15")])
@pytest.mark.parametrize("requeued", [True, False])
def test_a_preempted_run_is_the_fault_of_no_one(code: str, derived: str, *, requeued: bool) -> None:
    """Cancelled or requeued, by SIGKILL or by the SIGTERM at the beginning of its grace, after which 26.05 tells the
    step's exit code and 22.05 the script's; with a fault of the node beside it or without."""
    restarts = "1" if requeued else "0"
    job = stopped(ended(code, derived, restarts), preempted=True, requeued=requeued, restarts=int(restarts))
    assert (job.stop, job.restarts, job.ending) == (Stop.PREEMPTED, 0, "preempted")
    for faults in ((), (fault("gpu.xid.79"),)):
        verdict = judged(*faults, job=job)
        assert (verdict.blame, verdict.why) == (Blame.NONE, "Slurm preempted the job")


@pytest.mark.parametrize(("code", "derived"), [("0:0", "0"), ("0:0", "15")])
def test_a_run_that_slurm_ended_is_the_nodes_where_it_has_a_fault(code: str, derived: str) -> None:
    """A collective that hangs on a lost GPU until the time limit; without a fault it is the fault of no one, and an
    error of its own is the job's."""
    job = stopped(ended(code, derived, "0"), preempted=False, requeued=False, restarts=0, ended=True)
    assert (job.stop, job.restarts, job.ending) == (Stop.ENDED, 0, "ended by Slurm")
    assert judged(fault("gpu.xid.79"), job=job).blame is Blame.NODE
    assert judged(job=job) == JobVerdict(blame=Blame.NONE, why="Slurm ended the job; no node fault seen")
    own = fault("gpu.xid.31", severity=Severity.WARNING, clears_by=ClearsBy.JOB_END)
    assert judged(own, job=job).blame is Blame.JOB


@pytest.mark.parametrize(("code", "derived"), [("3:0", "0"), ("0:9", "0")])
def test_a_run_that_failed_by_itself_is_not_a_requeued_one(code: str, derived: str) -> None:
    """Though Slurm runs it again."""
    job = ended(code, derived, "0")
    assert stopped(job, preempted=False, requeued=True, restarts=1) is job
    assert stopped(job, preempted=False, requeued=False, restarts=0, ended=True) is job


def test_a_user_level_xid_is_the_jobs() -> None:
    """XID 31 speaks for the job."""
    verdict = judged(fault("gpu.xid.31", severity=Severity.WARNING, clears_by=ClearsBy.JOB_END))
    assert (verdict.blame, verdict.why) == (Blame.JOB, "gpu.xid.31 happened")


def test_a_user_level_xid_of_another_job_says_nothing() -> None:
    """On a shared node the neighbour's XID 31 is not this job's."""
    other = fault("gpu.xid.31", severity=Severity.WARNING, clears_by=ClearsBy.JOB_END, evidence={"job": "12"})
    assert judged(other).why == "no node fault seen"
    mine = replace(other, evidence={"jobs": ["12", "4711"]})
    assert judged(mine).why == "gpu.xid.31 happened"


def test_what_a_check_could_not_tell_is_unknown() -> None:
    """A check that is unknown makes neither node nor job of it; a fault that was seen is the node's all the same."""
    assert judged(blind=("kernel.xid is unknown",)).blame is Blame.UNKNOWN
    assert judged(fault("gpu.xid.79"), blind=("efa.devices is unknown",)).blame is Blame.NODE


@pytest.mark.parametrize("code", ["gpu.xid.46", "gpu.xid.109", "nvml.unresponsive", "lustre.lbug", "made.up"])
def test_what_may_have_ended_the_job_is_unknown(code: str) -> None:
    """A critical finding that does not say by whose fault is never the node's and never the job's."""
    verdict = judged(fault(code))
    assert (verdict.blame, verdict.is_critical) == (Blame.UNKNOWN, False)


def test_a_fault_of_before_the_job_is_unclear() -> None:
    """XID 79 that stood before the job began, and a level that is seen again by each run, did not end it for sure."""
    old = fault("gpu.xid.79", timedelta(hours=-2))
    assert judged(old).blame is Blame.UNKNOWN
    level = fault("gpu.count.off_bus", timedelta(hours=-2), last=timedelta(minutes=50), clears_by=None)
    verdict = judged(level)
    assert verdict.blame is Blame.UNKNOWN
    assert verdict.evidence[0].before


@pytest.mark.parametrize("clears_by", [None, ClearsBy.REBOOT])
def test_a_warning_of_before_the_job_says_nothing_about_it(clears_by: ClearsBy | None) -> None:
    """A node that has warned for days would make every failed job unknown. The fleet's verdict, by what its nodes
    write, is the same; so is that of a warning that came while the job ran."""
    days_ago, later = START - timedelta(days=2), START + timedelta(minutes=5)
    warning = fault("gpu.nvlink.errors", timedelta(days=-2), severity=Severity.WARNING, clears_by=clears_by)
    new = fault("gpu.nvlink.errors", timedelta(minutes=5), severity=Severity.WARNING, clears_by=clears_by)

    def of_the_fleet(since: datetime) -> Blame:
        state = NodeSummary(state=NodeState.WARNING, code=warning.code, since=since, at=END)
        end = summarized_end("4711:0", ["n1"], {"n1": state}, began=START, ended=END, silent_after_s=60.0)
        return end.blame

    assert (judged(warning).blame, judged(warning).evidence) == (of_the_fleet(days_ago), ()) == (Blame.JOB, ())
    assert judged(new).blame is of_the_fleet(later) is Blame.UNKNOWN


def test_a_fault_that_grew_while_the_job_ran_is_the_nodes() -> None:
    """A new line of the kernel log about a fault of before: it grew, at that time."""
    grown = fault("gpu.xid.48", timedelta(hours=-2), last=timedelta(minutes=50))
    verdict = judged(grown)
    assert verdict.blame is Blame.NODE
    assert verdict.evidence[0].at == START + timedelta(minutes=50)


def test_a_fault_after_the_job_is_no_evidence() -> None:
    """A fault of after the end, and one that grew only then, say nothing about the job."""
    assert judged(fault("gpu.xid.79", timedelta(hours=1, seconds=3))).why == "no node fault seen"
    later = fault("gpu.xid.48", timedelta(hours=-2), last=timedelta(hours=2))
    assert judged(later).blame is Blame.UNKNOWN
    assert judged(fault("gpu.xid.79", timedelta(hours=1, seconds=1))).blame is Blame.NODE


def test_a_job_level_fault_of_before_is_not_this_jobs() -> None:
    """What another job left behind is no error of this one."""
    left = fault("gpu.xid.13", timedelta(hours=-1), severity=Severity.WARNING, clears_by=ClearsBy.JOB_END)
    assert judged(left).why == "no node fault seen"


def test_a_job_without_known_times_has_all_that_is_open() -> None:
    """Without a start each open fault counts, and without an end there is no later one."""
    nowhen = replace(JOB, start=None, end=None)
    assert judged(fault("gpu.xid.79", timedelta(hours=-2)), job=nowhen).blame is Blame.NODE
    endless = replace(JOB, end=None)
    assert judged(fault("gpu.xid.48", timedelta(hours=-2), last=timedelta(hours=9)), job=endless).blame is Blame.NODE


def test_the_jobs_own_error_before_the_fault_makes_it_unknown() -> None:
    """Out of its own memory a minute before XID 79: nobody knows which ended the job; long before, it did not."""
    assert judged(oom(timedelta(minutes=29)), fault("gpu.xid.79")).blame is Blame.UNKNOWN
    early = oom(timedelta(minutes=30) - CASCADE - timedelta(seconds=1))
    assert judged(early, fault("gpu.xid.79")).blame is Blame.NODE
    assert judged(oom(timedelta(minutes=31)), fault("gpu.xid.79")).blame is Blame.NODE


def test_the_first_sign_on_the_same_part_is_the_fault_itself() -> None:
    """XID 31, and seconds later XID 79 on the same GPU: a GPU that dies, and not an error of the job."""
    sign = fault("gpu.xid.31", timedelta(minutes=29), severity=Severity.WARNING, clears_by=ClearsBy.JOB_END)
    assert judged(sign, fault("gpu.xid.79")).blame is Blame.NODE


def test_whichever_of_an_own_error_and_an_unclear_one_came_first_decides() -> None:
    """Out of its own memory, then a mount that does not answer: job; the other way round: unknown."""
    mount = fault("lustre.connection_lost", severity=Severity.WARNING, component=NODE)
    assert judged(oom(timedelta(minutes=20)), mount).blame is Blame.JOB
    assert judged(oom(timedelta(minutes=40)), mount).blame is Blame.UNKNOWN


def test_on_a_shared_node_the_gpu_of_another_is_unclear() -> None:
    """XID 79 on GPU 3 of a job that has GPUs 0 and 1, or on one of no known index: unknown; on its own: node."""
    small = replace(JOB, gpus=frozenset({"0", "1"}))
    assert judged(fault("gpu.xid.79"), job=small).blame is Blame.UNKNOWN
    assert judged(fault("gpu.xid.79"), job=replace(JOB, gpus=frozenset({"3"}))).blame is Blame.NODE
    nameless = replace(GPU, aliases=())
    assert judged(fault("gpu.xid.79", component=nameless), job=small).blame is Blame.UNKNOWN
    switch = Component(kind="nvswitch", id="0000:c1:00")
    assert judged(fault("nvswitch.sxid.20034", component=switch), job=small).blame is Blame.NODE


def test_an_end_that_is_not_known_is_unknown() -> None:
    """A job whose exit no hook told is not blamed for it."""
    verdict = judged(job=replace(JOB, exit_code=None, signal=None))
    assert verdict.blame is Blame.UNKNOWN


def test_a_warning_of_the_hardware_is_not_critical() -> None:
    """XID 94 ended the process and leaves the node usable: node, and nothing to drain for."""
    verdict = judged(fault("gpu.xid.94", severity=Severity.WARNING, clears_by=ClearsBy.GPU_RESET))
    assert (verdict.blame, verdict.is_critical) == (Blame.NODE, False)


# ---------------------------------------------------------------------------------------------------------------------
# the table


def test_every_code_of_every_check_has_a_row() -> None:
    """No code falls through to the last row: a new check says whom it speaks for."""
    codes = [code.code for check in discover().values() for code in check.codes]
    assert [code for code in codes if blame_table().row(code).code == "*"] == []


def test_every_row_decides_for_some_code() -> None:
    """A row that a more specific one hides is none."""
    table = blame_table()
    codes = {code.code.replace("*", "9") for check in discover().values() for code in check.codes}
    codes |= {f"gpu.xid.{number}" for number in range(1, 400)} | {"nvswitch.sxid.1", "something.else", "gpu.power.x"}
    found = {id(table.row(code)) for code in codes}
    assert [row.code for row in table.rows if id(row) not in found] == []


def test_a_check_whose_findings_may_blame_the_node_is_known() -> None:
    """A family by its own rows, a code by the row that decides: an unknown of any other check says nothing."""
    asked = ("gpu.xid.*", "nvswitch.sxid.*", "gpu.lost", "stack.mismatch", "gpu.throttle.heat")
    assert [blame_table().may_blame(code) for code in asked] == [True, True, True, False, False]


def test_the_most_specific_row_decides() -> None:
    """A code before a category, a category before a family, a longer family before a shorter one."""

    def row(code: str, category: str = "") -> BlameRow:
        whom = SpeaksFor.NODE
        return BlameRow(code=code, category=category, critical=whom, otherwise=whom, reason="r", source="s")

    table = BlameTable.of([row("*"), row("gpu.*"), row("gpu.xid.*", "app"), row("gpu.xid.*"), row("gpu.xid.13")])
    asked = ("gpu.xid.13", "gpu.xid.31", "gpu.xid.79", "gpu.lost", "efa.missing")
    found = [(table.row(code).code, table.row(code).category) for code in asked]
    assert found == [("gpu.xid.13", ""), ("gpu.xid.*", "app"), ("gpu.xid.*", ""), ("gpu.*", ""), ("*", "")]


# ---------------------------------------------------------------------------------------------------------------------
# the job


def test_the_job_of_a_hook_is_read_from_its_environment() -> None:
    """Each variable of the Epilog of 26.05 has its field."""
    job = job_of(
        {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_USER": "alice",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_START_TIME": "1795000000",
            "SLURM_JOB_END_TIME": "1795000060",
            "SLURM_JOB_EXIT_CODE2": "3:0",
            "SLURM_JOB_RESTART_COUNT": "1",
            "SLURM_JOB_GPUS": "0,3",
        }
    )
    assert (job.id, job.user, job.nodes, job.restarts) == ("7", "alice", "n[1-2]", 1)
    assert (job.exit_code, job.signal, job.gpus) == (3, 0, frozenset({"0", "3"}))
    assert job.start is not None
    assert job.end is not None
    assert (job.end - job.start).total_seconds() == 60


def test_the_epilog_of_an_older_slurm_leaves_fields_empty() -> None:
    """22.05 has no times and says SLURM_NODELIST: the caller's times stand in, and nothing is made up."""
    job = job_of({"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n1", "SLURM_JOB_EXIT_CODE2": "odd"}, start=START, end=END)
    assert (job.nodes, job.start, job.end, job.exit_code, job.signal) == ("n1", START, END, None, None)
    assert job_of({}).id == "unknown"


@pytest.mark.parametrize(
    ("code", "derived", "ending"),
    [
        ("0:0", "0", "completed"),
        ("0:0", "768", "exit code 3"),
        ("0:0", "9", "signal 9"),
        ("3:0", "0", "exit code 3"),
        ("0:9", "0", "signal 9"),
        ("", "", "end not known"),
    ],
)
def test_the_end_of_a_job_in_words(code: str, derived: str, ending: str) -> None:
    """A failed step that the batch script did not pass on is no success; its end is a wait status."""
    job = job_of({"SLURM_JOB_EXIT_CODE2": code, "SLURM_JOB_DERIVED_EC": derived})
    assert job.ending == ending
    assert job.completed == (ending == "completed")
