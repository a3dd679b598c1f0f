"""A user fills the queue of the daemon's socket, for as long as it lasts: root's prolog is answered all the same."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.local import HOLD_FILE
from tests.support.running import NOBODY, OFF_THE_BUS, QUARANTINES, RunningNode

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user"),
]

# Connects as fast as it can, and keeps what it has; says so once the queue has had no room.
_FLOODS = f"""
import os, socket, sys, threading, time
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
full = threading.Event()

def go():
    held = []
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        try:
            one.connect(sys.argv[1])
            held = [*held[-200:], one]
        except BlockingIOError:
            full.set()
            one.setblocking(True)
            one.connect(sys.argv[1])
            held = [*held[-200:], one]
        except OSError:
            time.sleep(0.001)

for _ in range(8):
    threading.Thread(target=go, daemon=True).start()
print("full" if full.wait(30) else "never full", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def flood(node: RunningNode) -> Iterator[None]:
    argv = [sys.executable, "-c", _FLOODS, node.socket.name]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=node.folder)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"full\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_flood_by_a_user_lets_no_job_onto_a_critical_node(tmp_path: Path) -> None:
    """Each prolog is refused as it is without the flood, and none passes unseen; who is no operator waits in turn."""
    node = RunningNode(tmp_path / "node", "n1", sections=QUARANTINES)
    node.open_to_all()
    try:
        node.start()
        node.kernel_says(OFF_THE_BUS.format(pci="0000:05:00"))
        node.wait((node.state_dir / HOLD_FILE).exists, 30.0, "our drain")
        with flood(node):
            hooks = [node.healthd("hook", "prolog", "--socket", str(node.socket)) for _ in range(6)]
        assert [(hook.returncode, "did not answer" in hook.stderr) for hook in hooks] == [(1, False)] * 6
        assert node.as_nobody("status").returncode == 0
        assert "hooks without an answer" not in node.log_text()
    finally:
        node.stop()
