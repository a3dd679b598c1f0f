"""``[[match]]`` by the job that is on the node: which mode follows, what is refused, and what an unknown job means."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from healthd.agent.node_rules import JobsHere
from healthd.config.job_match import ModeByJob, mode_by_job
from healthd.config.load import Loaded, examine, load
from healthd.core.errors import BackendUnknown
from healthd.core.model import MODE_RANK, Mode, RunningJob
from tests.unit.config.test_config_load import CHECKS, NOWHERE, write
from tests.unit.config.test_config_match import FakeFacts

URGENT = RunningJob(id="12", partition="train", qos="urgent", account="ml", nodes=64)
SMALL = RunningJob(id="13", partition="debug", qos="normal", account="ml", nodes=1)
BASE = """
[remediation]
mode = "repair"
"""
ASK_FOR_URGENT = """
[[match]]
job_qos = ["urgent*"]
[match.remediation]
mode = "approve"
"""
LEAVE_LARGE_ALONE = """
[[match]]
job_nodes = 32
job_partition = ["train"]
[match.remediation]
mode = "observe"
"""


def loaded(text: str, folder: Path) -> Loaded:
    path = folder / "c.toml"
    path.write_text(text)
    return load(path, checks=CHECKS, environ={}, default_path=NOWHERE, who=lambda _: FakeFacts())


def mode(text: str, folder: Path, jobs: Sequence[RunningJob] | str, base: Mode = Mode.REPAIR) -> ModeByJob:
    return mode_by_job(loaded(text, folder).by_job, base, jobs)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ((), Mode.REPAIR),
        ((SMALL,), Mode.REPAIR),
        ((URGENT,), Mode.OBSERVE),  # both hold: the later goes over the earlier
        ((SMALL, URGENT), Mode.OBSERVE),
        ((RunningJob(id="1", partition="train", qos="urgent-2", account="x", nodes=31),), Mode.APPROVE),
        ((RunningJob(id="1", partition="train", qos="normal", account="x", nodes=32),), Mode.OBSERVE),
        ((RunningJob(id="1", partition="debug", qos="normal", account="x", nodes=32),), Mode.REPAIR),
    ],
)
def test_a_match_holds_while_one_job_meets_all_its_conditions(
    tmp_path: Path, jobs: Sequence[RunningJob], expected: Mode
) -> None:
    """Partition, QOS, account and size are of one and the same job."""
    found = mode(BASE + ASK_FOR_URGENT + LEAVE_LARGE_ALONE, tmp_path, jobs)
    assert found.mode is expected
    assert bool(found.why) is (expected is not Mode.REPAIR)


def test_the_words_name_the_job_and_the_match(tmp_path: Path) -> None:
    """With the line of the file where the match stands."""
    found = mode(BASE + ASK_FOR_URGENT, tmp_path, (URGENT,))
    job = "job 12, partition train, qos urgent, account ml, nodes 64"
    assert found.why == f"{job}: {tmp_path}/c.toml:5 (match[0]) holds, so that the mode is approve"


@pytest.mark.parametrize(
    ("jobs", "expected", "words"),
    [
        ("squeue is slow", Mode.OBSERVE, "squeue is slow: "),
        ((RunningJob(id="1", partition="train", nodes=1),), Mode.APPROVE, "the qos of job 1 is not known"),
        ((RunningJob(id="1", qos="normal", nodes=99),), Mode.OBSERVE, "the partition of job 1 is not known"),
        ((RunningJob(id="1", qos="normal", partition="train"),), Mode.OBSERVE, "the size of job 1 is not known"),
        ((RunningJob(id="1", qos="normal", partition="debug"),), Mode.REPAIR, ""),
    ],
)
def test_where_a_job_is_not_known_the_lowest_possible_mode_applies(
    tmp_path: Path, jobs: Sequence[RunningJob] | str, expected: Mode, words: str
) -> None:
    """A lower mode begins nothing that a higher one would not; a condition that is not met decides all the same."""
    found = mode(BASE + ASK_FOR_URGENT + LEAVE_LARGE_ALONE, tmp_path, jobs)
    assert found.mode is expected
    assert found.why.startswith(words)


def test_a_match_that_would_raise_the_mode_does_not_while_the_job_is_unknown(tmp_path: Path) -> None:
    """Repairs beneath jobs of the QOS that may be cut: of an unknown job the mode stays where it was."""
    text = '[[match]]\njob_qos = ["cheap"]\n[match.remediation]\nmode = "repair"\n'
    assert mode(text, tmp_path, (RunningJob(id="1", qos="cheap"),), Mode.QUARANTINE).mode is Mode.REPAIR
    unknown = mode(text, tmp_path, "no answer", Mode.QUARANTINE)
    assert (unknown.mode, unknown.why.partition(":")[0]) == (Mode.QUARANTINE, "no answer")
    assert "stays quarantine" in unknown.why


def test_an_unknown_job_never_goes_further_than_a_known_one(tmp_path: Path) -> None:
    """Whatever the order of the matches, and whichever job it turns out to be."""
    texts = [ASK_FOR_URGENT, LEAVE_LARGE_ALONE, ASK_FOR_URGENT.replace("approve", "repair")]
    for order in permutations(texts):
        text = BASE + "".join(order)
        for base in Mode:
            unknown = mode(text, tmp_path, "no answer", base).mode
            for jobs in ((), (SMALL,), (URGENT,), (SMALL, URGENT)):
                known = mode(text, tmp_path, jobs, base).mode
                assert MODE_RANK[unknown] <= MODE_RANK[known], (text, base, jobs)


def test_conditions_on_the_node_are_decided_at_the_start(tmp_path: Path) -> None:
    """A match by job of other nodes has no part here; the report says which of them holds by job."""
    here, there = (ASK_FOR_URGENT.replace("job_qos", f'host = ["{host}"]\njob_qos') for host in ("p5-7", "p5-8"))
    found = loaded(BASE + here + there, tmp_path)
    assert [each.place.endswith("(match[0])") for each in found.by_job] == [True]
    assert found.rulings[0].endswith('(match[0]) holds here by job: any node, host is ["p5-7"]')
    assert found.config.remediation.mode is Mode.REPAIR, "the mode without a job"


@pytest.mark.parametrize("by_file", [True, False])
def test_a_mode_from_an_environment_wins_over_every_job(tmp_path: Path, *, by_file: bool) -> None:
    """``HEALTHD_REMEDIATION_MODE=observe`` stops a node with any job: by the unit's file and by a variable."""
    (tmp_path / "c.toml").write_text(BASE + ASK_FOR_URGENT)
    environ = {"HEALTHD_REMEDIATION_MODE": "observe"}
    if by_file:
        (tmp_path / "environment").write_text("HEALTHD_REMEDIATION_MODE=observe\n")
    found = load(
        None,
        checks=CHECKS,
        environ={} if by_file else environ,
        default_path=tmp_path / "c.toml",
        who=lambda _: FakeFacts(),
    )
    assert found.config.remediation.mode is Mode.OBSERVE
    for jobs in ((URGENT,), "no answer"):
        assert mode_by_job(found.by_job, found.config.remediation.mode, jobs) == ModeByJob(mode=Mode.OBSERVE)
    (ruling,) = found.rulings
    assert "HEALTHD_REMEDIATION_MODE sets the mode, whichever job is on the node" in ruling
    assert "does not hold here by job: " in ruling
    assert found.notices == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ASK_FOR_URGENT + "settle_s = 5\n", "match[0].remediation.settle_s: not allowed in a match by job"),
        ('[[match]]\njob_qos = ["x"]\n', "match[0].remediation.mode: missing in a match by job"),
        (ASK_FOR_URGENT.replace("approve", "ask"), "match[0].remediation.mode"),
        (ASK_FOR_URGENT.replace('job_qos = ["urgent*"]', "job_nodes = -1"), "match[0].job_nodes"),
        (ASK_FOR_URGENT.replace("job_qos", "job_qoss"), "job_qos"),
        (ASK_FOR_URGENT + '[orchestrator]\nkind = "kubernetes"\n', "only Slurm tells healthd which job is on a node"),
    ],
)
def test_what_a_match_by_job_may_not_say_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """With the place, what is expected, and the next step."""
    found = examine(write(tmp_path, text), checks=CHECKS, environ={}, default_path=NOWHERE, who=lambda _: FakeFacts())
    assert found.loaded is None
    assert any(words in str(problem) for problem in found.problems), found.problems


class Queue:
    """squeue, which counts how often it is asked."""

    def __init__(self) -> None:
        self.asked, self.now_s, self.fails = 0, 0.0, False

    def read(self) -> tuple[RunningJob, ...]:
        self.asked += 1
        if self.fails:
            raise BackendUnknown("no answer")
        return (URGENT,)


def test_slurmctld_is_asked_while_a_fault_is_open_and_not_at_each_step(tmp_path: Path) -> None:
    """A healthy node asks nothing; one with a fault once in ten seconds; a failed reading is kept as long."""
    queue = Queue()
    here = JobsHere(loaded(BASE + ASK_FOR_URGENT, tmp_path).by_job, queue.read, lambda: queue.now_s)
    assert here.mode(Mode.REPAIR, is_calling=False) == ModeByJob(mode=Mode.REPAIR)
    assert queue.asked == 0
    assert [here.mode(Mode.REPAIR, is_calling=True).mode for _ in range(5)] == [Mode.APPROVE] * 5
    assert queue.asked == 1
    queue.now_s, queue.fails = 10.0, True
    failed = [here.mode(Mode.REPAIR, is_calling=True) for _ in range(5)]
    assert {each.mode for each in failed} == {Mode.APPROVE}
    assert "the job on this node is not known (no answer)" in failed[0].why
    assert queue.asked == 2
    assert JobsHere((), queue.read, lambda: 0.0).mode(Mode.REPAIR, is_calling=True).mode is Mode.REPAIR
