"""Which node this is, as the ``[[match]]`` sections of a configuration ask: each fact only when it is asked for.

It reads the machine and, for partitions, Slurm; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from healthd.config.schema.config import Config
from healthd.core.errors import SourceUnreadable
from healthd.sources.identity import find_identity, metadata_endpoint, node_name
from healthd.sources.imds import FastStart, MetadataSource
from healthd.sources.trees import FileTree

_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"


class ThisNode:
    """The node behind a configuration, of which only what may not stand in a match is used, and how Slurm is asked.
    ``hurry``: as of MetadataSource."""

    def __init__(self, config: Config, environ: Mapping[str, str], *, hurry: FastStart | None = None) -> None:
        self._config, self._environ, self._hurry = config, environ, hurry

    def host(self) -> tuple[str, ...]:
        return (self._config.node.name or node_name(self._environ),)

    def label(self) -> tuple[str, ...]:
        return self._config.node.labels

    def instance_type(self) -> tuple[str, ...]:
        """The instance type, as configured, in DMI, or from IMDS. Raises SourceUnreadable where none tells it."""
        sources, configured = self._config.sources, self._config.node.instance_type
        tree = FileTree(Path(sources.sys_root))
        imds = MetadataSource(
            metadata_endpoint(tree, sources.imds_endpoint, sys_root=sources.sys_root), hurry=self._hurry
        )
        identity = find_identity(tree, imds, configured_type=configured)
        if not identity.instance_type:
            why = identity.problem or "neither DMI nor the instance metadata service tells it"
            raise SourceUnreadable(f"{why}; set [node] instance_type")
        return (identity.instance_type,)

    def partition(self) -> tuple[str, ...]:
        """The Slurm partitions of this node; none where it runs no Slurm. Raises BackendError from Slurm."""
        if not runs_slurm(self._config, self._environ):
            return ()
        from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

        (name,) = self.host()
        return SlurmOrchestrator.of(self._config, name).partitions()


def runs_kubernetes(config: Config, environ: Mapping[str, str], *, root: str = "/") -> bool:
    """Whether the configuration names Kubernetes, or leaves it open and this process runs in a pod of a node that runs
    no Slurm, with a token. ``root``: where the files of this machine are."""
    if config.orchestrator.kind != "auto":
        return config.orchestrator.kind == "kubernetes"
    return is_in_pod(environ, root=root) and not runs_slurm(config, environ, root=root)


def is_in_pod(environ: Mapping[str, str], *, root: str = "/") -> bool:
    """Whether this process runs in a pod that has a token of a ServiceAccount."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and Path(root, _ACCOUNT, "token").exists()


def runs_slurm(config: Config, environ: Mapping[str, str], *, root: str = "/") -> bool:
    """Whether the configuration names Slurm, or leaves it open and this machine belongs to a Slurm cluster."""
    from healthd.remediation.orchestrators.slurm.orchestrator import detect  # a cold check loads no remediation

    kind, slurm = config.orchestrator.kind, config.orchestrator.slurm
    if kind != "auto" or slurm.conf:
        return kind in ("auto", "slurm")
    return detect(environ=environ, root=root, bin_dir=slurm.bin_dir)[0]
