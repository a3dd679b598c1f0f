"""Evicts what ``eviction`` plans, from Nodes that carry healthd's own taint, annotation and claim. From no other,
but where a rule says that a gang with a member there is evicted whole (``gangs``).

No pod is ever deleted: the eviction API honours every PodDisruptionBudget. The next sync repeats an eviction that it
refuses now; a busy server gets no request before its Retry-After. A Node is read again before its pods are.
The beginning of a drain is recorded before its first eviction (``drain_record``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.xids import ends_process
from healthd.core.errors import BackendBusy, BackendError, StoreError
from healthd.remediation.decide.remediation import parse_reason
from healthd.remediation.decide.rules import by_feature
from healthd.remediation.orchestrators.kubernetes.api import (
    Conflict,
    Disrupting,
    Ending,
    KubeApi,
    Missing,
    ResourceKind,
)
from healthd.remediation.orchestrators.kubernetes.event_writer import KubeDrainEvents
from healthd.remediation.orchestrators.kubernetes.lease_notes import LeaseNotes
from healthd.remediation.orchestrators.kubernetes.objects.drain_record import (
    DrainRecord,
    hold_digest,
    record_of,
    records_in,
    records_text,
    still_held,
)
from healthd.remediation.orchestrators.kubernetes.objects.eviction import (
    Drain,
    EvictionRule,
    Plan,
    Pod,
    PodState,
    died_with,
    eviction_of,
    overdue,
    planned,
    pods_in,
    rules_for,
    told,
    was_evicted,
)
from healthd.remediation.orchestrators.kubernetes.objects.gangs import (
    Gang,
    GangLabels,
    gang_of,
    gangs_to_see,
    with_gangs,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    UNHEALTHY,
    KubeNode,
    OwnershipAnnotation,
    features_of,
    hold_of,
    node_of,
)

_EVICTED = "evicted"
_DONE = (_EVICTED, "gone", "its namespace is being deleted")


class DrainState(Struct, frozen=True, kw_only=True):
    """How far one node's drain is: a message, "" for none; ``stuck``: an operator is needed."""

    message: str
    stuck: bool = False


class NodeFault(Struct, frozen=True, kw_only=True):
    """The fault for which a node is out, in words, and whether its row says that the process on the GPU is dead."""

    text: str
    ends_process: bool


def fault_of(held: OwnershipAnnotation) -> NodeFault:
    """The fault that a hold names. Its hold alone does not show whether a fault is contained: one that may be ends no
    process."""
    code, component, _ = parse_reason(held.text) or ("", "", "")
    message = f"{code} on {component}" if code else held.text
    return NodeFault(text=message, ends_process=ends_process(code, None))


class KubeDrain:
    """The drains of a fleet. ``leads`` raises BackendRefused where this controller may not act any more.

    ``records``: where the beginnings of drains are kept. ``gangs``: further labels of gangs. ``opt_out_label``: a node
    that has this label or annotation, with any value but ``false``, is left alone. ``timeout_s``: a pod that has not
    gone so many seconds after it should have needs an operator.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        rules: Sequence[EvictionRule],
        leads: Callable[[], None],
        clock: Callable[[], datetime],
        records: LeaseNotes,
        gangs: GangLabels,
        timeout_s: float,
        opt_out_label: str = "",
    ) -> None:
        self._api, self._rules, self._leads, self._clock = api, tuple(rules), leads, clock
        self._gangs, self._timeout_s = gangs, timeout_s
        self._failing: dict[str, datetime] = {}  # node to since when nothing could be asked for
        self._records, self._events = DrainRecords(records), KubeDrainEvents(api, leads=leads, clock=clock)
        self._opt_out_label = opt_out_label

    def sync(self, drained: Collection[str], claimed: Collection[str]) -> Mapping[str, DrainState]:
        """Continue the drain of every node that is ``drained`` by a healthd and ``claimed``; how far each is.

        ``claimed``: the nodes that hold a claim on the cluster's budget in this sync's reading.
        """
        if not self._rules:
            return {}
        states, failing = {}, self._failing
        self._failing = {}
        self._events.keep(drained)
        for name in sorted(set(drained) & set(claimed)):
            try:
                if (state := self._drain(name, claimed)).message:
                    states[name] = state
            except (BackendError, StoreError) as error:
                since = self._failing[name] = failing.get(name, self._clock())
                stuck = (self._clock() - since).total_seconds() >= self._timeout_s
                states[name] = DrainState(message=f"the drain is blocked: {error}", stuck=stuck)
        return states

    def _drain(self, name: str, claimed: Collection[str]) -> DrainState:
        try:
            node = node_of(self._api.get(ResourceKind.NODE, name))
        except Missing:
            return DrainState(message="")
        if (held := self._hold_of(node)) is None:
            return DrainState(message="")
        pages = self._api.pages(ResourceKind.POD, pods_in, fieldSelector=f"spec.nodeName={name}")
        pods, now = [pod for page in pages for pod in page], self._clock()
        drain, fault = self._drain_of(node, held, pods, claimed, now), fault_of(held)
        rules = rules_for(self._rules, ends_process=fault.ends_process)
        plans = planned(pods, rules, drain, now)
        members = {gang: self._members(gang) for gang in gangs_to_see(plans, rules, self._gangs)}
        plans = with_gangs(plans, members, rules, self._gangs, drain=drain, now=now)
        asked = self._asked(name, held, members, plans)
        now_evicted = [plan.pod for plan in plans if asked.get(plan.pod.metadata.uid) == _EVICTED]
        evicted = [*now_evicted, *self._evicted_before(drain, pods, members, rules)]
        died = [pod for pod in pods if fault.ends_process and died_with(pod, drain)]
        unwritten = self._events.tell_of_fault(drain, fault.text, evicted, died)
        state = self._state(drain, node, plans, asked, rules=rules, now=now)
        return replace(state, message="; ".join(filter(None, (state.message, unwritten))))

    def _evicted_before(
        self, drain: Drain, pods: Sequence[Pod], members: Mapping[Gang, Collection[Pod]], rules: Sequence[EvictionRule]
    ) -> Sequence[Pod]:
        """The pods that a sync before this one has evicted, members of gangs elsewhere first. Its request may have got
        no answer, and it may have ended before their Events."""
        here = [pod for pod in pods if was_evicted(pod, rules, drain)]
        gangs = (gang_of(pod, self._gangs) for pod in self._events.without_fault(drain, here))
        more = [self._members(gang) for gang in dict.fromkeys(gangs) if gang is not None and gang not in members]
        known = (pod for each in (*members.values(), *more) for pod in each)
        return [*(pod for pod in known if was_evicted(pod, rules, drain)), *here]

    def _state(
        self,
        drain: Drain,
        node: KubeNode,
        plans: Sequence[Plan],
        asked: Mapping[str, str],
        *,
        rules: Sequence[EvictionRule],
        now: datetime,
    ) -> DrainState:
        """How far the drain is; where an operator is needed, Events say so too."""
        done = {uid for uid, message in asked.items() if message in _DONE}
        late = overdue(plans, rules, drain, done=done, timeout_s=self._timeout_s, now=now)
        stuck = {plan.pod.metadata.uid: asked.get(plan.pod.metadata.uid, plan.why) for plan in late}
        notes = [f"{plan.pod.name}: {asked[plan.pod.metadata.uid]}" for plan in plans if plan.pod.metadata.uid in asked]
        left = told([plan for plan in plans if plan.pod.metadata.uid not in asked])
        message = "; ".join(each for each in (*notes, left, self._events.tell(drain, node.uid, plans, stuck)) if each)
        return DrainState(message=f"the drain is stuck: {message}" if stuck else message, stuck=bool(stuck))

    def _drain_of(
        self, node: KubeNode, held: OwnershipAnnotation, pods: Sequence[Pod], claimed: Collection[str], now: datetime
    ) -> Drain:
        record = self._records.of(node.name, held) or self._begun(node.name, held, pods, claimed, now)
        taints = tuple(taint for taint in node.taints if taint.key == UNHEALTHY)
        since = datetime.fromtimestamp(held.stamp, UTC)
        return Drain(node=node.name, since=since, record=record, taints=taints, ready=node.is_ready)

    def _begun(
        self, name: str, held: OwnershipAnnotation, pods: Sequence[Pod], claimed: Collection[str], now: datetime
    ) -> DrainRecord:
        """Record the beginning of a drain. It concerns the pods that are here now, and the members of their gangs
        wherever they run: a gang that has just started must not lose the members of one node alone."""
        gangs = dict.fromkeys(gang for pod in pods if (gang := gang_of(pod, self._gangs)) is not None)
        concerned = [*pods, *(member for gang in gangs for member in self._members(gang))]
        made = {pod.metadata.uid: pod.metadata.creationTimestamp for pod in concerned}
        return self._records.begin(name, held, made, claimed, now)

    def _asked(
        self, name: str, held: OwnershipAnnotation, members: Mapping[Gang, Collection[Pod]], plans: Sequence[Plan]
    ) -> Mapping[str, str]:
        """Request each planned eviction; its result, by the uid of the pod."""
        refused = {gang: why for gang in members if (why := self._objection(name, held, gang, plans))}
        asked = {}
        for plan in plans:
            if plan.state is not PodState.EVICT:
                continue
            gang = gang_of(plan.pod, self._gangs)
            message = refused.get(gang, "") if gang is not None else ""
            asked[plan.pod.metadata.uid] = message or self._evicted(name, held, plan)
            if gang is not None and gang in members and asked[plan.pod.metadata.uid] not in _DONE:
                refused[gang] = message or f"waits for its gang: {plan.pod.name} {asked[plan.pod.metadata.uid]}"
        return asked

    def _members(self, gang: Gang) -> tuple[Pod, ...]:
        pages = self._api.pages(ResourceKind.POD, pods_in, namespace=gang.namespace, labelSelector=gang.selector)
        return tuple(pod for page in pages for pod in page if gang_of(pod, self._gangs) == gang)

    def _objection(self, name: str, held: OwnershipAnnotation, gang: Gang, plans: Sequence[Plan]) -> str:
        """Why the eviction of a gang that also runs on other nodes does not begin, or "": one of its nodes opted out,
        or the server would refuse a member's eviction now. Asking is a dry run and evicts nothing."""
        whole = [plan for plan in plans if plan.state is PodState.EVICT and gang_of(plan.pod, self._gangs) == gang]
        others = sorted({plan.pod.spec.nodeName for plan in whole} - {name})
        for other in others:
            if self._opted_out(other):
                return f"waits: its gang has a member on {other}, which opted out"
        for plan in whole if others else ():
            message = self._evicted(name, held, plan, dry_run=True)
            if message not in _DONE:
                return f"waits: {gang.title} is evicted whole or not at all, and {plan.pod.name} {message}"
        return ""

    def _opted_out(self, name: str) -> bool:
        try:
            return bool(by_feature(features_of(node_of(self._api.get(ResourceKind.NODE, name))), self._opt_out_label))
        except Missing:
            return False

    def _evicted(self, name: str, held: OwnershipAnnotation, plan: Plan, *, dry_run: bool = False) -> str:
        """Request the eviction once, if the Node's drain has not changed; the result in a sentence."""
        if self._hold(name) != held:
            return "not evicted: the node's drain has changed"
        self._leads()
        meta = plan.pod.metadata
        try:
            self._api.evict(meta.name, namespace=meta.namespace, body=eviction_of(plan, dry_run=dry_run))
        except (Missing, Conflict):
            return "gone"  # or another pod of that name, which is none of this drain
        except Disrupting as error:
            return f"its PodDisruptionBudget allows no disruption now, healthd retries: {error}"
        except Ending:
            return "its namespace is being deleted"
        except BackendBusy:
            raise  # the server is overloaded: no other pod is asked for either
        except BackendError as error:
            return f"not evicted: {error}"
        return _EVICTED

    def _hold(self, name: str) -> OwnershipAnnotation | None:
        """The drain of healthd's on this node now, or None."""
        return self._hold_of(node_of(self._api.get(ResourceKind.NODE, name)))

    def _hold_of(self, node: KubeNode) -> OwnershipAnnotation | None:
        """The drain of healthd's on this Node, where taint and annotation are whole; None on a node that opted out."""
        return None if by_feature(features_of(node), self._opt_out_label) else hold_of(node)


class DrainRecords:
    """When the drains of a fleet began, kept at ``records``: read once, and written before anything relies on it."""

    def __init__(self, records: LeaseNotes) -> None:
        self._kept = records
        self._records: dict[str, DrainRecord] | None = None

    def of(self, node: str, held: OwnershipAnnotation) -> DrainRecord | None:
        """The record of this hold, or None where its drain has not begun. Raises StoreError where it cannot be read:
        then nothing may be evicted."""
        known = self._read().get(node)
        return known if known is not None and known.hold == hold_digest(held) else None

    def begin(
        self,
        node: str,
        held: OwnershipAnnotation,
        pods: Mapping[str, datetime | None],
        claimed: Collection[str],
        now: datetime,
    ) -> DrainRecord:
        """The record of this hold, which begins now. ``pods``: uid to creationTimestamp of those that it concerns.
        Raises StoreError where it cannot be read or written: then nothing may be evicted."""
        records = {**still_held(self._read(), claimed), node: record_of(held, pods, now)}
        self._kept.keep(records_text(records))
        self._records = records
        return records[node]

    def _read(self) -> dict[str, DrainRecord]:
        if self._records is None:
            self._records = records_in(self._kept.kept())
        if self._records is None:
            raise StoreError(f"no pod is evicted: the {self._kept.name} is not a record of drains; remove it")
        return self._records
