"""``healthd relearn``: a person tells the daemon that what is there now is right."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.limits import limit_s
from tests.support.running import NOBODY, ROOT, RunningNode

pytestmark = pytest.mark.process

SECTIONS = """
[sources]
sys_root = "{sys}"
kmsg = "{kmsg}"
[orchestrator]
kind = "local"
[checks."efa.devices"]
interval_s = 0.2
startup_grace_s = 0.001
gpudirect = false
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A running daemon on a machine of an unknown type that has three EFA devices."""
    kmsg = tmp_path / "kmsg"
    kmsg.touch()
    for number in (1, 2, 3):
        function = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        for made in ("infiniband/rdmap0", "infiniband_verbs/uverbs0"):
            (function / made).mkdir(parents=True)
        for name, value in (("vendor", "0x1d0f"), ("device", "0xefa1"), ("class", "0x020000")):
            (function / name).write_text(value)
    running = RunningNode(
        tmp_path / "node", "n1", sections=SECTIONS.format(sys=tmp_path / "sys", kmsg=kmsg), kmsg=str(kmsg)
    )
    running.start()
    yield running
    running.stop()


def codes(node: RunningNode) -> list[str]:
    return [each["code"] for each in node.check("efa.devices")["diagnoses"]]


def relearn(node: RunningNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    return node.healthd(
        "relearn", "efa.devices", "--reason", "one was detached", *arguments, "--socket", str(node.socket)
    )


def test_a_device_that_was_taken_out_on_purpose(node: RunningNode, tmp_path: Path) -> None:
    """It is missing until a person says that it is not; the dry run forgets nothing, the audit has the reason."""
    node.wait(lambda: codes(node) == [] and node.check("efa.devices")["verdict"] == "ok", 10, "all three are there")
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0").rename(tmp_path / "gone")
    node.wait(lambda: codes(node) == ["efa.missing"], 10, "one is missing")
    preview = relearn(node, "--dry-run")
    assert (preview.returncode, preview.stdout.split(", since")[0]) == (
        0,
        "would be forgotten: efa_device_count 3 of node",
    )
    (known,) = json.loads(relearn(node, "--dry-run", "--json").stdout)["learned"]
    assert (known["component"], known["reading"], known["value"]) == ("node", "efa_device_count", 3.0)
    assert codes(node) == ["efa.missing"]
    unasked = relearn(node)
    assert (unasked.returncode, "refusing to act without confirmation" in unasked.stderr) == (64, True)
    assert relearn(node, "--yes").stdout.startswith("forgotten: efa_device_count 3 of node, since ")
    node.wait(lambda: codes(node) == [], 10, "two are right")
    messages = [event.text for event in node.events() if "healthd relearn" in event.text]
    assert messages == ["healthd relearn: one was detached (uid 0); forgotten: efa_device_count 3 of node"]
    assert relearn(node, "--dry-run").stdout.startswith("would be forgotten: efa_device_count 2 of node")


def test_who_sits_at_a_terminal_is_asked(node: RunningNode) -> None:
    """The question shows what would be forgotten, and anything but yes forgets nothing."""
    node.wait(lambda: "efa_device_count" in relearn(node, "--dry-run").stdout, 10, "it has learned")
    for typed, out in ((b"n\n", ""), (b"y\n", "forgotten: efa_device_count 3 of node")):
        master, slave = pty.openpty()
        try:
            argv = [sys.executable, "-m", "healthd", "relearn", "--reason", "x", "--socket", str(node.socket)]
            child = subprocess.Popen(
                argv,
                stdin=slave,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={"PYTHONPATH": str(ROOT)},
            )
            os.write(master, typed)
            output, asked = child.communicate(timeout=limit_s(30))
        finally:
            os.close(master)
            os.close(slave)
        assert b"would be forgotten: efa_device_count 3 of node" in asked
        assert output.decode().startswith(out)
        assert bool(output) == bool(out)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user")
def test_only_root_and_the_group_may_order(node: RunningNode) -> None:
    """Anybody may ask what would be forgotten; an order needs the right."""
    for how, code, words in (("--dry-run", 0, ""), ("--yes", 77, f"uid {NOBODY} may not act here")):
        made = node.as_nobody("relearn", "--reason", "x", how)
        assert (made.returncode, words in made.stderr) == (code, True), made.stderr


def test_a_check_that_learns_nothing_is_refused(node: RunningNode) -> None:
    """With the nearest name, or those that do learn."""
    wrong = node.healthd("relearn", "gpu.ecc", "--reason", "x", "--yes", "--socket", str(node.socket))
    assert (wrong.returncode, "'gpu.ecc' is not a check that learns here" in wrong.stderr) == (64, True)
    close = node.healthd("relearn", "efa.device", "--reason", "x", "--yes", "--socket", str(node.socket))
    assert "did you mean efa.devices?" in close.stderr


def test_without_a_daemon(tmp_path: Path) -> None:
    """There is nothing to forget, and that is said."""
    node = RunningNode(tmp_path / "node", "n1")
    for how in (("--yes",), ("--dry-run",), ()):
        made = node.healthd("relearn", "--reason", "x", *how, "--socket", str(node.socket))
        assert (made.returncode, "no daemon answers at" in made.stderr) == (69, True)
