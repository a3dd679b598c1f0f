"""What a node says of itself: /proc and /sys, tools, plug-ins, Lustre's imports, the metadata service, its pods."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from healthd.checklib import host_text, jobs
from healthd.checks.lustre_client import LustreClientSettings as LustreSettings
from healthd.checks.lustre_client import lustre_client
from healthd.checks.plugin_run import Plugin, plugin_run
from healthd.checks.plugin_run import PluginRunSettings as PluginSettings
from healthd.core.check import Check, discover
from healthd.core.encodable import json_text
from healthd.core.errors import HealthdError
from healthd.core.node import CommandResult, Mount
from healthd.probe import wire
from healthd.remediation.orchestrators.kubernetes.pod_resources import parse_pods
from healthd.sources import imds, nccl_text
from healthd.sources.mounts import parse_mountinfo
from healthd.testing import FakeNode
from tests.fuzz.target import Target, each_takes, text

_PAGE = 4096  # what a file in /sys has at most (Documentation/filesystems/sysfs.rst)
_MOUNTS = (
    b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - lustre 10.0.0.1@tcp:/fsx rw,errors=continue",
    b"22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw,errors=remount-ro,emergency_ro",
    b"97 26 259:9 / /scratch rw,relatime - xfs /dev/md0 rw",
)
_UNITS = b"Id=a.service\nLoadState=loaded\nActiveState=active\n\nId=b\nLoadState=x\nActiveState=y\n"
_TRACKING = b"A29FC87B,169.254.169.123,4,1700000000.1,0.000001,0.000002,0.1,1,2,3,4,5,6,Normal"
_HOST = (
    *(
        b"17 (a) b) D 2 3 4",
        b"0-3,8",
        b"0-191",
        b"MemTotal:  17 kB\nx 5\n",
        _UNITS,
        _TRACKING,
        b'{"a":1}',
        b'[{"a":1}]',
    ),
    b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=1.0 avg60=2.0 avg300=3.0 total=4",
)
_PERF = (
    (
        b"#     size       count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong\n"
        b" 536870912   134217728  float    sum    -1 2345.6 228.89 400.56      0 2340.1 229.42 401.49      0\n"
        b"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 401.025\n"
    ),
    b"NCCL INFO NET/OFI Selected Provider is efa\nNCCL version 2.21.5+cuda12.4\nNCCL WARN x",
    b"Test NCCL failure common.cu:958 'x'\n",
)
_IMPORT = (
    (
        b"import:\n    name: fsx-OST0000-osc-ffff9b2c\n    target: fsx-OST0000_UUID\n    state: FULL\n"
        b"    connection:\n       failover_nids: [ 10.0.0.1@tcp ]\n       connection_attempts: 3\n"
    ),
    b"import:\n    target: fsx-MDT0000_UUID\n    state: DISCONN\n    connection_attempts: 17\n",
)
_TOOLS = (
    b"provider: efa\n    fabric: efa\n    domain: rdmap0s6-rdm\n    version: 120.0\n    type: FI_EP_RDM\n",
    b'{"critical_warning":0,"temperature":300,"avail_spare":100,"media_errors":0,"percent_used":1}',
    *(
        b"healthy\n",
        b"total free extents 5\naverage free extent size 10.5\n",
        b"NIC statistics:\n  bw_in_allowance_exceeded: 0\n",
    ),
    *(b'{"status":"UP","nodes":{"0":{"status":"READY"}}}', b"4\n", b"16.0 GT/s PCIe", b"0000:53:00.0", b"580.95.05"),
    b"Connected to 8 of 8",
)
_PLUGIN = (
    b'{"status":"ok","message":"m","component":"gpu:0","evidence":{"a":1}}',
    *(b'{"status":1}', b'{"status":"problem","message":["x"],"component":{"a":1},"evidence":{"b":[[[]]]}}'),
)
_CGROUPS = (
    b"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
    b"12:devices:/kubepods/burstable/pod12345678-1234-1234-1234-123456789012/abc",
    b"0::/kubepods.slice/kubepods-pod12345678_1234_1234_1234_123456789012.slice",
)


class _Says:
    """Every file of a tree says the same."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._names = tuple(message.replace("/", "_").split()[:3]) or ("x",)

    def read(self, _path: str) -> str:
        return self._message

    def names(self, _path: str) -> tuple[str, ...]:
        return self._names

    def exists(self, _path: str) -> bool:
        return True

    def target(self, _path: str) -> str:
        return self._message[:20] or "x"

    def may_open(self, _path: str) -> bool:
        return True


class _HostileNode(FakeNode, kw_only=True):
    """A node whose files, tools and metadata all say the same."""

    message: str
    mount_table: Sequence[Mount] = (Mount(point="/fsx", fstype="lustre", source="x", options=frozenset({"rw"})),)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sys = self.proc = self.dev = _Says(self.message)

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        return CommandResult(argv=argv, code=0, stdout=self.message, stderr=self.message[:50], duration_s=0.0)

    def metadata(self, path: str) -> str | None:
        return self.message


def _host(data: bytes) -> None:
    named = (lambda message: host_text.whole(message, "w"), lambda message: host_text.json_object(message, "w"))
    lists = (
        lambda message: host_text.json_objects(message, "w"),
        host_text.cpu_list,
        host_text.process,
        host_text.pressure,
    )
    each_takes(data, *named, *lists, host_text.key_numbers, host_text.units, host_text.tracking)


def _nccl(data: bytes) -> None:
    words = (nccl_text.warning_of, nccl_text.network_of, nccl_text.version_of, nccl_text.parse_sanity)
    perf, failure = (
        partial(nccl_text.parse_perf, size_bytes=1 << 29),
        lambda message: nccl_text.failure_of(message, message),
    )
    each_takes(data, perf, failure, *words)


_ON_INTERVAL = tuple(check for check in discover().values() if check.on == "interval" and check.name != "plugin.run")


def _checks(data: bytes) -> None:
    node = _HostileNode(message=text(data))
    for check in _ON_INTERVAL:
        _run(check, node)


def _run(check: Check, node: FakeNode) -> None:
    try:
        result = check.run(node, check.settings())
    except HealthdError:
        return
    for finding in result.findings:
        json_text(finding.evidence)
        f"{finding.component} {finding.message}".encode(errors="surrogateescape")


def _plugin(data: bytes) -> None:
    node = _HostileNode(message=text(data))
    for is_json in (True, False):
        settings = PluginSettings(plugins=(Plugin(name="a", command=("/x",), json=is_json),))
        for finding in plugin_run(node, settings).findings:
            json_text(finding.evidence)


def _lustre(data: bytes) -> None:
    lustre_client(_HostileNode(message=text(data)), LustreSettings())


@contextlib.contextmanager
def _answering(says: bytes) -> Iterator[str]:
    """The endpoint of a metadata service that answers every request with the same bytes, whatever they are."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=_serve, args=(door, says))
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(door: socket.socket, says: bytes) -> None:
    """Until nobody is let in any more."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = door.accept()
            with client, contextlib.suppress(OSError):
                client.recv(4096)
                client.sendall(says)


def _metadata(data: bytes) -> None:
    with _answering(data) as endpoint:
        imds.read_metadata(endpoint, "tags/instance", timeout_s=5.0)


def _probe(data: bytes) -> None:
    message: Mapping[str, Any] | None = wire.decode(data)
    if message is not None:
        wire.error_of(message)


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2, len(body)]) + body


_DEVICES = _field(3, _field(1, b"c") + _field(2, _field(1, b"nvidia.com/gpu") + _field(2, b"GPU-1")))
_PODS = (_field(1, _field(1, b"pod") + _field(2, b"ns") + _DEVICES),)
_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nContent-Type: text/plain\r\n\r\ni-0a1b2c",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
)
_PROBES = (
    wire.encode({"id": 1, "ok": {"a": [1, 2.5, None, "x"]}}),
    wire.encode({"id": 2, "error": "SourceMissing", "text": "no"}),
)

TARGETS = (
    Target(name="mountinfo", parse=lambda data: parse_mountinfo(text(data)), seeds=_MOUNTS, units=(b"\\040", b" - ")),
    Target(name="host-texts", parse=_host, seeds=_HOST, units=(b"(a) ", b"a 1\n", b"\n \n", b"0-3,")),
    Target(name="nccl", parse=_nccl, seeds=_PERF, units=(b"1 ", b"NCCL WARN ", b" \t", b"# Avg bus bandwidth : 1\n")),
    Target(name="checks", parse=_checks, seeds=(*_TOOLS, *_HOST, *_IMPORT), longest=_PAGE),
    Target(name="lustre-import", parse=_lustre, seeds=_IMPORT, units=(b"state: ", b"    target: a_UUID\n")),
    Target(name="plugins", parse=_plugin, seeds=_PLUGIN, units=(b'{"a":', b"x\n"), json=True),
    Target(
        name="cgroups", parse=lambda data: jobs.owner(text(data)), seeds=_CGROUPS, units=(b"/job_1", b"kubepods-pod")
    ),
    Target(name="metadata", parse=_metadata, seeds=_ANSWERS, units=(b"A: b\r\n", b"1\r\nx\r\n")),
    Target(name="probe-answers", parse=_probe, seeds=_PROBES, units=(b'{"id":',), json=True),
    Target(name="pod-resources", parse=parse_pods, seeds=_PODS, units=(b"\x80", b"\x0a\x00", b"\x0a\x02\x0a\x00")),
)
