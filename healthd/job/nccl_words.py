"""NCCL's own words in the log of a job: the watchdog's timeouts and the flight recorder's dumps, as PyTorch prints it.

Pure, over text that a user of the cluster wrote: its words are shown and permit nothing. A dump itself is a pickle,
which would run what its author wants: it is named, never opened.

Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, releases 2.2 to 2.8 ("Watchdog caught collective
operation timeout", "last enqueued", "Flight Recorder debug info").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from healthd.core.name_lists import listed

MOST_RANKS = 100_000
_RANK = r"[Rr]ank ?(\d{1,6})\]"
_TIMEOUT = re.compile(
    rf"{_RANK}[^\n]{{0,40}}?Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})"
)
_DUMP = re.compile(r"Finished writing (?:Flight Recorder|NCCLPG) debug info to (\S{1,200})")


class NcclWords(Struct, frozen=True, kw_only=True):
    """``timeouts``: by rank the collective in which it timed out first, as (operation, number). ``dumps``: how many the
    flight recorder wrote, ``dump``: the first of them. ``unread``: which logs were not read, or ""."""

    timeouts: Mapping[int, tuple[str, int]]
    dumps: int = 0
    dump: str = ""
    unread: str = ""

    def sentences(self, ranks: int = 0) -> tuple[str, ...]:
        """Their meaning, one sentence each. ``ranks``: how many the job has, one for each GPU; 0: not known."""
        found = [self.unread] if self.unread else []
        for (operation, number), count in Counter(self.timeouts.values()).most_common(3):
            found.append(f"{count} rank{'' if count == 1 else 's'} timed out in {operation} number {number}")
        silent = sorted(set(range(ranks)) - self.timeouts.keys())
        if self.timeouts and 0 < len(silent) <= ranks // 2:
            found.append(f"no timeout of rank {listed([str(rank) for rank in silent])}: not in that collective")
        if self.dumps:
            found.append(f"{self.dumps} flight recorder dump{'' if self.dumps == 1 else 's'}, such as {self.dump}")
        return tuple(found)


def parse_words(texts: Iterable[str]) -> NcclWords:
    """The words in these logs. A rank's first timeout counts: what follows is the end of its process."""
    timeouts: dict[int, tuple[str, int]] = {}
    dumps: dict[str, None] = {}
    for text in texts:
        for rank, number, operation in _TIMEOUT.findall(text):
            if len(timeouts) < MOST_RANKS:
                timeouts.setdefault(int(rank), (operation, int(number)))
        dumps |= dict.fromkeys(_DUMP.findall(text))
    return NcclWords(timeouts=timeouts, dumps=len(dumps), dump=next(iter(dumps), ""))
