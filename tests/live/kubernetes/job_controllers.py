"""The controllers of JobSet and Kubeflow beside a control plane: the projects' own programs and resources.

They act as the administrator. JobSet's webhooks are in force, because they set its defaults; Kubeflow's only refuse,
and are left out. Kubeflow's two controllers read certificates below /tmp, whatever they are told, so that each has a
/tmp of its own.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.find_binaries import Unavailable, program, sources
from tests.support.limits import limit_s
from tests.support.ports import free_ports

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CERTIFICATES = "k8s-webhook-server/serving-certs"
JOBSET_SETTINGS = """
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {{leaderElect: false}}
internalCertManagement: {{enable: false}}
webhook: {{port: {webhook}, host: 127.0.0.1, certDir: {certificates}}}
metrics: {{bindAddress: "0"}}
health: {{healthProbeBindAddress: "127.0.0.1:{probes}"}}
"""
OWN_TMP = 'touch "$1/program" && mount --bind "$2" "$1/program" && mount --rbind "$1" /tmp && shift 2 && exec "$@"'


@contextmanager
def jobset(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """JobSet's controller, which answers as its webhooks do."""
    folder, found = _laid_out(plane, folder), sources("jobset")
    _define(plane, found / "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml")
    webhook, probes = free_ports(2)
    (folder / "settings.yaml").write_text(
        JOBSET_SETTINGS.format(webhook=webhook, probes=probes, certificates=folder / CERTIFICATES), encoding="utf-8"
    )
    with _running(folder, [str(program("jobset")), f"--config={folder / 'settings.yaml'}"]):
        plane.wait(lambda: "Starting workers" in _log(folder), 60, f"JobSet's controller:\n{_log(folder)[-2000:]}")
        registered = _register(plane, found / "config/components/webhook/manifests.yaml", webhook)
        yield
        for path in registered:
            plane.admin.delete(path).must()


@contextmanager
def training_operator(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Kubeflow's training operator, for PyTorchJobs."""
    _define(plane, sources("training-operator") / "manifests/base/crds/kubeflow.org_pytorchjobs.yaml")
    _add_secret(plane, "kubeflow", "training-operator-webhook-cert")
    with _kubeflow(plane, folder, "training-operator", "--enable-scheme=pytorchjob", MY_POD_NAMESPACE="kubeflow"):
        yield


@contextmanager
def trainer(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Kubeflow's trainer, for TrainJobs; it needs JobSet's controller."""
    for crd in sorted((sources("trainer") / "manifests/base/crds").glob("trainer.kubeflow.org_*.yaml")):
        _define(plane, crd)
    _add_secret(plane, "kubeflow-system", "kubeflow-trainer-webhook-cert")
    with _kubeflow(plane, folder, "trainer"):
        yield


def _add_secret(plane: ControlPlane, namespace: str, name: str) -> None:
    """The empty Secret of the manifests, which the controller fills with a certificate."""
    plane.add_namespace(namespace)
    path = f"/api/v1/namespaces/{namespace}/secrets"
    assert plane.admin.post(path, {"metadata": {"name": name}}).status in (201, 409)


@contextmanager
def _kubeflow(plane: ControlPlane, folder: Path, name: str, *flags: str, **environ: str) -> Iterator[None]:
    folder = _laid_out(plane, folder)
    webhook, probes = free_ports(2)
    ports = [f"--webhook-server-port={webhook}", f"--health-probe-bind-address=127.0.0.1:{probes}"]
    argv = [*_own_tmp(folder, program(name)), *ports, "--metrics-bind-address=0", *flags]
    with _running(folder, argv, KUBECONFIG="/tmp/kubeconfig", **environ):
        plane.wait(lambda: "Starting workers" in _log(folder), 60, f"{name}:\n{_log(folder)[-2000:]}")
        yield


def _laid_out(plane: ControlPlane, folder: Path) -> Path:
    """A folder with the administrator's kubeconfig in one file, and the API server's certificate, of 127.0.0.1."""
    certificates = folder / CERTIFICATES
    certificates.mkdir(parents=True)
    for ending in ("crt", "key"):
        shutil.copy(plane.root / "certs" / f"apiserver.{ending}", certificates / f"tls.{ending}")
    cluster = {"server": plane.url, "certificate-authority-data": _authority(plane)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": plane.admin_token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        "current-context": "tests",
    }
    (folder / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _authority(plane: ControlPlane) -> str:
    return base64.b64encode(plane.ca_file.read_bytes()).decode()


def _define(plane: ControlPlane, crd: Path) -> None:
    """The resource is there, and served."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 10,000 lines: ten times as fast in C
    definition = yaml.load(crd.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe one, see above
    assert plane.admin.post(CRDS, definition).status in (201, 409)
    name = definition["metadata"]["name"]

    def served() -> bool:
        conditions = plane.admin.get(f"{CRDS}/{name}").must()["status"].get("conditions") or []
        return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)

    plane.wait(served, 30, f"{name} to be served")


def _register(plane: ControlPlane, manifest: Path, port: int) -> list[str]:
    """The webhooks of this file, answered by the port on loopback; the paths of what was made."""
    made = []
    for each in yaml.safe_load_all(manifest.read_text(encoding="utf-8")):
        for hook in each["webhooks"]:
            url = f"https://127.0.0.1:{port}{hook['clientConfig']['service']['path']}"
            hook["clientConfig"] = {"url": url, "caBundle": _authority(plane)}
        path = f"/apis/admissionregistration.k8s.io/v1/{each['kind'].lower()}s"
        plane.admin.post(path, each).must()
        made.append(f"{path}/{each['metadata']['name']}")
    return made


def _own_tmp(folder: Path, binary: Path) -> list[str]:
    """The start of a command that runs this program with the folder as its /tmp."""
    space = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    done = subprocess.run([*space, "true"], check=False, capture_output=True, text=True, timeout=limit_s(30))
    if done.returncode != 0:
        raise Unavailable(f"Kubeflow's controllers need a /tmp of their own here: {done.stderr.strip()}")
    return [*space, "sh", "-c", OWN_TMP, "sh", str(folder), str(binary), "/tmp/program"]


@contextmanager
def _running(folder: Path, argv: Sequence[str], **environ: str) -> Iterator[None]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(folder / "kubeconfig"), **environ}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd="/")
    try:
        yield
    finally:
        process.kill()
        process.wait(timeout=limit_s(30))


def _log(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")
