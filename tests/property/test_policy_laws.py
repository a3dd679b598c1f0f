"""Laws of the policy: when a node may be taken out, for every diagnosis, node, fleet and rule there can be."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from healthd.model import REMEDY_RANK, Action, Component, Decision, Diagnosis, Mode, Remedy, Severity, Step
from healthd.remediation.budget import out_limit
from healthd.remediation.case import is_our_text, reason_text
from healthd.remediation.playbook import steps_for, takes_node_out
from healthd.remediation.policy import Rules, Situation, decide
from healthd.remediation.ports import FleetLevel, Hold, NodeView
from tests.judgement import components, diagnosis

LAW = settings(max_examples=200)
NODES = tuple(f"n{index}" for index in range(12))
ME = NODES[0]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Everything that a decision is made of. ``acknowledged``: by code."""

    diagnoses: tuple[Diagnosis, ...]
    acknowledged: frozenset[str]
    situation: Situation
    rules: Rules
    able: frozenset[Remedy]
    asked: list[None] = field(default_factory=list)

    def decide(self) -> Decision:
        return decide(self.diagnoses, self.is_acknowledged, self.look, self.rules, self.able.__contains__)

    def is_acknowledged(self, each: Diagnosis) -> bool:
        return each.code in self.acknowledged

    def look(self) -> Situation:
        self.asked.append(None)
        return self.situation

    def calling(self) -> list[Diagnosis]:
        return [each for each in self.diagnoses if takes_node_out(each) and not self.is_acknowledged(each)]

    def forbidden(self) -> str:
        """Why no node may be taken out here, in the words of this test; "" if one may."""
        view, level = self.situation.view, self.situation.level
        if not self.calling():
            return "nothing calls for it"
        if self.rules.mode is Mode.OBSERVE or self.rules.opted_out:
            return "not allowed"
        if view is None or level is None:
            return "not known"
        if not view.in_service:
            return "out already"
        others = len(level.out - {view.name})
        return "no room" if others >= out_limit(self.rules.max_out, level.total) else ""


diagnoses = st.lists(
    st.builds(
        lambda remedy, component, code: diagnosis(remedy, component, code=code, codes=(code,)),
        st.sampled_from(Remedy),
        components,
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=4,
).map(lambda some: tuple(sorted(some, key=lambda each: REMEDY_RANK[each.remedy], reverse=True)))
holds = st.builds(Hold, text=st.text(max_size=5), user=st.text(max_size=5), stamp=st.integers(0, 9))
views = st.builds(
    NodeView,
    name=st.just(ME),
    in_service=st.booleans(),
    flags=st.frozensets(st.sampled_from(["DRAIN", "DOWN", "FAIL", "COMPLETING"])),
    hold=st.none() | holds,
)
levels = st.builds(FleetLevel, out=st.frozensets(st.sampled_from(NODES), max_size=4), total=st.just(len(NODES)))
rules = st.builds(
    Rules,
    mode=st.sampled_from(Mode),
    max_out=st.sampled_from(["5%", "20%", "100%", 1, 2, 12]),
    opted_out=st.sampled_from(["", "", "", "/etc/healthd/opt-out exists"]),
)
cases = st.builds(
    Case,
    diagnoses=diagnoses,
    acknowledged=st.frozensets(st.sampled_from(["a", "b", "c"]), max_size=2),
    situation=st.builds(Situation, view=st.none() | views, level=st.none() | levels, problem=st.just("no answer")),
    rules=rules,
    able=st.frozensets(st.sampled_from(Remedy)),
    asked=st.builds(list),
)


@LAW
@given(cases)
def test_a_node_is_taken_out_exactly_when_it_may_be(case: Case) -> None:
    """Quarantine and repair come when something calls for it, the mode and the owner allow it, the node is in service,
    the fleet has room and all of that is known; and then they do come."""
    decision = case.decide()
    acts = decision.action in (Action.QUARANTINE, Action.REPAIR)
    assert acts == (case.forbidden() == ""), (decision.reason, case.forbidden())


@LAW
@given(cases)
def test_the_reason_is_always_there(case: Case) -> None:
    """Every decision, and every refusal, says why; one about a diagnosis names it; none ever releases."""
    decision = case.decide()
    assert decision.reason
    assert decision.action is not Action.RELEASE
    assert decision.diagnosis is None or decision.diagnosis in case.diagnoses
    assert decision.diagnosis is not None or not any(
        takes_node_out(each) or each.remedy is Remedy.ASK_HUMAN for each in case.diagnoses
    )


@LAW
@given(cases)
def test_steps_come_only_with_an_act(case: Case) -> None:
    """A refusal has no steps; an act drains first, verifies before it releases, and reboots only what is idle."""
    decision = case.decide()
    steps = decision.steps
    if decision.action not in (Action.QUARANTINE, Action.REPAIR):
        assert steps == ()
        return
    assert (steps[0], steps[-2:]) == (Step.DRAIN, (Step.VERIFY, Step.RELEASE))
    assert (Step.REBOOT in steps) == (decision.action is Action.REPAIR)
    if decision.action is Action.REPAIR:
        assert case.rules.mode is Mode.REPAIR
        assert decision.diagnosis is not None
        assert decision.diagnosis.remedy in case.able - {Remedy.REPLACE_NODE}
        assert Step.DRAIN in steps[: steps.index(Step.WAIT_IDLE)]
        assert Step.WAIT_IDLE in steps[: steps.index(Step.REBOOT)]


@LAW
@given(cases)
def test_the_worst_that_nobody_acknowledged_decides(case: Case) -> None:
    """An act is for the first diagnosis that calls for it and that no person has overruled."""
    decision = case.decide()
    if decision.action in (Action.QUARANTINE, Action.REPAIR):
        assert decision.diagnosis == case.calling()[0]


@LAW
@given(cases)
def test_the_cluster_is_asked_only_when_it_matters(case: Case) -> None:
    """A controller is not troubled by nodes that may not, or need not, be taken out; the others ask it once."""
    case.decide()
    matters = bool(case.calling()) and case.rules.mode is not Mode.OBSERVE and not case.rules.opted_out
    assert len(case.asked) == int(matters)


@LAW
@given(cases, st.frozensets(st.sampled_from(NODES)))
def test_more_nodes_out_never_let_a_node_go(case: Case, more: frozenset[str]) -> None:
    """Where a level forbids, a level with more nodes out forbids as well."""
    if case.situation.level is None or case.decide().action in (Action.QUARANTINE, Action.REPAIR):
        return
    level = FleetLevel(out=case.situation.level.out | more, total=case.situation.level.total)
    fuller = Situation(view=case.situation.view, level=level)
    again = decide(case.diagnoses, case.is_acknowledged, lambda: fuller, case.rules, case.able.__contains__)
    assert again.action not in (Action.QUARANTINE, Action.REPAIR)


@LAW
@given(cases, st.sampled_from(Mode), st.frozensets(st.sampled_from(Remedy)))
def test_only_what_is_critical_or_needs_the_node_has_steps(case: Case, mode: Mode, able: frozenset[Remedy]) -> None:
    """A warning that a restart, a watch or a person answers takes no node out, in no mode."""
    for each in case.diagnoses:
        needs_the_node = each.remedy in (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
        out = needs_the_node or each.severity is Severity.CRITICAL
        assert takes_node_out(each) == out
        assert bool(steps_for(each, mode, able.__contains__)) == (out and mode is not Mode.OBSERVE)


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
