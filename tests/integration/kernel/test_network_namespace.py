"""host.network in a network namespace of its own: real links, routes and counters, made with ip(8)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ("unshare", "mount", "ip")
# Runs inside the namespace, with the namespace's own /sys/class/net mounted over /sys.
LOOK = """
import json, sys
from healthd.checks.host_network import Settings, host_network
from healthd.sources.trees import FileTree
from healthd.testing import FakeNode
node = FakeNode(sys=FileTree("/sys"), proc=FileTree("/proc"))
found = host_network(node, Settings(interfaces=("one",)))
print(json.dumps({"status": found.status, "codes": [finding.code for finding in found.findings],
                  "readings": {reading.name: reading.value for reading in found.readings}}))
"""

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network namespace"),
    pytest.mark.skipif(
        not all(shutil.which(tool) for tool in TOOLS), reason=f"needs {', '.join(TOOLS)} (util-linux, iproute2)"
    ),
]

# The kernel forbids it, has no veth, or the root is a plain chroot, which is no mount point.
NOT_HERE = ("Operation not permitted", "Unknown device type", "cannot change root filesystem propagation")


def look(*commands: str) -> Mapping[str, object]:
    """What host.network finds after these commands in a fresh namespace, which ends with the process."""
    script = "\n".join(["set -e", "mount -t sysfs none /sys", *commands, 'exec "$0" -c "$1"'])
    argv = ["unshare", "--net", "--mount", "sh", "-c", script, sys.executable, LOOK]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    if ran.returncode:
        if any(words in ran.stderr for words in NOT_HERE):
            pytest.skip(f"no namespace of our own can be had here: {ran.stderr[-200:].strip()}")
        raise AssertionError(ran.stderr)
    found: Mapping[str, object] = json.loads(ran.stdout)
    return found


LINK = "ip link add one type veth peer name two"
UP = ("ip link set one up", "ip link set two up")
ROUTE = ("ip address add 192.0.2.2/24 dev one", "ip route add default via 192.0.2.1")


def test_a_link_that_is_up() -> None:
    """Both ends up and a default route: ok, with the kernel's own counters."""
    found = look(LINK, *UP, *ROUTE)
    assert (found["status"], found["codes"]) == ("ok", [])
    assert set(found["readings"]) == {  # type: ignore[call-overload]  # a mapping, from JSON
        f"network_{name}_total" for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
    }


def test_a_link_whose_other_end_is_down() -> None:
    """The cable is out: the interface is switched on and has no link."""
    found = look(LINK, *UP, *ROUTE, "ip link set two down")
    assert found["codes"] == ["host.network.link_down"]


def test_no_way_out() -> None:
    """Addresses without a default route."""
    assert look(LINK, *UP, ROUTE[0])["codes"] == ["host.network.no_route"]


def test_an_interface_that_vanished() -> None:
    """A named interface that is not there any more, and with it the route."""
    found = look(LINK, *UP, *ROUTE, "ip link del one")
    assert sorted(str(code) for code in found["codes"]) == [  # type: ignore[attr-defined]  # a list, from JSON
        "host.network.missing",
        "host.network.no_route",
    ]
