"""The check contract: registration, results, and a check whose counter history judges against its own limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import cleandoc
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from healthd.core import check as contract
from healthd.core.check import (
    AnyLimit,
    Check,
    FindingCode,
    Learned,
    Limit,
    NoSettings,
    Rate,
    check,
    discover,
    judged,
    not_applicable,
    ok,
    unknown,
)
from healthd.core.errors import RegistrationError, SourceMissing, SourceTimeout
from healthd.core.model import (
    Clearance,
    ClearsBy,
    Reading,
    ReadingKind,
    Remedy,
    Repeats,
    Result,
    Severity,
    Status,
    gpu_component,
)
from healthd.core.node import Node
from healthd.judge.history import History, observe
from healthd.observe.runner import run_check
from healthd.testing import NOT_SUPPORTED, FakeNode, FakeNvml, gpu_uuid, gpu_with, healthy_gpu
from tests.support.judgement import GPU, at, finding

UNCORRECTED = FindingCode(
    code="test.ecc.uncorrected",
    severity=Severity.CRITICAL,
    remedy=Remedy.RESET_GPU,
    meaning="Uncorrectable errors",
    symptom_of=("gpu.xid.48",),
)
GROWTH = Limit(reading="ecc_uncorrected_total", max_increase=0, code=UNCORRECTED, source="this test")

RATE = Rate(reading="ecc_uncorrected_total", max_increase=0, window_s=60, code=UNCORRECTED, source="this test")
LEARNED = Learned(reading="busbw", code=UNCORRECTED, source="this test")
HELD = replace(UNCORRECTED, code="test.held", clears_by=ClearsBy.REBOOT)


@pytest.fixture(autouse=True)
def registry() -> Iterator[dict[str, Check]]:
    """What a test registers is gone after it: other tests discover the shipped checks only."""
    before = dict(discover())
    yield contract._registry
    contract._registry.clear()
    contract._registry.update(before)


def look(_node: Node, _settings: Any) -> Result:
    """All is well.

    There is nothing to see.
    """
    return ok()


# ---------------------------------------------------------------------------------------------------------------------
# registration


def test_everything_follows_from_the_declaration(registry: dict[str, Check]) -> None:
    """Name, title, text, rhythm, codes and limits are what the decorator was told; the function stays as it is."""

    class Settings(Struct, frozen=True, kw_only=True):
        at_most: int = 3

    decorate = check(
        "test.look",
        interval_s=5,
        timeout_s=2,
        settings=Settings,
        codes=[UNCORRECTED],
        limits=[GROWTH],
        needles=["NVRM:"],
    )
    assert decorate(look) is look
    made = registry["test.look"]
    assert (made.title, cleandoc(made.doc)) == ("All is well", "All is well.\n\nThere is nothing to see.")
    assert (made.interval_s, made.timeout_s, made.settings) == (5, 2, Settings)
    assert (made.codes, made.limits, made.needles, made.on) == ((UNCORRECTED,), (GROWTH,), ("NVRM:",), "interval")


@pytest.mark.parametrize(
    "name", ["", "ecc", "gpu", "Gpu.ecc", "gpu.", ".ecc", "gpu.ecc ", "gpu-1.ecc", "1gpu.ecc", "gpu.1"]
)
def test_a_name_is_dotted_lower_case(name: str) -> None:
    """A name that would not do as a settings table, a label or a command line's word is refused with an example."""
    with pytest.raises(RegistrationError, match="expected dotted lower case, such as gpu.ecc"):
        check(name)(look)


def test_a_check_without_a_docstring_is_refused() -> None:
    """Its first line is the title in every list."""

    def silent(_node: Node, _settings: Any) -> Result:
        return ok()

    with pytest.raises(RegistrationError, match="check 'test.silent' in .* has no docstring"):
        check("test.silent")(silent)


def test_settings_that_are_no_struct_are_refused() -> None:
    """The message says how the class is written."""

    class Limits:
        at_most: int = 3

    with pytest.raises(RegistrationError, match=r"expected a class of msgspec.Struct: class .*Limits\(Struct, frozen"):

        @check("test.plain", settings=Limits)
        def look(_: Node, __: object) -> Result:
            """Looks."""
            return judged(())


def test_a_taken_name_is_refused() -> None:
    """Two checks of one name are a mistake, also within one file; neither silently replaces the other."""

    def other(_node: Node, _settings: Any) -> Result:
        """Look elsewhere."""
        return ok()

    check("test.look")(look)
    with pytest.raises(RegistrationError, match=r"'test.look' of .*other is already taken by .*\.look"):
        check("test.look")(other)


def test_the_same_check_may_be_loaded_again(registry: dict[str, Check]) -> None:
    """A module that is imported a second time brings its own check anew."""
    check("test.look", interval_s=5)(look)
    check("test.look", interval_s=7)(look)
    assert registry["test.look"].interval_s == 7


def test_a_taken_code_is_refused() -> None:
    """A finding code belongs to one check: the fold would take the findings of two for one fault."""

    def other(_node: Node, _settings: Any) -> Result:
        """Look elsewhere."""
        return ok()

    check("test.look", codes=[UNCORRECTED])(look)
    with pytest.raises(RegistrationError, match=r"'test.ecc.uncorrected' is already taken by check 'test.look'"):
        check("test.other", codes=[UNCORRECTED])(other)


@pytest.mark.parametrize(
    ("codes", "limits", "words"),
    [
        ([], [GROWTH], "limit on ecc_uncorrected_total uses 'test.ecc.uncorrected', not one of its codes"),
        ([UNCORRECTED], [GROWTH, GROWTH], "two limits on one reading"),
        ([HELD], [replace(RATE, code=HELD)], "Rate on ecc_uncorrected_total is a level, which ends by itself"),
        ([UNCORRECTED], [RATE, RATE], "two limits on one reading of one kind"),
        ([UNCORRECTED], [replace(LEARNED, within=1.1)], "within = 1.1 on busbw"),
        ([replace(HELD, lasting_s=60)], [], "'test.held' has lasting_s, which is for a level"),
        (
            [replace(UNCORRECTED, lasting_s=60, repeats=Repeats(times=2, window_s=60))],
            [],
            "expected no clears_by, no repe",
        ),
    ],
)
def test_what_could_not_be_judged_is_refused(codes: list[FindingCode], limits: list[AnyLimit], words: str) -> None:
    """A limit raises one of its check's own codes, and ends by itself; a reading has one limit of a kind."""
    with pytest.raises(RegistrationError, match=words):
        check("test.look", codes=codes, limits=limits)(look)


def test_discovery_finds_the_shipped_checks() -> None:
    """Every file under checks/ is found, in the order of names, and each limit's code is one of its check's."""
    found = discover()
    assert list(found) == sorted(found)
    assert {"kernel.xid", "gpu.count", "gpu.ecc", "gpu.remap", "gpu.recovery", "efa.devices"} <= set(found)


def test_discovery_by_name_gives_these_checks_or_all() -> None:
    """A name that no check has makes it all of them, for the message that names a similar one."""
    assert list(discover(("host.cpu", "gpu.ecc", "host.cpu"))) == ["gpu.ecc", "host.cpu"]
    assert discover(("host.cpu", "host.cqu")) == discover(("gpu_ecc",)) == discover(("..",)) == discover()


# ---------------------------------------------------------------------------------------------------------------------
# results


def test_a_code_makes_its_findings() -> None:
    """What is declared once is on every finding; the message, the place and the evidence are this one's."""
    made = UNCORRECTED.at(GPU[0], "2 errors", time=at(1), count=2)
    assert (made.code, made.severity, made.remedy, made.symptom_of) == (
        "test.ecc.uncorrected",
        Severity.CRITICAL,
        Remedy.RESET_GPU,
        ("gpu.xid.48",),
    )
    assert (made.component, made.message, made.time, made.evidence) == (GPU[0], "2 errors", at(1), {"count": 2})


@pytest.mark.parametrize(
    ("findings", "undecided", "status"),
    [(0, 0, Status.OK), (1, 0, Status.FINDINGS), (0, 1, Status.UNKNOWN), (1, 1, Status.FINDINGS)],
)
def test_a_gap_is_unknown_and_hides_no_finding(findings: int, undecided: int, status: Status) -> None:
    """What was seen counts although another part could not be read, and what could not be read is never ok."""
    result = judged([finding()] * findings, undecided=["gpu:GPU-1 did not answer"] * undecided)
    assert (result.status, len(result.findings), len(result.undecided)) == (status, findings, undecided)
    assert result.reason == ("gpu:GPU-1 did not answer" if undecided else "")


def test_the_other_results_say_what_they_are() -> None:
    """Unknown and not applicable carry their reason; ok carries what was read and seen on the way."""
    over = Clearance(by=ClearsBy.GPU_RESET)
    assert (unknown("no answer").status, unknown("no answer").reason) == (Status.UNKNOWN, "no answer")
    assert (not_applicable("no GPU").status, not_applicable("no GPU").reason) == (Status.NOT_APPLICABLE, "no GPU")
    assert ok(clearances=[over], reason="idle") == Result(status=Status.OK, reason="idle", clearances=(over,))


# ---------------------------------------------------------------------------------------------------------------------
# a check whose counter history judges


@pytest.fixture
def ecc(registry: dict[str, Check]) -> Check:
    """One GPU's aggregate counter as a reading, its failures as gaps: the shape of gpu.ecc in a dozen lines."""

    @check("test.ecc", codes=[UNCORRECTED], limits=[GROWTH])
    def aggregate_errors(node: Node, _settings: NoSettings) -> Result:
        """No GPU has had an uncorrectable memory error."""
        question = "nvmlDeviceGetTotalEccErrors(1, 1)"
        readings, undecided = [], []
        for answer in node.nvml.ask(question):
            gpu, value = gpu_component(uuid=answer.uuid, pci=answer.pci), answer.values[question]
            if isinstance(value, int):
                name, epoch = "ecc_uncorrected_total", node.boot_id
                readings.append(Reading(component=gpu, name=name, value=value, kind=ReadingKind.COUNTER, epoch=epoch))
            else:
                undecided.append(f"{gpu}: {value.name}")
        return judged((), readings, undecided=undecided)

    return registry["test.ecc"]


Looks = Callable[..., tuple[History, list[str]]]


@pytest.fixture
def looks(ecc: Check) -> Looks:
    """Run the check again and again on nodes, and fold what it says; the last history and every message raised."""

    def run(*nodes: FakeNode) -> tuple[History, list[str]]:
        known, messages = History(), []
        for node in nodes:
            outcome = run_check(ecc, node, NoSettings())
            known, changes = observe(known, outcome, ecc.limits, outcome.at)
            messages += [f"{change.fault.component} {change.why}" for change in changes if change.opened]
        return known, messages

    return run


def node_with(*counts: object, boot: str = "boot-1") -> FakeNode:
    gpus = [gpu_with(index, {"nvmlDeviceGetTotalEccErrors(1, 1)": count}) for index, count in enumerate(counts)]
    return FakeNode(nvml=FakeNvml(*gpus), boot=boot)


def test_the_scars_of_a_gpu_are_no_fault(looks: Looks) -> None:
    """A GPU that came with 40 errors in its lifetime counter is well while it gets no more."""
    known, messages = looks(node_with(40, 0), node_with(40, 0))
    assert (messages, known.faults) == ([], {})


def test_growth_names_the_gpu_that_grew(looks: Looks) -> None:
    """One more error on one of two GPUs is one finding, on that GPU, with the numbers."""
    known, messages = looks(node_with(40, 0), node_with(41, 0))
    assert messages == [
        f"gpu:{gpu_uuid(0)} Uncorrectable errors: ecc_uncorrected_total rose by 1, from 40 to 41",
    ]
    (each,) = known.faults.values()
    assert (each.code, each.check, each.symptom_of) == ("test.ecc.uncorrected", "test.ecc", ("gpu.xid.48",))


def test_a_gpu_that_cannot_be_read_hides_no_other_and_keeps_its_fault(looks: Looks) -> None:
    """A refused answer is a gap: the other GPU's growth is found, and what is open stays open."""
    known, messages = looks(node_with(1, 1), node_with(2, 1), node_with(NOT_SUPPORTED, 2))
    assert len(messages) == 2
    assert {str(each.component) for each in known.faults.values()} == {f"gpu:{gpu_uuid(0)}", f"gpu:{gpu_uuid(1)}"}


def test_a_reboot_between_two_looks_starts_anew(looks: Looks) -> None:
    """What a counter did while nobody could tell is not held against the GPU."""
    assert looks(node_with(1), node_with(9, boot="boot-2"))[1] == []


@pytest.mark.parametrize("error", [SourceMissing("no library"), SourceTimeout("no answer within 10 s")])
def test_a_silent_library_neither_raises_nor_clears(looks: Looks, error: Exception) -> None:
    """Between two looks at a sick GPU NVML is silent: the fault stays, and nothing is raised twice."""
    silent = FakeNode(nvml=FakeNvml(error=error), boot="boot-1")  # type: ignore[arg-type]
    known, messages = looks(node_with(1), node_with(2), silent)
    assert (len(messages), len(known.faults)) == (1, 1)


def test_a_healthy_gpu_of_the_kit_is_healthy_here(looks: Looks) -> None:
    """The stand-ins answer what the checks ask."""
    assert looks(FakeNode(nvml=FakeNvml(healthy_gpu(0))))[1] == []
