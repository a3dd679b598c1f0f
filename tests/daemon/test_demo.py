"""`healthd demo`: the whole story on a simulated node, told from the audit store, and honest when it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from tests.support.limits import limit_s
from tests.support.running import ROOT
from tests.support.scripts import load_script

pytestmark = [pytest.mark.process, pytest.mark.slow]


def demo(*options: str, folder: Path = Path("/")) -> tuple[int, str, str, float]:
    """Run the demo in a folder as a person would: (exit code, stdout, stderr, seconds)."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "healthd", "demo", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def test_the_demo_repairs_a_node_in_under_a_minute(tmp_path: Path) -> None:
    """Exit 0, labelled SIMULATED, the timeline goes from fault to release, and the README's recording is of this. Root
    may call it in a folder of other users: nothing there is run."""
    for name in ("msgspec", "structlog"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the working directory')\n")
    code, told, _, took_s = demo(folder=tmp_path)
    assert code == 0
    assert took_s < limit_s(60)
    assert "SIMULATED p5.48xlarge" in told
    timeline = told.partition("Timeline, from the audit store")[2]
    story = ("gpu.xid.79", "intends to drain", "drained:", "intends to reboot", "rebooted:", "verified", "released")
    places = [timeline.find(word) for word in story]
    assert -1 not in places
    assert places == sorted(places)
    recording = load_script("docs_record", ROOT / "docs/record.py")
    now, shown = (recording.comparable(each) for each in (recording.shortened(told), recording.recorded()))
    assert now == shown, "the README shows another demo: python docs/record.py"
    assert len(shown) > 20


def test_a_provisioner_that_fails_fails_the_demo() -> None:
    """The reboot is refused: the exit code is not 0, stderr says why, and the node was not released."""
    code, told, message, took_s = demo("--fail-provisioner", "--json")
    assert code == 1
    assert took_s < limit_s(60)
    assert "FAILED" in message
    assert "reboot" in message
    assert "released: back in service" not in told
    data = json.loads(told)
    assert (data["simulated"], [each["end"] for each in data["remediations"]]) == (True, ["failed"])
    assert "SIMULATED p5.48xlarge" in message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory, number: int) -> None:
    """Neither its daemon, which nothing else would end, nor its folder."""
    folder = tmp_path_factory.mktemp("d")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    # A test run under nohup ignores SIGHUP, and so would the demo.
    argv = [sys.executable, "-m", "healthd", "demo"]
    begin = f"import os, signal; signal.signal({int(number)}, signal.SIG_DFL); os.execv({argv[0]!r}, {argv!r})"
    with subprocess.Popen([sys.executable, "-c", begin], cwd="/", env=environ, stdout=PIPE) as one:
        assert one.stdout is not None
        shown = iter(one.stdout)
        assert any(b"usable" in line for line in shown)
        daemons = [each for each in psutil.Process(one.pid).children() if "run" in each.cmdline()]
        one.send_signal(number)
        assert one.wait(limit_s(30)) == 128 + number
    left = [each for each in daemons if each.is_running()]
    for each in left:
        each.kill()
    assert (len(daemons), left) == (1, [])
    assert list(folder.iterdir()) == []
