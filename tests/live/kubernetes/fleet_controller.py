"""`healthd controller` as in its pod: a process with the ServiceAccount, roles and bindings that the chart renders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.live.kubernetes.agent_rig import Agents, write_kubeconfig
from tests.live.kubernetes.control_plane import LEASES, NAMESPACE, ControlPlane
from tests.live.kubernetes.fleet_storm import REASON
from tests.packaging.chart import render
from tests.support.limits import limit_s
from tests.support.ports import free_ports

ACCOUNT = "healthd-controller"
SETTINGS = """
[orchestrator]
kind = "kubernetes"
[orchestrator.kubernetes]
kubeconfig = "{kubeconfig}"
timeout_s = 3
counts_age_s = 60
scope_label = "pool"
{kubernetes}
[remediation]
mode = "repair"
[ledger]
enabled = {ledger}
[controller]
interval_s = {interval_s}
state_dir = "{folder}/state"
http = "127.0.0.1:{port}"
"""
"""Ends with the controller's section, which tests go on with."""


def grant(plane: ControlPlane, kubernetes: Mapping[str, str], *, ledger: bool = False, mode: str = "repair") -> str:
    """The controller's account with the chart's own rights, and a token of it. ``kubernetes``: settings of the section
    ``orchestrator.kubernetes``; with them it may evict what they call for, else everything. ``ledger``: with a volume
    for one. ``mode``: outside observe mode it may fence NVLink domains."""
    plane.add_namespace(NAMESPACE)
    controller: dict[str, Any] = {"enabled": True, "evict": not kubernetes, "karpenter": True}
    controller |= {"stateClaim": "healthd-ledger", "replicas": 1} if ledger else {}
    config = {"orchestrator": {"kubernetes": dict(kubernetes)}}
    scopes = {"p5": {"limit": 1, "nodes": 1}}
    rendered = render({"mode": mode, "controller": controller, "config": config, "budget": {"scopes": scopes}})
    for kind, group in (
        ("ServiceAccount", "api/v1"),
        ("ClusterRole", "apis/rbac.authorization.k8s.io/v1"),
        ("ClusterRoleBinding", "apis/rbac.authorization.k8s.io/v1"),
        ("Role", "apis/rbac.authorization.k8s.io/v1"),
        ("RoleBinding", "apis/rbac.authorization.k8s.io/v1"),
    ):
        for each in rendered.all(kind):
            name, namespace = each["metadata"]["name"], each["metadata"].get("namespace")
            if not name.startswith(ACCOUNT):
                continue
            if namespace:
                plane.add_namespace(namespace)
            path = f"/{group}{f'/namespaces/{namespace}' if namespace else ''}/{kind.lower()}s"
            answer = plane.admin.post(path, each)
            assert answer.ok or answer.status == 409, answer
            if answer.status == 409 and "rules" in each:  # of an earlier test, which may have needed others
                plane.admin.patch(f"{path}/{name}", {"rules": each["rules"]}, kind="merge").must()
    leader = rendered.one("Lease", ACCOUNT)
    assert plane.admin.post(LEASES, leader).status in (201, 409)
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    return str(plane.admin.post(path, {"spec": {"expirationSeconds": 3600}}).must()["status"]["token"])


def drained(agents: Agents, name: str) -> None:
    """The node is out by its own agent's hand: claim, taint, annotation."""
    agent = agents(name)
    agent.claim("cluster", 0)
    agent.quarantine(REASON)
    assert agent.view().hold is not None


class FleetController:
    """One process. ``more``: further sections of its configuration; ``kubernetes``: settings of its section
    ``orchestrator.kubernetes``. ``ledger``: it keeps one. ``url``: of a proxy by which it goes to the API server."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        more: str = "",
        *,
        environ: Mapping[str, str] | None = None,
        kubernetes: Mapping[str, str] | None = None,
        interval_s: float = 0.5,
        url: str = "",
        ledger: bool = False,
    ) -> None:
        self.plane, self.folder = plane, folder
        token = grant(plane, kubernetes or {}, ledger=ledger)
        kubeconfig = write_kubeconfig(plane, "", folder / "account", token=token, url=url or plane.url)
        self._config, self._log = folder / "config.toml", folder / "log"
        section = "".join(f'{key} = "{value}"\n' for key, value in (kubernetes or {}).items())
        self.port = free_ports(1)[0]
        settings = SETTINGS.format(
            kubeconfig=kubeconfig,
            folder=folder,
            kubernetes=section,
            interval_s=interval_s,
            port=self.port,
            ledger=str(ledger).lower(),
        )
        self._config.write_text(settings + more, encoding="utf-8")
        self._environ = {**os.environ, **(environ or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> FleetController:
        argv = [sys.executable, "-m", "healthd", "controller", "--config", str(self._config)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ, start_new_session=True
            )
        return self

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """As a kubelet ends it; after ten seconds at once."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(timeout=limit_s(10))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=limit_s(10))

    def status(self) -> tuple[int, dict[str, Any]]:
        """The exit code and the answer of `healthd controller --status` beside it; {} for none."""
        argv = [sys.executable, "-m", "healthd", "controller", "--config", str(self._config), "--status", "--json"]
        done = subprocess.run(argv, env=self._environ, check=False, capture_output=True, text=True, timeout=limit_s(60))
        return done.returncode, json.loads(done.stdout or "{}")

    def page(self) -> str:
        """Its metrics, by HTTP."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=limit_s(10)) as answer:
            text: str = answer.read().decode()
            return text

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def memory_mb(self) -> float:
        """The most that it ever had, resident."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    @property
    def cpu_s(self) -> float:
        """What it used since its start, of user and system."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def leads(self) -> bool:
        """Whether the Lease names this process as its holder, as its own log says."""
        words = [line for line in self.log.splitlines() if "leads: this controller" in line or "lost the lead" in line]
        return bool(words) and "leads: this controller" in words[-1]


class Fleet:
    """Nodes, Leases and pods as the administrator sees them."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def add(self, names: list[str], **settings: Any) -> None:
        """Nodes, many at a time."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name: self.plane.add_node(name, **settings), names))

    def numbers(self) -> tuple[str, str, str]:
        """limit, nodes and out."""
        notes = self.plane.notes()
        return notes.get("healthd.io/limit", ""), notes.get("healthd.io/nodes", ""), notes.get("healthd.io/out", "")

    def tainted(self) -> set[str]:
        nodes = self.plane.admin.get("/api/v1/nodes?resourceVersion=0").must()["items"]
        return {
            node["metadata"]["name"]
            for node in nodes
            if any(taint["key"] == "healthd.io/unhealthy" for taint in node["spec"].get("taints", []))
        }

    def cordon(self, name: str, *, on: bool = True) -> None:
        self.plane.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": on or None}}, kind="merge").must()

    def label(self, name: str, key: str, value: str | None) -> None:
        self.plane.admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {key: value}}}, kind="merge").must()

    def pods(self, namespace: str = "default") -> set[str]:
        """The pods that are there and not on their way out."""
        items = self.plane.admin.get(f"/api/v1/namespaces/{namespace}/pods").must()["items"]
        return {each["metadata"]["name"] for each in items if "deletionTimestamp" not in each["metadata"]}

    def protect(self, app: str, *, available: int = 1) -> None:
        """A PodDisruptionBudget."""
        spec = {"minAvailable": available, "selector": {"matchLabels": {"app": app}}}
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        self.plane.admin.post(path, {"metadata": {"name": app}, "spec": spec}).must()

        def is_observed() -> bool:
            return "observedGeneration" in self.plane.admin.get(f"{path}/{app}").must().get("status", {})

        self.plane.wait(is_observed, 20, "the PodDisruptionBudget to be observed")


Start = Callable[..., FleetController]
"""Starts a controller: further sections of its configuration, and its ``name`` where a test has several."""
