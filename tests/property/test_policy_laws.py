"""Laws of the policy: when a node may be taken out, and for what, for every diagnosis, node, fleet, rule and past."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import (
    MODE_RANK,
    REMEDY_RANK,
    REPAIRS,
    Action,
    Component,
    Decision,
    Diagnosis,
    Mode,
    Remedy,
    Root,
    Severity,
    Step,
)
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.decide.ledger import Bounds, rungs_left
from healthd.remediation.decide.policy import Needs, Rules, SeenElsewhere, Situation, question
from healthd.remediation.decide.remediation import Repair, is_our_text, reason_text
from healthd.remediation.decide.rules import OWN_REMEDY, STEPS, Policy, Rule
from healthd.remediation.ports import FleetSnapshot, Hold, NodeView
from tests.support.judgement import START, all_read, at, components, decided_by, diagnosis
from tests.support.sampling import examples

LAW = settings(max_examples=examples(200))
NODES = tuple(f"n{index}" for index in range(12))
ME = NODES[0]
CODES = ("a", "b", "c")
NEEDS_THE_NODE = (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
NOW = at(86_400)


class Case(Struct, frozen=True, kw_only=True):
    """Everything that a decision is made of. ``acknowledged``: by code."""

    diagnoses: tuple[Diagnosis, ...]
    acknowledged: frozenset[str]
    situation: Situation
    rules: Rules
    able: frozenset[Remedy]
    ledger: tuple[Repair, ...] = ()

    def decide(self, *, held: bool = False) -> Decision:
        return self.answer(held=held)[0]

    def answer(self, *, held: bool = False) -> tuple[Decision, tuple[Needs, ...]]:
        """The decision, and what had to be read for it."""
        seen = [each for each in self.diagnoses if self.is_acknowledged(each)]
        cannot = {remedy: "nobody can" for remedy in Remedy if remedy not in self.able}
        asked = question(self.diagnoses, seen, self.rules, NOW, is_held=held)
        return decided_by(asked, all_read(self.situation, self.ledger, cannot))

    def is_acknowledged(self, each: Diagnosis) -> bool:
        return each.code in self.acknowledged

    def calling(self, rules: Rules | None = None) -> list[Diagnosis]:
        """What may take the node out, in the words of this test: not seen by a person, not in shadow, not never."""
        policy = (rules or self.rules).policy
        return [each for each in policy.calling(self.diagnoses) if not self.is_acknowledged(each)]

    def shared(self, each: Diagnosis) -> bool:
        """Whether a fault is on as many nodes as it takes, at its time; these diagnoses have one root each."""
        same = {seen.node for seen in self.situation.fleet_findings if seen.code == each.code}
        return len(same | {ME}) >= self.rules.bounds.same_fault_nodes

    def forbidden(self) -> str:
        """Why no node may be taken out here, in the words of this test; "" if one may."""
        view, snapshot, calling = self.situation.view, self.situation.snapshot, self.calling()
        if not calling:
            return "nothing calls for it"
        if self.rules.mode is Mode.OBSERVE or self.rules.opted_out:
            return "not allowed"
        if view is None or snapshot is None:
            return "not known"
        if not view.in_service:
            return "out already"
        if all(self.shared(each) for each in calling):
            return "not this node's"
        others = len(snapshot.out - {view.name})
        return "no room" if others >= out_limit(self.rules.max_out, snapshot.total) else ""


def reach(decision: Decision) -> int:
    """How far a decision goes: nothing, out, out and repaired by ever larger means."""
    if not decision.steps:
        return 0
    act = next(iter(REPAIRS.intersection(decision.steps)), None)
    return 1 if act is None else 2 + [Step.RESET, Step.REBOOT, Step.REPLACE].index(act)


severities = st.sampled_from([Severity.CRITICAL, Severity.WARNING])
diagnoses = st.lists(
    st.builds(
        lambda remedy, component, code, severity: diagnosis(
            remedy, component, code=code, codes=(code,), severity=severity
        ),
        st.sampled_from(Remedy),
        components,
        st.sampled_from(CODES),
        severities,
    ),
    max_size=4,
    unique_by=lambda each: str(each.component),
).map(lambda some: tuple(sorted(some, key=lambda each: REMEDY_RANK[each.remedy], reverse=True)))
holds = st.builds(Hold, text=st.text(max_size=5), user=st.text(max_size=5), stamp=st.integers(0, 9))
views = st.builds(
    NodeView,
    name=st.just(ME),
    in_service=st.booleans() | st.just(True),
    flags=st.frozensets(st.sampled_from(["DRAIN", "DOWN", "FAIL", "COMPLETING"])),
    hold=st.none() | holds,
)
levels = st.builds(FleetSnapshot, out=st.frozensets(st.sampled_from(NODES), max_size=4), total=st.just(len(NODES)))
ladders = st.lists(st.sampled_from(NEEDS_THE_NODE), max_size=4).map(
    lambda some: tuple(sorted(some, key=REMEDY_RANK.__getitem__))
)
some_rules = st.builds(
    Rule,
    name=st.just("ours"),
    codes=st.sampled_from([("a",), ("b", "c"), ("[ab]",), ("*",)]),
    reason=st.just("we know it"),
    source=st.just("ticket 7"),
    components=st.sampled_from([(), ("gpu",), ("node", "driver")]),
    together_with=st.sampled_from([(), ("c",)]),
    ladder=st.none() | st.just((Remedy.ASK_HUMAN,)) | ladders,
    mode=st.sampled_from([Mode.REPAIR, Mode.REPAIR, Mode.QUARANTINE, Mode.OBSERVE]),
)
policies = st.lists(some_rules, max_size=2).map(lambda some: Policy(name="ours", rules=(*some, OWN_REMEDY)))
bounds = st.builds(
    Bounds,
    repairs_per_remedy=st.integers(1, 3),
    repairs_per_fault=st.integers(1, 4),
    lemon_repairs=st.integers(1, 5),
    same_fault_nodes=st.integers(2, 4),
)
rules = st.builds(
    Rules,
    mode=st.sampled_from([Mode.REPAIR, *Mode]),
    max_out=st.sampled_from(["5%", "20%", "100%", 1, 2, 12]),
    opted_out=st.sampled_from(["", "", "", "/etc/healthd/opt-out exists"]),
    policy=policies,
    bounds=bounds,
)
repairs = st.builds(
    Repair,
    code=st.sampled_from(CODES),
    component=components.map(str),
    remedy=st.sampled_from(NEEDS_THE_NODE),
    began=st.integers(-20, 23).map(lambda hours: at(hours * 3600)),
)
ledgers = st.lists(repairs, max_size=5).map(tuple)
sightings = st.lists(
    st.builds(SeenElsewhere, node=st.sampled_from(NODES), code=st.sampled_from(CODES), at=st.just(START)), max_size=4
).map(tuple)
situations = st.builds(
    Situation,
    view=st.none() | views,
    snapshot=st.none() | levels,
    problem=st.just("no answer"),
    fleet_findings=st.just(()) | sightings,
)
cases = st.builds(
    Case,
    diagnoses=diagnoses,
    acknowledged=st.frozensets(st.sampled_from(CODES), max_size=2),
    situation=situations,
    rules=rules,
    able=st.frozensets(st.sampled_from(Remedy)),
    ledger=ledgers,
)


@LAW
@given(cases)
def test_a_node_is_taken_out_exactly_when_it_may_be(case: Case) -> None:
    """Steps come when something calls for it, the mode, the rule and the owner allow it, the node is in service, it is
    this node's own fault, the fleet has room and all of that is known; and then they do come."""
    decision = case.decide()
    assert bool(decision.steps) == (case.forbidden() == ""), (decision.reason, case.forbidden())


@LAW
@given(cases)
def test_a_node_that_is_out_is_decided_about_as_one_alone_in_its_fleet(case: Case) -> None:
    """Where a case holds it, its place is not asked for; all else is as it is without one."""
    view = NodeView(name=ME, in_service=True, flags=frozenset(), hold=None)
    alone = replace(case, situation=Situation(view=view, snapshot=FleetSnapshot(out=frozenset(), total=1)))
    assert alone.decide(held=True) == alone.decide()


@LAW
@given(cases)
def test_the_reason_is_always_there(case: Case) -> None:
    """Every decision, and every refusal, says why; one about a diagnosis names it; none ever releases."""
    decision = case.decide()
    assert decision.reason
    assert decision.action is not Action.RELEASE
    assert decision.diagnosis is None or decision.diagnosis in case.diagnoses
    assert decision.diagnosis is not None or not any(each.remedy is Remedy.ASK_HUMAN for each in case.diagnoses)


@LAW
@given(cases)
def test_steps_come_only_with_an_act(case: Case) -> None:
    """A hold has no steps; an act drains first, verifies before it releases, and mends only what is idle, by what
    somebody can carry out."""
    decision = case.decide()
    steps = decision.steps
    assert steps or decision.action in (Action.HOLD, Action.PAGE)
    assert not steps or decision.action is not Action.HOLD
    assert bool(REPAIRS.intersection(steps)) == (decision.action is Action.REPAIR)
    if steps:
        assert (steps[:2], steps[-2:]) == ((Step.SLOT, Step.DRAIN), (Step.VERIFY, Step.RELEASE))
    if decision.action is Action.REPAIR:
        assert case.rules.mode.repairs
        assert set(decision.ladder) <= case.able
        assert steps == STEPS[decision.ladder[0]]
        assert list(decision.ladder) == sorted(decision.ladder, key=REMEDY_RANK.__getitem__)
        assert steps.index(Step.DRAIN) < steps.index(Step.WAIT_IDLE) < steps.index(Step.COLLECT) < len(steps) - 3


@LAW
@given(cases)
def test_the_worst_that_is_this_nodes_decides(case: Case) -> None:
    """An act is for a diagnosis that no person has overruled, and none of the others that may be acted on calls for
    more."""
    decision = case.decide()
    if decision.steps:
        assert decision.diagnosis in [each for each in case.calling() if not case.shared(each)]


@LAW
@given(cases)
def test_the_cluster_is_asked_only_when_it_matters(case: Case) -> None:
    """A controller is not troubled by nodes that may not, or need not, be taken out; the others ask it once."""
    _, needs = case.answer()
    matters = bool(case.calling()) and case.rules.mode is not Mode.OBSERVE and not case.rules.opted_out
    assert [each.situation for each in needs].count(True) == int(matters)
    assert len(needs) == len(set(needs))


@LAW
@given(cases, st.frozensets(st.sampled_from(NODES)))
def test_more_nodes_out_never_let_a_node_go(case: Case, more: frozenset[str]) -> None:
    """Where a level forbids, a level with more nodes out forbids as well."""
    if case.situation.snapshot is None or case.decide().steps:
        return
    snapshot = FleetSnapshot(out=case.situation.snapshot.out | more, total=case.situation.snapshot.total)
    assert not replace(case, situation=replace(case.situation, snapshot=snapshot)).decide().steps


@LAW
@given(cases)
def test_at_the_level_nothing_is_taken_out(case: Case) -> None:
    """With every other node out, nothing whatever takes this one."""
    full = FleetSnapshot(out=frozenset(NODES[1:]), total=len(NODES))
    case = replace(case, situation=replace(case.situation, snapshot=full), rules=replace(case.rules, max_out="20%"))
    assert not case.decide().steps


@LAW
@given(cases, st.sampled_from(Mode))
def test_a_lower_mode_never_does_more(case: Case, mode: Mode) -> None:
    """Quarantine does no more than repair, observe nothing at all; so it is with the mode of every rule."""
    lower = min(case.rules.mode, mode, key=MODE_RANK.__getitem__)
    assert reach(replace(case, rules=replace(case.rules, mode=lower)).decide()) <= reach(case.decide())
    capped = tuple(
        replace(rule, mode=min(rule.mode, mode, key=MODE_RANK.__getitem__)) for rule in case.rules.policy.rules
    )
    rules = replace(case.rules, policy=replace(case.rules.policy, rules=capped))
    if mode is not Mode.OBSERVE:
        assert reach(replace(case, rules=rules).decide()) <= max(1, reach(case.decide()))
    else:
        assert not replace(case, rules=rules).decide().steps


@LAW
@given(cases, st.frozensets(st.sampled_from(CODES)))
def test_acknowledging_never_takes_a_node_out(case: Case, more: frozenset[str]) -> None:
    """A person's order to let a node in is never answered by taking it out."""
    again = replace(case, acknowledged=case.acknowledged | more)
    assert bool(again.decide().steps) <= bool(case.decide().steps) or case.forbidden() == "not this node's"


@LAW
@given(cases, ledgers)
def test_a_longer_past_never_asks_for_less(case: Case, more: tuple[Repair, ...]) -> None:
    """With more repairs on record the remedy is as large or larger, or a person's; the node is out all the same."""
    before, after = case.decide(), replace(case, ledger=(*case.ledger, *more)).decide()
    assert bool(before.steps) == bool(after.steps)
    if after.action is Action.REPAIR and before.action is Action.REPAIR:
        assert reach(after) >= reach(before)
    assert not (before.action is Action.PAGE and before.steps and after.action is Action.REPAIR)


@LAW
@given(cases, sightings)
def test_more_nodes_with_the_fault_never_take_a_node_out(case: Case, more: tuple[SeenElsewhere, ...]) -> None:
    """What other nodes show can hold this one, never drain it."""
    seen = (*case.situation.fleet_findings, *more)
    again = replace(case, situation=replace(case.situation, fleet_findings=seen))
    assert bool(again.decide().steps) <= bool(case.decide().steps)


@LAW
@given(cases)
def test_an_unknown_never_repairs(case: Case) -> None:
    """What could not be read of the cluster, or of the fleet, takes no node out."""
    for blind in (replace(case.situation, view=None), replace(case.situation, snapshot=None)):
        assert not replace(case, situation=blind).decide().steps


@LAW
@given(diagnoses)
def test_by_itself_only_what_is_critical_or_needs_the_node_takes_it_out(some: tuple[Diagnosis, ...]) -> None:
    """Without a rule that says otherwise, a warning that a restart, a watch or a person answers takes no node out."""
    out = [each for each in some if each.remedy in NEEDS_THE_NODE or each.severity is Severity.CRITICAL]
    assert list(Policy().calling(some)) == out


@LAW
@given(some_rules, diagnoses)
def test_what_matters_in_a_fault_is_what_matters_in_its_diagnosis(rule: Rule, some: tuple[Diagnosis, ...]) -> None:
    """The judgement of single faults, by which orders of people are kept, and that of diagnoses are one."""
    policy = Policy(rules=(rule, OWN_REMEDY))
    for each in some:
        root = Root(code=each.code, severity=each.severity, remedy=each.remedy, since=each.since)
        assert policy.matters(root, each.component, each.codes) == bool(policy.calling((each,)))


@LAW
@given(ladders, ledgers, bounds, st.integers(0, 4))
def test_every_cycle_takes_a_rung(
    ladder: tuple[Remedy, ...], past: tuple[Repair, ...], limits: Bounds, cut: int
) -> None:
    """What is left after a repair is the end of what was left before it; trying what comes first always ends."""
    before, after = rungs_left(ladder, past[:cut], limits), rungs_left(ladder, past, limits)
    assert after == before[len(before) - len(after) :] or len(after) < len(before)
    tries = list(past)
    for _ in range(len(ladder) + 1):
        left = rungs_left(ladder, tries, limits)
        if not left:
            return
        tries.append(Repair(code="a", component="node", remedy=left[0], began=NOW + timedelta(seconds=len(tries))))
    raise AssertionError(f"{ladder} has no end after {past}")


@LAW
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 100_000))
def test_a_share_is_exact_and_never_below_one(per_mille: int, more: int, total: int) -> None:
    """A percentage is rounded down exactly, grows with the share and the fleet, and always lets one node go."""
    limit = out_limit(f"{per_mille / 10}%", total)
    assert limit == max(1, int(Fraction(per_mille, 1000) * total))
    assert out_limit(f"{(per_mille + more) / 10}%", total) >= limit
    assert out_limit(f"{per_mille / 10}%", total + more) >= limit


@LAW
@given(st.text(), st.text(), st.sampled_from(["0a1b2c3d", "k3v9"]))
def test_a_reason_is_one_line_that_slurm_keeps(code: str, place: str, case_id: str) -> None:
    """Whatever a component is called, the cluster gets one line of printable text without a column mark, marked as ours
    and with the case's id."""
    text = reason_text(diagnosis(code=code, component=Component(kind="mount", id=place)), case_id)
    assert text.isprintable()
    assert "|" not in text
    assert is_our_text(text)
    assert text.endswith(f"[{case_id}]")
