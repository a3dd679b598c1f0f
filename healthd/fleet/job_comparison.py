"""The devices of one running job beside each other, as text and as JSON (``healthd.job_comparison/v1``). Pure: the
answers of its nodes in, text and data out.

A node that does not answer is named first: it may be the one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from healthd.core.errors import BackendUnknown
from healthd.core.json_documents import json_fields
from healthd.fleet.asking import NodeAnswer, NodeDocument
from healthd.judge.job_patterns import QUIET_S, THRESHOLD, WARM_UP_S, JobFinding, all_wait, found
from healthd.judge.peers import (
    LEAST_PEERS,
    LEAST_SAMPLES,
    WINDOW_S,
    Deviation,
    DeviceReadings,
    Ranking,
    peers_of,
    ranked,
)
from healthd.observe.text_lines import TextLine, joined

COMPARISON_SCHEMA, READINGS_SCHEMA = "healthd.job_comparison/v1", "healthd.readings/v1"
_SHOWN = 8
_SHADOW = "          in shadow: healthd does nothing about it"


class _SeenSeries(msgspec.Struct, frozen=True):
    component: str
    name: str
    samples: tuple[tuple[float, float], ...]
    index: int | None = None


class NodeReadings(NodeDocument, frozen=True, kw_only=True):
    """The document of ``/readings``."""

    series: tuple[_SeenSeries, ...] = ()


READS_READINGS = msgspec.json.Decoder(NodeReadings)


class JobComparison(Struct, frozen=True, kw_only=True):
    """A job whose devices were compared. ``hosts``: its nodes as a host list. ``remarks``: what is missing, a sentence
    each. ``nccl_lines``: NCCL's own, from the job's log. ``waits``: all of its GPUs wait in a collective."""

    job: str
    hosts: str
    devices: tuple[DeviceReadings, ...]
    findings: tuple[JobFinding, ...]
    ranking: Ranking
    remarks: tuple[str, ...] = ()
    nccl_lines: tuple[str, ...] = ()
    waits: bool = False

    @property
    def exit_code(self) -> int:
        """0: no device stands out; 1: a straggler or a hang; 2: nothing was compared, or the whole job waits."""
        return 1 if self.findings else 2 if self.waits or not self.ranking.devices else 0

    @property
    def gpus(self) -> int:
        """How many GPUs were compared."""
        return sum(each.kind == "gpu" for each in self.devices)

    @property
    def text(self) -> str:
        """The findings, then the nodes and the devices that are farthest from their peers."""
        nics = sum(each.kind == "efa" for each in self.devices)
        nodes = len({each.node for each in self.devices})
        head = (
            f"job {self.job} on {self.hosts}: {nodes} nodes, {self.gpus} GPUs, {nics} NICs over {WINDOW_S / 60:g} min"
        )
        lines = [head, *(f"! {each}" for each in self.remarks), *(f"NCCL      {each}" for each in self.nccl_lines)]
        lines += [
            f"{each.finding.severity:<10}{each.node}  {each.finding.message}  [{each.finding.code}]"
            for each in self.findings
        ]
        limits = f"score {THRESHOLD:g} or more, {QUIET_S / 60:g} min without traffic"
        if not self.ranking.devices:
            lines.append("unknown   nothing could be compared")
        elif self.waits:
            lines.append("unknown   the job hangs as a whole: no rank stands out")
        else:
            lines.append(_SHADOW if self.findings else f"ok        no straggler and no hang ({limits})")
        for title, deviations in (("nodes", self.ranking.nodes), ("devices", self.ranking.devices)):
            for place, far in enumerate(deviations[:_SHOWN]):
                name = " ".join(filter(None, (far.node, far.label)))
                lines.append(f"{title if not place else '':<10}{name}  {far}")
        return joined(map(TextLine, lines))

    @property
    def data(self) -> dict[str, Any]:
        """The same as data, with every node and device."""
        return {
            "schema": COMPARISON_SCHEMA,
            "job": self.job,
            "nodes": self.hosts,
            "window_s": WINDOW_S,
            "threshold": THRESHOLD,
            "quiet_s": QUIET_S,
            "remarks": list(self.remarks),
            "nccl": list(self.nccl_lines),
            "findings": [_finding_data(each) for each in self.findings],
            "ranked_nodes": [_deviation_data(each) for each in self.ranking.nodes],
            "ranked_devices": [_deviation_data(each) for each in self.ranking.devices],
        }


def compared(
    job: str,
    hosts: str,
    answers: Mapping[str, NodeAnswer],
    *,
    age_s: float | None,
    gpus: Mapping[str, frozenset[int]],
    words: Sequence[str] = (),
) -> JobComparison:
    """Compare the devices of a job. ``age_s``: since its start; None where that is not known. ``gpus``: the indices of
    its GPUs by node; a node that is not there gives it all of them."""
    devices: list[DeviceReadings] = []
    remarks: list[str] = []
    for node, answer in answers.items():
        try:
            document = answer.document(READS_READINGS, READINGS_SCHEMA)
        except BackendUnknown as error:
            remarks.append(f"{node} is not compared: {error}")
            continue
        devices += _devices_of(document, gpus.get(node))
    oldest_s = inf if age_s is None else age_s - WARM_UP_S
    of_job = peers_of(devices, oldest_s=oldest_s)
    remarks += _missing(devices, of_job, oldest_s)
    findings = found(devices, oldest_s=oldest_s)
    if waits := all_wait(devices, oldest_s=oldest_s):
        quiet = f"no device moved data for {QUIET_S / 60:g} min and all GPUs wait in a collective"
        remarks.append(f"{quiet}: compare what the ranks called, or look at the network")
    return JobComparison(
        job=job,
        hosts=hosts,
        devices=tuple(devices),
        findings=findings,
        ranking=ranked(devices, of_job),
        remarks=tuple(remarks),
        nccl_lines=tuple(words),
        waits=waits,
    )


def _devices_of(document: NodeReadings, gpus: frozenset[int] | None) -> Iterator[DeviceReadings]:
    """The devices of one node. ``gpus``: only these; None: all."""
    series: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {}
    indices: dict[str, int | None] = {}
    for each in document.series:
        series.setdefault(each.component, {})[each.name] = each.samples
        indices[each.component] = indices.get(each.component) if each.index is None else each.index
    for component, of_it in series.items():
        kind, _, name = component.partition(":")
        index = indices[component]
        if kind == "gpu" and gpus is not None and index is not None and index not in gpus:
            continue
        label = f"GPU {index}" if index is not None else "host" if kind == "node" else f"{kind.upper()} {name}"
        yield DeviceReadings(node=document.node, kind=kind, component=component, label=label, series=of_it)


def _missing(devices: Sequence[DeviceReadings], of_job: Mapping[Any, Any], oldest_s: float) -> Iterator[str]:
    """The reasons why a comparison is not whole."""
    if oldest_s < LEAST_SAMPLES * 60:
        minutes = (WARM_UP_S + LEAST_SAMPLES * 60) / 60
        yield f"the job is young: its first {WARM_UP_S / 60:g} min do not count, and {minutes:g} min are needed"
    gpus = [each for each in devices if each.kind == "gpu"]
    if len(gpus) < LEAST_PEERS:
        yield f"{len(gpus)} GPUs have readings; {LEAST_PEERS} are needed to tell which one differs"
    elif not of_job:
        window = f"{LEAST_SAMPLES} samples of the last {WINDOW_S / 60:g} min"
        yield f"no reading of {LEAST_PEERS} devices has {window}; a daemon that was restarted begins again"
    short = sorted({each.node for each in gpus if _samples(each) < LEAST_SAMPLES})
    if short and of_job:
        yield f"too few samples of the last {WINDOW_S / 60:g} min from {', '.join(short[:_SHOWN])}"


def _samples(device: DeviceReadings) -> int:
    return max((sum(age_s < WINDOW_S for age_s, _ in some) for some in device.series.values()), default=0)


def _finding_data(each: JobFinding) -> dict[str, Any]:
    finding = each.finding
    return {
        "code": finding.code,
        "severity": finding.severity,
        "shadow": True,
        "node": each.node,
        "component": str(finding.component),
        "label": each.label,
        "message": finding.message,
        "evidence": dict(finding.evidence),
    }


def _deviation_data(each: Deviation) -> dict[str, Any]:
    return {
        **json_fields(each, "node", "component", "label"),
        "reading": each.trait.name,
        **json_fields(each, "value", "usual"),
        "score": round(each.score, 2),
        "peers": each.peers,
    }
