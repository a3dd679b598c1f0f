"""The ladder, rung by rung: each with the sentence that a person reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Decision, Diagnosis, Mode, Refusal, Remedy, Root, Severity
from healthd.remediation.decide import fleet
from healthd.remediation.decide.ledger import Bounds
from healthd.remediation.decide.policy import Rules, SeenElsewhere, Situation, left_of, question
from healthd.remediation.decide.remediation import Repair
from healthd.remediation.decide.rules import OWN_REMEDY, QUARANTINE, REBOOT, REPLACE, RESET, STEPS, Policy, Rule
from healthd.remediation.ports import FleetSnapshot, Hold, NodeView
from tests.support.judgement import GPU, START, a_remediation, all_read, at, decided_by, diagnosis

SICK = diagnosis(code="gpu.xid.79", remedy=Remedy.REBOOT_NODE)
VIEW = NodeView(name="n1", in_service=True, flags=frozenset({"IDLE"}), hold=None)
LEVEL = FleetSnapshot(out=frozenset(), total=100)
WELL = Situation(view=VIEW, snapshot=LEVEL)
REPAIR = Rules(mode=Mode.REPAIR)


def decided(
    *diagnoses: Diagnosis,
    situation: Situation = WELL,
    rules: Rules = REPAIR,
    seen: tuple[Diagnosis, ...] = (),
    cannot: Collection[Remedy] = (),
    ledger: Sequence[Repair] = (),
    day: float = 0.0,
    is_held: bool = False,
    by_command: bool = False,
) -> Decision:
    now, why = START + timedelta(days=day), dict.fromkeys(cannot, "nobody can")
    asked = question(diagnoses, seen, rules, now, is_held=is_held, by_command=by_command)
    return decided_by(asked, all_read(situation, ledger, why))[0]


def everywhere(*codes: str) -> Situation:
    """With these codes on nine more nodes since the test began."""
    nodes = [f"n{number}" for number in range(2, 11)]
    shown = [SeenElsewhere(node=node, code=code, at=START) for node in nodes for code in codes]
    return replace(WELL, fleet_findings=tuple(shown))


def tried(remedy: Remedy, *, day: float = 0.0, code: str = "gpu.sick", component: str = "gpu:GPU-0") -> Repair:
    """A repair that ended on that day."""
    when = START + timedelta(days=day)
    return Repair(code=code, component=component, remedy=remedy, began=when, ended=when, outcome="released")


def site(*codes: str, **changes: object) -> Policy:
    """A policy with one rule of the site on these codes."""
    rule = Rule(name="ours", codes=codes, reason="we know it", source="ticket 7")
    return Policy(name="site", rules=(replace(rule, **changes), OWN_REMEDY))


def test_a_node_that_is_out_is_repaired_for_what_is_its_own() -> None:
    """What many nodes have drives no repair, and hides nothing else: another fault is repaired, or keeps it out."""
    other = diagnosis(code="gpu.xid.95", component=GPU[1])
    one = everywhere("gpu.xid.79")
    own = decided(SICK, other, situation=one, is_held=True)
    assert own.diagnosis is not None
    assert (own.action, own.diagnosis.code) == (Action.REPAIR, "gpu.xid.95")
    all_shared = decided(SICK, other, situation=everywhere("gpu.xid.79", "gpu.xid.95"), is_held=True)
    assert (all_shared.action, all_shared.refusal, all_shared.steps) == (Action.PAGE, Refusal.CORRELATED, ())
    assert all_shared.reason.startswith("gpu.xid.79 on 10 nodes within ")
    alone = decided(SICK, situation=one, is_held=True)
    assert (alone.refusal, alone.reason) == (Refusal.CORRELATED, all_shared.reason)
    kept = decided(SICK, situation=one, is_held=True, rules=Rules(mode=Mode.QUARANTINE))
    assert kept.action is Action.QUARANTINE
    assert decided(SICK, situation=one, is_held=True, by_command=True).action is Action.REPAIR


def test_a_fault_becomes_a_repair() -> None:
    """In repair mode, with room in the fleet and a provider that can, the node is drained, rebooted and proven."""
    decision = decided(SICK)
    assert (decision.action, decision.steps, decision.diagnosis) == (Action.REPAIR, REBOOT, SICK)
    assert decision.reason == "repair for gpu.xid.79 on gpu:GPU-0 (reboot_node)"


def test_where_nothing_may_be_repaired_the_node_is_kept_out() -> None:
    """Quarantine mode comes to a drain and nothing more."""
    decision = decided(SICK, rules=Rules(mode=Mode.QUARANTINE))
    assert (decision.action, decision.steps) == (Action.QUARANTINE, QUARANTINE)
    assert decision.reason == "quarantine for gpu.xid.79 on gpu:GPU-0 (reboot_node)"


def test_where_nobody_can_repair_it_the_node_is_kept_out_and_a_person_told() -> None:
    """In repair mode, with a provider that cannot reboot: nothing that healthd waits for would ever come."""
    decision = decided(SICK, cannot=tuple(Remedy))
    assert (decision.action, decision.steps) == (Action.PAGE, QUARANTINE)
    assert decision.reason == (
        "quarantine for gpu.xid.79 on gpu:GPU-0 (reboot_node): nothing here can do that, an operator is needed"
    )


def test_a_node_that_a_case_holds_is_not_asked_for_its_place_again() -> None:
    """It is out and counted already: what is left is what to do about it, and whether that may be."""
    assert decided(SICK, is_held=True) == decided(SICK)
    assert decided(SICK, is_held=True, rules=Rules(mode=Mode.QUARANTINE)).action is Action.QUARANTINE
    assert decided(SICK, is_held=True, rules=Rules(mode=Mode.OBSERVE)).refusal is Refusal.OBSERVE
    assert decided(SICK, is_held=True, rules=replace(REPAIR, opted_out="/x exists")).refusal is Refusal.OPTED_OUT
    assert decided(SICK, is_held=True, seen=(SICK,)).refusal is Refusal.ACKNOWLEDGED


@pytest.mark.parametrize(
    ("ladder", "attempts", "left"),
    [
        ((), 0, (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)),
        ((Remedy.REBOOT_NODE,), 0, (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)),
        ((Remedy.RESET_GPU,), 1, (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)),
        ((Remedy.REBOOT_NODE, Remedy.REPLACE_NODE), 1, (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)),
        ((Remedy.REPLACE_NODE,), 1, ()),
        ((), 1, ()),
    ],
)
def test_a_case_that_has_tried_a_remedy_takes_none_that_is_smaller(
    ladder: tuple[Remedy, ...], attempts: int, left: tuple[Remedy, ...]
) -> None:
    """Nor anything after another machine; a successor without a memory knows only that it is one."""
    remediation = a_remediation(remedy=Remedy.NONE, ladder=ladder, attempts=attempts, steps=QUARANTINE)
    decision = left_of(decided(diagnosis()), remediation)
    assert decision.ladder == left
    assert (decision.action, decision.steps) == ((Action.REPAIR, STEPS[left[0]]) if left else (Action.PAGE, QUARANTINE))
    assert decision.refusal is (None if left else Refusal.EXHAUSTED)
    assert left_of(decided(diagnosis(), rules=Rules(mode=Mode.QUARANTINE)), remediation).action is Action.QUARANTINE


def test_a_well_node_is_held() -> None:
    """With no diagnosis there is nothing to do, and that is said too."""
    assert decided() == Decision(action=Action.HOLD, reason="nothing calls for taking the node out")


@pytest.mark.parametrize("remedy", [Remedy.NONE, Remedy.WATCH, Remedy.RESTART_APP])
def test_a_jobs_own_error_takes_no_node_out(remedy: Remedy) -> None:
    """XID 13, 31, 43 and 45 are warnings about a job: nothing of it calls for the node."""
    decision = decided(diagnosis(remedy, severity=Severity.WARNING))
    assert decision == Decision(action=Action.HOLD, reason="nothing calls for taking the node out")


def test_what_only_a_person_can_settle_pages() -> None:
    """The first diagnosis that asks for a person is named."""
    asking = diagnosis(Remedy.ASK_HUMAN, code="gpu.xid.154", component=GPU[1], severity=Severity.WARNING)
    decision = decided(diagnosis(Remedy.WATCH, severity=Severity.WARNING), asking)
    assert (decision.action, decision.diagnosis) == (Action.PAGE, asking)
    assert decision.reason == "an operator has to look at gpu.xid.154 on gpu:GPU-1 (ask_human)"


def test_a_persons_order_stands() -> None:
    """A fault that a person has overruled is held; another one, that nobody has seen, is acted on."""
    other = diagnosis(code="gpu.remap.failure", component=GPU[1])
    held = decided(SICK, seen=(SICK,))
    assert held.action is Action.HOLD
    assert held.reason == (
        "acknowledged: an operator wants the node in service, and the fault has not gone and come back since"
    )
    assert decided(SICK, other, seen=(SICK,)).diagnosis == other


def test_observe_says_what_it_would_do() -> None:
    """The default mode changes nothing and says what another would."""
    decision = decided(SICK, rules=Rules(mode=Mode.OBSERVE))
    assert decision.action is Action.HOLD
    assert decision.reason == "observe mode: would take the node out for gpu.xid.79 on gpu:GPU-0 (reboot_node)"


def test_an_owner_can_opt_out() -> None:
    """An opted-out node is left alone, in any mode, and the reason is the owner's."""
    decision = decided(SICK, rules=Rules(mode=Mode.REPAIR, opted_out="/etc/healthd/opt-out exists"))
    assert (decision.action, decision.reason) == (Action.HOLD, "opted out: /etc/healthd/opt-out exists")


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        (
            Situation(view=None, snapshot=LEVEL, problem="sinfo: timed out"),
            "the node's state in the cluster could not be",
        ),
        (Situation(view=VIEW, snapshot=None, problem="sinfo: timed out"), "the fleet's level could not be"),
    ],
)
def test_what_cannot_be_read_pages_and_takes_nothing_out(situation: Situation, words: str) -> None:
    """No answer from the cluster is a page with the cause, never a drain."""
    decision = decided(SICK, situation=situation)
    assert decision.action is Action.PAGE
    assert decision.reason == f"{words} read, so nothing is taken out: sinfo: timed out"


@pytest.mark.parametrize(
    ("hold", "flags", "holder"),
    [
        (Hold(text="bad fan", user="admin", stamp=5), {"DRAIN"}, 'admin with "bad fan"'),
        (None, {"DOWN", "NOT_RESPONDING"}, "DOWN/NOT_RESPONDING"),
    ],
)
def test_a_node_that_is_out_already_is_left_alone(hold: Hold | None, flags: set[str], holder: str) -> None:
    """Somebody else's drain, and a node that is down, are named and not touched; the level is not asked for."""
    view = replace(VIEW, in_service=False, flags=frozenset(flags), hold=hold)
    decision = decided(SICK, situation=Situation(view=view, snapshot=None))
    assert decision.action is Action.HOLD
    assert decision.reason == f"already out of service, held by {holder}: left alone"


KILLED = replace(
    VIEW,
    in_service=False,
    flags=frozenset({"IDLE", "DRAIN"}),
    hold=Hold(text="Kill task failed", user="root", stamp=5, automatic=True),
)
ADOPTING = replace(REPAIR, adopt_automatic=True)


def test_what_the_cluster_drained_by_itself_is_repaired_where_that_is_allowed() -> None:
    """Its place in the budget is asked for like any other; with the setting, in repair mode."""
    situation = replace(WELL, view=KILLED)
    assert decided(SICK, situation=situation, rules=ADOPTING).action is Action.REPAIR
    full = FleetSnapshot(out=frozenset({"n2", "n3", "n4", "n5", "n6"}), total=100)
    assert decided(SICK, situation=replace(situation, snapshot=full), rules=ADOPTING).refusal is Refusal.BUDGET


@pytest.mark.parametrize(
    ("rules", "view", "cannot"),
    [
        (REPAIR, KILLED, ()),
        (replace(ADOPTING, mode=Mode.QUARANTINE), KILLED, ()),
        (ADOPTING, replace(KILLED, flags=frozenset({"DOWN", "DRAIN"})), ()),
        (ADOPTING, replace(KILLED, flags=frozenset({"DOWN"})), ()),
        (ADOPTING, KILLED, tuple(Remedy)),
        (replace(ADOPTING, policy=site("gpu.*", mode=Mode.QUARANTINE)), KILLED, ()),
    ],
    ids=["setting off", "quarantine mode", "down and drained", "down", "no repair is possible", "rule goes no further"],
)
def test_what_the_cluster_took_out_by_itself_is_else_paged_with_both_facts(
    rules: Rules, view: NodeView, cannot: tuple[Remedy, ...]
) -> None:
    """A person is told of the drain and of the fault, and nothing is touched."""
    decision = decided(SICK, situation=replace(WELL, view=view), rules=rules, cannot=cannot)
    assert (decision.action, decision.refusal, decision.steps) == (Action.PAGE, Refusal.FOREIGN_HOLD, ())
    assert (
        'the cluster took the node out by itself, as root with "Kill task failed", while gpu.xid.79' in decision.reason
    )


def test_at_the_limit_it_pages() -> None:
    """Five of a hundred may be out: the fifth goes, the sixth does not."""
    out = [f"n{index}" for index in range(2, 8)]
    fifth, sixth = (FleetSnapshot(out=frozenset(out[:count]), total=100) for count in (4, 5))
    assert decided(SICK, situation=replace(WELL, snapshot=fifth)).action is Action.REPAIR
    refused = decided(SICK, situation=replace(WELL, snapshot=sixth))
    assert refused.action is Action.PAGE
    assert refused.reason == "at the fleet limit: 5 of 100 nodes are out, 5 may be"


@pytest.mark.parametrize(
    ("limit", "action", "reason"),
    [
        (6, Action.REPAIR, "repair for "),
        (5, Action.PAGE, "at the fleet limit: 5 of 100 nodes are out, 5 may be"),
        (0, Action.PAGE, "the fleet limit is 0: nothing is taken out until an operator allows it"),
    ],
)
def test_a_limit_that_the_cluster_holds_everybody_to_goes_before_the_configured_one(
    limit: int, action: Action, reason: str
) -> None:
    """Five of a hundred are out, and 5 % is what the agent's own configuration allows: Kubernetes' Lease decides."""
    snapshot = FleetSnapshot(out=frozenset(f"n{index}" for index in range(2, 7)), total=100, limit=limit)
    decision = decided(SICK, rules=Rules(mode=Mode.REPAIR, max_out="5%"), situation=replace(WELL, snapshot=snapshot))
    assert decision.action is action
    assert decision.reason.startswith(reason)


def test_where_nobody_can_go_out_the_node_itself_is_not_asked_for() -> None:
    """The places alone say that the fleet is full: it pages as at the limit, whatever the node is."""
    full = fleet.WaitForSlot(reason="at the fleet limit: all 5 slots are taken")
    refused = decided(SICK, situation=Situation(view=None, snapshot=None, full=full))
    assert (refused.action, refused.refusal) == (Action.PAGE, Refusal.BUDGET)
    assert refused.reason == "at the fleet limit: all 5 slots are taken"


def test_who_waits_for_its_turn_calls_nobody() -> None:
    """The cluster is slow; seconds later it is known whether there is a place."""
    crowded = fleet.WaitForSlot(reason="the cluster took 2.0 s", passing=True)
    refused = decided(SICK, situation=Situation(view=None, snapshot=None, full=crowded))
    assert (refused.action, refused.refusal, refused.steps) == (Action.HOLD, Refusal.BUDGET, ())
    assert refused.reason == "the cluster took 2.0 s"


def test_a_node_does_not_stand_in_its_own_way() -> None:
    """A level that counts this node among those out does not keep its slot from it."""
    snapshot = FleetSnapshot(out=frozenset({"n1"}), total=8)
    assert decided(SICK, situation=replace(WELL, snapshot=snapshot)).action is Action.REPAIR


# ---------------------------------------------------------------------------------------------------------------------
# what the policy's rules say


def test_a_rule_is_named_where_it_decided() -> None:
    """The sentence and the decision name the rule of the policy; the finding's own remedy needs none."""
    rules = replace(REPAIR, policy=site("gpu.*", ladder=(Remedy.REPLACE_NODE,)))
    decision = decided(SICK, rules=rules)
    assert decision.reason == "repair for gpu.xid.79 on gpu:GPU-0 (replace_node; rule ours)"
    assert (decision.rule, decision.steps, decision.ladder) == ("ours", REPLACE, (Remedy.REPLACE_NODE,))
    assert decided(SICK).rule == ""


def test_what_is_never_to_be_taken_out_stays() -> None:
    """An empty ladder keeps the node in service, however critical the finding; what else is open is acted on."""
    rules = replace(REPAIR, policy=site("gpu.xid.79", ladder=()))
    assert decided(SICK, rules=rules).reason == "nothing calls for taking the node out"
    other = diagnosis(code="gpu.remap.failure", component=GPU[1])
    assert decided(SICK, other, rules=rules).diagnosis == other


def test_a_rule_can_be_in_shadow_alone() -> None:
    """A rule in observe mode says what it would do; other rules go as far as they may."""
    rules = replace(REPAIR, policy=site("gpu.xid.79", mode=Mode.OBSERVE))
    decision = decided(SICK, rules=rules)
    assert (decision.action, decision.steps) == (Action.HOLD, ())
    assert decision.reason == (
        "rule ours is in shadow: would take the node out for gpu.xid.79 on gpu:GPU-0 (reboot_node; rule ours)"
    )
    other = diagnosis(code="gpu.remap.failure", component=GPU[1], remedy=Remedy.RESET_GPU)
    assert decided(SICK, other, rules=rules).diagnosis == other


def test_a_shadow_hides_nothing_else_on_the_same_gpu() -> None:
    """Each fault behind a diagnosis has its own rule: one that is in shadow leaves the other's repair."""
    roots = (
        Root(code="gpu.xid.79", severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE, since=START),
        Root(code="gpu.remap.pending", severity=Severity.WARNING, remedy=Remedy.RESET_GPU, since=START),
    )
    rules = replace(REPAIR, policy=site("gpu.xid.79", mode=Mode.OBSERVE))
    decision = decided(replace(SICK, roots=roots), rules=rules)
    assert decision.reason == "repair for gpu.remap.pending on gpu:GPU-0 (reset_gpu)"
    assert decision.diagnosis is not None
    assert (decision.diagnosis.code, decision.diagnosis.remedy) == ("gpu.remap.pending", Remedy.RESET_GPU)


def test_a_rule_can_stop_at_the_drain() -> None:
    """A rule capped at quarantine drains, though the mode would repair; the ledger is not asked."""
    rules = replace(REPAIR, policy=site("gpu.xid.79", mode=Mode.QUARANTINE))
    assert decided(SICK, rules=rules).steps == QUARANTINE


def test_what_a_person_must_settle_is_kept_out() -> None:
    """A ladder of ask_human takes a node out for what by itself would only be watched."""
    faster = diagnosis(Remedy.ASK_HUMAN, code="gpu.ecc.accelerating", severity=Severity.WARNING)
    assert decided(faster).action is Action.PAGE
    rules = replace(REPAIR, policy=site("gpu.ecc.*", ladder=(Remedy.ASK_HUMAN,)))
    decision = decided(faster, rules=rules)
    assert (decision.action, decision.steps, decision.refusal) == (Action.PAGE, QUARANTINE, Refusal.PERSON)
    assert decision.reason == (
        "quarantine for gpu.ecc.accelerating on gpu:GPU-0 (ask_human; rule ours): only an operator can repair it"
    )


@pytest.mark.parametrize("mode", [Mode.QUARANTINE, Mode.REPAIR])
def test_a_critical_fault_for_a_person_pages_in_either_mode(mode: Mode) -> None:
    """No job can use the node, and nothing that healthd has would repair it."""
    decision = decided(diagnosis(Remedy.ASK_HUMAN, code="lustre.missing"), rules=Rules(mode=mode))
    assert (decision.action, decision.steps, decision.refusal) == (Action.PAGE, QUARANTINE, Refusal.PERSON)


# ---------------------------------------------------------------------------------------------------------------------
# what was tried before


def test_what_came_back_is_answered_by_the_next_remedy() -> None:
    """Reset, the same fault, reboot, the same fault, replace, the same fault: a person. Each says what was before."""
    sick, steps, messages = diagnosis(), [], []
    repairs: list[Repair] = []
    for day, remedy in enumerate((Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE), 1):
        decision = decided(sick, ledger=repairs, day=day)
        steps.append(decision.steps)
        messages.append(decision.reason)
        repairs.append(tried(remedy, day=day))
    assert steps == [RESET, REBOOT, REPLACE]
    assert messages[0] == "repair for gpu.sick on gpu:GPU-0 (reset_gpu)"
    assert messages[2] == "repair for gpu.sick on gpu:GPU-0 (replace_node after reset_gpu, reboot_node)"
    last = decided(sick, ledger=repairs, day=4)
    assert (last.action, last.steps) == (Action.PAGE, QUARANTINE)
    assert last.reason == (
        "gpu.sick on gpu:GPU-0 came back after reset_gpu, reboot_node, replace_node: an operator is needed"
    )


def test_the_ladder_tells_what_is_left() -> None:
    """The engine gets the present remedy and what may follow it, as far as anybody here can carry it out."""
    assert decided(diagnosis()).ladder == (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
    only_reboot = decided(diagnosis(), cannot=set(Remedy) - {Remedy.REBOOT_NODE})
    assert (only_reboot.steps, only_reboot.ladder) == (REBOOT, (Remedy.REBOOT_NODE,))


@pytest.mark.parametrize(
    "repair",
    [
        tried(Remedy.RESET_GPU, day=-8),
        tried(Remedy.RESET_GPU, code="gpu.other"),
        tried(Remedy.RESET_GPU, component="gpu:GPU-1"),
    ],
)
def test_other_faults_and_old_ones_do_not_count(repair: Repair) -> None:
    """A repair of another code, of another GPU, or of longer ago than the window begins the ladder anew."""
    assert decided(diagnosis(), ledger=[repair]).steps == RESET


def test_a_gpu_is_known_by_its_other_name() -> None:
    """A repair that is on record by the PCI address counts for the GPU whose UUID is known by now."""
    repair = tried(Remedy.RESET_GPU, component="gpu:0000:10:1c")
    assert decided(diagnosis(), ledger=[repair]).steps == REBOOT


def test_a_lemon_is_kept_out() -> None:
    """Four repairs in a week, whatever they were for: the fifth is a person's to make."""
    repairs = [tried(Remedy.REBOOT_NODE, code=f"gpu.{number}", day=number) for number in range(4)]
    decision = decided(SICK, ledger=repairs, day=4)
    assert (decision.action, decision.steps) == (Action.PAGE, QUARANTINE)
    assert decision.reason == (
        "a node that comes back too often is a lemon: 4 repairs of this node within 7 days, 4 may be; now gpu.xid.79"
        " on gpu:GPU-0 (reboot_node)"
    )
    assert decided(SICK, ledger=repairs, day=7.5).action is Action.REPAIR


def test_one_fault_has_so_many_attempts() -> None:
    """Whatever the ladder says, one fault is repaired only so often."""
    rules = replace(REPAIR, bounds=Bounds(repairs_per_fault=1))
    assert decided(diagnosis(), rules=rules).steps == RESET
    assert decided(diagnosis(), rules=rules, ledger=[tried(Remedy.RESET_GPU)]).action is Action.PAGE


# ---------------------------------------------------------------------------------------------------------------------
# many at once


def elsewhere(
    *nodes: str, code: str = "gpu.xid.79", minutes: float = 0.0, returned: bool = False
) -> list[SeenElsewhere]:
    return [SeenElsewhere(node=node, code=code, at=at(minutes * 60), returned=returned) for node in nodes]


def test_many_at_once_is_not_a_nodes_fault() -> None:
    """The same finding on four nodes within ten minutes takes none out, and pages."""
    seen = (*elsewhere("n2", minutes=-9), *elsewhere("n5", "n4", minutes=5))
    decision = decided(SICK, situation=replace(WELL, fleet_findings=seen))
    assert (decision.action, decision.steps) == (Action.PAGE, ())
    assert decision.reason == (
        "gpu.xid.79 on 4 nodes within 10 min (n1, n2, n4, n5): many at once is not a node's fault, so nothing"
        " is taken out for it"
    )


@pytest.mark.parametrize(
    ("seen", "nodes"),
    [
        (
            [*elsewhere("n2"), *elsewhere("n3", "n4", minutes=9, returned=True)],
            "4 nodes within 10 min (n1, n2, n3, n4)",
        ),
        (elsewhere("n2", "n3", "n4", "n5", minutes=-1430), "4 nodes within 10 min (n2, n3, n4, n5)"),
        (
            [*elsewhere("n2", minutes=-60), *elsewhere("n3", "n4", "n5", minutes=-55, returned=True)],
            "4 nodes within 10 min (n2, n3, n4, n5)",
        ),
    ],
)
def test_a_hold_stays_although_nodes_return_and_others_join(seen: list[SeenElsewhere], nodes: str) -> None:
    """A node that returned within the window counts; what comes to this one within the day is held with the others."""
    decision = decided(SICK, situation=replace(WELL, fleet_findings=tuple(seen)))
    assert (decision.action, decision.refusal) == (Action.PAGE, Refusal.CORRELATED)
    assert nodes in decision.reason


def test_a_long_list_of_nodes_is_cut() -> None:
    """A thousand nodes do not make a sentence of a thousand names."""
    seen = tuple(elsewhere(*(f"n{number:02}" for number in range(10, 40))))
    decision = decided(SICK, situation=replace(WELL, fleet_findings=seen))
    assert "31 nodes within 10 min (n1, n10, n11, n12, n13, n14, n15, n16 and 23 more)" in decision.reason


@pytest.mark.parametrize(
    "seen",
    [
        elsewhere("n2", "n3"),
        [*elsewhere("n2", "n3"), *elsewhere("n2", "n3", minutes=2)],
        [*elsewhere("n1"), *elsewhere("n2", "n3")],
        elsewhere("n2", "n3", "n4", minutes=11),
        elsewhere("n2", "n3", "n4", minutes=-11),
        elsewhere("n2", "n3", "n4", code="gpu.xid.48"),
        elsewhere("n2", "n3", "n4", "n5", minutes=-60, returned=True),
        elsewhere("n2", "n3", "n4", "n5", minutes=-1450),
        elsewhere("n2", "n3", "n4", "n5", minutes=11),
    ],
)
def test_a_few_nodes_or_other_times_are_chance(seen: list[SeenElsewhere]) -> None:
    """Nodes are counted, not lines; so is this one once; another code, or another hour, is another matter."""
    assert decided(SICK, situation=replace(WELL, fleet_findings=tuple(seen))).action is Action.REPAIR


def test_what_is_this_nodes_own_is_still_repaired() -> None:
    """A hold is for one kind of fault: another one on this node, that nobody shares, is acted on."""
    own = diagnosis(code="gpu.remap.failure", component=GPU[1], remedy=Remedy.REPLACE_NODE)
    seen = tuple(elsewhere("n2", "n3", "n4"))
    decision = decided(own, SICK, situation=replace(WELL, fleet_findings=seen))
    assert decision.diagnosis == own
    assert decided(SICK, own, situation=replace(WELL, fleet_findings=seen)).diagnosis == own


@pytest.mark.parametrize(
    ("decision", "refusal"),
    [
        (decided(SICK), None),
        (decided(SICK, rules=Rules(mode=Mode.QUARANTINE)), None),
        (decided(), None),
        (decided(SICK, cannot=tuple(Remedy)), Refusal.CANNOT),
        (decided(SICK, rules=Rules(mode=Mode.OBSERVE)), Refusal.OBSERVE),
        (decided(SICK, rules=Rules(mode=Mode.REPAIR, policy=site("*", mode=Mode.OBSERVE))), Refusal.SHADOW),
        (decided(SICK, rules=Rules(mode=Mode.REPAIR, opted_out="/x exists")), Refusal.OPTED_OUT),
        (decided(SICK, seen=(SICK,)), Refusal.ACKNOWLEDGED),
        (decided(SICK, situation=Situation(view=None, snapshot=None, problem="silence")), Refusal.UNREADABLE),
        (decided(SICK, situation=Situation(view=VIEW, snapshot=None, problem="silence")), Refusal.UNREADABLE),
        (decided(SICK, situation=replace(WELL, view=replace(VIEW, in_service=False))), Refusal.FOREIGN_HOLD),
        (decided(SICK, situation=replace(WELL, snapshot=FleetSnapshot(out=frozenset({"a"}), total=9))), Refusal.BUDGET),
        (decided(diagnosis(Remedy.ASK_HUMAN, severity=Severity.WARNING)), Refusal.PERSON),
        (
            decided(SICK, ledger=[tried(Remedy.REPLACE_NODE, code="gpu.xid.79")] * 4),
            Refusal.EXHAUSTED,
        ),
        (decided(SICK, ledger=[tried(Remedy.REBOOT_NODE, code=f"other.{n}") for n in range(4)]), Refusal.LEMON),
    ],
)
def test_every_refusal_has_its_word(decision: Decision, refusal: Refusal | None) -> None:
    """The word for the metric, beside the sentence for the person; what is done in full has none."""
    assert decision.refusal is refusal
