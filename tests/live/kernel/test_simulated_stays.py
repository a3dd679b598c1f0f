"""A simulated machine sends nothing to the metadata service of the real one below it, although its DMI says EC2.

In a network namespace of its own, in which the service's address is there and somebody listens.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from healthd.sim.machine import SimulatedMachine
from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.root, pytest.mark.process]

SETUP = "ip link set lo up && ip addr add 169.254.169.254/32 dev lo"
LISTEN = """
import json, os, socket, subprocess, sys
heard = socket.create_server(("169.254.169.254", 80))
heard.setblocking(False)
codes = []
for verb in json.loads(sys.argv[1]):
    codes.append(subprocess.run([sys.executable, "-m", "healthd", *verb], capture_output=True, cwd="/").returncode)
calls = 0
while True:
    try:
        heard.accept()
        calls += 1
    except BlockingIOError:
        break
print(json.dumps({"codes": codes, "calls": calls}))
"""


def heard(config: Path, **environ: str) -> int:
    """How often the service's address was called by commands of this configuration."""
    unshare, ip = shutil.which("unshare"), shutil.which("ip")
    if unshare is None or ip is None:
        pytest.skip("needs unshare and ip")
    verbs = [["check", "--no-daemon"], ["doctor"], ["init", "--print"], ["checks"]]
    verbs = [verb if verb[0] in ("init", "checks") else [*verb, "--config", str(config)] for verb in verbs]
    argv = [unshare, "-n", "sh", "-c", f'{SETUP} && exec "$0" -c "$1" "$2"', sys.executable, LISTEN, json.dumps(verbs)]
    plain = {"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environ}
    done = subprocess.run(argv, env=plain, capture_output=True, text=True, timeout=limit_s(60), check=False, cwd="/")
    if "unshare" in done.stderr or "RTNETLINK" in done.stderr:
        pytest.skip(f"no network namespace here: {done.stderr}")
    told = json.loads(done.stdout)
    assert all(code in (0, 1, 2) for code in told["codes"]), told
    return int(told["calls"])


def test_no_command_of_a_simulated_machine_asks_the_real_ones_service(tmp_path: Path) -> None:
    """Without AWS_EC2_METADATA_DISABLED, and where `healthd init` finds the simulated trees by the variables. With the
    address configured it is asked, which shows that the listener hears."""
    machine = SimulatedMachine(tmp_path / "machine")
    trees = {f"HEALTHD_SOURCES_{name.upper()}_ROOT": f"{machine.root}/{name}" for name in ("sys", "proc", "dev")}
    assert heard(machine.config, **trees) == 0
    assert heard(machine.config, **trees, HEALTHD_SOURCES_IMDS_ENDPOINT="http://169.254.169.254") > 0
