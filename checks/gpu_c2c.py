"""The check ``gpu.c2c``: the NVLink-C2C links that join each GPU to the processor of its module."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.gpus import GpuValues, ask_gpus, undecided_of
from healthd.checklib.nvml_codes import field_key
from healthd.checklib.tables import instance_profile
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.model import Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node

_COUNT, _STATUS = 170, 171  # NVML_FI_DEV_C2C_LINK_COUNT and _GET_STATUS, the latter for each link (nvml.h)
_MOST_LINKS = 32  # a superchip has 10 to 14

DOWN = FindingCode(
    code="gpu.c2c.down",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="NVLink-C2C links between a GPU and its processor are down",
    lasting_s=120.0,
)


@check("gpu.c2c", codes=(DOWN,))
def gpu_c2c(node: Node, _settings: object) -> Result:
    """All NVLink-C2C links between the GPUs and the processors of a superchip are up.

    Each GPU reports how many links it has, and whether each is up. The check asks on GB200 and GB300 alone: no other
    type has such links. A GPU or a driver that does not report them is not judged. Unproven on hardware, and a warning.

    Sources: nvml.h (fields 170, number of links, and 171, whether a link is active); NVIDIA GB200 (Grace and Blackwell
    joined by NVLink-C2C).
    """
    profile = instance_profile(node.instance_type)
    if profile is None or profile.nvlink != "nvl72":
        return not_applicable("this instance type has no NVLink-C2C, or is not in healthd's table")
    asked = ask_gpus(node, fields=[_COUNT])
    if isinstance(asked, Result):
        return asked
    links = {gpu.gpu: _links(gpu) for gpu in asked}
    if not undecided_of(asked) and not any(links.values()):
        return not_applicable("no GPU of this node, or its driver, reports NVLink-C2C links")
    gpus = ask_gpus(node, fields=[(_STATUS, link) for link in range(max(links.values()))])
    if isinstance(gpus, Result):
        return gpus
    readings = [
        Reading(component=gpu.gpu, name="gpu_c2c_link_count", value=links[gpu.gpu]) for gpu in asked if links[gpu.gpu]
    ]
    findings = [finding for gpu in gpus for finding in _down(gpu, links.get(gpu.gpu, 0))]
    return judged(
        findings,
        readings,
        undecided=[*undecided_of(asked), *undecided_of(gpus)],
        not_reported=_not_reported(gpus, links),
    )


def _links(gpu: GpuValues) -> int:
    return min(int(gpu.values.get(field_key(_COUNT), 0)), _MOST_LINKS)


def _down(gpu: GpuValues, links: int) -> Iterator[Finding]:
    down = [link for link in range(links) if gpu.values.get(field_key(_STATUS, link)) == 0]
    if down:
        message = f"{links - len(down)} of {links} NVLink-C2C links are up; down: {', '.join(map(str, down))}"
        yield DOWN.at(gpu.gpu, message, down=down, limit=links, limit_source="the GPU itself (NVML)")


def _not_reported(gpus: tuple[GpuValues, ...], links: dict[Component, int]) -> Iterator[tuple[Component, str]]:
    """The GPUs that do not report the number of their links, or the state of one."""
    for gpu in gpus:
        keys = {field_key(_STATUS, link) for link in range(links.get(gpu.gpu, 0))}
        if not keys or keys & gpu.unsupported:
            yield gpu.gpu, DOWN.code
