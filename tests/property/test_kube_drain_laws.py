"""Laws of a drain on Kubernetes: whatever pods and gangs do, and however often controllers are started anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct, field

from healthd.remediation.orchestrators.kubernetes.objects.drain_record import (
    SKEW_S,
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
    EvictMode,
    GangMode,
    Plan,
    Pod,
    PodState,
    planned,
)
from healthd.remediation.orchestrators.kubernetes.objects.gangs import GangLabels, gang_of, gangs_to_see, with_gangs
from healthd.remediation.orchestrators.kubernetes.objects.node import UNHEALTHY, OwnershipAnnotation, Taint

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
OWNERS = ("static", "nodename", "tolerating")
TAINT = Taint(key=UNHEALTHY, effect="NoSchedule", value="gpu.xid.79")
ANYTHING = EvictionRule(name="r", mode=EvictMode.EVICT, unmanaged=True, tolerating=True, empty_dir=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("waits"), st.floats(0.0, 20.0)),
        st.tuples(st.just("binds"), st.sampled_from(OWNERS)),
        st.tuples(st.just("round"), st.booleans()),  # whether the write of the record is lost
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("holds"), st.none()),
    ),
    max_size=30,
)


class World(Struct):
    """A node, its pods and the controller's annotation. The API server's clock is the controller's and ``skew_s``; its
    times have whole seconds. Each identity comes back as soon as it is evicted."""

    skew_s: float
    now: datetime = START
    hold: int = 0
    kept: str = ""
    pods: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    made: int = 0
    evicted: dict[tuple[int, str], int] = field(default_factory=dict)
    memory: dict[str, DrainRecord] | None = None

    def comes(self, identity: str) -> None:
        """It was made on the node, as the API server has it."""
        self.made += 1
        at = (self.now + timedelta(seconds=self.skew_s)).replace(microsecond=0)
        self.pods[f"uid-{self.made}"] = (identity, at)

    def sync(self, *, lost: bool) -> None:
        """As the controller goes round: reads or writes the record, then evicts."""
        held = OwnershipAnnotation(text="t", by="b", stamp=int(START.timestamp()) + self.hold)
        if self.memory is None:
            self.memory = records_in(self.kept)
            assert self.memory is not None
        known = self.memory.get("n1")
        if known is None or known.hold != hold_digest(held):
            known = record_of(held, {uid: at for uid, (_, at) in self.pods.items()}, self.now)
            records = {**still_held(self.memory, {"n1"}), "n1": known}
            self.kept = records_text(records)
            if lost:
                return  # it may have been written: nothing relies on it
            self.memory = records
        drain = Drain(node="n1", since=START, record=known, taints=(TAINT,))
        pods = [
            msgspec.convert(
                {"metadata": {"name": who, "namespace": "d", "uid": uid, "creationTimestamp": at.isoformat()}}, Pod
            )
            for uid, (who, at) in self.pods.items()
        ]
        for plan in planned(pods, [ANYTHING], drain, self.now):
            if plan.state is PodState.EVICT:
                identity, _ = self.pods.pop(plan.pod.metadata.uid)
                key = (self.hold, identity)
                self.evicted[key] = self.evicted.get(key, 0) + 1
                self.comes(identity)


@given(st.floats(-4.0, 4.0), STEPS)
def test_no_identity_is_evicted_twice_for_one_hold(skew_s: float, steps: list[tuple[str, object]]) -> None:
    """Whatever comes and goes, however often a controller forgets what it has in memory, or loses the answer to its
    write, and with clocks that differ by less than the skew: each identity that was there goes once, at most."""
    world = World(skew_s=skew_s)
    for identity in OWNERS[:2]:
        world.comes(identity)
    for what, how in steps:
        if what == "waits":
            assert isinstance(how, float)
            world.now += timedelta(seconds=how)
        elif what == "binds" and how not in {identity for identity, _ in world.pods.values()}:
            world.comes(str(how))
        elif what == "round":
            world.sync(lost=bool(how))
        elif what == "restart":
            world.memory = None
        elif what == "holds":
            world.hold += 1
    assert all(times == 1 for times in world.evicted.values())


@given(st.floats(-4.0, 4.0), st.floats(0.0, 3600.0))
@example(skew_s=-2.0, waited_s=3.5)  # five seconds old by whole seconds, and more by the clock
def test_what_was_there_at_the_first_look_is_evicted(skew_s: float, waited_s: float) -> None:
    """However old or young it was: the memory does not keep a drain from being one."""
    world = World(skew_s=skew_s)
    world.comes("static")
    world.now += timedelta(seconds=waited_s)
    world.sync(lost=False)
    assert world.evicted == {(0, "static"): 1}


# -- gangs ------------------------------------------------------------------------------------------------------------

MARKS = GangLabels(labels=("example.com/job",))
LABELS = ("jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "ray.io/cluster", "example.com/job")
MEMBERS = st.lists(
    st.fixed_dictionaries(
        {
            "node": st.sampled_from(["n1", "n1", "n2", "n3", ""]),
            "gang": st.sampled_from(["a", "b"]),
            "made_s": st.floats(-3600.0, 3600.0),
            "leaves": st.booleans(),
            "phase": st.sampled_from(["Running", "Running", "Pending", "Succeeded"]),
            "team": st.sampled_from(["x", "x", "x", "y"]),
        }
    ),
    max_size=8,
)


def members(found: list[dict[str, object]], label: str) -> list[Pod]:
    """Pods of one kind of gang; team y is of no rule."""
    pods = []
    for number, each in enumerate(found):
        made_s = each["made_s"]
        assert isinstance(made_s, float)
        meta = {
            "name": f"p{number}",
            "namespace": "d",
            "uid": f"u{number}",
            "labels": {label: each["gang"], "team": each["team"]},
            "creationTimestamp": (START + timedelta(seconds=made_s)).isoformat(),
            "deletionTimestamp": START.isoformat() if each["leaves"] else None,
        }
        body = {"metadata": meta, "spec": {"nodeName": each["node"]}, "status": {"phase": each["phase"]}}
        pods.append(msgspec.convert(body, Pod))
    return pods


def decided(pods: list[Pod], mode: GangMode) -> tuple[Plan, ...]:
    """What becomes of them when n1 is drained."""
    rules = [EvictionRule(name="x", mode=EvictMode.EVICT, labels={"team": "x"}, unmanaged=True, gang=mode)]
    drain = Drain(node="n1", since=START, record=DrainRecord(hold="h", began=int(START.timestamp())), taints=(TAINT,))
    here = planned([pod for pod in pods if pod.spec.nodeName == "n1"], rules, drain, START)
    gangs = gangs_to_see(here, rules, MARKS)
    known = {gang: [pod for pod in pods if gang_of(pod, MARKS) == gang] for gang in gangs}
    return with_gangs(here, known, rules, MARKS, drain=drain, now=START)


def runs(pod: Pod) -> bool:
    return not pod.is_over and pod.metadata.deletionTimestamp is None


@given(MEMBERS, st.sampled_from(LABELS))
def test_a_gang_that_runs_elsewhere_too_is_never_evicted_under_wait(found: list[dict[str, object]], label: str) -> None:
    """Not one pod of it, here or elsewhere, whatever its owner, and however old its members are."""
    pods = members(found, label)
    elsewhere = {gang_of(pod, MARKS) for pod in pods if pod.spec.nodeName not in ("", "n1") and runs(pod)}
    evicted = [plan.pod for plan in decided(pods, GangMode.WAIT) if plan.state is PodState.EVICT]
    assert not [pod for pod in evicted if gang_of(pod, MARKS) in elsewhere]
    assert all(pod.spec.nodeName == "n1" for pod in evicted)


@given(MEMBERS, st.sampled_from(LABELS))
def test_a_whole_gang_goes_or_none_of_it(found: list[dict[str, object]], label: str) -> None:
    """Of those that were made before the drain began: a member that may not go keeps all of them."""
    pods = members(found, label)
    evicted = {plan.pod.metadata.uid for plan in decided(pods, GangMode.WHOLE) if plan.state is PodState.EVICT}
    for gang in {gang_of(pod, MARKS) for pod in pods if pod.metadata.uid in evicted}:
        old = [pod for pod in pods if gang_of(pod, MARKS) == gang and pod.spec.nodeName and runs(pod)]
        for pod in old:
            made = pod.metadata.creationTimestamp
            assert made is not None
            assert (pod.metadata.uid in evicted) is (made < START - timedelta(seconds=SKEW_S))
