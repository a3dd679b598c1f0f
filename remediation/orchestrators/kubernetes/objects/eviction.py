"""Which pods ``healthd controller`` evicts from a node that healthd has taken out, when, and why the others not. Pure.

As ``kubectl drain`` filters (Kubernetes, pkg/drain/filters.go): pods of DaemonSets and mirror pods stay; finished pods
are ignored; pods that would lose data in an emptyDir, or that no controller recreates, go only where the rule allows
it. Beyond kubectl, whether and when a pod is evicted is a mode for each namespace or selector; a pod that tolerates the
drain's own taint is meant to stay, unless its rule says otherwise; a pod that was made after the drain began came back,
and is never evicted again (``drain_record``). A pod that is a Slurm node is drained by Slurm first (``slurm_nodes``).

A pod that should have left by now needs an operator: a PodDisruptionBudget without room, a missing right, a finalizer,
a volume or an owner that the rule does not allow, a Slurm node that Slurm has not drained. Every sync would request its
eviction again, for ever, and silently.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field

from healthd.core.name_lists import listed
from healthd.remediation.orchestrators.kubernetes.objects.drain_record import DrainRecord
from healthd.remediation.orchestrators.kubernetes.objects.node import Taint
from healthd.remediation.orchestrators.kubernetes.objects.slurm_nodes import (
    REASON_AGAINST,
    SlurmState,
    is_slurm_node,
    slurm_state,
)

CAME_BACK = "made after the node was taken out"
LOST_S = 60.0
"""How long, in seconds, the grace of a pod must be over before a node that is not Ready has lost it."""
_MIRROR = "kubernetes.io/config.mirror"
_DISRUPTED = "DisruptionTarget"  # Kubernetes, pod lifecycle: the eviction API and others set it
_BY_EVICTION = "EvictionByEvictionAPI"  # its reason, of the eviction API
_BEFORE_DRAIN_S = 120.0


class EvictMode(StrEnum):
    """NEVER: left alone. COMPLETE: awaited, and evicted only past the deadline where there is one. EVICT: at once.
    EVICT_AFTER: once the node has been out for that long."""

    NEVER = "never"
    COMPLETE = "complete"
    EVICT = "evict"
    EVICT_AFTER = "evict_after"


class GangMode(StrEnum):
    """The treatment of a pod whose gang also runs on other nodes. WAIT: left alone. MEMBERS: evicted by itself, its job
    continues without it. WHOLE: every member is evicted, wherever it runs, or none."""

    WAIT = "wait"
    MEMBERS = "members"
    WHOLE = "whole"


class PodState(StrEnum):
    """The state of a pod in a drain. STAYS: it is no part of it. CAME: it came back to the node, or ignores its taint,
    and is left alone. FORBIDDEN: a rule would have to allow its eviction."""

    STAYS = "stays"
    CAME = "came"
    LEAVES = "leaves"
    WAITS = "waits"
    FORBIDDEN = "forbidden"
    EVICT = "evict"


class EvictionRule(Struct, frozen=True, kw_only=True):
    """``namespaces``: globs; ``labels``: all must be there, with a glob for a value. Empty: any. ``after_s``: seconds
    since the node was taken out; the deadline of COMPLETE, 0 for none. ``grace_s``: None for the pod's own.
    ``ends_process``: it holds only where the fault of the node has ended the pods' processes."""

    name: str
    mode: EvictMode
    namespaces: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    grace_s: int | None = None
    empty_dir: bool = False
    unmanaged: bool = False
    tolerating: bool = False
    ends_process: bool = False
    gang: GangMode = GangMode.WAIT

    def due(self, since: datetime) -> datetime | None:
        """When its pods are to go from a node that was taken out then; None: never, or whenever they end."""
        if self.mode is EvictMode.NEVER or (self.mode is EvictMode.COMPLETE and not self.after_s):
            return None
        return since + timedelta(seconds=self.after_s)


class Drain(Struct, frozen=True, kw_only=True):
    """One node's drain. ``since``: when the node was taken out, by its agent's clock, from which a rule's times count.
    ``taints``: those of healthd's drain, as they are on the Node. ``ready``: whether the Node is."""

    node: str
    since: datetime
    record: DrainRecord
    taints: tuple[Taint, ...]
    ready: bool = True


class _Owner(msgspec.Struct, frozen=True):
    kind: str
    name: str = ""
    apiVersion: str = ""  # noqa: N815 - the API's own word
    controller: bool = False

    @property
    def group(self) -> str:
        """Its API group, "" for the core's."""
        return self.apiVersion.rpartition("/")[0]


_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _PodMeta(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: tuple[_Owner, ...] | None = None  # noqa: N815 - the API's own word
    deletionTimestamp: _Time | None = None  # noqa: N815 - as above
    creationTimestamp: _Time | None = None  # noqa: N815 - as above


class _Toleration(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """As the scheduler has it (k8s.io/api core/v1 toleration.go, ToleratesTaint): no effect is every effect, no key
        every key. Lt and Gt (1.35, alpha) compare numbers, which no value of healthd's taint is."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, str | int] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources = _Resources()


class _EmptyDir(msgspec.Struct, frozen=True):
    medium: str = ""


class _Volume(msgspec.Struct, frozen=True):
    emptyDir: _EmptyDir | None = None  # noqa: N815 - the API's own word

    @property
    def keeps_data(self) -> bool:
        """Whether it is an emptyDir on a disk. One in memory (``Memory``, ``HugePages…``; k8s.io/api core/v1
        StorageMedium) is a job's /dev/shm: it ends with its processes, and NCCL needs one."""
        return self.emptyDir is not None and not self.emptyDir.medium.startswith(("Memory", "HugePages"))


class _Claim(msgspec.Struct, frozen=True):
    name: str


class _WorkloadRef(msgspec.Struct, frozen=True):
    name: str
    podGroupReplicaKey: str | None = None  # noqa: N815 - the API's own word


class _SchedulingGroup(msgspec.Struct, frozen=True):
    podGroupName: str | None = None  # noqa: N815 - the API's own word


class _PodSpec(msgspec.Struct, frozen=True):
    nodeName: str = ""  # noqa: N815 - the API's own word
    volumes: tuple[_Volume, ...] | None = None
    containers: tuple[_Container, ...] = ()
    initContainers: tuple[_Container, ...] | None = None  # noqa: N815 - as above
    resourceClaims: tuple[_Claim, ...] | None = None  # noqa: N815 - as above
    tolerations: tuple[_Toleration, ...] | None = None
    workloadRef: _WorkloadRef | None = None  # noqa: N815 - as above
    schedulingGroup: _SchedulingGroup | None = None  # noqa: N815 - as above


class _PodCondition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""
    reason: str = ""


class _Terminated(msgspec.Struct, frozen=True):
    finishedAt: _Time | None = None  # noqa: N815 - the API's own word


class _ContainerState(msgspec.Struct, frozen=True):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, frozen=True):
    state: _ContainerState = _ContainerState()


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""
    conditions: tuple[_PodCondition, ...] | None = None
    containerStatuses: tuple[_ContainerStatus, ...] | None = None  # noqa: N815 - the API's own word


class Pod(msgspec.Struct, frozen=True):
    """One pod, as far as a drain asks."""

    metadata: _PodMeta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def name(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def source(self) -> str:
        """Where it comes from, which stays the same when it comes again: its controller, or else its own name."""
        owner = owner_of(self)
        return f"{owner.kind} {self.metadata.namespace}/{owner.name}" if owner is not None else f"pod {self.name}"

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and only its record is left."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def failed_at(self) -> datetime | None:
        """When the last container of a pod that failed ended; None for one that did not fail, that does not say when,
        or whose failure is a disruption already."""
        is_disrupted = any(each.type == _DISRUPTED and each.status == "True" for each in self.status.conditions or ())
        if self.status.phase != "Failed" or is_disrupted:
            return None
        ended = [each.state.terminated for each in self.status.containerStatuses or ()]
        return max(
            (each.finishedAt for each in ended if each is not None and each.finishedAt is not None), default=None
        )

    @property
    def slurm(self) -> SlurmState | None:
        """Slurm's state of the Slurm node that this pod is; None for any other pod."""
        owner = owner_of(self)
        kind, group = (owner.kind, owner.group) if owner is not None else ("", "")
        if not is_slurm_node(kind, group, self.metadata.labels or {}):
            return None
        return slurm_state({each.type: each.status for each in self.status.conditions or ()})

    def tolerates(self, taints: Iterable[Taint]) -> bool:
        """Whether it tolerates all of these."""
        return all(any(each.tolerates(taint) for each in self.spec.tolerations or ()) for taint in taints)

    def holds(self, resources: Iterable[str]) -> bool:
        """Whether a container has a device of these resources (globs), an init container included: one that restarts
        is a sidecar, and runs as long as its pod; or it has a claim of dynamic allocation."""
        globs, containers = tuple(resources), (*self.spec.containers, *(self.spec.initContainers or ()))
        limits = (name for each in containers for name in each.resources.limits or {})
        return bool(self.spec.resourceClaims) or any(
            fnmatch.fnmatchcase(name, glob) for name in limits for glob in globs
        )


class _Pods(msgspec.Struct, frozen=True):
    items: tuple[Pod, ...]


_READS_PODS = msgspec.json.Decoder(_Pods)  # made by one thread, see ``node``


class Plan(Struct, frozen=True, kw_only=True):
    """One pod's state, and why in a few words. ``grace_s``: of its eviction, None for its own."""

    pod: Pod
    state: PodState
    why: str
    grace_s: int | None = None


def pods_in(page: bytes) -> tuple[Pod, ...]:
    """The pods in one page of a list, as it came. Raises msgspec.MsgspecError for anything else."""
    return _READS_PODS.decode(page).items


def planned(pods: Sequence[Pod], rules: Sequence[EvictionRule], drain: Drain, now: datetime) -> tuple[Plan, ...]:
    """The state of every pod of this drain."""
    return tuple(_planned(pod, rules, drain, now) for pod in pods)


def came_after(pod: Pod, drain: Drain) -> bool:
    """Whether a pod was made after the drain began: it came back, or it is the next life of one that went."""
    return not drain.record.concerns(pod.metadata.uid, pod.metadata.creationTimestamp)


def is_lost(pod: Pod, now: datetime, *, ready: bool) -> bool:
    """Whether a pod is still listed but does no work: its deletion was requested, its grace is over (which is in the
    deletionTimestamp), and its node is not Ready, so that no kubelet reports its end."""
    gone = pod.metadata.deletionTimestamp
    return not ready and gone is not None and now - gone >= timedelta(seconds=LOST_S)


def rules_for(rules: Iterable[EvictionRule], *, ends_process: bool) -> tuple[EvictionRule, ...]:
    """The rules that hold on a node whose fault has ended the processes on it, or has not."""
    return tuple(rule for rule in rules if ends_process or not rule.ends_process)


def died_with(pod: Pod, drain: Drain) -> bool:
    """Whether a pod failed while its node had the fault that it went out for, and was not evicted: within the two
    minutes that pass at most between a fault and its drain, or later."""
    failed = pod.failed_at
    return failed is not None and failed >= drain.since - timedelta(seconds=_BEFORE_DRAIN_S)


def was_evicted(pod: Pod, rules: Sequence[EvictionRule], drain: Drain) -> bool:
    """Whether a pod that a rule has evicted in this drain is going by an eviction: one elsewhere as a member of a gang
    that goes whole."""
    rule = rule_of(pod, rules)
    if rule is None or rule.mode is EvictMode.NEVER or came_after(pod, drain):
        return False
    is_of_drain = pod.spec.nodeName in ("", drain.node) or rule.gang is GangMode.WHOLE
    return is_of_drain and any(
        (each.type, each.status, each.reason) == (_DISRUPTED, "True", _BY_EVICTION)
        for each in pod.status.conditions or ()
    )


def rule_of(pod: Pod, rules: Sequence[EvictionRule]) -> EvictionRule | None:
    """The first rule that fits this pod, or None."""
    return next((rule for rule in rules if _fits(pod, rule)), None)


def owner_of(pod: Pod) -> _Owner | None:
    """The controller that made it, or None."""
    return next((owner for owner in pod.metadata.ownerReferences or () if owner.controller), None)


def eviction_of(plan: Plan, *, dry_run: bool = False) -> dict[str, Any]:
    """The Eviction, which holds for this very pod: one of the same name that came after it is another. ``dry_run``: the
    server only says what it would come to."""
    options: dict[str, Any] = {"preconditions": {"uid": plan.pod.metadata.uid}}
    if plan.grace_s is not None:
        options["gracePeriodSeconds"] = plan.grace_s
    if dry_run:
        options["dryRun"] = ["All"]
    meta = {"name": plan.pod.metadata.name, "namespace": plan.pod.metadata.namespace}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}


def told(plans: Iterable[Plan]) -> str:
    """How far a drain is, in one sentence without the pods that are no part of it; "" where no pod is left. Of pods
    that came back it names the source, so that the sentence stays the same when they come again."""
    everyone = tuple(plans)
    left = [plan for plan in everyone if plan.state not in (PodState.STAYS, PodState.CAME)]
    pods = [f"{plan.pod.name} ({plan.state}: {plan.why})" for plan in left]
    messages = [f"{len(left)} pods are left: {listed(pods, 5)}"] if left else []
    if sources := sorted({plan.pod.source for plan in everyone if plan.state is PodState.CAME}):
        messages.append(f"left alone, {CAME_BACK}: {listed(sources, 5)}")
    return "; ".join(messages)


def _planned(pod: Pod, rules: Sequence[EvictionRule], drain: Drain, now: datetime) -> Plan:
    if why := _stays(pod):
        return Plan(pod=pod, state=PodState.STAYS, why=why)
    if is_lost(pod, now, ready=drain.ready):
        return Plan(pod=pod, state=PodState.STAYS, why="its termination grace is over, on a node that is not Ready")
    if pod.metadata.deletionTimestamp is not None:
        return Plan(pod=pod, state=PodState.LEAVES, why="it is being deleted")
    rule, slurm = rule_of(pod, rules), pod.slurm
    if (plan := _by_slurm(pod, slurm, rule)) is not None:
        return plan
    if rule is None or rule.mode is EvictMode.NEVER:
        named = f"rule {rule.name}" if rule is not None else "no rule names it"
        return Plan(pod=pod, state=PodState.WAITS, why=f"it runs until it ends, {named}")
    if came_after(pod, drain):
        return Plan(pod=pod, state=PodState.CAME, why=CAME_BACK)
    is_complete = slurm is not None and rule.mode is EvictMode.COMPLETE
    if not is_complete and (until := _awaited(rule, drain.since, now)) is not None:
        return Plan(pod=pod, state=PodState.WAITS, why=until)
    if why := _forbidden(pod, rule, drain):
        return Plan(pod=pod, state=PodState.FORBIDDEN, why=why)
    return Plan(pod=pod, state=PodState.EVICT, why=f"rule {rule.name}", grace_s=rule.grace_s)


def _by_slurm(pod: Pod, slurm: SlurmState | None, rule: EvictionRule | None) -> Plan | None:
    """The state of a pod that is a Slurm node, until its rule applies. Such a pod never ends by itself."""
    if slurm in (None, SlurmState.DRAINED):
        is_left = slurm is not None and rule is None
        why = "a Slurm node that Slurm has drained: no rule evicts it, and it does not end by itself; delete it"
        return Plan(pod=pod, state=PodState.FORBIDDEN, why=why) if is_left else None
    if slurm is SlurmState.DRAINING:
        return Plan(pod=pod, state=PodState.WAITS, why="Slurm drains it, and its jobs end by themselves")
    return Plan(pod=pod, state=PodState.FORBIDDEN, why=REASON_AGAINST[slurm])


def _stays(pod: Pod) -> str:
    if pod.is_over:
        return "it has ended"
    if _MIRROR in (pod.metadata.annotations or {}):
        return "a mirror pod"
    owner = owner_of(pod)
    return "of a DaemonSet" if owner is not None and owner.kind == "DaemonSet" else ""


def _awaited(rule: EvictionRule, since: datetime, now: datetime) -> str | None:
    """Why a pod of this rule is not evicted yet, in a text that stays the same until it is, or None."""
    if rule.mode is EvictMode.EVICT:
        return None
    if (until := rule.due(since)) is None:
        return f"healthd waits for its end, rule {rule.name}"
    return f"until {until:%Y-%m-%d %H:%M:%S} UTC, rule {rule.name}" if now < until else None


def _forbidden(pod: Pod, rule: EvictionRule, drain: Drain) -> str:
    if not rule.tolerating and pod.tolerates(drain.taints):
        return f"it tolerates healthd's taint: rule {rule.name} needs tolerating = true"
    if owner_of(pod) is None and not rule.unmanaged:
        return f"no controller would recreate it: rule {rule.name} needs unmanaged = true"
    if not rule.empty_dir and any(volume.keeps_data for volume in pod.spec.volumes or ()):
        return f"it would lose the data in its emptyDir: rule {rule.name} needs empty_dir = true"
    return ""


def _fits(pod: Pod, rule: EvictionRule) -> bool:
    labels = pod.metadata.labels or {}
    is_there = not rule.namespaces or any(fnmatch.fnmatchcase(pod.metadata.namespace, glob) for glob in rule.namespaces)
    return is_there and all(
        key in labels and fnmatch.fnmatchcase(labels[key], glob) for key, glob in rule.labels.items()
    )


def overdue(
    plans: Iterable[Plan],
    rules: Sequence[EvictionRule],
    drain: Drain,
    *,
    done: Collection[str],
    timeout_s: float,
    now: datetime,
) -> tuple[Plan, ...]:
    """The plans of the pods that should have gone ``timeout_s`` ago. ``done``: the uids of those whose eviction was
    just granted. A pod whose rule sets no deadline is never overdue."""
    late = timedelta(seconds=timeout_s)
    return tuple(
        plan
        for plan in plans
        if plan.pod.metadata.uid not in done and (due := _due(plan, rules, drain)) is not None and now - due >= late
    )


def _due(plan: Plan, rules: Sequence[EvictionRule], drain: Drain) -> datetime | None:
    """The time from which the pod should be gone, or None. The API's deletionTimestamp is the end of the grace."""
    if plan.state in (PodState.STAYS, PodState.CAME):
        return None
    if plan.state is PodState.LEAVES:
        gone = plan.pod.metadata.deletionTimestamp
        return max(gone, drain.record.began_at) if gone is not None else None
    rule, began = rule_of(plan.pod, rules), drain.record.began_at
    due = rule.due(drain.since) if rule is not None else None
    if plan.state is PodState.FORBIDDEN:
        return max(due or began, began)
    if rule is None or due is None or (plan.state is PodState.WAITS and rule.gang is not GangMode.WHOLE):
        return None
    return max(due, began)
