"""A simulated p5.48xlarge on which every background check has something to ask, for bench_cycle and bench_idle.

CONSTRUCTED, as ``healthd.sim.machine`` is; what that leaves out because it would be the real machine's is here too:
tools that print what a healthy machine's print, an instance metadata service on the loopback, a folder for /fsx. The
daemon listens for HTTP, as it does by default.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from healthd.config.schema.config import RemediationSection
from healthd.sim.machine import SimulatedMachine
from healthd.sim.tree import mount
from tests.support.sim_devices import unmount

_UNITS = """for unit in "$@"; do case $unit in *.service)
units="${units}Id=$unit
LoadState=loaded
ActiveState=active
NRestarts=0

";; esac; done
printf %s "$units"  # systemctl too writes to a pipe once"""
EBS = (
    *("ebs_volume_performance_exceeded_iops", "ebs_volume_performance_exceeded_tp"),
    *("ec2_instance_ebs_performance_exceeded_iops", "ec2_instance_ebs_performance_exceeded_tp"),
)
TOOLS = {
    "chronyc": "echo A9FEA97B,169.254.169.123,4,1764000000.1,0.000001,0.0,0.0,-12.3,0.0,0.02,0.0003,0.0002,16.2,Normal",
    "ethtool": "printf 'NIC statistics:\\n     bw_in_allowance_exceeded: 0\\n     conntrack_allowance_exceeded: 0\\n'",
    "nvme": f"""case $1 in amzn) echo '{json.dumps(dict.fromkeys(EBS, 0))}';;
*) echo '{{"critical_warning": 0, "media_errors": 0}}';; esac""",
    "systemctl": _UNITS,
}
_IS_OFF = re.compile(r'\[checks\."[^"]+"\]\nenabled = false\n')
_ITEMS = {"autoscaling/target-lifecycle-state": "InService"}


class _Metadata(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self._say(200, "token")

    def do_GET(self) -> None:
        text = _ITEMS.get(self.path.removeprefix("/latest/meta-data/"))
        self._say(404 if text is None else 200, text or "")

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server has for it
        """Say nothing."""


@contextlib.contextmanager
def whole_machine() -> Iterator[SimulatedMachine]:
    """The machine, its configuration with every check on, and PATH of this process beginning with its tools."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Metadata)
    service = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    service.start()
    server.socket.close()
    path = os.environ["PATH"]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="healthd-bench-", dir=_memory()) as folder,
            tempfile.TemporaryDirectory(prefix="healthd-bench-") as disk,
        ):
            settle_s = RemediationSection().settle_s  # how often the engine turns follows from it
            machine = SimulatedMachine(Path(folder) / "node", settle_s=settle_s)
            os.environ["PATH"] = f"{tools(Path(folder) / 'bin')}:{path}"
            lustre_at(machine.root, Path(folder) / "fsx")
            text = _IS_OFF.sub("", machine.config.read_text())
            for old, new in (
                ('"repair"', '"observe"'),
                (f'"{machine.state_dir}"', f'"{disk}/state"'),
                ("[sources]\n", f'[sources]\nimds_endpoint = "http://127.0.0.1:{server.server_address[1]}"\n'),
                ('http = ""', 'http = "127.0.0.1:0"'),
            ):
                text = text.replace(old, new)
            machine.config.write_text(text)
            with machine.living():
                yield machine
    finally:
        os.environ["PATH"] = path
        service.terminate()
        service.join()


def _memory() -> str | None:
    """A folder in memory for the trees, as sysfs and /proc are: a read of a plain file may wait for a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a folder of its own is made there


def tools(folder: Path) -> Path:
    """Scripts under the names of the tools."""
    folder.mkdir()
    for name, text in TOOLS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def lustre_at(root: Path, folder: Path) -> None:
    """Move the Lustre mount of the mount table to a folder that a file can be written to."""
    folder.mkdir()
    unmount(root, "/fsx")
    mount(root, f"91 26 0:51 / {folder} rw,noatime shared:41 - lustre 192.168.50.246@tcp:/6cz4zbev rw,checksum,flock")
