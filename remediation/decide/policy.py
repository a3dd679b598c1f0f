"""The decision: diagnoses, the node as the cluster shows it, the fleet and what was tried before in; one Decision out.

Purely computational: ``question`` says what is to be decided, ``decide`` answers by what was read, or says what has to
be read first. The ladder below is the whole order of precedence; each rung returns the sentence that an operator reads
in the log, the audit trail and ``healthd status``. A refusal is a decision like any other. The remedies for a fault
are the policy's to say (``rules``), those that are left the ledger's (``ledger``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.model import Action, Decision, Diagnosis, Mode, Refusal, Remedy, Step
from healthd.core.name_lists import listed
from healthd.remediation.decide.canary import canary
from healthd.remediation.decide.fleet import WaitForSlot, at_limit, out_limit
from healthd.remediation.decide.freeze import Freeze, frozen
from healthd.remediation.decide.ledger import Bounds, left_after, recent, records_of, rungs_left, same_fault
from healthd.remediation.decide.remediation import Remediation, Repair
from healthd.remediation.decide.rules import (
    BY_REMEDY,
    FEATURE,
    QUARANTINE,
    STEPS,
    Ladder,
    OpenCodes,
    Policy,
    Rule,
    RuleAnswer,
    by_feature,
)
from healthd.remediation.ports import FleetSnapshot, NodeView

ACKNOWLEDGED = "acknowledged: an operator wants the node in service, and the fault has not gone and come back since"


class Rules(Struct, frozen=True, kw_only=True):
    """The limits that an operator sets, and the policy.

    ``max_out``: a share of the fleet ("5%") or a number of nodes, never below one node; the cluster's own limit, where
    it has one, goes before it. ``replacements_per_hour`` and ``replacements_per_day``: of the whole
    fleet, the second also as a share of it. ``opted_out``: why healthd only observes
    here, as far as the node itself says so; ``opt_out_feature``: the feature by which the cluster says it, "" for none;
    ``feature_is``: what such a thing is called there. ``adopt_automatic``: whether a node that the cluster's controller
    drained by itself may be repaired from there. ``approvals``: after which time without an answer a remedy goes ahead
    in mode ``approve``; no time: it needs no approval; None, and a remedy that is missing: it waits for ever.
    ``freezes``: those of the configuration that are on now. ``revision``: that of what decides here, see ``canary``; ""
    where no repair is counted. ``uncounted``: the remedies of which no handoff record is left, so that no canary can
    count them. ``by_job``: the job by which the mode is this, in words, or "".
    """

    mode: Mode
    max_out: str | int = "5%"
    replacements_per_hour: int = 4
    replacements_per_day: str | int = "1%"
    opted_out: str = ""
    opt_out_feature: str = ""
    feature_is: str = FEATURE
    adopt_automatic: bool = False
    approvals: Mapping[Remedy, timedelta | None] = field(default_factory=dict)
    freezes: tuple[Freeze, ...] = ()
    revision: str = ""
    uncounted: frozenset[Remedy] = frozenset()
    by_job: str = ""
    policy: Policy = BY_REMEDY
    bounds: Bounds = field(default_factory=Bounds)

    def hands_off(self, view: NodeView | None) -> str:
        """Why healthd only observes on this node, by what is known without or with a reading of it, or ""."""
        if self.opted_out or view is None:
            return self.opted_out
        return by_feature(view.features, self.opt_out_feature, self.feature_is)

    def adopts(self, view: NodeView) -> bool:
        """Whether the node is drained by the cluster's controller itself, and may be repaired all the same. A node that
        is DOWN is not: what made it so is not known to be over when it is repaired."""
        is_down = "DOWN" in view.flags
        return view.drained_by_itself and not is_down and self.adopt_automatic and self.mode.repairs


class SeenElsewhere(Struct, frozen=True, kw_only=True):
    """A finding on another node, as the cluster shows it, whether that node is held or not.

    ``at``: when it began there. ``returned``: the node was repaired for it ``at`` then, or came back from it, and may
    not have it any more.
    """

    node: str
    code: str
    at: datetime
    returned: bool = False


class Situation(Struct, frozen=True, kw_only=True):
    """The node in its cluster, as it is known. None with a ``problem`` means that it could not be read.

    ``full``: why this node could not ask for a place now, so that nothing more was read; None else.
    """

    view: NodeView | None
    snapshot: FleetSnapshot | None
    problem: str = ""
    full: WaitForSlot | None = None
    fleet_findings: tuple[SeenElsewhere, ...] = ()


class Question(Struct, frozen=True, kw_only=True):
    """The question to decide, as far as no reading of the cluster is needed for it.

    ``live``: what the policy answers to what is open, most far-reaching first; neither what an operator acknowledged
    nor what is in shadow. ``is_held``: a remediation of ours holds the node, so that it is out and has its slot
    already. ``by_command``: an operator asks, and what other nodes show does not hold back a node that is held.
    """

    live: tuple[RuleAnswer, ...]
    rules: Rules
    now: datetime
    is_held: bool = False
    by_command: bool = False


class Readings(Struct, frozen=True, kw_only=True):
    """The readings for a question so far; None, and a remedy that is missing: not read.

    ``repairs``: those that were made on this node. ``cannot``: why a remedy cannot be carried out here, "" for none.
    """

    situation: Situation | None = None
    repairs: tuple[Repair, ...] | None = None
    cannot: Mapping[Remedy, str] = field(default_factory=dict)


class Needs(Struct, frozen=True, kw_only=True):
    """The readings on which the answer depends and which are not there yet."""

    situation: bool = False
    repairs: bool = False
    remedies: tuple[Remedy, ...] = ()


def question(
    diagnoses: Sequence[Diagnosis],
    acknowledged: Collection[Diagnosis],
    rules: Rules,
    now: datetime,
    *,
    is_held: bool = False,
    by_command: bool = False,
) -> Decision | Question:
    """The question to decide about these diagnoses, or the decision, where it depends on no reading."""
    calling = rules.policy.answers(diagnoses)
    if not calling:
        return _nothing_calls(diagnoses)
    return _question(calling, acknowledged, rules, now, is_held=is_held, by_command=by_command)


def decide(asked: Question, readings: Readings) -> Decision | Needs:
    """The decision, or what has to be read first. Nothing is read that the answer does not depend on."""
    return _kept(asked, readings) if asked.is_held else _in_place(asked, readings)


class Considered(Struct, frozen=True, kw_only=True):
    """The decision about one diagnosis if it were the only one, by which rule, and what could not be done.

    ``mode``: how far it may go, the rule's own cap included. ``cannot``: the remedies of the ladder that nothing here
    can carry out, each with the reason.
    """

    diagnosis: Diagnosis
    rule: Rule
    ladder: Ladder
    mode: Mode
    decision: Decision
    cannot: tuple[tuple[Remedy, str], ...] = ()


def decide_each(
    diagnoses: Sequence[Diagnosis], acknowledged: Collection[Diagnosis], rules: Rules, now: datetime, readings: Readings
) -> tuple[Considered, ...] | Needs:
    """The same ladder for each diagnosis by itself, in their order: what an operator asks before anything is done; or
    what has to be read first.

    What is open beside a diagnosis still counts for which rule it meets.
    """
    answers: dict[int, list[RuleAnswer]] = {}
    for answer in rules.policy.answers(diagnoses):
        answers.setdefault(id(answer.diagnosis), []).append(answer)
    open_codes = OpenCodes((each.component, each.codes) for each in diagnoses)
    considered, needs = [], Needs()
    for diagnosis in diagnoses:
        mine = answers.get(id(diagnosis), [])
        asked = _question(mine, acknowledged, rules, now) if mine else _nothing_calls([diagnosis])
        decision = decide(asked, readings) if isinstance(asked, Question) else asked
        ladder = mine[0].ladder if mine else ()
        needs = _both(needs, Needs(remedies=_unread(ladder, readings)))
        if isinstance(decision, Needs):
            needs = _both(needs, decision)
            continue
        rule = mine[0].rule if mine else _rule_of(diagnosis, rules.policy, open_codes)
        mode = mine[0].mode(rules.mode) if mine else rules.mode
        cannot = tuple((remedy, why) for remedy in dict.fromkeys(ladder) if (why := readings.cannot.get(remedy)))
        considered.append(
            Considered(diagnosis=diagnosis, rule=rule, ladder=ladder, mode=mode, decision=decision, cannot=cannot)
        )
    return tuple(considered) if needs == Needs() else needs


def _rule_of(diagnosis: Diagnosis, policy: Policy, open_codes: OpenCodes) -> Rule:
    return policy.rule_for(diagnosis.code, diagnosis.component, open_codes.beside(diagnosis.component))


def _unread(remedies: Iterable[Remedy], readings: Readings) -> tuple[Remedy, ...]:
    """Which of these are repairs of which it is not known whether they can be carried out."""
    return tuple(remedy for remedy in dict.fromkeys(remedies) if remedy in STEPS and remedy not in readings.cannot)


def _both(one: Needs, other: Needs) -> Needs:
    return Needs(
        situation=one.situation or other.situation,
        repairs=one.repairs or other.repairs,
        remedies=tuple(dict.fromkeys((*one.remedies, *other.remedies))),
    )


def _question(
    calling: Sequence[RuleAnswer],
    acknowledged: Collection[Diagnosis],
    rules: Rules,
    now: datetime,
    *,
    is_held: bool = False,
    by_command: bool = False,
) -> Decision | Question:
    """About what calls for taking the node out."""
    unseen = [answer for answer in calling if answer.diagnosis not in acknowledged]
    if not unseen:
        return _hold(calling[0], Refusal.ACKNOWLEDGED, ACKNOWLEDGED)
    if rules.opted_out:
        return _hold(unseen[0], Refusal.OPTED_OUT, f"opted out: {rules.opted_out}")
    if rules.mode is Mode.OBSERVE:
        message = f"observe mode: would take the node out for {_what(unseen[0])}"
        return _hold(unseen[0], Refusal.OBSERVE, message)
    live = tuple(answer for answer in unseen if answer.rule.mode is not Mode.OBSERVE)
    if not live:
        message = f"rule {unseen[0].rule.name} is in shadow: would take the node out for {_what(unseen[0])}"
        return _hold(unseen[0], Refusal.SHADOW, message)
    if not (is_held or by_command) and (why := frozen(rules.freezes, Step.DRAIN)) is not None:
        return _hold(live[0], Refusal.FROZEN, f"{why.reason}: would take the node out for {_what(live[0])}")
    return Question(live=live, rules=rules, now=now, is_held=is_held, by_command=by_command)


def _kept(asked: Question, readings: Readings) -> Decision | Needs:
    """Of a node that is out already: the first that is this node's own."""
    decisions = (_own_fault(answer, asked, readings) for answer in asked.live)
    first = next(decisions)
    if isinstance(first, Needs) or first.refusal is not Refusal.CORRELATED:
        return first
    others = (each for each in decisions if isinstance(each, Needs) or each.refusal is not Refusal.CORRELATED)
    return next(others, first)


def _own_fault(answer: RuleAnswer, asked: Question, readings: Readings) -> Decision | Needs:
    """How far it goes on a node that is out already, where no repair is begun for what many nodes show."""
    decision = _taken_out(answer, asked, readings)
    if isinstance(decision, Needs) or decision.action is not Action.REPAIR or asked.by_command:
        return decision
    if readings.situation is None:
        return Needs(situation=True)
    message = _shared(answer, readings.situation, asked.rules.bounds)
    return _page(answer, Refusal.CORRELATED, message) if message else decision


def _in_place(asked: Question, readings: Readings) -> Decision | Needs:
    """Of a node that no remediation of ours holds."""
    if (situation := readings.situation) is None:
        return Needs(situation=True)
    view, snapshot, rules, worst = situation.view, situation.snapshot, asked.rules, asked.live[0]
    if situation.full:
        refused = _hold if situation.full.passing else _page
        return refused(worst, Refusal.BUDGET, situation.full.reason)
    if view is None:
        message = f"the node's state in the cluster could not be read, so nothing is taken out: {situation.problem}"
        return _page(worst, Refusal.UNREADABLE, message)
    if why := rules.hands_off(view):
        return _hold(worst, Refusal.OPTED_OUT, f"opted out: {why}")
    if not view.in_service and not rules.adopts(view):
        return _out_already(worst, view)
    shared = [_shared(answer, situation, rules.bounds) for answer in asked.live]
    if all(shared):
        return _page(worst, Refusal.CORRELATED, shared[0])
    worst = next(answer for answer, message in zip(asked.live, shared, strict=True) if not message)
    if snapshot is None or snapshot.total < 1:
        message = f"the fleet's level could not be read, so nothing is taken out: {situation.problem}"
        return _page(worst, Refusal.UNREADABLE, message)
    limit = out_limit(rules.max_out, snapshot.total) if snapshot.limit is None else snapshot.limit
    if len(snapshot.out - {view.name}) >= limit:
        message = at_limit("fleet", out=len(snapshot.out), total=snapshot.total, limit=limit)
        return _page(worst, Refusal.BUDGET, message)
    decision = _taken_out(worst, asked, readings)
    goes_out = isinstance(decision, Needs) or view.in_service or decision.action is Action.REPAIR
    return decision if goes_out else _out_already(worst, view)


def _out_already(worst: RuleAnswer, view: NodeView) -> Decision:
    """Another holds the node. An operator may not have seen yet what the cluster's controller did by itself."""
    if view.hold is None or not view.hold.automatic:
        message = f"already out of service, held by {holder(view)}: left alone"
        return _hold(worst, Refusal.FOREIGN_HOLD, message)
    message = f"the cluster took the node out by itself, as {holder(view)}, while {_what(worst)} is open: left alone"
    return _page(worst, Refusal.FOREIGN_HOLD, message)


def holder(view: NodeView) -> str:
    """The holder of a node, in words."""
    return f'{view.hold.user} with "{view.hold.shown}"' if view.hold else "/".join(sorted(view.flags))


def _taken_out(answer: RuleAnswer, asked: Question, readings: Readings) -> Decision | Needs:
    """How far it goes, now that the node may be taken out. A repair that must not be made leaves it out, and pages."""
    if (made := readings.repairs) is None:
        return Needs(repairs=True)
    about, now, bounds = answer.about, asked.now, asked.rules.bounds
    repairs = tuple(remedy for remedy in answer.ladder if remedy in STEPS)
    if not repairs and (answer.ladder or (about.remedy,))[0] is Remedy.ASK_HUMAN:
        return _kept_out(answer, Refusal.PERSON, f"quarantine for {_what(answer)}: only an operator can repair it")
    if answer.mode(asked.rules.mode) is Mode.QUARANTINE or not repairs:
        return _decision(answer, Action.QUARANTINE, f"quarantine for {_what(answer)}", out=True)
    tried = same_fault(made, about.code, about.component.all_names(), now - timedelta(days=bounds.relapse_days))
    left = rungs_left(repairs, tried, bounds)
    if not left:
        done = ", ".join(each.remedy for each in tried)
        message = f"{about.code} on {about.component} came back after {done}: an operator is needed"
        return _kept_out(answer, Refusal.EXHAUSTED, message)
    if unread := _unread(left, readings):
        return Needs(remedies=unread)
    able = tuple(remedy for remedy in left if not readings.cannot[remedy])
    if not able:
        message = f"quarantine for {_what(answer)}: nothing here can do that, an operator is needed"
        return _kept_out(answer, Refusal.CANNOT, message)
    if len(lately := recent(made, now, bounds.lemon_days)) >= bounds.lemon_repairs:
        many = f"{len(lately)} repairs of this node within {bounds.lemon_days:g} days, {bounds.lemon_repairs} may be"
        message = f"a node that comes back too often is a lemon: {many}; now {_what(answer)}"
        return _kept_out(answer, Refusal.LEMON, message)
    what = _what(answer, able[0], after=tuple(each.remedy for each in tried))
    return Decision(
        action=Action.REPAIR,
        reason=f"repair for {what}{_after_approval(answer, able[0], asked, readings)}",
        diagnosis=about,
        steps=STEPS[able[0]],
        ladder=able,
        rule=answer.rule.name,
    )


def _after_approval(answer: RuleAnswer, remedy: Remedy, asked: Question, readings: Readings) -> str:
    """``, after approval``, with the canary as the reason where the mode is none; or ""."""
    rules, situation = asked.rules, readings.situation
    if asked.by_command or rules.approvals.get(remedy) == timedelta():
        return ""
    if answer.mode(rules.mode) is Mode.APPROVE:
        return ", after approval"
    if situation is None or situation.snapshot is None or remedy in rules.uncounted:
        return ""
    why = canary(records_of(situation.snapshot, asked.now), rules.revision, rules.bounds)
    return f", after approval; {why}" if why else ""


def left_of(decision: Decision, remediation: Remediation) -> Decision:
    """The same for a node that this remediation tried to repair already, by as much of the ladder as that leaves."""
    left = left_after(remediation, decision.ladder)
    if decision.action is not Action.REPAIR or left == decision.ladder:
        return decision
    if left:
        return replace(decision, ladder=left, steps=STEPS[left[0]])
    words = (
        f"what remediation {remediation.id} has tried did not help, an operator is needed; not done: {decision.reason}"
    )
    return replace(decision, action=Action.PAGE, reason=words, steps=QUARANTINE, ladder=(), refusal=Refusal.EXHAUSTED)


def many_at_once(code: str, since: datetime, me: str, elsewhere: Iterable[SeenElsewhere], bounds: Bounds) -> str:
    """Why a fault is not this node's own, or "": the same finding on many nodes inside minutes.

    A node counts that returned within the window, so that each return does not let the next ones go. A fault that comes
    to another node while so many show it is held with them: a node that was rebooted meanwhile sees it begin again.
    """
    same = [each for each in elsewhere if each.code == code]
    nodes = _together(since, me, since, same, bounds) or _joined(me, since, same, bounds)
    if not nodes:
        return ""
    where = f"{len(nodes)} nodes within {bounds.same_fault_minutes:g} min ({listed(sorted(nodes))})"
    return f"{code} on {where}: many at once is not a node's fault, so nothing is taken out for it"


def _joined(me: str, since: datetime, same: Sequence[SeenElsewhere], bounds: Bounds) -> frozenset[str]:
    """The nodes that show it, where they are many at once and this one has it within the day after; none else."""
    day = timedelta(days=1)
    starts = {each.at for each in same if not each.returned and timedelta() < since - each.at <= day}
    groups = (_together(start, me, since, same, bounds) for start in sorted(starts))
    return next(filter(None, groups), frozenset())


def _together(
    start: datetime, me: str, since: datetime, same: Iterable[SeenElsewhere], bounds: Bounds
) -> frozenset[str]:
    """The nodes that have it within minutes of ``start``; none where they are not many."""
    window = timedelta(minutes=bounds.same_fault_minutes)
    others = {each.node for each in same if abs(each.at - start) <= window}
    nodes = frozenset(others | {me}) if abs(since - start) <= window else frozenset(others)
    return nodes if len(nodes) >= bounds.same_fault_nodes else frozenset()


def _shared(answer: RuleAnswer, situation: Situation, bounds: Bounds) -> str:
    me = situation.view.name if situation.view is not None else ""
    return many_at_once(answer.root.code, answer.root.since, me, situation.fleet_findings, bounds)


def _nothing_calls(diagnoses: Sequence[Diagnosis]) -> Decision:
    asking = next((diagnosis for diagnosis in diagnoses if diagnosis.remedy is Remedy.ASK_HUMAN), None)
    if asking is not None:
        message = f"an operator has to look at {asking.code} on {asking.component} ({asking.remedy})"
        return Decision(action=Action.PAGE, reason=message, diagnosis=asking, refusal=Refusal.PERSON)
    return Decision(action=Action.HOLD, reason="nothing calls for taking the node out")


def _what(answer: RuleAnswer, remedy: Remedy | None = None, *, after: tuple[Remedy, ...] = ()) -> str:
    """``gpu.xid.95 on gpu:GPU-… (reboot_node after reset_gpu; rule firmware)``."""
    about = answer.about
    message = remedy or (answer.ladder[0] if answer.ladder else about.remedy)
    since = f" after {', '.join(after)}" if after else ""
    rule = f"; rule {answer.rule.name}" if answer.rule.name else ""
    return f"{about.code} on {about.component} ({message}{since}{rule})"


def _kept_out(answer: RuleAnswer, refusal: Refusal, message: str) -> Decision:
    return _decision(answer, Action.PAGE, message, refusal, out=True)


def _hold(answer: RuleAnswer, refusal: Refusal, message: str) -> Decision:
    return _decision(answer, Action.HOLD, message, refusal)


def _page(answer: RuleAnswer, refusal: Refusal, message: str) -> Decision:
    return _decision(answer, Action.PAGE, message, refusal)


def _decision(
    answer: RuleAnswer, action: Action, message: str, refusal: Refusal | None = None, *, out: bool = False
) -> Decision:
    steps, rule = QUARANTINE if out else (), answer.rule.name
    return Decision(action=action, reason=message, diagnosis=answer.about, steps=steps, rule=rule, refusal=refusal)
