"""Evicts what ``kube_eviction`` plans, from Nodes that carry healthd's own taint, annotation and claim. From no other,
but where a rule says that a gang with a member there is evicted whole (``kube_gangs``).

Nothing is ever deleted: the eviction API asks every PodDisruptionBudget. What it will not have now is asked again in
the next round; what the server is too busy for is not asked before it says. A Node is read anew before its pods are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

from healthd.errors import BackendBusy, BackendError
from healthd.remediation.opt_out import by_feature
from healthd.remediation.orchestrators.kube_api import Conflict, Disrupting, Ending, Kind, KubeApi, Missing
from healthd.remediation.orchestrators.kube_eviction import Fate, Plan, Pod, Rule, eviction_of, planned, pods_in, told
from healthd.remediation.orchestrators.kube_gangs import Gang, gang_of, gangs_to_see, with_gangs
from healthd.remediation.orchestrators.kube_node import Held, features_of, hold_of, node_of

_DONE = ("evicted", "gone", "its namespace is being deleted")


class KubeDrain:
    """The drains of a fleet. ``leads`` raises BackendRefused where this controller may not act any more.

    ``opt_out_label``: a node that has this label or annotation, with any value but ``false``, is left alone.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        rules: Sequence[Rule],
        leads: Callable[[], None],
        clock: Callable[[], datetime],
        opt_out_label: str = "",
    ) -> None:
        self._api, self._rules, self._leads, self._clock = api, tuple(rules), leads, clock
        self._opt_out_label = opt_out_label

    def round(self, drained: Collection[str], claimed: Collection[str]) -> Mapping[str, str]:
        """Go on with every node that is ``drained`` by a healthd and ``claimed``; how far each is, in a sentence.

        ``claimed``: who holds a claim of the cluster's budget in this round's reading.
        """
        if not self._rules:
            return {}
        said = {}
        for name in sorted(set(drained) & set(claimed)):
            try:
                if words := self._drain(name):
                    said[name] = words
            except BackendError as error:
                said[name] = f"the drain does not go on: {error}"
        return said

    def _drain(self, name: str) -> str:
        try:
            held = self._hold(name)
        except Missing:
            return ""
        if held is None:
            return ""
        pages = self._api.pages(Kind.POD, pods_in, fieldSelector=f"spec.nodeName={name}")
        since, now = datetime.fromtimestamp(held.stamp, UTC), self._clock()
        plans = planned([pod for page in pages for pod in page], self._rules, since, now)
        members = {gang: self._members(gang) for gang in gangs_to_see(plans, self._rules)}
        plans = with_gangs(plans, members, self._rules, node=name, since=since, now=now)
        refused = {gang: why for gang in members if (why := self._objection(name, held, gang, plans))}
        asked = {}
        for plan in plans:
            if plan.fate is not Fate.EVICT:
                continue
            gang = gang_of(plan.pod)
            said = refused.get(gang, "") if gang is not None else ""
            asked[plan.pod.metadata.uid] = said or self._evicted(name, held, plan)
            if gang in members and asked[plan.pod.metadata.uid] not in _DONE:
                refused[gang] = said or f"waits for its gang: {plan.pod.name} {asked[plan.pod.metadata.uid]}"
        notes = [f"{plan.pod.name}: {asked[plan.pod.metadata.uid]}" for plan in plans if plan.pod.metadata.uid in asked]
        left = told([plan for plan in plans if plan.pod.metadata.uid not in asked])
        return "; ".join([*notes, *([left] if left else [])])

    def _members(self, gang: Gang) -> tuple[Pod, ...]:
        pages = self._api.pages(Kind.POD, pods_in, namespace=gang.namespace, labelSelector=gang.selector)
        return tuple(pod for page in pages for pod in page if gang_of(pod) == gang)

    def _objection(self, name: str, held: Held, gang: Gang, plans: Sequence[Plan]) -> str:
        """Why a gang that runs on other nodes too is not begun with, or "": a node of it that opted out, or a member
        whose eviction the server would refuse now. Nothing is evicted by asking."""
        whole = [plan for plan in plans if plan.fate is Fate.EVICT and gang_of(plan.pod) == gang]
        others = sorted({plan.pod.spec.nodeName for plan in whole} - {name})
        for other in others:
            if self._opted_out(other):
                return f"waits: its gang has a member on {other}, which opted out"
        for plan in whole if others else ():
            said = self._evicted(name, held, plan, dry_run=True)
            if said not in _DONE:
                return f"waits: {gang.words} is evicted whole or not at all, and {plan.pod.name} {said}"
        return ""

    def _opted_out(self, name: str) -> bool:
        try:
            return bool(by_feature(features_of(node_of(self._api.get(Kind.NODE, name))), self._opt_out_label))
        except Missing:
            return False

    def _evicted(self, name: str, held: Held, plan: Plan, *, dry_run: bool = False) -> str:
        """Ask once, if the Node is as it was; what the server says is the sentence."""
        if self._hold(name) != held:
            return "not evicted: the node is not held as it was"
        self._leads()
        meta = plan.pod.metadata
        try:
            self._api.evict(meta.name, namespace=meta.namespace, body=eviction_of(plan, dry_run=dry_run))
        except (Missing, Conflict):
            return "gone"  # or another pod of that name, which is none of this drain
        except Disrupting as error:
            return f"its PodDisruptionBudget has no room, it is asked again: {error}"
        except Ending:
            return "its namespace is being deleted"
        except BackendBusy:
            raise  # the server is overloaded: no other pod is asked for either
        except BackendError as error:
            return f"not evicted: {error}"
        return "evicted"

    def _hold(self, name: str) -> Held | None:
        """Whose drain it is: taint and annotation, whole; nobody's on a node that opted out."""
        node = node_of(self._api.get(Kind.NODE, name))
        return None if by_feature(features_of(node), self._opt_out_label) else hold_of(node)
