"""How long a test waits for what must come, on whatever machine it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

_TIMES = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.4
_AFTER_A_SLOW_LOOK, _AT_MOST_S = 2.0, 3.0


def limit_s(on_a_quiet_machine_s: float) -> float:
    """Seconds after which it will not come. ``on_a_quiet_machine_s``: what it takes there at most, where nothing else
    runs; a machine whose cores are shared with many others is given several times as long. Waiting ends when it comes,
    so that only a failure takes longer."""
    return _TIMES * on_a_quiet_machine_s


def longer_and_longer(on_a_quiet_machine_s: float) -> Iterator[float]:
    """Deadlines that pass under what has begun. ``on_a_quiet_machine_s``: the first. On a busy machine it may pass
    before that has begun: then the test tries the next one."""
    return (on_a_quiet_machine_s * 8**number for number in range(3))


def pauses() -> Iterator[float]:
    """Seconds to sleep between two polls of a condition: what comes at once is seen at once, and what takes seconds is
    not asked for twenty times in each of them, because most conditions cost a command or a query to ask. One that takes
    long to ask, such as a command on a busy machine, is asked for a third of the time at most."""
    pause_s, sleeps_s, began_s = _FIRST_PAUSE_S, 0.0, time.monotonic()
    while True:
        took_s = time.monotonic() - began_s - sleeps_s
        sleeps_s, began_s = max(pause_s, min(_AT_MOST_S, _AFTER_A_SLOW_LOOK * took_s)), time.monotonic()
        yield sleeps_s
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.4)
