"""The history of a node after its wall clock was set: every time is moved with the clock. Pure.

So the age of a fault stays right, a rate covers the time that passed, and evidence that comes after a fault is later
than the fault, also where the clock went back an hour in between.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from healthd.judge.clock import moved
from healthd.judge.history import History
from healthd.judge.trends import Window


def shifted(history: History, by: timedelta, now: datetime) -> History:
    """The History with its times moved by ``by``, none later than ``now``.

    Three times stay as they are: faults of an earlier boot, whose clock was another; the end of an acknowledgement,
    which the operator gave by the right time; and since when a value is learned, from which nothing is counted.
    """

    def seconds(at_s: float) -> float:
        return min(at_s + by.total_seconds(), now.timestamp())

    def window(known: Window) -> Window:
        return replace(known, marks=tuple((seconds(at_s), value) for at_s, value in known.marks))

    return replace(
        history,
        faults={
            key: replace(fault, first=moved(fault.first, by, now), last=moved(fault.last, by, now))
            if fault.boot_id == history.boot_id
            else fault
            for key, fault in history.faults.items()
        },
        days={key: replace(days, opened=moved(days.opened, by, now)) for key, days in history.days.items()},
        sightings={
            key: replace(known, seen=tuple((seconds(at_s), value) for at_s, value in known.seen))
            for key, known in history.sightings.items()
        },
        rates={key: window(known) for key, known in history.rates.items()},
        stalls={key: window(known) for key, known in history.stalls.items()},
        lasting={key: (check, moved(since, by, now)) for key, (check, since) in history.lasting.items()},
    )
