"""The family "nvml": the answers of the NVML worker. Runs in the worker only.

The library is initialised once. Handles are read again for each question, GPU by GPU, so a lost GPU hides no other and
no stale handle is ever used. Only calls that read are allowed.
"""

from __future__ import annotations

import re

from healthd.checklib.nvml_codes import NvmlReturn, field_key, return_name
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.probe.nvml_library import NvmlError

TYPE_CHECKING = False  # the name that type checkers know; a worker does without the module typing, which takes 2 MB
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from healthd.probe.nvml_library import NvmlLibrary

Call = tuple[str, str, tuple[int, ...]]
"""The text of a call, its name and its arguments."""

_CALL = re.compile(
    r"(nvml(?:DeviceGet(?!Handle|Count)|DeviceValidate|SystemGet)\w*)\s*(?:\(\s*(-?\d+(?:\s*,\s*-?\d+)*)?\s*\))?"
)
# The handles are void: initialise again before the next question (facts: NVIDIA nvml.h; e, "after reload/reset").
_STALE = frozenset({NvmlReturn.UNINITIALIZED, NvmlReturn.GPU_IS_LOST, NvmlReturn.UNKNOWN})
# This process has the wrong library mapped, or will have it when the driver is back: a fresh process must take over.
_WORN = frozenset({NvmlReturn.DRIVER_NOT_LOADED, NvmlReturn.LIB_RM_VERSION_MISMATCH})
_NEXT_STEP: Mapping[int, str] = {
    NvmlReturn.DRIVER_NOT_LOADED: (
        "the nvidia kernel module is not loaded or not usable; see the kernel log (NVRM) and lsmod"
    ),
    NvmlReturn.LIB_RM_VERSION_MISMATCH: (
        "library and loaded driver differ (half-done upgrade?); reload the driver or reboot"
    ),
}


def family(arguments: Sequence[str]) -> NvmlFamily:
    """The family for one library: "" is libnvidia-ml.so.1, ``….sim`` a simulated state file, else a shared object."""
    (path,) = arguments
    nvml = NvmlFamily(_library(path))
    nvml.warm_up()
    return nvml


class NvmlFamily:
    """The answers of one NVML library. Questions: ``ask`` and ``system``."""

    def __init__(self, library: NvmlLibrary) -> None:
        self.worn = False
        self._library = library
        self._initialised = False
        self._stale = False

    def warm_up(self) -> None:
        """Initialise before the first question, so that it does not use up the question's deadline: the library, and by
        its first handle each GPU, which takes 1 to 3 s each where no persistence daemon keeps them initialised.

        Sources: NVML API, nvmlInit_v2 ("don't initialize any GPUs yet"); NVIDIA Driver Persistence, Overview.
        """
        try:
            self._open()
            count = self._count()
        except (SourceMissing, SourceUnreadable):
            self.worn = False  # the question that follows meets the same error, and reports it
            return
        for index in range(count):
            try:  # noqa: SIM105 - as below
                self._library.handle(index)
            except NvmlError:
                pass  # as above

    def answer(self, op: str, args: Mapping[str, Any]) -> Any:
        """Answer one question. Raises SourceMissing or SourceUnreadable when NVML as a whole does not answer."""
        match op:
            case "ask":
                return self._ask(args["calls"], args["fields"])
            case "system":
                return self._system()
        raise SourceUnreadable(f"the NVML worker got {op!r}; expected 'ask' or 'system'")

    def _ask(self, calls: Sequence[str], fields: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        parsed = [parse_call(call) for call in calls]
        wanted = [(int(field), int(scope)) for field, scope in fields]
        self._open()
        return [self._gpu(index, parsed, wanted) for index in range(self._count())]

    def _system(self) -> dict[str, Any]:
        self._open()
        library = self._library
        try:
            excluded: int | None = library.excluded_count()
        except NvmlError as error:
            if error.code not in (NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND):
                raise self._broken("nvmlGetExcludedDeviceCount", error) from error
            excluded = None
        return {
            "driver_version": self._system_call("nvmlSystemGetDriverVersion"),
            "nvml_version": self._system_call("nvmlSystemGetNVMLVersion"),
            "gpu_count": self._count(),
            "excluded_count": excluded,
        }

    # -- the library --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._stale and self._initialised:
            self._initialised = self._stale = False
            try:  # noqa: SIM105 - contextlib would be one more module in each worker
                self._library.shutdown()
            except NvmlError:
                pass  # it may have lost its state already; nvmlInit below reports the rest
        if not self._initialised:
            self._whole("nvmlInit", self._library.initialise)
            self._initialised = True

    def _count(self) -> Any:
        return self._whole("nvmlDeviceGetCount", self._library.count)

    def _system_call(self, name: str) -> Any:
        return self._whole(name, lambda: self._library.call(None, name, ()))

    def _whole(self, name: str, function: Any) -> Any:
        try:
            return function()
        except NvmlError as error:
            raise self._broken(name, error) from error

    def _broken(self, name: str, error: NvmlError) -> SourceMissing | SourceUnreadable:
        self._note(error)
        if error.code == NvmlReturn.LIBRARY_NOT_FOUND:
            return SourceMissing("NVML: libnvidia-ml.so.1 is not there; it comes with the NVIDIA driver")
        hint = _NEXT_STEP.get(error.code, "compare with nvidia-smi and the kernel log (NVRM)")
        return SourceUnreadable(f"NVML: {name} answered {error}: {hint}")

    def _note(self, error: NvmlError) -> list[Any]:
        """Note the effect of an error on this process, and return the error as JSON."""
        self._stale |= error.code in _STALE
        self.worn |= error.code in _WORN
        return [error.code, return_name(error.code)]

    # -- one GPU ------------------------------------------------------------------------------------------------------

    def _gpu(self, index: int, calls: Sequence[Call], wanted: Sequence[tuple[int, int]]) -> dict[str, Any]:
        failures: dict[str, Any] = {}
        answer: dict[str, Any] = {
            "index": index,
            "uuid": None,
            "pci": None,
            "failure": None,
            "values": {},
            "failures": failures,
        }
        try:
            handle = self._library.handle(index)
            answer["uuid"], answer["pci"] = self._library.identity(handle)
            self._calls(handle, calls, answer)
            self._fields(handle, wanted, answer)
        except NvmlError as error:  # the whole GPU is gone: each question without an answer has the same failure
            answer["failure"] = self._note(error)
            keys = [text for text, _, _ in calls] + [field_key(*pair) for pair in wanted]
            failures.update(
                {key: answer["failure"] for key in keys if key not in answer["values"] and key not in failures}
            )
        return answer

    def _calls(self, handle: Any, calls: Sequence[Call], answer: dict[str, Any]) -> None:
        for text, name, arguments in calls:
            try:
                answer["values"][text] = self._library.call(handle, name, arguments)
            except NvmlError as error:
                if error.code == NvmlReturn.GPU_IS_LOST:
                    raise
                answer["failures"][text] = self._note(error)

    def _fields(self, handle: Any, wanted: Sequence[tuple[int, int]], answer: dict[str, Any]) -> None:
        if not wanted:
            return
        try:
            results = self._library.fields(handle, wanted)
        except NvmlError as error:
            if error.code == NvmlReturn.GPU_IS_LOST:
                raise
            results = [error] * len(wanted)
        for pair, result in zip(wanted, results, strict=True):
            if isinstance(result, NvmlError):
                answer["failures"][field_key(*pair)] = self._note(result)
            else:
                answer["values"][field_key(*pair)] = result


def parse_call(text: str) -> Call:
    """``nvmlDeviceGetTotalEccErrors(1, 0)`` as a Call. Raises SourceUnreadable for any but a reading call."""
    found = _CALL.fullmatch(text.strip())
    if not found:
        raise SourceUnreadable(
            f"NVML call {text!r}: expected nvmlDeviceGet…, nvmlDeviceValidate… or nvmlSystemGet…, "
            "with integer arguments if any, as in 'nvmlDeviceGetTotalEccErrors(1, 0)'"
        )
    return text, found[1], tuple(int(number) for number in (found[2] or "").split(",") if number)


def _library(path: str) -> NvmlLibrary:
    if path.endswith(".sim"):
        from healthd.sim.nvml import SimNvml

        return SimNvml(path)
    from healthd.probe.nvml_pynvml import PynvmlLibrary

    return PynvmlLibrary(path)
