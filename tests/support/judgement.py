"""What the tests of judgement build with: a time, a few parts, findings, outcomes, and hypothesis strategies for them.

Values only; nothing here asserts anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.check import judged, unknown
from healthd.core.model import (
    NODE,
    Clearance,
    ClearsBy,
    Component,
    Decision,
    Diagnosis,
    Finding,
    Mode,
    Outcome,
    Reading,
    ReadingKind,
    Remedy,
    Result,
    Severity,
    gpu_component,
)
from healthd.core.node import KernelRecord
from healthd.judge.history import Fault, History, observe
from healthd.judge.trends import Baseline
from healthd.remediation.decide.policy import Needs, Question, Readings, Situation, decide
from healthd.remediation.decide.remediation import Remediation, Repair
from healthd.remediation.decide.rules import REBOOT

START = datetime(2026, 1, 1, tzinfo=UTC)
LUSTRE_IS_LOADED = {"module/lustre/initstate": "live"}
"""The part of /sys by which a line of Lustre's counts."""
PCI = ("0000:10:1c", "0000:20:1c")
GPU = tuple(gpu_component(uuid=f"GPU-{index}", pci=pci) for index, pci in enumerate(PCI))
BY_PCI = tuple(gpu_component(pci=pci) for pci in PCI)
DRIVER = Component(kind="driver", id="nvidia")
FROM_THE_LOG = tuple(by for by in ClearsBy if by is not ClearsBy.NOTHING)


def at(seconds: float) -> datetime:
    """So many seconds after the start of the test's time."""
    return START + timedelta(seconds=seconds)


UNCONTAINED = Diagnosis(
    code="gpu.xid.95",
    component=GPU[0],
    severity=Severity.CRITICAL,
    remedy=Remedy.RESET_GPU,
    reasons=("seen",),
    since=at(0),
)
"""A fault whose own remedy is a GPU reset."""


def finding(code: str = "gpu.sick", component: Component = GPU[0], **changes: Any) -> Finding:
    """A critical finding that calls for a GPU reset, unless told otherwise."""
    plain = Finding(
        code=code,
        severity=Severity.CRITICAL,
        component=component,
        message=f"{code} on {component}",
        remedy=Remedy.RESET_GPU,
    )
    return replace(plain, **changes)


def fault(code: str = "gpu.sick", component: Component = GPU[0], **changes: Any) -> Fault:
    """An open level of the check ``gpu.look``, unless told otherwise."""
    plain = Fault(
        code=code,
        component=component,
        check="gpu.look",
        severity=Severity.CRITICAL,
        remedy=Remedy.RESET_GPU,
        message=f"{code} on {component}",
        first=START,
        last=START,
        boot_id="boot-1",
    )
    return replace(plain, **changes)


def history(*faults: Fault, **changes: Any) -> History:
    """A History with these faults open."""
    return replace(History(boot_id="boot-1", faults={each.key: each for each in faults}), **changes)


def looked(*findings: Finding, check: str = "gpu.look", seconds: float = 0, **result: Any) -> Outcome:
    """The outcome of a look that saw everything, unless ``undecided`` says otherwise."""
    return Outcome(check=check, result=judged(findings, **result), at=at(seconds), duration_s=0.01)


def could_not_tell(check: str = "gpu.look", seconds: float = 0, reason: str = "NVML is silent") -> Outcome:
    """The outcome of a look that saw nothing."""
    return Outcome(check=check, result=unknown(reason), at=at(seconds), duration_s=0.01)


def answered(result: Result, check: str = "gpu.look", seconds: float = 0) -> Outcome:
    """The outcome that carries this result."""
    return Outcome(check=check, result=result, at=at(seconds), duration_s=0.01)


def counter(value: float, component: Component = GPU[0], name: str = "errors_total", epoch: str = "boot-1") -> Reading:
    """A counter's reading."""
    return Reading(component=component, name=name, value=value, kind=ReadingKind.COUNTER, epoch=epoch)


def fold(before: History, outcomes: Iterable[Outcome]) -> History:
    """All of them, one after the other, each judged when it was seen."""
    for outcome in outcomes:
        before, _ = observe(before, outcome, (), outcome.at)
    return before


def kernel_says(*texts: str) -> list[KernelRecord]:
    """Records of the kernel's own, a second apart."""
    return [KernelRecord(boot_id="boot", sequence=n, time=at(n), text=text) for n, text in enumerate(texts)]


def only(result: Result) -> Finding:
    """The one finding that there must be."""
    (found,) = result.findings
    return found


def diagnosis(remedy: Remedy = Remedy.RESET_GPU, component: Component = GPU[0], **changes: Any) -> Diagnosis:
    """A critical diagnosis."""
    plain = Diagnosis(
        code="gpu.sick",
        component=component,
        severity=Severity.CRITICAL,
        remedy=remedy,
        reasons=("it is sick",),
        since=START,
        codes=("gpu.sick",),
    )
    return replace(plain, **changes)


def a_remediation(**changes: Any) -> Remediation:
    """The remediation of a GPU off the bus, before its first step."""
    plain = Remediation(
        id="c1",
        opened=START,
        since=START,
        mode=Mode.REPAIR,
        code="gpu.xid.79",
        component="gpu:GPU-0",
        remedy=Remedy.REBOOT_NODE,
        why="it fell off the bus",
        text="healthd: gpu.xid.79 gpu:GPU-0 [c1]",
        steps=REBOOT,
    )
    return replace(plain, **changes)


# ---------------------------------------------------------------------------------------------------------------------
# strategies

CODES = ("gpu.xid.48", "gpu.xid.79", "gpu.xid.94", "gpu.ecc", "nvml.silent")
CHECKS = ("kernel.xid", "gpu.look", "nvml.probe")
components = st.sampled_from([*GPU, *BY_PCI, DRIVER, NODE])
times = st.integers(0, 100_000).map(at)
anyhow = st.text(max_size=8)
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
plain_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | anyhow,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anyhow, inner, max_size=3),
    max_leaves=6,
)
evidences: st.SearchStrategy[Mapping[str, Any]] = st.dictionaries(anyhow, plain_json, max_size=3)
nothing: st.SearchStrategy[Mapping[str, Any]] = st.just({})
any_component = components | st.builds(
    Component, kind=st.sampled_from(["gpu", "mount"]), id=anyhow, aliases=st.lists(anyhow, max_size=2).map(tuple)
)


def faults(
    *clears_by: ClearsBy | None,
    components: st.SearchStrategy[Component] = components,
    evidences: st.SearchStrategy[Mapping[str, Any]] = nothing,
) -> st.SearchStrategy[Fault]:
    """Faults of these kinds, or of any; the message names the place and the code, so that each can be told apart."""
    return st.builds(
        Fault,
        code=st.sampled_from(CODES),
        component=components,
        check=st.sampled_from(CHECKS),
        severity=st.sampled_from(Severity),
        remedy=st.sampled_from(Remedy),
        message=st.just(""),
        first=times,
        last=times,
        boot_id=st.sampled_from(["", "boot-1"]),
        count=st.integers(1, 9),
        clears_by=st.sampled_from(clears_by or (None, *ClearsBy)),
        symptom_of=st.lists(st.sampled_from(CODES), max_size=2).map(tuple),
        evidence=evidences,
        acknowledged=st.booleans(),
        acknowledged_until=st.none() | times,
    ).map(lambda each: replace(each, message=f"{each.code} on {each.component}", first=min(each.first, each.last)))


def histories(*clears_by: ClearsBy | None) -> st.SearchStrategy[History]:
    """Histories of the first boot with up to six faults of these kinds, or of any."""
    return st.lists(faults(*clears_by), max_size=6).map(lambda some: history(*some))


findings = st.builds(
    Finding,
    code=st.sampled_from(CODES),
    severity=st.sampled_from(Severity),
    component=components,
    message=st.just("seen"),
    remedy=st.sampled_from(Remedy),
    evidence=st.fixed_dictionaries({}, optional={"count": st.integers(1, 5)}),
    time=st.none() | times,
    clears_by=st.sampled_from([None, *ClearsBy]),
    symptom_of=st.lists(st.sampled_from(CODES), max_size=2).map(tuple),
)
readings = st.builds(
    counter,
    value=st.integers(0, 5).map(float),
    component=components,
    epoch=st.sampled_from(["boot-1", "boot-2"]),
)
clearances = st.builds(
    Clearance,
    by=st.sampled_from(ClearsBy),
    component=components,
    time=st.none() | times,
    note=st.sampled_from(["", "seen to be over"]),
)
outcomes = st.builds(
    lambda check, found, read, cleared, undecided, when: Outcome(
        check=check, result=judged(found, read, undecided=undecided, clearances=cleared), at=when, duration_s=0.1
    ),
    st.sampled_from(CHECKS),
    st.lists(findings, max_size=3),
    st.lists(readings, max_size=2),
    st.lists(clearances, max_size=2),
    st.lists(st.just("gpu:GPU-1 did not answer"), max_size=1),
    times,
)
baselines = st.builds(Baseline, epoch=anyhow, value=st.floats(allow_nan=False, allow_infinity=False))


def all_read(
    situation: Situation | None, repairs: Sequence[Repair] = (), cannot: Mapping[Remedy, str] | None = None
) -> Readings:
    """Everything that can be read for a decision. ``cannot``: the remedies that nobody can carry out, and why."""
    every = {remedy: (cannot or {}).get(remedy, "") for remedy in Remedy}
    return Readings(situation=situation, repairs=tuple(repairs), cannot=every)


def decided_by(asked: Decision | Question, known: Readings) -> tuple[Decision, tuple[Needs, ...]]:
    """The decision by what is known, of which it is given only what it needs; and what that was, in turn."""
    read, needs = Readings(), list[Needs]()
    while isinstance(asked, Question):
        answer = decide(asked, read)
        if isinstance(answer, Decision):
            return answer, tuple(needs)
        needs.append(answer)
        read = Readings(
            situation=known.situation if answer.situation else read.situation,
            repairs=known.repairs if answer.repairs else read.repairs,
            cannot={**read.cannot, **{remedy: known.cannot[remedy] for remedy in answer.remedies}},
        )
    return asked, ()
