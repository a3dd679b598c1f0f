"""NVML in trouble, seen from a real daemon: the real pynvml on the simulated C library, in the daemon's own worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from healthd.core.check import discover
from healthd.remediation.orchestrators.local import HOLD_FILE
from healthd.sim import nvml_state as sim
from healthd.sim.machine import SimulatedMachine
from healthd.sim.nvml import write_state
from tests.live.nvml.conftest import live_workers
from tests.support.compiled import NVML_SIM, compiled
from tests.support.limits import limit_s
from tests.support.nvml_states import with_library_fault
from tests.support.running import UNCONTAINED, RunningNode

pytestmark = [pytest.mark.nvml, pytest.mark.process]

HEALTHY = sim.healthy_state()
GSP = (
    "NVRM: Xid (PCI:{pci}): 119, pid=1580259, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 "
    "GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803039 0x4)."
)
HEALED = "NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
PCI_1 = "0000:64:00"
SECTIONS = """
[orchestrator]
kind = "local"
[remediation]
mode = "quarantine"
settle_s = 0.5
opt_out_file = ""
[checks."nvml.probe"]
interval_s = 2
unresponsive_after_s = 6
"""
NVML_CHECKS = ("gpu.count", "gpu.ecc", "gpu.remap", "gpu.recovery")
WATCHED = (*NVML_CHECKS, "nvml.probe", "kernel.xid", "kmsg.reader")
# The deadline of a question to NVML, which an answer that waits for one takes at least.
QUESTION_S = 5.0
EAGER = "".join(f'[checks."{name}"]\ninterval_s = 3\n' for name in NVML_CHECKS)
# What else there is to check on a machine is no matter here.
OTHERS = [name for name in discover() if name not in WATCHED]


class SimulatedNode:
    """A daemon on a simulated p5.48xlarge whose NVML is the C library."""

    def __init__(self, folder: Path, library: Path, state: Path) -> None:
        self._state = state
        self.becomes(HEALTHY)
        self.machine = SimulatedMachine(folder / "machine")
        sections = SECTIONS + EAGER + self.machine.sections(off=OTHERS, nvml_library=library)
        self.node = RunningNode(folder / "node", "p5", sections=sections, kmsg=str(self.machine.kmsg))

    def start(self) -> None:
        """Start the daemon and wait until all is well."""
        self.node.start()
        self.node.well()

    def becomes(self, state: Mapping[str, str]) -> None:
        write_state(self._state, state)

    def probe(self) -> dict[str, Any]:
        """What `healthd check nvml.probe` says: the check itself."""
        checks: list[dict[str, Any]] = self.node.check("nvml.probe")["checks"]
        return checks[0]

    def workers(self) -> list[int]:
        """The daemon's live NVML workers, as /proc has them."""
        assert self.node.process is not None
        return [pid for pid in live_workers(self.node.process.pid) if b"nvml_ops" in command_line(pid)]

    def is_held(self) -> bool:
        return (self.node.state_dir / HOLD_FILE).exists()


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:  # ended since it was listed
        return b""


@pytest.fixture(scope="module")
def daemon_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the library, its state file). The path is compiled in: a daemon refuses variables of a name it does not know."""
    folder = tmp_path_factory.mktemp("nvml_daemon")
    state, shim = folder / "state", folder / "shim.h"
    shim.write_text(f'#include <stdlib.h>\n#define getenv(name) "{state}"\n')
    return compiled(NVML_SIM, folder / "libnvidia-ml.so.1", "-include", str(shim)), state


@pytest.fixture
def p5(tmp_path: Path, daemon_library: tuple[Path, Path]) -> Iterator[SimulatedNode]:
    """A healthy simulated node with a running daemon."""
    made = SimulatedNode(tmp_path, *daemon_library)
    try:
        made.start()
        yield made
    finally:
        made.node.stop()


def watched(
    p5: SimulatedNode, until: Callable[[dict[str, Any]], bool], within_s: float
) -> tuple[list[str], list[float]]:
    """Ask again and again, cold each time: the outcomes of nvml.probe in order, and how long each answer took."""
    outcomes: list[str] = []
    took, end = [], time.monotonic() + limit_s(within_s)
    while time.monotonic() < end:
        began = time.monotonic()
        probe = p5.probe()
        took.append(time.monotonic() - began)
        assert len(p5.workers()) <= 1, "two probes in flight"
        if not outcomes or outcomes[-1] != probe["outcome"]:
            outcomes.append(probe["outcome"])
        if until(probe):
            return outcomes, took
        time.sleep(0.1)
    raise AssertionError(f"not within {limit_s(within_s):g} s; the outcomes were {outcomes}")


def test_a_hang_is_unknown_then_a_fault_and_nothing_waits_for_it(p5: SimulatedNode) -> None:
    """One GPU hangs 60 s: answers at once, unknown first, then nvml.unresponsive; the kernel log drains meanwhile."""
    p5.becomes(sim.with_gpu_fault(HEALTHY, 4, "hang 60"))
    outcomes, took = watched(p5, lambda probe: probe["outcome"] == "unknown", 15.0)
    assert outcomes == ["ok", "unknown"]
    assert not p5.is_held(), "unknown takes nothing out"
    p5.machine.kernel_says(UNCONTAINED.format(pci=PCI_1))
    p5.node.wait(p5.is_held, 2.0, "the kernel's line drains while NVML hangs")
    outcomes, more = watched(p5, lambda probe: probe["outcome"] == "findings", 40.0)
    assert outcomes == ["unknown", "findings"]
    finding = p5.probe()["findings"][0]
    assert (finding["code"], finding["severity"]) == ("nvml.unresponsive", "critical")
    assert max(took + more) < limit_s(2.0)
    assert sorted(took + more)[len(took + more) // 2] < QUESTION_S
    p5.becomes(HEALTHY)
    watched(p5, lambda probe: probe["outcome"] == "ok", 20.0)
    p5.machine.kernel_says(HEALED.format(pci=PCI_1))
    p5.node.wait(lambda: not p5.is_held(), 20.0, "released")
    assert p5.node.check()["verdict"] == "ok"


def test_a_crash_is_unknown_and_it_comes_back(p5: SimulatedNode) -> None:
    """SIGSEGV inside the library ends the worker, not the daemon: unknown with the signal's number, then ok."""
    p5.becomes(with_library_fault(HEALTHY, "crash"))
    outcomes, _ = watched(p5, lambda probe: probe["outcome"] == "unknown", 10.0)
    assert outcomes[-1] == "unknown"
    assert "died of signal 11" in p5.probe()["reason"]
    assert p5.node.check()["verdict"] == "unknown"
    p5.becomes(HEALTHY)
    watched(p5, lambda probe: probe["outcome"] == "ok", 20.0)
    assert not p5.is_held()


def test_xid_119_pauses_nvml_before_it_can_hang(p5: SimulatedNode) -> None:
    """After XID 119 nobody asks NVML: the worker that would have hung, and been killed for it, is left in peace."""
    (worker,) = p5.workers()
    p5.machine.kernel_says(GSP.format(pci=PCI_1))
    p5.node.wait(lambda: "gpu.xid.119" in p5.node.log_text(), 5.0, "the line was judged")
    p5.becomes(sim.with_gpu_fault(HEALTHY, 4, "hang 60"))
    outcomes, took = watched(p5, lambda probe: "paused" in (probe["reason"] or ""), 10.0)
    assert outcomes[-1] == "unknown"
    end = time.monotonic() + 7.0  # longer than the deadline of a question, with three probes due meanwhile
    while time.monotonic() < end:
        assert p5.workers() == [worker]
        assert "paused" in p5.probe()["reason"]
        time.sleep(0.2)
    assert "no answer to" not in p5.node.log_text()
    assert max(took) < limit_s(2.0)


def test_a_lost_gpu_hides_no_other(p5: SimulatedNode) -> None:
    """GPU_IS_LOST on one of eight: gpu.lost names that one, and no finding names another."""
    p5.becomes(sim.with_gpu_fault(HEALTHY, 3, "lost"))

    def lost() -> list[str]:
        checks = p5.node.check("gpu.recovery", "gpu.count", "gpu.ecc", "gpu.remap")["checks"]
        return [f"{each['code']} {each['component']}" for check in checks for each in check["findings"]]

    p5.node.wait(lost, 10.0, "the loss is found")
    assert lost() == [f"gpu.lost gpu:{sim.uuid(3)}"]
    p5.node.wait(p5.is_held, 5.0, "the node is out")
