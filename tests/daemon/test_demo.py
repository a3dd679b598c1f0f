"""`healthd demo`: the whole story on a simulated node, told from the audit store, and honest when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests.support.limits import limit_s
from tests.support.running import ROOT
from tests.support.scripts import load_script

pytestmark = [pytest.mark.process, pytest.mark.slow]


def demo(*options: str) -> tuple[int, str, str, float]:
    """Run the demo as a person would: (exit code, stdout, stderr, seconds)."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "healthd", "demo", *options],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def test_the_demo_repairs_a_node_in_under_a_minute() -> None:
    """Exit 0, labelled SIMULATED, the timeline goes from fault to release, and the README's recording is of this."""
    code, told, _, took_s = demo()
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
