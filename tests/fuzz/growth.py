"""Whether a parser's time grows with the size of its input, and not faster: a measurement of CPU time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

from msgspec import Struct

from tests.fuzz.target import Target

_TIMES = 8
"""How much larger the large input is."""
_STEEPER = 3.0
"""What may come on top: a quadratic parser is 8 times steeper than a linear one at this size, and caches make some."""
_WORTH_S = 0.05
"""Less than this for the largest input is nothing to speak of, whatever the ratio."""
_TRIES = 3
"""The least of so many counts: whatever else the machine does makes a try longer, and none shorter."""


class Growth(Struct, frozen=True, kw_only=True):
    """One unit, repeated: seconds of CPU for the small and for the large input."""

    target: str
    unit: bytes
    small_s: float
    large_s: float

    @property
    def is_linear(self) -> bool:
        """As far as this can tell."""
        return self.large_s < _WORTH_S or self.large_s < _TIMES * _STEEPER * max(self.small_s, 1e-5)

    def __str__(self) -> str:
        times = self.large_s / max(self.small_s, 1e-9)
        sizes = f"{self.small_s:.4f} s, {_TIMES} x as much {self.large_s:.4f} s (x {times:.0f})"
        return f"{self.target}: {self.unit[:60]!r} repeated: {sizes}"


def growths(target: Target, *, seeds: int = 4) -> Iterator[Growth]:
    """Each unit, alone and behind the first seed; of the seeds, the first few."""
    for unit in (*target.units, *target.seeds[:seeds], b"\n", b" ", b"9", b"["):
        for head in (b"", target.seeds[0]):
            yield _measured(target, head, unit or b"x")


def _measured(target: Target, head: bytes, unit: bytes) -> Growth:
    small = head + unit * (target.longest // _TIMES // len(unit) + 1)
    large = head + unit * (target.longest // len(unit) + 1)
    small_s, large_s = [], []
    for _ in range(_TRIES):
        large_s.append(_took_s(target, large))
        small_s.append(_took_s(target, small))
        if large_s[-1] < _WORTH_S:
            break
    return Growth(target=target.name, unit=unit, small_s=min(small_s), large_s=min(large_s))


def _took_s(target: Target, data: bytes) -> float:
    """Seconds of CPU for one call, without the garbage collector: a large heap is walked in the time of the caller."""
    collects = gc.isenabled()
    gc.disable()
    try:
        began = time.process_time()
        target.takes(data)
        return time.process_time() - began
    finally:
        if collects:
            gc.enable()
