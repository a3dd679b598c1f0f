"""The check ``ebs.allowances``: for how long demand exceeded the limits of the EBS volumes or of the instance."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.host_text import json_object, whole
from healthd.core.check import FindingCode, Rate, check, judged, not_applicable
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Component, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node

_CLASS, _EBS = "class/nvme", "Amazon Elastic Block Store"  # EBS user guide, "Map EBS volumes to NVMe device names"
_NO_PLUGIN = "nvalid sub-command"

EXCEEDED = FindingCode(
    code="ebs.allowance_exceeded",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="Demand exceeded the limit of an EBS volume, or of this instance, for minutes of an hour",
)

# Counter of the volume, in microseconds, and the reading that is made of it.
_COUNTERS = {
    "ebs_volume_performance_exceeded_iops": "ebs_volume_iops_exceeded_seconds_total",
    "ebs_volume_performance_exceeded_tp": "ebs_volume_throughput_exceeded_seconds_total",
    "ec2_instance_ebs_performance_exceeded_iops": "ebs_instance_iops_exceeded_seconds_total",
    "ec2_instance_ebs_performance_exceeded_tp": "ebs_instance_throughput_exceeded_seconds_total",
}
_SOURCE = (
    "EBS user guide, detailed performance statistics; the number is healthd's choice: starts and ends of jobs take less"
)
_LIMITS = tuple(
    Rate(reading=reading, max_increase=600.0, window_s=3600.0, code=EXCEEDED, source=_SOURCE)
    for reading in _COUNTERS.values()
)


@check("ebs.allowances", interval_s=300, timeout_s=60, codes=(EXCEEDED,), limits=_LIMITS)
def ebs_allowances(node: Node, _settings: object) -> Result:
    """The EBS volumes deliver the operations and bytes that programs ask for.

    Nitro counts for each volume how long programs asked for more operations or bytes than its provisioned limit, and
    for more than EBS gives the instance. Checkpoints to such a volume wait; the machine is healthy, so this warns.
    nvme-cli's ``amzn`` plug-in reads the counters; Amazon Linux has it since September 2025. Without it the check does
    not apply. Unproven on hardware.

    Sources: EBS user guide, "Amazon EBS detailed performance statistics"; nvme-cli, plugins/amzn/amzn-nvme.c (names in
    the JSON, microseconds); EKS node monitoring agent (EBSInstanceIOPSExceeded and its kind, all of them warnings).
    """
    names = tuple(_volumes(node))
    if not names:
        return not_applicable("no EBS volume on an NVMe controller")
    readings, undecided = list[Reading](), []
    for name in names:
        try:
            readings.extend(_counters(node, name))
        except SourceMissing as error:
            return not_applicable(f"no tool to read the counters of EBS volumes: {error}")
        except SourceError as error:
            undecided.append(f"{name}: {error}")
    return judged([], readings, undecided=undecided)


def _volumes(node: Node) -> Iterator[str]:
    """The NVMe controllers of EBS volumes. Raises SourceError where /sys is not visible."""
    if not node.sys.exists(_CLASS):
        node.sys.names("class")
        return
    for name in node.sys.names(_CLASS):
        try:
            if node.sys.read(f"{_CLASS}/{name}/model") == _EBS:
                yield name
        except SourceMissing:
            continue  # detached between listing and reading


def _counters(node: Node, name: str) -> Iterator[Reading]:
    answer = node.command("nvme", "amzn", "stats", f"/dev/{name}n1", "-o", "json")
    if answer.code != 0 and _NO_PLUGIN in answer.stderr + answer.stdout:
        raise SourceMissing("this nvme-cli has no 'amzn stats'")
    if answer.code != 0:
        raise SourceUnreadable(f"nvme amzn stats: exit {answer.code}: {answer.stderr.strip()[:200]}; expected exit 0")
    log = json_object(answer.stdout, "nvme amzn stats")
    volume = node.sys.read(f"{_CLASS}/{name}/serial")
    where, epoch = Component(kind="nvme", id=name), f"boot {node.boot_id}, volume {volume}"
    for counter, reading in _COUNTERS.items():
        seconds = whole(str(log.get(counter)), counter) / 1e6
        yield Reading(component=where, name=reading, value=seconds, kind=ReadingKind.COUNTER, epoch=epoch)
