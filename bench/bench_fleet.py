"""A thousand nodes fail within a second on one real slurmctld, with a budget of 5 %, and agents are killed at random.

One real slurmd and 999 nodes that slurmctld knows and nobody runs. An agent is what the daemon has for its slots, over
Slurm's own clients: slots are claimed, settled, and followed by a drain. Agents live in groups, a process each, and
groups are killed with SIGKILL and come back with nothing remembered. All of it shares this machine with slurmctld.

Aims: never more nodes out than the limit once every live agent has settled, at most 5 s of slurmctld's CPU, and the
last decision within 20 s. A transient is what is out beyond the limit before that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from measure import cpu_ms, percentile, write_down

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from healthd.errors import BackendError
from healthd.remediation.budget import out_limit
from healthd.remediation.fleet import Go, Hold, Scope, Settle, scopes_of
from healthd.remediation.orchestrators.slurm import SlurmOrchestrator
from healthd.remediation.ports import FleetLevel, NodeView, Slot
from healthd.remediation.slots import SlotKeeper
from tests.integration.slurm.slurm_lab import SlurmLab, why_not

AIM_CTLD_S, AIM_DECIDED_S = 5.0, 20.0
GROUP = 25
KILLED_FOR_S = 6.0
QUOTAS: dict[str, str | int] = {"cluster": "5%"}
TEXT = "healthd: gpu.xid.79 gpu:GPU-8e2f [bench]"
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One answer of one agent. ``what``: hold, settle, go, or trouble."""

    node: str
    at_s: float
    what: str
    reason: str = ""

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class Notes:
    """A file to which agents append a line each: nobody who is killed holds a lock of it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, said: Said) -> None:
        os.write(self._descriptor, said.line())

    def read(self) -> list[Said]:
        text = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0).decode()
        return [Said(**json.loads(line)) for line in text.split("\n")[:-1]]


def main() -> int:
    """Measure and write down. Exit 1 where an aim is missed, 2 where there is no Slurm."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=1000, help="nodes")
    options.add_argument("--kills", type=int, default=20, help="groups of agents to kill")
    options.add_argument("--new", action="store_true", help="no agent has read the fleet before: all have just started")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    with cluster(chosen.n) as lab:
        time.sleep(4.0)
        figures = one_storm(lab, chosen.n, chosen.kills, known=not chosen.new, seed=chosen.seed)
    write_down("fleet", figures)
    kept = figures["settled_max"] <= figures["limit"] and figures["out_at_the_end"] <= figures["limit"]
    return 0 if kept and figures["ctld_cpu_s"] <= AIM_CTLD_S and figures["last_decision_s"] <= AIM_DECIDED_S else 1


def cluster(count: int) -> SlurmLab:
    """A lab of one real node and further ones that sleep in a cloud, which slurmctld takes for usable."""
    programs = {"SuspendProgram": "/bin/true", "ResumeProgram": "/bin/true", "SuspendTime": "-1"}
    return SlurmLab(
        nodes=1,
        conf={"PrivateData": "cloud", "MaxNodeCount": str(count + 16), **programs},
        lines=[
            f"NodeName=f[0001-{count - 1:04d}] NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=CLOUD",
            f"PartitionName=fleet Nodes=n0001,f[0001-{count - 1:04d}] State=UP",
        ],
    )


def one_storm(lab: SlurmLab, count: int, kills: int, *, known: bool, seed: int) -> dict[str, object]:
    """All nodes fail, groups are killed and come back, until every agent has decided and settled."""
    nodes = [*lab.nodes, *(f"f{number:04d}" for number in range(1, count))]
    groups = [nodes[start : start + GROUP] for start in range(0, count, GROUP)]
    said = Notes(lab.root / "notes")
    quiet = SlurmOrchestrator(node=nodes[0], conf=str(lab.conf))
    learnt = scopes_of(quiet.level(), QUOTAS) if known else ()
    watch = Watch(lab=lab, limit=out_limit("5%", count), said=said)
    spent_ms = cpu_ms(lab.pid("slurmctld"))
    began_s = time.monotonic()
    running = {number: start(lab, group, said, learnt, began_s) for number, group in enumerate(groups)}
    watch.start()
    dice = random.Random(seed)  # noqa: S311  no secret
    for at_s in sorted(dice.uniform(0.2, KILLED_FOR_S) for _ in range(kills)):
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        number = dice.choice(list(running))
        kill(running[number])
        running[number] = start(lab, groups[number], said, (), began_s)
    watch.until_decided(set(nodes), began_s + 60.0)
    decided_ms = cpu_ms(lab.pid("slurmctld")) - spent_ms
    time.sleep(1.0)
    watch.stop()
    for process in running.values():
        kill(process)
    return watch.figures(count, kills, began_s, decided_ms / 1000, is_new=not known)


# ---------------------------------------------------------------------------------------------------------------------
# agents


def start(lab: SlurmLab, group: list[str], said: Notes, learnt: tuple[Scope, ...], began_s: float) -> BaseProcess:
    """One process with the agents of a group, a thread each."""
    process = FORK.Process(target=live, args=(str(lab.conf), group, said, learnt, began_s), daemon=True)
    process.start()
    return process


def kill(process: BaseProcess) -> None:
    """SIGKILL, in the middle of whatever it does. Slurm's clients that it started go on."""
    if process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def live(conf: str, group: list[str], said: Notes, learnt: tuple[Scope, ...], began_s: float) -> None:
    """Fail within the first second, each node at its own moment, and go on for ever."""
    random.seed()  # a fork has its parent's
    threads = [threading.Thread(target=agent, args=(conf, node, said, learnt, began_s)) for node in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def agent(conf: str, node: str, said: Notes, learnt: tuple[Scope, ...], began_s: float) -> None:
    """What a daemon does about its slots, once a second."""
    orchestrator = SlurmOrchestrator(node=node, conf=conf, timeout_s=30.0)
    keeper = SlotKeeper(
        orchestrator=orchestrator,
        node=node,
        quotas=lambda: QUOTAS,
        monotonic_s=time.monotonic,
        random=random.random,
        known=learnt,
    )
    time.sleep(max(0.0, began_s + random.random() - time.monotonic()))  # noqa: S311  as above
    last, is_drained = "", False
    while True:
        try:
            is_drained = is_drained or is_ours(orchestrator.view())
            what, reason = one_turn(orchestrator, keeper, is_drained)
        except BackendError as error:
            what, reason = "trouble", str(error)
        if what != last:
            said.add(Said(node=node, at_s=time.monotonic(), what=what, reason=reason))
            last = what
        wait_until_due(keeper)


def wait_until_due(keeper: SlotKeeper) -> None:
    time.sleep(1.0)
    while not keeper.is_due():
        time.sleep(0.5)


def one_turn(orchestrator: SlurmOrchestrator, keeper: SlotKeeper, is_drained: bool) -> tuple[str, str]:
    match keeper.take(committed=is_drained):
        case Hold(reason=reason):
            return "hold", reason
        case Settle(reason=reason):
            return "settle", reason
        case Go():
            if not is_drained:
                orchestrator.quarantine(TEXT)
            return "go", ""


def is_ours(view: NodeView) -> bool:
    """Drained by an agent of this benchmark."""
    return view.hold is not None and view.hold.text == TEXT


# ---------------------------------------------------------------------------------------------------------------------
# what is seen


@dataclass(kw_only=True)
class Watch:
    """Reads the fleet four times a second, and what the agents say."""

    lab: SlurmLab
    limit: int
    said: Notes
    seen: list[tuple[float, int, int]] = field(default_factory=list)  # when, out or fenced, drained
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def last(self) -> dict[str, Said]:
        return {one.node: one for one in self.said.read()}

    def until_decided(self, nodes: set[str], end_s: float) -> None:
        """Until every agent, those that came back included, holds or goes."""
        while time.monotonic() < end_s:
            last = self.last()
            if {node for node, one in last.items() if one.what in ("hold", "go")} >= nodes:
                return
            time.sleep(0.25)

    def figures(self, count: int, kills: int, began_s: float, ctld_s: float, *, is_new: bool) -> dict[str, object]:
        decided = sorted(one.at_s - began_s for one in self.last().values() if one.what in ("hold", "go"))
        over = [at_s for at_s, out, _ in self.seen if out > self.limit]
        trouble = [one for one in self.said.read() if one.what == "trouble"]
        return {
            "nodes": count,
            "limit": self.limit,
            "agents_killed": kills * GROUP,
            "agents_new_at_first": count if is_new else 0,
            "decided": len(decided),
            "out_at_the_end": self.seen[-1][1],
            "settled_max": max(drained for _, _, drained in self.seen),
            "transient_max": max(0, max(out for _, out, _ in self.seen) - self.limit),
            "transient_s": round(max(over) - min(over), 2) if over else 0.0,
            "decided_p50_s": round(percentile(decided, 0.5), 2),
            "last_decision_s": round(decided[-1], 2),
            "aim_last_decision_s": AIM_DECIDED_S,
            "ctld_cpu_s": round(ctld_s, 2),
            "aim_ctld_cpu_s": AIM_CTLD_S,
            "no_answer": len(trouble),
            "first_trouble": trouble[0].reason[:200] if trouble else "",
        }

    def _look(self) -> None:
        orchestrator = SlurmOrchestrator(node=self.lab.nodes[0], conf=str(self.lab.conf), timeout_s=30.0)
        while not self._over.is_set():
            with contextlib.suppress(BackendError):  # looked at again a moment later
                level, slots = orchestrator.level(), orchestrator.slots()
                self.seen.append((time.monotonic(), len(out_or_fenced(level, slots)), len(level.out)))
            self._over.wait(0.25)


def out_or_fenced(level: FleetLevel, slots: tuple[Slot, ...]) -> frozenset[str]:
    """Whoever takes no new jobs."""
    return level.out | {slot.node for slot in slots}


if __name__ == "__main__":
    sys.exit(main())
