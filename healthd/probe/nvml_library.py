"""What the NVML worker needs of a library, real or simulated, and NVML's return codes by name.

No judgement and no process here; imported by the worker, the simulated library and the source, so it stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

RETURN_NAMES: Mapping[int, str] = {
    0: "SUCCESS",
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}
"""nvmlReturn_t of nvml.h, as nvidia-ml-py 13.615.71 names it (NVML_ERROR_…)."""

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
CORRUPTED_INFOROM = 14
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999


def return_name(code: int) -> str:
    """NVML's own word for a return code; one that a newer driver added is named by its number."""
    return RETURN_NAMES.get(code, f"CODE_{code}")


class NvmlError(Exception):
    """A call that NVML refused. Never leaves the worker: it becomes an NvmlFailure or a SourceError."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{return_name(code)} ({code})")
        self.code = code


class NvmlLibrary(Protocol):
    """NVML, as far as healthd uses it. Every call may raise NvmlError; values are JSON-like.

    A handle is whatever :meth:`handle` returned, and is never kept beyond one question.
    """

    def initialise(self) -> None:
        """nvmlInit. Raises SourceMissing when there is no library, SourceUnreadable when it cannot be loaded."""

    def shutdown(self) -> None:
        """nvmlShutdown."""

    def count(self) -> int:
        """How many GPUs the driver knows; one that was lost since the driver loaded still counts."""

    def excluded_count(self) -> int:
        """How many GPUs were excluded from use by the administrator."""

    def handle(self, index: int) -> Any:
        """The handle of a GPU. A lost GPU is refused here already (GPU_IS_LOST)."""

    def identity(self, handle: Any) -> tuple[str, str]:
        """The UUID and the PCI bus id, as NVML writes them."""

    def call(self, handle: Any, name: str, arguments: Sequence[int]) -> Any:
        """One call by its nvml.h name. nvmlSystem… calls take no handle."""

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[int | float | NvmlError]:
        """nvmlDeviceGetFieldValues for (field, scope) pairs, in order; a field that was refused is its error."""
