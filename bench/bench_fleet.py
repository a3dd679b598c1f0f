"""A thousand nodes fail within a second on one real slurmctld, with a budget of 5 %, and agents are killed at random.

One real slurmd and 999 nodes that slurmctld knows and nobody runs. An agent is the daemon's own engine, over Slurm's
own clients, in quarantine mode: it decides, claims, shows its finding, settles, looks again, drains. What is left out
is the store (a file for the open remediation) and the checks (one fault, which does not end). Agents live in groups, a
process each, and groups are killed with SIGKILL and come back, every fourth on a new disk. All of it shares this
machine with slurmctld.

Aims: never more nodes out than the limit once every live agent has settled, at most 2 s of slurmctld's CPU, and the
last decision within 10 s, or 15 s with ``--new`` or ``--same``. A transient is what is out beyond the limit before
that. With ``--same`` all have the same finding, so that no node is to be drained (``settled_max`` 0): who went first
decides after the settle time. ``claimed_or_held_last_s``: the last node has its slot, which keeps jobs off, or holds; a
drain is decided a settle time (10 s) after its slot. ``ctld_cpu_s`` is without the looks of the watch: those are
``watch_ctld_cpu_s``, their number times the cost of one before the storm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bench.measure import cpu_ms, percentile, skipped, write_down
from healthd.agent.wiring import fleet_of, kept_of
from healthd.core.errors import BackendError
from healthd.core.model import Clearance, Component, Diagnosis, Event, Mode, Remedy, Severity
from healthd.core.node import CommandResult
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.decide.ledger import Bounds
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.dependencies import Dependencies, Timeouts
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import FleetSnapshot, Slot
from healthd.sources.command import LIMIT_BYTES, run_command
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason
from tests.support.fake_repairs import FakeProvisioner, FakeResetter

AIM_CTLD_S, AIM_DECIDED_S, AIM_DECIDED_LATER_S = 2.0, 10.0, 15.0
GROUP = 25
KILLED_FOR_S = 6.0
NEW_DISK_EVERY = 4  # of the groups that are killed, one comes back on new disks
QUOTAS: dict[str, str | int] = {"cluster": "5%"}
POLL_S = 5.0  # the daemon's
AHEAD = -10  # the nice value of what kills
WATCHED_S = 5.0  # how long the watch is alone with slurmctld
WARM_UP_S = 20.0  # for a thousand agents to have looked for what a daemon before them left, as at every start
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
    """Measure and write down. Exit 1 where an aim is missed, 77 where there is no Slurm."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=1000, help="nodes")
    options.add_argument("--kills", type=int, default=20, help="groups of agents to kill")
    options.add_argument("--new", action="store_true", help="no agent has read the fleet before: all have just started")
    options.add_argument("--same", action="store_true", help="all have the same finding: many at once")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    if reason := skip_reason():
        return skipped(reason)
    with cluster(chosen.n) as lab:
        usable(lab, chosen.n)
        figures = one_storm(lab, chosen.n, chosen.kills, known=not chosen.new, same=chosen.same, seed=chosen.seed)
    write_down("fleet_same_finding" if chosen.same else "fleet_new" if chosen.new else "fleet", figures)
    kept = figures["settled_max"] <= figures["limit"] and figures["out_at_the_end"] <= figures["limit"]
    in_time = figures["last_decision_s"] <= figures["aim_last_decision_s"]
    return 0 if kept and in_time and figures["ctld_cpu_s"] <= AIM_CTLD_S else 1


def cluster(count: int) -> SlurmLab:
    """A lab of one real node and further ones that nobody runs, see ``usable``."""
    return SlurmLab(
        nodes=1,
        conf={"MaxNodeCount": str(count + 16), "SlurmdTimeout": "0"},
        lines=[
            f"NodeName={others(count)} NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=DOWN",
            f"PartitionName=fleet Nodes=n0001,{others(count)} State=UP",
        ],
    )


def others(count: int) -> str:
    """The nodes that nobody runs, as a hostlist."""
    return f"f[0001-{count - 1:04d}]"


def usable(lab: SlurmLab, count: int) -> None:
    """Have slurmctld take the nodes that nobody runs for idle: a node that sleeps in a cloud is no part of the fleet.

    It pings each of them right after that, in vain, and again 100 s later (22.05.8): between the two it is at rest.
    """
    lab.update(others(count), "state=idle")
    pinged = lambda: sum("NOT_RESPONDING" in state for state in lab.states().values()) == count - 1  # noqa: E731
    lab.wait(pinged, 90, "every node that nobody runs has been pinged")


def one_storm(lab: SlurmLab, count: int, kills: int, *, known: bool, same: bool, seed: int) -> dict[str, Any]:
    """All nodes fail, groups are killed and come back, until every agent has decided and settled."""
    for kind in (
        Remediation,
        FleetSnapshot,
    ):  # what msgspec learns of a type it must not learn in 25 threads at once: it crashes
        msgspec.json.Decoder(kind)
    nodes = [*lab.nodes, *(f"f{number:04d}" for number in range(1, count))]
    notes, seen, calls = Notes(lab.root / "said"), Notes(lab.root / "seen"), Notes(lab.root / "calls")
    conf, limit, dice = str(lab.conf), out_limit(QUOTAS["cluster"], count), random.Random(seed)  # noqa: S311  no secret
    groups = [nodes[start : start + GROUP] for start in range(0, count, GROUP)]
    disks = [lab.root / f"disk-{number}" for number in range(len(groups))]
    kept = kept_of(SlurmOrchestrator(node=nodes[0], conf=conf).snapshot(), datetime.now(UTC))
    for disk in disks:
        disk.mkdir()
        if known:
            (disk / "fleet").write_text(kept)
    others, watch = os.getloadavg()[0], begin(look, conf, nodes[0], seen)
    look_ms = look_costs_ms(seen, lab.pid("slurmctld"))
    killed_last_s, began_s = 0.0, time.monotonic() + WARM_UP_S * count / 1000
    storm = Storm(conf=conf, began_s=began_s, same=same)
    running = {number: begin(live, storm, disks[number], group, notes, calls) for number, group in enumerate(groups)}
    time.sleep(max(0.0, began_s - time.monotonic()))
    looks, spent_ms = len(seen.read()), cpu_ms(lab.pid("slurmctld"))
    os.setpriority(os.PRIO_PROCESS, 0, AHEAD)  # else its kills come when the agents leave it time, seconds late
    try:
        for turn, at_s in enumerate(sorted(dice.uniform(0.2, KILLED_FOR_S) for _ in range(kills))):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            number = dice.choice(list(running))
            kill(running[number])
            killed_last_s = time.monotonic() - began_s
            if turn % NEW_DISK_EVERY == 0:
                disks[number] = lab.root / f"disk-{number}-{turn}"
                disks[number].mkdir()
            running[number] = begin(live, storm, disks[number], groups[number], notes, calls)
        until_decided(notes, set(nodes), began_s + 60.0)
        watch_s = (len(seen.read()) - looks) * look_ms / 1000
        ctld_s = (cpu_ms(lab.pid("slurmctld")) - spent_ms) / 1000 - watch_s
        time.sleep(1.0)
    finally:
        for process in (watch, *running.values()):
            kill(process)
        for process in (watch, *running.values()):
            process.join()
    return {
        "nodes": count,
        "limit": limit,
        "agents_killed": kills * GROUP,
        "killed_last_s": round(killed_last_s, 1),
        "agents_new_at_first": 0 if known else count,
        "same_finding": same,
        **figures_of(notes, seen, limit, began_s),
        "aim_last_decision_s": AIM_DECIDED_S if known and not same else AIM_DECIDED_LATER_S,
        "ctld_cpu_s": round(ctld_s, 2),
        "aim_ctld_cpu_s": AIM_CTLD_S,
        "watch_ctld_cpu_s": round(watch_s, 2),
        "load_before": round(others, 1),
    }


# ---------------------------------------------------------------------------------------------------------------------
# agents


def begin(work: Callable[..., None], *args: object) -> BaseProcess:
    """A process of its own; this one has no threads, so that a fork is safe."""
    process = FORK.Process(target=at_ordinary_priority, args=(work, *args), daemon=True)
    process.start()
    return process


def at_ordinary_priority(work: Callable[..., None], *args: object) -> None:
    """What is measured does not have the priority of what measures."""
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    work(*args)


def kill(process: BaseProcess) -> None:
    """SIGKILL, in the middle of whatever it does. Slurm's clients that it started go on.

    Its end is not waited for: where 25 threads die on a busy machine that takes up to 2 s, and the next kill is due.
    """
    if process.exitcode is not None:
        raise RuntimeError(f"process {process.pid} of the benchmark ended by itself with {process.exitcode}")
    process.kill()


class Storm(Struct, frozen=True, kw_only=True):
    """What all agents have in common: the cluster, when it begins (monotonic), whether it is one finding."""

    conf: str
    began_s: float
    same: bool


def live(storm: Storm, disk: Path, group: list[str], notes: Notes, calls: Notes) -> None:
    """Fail within the first second, each node at its own moment, and go on for ever."""
    random.seed()  # a fork has its parent's
    threads = [threading.Thread(target=agent, args=(storm, disk, node, notes, calls)) for node in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def agent(storm: Storm, disk: Path, node: str, notes: Notes, calls: Notes) -> None:
    """What a daemon does between its fault and its drain, as often as the daemon does it."""
    fault = OneFault()
    engine, last = engine_of(storm, disk, node, fault, calls), ""
    if not (disk / node).exists():
        engine.reconcile(datetime.now(UTC))
    time.sleep(max(0.0, storm.began_s + random.random() - time.monotonic()))  # noqa: S311  as above
    fault.begins()
    while True:
        what, reason = kind_of(engine.reconcile(datetime.now(UTC)))
        if what != last:
            notes.add({"node": node, "at_s": time.monotonic(), "what": what, "reason": reason})
            last = what
        time.sleep(max(0.2, engine.next_in_s(POLL_S)))


def kind_of(sentence: str) -> tuple[str, str]:
    """What a turn came to: hold, settle, go, queue (asks again later) or trouble, and the sentence."""
    if sentence.startswith("fenced"):
        return "settle", sentence
    if sentence.startswith(("waits for a slot", "at the fleet limit", "gpu.xid.79 on ")):
        return "hold", sentence
    if sentence.startswith("the cluster is slow"):
        return "queue", sentence
    return ("go" if sentence.startswith(("out until", "drained")) else "trouble"), sentence


def engine_of(storm: Storm, disk: Path, node: str, fault: OneFault, calls: Notes) -> Engine:
    """The engine as the daemon puts it together, with a fault that does not end."""
    orchestrator = SlurmOrchestrator(node=node, conf=storm.conf, timeout_s=30.0, run=Counted(node, calls))
    known, known_age_s = fleet_of((disk / "fleet").read_text() if (disk / "fleet").exists() else "", datetime.now(UTC))
    bounds = Bounds() if storm.same else Bounds(same_fault_nodes=100_000)
    return Engine(
        Dependencies(
            orchestrator=orchestrator,
            provisioner=FakeProvisioner(lambda: None),
            resetter=FakeResetter(),
            slots=SlotKeeper(
                orchestrator=orchestrator,
                node=node,
                quotas=lambda: QUOTAS,
                monotonic_s=time.monotonic,
                random=random.random,
                known=known,
                known_age_s=known_age_s,
            ),
            judgement=fault,
            remediations=OneFile(disk / node),
            rules=lambda: Rules(mode=Mode.QUARANTINE, max_out=QUOTAS["cluster"], bounds=bounds),
            collect=lambda _: "",
            recheck=lambda _: None,
            timeouts=Timeouts(),
        )
    )


class Counted:
    """Runs Slurm's clients and notes each: what it asks for, when it began and how long it took."""

    def __init__(self, node: str, calls: Notes) -> None:
        self._node, self._calls = node, calls

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = LIMIT_BYTES
    ) -> CommandResult:
        began_s = time.monotonic()
        result = run_command(argv, timeout_s=timeout_s, env=env, limit_bytes=limit_bytes)
        took_s = time.monotonic() - began_s
        self._calls.add({"node": self._node, "at_s": began_s, "took_s": took_s, "what": asked(argv)})
        return result


def asked(argv: list[str]) -> str:
    """What a client is run for, in two words: ``show nodes``, ``create reservation``, ``sinfo Comment``."""
    tool, words = Path(argv[0]).name, [word for word in argv[1:] if not word.startswith("-")]
    if tool != "scontrol":
        return f"{tool} {words[-1].partition(':')[0]}" if tool == "sinfo" else tool
    return " ".join(word.partition("=")[0] for word in words[:3] if not word.startswith("nodename="))


class OneFault:
    """A Judgement of one fault, from when it begins."""

    boot_id = "bench"

    def __init__(self) -> None:
        self._open: tuple[Diagnosis, ...] = ()

    def begins(self) -> None:
        """The GPU falls off the bus."""
        fault = Diagnosis(
            component=Component(kind="gpu", id="GPU-8e2f"),
            code="gpu.xid.79",
            severity=Severity.CRITICAL,
            remedy=Remedy.REBOOT_NODE,
            reasons=("off the bus",),
            since=datetime.now(UTC),
        )
        self._open = (fault,)

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """The fault."""
        return self._open

    def is_acknowledged(self, diagnosis: Diagnosis) -> bool:
        """Nobody has seen it."""
        return False

    def acknowledge(self, *, by: datetime, now: datetime, why: str) -> None:
        """Nobody does."""

    def acknowledge_shown(
        self, code: str, component: str, *, by: datetime, until: datetime, now: datetime, why: str
    ) -> None:
        """Nobody undoes a drain."""

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """It does not end."""

    def trouble(self, since: datetime | None) -> str:
        """It is open."""
        return self.still_open()

    def still_open(self) -> str:
        """It is."""
        return "gpu.xid.79 is still open"

    def awaits_test(self) -> bool:
        """No test found it."""
        return False

    def not_checked(self, since: datetime | None, *, unknowns: bool = True) -> str:
        """Every check has."""
        return ""

    def not_seen_again(self, code: str, component: Component, since: datetime | None = None) -> str:
        """It is seen at every moment."""
        return ""

    def record(self, event: Event) -> None:
        """The trail is not what is measured."""


class OneFile:
    """Cases of one node: the last one, in a file, so that a killed agent finds it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open_remediation(self) -> Remediation | None:
        """The remediation that was written last."""
        if not self._path.exists():
            return None
        remediation = msgspec.json.decode(self._path.read_bytes(), type=Remediation)
        return remediation if remediation.is_open else None

    def knows(self, remediation_id: str) -> bool:
        """Whether it is that one."""
        remediation = self.open_remediation()
        return remediation is not None and remediation.id == remediation_id

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        """Written beside, then renamed: whoever is killed leaves the old one or the new one."""
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(remediation))
        beside.rename(self._path)


# ---------------------------------------------------------------------------------------------------------------------
# what is seen


def look(conf: str, node: str, seen: Notes) -> None:
    """Read the fleet four times a second, for ever."""
    orchestrator = SlurmOrchestrator(node=node, conf=conf, timeout_s=30.0)
    while True:
        with contextlib.suppress(BackendError):  # looked at again a moment later
            snapshot, slots = orchestrator.snapshot(), orchestrator.slots()
            seen.add(
                {"at_s": time.monotonic(), "out": len(out_or_fenced(snapshot, slots)), "drained": len(snapshot.out)}
            )
        time.sleep(0.25)


def look_costs_ms(seen: Notes, ctld: int) -> float:
    """Milliseconds of slurmctld's CPU time for a look of the watch, while it has nothing else to do."""
    while not seen.read():
        time.sleep(0.1)
    looks, spent_ms = len(seen.read()), cpu_ms(ctld)
    time.sleep(WATCHED_S)
    return (cpu_ms(ctld) - spent_ms) / (len(seen.read()) - looks)


def until_decided(notes: Notes, nodes: set[str], end_s: float) -> None:
    """Until every agent, those that came back included, holds or goes."""
    while time.monotonic() < end_s and not decided(notes).keys() >= nodes:
        time.sleep(0.25)


def decided(notes: Notes) -> dict[str, float]:
    """The nodes whose agents last said that they hold or go, and when they did."""
    last = {note["node"]: note for note in notes.read()}
    return {node: note["at_s"] for node, note in last.items() if note["what"] in ("hold", "go")}


def claimed_or_held(notes: Notes) -> dict[str, float]:
    """When each node's agent last had its slot, or held; of one that is out without these notes, when it said so."""
    at_s = dict[str, float]()
    for note in notes.read():
        if note["what"] in ("settle", "hold") or (note["what"] == "go" and note["node"] not in at_s):
            at_s[note["node"]] = note["at_s"]
    return at_s


def figures_of(notes: Notes, seen: Notes, limit: int, began_s: float) -> dict[str, Any]:
    """What the notes of the agents and of the watch come to."""
    times = [at_s - began_s for at_s in decided(notes).values()]
    over = [note["at_s"] for note in seen.read() if note["out"] > limit]
    trouble = [note["reason"] for note in notes.read() if note["what"] == "trouble"]
    return {
        "decided": len(times),
        "out_at_the_end": seen.read()[-1]["out"],
        "settled_max": max(note["drained"] for note in seen.read()),
        "transient_max": max(0, max(note["out"] for note in seen.read()) - limit),
        "transient_s": round(max(over) - min(over), 2) if over else 0.0,
        "claimed_or_held_last_s": round(max(claimed_or_held(notes).values()) - began_s, 2),
        "decided_p50_s": round(percentile(times, 0.5), 2),
        "last_decision_s": round(max(times), 2),
        "no_answer": len(trouble),
        "first_trouble": trouble[0][:200] if trouble else "",
    }


def out_or_fenced(snapshot: FleetSnapshot, slots: tuple[Slot, ...]) -> frozenset[str]:
    """Whoever takes no new jobs."""
    return snapshot.out | {slot.node for slot in slots}


if __name__ == "__main__":
    sys.exit(main())
