"""From open faults to diagnoses and a verdict."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthd.core.model import NODE, Component, Diagnosis, Outcome, Remedy, Root, Severity, Verdict
from healthd.judge.diagnose import acknowledged_parts, diagnose, judge
from healthd.judge.history import Fault, History
from healthd.remediation.decide.rules import BY_REMEDY
from tests.support.judgement import DRIVER, GPU, at, could_not_tell, diagnosis, fault, finding, history, looked

EFA = Component(kind="efa", id="rdmap79s0")


def shown(*faults: Fault) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.code, str(each.component), each.codes) for each in diagnose(history(*faults))]


def test_a_well_node_has_no_diagnosis() -> None:
    """Nothing open, nothing wrong."""
    assert diagnose(History()) == ()


def test_a_diagnosis_carries_its_fault() -> None:
    """Code, place, severity, remedy, words and the time since when."""
    only = fault("gpu.xid.79", message="it fell off the bus", remedy=Remedy.REBOOT_NODE, first=at(5), last=at(9))
    assert diagnose(history(only)) == (
        Diagnosis(
            code="gpu.xid.79",
            component=GPU[0],
            severity=Severity.CRITICAL,
            remedy=Remedy.REBOOT_NODE,
            reasons=("it fell off the bus",),
            since=at(5),
            codes=("gpu.xid.79",),
            roots=(Root(code="gpu.xid.79", severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE, since=at(5)),),
        ),
    )


def test_a_diagnosis_lists_what_stands_by_itself() -> None:
    """Every fault that no other explains is told with its own remedy and time, the most far-reaching first."""
    late = fault("gpu.remap.failure", remedy=Remedy.REPLACE_NODE, first=at(7))
    early = fault("gpu.xid.48", first=at(5))
    symptom = fault("gpu.ecc", symptom_of=("gpu.xid.48",), remedy=Remedy.REBOOT_NODE)
    (only,) = diagnose(history(early, symptom, late))
    assert [(root.code, root.remedy, root.since) for root in only.roots] == [
        ("gpu.remap.failure", Remedy.REPLACE_NODE, at(7)),
        ("gpu.xid.48", Remedy.RESET_GPU, at(5)),
    ]


def test_one_part_one_diagnosis() -> None:
    """Faults of one GPU are one diagnosis: the furthest remedy leads, the worst severity counts."""
    (both,) = diagnose(
        history(
            fault("gpu.hot", remedy=Remedy.WATCH, severity=Severity.CRITICAL, first=at(1), message="hot"),
            fault("gpu.remap", remedy=Remedy.RESET_GPU, severity=Severity.WARNING, first=at(5), message="pending"),
        )
    )
    assert (both.code, both.remedy, both.severity, both.since) == (
        "gpu.remap",
        Remedy.RESET_GPU,
        Severity.CRITICAL,
        at(1),
    )
    assert both.reasons == ("pending", "hot")


def test_the_most_urgent_comes_first() -> None:
    """By remedy, then by severity."""
    found = diagnose(
        history(
            fault("a", GPU[0], remedy=Remedy.WATCH),
            fault("b", GPU[1], remedy=Remedy.REBOOT_NODE, severity=Severity.WARNING),
            fault("c", DRIVER, remedy=Remedy.REBOOT_NODE),
        )
    )
    assert [each.code for each in found] == ["c", "b", "a"]


def test_an_explained_fault_is_evidence() -> None:
    """An ECC counter behind a contained XID 94 asks for nothing by itself and is named with its cause."""
    cause = fault("gpu.xid.94", remedy=Remedy.RESTART_APP, severity=Severity.WARNING)
    symptom = fault("gpu.ecc.uncorrected", symptom_of=("gpu.xid.94",), first=at(-5))
    (each,) = diagnose(history(symptom, cause))
    assert (each.code, each.remedy, each.severity) == ("gpu.xid.94", Remedy.RESTART_APP, Severity.WARNING)
    assert (each.codes, each.since) == (("gpu.xid.94", "gpu.ecc.uncorrected"), at(-5))


def test_another_gpu_explains_nothing() -> None:
    """An XID on one GPU does not explain the counter of another; one on the driver, or the node, may."""
    symptom = fault("gpu.ecc", GPU[0], symptom_of=("cause",))
    assert len(shown(symptom, fault("cause", GPU[1]))) == 2
    assert shown(symptom, fault("cause", DRIVER)) == [("cause", "driver:nvidia", ("cause", "gpu.ecc"))]
    assert shown(symptom, fault("cause", NODE)) == [("cause", "node", ("cause", "gpu.ecc"))]


def test_a_chain_of_symptoms_leads_to_its_root() -> None:
    """The symptom of a symptom belongs to the first cause."""
    chain = (fault("c", symptom_of=("b",)), fault("b", symptom_of=("a",)), fault("a", DRIVER))
    assert shown(*chain) == [("a", "driver:nvidia", ("a", "c", "b"))]


def test_faults_that_explain_each_other_are_both_roots() -> None:
    """A circle has no outside cause: none of it disappears, and what leans on it does not either."""
    one, other = fault("a", GPU[0], symptom_of=("b",)), fault("b", DRIVER, symptom_of=("a",))
    leaning = fault("c", NODE, symptom_of=("a",))
    assert {code for code, _, _ in shown(one, other, leaning)} == {"a", "b", "c"}
    assert shown(replace(one, symptom_of=("a",))) == [("a", "gpu:GPU-0", ("a",))]


def test_a_cause_from_outside_breaks_the_circle() -> None:
    """With a root behind one of the two, both are its symptoms."""
    one, other = fault("a", symptom_of=("b", "root")), fault("b", symptom_of=("a",))
    assert shown(one, other, fault("root", DRIVER)) == [("root", "driver:nvidia", ("root", "a", "b"))]


# ---------------------------------------------------------------------------------------------------------------------
# acknowledged


def _matters(each: Fault) -> bool:
    return BY_REMEDY.matters(each, each.component, ())


def overruled(*faults: Fault) -> list[bool]:
    known = history(*faults)
    return [each.component in acknowledged_parts(known, _matters) for each in diagnose(known)]


def test_all_that_takes_the_node_out_must_have_been_seen() -> None:
    """A person's order covers what was open then; a second fault that calls for the node is not covered."""
    seen = fault("gpu.xid.79", acknowledged=True)
    assert overruled(seen) == [True]
    assert overruled(seen, fault("gpu.remap.failure")) == [False]
    assert overruled(fault()) == [False]


def test_a_jobs_noise_takes_no_order_back() -> None:
    """An XID 13 on the same GPU, after a person put the node back, does not drain it again."""
    seen = fault("gpu.xid.79", acknowledged=True)
    assert overruled(seen, fault("gpu.xid.13", remedy=Remedy.RESTART_APP, severity=Severity.WARNING)) == [True]


def test_a_late_symptom_takes_no_order_back() -> None:
    """The counter that follows the acknowledged XID is explained by it; without it, it is a fault of its own."""
    late = fault("gpu.ecc", symptom_of=("gpu.xid.48",))
    assert overruled(fault("gpu.xid.48", acknowledged=True), late) == [True]
    assert overruled(late) == [False]


def test_an_acknowledged_loss_covers_no_other_device() -> None:
    """A missing EFA device has no name. The closed queue that came before it may be its own; one that comes after the
    operator's command is another device's, and takes the node out."""
    missing = fault("efa.missing", NODE, first=at(5), acknowledged=True)
    queue = fault("efa.admin_queue", EFA, symptom_of=("efa.missing", "efa.driver_lost"), first=at(9))
    assert shown(missing, queue) == [
        ("efa.missing", "node", ("efa.missing",)),
        ("efa.admin_queue", str(EFA), (queue.code,)),
    ]
    assert overruled(missing, queue) == [True, False]
    for earlier in (replace(queue, first=at(4)), replace(queue, acknowledged=True)):
        assert shown(missing, earlier) == [("efa.missing", "node", ("efa.missing", "efa.admin_queue"))]
    assert len(shown(replace(missing, acknowledged=False), queue)) == 1
    lost = fault("efa.driver_lost", DRIVER)
    assert shown(missing, queue, lost)[-1][2] == ("efa.driver_lost", "efa.admin_queue"), "another cause may explain it"


def test_another_part_is_another_order() -> None:
    """What was said about one GPU holds for that GPU, and a diagnosis of nothing open is not acknowledged."""
    assert overruled(fault(component=GPU[0], acknowledged=True), fault(component=GPU[1])) == [False, True]
    assert acknowledged_parts(History(), _matters) == frozenset()


# ---------------------------------------------------------------------------------------------------------------------
# the verdict


@pytest.mark.parametrize(
    ("severities", "outcomes", "verdict"),
    [
        ([], [looked()], Verdict.OK),
        ([Severity.INFO], [looked()], Verdict.OK),
        ([Severity.WARNING, Severity.INFO], [looked()], Verdict.WARNING),
        ([Severity.WARNING], [looked(), could_not_tell()], Verdict.UNKNOWN),
        ([], [looked(undecided=("gpu:GPU-1 did not answer",))], Verdict.UNKNOWN),
        ([Severity.WARNING, Severity.CRITICAL], [could_not_tell()], Verdict.CRITICAL),
        ([], [replace(could_not_tell(), optional=True)], Verdict.OK),
        ([Severity.WARNING], [replace(looked(undecided=("x",)), optional=True)], Verdict.WARNING),
        ([], [], Verdict.OK),
    ],
)
def test_worst_first(severities: list[Severity], outcomes: list[Outcome], verdict: Verdict) -> None:
    """Critical, then an unknown that counts, then warning; news and what an optional check could not tell are ok."""
    assert judge([diagnosis(severity=severity) for severity in severities], outcomes) is verdict


def test_findings_without_an_open_fault_do_not_count() -> None:
    """The verdict is of diagnoses: a result's own findings were folded before it is asked."""
    assert judge((), [looked(finding())]) is Verdict.OK
