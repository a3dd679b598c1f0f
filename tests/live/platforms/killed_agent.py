"""The agent of one node as a process that dies on order, by SIGKILL, at any boundary of what it does.

Everything of healthd's is real: the engine as ``make_engine`` puts it together, its store on disk, Slurm's clients, the
child that calls AWS, the GPU reset with its commands. Only what judges the node is small: one check, which finds what
stands in the machine's file ``fault``, and a time that passes in steps, so that no time-out has to be waited for.

A boundary is: inside a write, right before it is committed; before, during and after each command or call that acts;
and the rest that an agent comes to. After a write and inside the next one are one moment: nothing lies between them but
readings, which leave the disk and the cluster as they are.

As a program this loads all of it once, and forks for each order (``forked_healthd``).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import asdict

from healthd.agent.wiring import make_engine
from healthd.config.load import load
from healthd.config.schema.config import Config, PolicySection
from healthd.core.check import Check, NoSettings, judged
from healthd.core.model import Component, Event, Finding, Outcome, Remedy, Result, Severity
from healthd.core.node import CommandResult, KernelLogState, Node
from healthd.judge.findings import OwnResets
from healthd.observe.checkup import Checkup
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.engine import Engine
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.policy_files import policy_of
from healthd.remediation.ports import Orchestrator
from healthd.remediation.provisioners import aws_child
from healthd.remediation.provisioners.aws_calls import find_call
from healthd.sources.command import run_command
from healthd.sources.machine import open_machine
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.live.aws.moto_server import dummy_env
from tests.support.forked_healthd import become, fork_for_each

GPU = Component(kind="gpu", id="GPU-5e1f")
STEP_S = 5.0
"""How much time passes from one turn of the engine to the next, as the engine is told."""

_NAME = "machine.fault"
# Kills its parent, the agent, and then does all the same what it was started for; who waits for it sees the file.
_KILLS_FIRST = 'kill -9 "$1"; done=$2; shift 2; "$@"; : >"$done"'

# ---------------------------------------------------------------------------------------------------------------------
# orders and answers


class Order(Struct, frozen=True, kw_only=True):
    """``story`` and ``machine``: folders, see ``killing``. ``die_at``: a boundary's name, "" for no kill;
    ``occurrence``: which of that name in the story, counted from 1. ``own_children``: AWS's child is started as in
    service, else it is forked from here, at a tenth of the cost.
    """

    story: str
    machine: str
    die_at: str = ""
    occurrence: int = 1
    own_children: bool = False


class Rest(Struct, frozen=True, kw_only=True):
    """What an agent came to that had nothing more to do for now. ``message``: the engine's last sentence; ``refusal``:
    of its decision."""

    message: str
    calling: bool
    step: str = ""
    phase: str = ""
    end: str = ""
    refusal: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# boundaries


class Line:
    """Every boundary that one story has passed, in order, over all the processes of it; and the one to die at."""

    def __init__(self, order: Order) -> None:
        self._story, self._order = Path(order.story), order
        self._file = os.open(self._story / "passed", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        before = (self._story / "passed").read_text().splitlines()
        self.number, self._left = len(before), order.occurrence - before.count(order.die_at)

    def passing(self, label: str) -> None:
        """A boundary; the end of the process where it is the one."""
        if self.is_fatal(label):
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self, argv: Sequence[str], *, timeout_s: float, **more: Any) -> CommandResult:
        """As run_command, with boundaries around what acts."""
        what = act_of(argv, more.get("input") or "")
        if not what:
            return self._run(argv, timeout_s, more)
        self.passing(f"before {what}")
        if self.is_fatal(f"during {what}"):
            shell = ("/bin/sh", "-c", _KILLS_FIRST, "sh", str(os.getpid()), str(self._story / "orphan-ended"))
            return run_command((*shell, *argv), timeout_s=timeout_s, **more)
        result = self._run(argv, timeout_s, more)
        self.passing(f"after {what}")
        return result

    def _run(self, argv: Sequence[str], timeout_s: float, more: dict[str, Any]) -> CommandResult:
        if argv[0] == sys.executable and not self._order.own_children:
            return _forked(tuple(argv), more["input"])
        return run_command(argv, timeout_s=timeout_s, **more)

    def is_fatal(self, label: str) -> bool:
        """A boundary that is passed; whether it is the one at which this process has to die."""
        os.write(self._file, f"{label}\n".encode())
        self.number += 1
        if label != self._order.die_at:
            return False
        self._left -= 1
        return self._left == 0


def act_of(argv: Sequence[str], text: str) -> str:
    """What a command changes, in words; "" where it only reads. ``text``: what it reads from stdin."""
    tool, *words = (os.path.basename(argv[0]), *argv[1:])
    if argv[0] == sys.executable:
        question = json.loads(text)
        call = find_call(question["service"], question["operation"])
        return call.action if call is not None and call.acts else ""
    if tool in ("sinfo", "squeue") or "show" in words[:3] or words[0] in ("is-active", "--help"):
        return ""
    if words[0] == "update":
        return f"scontrol {words[2].partition(' ')[0].partition('=')[0]}={words[2].partition('=')[2].partition(' ')[0]}"
    return " ".join((tool, *words[:2]))


def _forked(argv: tuple[str, ...], question: str) -> CommandResult:
    """The answer of AWS's child, which is a fork of this process and so need not load boto3 again."""
    began_s = time.monotonic()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.disable()  # as in the child itself
        try:
            asked = json.loads(question)
            told = json.dumps(aws_child.answer(asked, time.monotonic() + float(asked["timeout_s"])), default=str)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(told)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return CommandResult(argv=argv, code=0, stdout=told, stderr="", duration_s=time.monotonic() - began_s)


class DyingStore(Store):
    """A store whose every write passes a boundary right before its commit: the last moment at which it is lost."""

    def __init__(self, path: Path, *, now: datetime, line: Line) -> None:
        self._line, self._what = line, "history"
        super().__init__(path, now=now)

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        """As Store."""
        self._what = (
            f"remediation {remediation.step} {remediation.phase}{f' {remediation.end}' if remediation.end else ''}"
        )
        try:
            super().save_remediation(remediation, event)
        finally:
            self._what = "history"

    @contextlib.contextmanager
    def _transaction(self, *, writes: bool = True, aside: bool = False) -> Iterator[sqlite3.Connection]:
        with super()._transaction(writes=writes, aside=aside) as db:
            yield db
            if writes:
                self._line.passing(f"write {self._what}")


# ---------------------------------------------------------------------------------------------------------------------
# the node


class Time:
    """The story's time, kept in its file: a process that starts again does not go back in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now = datetime.fromtimestamp(float(path.read_text()), UTC)

    def now(self) -> datetime:
        """The time of this turn."""
        return self._now

    def passes(self) -> datetime:
        """The next turn's."""
        self._now += timedelta(seconds=STEP_S)
        self._path.write_text(str(self._now.timestamp()))
        return self._now


def _look_elsewhere(node: Node, settings: NoSettings) -> Result:
    raise AssertionError("the agent looks by itself")


CHECKS = {
    _NAME: Check(
        name=_NAME,
        run=_look_elsewhere,
        title=_NAME,
        doc=_NAME,
        interval_s=60.0,
        timeout_s=10.0,
        settings=NoSettings,
        on="interval",
    )
}


class AlwaysLooking:
    """The part of a Checkup that the engine uses: here each turn begins with a check run, and no test is active."""

    def __init__(self) -> None:
        self.checks, self.own_resets = CHECKS, OwnResets()

    def start_older_than(self, since: datetime) -> None:
        """Nothing is older."""


def found(machine: Path, now: datetime) -> Outcome:
    """What the one check sees: the file ``fault`` holds a code and a remedy, or is not there."""
    words = (machine / "fault").read_text().split() if (machine / "fault").exists() else []
    findings = [
        Finding(
            code=words[0],
            severity=Severity.CRITICAL,
            component=GPU,
            message=f"{words[0]} is there",
            remedy=Remedy(words[1]),
        )
        for words in ([words] if words else [])
    ]
    return Outcome(check=_NAME, result=judged(findings), at=now, duration_s=0.01)


def hears(engine: Engine, story: Path, node: str, line: Line, now: datetime) -> None:
    """The command of an operator, which lies in the file ``command`` until it has an answer: one that was cut off is
    given again. Each answer is a line of ``answers``."""
    if not (story / "command").exists():
        return
    asked = json.loads((story / "command").read_text())
    verb = Verb(asked["verb"])
    remedy = Remedy(asked["remedy"]) if asked["remedy"] else None
    line.passing(f"before command {verb}")
    command = Command(verb=verb, who="uid 0", why="seen", remedy=remedy, forced=verb is Verb.UNDO, target=node)
    outcome = engine.execute(command, now)
    line.passing(f"after command {verb}")
    with (story / "answers").open("a") as answers:
        answers.write(json.dumps({"verb": verb, "done": outcome.done, "refusal": outcome.refusal or ""}) + "\n")
    (story / "command").unlink()


def on_slurm(config: Config, line: Line) -> Orchestrator:
    """Slurm, whose every command that acts has boundaries around it."""
    return SlurmOrchestrator.of(config, config.node.name, run=line.run)


def live(order: Order, open_orchestrator: Callable[[Config, Line], Orchestrator] = on_slurm) -> None:
    """One process of an agent: from its start to its rest, or to its death."""
    story, machine = Path(order.story), Path(order.machine)
    line = Line(order)
    time_here = Time(story / "time")
    config = load(machine / "config.toml", checks={}, environ={}).config
    os.environ["PATH"] = f"{machine / 'bin'}:{os.environ['PATH']}"
    os.environ.update(KILLED_STORY=str(story), KILLED_MACHINE=str(machine))
    node = open_machine(config, lambda: KernelLogState(source="", alive=True))
    store = DyingStore(Path(config.daemon.state_dir) / "healthd.db", now=time_here.now(), line=line)
    policy = policy_of(config.policy, node.instance_type)
    monitor = Monitor(CHECKS, store, policy=policy)
    engine = make_engine(
        config=config,
        machine=node,
        monitor=monitor,
        checkup=cast(Checkup, AlwaysLooking()),
        store=store,
        orchestrator=open_orchestrator(config, line),
        policy=policy,
        collect=lambda remediation: _collected(story, remediation),
        run=line.run,
        clock=time_here.now,
        monotonic_s=lambda: time_here.now().timestamp(),
    )
    monitor.begin_instance(node.identity.instance_id, time_here.now())
    monitor.begin_boot(node.boot_id, time_here.now())
    message, moved = "", True
    with (story / "said").open("a", buffering=1) as told:
        while moved:
            now = time_here.passes()
            monitor.absorb(found(machine, now))
            before, passed = message, line.number
            hears(engine, story, config.node.name, line, now)
            message = engine.reconcile(now)
            moved = message != before or line.number != passed
            told.write(f"{machine.name} {message}\n")
            time.sleep(0.02)  # the settle time of a slot is a real one
    line.passing("at rest")
    remediation = store.open_remediation()
    rest = Rest(
        message=message,
        calling=bool(monitor.diagnoses()),
        step=remediation.step if remediation else "",
        phase=remediation.phase if remediation else "",
        end=remediation.end or "" if remediation else "",
        refusal=engine.decision.refusal or "",
    )
    store.close()
    (story / "rest").write_text(json.dumps(asdict(rest)))


def _collected(story: Path, remediation: Remediation) -> str:
    """The evidence of a remediation."""
    bundle = story / f"bundle-{remediation.id}"
    bundle.write_text(f"{remediation.code} on {remediation.component}\n")
    return str(bundle)


# ---------------------------------------------------------------------------------------------------------------------
# the process that forks


def main(one_life: Callable[[Order], None] = live) -> None:
    """Load what a life needs, and fork for each order, which comes as the one argument."""
    import boto3

    os.environ.update(dummy_env())  # boto3 keeps what it has read, as of the forks themselves
    for service in ("sagemaker", "ec2", "autoscaling"):  # their models stay in memory for every fork,
        boto3.client(service, region_name="us-east-1").close()
    policy_of(PolicySection(), None)  # and so do the policies, with the checks whose codes they name,
    import_module("healthd.remediation.provisioners.from_config")  # and what an engine loads to be made
    gc.freeze()  # what all share stays shared
    (order,) = become(*fork_for_each(sys.argv[1]))
    _live_and_end(Order(**json.loads(order)), one_life)


def _live_and_end(order: Order, one_life: Callable[[Order], None]) -> None:
    code = 1
    try:
        one_life(order)
        code = 0
    finally:
        if code:
            (Path(order.story) / "broke").write_text(traceback.format_exc())
        os._exit(code)


if __name__ == "__main__":
    main()
