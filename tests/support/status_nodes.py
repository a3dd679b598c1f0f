"""Simulated nodes with real daemons in the states that the status page is judged by: for its test and its pictures."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from healthd.sim.machine import INSTANCE_TYPE, SimulatedMachine
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state
from tests.support.limits import limit_s
from tests.support.nvml_states import with_library_fault
from tests.support.ports import free_ports
from tests.support.running import ROOT, Running

BAD_GPU = 3
_OF_NVML = ("gpu.c2c", "gpu.count", "gpu.ecc", "gpu.fabric", "gpu.health", "gpu.nvlink", "gpu.pcie", "gpu.power",
            "gpu.processes", "gpu.recovery", "gpu.remap", "gpu.sram", "gpu.temperature", "gpu.throttle",
            "nvml.probe")  # fmt: skip
_NOT_YET = ("no result", "no answer yet", "the records of")


class StatusNode(Running):
    """A simulated p5.48xlarge whose daemon listens on a loopback port."""

    def __init__(self, folder: Path, *, mode: str = "repair", name: str = "gpu-42", more: str = "") -> None:
        folder.mkdir(parents=True)
        self.machine, self.port = SimulatedMachine(folder), free_ports(1)[0]
        self.url, self.log = f"http://127.0.0.1:{self.port}/", folder / "log"
        text = self.machine.config.read_text().replace('http = ""', f'http = "127.0.0.1:{self.port}"')
        text = re.sub('^mode = ".*"', f'mode = "{mode}"', text, flags=re.MULTILINE)
        text = re.sub('^name = ".*"', f'name = "{name}"', text, flags=re.MULTILINE)
        self.machine.config.write_text(text + more)

        self.environ = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT)}

    def start(self) -> None:
        """Start the daemon and wait until every check has looked."""
        self.begin("run", self.machine.config, self.log, self.environ)
        self.wait(lambda data: not any(check["reason"].startswith(_NOT_YET) for check in data["checks"]), "all looked")

    def status(self) -> dict[str, Any]:
        """What the page is fed with. Raises OSError while nobody answers."""
        with urllib.request.urlopen(f"{self.url}status", timeout=limit_s(10)) as answer:  # noqa: S310 - http, on loopback
            data: dict[str, Any] = json.load(answer)
        return data

    def wait(self, condition: Callable[[dict[str, Any]], object], what: str, within_s: float = 25.0) -> None:
        """Poll the status until it is so; fail with the end of the daemon's log."""

        until = time.monotonic() + limit_s(within_s)
        while not self._is_so(condition):
            if time.monotonic() > until:
                log = self.log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"not within {limit_s(within_s):g} s: {what}\n{log}")
            time.sleep(0.1)

    def _is_so(self, condition: Callable[[dict[str, Any]], object]) -> object:
        try:
            return condition(self.status())
        except OSError:
            return False


def node_of_many_findings(folder: Path) -> StatusNode:
    """A node, running, on which each of the 32 EFA devices, each of the 8 GPUs and 15 checks have something."""
    every_s = "".join(f'[checks."{name}"]\ninterval_s = 1\n' for name in ("efa.counters", *_OF_NVML))
    node = StatusNode(folder, mode="observe", name="gpu-51", more=every_s)
    node.start()
    blind = with_library_fault(healthy_state(INSTANCE_TYPE), "driver_not_loaded")
    write_state(node.machine.nvml, blind)
    for counter in node.machine.root.glob("sys/class/infiniband/*/hw_counters/no_completion_cmds"):
        counter.write_text("1\n")
    node.wait(lambda data: sum(check["blind"] for check in data["checks"]) >= len(_OF_NVML), "15 checks are unknown")
    node.machine.gpu_falls_off_the_bus(*range(8))
    write_state(node.machine.nvml, blind)
    for code, devices in (("gpu.xid.79", 8), ("efa.counters.no_completion", 32)):
        node.wait(partial(_has_cause, code, devices), f"{devices} devices have {code}")
    return node


def _has_cause(code: str, devices: int, data: dict[str, Any]) -> bool:
    return any(each["code"] == code and len(each["components"]) == devices for each in data["causes"])


def four_nodes(folder: Path) -> Mapping[str, StatusNode]:
    """A node in each state, all of them running: healthy, critical with a bad GPU, repairing, unknown."""
    nodes = {
        "healthy": StatusNode(folder / "healthy"),
        "critical": StatusNode(folder / "critical", mode="observe"),
        "repairing": StatusNode(folder / "repairing"),
        "unknown": StatusNode(folder / "unknown"),
    }
    blind = with_library_fault(healthy_state(INSTANCE_TYPE), "driver_not_loaded")
    write_state(nodes["unknown"].machine.nvml, blind)
    for node in nodes.values():
        node.start()
    for name in ("critical", "repairing"):
        nodes[name].machine.gpu_falls_off_the_bus(BAD_GPU)
    for name, node in nodes.items():
        node.wait(lambda data, name=name: data["headline"]["state"] == name, f"the node is {name}")  # type: ignore[misc]
    nodes["repairing"].wait(
        lambda data: data["remediation"]["step"] == "reboot" and data["remediation"]["note"], "it is rebooting"
    )
    return nodes
