"""The simulated NVML: a library without a GPU, for the demo, drills and tests.

Two libraries read the same state file and answer the same: :class:`SimNvml` here, chosen by a library path that ends
in ``.sim``, needs no compiler; ``tests/support/nvml_sim/nvml_sim.c`` is a shared object that the real pynvml loads,
and finds the file through ``NVML_SIM_STATE``. The file is read again whenever it changes; replace it, never edit it in
place (:func:`write_state`). It holds one ``key = value`` per line; blank lines and lines that begin with ``#`` are
skipped. The keys:

    lib.driver_version      text, e.g. 580.95.05
    lib.nvml_version        text, e.g. 13.580.95.05
    lib.excluded_count      number; left out: the driver does not support the question
    lib.fault               none | version_mismatch | driver_not_loaded | hang SECONDS | crash
    gpuN.uuid               GPU-…; the GPUs are 0, 1, 2 … up to the first N without a UUID
    gpuN.pci                00000000:53:00.0, as NVML writes it
    gpuN.fault              none | lost | reset_required | unknown_error | hang SECONDS | crash
    gpuN.starts_s           seconds that its first handle takes; left out: 0, as a persistence daemon runs
    gpuN.field.ID           what nvmlDeviceGetFieldValues answers; gpuN.field.ID/SCOPE for one scope (a link)
    gpuN.nvmlDeviceGet…     what that call answers; with arguments, if there are any: nvmlDeviceGetTotalEccErrors(1,0).
                            Without them the line stands for all arguments that have no line of their own

A call or field without a line is refused as NOT_SUPPORTED; the value ``error 13`` refuses it with that return code. A
value is text, or numbers with a blank between them: one number, a list, or the fields of a struct in the order of
nvml.h (:data:`STRUCTS`). P2P status has one line per peer and capability, nvmlDeviceGetP2PStatus(1,2); the call takes
the capability alone and answers for all GPUs. A field may say its type, ``ull:5``: double uint ulong ull sll int
ushort, uint if left out.

The faults, as NVML has them: ``lost`` is refused with 15 at the handle already; ``unknown_error`` with 999, likewise;
``reset_required`` gives a handle, a UUID and a PCI address, and 16 to everything else; ``hang`` sleeps in each call
except the handle; ``crash`` ends the process with SIGSEGV. Library faults meet every call.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Mapping, Sequence

from healthd.checklib.nvml_codes import NvmlReturn
from healthd.core.errors import SourceMissing
from healthd.probe.nvml_library import NvmlError

TYPE_CHECKING = False  # the name that type checkers know; the worker does without the module typing
if TYPE_CHECKING:
    from typing import Any

State = Mapping[str, str]
"""The lines of a state file."""

STRUCTS: Mapping[str, tuple[str, ...]] = {
    "nvmlDeviceGetRowRemapperHistogram": ("max", "high", "partial", "low", "none"),
    "nvmlDeviceGetSramEccErrorStatus": (
        "aggregateUncParity",
        "aggregateUncSecDed",
        "aggregateCor",
        "volatileUncParity",
        "volatileUncSecDed",
        "volatileCor",
        "aggregateUncBucketL2",
        "aggregateUncBucketSm",
        "aggregateUncBucketPcie",
        "aggregateUncBucketMcu",
        "aggregateUncBucketOther",
        "bThresholdExceeded",
    ),
    "nvmlDeviceGetMemoryInfo": ("total", "free", "used"),
    "nvmlDeviceGetUtilizationRates": ("gpu", "memory"),
}
"""Calls that answer with a struct of numbers, and the names of its fields (nvml.h; nvidia-ml-py 13.615.71)."""

_TEXTS = frozenset({"nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion"})
_FABRIC = "nvmlDeviceGetGpuFabricInfoV"
_FABRIC_FIELDS = ("status", "cliqueId", "state", "healthMask", "healthSummary")
_RETIRED = "nvmlDeviceGetRetiredPages_v2"
_SRAM_UNIQUE = "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts"
_SRAM_UNIQUE_FIELDS = ("unit", "location", "sublocation", "extlocation", "address", "isParity", "count")
_VALIDATE = "nvmlDeviceValidateInforom"
_P2P = "nvmlDeviceGetP2PStatus"
_PROCESSES = frozenset({"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"})
_PROCESS_FIELDS = ("pid", "usedGpuMemory", "gpuInstanceId", "computeInstanceId")
_LIBRARY_FAULTS = {
    "version_mismatch": NvmlReturn.LIB_RM_VERSION_MISMATCH,
    "driver_not_loaded": NvmlReturn.DRIVER_NOT_LOADED,
}
_GPU_FAULTS = {
    "lost": NvmlReturn.GPU_IS_LOST,
    "reset_required": NvmlReturn.RESET_REQUIRED,
    "unknown_error": NvmlReturn.UNKNOWN,
}
_NO_HANDLE = frozenset({"lost", "unknown_error"})


def parse_state(text: str) -> dict[str, str]:
    """The lines of a state file; a line without ``=`` is skipped, and the first line of a key counts."""
    state: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.lstrip().startswith("#"):
            state.setdefault(key.strip(), value.strip())
    return state


def render_state(state: State) -> str:
    """The text of a state file."""
    return "".join(f"{key} = {value}\n" for key, value in state.items())


def write_state(path: str | os.PathLike[str], state: State) -> None:
    """Replace a state file in one step, so that no reader sees half of it."""
    partial = f"{os.fspath(path)}.{os.getpid()}.part"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(render_state(state))
    os.replace(partial, path)


class SimNvml:
    """The simulated library, as ``healthd.probe.nvml_library.NvmlLibrary``. A handle is the index of a GPU."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._state: dict[str, str] = {}
        self._count = 0
        self._initialised = False
        self._gpus = set[int]()

    def initialise(self) -> None:
        """Read the state and begin."""
        self._initialised = True
        try:
            self._enter()
        except (NvmlError, SourceMissing):
            self._initialised = False
            raise

    def shutdown(self) -> None:
        """End; everything is refused until the next beginning."""
        self._enter()
        self._initialised = False
        self._gpus.clear()

    def count(self) -> int:
        """The GPUs that are known, a lost one included."""
        self._enter()
        return self._count

    def excluded_count(self) -> int:
        """The GPUs that an administrator excluded."""
        self._enter()
        return int(_numbers(self._line("lib.excluded_count"))[0])

    def handle(self, index: int) -> int:
        """The handle of a GPU for the other calls."""
        if index >= self.count():
            raise NvmlError(NvmlReturn.INVALID_ARGUMENT)
        if (fault := self._fault(index)) in _NO_HANDLE:
            raise NvmlError(_GPU_FAULTS[fault])
        if index not in self._gpus:
            time.sleep(float(self._state.get(f"gpu{index}.starts_s", 0)))
            self._gpus.add(index)
        return index

    def identity(self, handle: int) -> tuple[str, str]:
        """UUID and PCI bus id."""
        self._read_state()
        self._enter_gpu(handle, even_if_reset_required=True)
        return self._line(f"gpu{handle}.uuid"), self._line(f"gpu{handle}.pci")

    def call(self, handle: int | None, name: str, arguments: Sequence[int]) -> Any:
        """One call by its nvml.h name."""
        if handle is None or name.startswith("nvmlSystem"):
            self._enter()
            key = {"nvmlSystemGetDriverVersion": "driver_version", "nvmlSystemGetNVMLVersion": "nvml_version"}.get(
                name, name
            )
            return self._line(f"lib.{key}")
        if name == "nvmlDeviceGetUUID":
            return self.identity(handle)[0]
        self._enter_gpu(handle)
        if name == _P2P:
            return [self._peer(handle, peer, *arguments) for peer in range(self._count)]
        return _shaped(name, self._of(handle, name, *arguments))

    def fields(self, handle: int, wanted: Sequence[tuple[int, int]]) -> list[int | float | NvmlError]:
        """Field values, each with its own refusal."""
        self._enter_gpu(handle)
        return [self._field(handle, field, scope) for field, scope in wanted]

    # -- the state ----------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """The beginning of a call that is about no GPU: the current file, and the library's own fault."""
        self._read_state()
        self._refuse()

    def _read_state(self) -> None:
        try:
            now = os.stat(self._path)
            if self._seen != (seen := (now.st_mtime_ns, now.st_size, now.st_ino)):
                with open(self._path, encoding="utf-8") as file:
                    self._state = parse_state(file.read())
                self._count = next(index for index in itertools.count() if f"gpu{index}.uuid" not in self._state)
                self._seen = seen
        except FileNotFoundError as error:
            raise SourceMissing(f"simulated NVML: the state file {self._path} is not there") from error

    def _refuse(self) -> None:
        _suffer(self._state.get("lib.fault", "none"), _LIBRARY_FAULTS)
        if not self._initialised:
            raise NvmlError(NvmlReturn.UNINITIALIZED)

    def _enter_gpu(self, index: int, *, even_if_reset_required: bool = False) -> None:
        self._refuse()
        fault = self._fault(index)
        if not (even_if_reset_required and fault == "reset_required"):
            _suffer(fault, _GPU_FAULTS)

    def _fault(self, index: int) -> str:
        return self._state.get(f"gpu{index}.fault", "none")

    def _of(self, index: int, name: str, *arguments: int) -> str:
        exact = f"gpu{index}.{name}({','.join(map(str, arguments))})"
        return self._line(exact if arguments and exact in self._state else f"gpu{index}.{name}")

    def _peer(self, index: int, peer: int, capability: int) -> int | None:
        """The status between two GPUs; None where the other has no handle."""
        if peer == index:
            return 0
        if self._fault(peer) in _NO_HANDLE:
            return None
        return _numbers(self._of(index, _P2P, peer, capability))[0]

    def _line(self, key: str) -> str:
        value = self._state.get(key)
        if value is None:
            raise NvmlError(NvmlReturn.NOT_SUPPORTED)
        word, _, code = value.partition(" ")
        if word == "error":
            raise NvmlError(int(code))
        return value

    def _field(self, index: int, field: int, scope: int) -> int | float | NvmlError:
        exact = f"gpu{index}.field.{field}/{scope}"
        try:
            value = self._line(exact if exact in self._state else f"gpu{index}.field.{field}")
        except NvmlError as error:
            return error
        kind, colon, number = value.partition(":")
        return _number(number if colon else value, exact=kind != "double")


def _suffer(fault: str, refusals: Mapping[str, int]) -> None:
    word, _, seconds = fault.partition(" ")
    if word in refusals:
        raise NvmlError(refusals[word])
    if word == "hang":
        time.sleep(float(seconds))
    elif word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word != "none":
        raise NvmlError(NvmlReturn.INVALID_ARGUMENT)


def _shaped(name: str, value: str) -> Any:
    """A line's value in the form that the real call's result has."""
    if name in _TEXTS:
        return value
    numbers = _numbers(value)
    if name == _VALIDATE:
        return None
    if name in STRUCTS:
        return dict(zip(STRUCTS[name], numbers, strict=True))
    if name == _FABRIC:
        return {"clusterUuid": [0] * 16, **dict(zip(_FABRIC_FIELDS, numbers, strict=True))}
    if name == _RETIRED:
        return [{"address": address, "timestamp": at} for address, at in zip(numbers[::2], numbers[1::2], strict=True)]
    if name == _SRAM_UNIQUE:
        return _rows(_SRAM_UNIQUE_FIELDS, numbers)
    if name in _PROCESSES:
        return _rows(_PROCESS_FIELDS, numbers)
    return numbers[0] if len(numbers) == 1 else numbers


def _rows(fields: Sequence[str], numbers: Sequence[int]) -> list[dict[str, int]]:
    width = len(fields)
    rows = [numbers[start : start + width] for start in range(0, len(numbers), width)]
    return [dict(zip(fields, row, strict=True)) for row in rows]


def _numbers(value: str) -> list[int]:
    return [int(word, 0) for word in value.split()]


def _number(text: str, *, exact: bool) -> int | float:
    return int(text, 0) if exact else float(text)
