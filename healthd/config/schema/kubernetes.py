"""How the Kubernetes API is used, as it is configured: ``[orchestrator.kubernetes]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from healthd.config.kinds import AbsolutePath, Glob, MaybePath

CallSeconds = Annotated[float, Meta(ge=0.1, le=60, description="seconds, from 0.1 to 60")]
AgeSeconds = Annotated[float, Meta(ge=60, le=86_400, description="seconds, from 60 to 86400")]
StartSeconds = Annotated[float, Meta(ge=0, le=600, description="seconds, at most 600")]
Namespace = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z", description="the name of a namespace, such as healthd")
]
LabelKey = Annotated[str, Meta(pattern=r"^[^=\s]*\Z", description='the key of a label, or ""')]


@dataclass(frozen=True, kw_only=True)
class KubernetesSection:
    """Kubernetes, as the agent on a node uses it. It needs healthd's extra ``kubernetes``."""

    kubeconfig: MaybePath = ""
    """A kubeconfig, whose current context is used. Empty: the pod's own ServiceAccount, whose token is read anew every
    minute. For a daemon outside of a pod, and for tests."""

    namespace: Namespace = "healthd"
    """Where the Leases of the budget are: the namespace that healthd is installed in."""

    timeout_s: CallSeconds = 5.0
    """Deadline of one call, in seconds. A call past it may have been applied, and is read back. Five: an API server
    that takes longer is overloaded, and nothing here is worth adding to that."""

    scope_label: LabelKey = ""
    """The label whose value says in which ``[[budget.scope]]`` a node is, such as ``eks.amazonaws.com/nodegroup``,
    ``karpenter.sh/nodepool`` or ``sagemaker.amazonaws.com/instance-group-name``. Empty: in none but the cluster's."""

    tolerated_taints: tuple[Glob, ...] = ()
    """Keys of further taints that the jobs of this fleet tolerate, such as ``["dedicated"]``. Any other NoSchedule or
    NoExecute taint means that somebody has the node out of service, and healthd leaves it alone. Taints that say
    what a node has (``nvidia.com/gpu``, ``aws.amazon.com/neuron*``, ``vpc.amazonaws.com/efa``, ``amd.com/gpu``) need no
    naming."""

    taint_effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"
    """The effect of the taint ``healthd.io/unhealthy``. ``NoExecute`` has running pods deleted at once, which asks no
    PodDisruptionBudget; the admission policy of the chart must allow it as well. NoSchedule by default: a drain is the
    controller's, in order."""

    cordon: bool = False
    """Whether the node is cordoned as well. Off: a taint has an owner, and ``unschedulable`` has none; on where a
    scheduler of your own looks at nothing else. A cordon that was there is never lifted."""

    job_resources: tuple[Glob, ...] = (
        "nvidia.com/*",
        "*.nvidia.com",
        "amd.com/gpu",
        "aws.amazon.com/neuron*",
        "vpc.amazonaws.com/efa*",
    )
    """What a pod must hold, as the kubelet says, to be a job that a repair waits for: names of device plugins'
    resources, and of drivers of dynamic resource allocation."""

    pod_resources: AbsolutePath = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The kubelet's socket that says which pods hold which devices. Its folder is mounted into the agent's pod."""

    counts_age_s: AgeSeconds = 900.0
    """How old ``healthd controller``'s count of the nodes that are out may be, in seconds, before nothing more is taken
    out. It counts each round and writes what has changed, and what has not in a fifteenth of this time, every minute; a
    quarter of an hour lets it be rescheduled. Counts that Helm wrote, and nobody keeps up to date, have no age."""

    device_plugin: str = ""
    """A label selector of the device plugin's pods, such as ``app=nvidia-device-plugin-daemonset`` (GPU Operator) or
    ``app.kubernetes.io/name=nvidia-device-plugin``. After a GPU reset the agent then asks, and ``healthd controller``
    evicts the plugin's pod of that node where it still counts GPUs as unhealthy: NVIDIA's plugin has no other way back.
    Empty: nothing is asked, and no plugin restarted."""

    device_plugin_namespace: Namespace = "kube-system"
    """The namespace of those pods."""

    pause_gpu_operator: bool = False
    """Whether the agent stops what NVIDIA's GPU Operator runs on its GPUs (device plugin, feature discovery, DCGM, its
    exporter) for a GPU reset, and starts it again: by the operator's own labels ``nvidia.com/gpu.deploy.*`` of the
    node, as the operator's MIG manager does. A reset needs that, because nobody may have a GPU open. The chart's
    admission policy lets an agent do it on its own node, while that is out, where this is on. Off, or where these pods
    are not the operator's, a reset that finds a GPU held is not made, says by whom, and the next remedy of the rule
    follows: the reboot."""

    report: bool = True
    """Whether node conditions and Events are written, in every mode, observe included: they change nothing for the
    scheduler. Off where another agent reports, or the API server is not to be written to at all."""

    start_s: StartSeconds = 60.0
    """Within how many seconds of its start the agent first reads its Node for that, at random: a rollout must not come
    all at once."""
