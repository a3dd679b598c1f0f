"""What must be true of a simulated fleet, whatever happens to it: one function for each sentence, each with its reason.

They see what the daemons never see: what is really wrong with a machine, what was really done to it, and what people
were really told.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct, field

from healthd.core.model import Action, Remedy, Severity, Step
from healthd.notify.message import Message
from healthd.notify.news import KNOWN_CHANGES_EVERY_S, LASTS_S, NODE_KEY, PAGED, NewsKind
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.remediation import ACTS, QUARANTINE_CODE, End, Phase, Remediation, code_of
from healthd.remediation.records.handoff import RequestAnswer, parse
from tests.simulation.daemon import Ground
from tests.simulation.head import Head
from tests.simulation.node import Node
from tests.simulation.power import PowerSaving
from tests.simulation.slurm import SLURM, US
from tests.simulation.timeline import BEGINNING, shown
from tests.support.troubled_cluster import FakeUpdate

HOUR, DAY = 3600.0, 86_400.0
TRAIL = 60
_ABSENT = f"{PAGED}absent "
UNWATCHED = "its own healthd has said nothing"
OTHERS = ("silent ", "overdue ", _ABSENT)
"""How the keys of what others page for begin: the controller, and the agent that speaks for a name without one."""

SETTLES_S = 180.0
"""A node that went out so lately may not be on the list by which another was let out: deadline, settle time, slack."""
OVERDUE_S = 4 * HOUR + 900.0
"""Out by our hand for longer, and somebody has to be told: the bound of the notifications, and one calm poll."""
REPEAT_S = DAY + HOUR
VERIFIED_WITHIN_S = 900.0
"""Of another machine that came late: healthy by then, or paged."""
ADOPTED_WITHIN_S = 2 * HOUR
"""A slot without a remediation: its holder's daemon, or the controller, has this long to find it."""
BACK_WITHIN_S = 2 * HOUR
"""From the last of its faults to service: verification and settling take minutes; a cluster that hangs, longer."""
NEW_CAUSE_WITHIN_S = KNOWN_CHANGES_EVERY_S + 1800.0
"""One that was told before waits for the first: where two take turns (a held node that Slurm powers down every half
hour), each is told once in that time."""
ANSWERED_WITHIN_S = HOUR
REPAIRED_WITHIN_S = HOUR
"""From a reboot that helps to the release: both within the hour."""
UNWATCHED_S = 2.5 * HOUR
"""And under a name without a daemon: the others count from its last word, and look now and then."""
SECOND_S = 4.25 * HOUR
"""And where no controller runs and the daemon of the first node in service is away as well: the second one tells."""
WITHOUT_MACHINE_S = HOUR
"""How much longer what is held under a name without a machine may go untold: another daemon has to find it."""
STEADY_S = 900.0
"""After a drain, a start or a hang: a daemon has told Slurm by then to leave its node awake."""
ACT_TAKES_S = 4 * HOUR
JUST_ASKED_S = 120.0  # a controller's round, and the clock of a node that was set by a little
TOLD_WITHIN_S = 300.0
"""From the end of a remediation to the message of it."""
RETURNS_A_DAY = 4
REBOOTS_A_WEEK, REPLACEMENTS_A_WEEK = 8, 4
"""Per name: four repairs a week may be (``policy.lemon_repairs``), each of two attempts at most (``max_attempts``)."""
STORM_NODES, STORM_SHARE = 8, 0.02


class Violation(AssertionError):
    """An invariant does not hold. ``rule``: the function that says so."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(rule, text)  # both, so that it survives the way from one process to another
        self.rule, self.text = rule, text

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class Done(Struct, frozen=True, kw_only=True):
    """One act that a platform, or a machine, was asked for. ``machine``: the one behind the name then."""

    s: float
    node: str
    machine: str
    remedy: Remedy
    code: str
    remediation_id: str
    ordered: bool = False


class Told(Struct, kw_only=True):
    """What people know of one node: the topics that stand, and when they last heard that a person is needed."""

    standing: dict[str, str] = field(default_factory=dict)
    paged_s: float | None = None


class Seen(Struct, kw_only=True):
    """Since when something is so of one node, in seconds of the timeline; None where it is not."""

    out_s: float | None = None
    held_s: float | None = None
    orphan_s: float | None = None
    silent_s: float | None = None
    awaited_s: float = -DAY
    good_s: float | None = None
    uncaused_s: float | None = None
    unanswered_s: float | None = None
    left_s: float | None = None
    dead_s: float | None = None
    excepted_s: float | None = None
    critical_s: float | None = None
    harmful_s: float | None = None
    in_window_s: float | None = None


class Invariants:
    """``goes_on``: what is violated is kept in ``found``, the first of each rule and node, and the fleet lives on.
    ``drain_replaces``: a node manager ends the machine of each node that is drained."""

    def __init__(
        self,
        ground: Ground,
        nodes: Mapping[str, Node],
        power: PowerSaving,
        *,
        goes_on: bool = False,
        drain_replaces: bool = False,
    ) -> None:
        self.drain_replaces = drain_replaces
        self._power = power
        power.powers_down = self.held_nodes_stay_awake
        self._ground, self._nodes, self._goes_on = ground, nodes, goes_on
        self.found: dict[tuple[str, str], Violation] = {}
        self.head: Head | None = None
        self.done: list[Done] = []
        self.told: dict[str, Told] = defaultdict(Told)
        self.seen: dict[str, Seen] = defaultdict(Seen)
        self.released: dict[str, deque[tuple[float, tuple[str, str]]]] = defaultdict(lambda: deque(maxlen=40))
        self.ordered: dict[str, float] = {}
        self.perhaps: dict[tuple[str, Remedy], float] = {}
        self.written_over: dict[str, str] = {}
        self.asked: dict[tuple[str, Remedy], float] = {}
        self.trails: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=TRAIL))
        self.counted: Counter[str] = Counter()
        self.pages = self.messages = self.drains = self.turns = 0

    # -- what is told of what happens ---------------------------------------------------------------------------------

    def note(self, node: str, text: str) -> None:
        self.trails[node].append(f"{shown(self._ground.timeline.s)} {text}")

    def acts(self, name: str, remedy: Remedy) -> None:
        """A machine is about to be reset, rebooted or replaced by healthd."""
        remediation = self.remediation(name)
        code, remediation_id = (remediation.code, remediation.id) if remediation is not None else ("", "")
        self.note(name, f"ACT {remedy} for {code} [{remediation_id}]")
        self.counted[remedy] += 1
        self.law_of_acts(name, remedy)
        self.a_machine_is_there(name, remedy)
        self.nothing_under_a_job(name, remedy)
        s, ordered = self._ground.timeline.s, self._is_ordered(name)
        machine = self._nodes[name].instance
        self.done.append(
            Done(
                s=s,
                node=name,
                machine=machine,
                remedy=remedy,
                code=code,
                remediation_id=remediation_id,
                ordered=ordered,
            )
        )
        if remedy is not Remedy.RESET_GPU and not ordered:
            self.bounded_by_name(name, remedy)
            self.bounded_in_the_fleet(remedy)
            self.no_slow_storm(code, remedy)

    def heard(self, update: FakeUpdate, late: bool) -> None:
        """The cluster applied an update."""
        self.note(update.node, f"{update.user}: {update.word} {update.before} -> {update.after}")
        seen = self.seen[update.node]
        if update.before is not None and update.after is None:  # in again, if only until the next sweep
            seen.held_s = seen.silent_s = None
        if update.after is not None:  # out again, if only until the next sweep
            seen.harmful_s = None
        self._note_owner(update)
        if update.user != US:
            return
        if not late:
            self.nothing_foreign_touched(update)
        if update.word == "drain" and update.after is not None and update.before is None:
            self.drains += 1
            self.within_the_budget(update.node)
            self.a_drain_is_no_quarantine(update)
        if update.word in ("undrain", "resume") and update.before is not None:
            self._let_in(update.node)

    def lets_go(self, name: str) -> None:
        """A slot was given back: with nothing else of healthd's there, the node is not held, if only until the next
        sweep."""
        if not self._is_held(name):
            self.seen[name].held_s = self.seen[name].silent_s = None
            if self.drain_replaces:
                self._let_in(name)

    def _let_in(self, name: str) -> None:
        """By healthd's own decision: what an operator lets in is theirs to answer for."""
        remediation = self.remediation(name)
        if remediation is not None and not remediation.release_command:
            self.released[name].append((self._ground.timeline.s, (remediation.code, self._nodes[name].instance)))
            self.returns_are_bounded(name)

    def _note_owner(self, update: FakeUpdate) -> None:
        """A drain of ours stays ours under a text that Slurm writes over it."""
        before, after = update.before, update.after
        if before is None or after is None or after.user not in SLURM:
            self.written_over.pop(update.node, None)
        elif before.user == US:
            remediation = self.remediation(update.node)
            self.written_over[update.node] = remediation.id if remediation is not None else ""

    def tells(self, name: str, message: Message) -> None:
        """People are told."""
        self.messages += 1
        for piece in message.data["news"]:
            self._told_of(
                node_of(name, piece["key"], piece["message"]),
                name,
                piece["key"],
                piece["message"],
                NewsKind(piece["state"]),
            )

    def forgets(self, name: str) -> None:
        """The disk of a node is lost. Nobody tells the end of what its daemon told: a page counts when it is told
        again."""
        told = self.told[name]
        told.standing = {key: words for key, words in told.standing.items() if key.startswith(OTHERS)}

    def dies(self, name: str, asked_itself: bool) -> None:
        """A daemon was killed. What it had written down, and asks of its platform by itself, it may have done: whoever
        comes after cannot know."""
        remediation = self.remediation(name)
        if (
            asked_itself
            and remediation is not None
            and remediation.step in ACTS
            and remediation.phase is Phase.INTENDED
        ):
            self.perhaps.setdefault((remediation.id, ACTS[remediation.step]), self._ground.timeline.s)

    def head_dies(self, remediations: Sequence[Remediation]) -> None:
        """The controller was killed in a round: what it had written down it may have asked for."""
        for remediation in remediations:
            if remediation.end is None and remediation.phase is Phase.INTENDED:
                self.perhaps.setdefault((remediation.id.split("/")[1], ACTS[remediation.step]), self._ground.timeline.s)

    def _told_of(self, node: str, speaker: str, key: str, words: str, news: NewsKind) -> None:
        told = self.told[node]
        self.note(node, f"TOLD {news} {key}: {words}")
        if news in (NewsKind.OVER, NewsKind.ENDED):
            told.standing.pop(key, None)
            if speaker == node and news is NewsKind.OVER:
                self.over_is_over(node, key, words)
            return
        told.standing[key] = words
        if UNWATCHED in words and news is NewsKind.WRONG:
            self.the_watched_speak_for_themselves(node, words)
        if asks_for_a_person(key):
            self.pages += 1
            told.paged_s = self._ground.timeline.s

    # -- at an act ----------------------------------------------------------------------------------------------------

    def law_of_acts(self, name: str, remedy: Remedy) -> None:
        """No act whose remedy is not in the ladder of a fault that is open on that node now, unless an operator ordered
        it: a machine is not reset because a mount is missing. What was asked of the controller is held to it when it
        is asked, and again when it is done much later."""
        asked_s = self._ground.timeline.s - self.asked.get((name, remedy), -DAY)
        if self._is_ordered(name) or asked_s < JUST_ASKED_S:
            return
        daemon = self._nodes[name].daemon
        diagnoses = daemon.monitor.diagnoses() if daemon is not None else ()
        ladders = {rung for answer in self._ground.policy.answers(diagnoses) for rung in answer.ladder}
        if remedy not in ladders:
            what = ", ".join(f"{each.code} on {each.component}" for each in diagnoses) or "nothing"
            rule = "law_of_requests" if asked_s < DAY else "law_of_acts"
            self.fail(rule, name, f"{remedy}, while {what} is open")

    def law_of_requests(self, name: str, remedy: Remedy) -> None:
        """What was asked of the controller is withdrawn when its fault ends: see ``law_of_acts``."""
        self.law_of_acts(name, remedy)

    def asks(self, name: str, remedy: Remedy) -> None:
        """A node asks the controller for an act."""
        self.asked.pop((name, remedy), None)
        self.law_of_acts(name, remedy)
        self.asked[(name, remedy)] = self._ground.timeline.s

    def nothing_under_a_job(self, name: str, remedy: Remedy) -> None:
        """No irreversible act under a job, nor in a maintenance window of somebody else's: it is their work that is
        lost."""
        slurm = self._ground.slurm
        if slurm.nodes[name].jobs:
            self.fail("nothing_under_a_job", name, f"{remedy} under {slurm.nodes[name].jobs}")
        if name in slurm.maintenance:
            self.fail("nothing_in_a_window", name, f"{remedy} in a maintenance window of an administrator")

    def a_machine_is_there(self, name: str, remedy: Remedy) -> None:
        """A name that Slurm has powered down is neither rebooted nor replaced: nothing is there, and a platform may
        start a machine that nobody asked for."""
        if self._nodes[name].asleep:
            self.fail("a_machine_is_there", name, f"{remedy} of a name without a machine")

    def bounded_by_name(self, name: str, remedy: Remedy) -> None:
        """One name is rebooted and replaced a few times a week at most, whatever its disks remember: then the machine
        is not what is wrong."""
        since_s = self._ground.timeline.s - 7 * DAY
        count = sum(each.node == name and each.remedy is remedy and each.s > since_s for each in self.done)
        if count > (most := REBOOTS_A_WEEK if remedy is Remedy.REBOOT_NODE else REPLACEMENTS_A_WEEK):
            self.fail("bounded_by_name", name, f"{count} times {remedy} within a week, {most} may be")

    def bounded_in_the_fleet(self, remedy: Remedy) -> None:
        """Machines are given away within the bounds of an hour and of a day, each counted once, also where its platform
        had to be asked again: what breaks every new machine ends in a page. Another name counts once an hour and twice
        a day, so that one node does not use the bounds up."""
        if remedy is not Remedy.REPLACE_NODE:
            return
        s, rules = self._ground.timeline.s, self._ground.config.budget
        given = {each.machine: each for each in self.done if each.remedy is remedy and not each.ordered}
        in_hour = Counter(each.node for each in given.values() if each.s > s - HOUR)
        in_day = Counter(each.node for each in given.values() if each.s > s - DAY)
        me = self.done[-1].node
        hour = sum(count if name == me else 1 for name, count in in_hour.items())
        day = sum(count if name == me else min(2, count) for name, count in in_day.items())
        a_day = max(4, len(self._nodes) // 100)
        if hour > rules.replacements_per_hour:
            words = f"{hour} replacements within an hour, {rules.replacements_per_hour} may be"
            self.fail("bounded_in_the_fleet", self.done[-1].node, words)
        if day > a_day:
            self.fail("bounded_in_a_day", self.done[-1].node, f"{day} replacements within a day, {a_day} may be")

    def no_slow_storm(self, code: str, remedy: Remedy) -> None:
        """One code reboots and replaces eight nodes a day, or two per cent, and no more: slow stories are stories."""
        since_s = self._ground.timeline.s - DAY
        nodes = {
            each.node
            for each in self.done
            if each.code == code and each.s > since_s and each.remedy is not Remedy.RESET_GPU
        }
        if code and len(nodes) > (most := max(STORM_NODES, int(STORM_SHARE * len(self._nodes)))):
            self.fail("no_slow_storm", self.done[-1].node, f"{remedy} for {code}: {len(nodes)} nodes in a day, {most}")

    # -- at an update -------------------------------------------------------------------------------------------------

    def nothing_foreign_touched(self, update: FakeUpdate) -> None:
        """What somebody else drained is neither undone nor rewritten: it is their decision."""
        before = update.before
        if before is not None and before.user not in (US, *SLURM) and update.after != before:
            self.fail("nothing_foreign_touched", update.node, f"{update.word} over {before}")

    def a_drain_is_no_quarantine(self, update: FakeUpdate) -> None:
        """Where a node manager replaces what is drained, no drain of healthd's is anything else than a replacement that
        it decided upon."""
        if not self.drain_replaces:
            return
        asked = next((each for each in reversed(self.done) if each.node == update.node), None)
        if asked is None or asked.remedy is not Remedy.REPLACE_NODE or self._ground.timeline.s - asked.s > HOUR:
            self.fail("a_drain_is_no_quarantine", update.node, f"drained, which costs the machine: {update.after}")

    def within_the_budget(self, name: str) -> None:
        """No node is drained while as many as may be are out for any cause, as they have been for a while: a mistake of
        ours stops early. A name without a machine is neither out nor in the total: it is nobody's capacity."""
        s = self._ground.timeline.s
        slurm = self._ground.slurm
        limit = out_limit(self._ground.config.budget.max_out, self._power.machines())
        ours = sum(slurm.is_ours(each) and not self._nodes[each].asleep for each in slurm.nodes)
        if ours > limit:
            self.fail("within_the_budget", name, f"healthd holds {ours} nodes, {limit} may be out")
        if self.drain_replaces:  # it was out by its slot before, and others may have gone out since
            return
        out = [
            each
            for each, seen in self.seen.items()
            if each != name and self._is_out(each) and seen.out_s is not None and s - seen.out_s > SETTLES_S
        ]
        if len(out) >= limit:
            self.fail("within_the_budget", name, f"drained while {len(out)} others were out, {limit} may be: {out}")

    def returns_are_bounded(self, name: str) -> None:
        """A machine goes out and comes back for one code four times a day at most, then it stays out: each return may
        cost a job. Another one under the name has not returned, nor one that an operator let in: they saw to it. What
        was repaired counts from its repair, which is earlier."""
        since_s, what = self._ground.timeline.s - DAY + REPAIRED_WITHIN_S, self.released[name][-1][1]
        code, count = what[0], sum(each > since_s and of == what for each, of in self.released[name])
        if code and count > RETURNS_A_DAY:
            self.fail("returns_are_bounded", name, f"let in {count} times within a day for {code}")

    # -- at a message -------------------------------------------------------------------------------------------------

    def over_is_over(self, name: str, key: str, words: str) -> None:
        """Whatever people are told is over is over: they go back to sleep on it. What came back a moment ago is told
        once it has lasted: the message of its end may have waited for its turn."""
        daemon = self._nodes[name].daemon
        if daemon is None:
            return
        code, _, where = key.removeprefix(PAGED).partition(" ")
        still = [each for each in daemon.monitor.diagnoses() if each.code == code and str(each.component) == where]
        fault = daemon.monitor.history.faults.get((where, code))
        is_new = fault is not None and self._nodes[name].wall.now() - fault.first < timedelta(seconds=LASTS_S)
        if still and not is_new and not key.startswith(PAGED):
            self.fail("over_is_over", name, f"{key} is said to be over, and is open")
        slurm = self._ground.slurm
        hold, is_ours = slurm.nodes[name].hold, slurm.is_ours(name) or self._is_written_over(name)
        lost = self._ground.timeline.s - slurm.killed_s < TOLD_WITHIN_S  # what slurmctld forgot is back
        if key == NODE_KEY and "out of service" in words and hold is not None and is_ours and not lost:
            self.fail("over_is_over", name, f"said to be over, and held by {hold}: {words}")

    def the_watched_speak_for_themselves(self, name: str, words: str) -> None:
        """Nobody says of a node that its daemon is silent while that runs, and writes its record: two pages for one
        cause, one of them untrue."""
        daemon = self._nodes[name].daemon
        lives = self._nodes[name].is_watched and daemon is not None
        if lives and daemon is not None and self._ground.timeline.s - daemon.began_s > HOUR:
            self.fail("the_watched_speak_for_themselves", name, words)

    # -- now and then -------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """See to what must not last."""
        slurm, s = self._ground.slurm, self._ground.timeline.s
        holders, answers = slurm.holders(), not slurm.hung
        for name, node in self._nodes.items():
            seen = self.seen[name]
            is_out, has_slot = self._is_out(name), name in holders
            self.power_saving_gets_it_back(name, seen, s)
            if node.is_watched:
                self.told[name].standing.pop(f"{_ABSENT}{name}", None)  # the agent that told it may sleep by now
            ill = node.daemon and node.daemon.monitor.diagnoses()
            if not (slurm.is_out(name) or has_slot or seen.out_s or seen.held_s or seen.harmful_s or ill):
                seen.left_s = seen.dead_s = None
                continue
            remediation = self.remediation(name)
            ours = self._is_held(name)
            seen.out_s = _since(seen.out_s, is_out, s)
            seen.held_s = _since(seen.held_s, ours, s)
            self.nothing_out_in_silence(name, seen, s, remediation)
            self.every_slot_lives(name, seen, s, remediation, has_slot=has_slot and answers)
            self.the_good_come_back(name, seen, s, remediation, ours=ours and answers)
            self.a_page_has_its_cause(name, seen, s, remediation)
            self.an_answer_has_its_act(name, seen, s)
            self.what_sleeps_keeps_nothing(name, seen, s, has_slot=has_slot and answers)
            self.a_slot_of_a_dead_machine_pages(name, seen, s, has_slot=has_slot)
            self.a_resume_holds_a_day(name, seen, s, serves=not (is_out or has_slot))
        self._power.machines()
        self.done = [each for each in self.done if each.s > s - 8 * DAY] if len(self.done) > 500 else self.done

    def nothing_out_in_silence(self, name: str, seen: Seen, s: float, remediation: Remediation | None) -> None:
        """What healthd keeps out for longer than a bound is paged, and again every day: a node in silence is lost. An
        operator who ordered it knows of it for a day."""
        told = self.told[name]
        is_paged = any(asks_for_a_person(key) for key in told.standing)
        seen.silent_s = _since(seen.silent_s, seen.held_s is not None and not is_paged, s)
        most_s = REPEAT_S if remediation is not None and remediation.command else OVERDUE_S
        most_s += 0.0 if self._nodes[name].has_machine else WITHOUT_MACHINE_S
        later_s = self._unwatched_s(name)
        most_s += later_s
        asked_s = self._awaited_s(name, remediation)
        is_awaited = asked_s > -DAY
        is_verified = not is_awaited and s - seen.awaited_s <= VERIFIED_WITHIN_S
        if is_awaited:
            seen.awaited_s = s
        if seen.silent_s is not None and s - max(seen.silent_s, asked_s) > most_s and not is_verified:
            self.fail(
                "nothing_out_in_silence", name, f"held by healthd for {(s - seen.silent_s) / HOUR:.1f} h, no page"
            )
        if is_paged and seen.held_s is not None and told.paged_s is not None and s - told.paged_s > REPEAT_S + later_s:
            self.fail("paged_every_day", name, f"held by healthd, paged {(s - told.paged_s) / HOUR:.1f} h ago")

    def _unwatched_s(self, name: str) -> float:
        """How much later others tell of a node whose own daemon is away."""
        if self._nodes[name].is_watched:
            return 0.0
        return UNWATCHED_S + (0.0 if self.head is not None else SECOND_S)

    def _awaited_s(self, name: str, remediation: Remediation | None) -> float:
        """Since when another machine is awaited: that is as long as it may take, whatever was before. It counts from
        the request, also where the controller that took it died before it acted; and from the death of a daemon that
        may have made it, since only the other machine tells whether it did."""
        if remediation is None or remediation.step is not Step.REPLACE or remediation.phase is not Phase.INTENDED:
            return -DAY
        acted = (each.s for each in self.done if each.node == name and each.remedy is Remedy.REPLACE_NODE)
        requests = (
            self.asked.get((name, Remedy.REPLACE_NODE)),
            self.perhaps.get((remediation.id, Remedy.REPLACE_NODE)),
        )
        return max((*acted, *(each for each in requests if each is not None)), default=-DAY)

    def every_slot_lives(
        self, name: str, seen: Seen, s: float, remediation: Remediation | None, *, has_slot: bool
    ) -> None:
        """A slot has an open remediation behind it, or is found within a bounded time: slots that leak stop all
        repairs."""
        reason = remediation is not None and remediation.fenced
        node = self._nodes[name]
        seen.orphan_s = _since(seen.orphan_s, has_slot and not reason and node.up, s)
        if seen.orphan_s is not None and s - seen.orphan_s > ADOPTED_WITHIN_S:
            self.fail("every_slot_lives", name, f"a slot without a remediation for {(s - seen.orphan_s) / HOUR:.1f} h")

    def what_sleeps_keeps_nothing(self, name: str, seen: Seen, s: float, *, has_slot: bool) -> None:
        """A name that Slurm has powered down keeps no slot, and no drain of healthd's that no operator knows of: no job
        can wake it, and no daemon is there. An act that is under way has its time."""
        slurm = self._ground.slurm
        hold, record = slurm.nodes[name].hold, parse(slurm.nodes[name].record)
        is_told = any(asks_for_a_person(key) for key in self.told[name].standing)
        is_ordered = hold is not None and code_of(hold.text) == QUARANTINE_CODE
        is_left = has_slot or (slurm.is_ours(name) and not (is_told or is_ordered))
        seen.left_s = _since(seen.left_s, name in slurm.asleep and is_left and not slurm.hung, s)
        asked = record.asked if record is not None else None
        acts_until_s = asked.timestamp() - self._nodes[name].wall.seconds() + s + ACT_TAKES_S if asked else 0.0
        if seen.left_s is not None and s - max(seen.left_s, acts_until_s) > WITHOUT_MACHINE_S:
            self.fail("what_sleeps_keeps_nothing", name, f"asleep, with {'a slot, ' * has_slot}{hold}")

    def a_slot_of_a_dead_machine_pages(self, name: str, seen: Seen, s: float, *, has_slot: bool) -> None:
        """A slot whose holder has no living machine pages: only an operator can have that put right."""
        node, told = self._nodes[name], self.told[name]
        is_told = any(asks_for_a_person(key) for key in told.standing)
        seen.dead_s = _since(seen.dead_s, has_slot and node.dead and not is_told, s)
        if seen.dead_s is not None and s - seen.dead_s > OVERDUE_S + WITHOUT_MACHINE_S:
            self.fail("a_slot_of_a_dead_machine_pages", name, f"dead for {(s - seen.dead_s) / HOUR:.1f} h, no page")

    def power_saving_gets_it_back(self, name: str, seen: Seen, s: float) -> None:
        """What is over is no reason to keep a node awake: machines that idle cost money."""
        node = self._nodes[name]
        lives = node.daemon is not None and node.daemon.alive
        is_left = name in self._ground.slurm.awake and lives and self.remediation(name) is None
        seen.excepted_s = _since(seen.excepted_s, is_left, s)
        if seen.excepted_s is not None and s - seen.excepted_s > BACK_WITHIN_S:
            self.fail("power_saving_gets_it_back", name, "kept awake, and no remediation is open")

    def held_nodes_stay_awake(self, name: str) -> None:
        """A node that healthd holds is not powered down under it where Slurm can be told so: its evidence and its
        repair would be lost."""
        slurm, s, daemon = self._ground.slurm, self._ground.timeline.s, self._nodes[name].daemon
        hold, remediation = slurm.nodes[name].hold, self.remediation(name)
        if slurm.power_saving == "22.05" or hold is None or not slurm.is_ours(name) or daemon is None:
            return
        lives = daemon.alive and remediation is not None and not remediation.has_ended
        since_s = max(hold.stamp - BEGINNING.timestamp(), daemon.began_s, self._power.steady_since_s)
        if lives and s - since_s > STEADY_S:
            self.fail("held_nodes_stay_awake", name, f"powered down while held by {hold}")

    def the_good_come_back(
        self, name: str, seen: Seen, s: float, remediation: Remediation | None, *, ours: bool
    ) -> None:
        """A node that is good, and whose faults are over, comes back: unless an operator said otherwise, or was told
        that one is needed, or a machine that was asked for is awaited."""
        node = self._nodes[name]
        daemon = node.daemon
        lives = daemon is not None and daemon.alive and node.is_sound and not self._ground.slurm.nodes[name].jobs
        is_over = lives and daemon is not None and not daemon.monitor.still_open()
        kept = remediation is not None and (remediation.end is End.FAILED or bool(remediation.command))
        asked = (
            remediation is not None
            and remediation.step in (Step.REBOOT, Step.REPLACE)
            and remediation.phase is Phase.INTENDED
        )
        is_expected = kept or asked or self._is_paged(name)
        waits = ours and is_over and not is_expected and name not in self._ground.slurm.maintenance
        seen.good_s = _since(seen.good_s, waits, s)
        if seen.good_s is not None and s - max(seen.good_s, node.changed_s) > BACK_WITHIN_S:
            message = daemon.message if daemon is not None else ""
            self.fail("the_good_come_back", name, f"good for {(s - seen.good_s) / HOUR:.1f} h, and out: {message}")

    def a_page_has_its_cause(self, name: str, seen: Seen, s: float, remediation: Remediation | None) -> None:
        """A page that stands says its present cause: whoever reads it acts on it."""
        daemon = self._nodes[name].daemon
        if daemon is None or not daemon.alive or remediation is None or remediation.end is not End.FAILED:
            seen.uncaused_s = None
            return
        pages = [words for key, words in self.told[name].standing.items() if asks_for_a_person(key)]
        lacks = not any(remediation.note in words for words in pages)
        seen.uncaused_s = _since(seen.uncaused_s, lacks, s)
        if seen.uncaused_s is not None and s - seen.uncaused_s > NEW_CAUSE_WITHIN_S:
            self.fail("a_page_has_its_cause", name, f"the cause is: {remediation.note}; told: {pages}")

    def an_answer_has_its_act(self, name: str, seen: Seen, s: float) -> None:
        """A request that the controller has taken was carried out after it was made: an order is not answered from
        memory. When it was made the record says by a clock that may be set since, so it is not asked."""
        record = parse(self._ground.slurm.nodes[name].record)
        is_taken = record is not None and record.asks and record.answer is RequestAnswer.TAKEN
        asked_s = max((self.asked.get((name, each), -DAY) for each in Remedy), default=-DAY)
        acted = any(each.node == name and each.s >= asked_s for each in self.done)
        acted |= record is not None and (record.remediation_id, record.remedy) in self.perhaps
        seen.unanswered_s = _since(seen.unanswered_s, is_taken and not acted, s)
        if seen.unanswered_s is not None and s - seen.unanswered_s > ANSWERED_WITHIN_S:
            self.fail("an_answer_has_its_act", name, f"taken, and nothing was done: {record and record.text}")

    def a_resume_holds_a_day(self, name: str, seen: Seen, s: float, *, serves: bool) -> None:
        """A critical fault harms jobs for a day at most after somebody undid a drain: a bulk resume is no word about
        one fault. By then the node is out again, or paged; an operator's command is such a word."""
        daemon = self._nodes[name].daemon
        if daemon is None or not daemon.alive:
            return
        calling = self._ground.policy.calling(daemon.monitor.diagnoses())
        critical = any(each.severity is Severity.CRITICAL for each in calling)
        seen.critical_s = _since(seen.critical_s, critical, s)
        is_paged = any(asks_for_a_person(key) for key in self.told[name].standing)
        seen.harmful_s = _since(seen.harmful_s, critical and serves and not is_paged, s)
        if name in self._ground.slurm.maintenance:  # no job starts there, and the node is an administrator's
            seen.in_window_s = s
        most_s = self._ground.config.remediation.undrain_holds_s + HOUR
        since_s = max((seen.harmful_s or s) + most_s, (seen.in_window_s or -HOUR) + HOUR)
        if s <= since_s or self._is_let_in(name, seen.critical_s or s):
            return
        self.fail("a_resume_holds_a_day", name, f"in service with {calling[0].code} for {most_s / HOUR:.0f} h, no page")

    def what_counts_was_begun(self, name: str) -> None:
        """Only an act that was begun counts as a repair: else the next larger one is taken although none was made."""
        acts = self.perhaps.keys() | {(each.remediation_id, each.remedy) for each in self.done}
        store = self._nodes[name].disk.store
        for remediation in store.remediations():
            counted = repairs_of([remediation])
            if counted and remediation.has_ended and (remediation.id, counted[0].remedy) not in acts:
                self.fail(
                    "what_counts_was_begun",
                    name,
                    f"remediation {remediation.id} counts as {counted[0].remedy}: {remediation.note}",
                )

    def _is_out(self, name: str) -> bool:
        return self._ground.slurm.is_out(name) and not self._nodes[name].asleep

    def _is_ordered(self, name: str) -> bool:
        """Whether an operator ordered what is done to a node."""
        remediation = self.remediation(name)
        return (
            bool(remediation is not None and remediation.command)
            or self._ground.timeline.s - self.ordered.get(name, -DAY) < HOUR
        )

    def _is_let_in(self, name: str, since_s: float) -> bool:
        """Whether an operator's command let the node in as it is, or spoke of it since."""
        return self.ordered.get(name, -DAY) > since_s - HOUR

    def _is_held(self, name: str) -> bool:
        slurm = self._ground.slurm
        return name in slurm.holders() or slurm.is_ours(name) or self._is_written_over(name)

    def _is_written_over(self, name: str) -> bool:
        """Whether Slurm's own text stands over a drain of ours. What nothing was repaired for may be left to Slurm."""
        remediation_id = self.written_over.get(name) if self._ground.slurm.nodes[name].hold is not None else ""
        remediations = self._nodes[name].disk.store.remediations() if remediation_id else ()
        return any(each.id == remediation_id and each.end is not End.ABANDONED for each in remediations)

    # -- parts --------------------------------------------------------------------------------------------------------

    def remediation(self, name: str) -> Remediation | None:
        return self._nodes[name].disk.store.open_remediation()

    def _is_paged(self, name: str) -> bool:
        daemon = self._nodes[name].daemon
        pages = daemon is not None and daemon.engine.decision.action is Action.PAGE
        return pages and any(asks_for_a_person(key) for key in self.told[name].standing)

    def fail(self, rule: str, name: str, text: str) -> None:
        """Raises Violation, with the trail of the node."""
        if (rule, name) in self.found:
            return
        words = "\n".join(["", *self._trail(name)])
        violation = Violation(rule, f"at {shown(self._ground.timeline.s)} on {name}: {text}{words}")
        self.found[(rule, name)] = violation
        if not self._goes_on:
            raise violation

    def _trail(self, name: str) -> Iterator[str]:
        yield from (f"    {line}" for line in self.trails[name])
        for event in self._nodes[name].disk.store.events(last=25):
            yield f"    audit {event.at:%m-%d %H:%M:%S} {event.kind} {event.text}"


def asks_for_a_person(key: str) -> bool:
    """Whether a topic of this key is a page."""
    return key.startswith((PAGED, *OTHERS))


def _since(before: float | None, is_so: bool, s: float) -> float | None:
    return (s if before is None else before) if is_so else None


def node_of(speaker: str, key: str, words: str) -> str:
    """The node that a piece of news is about: the speaker, the one that the controller names first, or one that has no
    daemon to speak for it."""
    if key.startswith(_ABSENT):
        return key.removeprefix(_ABSENT)
    return words.partition(":")[0] if speaker == "controller" else speaker
