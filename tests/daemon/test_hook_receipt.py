"""A prolog's answer is recorded as what the job got: a real daemon, the real hook and its real deadline."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.api.wire import Request, write_request
from healthd.remediation.orchestrators.local import HOLD_FILE
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, QUARANTINES, RunningNode

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROLOG = write_request(Request(arguments=("hook", "prolog"), environ={"SLURM_JOB_ID": "4711"}))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node that is drained by us for a GPU that fell off the bus."""
    made = RunningNode(tmp_path_factory.mktemp("hook") / "node", "n1", sections=QUARANTINES)
    try:
        made.start()
        made.kernel_says(OFF_THE_BUS.format(pci="0000:05:00"))
        made.wait((made.state_dir / HOLD_FILE).exists, 30.0, "our drain")
        yield made
    finally:
        if made.process is not None:
            made.process.send_signal(signal.SIGCONT)
        made.stop()


def hooks(node: RunningNode) -> list[str]:
    """What each prolog got; how many had no answer at all is a line of its own."""
    return [event.text for event in node.events() if event.kind == "hook" and event.text.startswith("prolog ")]


def said_of(node: RunningNode, before: int) -> str:
    """The one line that the trail got for one hook."""
    node.wait(lambda: len(hooks(node)) > before, 30.0, "the trail has it")
    time.sleep(0.3)
    (line,) = hooks(node)[before:]
    return line


def asks(node: RunningNode) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(limit_s(20.0))
    client.connect(str(node.socket))
    client.sendall(PROLOG)
    client.shutdown(socket.SHUT_WR)
    return client


def test_a_refusal_that_the_job_got_is_one(node: RunningNode) -> None:
    """The hook ends with 1, and the trail says that the job was refused."""
    before = len(hooks(node))
    hook = node.healthd("hook", "prolog", "--socket", str(node.socket), SLURM_JOB_ID="4711")
    assert hook.returncode == 1
    assert said_of(node, before).startswith("prolog refused job 4711: healthd: gpu.xid.79")


def test_a_refusal_that_comes_too_late_is_none(node: RunningNode) -> None:
    """The daemon is stopped for longer than the hook waits: the job goes on, and so says the trail."""
    before, process = len(hooks(node)), node.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    hook = node.healthd("hook", "prolog", "--socket", str(node.socket), SLURM_JOB_ID="4712")
    process.send_signal(signal.SIGCONT)
    assert (hook.returncode, "the job passes" in hook.stderr) == (0, True)
    line = said_of(node, before)
    assert line.startswith("prolog let job 4712 pass: its hook ended before the refusal: healthd: gpu.xid.79")


def test_a_hook_that_is_killed_before_it_reads_refuses_nothing(node: RunningNode) -> None:
    """Slurm ended it (PrologTimeout), or it died: its answer was sent, and nobody took it."""
    before = len(hooks(node))
    with asks(node):
        time.sleep(2.0)  # the answer lies there
        assert hooks(node)[before:] == [], "nothing is said before it is known"
    assert said_of(node, before).startswith("prolog let job 4711 pass: its hook ended before the refusal")


def test_a_hook_that_is_stopped_is_said_to_be_one_of_which_nobody_knows(node: RunningNode) -> None:
    """It may read its answer in an hour: the trail says what is known, and the daemon's thread is free."""
    before = len(hooks(node))
    with asks(node):
        line = said_of(node, before)
    assert line.startswith("prolog refused job 4711, which may pass: its hook has not read the refusal: healthd: gpu")


def test_without_a_daemon_the_trail_and_the_exit_code_agree(tmp_path: Path, node: RunningNode) -> None:
    """The hook that looks for itself: what it writes down is how it ends."""
    node.stop()
    before = len(hooks(node))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "healthd",
            "hook",
            "prolog",
            "--config",
            str(node.config),
            "--socket",
            str(tmp_path / "s"),
        ],
        env={**node._environ, "SLURM_JOB_ID": "4713"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=limit_s(30),
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert said_of(node, before).startswith("prolog refused job 4713: healthd: gpu.xid.79")
