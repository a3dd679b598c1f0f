"""A thousand nodes fail within a second on one real slurmctld, with a budget of 5 %, and agents are killed at random.

One real slurmd and 999 nodes that slurmctld knows and nobody runs. An agent is what the daemon has for its slots, over
Slurm's own clients: slots are claimed, settled, and followed by a drain. Agents live in groups, a process each, and
groups are killed with SIGKILL and come back, every fourth on a new disk. All of it shares this machine with slurmctld.

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
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

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
NEW_DISK_EVERY = 4  # of the groups that are killed, one comes back on new disks; the others' have the fleet's size
QUOTAS: dict[str, str | int] = {"cluster": "5%"}
TEXT = "healthd: gpu.xid.79 gpu:GPU-8e2f [bench]"
FORK = multiprocessing.get_context("fork")


class Notes:
    """A file to which processes append a line each: nobody who is killed holds a lock of it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, note: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(note).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        text = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0).decode()
        return [json.loads(line) for line in text.split("\n")[:-1]]


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


def one_storm(lab: SlurmLab, count: int, kills: int, *, known: bool, seed: int) -> dict[str, Any]:
    """All nodes fail, groups are killed and come back, until every agent has decided and settled."""
    nodes = [*lab.nodes, *(f"f{number:04d}" for number in range(1, count))]
    said, seen = Notes(lab.root / "said"), Notes(lab.root / "seen")
    conf, limit, dice = str(lab.conf), out_limit(QUOTAS["cluster"], count), random.Random(seed)  # noqa: S311  no secret
    learnt = scopes_of(SlurmOrchestrator(node=nodes[0], conf=conf).level(), QUOTAS) if known else ()
    groups = [nodes[start : start + GROUP] for start in range(0, count, GROUP)]
    others, spent_ms, began_s = os.getloadavg()[0], cpu_ms(lab.pid("slurmctld")), time.monotonic()
    running = {number: begin(live, conf, group, said, learnt, began_s) for number, group in enumerate(groups)}
    watch = begin(look, conf, nodes[0], seen)
    try:
        for turn, at_s in enumerate(sorted(dice.uniform(0.2, KILLED_FOR_S) for _ in range(kills))):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            number = dice.choice(list(running))
            kill(running[number])
            kept = learnt if turn % NEW_DISK_EVERY else ()
            running[number] = begin(live, conf, groups[number], said, kept, began_s)
        until_decided(said, set(nodes), began_s + 60.0)
        ctld_s = (cpu_ms(lab.pid("slurmctld")) - spent_ms) / 1000
        time.sleep(1.0)
    finally:
        for process in (watch, *running.values()):
            kill(process)
    return {
        "nodes": count,
        "limit": limit,
        "agents_killed": kills * GROUP,
        "agents_new_at_first": 0 if known else count,
        **figures_of(said, seen, limit, began_s),
        "aim_last_decision_s": AIM_DECIDED_S,
        "ctld_cpu_s": round(ctld_s, 2),
        "aim_ctld_cpu_s": AIM_CTLD_S,
        "load_before": round(others, 1),
    }


# ---------------------------------------------------------------------------------------------------------------------
# agents


def begin(work: Callable[..., None], *args: object) -> BaseProcess:
    """A process of its own; this one has no threads, so that a fork is safe."""
    process = FORK.Process(target=work, args=args, daemon=True)
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
            said.add({"node": node, "at_s": time.monotonic(), "what": what, "reason": reason})
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


def look(conf: str, node: str, seen: Notes) -> None:
    """Read the fleet four times a second, for ever."""
    orchestrator = SlurmOrchestrator(node=node, conf=conf, timeout_s=30.0)
    while True:
        with contextlib.suppress(BackendError):  # looked at again a moment later
            level, slots = orchestrator.level(), orchestrator.slots()
            seen.add({"at_s": time.monotonic(), "out": len(out_or_fenced(level, slots)), "drained": len(level.out)})
        time.sleep(0.25)


def until_decided(said: Notes, nodes: set[str], end_s: float) -> None:
    """Until every agent, those that came back included, holds or goes."""
    while time.monotonic() < end_s and not decided(said).keys() >= nodes:
        time.sleep(0.25)


def decided(said: Notes) -> dict[str, float]:
    """The nodes whose agents last said that they hold or go, and when they did."""
    last = {note["node"]: note for note in said.read()}
    return {node: note["at_s"] for node, note in last.items() if note["what"] in ("hold", "go")}


def figures_of(said: Notes, seen: Notes, limit: int, began_s: float) -> dict[str, Any]:
    """What the notes of the agents and of the watch come to."""
    times = [at_s - began_s for at_s in decided(said).values()]
    over = [note["at_s"] for note in seen.read() if note["out"] > limit]
    trouble = [note["reason"] for note in said.read() if note["what"] == "trouble"]
    return {
        "decided": len(times),
        "out_at_the_end": seen.read()[-1]["out"],
        "settled_max": max(note["drained"] for note in seen.read()),
        "transient_max": max(0, max(note["out"] for note in seen.read()) - limit),
        "transient_s": round(max(over) - min(over), 2) if over else 0.0,
        "decided_p50_s": round(percentile(times, 0.5), 2),
        "last_decision_s": round(max(times), 2),
        "no_answer": len(trouble),
        "first_trouble": trouble[0][:200] if trouble else "",
    }


def out_or_fenced(level: FleetLevel, slots: tuple[Slot, ...]) -> frozenset[str]:
    """Whoever takes no new jobs."""
    return level.out | {slot.node for slot in slots}


if __name__ == "__main__":
    sys.exit(main())
