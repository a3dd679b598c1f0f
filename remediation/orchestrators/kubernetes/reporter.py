"""Reports what this node's agent knows to the cluster: conditions, labels, the status of its NodeHealth, Events, and
the end of the start-up taint. It also sees whether the Node is fenced, and polls a fence for as long as there is one.

A Node that was deleted is registered again by a kubelet that starts, under the same name and with another UID: without
conditions, taints or annotations. So the Node is read again after each start of the kubelet, which costs a quiet node
no request.

It judges nothing and takes no node out. A cluster that does not answer costs the agent nothing: its state stays here
and is sent whole, later; nothing on the node changes, and nothing is queued.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from healthd.core.errors import BackendError
from healthd.core.model import Decision, Diagnosis, Outcome
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.orchestrators.kubernetes.api import Conflict, KubeApi, Missing, PatchKind, ResourceKind
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths
from healthd.remediation.orchestrators.kubernetes.objects import conditions, events
from healthd.remediation.orchestrators.kubernetes.objects.conditions import Conditions, ConditionState, WrittenCondition
from healthd.remediation.orchestrators.kubernetes.objects.events import ClusterEvent, WrittenEvents
from healthd.remediation.orchestrators.kubernetes.objects.labels import (
    Labelling,
    Labels,
    labels_of,
    labels_on,
    stopped_patch,
    with_labels,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import UNVERIFIED, KubeNode, node_of, unfence_patch
from healthd.remediation.orchestrators.kubernetes.objects.node_health import WrittenStatus, status_of

FENCE_S = 30.0
"""How often a fence is polled while there is one: two or three requests."""
REGISTERS_S = 120.0
"""For how long after its start a kubelet may take to register its Node, or to find that it has one."""
LOOK_S = 10.0
"""How often the Node is read in that time."""
_RANDOM = random.SystemRandom()


class AgentState(Struct, frozen=True, kw_only=True):
    """The agent's knowledge at one moment. ``expected``: the checks that run here. ``decision``: the engine's last;
    ``remediation``: its open remediation; ``has_decided``: whether the engine, where one runs, has finished a
    reconcile."""

    diagnoses: tuple[Diagnosis, ...]
    outcomes: Mapping[str, Outcome]
    expected: Collection[str]
    decision: Decision | None = None
    remediation: Remediation | None = None
    has_decided: bool = True


class KubeReporter:
    """The reporter of one node; ``tick`` is called about once a second, by one thread.

    ``known``: the agent's knowledge now. ``verified``: removes the start-up taint. ``fenced``: polls a fence, and
    returns whether there still is one, and what was done. ``kubelet``: another value after each of its starts.
    ``start_s``: after how many seconds at most the first reading is made, so that a rollout does not come all at once.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        known: Callable[[], AgentState],
        verified: Callable[[], bool],
        fenced: Callable[[], tuple[bool, str]],
        kubelet: Callable[[], Hashable],
        start_s: float = 0.0,
        monotonic_s: Callable[[], float] = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        chance: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self._api, self._name, self._known, self._verified, self._fenced = api, node, known, verified, fenced
        self._monotonic_s, self._clock, self._chance = monotonic_s, clock, chance
        self._kubelet, self._started = kubelet, kubelet()
        self._reads_until_s = self._read_s = 0.0
        self._conditions: Conditions | None = None
        self._labelling = Labelling(Labels())
        self._healths, self._showing = NodeHealths(api), WrittenStatus()
        self._telling = WrittenEvents()
        self._uid = ""
        self._is_unverified = self._is_fenced = False
        self._fence_s = 0.0
        self._next_poll_s, self._pause_s = monotonic_s() + start_s * chance(), 0.0

    def close(self) -> None:
        """Give the connection back."""
        self._api.close()

    def tick(self) -> str:
        """Write what is due; what was written, or why it was not, "" for nothing."""
        if self._conditions is None and not self._begun():
            return ""
        registered = self._look_for_another()
        known = self._known()
        states = conditions.states_of(known.diagnoses, known.outcomes, known.expected)
        news = events.news_of(known.diagnoses, known.decision)
        messages = [
            registered,
            self._write(states, known),
            self._show(known),
            self._tell(news),
            self._verify(states),
            self._poll_fence(),
        ]
        return "; ".join(each for each in messages if each)

    def stop(self) -> str:
        """Write that the agent ends on purpose. Returns a sentence for the log where that fails; else ""."""
        try:
            self._api.patch(ResourceKind.NODE, self._name, stopped_patch(self._clock()))
        except BackendError as error:
            return f"the stop of this agent is not written: {error}"
        return ""

    def _begun(self) -> bool:
        """Read this node once: its UID, and what a daemon before this one wrote."""
        now_s = self._monotonic_s()
        if now_s < self._next_poll_s:
            return False
        try:
            node = node_of(self._api.get(ResourceKind.NODE, self._name))
        except BackendError:
            self._pause_s = min(conditions.LONGEST_RETRY_S, max(conditions.RETRY_S, 2 * self._pause_s))
            self._next_poll_s = now_s + self._pause_s * (0.5 + self._chance())
            return False
        self._begin(node, now_s)
        return True

    def _begin(self, node: KubeNode, now_s: float) -> None:
        self._uid, self._is_unverified = node.uid, node.taint(UNVERIFIED) is not None
        self._is_fenced = unfence_patch(node) is not None
        self._conditions = Conditions(uid=node.uid, now_s=now_s, shown=conditions.shown_on(node))
        self._labelling, self._showing = Labelling(labels_on(node)), WrittenStatus()

    def _look_for_another(self) -> str:
        """Read the Node for as long as the kubelet may be registering it: a new one has none of what was written."""
        now_s, kubelet = self._monotonic_s(), self._kubelet()
        if kubelet != self._started:
            self._started, self._read_s, self._reads_until_s = kubelet, now_s, now_s + REGISTERS_S
        if not self._read_s <= now_s <= self._reads_until_s:
            return ""
        self._read_s = now_s + LOOK_S
        try:
            return self._seen(node_of(self._api.get(ResourceKind.NODE, self._name)))
        except BackendError as error:
            return f"the kubelet has restarted, but its Node cannot be read: {error}"

    def _seen(self, node: KubeNode) -> str:
        """Note what an answer shows of the Node: another UID, the start-up taint, a fence."""
        if node.uid != self._uid:
            self._begin(node, self._monotonic_s())
            return "the Node was registered again under another UID: writing everything again"
        self._is_unverified = self._is_unverified or node.taint(UNVERIFIED) is not None
        self._is_fenced = self._is_fenced or unfence_patch(node) is not None
        return ""

    def _write(self, states: Mapping[str, ConditionState], known: AgentState) -> str:
        """The conditions and the labels, in one strategic-merge patch. The answer is the whole Node."""
        held, labelling = self._conditions, self._labelling
        now_s, now = self._monotonic_s(), self._clock()
        if held is None:
            return ""
        wanted = held.wanted(states, now_s, now)
        labels = self._labels(wanted, known)
        if not held.is_due(wanted, now_s, more=labelling.is_due(labels, now_s)):
            return ""
        try:
            body = with_labels(conditions.patch_of(wanted, now), labels)
            node = node_of(self._api.patch(ResourceKind.NODE, self._name, body, how=PatchKind.STRATEGIC, status=True))
        except BackendError as error:
            pause_s = held.failed(self._monotonic_s(), random=self._chance())
            return f"conditions not written, retry in {pause_s:.0f} s: {error}"
        held.written(wanted, self._monotonic_s())
        labelling.written(labels, self._monotonic_s())
        shown = [f"{kind}={wanted[kind].state.status}" for kind in sorted(wanted)]
        written = f"conditions written: {', '.join([*shown, f'state={labels.state}'])}"
        return "; ".join(each for each in (written, self._seen(node)) if each)

    def _labels(self, wanted: Mapping[str, WrittenCondition], known: AgentState) -> Labels:
        """The labels to show. Before the engine's first reconcile those of an earlier daemon stay."""
        if not known.has_decided:
            return self._labelling.shown
        shown = [each.state for each in wanted.values()]
        return labels_of(shown, known.diagnoses, known.remediation, known.decision)

    def _show(self, known: AgentState) -> str:
        """The status of this node's NodeHealth, by the labels that are shown. A node that is and was
        quiet costs one reading after a start."""
        now_s, showing = self._monotonic_s(), self._showing
        if not known.has_decided or not showing.is_due(now_s):
            return ""
        try:
            shown = showing.read(self._healths.read(self._name)) if showing.shown is None else showing.shown
            wanted = status_of(self._labelling.shown, known.remediation, known.decision, shown, self._clock())
            if not showing.is_news(wanted):
                return ""
            self._healths.show(self._name, wanted)
        except BackendError as error:
            pause_s = showing.failed(now_s, random=self._chance())
            return f"NodeHealth not written, retry in {pause_s:.0f} s: {error}"
        showing.written(wanted, now_s)
        return f"NodeHealth written: {wanted.text}"

    def _tell(self, news: tuple[ClusterEvent, ...]) -> str:
        now_s = self._monotonic_s()
        if (each := self._telling.due(news, now_s)) is None:
            return ""
        try:
            count = self._told(each)
        except BackendError as error:
            self._telling.failed(now_s)
            return f"Event {each.reason} not written: {error}"
        self._telling.told(each, count, now_s)
        return f"Event {each.reason} written, {count} times so far"

    def _told(self, news: ClusterEvent) -> int:
        """Create the Event, or count it up where it exists: written before, or by an earlier daemon."""
        name, count = events.event_name(self._name, news), self._telling.count(news)
        if count == 0:
            body = events.event_of(news, node=self._name, uid=self._uid, now=self._clock())
            try:
                self._api.create(ResourceKind.EVENT, body, namespace=events.NAMESPACE)
                return 1
            except Conflict:  # a patch of nothing reads it: agents have no right to get the Events of others
                count = events.count_in(self._api.patch(ResourceKind.EVENT, name, {}, namespace=events.NAMESPACE))
        try:
            body = events.series_of(count + 1, self._clock())
            self._api.patch(ResourceKind.EVENT, name, body, namespace=events.NAMESPACE)
        except Missing:  # the API server forgets events
            body = events.event_of(news, node=self._name, uid=self._uid, now=self._clock())
            self._api.create(ResourceKind.EVENT, body, namespace=events.NAMESPACE)
            return 1
        return count + 1

    def _verify(self, states: Mapping[str, ConditionState]) -> str:
        """Remove the start-up taint after the first verdict in which every check has run and no fault is open."""
        if not self._is_unverified or any(state.status != "True" for state in states.values()):
            return ""
        now_s = self._monotonic_s()
        if now_s < self._next_poll_s:
            return ""
        try:
            was_there = self._verified()
        except BackendError as error:
            self._next_poll_s = now_s + conditions.RETRY_S
            return f"start-up taint not removed, retry in {conditions.RETRY_S:.0f} s: {error}"
        self._is_unverified = False
        return "verified: start-up taint removed" if was_there else ""

    def _poll_fence(self) -> str:
        """A fence without a claim would keep a healthy node out for ever: only its agent removes it."""
        now_s = self._monotonic_s()
        if not self._is_fenced or now_s < self._fence_s:
            return ""
        self._fence_s = now_s + FENCE_S
        try:
            self._is_fenced, message = self._fenced()
        except BackendError as error:
            return f"fence not read, retry in {FENCE_S:.0f} s: {error}"
        return message
