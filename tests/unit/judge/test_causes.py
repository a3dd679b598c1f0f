"""The grouping of findings by code, and of unknown checks by reason."""

from __future__ import annotations

from msgspec.structs import replace

from healthd.core.check import judged, ok, unknown
from healthd.core.model import NODE, Component, Outcome, Remedy, Result, Root, Severity, gpu_component
from healthd.judge.causes import causes_of, unknowns_of
from healthd.judge.devices import DeviceNames
from healthd.judge.diagnose import reasons_of, roots_of
from tests.support.judgement import START, at, diagnosis, fault

NAMES = DeviceNames({f"gpu:GPU-{n}": f"GPU {n}" for n in range(8)})
GPUS = [gpu_component(uuid=f"GPU-{n}") for n in range(8)]


def outcome(name: str, result: Result, *, optional: bool = False) -> Outcome:
    return Outcome(check=name, result=result, at=at(0), duration_s=0.1, optional=optional)


def test_the_worst_and_the_earliest_speak_for_a_cause() -> None:
    """One cause for a code, whatever the severity on each device; the worst causes first."""
    hot = diagnosis(code="gpu.hot", component=GPUS[2], severity=Severity.WARNING, remedy=Remedy.WATCH, since=at(9))
    worse = replace(hot, component=GPUS[1], severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE, reasons=("90 C",))
    mild = diagnosis(code="host.slow", component=NODE, severity=Severity.WARNING, since=at(1))
    news = diagnosis(code="gpu.xid.43", component=GPUS[0], severity=Severity.INFO)
    found = causes_of((news, mild, replace(hot, since=START), worse), (), NAMES)
    assert [(each.code, each.severity, each.where, each.since) for each in found] == [
        ("gpu.hot", Severity.CRITICAL, "2 GPUs (1-2)", START),
        ("host.slow", Severity.WARNING, "", at(1)),
        ("gpu.xid.43", Severity.INFO, "GPU 0", START),
    ]
    assert found[0].remedy is Remedy.REBOOT_NODE
    assert found[0].components == ("gpu:GPU-1", "gpu:GPU-2")
    assert found[0].messages == ("GPU 1: 90 C", "GPU 2: it is sick")
    assert [each.is_problem for each in found] == [True, True, False]


def test_more_messages_than_fit_are_counted() -> None:
    """Two stand there; the others are one step away."""
    many = [diagnosis(component=gpu, reasons=(word,)) for gpu, word in zip(GPUS, "abcde", strict=False)]
    (cause,) = causes_of(many, (), NAMES)
    assert cause.messages == ("GPU 0: a", "GPU 1: b", "and 3 more; see -v")


def test_a_symptom_is_named_by_what_explains_it_and_no_root_twice() -> None:
    """Each root of a component is a cause; the symptoms stand with the first."""
    roots = tuple(
        Root(code=code, severity=Severity.CRITICAL, remedy=Remedy.RESET_GPU, since=START) for code in ("a.a", "b.b")
    )
    both = diagnosis(code="a.a", component=GPUS[0], roots=roots, codes=("a.a", "b.b", "c.c"), reasons=("1", "2", "3"))
    first, second = causes_of((both,), (fault("c.c", NODE),), NAMES)
    assert (first.messages, first.explains) == (("1",), ("c.c",))
    assert (second.messages, second.explains) == (("2",), ())
    assert reasons_of(both, 0) == ("1", "3")
    assert reasons_of(both, 1) == ("2",)
    assert roots_of(diagnosis(code="gpu.sick"))[0].code == "gpu.sick"


def test_a_fault_that_no_diagnosis_has_stands_for_itself() -> None:
    """Nothing that is open disappears."""
    (cause,) = causes_of((), (fault("odd.code", GPUS[3]),), NAMES)
    assert (cause.code, cause.where) == ("odd.code", "GPU 3")


def test_an_acknowledgement_names_the_devices_that_it_is_about() -> None:
    """None, where it is about all of them."""
    seen = [replace(fault(component=gpu), acknowledged=gpu is not GPUS[1]) for gpu in GPUS[:3]]
    open_now = [diagnosis(component=gpu) for gpu in GPUS[:3]]
    (cause,) = causes_of(open_now, seen, NAMES)
    assert cause.acknowledged == "2 GPUs (0,2) acknowledged until it ends"
    (cause,) = causes_of(open_now[:1], seen[:1], NAMES)
    assert cause.acknowledged == "acknowledged until it ends"


def test_checks_that_are_unknown_for_one_reason_are_one_cause() -> None:
    """Those that count come first; what could not be read of many devices stands there once."""
    undecided = judged([], undecided=[f"gpu:GPU-{n}: answered UNKNOWN (999)" for n in range(8)], left_out="MIG is on")
    found = unknowns_of(
        [
            outcome("efa.devices", unknown("no libfabric"), optional=True),
            outcome("gpu.ecc", unknown("no driver")),
            outcome("gpu.count", unknown("no driver")),
            outcome("gpu.power", unknown("no driver")),
            outcome("gpu.health", undecided),
            outcome("gpu.nvlink", judged([], undecided=["silent"])),
            outcome("gpu.odd", unknown("")),
            outcome("host.cpu", ok()),
        ],
        NAMES,
    )
    assert [(each.code, each.where, each.messages, each.optional) for each in found] == [
        ("gpu.ecc", "and 2 more checks", ("no driver",), False),
        ("gpu.health", "", ("8 GPUs (0-7): answered UNKNOWN (999); MIG is on",), False),
        ("gpu.nvlink", "", ("silent",), False),
        ("gpu.odd", "", ("undecided",), False),
        ("efa.devices", "", ("no libfabric",), True),
    ]
    assert found[0].checks == ("gpu.ecc", "gpu.count", "gpu.power")
    assert not found[0].is_problem


def test_an_unknown_has_the_next_step_of_its_reason() -> None:
    """What the run names itself; of a part that did not answer, what the check reads; else nothing, which is for
    `healthd doctor`."""
    found = unknowns_of(
        [
            outcome("gpu.ecc", unknown("no driver")),
            outcome("nccl.nvlink", unknown("the GPUs are in use", "wait")),
            outcome("gpu.nvlink", judged([], undecided=["gpu:GPU-1: silent"])),
            outcome("gpu.count", judged([], undecided=["NVML is paused"])),
            outcome("gpu.power", unknown("NVML is paused", "again")),
        ],
        NAMES,
    )
    assert [each.do for each in found] == [
        "",
        "wait",
        "a part did not answer; see what the check reads: `healthd explain gpu.nvlink`",
        "again",
    ]


def test_components_of_one_kind_stand_in_their_order() -> None:
    """GPU 2 before GPU 10."""
    mounts = [diagnosis(code="m.m", component=Component(kind="mount", id=f"/{n}")) for n in (10, 2)]
    (cause,) = causes_of(mounts, (), DeviceNames())
    assert cause.where == "mount:/2, mount:/10"
