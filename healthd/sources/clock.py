"""The kernel's own view of its clock: adjtimex(2) in its reading form, which needs no privilege and changes nothing.

Layout and words: Linux, include/uapi/linux/timex.h (struct timex, STA_UNSYNC, STA_NANO, TIME_ERROR), and adjtimex(2).
"""

from __future__ import annotations

import ctypes
import os

from healthd.core.errors import SourceUnreadable
from healthd.core.node import KernelClock

_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """struct timex up to ``status``; the rest, with its padding, is room that the kernel fills."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def kernel_clock() -> KernelClock:
    """Whether the clock is synchronised, and how far off it is known to be. Raises SourceUnreadable."""
    answer = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer))
    if state < 0:
        raise SourceUnreadable(f"adjtimex: {os.strerror(ctypes.get_errno())}; expected the state of the clock")
    unit_s = 1e-9 if answer.status & _STA_NANO else 1e-6
    return KernelClock(
        synchronised=state != _TIME_ERROR and not answer.status & _STA_UNSYNC, offset_s=answer.offset * unit_s
    )
