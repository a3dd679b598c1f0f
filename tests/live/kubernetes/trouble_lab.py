"""Agents of many nodes, each behind a proxy of its own, for trouble with the API server at a chosen moment of a
remediation.

A node's remediation is a fault that takes it out, work that has to end, the fault's end, and the way back. Whatever the
agent writes on the way is counted at its proxy; what stands in the cluster the administrator reads past all proxies.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct

from tests.live.kubernetes.agent_node import SECTIONS
from tests.live.kubernetes.agent_rig import write_kubeconfig
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane, agent_pod
from tests.live.kubernetes.fault_proxy import Fault, FaultProxy, Seen
from tests.live.kubernetes.fleet_controller import FleetController
from tests.live.kubernetes.kubelet_socket import KubeletSocket, pod
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import RECOVERED, UNCONTAINED, RunningNode
from tests.support.wall_clock import WallClock

PCI = "0000:05:00"
HISTORY = {"history", "driver", "kernel", "image"}
"""The parts of a handoff record that outlive a remediation: the node was released, and what it ran then."""
CLOCK_WAS_SET = "times that are remembered are moved with it"
REMEDIATION = ("claim", "fence", "reason", "taint", "release", "unfence", "give back")
"""What an agent writes in the whole of a remediation, but for records, conditions and Events; each of it once."""

# Its first line belongs to the section that SECTIONS ends with.
MORE = """timeout_s = 1
[provisioner]
kind = "local"
[provisioner.local]
reboot_command = ["/bin/sh", "-c", "echo asked >>{folder}/reboots"]
[policy]
same_fault_nodes = 100_000
storm_nodes = 100
storm_share = "100%"
repairs_in_vain = 100
repairs_judged = 0
canary_repairs = 0
replacements_in_vain = 100
"""


class Boundary(Struct, frozen=True, kw_only=True):
    """One write of a remediation, as it passes the proxy."""

    path: str
    body: str


_LEASE, _NODE = "/leases/healthd-budget$|/leases/healthd-budget[?]", "^/api/v1/nodes/[^/?]+($|[?])"
BOUNDARIES = {
    "claim": Boundary(path=_LEASE, body=r'claim\.healthd\.io/(?!.*\\"text\\")[^"]+": ?"'),
    "fence": Boundary(path=_NODE, body=r"^(?!.*healthd\.io/(hold|unhealthy)).*healthd\.io/claimed"),
    "reason": Boundary(path=_LEASE, body=r'claim\.healthd\.io/[^"]+": ?"(?=.*\\"text\\")'),
    "taint": Boundary(path=_NODE, body=r'healthd\.io/hold": ?"'),
    "release": Boundary(path=_NODE, body=r'healthd\.io/hold": ?null'),
    "unfence": Boundary(path=_NODE, body=r'^(?!.*healthd\.io/).*"taints": ?\[\]'),
    "give back": Boundary(path=_LEASE, body=r'claim\.healthd\.io/[^"]+": ?null'),
}


def act_of(seen: Seen) -> str:
    """Which write of a remediation this is; "" for a record, a condition or an Event. Raises AssertionError for
    anything else: an agent has nothing else to write."""
    for name, boundary in BOUNDARIES.items():
        if re.search(boundary.path, seen.path) and re.search(boundary.body, seen.body):
            return name
    assert re.search(r"/nodehealths|/nodes/[^/]+/status|/events", seen.path), seen
    return ""


class Node:
    """One node: its Node, its kubelet, its proxy, and the agent as a process."""

    def __init__(self, lab: TroubleLab, name: str, clock: WallClock | None = None) -> None:
        self.lab, self.plane, self.name, self.clock = lab, lab.plane, name, clock
        self.folder = lab.folder / name
        self.folder.mkdir()
        self.kubelet = KubeletSocket(self.folder / "kubelet.sock")
        self.proxy = FaultProxy(self.plane.url, self.plane.root / "certs", shows=lab.shown)
        self._http = f"127.0.0.1:{free_ports(1)[0]}"

    @contextmanager
    def running(self, trouble: Fault | None) -> Iterator[Node]:
        """The agent runs until the block ends, and is the same process all the time. ``trouble``: it starts in it."""
        self.plane.add_node(self.name)
        with ExitStack() as stack:
            stack.enter_context(self.kubelet)
            stack.enter_context(self.proxy.serving())
            account = self.folder / "account"
            kubeconfig = write_kubeconfig(self.plane, self.name, account, url=self.proxy.url, ca_file=self.lab.shown[0])
            self.token = account / "token"
            base = SECTIONS.format(mode="repair", max_out=100, kubeconfig=kubeconfig, socket=self.kubelet.path)
            self.daemon = RunningNode(
                self.folder / "d",
                self.name,
                sections=base + MORE.format(folder=self.folder),
                http=self._http,
                environ=self.clock.environ if self.clock is not None else {},
            )
            stack.callback(self.daemon.stop)
            if trouble is not None:
                self.proxy.fail(trouble, times=None)
            self.daemon.start(within_s=90)
            self._process = self.daemon.process
            if trouble is None:
                self.wait(self.has_looked, "the first conditions")
            yield self

    # -- what happens to it -------------------------------------------------------------------------------------------

    def breaks(self) -> None:
        """A GPU is lost to its jobs, one of which still runs."""
        self.kubelet.pods = [pod("train-0", devices={"nvidia.com/gpu": 8})]
        self._kernel_says(UNCONTAINED)

    def is_repaired(self) -> None:
        """The job has ended, and the fault is over."""
        self._kernel_says(RECOVERED)
        self.kubelet.pods = []

    def _kernel_says(self, text: str) -> None:
        self.daemon.kernel_says(text.format(pci=PCI), clock_by_s=self.clock.by_s if self.clock is not None else 0)

    def has_its_clock_set(self, by_s: int) -> None:
        """Its clock is off by so much from now on, and the agent has noticed."""
        assert self.clock is not None
        noticed = self.daemon.log_text().count(CLOCK_WAS_SET)
        self.clock.is_off_by(by_s)
        self.wait(
            lambda: self.daemon.log_text().count(CLOCK_WAS_SET) > noticed, "the agent to notice that its clock was set"
        )

    def arm(self, boundary: str, first: Fault | None, then: Fault) -> None:
        """From this write on nothing works."""
        where = BOUNDARIES[boundary]
        self.proxy.break_at(first, then, method="PATCH", path=where.path, body=where.body)

    def is_taken_out(self) -> None:
        """Wait for the taint."""
        self.wait(lambda: self.is_tainted, "the taint")

    def meets_it(self, act: str) -> None:
        """Wait until the trouble has begun, at this write."""
        self.wait(lambda: self.proxy.is_broken, f"the {act}")

    def new_pod(self) -> str:
        """The agent's pod is another one, and the token of the one before is good for nothing; returns the new."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{agent_pod(self.name)}"
        self.plane.admin.delete(path, {"gracePeriodSeconds": 0}).must()
        return self.plane.agent_token(self.name)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """The Node, past the proxy."""
        return self.plane.admin.get(f"/api/v1/nodes/{self.name}").must()

    @property
    def is_tainted(self) -> bool:
        """Whether our drain is there."""
        return any(taint["key"] == "healthd.io/unhealthy" for taint in self.read()["spec"].get("taints", []))

    @property
    def is_clean(self) -> bool:
        """Whether nothing of ours is left: no taint, no annotation, no claim, and no record but the node's history."""
        node = self.read()
        mine = node["spec"].get("taints") or node["spec"].get("unschedulable")
        held = "healthd.io/hold" in node["metadata"].get("annotations", {})
        is_recorded = bool(self.plane.record(self.name).keys() - HISTORY)
        return not mine and not held and self.name not in self.plane.claims() and not is_recorded

    def acts(self) -> tuple[str, ...]:
        """The writes of its remediation that the server has carried out."""
        return tuple(act for seen in self.proxy.applied() if (act := act_of(seen)))

    def wait(self, condition: Callable[[], object], what: str, within_s: float = 90.0) -> None:
        """As the daemon's own; a server that does not answer means: not yet."""

        def holds() -> object:
            try:
                return condition()
            except (OSError, AssertionError):
                return False

        self.daemon.wait(holds, within_s, f"{what}; it has written {self.acts()}")

    def endures(self, for_s: float) -> int:
        """Time passes in the trouble: the process lives and its liveness is green. Returns how many requests came."""
        before, until = len(self.proxy.seen), time.monotonic() + for_s
        while time.monotonic() < until:
            self.is_alive()
            time.sleep(0.5)
        return len(self.proxy.seen) - before

    def is_alive(self) -> None:
        """The same process, and its liveness endpoint says ok."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name}: the agent ended with {self._process.returncode}"
        with urllib.request.urlopen(f"http://{self._http}/healthz", timeout=limit_s(20)) as answer:
            assert answer.status == 200

    def nobody_rebooted(self) -> bool:
        """Whether no reboot was asked for."""
        return not (self.folder / "reboots").exists()

    def has_looked(self) -> bool:
        """Whether the agent has told the cluster of itself."""
        return any(each["type"] == "HealthdGPU" for each in self.read()["status"]["conditions"])


class TroubleLab:
    """The nodes of one module on one control plane. ``clock_sim``: ``tests/clock_sim``, compiled; ``controller``:
    who counts the nodes.
    """

    def __init__(self, plane: ControlPlane, folder: Path, *, clock_sim: Path, controller: FleetController) -> None:
        self.plane, self.folder, self.clock_sim, self.controller = plane, folder, clock_sim, controller
        self.shown = old_certificate(folder)

    def counts_again(self) -> None:
        """The controller is the same process, and has counted since now."""
        before = self.plane.notes()["healthd.io/counted"]
        self.plane.wait(lambda: self.plane.notes()["healthd.io/counted"] != before, 60, "another count")
        assert self.controller.process is not None
        assert self.controller.process.poll() is None, self.controller.log[-2000:]

    @contextmanager
    def node(self, name: str, *, clock: WallClock | None = None, trouble: Fault | None = None) -> Iterator[Node]:
        """A node whose agent runs until the block ends; it starts in that ``trouble``."""
        with Node(self, name, clock).running(trouble) as node:
            yield node


def old_certificate(folder: Path) -> tuple[Path, Path]:
    """Certificate and key of 127.0.0.1 that hold for years back and ahead: a clock that is wrong must not be stopped by
    a certificate that was made a minute ago, as none in a cluster was."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=365))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "proxy.crt", folder / "proxy.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
    return certificate, secret
