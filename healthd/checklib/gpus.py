"""Shared by the GPU checks: the list of GPUs, and the meaning of NVML's answers without a value.

Pure over the Node protocol, like a check. It knows NVML's return codes and PCI's vendor and class numbers, and no
check, source or table of faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.gpu_driver import told_by_gpu_driver
from healthd.checklib.nvml_codes import NvmlReturn
from healthd.checklib.pci import pci_gpus, require_pci
from healthd.checklib.tables import instance_profile
from healthd.core.check import FindingCode, LeftTo, judged, not_applicable, unknown
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import NODE, Component, Finding, Reading, Result, gpu_component
from healthd.core.node import GpuAnswer, Node, NvmlFailure, NvmlRefusal

NO_SUCH_QUESTION = frozenset({NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND})
"""This GPU, or this driver, does not have that value. Neither good nor bad."""
NO_SUCH_FIELD = NO_SUCH_QUESTION | {NvmlReturn.INVALID_ARGUMENT}
"""For a field value also INVALID_ARGUMENT: so some older GPUs and drivers answer for a field that came after them,
where others say NOT_SUPPORTED. A field's number is the only argument of the request, so nothing else can be invalid.
Source: Datadog agent, pkg/collector/corechecks/gpu/nvidia/nvlink_fields.go (2026-04). Unproven on hardware."""


MIG = "nvmlDeviceGetMigMode"
"""The call for ``in_mig``: it returns the mode now and the one after the next reset."""


class GpuValues(Struct, frozen=True, kw_only=True):
    """The answers of one GPU, sorted: values, calls that it does not support, and calls that failed.

    ``codes``: every NVML return code other than success among the answers. ``refused``: the refusal of a GPU that is
    lost or waits for a reset, which ``gpu.recovery`` judges; the GPU has no other gap then.
    """

    gpu: Component
    values: Mapping[str, Any]
    unsupported: frozenset[str]
    codes: frozenset[int]
    undecided: tuple[str | LeftTo, ...]
    refused: NvmlRefusal | None = None


def ask_gpus(node: Node, *calls: str, fields: Sequence[int | tuple[int, int]] = ()) -> tuple[GpuValues, ...] | Result:
    """The sorted answers of every GPU; or, where no GPU can answer at all, the result that says why.

    No library, or no GPU in its list: *not applicable* on a node without NVIDIA GPUs, *unknown* on one with them. Where
    the driver as a whole is certainly gone, *not applicable*: gpu.driver reports it once, and is unknown until it
    counts.
    """
    try:
        answers = node.nvml.ask(*calls, fields=fields)
    except (SourceMissing, SourceUnreadable) as error:
        if trouble := told_by_gpu_driver(node, error):
            return not_applicable(trouble)
        if isinstance(error, SourceUnreadable):
            raise
        return without_answers(node, str(error))
    if not answers:
        return without_answers(node, "NVML lists no GPU")
    return tuple(sort_out(answer) for answer in _named(node, answers))


def without_answers(node: Node, why: str, configured: int | None = None) -> Result:
    """The result without an answer of NVML: a node without NVIDIA GPUs, or one whose driver is missing."""
    there, expected = len(pci_gpus(node)), expected_gpus(node, configured)
    if there:
        return unknown(f"{why}; the PCI bus has {there} NVIDIA GPUs: is the NVIDIA driver installed and loaded?")
    if expected:
        return unknown(f"{why}; {expected} GPUs are expected here, and the PCI bus has no NVIDIA GPU")
    return not_applicable("no NVIDIA GPU on the PCI bus")


def sort_out(answer: GpuAnswer) -> GpuValues:
    """Sort one GPU's answers. A GPU that failed as a whole is one gap, not one for each call."""
    gpu = component_of(answer)
    failures = {call: value for call, value in answer.values.items() if isinstance(value, NvmlFailure)}
    unsupported = frozenset(call for call, failure in failures.items() if _is_no_such(call, failure))
    whole = [] if answer.failure is None else [answer.failure.code]
    return GpuValues(
        gpu=gpu,
        values={call: value for call, value in answer.values.items() if call not in failures},
        unsupported=unsupported,
        codes=frozenset([*whole, *(failure.code for failure in failures.values())]),
        undecided=tuple(
            _undecided(answer, gpu, {call: each for call, each in failures.items() if call not in unsupported})
        ),
        refused=answer.refused,
    )


def _undecided(answer: GpuAnswer, gpu: Component, failures: Mapping[str, NvmlFailure]) -> Iterator[str | LeftTo]:
    if answer.refused is not None:
        words = (
            f"{gpu}: {answer.refused.call} was refused with {_text(answer.refused.failure)}: gpu.recovery reports it"
        )
        yield LeftTo(component=gpu, reason=words)
    elif answer.failure is not None:
        yield f"{gpu}: NVML answered {_text(answer.failure)}"
    else:
        yield from (f"{gpu}: {call} answered {_text(failure)}" for call, failure in failures.items())


def _is_no_such(call: str, failure: NvmlFailure) -> bool:
    return failure.code in (NO_SUCH_FIELD if call.startswith("field:") else NO_SUCH_QUESTION)


def component_of(answer: GpuAnswer) -> Component:
    """The GPU that answered, by its most stable name."""
    return gpu_component(uuid=answer.uuid, pci=answer.pci, index=answer.index)


def _text(failure: NvmlFailure) -> str:
    return f"{failure.name} ({failure.code})"


def _named(node: Node, answers: Sequence[GpuAnswer]) -> tuple[GpuAnswer, ...]:
    """Give a GPU that NVML cannot name its PCI address, where only one is left over for it.

    Indices are no names: after a GPU is lost and the driver reloaded they belong to other GPUs.
    """
    nameless = [answer for answer in answers if answer.pci is None and answer.uuid is None]
    if len(nameless) != 1:
        return tuple(answers)
    try:
        left = set(pci_gpus(node)) - {answer.pci for answer in answers}
    except SourceError:
        return tuple(answers)  # no worse than without this help: the GPU keeps its index for a name
    if len(left) != 1:
        return tuple(answers)
    return tuple(replace(answer, pci=min(left)) if answer in nameless else answer for answer in answers)


class Inventory(Struct, frozen=True, kw_only=True):
    """The same GPUs in four lists. ``listed`` and ``files`` are None where they could not be read: see ``undecided``.

    ``openable``: how many of the files this process may open. ``trouble``: why the driver lists none, where
    ``gpu.driver`` reports it and it is no gap; else "".
    """

    expected: int | None
    pci: tuple[str, ...]
    listed: tuple[GpuAnswer, ...] | None
    excluded: int
    files: int | None
    openable: int
    undecided: tuple[str, ...]
    trouble: str = ""


def take_inventory(node: Node, configured: int | None) -> Inventory | Result:
    """Count the GPUs in every list of them; a list that cannot be read hides none of the others.

    A result instead, *not applicable*, on a node that has no NVIDIA GPU and needs none. Raises SourceError when the PCI
    bus cannot be listed, or lists no device of any kind on a node that must have GPUs: that is a hidden /sys.
    """
    pci, expected = pci_gpus(node), expected_gpus(node, configured)
    if expected and not pci:
        require_pci(node)
    undecided: list[str] = []
    listed: tuple[GpuAnswer, ...] | None = None
    excluded, files, openable, trouble = 0, None, 0, ""
    try:
        listed, excluded = node.nvml.ask(), node.nvml.system().get("excluded_count") or 0
    except SourceError as error:
        is_missing = isinstance(error, SourceMissing)
        if is_missing and not pci and not expected:
            return not_applicable("no NVIDIA GPU on the PCI bus, and none is expected")
        trouble = told_by_gpu_driver(node, error)
        if not trouble:
            undecided.append(without_answers(node, str(error), configured).reason if is_missing else str(error))
    if listed == () and not pci and not expected:
        return not_applicable("no NVIDIA GPU on the PCI bus or in NVML, and none is expected")
    try:
        names = [name for name in node.dev.names("") if re.fullmatch(r"nvidia\d+", name)]
        files, openable = len(names), sum(map(node.dev.may_open, names))
    except SourceError as error:
        undecided.append(str(error))
    return Inventory(
        expected=expected,
        pci=pci,
        listed=listed,
        excluded=excluded,
        files=files,
        openable=openable,
        undecided=tuple(undecided),
        trouble=trouble,
    )


def not_listed(gpus: Inventory) -> tuple[list[str], int]:
    """The GPUs on the bus that NVML does not list, and how many of them are unexplained: a GPU that it lists but cannot
    name may be any one of them."""
    listed = gpus.listed or ()
    missing = [address for address in gpus.pci if address not in {answer.pci for answer in listed}]
    return missing, max(len(missing) - sum(answer.pci is None for answer in listed), 0)


def expected_gpus(node: Node, configured: int | None = None) -> int | None:
    """How many GPUs this node must have: as configured, else by its instance type; None if neither is known."""
    if configured is not None:
        return configured
    profile = instance_profile(node.instance_type)
    return profile.gpus if profile else None


def driver_epoch(node: Node) -> str:
    """The epoch of a GPU's volatile counters: this boot, and the driver that is loaded.

    A reload of the same driver version, or a GPU reset, shows as counters that went backwards.
    """
    try:
        version = node.sys.read("module/nvidia/version")
    except SourceMissing:
        version = "unknown"
    return f"boot {node.boot_id}, driver {version}"


def of_the_node(findings: Iterable[Finding], gpus: int) -> tuple[Finding, ...]:
    """The findings, in which one that all GPUs of a node share is one fault of the node, not one of each GPU."""
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(finding.code, []).append(finding)
    return tuple(one for some in alike.values() for one in ([_of_all(some)] if 1 < len(some) == gpus else some))


def _of_all(findings: Sequence[Finding]) -> Finding:
    first, parts = findings[0], [str(finding.component) for finding in findings]
    message = f"all {len(findings)} GPUs: {first.message}"
    return replace(first, component=NODE, message=message, evidence={**first.evidence, "gpus": parts})


def undecided_of(gpus: Iterable[GpuValues]) -> tuple[str | LeftTo, ...]:
    """The undecided parts of all GPUs."""
    return tuple(gap for gpu in gpus for gap in gpu.undecided)


# ---------------------------------------------------------------------------------------------------------------------
# values that a GPU does not report: no fault, and no sign that one is over


def in_mig(gpu: GpuValues) -> bool:
    """Whether MIG is on. The call :data:`MIG` must be among the answers; a GPU without MIG does not support it."""
    return bool(gpu.values.get(MIG, (0,))[0])


def not_supporting(gpu: GpuValues, question: str, says_so: Callable[[Any], bool]) -> GpuValues:
    """The GPU as one that does not support the call, where its value ``says_so``."""
    if question not in gpu.values or not says_so(gpu.values[question]):
        return gpu
    values = {each: value for each, value in gpu.values.items() if each != question}
    return replace(gpu, values=values, unsupported=gpu.unsupported | {question})


def not_reported(
    gpus: Iterable[GpuValues], codes: Mapping[str, Iterable[FindingCode]]
) -> Iterator[tuple[Component, str]]:
    """The codes that each GPU cannot report; ``codes``: call to the codes that depend on it."""
    for gpu in gpus:
        for question in gpu.unsupported & codes.keys():
            yield from ((gpu.gpu, code.code) for code in codes[question])


def judged_gpus(
    gpus: Sequence[GpuValues],
    findings: Iterable[Finding],
    readings: Iterable[Reading],
    *,
    questions: Collection[str],
    rests_on: Mapping[str, Iterable[FindingCode]],
    what: str,
) -> Result:
    """The result of GPUs that were asked for ``questions`` and :data:`MIG`: see :func:`not_reported` for ``rests_on``,
    :func:`withheld` for ``questions``; ``what``: the values that MIG hides, as text."""
    return judged(
        findings,
        readings,
        undecided=[*undecided_of(gpus), *withheld(gpus, questions)],
        not_reported=not_reported(gpus, rests_on),
        left_out=_hidden_by_mig(gpus, questions, what),
    )


def withheld(gpus: Sequence[GpuValues], questions: Collection[str]) -> Iterator[str]:
    """A gap for each GPU that does not support a call while a sibling, with the same driver, answers it.

    Such a GPU is in trouble (while errors are being handled counters go missing) or is set up in another way:
    undecided. With MIG on it is the rule.
    """
    reported = {question for gpu in gpus for question in gpu.values if question in questions}
    for gpu in gpus:
        if not in_mig(gpu) and (missing := sorted(gpu.unsupported & reported)):
            yield f"{gpu.gpu}: {', '.join(missing)} is not supported, but its siblings answer it"


def _hidden_by_mig(gpus: Sequence[GpuValues], questions: Collection[str], what: str) -> str:
    """The text on GPUs that do not report ``what`` because MIG is on; "" where all do."""
    quiet = [gpu for gpu in gpus if in_mig(gpu) and not gpu.unsupported.isdisjoint(questions)]
    return f"with MIG on, {len(quiet)} of {len(gpus)} GPUs do not report {what}" if quiet else ""
