"""The probes of ``healthd doctor`` at Kubernetes, as the agent of this node: token, rights, admission policies, budget,
and the kubelet's socket.

They change nothing: each write is a dry run, which the server judges as any other write and does not keep. An agent has
no right to read policies, so a policy shows by its refusals.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from healthd.agent.node_facts import runs_kubernetes
from healthd.agent.wiring import open_orchestrator
from healthd.config.schema.config import Config
from healthd.core.errors import BackendDenied, BackendError, BackendRefused, BackendUnknown, ConfigError
from healthd.core.json_documents import json_fields
from healthd.core.model import Mode
from healthd.remediation.orchestrators.kubernetes.objects import budget as leases
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS_LEASE
from healthd.remediation.ports import NodeView
from healthd.setup.doctor import DoctorResult, DoctorStatus
from healthd.setup.machine_probes import DoctorProbe, with_machine
from healthd.sources.machine import Machine

if TYPE_CHECKING:
    from healthd.remediation.orchestrators.kubernetes.api import KubeApi
    from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths

_CHART = "install the chart packaging/helm/healthd, or apply packaging/kubernetes"
_RBAC = "give its ServiceAccount the rights of packaging/kubernetes/agent-rbac.yaml, as the chart does"
_NETWORK = "check the network to the API server, and [orchestrator.kubernetes] kubeconfig and timeout_s"
_POLICIES = (
    "apply packaging/kubernetes/policies (the chart does; Kubernetes 1.30 or newer): until then only its own code"
    " limits an agent to its node and to the budget"
)
_BOUND_TO = "authentication.kubernetes.io/node-name"
_PROBE = "healthd-doctor"  # part of the names in dry runs, which exist nowhere


class Right(Struct, frozen=True, kw_only=True):
    """One right of the agent. ``use``: the function that fails without it; ``acts``: needed only beyond mode
    observe."""

    verb: str
    group: str
    resource: str
    use: str
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    acts: bool = False

    @property
    def title(self) -> str:
        """As kubectl auth can-i has it."""
        what = "/".join(filter(None, (self.resource, self.subresource)))
        return f"{self.verb} {what}{f' {self.name}' if self.name else ''}"


def kubernetes_probes(config: Config, environ: Mapping[str, str]) -> Mapping[str, DoctorProbe]:
    """The probes by name. Outside of a pod and without a configuration, one result says so."""
    found = {"Kubernetes": with_machine(config, partial(_api_server, environ))}
    if not runs_kubernetes(config, environ) or importlib.util.find_spec("lightkube") is None:
        return found
    return {**cluster_probes(config, environ), "pod resources": with_machine(config, _pod_resources)}


def cluster_probes(config: Config, environ: Mapping[str, str]) -> Mapping[str, DoctorProbe]:
    """The probes of the API server, which work from any machine."""
    return {
        "Kubernetes": with_machine(config, partial(_api_server, environ)),
        **{about: with_machine(config, partial(_asked, environ, about, ask)) for about, ask in _REQUESTS.items()},
    }


def state_of(view: NodeView) -> str:
    """The state of a node, in the cluster's own words."""
    return "+".join(sorted(view.flags)).lower() or ("in service" if view.in_service else "out of service")


# ---------------------------------------------------------------------------------------------------------------------
# the API server


def _api_server(environ: Mapping[str, str], config: Config, machine: Machine) -> DoctorResult:
    about = "Kubernetes"
    if not runs_kubernetes(config, environ):
        return DoctorResult.unneeded(about, "not configured, and this is no pod with a ServiceAccount")
    try:
        asked = open_orchestrator(config, machine, environ)
        view = asked.view()
    except ConfigError as error:
        fix = "correct [orchestrator.kubernetes]; the chart packaging/helm/healthd sets all of it"
        return DoctorResult.missing(about, str(error), fix)
    except BackendUnknown as error:
        denied = isinstance(error.__cause__, BackendDenied)
        status = DoctorStatus.MISSING if denied else DoctorStatus.NOT_REPORTED
        return DoctorResult(about=about, status=status, why=str(error), fix=_RBAC if denied else _NETWORK)
    except BackendError as error:
        fix = "set [node] name to the name of the Node object, as the chart does by the downward API"
        return DoctorResult.missing(about, str(error), fix)
    else:
        return DoctorResult.ok(about, f"the API server answers; {machine.name} is {state_of(view)}")


def _asked(
    environ: Mapping[str, str], about: str, ask: _Request, config: Config, machine: Machine
) -> Iterator[DoctorResult]:
    """The results of a request; one without an answer is unknown."""
    from healthd.remediation.orchestrators.kubernetes.api import NotServed  # heavy: lightkube
    from healthd.remediation.orchestrators.kubernetes.from_config import open_api

    try:
        with closing(open_api(config, environ, dry_run=True)) as api:
            yield from ask(api, config, machine.name)
    except ConfigError as error:
        yield DoctorResult.not_reported(about, str(error), "see the line about Kubernetes")
    except BackendError as error:
        denied = isinstance(error, BackendDenied) or isinstance(error.__cause__, BackendDenied)
        elsewhere = "see the line about NodeHealth" if isinstance(error, NotServed) else _NETWORK
        yield DoctorResult.not_reported(about, str(error), _RBAC if denied else elsewhere)


def _user(api: KubeApi) -> tuple[str, str]:
    """The user that the server sees, and the node in its token, or ""."""
    from healthd.remediation.orchestrators.kubernetes.api import ResourceKind

    status = api.create(ResourceKind.SELF_REVIEW, {}).get("status") or {}
    user: Mapping[str, Any] = status.get("userInfo") or {}
    node = (user.get("extra") or {}).get(_BOUND_TO) or [""]
    return str(user.get("username", "")), str(node[0])


def _agent_of(config: Config) -> str:
    from healthd.remediation.orchestrators.kubernetes.objects.admission_policies import agent_account

    return agent_account(config.orchestrator.kubernetes.namespace)


def _token(api: KubeApi, config: Config, node: str) -> Iterator[DoctorResult]:
    return token_lines(*_user(api), config, node)


def token_lines(user: str, node: str, config: Config, name: str) -> Iterator[DoctorResult]:
    """Whether the policies apply to this token: they name one ServiceAccount, and the node in its token."""
    about, agent = "token", _agent_of(config)
    if user != agent:
        why = f"it belongs to {user}; the admission policies apply to {agent} alone, and do not limit this user"
        fix = "run healthd as the chart does; [orchestrator.kubernetes] kubeconfig and namespace"
        yield DoctorResult.missing(about, why, fix, optional=True)
    elif not node:
        why = "it names no node, so the admission policies refuse its writes"
        fix = "use a token that the kubelet projects into a pod on the node (Kubernetes 1.30 or newer), not a Secret's"
        yield DoctorResult.missing(about, why, fix)
    elif node != name:
        why = f"it belongs to a pod on {node}, and this node is {name}: the admission policies refuse its writes"
        fix = "set [node] name to the name of the Node object, as the chart does by the downward API"
        yield DoctorResult.missing(about, why, fix)
    else:
        yield DoctorResult.ok(about, f"{user}, of a pod on {node}")


# ---------------------------------------------------------------------------------------------------------------------
# rights and policies


def rights_of(config: Config, node: str) -> tuple[Right, ...]:
    """The rights of an agent with this configuration: packaging/kubernetes/agent-rbac.yaml."""
    taint = "it cannot set or remove a taint"
    event = "it cannot write Events about faults"
    slot = "it cannot take a budget slot"
    held = "it cannot hold its messages while an incident is open"
    record = "it cannot write its NodeHealth, nor request a repair"
    limits = "it cannot keep to the limits of the fleet"
    own = partial(Right, group="", resource="nodes", name=node)
    events = partial(Right, group="events.k8s.io", resource="events", namespace="default", use=event)
    namespace = config.orchestrator.kubernetes.namespace
    lease = partial(Right, group="coordination.k8s.io", resource="leases", namespace=namespace)
    health = partial(Right, group="healthd.io", resource="nodehealths")
    budgets = [leases.lease_name(name) for name in config.budget.quotas]
    return (
        own(verb="get", use="it cannot read its Node"),
        own(verb="patch", use=taint, acts=True),
        own(verb="patch", subresource="status", use="it cannot write conditions"),
        *(events(verb=verb) for verb in ("create", "patch")),
        *(lease(verb=verb, name=name, use=slot, acts=True) for name in budgets for verb in ("get", "patch")),
        lease(verb="get", name=INCIDENTS_LEASE, use=held),
        *(health(verb=verb, name=node, use=record) for verb in ("get", "create", "patch", "delete")),
        health(verb="list", use=limits, acts=True),
    )


def _rights(api: KubeApi, config: Config, node: str) -> Iterator[DoctorResult]:
    rights, observes = rights_of(config, node), config.remediation.mode is Mode.OBSERVE
    missing = [right for right in rights if not _may(api, right)]
    for right in missing:
        where = f" in namespace {right.namespace}" if right.namespace else ""
        why = f"it may not {right.title}{where}: {right.use}"
        optional = right.acts and observes
        yield DoctorResult.missing("rights", why, _RBAC, optional=optional)
    if not missing:
        yield DoctorResult.ok("rights", f"all {len(rights)} rights that an agent needs")


def _may(api: KubeApi, right: Right) -> bool:
    from healthd.remediation.orchestrators.kubernetes.api import ResourceKind

    wanted = json_fields(right, "verb", "group", "resource", "subresource", "name", "namespace")
    spec = {"resourceAttributes": {key: value for key, value in wanted.items() if value}}
    status = api.create(ResourceKind.ACCESS_REVIEW, {"spec": spec}).get("status") or {}
    if "allowed" not in status:
        raise BackendUnknown(f"the server gave no answer about the right to {right.title}")
    return bool(status["allowed"])


def _node_health(api: KubeApi, _: Config, node: str) -> Iterator[DoctorResult]:
    """Whether the server has the resource, and keeps every field of a handoff record; then its status of this node."""
    from healthd.remediation.orchestrators.kubernetes.node_health_api import NO_CRD, OLD_CRD, NodeHealths, Unserved

    about, health = "NodeHealth", NodeHealths(api)
    try:
        seen = health.read(node)
        lost = _dropped(health, node)
    except Unserved:
        why = "the API server does not serve nodehealths.healthd.io/v1alpha1, so no node can request a repair"
        yield DoctorResult.missing(about, why, NO_CRD)
        return
    if lost:
        why = f"the CustomResourceDefinition nodehealths.healthd.io is of another version of healthd: {lost}"
        yield DoctorResult.missing(about, why, OLD_CRD)
        return
    shown = seen.status.text if seen is not None and seen.status is not None else "nothing"
    why = f"served; this node: {shown}"
    yield DoctorResult.ok(about, why)


WHOLE_RECORD = (
    "healthd case=0 machine=0 asks=replace_node withdrew=reboot_node attempt=1 asked=1 next=reboot_node became=0"
    " denied=1 boot=0 bundle=0 revision=00000000 replaced=1 slept=1 awake=1 watched=1 gaveup=0 code=0 since=1 driver=0"
    " kernel=0 image=0 history=reset:1:0:helped:1:00000000 said=0"
)
"""A handoff record with every field and the newest answer: an older CustomResourceDefinition drops the former without a
word, and refuses the latter."""


def _dropped(health: NodeHealths, node: str) -> str:
    """The fields of a whole handoff record that the server drops, or its refusal, by a dry run; or ""."""
    from healthd.remediation.orchestrators.kubernetes.objects.node_health import RECORD, record_patch

    patch = record_patch(node, WHOLE_RECORD)
    try:
        kept = health.write(node, patch).record or {}
    except BackendDenied:
        raise
    except BackendRefused as error:
        return f"it refuses a handoff record: {error}"
    sent, (entry,) = patch[RECORD], kept.get("history") or [{}]
    lost = {name for name in sent if name not in kept}
    lost |= {f"history.{name}" for name in sent["history"][0] if name not in entry}
    return f"it drops {', '.join(sorted(lost))} from each handoff record" if lost else ""


def _policies(api: KubeApi, config: Config, node: str) -> Iterator[DoctorResult]:
    """For each policy, a dry run of a write that it must refuse."""
    from healthd.remediation.orchestrators.kubernetes.api import PatchKind, ResourceKind
    from healthd.remediation.orchestrators.kubernetes.objects.events import ClusterEvent, event_of
    from healthd.remediation.orchestrators.kubernetes.objects.node import CLAIMED

    about, namespace = "admission policies", config.orchestrator.kubernetes.namespace
    user, _ = _user(api)
    if user != _agent_of(config):
        why = f"they apply to {_agent_of(config)} alone, and this is {user}"
        fix = "kubectl -n healthd exec POD -- healthd doctor; kubectl get validatingadmissionpolicies"
        yield DoctorResult.not_reported(about, why, fix, optional=True)
        return
    foreign = {"metadata": {"labels": {f"example.com/{_PROBE}": "1"}}}
    taint = {"spec": {"taints": [{"key": CLAIMED, "effect": "NoSchedule"}]}}
    elsewhere = event_of(
        ClusterEvent(reason="Probe", action="Probe", about=_PROBE, note=_PROBE),
        node=f"{node}-{_PROBE}",
        uid="",
        now=datetime.now(UTC),
    )
    health = {"metadata": {"name": f"{node}-{_PROBE}"}}
    claim = {"metadata": {"annotations": {f"{leases.CLAIM}{_PROBE}": "dry"}}}
    tried: list[tuple[str, Callable[[], object]]] = [
        ("healthd-agent-own-node", lambda: api.patch(ResourceKind.NODE, node, foreign)),
        ("healthd-agent-events", lambda: api.create(ResourceKind.EVENT, elsewhere, namespace="default")),
        ("healthd-agent-node-health", lambda: api.create(ResourceKind.NODE_HEALTH, health)),
        ("healthd-budget", lambda: api.patch(ResourceKind.LEASE, leases.LEASE, claim, namespace=namespace)),
    ]
    budget = leases.annotations_of(api.get(ResourceKind.LEASE, leases.LEASE, namespace=namespace))[1]
    if leases.key_of(node) not in budget:  # with a claim the taint would be allowed
        first = (
            "healthd-agent-claim-first",
            lambda: api.patch(ResourceKind.NODE, node, taint, how=PatchKind.STRATEGIC),
        )
        tried.append(first)
    missing = tried
    for again in range(_LOOKS):
        if again and missing:
            time.sleep(_LOOK_S)
        missing = [(policy, write) for policy, write in missing if not _refuses(policy, write)]
    if missing:
        why = f"{', '.join(policy for policy, _ in missing)} did not refuse a forbidden write (dry run)"
        optional = not config.controller.policies
        yield DoctorResult.missing(about, why, _POLICIES, optional=optional)
    else:
        names = ", ".join(policy for policy, _ in tried)
        yield DoctorResult.ok(about, f"{names}: each refuses a forbidden write (dry run)")


_LOOKS, _LOOK_S = 5, 2.0
"""How often a write that was not refused is tried, and after how many seconds: the API server enforces a policy some
seconds after it was made, and `helm test` may follow `helm install` at once."""


def _refuses(policy: str, write: Callable[[], object]) -> bool:
    """Whether the server refuses this write by this policy. Raises BackendError for any other refusal."""
    try:
        write()
    except BackendError as error:
        if f"'{policy}'" in str(error):
            return True
        raise
    return False


# ---------------------------------------------------------------------------------------------------------------------
# the budget and the kubelet


def _budget(api: KubeApi, config: Config, _: str) -> Iterator[DoctorResult]:
    from healthd.remediation.orchestrators.kubernetes.api import Missing, ResourceKind

    about, section = "budget", config.orchestrator.kubernetes
    observes = config.remediation.mode is Mode.OBSERVE
    for scope in config.budget.quotas:
        name = leases.lease_name(scope)
        try:
            lease = api.get(ResourceKind.LEASE, name, namespace=section.namespace)
        except Missing:
            why = f"namespace {section.namespace} has no Lease {name}: healthd takes no node out"
            fix = f"{_CHART}: budget.limit and budget.nodes, or controller.enabled, which counts by itself"
            yield DoctorResult.missing(about, why, fix, optional=observes)
            continue
        try:
            budget = leases.budget_of(scope, lease)
            leases.check_counted(budget, datetime.now(UTC), max_age_s=section.counts_age_s)
        except BackendUnknown as error:
            fix = "check that `healthd controller` runs and leads: kubectl -n healthd get pods,lease"
            yield DoctorResult.missing(about, str(error), fix, optional=observes)
        else:
            yield budget_line(budget, observes=observes)


def budget_line(budget: leases.Budget, *, observes: bool) -> DoctorResult:
    """The nodes that are out, all nodes, the limit, and the source of the numbers."""
    out = len({claim.node for claim in budget.claims.values()} | budget.out)
    by = (
        f"counted at {budget.counted:%Y-%m-%d %H:%M:%S} UTC by healthd controller" if budget.counted else "as installed"
    )
    why = f"{budget.scope}: {out} of {budget.total} nodes are out, at most {budget.limit} may be, {by}"
    if budget.limit > 0:
        return DoctorResult.ok("budget", why)
    fix = "set budget.limit and budget.nodes of the chart, or controller.enabled with config.budget.max_out"
    return DoctorResult.missing("budget", f"{why}: healthd takes no node out", fix, optional=observes)


def _pod_resources(config: Config, _: Machine) -> DoctorResult:
    from healthd.remediation.orchestrators.kubernetes.pod_resources import pods_with

    about, section = "pod resources", config.orchestrator.kubernetes
    try:
        holding = pods_with(section.job_resources, path=section.pod_resources, timeout_s=section.timeout_s)
    except BackendUnknown as error:
        status = DoctorStatus.NOT_REPORTED if os.path.exists(section.pod_resources) else DoctorStatus.MISSING
        fix = "mount it, as the chart does (agent.mounts.pod-resources); without it healthd finds no node idle"
        return DoctorResult(about=about, status=status, why=str(error), fix=fix)
    why = f"the kubelet answers: {len(holding)} pods hold {', '.join(section.job_resources)}"
    return DoctorResult.ok(about, why)


_Request = Callable[["KubeApi", Config, str], Iterator[DoctorResult]]
_REQUESTS: Mapping[str, _Request] = {
    "token": _token,
    "rights": _rights,
    "NodeHealth": _node_health,
    "admission policies": _policies,
    "budget": _budget,
}
"""The requests of an agent to the API server, by name."""
