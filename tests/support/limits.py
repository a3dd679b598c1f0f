"""How long a test waits for what must come, on whatever machine it runs."""

from __future__ import annotations

_TIMES = 6.0


def limit_s(on_a_quiet_machine_s: float) -> float:
    """Seconds after which it will not come. ``on_a_quiet_machine_s``: what it takes there at most, where nothing else
    runs; a machine whose cores are shared with many others is given several times as long. Waiting ends when it comes,
    so that only a failure takes longer."""
    return _TIMES * on_a_quiet_machine_s
