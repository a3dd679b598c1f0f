"""The NVLink domain of a node by what its GPUs report: the clusterUuid and the clique, by nvmlDeviceGetGpuFabricInfoV.

Pure over NVML's answers. Source: nvml.h, nvmlGpuFabricInfo_v3_t: GPUs with the same clusterUuid and cliqueId reach each
other over NVLink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from healthd.core.model import NODE, Reading

DOMAIN = "gpu_fabric_domain"
"""The reading that is the same on all nodes of one NVLink domain: CRC-32 of clusterUuid and clique."""


def domain_of(info: Mapping[str, Any]) -> str:
    """The domain of one GPU by its answer: ``HEX/CLIQUE``."""
    return f"{bytes(info['clusterUuid']).hex()}/{info['cliqueId']}"


def domain_readings(answers: Sequence[Mapping[str, Any]]) -> Iterator[Reading]:
    """The domain as a number that all of its nodes have, where this node is in one and knows it. ``answers``: of each
    of its GPUs."""
    known = {domain_of(info) for info in answers if any(info["clusterUuid"])}
    if len(known) == 1:
        yield Reading(component=NODE, name=DOMAIN, value=crc32(known.pop().encode()))
