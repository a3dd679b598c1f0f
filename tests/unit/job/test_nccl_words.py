"""NCCL's own words in a job's log: texts as PyTorch's ProcessGroupNCCL prints them, constructed from its source."""

from __future__ import annotations

from healthd.job.nccl_words import parse_words

OLD = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 "
    "milliseconds before timing out.\n"
)
NEW = (
    "[rank{rank}]:[E1124 12:00:00.1 ProcessGroupNCCL.cpp:629] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=4, NumelOut=4, "
    "Timeout(ms)=600000) ran for 600081 milliseconds before timing out.\n"
)
DUMP = "[PG ID 0 Rank {rank}] Finished writing Flight Recorder debug info to /tmp/nccl_trace_rank_{rank}\n"


def timeout(rank: int, number: int = 1234, operation: str = "ALLREDUCE", form: str = NEW) -> str:
    return form.format(rank=rank, number=number, operation=operation)


def test_the_rank_that_did_not_time_out_is_not_in_the_collective() -> None:
    """Fifteen of sixteen waited; both forms of the line are read."""
    found = parse_words(["".join(timeout(rank, form=NEW if rank % 2 else OLD) for rank in range(16) if rank != 5)])
    assert found.sentences(16) == (
        "15 ranks timed out in ALLREDUCE number 1234",
        "no timeout of rank 5: not in that collective",
    )
    assert found.sentences() == ("15 ranks timed out in ALLREDUCE number 1234",)


def test_a_rank_in_another_collective() -> None:
    """The first timeout of a rank counts, over all files; ranks that wait in another one are a mismatch."""
    found = parse_words([timeout(0) + timeout(0, 1235), timeout(1) + timeout(2, 1230, "BROADCAST")])
    assert found.timeouts == {0: ("ALLREDUCE", 1234), 1: ("ALLREDUCE", 1234), 2: ("BROADCAST", 1230)}
    assert found.sentences(3) == (
        "2 ranks timed out in ALLREDUCE number 1234",
        "1 rank timed out in BROADCAST number 1230",
    )


def test_a_rank_in_a_group_is_none_in_the_job() -> None:
    """Two tensor-parallel groups of eight: each rank of the job but rank 5 timed out, though each group counts from 0,
    and so does the text of the exception."""
    group = "[PG ID 3 PG GUID 11(TENSOR_MODEL_PARALLEL_GROUP) Rank {local}] "
    lines = [
        timeout(rank).replace(f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] ", group.format(local=rank % 8))
        + f"  what():  {group.format(local=rank % 8)}Process group watchdog thread terminated with exception: "
        + timeout(rank % 8, form=OLD).partition("] ")[2]
        for rank in range(16)
        if rank != 5
    ]
    assert parse_words(["".join(lines)]).sentences(16) == (
        "15 ranks timed out in ALLREDUCE number 1234",
        "no timeout of rank 5: not in that collective",
    )
    assert parse_words([timeout(3, form=OLD).partition(":523] ")[2]]).timeouts == {3: ("ALLREDUCE", 1234)}


def test_many_silent_ranks() -> None:
    """Eight are named; where more than half are silent, the log is not that of all ranks."""
    found = parse_words(["".join(map(timeout, range(20)))])
    assert found.sentences(30)[1].startswith("no timeout of rank 20, 21, 22, 23, 24, 25, 26, 27 and 2 more: ")
    assert found.sentences(300) == ("20 ranks timed out in ALLREDUCE number 1234",)


def test_dumps_are_named() -> None:
    """Each once; they are pickles, and nothing opens them."""
    found = parse_words([DUMP.format(rank=0) * 2, DUMP.format(rank=1).replace("Flight Recorder", "NCCLPG")])
    assert found.sentences() == ("2 flight recorder dumps, such as /tmp/nccl_trace_rank_0",)
    assert parse_words([DUMP.format(rank=3)]).sentences() == ("1 flight recorder dump, such as /tmp/nccl_trace_rank_3",)


def test_other_text_says_nothing() -> None:
    """A log without these words, however it looks."""
    assert parse_words(["", "[Rank 5] Watchdog caught a cold\nNCCL INFO comm 0x1 rank 0\n"]).sentences(8) == ()


def test_a_log_cannot_make_many_ranks() -> None:
    """A user writes what they like; memory is bounded."""
    text = "".join(
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=A\n"
        for rank in range(100_003)
    )
    assert len(parse_words([text]).timeouts) == 100_000
