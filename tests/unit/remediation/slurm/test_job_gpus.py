"""The GPUs of a running job on each node, from `scontrol show job -d`."""

from __future__ import annotations

import pytest

from healthd.remediation.orchestrators.slurm.job_gpus import parse_job_gpus

HEAD = "JobId=42 JobName=train\n   JobState=RUNNING\n   NodeList=gpu-[1-3]\n"


def place(nodes: str, gres: str) -> str:
    return f"     Nodes={nodes} CPU_IDs=0-95 Mem=1024 GRES={gres}\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (place("gpu-[1-2]", "gpu:h100:4(IDX:0-3)"), {"gpu-1": {0, 1, 2, 3}, "gpu-2": {0, 1, 2, 3}}),
        (
            place("gpu-1", "gpu:8(IDX:0-7)") + place("gpu-3", "gpu:3(IDX:0,2-3)"),
            {"gpu-1": set(range(8)), "gpu-3": {0, 2, 3}},
        ),
        (place("gpu-1", "nic:2(IDX:0-1),gpu:h100:1(IDX:5)"), {"gpu-1": {5}}),
        (place("gpu-1", "gpu:h100:8"), {}),
        (place("gpu-1", "nic:2(IDX:0-1)"), {}),
        (place("gpu-1", "gpu:1(IDX:-)"), {}),
        (place("gpu-1", ""), {}),
        ("", {}),
    ],
)  # fmt: skip
def test_gpus_by_node(text: str, found: dict[str, set[int]]) -> None:
    """A node without indices gives the job all of its GPUs, and is not listed."""
    assert parse_job_gpus(HEAD + text) == found


def test_a_range_is_bounded() -> None:
    """A text that names a billion GPUs makes no billion numbers."""
    assert len(parse_job_gpus(HEAD + place("gpu-1", "gpu:9(IDX:0-999999999)"))["gpu-1"]) == 65
