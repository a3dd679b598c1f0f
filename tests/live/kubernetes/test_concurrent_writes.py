"""Fifty agents and everybody else who writes to their Nodes, ten thousand writes at random: nobody loses anything.

The agents are the product's own back end, each with the token of its own node, and a clock of its own that runs faster:
reporters that write conditions and Events, orchestrators that claim, taint, release, give back and leave records,
daemons that start again. The others are in other_writers.py; every version of every object is looked at by
every_version.py.
"""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown
from healthd.core.model import Component, Diagnosis, Outcome, Remedy, Result, Severity, Status
from healthd.remediation.decide.fleet import HoldsSlots, Settle
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.kubernetes.objects.budget import counts
from healthd.remediation.orchestrators.kubernetes.objects.conditions import states_of
from healthd.remediation.orchestrators.kubernetes.objects.events import count_in
from healthd.remediation.orchestrators.kubernetes.objects.node import HOLD, KEEPS
from healthd.remediation.orchestrators.kubernetes.orchestrator import Fence
from healthd.remediation.orchestrators.kubernetes.reporter import AgentState, KubeReporter
from tests.live.kubernetes.agent_rig import Agents, add_leases, note
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.live.kubernetes.every_version import EveryVersion
from tests.live.kubernetes.other_writers import ALL, Writer, owned
from tests.live.kubernetes.server_counts import Served, conflicts, served, written

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]
NODES, LIMIT, WRITES, WITHIN_S, SEED = 50, 10, 10_000, 1800.0, "79"
PAUSE_S, SHARES = 0.3, 5
"""How long an agent waits at most between two acts, and how many of each kind of other there are: these write more than
agents, as in a cluster, and pass no policy, so that each write costs the server less."""
TICK_S = 3  # of an agent's own clock; a daemon ticks each second
NAMES = tuple(f"n{number:02}" for number in range(NODES))
WRITTEN = ("nodes", "leases", "events")
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_TOLD = re.compile(r"Event (\w+) written, (\d+) times so far")
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LOOKED = Outcome(check="gpu.count", result=Result(status=Status.OK), at=NOW, duration_s=0.1)
WELL = AgentState(diagnoses=(), outcomes={"gpu.count": LOOKED}, expected=("gpu.count",))


def fault(code: str, kind: str) -> Diagnosis:
    component = Component(kind=kind, id="one")
    return Diagnosis(
        code=code,
        component=component,
        severity=Severity.CRITICAL,
        remedy=Remedy.REBOOT_NODE,
        since=NOW,
        reasons=("once",),
    )


FAULTS = (fault("gpu.xid.79", "gpu"), fault("efa.missing", "efa"), fault("lustre.hung", "mount"))


class Agent:
    """What a daemon on this node writes, in an order that a die throws."""

    def __init__(self, open_agent: Agents, name: str) -> None:
        self.name, self._open = name, open_agent
        self.dice = random.Random(f"{SEED} {name}")  # noqa: S311 - no secret
        self.known, self.passed_s, self.text, self.record = replace(WELL, outcomes={}), 0.0, "", ""
        self.trouble: Counter[str] = Counter()
        self.told: set[str] = set()
        self.times: dict[str, int] = {}  # an Event's reason to how often it was told, as the reporter has it
        self.was_well = False
        self.acts: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """A daemon without a memory: what it must know it finds with the cluster."""
        is_cordoning = self.name < NAMES[NODES // 2]
        self.orchestrator = self._open(self.name, lately_s=0.5, cordon=is_cordoning, timeout_s=30.0)
        self.reporter = KubeReporter(
            self._open.api(self.name, timeout_s=30.0),
            node=self.name,
            known=lambda: self.known,
            verified=self.orchestrator.verified,
            fenced=lambda: (self.orchestrator.heal_fence() is Fence.CLAIMED, ""),
            kubelet=lambda: None,
            monotonic_s=lambda: self.passed_s,
            clock=lambda: NOW + timedelta(seconds=self.passed_s),
            chance=self.dice.random,
        )
        self.keeper = SlotKeeper(
            orchestrator=self.orchestrator,
            node=self.name,
            quotas=self.orchestrator.quotas,
            monotonic_s=lambda: self.passed_s,
            random=self.dice.random,
        )

    def act(self) -> None:
        """One thing that a daemon does, with all its requests."""
        acts = (self.report, self.go_or_come, self.leave_mark, self.begin_anew)
        act = self.dice.choices(acts, weights=(55, 30, 12, 3))[0]
        self.acts[act.__name__] += 1
        self._asked_again(act)
        time.sleep(self.dice.random() * PAUSE_S)

    def report(self) -> None:
        """Something breaks or is repaired, and a minute passes."""
        broken = tuple(each for each in FAULTS if self.dice.random() < 0.3)
        self.known = replace(WELL, diagnoses=broken)
        self.run(60)

    def run(self, for_s: int) -> None:
        for _ in range(0, for_s, TICK_S):
            self.passed_s += TICK_S
            for reason, times in _TOLD.findall(self.reporter.tick()):
                self.times[reason] = int(times)
        self.told |= {each.code for each in self.known.diagnoses}
        self.was_well = self.was_well or (not self.known.diagnoses and bool(self.known.outcomes))

    def go_or_come(self) -> None:
        """Take the node out if it is in and there is room; let it in again if it is out."""
        if self.text:
            self.come()
            return
        self.passed_s += 120.0  # whatever it waited for is over
        move = self.keeper.take()
        if isinstance(move, Settle):
            self.passed_s += 11.0
            move = self.keeper.take()
        if isinstance(move, HoldsSlots):
            self.text = f"healthd: gpu.xid.79 gpu:one [{self.dice.randrange(10**6)}]"
            self.orchestrator.quarantine(self.text)
            hold = self.orchestrator.view().hold
            assert hold is not None, f"{self.name}: the taint that was just written is not there"
            assert hold.text == self.text

    def come(self) -> None:
        self.orchestrator.release(resume=False)
        self.text = ""
        self.keeper.give_back()
        assert self.orchestrator.view().hold is None

    def leave_mark(self) -> None:
        self.record = self.dice.choice(("", f"healthd case={self.dice.randrange(100)}"))
        self.orchestrator.write_record(self.record)

    def begin_anew(self) -> None:
        self.orchestrator.close()
        self.reporter.close()
        self.start()

    def finish(self) -> None:
        """Half of those that are out come back, whoever has a place and is not out gives it back, all is told."""
        for _ in range(10):
            self._asked_again(self._finished)
            if not self.unfinished:
                return

    def _finished(self) -> None:
        self.unfinished = True
        if not self.text or self.dice.random() < 0.5:
            self.come()
        else:
            self.orchestrator.quarantine(self.text)
        self.orchestrator.write_record(self.record)
        self.known = replace(self.known, outcomes=WELL.outcomes)
        self.run(700)  # whatever failed is sent again by then
        self.unfinished = False

    unfinished = True

    def _asked_again(self, act: Callable[[], None]) -> None:
        """As the engine: what was refused for now is asked again later, from what the cluster shows."""
        try:
            act()
        except (BackendBusy, BackendUnknown) as error:
            self.trouble[type(error).__name__] += 1
        except BackendRefused as error:
            if "has no claim on the budget" not in str(error):  # which the policy reads through a cache
                raise
            self.trouble["claim not seen yet"] += 1


class Counting:
    """The controller's part: it counts, again and again, and nobody else changes what it wrote."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self.expected = plane, dict[str, str]()
        self._dice = random.Random(SEED)  # noqa: S311 - no secret

    def burst(self) -> None:
        out = self._dice.sample(("x1", "x2", "x3"), self._dice.randrange(4))
        self.expected = counts(limit=LIMIT, total=NODES, out=out, at=datetime.now(UTC))
        note(self._plane, dict(self.expected))
        time.sleep(0.2)


def at_once(work: list[Callable[[], object]], stop: threading.Event, failed: list[BaseException]) -> None:
    """Each in a thread of its own, again and again until it is time to stop; the first that fails stops all."""

    def go_on(each: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                each()
        except BaseException as error:  # noqa: BLE001 - of a thread: the test raises it
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=go_on, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def agents(control_plane: ControlPlane, tmp_path: Path) -> Iterator[list[Agent]]:
    """Fifty nodes, unverified, and their agents; at most ten may be out."""
    for name in NAMES:
        taints = [{"key": "healthd.io/unverified", "effect": "NoSchedule"}]
        labels = {"example.com/rack": name, "example.com/pool": "train"}
        control_plane.add_node(name, labels=labels, taints=taints)
    add_leases(control_plane, limit=LIMIT, total=NODES)
    opened = Agents(control_plane, tmp_path)
    yield [Agent(opened, name) for name in NAMES]
    opened.close()


def test_ten_thousand_writes_at_once_lose_nothing(control_plane: ControlPlane, agents: list[Agent]) -> None:
    """All that others wrote is as they wrote it, in every version; each of our values ends as it should; no more claims
    than the limit at any time; and writes did meet, were refused, and were made again."""
    shares = [NAMES[part::SHARES] for part in range(SHARES)]
    others = [kind(control_plane, share, SEED) for kind in ALL for share in shares]
    counting, before = Counting(control_plane), served(control_plane.admin)
    versions, stop, failed = EveryVersion(control_plane), threading.Event(), list[BaseException]()
    ended_by = threading.Thread(target=stopped_at, args=(control_plane, before, stop))
    ended_by.start()
    began_s = time.monotonic()
    at_once([*(each.act for each in agents), *(each.burst for each in others), counting.burst], stop, failed)
    ended_by.join()
    took_s, after = time.monotonic() - began_s, served(control_plane.admin) - before
    if failed:
        versions.stop()
        raise failed[0]
    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(Agent.finish, agents))
    versions.stop()
    say(agents, others, versions, after, took_s)
    assert written(after, *WRITTEN) >= WRITES, f"in {took_s:.0f} s"
    assert not versions.wrong, "\n".join(versions.wrong[:5])
    assert not [lost for each in others for lost in each.lost][:5]
    assert conflicts(after, "nodes") > 100, "hardly any two writes met"
    assert sum(agent.acts["go_or_come"] for agent in agents) > NODES
    check_nodes(control_plane, agents, others)
    check_leases(control_plane, agents, counting)
    check_events(control_plane, agents)


def stopped_at(plane: ControlPlane, before: Counter[Served], stop: threading.Event) -> None:
    """Stop them all once the server itself has counted so many writes."""
    until_s, client = time.monotonic() + WITHIN_S, plane.client(plane.admin_token)
    while time.monotonic() < until_s and not stop.wait(0.5):
        if written(served(client) - before, *WRITTEN) >= WRITES:
            break
    stop.set()


def check_nodes(plane: ControlPlane, agents: list[Agent], others: Sequence[Writer]) -> None:
    """Each Node has what each of its writers wrote last, and nothing else."""
    nodes = {each["metadata"]["name"]: each for each in plane.admin.get("/api/v1/nodes").must()["items"]}
    for each in others:
        each.lost.clear()
        for node in nodes.values():
            each.compare(node)
    assert not [lost for each in others for lost in each.lost]
    cordoned = {name for each in others if each.part == "cordon" for name in each.nodes if each.ledger[name]}
    for agent in agents:
        node, ours = nodes[agent.name], owned(nodes[agent.name])["healthd"]
        keys = [taint["key"] for taint in ours["taints"]]
        expected = ["healthd.io/claimed", "healthd.io/unhealthy"] if agent.text else []
        assert sorted(keys) == expected + ["healthd.io/unverified"] * (not agent.was_well), agent.name
        assert set(ours["annotations"]) == ({HOLD, *KEEPS} if agent.text else set())
        is_ours = '"cordoned": true' in ours["annotations"].get("healthd.io/hold", "")
        assert node["spec"].get("unschedulable", False) is (is_ours or agent.name in cordoned), agent.name
        assert not (is_ours and agent.name in cordoned), f"{agent.name}: a person's cordon was taken for ours"
        wanted = states_of(agent.known.diagnoses, agent.known.outcomes, agent.known.expected)
        shown = {kind: (each["status"], each["reason"]) for kind, each in ours["conditions"].items()}
        assert shown == {kind: (state.status, state.reason) for kind, state in wanted.items()}, agent.name


def check_leases(plane: ControlPlane, agents: list[Agent], counting: Counting) -> None:
    """A claim for each node that is out, a record for each that left one, and what the controller counted."""
    leases = plane.admin.get(LEASES).must()["items"]
    notes = {each["metadata"]["name"]: each["metadata"].get("annotations", {}) for each in leases}
    budget = notes["healthd-budget"]
    out = {f"claim.healthd.io/{agent.name}" for agent in agents if agent.text}
    assert {key for key in budget if key.startswith("claim.")} == out
    assert {key: value for key, value in budget.items() if not key.startswith("claim.")} == counting.expected
    assert plane.records().keys() == {agent.name for agent in agents if agent.record}


def check_events(plane: ControlPlane, agents: list[Agent]) -> None:
    """One Event for each fault that was ever open, by the node that it is about, however often it came back; and each
    counts every time that it was told, by a daemon that began anew too."""
    there = plane.admin.get(EVENTS).must()["items"]
    told = {(each["regarding"]["name"], each["note"].split()[0]) for each in there}
    assert told == {(agent.name, code) for agent in agents for code in agent.told}
    times = {(each["regarding"]["name"], each["reason"]): count_in(each) for each in there}
    assert times == {(agent.name, reason): count for agent in agents for reason, count in agent.times.items()}
    assert max(times.values()) > 10, "hardly any was told again"


def say(
    agents: list[Agent], others: Sequence[Writer], versions: EveryVersion, counted: Counter[Served], took_s: float
) -> None:
    """The figures of this run, for whoever runs it with -s."""
    trouble = sum((agent.trouble for agent in agents), Counter[str]())
    acts = sum((agent.acts for agent in agents), Counter[str]())
    wrote: Counter[str] = Counter()
    for each in others:
        wrote[each.part] += each.wrote
    by_kind = {kind: (written(counted, kind), conflicts(counted, kind)) for kind in WRITTEN}
    lines = [
        f"{written(counted, *WRITTEN)} writes in {took_s:.0f} s; by resource, and refused for a conflict: {by_kind}",
        f"of others {wrote.total()}: {dict(wrote)}, refused for a conflict {sum(each.late for each in others)}",
        f"agents did {dict(acts)}, and had to do again {dict(trouble)}",
        f"reads {sum(n for each, n in counted.items() if each.verb == 'GET')}, CPU here {time.process_time():.0f} s",
        f"{versions.versions} versions looked at, most claims {versions.most_claims} of {LIMIT}",
    ]
    sys.stdout.write("\n".join(["", *lines, ""]))
