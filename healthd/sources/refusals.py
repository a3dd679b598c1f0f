"""A GPU's lasting refusals: GPU_IS_LOST and RESET_REQUIRED, of any call, until the GPU answers again.

Some calls get such a code while others still answer from the driver's memory. Here it is remembered by GPU, so that one
check can judge it, whatever calls that check itself makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from healthd.checklib.nvml_codes import NvmlReturn
from healthd.core.node import GpuAnswer, NvmlFailure, NvmlRefusal

KEPT_S = 10_800.0
"""How long a refusal counts without another call: three times the longest interval of a GPU check, an hour."""
_FOR_GOOD = (NvmlReturn.GPU_IS_LOST, NvmlReturn.RESET_REQUIRED)  # the worse one first
_HANDLE = "its handle"


class Refusals:
    """The refusals in effect, by GPU and call. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._current: dict[str, dict[str, tuple[float, NvmlFailure]]] = {}

    def forget(self) -> None:
        """Forget all refusals: a new worker has initialised NVML, and calls are made again."""
        self._current.clear()

    def noted(self, answer: GpuAnswer) -> GpuAnswer:
        """The answer with the worst refusal in effect. A call that was refused and is now answered is evidence that the
        GPU was reset, or came back: its earlier refusals end then."""
        gpu, met = answer.uuid or str(answer.index), dict(_refused(answer))
        before = self._current.get(gpu, {})
        if not (before or met):  # so it is nearly always
            return answer
        now = self._clock()
        asked = {_HANDLE, *answer.values} if answer.failure is None else {_HANDLE}
        kept = {} if (before.keys() & asked) - met.keys() else before
        current = {call: each for call, each in kept.items() if now - each[0] <= KEPT_S}
        current |= {call: (now, failure) for call, failure in met.items()}
        self._current[gpu] = current
        if not current:
            return answer
        call, (_, failure) = min(current.items(), key=lambda each: _FOR_GOOD.index(NvmlReturn(each[1][1].code)))
        return replace(answer, refused=NvmlRefusal(call=call, failure=failure))


def _refused(answer: GpuAnswer) -> Iterator[tuple[str, NvmlFailure]]:
    """The calls that this answer refuses for good. Without a handle no call was made, whatever is noted of it."""
    calls = answer.values.items() if answer.failure is None else [(_HANDLE, answer.failure)]
    for call, value in calls:
        if type(value) is NvmlFailure and value.code in _FOR_GOOD:
            yield call, value
