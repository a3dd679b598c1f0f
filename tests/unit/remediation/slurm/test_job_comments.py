"""What is made of ``scontrol show job``, and how an AdminComment is appended to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest

from healthd.core.errors import BackendUnknown
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.slurm.job_comments import (
    MOST_BYTES,
    append_comment,
    as_comment,
    expedites,
    notify_owner,
    parse_job,
)
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

# scontrol show job of 26.05.5, with SLURM_TIME_FORMAT=%s; some lines are left out.
RECORD = """JobId=7 JobName=wrap
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=1 BatchFlag=2 Reboot=0 ExitCode=3:0
   SubmitTime=1795000000 EligibleTime=1795000000
   StartTime=1795000010 EndTime=Unknown Deadline=N/A
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[0002-0003]
   BatchHost=n0002
   AdminComment={comment}
   WorkDir=/

"""


class Slurmctld:
    """A slurmctld of one job: it keeps the AdminComment, and the commands. ``meanwhile``: what others write at once."""

    def __init__(self, comment: str = "", *, meanwhile: Callable[[str], str] = lambda text: text) -> None:
        self.comment, self.meanwhile, self.commands = comment, meanwhile, list[list[str]]()
        self.config = "SlurmctldParameters     = enable_configless,enable_expedited_requeue\n"

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = 0
    ) -> CommandResult:
        _, *words = argv
        self.commands.append(words)
        out = ""
        match words:
            case ["show", "job", _]:
                record = RECORD if self.comment else RECORD.replace("   AdminComment={comment}\n", "")
                out = record.replace("{comment}", self.comment)
            case ["update", _, text]:
                self.comment = self.meanwhile(text.removeprefix("admincomment="))
            case ["show", "config"]:
                out = self.config
        return CommandResult(argv=tuple(argv), code=0, stdout=out, stderr="", duration_s=0.0)


def slurm(ctld: Slurmctld) -> SlurmOrchestrator:
    return SlurmOrchestrator(node="n0001", run=ctld)


def test_a_job_is_read_from_its_record() -> None:
    """State, user, nodes, restarts, exit and times; a time that is not known is None."""
    job = parse_job(RECORD.replace("{comment}", "x"))
    assert (job.id, job.state, job.user, job.nodes, job.restarts) == ("7", "RUNNING", "alice", "n[0002-0003]", 1)
    assert (job.exit_code, job.signal, job.end) == (3, 0, None)
    assert job.start == datetime.fromtimestamp(1795000010, UTC)


def test_a_record_with_little_in_it_makes_nothing_up() -> None:
    """A pending job has no nodes yet."""
    job = parse_job("JobId=8 JobState=PENDING NodeList=(null)")
    assert (job.nodes, job.restarts, job.exit_code, job.signal, job.comment) == ("", 0, None, None, "")


@pytest.mark.parametrize("answer", ["", "No jobs in the system", "JobId=7"])
def test_what_is_no_record_is_unknown(answer: str) -> None:
    """It raises, and no job is made of it."""
    with pytest.raises(BackendUnknown, match="printed no job"):
        parse_job(answer)


def test_a_finished_job_takes_no_comment() -> None:
    """FAILED is an end; held and requeued jobs, and those that complete just now, are none."""
    ended = {
        state: parse_job(f"JobId=8 JobState={state}").has_finished for state in ("FAILED", "REQUEUE_HOLD", "COMPLETING")
    }
    assert ended == {"FAILED": True, "REQUEUE_HOLD": False, "COMPLETING": False}


def test_the_sentences_of_healthd_are_found_among_others() -> None:
    """Those that begin as ours, oldest first; a semicolon inside a sentence does not cut it."""
    comment = "ticket 12; by hand; healthd: fault on node n1; healthd: node n1 XID 79 12:03:07; drained; requeued"
    job = parse_job(RECORD.replace("{comment}", comment))
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
    assert ctld.commands == [["notify", "7", "healthd: fault on node n1"]]


def test_whether_slurm_asks_its_epilogs_is_read_from_its_configuration() -> None:
    """One parameter among others, and none."""
    ctld = Slurmctld()
    assert expedites(slurm(ctld))
    ctld.config = "SlurmctldParameters     = enable_configless\nX = enable_expedited_requeue\n"
    assert not expedites(slurm(ctld))
