"""The cluster that a node is in (none, Slurm, or Kubernetes), and the parts of its engine that depend on that.

The three stand side by side here, so that the code that puts an engine together does not ask which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from healthd.config.schema.config import Config
from healthd.remediation.decide.fleet import CLUSTER
from healthd.remediation.decide.rules import FEATURE, LABEL
from healthd.remediation.engine.gpu_reset import Clients
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import Orchestrator
from healthd.remediation.provisioners.own_node import Asking
from healthd.remediation.provisioners.slurm_node import Scontrol

if TYPE_CHECKING:  # it loads lightkube, which a node of Slurm need not have
    from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator

_CALM_S = 30.0
_ABOUT_PODS = ", and no unit stops them; pods of NVIDIA's GPU Operator: [orchestrator.kubernetes] pause_gpu_operator"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Arguments of an engine's parts. ``settle_s``, ``unanswered_s``, ``calm_s``: seconds, see SlotKeeper and the
    engine's timeouts. ``quotas``: how many nodes may be out, by scope. ``opt_out``: the feature of the node by which an
    operator opts it out, and the cluster's word for such a feature. ``marks``, ``scontrol``, ``asking``: see
    open_provisioner. ``gpu_clients``: services that hold the GPUs and may be stopped for a reset; ``clients_help``: the
    advice about those that may not.
    """

    settle_s: float
    quotas: Callable[[], Mapping[str, str | int]]
    opt_out: tuple[str, str]
    unanswered_s: float = 0.0
    calm_s: float = 0.0
    marks: Orchestrator | None = None
    scontrol: Scontrol | None = None
    asking: Callable[[str], Asking] | None = None
    gpu_clients: Clients | None = None
    clients_help: str = ""


def cluster_of(config: Config, orchestrator: Orchestrator) -> Cluster:
    """That of the node which this orchestrator takes out of service."""
    if (kubernetes := as_kubernetes(orchestrator)) is not None:
        return _kubernetes(config, kubernetes)
    quotas = {CLUSTER: config.budget.max_out, **{scope.name: scope.max_out for scope in config.budget.scope}}
    opt_out = (config.remediation.opt_out_feature, FEATURE)
    if isinstance(orchestrator, SlurmOrchestrator):
        return Cluster(
            settle_s=config.budget.settle_s,
            quotas=lambda: quotas,
            opt_out=opt_out,
            unanswered_s=config.orchestrator.slurm.unanswered_s,
            marks=orchestrator,
            scontrol=orchestrator.scontrol,
        )
    return Cluster(settle_s=0.0, quotas=lambda: quotas, opt_out=opt_out)  # it has nobody to wait for


def as_kubernetes(orchestrator: Orchestrator | None) -> KubernetesOrchestrator | None:
    """The orchestrator where it is that of Kubernetes, else None."""
    if orchestrator is None or orchestrator.kind != "kubernetes":
        return None
    from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator

    assert isinstance(orchestrator, KubernetesOrchestrator)  # noqa: S101 - its kind says so
    return orchestrator


def _kubernetes(config: Config, orchestrator: KubernetesOrchestrator) -> Cluster:
    """A patch says what it changes, so that none can meet what came after it: nothing is waited for. Many nodes may be
    out for days, and one API server hears all of them. The Leases say how many may be, where the server holds all to
    it. A label of the Node is among its features, and read with its state."""
    from healthd.remediation.orchestrators.kubernetes.from_config import KubeGpuClients, KubePlatformRequests

    stops = config.orchestrator.kubernetes.pause_gpu_operator
    return Cluster(
        settle_s=config.budget.settle_s,
        quotas=orchestrator.quotas,
        opt_out=(config.remediation.opt_out_label, LABEL),
        calm_s=min(_CALM_S, config.remediation.settle_s),
        marks=orchestrator,
        asking=lambda kind: KubePlatformRequests(orchestrator, kind),
        gpu_clients=KubeGpuClients(orchestrator) if stops else None,
        clients_help=_ABOUT_PODS,
    )
