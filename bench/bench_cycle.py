"""What one run of every background check costs, on a simulated p5.48xlarge with 8 GPUs and 32 EFA devices.

CPU time (user and system) of the daemon's own process, of its workers and of the commands that it starts, check by
check, with judgement and the store included; and what the daemon's process opens. A minute at default intervals is the
sum of each check's median times how often it runs. Aim: 0.1 % of a core, which is 60 ms a minute, workers included.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict, fields, replace

from bench.measure import children, cpu_ms, write_down
from bench.whole_machine import whole_machine
from healthd.agent.agent import Agent, acting_agent
from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.model import Status
from healthd.sim.machine import SimulatedMachine

AIM_MS_A_MINUTE = 60.0
LISTED = 10
_OPENS = {"open": "files", "os.listdir": "folders", "os.scandir": "folders", "subprocess.Popen": "processes"}


class Cost(Struct, frozen=True, kw_only=True):
    """CPU milliseconds: of this process, of workers that live, of commands and workers that have ended."""

    daemon: float
    workers: float
    ended: float

    @property
    def total(self) -> float:
        """All of it: a worker that ends in between leaves one place and appears in the other."""
        return self.daemon + self.workers + self.ended

    def since(self, before: Cost) -> Cost:
        """What was spent between two looks."""
        return Cost(**{key: value - getattr(before, key) for key, value in asdict(self).items()})


Cycle = Mapping[str, Cost]


def main() -> int:
    """Measure and write down. Exit 1 where the aim is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=30, help="cycles")
    cycles = options.parse_args().n
    with whole_machine() as machine:
        agent = opened_agent(machine)
        try:
            figures = measured(agent, cycles)
        finally:
            agent.close()
    write_down("cycle", figures)
    return 0 if figures["cpu_ms_a_minute"] <= AIM_MS_A_MINUTE else 1


def opened_agent(machine: SimulatedMachine) -> Agent:
    """The daemon's agent without its threads."""
    settings = {name: check.settings for name, check in discover().items()}
    config = load(machine.config, checks=settings, environ={}).config
    return acting_agent(config, source="daemon", environ={}, changed=lambda: None)


def measured(agent: Agent, cycles: int) -> dict[str, float]:
    """Some cycles to warm up, then those that count; then one in which opened files are counted."""
    names = [name for name, check in agent.checkup.checks.items() if check.on == "interval"]
    for _ in range(3):
        cycle(agent, names)
    costs = [cycle(agent, names) for _ in range(cycles)]
    unknown = [name for name, outcome in agent.monitor.outcomes().items() if outcome.result.status is Status.UNKNOWN]
    if unknown:
        sys.stderr.write(f"unknown here, and so perhaps cheaper than elsewhere: {', '.join(unknown)}\n")
    medians = {name: statistics.median(each[name].total for each in costs) for name in names}
    minute = {name: median * 60.0 / agent.checkup.interval_s(name) for name, median in medians.items()}
    return {
        "cycles": cycles,
        "checks": len(names),
        "unknown_checks": len(unknown),
        **{f"cycle_{part}_ms": round(statistics.median(whole(each, part) for each in costs), 1) for part in PARTS},
        **{f"cycle_opened_{kind}": count for kind, count in opened(agent, names).items()},
        "cpu_ms_a_minute": round(sum(minute.values()), 1),
        "aim_cpu_ms_a_minute": AIM_MS_A_MINUTE,
        **{f"{name}_ms": round(medians[name], 2) for name in dearest(minute)},
        **{f"{name}_ms_a_minute": round(minute[name], 2) for name in dearest(minute)},
    }


PARTS = ("total", *(field.name for field in fields(Cost)))


def whole(costs: Cycle, part: str) -> float:
    return sum(float(getattr(cost, part)) for cost in costs.values())


def dearest(minute: Mapping[str, float]) -> Sequence[str]:
    return sorted(minute, key=lambda name: -minute[name])[:LISTED]


def cycle(agent: Agent, names: Sequence[str]) -> Cycle:
    """Run every check once, one after the other, as the daemon's pool runs it."""
    return {name: cost(agent, name) for name in names}


def cost(agent: Agent, name: str) -> Cost:
    """One run. Looking at the others takes time of our own, so our own clock is read next to the run."""
    others, own = others_spent(), time.process_time()
    agent.checkup.start(name).result()
    own = time.process_time() - own
    return replace(others_spent().since(others), daemon=own * 1000)


def others_spent() -> Cost:
    """CPU milliseconds of the children until now."""
    helpers = {child.pid for child in multiprocessing.active_children()}
    workers = [pid for pid in children(os.getpid()) if pid not in helpers]
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(
        daemon=0.0,
        workers=sum(cpu_ms(pid) for pid in workers),
        ended=(ended.ru_utime + ended.ru_stime) * 1000,
    )


def opened(agent: Agent, names: Sequence[str]) -> dict[str, int]:
    """What one cycle opens in this process: Python says so to an audit hook, which stays for good and so comes last."""
    heard = collections.Counter[str]()
    listening = [True]

    def hook(event: str, _arguments: object) -> None:
        if listening[0] and event in _OPENS:
            heard[_OPENS[event]] += 1

    sys.addaudithook(hook)
    for name in names:
        agent.checkup.start(name).result()
    listening[0] = False
    return {kind: heard[kind] for kind in dict.fromkeys(_OPENS.values())}


if __name__ == "__main__":
    sys.exit(main())
