"""Whether a daemon or a controller could start here with a configuration: told with every reason, and nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from healthd.config.schema.config import Config, NodeSection, OrchestratorSection
from healthd.config.schema.daemon import DaemonSection
from healthd.config.schema.kubernetes import KubernetesSection
from healthd.config.schema.provisioner import HyperpodSection, ProvisionerSection
from healthd.controller.run import open_work
from healthd.core.errors import ConfigError
from healthd.daemon.trial import try_out


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A node in Kubernetes, as a kubeconfig says."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    kubeconfig = {"current-context": "c", "clusters": [server], "contexts": [context], "users": [user]}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    return Config(
        node=NodeSection(name="n1", instance_type="p5.48xlarge"),
        daemon=DaemonSection(socket=f"{tmp_path}/run/s", state_dir=f"{tmp_path}/state"),
        orchestrator=OrchestratorSection(
            kind="kubernetes", kubernetes=KubernetesSection(kubeconfig=f"{tmp_path}/kubeconfig")
        ),
        provisioner=ProvisionerSection(kind="eks"),
    )


def test_what_would_start_is_let_go_of(config: Config, tmp_path: Path) -> None:
    """No request, no file, no folder: nobody listens at that server, and nothing is made."""
    try_out(config, {})
    assert [each.name for each in tmp_path.iterdir()] == ["kubeconfig"]


def test_every_reason_is_told(config: Config, tmp_path: Path) -> None:
    """One look finds them all, so that nobody mends one after the other."""
    (tmp_path / "file").touch()
    wrong = replace(
        config,
        daemon=DaemonSection(socket=f"{tmp_path}/file/s", state_dir=f"{tmp_path}/file/state"),
        orchestrator=OrchestratorSection(kind="local"),
        provisioner=ProvisionerSection(kind="hyperpod", hyperpod=HyperpodSection(how="label")),
    )
    with pytest.raises(ConfigError) as caught:
        try_out(wrong, {})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "daemon.socket",
        "daemon.state_dir",
        'provisioner.hyperpod.how = "label" writes to the node\'s own Node',
    ]


def test_a_cluster_that_is_not_there_is_told(config: Config, tmp_path: Path) -> None:
    """A kubeconfig that something else writes later: to the agent and to the controller."""
    (tmp_path / "kubeconfig").unlink()
    for attempt in (lambda: try_out(config, {}), lambda: open_work(config)):
        with pytest.raises(ConfigError, match="no usable Kubernetes credentials"):
            attempt()


def test_a_controller_is_tried_out_without_a_request(config: Config) -> None:
    """Nobody listens at that server either."""
    assert open_work(replace(config, provisioner=ProvisionerSection(kind="karpenter"))).stats.provisioner == "karpenter"
