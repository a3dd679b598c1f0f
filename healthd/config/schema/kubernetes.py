"""The settings of the Kubernetes API: ``[orchestrator.kubernetes]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from healthd.config.value_types import Glob, MaybeLabelKey, MaybePath
from healthd.core.setting_types import AbsolutePath

CallSeconds = Annotated[float, Meta(ge=0.1, le=60, description="seconds, from 0.1 to 60")]
AgeSeconds = Annotated[float, Meta(ge=60, le=86_400, description="seconds, from 60 to 86400")]
StartSeconds = Annotated[float, Meta(ge=0, le=600, description="seconds, at most 600")]
Namespace = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z", description="the name of a namespace, such as healthd")
]


class KubernetesSection(Struct, frozen=True, kw_only=True):
    """Kubernetes, as the agent on a node uses it. It needs healthd's extra ``kubernetes``."""

    kubeconfig: MaybePath = ""
    """A kubeconfig, whose current context is used. Empty: the pod's own ServiceAccount, whose token healthd reads again
    every minute. For a daemon outside of a pod, and for tests."""
    namespace: Namespace = "healthd"
    """The namespace of the budget's Leases: the one that healthd is installed in."""

    timeout_s: CallSeconds = 5.0
    """Deadline of one call, in seconds. A call past it may have been applied, and healthd reads back its effect. Five:
    an API server that takes longer is overloaded, and healthd must not add to that."""
    scope_label: MaybeLabelKey = ""
    """The label whose value names the ``[[budget.scope]]`` of a node, such as ``eks.amazonaws.com/nodegroup``,
    ``karpenter.sh/nodepool`` or ``sagemaker.amazonaws.com/instance-group-name``. Empty: only the cluster's scope."""

    tolerated_taints: tuple[Glob, ...] = ()
    """Keys of further taints that the jobs of this fleet tolerate, such as ``["dedicated"]``. Any other NoSchedule or
    NoExecute taint means that another owner has the node out of service, and healthd leaves it alone. Taints that
    name a node's devices (``nvidia.com/gpu``, ``aws.amazon.com/neuron*``, ``vpc.amazonaws.com/efa``, ``amd.com/gpu``)
    are known."""

    taint_effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"
    """The effect of the taint ``healthd.io/unhealthy``. ``NoExecute`` deletes running pods at once and ignores any
    PodDisruptionBudget; the admission policy of the chart must allow it as well. NoSchedule by default: the controller
    then evicts pods by its drain rules."""

    cordon: bool = False
    """Whether healthd also cordons the node. Off: a taint has an owner, and ``unschedulable`` has none. Set it on where
    a scheduler of your own reads only that. healthd never lifts a cordon that was there before."""

    job_resources: tuple[Glob, ...] = (
        "nvidia.com/*",
        "*.nvidia.com",
        "amd.com/gpu",
        "aws.amazon.com/neuron*",
        "vpc.amazonaws.com/efa*",
    )
    """The devices that make a pod a job, for whose end a repair waits: names of device plugins' resources, and of
    drivers of dynamic resource allocation. The kubelet reports which pod holds which."""

    pod_resources: AbsolutePath = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The kubelet's socket that reports which pods hold which devices. Its folder is mounted into the agent's pod."""

    counts_age_s: AgeSeconds = 900.0
    """The highest age, in seconds, of ``healthd controller``'s count of the nodes that are out. With an older count
    healthd takes no further node out. The controller counts in each sync and writes a changed count at once, and an
    unchanged one after a fifteenth of this time, every minute. A quarter of an hour lets its pod be rescheduled. Counts
    that Helm wrote, and no controller updates, have no age."""

    device_plugin: str = ""
    """A label selector of the device plugin's pods, such as ``app=nvidia-device-plugin-daemonset`` (GPU Operator) or
    ``app.kubernetes.io/name=nvidia-device-plugin``. After a GPU reset the agent sends a request, and ``healthd
    controller`` evicts the plugin's pod of that node if it still counts GPUs as unhealthy: NVIDIA's plugin has no other
    way back. Empty: the agent sends none, and no plugin is restarted."""

    device_plugin_namespace: Namespace = "kube-system"
    """The namespace of those pods."""

    pause_gpu_operator: bool = False
    """Whether the agent stops the pods of NVIDIA's GPU Operator on its GPUs (device plugin, feature discovery, DCGM,
    its exporter) for a GPU reset, and starts them again: by the GPU Operator's own labels ``nvidia.com/gpu.deploy.*``
    of the node, as its MIG manager does. A reset needs that, because no process may have a GPU open. The chart's
    admission policy then allows an agent to do it on its own node, while that is out. Off, or where these pods are not
    the GPU Operator's, a reset that finds a GPU held is refused and names the holder, and the next remedy of the rule
    follows: the reboot."""

    report: bool = True
    """Whether healthd writes node conditions and Events, in every mode, observe included: they change nothing for the
    scheduler. Set it off where another agent reports, or healthd must not write to the API server at all."""

    start_s: StartSeconds = 60.0
    """The bound, in seconds, of the random delay between the agent's start and its first read of its Node for that: a
    rollout must not reach the API server all at once."""
