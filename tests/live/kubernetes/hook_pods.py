"""The pods of the chart's hooks, with nothing that runs pods: this plays the scheduler, the Job's controller and the
kubelet for them. What runs is healthd's own command line, with the token of the pod's own ServiceAccount.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from tests.live.kubernetes.agent_rig import write_kubeconfig
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane, repeating
from tests.support.limits import limit_s

ROOT = Path(__file__).resolve().parents[3]
JOB = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/healthd-uninstall"
TEST = f"/api/v1/namespaces/{NAMESPACE}/pods/healthd-test"


class HookPods(Struct, kw_only=True):
    """``node``: where they land. ``done``: what each command came to."""

    plane: ControlPlane
    folder: Path
    node: str
    done: list[subprocess.CompletedProcess[str]] = field(default_factory=list)

    def command(
        self, account: str, pod: str, arguments: Sequence[str], config: str
    ) -> subprocess.CompletedProcess[str]:
        """One command line in a pod that is there, with the token that a kubelet gets for it."""
        uid = self.plane.admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}").must()["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        made = self.plane.admin.post(path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}).must()
        kubeconfig = write_kubeconfig(self.plane, self.node, self.folder / pod, token=made["status"]["token"])
        (self.folder / "config.toml").write_text(config, encoding="utf-8")
        own = {name: text for name, text in os.environ.items() if not name.startswith(("HEALTHD_", "KUBE"))}
        environ = {"HEALTHD_NODE_NAME": self.node, "HEALTHD_ORCHESTRATOR_KUBERNETES_KUBECONFIG": str(kubeconfig)}
        argv = [sys.executable, "-m", "healthd", *arguments, "--config", str(self.folder / "config.toml")]
        return subprocess.run(
            argv, cwd=ROOT, env={**own, **environ}, check=False, capture_output=True, text=True, timeout=limit_s(90)
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """For as long as this lasts, each hook's pod runs once it is there."""
        with repeating(self._play, "pods of hooks"):
            yield

    def _play(self) -> None:
        if self._is_new(JOB):
            self._job()
        if self._is_new(TEST):
            self._test()

    def _is_new(self, path: str) -> bool:
        found = self.plane.admin.get(path)
        status = found.body.get("status") or {}
        return found.ok and not status.get("conditions") and status.get("phase", "Pending") == "Pending"

    def _job(self) -> None:
        job = self.plane.admin.get(JOB).must()
        spec = job["spec"]["template"]["spec"]
        self.plane.add_pod(
            "healthd-uninstall-1", self.node, namespace=NAMESPACE, serviceAccountName="healthd-uninstall"
        )
        done = self._run("healthd-uninstall-1", spec)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        before_it, kind = ("SuccessCriteriaMet", "Complete") if done.returncode == 0 else ("FailureTarget", "Failed")
        # Kubernetes 1.31 and later refuses the end of a Job without its forerunner, and 1.30 refuses the forerunner.
        kinds = (before_it, kind) if self._minor() >= (1, 31) else (kind,)
        conditions = [{"type": each, "status": "True", "lastTransitionTime": now} for each in kinds]
        status: dict[str, Any] = {"startTime": now, "conditions": conditions}
        status |= {"succeeded": 1, "completionTime": now} if done.returncode == 0 else {"failed": 1}
        self.plane.admin.patch(f"{JOB}/status", {"status": status}, kind="merge").must()

    def _minor(self) -> tuple[int, int]:
        major, minor, _ = self.plane.version.split(".", 2)
        return int(major), int(minor)

    def _test(self) -> None:
        target = {"metadata": {"name": "healthd-test"}, "target": {"kind": "Node", "name": self.node}}
        self.plane.admin.post(f"{TEST}/binding", target).must()
        done = self._run("healthd-test", self.plane.admin.get(TEST).must()["spec"])
        phase = "Succeeded" if done.returncode == 0 else "Failed"
        self.plane.admin.patch(f"{TEST}/status", {"status": {"phase": phase}}).must()

    def _run(self, pod: str, spec: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        (container,) = spec["containers"]
        name = next(each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each)
        config = self.plane.admin.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}").must()["data"]["config.toml"]
        self.done.append(self.command(spec["serviceAccountName"], pod, container["args"], config))
        return self.done[-1]
