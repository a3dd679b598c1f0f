"""NVML through the real ``pynvml`` (distribution nvidia-ml-py). Runs in the NVML worker only.

pynvml declares no argument types: a struct passed by value, or a missing pointer, ends the process with SIGSEGV. Calls
that fill a struct are therefore in a table here and get it by reference; all other arguments are integers.
Every result is turned into plain JSON-like values.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence

import pynvml

from healthd.checklib.nvml_codes import NvmlReturn
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.probe.nvml_library import NvmlError

TYPE_CHECKING = False  # the name that type checkers know; the worker does without the module typing
if TYPE_CHECKING:
    from typing import Any

# Calls that fill a struct the caller brings, with the structs to try, newest first (nvidia-ml-py 13.615.71).
_FILLS: Mapping[str, tuple[str, ...]] = {
    "nvmlDeviceGetSramEccErrorStatus": ("c_nvmlEccSramErrorStatus_v1_t",),
    "nvmlDeviceGetGpuFabricInfoV": ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"),
    "nvmlDeviceGetNvLinkInfo": ("c_nvmlNvLinkInfo_v2_t", "c_nvmlNvLinkInfo_v1_t"),
    "nvmlDeviceGetRemappedRows_v2": ("c_nvmlRemappedRowsInfo_v2_t",),
    "nvmlDeviceGetPlatformInfo": ("c_nvmlPlatformInfo_v2_t", "c_nvmlPlatformInfo_v1_t"),
}
_SRAM_UNIQUE = "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts"
_P2P = "nvmlDeviceGetP2PStatus"  # takes a second GPU, so it is asked about all of them, in the order of their index
# nvmlValueType_t -> member of the nvmlValue_t union (nvml.h)
_UNION: Mapping[int, str] = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class PynvmlLibrary:
    """The shared object at ``path``, or the one that pynvml finds by itself where ``path`` is empty."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialise(self) -> None:
        """Load the library, once, and nvmlInit."""
        if self._path and pynvml.nvmlLib is None:
            pynvml.nvmlLib = _load(self._path)
        _checked(pynvml.nvmlInit)

    def shutdown(self) -> None:
        """nvmlShutdown; the library stays loaded."""
        _checked(pynvml.nvmlShutdown)

    def count(self) -> int:
        """nvmlDeviceGetCount_v2."""
        return int(_checked(pynvml.nvmlDeviceGetCount))

    def excluded_count(self) -> int:
        """nvmlGetExcludedDeviceCount."""
        return int(_checked(pynvml.nvmlGetExcludedDeviceCount))

    def handle(self, index: int) -> Any:
        """nvmlDeviceGetHandleByIndex_v2."""
        return _checked(pynvml.nvmlDeviceGetHandleByIndex, index)

    def identity(self, handle: Any) -> tuple[str, str]:
        """nvmlDeviceGetUUID and the bus id of nvmlDeviceGetPciInfo_v3."""
        pci = _checked(pynvml.nvmlDeviceGetPciInfo, handle)
        return str(_checked(pynvml.nvmlDeviceGetUUID, handle)), str(pci.busId)

    def call(self, handle: Any, name: str, arguments: Sequence[int]) -> Any:
        """A call that takes integers, or fills a struct of the table above."""
        function = getattr(pynvml, name, None)
        if function is None:
            raise NvmlError(NvmlReturn.FUNCTION_NOT_FOUND)
        if name in _FILLS:
            return _filled(function, handle, _FILLS[name])
        if name == _SRAM_UNIQUE:
            return _sram_unique(function, handle)
        if name == _P2P:
            return self._peers(function, handle, *arguments)
        device = () if name.startswith("nvmlSystem") else (handle,)
        try:
            return plain(_checked(function, *device, *arguments))
        except (TypeError, ctypes.ArgumentError) as error:
            raise SourceUnreadable(
                f"NVML call {name}{tuple(arguments)}: {error}; it may need a row in _FILLS"
            ) from error

    def _peers(self, function: Callable[..., Any], handle: Any, capability: int) -> list[int | None]:
        """One status for each GPU: itself is 0 (OK), one whose handle is refused is None and breaks nothing else."""
        found: list[int | None] = []
        for index in range(self.count()):
            try:
                peer = self.handle(index)
            except NvmlError:
                found.append(None)
                continue
            itself = ctypes.cast(peer, ctypes.c_void_p).value == ctypes.cast(handle, ctypes.c_void_p).value
            found.append(0 if itself else int(_checked(function, handle, peer, capability)))
        return found

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[int | float | NvmlError]:
        """nvmlDeviceGetFieldValues; ids may repeat with other scopes."""
        return [_field(result) for result in _checked(pynvml.nvmlDeviceGetFieldValues, handle, list(wanted))]


def plain(value: Any) -> Any:
    """A pynvml result as JSON-like data: structs become dicts of their fields, without the struct's version number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Structure):
        names = [field[0] for field in value._fields_]
        return {name: plain(getattr(value, name)) for name in names if name != "version"}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | ctypes.Array):
        return [plain(item) for item in value]
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return plain(vars(value))
    raise SourceUnreadable(f"NVML answered with a {type(value).__name__}, which healthd cannot turn into data")


def _load(path: str) -> ctypes.CDLL:
    if not os.path.exists(path):
        raise SourceMissing(f"NVML: {path} does not exist; check [sources] nvml_library")
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise SourceUnreadable(f"NVML: cannot load {path}: {error}; check [sources] nvml_library") from error


def _checked(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(int(error.value)) from error
    except UnicodeDecodeError as error:  # pynvml decodes names itself; a broken InfoROM holds anything
        raise NvmlError(NvmlReturn.CORRUPTED_INFOROM) from error


def _filled(function: Callable[..., Any], handle: Any, structs: Sequence[str]) -> Any:
    """Fill the newest struct that both the wrapper and the driver know; always by reference."""
    for name in structs:
        kind = getattr(pynvml, name, None)
        if kind is None:
            continue
        struct = kind()
        try:
            _checked(function, handle, ctypes.byref(struct))
        except NvmlError as error:
            if error.code != NvmlReturn.ARGUMENT_VERSION_MISMATCH or name == structs[-1]:
                raise
        else:
            return plain(struct)
    raise NvmlError(NvmlReturn.FUNCTION_NOT_FOUND)


def _sram_unique(function: Callable[..., Any], handle: Any) -> list[Any]:
    """First the number of entries, then the entries: the struct points to memory of this process."""
    counts = pynvml.c_nvmlEccSramUniqueUncorrectedErrorCounts_v1_t()
    try:
        _checked(function, handle, ctypes.byref(counts))
    except NvmlError as error:
        if error.code != NvmlReturn.INSUFFICIENT_SIZE:
            raise
    if not counts.entryCount:
        return []
    entries = (pynvml.c_nvmlEccSramUniqueUncorrectedErrorEntry_v1_t * counts.entryCount)()
    counts.entries = entries
    _checked(function, handle, ctypes.byref(counts))
    return [plain(entry) for entry in entries[: counts.entryCount]]


def _field(result: Any) -> int | float | NvmlError:
    """One nvmlFieldValue_t. Its own return code decides: a refused field has the value 0, often the healthy one."""
    if result.nvmlReturn:
        return NvmlError(int(result.nvmlReturn))
    member = _UNION.get(int(result.valueType))
    return NvmlError(NvmlReturn.UNKNOWN) if member is None else getattr(result.value, member)
