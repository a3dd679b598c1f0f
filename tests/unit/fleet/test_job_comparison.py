"""The devices of a running job beside each other, from the answers of its nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from healthd.fleet.asking import NodeAnswer
from healthd.fleet.job_comparison import READINGS_SCHEMA, JobComparison, compared

MINUTES = range(29, -1, -1)
AT_WORK = {"gpu_power_w": 600.0, "gpu_sm_clock_mhz": 1700.0, "gpu_utilization_ratio": 1.0}
MOVED = "gpu_nvlink_transmitted_bytes_total"


def series(
    component: str, index: int | None, name: str, value: float, *, before: float | None = None
) -> dict[str, Any]:
    """A sample a minute; ``before``: another value before the last ten."""
    values = [value if before is None or minute < 10 else before for minute in MINUTES]
    samples = [[30 + 60 * minute, each] for minute, each in zip(MINUTES, values, strict=True)]
    return {"component": component, "index": index, "name": name, "samples": samples}


def answer(node: str, others: Mapping[int, Mapping[str, float]] | None = None, /, **usual: float) -> NodeAnswer:
    """The answer of a node of four GPUs and a host."""
    of_gpus = [
        series(f"gpu:GPU-{gpu}", gpu, name, value, before={**AT_WORK, MOVED: 2e10}[name])
        for gpu in range(4)
        for name, value in {**AT_WORK, MOVED: 2e10, **usual, **(others or {}).get(gpu, {})}.items()
    ]
    rest = [
        series("node", None, "cpu_pressure_some_ratio", 0.1),
        series("efa:rdmap0s6", None, "efa_tx_bytes_total", 1.0),
    ]
    body = {"schema": READINGS_SCHEMA, "node": node, "series": [*of_gpus, *rest]}
    return NodeAnswer(node=node, asked=f"http://{node}:9809/readings", body=json.dumps(body).encode())


def of_nodes(*answers: NodeAnswer, age_s: float | None = 86_400.0, **gpus: frozenset[int]) -> JobComparison:
    by_name = {each.node: each for each in answers}
    return compared("42", "n[1-3]", by_name, age_s=age_s, gpus=gpus, words=["15 ranks timed out"])


def test_a_slow_gpu_is_named_and_ranked_first() -> None:
    """With its numbers, in shadow, on a terminal and as data; NCCL's words stand beside it."""
    result = of_nodes(answer("n1"), answer("n2", {3: {"gpu_sm_clock_mhz": 900.0}}), answer("n3"))
    lines = result.text.splitlines()
    assert lines[0] == "job 42 on n[1-3]: 3 nodes, 12 GPUs, 3 NICs over 10 min"
    assert lines[1] == "NCCL      15 ranks timed out"
    assert lines[2] == (
        "warning   n2  GPU 3 is slower than its peers for 10 min: SM clock 900 MHz, its peers' median is 1,700 MHz  "
        "[job.straggler]"
    )
    assert lines[3].strip() == "in shadow: healthd does nothing about it"
    assert "devices   n2 GPU 3  SM clock 900 MHz, peers 1,700 MHz (score -47.1)" in lines
    data = result.data
    (finding,) = data["findings"]
    assert (finding["code"], finding["shadow"], finding["node"]) == ("job.straggler", True, "n2")
    assert finding["component"] == "gpu:GPU-3"
    assert data["ranked_devices"][0]["label"] == "GPU 3"
    assert len(data["ranked_nodes"]) == 3
    assert json.loads(json.dumps(data)) == data


def test_a_healthy_job() -> None:
    """Says so, with the limits."""
    result = of_nodes(answer("n1"), answer("n2"))
    assert "ok        no straggler and no hang (score 6 or more, 10 min without traffic)" in result.text.splitlines()
    assert (result.remarks, result.exit_code) == ((), 0)


def test_a_node_without_an_answer_is_named() -> None:
    """It may be the one; so is a node whose answer is another's."""
    silent = NodeAnswer(
        node="n3", asked="http://n3:9809/readings", problem="http://n3:9809/readings refuses connections"
    )
    result = of_nodes(answer("n1"), answer("n2"), silent)
    assert result.remarks == ("n3 is not compared: http://n3:9809/readings refuses connections",)
    assert "! n3 is not compared: " in result.text


def test_only_the_gpus_of_the_job_are_compared() -> None:
    """By Slurm's indices, where a node is shared; another job's GPU is as slow as it likes."""
    slow = answer("n2", {3: {"gpu_sm_clock_mhz": 900.0}})
    shared = of_nodes(answer("n1"), slow, answer("n3"), n2=frozenset({0, 1}))
    assert (shared.findings, shared.gpus) == ((), 10)


def test_what_is_missing_is_a_remark() -> None:
    """A young job, few GPUs, and samples that are not there yet."""
    young = of_nodes(answer("n1"), answer("n2"), age_s=700.0)
    assert young.remarks[0] == "the job is young: its first 10 min do not count, and 16 min are needed"
    assert "no reading of 4 devices has 6 samples" in young.remarks[1]
    assert (young.text.splitlines()[-1], young.exit_code) == ("unknown   nothing could be compared", 2)
    few = of_nodes(answer("n1"), n1=frozenset({0}))
    assert few.remarks == ("1 GPUs have readings; 4 are needed to tell which one differs",)
    body = json.loads(answer("n2").body)
    for each in body["series"]:
        each["samples"] = each["samples"][-3:]
    short = NodeAnswer(node="n2", asked="", body=json.dumps(body).encode())
    assert of_nodes(answer("n1"), short).remarks == ("too few samples of the last 10 min from n2",)
    assert of_nodes(answer("n1"), age_s=None).remarks == ()


def test_a_hang_and_a_job_that_waits_as_a_whole() -> None:
    """The rank that is not in the collective is named; where all wait, a remark says that none stands out."""
    spins = {"gpu_power_w": 190.0, MOVED: 0.0}
    idle = {"gpu_power_w": 90.0, "gpu_utilization_ratio": 0.0}
    result = of_nodes(answer("n1", None, **spins), answer("n2", {2: idle}, **spins))
    ((node, label, code),) = [(each.node, each.label, each.finding.code) for each in result.findings]
    assert (node, label, code, result.exit_code) == ("n2", "GPU 2", "job.hang", 1)
    waiting = of_nodes(answer("n1", None, **spins), answer("n2", None, **spins))
    assert (waiting.findings, waiting.exit_code) == ((), 2)
    assert "unknown   the job hangs as a whole: no rank stands out" in waiting.text.splitlines()
    assert "no hang" not in waiting.text
    assert waiting.remarks[0].startswith("no device moved data for 10 min and all GPUs wait in a collective: ")
