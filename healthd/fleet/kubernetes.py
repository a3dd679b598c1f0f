"""Reads the fleet of a Kubernetes cluster: three LISTs (Nodes, NodeHealths, healthd's Leases), each page by page;
nothing is written. It has the rights of the kubeconfig, or of the pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime

from healthd.config.schema.config import Config
from healthd.core.errors import BackendUnknown
from healthd.core.model import CLUSTER
from healthd.fleet.nodes import FleetPicture, fleet_nodes
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, ResourceKind, connect
from healthd.remediation.orchestrators.kubernetes.node_health_api import NO_CRD, NodeHealths, Unserved
from healthd.remediation.orchestrators.kubernetes.objects.domain_fences import domain_fences
from healthd.remediation.orchestrators.kubernetes.objects.listed_leases import leases_in, read_leases
from healthd.remediation.orchestrators.kubernetes.objects.listed_nodes import SILENT_AFTER_S, listed_node
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, nodes_in
from healthd.remediation.orchestrators.kubernetes.objects.node_health import NodeHealth
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from healthd.remediation.request_stats import RequestStats

_LIST_S = 30.0  # a server that answers from its cache may give 10,000 nodes in one piece


def read_fleet(
    config: Config,
    environ: Mapping[str, str],
    clock: Callable[[], datetime],
    *,
    kubeconfig: str,
    calls: RequestStats | None = None,
) -> FleetPicture:
    """The fleet now. ``kubeconfig``: "" for the pod's own credentials. ``calls``: where its requests are counted.
    Raises BackendError, ConfigError."""
    timeout_s = max(config.orchestrator.kubernetes.timeout_s, _LIST_S)
    api = connect(kubeconfig=kubeconfig, timeout_s=timeout_s, pace=Pace(), environ=environ, calls=calls)
    with closing(api):
        return _read(api, config, clock)


def _read(api: KubeApi, config: Config, clock: Callable[[], datetime]) -> FleetPicture:
    section = config.orchestrator.kubernetes
    nodes = _nodes(api, config.controller.selector)
    healths, remarks = _healths(api)
    pages = api.pages(ResourceKind.LEASE, leases_in, namespace=section.namespace)
    now = clock()
    leases = read_leases((each for page in pages for each in page), now, counts_age_s=section.counts_age_s)
    holders = {slot.node for slot in leases.slots}
    listed = [
        listed_node(
            node,
            healths.get(node.name),
            claimed=node.name in holders,
            message=leases.messages.get(node.name, ""),
            tolerated=section.tolerated_taints,
            scope_label=section.scope_label,
            opt_out_label=config.remediation.opt_out_label,
        )
        for node in nodes
    ]
    fences = domain_fences(nodes, listed, leases.fences)
    return FleetPicture(
        cluster=api.cluster.rpartition("/")[2],  # EKS names a cluster by its ARN
        at=now,
        nodes=fleet_nodes(listed, leases.slots, leases.times, now, silent_after_s=SILENT_AFTER_S, fences=fences),
        limit=leases.limit,
        taken=sum(slot.scope == CLUSTER for slot in leases.slots),
        only_slots=leases.only_slots,
        remarks=(*remarks, *leases.remarks),
        freeze=leases.freeze.text if leases.freeze is not None else "",
        fences=fences,
    )


def _nodes(api: KubeApi, selector: str) -> list[KubeNode]:
    """Every Node that counts, through the server's cache, which costs etcd nothing."""
    pages = api.pages(ResourceKind.NODE, nodes_in, resourceVersion="0", labelSelector=selector)
    nodes = [node for page in pages for node in page]
    if not nodes:
        which = f" with the labels {selector!r} ([controller] selector)" if selector else ""
        raise BackendUnknown(f"the cluster has no Node{which}")
    return nodes


def _healths(api: KubeApi) -> tuple[dict[str, NodeHealth], list[str]]:
    """Every NodeHealth; none, and a remark, where the cluster has no such resource."""
    try:
        return NodeHealths(api).all(), []
    except Unserved:
        return {}, [f"steps, waits and histories are not shown: {NO_CRD}"]
