"""Laws of the engine over any order of faults, admins, kills, silences, restarts, reboots and changes of mode.

What happens here happens between the engine's turns, or as a kill or a lost answer at one of its boundaries; an admin
never acts inside the window between our last reading and our update, which ``scenario/test_engine_replay.py`` measures.
So there is no excuse in this file: what an admin holds is never touched.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Action, ClearsBy, Mode, Remedy, Step
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.orchestrators.slurm.reasons import without_remarks
from healthd.remediation.ports import Hold
from tests.support.engine_rig import NODE, STEP_S, TIMEOUTS, XID_79, XID_95, Trouble, World, lowered
from tests.support.engine_wire import disk_is_full, kill, no_answer, refused
from tests.support.sampling import examples

LEVEL = Trouble(code="gpu.recovery", remedy=Remedy.REBOOT_NODE, clears_by=None)
WORN_OUT = replace(XID_79, code="gpu.remap.failed", remedy=Remedy.REPLACE_NODE, clears_by=ClearsBy.REBOOT)
QUIET_STEPS = 700
ADMIN = "mine"


class Event(Struct, frozen=True, kw_only=True):
    """Something that happens, a number that it may use, and how many turns pass before the next."""

    what: str
    number: int
    steps: int


# How often each happens. Faults are frequent, or most lives would be idle.
WEIGHTS = {"line": 3, "line_then_wrong": 2, "level": 2, "wrong": 3, "admin": 2, "restart": 2, "nothing": 2}
ONCE = ("slurm", "resume", "reset", "job", "hang", "kill", "reboot", "mode", "opt_out", "limit", "boots")
EVENTS = st.builds(
    Event,
    what=st.sampled_from([*ONCE, *Counter(WEIGHTS).elements()]),
    number=st.integers(0, 59),
    steps=st.sampled_from([1, 1, 2, 3, 8, 20, 130]),
)


class Life:
    """One node's life: events in order, laws judged at every act and after every event. ``_<what>`` happens."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self.world = World(folder, mode=mode)
        self.world.acting = self.judge
        self.asked: Counter[tuple[str, str]] = Counter()
        self.passing: list[tuple[float, Callable[[], None]]] = []
        self.over_ours: dict[str, int] = {}
        """What Slurm wrote over a drain of ours, and in which boot."""
        self.found: dict[str, int] = {}
        """The same, and in which boot healthd found it: a controller that hung shows it after the next only."""
        self.opened: Remediation | None = None
        self.left: set[str] = set()
        """What Slurm wrote over a drain of ours, and healthd left to it."""
        self.judged, self.waits = 0, False

    def go_through(self, event: Event) -> None:
        getattr(self, f"_{event.what}")(event.number)
        for _ in range(event.steps):
            due = [end for at, end in self.passing if at <= self.world.clock()]
            self.passing = [item for item in self.passing if item[0] > self.world.clock()]
            for end in due:
                end()
            self._step()
        assert sum(remediation.is_open for remediation in self.world.store.remediations()) <= 1

    def _step(self) -> str:
        """One turn. What it changed was ours; and a drain that it left to Slurm may be left."""
        message = self.world.step()
        for update in self.world.cluster.updates[self.judged :]:
            changed = update.user == "healthd" and update.before != update.after
            assert not changed or update.before is None or self._is_ours(update.before), f"not ours to change: {update}"
        self.judged = len(self.world.cluster.updates)
        before, self.opened = self.opened, self.world.store.open_remediation()
        if self.opened is not None and self.opened.hold is not None and self._over_ours(self.opened.hold):
            self.found.setdefault(without_remarks(self.opened.hold.text)[0], self.world.boot)
        self._judge_the_wait(message)
        if before is not None and not before.has_ended and before != self.opened:
            self._judge_the_end(next(each for each in self.world.store.remediations() if each.id == before.id))
        return message

    def _judge_the_wait(self, message: str) -> None:
        """A node waits for an operator by Slurm's text over ours only where it was found in this boot, nothing was
        repaired since, and that pages."""
        self.waits = "over our drain, and nothing was repaired since" in message
        hold = self._hold()
        if not self.waits or hold is None:
            return
        text = without_remarks(hold.text)[0]
        assert self.found.get(text, self.over_ours[text]) == self.world.boot, f"ours to undo: {hold}"
        assert self.opened is not None
        assert not self.opened.acts
        assert self.world.engine.decision.action is Action.PAGE

    def _judge_the_end(self, remediation: Remediation) -> None:
        """A node stays drained by Slurm's text over ours only where healthd found that in this boot, nothing was
        repaired since, and the end says so."""
        hold = self._hold()
        if remediation.end is End.ABANDONED and hold is not None and self._over_ours(hold):
            text = without_remarks(hold.text)[0]
            assert self.found.get(text, self.over_ours[text]) == self.world.boot, f"ours to undo: {hold}"
            assert not remediation.acts
            assert "the node stays drained by the cluster itself" in remediation.note
            self.left.add(text)

    def judge(self, step: Step) -> None:
        """At each act of the engine. The rig has judged already that its intent is on disk."""
        world = self.world
        node, remediation = world.cluster.nodes[NODE], world.store.open_remediation()
        assert remediation is not None
        assert world.rules.mode is not Mode.OBSERVE, "observe mode touches nothing"
        assert not world.rules.opted_out
        if step is Step.DRAIN:
            assert not node.flags, f"a node that is out, held by {node.hold}, is not drained"
        else:
            shown = world.orchestrator.view().hold
            assert shown is not None
            assert remediation.hold is not None
            assert shown.is_still(remediation.hold), f"{step} of a node that is held by {node.hold}"
            assert node.hold is not None
            assert self._is_ours(node.hold)
            if step is Step.RELEASE and not remediation.acts:
                assert not self._is_slurms_word(node.hold), "what Slurm found was not repaired"
        if step is Step.RELEASE:
            assert not world.boots_at_s, "no job meets a reboot that was asked for"
        if step is Step.REBOOT:
            assert world.rules.mode is Mode.REPAIR
            assert not node.jobs, "no reboot under a job"
            # A remediation that turns to a worse fault starts its attempts again, once for each code.
            self.asked[remediation.id, remediation.code] += 1
            assert self.asked[remediation.id, remediation.code] <= TIMEOUTS.max_attempts

    def comes_to_rest(self) -> None:
        """Once the world is quiet and nobody else holds it, our drain does not stay on a node that is healthy. What was
        left to Slurm before, or waits for an operator because of it, an operator puts back."""
        world = self.world
        self._make_quiet()
        for _ in range(QUIET_STEPS):
            if (hold := self._hold()) is not None and (self.waits or not self._is_ours(hold)):
                world.cluster.update(NODE, "resume")
            self._step()
            remediation = world.store.open_remediation()
            if (remediation is None or remediation.end is End.FAILED) and not world.boots_at_s and self._hold() is None:
                break
        remediation = world.store.open_remediation()
        if remediation is not None and remediation.end is End.FAILED:
            assert remediation.attempts >= TIMEOUTS.max_attempts
        else:
            assert self._hold() is None, f"still out, {world.cluster.nodes[NODE]}: {world.transcript()[-3:]}"

    def _make_quiet(self) -> None:
        world = self.world
        world.wire.at.clear()
        for _, end in self.passing:
            end()
        world.levels, world.never_boots, world.reboot_heals = set(), False, True
        lowered(world, Mode.REPAIR)
        world.reset_gpu()
        world.power_cycle()

    def _hold(self) -> Hold | None:
        return self.world.cluster.nodes[NODE].hold

    # -- what happens -------------------------------------------------------------------------------------------------

    def _is_ours(self, hold: Hold) -> bool:
        """A drain of the engine's, or what Slurm made of one, unless that was left to it."""
        text = without_remarks(hold.text)[0]
        return text not in self.left and (hold.user == "healthd" or self._over_ours(hold) or text in self.texts)

    def _over_ours(self, hold: Hold) -> bool:
        return without_remarks(hold.text)[0] in self.over_ours

    def _is_slurms_word(self, hold: Hold) -> bool:
        """Whether Slurm wrote it over our drain in this boot: what it found then is there still."""
        return self.over_ours.get(without_remarks(hold.text)[0]) == self.world.boot

    @property
    def texts(self) -> set[str]:
        return {update.after.text for update in self.world.ours if update.after is not None}

    def _nothing(self, number: int) -> None:
        pass

    def _slurm(self, number: int) -> None:
        """Slurm appends to a reason from now on, or puts a text of its own in the place of ours."""
        self.world.cluster.appends = bool(number % 2)
        hold = self._hold()
        if hold is not None and hold.user == "healthd" and "DRAIN" in self.world.cluster.nodes[NODE].flags:
            text = f"Kill task failed (JobId={len(self.over_ours)} StepId=batch)"
            self.over_ours[text] = self.world.boot
            self.world.cluster.drains_by_itself(NODE, text)

    def _line(self, number: int) -> None:
        self.world.log_line((XID_95, XID_79, WORN_OUT)[number % 3])

    def _level(self, number: int) -> None:
        self.world.levels = {LEVEL} if number % 3 else set()

    def _reset(self, number: int) -> None:
        self.world.reset_gpu()

    def _line_then_wrong(self, number: int) -> None:
        self._line(number)
        self._wrong(number)

    def _wrong(self, number: int) -> None:
        """At a boundary ahead: the daemon dies, an answer is lost or a no, a write fails, the mode is lowered."""
        wire = self.world.wire
        what = (kill, no_answer, disk_is_full, refused, self._mode_is_lowered)[number % 5]
        wire.at[len(wire.passed) + number // 4] = partial(self._go_wrong, what)

    def _go_wrong(self, what: Callable[[], None]) -> None:
        """What cannot go wrong there does not: a write has no answer to lose, and what is refused was not applied."""
        when, port = self.world.wire.passed[-1].split()
        writes = port in ("save", "collect")
        fits = what in (kill, self._mode_is_lowered) or (what is disk_is_full) == writes
        if fits and (what is not refused or when == "before"):
            what()

    def _mode_is_lowered(self) -> None:
        self._for_a_while(9, partial(lowered, self.world, Mode.OBSERVE), partial(lowered, self.world, Mode.REPAIR))

    def _admin(self, number: int) -> None:
        words = [("drain",), ("down",), ("fail",), ("undrain",), ("undrain", "drain"), ("",)][number % 6]
        for word in () if self.world.cluster.hung else words:
            self.world.cluster.update(NODE, word, "" if word == "undrain" else ADMIN)

    def _resume(self, number: int) -> None:
        """Whoever puts a node back that we hold, and that we see we hold, has given an order, whatever is allowed."""
        held = self._held_in_calm(paused=True)
        if not self.world.cluster.hung and self.world.cluster.nodes[NODE].flags:
            self.world.cluster.update(NODE, "resume")
        if held is not None and held.controller == f"start {self.world.cluster.starts}":
            message = self._step()
            assert message.startswith("our drain was undone by an operator: that acknowledges the fault")

    def _restart(self, number: int) -> None:
        """A controller that forgets our drain gives no order."""
        held = self._held_in_calm()
        self.world.cluster.restart(losing=[NODE] if number % 2 else [])
        if held is not None and number % 2 and not self.world.cluster.nodes[NODE].flags:
            message = self._step()
            assert message.endswith("which lost our drain: it is made again")

    def _held_in_calm(self, *, paused: bool = False) -> Remediation | None:
        """The remediation whose drain is on the node, if nothing keeps the engine from looking at it in the next turn.

        ``paused``: also one for which nothing may be done now.
        """
        world, remediation = self.world, self.world.store.open_remediation()
        allowed = paused or (world.rules.mode is not Mode.OBSERVE and not world.rules.opted_out)
        if (
            remediation is None
            or remediation.hold is None
            or remediation.hold != self._hold()
            or remediation.phase is Phase.INTENDED
        ):
            return None
        return (
            remediation if allowed and not world.cluster.hung and not world.wire.at and not world.boots_at_s else None
        )

    def _kill(self, number: int) -> None:
        self.world.restart_daemon()

    def _reboot(self, number: int) -> None:
        self.world.power_cycle()

    def _boots(self, number: int) -> None:
        self.world.reboot_heals, self.world.never_boots = bool(number % 2), number % 3 == 0

    # -- what passes, or the engine would hardly ever do anything -----------------------------------------------------

    def _for_a_while(self, number: int, begin: Callable[[], object], end: Callable[[], object]) -> None:
        begin()
        self.passing.append((self.world.clock() + (1 + number // 4) * STEP_S, lambda: (end(), None)[1]))

    def _job(self, number: int) -> None:
        if not self.world.cluster.nodes[NODE].flags:
            self._for_a_while(number, self.world.start_job, self.world.end_jobs)

    def _hang(self, number: int) -> None:
        self._for_a_while(number, partial(setattr, self.world.cluster, "hung", True), self.world.cluster.wake)

    def _mode(self, number: int) -> None:
        begin, end = list(Mode)[number % 3], (Mode.REPAIR, Mode.REPAIR, Mode.QUARANTINE)[number % 4 % 3]
        self._for_a_while(number, partial(lowered, self.world, begin), partial(lowered, self.world, end))

    def _opt_out(self, number: int) -> None:
        self._for_a_while(number, partial(self._opted, "hands off"), partial(self._opted, ""))

    def _opted(self, why: str) -> None:
        self.world.rules = replace(self.world.rules, opted_out=why)

    def _limit(self, number: int) -> None:
        self._for_a_while(number, partial(self._others_are, {"DOWN"}), partial(self._others_are, set()))

    def _others_are(self, flags: set[str]) -> None:
        for name in ("n2", "n3", "n4"):
            self.world.cluster.nodes[name].flags = set(flags)


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(events=st.lists(EVENTS, min_size=5, max_size=40), mode=st.sampled_from([Mode.QUARANTINE, Mode.REPAIR]))
@example(  # Slurm appends to a text of its own
    events=[
        Event(what="line", number=0, steps=8),
        *[Event(what="slurm", number=0, steps=1)] * 3,
        Event(what="slurm", number=1, steps=8),
    ],
    mode=Mode.REPAIR,
)
@example(  # Slurm writes over our drain three times, and the fault ends without a repair: the node stays Slurm's
    events=[
        Event(what="line", number=0, steps=8),
        *[Event(what="slurm", number=0, steps=8)] * 3,
        Event(what="reset", number=0, steps=20),
    ],
    mode=Mode.QUARANTINE,
)
@example(  # an operator reboots a drained node, and Slurm writes over the drain after that
    events=[
        Event(what="line", number=1, steps=8),
        Event(what="reboot", number=0, steps=1),
        Event(what="slurm", number=0, steps=60),
    ],
    mode=Mode.QUARANTINE,
)
@example(  # Slurm writes while its controller hangs, so that healthd reads it in the next boot, with a remark behind it
    events=[
        Event(what="line", number=2, steps=60),
        Event(what="hang", number=55, steps=8),
        Event(what="slurm", number=41, steps=1),
    ],
    mode=Mode.QUARANTINE,
)
def test_whatever_happens_nobody_is_overruled_and_a_well_node_comes_back(events: list[Event], mode: Mode) -> None:
    """In observe mode nothing is touched, nobody else's hold ever is, no reboot under a job or beyond the attempts, and
    once the world is quiet our drain does not stay on a node that is well."""
    with tempfile.TemporaryDirectory(prefix="healthd-laws-") as folder:
        life = Life(Path(folder), mode)
        try:
            for event in events:
                life.go_through(event)
            life.comes_to_rest()
        finally:
            life.world.close()
