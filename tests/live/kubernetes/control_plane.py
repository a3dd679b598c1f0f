"""A real control plane on loopback: one etcd, one kube-apiserver, one kube-controller-manager, as any user's own.

Node and RBAC authorization, NodeRestriction and every other admission plugin that is on by default except
ServiceAccount (no token is mounted into a pod that nothing runs). The controllers are those that tests rely on; there
is no scheduler and no kubelet: pods are bound at creation, and :meth:`ControlPlane.reaping` ends the evicted ones.

Every control plane has its own folder, keys and ports. It ends only what it started, by the handles it holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from healthd.remediation.orchestrators.kubernetes.objects.node_health import text_of
from tests.live.kubernetes.api_client import Answer, ApiClient
from tests.live.kubernetes.find_binaries import CONTROL_PLANE, Say, program
from tests.support.limits import limit_s
from tests.support.ports import free_ports

API_SERVER, CONTROLLERS, ETCD = "kube-apiserver", "kube-controller-manager", "etcd"
NAMESPACE, ACCOUNT = "healthd", "healthd-agent"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
HEALTHS = "/apis/healthd.io/v1alpha1/nodehealths"
READY_WITHIN_S = 180.0  # 5 s on an idle machine
CONTROLLER_NAMES = (
    "disruption-controller",  # what a PodDisruptionBudget allows
    "replicaset-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "validatingadmissionpolicy-status-controller",  # whether an expression fits the schema
)


class ControlPlaneError(AssertionError):
    """It did not come to the state that was waited for. The message holds what that was, and the ends of the logs."""


class ControlPlane:
    """Use it as a context manager, or call start and stop. ``api_server_flags`` are added to those of the API server.
    ``controllers``: the names of those that run.

    ``say`` is told of builds. Raises Unavailable or BuildFailed where a program cannot be had.
    """

    def __init__(
        self,
        *,
        api_server_flags: Sequence[str] = (),
        controllers: Sequence[str] = CONTROLLER_NAMES,
        say: Say = print,
    ) -> None:
        self._programs = {name: program(name, say) for name in CONTROL_PLANE}
        self._flags, self._controllers = tuple(api_server_flags), tuple(controllers)
        self.root = Path(tempfile.mkdtemp(prefix="healthd-kubernetes-"))
        self.ca_file = self.root / "certs" / "apiserver.crt"
        self.kubeconfig = self.root / "kubeconfig"
        self.admin_token = secrets.token_urlsafe(24)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        self._admin: ApiClient | None = None
        self._clients: list[ApiClient] = []  # all that were handed out since the last reset

    # -----------------------------------------------------------------------------------------------------------------
    # the whole

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return once the API server is ready. Raises ControlPlaneError with the logs."""
        for attempt in range(3):
            self._prepare()
            try:
                self._launch(ETCD, self._etcd_argv())
                self.start_api_server()
                self._launch(CONTROLLERS, self._controllers_argv())
                return
            except BaseException as error:
                taken = isinstance(error, ControlPlaneError) and "address already in use" in self.log_tail()
                self._end_processes()
                if attempt == 2 or not taken:
                    self.stop()
                    raise

    def stop(self) -> None:
        """End every process and remove the folder. May be called twice."""
        self._end_processes()
        self._close_clients()
        shutil.rmtree(self.root, ignore_errors=True)

    def reset(self) -> None:
        """The API server answers, and nodes, pods, budgets, leases and events of earlier tests are gone."""
        self._close_clients()
        self.resume_api_server()
        if self._processes[API_SERVER].poll() is not None:
            self.start_api_server()
        admin = self.admin
        for namespace in self._namespaces():
            at_once = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            for group, kind in _NAMESPACED:
                # Of what Kubernetes itself keeps only pods and events are of tests.
                if namespace not in _SYSTEM or kind in ("pods", "events"):
                    admin.delete(f"/{group}/namespaces/{namespace}/{kind}", at_once).must()
        admin.delete("/api/v1/nodes").must()
        if (answer := admin.delete(HEALTHS)).status != 404:  # until the resource is there
            answer.must()
        self.wait(lambda: not admin.get("/api/v1/pods").must()["items"], 30, "no pod to be left")

    def log_tail(self, characters: int = 3000) -> str:
        """The ends of the logs, for a failure."""
        logs = sorted((self.root / "log").glob("*.log"))
        return "\n".join(f"-- {log.name}\n{log.read_text(errors='replace')[-characters:]}" for log in logs)

    def pids(self) -> dict[str, int]:
        """The process of each program that runs."""
        return {name: process.pid for name, process in self._processes.items() if process.poll() is None}

    def wait(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Poll until it is so. No answer at all counts as: not yet. ``within_s`` is for an idle machine; a busy one may
        take ten times as long."""
        end = time.monotonic() + within_s * 10
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            if time.monotonic() > end:
                raise ControlPlaneError(f"not within {within_s:g} s: {what}\n{self.log_tail()}")
            time.sleep(0.05)

    # -----------------------------------------------------------------------------------------------------------------
    # clients

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self._ports[API_SERVER]}"

    @property
    def version(self) -> str:
        """The version that the API server says it is of, as 1.34.2."""
        return str(self.admin.get("/version").must()["gitVersion"]).removeprefix("v")

    @property
    def admin(self) -> ApiClient:
        """A client that may do everything."""
        if self._admin is None:
            self._admin = ApiClient(self.url, ca_file=self.ca_file, token=self.admin_token)
        return self._admin

    def client(self, token: str, *, url: str = "", **settings: Any) -> ApiClient:
        """A client with this token, until the next reset; ``url`` may be that of a proxy in front of the API server."""
        client = ApiClient(url or self.url, ca_file=self.ca_file, token=token, **settings)
        self._clients.append(client)
        return client

    def acting_as(self, user: str, *groups: str) -> ApiClient:
        """A client that the server takes for this user, such as ``system:node:n1`` of group ``system:nodes``."""
        headers = {"Impersonate-User": user, **({"Impersonate-Group": groups[0]} if groups else {})}
        assert len(groups) <= 1, "a header is sent once"
        return self.client(self.admin_token, headers=headers)

    def account_folder(self, folder: Path, token: str) -> Path:
        """What a pod finds under /var/run/secrets/kubernetes.io/serviceaccount: token, ca.crt and namespace."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.ca_file, folder / "ca.crt")
        (folder / "namespace").write_text(NAMESPACE, encoding="utf-8")
        (folder / "token").write_text(token, encoding="utf-8")
        return folder

    def pod_environment(self) -> dict[str, str]:
        """The variables by which a process in a pod finds the API server."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._ports[API_SERVER])}

    def apply(self, *files: Path) -> None:
        """Server-side apply of every object in these YAML files, as the administrator."""
        from lightkube import Client, KubeConfig, codecs

        with Client(KubeConfig.from_file(self.kubeconfig), field_manager="tests", trust_env=False) as client:
            for file in files:
                for each in codecs.load_all_yaml(file.read_text(encoding="utf-8")):
                    client.apply(each, force=True)

    # -----------------------------------------------------------------------------------------------------------------
    # what tests need to be there

    def add_namespace(self, name: str) -> None:
        """A namespace, unless it is there."""
        _made(self.admin.post("/api/v1/namespaces", {"metadata": {"name": name}}))

    def add_node(
        self, name: str, *, labels: Mapping[str, str] | None = None, taints: Sequence[Mapping[str, str]] = ()
    ) -> dict[str, Any]:
        """A Node as a kubelet of a GPU machine registers it, Ready."""
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
        spec = {"providerID": f"aws:///us-east-1a/i-{hashlib.sha256(name.encode()).hexdigest()[:17]}"}
        node = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": _node_status(name)}
        made = self.admin.post("/api/v1/nodes", node).must()
        # The server taints every new node as not ready; the node lifecycle controller, absent here, would lift it.
        patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"taints": list(taints)}}
        return self.admin.patch(f"/api/v1/nodes/{name}", patch, kind="merge").must()

    def add_pod(
        self, name: str, node: str, *, namespace: str = "default", ready: bool = True, **spec: Any
    ) -> dict[str, Any]:
        """A pod that runs on a node; labels are ``{"app": name without its number}``; ``spec`` fields are added."""
        containers = [{"name": "main", "image": "registry.invalid/none"}]
        labels = {"app": re.sub(r"-\d+$", "", name)}
        path = f"/api/v1/namespaces/{namespace}/pods"
        full = {"nodeName": node, "containers": containers, "terminationGracePeriodSeconds": 1, **spec}
        self.admin.post(path, {"metadata": {"name": name, "labels": labels}, "spec": full}).must()
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        status = {"phase": "Running", "startTime": _stamp(), "conditions": [condition]}
        return self.admin.patch(f"{path}/{name}/status", {"status": status}).must()

    def add_lease(self, name: str, annotations: Mapping[str, str]) -> dict[str, Any]:
        """A Lease in healthd's namespace."""
        return self.admin.post(LEASES, {"metadata": {"name": name, "annotations": dict(annotations)}}).must()

    def add_health(self, node: str, **parts: Any) -> dict[str, Any]:
        """A NodeHealth, with these parts."""
        head = {"apiVersion": "healthd.io/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
        return self.admin.post(HEALTHS, {**head, **parts}).must()

    def notes(self, lease: str = "healthd-budget", *, leases: str = LEASES) -> dict[str, str]:
        """The annotations of a Lease; none where it is missing. ``leases``: the path of those of its namespace."""
        answer = self.admin.get(f"{leases}/{lease}")
        return dict(answer.must()["metadata"].get("annotations") or {}) if answer.status != 404 else {}

    def record(self, node: str) -> dict[str, Any]:
        """The handoff record of a node's NodeHealth, or {}."""
        return dict(self.health(node).get("record") or {})

    def health(self, node: str) -> dict[str, Any]:
        """The NodeHealth of a node, or {}."""
        answer = self.admin.get(f"{HEALTHS}/{node}")
        return dict(answer.must()) if answer.status != 404 else {}

    def records(self) -> dict[str, str]:
        """Node to handoff record, as the line of text that the ports speak; of every node that has one."""
        answer = self.admin.get(HEALTHS)
        there = answer.must()["items"] if answer.status != 404 else []
        found = {each["metadata"]["name"]: text_of(each.get("record")) for each in there}
        return {name: text for name, text in found.items() if text}

    def claims(self) -> set[str]:
        """The names that hold a claim on the cluster's budget."""
        return {key.removeprefix("claim.healthd.io/") for key in self.notes() if key.startswith("claim.")}

    def agent_token(self, node: str, *, valid_s: int = 3600) -> str:
        """The token of the agent's pod on a node, as a kubelet gets it: bound to that pod, and naming the node."""
        self.add_namespace(NAMESPACE)
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        _made(self.admin.post(accounts, {"metadata": {"name": ACCOUNT}}))
        pod = self.admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{agent_pod(node)}")
        if pod.status == 404:
            self.add_pod(agent_pod(node), node, namespace=NAMESPACE, serviceAccountName=ACCOUNT)
            pod = self.admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{agent_pod(node)}")
        uid = pod.must()["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": agent_pod(node), "uid": uid}
        return self._token(ACCOUNT, {"expirationSeconds": valid_s, "boundObjectRef": bound})

    def unbound_token(self) -> str:
        """A token of the agent's account that belongs to no pod, as `kubectl create token` gives it."""
        return self._token(ACCOUNT, {"expirationSeconds": 3600})

    def _token(self, account: str, spec: Mapping[str, Any]) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        return str(self.admin.post(path, {"spec": dict(spec)}).must()["status"]["token"])

    @contextlib.contextmanager
    def reaping(self) -> Iterator[None]:
        """End pods as a kubelet would: gone once their grace is over."""
        client = self.client(self.admin_token)  # of that thread alone

        def reap() -> None:
            with contextlib.suppress(OSError):  # the API server may be down on purpose
                _end_terminating(client)

        with contextlib.closing(client), repeating(reap, "pod reaper"):
            yield

    # -----------------------------------------------------------------------------------------------------------------
    # trouble

    def kill_api_server(self) -> None:
        """kill -9; its port refuses connections then."""
        process = self._processes[API_SERVER]
        process.kill()
        process.wait(timeout=limit_s(30))

    def hang_api_server(self) -> None:
        """SIGSTOP: the kernel accepts connections, and none is answered. Returns once the process has stopped."""
        process = self._processes[API_SERVER]
        process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{process.pid}/stat")
        self.wait(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 30, "the API server to stop")

    def resume_api_server(self) -> None:
        """SIGCONT; harmless where nothing was stopped."""
        if self._processes[API_SERVER].poll() is None:
            self._processes[API_SERVER].send_signal(signal.SIGCONT)

    def start_api_server(self) -> None:
        """Start it, on its port and with its data, and wait until it is ready."""
        self._launch(API_SERVER, self._api_server_argv())
        self.wait(self._is_ready, READY_WITHIN_S, "the API server to be ready")

    # -----------------------------------------------------------------------------------------------------------------
    # processes

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ControlPlaneError(f"{name} ended with {process.returncode}\n{self.log_tail()}")
        # Its certificate is made at the first start.
        return self.ca_file.exists() and self.admin.get("/readyz").status == 200

    def _prepare(self) -> None:
        self._close_clients()
        for folder in ("etcd", "certs", "log"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
            (self.root / folder).mkdir(mode=0o700)
        self._admin = None
        self._ports = dict(zip((API_SERVER, ETCD, "etcd peers"), free_ports(3), strict=True))
        key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.root / "accounts.key").write_bytes(key)
        (self.root / "tokens.csv").write_text(f"{self.admin_token},admin,1,system:masters\n", encoding="utf-8")
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.admin_token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
            "current-context": "tests",
        }
        self.kubeconfig.write_text(json.dumps(kubeconfig), encoding="utf-8")
        for name in ("accounts.key", "tokens.csv", "kubeconfig"):
            (self.root / name).chmod(0o600)

    def _etcd_argv(self) -> list[str]:
        client, peers = (f"http://127.0.0.1:{self._ports[name]}" for name in (ETCD, "etcd peers"))
        return [
            f"--data-dir={self.root / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",  # a test's data need not outlive a power cut
            "--log-level=warn",
        ]

    def _api_server_argv(self) -> list[str]:
        key = self.root / "accounts.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports[ETCD]}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[API_SERVER]}",
            f"--cert-dir={self.root / 'certs'}",
            f"--token-auth-file={self.root / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
            "--profiling=false",
            "--allow-privileged=true",  # as every distribution has it: the agent's DaemonSet is
            *self._flags,
        ]

    def _controllers_argv(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(self._controllers)}",
            "--leader-elect=false",
            "--secure-port=0",  # it serves nothing
            f"--service-account-private-key-file={self.root / 'accounts.key'}",
        ]

    def _launch(self, name: str, arguments: Sequence[str]) -> None:
        with (self.root / "log" / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self._programs[name]), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(self.root)},  # no proxy of this machine's
                cwd=self.root,
                start_new_session=True,
            )

    def _end_processes(self) -> None:
        """Clients first, so that none complains of the other's end."""
        for name in (CONTROLLERS, API_SERVER, ETCD):
            if process := self._processes.pop(name, None):
                process.kill()
                process.wait(timeout=limit_s(30))

    def _close_clients(self) -> None:
        for client in (*self._clients, *((self._admin,) if self._admin else ())):
            client.close()
        self._clients.clear()

    def _namespaces(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.admin.get("/api/v1/namespaces").must()["items"]]


_SYSTEM = ("kube-system", "kube-public", "kube-node-lease")
_NAMESPACED = (
    ("apis/apps/v1", "deployments"),
    ("apis/apps/v1", "replicasets"),
    ("api/v1", "pods"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("apis/coordination.k8s.io/v1", "leases"),
    ("apis/events.k8s.io/v1", "events"),
)


@contextlib.contextmanager
def repeating(work: Callable[[], object], name: str) -> Iterator[None]:
    """For as long as this lasts, a thread of this name does the work again and again, a fifth of a second apart."""
    stop = threading.Event()

    def again() -> None:
        while not stop.wait(0.2):
            work()

    thread = threading.Thread(target=again, name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def agent_pod(node: str) -> str:
    """The name of the agent's pod on a node."""
    return f"{ACCOUNT}-{node}"


def _made(answer: Answer) -> None:
    if answer.status != 409:  # it is there
        answer.must()


def _stamp(at: datetime | None = None) -> str:
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _node_status(name: str) -> dict[str, Any]:
    """What a kubelet writes, as far as anybody here reads it."""
    since = _stamp(datetime.now(UTC) - timedelta(hours=1))
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": f"kubelet has posted {reason}",
            "lastHeartbeatTime": since,
            "lastTransitionTime": since,
        }
        for kind, status, reason in (
            ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID"),
            ("Ready", "True", "KubeletReady"),
        )
    ]
    room = {"cpu": "192", "memory": "2097152Mi", "pods": "110", "nvidia.com/gpu": "8"}
    addresses = [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": name}]
    return {"capacity": room, "allocatable": room, "conditions": conditions, "addresses": addresses}


def _end_terminating(client: ApiClient) -> None:
    now, pods = _stamp(), client.get("/api/v1/pods")
    for pod in pods.body["items"] if pods.ok else ():  # not ok: the API server is starting
        meta = pod["metadata"]
        # The deletion time stamp is when the grace is over; both are UTC in one format, and compare as text.
        if "deletionTimestamp" in meta and meta["deletionTimestamp"] <= now:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            client.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", options)
