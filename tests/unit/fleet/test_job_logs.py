"""NCCL's words in the logs of a job, as a worker reads them: files of a user of the cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.fleet.job_logs import JobLogs
from healthd.probe import log_ops

TIMEOUT = "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, x\n"

pytestmark = pytest.mark.process


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[JobLogs]:
    found = JobLogs(f"{tmp_path}/%j/nccl.*")
    yield found
    found.close()


def test_the_logs_of_one_job_are_read(logs: JobLogs, tmp_path: Path) -> None:
    """Of its files the end, and no link, pipe or other job's."""
    (tmp_path / "7").mkdir()
    (tmp_path / "8").mkdir()
    (tmp_path / "7/nccl.0").write_text(TIMEOUT.format(rank=0))
    (tmp_path / "7/nccl.1").write_bytes(b"x" * (2 << 20) + b"\xff\n" + TIMEOUT.format(rank=1).encode())
    (tmp_path / "8/nccl.2").write_text(TIMEOUT.format(rank=2))
    (tmp_path / "7/nccl.2").symlink_to(tmp_path / "8/nccl.2")
    os.mkfifo(tmp_path / "7/nccl.3")
    found = logs("7")
    assert (found.timeouts, found.unread) == ({0: ("ALLREDUCE", 9), 1: ("ALLREDUCE", 9)}, "")
    assert logs("8").timeouts == {2: ("ALLREDUCE", 9)}
    assert logs("9").sentences() == ()


def test_a_job_with_too_many_logs_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One user's files keep no owner of another job waiting: the rest is left, and named."""
    monkeypatch.setattr(log_ops, "_MOST_IN_ALL", 100)
    for rank in range(4):
        (tmp_path / f"nccl.{rank}").write_text(TIMEOUT.format(rank=rank))
    found = log_ops.family(()).answer("words", {"pattern": f"{tmp_path}/nccl.*", "job": "7"})
    assert (found["read"], found["of"]) == (2, 4)
    assert [rank for rank, *_ in found["timeouts"]] == [0, 1]


def test_without_a_path_nothing_is_read() -> None:
    """The site names none."""
    assert JobLogs("")("7").sentences() == ()
