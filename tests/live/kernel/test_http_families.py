"""``[::]`` in a network namespace of its own, where listening on every address reaches nobody else."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.root, pytest.mark.process]

ASK = """
import threading, urllib.request
from http.server import BaseHTTPRequestHandler
from healthd.api.http import listening

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *_):
        pass

server = listening("::", 9809, Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
for host in ("[::1]", "[fd00::1]", "127.0.0.1"):
    with urllib.request.urlopen(f"http://{host}:9809/", timeout=600) as answer:
        print(host, answer.read().decode())
"""
SETUP = "ip link set lo up && ip -6 addr add fd00::1/128 dev lo nodad"


def test_every_address_of_either_family_is_reached() -> None:
    """As the kubelet probes a pod: by its address, of IPv6 in some clusters and of IPv4 in others."""
    unshare, ip = shutil.which("unshare"), shutil.which("ip")
    if unshare is None or ip is None:
        pytest.skip("needs unshare and ip")
    argv = [unshare, "-n", "sh", "-c", f'{SETUP} && exec "$0" -c "$1"', sys.executable, ASK]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit_s(60), check=False, cwd="/")
    if "fd00::1" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no namespace with IPv6 here: {done.stderr}")
    assert done.stdout.splitlines() == ["[::1] here", "[fd00::1] here", "127.0.0.1 here"], done.stderr
