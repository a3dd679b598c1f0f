"""The engine's sign of life: when it last did a step, and how long the present one may take by its own deadline.

The engine may save evidence for minutes and reset GPUs for minutes more. That is no defect as long as each part
of it keeps to its own deadline, so each part says so here; the watchdog takes silence beyond that for a defect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from healthd.core.node import CommandResult


class Beat:
    """Heard from one thread at a time: the one that takes the engine's turn. Asked by any.

    What others run meanwhile, to answer a question, is no sign that the engine is alive. ``clock`` is monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owner: int | None = None
        self._heard = (clock(), 0.0)

    def begin(self) -> None:
        """This thread reconciles, and is the one that is heard until ``end``."""
        self._owner = threading.get_ident()
        self()

    def end(self) -> None:
        """The turn is over."""
        self()
        self._owner = None

    def __call__(self, within_s: float = 0.0) -> None:
        """The next step begins. ``within_s``: it may take so long, in seconds, and be silent."""
        if threading.get_ident() == self._owner:
            self._heard = (self._clock(), within_s)

    def silent_s(self) -> float:
        """For how long nothing was heard, in seconds, beyond what was announced."""
        at, within_s = self._heard
        return max(0.0, self._clock() - at - within_s)

    def announcing(self, run: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
        """``run``, which says before each command how long that may take."""

        def announced(argv: Sequence[str], *, timeout_s: float, **more: Any) -> CommandResult:
            self(timeout_s)
            try:
                return run(argv, timeout_s=timeout_s, **more)
            finally:
                self()

        return announced
