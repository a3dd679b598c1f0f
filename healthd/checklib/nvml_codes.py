"""Names that the worker, the simulated library and the GPU checks share: NVML's return codes, and answers of fields."""

from __future__ import annotations

from enum import IntEnum


class NvmlReturn(IntEnum):
    """nvmlReturn_t of nvml.h, as nvidia-ml-py 13.615.71 names it (NVML_ERROR_…). A newer driver may add codes."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


def return_name(code: int) -> str:
    """NVML's own word for a return code; one that a newer driver added is named by its number."""
    try:
        return NvmlReturn(code).name
    except ValueError:
        return f"CODE_{code}"


def field_key(field: int, scope: int = 0) -> str:
    """The name of a field in an answer: ``field:230``, ``field:208/3`` for scope (link) 3."""
    return f"field:{field}/{scope}" if scope else f"field:{field}"
