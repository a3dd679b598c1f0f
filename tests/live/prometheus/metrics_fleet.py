"""A Prometheus over the metrics of a synthetic fleet: what five minutes of scrapes of hundreds of nodes leave behind.

The series are those that packaging/grafana asks for; test_scraped proves with real daemons that these names and labels
exist. Among the nodes are a known number of each verdict, and some whose figures stand out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from healthd.core.model import Action, Mode, Refusal, Step, Verdict
from tests.live.prometheus.prometheus_server import Prometheus, tool

SCRAPES, PARTITIONS = 5, ("p5", "p6")
CODES = ("gpu.xid.79", "gpu.xid.48", "gpu.xid.63", "efa.link_down", "lustre.hung")
END = datetime(2026, 11, 1, 12, tzinfo=UTC)
Sample = tuple[str, Mapping[str, str], float, float]
"""Name, labels, value at the first scrape, increase at each later one."""


class Fleet(Struct, frozen=True, kw_only=True):
    """How many nodes of two partitions have which verdict; the first ones are critical, then unknown, then warning."""

    nodes: int
    critical: int = 12
    unknown: int = 3
    warning: int = 21

    def verdict(self, number: int) -> Verdict:
        """The verdict of this node, from 0."""
        if number < self.critical:
            return Verdict.CRITICAL
        if number < self.critical + self.unknown:
            return Verdict.UNKNOWN
        return Verdict.WARNING if number < self.critical + self.unknown + self.warning else Verdict.OK

    def name(self, number: int) -> str:
        """The name of this node, from 0."""
        return f"gpu-{number:04d}"


def stored(fleet: Fleet, folder: Path) -> Path:
    """A data folder of Prometheus with the scrapes of the fleet up to END."""
    folder.mkdir()
    page = folder / "openmetrics"
    with page.open("w", encoding="utf-8") as file:
        for number in range(fleet.nodes):
            labels = {"cluster": "train-a", "partition": PARTITIONS[number % 2], "instance": fleet.name(number)}
            for sample in (*_of_node(fleet, number), *_of_parts(number)):
                file.writelines(_lines(sample, {**labels, "job": "healthd"}))
        for partition in PARTITIONS:
            labels = {"cluster": "train-a", "partition": partition}
            for sample in _of_partition():
                file.writelines(_lines(sample, labels))
        for sample in _of_controller():
            file.writelines(_lines(sample, {"cluster": "train-a", "instance": "head", "job": "healthd-controller"}))
        file.write("# EOF\n")
    argv = [tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(page), str(folder / "data")]
    subprocess.run(argv, check=True, capture_output=True)
    page.unlink()
    return folder / "data"


def _lines(sample: Sample, labels: Mapping[str, str]) -> Iterator[str]:
    name, more, first, step = sample
    series = ",".join(f'{key}="{value}"' for key, value in {**more, **labels}.items())
    for scrape in range(SCRAPES):
        at = END - timedelta(minutes=SCRAPES - 1 - scrape)
        yield f"{name}{{{series}}} {first + step * scrape} {at.timestamp():.0f}\n"


def _of_node(fleet: Fleet, number: int) -> Iterator[Sample]:
    """What the agent says of its node."""
    verdict = fleet.verdict(number)
    yield "up", {}, 1, 0
    for each in Verdict:
        yield "healthd_verdict", {"verdict": each}, each is verdict, 0
    if verdict is Verdict.CRITICAL:
        code = CODES[number % len(CODES)]
        yield "healthd_fault_occurrences", {"code": code, "component": "gpu:GPU-3", "severity": "critical"}, 1, 0
    action = Action.REPAIR if verdict is Verdict.CRITICAL else Action.HOLD
    for possible in Action:
        yield "healthd_decision", {"action": possible}, possible is action, 0
    for step in Step:
        yield "healthd_remediation_step", {"step": step}, verdict is Verdict.CRITICAL and step is Step.DRAIN, 0
    for mode in Mode:
        yield "healthd_mode", {"mode": mode}, mode is Mode.REPAIR, 0
    yield "healthd_last_success_seconds", {"check": "gpu.ecc"}, 20 + number, 0
    for kind, value in (("out", 3), ("limit", 25), ("", fleet.nodes)):
        yield f"healthd_budget_{kind}_nodes".replace("__", "_"), {"scope": "cluster"}, value, 0


def _of_parts(number: int) -> Iterator[Sample]:
    """What the recordings make of its GPUs, EFA devices and kernel log, and what its file systems and tests say."""
    for code in CODES[: number % 5]:
        yield "healthd:node:kernel_findings:sum", {"code": code}, 1, 0
    for name, value in {
        "repairs_and_drains:increase1w": number % 4,
        "gpu_ecc_uncorrected:sum": number % 7,
        "gpu_ecc_corrected:rate5m": number / 100,
        "gpu_remapped_rows_uncorrectable:sum": number % 3,
        "gpu_remapped_rows_correctable:sum": number % 5,
        "gpu_throttled_heat:max_rate5m": number % 60 / 60,
        "gpu_temperature_celsius:max": 40 + number % 50,
        "efa_tx_bytes:rate5m": 1e9 + number,
        "efa_rx_bytes:rate5m": 1e9 + number,
        "efa_lost_packets:rate5m": number,
    }.items():
        yield f"healthd:node:{name}", {}, value, 0
    yield f"healthd:node:components_{('critical', 'unknown')[number % 2]}:count", {"check": "gpu.ecc"}, 1, 0
    yield "healthd_file_write_seconds", {"component": "mount:/fsx"}, 0.01, 0
    for name in ("nvlink", "loopback"):
        yield f"healthd_nccl_{name}_busbw_bytes_per_second", {"component": "node"}, 4e11 - number, 0


def _of_partition() -> Iterator[Sample]:
    """What the recordings make of all its nodes."""
    for action in Action:
        yield "healthd:partition:decisions:increase5m", {"action": action}, 2, 0
    for refusal in Refusal:
        yield "healthd:partition:refusals:increase5m", {"reason": refusal}, 3, 0
    for step in Step:
        yield "healthd:partition:step_duration_seconds:sum", {"step": step}, 400, 0
        yield "healthd:partition:step_duration_seconds:count", {"step": step}, 20, 0


def _of_controller() -> Iterator[Sample]:
    yield "healthd_controller_leads", {}, 1, 0
    yield "healthd_controller_nodes", {"state": "repairing"}, 2, 0
    yield "healthd_controller_operator_needed", {}, 0, 0
    yield "healthd_controller_decisions_total", {"state": "done"}, 5, 1
    yield "healthd_controller_refusals_total", {"reason": "budget"}, 1, 0
    yield "healthd_controller_last_success_seconds", {}, 4, 0
    yield "healthd_controller_requests_total", {"to": "ec2", "request": "RebootInstances", "result": "ok"}, 5, 1
    for name in ("sync_seconds", "step_duration_seconds"):
        step = {"step": "reboot"} if name.startswith("step") else {}
        yield f"healthd_controller_{name}_sum", step, 40, 1
        yield f"healthd_controller_{name}_count", step, 4, 1


def serving(folder: Path, data: Path) -> Prometheus:
    """A Prometheus that scrapes nothing and answers from these data."""
    return Prometheus(folder, {}, None, data=data)
