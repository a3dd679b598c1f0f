"""The check ``gpu.fabric``: whether the GPUs have joined the NVLink fabric, and the fabric's own health."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from healthd.checklib.fabric_health import faults_of, lacks_partition
from healthd.checklib.gpus import MIG, GpuValues, ask_gpus, in_mig, judged_gpus, not_supporting, of_the_node
from healthd.checklib.nvlink_domain import domain_of, domain_readings
from healthd.checklib.tables import InstanceProfile, instance_profile
from healthd.core.check import FindingCode, check, not_applicable
from healthd.core.model import NODE, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node

_INFO = "nvmlDeviceGetGpuFabricInfoV"
_NOT_SUPPORTED, _COMPLETED = 0, 3  # nvmlGpuFabricState_t (nvml.h); between them not started and in progress
_STATES = {1: "not started", 2: "in progress"}
_SUMMARIES = {2: "unhealthy", 3: "limited capacity"}  # NVML_GPU_FABRIC_HEALTH_SUMMARY_…
_NVLINK_5_BOARDS, _UMAD = ("B200", "B300"), "ib_umad"


_W, _HUMAN = Severity.WARNING, Remedy.ASK_HUMAN

NOT_READY = FindingCode(
    code="gpu.fabric.not_ready",
    severity=Severity.CRITICAL,
    remedy=_HUMAN,
    meaning="A GPU has not joined the NVLink fabric: is the Fabric Manager running?",
    lasting_s=300.0,
)
NO_PARTITION = FindingCode(
    code="gpu.fabric.no_partition",
    severity=Severity.CRITICAL,
    remedy=_HUMAN,
    meaning="A GPU cannot join the NVLink fabric: no partition is assigned to it",
    lasting_s=300.0,
)
FAILED = FindingCode(
    code="gpu.fabric.failed",
    severity=Severity.CRITICAL,
    remedy=_HUMAN,
    meaning="A GPU could not join the NVLink fabric",
)
UNHEALTHY = FindingCode(
    code="gpu.fabric.unhealthy", severity=_W, remedy=_HUMAN, meaning="The NVLink fabric reports itself unhealthy"
)
SPLIT = FindingCode(
    code="gpu.fabric.split", severity=_W, remedy=_HUMAN, meaning="GPUs of one node are in different NVLink domains"
)


@check("gpu.fabric", interval_s=60, codes=(NOT_READY, NO_PARTITION, FAILED, UNHEALTHY, SPLIT))
def gpu_fabric(node: Node, _settings: object) -> Result:
    """Every GPU has joined the NVLink fabric, the fabric is healthy, and one node is in one domain.

    Only types with NVSwitch are judged. Before Hopper the driver does not report the fabric. In the health mask each
    part has its own values, and 1 is a fault where 2 is none: a mask that is not zero means nothing by itself. Joining
    takes a while after a driver load, so it is a finding only after five minutes. A GPU without a partition cannot join
    at all, and has its own finding: set up its partition; no service of this node helps. A GPU that has joined is
    healthy, whatever its partition bits are. On UltraServers (GB200) the GPUs of a node share cluster and clique.
    Whether all 36 or 72 GPUs of an UltraServer are in the domain is the question of gpu.imex. A fault that all GPUs
    share, such as a stopped Fabric Manager, is one finding of the node. A GPU that has not joined keeps jobs off, since
    CUDA does not start there (802, system not yet initialized); with MIG on it is a warning. All else is a warning, and
    all of it is unproven on hardware.

    Sources: nvml.h (nvmlGpuFabricInfo_v3_t); EKS node monitoring agent 1.7.0 dcgm_watchfield.go (a fabric that is not
    joined is fatal); NVIDIA Fabric Manager user guide (CUDA error 802; NVLink 5 boards: ib_umad, through which the
    subnet manager reaches the switches); fabric_health.csv.
    """
    profile = instance_profile(node.instance_type)
    if profile is None or profile.nvlink not in ("nvswitch", "nvl72"):
        return not_applicable("this instance type has no NVSwitch, or is not in healthd's table")
    asked = ask_gpus(node, _INFO, MIG)
    if isinstance(asked, Result):
        return asked
    gpus = [not_supporting(gpu, _INFO, lambda info: info["state"] == _NOT_SUPPORTED) for gpu in asked]
    answered = [gpu for gpu in gpus if _INFO in gpu.values]
    if all(_INFO in gpu.unsupported for gpu in gpus):
        return not_applicable("these GPUs, or their driver, do not report the fabric (Hopper and newer do)")
    hint = _hint(node, profile)
    findings = [*of_the_node((finding for gpu in answered for finding in _findings(gpu, hint)), len(gpus))]
    if profile.nvlink == "nvl72":
        findings.extend(_domain(answered))
    name = "gpu_fabric_clique_id"
    readings = [Reading(component=gpu.gpu, name=name, value=gpu.values[_INFO]["cliqueId"]) for gpu in answered]
    if profile.nvlink == "nvl72":
        readings.extend(domain_readings([gpu.values[_INFO] for gpu in answered]))
    rests_on, what = {_INFO: (NOT_READY, NO_PARTITION, FAILED, UNHEALTHY)}, "the state of the fabric"
    return judged_gpus(gpus, findings, readings, questions=(_INFO,), rests_on=rests_on, what=what)


def _hint(node: Node, profile: InstanceProfile) -> str:
    """The first thing to fix where a GPU has not joined, as the end of a message; "" where nothing is known."""
    if profile.gpu_model not in _NVLINK_5_BOARDS or profile.nvlink != "nvswitch":
        return ""
    if node.sys.exists(f"module/{_UMAD}"):
        return ""
    return f"; module {_UMAD} is not loaded, and the Fabric Manager needs it to reach the NVSwitches: modprobe {_UMAD}"


def _findings(gpu: GpuValues, hint: str) -> Iterator[Finding]:
    info = gpu.values[_INFO]
    state, status = info["state"], info["status"]
    if state != _COMPLETED:
        yield _less_with_mig(gpu, _not_joined(gpu, hint))
    elif status:
        message = f"could not join the fabric: NVML status {status}{hint}"
        yield _less_with_mig(gpu, FAILED.at(gpu.gpu, message, status=status))
    faults = [*faults_of(info.get("healthMask", 0))]
    if summary := _SUMMARIES.get(info.get("healthSummary", 0)):
        faults.append(summary)
    if faults:
        yield UNHEALTHY.at(gpu.gpu, "; ".join(faults), health_mask=info.get("healthMask", 0))


def _not_joined(gpu: GpuValues, hint: str) -> Finding:
    state = gpu.values[_INFO]["state"]
    message = f"has not joined the fabric ({_STATES.get(state, f'state {state}')})"
    if lacks_partition(gpu.values[_INFO].get("healthMask", 0)):
        return NO_PARTITION.at(gpu.gpu, f"{message}; no NVLink partition is assigned to this GPU", state=state)
    return NOT_READY.at(gpu.gpu, f"{message}{hint}", state=state)


def _less_with_mig(gpu: GpuValues, finding: Finding) -> Finding:
    """A job in a MIG instance uses no NVLink."""
    return replace(finding, severity=_W) if in_mig(gpu) else finding


def _domain(gpus: Sequence[GpuValues]) -> Iterator[Finding]:
    domains = {domain_of(gpu.values[_INFO]) for gpu in gpus}
    if len(domains) > 1:
        message = f"the GPUs of this node are in {len(domains)} NVLink domains (cluster/clique); expected 1"
        yield SPLIT.at(NODE, message, domains=sorted(domains))
