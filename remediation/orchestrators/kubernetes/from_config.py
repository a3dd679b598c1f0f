"""Opens the Kubernetes back end of one node from its configuration. No request is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from healthd.config.schema.config import Config
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, ResourceKind, connect
from healthd.remediation.orchestrators.kubernetes.objects.budget import annotations_of
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS, INCIDENTS_LEASE, notices_in
from healthd.remediation.orchestrators.kubernetes.orchestrator import Fence, KubernetesOrchestrator
from healthd.remediation.orchestrators.kubernetes.pod_resources import started
from healthd.remediation.orchestrators.kubernetes.reporter import AgentState, KubeReporter
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from healthd.remediation.records.incident_notices import IncidentNotices

RATE_PER_S, BURST = 1.0, 30
"""A remediation takes some twenty requests from the fault to the taint, which must not take twenty seconds. An agent
that fails still sends at most one request a second."""

CLAIMED_FENCE = (
    "fenced by the taint healthd.io/claimed: the node holds a claim on the budget without an open remediation; healthd"
    " looks for its origin and gives it back"
)
FENCE_LIFTED = "fence healthd.io/claimed removed: this node holds no claim on the budget"


def open_api(config: Config, environ: Mapping[str, str], *, dry_run: bool = False) -> KubeApi:
    """The connection. ``dry_run``: nothing that it writes is kept. Raises ConfigError where there is neither a
    ServiceAccount nor a kubeconfig."""
    section = config.orchestrator.kubernetes
    return connect(
        kubeconfig=section.kubeconfig,
        timeout_s=section.timeout_s,
        pace=Pace(rate_per_s=RATE_PER_S, burst=BURST),
        environ=environ,
        dry_run=dry_run,
    )


def read_notices(api: KubeApi, namespace: str) -> IncidentNotices:
    """The notices of open incidents; none where no controller leaves any. Raises BackendError."""
    try:
        lease = api.get(ResourceKind.LEASE, INCIDENTS_LEASE, namespace=namespace)
    except Missing:
        return IncidentNotices()
    return notices_in(annotations_of(lease)[1].get(INCIDENTS, ""))


def open_orchestrator(config: Config, api: KubeApi, node: str) -> KubernetesOrchestrator:
    """The Orchestrator of this node."""
    section = config.orchestrator.kubernetes
    return KubernetesOrchestrator(
        api,
        node=node,
        namespace=section.namespace,
        scopes=[scope.name for scope in config.budget.scope],
        scope_label=section.scope_label,
        tolerated=section.tolerated_taints,
        effect=section.taint_effect,
        cordon=section.cordon,
        resources=section.job_resources,
        pod_resources=section.pod_resources,
        counts_age_s=section.counts_age_s,
        timeout_s=section.timeout_s,
    )


def open_reporter(
    config: Config,
    api: KubeApi,
    orchestrator: KubernetesOrchestrator,
    *,
    node: str,
    known: Callable[[], AgentState],
    fenced: Callable[[str], None],
) -> KubeReporter:
    """The reporter of this node. ``api``: a connection of its own, so that no report keeps a drain waiting. ``fenced``
    gets what fences the node while no remediation may be open, "" for nothing."""
    return KubeReporter(
        api,
        node=node,
        known=known,
        verified=orchestrator.verified,
        fenced=lambda: poll_fence(orchestrator, fenced),
        kubelet=lambda: started(config.orchestrator.kubernetes.pod_resources),
        start_s=config.orchestrator.kubernetes.start_s,
    )


def poll_fence(orchestrator: KubernetesOrchestrator, fenced: Callable[[str], None]) -> tuple[bool, str]:
    """Whether the node is still fenced, and what was done about it. ``fenced`` gets what fences it, see above."""
    fence = orchestrator.heal_fence()
    fenced(CLAIMED_FENCE if fence is Fence.CLAIMED else "")
    return fence is Fence.CLAIMED, FENCE_LIFTED if fence is Fence.TAKEN_AWAY else ""
