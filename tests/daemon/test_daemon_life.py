"""The daemon as its service manager knows it: start, watchdog, end, nothing left behind. And one verdict for all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from healthd import __version__
from healthd.core.model import pci_address
from healthd.sim.machine import SimulatedMachine
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import PROFILES, healthy_state, with_gpu_fault
from tests.support.limits import limit_s
from tests.support.nvml_states import with_remap
from tests.support.running import ROOT, UNCONTAINED, RunningNode
from tests.unit.observe.test_report import DOCUMENT, violations

pytestmark = pytest.mark.process


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedMachine:
    """A simulated p5.48xlarge, with its worker for NVML: a daemon on it has children."""
    return SimulatedMachine(tmp_path / "machine")


@pytest.fixture
def node(tmp_path: Path, machine: SimulatedMachine) -> Iterator[RunningNode]:
    """A node on that machine, its daemon not yet started. It has a service manager that ends it after ten silent
    seconds, in the variables that systemd sets."""
    sections = f'[orchestrator]\nkind = "local"\n{machine.sections()}'
    manager = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "10000000"}
    made = RunningNode(tmp_path / "node", "p5", sections=sections, kmsg=str(machine.kmsg), environ=manager)
    made.as_program = True
    yield made
    made.stop()


def ask(node: RunningNode, *names: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """`healthd check` in the background."""
    argv = [sys.executable, "-m", "healthd", "check", *names, "--socket", str(node.socket)]
    environ = {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, env=environ, cwd="/", stdout=stdout, stderr=subprocess.DEVNULL)


def children(node: RunningNode) -> list[psutil.Process]:
    """The daemon's processes, itself left out."""
    assert node.process is not None
    found: list[psutil.Process] = psutil.Process(node.process.pid).children(recursive=True)
    return found


def are_gone(processes: list[psutil.Process], within_s: float) -> bool:
    """Whether all have ended in time."""
    _, alive = psutil.wait_procs(processes, timeout=limit_s(within_s))
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


# ---------------------------------------------------------------------------------------------------------------------
# life


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(node: RunningNode, number: signal.Signals) -> None:
    """SIGTERM and SIGINT: exit 0 within seconds, no child and no socket left, the end in the audit."""
    node.start()
    node.wait(lambda: children(node), 10.0, "it has workers")
    workers, process = children(node), node.process
    assert process is not None
    began = time.monotonic()
    process.send_signal(number)
    assert process.wait(timeout=limit_s(10)) == 0
    assert time.monotonic() - began < limit_s(3.0)
    assert are_gone(workers, 1.0)
    assert not node.socket.exists()
    assert node.events()[-1].text == "healthd stopped"


def test_it_ends_while_nvml_hangs(node: RunningNode, machine: SimulatedMachine) -> None:
    """A question that is out does not hold the end up: the worker is killed with it."""
    node.start()
    node.wait(lambda: node.check("gpu.count")["verdict"] == "ok", 20.0, "all GPUs are there")
    write_state(machine.nvml, with_gpu_fault(healthy_state(), 2, "hang 60"))
    asking = ask(node, "gpu.count")
    workers = children(node)
    began = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - began < limit_s(3.0)
    assert are_gone(workers, 1.0)
    asking.wait(timeout=limit_s(10))


def test_kill_9_leaves_no_worker_behind(node: RunningNode) -> None:
    """Workers end when the daemon is gone, without anybody telling them."""
    node.start()
    node.wait(lambda: children(node), 10.0, "it has workers")
    workers = children(node)
    node.kill()
    assert are_gone(workers, 3.0)


def test_it_keeps_its_service_manager_informed(node: RunningNode, tmp_path: Path) -> None:
    """READY=1 once it answers, WATCHDOG=1 in half of the time that it may be silent, STOPPING=1 at its end:
    sd_notify(3), sd_watchdog_enabled(3)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(limit_s(10))
        node.start()
        assert manager.recv(100) == b"READY=1"
        assert node.status() is not None
        assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        node.stop()
        heard = [manager.recv(100)]
        while heard[-1] == b"WATCHDOG=1":
            heard.append(manager.recv(100))
        assert heard[-1] == b"STOPPING=1"


def test_sighup_takes_the_configuration_anew(node: RunningNode, tmp_path: Path) -> None:
    """RELOADING=1 with the time, then READY=1: at once and with the old configuration where the new one is wrong, else
    from the same process, started again; never STOPPING=1, which would be an end. Nothing that was known is lost."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(limit_s(20))
        node.start()
        assert manager.recv(100) == b"READY=1"
        process, good = node.process, node.config.read_text()
        assert process is not None
        node.config.write_text(good + '[remediation]\nmode = "quarantin"\n')
        process.send_signal(signal.SIGHUP)
        assert heard(manager) == [b"RELOADING=1", b"READY=1"]
        assert "the configuration cannot be used, and the one before stays in force" in node.log.read_text()
        assert (node.status() or {})["mode"] == "observe"
        node.config.write_text(good + '[remediation]\nmode = "quarantine"\n')
        began = time.monotonic_ns() // 1000
        process.send_signal(signal.SIGHUP)
        told = manager.recv(100)
        while told == b"WATCHDOG=1":
            told = manager.recv(100)
        word, _, when = told.partition(b"\nMONOTONIC_USEC=")
        assert word == b"RELOADING=1"
        assert began <= int(when) <= time.monotonic_ns() // 1000
        assert heard(manager) == [b"READY=1"]
        assert (node.status() or {})["mode"] == "quarantine"
        assert process.poll() is None
        messages = [event.text for event in node.events() if event.kind == "daemon"]
        assert [text.partition(",")[0] for text in messages] == [
            f"healthd {__version__} started: node p5",
            "healthd stopped",
            f"healthd {__version__} started: node p5",
        ]
        assert node.stop() == 0


def heard(manager: socket.socket) -> list[bytes]:
    """What the daemon says up to READY=1, without its pings and without times."""
    words: list[bytes] = []
    while b"READY=1" not in words:
        word = manager.recv(100).partition(b"\n")[0]
        words += [] if word == b"WATCHDOG=1" else [word]
    return words


def test_an_end_that_comes_during_a_reload_wins(node: RunningNode) -> None:
    """SIGHUP and at once SIGTERM: it ends, and does not start again."""
    node.start()
    process = node.process
    assert process is not None
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=limit_s(20)) == 0
    assert node.events()[-1].text.startswith("healthd stopped")


# ---------------------------------------------------------------------------------------------------------------------
# one verdict


def sick(machine: SimulatedMachine) -> None:
    """One GPU needs a reset for a row remap, another had an uncontained error, a third is out of reach."""
    state = with_gpu_fault(with_remap(healthy_state(), 5, uncorrectable=1, pending=True), 6, "lost")
    write_state(machine.nvml, state)
    machine.kernel_says(UNCONTAINED.format(pci=pci_address(PROFILES["p5.48xlarge"].pci[1])))


def essence(verdict: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on who looked: everything but times, counts and the source."""
    return {
        "verdict": verdict["verdict"],
        "checks": {check["name"]: (check["outcome"], found(check)) for check in verdict["checks"]},
        "diagnoses": sorted((each["code"], each["component"], each["remedy"]) for each in verdict["diagnoses"]),
    }


def found(check: dict[str, Any]) -> list[tuple[str, str, str]]:
    """A check's findings, as code, component and severity."""
    return sorted((each["code"], each["component"], each["severity"]) for each in check["findings"])


@pytest.mark.parametrize("state", ["healthy", "sick"])
def test_the_verdict_is_the_same_with_and_without_a_daemon(
    node: RunningNode, machine: SimulatedMachine, state: str
) -> None:
    """Daemon and `--no-daemon` judge the same machine alike, exit alike, and both answers fit the published schema."""
    if state == "sick":
        sick(machine)
    node.start()
    expected = {"healthy": ("ok", 0), "sick": ("critical", 1)}[state]
    node.wait(lambda: node.check()["verdict"] == expected[0], 20.0, expected[0])
    asked = node.healthd("check", "--json", "--socket", str(node.socket))
    local = node.healthd("check", "--json", "--no-daemon", "--config", str(node.config))
    assert (asked.returncode, local.returncode) == (expected[1], expected[1])
    daemons, locals_ = json.loads(asked.stdout), json.loads(local.stdout)
    assert (daemons["source"], locals_["source"]) == ("daemon", "local")
    assert essence(daemons) == essence(locals_)
    schema = json.loads(DOCUMENT.read_text())
    assert [*violations(daemons, schema, schema), *violations(locals_, schema, schema)] == []
    brief = node.healthd("check", "--brief", "--socket", str(node.socket))
    alone = node.healthd("check", "--brief", "--no-daemon", "--config", str(node.config))
    assert (brief.returncode, alone.returncode) == (expected[1], expected[1])
    assert brief.stdout == alone.stdout
    assert (brief.stdout.count("\n"), brief.stdout.split()[0]) == (1, expected[0].upper())
    both = node.healthd("check", "--brief", "--json", "--socket", str(node.socket))
    assert (both.returncode, "exclude each other" in both.stderr) == (64, True)


def test_without_a_daemon_status_says_so_and_check_looks(node: RunningNode) -> None:
    """Nobody at the socket: `check` looks for itself, `status` has nothing to tell and says how to start a daemon."""
    assert node.healthd("check", "gpu.count", "--config", str(node.config)).returncode == 0
    status = node.healthd("status", "--socket", str(node.socket))
    assert (status.returncode, status.stdout) == (69, "")
    assert f"no daemon answers at {node.socket}; start it with `systemctl start healthd`" in status.stderr
    for verb in (("check",), ("check", "--active"), ("history",)):
        elsewhere = node.healthd(*verb, "--socket", str(node.socket))
        assert (elsewhere.returncode, elsewhere.stdout) == (69, ""), "another answer than was asked for is none"
        assert f"no daemon answers at {node.socket}; leave --socket out" in elsewhere.stderr


def test_a_reader_that_goes_away_harms_nobody(node: RunningNode) -> None:
    """`healthd check | head -0`, and a client that hangs up or sends nonsense: the daemon answers the next one."""
    node.start()
    reader, writer = os.pipe()
    os.close(reader)
    asking = ask(node, stdout=writer)
    os.close(writer)
    asking.wait(timeout=limit_s(20))
    for nonsense in (
        b"",
        b"\0" * 70_000,
        b"healthd/1\0" + b"9" * 99,
        b"GET / HTTP/1.1\r\n\r\n",
        b"healthd/2\0001\0check",
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(node.socket))
            client.sendall(nonsense)
    assert node.status() is not None
