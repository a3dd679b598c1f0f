"""GPUs: recovery, heat, power, PCIe, processes, and NVML itself; with the words in which other cases are written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from healthd.checklib.gpus import ask_gpus, take_inventory
from healthd.checks import gpu_processes, gpu_temperature, gpu_throttle
from healthd.core.check import Check, discover
from healthd.core.model import Status
from healthd.sim import tree
from healthd.testing import FakeLink
from tests.faults.case import Case, Made
from tests.faults.rig import Rig

Arrange = Callable[[Rig], Iterator[float] | None]
_NOT_ON_A_P5 = frozenset({"gpu.c2c", "gpu.imex"})


def asks_nvml(check: Check) -> bool:
    """Whether a check asks each GPU, as its file says by what it imports."""
    module = sys.modules[check.run.__module__]
    return any(value in (ask_gpus, take_inventory) for value in vars(module).values() if callable(value))


# They are blind where NVML says nothing, and where one GPU does not answer.
ASK_NVML = frozenset(name for name, check in discover().items() if asks_nvml(check)) - _NOT_ON_A_P5 - {"nvml.probe"}
BLIND = ASK_NVML | {"gpu.driver", "nvml.probe", "stack.versions"}
OF_EACH_GPU = ASK_NVML - {"gpu.count"}
EVERY_GPU = range(8)


def on_gpu(*lines: str, gpus: Any = (2,)) -> Arrange:
    """These lines of GPU 2, or of those that are named."""
    return lambda rig: rig.state(*(f"gpu{gpu}.{line}" for gpu in gpus for line in lines))


def case(check: str, state: str, arrange: Arrange, diagnosis: str = "", **more: Any) -> Case:
    """A case of the simulated library, unless it says otherwise."""
    return Case(
        **{"check": check, "state": state, "made": Made.NVML, "arrange": arrange, "diagnosis": diagnosis, **more}
    )


def over(seconds: float, each: Callable[[Rig, int], None], *, times: int) -> Arrange:
    """Something that happens again and again, with a look after each time."""

    def arrange(rig: Rig) -> Iterator[float]:
        for number in range(1, times):
            each(rig, number)
            yield seconds
        each(rig, times)

    return arrange


# -- gpu.recovery, gpu.health -----------------------------------------------------------------------------------------


def action(number: int, diagnosis: str, state: str) -> Case:
    """A case of the driver's recovery action, NVML field 230."""
    return case("gpu.recovery", state, on_gpu(f"field.230 = {number}"), diagnosis)


def lost_and_back(rig: Rig) -> Iterator[float]:
    """A driver that does not tell the action; the GPU answers again, as after a reboot."""
    rig.state(*(f"gpu{gpu}.field.230 = error 3" for gpu in EVERY_GPU), "gpu2.fault = lost")
    yield 60.0
    rig.state("gpu2.fault = none")


def reset_and_back(rig: Rig) -> Iterator[float]:
    """Every call is refused until a person resets the GPU."""
    rig.state("gpu2.fault = reset_required")
    yield 60.0
    yield 60.0
    rig.state("gpu2.fault = none")


def asks_then_silent(rig: Rig) -> Iterator[float]:
    """A GPU that asks for a reset, and then says that it does not know the question."""
    rig.state("gpu2.field.230 = 1")
    yield 60.0
    rig.state("gpu2.field.230 = error 3")


OF_HEALTH = ("nvmlDeviceGetName", "nvmlDeviceGetVbiosVersion")
RECOVERY = (
    case(
        "gpu.recovery",
        "lost",
        on_gpu("fault = lost"),
        "gpu.lost@gpu:2 critical reboot_node",
    ),
    case(
        "gpu.recovery",
        "reset required",
        on_gpu("fault = reset_required"),
        "gpu.reset_required@gpu:2 critical reset_gpu",
    ),
    *(
        case(
            "gpu.recovery",
            f"reset required, said to the call of another check: {call}",
            on_gpu(f"{call} = error 16"),
            "gpu.reset_required@gpu:2 critical reset_gpu",
            lasts_s=60.0,
        )
        for call in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetVbiosVersion")
    ),
    case("gpu.recovery", "reset required, and then reset", reset_and_back),
    action(1, "gpu.recovery.reset@gpu:2 critical reset_gpu", "action 1: reset"),
    action(2, "gpu.recovery.reboot@gpu:2 critical reboot_node", "action 2: reboot"),
    action(3, "gpu.recovery.drain_p2p@gpu:2 critical ask_human", "action 3: drain P2P"),
    action(4, "gpu.recovery.drain_and_reset@gpu:2 critical reset_gpu", "action 4: drain and reset"),
    action(5, "gpu.recovery.imex@gpu:2 critical ask_human", "action 5: recover IMEX"),
    action(6, "gpu.recovery.bus_reset@gpu:2 critical reboot_node", "action 6: bus reset"),
    action(7, "gpu.recovery.system_reboot@gpu:2 critical reboot_node", "action 7: system reboot"),
    action(9, "gpu.recovery.other@gpu:2 warning ask_human", "an action that is not known"),
    case("gpu.recovery", "not told", on_gpu("field.230 = error 3", gpus=EVERY_GPU)),
    case("gpu.recovery", "a field that the driver calls invalid", on_gpu("field.230 = error 2", gpus=EVERY_GPU)),
    case("gpu.recovery", "lost and back, older driver", lost_and_back),
    case(
        "gpu.recovery",
        "action 1, then it is not told",
        asks_then_silent,
        "gpu.recovery.reset@gpu:2 critical reset_gpu",
        unknown=frozenset({"gpu.recovery"}),
    ),
    case(
        "gpu.inforom",
        "InfoROM corrupted",
        on_gpu("nvmlDeviceValidateInforom = error 14"),
        "gpu.inforom.corrupted@gpu:2 warning ask_human",
    ),
    case(
        "gpu.health",
        "one GPU fails, others answer",
        on_gpu("fault = unknown_error"),
        "gpu.failing@gpu:2 critical ask_human",
        lasts_s=300.0,
        unknown=OF_EACH_GPU - {"gpu.health"},
    ),
    case(
        "gpu.health",
        "one GPU cannot be opened for minutes, as in a reset",
        on_gpu("fault = unknown_error"),
        lasts_s=240.0,
        unknown=OF_EACH_GPU - {"gpu.health"},
    ),
    case(
        "gpu.health",
        "one GPU refuses every question, others answer",
        on_gpu(*(f"{call} = error 17" for call in OF_HEALTH)),
        "gpu.refused@gpu:2 warning ask_human",
        lasts_s=300.0,
    ),
    case(
        "gpu.health",
        "VBIOS differs",
        on_gpu("nvmlDeviceGetVbiosVersion = 96.00.00.00.00"),
        "gpu.mixed.vbios@node warning ask_human",
    ),
    case(
        "gpu.health",
        "model differs",
        on_gpu("nvmlDeviceGetName = NVIDIA H200"),
        "gpu.mixed.model@node warning ask_human",
    ),
)

# -- heat, power, PCIe ------------------------------------------------------------------------------------------------

_NANO = 1_000_000_000
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


def throttled(field: int) -> Arrange:
    """A GPU that is held back for 45 of every 60 seconds."""
    return over(60.0, lambda rig, minute: rig.gpu(2, **{f"field.{field}": f"ull:{45 * minute * _NANO}"}), times=10)


def few_lanes(rig: Rig) -> Iterator[float]:
    """One look falls into it."""
    rig.gpu(2, nvmlDeviceGetCurrPcieLinkWidth="1")
    yield 60.0
    rig.gpu(2, nvmlDeviceGetCurrPcieLinkWidth="16")


def works(*slow: int, of: Iterable[int] = EVERY_GPU) -> Arrange:
    """These GPUs are busy, some of them at a lower clock."""

    def arrange(rig: Rig) -> None:
        for gpu in of:
            busy = {_REASONS: "0", "nvmlDeviceGetUtilizationRates": "100 40", "nvmlDeviceGetPowerUsage": "650000"}
            rig.gpu(gpu, **busy, nvmlDeviceGetClockInfo="1200" if gpu in slow else "1980")

    return arrange


def drawing_little(rig: Rig) -> None:
    """All GPUs are busy, and one draws half of what the others draw."""
    works()(rig)
    rig.gpu(2, nvmlDeviceGetPowerUsage="330000")


def moment(rig: Rig) -> Iterator[float]:
    """Held back for one look."""
    rig.gpu(2, **{_REASONS: "0x48"})
    yield 60.0
    rig.gpu(2, **{_REASONS: "0"})
    yield 60.0


STRICT = {"gpu.throttle": gpu_throttle.GpuThrottleSettings(siblings_ratio=0.95)}
HEAT = (
    case("gpu.throttle", "heat, as time", throttled(270), "gpu.throttle.heat@gpu:2 warning watch"),
    case("gpu.throttle", "power brake, as time", throttled(271), "gpu.throttle.power_brake@gpu:2 warning ask_human"),
    case("gpu.throttle", "software power cap", throttled(74)),
    case(
        "gpu.throttle",
        "hardware slowdown in six looks",
        on_gpu(f"{_REASONS} = 0x8"),
        "gpu.throttle.hardware@gpu:2 warning watch",
        lasts_s=300.0,
    ),
    case("gpu.throttle", "hardware slowdown in one look", moment),
    case(
        "gpu.throttle",
        "slower than its busy siblings",
        works(2),
        "gpu.throttle.slower_than_siblings@gpu:2 warning watch",
        lasts_s=600.0,
    ),
    case(
        "gpu.throttle",
        "drawing less power than its busy siblings",
        drawing_little,
        "gpu.throttle.slower_than_siblings@gpu:2 warning watch",
        lasts_s=600.0,
    ),
    case("gpu.throttle", "all as slow", works(*EVERY_GPU), lasts_s=600.0, settings=STRICT),
    case("gpu.throttle", "half of them busy, the others idle", works(of=EVERY_GPU[:4]), lasts_s=600.0),
    case(
        "gpu.temperature",
        "at its slowdown threshold",
        on_gpu("nvmlDeviceGetTemperature = 90"),
        "gpu.temperature.slowdown@gpu:2 warning watch",
    ),
    case(
        "gpu.temperature",
        "no margin left, and throttled",
        on_gpu("nvmlDeviceGetTemperature = error 3", "nvmlDeviceGetMarginTemperature = -2", f"{_REASONS} = 0x40"),
        "gpu.temperature.slowdown@gpu:2 warning watch",
    ),
    case(
        "gpu.temperature",
        "no margin left, and cool",
        on_gpu("nvmlDeviceGetTemperature = error 3", "nvmlDeviceGetMarginTemperature = -2"),
    ),
    case(
        "gpu.temperature",
        "memory at its maximum",
        on_gpu("field.82 = 90"),
        "gpu.temperature.memory@gpu:2 warning watch",
    ),
    case(
        "gpu.temperature",
        "within the configured margin",
        on_gpu("nvmlDeviceGetTemperature = 86"),
        "gpu.temperature.slowdown@gpu:2 warning watch",
        settings={"gpu.temperature": gpu_temperature.GpuTemperatureSettings(margin_c=5.0)},
    ),
    case(
        "gpu.power",
        "limit below its default",
        on_gpu("nvmlDeviceGetEnforcedPowerLimit = 500000"),
        "gpu.power.limited@gpu:2 warning ask_human",
    ),
    case(
        "gpu.power",
        "persistence mode off",
        on_gpu("nvmlDeviceGetPersistenceMode = 0"),
        "gpu.persistence.off@gpu:2 info none",
    ),
    case(
        "gpu.pcie",
        "fewer lanes",
        on_gpu("nvmlDeviceGetCurrPcieLinkWidth = 8"),
        "gpu.pcie.width@gpu:2 warning ask_human",
        lasts_s=120.0,
    ),
    case("gpu.pcie", "fewer lanes for a moment, as a link is trained again", few_lanes),
    case(
        "gpu.pcie",
        "slower generation under load",
        on_gpu("nvmlDeviceGetCurrPcieLinkGeneration = 1", f"{_REASONS} = 0"),
        "gpu.pcie.generation@gpu:2 warning watch",
        lasts_s=120.0,
    ),
    case("gpu.pcie", "slower generation while idle", on_gpu("nvmlDeviceGetCurrPcieLinkGeneration = 1"), lasts_s=120.0),
    case(
        "gpu.pcie",
        "many replays",
        over(60.0, lambda rig, minute: rig.gpu(2, nvmlDeviceGetPcieReplayCounter=str(5000 * minute)), times=3),
        "gpu.pcie.replays@gpu:2 warning watch",
    ),
    case(
        "gpu.pcie",
        "few replays",
        over(60.0, lambda rig, minute: rig.gpu(2, nvmlDeviceGetPcieReplayCounter=str(2 * minute)), times=3),
    ),
)

# -- gpu.processes, nvml.probe ----------------------------------------------------------------------------------------

_PROCESSES = "nvmlDeviceGetComputeRunningProcesses = 4711 1048576 0 0"


def held_by(cgroup: str) -> Arrange:
    """A process of this control group holds GPU 2."""

    def arrange(rig: Rig) -> None:
        rig.state(f"gpu2.{_PROCESSES}")
        rig.put("proc/4711/status", "Name:\tpython3\nState:\tS (sleeping)")
        rig.put("proc/4711/stat", "4711 (python3) S 1 4711 4711 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0")
        rig.put("proc/4711/cgroup", cgroup)
        rig.put("proc/4711/comm", "python3")

    return arrange


def hangs(rig: Rig) -> Iterator[float]:
    """The library answers nothing: the worker's deadline passes in real time, and its first answer is well within."""
    rig.own_library(deadline_s=2.0)
    rig.look()
    rig.state(*(f"gpu{gpu}.fault = hang 30" for gpu in EVERY_GPU))
    yield 15.0
    yield 15.0


def crashes(rig: Rig) -> Iterator[float]:
    """A worker that ends at its start, again and again, as with a package that does not fit the driver."""
    rig.own_library(deadline_s=2.0)
    rig.state("lib.fault = crash")
    for _ in range(4):
        yield 15.0


def starts_late(rig: Rig) -> Iterator[float]:
    """Without a persistence daemon nvmlInit takes seconds for each GPU."""
    rig.own_library(deadline_s=0.05)
    rig.state("lib.fault = hang 60")
    yield 15.0
    yield 10.0


JOBS_ONLY = {"gpu.processes": gpu_processes.GpuProcessesSettings(jobs_only=True)}
NVML = (
    case(
        "gpu.processes",
        "a process that has ended",
        on_gpu(_PROCESSES),
        "gpu.processes.ended@gpu:2 warning watch",
        lasts_s=60.0,
    ),
    case(
        "gpu.processes",
        "a process of no job",
        held_by("0::/user.slice/user-1000.slice/session-3.scope"),
        "gpu.processes.leftover@gpu:2 warning ask_human",
        settings=JOBS_ONLY,
    ),
    case(
        "gpu.processes",
        "a process of a job",
        held_by("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"),
        settings=JOBS_ONLY,
    ),
    case(
        "gpu.processes",
        "memory of nobody",
        on_gpu("nvmlDeviceGetMemoryInfo = 85520809984 64029027840 21491782144"),
        "gpu.processes.memory@gpu:2 warning watch",
        settings={"gpu.processes": gpu_processes.GpuProcessesSettings(idle_memory_mib=1024)},
    ),
    case(
        "nvml.probe",
        "answers nothing for long",
        hangs,
        "nvml.unresponsive@driver:nvidia critical reboot_node",
        unknown=BLIND - {"nvml.probe"},
    ),
    case("nvml.probe", "healthd's own worker crashes", crashes, status=Status.UNKNOWN, unknown=BLIND),
    case("nvml.probe", "nvmlInit takes 25 s", starts_late, status=Status.UNKNOWN, unknown=BLIND),
)

# -- gpu.driver -------------------------------------------------------------------------------------------------------


def on_host(rig: Rig) -> None:
    """No container: the namespaces that the kernel boots with."""
    for kind, number in (("pid", 836), ("ipc", 839), ("cgroup", 835)):
        rig.put(f"proc/self/ns/{kind}", FakeLink(f"{kind}:[4026531{number}]"))


def library(fault: str, *, host: bool = True) -> Arrange:
    """What NVML says as a whole, on a host or in a container; the GPUs are bound to their driver."""

    def arrange(rig: Rig) -> None:
        rig.state(f"lib.fault = {fault}")
        if host:
            on_host(rig)

    return arrange


def unbound(rig: Rig) -> None:
    """The tree of a node whose driver never was loaded: no module, no device file, no GPU bound."""
    rig.state("lib.fault = driver_not_loaded")
    modules = [name for name in rig.node.sys.names("module") if name.startswith(("nvidia", "gdrdrv"))]
    files = [name for name in rig.node.dev.names("") if name.startswith("nvidia") or name == "gdrdrv"]
    bound = [f"bus/pci/devices/{address}/driver" for address in tree.layout_of(rig.profile).gpus]
    rig.take(*(f"sys/module/{name}" for name in modules), *(f"dev/{name}" for name in files))
    rig.take("proc/driver/nvidia", *(f"sys/{path}" for path in bound))


_ABSENT, _MISMATCH = "gpu.driver.absent@driver:nvidia critical ask_human", "gpu.driver.mismatch@driver:nvidia critical"
# Seldom looked at: without its driver NVML needs a new worker for each check that asks.
DRIVER = (
    case(
        "gpu.driver", "GPUs on the bus without a driver", unbound, _ABSENT, made=Made.TREE, lasts_s=300.0, every_s=150.0
    ),
    case(
        "gpu.driver",
        "GPUs on the bus without a driver for minutes, as in an upgrade",
        unbound,
        made=Made.TREE,
        lasts_s=240.0,
        every_s=120.0,
        status=Status.UNKNOWN,
        unknown=frozenset({"gpu.driver"}),
    ),
    case("gpu.driver", "not loaded, on the host", library("driver_not_loaded"), _ABSENT, lasts_s=300.0, every_s=150.0),
    case(
        "gpu.driver",
        "not loaded, in a container whose GPUs are bound",
        library("driver_not_loaded", host=False),
        lasts_s=600.0,
        every_s=300.0,
        status=Status.UNKNOWN,
        unknown=BLIND,
    ),
    case(
        "gpu.driver",
        "library does not fit the module, on the host",
        library("version_mismatch"),
        f"{_MISMATCH} ask_human",
        lasts_s=300.0,
        every_s=150.0,
    ),
    case(
        "gpu.driver",
        "library does not fit the module, in a container",
        library("version_mismatch", host=False),
        lasts_s=600.0,
        every_s=300.0,
        status=Status.UNKNOWN,
        unknown=BLIND,
    ),
)

CASES: tuple[Case, ...] = (*RECOVERY, *HEAT, *NVML, *DRIVER)
