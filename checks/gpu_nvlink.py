"""The check ``gpu.nvlink``: the links between the GPUs of one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from healthd.checklib import nvlink, nvlink_recoveries
from healthd.checklib.gpus import MIG, GpuValues, ask_gpus, driver_epoch, in_mig, of_the_node, undecided_of
from healthd.core.check import FindingCode, Limit, Rate, check, judged, not_applicable
from healthd.core.model import ClearsBy, Finding, Remedy, Repeats, Result, Severity
from healthd.core.node import Node

_W, _HUMAN = Severity.WARNING, Remedy.ASK_HUMAN
DEAD = FindingCode(
    code="gpu.nvlink.dead",
    severity=Severity.CRITICAL,
    remedy=_HUMAN,
    meaning="All NVLinks of a GPU are down",
    lasting_s=120.0,
    symptom_of=("gpu.fabric.not_ready", "gpu.fabric.no_partition", "gpu.fabric.failed"),
)
_DOWN = "NVLinks of a GPU are down"
DOWN = FindingCode(
    code="gpu.nvlink.down", severity=_W, remedy=_HUMAN, meaning=_DOWN, lasting_s=120.0, symptom_of=(DEAD.code,)
)
NO_P2P = FindingCode(
    code="gpu.nvlink.no_p2p",
    severity=_W,
    remedy=_HUMAN,
    meaning="A GPU cannot reach a sibling over NVLink",
    symptom_of=(DEAD.code, DOWN.code),
    lasting_s=120.0,
)
STORM = FindingCode(
    code="gpu.nvlink.errors", severity=_W, remedy=_HUMAN, meaning="A GPU's NVLinks have very many errors"
)
GROWING = FindingCode(
    code="gpu.nvlink.growing",
    severity=_W,
    remedy=Remedy.WATCH,
    meaning="NVLink errors keep coming",
    symptom_of=(STORM.code, DOWN.code),
    repeats=Repeats(times=16, window_s=1800.0),
)
NOT_RECOVERED = FindingCode(
    code="gpu.nvlink.recovery_failed",
    severity=_W,
    remedy=_HUMAN,
    meaning="An NVLink could not be recovered",
    clears_by=ClearsBy.NOTHING,
)
STANDS_OUT = FindingCode(
    code="gpu.nvlink.stands_out",
    severity=_W,
    remedy=_HUMAN,
    meaning="An NVLink is recovered far more often than its siblings: it may be about to fail",
    symptom_of=(DEAD.code, DOWN.code, NOT_RECOVERED.code),
)
_DCGM = "NVIDIA DCGM 4.6: fails at 100 CRC errors per second; here over a minute"
_NVRX = "NVIDIA resiliency extension d8686d9c: growth in more than 15 of 30 one-minute samples"
_RECOVERY = "nvml.h field 214: a recovery that fails leaves the link down, so none is acceptable"
_COMING = (*nvlink.OF_A_GPU.values(), nvlink.OF_A_LINK[208])
_FED_BY = ((STORM, {nvlink.OF_A_GPU[38]}), (GROWING, {*nvlink.OF_A_GPU.values()}), (GROWING, {nvlink.OF_A_LINK[208]}))
_LIMITS: tuple[Rate | Limit, ...] = (
    Rate(reading=nvlink.OF_A_GPU[38], max_increase=6000.0, window_s=60.0, code=STORM, source=_DCGM, calm_s=600.0),
    *(Limit(reading=name, max_increase=0, code=GROWING, source=_NVRX) for name in _COMING),
    Limit(reading=nvlink.OF_A_LINK[214], max_increase=0, code=NOT_RECOVERED, source=_RECOVERY),
)


@check(
    "gpu.nvlink", interval_s=60, codes=(DEAD, DOWN, NO_P2P, STORM, GROWING, NOT_RECOVERED, STANDS_OUT), limits=_LIMITS
)
def gpu_nvlink(node: Node, _settings: object) -> Result:
    """All NVLinks that the instance type has are up, join every GPU with every other, and have few errors.

    The number of links follows from the type; a type that the table does not know is not judged. Single errors are
    normal, and the hardware repeats the packet: only errors that keep coming, or come in great number, count. Before
    Hopper a GPU counts them in fields; H100 and H200 are asked link by link, as nvidia-smi does; Blackwell has fields
    for each link. A link that recovers far more often than the others of the node, since the driver was loaded, is
    reported before it fails. The reason names a GPU that does not report its counters, and none of its faults ends. A
    GPU with MIG on reaches no sibling and no sibling reaches it, and the links of an A100 are down then, which is no
    fault. A GPU without any link keeps jobs off, unless MIG is on there: NCCL and CUDA peers fail on it. All else is a
    warning. Unproven on hardware; XID 74 and 144 to 150 report fatal link errors and act.

    Sources: nvml.h (nvmlDeviceGetNvLinkState, nvmlDeviceGetNvLinkErrorCounter, nvmlDeviceGetP2PStatus, fields 38, 52,
    59, 208, 213, 214); Datadog agent, pull request 55966 (Hopper); nvlinks.csv.
    """
    if (expected := nvlink.expected(node.instance_type)) is None:
        return not_applicable("this instance type has no NVLink between its GPUs, or is not in healthd's table")
    model, links, source = expected
    counters, fields = nvlink.questions(model, links)
    gpus = ask_gpus(node, *map(nvlink.state_of, links), *counters, nvlink.P2P, MIG, fields=fields)
    if isinstance(gpus, Result):
        return gpus
    epoch = driver_epoch(node)
    awake = [gpu for gpu in gpus if not nvlink.sleeps(gpu, model)]
    dead = of_the_node((finding for gpu in gpus for finding in _dead(gpu, links, source)), len(gpus))
    findings = [*dead, *(finding for gpu in awake for finding in _down(gpu, links, source)), *_apart(gpus)]
    recoveries, not_counted = nvlink_recoveries.recovered(gpus, links)
    stand_out = nvlink_recoveries.outliers(recoveries)
    findings += [STANDS_OUT.at(part, message, **details) for part, message, details in stand_out]
    readings = [reading for gpu in gpus for reading in nvlink.counted(gpu, links, epoch)]
    not_told = [each for gpu in gpus for each in nvlink.not_reported(gpu, counters, links, _FED_BY)]
    silent = {part for part, _ in not_told} & {gpu.gpu for gpu in gpus}
    not_told += [(part, STANDS_OUT.code) for part in not_counted]
    left_out = f"{len(silent)} of {len(gpus)} GPUs do not report all of their NVLink error counters" if silent else ""
    return judged(findings, readings, undecided=undecided_of(gpus), not_reported=not_told, left_out=left_out)


def _down(gpu: GpuValues, links: Sequence[int], source: str) -> Iterator[Finding]:
    down = [link for link in links if nvlink.is_down(gpu, link)]
    if down:
        message = f"{len(links) - len(down)} of {len(links)} NVLinks are up; down: {', '.join(map(str, down))}"
        yield DOWN.at(gpu.gpu, message, down=down, limit=len(links), limit_source=source)


def _dead(gpu: GpuValues, links: Sequence[int], source: str) -> Iterator[Finding]:
    """A job in a MIG instance uses no link."""
    if nvlink.none_is_up(gpu, links) and not in_mig(gpu):
        yield DEAD.at(gpu.gpu, f"all {len(links)} NVLinks are down", limit=len(links), limit_source=source)


def _apart(gpus: Sequence[GpuValues]) -> Iterator[Finding]:
    for gpu, apart in nvlink.apart_by_index(gpus):
        message = f"no NVLink to GPU {', '.join(f'{peer} ({word})' for peer, word in apart.items())}"
        yield NO_P2P.at(gpu.gpu, message, by_index=apart)
