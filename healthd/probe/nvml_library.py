"""The library that the NVML worker needs, real or simulated, and its refusals.

No judgement and no process here; imported by the worker, the simulated library and the source, so it stays small.
"""

from __future__ import annotations

from healthd.checklib.nvml_codes import return_name

TYPE_CHECKING = False  # the name that type checkers know; a worker does without the module typing, which takes 2 MB
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol


class NvmlError(Exception):
    """A call that NVML refused. It never leaves the worker, where it becomes an NvmlFailure or a SourceError."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{return_name(code)} ({code})")
        self.code = int(code)


if TYPE_CHECKING:

    class NvmlLibrary(Protocol):
        """NVML, as far as healthd uses it. Every call may raise NvmlError; values are JSON-like.

        A handle is any value that :meth:`handle` returned, and is never kept beyond one question.
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
