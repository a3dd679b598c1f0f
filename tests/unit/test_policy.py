"""The ladder, rung by rung: each with the sentence that a person reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from healthd.model import Action, Decision, Diagnosis, Mode, Remedy, Severity
from healthd.remediation.playbook import QUARANTINE, REBOOT
from healthd.remediation.policy import Rules, Situation, decide
from healthd.remediation.ports import FleetLevel, Hold, NodeView
from tests.judgement import GPU, diagnosis

SICK = diagnosis(code="gpu.xid.79", remedy=Remedy.REBOOT_NODE)
VIEW = NodeView(name="n1", in_service=True, flags=frozenset({"IDLE"}), hold=None)
LEVEL = FleetLevel(out=frozenset(), total=100)
WELL = Situation(view=VIEW, level=LEVEL)
REPAIR = Rules(mode=Mode.REPAIR)


def decided(
    *diagnoses: Diagnosis,
    situation: Situation = WELL,
    rules: Rules = REPAIR,
    seen: tuple[Diagnosis, ...] = (),
    can: bool = True,
) -> Decision:
    return decide(diagnoses, seen.__contains__, lambda: situation, rules, lambda _: can)


def test_a_fault_becomes_a_repair() -> None:
    """In repair mode, with room in the fleet and a provider that can, the node is drained, rebooted and proven."""
    decision = decided(SICK)
    assert (decision.action, decision.steps, decision.diagnosis) == (Action.REPAIR, REBOOT, SICK)
    assert decision.reason == "repair for gpu.xid.79 on gpu:GPU-0 (reboot_node)"


@pytest.mark.parametrize(("rules", "can"), [(Rules(mode=Mode.QUARANTINE), True), (REPAIR, False)])
def test_where_nothing_can_be_repaired_the_node_is_kept_out(rules: Rules, can: bool) -> None:
    """Quarantine mode, or a provider that cannot reboot, comes to a drain and nothing more."""
    decision = decided(SICK, rules=rules, can=can)
    assert (decision.action, decision.steps) == (Action.QUARANTINE, QUARANTINE)
    assert decision.reason == "quarantine for gpu.xid.79 on gpu:GPU-0 (reboot_node)"


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
    assert decision.reason == "a person has to look at gpu.xid.154 on gpu:GPU-1 (ask_human)"


def test_a_persons_order_stands() -> None:
    """A fault that a person has overruled is held; another one, that nobody has seen, is acted on."""
    other = diagnosis(code="gpu.remap.failure", component=GPU[1])
    held = decided(SICK, seen=(SICK,))
    assert held.action is Action.HOLD
    assert held.reason == ("acknowledged: a person put the node back, and the fault has not gone and come back since")
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
        (Situation(view=None, level=LEVEL, problem="sinfo: timed out"), "the node's state in the cluster could not be"),
        (Situation(view=VIEW, level=None, problem="sinfo: timed out"), "the fleet's level could not be"),
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
    decision = decided(SICK, situation=Situation(view=view, level=None))
    assert decision.action is Action.HOLD
    assert decision.reason == f"already out of service, held by {holder}: left alone"


def test_at_the_limit_it_pages() -> None:
    """Five of a hundred may be out: the fifth goes, the sixth does not."""
    out = [f"n{index}" for index in range(2, 8)]
    fifth, sixth = (FleetLevel(out=frozenset(out[:count]), total=100) for count in (4, 5))
    assert decided(SICK, situation=replace(WELL, level=fifth)).action is Action.REPAIR
    refused = decided(SICK, situation=replace(WELL, level=sixth))
    assert refused.action is Action.PAGE
    assert refused.reason == "at the fleet limit: 5 of 100 nodes are out, 5 may be"


def test_a_node_does_not_stand_in_its_own_way() -> None:
    """A level that counts this node among those out does not keep its slot from it."""
    level = FleetLevel(out=frozenset({"n1"}), total=8)
    assert decided(SICK, situation=replace(WELL, level=level)).action is Action.REPAIR
