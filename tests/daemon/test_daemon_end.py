"""How the daemon ends while it is doing something to its node: nothing is broken off, begun, or done twice."""

from __future__ import annotations

import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.agent.agent import acting_agent
from healthd.api.exit_codes import ExitCode
from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.node import KernelRecord
from healthd.remediation.engine.dependencies import Heartbeat
from healthd.sim.machine import SimulatedMachine
from tests.support.limits import limit_s
from tests.support.running import UNCONTAINED, RunningNode

pytestmark = [pytest.mark.process, pytest.mark.slow]

PCI = "0000:05:00"
SECTIONS = """
[remediation]
mode = "repair"
settle_s = 0.5
opt_out_file = ""
reset_services = []
[policy]
canary_repairs = 0
[orchestrator]
kind = "local"
"""
# A reset that takes its time, and says when it began and when it was done.
NVIDIA_SMI = """#!/bin/sh
[ "$1" = --gpu-reset ] || exit 0
echo begun >>{log}
sleep {seconds}
echo done >>{log}
"""
Make = Callable[..., RunningNode]


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """What nvidia-smi was asked for, line by line."""
    return tmp_path / "resets"


@pytest.fixture
def make(tmp_path: Path, tool: Path) -> Iterator[Make]:
    """A node whose GPU has a fault that calls for a reset, with an nvidia-smi that takes this long."""
    made: list[RunningNode] = []

    def one(*, seconds: float, daemon: str = "") -> RunningNode:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(NVIDIA_SMI.format(log=tool, seconds=seconds))
        program.chmod(0o755)
        environ = {"PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"}
        node = RunningNode(tmp_path / "node", "n1", sections=SECTIONS, environ=environ)
        node.as_program = True
        node.config.write_text(node.config.read_text().replace('http = ""\n', f'http = ""\n{daemon}'))
        made.append(node)
        node.start()
        node.kernel_says(UNCONTAINED.format(pci=PCI))
        node.wait(lambda: resets(tool), 30.0, "a GPU reset is under way")
        return node

    yield one
    for each in made:
        each.kill()


def resets(tool: Path) -> list[str]:
    return tool.read_text().split() if tool.exists() else []


def test_a_step_under_way_is_waited_for_and_none_follows(make: Make, tool: Path) -> None:
    """SIGTERM in the middle of a reset of 17 s: the daemon ends once it is done, its end is the last word on disk, and
    the next daemon goes on from there without another reset."""
    node = make(seconds=17)
    process = node.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None, "the end did not wait for the reset"
    assert node.stop() == 0
    assert resets(tool) == ["begun", "done"]
    messages = [event.text for event in node.events()]
    assert messages[-1] == "healthd stopped"
    reset = next(number for number, text in enumerate(messages) if "GPUs reset: nvidia-smi --gpu-reset" in text)
    assert reset > next(number for number, text in enumerate(messages) if "intends to reset the GPUs" in text)
    assert not any("healthy again" in text or "verified" in text for text in messages[reset:]), "a step after SIGTERM"
    node.start()
    node.wait(lambda: "released: back in service" in node.log_text(), 30.0, "the remediation to go on to its end")
    assert resets(tool) == ["begun", "done"]


def test_the_end_does_not_wait_for_ever(make: Make, tool: Path) -> None:
    """A reset of a minute, and a daemon that may wait a second: it ends, says with what, and fails. The next one finds
    the intent, and makes the reset again."""
    node = make(seconds=60, daemon="stop_s = 1\n")
    began = time.monotonic()
    assert node.stop() == ExitCode.FAILED
    assert time.monotonic() - began < limit_s(3.0)
    last = node.events()[-1].text
    assert last == "healthd stopped with work under way (engine): it is found again at the next start"
    assert resets(tool) == ["begun"]
    (tool.parent / "bin" / "nvidia-smi").write_text(NVIDIA_SMI.format(log=tool, seconds=0))
    node.start()
    node.wait(lambda: "GPUs reset: nvidia-smi" in node.log_text(), 30.0, "the reset to be made again")
    assert resets(tool) == ["begun", "begun", "done"]


def test_orders_and_hooks_begin_nothing_during_the_end(make: Make, tool: Path) -> None:
    """The socket is closed at once, so that nobody is told yes by a daemon that is about to go."""
    node = make(seconds=4)
    process = node.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    node.wait(lambda: not node.socket.exists(), 30.0, "the socket to go")
    assert node.stop() == 0
    assert resets(tool) == ["begun", "done"]


def test_it_asks_its_service_manager_for_the_time_that_it_takes(tmp_path: Path, make: Make) -> None:
    """EXTEND_TIMEOUT_USEC (sd_notify(3)), so that a TimeoutStopSec of 90 s does not cut a reset of 300 s short."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(limit_s(30))
        node = make_with_manager(make, str(tmp_path / "notify"))
        process = node.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        heard = manager.recv(100)
        while not heard.startswith(b"EXTEND_TIMEOUT_USEC="):
            heard = manager.recv(100)
        assert int(heard.partition(b"=")[2]) >= 15_000_000
        assert node.stop() == 0


def make_with_manager(make: Make, address: str) -> RunningNode:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTIFY_SOCKET", address)
        return make(seconds=12)


def test_health_is_told_on_an_address_of_ipv6(tmp_path: Path) -> None:
    """``http = "[::1]:PORT"`` of the configuration, from a real daemon."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
        port = probe.getsockname()[1]
    node = RunningNode(tmp_path / "node", "n1", sections='[orchestrator]\nkind = "local"\n')
    node.config.write_text(node.config.read_text().replace('http = ""', f'http = "[::1]:{port}"'))
    node.start()
    try:
        with urllib.request.urlopen(f"http://[::1]:{port}/healthz", timeout=limit_s(5)) as answer:
            assert answer.read() == b"ok\n"
    finally:
        node.stop()


def test_a_long_reset_is_announced_by_the_engine_that_the_daemon_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evidence and reset, two seconds each: the watchdog, which asks meanwhile, hears of no silence. One that went by
    the end of whole turns would end the daemon in the middle of a reset that takes its five minutes."""
    machine, log = SimulatedMachine(tmp_path / "machine"), tmp_path / "resets"
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(log=log, seconds=2))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/sbin:/usr/bin:/sbin:/bin")
    machine.config.write_text(f'{machine.config.read_text()}\n[evidence]\ncommands = [["sleep", "2"]]\n')
    config = load(
        machine.config, checks={name: check.settings for name, check in discover().items()}, environ={}
    ).config
    beat, silences, over = Heartbeat(), [0.0], threading.Event()
    agent = acting_agent(config, source="daemon", environ={}, changed=lambda: None, beat=beat)

    def watch() -> None:
        while not over.wait(0.02):
            silences.append(beat.silent_s())

    watchdog = threading.Thread(target=watch)
    watchdog.start()
    try:
        record = KernelRecord(
            boot_id=agent.monitor.boot_id, sequence=1, time=datetime.now(UTC), text=UNCONTAINED.format(pci=PCI)
        )
        agent.checkup.judge_kernel((record,), None)
        assert agent.engine is not None
        longest_s, until = 0.0, time.monotonic() + limit_s(30)
        while resets(log) != ["begun", "done"] and time.monotonic() < until:
            began = time.monotonic()
            agent.engine.reconcile(datetime.now(UTC))
            longest_s = max(longest_s, time.monotonic() - began)
    finally:
        over.set()
        watchdog.join()
        agent.close()
    assert resets(log) == ["begun", "done"]
    assert longest_s > 4.0
    assert len(silences) > 50
    assert max(silences) < longest_s / 3, "of two seconds or more of each four"
