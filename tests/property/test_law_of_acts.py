"""The law of acts over weeks: no act whose remedy is not in the ladder of a fault that is open on the node, now.

Faults of several codes on several components, each under a rule of its own, arrive and end in any order, while jobs
run, daemons are killed, rules change and operators act. The law is judged at each act, from the faults that the monitor
holds and the rules that match them, not by the functions that the engine decides with.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import NODE as WHOLE_NODE
from healthd.core.model import Clearance, ClearsBy, Component, Mode, Remedy, Step
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.remediation import End
from healthd.remediation.decide.rules import OWN_REMEDY, Ladder, Policy, Rule
from tests.support.engine_rig import NODE, WORN_OUT, XID_79, XID_95, Trouble, World
from tests.support.engine_wire import kill, no_answer
from tests.support.sampling import examples

RESET, REBOOT, REPLACE, PERSON = Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE, Remedy.ASK_HUMAN
ACTS = {Step.RESET: RESET, Step.REBOOT: REBOOT, Step.REPLACE: REPLACE}
OTHER_GPU = Component(kind="gpu", id="GPU-77aa")
MOUNT = Component(kind="mount", id="/fsx")

LINES = (
    XID_95,
    XID_79,
    WORN_OUT,
    replace(XID_95, component=OTHER_GPU),
    replace(XID_79, component=OTHER_GPU),
)
LEVELS: dict[Trouble, frozenset[Remedy]] = {
    Trouble(code="gpu.count", remedy=REBOOT, clears_by=None): frozenset({REBOOT, REPLACE}),
    Trouble(code="gpu.recovery", remedy=RESET, clears_by=None, component=OTHER_GPU): frozenset({RESET, REBOOT}),
    Trouble(code="efa.missing", remedy=REBOOT, clears_by=None, component=WHOLE_NODE): frozenset({REPLACE}),
    Trouble(code="lustre.missing", remedy=PERSON, clears_by=None, component=MOUNT): frozenset(),
    Trouble(code="host.disk", remedy=REPLACE, clears_by=None, component=WHOLE_NODE): frozenset({REPLACE}),
}
"""What a check sees each time that it looks, and which acts end it: a file server's outage none."""

CODES = sorted({trouble.code for trouble in (*LINES, *LEVELS)})
LADDERS: tuple[Ladder | None, ...] = (
    None,
    None,
    (),
    (PERSON,),
    (RESET,),
    (REBOOT,),
    (RESET, REBOOT),
    (REBOOT, REPLACE),
)
RULES = st.lists(
    st.tuples(st.sampled_from(CODES), st.sampled_from(LADDERS), st.sampled_from([Mode.REPAIR, *Mode])), max_size=4
)
DID_NOT_HELP = re.compile(r"(reset_gpu|reboot_node|replace_node|another machine) did not help")
REPAIR_BY_NAME = Command(verb=Verb.REPAIR, who="uid 0", why="now", remedy=REBOOT)
RELEASE = Command(verb=Verb.RELEASE, who="uid 0", why="seen")
QUIET_STEPS = 400


class Event(Struct, frozen=True, kw_only=True):
    """Something that happens, a number that it may use, how many turns pass after it, and how many hours then."""

    what: str
    number: int
    steps: int
    hours: int


WEIGHTS = {"line": 5, "level": 4, "over": 3, "job": 2, "restart": 1, "wrong": 1, "rules": 1, "order": 1, "resume": 1}
EVENTS = st.builds(
    Event,
    what=st.sampled_from(sorted(Counter(WEIGHTS).elements())),
    number=st.integers(0, 59),
    steps=st.sampled_from([0, 1, 3, 8, 20, 90]),
    hours=st.sampled_from([0, 0, 0, 1, 9, 40]),
)


class Weeks(World):
    """A node on which an act ends what it ends, and nothing else."""

    def _asked_to_reset(self) -> None:
        self._ended_by(RESET)

    def power_cycle(self) -> None:
        self.reboot_heals = False
        self._ended_by(REBOOT)
        super().power_cycle()

    def another_machine(self) -> None:
        self._ended_by(REPLACE)
        left = self.levels
        super().another_machine()
        self.levels = left

    def _ended_by(self, remedy: Remedy) -> None:
        self.levels = {trouble for trouble in self.levels if remedy not in LEVELS[trouble]}


class Life:
    """The weeks of one node. ``_<what>`` happens."""

    def __init__(self, folder: Path, rules: list[tuple[str, Ladder | None, Mode]]) -> None:
        self.world = Weeks(folder / "n1", mode=Mode.REPAIR, can_reset=True, can_replace=True)
        self._rules_are(rules)
        self.world.acting = self.judge
        self.made: Counter[tuple[str, Remedy]] = Counter()

    def go_through(self, event: Event) -> None:
        getattr(self, f"_{event.what}")(event.number)
        for _ in range(event.steps):
            self._step()
        if not self._is_down:
            self.world.clock.advance(3600.0 * event.hours)
        self._step()

    @property
    def _is_down(self) -> bool:
        """Whether its reboot or its replacement was asked for and has not come yet."""
        return bool(self.world.boots_at_s or self.world.replaced_at_s)

    def _step(self) -> None:
        message = self.world.step()
        if claim := DID_NOT_HELP.search(message):
            remediation = self.world.store.open_remediation()
            assert remediation is not None
            remedy = REPLACE if claim[1] == "another machine" else Remedy(claim[1])
            assert self.made[remediation.id, remedy], f"claims an act that was not made: {message}"

    def judge(self, step: Step) -> None:
        """At each act: some open fault has its remedy in its ladder, and the remediation names one that has."""
        remediation = self.world.store.open_remediation()
        assert remediation is not None
        if step not in ACTS:
            return
        self.made[remediation.id, ACTS[step]] += 1
        drivers = [] if remediation.command else list(self._drivers(ACTS[step]))
        assert remediation.command or drivers, f"{step} although no open fault calls for it: {self._trail()}"
        named = [component for code, component in drivers if code == remediation.code]
        assert remediation.command or remediation.component in named, (
            f"{step} for {drivers} under the name of {remediation.code}"
        )

    def _drivers(self, remedy: Remedy) -> Iterator[tuple[str, str]]:
        monitor, policy = self.world.monitor, self.world.rules.policy
        acknowledged = {each.component for each in monitor.diagnoses() if monitor.is_acknowledged(each)}
        for fault in monitor.history.faults.values():
            rule = policy.rule_for(fault.code, fault.component, ())
            calls = remedy in rule.ladder_for(fault) and rule.mode is Mode.REPAIR
            if calls and fault.component not in acknowledged:
                yield fault.code, str(fault.component)

    def comes_back(self) -> None:
        """Once all faults are over and nothing is asked of an operator, the node is in service."""
        world = self.world
        world.wire.at.clear()
        self._rules_are([])
        world.levels.clear()
        world.end_jobs()
        for each in LINES:
            ended = Clearance(by=each.clears_by or ClearsBy.REBOOT, component=each.component, note="it is over")
            world.monitor.clear(ended, world.clock.now())
        for _ in range(QUIET_STEPS):
            self._step()
        remediation = world.store.open_remediation()
        ordered = remediation is not None and (remediation.end is End.FAILED or bool(remediation.command))
        assert ordered or world.orchestrator.view().in_service, self._trail()

    def _trail(self) -> str:
        return "\n".join(self.world.transcript()[-12:])

    # -- what happens -------------------------------------------------------------------------------------------------

    def _line(self, number: int) -> None:
        self.world.log_line(LINES[number % len(LINES)])

    def _level(self, number: int) -> None:
        self.world.levels.add(list(LEVELS)[number % len(LEVELS)])

    def _over(self, number: int) -> None:
        """A level ends by itself; or somebody resets a GPU by hand."""
        if self.world.levels and number % 2:
            self.world.levels.discard(sorted(self.world.levels, key=str)[number % len(self.world.levels)])
        else:
            self.world.reset_gpu()

    def _job(self, number: int) -> None:
        if self.world.orchestrator.view().in_service:
            self.world.start_job()
            self.world.at(self.world.clock() + 40.0 * number, self.world.end_jobs)

    def _restart(self, number: int) -> None:
        self.world.restart_daemon()

    def _wrong(self, number: int) -> None:
        """At a boundary ahead the daemon dies, or an answer of the cluster is lost."""
        wire = self.world.wire
        wire.at[len(wire.passed) + number] = partial(self._go_wrong, number)

    def _go_wrong(self, number: int) -> None:
        writes = self.world.wire.passed[-1].split()[1] in ("save", "collect", "reset", "start")
        (kill if writes or number % 2 else no_answer)()

    def _rules(self, number: int) -> None:
        """The site changes a rule, by SIGHUP."""
        ladder, mode = LADDERS[number % len(LADDERS)], (Mode.REPAIR, *Mode)[number % 4]
        self._rules_are([(CODES[number % len(CODES)], ladder, mode)])

    def _rules_are(self, rules: list[tuple[str, Ladder | None, Mode]]) -> None:
        site = tuple(
            Rule(
                name=f"site {number}", codes=(code,), reason="ours", source="ours", ladder=ladder, mode=mode, site=True
            )
            for number, (code, ladder, mode) in enumerate(rules)
        )
        self.world.rules = replace(self.world.rules, policy=Policy(rules=(*site, OWN_REMEDY)))
        self.world.restart_daemon()

    def _order(self, number: int) -> None:
        self.world.execute(REPAIR_BY_NAME if number % 3 else RELEASE)

    def _resume(self, number: int) -> None:
        """An operator puts the node back in service: what is open is acknowledged."""
        if self.world.cluster.nodes[NODE].flags and not self._is_down:
            self.world.cluster.update(NODE, "resume")


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(events=st.lists(EVENTS, min_size=6, max_size=30), rules=RULES)
def test_no_act_without_an_open_fault_that_calls_for_it(
    events: list[Event], rules: list[tuple[str, Ladder | None, Mode]]
) -> None:
    """Each reset, reboot and replacement is in the ladder of a fault that is open then, and the remediation names that
    fault. No sentence claims an act that was not made, and a node whose faults are over comes back."""
    with tempfile.TemporaryDirectory(prefix="healthd-law-") as folder:
        life = Life(Path(folder), rules)
        try:
            for event in events:
                life.go_through(event)
            life.comes_back()
        finally:
            life.world.close()
