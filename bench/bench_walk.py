"""The way of one kernel line to the drain: the functions and modules of healthd that it passes.

An agent on a simulated machine, with the local orchestrator, in mode quarantine: one XID 79 is read, judged, decided on
and carried out, in this thread. Each function counts once. Figures of structure: they need no quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import healthd
from bench.measure import write_down
from healthd.agent.agent import Agent, acting_agent, open_kernel_log
from healthd.config.load import load
from healthd.core.check import discover
from healthd.sim.machine import SimulatedMachine

LINE = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
AIM_MODULES = 28
"""Half of what it was when the modules were cut by their length."""
_ROOT = Path(healthd.__file__).resolve().parents[1]


def main() -> int:
    """Count and write down."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--list", action="store_true", help="also print each module with its number of functions")
    wants_list = options.parse_args().list
    with tempfile.TemporaryDirectory() as folder, agent_in(Path(folder)) as (agent, machine):
        passed = functions_of(agent, machine)
    modules = {path for path, _ in passed}
    for path in sorted(modules) if wants_list else ():
        sys.stdout.write(f"{sum(each == path for each, _ in passed):4} {path}\n")
    write_down("walk", {"functions": len(passed), "modules": len(modules), "aim_modules": AIM_MODULES})
    return 0 if len(modules) <= AIM_MODULES else 1


@contextmanager
def agent_in(folder: Path) -> Iterator[tuple[Agent, SimulatedMachine]]:
    """An agent at rest on a machine of its own."""
    machine = SimulatedMachine(folder / "machine")
    config = Path(machine.config)
    config.write_text(config.read_text(encoding="utf-8").replace('mode = "repair"', 'mode = "quarantine"'))
    checks = {name: check.settings for name, check in discover().items()}
    agent = acting_agent(
        load(config, checks=checks, environ={}).config, source="daemon", environ={}, changed=lambda: None
    )
    try:
        yield agent, machine
    finally:
        agent.close()


def functions_of(agent: Agent, machine: SimulatedMachine) -> set[tuple[str, str]]:
    """The functions that run from the read of the line to the drain, as (file, qualified name)."""
    engine, log, passed = agent.engine, open_kernel_log(agent), set[tuple[str, str]]()
    if engine is None:
        raise ValueError("an agent without an engine drains nothing")
    agent.checkup.judge_kernel(log.read_batch(0.0).records, None)
    engine.reconcile(datetime.now(UTC))

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and path.is_relative_to(_ROOT) and code.co_name not in ("<genexpr>", "<listcomp>"):
            passed.add((path.relative_to(_ROOT).as_posix(), code.co_qualname))

    machine.kernel_says(LINE)
    sys.setprofile(note)
    try:
        batch = log.read_batch(0.0)
        agent.checkup.judge_kernel(batch.records, None)
        engine.reconcile(datetime.now(UTC))
    finally:
        sys.setprofile(None)
        log.close()
    if engine.remediation is None or engine.remediation.hold is None:
        raise ValueError(f"the node was not drained: {engine.decision}")
    return {(path, name) for path, name in passed if path.startswith(("healthd/", "remediation/", "checks/"))}


if __name__ == "__main__":
    sys.exit(main())
