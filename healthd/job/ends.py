"""The states of a job that is over, in words where it is not requeued. Pure, and light, as it is loaded wherever a node
is.

Source: squeue(1), JOB STATE CODES.
"""

from __future__ import annotations

from collections.abc import Mapping

FAILED = frozenset({"FAILED", "NODE_FAIL"})
"""A job that is over, and may be requeued."""
_WORDS: Mapping[str, str] = {
    "COMPLETED": "it completed",
    "PREEMPTED": "Slurm preempted it",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "it ran into its time limit",
    "DEADLINE": "it ran into its deadline",
    "OUT_OF_MEMORY": "it ran out of its own memory",
    "BOOT_FAIL": "a node of it did not boot",
    "REVOKED": "another cluster of its federation runs it",
}


def end_words(state: str) -> str:
    """How a job of this state ended; "" for one that is not over, or that may be requeued."""
    return _WORDS.get(state, "")
