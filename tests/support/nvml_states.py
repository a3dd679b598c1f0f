"""States of the simulated NVML that only tests need: rare faults of a library, a GPU and its memory."""

from __future__ import annotations

from healthd.sim.nvml import State
from healthd.sim.nvml_state import RECOVERY_ACTION_FIELD, with_line


def with_library_fault(state: State, fault: str) -> dict[str, str]:
    """``none``, ``version_mismatch``, ``driver_not_loaded``, ``hang SECONDS`` or ``crash``."""
    return with_line(state, "lib.fault", fault)


def with_recovery_action(state: State, gpu: int, action: int) -> dict[str, str]:
    """The recovery that the driver recommends for this GPU; see RECOVERY_ACTION_FIELD."""
    return with_line(state, f"gpu{gpu}.field.{RECOVERY_ACTION_FIELD}", action)


def with_remap(
    state: State,
    gpu: int,
    *,
    correctable: int = 0,
    uncorrectable: int = 0,
    pending: bool = False,
    failure: bool = False,
) -> dict[str, str]:
    """Remapped rows, a remap that waits for a reset, or one that failed."""
    rows = (correctable, uncorrectable, int(pending), int(failure))
    fields = {f"gpu{gpu}.field.{142 + offset}": str(value) for offset, value in enumerate(rows)}
    return {**state, f"gpu{gpu}.nvmlDeviceGetRemappedRows": " ".join(map(str, rows)), **fields}


def with_ecc(
    state: State, gpu: int, *, corrected: int = 0, uncorrected: int = 0, aggregate: bool = False
) -> dict[str, str]:
    """Total ECC errors of one counter: volatile (since the driver loaded) or aggregate (for life)."""
    counter, single, double = (1, 5, 6) if aggregate else (0, 3, 4)
    total = f"gpu{gpu}.nvmlDeviceGetTotalEccErrors"
    return {
        **state,
        f"{total}(0,{counter})": str(corrected),
        f"{total}(1,{counter})": str(uncorrected),
        f"gpu{gpu}.field.{single}": f"ull:{corrected}",
        f"gpu{gpu}.field.{double}": f"ull:{uncorrected}",
    }


def with_sram_threshold_exceeded(state: State, gpu: int) -> dict[str, str]:
    """More unique uncorrectable SRAM errors in one bank than allowed: the GPU is to be replaced."""
    return with_line(state, f"gpu{gpu}.nvmlDeviceGetSramEccErrorStatus", "0 3 0 0 3 0 0 3 0 0 0 1")


def without_last_gpus(state: State, count: int) -> dict[str, str]:
    """As after a reload of the driver that did not find ``count`` GPUs: they are not in the count any more."""
    total = sum(key.endswith(".uuid") for key in state)
    gone = tuple(f"gpu{index}." for index in range(total - count, total))
    return {key: value for key, value in state.items() if not key.startswith(gone)}
