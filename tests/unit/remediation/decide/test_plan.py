"""The plan: the ladder asked about each diagnosis by itself, and what a person reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.api.plan import as_text, decisions, entry, paused_by, remediation_plan
from healthd.core.model import Action, Diagnosis, Mode, Remedy, Severity, Step
from healthd.judge.causes import causes_of
from healthd.judge.devices import DeviceNames
from healthd.observe.cause_text import cause_data
from healthd.remediation.decide.drive import planned_on_job
from healthd.remediation.decide.on_job import JobRestart, JobStage, OnJob, none_to_act_on
from healthd.remediation.decide.policy import Considered, Needs, Readings, Rules, Situation, decide_each, question
from healthd.remediation.decide.remediation import End, Remediation, Repair
from healthd.remediation.decide.rules import OWN_REMEDY, QUARANTINE, REBOOT, Policy, Rule
from healthd.remediation.ports import FleetSnapshot, Hold, NodeView
from tests.support.judgement import GPU, START, a_remediation, all_read, decided_by, diagnosis

SICK = diagnosis(code="gpu.xid.79", remedy=Remedy.REBOOT_NODE)
OTHER = diagnosis(code="gpu.remap.failure", component=GPU[1], remedy=Remedy.REPLACE_NODE)
VIEW = NodeView(name="n1", in_service=True, flags=frozenset({"IDLE"}), hold=None)
WELL = Situation(view=VIEW, snapshot=FleetSnapshot(out=frozenset(), total=100))
REPAIR = Rules(mode=Mode.REPAIR)
HEAD = {
    "node": "n1", "mode": "repair", "policy": "p", "orchestrator": "slurm", "opted_out": "", "opt_out_unread": "",
    "operator": "", "by_job": "",
}  # fmt: skip
REMEDIATION = a_remediation(index=2, ladder=(Remedy.REBOOT_NODE, Remedy.REPLACE_NODE))
ORDERED = replace(REMEDIATION, command="new kernel (uid 0)")


def plans(
    *diagnoses: Diagnosis,
    situation: Situation = WELL,
    rules: Rules = REPAIR,
    seen: tuple[Diagnosis, ...] = (),
    cannot: tuple[Remedy, ...] = (),
    ledger: Sequence[Repair] = (),
) -> tuple[Considered, ...]:
    known = all_read(situation, ledger, {remedy: f"nobody has a {remedy}" for remedy in cannot})
    found = decide_each(diagnoses, seen, rules, START, known)
    assert not isinstance(found, Needs)
    return found


def as_plan(data: dict[str, Any], *each: Considered, remediation: Remediation | None = None) -> str:
    """The text of a plan about these."""
    names = DeviceNames()
    causes = [cause_data(cause) for cause in causes_of([one.diagnosis for one in each], (), names)]
    plans = [entry(one, remediation) for one in each]
    decided = [{**cause, "decisions": decisions(cause, plans, names)} for cause in causes]
    return as_text(data, decided, names, START)


DEAD = diagnosis(code="gpu.xid.79", severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE)


def test_the_act_on_a_job_that_cannot_go_on_is_planned() -> None:
    """For a fault that ends a process, by its rule; ``wait`` has no line, and no other fault has one."""
    policy = Policy(on_job=OnJob(after_s=300))
    answers = policy.answers([DEAD, OTHER])
    assert [str(planned_on_job(answers, each)) for each in (DEAD, OTHER)] == ["requeue after 300s", "wait"]
    (each,) = plans(DEAD)
    names = DeviceNames()
    causes = [cause_data(cause) for cause in causes_of([DEAD], (), names)]
    for on_job, count in ((OnJob(after_s=300), 1), (OnJob(), 0)):
        planned = [entry(each, None, on_job=on_job)]
        decided = [{**cause, "decisions": decisions(cause, planned, names)} for cause in causes]
        text = as_text({**HEAD, "remediation": None}, decided, names, START)
        assert text.count("on_job      requeue after 300s, for the Slurm job that the fault ended") == count


def test_the_restart_of_a_job_is_shown_beside_its_remediation() -> None:
    """How far it is, or why the job is left alone; without one there is no line."""
    restart = JobRestart(job="12", run=0, title="12 of alice on n[1-2]", stage=JobStage.SIGNALLED, at=START)
    for job, words in (
        (restart, f"on_job       job 12 of alice on n[1-2]: signalled at {START:%H:%M:%S} UTC\n"),
        (none_to_act_on("no job ran here when the fault began", START), "on_job       no job ran here when the fault"),
    ):
        data = {**HEAD, "remediation": remediation_plan(replace(REMEDIATION, job=job), REPAIR)}
        assert words in as_text(data, [], DeviceNames(), START)
    plain = {**HEAD, "remediation": remediation_plan(REMEDIATION, REPAIR)}
    assert "on_job" not in as_text(plain, [], DeviceNames(), START)


def test_the_job_by_which_the_mode_is_this_is_said() -> None:
    """Below the mode, and only where a job has a part in it."""
    words = "job 12, qos urgent: c.toml:5 (match[0]) holds, so that the mode is approve"
    assert f"\nby job: {words}\n" in as_plan({**HEAD, "by_job": words, "remediation": None})
    assert "by job" not in as_plan({**HEAD, "remediation": None})


def shown(each: Considered, remediation: Remediation | None = None) -> str:
    """The text for one diagnosis on a node of its own."""
    message = None if remediation is None else remediation_plan(remediation, REPAIR)
    return as_plan({**HEAD, "remediation": message}, each, remediation=remediation)


@pytest.mark.parametrize(
    "rules",
    [REPAIR, Rules(mode=Mode.QUARANTINE), Rules(mode=Mode.OBSERVE), Rules(mode=Mode.REPAIR, opted_out="/x exists")],
)
@pytest.mark.parametrize("seen", [(), (SICK,)])
@pytest.mark.parametrize(
    "about",
    [SICK, diagnosis(Remedy.WATCH, severity=Severity.WARNING), diagnosis(Remedy.ASK_HUMAN, severity=Severity.WARNING)],
)
def test_a_single_diagnosis_is_planned_as_it_would_be_decided(
    about: Diagnosis, seen: tuple[Diagnosis, ...], rules: Rules
) -> None:
    """The plan and the decision are the same ladder: neither mode, order nor opt-out makes them differ."""
    decided, _ = decided_by(question([about], seen, rules, START), all_read(WELL))
    assert [each.decision for each in plans(about, seen=seen, rules=rules)] == [decided]


def test_what_the_plans_need_is_asked_for_at_once() -> None:
    """First the situation, beside every remedy of a ladder, which a person is told of; then what was tried before."""
    ladder = (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
    nothing = decide_each([SICK, OTHER], (), REPAIR, START, Readings())
    assert nothing == Needs(situation=True, remedies=ladder)
    known = Readings(situation=WELL, cannot=dict.fromkeys(ladder, ""))
    assert decide_each([SICK, OTHER], (), REPAIR, START, known) == Needs(repairs=True)
    assert decide_each([SICK], (), Rules(mode=Mode.OBSERVE), START, Readings()) == Needs(remedies=ladder)


def test_each_diagnosis_has_a_plan_of_its_own() -> None:
    """What the decision would leave for later, because another is larger, is planned all the same."""
    first, second = plans(SICK, OTHER)
    assert [(each.decision.action, each.ladder) for each in (first, second)] == [
        (Action.REPAIR, (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)),
        (Action.REPAIR, (Remedy.REPLACE_NODE,)),
    ]


def test_what_is_open_beside_a_diagnosis_counts_for_its_rule() -> None:
    """A rule that holds only together with another code finds it on the node, although each is planned alone."""
    rule = Rule(
        name="both", codes=("gpu.xid.79",), together_with=("host.sick",), reason="r", source="s", ladder=(), site=True
    )
    rules = Rules(mode=Mode.REPAIR, policy=Policy(name="site", rules=(rule, OWN_REMEDY)))
    beside = diagnosis(Remedy.WATCH, replace(GPU[0], kind="node", id=""), code="host.sick", codes=("host.sick",))
    both = plans(replace(SICK, codes=("gpu.xid.79",)), replace(beside, severity=Severity.WARNING), rules=rules)
    assert (both[0].rule.name, both[0].decision.action) == ("both", Action.HOLD)
    assert plans(SICK, rules=rules)[0].rule is OWN_REMEDY


def test_why_a_repair_cannot_be_made_is_said() -> None:
    """The next remedy is taken and the one that nobody has is named, with the reason."""
    (each,) = plans(SICK, cannot=(Remedy.REBOOT_NODE,))
    assert each.cannot == ((Remedy.REBOOT_NODE, "nobody has a reboot_node"),)
    assert each.decision.ladder == (Remedy.REPLACE_NODE,)
    assert "cannot      reboot_node: nobody has a reboot_node" in shown(each)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": Rules(mode=Mode.OBSERVE)}, "observe mode: would take the node out for gpu.xid.79"),
        ({"rules": Rules(mode=Mode.REPAIR, opted_out="/etc/x exists")}, "opted out: /etc/x exists"),
        ({"seen": (SICK,)}, "acknowledged: "),
        (
            {"situation": Situation(view=VIEW, snapshot=FleetSnapshot(out=frozenset({"n2"}), total=10))},
            "at the fleet limit: 1 of 10 nodes are out, 1 may be",
        ),
        (
            {
                "situation": Situation(
                    view=replace(VIEW, in_service=False, hold=Hold(text="burned", user="ops", stamp=1)), snapshot=None
                )
            },
            'already out of service, held by ops with "burned": left alone',
        ),
        ({"cannot": (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)}, "quarantine for gpu.xid.79"),
    ],
)
def test_every_refusal_is_a_sentence(changes: dict[str, object], words: str) -> None:
    """What a person reads is the decision's own sentence."""
    (each,) = plans(SICK, **changes)  # type: ignore[arg-type]
    assert words in shown(each)


def test_a_rules_own_cap_is_shown() -> None:
    """A rule in shadow goes as far as observe, although the mode is repair."""
    rule = Rule(name="ours", codes=("gpu.xid.*",), reason="we try it", source="ticket 7", mode=Mode.OBSERVE)
    (each,) = plans(SICK, rules=Rules(mode=Mode.REPAIR, policy=Policy(name="site", rules=(rule,))))
    assert "ladder      reboot_node, then replace_node; as far as observe" in shown(each)
    assert "rule        ours: we try it" in shown(each)


def test_an_open_case_is_all_that_goes_on() -> None:
    """While it is open nothing new is decided; its next steps are named, and what follows if they do not help."""
    mine, other = (entry(each, REMEDIATION) for each in plans(SICK, OTHER))
    assert (mine["message"], mine["action"]) == ("remediation c1 of this fault goes on with wait_idle", "hold")
    assert other["message"].startswith(
        "remediation c1 is open for gpu.xid.79 on gpu:GPU-0; healthd decides about other faults after"
    )
    assert remediation_plan(REMEDIATION, REPAIR)["message"] == (
        "[c1] gpu.xid.79 on gpu:GPU-0 at wait_idle since 2026-01-01 00:00:00 UTC; then collect, reboot, verify, "
        "release; if that does not help replace_node"
    )
    kept = replace(REMEDIATION, steps=QUARANTINE, index=QUARANTINE.index(Step.VERIFY))
    about = "remediation c1 is open for gpu.xid.79 on gpu:GPU-0"
    (beside,) = plans(OTHER)
    assert entry(beside, kept)["message"] == (
        f"{about} and only keeps the node out; healthd decides about the open faults next"
    )
    assert entry(beside, kept, paused="observe")["message"] == f"{about}, paused at verify: observe"
    last = replace(REMEDIATION, index=len(REBOOT) - 1, ladder=())
    assert str(remediation_plan(last, REPAIR)["message"]).endswith("; then nothing more")


@pytest.mark.parametrize(
    ("remediation", "rules", "words"),
    [
        (replace(REMEDIATION, end=End.FAILED, note="no boot"), REPAIR, "given up, an operator is needed: no boot"),
        (REMEDIATION, Rules(mode=Mode.REPAIR, opted_out="/etc/x exists"), "; paused: opted out: /etc/x exists"),
        (ORDERED, Rules(mode=Mode.OBSERVE, opted_out="/etc/x exists"), "; paused: opted out: /etc/x exists"),
        (REMEDIATION, Rules(mode=Mode.OBSERVE), "; paused: observe mode"),
    ],
)
def test_a_case_that_is_paused_says_why(remediation: Remediation, rules: Rules, words: str) -> None:
    """Given up, opted out, or in observe mode, it is not said to go on; neither is the fault that it is open for."""
    assert str(remediation_plan(remediation, rules)["message"]).endswith(words)
    (each,) = plans(SICK, rules=rules)
    message = str(entry(each, remediation, paused=paused_by(remediation, rules))["message"])
    assert message.startswith(f"remediation {remediation.id} of this fault ")
    assert "goes on" not in message
    assert message.endswith(words.rpartition("; paused: ")[2].rpartition("needed: ")[2])


def test_an_order_is_paused_by_an_opt_out_alone() -> None:
    """No mode is too low for what a person ordered; who opts the node out has said more."""
    assert paused_by(ORDERED, Rules(mode=Mode.OBSERVE)) == ""
    assert "; then collect" in str(remediation_plan(ORDERED, Rules(mode=Mode.OBSERVE))["message"])
    assert paused_by(ORDERED, Rules(mode=Mode.REPAIR, opted_out="x exists")) == "opted out: x exists"


def test_a_well_node_says_that_it_is_opted_out() -> None:
    """Without a fault there is no plan that could say so; and where the cluster did not answer, that is said."""
    text = as_plan({**HEAD, "opted_out": "/etc/x exists", "remediation": None})
    assert "\nopted out: /etc/x exists; healthd only observes here\n" in text
    text = as_plan({**HEAD, "opt_out_unread": "sinfo: no answer", "remediation": None})
    assert "\nopt-out unknown, the cluster does not answer: sinfo: no answer\n" in text


def test_a_plan_says_what_an_operator_is_needed_for_beside_the_faults() -> None:
    """A drain without a remediation, a node that is out for too long: then not that nothing would be done."""
    text = as_plan({**HEAD, "operator": "held by a drain of ours", "remediation": None})
    assert "\nan operator is needed: held by a drain of ours\n" in text
    assert "no fault is open" not in text


def test_a_well_node_has_nothing_planned() -> None:
    """And that is said."""
    text = as_plan({**HEAD, "remediation": None})
    assert text.endswith("no fault is open, so there is nothing to do\n")
    assert "opt" not in text
