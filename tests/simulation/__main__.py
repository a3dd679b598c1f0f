"""``python -m tests.simulation``: fleets, one for each seed, until the first one whose invariants do not hold.

Prints what each came to and, at the end, node-years for an hour of CPU. Exits 1 where an invariant was violated, or a
process ended without a report. With several workers each fleet lives in a process of its own: none grows by those
before it, and the end of one is no end of the others.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial

from tests.simulation.changes import CHANGES
from tests.simulation.fleet import Report
from tests.simulation.kube_fleet import KubeSimulation, Violation
from tests.simulation.kube_platform import KINDS
from tests.simulation.managers import KINDS as MANAGERS
from tests.simulation.many import lived, lives
from tests.simulation.mutations import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after another")
    parser.add_argument("--hours", type=float, default=24 * 14, help="of simulated time, each")
    parser.add_argument("--nodes", type=int, default=None, help="of each fleet; left out, the seed says it")
    parser.add_argument("--change", choices=sorted(CHANGES), help="an old fault that is put back: it is to be found")
    parser.add_argument("--mutations", action="store_true", help="put each old fault back in turn: which is found?")
    parser.add_argument("--go-on", action="store_true", help="report all violations, and let the fleet live on")
    parser.add_argument("--kubernetes", action="store_true", help="fleets on a simulated API server instead")
    parser.add_argument(
        "--manager", choices=MANAGERS, help="the node manager that repairs the machines of these fleets"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that share the seeds")
    arguments = parser.parse_args()
    if arguments.mutations:
        return 0 if table(range(arguments.seed, arguments.seed + arguments.seeds), out) else 1
    if arguments.kubernetes:
        return kubernetes(range(arguments.seed, arguments.seed + arguments.seeds), arguments.hours)
    live = partial(
        lived,
        hours=arguments.hours,
        nodes=arguments.nodes,
        goes_on=arguments.go_on,
        change=arguments.change,
        manager=arguments.manager,
    )
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    reports: list[Report] = []
    lost: list[int] = []
    for seed, report in lives(live, seeds, arguments.workers):
        if report is None:
            lost.append(seed)
            out(f"LOST with SEED={seed} HOURS={arguments.hours:g}: its process ended without a report")
            continue
        reports.append(report)
        for each in report.violations:
            out(f"VIOLATED with SEED={seed} HOURS={arguments.hours:g} NODES={report.nodes}: {each}")
        if report.violations and not arguments.go_on:
            break
    out(summary(reports))
    return 1 if lost or any(report.violations for report in reports) else 0


def kubernetes(seeds: range, hours: float) -> int:
    """Fleets on Kubernetes, one after another, until the first violation."""
    for seed, platform in ((seed, (None, *KINDS)[seed % (len(KINDS) + 1)]) for seed in seeds):
        fleet = KubeSimulation(seed, platform=platform)
        try:
            fleet.live(hours)
        except Violation as violation:
            out(f"VIOLATED with SEED={seed} HOURS={hours:g}: {violation}")
            return 1
        told = f"messages {fleet.pager.messages}, pages {fleet.pager.pages}"
        acts = f"drains {fleet.drains}, evictions {fleet.evictions}, kills {fleet.kills}"
        asked = f", {fleet.room.platform.summary}" if fleet.room is not None else ""
        out(f"seed {seed}: {fleet.mode}, {acts}, {told}{asked}")
    return 0


def summary(reports: list[Report]) -> str:
    """Node-years, acts, messages and violations of all of them."""
    years, cpu_s = sum(each.node_years for each in reports), sum(each.cpu_s for each in reports)
    acts = sum((each.acts for each in reports), Counter())
    rules = Counter(each.rule for report in reports for each in report.violations)
    return (
        f"seeds {len(reports)}, node-years {years:.1f}, CPU seconds {cpu_s:.1f}, "
        f"node-years per CPU-hour {years / cpu_s * 3600 if cpu_s else 0:,.0f}\n"
        + "".join(f"{act} {acts[act]}, " for act in sorted(acts))
        + f"drains {sum(each.drains for each in reports)}, pages {sum(each.pages for each in reports)}, "
        f"messages {sum(each.messages for each in reports)}, kills {sum(each.kills for each in reports)}, "
        f"sleeps {sum(each.sleeps for each in reports)}\n"
        f"violations {rules.total()}" + "".join(f", {rule} {count}" for rule, count in rules.most_common())
    )


def out(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
