"""Which node is a Kubernetes node, and what the configuration makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.agent.node_facts import runs_kubernetes
from healthd.config.schema.config import BudgetSection, Config, OrchestratorSection, ScopeBudget
from healthd.config.schema.kubernetes import KubernetesSection
from healthd.core.errors import ConfigError
from healthd.remediation.orchestrators.kubernetes.from_config import open_api, open_orchestrator
from healthd.remediation.orchestrators.kubernetes.pod_resources import GPU_RESOURCES, SOCKET

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "PATH": "/nonexistent"}


def config(kind: str, **section: str) -> Config:
    kubernetes = KubernetesSection(**section)  # type: ignore[arg-type] # of strings alone here
    return Config(orchestrator=OrchestratorSection(kind=kind, kubernetes=kubernetes))  # type: ignore[arg-type]


def token(root: Path) -> None:
    folder = root / "var/run/secrets/kubernetes.io/serviceaccount"
    folder.mkdir(parents=True)
    (folder / "token").write_text("t")


@pytest.mark.parametrize(
    ("kind", "environ", "has_token", "expected"),
    [
        ("kubernetes", {}, False, True),
        ("slurm", POD, True, False),
        ("local", POD, True, False),
        ("auto", POD, True, True),
        ("auto", POD, False, False),
        ("auto", {"PATH": "/nonexistent"}, True, False),
    ],
)
def test_a_pod_with_an_account_is_a_kubernetes_node(
    tmp_path: Path, kind: str, environ: dict[str, str], has_token: bool, expected: bool
) -> None:
    """Unless the configuration names another."""
    if has_token:
        token(tmp_path)
    assert runs_kubernetes(config(kind), environ, root=str(tmp_path)) is expected


def test_a_slurmd_in_a_pod_is_a_slurm_node(tmp_path: Path) -> None:
    """Its scontrol and its configuration are there: Slurm owns the node's jobs."""
    token(tmp_path)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\n")
    scontrol.chmod(0o755)
    environ = {**POD, "SLURM_CONF": "/etc/slurm/slurm.conf", "PATH": str(tmp_path)}
    assert not runs_kubernetes(config("auto"), environ, root=str(tmp_path))


def test_the_defaults_of_the_configuration_are_those_of_the_back_end() -> None:
    """They stand in two places, because the schema imports nothing of the back ends."""
    section = KubernetesSection()
    assert section.job_resources == GPU_RESOURCES
    assert section.pod_resources == SOCKET


def test_no_account_and_no_kubeconfig_is_a_mistake_in_the_configuration() -> None:
    """Before any request is sent."""
    with pytest.raises(ConfigError, match="kubeconfig"):
        open_api(config("kubernetes", kubeconfig="/nonexistent"), {})


def test_an_orchestrator_is_opened_without_a_request(tmp_path: Path) -> None:
    """Nothing listens at that address."""
    file = tmp_path / "kubeconfig"
    file.write_text(
        "current-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: c, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: c}}]\n"
    )
    budget = BudgetSection(scope=(ScopeBudget(name="p5", max_out=1),))
    made = replace(config("kubernetes", kubeconfig=str(file)), budget=budget)
    api = open_api(made, {})
    orchestrator = open_orchestrator(made, api, "n1")
    assert (orchestrator.kind, orchestrator.quotas(), api.sent) == ("kubernetes", {}, {})
    orchestrator.close()
