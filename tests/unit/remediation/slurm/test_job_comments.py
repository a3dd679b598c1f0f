"""What is made of squeue's words about a job, and how an AdminComment is appended to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.slurm.job_comments import (
    MOST_BYTES,
    SlurmJob,
    append_comment,
    as_comment,
    expedites,
    notify_owner,
    parse_texts,
    read_job,
    tell_owners,
)
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

# squeue of 22.05.8, with SLURM_TIME_FORMAT=%s.
JOB = "{id}|{number}|{state}|alice|n[0002-0003]|1|1|1|N/A|1795000010|NONE|1|N/A|None|\n"


class Slurmctld:
    """A slurmctld of one job: it keeps the AdminComment, and the commands. ``meanwhile``: what others write at once."""

    def __init__(
        self, comment: str = "(null)", *, meanwhile: Callable[[str], str] = lambda text: text, jobs: str = ""
    ) -> None:
        self.comment, self.meanwhile, self.commands = comment, meanwhile, list[list[str]]()
        self.exit_code = "0"
        self.jobs = jobs or JOB.format(id="7", number="7", state="RUNNING")
        self.config = "SlurmctldParameters     = enable_configless,enable_expedited_requeue\n"

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = 0
    ) -> CommandResult:
        _, *words = argv
        self.commands.append(words)
        out = ""
        match words:
            case [*_, "-j", job, "-O", "JobArrayID:|,exit_code:|,admin_comment:|"]:
                out = f"{job}|{self.exit_code}|{self.comment}|\n"
            case ["-h", *_]:
                out = self.jobs
            case ["update", _, text]:
                self.comment = self.meanwhile(text.removeprefix("admincomment="))
            case ["show", "config"]:
                out = self.config
        return CommandResult(argv=tuple(argv), code=0, stdout=out, stderr="", duration_s=0.0)


def slurm(ctld: Slurmctld) -> SlurmOrchestrator:
    return SlurmOrchestrator(node="n0001", run=ctld)


def test_a_job_is_read() -> None:
    """State, user, nodes, restarts, start; a time that is not known is None."""
    job = read_job(slurm(Slurmctld("ticket 12")), "7")
    assert (job.id, job.state, job.user, job.nodes, job.restarts) == ("7", "RUNNING", "alice", "n[0002-0003]", 1)
    assert (job.start, job.comment) == (datetime.fromtimestamp(1795000010, UTC), "ticket 12")
    waits = read_job(slurm(Slurmctld(jobs="8|8|PENDING|alice|(null)|0|1|1|N/A|N/A|NONE|1|N/A|None|\n")), "8")
    assert (waits.nodes, waits.start, waits.comment, waits.held) == ("", None, "", False)
    held = read_job(slurm(Slurmctld(jobs="8|8|PENDING|alice|(null)|0|1|1|N/A|N/A|NONE|0|N/A|JobHeldAdmin|\n")), "8")
    assert (held.reason, held.held) == ("JobHeldAdmin", True)


def test_a_job_that_slurmctld_has_forgotten_is_refused() -> None:
    """It raises, and no job is made of it."""
    with pytest.raises(BackendRefused, match="does not know job 9"):
        read_job(slurm(Slurmctld()), "9")


@pytest.mark.parametrize("answer", ["", "8|0|x|\n", "7|0|x", "7|x|\n", "slurm_load_jobs error"])
def test_what_is_no_comment_is_unknown(answer: str) -> None:
    """An append to it would overwrite the one that is there."""
    with pytest.raises(BackendUnknown, match="no AdminComment of job 7"):
        parse_texts(answer, "7")


def test_a_comment_is_read_whole() -> None:
    """With its line breaks and bars, and once where it is printed for each partition."""
    assert parse_texts("7|0|a|b\nc d|\n", "7").comment == "a|b\nc d"
    assert parse_texts("7|0|a|b\nc d|\n7|0|a|b\nc d|\n", "7").comment == "a|b\nc d"
    assert parse_texts("7_1|0|(null)|\n", "7_1").comment == ""


def test_the_comment_of_a_part_is_its_own() -> None:
    """Asked for one part of a heterogeneous job, squeue prints all; one of many partitions is printed once for each."""
    answer = "7+0|0|(null)|\n7+1|9|a|b\nc d|\n7+1|9|a|b\nc d|\n7+2|0|x|\n"
    assert [parse_texts(answer, f"7+{part}").comment for part in range(3)] == ["", "a|b\nc d", "x"]
    assert parse_texts(answer, "7+1").signal == 9
    with pytest.raises(BackendUnknown, match=r"no AdminComment of job 7\+3"):
        parse_texts(answer, "7+3")


@pytest.mark.parametrize(
    ("status", "end"),
    [("0", (0, 0)), ("768", (3, 0)), ("9", (0, 9)), ("15", (0, 15)), ("0:0", (0, 0)), ("3:0", (3, 0)), ("0:9", (0, 9))],
)
def test_the_end_of_a_job_is_read_as_each_version_prints_it(status: str, end: tuple[int, int]) -> None:
    """22.05 prints a wait status, 26.05 exit code and signal."""
    ctld = Slurmctld()
    ctld.exit_code = status
    job = read_job(slurm(ctld), "7")
    assert (job.exit_code, job.signal) == end


def test_a_comment_that_cannot_be_read_is_not_overwritten() -> None:
    """slurmctld does not answer between two requests."""

    class Away(Slurmctld):
        def __call__(
            self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = 0
        ) -> CommandResult:
            done = super().__call__(argv, timeout_s=timeout_s, env=env)
            return replace(done, code=1, stdout="", stderr="Socket timed out") if "admin_comment" in argv[-1] else done

    ctld = Away("ticket 12")
    with pytest.raises(BackendUnknown, match="AdminComment of job 7: exit status 1: Socket timed out"):
        append_comment(slurm(ctld), "7", "a sentence", sleep=lambda _: None)
    assert ctld.comment == "ticket 12"


def test_the_comment_of_a_task_is_not_that_of_its_array() -> None:
    """The number of the last task is that of the array: an update of it would be one of every task."""
    tasks = [JOB.format(id=f"7_{task}", number=number, state="RUNNING") for task, number in ((2, 7), (1, 9), (0, 8))]
    ctld = Slurmctld(jobs="".join(reversed(tasks)))
    assert append_comment(slurm(ctld), "7", "a sentence", sleep=lambda _: None) == ""
    assert [words[1] for words in ctld.commands if words[0] == "update"] == ["jobid=7_2"]
    notify_owner(slurm(ctld), "8", "a sentence")
    assert ctld.commands[-1][:2] == ["notify", "7_0"]


def test_a_finished_job_takes_no_comment() -> None:
    """FAILED is an end; held and requeued jobs, and those that complete just now, are none."""
    ended = {state: SlurmJob(id="8", state=state).has_finished for state in ("FAILED", "REQUEUE_HOLD", "COMPLETING")}
    assert ended == {"FAILED": True, "REQUEUE_HOLD": False, "COMPLETING": False}


def test_the_sentences_of_healthd_are_found_among_others() -> None:
    """Those that begin as ours, oldest first; a semicolon inside a sentence does not cut it."""
    comment = "ticket 12; by hand; healthd: fault on node n1; healthd: node n1 XID 79 12:03:07; drained; requeued"
    job = SlurmJob(id="7", state="RUNNING", comment=comment)
    assert job.said == ("fault on node n1", "node n1 XID 79 12:03:07; drained; requeued")


def test_a_comment_is_appended_to_and_written_once() -> None:
    """Another's text stays in front; the same sentence again changes nothing."""
    ctld = Slurmctld("ticket 12")
    for _ in range(2):
        assert append_comment(slurm(ctld), "7", "no node fault seen on 1 node", sleep=lambda _: None) == ""
    assert ctld.comment == "ticket 12; healthd: no node fault seen on 1 node"
    assert sum(words[0] == "update" for words in ctld.commands) == 1


def test_a_sentence_that_another_overwrote_is_written_again() -> None:
    """Two nodes read the same text: the one that lost writes once more, behind the other's."""
    others = iter(["healthd: node n2 XID 79 12:00:00; drained"])
    ctld = Slurmctld(meanwhile=lambda text: next(others, text))
    assert append_comment(slurm(ctld), "7", "node n1 XID 79 12:00:00; drained", sleep=lambda _: None) == ""
    assert ctld.comment.split("; healthd: ") == [
        "healthd: node n2 XID 79 12:00:00; drained",
        "node n1 XID 79 12:00:00; drained",
    ]


def test_a_comment_that_others_always_overwrite_is_given_up() -> None:
    """After some attempts it says so."""
    ctld = Slurmctld(meanwhile=lambda _: "mine")
    assert "written by others" in append_comment(slurm(ctld), "7", "a sentence", sleep=lambda _: None)


def test_a_long_comment_is_left_alone() -> None:
    """A job that was requeued for weeks does not fill slurmctld's memory."""
    ctld = Slurmctld("x" * MOST_BYTES)
    assert "bytes already" in append_comment(slurm(ctld), "7", "a sentence", sleep=lambda _: None)
    assert ctld.comment == "x" * MOST_BYTES


def test_a_sentence_is_one_plain_line() -> None:
    """Neither a line break nor what separates columns."""
    assert as_comment('a\n b|"c"\té') == "a b??c? ?"


def test_the_owner_is_notified_in_our_name() -> None:
    """scontrol notify, with our beginning."""
    ctld = Slurmctld()
    notify_owner(slurm(ctld), "7", "fault on node n1")
    assert ctld.commands[1:] == [["notify", "7", "healthd: fault on node n1"]]


class SharedNode:
    """A slurmctld of a node with four jobs: 7 ends just now, 8 and 10 run, 9 is forgotten between two requests."""

    def __init__(self, silent: str = "") -> None:
        self.comments, self.notified, self.silent = {"8": "(null)", "10": "ticket 12"}, list[str](), silent

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = 0
    ) -> CommandResult:
        code, out, error = 0, "", ""
        match argv[1:]:
            case [*_, "-o", _]:
                out = "".join(f"{job}|main|||1\n" for job in (7, 8, 9, 10))
            case ["-h", *_, "-j", "9", "-O", _]:
                code, error = 1, "slurm_load_jobs error: Invalid job id specified"
            case [*_, "-j", job, "-O", "JobArrayID:|,exit_code:|,admin_comment:|"]:
                out = f"{job}|0|{self.comments.get(job, '(null)')}|\n"
            case [*_, "-j", job, "-O", _]:
                out = JOB.format(id=job, number=job, state="COMPLETING" if job == "7" else "RUNNING")
            case ["update", job, _] if job == f"jobid={self.silent}":
                code, error = 1, "slurm_update error: Unable to contact slurm controller (connect failure)"
            case ["update", "jobid=7", _]:
                code, error = 1, "Job has already finished for job 7"
            case ["update", job, text]:
                self.comments[job.removeprefix("jobid=")] = text.removeprefix("admincomment=")
            case ["notify", job, _]:
                self.notified.append(job)
        return CommandResult(argv=tuple(argv), code=code, stdout=out, stderr=error, duration_s=0.0)


def test_a_job_that_ends_keeps_the_notice_from_no_other() -> None:
    """Nor does one that slurmctld has forgotten meanwhile; each is a problem with its reason."""
    node = SharedNode()
    seven, nine = tell_owners(SlurmOrchestrator(node="n0002", run=node), "fault on node n0002")
    assert node.comments == {"8": "healthd: fault on node n0002", "10": "ticket 12; healthd: fault on node n0002"}
    assert node.notified == ["8", "10"]
    assert "job 7: no notice of the drain: scontrol update jobid=7" in seven
    assert "Job has already finished" in seven
    assert "slurmctld does not know job 9" in nine


def test_a_job_is_notified_once() -> None:
    """The daemon after this one finds the sentence in the AdminComment."""
    node = SharedNode()
    for _ in range(2):
        tell_owners(SlurmOrchestrator(node="n0002", run=node), "fault on node n0002")
    assert node.notified == ["8", "10"]


def test_a_daemon_that_stops_notifies_no_further_job() -> None:
    """The next daemon does."""
    node = SharedNode()
    tell_owners(SlurmOrchestrator(node="n0002", run=node), "fault on node n0002", lambda: bool(node.notified))
    assert node.notified == ["8"]


def test_a_slurmctld_that_does_not_answer_is_asked_no_more() -> None:
    """The jobs behind the one without an answer are not tried, each with its own timeout."""
    node = SharedNode(silent="8")
    with pytest.raises(BackendUnknown, match="Unable to contact"):
        tell_owners(SlurmOrchestrator(node="n0002", run=node), "fault on node n0002")
    assert node.comments["10"] == "ticket 12"


def test_whether_slurm_asks_its_epilogs_is_read_from_its_configuration() -> None:
    """One parameter among others, and none."""
    ctld = Slurmctld()
    assert expedites(slurm(ctld))
    ctld.config = "SlurmctldParameters     = enable_configless\nX = enable_expedited_requeue\n"
    assert not expedites(slurm(ctld))
