"""A fleet of agents on a real kube-apiserver, for bench_kubernetes: simulated ones by the hundred, and whole daemons.

A simulated agent is all of the daemon that talks to the cluster, put together as the daemon does it: the reporter over
its own connection, the engine with the keeper of places over another, each with the token of the agent's pod on that
node. Left out are the store (a file for the open remediation) and the checks (one that is well). Its clock is its own
and runs faster; the server's does not. What they asked is read from the server's audit log.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from bench.bench_fleet import OneFault, OneFile
from healthd.config.schema.config import RemediationSection
from healthd.core.model import Mode, Outcome, Result, Status
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.dependencies import Dependencies, Timeouts
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, connect
from healthd.remediation.orchestrators.kubernetes.from_config import BURST, RATE_PER_S
from healthd.remediation.orchestrators.kubernetes.orchestrator import Fence, KubernetesOrchestrator
from healthd.remediation.orchestrators.kubernetes.reporter import AgentState, KubeReporter
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from healthd.remediation.ports import FleetSnapshot
from healthd.sim.machine import NODE, SimulatedMachine
from tests.live.kubernetes.agent_rig import write_kubeconfig
from tests.live.kubernetes.control_plane import ACCOUNT, NAMESPACE, ControlPlane
from tests.support.fake_repairs import FakeProvisioner, FakeResetter
from tests.support.running import ROOT, Running

STEP_S = 5.0  # of an agent's clock: how often the daemon turns its engine; its reporter looks each second
START_S = 60.0  # the default of [orchestrator.kubernetes] start_s
WORKERS = 24
AUDIT_POLICY = f"""apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:{NAMESPACE}:{ACCOUNT}"]
- level: None
"""
_CLAIM = "authentication.kubernetes.io/node-name"
_SECTIONS = """[orchestrator]
kind = "kubernetes"
[orchestrator.kubernetes]
kubeconfig = "{kubeconfig}"
pod_resources = "{folder}/no-kubelet.sock"
start_s = 5
"""


class Agent:
    """A simulated agent of one node. ``step`` does what is due at a moment of its clock."""

    def __init__(self, plane: ControlPlane, node: str, folder: Path) -> None:
        self._kubeconfig = write_kubeconfig(plane, node, folder)
        self._now_s, self._begun, self.dice = 0.0, datetime.now(UTC), Random(node)  # noqa: S311 - no secret
        at = self.clock()
        looked = Outcome(check="gpu.count", result=Result(status=Status.OK), at=at, duration_s=0.1)
        known = AgentState(diagnoses=(), outcomes={"gpu.count": looked}, expected=("gpu.count",))
        self._apis = (self._api(), self._api())
        orchestrator = KubernetesOrchestrator(self._apis[0], node=node, namespace=NAMESPACE)
        self._engine = _engine(orchestrator, node, folder, self)
        self._reporter = KubeReporter(
            self._apis[1],
            node=node,
            known=lambda: known,
            verified=orchestrator.verified,
            fenced=lambda: (orchestrator.heal_fence() is Fence.CLAIMED, ""),
            kubelet=lambda: None,
            start_s=START_S,
            monotonic_s=self.monotonic_s,
            clock=self.clock,
            chance=self.dice.random,
        )

    def step(self, now_s: float) -> None:
        """Go to this second of its clock: one turn of the engine, one look of the reporter."""
        self._now_s = now_s
        self._engine.reconcile(self.clock())
        self._reporter.tick()

    def close(self) -> None:
        for each in self._apis:
            each.close()

    def _api(self) -> KubeApi:
        pace = Pace(rate_per_s=RATE_PER_S, burst=BURST, monotonic_s=self.monotonic_s)
        return connect(kubeconfig=str(self._kubeconfig), timeout_s=30.0, pace=pace, environ={})

    def monotonic_s(self) -> float:
        return self._now_s

    def clock(self) -> datetime:
        return self._begun + timedelta(seconds=self._now_s)


def _engine(orchestrator: KubernetesOrchestrator, node: str, folder: Path, agent: Agent) -> Engine:
    keeper = SlotKeeper(
        orchestrator=orchestrator,
        node=node,
        quotas=orchestrator.quotas,
        monotonic_s=agent.monotonic_s,
        random=agent.dice.random,
    )
    return Engine(
        Dependencies(
            orchestrator=orchestrator,
            provisioner=FakeProvisioner(lambda: None),
            resetter=FakeResetter(),
            slots=keeper,
            judgement=OneFault(),
            remediations=OneFile(folder / "case"),
            rules=lambda: Rules(mode=Mode.QUARANTINE),
            collect=lambda _: "",
            recheck=lambda _: None,
            timeouts=Timeouts(),
            clock=agent.clock,
            monotonic_s=agent.monotonic_s,
        )
    )


def simulated(plane: ControlPlane, nodes: Sequence[str], folder: Path) -> list[Agent]:
    """Their agents, connected to nothing yet."""
    for kind in (Remediation, FleetSnapshot):  # what msgspec learns of a type it must not learn in many threads at once
        msgspec.json.Decoder(kind)
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda node: Agent(plane, node, folder / node), nodes))


class Clock:
    """Drives the agents: at most so many of their seconds in one of ours, fewer where this machine is too slow, which
    ``speed`` then says. All of them are at the same second, so that none leaves anything out."""

    def __init__(self, agents: Sequence[Agent], speed: float) -> None:
        self._agents, self._step_s = agents, STEP_S / speed
        self._shares = [agents[start::WORKERS] for start in range(WORKERS)]
        self._now_s = 0.0

    def run(self, for_s: float) -> float:
        """Let so many of their seconds pass; returns how many of ours it took."""
        began_s, until_s = time.monotonic(), self._now_s + for_s
        with ThreadPoolExecutor(WORKERS) as pool:
            while self._now_s < until_s:
                next_s = time.monotonic() + self._step_s
                self._now_s += STEP_S
                list(pool.map(self._step, self._shares))
                time.sleep(max(0.0, next_s - time.monotonic()))
        return time.monotonic() - began_s

    def close(self) -> None:
        """Nobody does anything any more."""
        for agent in self._agents:
            agent.close()

    def _step(self, share: Sequence[Agent]) -> None:
        for agent in share:
            agent.step(self._now_s)


class WholeDaemon(Running):
    """A real ``healthd run`` on a simulated p5.48xlarge, in real time, in quarantine mode."""

    as_program = True

    def __init__(self, plane: ControlPlane, node: str, folder: Path) -> None:
        settle_s = RemediationSection().settle_s  # how often a node that is out is read follows from it
        self.machine, self._life = SimulatedMachine(folder, settle_s=settle_s), ExitStack()
        kubeconfig = write_kubeconfig(plane, node, folder / "account")
        text = self.machine.config.read_text().replace(NODE, node).replace('mode = "repair"', 'mode = "quarantine"')
        sections = _SECTIONS.format(kubeconfig=kubeconfig, folder=folder)
        self.machine.config.write_text(text.replace('[orchestrator]\nkind = "local"\n', sections))
        self.log = folder / "log"

    def start(self, environ: Mapping[str, str]) -> None:
        self._life.enter_context(self.machine.living())
        self.begin("run", self.machine.config, self.log, {**environ, "PYTHONPATH": str(ROOT)})

    def stop(self) -> int | None:
        self._life.close()
        return super().stop()


# ---------------------------------------------------------------------------------------------------------------------
# what the server saw


def as_kubelets_register_them(plane: ControlPlane, nodes: Sequence[str]) -> float:
    """Add these Nodes, each with fifty images as a kubelet reports them; returns the size of one in kB, as JSON."""
    names = [f"123456789012.dkr.ecr.us-east-1.amazonaws.com/team/train-{number:02}" for number in range(50)]
    images = [
        {"names": [f"{name}@sha256:{number:064x}", f"{name}:v{number}"], "sizeBytes": 7_000_000_000 + number}
        for number, name in enumerate(names)
    ]

    def add(node: str) -> None:
        plane.add_node(node)
        plane.admin.patch(f"/api/v1/nodes/{node}/status", {"status": {"images": images}}).must()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, nodes))
    return len(json.dumps(plane.admin.get(f"/api/v1/nodes/{nodes[0]}").must(), separators=(",", ":"))) / 1000


class Audit:
    """The API server's own log of what agents asked."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "audit.log"
        (folder / "audit.yaml").write_text(AUDIT_POLICY)
        self.flags = (f"--audit-policy-file={folder / 'audit.yaml'}", f"--audit-log-path={self._log}")

    def asked(self, since: datetime, until: datetime) -> dict[str, Counter[str]]:
        """Node to how often its agent asked what, such as ``patch nodes/status``; refusals have their code with it."""
        found: dict[str, Counter[str]] = {}
        for event in self._events():
            if since <= datetime.fromisoformat(event["requestReceivedTimestamp"]) < until:
                node = event["user"]["extra"][_CLAIM][0]
                found.setdefault(node, Counter())[_what(event)] += 1
        return found

    def _events(self) -> Iterator[dict[str, Any]]:
        with self._log.open() as lines:
            yield from (json.loads(line) for line in lines)


def _what(event: Mapping[str, Any]) -> str:
    about, code = event["objectRef"], event["responseStatus"]["code"]
    resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
    return f"{event['verb']} {resource}" + (f" {code}" if code >= 400 else "")
